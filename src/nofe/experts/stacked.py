"""Layers of K experts held and run as one. Weights of the K layers lie one after another in one tensor.

A map of all experts is (N, K*D, h, w), their vectors are (N, K, F). A layer whose number of outputs differs between
experts is padded with zeros to the largest: the padded outputs are never read, so they get no gradient and stay zero.

A layer knows several ways to compute the same numbers (`kernels`), none of them the fastest everywhere. Which one runs
is a plain attribute, `kernel`, set once, before anything is compiled or captured (experts/kernels.py). Where weights
are frozen, layers keep what they make of them from pass to pass.
"""

from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Self, cast

import torch
from torch import Tensor, nn

LAYOUTS = {"first": torch.contiguous_format, "last": torch.channels_last}


def stacked_tensor(parts: Sequence[Tensor]) -> Tensor:
    """(K, O, ...) from K tensors of (O_k, ...), padded with zeros to the largest O_k."""
    if all(part.shape == parts[0].shape for part in parts):
        return torch.stack(list(parts))
    largest = max(len(part) for part in parts)
    padded = [torch.cat([part, part.new_zeros(largest - len(part), *part.shape[1:])]) for part in parts]
    return torch.stack(padded)


class StackedLayer(nn.Module):
    """K layers as one. Each parameter is (K, O, ...), or (K*O, ...) if flat; `outputs` are the O_k of the experts."""

    flat = True
    cast_by_autocast = True  # convolutions and products: training casts all such weights at once
    kernels: ClassVar[tuple[str, ...]] = ("together",)
    layouts: ClassVar[tuple[str, ...]] = ()
    kernel = "together"
    layout: str | None = None  # of maps and weights; None leaves them as they come

    def __init__(self, layers: Sequence[nn.Module]) -> None:
        super().__init__()
        self.experts = len(layers)
        self.outputs = [int(_outputs(layer)) for layer in layers]
        names = [name for name, _ in layers[0].named_parameters(recurse=False)]
        for name in names:
            parts = [cast(Tensor, getattr(layer, name)).detach() for layer in layers]
            stacked = stacked_tensor(parts)
            # A convolution's weight keeps four dimensions, which channels last needs.
            self.register_parameter(name, nn.Parameter(stacked.flatten(0, 1) if self.flat else stacked))
        if "bias" not in names:
            self.bias = None
        cast(Any, self).multipliers = getattr(layers[0], "multipliers", {})

    @property
    def largest(self) -> int:
        return max(self.outputs)

    def candidates(self, *, frozen: bool = False) -> list[tuple[str, str | None]]:
        """Every kernel in every layout it is worth trying in; the first one is what runs unless another is chosen.

        `frozen`: the weights will stay as they are for many passes.
        """
        return [(kernel, layout) for kernel in self.kernels for layout in (self.layouts or (None,))]

    def is_promising(self, kernel: str, layout: str | None, maps: Tensor, precision: str) -> bool:
        """Whether a candidate may be the fastest there; what cannot be is not measured."""
        return True

    def use(self, kernel: str, layout: str | None) -> None:
        self.kernel, self.layout = kernel, layout
        self._lay_out_weight()

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        self._lay_out_weight()  # a whole network that is put in channels last must not undo the choice
        return self

    def _lay_out_weight(self) -> None:
        """Torch takes its layout from maps and weight together, so both must agree."""
        if self.layout is not None:
            weight = cast(nn.Parameter, self.weight)
            weight.data = weight.data.contiguous(memory_format=LAYOUTS[self.layout])

    def laid_out(self, maps: Tensor) -> Tensor:
        return maps if self.layout is None else maps.contiguous(memory_format=LAYOUTS[self.layout])


def _outputs(layer: nn.Module) -> int:
    return int(layer.weight.shape[0])  # type: ignore[index]
