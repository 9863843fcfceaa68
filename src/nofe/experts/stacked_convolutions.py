"""Convolutions of K experts as one: dense on the map that all experts share, grouped on maps of their own."""

from collections.abc import Sequence
from typing import Any, ClassVar, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nofe.architectures.packing import Computed, Freezable, convolution_with
from nofe.experts.stacked import StackedLayer
from nofe.experts.winograd import Winograd

TENSOR_CORES = ("bf16", "tf32")  # precisions that a GPU has them for
MOST_COLUMNS = 2**28  # numbers: 1 GiB in float32


class _Convolution(StackedLayer, Freezable):
    layouts = ("last", "first")
    outputs_in_front = True  # of weight and bias: batch norm can be folded into them
    shared: ClassVar[bool]  # all experts read the same map

    def __init__(self, layers: Sequence[nn.Conv2d]) -> None:
        super().__init__(layers)
        self.settings = _settings(layers[0])
        self.groups = layers[0].groups
        self._frozen = False
        self._convolved: Computed | None = None
        self._winograd: Winograd | None = None

    def candidates(self, *, frozen: bool = False) -> list[tuple[str, str | None]]:
        usual = super().candidates(frozen=frozen)
        return [*usual, ("winograd", "last")] if frozen and self._suits_winograd else usual

    def is_promising(self, kernel: str, layout: str | None, maps: Tensor, precision: str) -> bool:
        if kernel == "winograd" and precision == "bf16":
            return False  # too coarse for what it adds and takes away
        # Tensor cores want channels last; only depthwise convolutions do without them.
        return layout != "first" or self.groups > 1 or not (maps.is_cuda and precision in TENSOR_CORES)

    @property
    def _suits_winograd(self) -> bool:
        one, three = (1, 1), (3, 3)
        kernel = tuple(cast(Tensor, self.weight).shape[2:])
        return (
            kernel == three
            and self.settings["stride"] == self.settings["dilation"] == one
            and not isinstance(self.settings["padding"], str)
            and self.groups == 1
        )

    def freeze(self) -> None:
        self._frozen, self._convolved, self._winograd = True, None, None

    def __getstate__(self) -> dict[str, Any]:
        """A copy may be trained: it is not frozen."""
        return self.__dict__ | {"_frozen": False, "_convolved": None, "_winograd": None}

    def _together(self, maps: Tensor, groups: int) -> Tensor:
        weight = cast(Tensor, self.weight)
        if not self._frozen:
            return F.conv2d(maps, weight, self.bias, groups=groups, **self.settings)
        if self.kernel == "winograd":
            if self._winograd is None or self._winograd.size != maps.shape[2:]:
                padding = self.settings["padding"]
                self._winograd = Winograd(weight, self.bias, self.experts, maps, padding, shared=self.shared)
            return self._winograd(maps)
        if self._convolved is None:
            self._convolved = convolution_with(weight, maps.shape, groups=groups, **self.settings)
        return self._convolved(maps, self.bias)

    def _one_by_one(self, maps: Sequence[Tensor]) -> Tensor:
        """K convolutions one after another, (N, D, h, w) each, with views of the weights."""
        weights = cast(Tensor, self.weight).chunk(self.experts)
        biases = [None] * self.experts if self.bias is None else self.bias.chunk(self.experts)
        parts = [
            F.conv2d(own, weight, bias, groups=self.groups, **self.settings)
            for own, weight, bias in zip(maps, weights, biases, strict=True)
        ]
        return torch.cat(parts, dim=1)  # (N, K*O, h, w)


class SharedConvolution(_Convolution):
    """The first convolution of every expert reads the same trunk map, so all K are one dense convolution."""

    kernels = ("together", "loop")
    shared = True

    def forward(self, features: Tensor) -> Tensor:  # (N, D, h, w)
        features = self.laid_out(features)
        if self.kernel == "loop":
            return self._one_by_one([features] * self.experts)
        weight, bias = cast(Tensor, self.weight), self.bias  # (K*O, D / groups, kh, kw)
        if self.groups == 1:
            return self._together(features, groups=1)  # (N, K*O, h, w)
        # Torch wants the outputs of one group together: (groups, K, O / groups), and they are wanted by expert.
        per_group = weight.unflatten(0, (self.experts, self.groups, -1)).transpose(0, 1)  # (groups, K, O / groups, ...)
        maps = F.conv2d(features, per_group.flatten(0, 2), None, groups=self.groups, **self.settings)
        by_expert: Tensor = maps.unflatten(1, (self.groups, self.experts, -1)).transpose(1, 2).flatten(1, 3)
        return by_expert if bias is None else by_expert + bias[:, None, None]


class GroupedConvolution(_Convolution):
    """A later convolution: each expert reads its own map. Together they are one grouped convolution."""

    kernels = ("together", "loop")
    shared = False

    def candidates(self, *, frozen: bool = False) -> list[tuple[str, str | None]]:
        usual = super().candidates(frozen=frozen)
        # The product has pixels before channels on the way in, so it wants channels last.
        return usual if isinstance(self.settings["padding"], str) else [*usual, ("product", "last")]

    def is_promising(self, kernel: str, layout: str | None, maps: Tensor, precision: str) -> bool:
        if kernel == "product" and not self._is_pointwise:
            # Many numbers are copied for it, but in TF32 cuDNN takes the groups of a convolution one by one.
            numbers = maps.numel() * cast(Tensor, self.weight)[0, 0].numel()
            return maps.is_cuda and precision == "tf32" and numbers <= MOST_COLUMNS
        return super().is_promising(kernel, layout, maps, precision)

    @property
    def _is_pointwise(self) -> bool:
        one = (1, 1)
        kernel = tuple(cast(Tensor, self.weight).shape[2:])
        return kernel == one and self.settings["stride"] == one and self.settings["padding"] == (0, 0)

    def forward(self, maps: Tensor) -> Tensor:  # (N, K*D, h, w)
        maps = self.laid_out(maps)
        if self.kernel == "loop":
            return self._one_by_one(maps.chunk(self.experts, dim=1))
        if self.kernel == "product":
            return self._product(maps)
        return self._together(maps, groups=self.experts * self.groups)  # (N, K*O, h, w)

    def _product(self, maps: Tensor) -> Tensor:
        """As a batched matrix product over the K experts, and their groups."""
        parts = self.experts * self.groups
        pixels = maps.permute(0, 2, 3, 1)
        weight = cast(Tensor, self.weight).permute(0, 2, 3, 1).flatten(1).unflatten(0, (parts, -1)).transpose(1, 2)
        if self._is_pointwise:
            images, height, width, _ = pixels.shape
            columns = pixels.reshape(images * height * width, parts, -1).transpose(0, 1)  # (K, N*h*w, D)
        else:
            met = self._met(pixels)
            images, height, width = met.shape[:3]
            columns = met.unflatten(5, (parts, -1)).movedim(5, 0).flatten(4).flatten(1, 3)  # (K, N*h*w, kh*kw*D)
        if self.bias is None:
            products = torch.bmm(columns, weight)
        else:
            products = torch.baddbmm(self.bias.view(parts, 1, -1), columns, weight)  # (K, N*h*w, O)
        by_pixel = products.transpose(0, 1).reshape(images, height, width, -1)
        return by_pixel.permute(0, 3, 1, 2)  # (N, K*O, h, w), channels last

    def _met(self, pixels: Tensor) -> Tensor:
        """What each place of the kernel meets: (N, h, w, kh, kw, K*D)."""
        (up, left), stride, dilation = (self.settings[name] for name in ("padding", "stride", "dilation"))
        padded = F.pad(pixels, (0, 0, left, left, up, up))
        kernel = cast(Tensor, self.weight).shape[2:]
        reach = [d * (k - 1) + 1 for d, k in zip(dilation, kernel, strict=True)]
        rows, columns = (size - each + 1 for size, each in zip(padded.shape[1:3], reach, strict=True))
        # Row by row: a compiler makes one kernel of a few parts, and one for each of many.
        by_row = [padded[:, row : row + rows : stride[0]] for row in range(0, reach[0], dilation[0])]
        by_place = [
            torch.stack([own[:, :, at : at + columns : stride[1]] for at in range(0, reach[1], dilation[1])], dim=3)
            for own in by_row
        ]
        return torch.stack(by_place, dim=3)


def _settings(layer: nn.Conv2d) -> dict[str, Any]:
    return {"stride": layer.stride, "padding": layer.padding, "dilation": layer.dilation}
