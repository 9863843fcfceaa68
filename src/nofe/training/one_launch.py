"""SGD in few launches: weights stepped, and their copies in bfloat16 made, by one kernel for many of them.

torch's fused SGD takes one launch for each group of parameters and fills a GPU only if they are large, and the casts
to bfloat16 and back read and write all of it twice more. Here a table says where each weight, its gradient, velocity
and copy are; each program of the kernel takes one piece of one of them. Gradients of copies are read as they are.
"""

from collections.abc import Sequence
from contextlib import nullcontext
from functools import partial
from itertools import pairwise
from typing import Any
from weakref import ref

import torch
import triton
import triton.language as tl
from torch import Tensor, nn

from nofe.training.launch import after_capture

PIECE = 4096  # numbers for each program
COLUMNS = 6  # of the table: addresses of weight, gradient, velocity, copy (0: none); numbers; group
ENOUGH = 2**20  # numbers, to be stepped beside the rest of backward


class OneLaunchSGD(torch.optim.SGD):
    """torch's SGD on one GPU, with momentum and its rates given as tensors. CapturedStep may capture it, once.

    It may keep copies of weights in bfloat16 for the network to compute with; their gradients are then the weights'.
    """

    def __init__(self, groups: Any, **settings: Any) -> None:
        super().__init__(groups, **settings)
        self._copies: dict[nn.Parameter, Tensor] = {}
        self._group_of = {weight: n for n, group in enumerate(self.param_groups) for weight in group["params"]}
        self._device = next(iter(self._group_of)).device
        self._rates = _on_device([group["lr"].data_ptr() for group in self.param_groups], self._device)
        self._decays = torch.tensor([group["weight_decay"] for group in self.param_groups], device=self._device)
        self._lots = [_Lot(list(self._group_of), self._device)]  # each stepped by a launch of its own
        self._is_told = False  # by hooks, of gradients as they come
        self._arrived: dict[nn.Parameter, None] = {}  # in the order in which they came
        self._beside = _Beside(self._device)
        self._are_last = False  # whether those that come now are the last of this step

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

    def backward_and_step(self, loss: Tensor) -> None:
        """Like `loss.backward()` and `step()`, but weights are stepped as soon as enough of them have gradients.

        The last layers are the largest and come first; their step takes memory's time, which the many small kernels
        of backward leave free.
        """
        first = not self._is_told
        if first:
            self._is_told = True
            own = ref(self)  # a hook that held the optimizer would keep it, and all weights, for ever
            for weight in self._group_of:
                leaf = self._copies.get(weight, weight)
                if leaf.requires_grad:
                    leaf.register_post_accumulate_grad_hook(partial(_tell, own, ref(weight)))
        self._are_last = True
        self._beside.begin()
        try:
            loss.backward()
            self.step()
        finally:  # what failed leaves nothing behind for the next step
            self._beside.join()
            self._are_last = False
            for lot in self._lots:
                lot.waits_for.update(lot.weights)
        if first:  # what comes first is stepped first from now on
            others = [weight for weight in self._group_of if weight not in self._arrived]
            self._lots = [_Lot(weights, self._device) for weights in _in_lots([*self._arrived, *others])]

    def gradient_came(self, weight: nn.Parameter) -> None:
        self._arrived[weight] = None
        for lot in self._lots[:-1] if self._are_last else ():
            if weight in lot.waits_for:
                lot.waits_for.remove(weight)
                if not lot.waits_for:
                    with self._beside.the_rest():
                        self._step(lot)

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        for lot in self._lots:
            if lot.waits_for:  # else it was stepped beside backward
                self._step(lot)

    @torch.no_grad()
    def _step(self, lot: "_Lot") -> None:
        gradients = []  # held until the kernel is launched: the table has addresses alone
        rows = []
        for weight in lot.weights:
            copy = self._copies.get(weight)
            gradients.append(_laid_out_like(weight, weight.grad if copy is None else copy.grad))
            tensors = (weight, gradients[-1], self._velocity(weight), copy)
            addresses = (0 if tensor is None else tensor.data_ptr() for tensor in tensors)
            rows.append((*addresses, weight.numel(), self._group_of[weight]))
        first = self.param_groups[0]
        _step_of_a_piece[(len(lot.pieces),)](
            lot.table_of(rows), lot.pieces, self._rates, self._decays, first["momentum"],
            nesterov=first["nesterov"], aligned=all(address % 16 == 0 for row in rows for address in row[:4]),
            length=PIECE, columns=COLUMNS, num_warps=8,
        )  # fmt: skip
        # As torch's own steps do: a backward that still needs what was stepped says so, and is not silently wrong.
        torch.autograd.graph.increment_version([self._copies.get(weight, weight) for weight in lot.weights])

    def _velocity(self, weight: nn.Parameter) -> Tensor:
        memory = self.state[weight]
        if "momentum_buffer" not in memory:
            memory["momentum_buffer"] = torch.zeros_like(weight)
        velocity: Tensor = memory["momentum_buffer"]
        return velocity


class _Lot:
    """Weights that one launch steps, and where the kernel finds them."""

    def __init__(self, weights: list[nn.Parameter], device: torch.device) -> None:
        self.weights = weights
        self.waits_for = set(weights)
        self._device = device
        self.pieces = _on_device([(n, at) for n, w in enumerate(weights) for at in range(0, w.numel(), PIECE)], device)
        self._rows: list[tuple[int, ...]] = []
        self._table = _on_device([], device)
        self._of_captured = _on_device([(0,) * COLUMNS] * len(weights), device)

    def table_of(self, rows: list[tuple[int, ...]]) -> Tensor:
        if self._device.type == "cuda" and torch.cuda.is_current_stream_capturing():
            # A copy in the graph would be repeated at every step, and took as long as the kernel saves.
            after_capture(partial(self._of_captured.copy_, torch.tensor(rows)))
            return self._of_captured
        if rows != self._rows:
            self._rows, self._table = rows, _on_device(rows, self._device)
        return self._table


class _Beside:
    """A stream beside the one that backward runs on."""

    def __init__(self, device: torch.device) -> None:
        self._on_gpu = device.type == "cuda"
        self._stream: torch.cuda.Stream | None = None
        self._backward: torch.cuda.Stream | None = None
        self._is_used = False  # in this step

    def begin(self) -> None:
        self._backward, self._is_used = torch.cuda.current_stream() if self._on_gpu else None, False

    def the_rest(self) -> Any:
        """What is launched in here waits for all that backward has launched, and backward not for it."""
        if self._backward is None:
            return nullcontext()
        self._stream, self._is_used = self._stream or torch.cuda.Stream(), True
        self._stream.wait_stream(self._backward)
        return torch.cuda.stream(self._stream)

    def join(self) -> None:
        if self._backward is not None and self._stream is not None and self._is_used:
            self._backward.wait_stream(self._stream)


def _tell(optimizer: "ref[OneLaunchSGD]", weight: "ref[nn.Parameter]", _: Tensor) -> None:
    told, of = optimizer(), weight()
    if told is not None and of is not None:
        told.gradient_came(of)


def _in_lots(weights: list[nn.Parameter]) -> list[list[nn.Parameter]]:
    """In their order, each with ENOUGH numbers but the last, which may have fewer."""
    ends, numbers = [0], 0
    for n, weight in enumerate(weights, start=1):
        numbers += weight.numel()
        if numbers >= ENOUGH and n < len(weights):
            ends.append(n)
            numbers = 0
    return [weights[start:end] for start, end in pairwise([*ends, len(weights)])]


def _on_device(numbers: list[Any], device: torch.device) -> Tensor:
    tensor = torch.tensor(numbers, dtype=torch.int64)
    pinned = tensor.pin_memory() if device.type == "cuda" else tensor
    return pinned.to(device, non_blocking=True)


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
