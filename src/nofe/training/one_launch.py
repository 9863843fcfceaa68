"""SGD as one launch: every weight stepped, and its copy in bfloat16 made, by a single kernel.

torch's fused SGD takes one launch for each group of parameters and fills a GPU only if they are large, and the casts
to bfloat16 and back read and write all of it twice more. Here a table says where each weight, its gradient, velocity
and copy are; each program of the kernel takes one piece of one of them. Gradients of copies are read as they are.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor, nn

from nofe.training.launch import after_capture

PIECE = 4096  # numbers for each program
COLUMNS = 6  # of the table: addresses of weight, gradient, velocity, copy (0: none); numbers; group


class OneLaunchSGD(torch.optim.SGD):
    """torch's SGD on one GPU, with momentum and its rates given as tensors. CapturedStep may capture it, once.

    It may keep copies of weights in bfloat16 for the network to compute with; their gradients are then the weights'.
    """

    def __init__(self, groups: Any, **settings: Any) -> None:
        super().__init__(groups, **settings)
        self._copies: dict[nn.Parameter, Tensor] = {}
        weights = [weight for group in self.param_groups for weight in group["params"]]
        self._device = weights[0].device
        self._pieces = self._on_device([(n, at) for n, w in enumerate(weights) for at in range(0, w.numel(), PIECE)])
        self._rates = self._on_device([group["lr"].data_ptr() for group in self.param_groups])
        self._decays = torch.tensor([group["weight_decay"] for group in self.param_groups], device=self._device)
        self._rows: list[tuple[int, ...]] = []
        self._table = self._on_device([])
        self._of_captured = self._on_device([(0,) * COLUMNS] * len(weights))

    def keep_copies(self, weights: Sequence[nn.Parameter]) -> list[Tensor]:
        """In bfloat16: leaves, to be differentiated in place of the weights. Every step makes them anew."""
        for weight in weights:
            if weight not in self._copies:
                self._copies[weight] = torch.empty_like(weight, dtype=torch.bfloat16).requires_grad_()
        self.refresh_copies()
        return [self._copies[weight] for weight in weights]

    @torch.no_grad()
    def refresh_copies(self) -> None:
        """After anything but a step has changed the weights."""
        if self._copies:
            torch._foreach_copy_(list(self._copies.values()), list(self._copies))

    def zero_grad(self, set_to_none: bool = True) -> None:
        super().zero_grad(set_to_none)
        for copy in self._copies.values():
            copy.grad = None

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        gradients = []  # held until the kernel is launched: the table has addresses alone
        rows = []
        for number, group in enumerate(self.param_groups):
            for weight in group["params"]:
                copy = self._copies.get(weight)
                gradients.append(_laid_out_like(weight, weight.grad if copy is None else copy.grad))
                tensors = (weight, gradients[-1], self._velocity(weight), copy)
                addresses = (0 if tensor is None else tensor.data_ptr() for tensor in tensors)
                rows.append((*addresses, weight.numel(), number))
        table = self._table_of(rows)
        first = self.param_groups[0]
        _step_of_a_piece[(len(self._pieces),)](
            table, self._pieces, self._rates, self._decays, first["momentum"],
            nesterov=first["nesterov"], aligned=all(address % 16 == 0 for row in rows for address in row[:4]),
            length=PIECE, columns=COLUMNS, num_warps=8,
        )  # fmt: skip

    def _velocity(self, weight: nn.Parameter) -> Tensor:
        memory = self.state[weight]
        if "momentum_buffer" not in memory:
            memory["momentum_buffer"] = torch.zeros_like(weight)
        velocity: Tensor = memory["momentum_buffer"]
        return velocity

    def _table_of(self, rows: list[tuple[int, ...]]) -> Tensor:
        if self._device.type == "cuda" and torch.cuda.is_current_stream_capturing():
            # A copy in the graph would be repeated at every step, and took as long as the kernel saves.
            after_capture(partial(self._of_captured.copy_, torch.tensor(rows)))
            return self._of_captured
        if rows != self._rows:
            self._rows, self._table = rows, self._on_device(rows)
        return self._table

    def _on_device(self, numbers: list[Any]) -> Tensor:
        tensor = torch.tensor(numbers, dtype=torch.int64)
        pinned = tensor.pin_memory() if self._device.type == "cuda" else tensor
        return pinned.to(self._device, non_blocking=True)


def _laid_out_like(weight: Tensor, gradient: Tensor | None) -> Tensor | None:
    """The kernel knows no strides: what lies in memory in another order is copied."""
    if gradient is None:
        return None
    of_more_than_one = [n for n, size in enumerate(weight.shape) if size > 1]
    if all(gradient.stride(n) == weight.stride(n) for n in of_more_than_one):
        return gradient
    return torch.empty_like(weight, dtype=gradient.dtype).copy_(gradient)


@triton.jit  # type: ignore[untyped-decorator]
def _step_of_a_piece(  # type: ignore[no-untyped-def]
    table, pieces, rates, decays, momentum,
    nesterov: tl.constexpr, aligned: tl.constexpr, length: tl.constexpr, columns: tl.constexpr,
):  # fmt: skip
    piece = tl.program_id(0)
    row = table + tl.load(pieces + 2 * piece) * columns
    start = tl.multiple_of(tl.load(pieces + 2 * piece + 1), length)
    count, group = tl.load(row + 4), tl.load(row + 5)
    rate = tl.load(tl.load(rates + group).to(tl.pointer_type(tl.float32)))
    decay = tl.load(decays + group)
    if tl.load(row + 1) != 0:  # or there is no gradient
        if start + length <= count:  # without a mask several numbers are read at once
            _step_of_numbers(row, start, count, rate, decay, momentum, nesterov, aligned, False, length)
        else:
            _step_of_numbers(row, start, count, rate, decay, momentum, nesterov, aligned, True, length)


@triton.jit  # type: ignore[untyped-decorator]
def _step_of_numbers(  # type: ignore[no-untyped-def]
    row, start, count, rate, decay, momentum,
    nesterov: tl.constexpr, aligned: tl.constexpr, masked: tl.constexpr, length: tl.constexpr,
):  # fmt: skip
    at = start + tl.arange(0, length)
    inside = at < count if masked else None
    weight_at = tl.load(row).to(tl.pointer_type(tl.float32))
    velocity_at = tl.load(row + 2).to(tl.pointer_type(tl.float32))
    copy_at = tl.load(row + 3).to(tl.pointer_type(tl.bfloat16))
    if aligned:
        weight_at, velocity_at = tl.multiple_of(weight_at, 16), tl.multiple_of(velocity_at, 16)
        copy_at = tl.multiple_of(copy_at, 16)
    has_copy = tl.load(row + 3) != 0
    weight, velocity = tl.load(weight_at + at, mask=inside), tl.load(velocity_at + at, mask=inside)
    if has_copy:
        half_at = tl.load(row + 1).to(tl.pointer_type(tl.bfloat16))
        if aligned:
            half_at = tl.multiple_of(half_at, 16)
        gradient = tl.load(half_at + at, mask=inside).to(tl.float32)
    else:
        full_at = tl.load(row + 1).to(tl.pointer_type(tl.float32))
        if aligned:
            full_at = tl.multiple_of(full_at, 16)
        gradient = tl.load(full_at + at, mask=inside)
    gradient += decay * weight
    velocity = momentum * velocity + gradient
    weight -= rate * (gradient + momentum * velocity if nesterov else velocity)
    tl.store(weight_at + at, weight, mask=inside)
    tl.store(velocity_at + at, velocity, mask=inside)
    if has_copy:
        tl.store(copy_at + at, weight.to(tl.bfloat16), mask=inside)
