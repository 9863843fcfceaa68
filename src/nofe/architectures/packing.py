"""Weights that stay as they are for many passes, kept in the form that passes read them in.

On a processor oneDNN computes convolutions with weights in a layout of its own, into which torch reorders them at each
pass. For one image that is a good part of the time; here it is done once. Linear layers are MKL's in float32, which has
no good kernels for every processor; packed they are oneDNN's, too.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Computed = Callable[[Tensor, Tensor | None], Tensor]  # of maps or vectors, and a bias


class Freezable:
    """A layer that, once frozen, may keep what it makes of its weights, until it is frozen again."""

    def freeze(self) -> None:
        """To be called when the weights are set, and stay as they are from then on."""
        raise NotImplementedError


def freeze(model: nn.Module) -> None:
    for module in model.modules():
        if isinstance(module, Freezable):
            module.freeze()


def convolution_with(
    weight: Tensor,
    maps: Sequence[int],
    *,
    stride: tuple[int, ...] = (1, 1),
    padding: tuple[int, ...] | str = (0, 0),
    dilation: tuple[int, ...] = (1, 1),
    groups: int = 1,
) -> Computed:
    """F.conv2d with a weight that stays, at its best for maps of this shape: packed where oneDNN computes it."""
    if isinstance(padding, str) or not _is_packable(weight, "_reorder_convolution_weight"):
        return lambda maps, bias: F.conv2d(maps, weight, bias, stride, padding, dilation, groups)
    # Private, but what torch's own compiler makes of a convolution whose weight is frozen.
    packed = torch.ops.mkldnn._reorder_convolution_weight(weight, padding, stride, dilation, groups, maps)

    def convolved(maps: Tensor, bias: Tensor | None) -> Tensor:
        result: Tensor = torch.ops.mkldnn._convolution_pointwise(
            maps.to(weight.dtype), packed, bias, padding, stride, dilation, groups, "none", [], ""
        )  # autocast does not know it
        return result

    return convolved


def product_with(weight: Tensor, vectors: int) -> Computed:
    """F.linear with a weight (O, F) that stays, at its best for so many vectors."""
    if not _is_packable(weight, "_reorder_linear_weight"):
        return lambda vectors, bias: F.linear(vectors, weight, bias)
    packed = torch.ops.mkldnn._reorder_linear_weight(weight, max(vectors, 1))

    def multiplied(vectors: Tensor, bias: Tensor | None) -> Tensor:
        result: Tensor = torch.ops.mkldnn._linear_pointwise(
            vectors.to(weight.dtype), packed, bias, "none", [], ""
        )  # autocast does not know it
        return result

    return multiplied


def _is_packable(weight: Tensor, function: str) -> bool:
    onednn: Any = torch.backends.mkldnn
    usable = onednn.is_available() and onednn.enabled and hasattr(torch.ops.mkldnn, function)
    if weight.dtype == torch.bfloat16:
        usable = usable and torch.ops.mkldnn._is_mkldnn_bf16_supported()
    return weight.device.type == "cpu" and weight.dtype in (torch.float32, torch.bfloat16) and usable


class _Packed(Freezable):
    """A layer that packs its weight at the first pass after it was frozen."""

    _computed: Computed | None = None

    def freeze(self) -> None:
        self._computed = None

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_computed": None}  # a copy may get weights of its own


class PackedConvolution(_Packed, nn.Conv2d):
    def forward(self, input: Tensor) -> Tensor:  # (N, D, h, w)
        if input.dim() == 3:  # one image by itself, which torch reads, too
            return super().forward(input)
        if self._computed is None:
            how: Any = {name: getattr(self, name) for name in ("stride", "padding", "dilation", "groups")}
            self._computed = convolution_with(self.weight, input.shape, **how)
        return self._computed(input, self.bias)


class PackedLinear(_Packed, nn.Linear):
    def forward(self, input: Tensor) -> Tensor:  # (..., F)
        if self._computed is None:
            self._computed = product_with(self.weight, input.numel() // self.in_features)
        return self._computed(input, self.bias)


def pack_layers(model: nn.Module) -> None:
    """In place; for a model that is frozen before it answers. Its tensors keep their names."""
    for module in model.modules():
        if type(module) is nn.Conv2d and module.padding_mode == "zeros":
            module.__class__ = PackedConvolution
        elif type(module) is nn.Linear:
            module.__class__ = PackedLinear
