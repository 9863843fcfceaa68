"""Layers of K experts held and run as one. Weights of the K layers lie one after another in one tensor.

A map of all experts is (N, K*D, h, w), their vectors are (N, K, F). A layer whose number of outputs differs between
experts is padded with zeros to the largest: the padded outputs are never read, so they get no gradient and stay zero.

A layer knows several ways to compute the same numbers (`kernels`), none of them the fastest everywhere. Which one runs
is a plain attribute, `kernel`, set once, before anything is compiled or captured (experts/kernels.py). Where weights
are frozen, convolutions keep what they make of them from pass to pass.
"""

from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Self, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nofe.architectures.packing import Convolution, Freezable, convolution_with
from nofe.experts.winograd import Winograd

TENSOR_CORES = ("bf16", "tf32")  # precisions that a GPU has them for
MOST_COLUMNS = 2**28  # numbers: 1 GiB in float32
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


class _Convolution(StackedLayer, Freezable):
    layouts = ("last", "first")
    outputs_in_front = True  # of weight and bias: batch norm can be folded into them
    shared: ClassVar[bool]  # all experts read the same map

    def __init__(self, layers: Sequence[nn.Conv2d]) -> None:
        super().__init__(layers)
        self.settings = _settings(layers[0])
        self.groups = layers[0].groups
        self._frozen = False
        self._convolved: Convolution | None = None
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


class BatchedLinear(StackedLayer):
    flat = False
    kernels: ClassVar[tuple[str, ...]] = ("together", "product", "loop")

    def __init__(self, layers: Sequence[nn.Linear]) -> None:
        super().__init__(layers)

    def forward(self, vectors: Tensor) -> Tensor:  # (N, K, F)
        weight = cast(Tensor, self.weight)  # (K, O, F)
        if self.kernel == "loop":
            biases = [None] * self.experts if self.bias is None else self.bias.unbind()
            each = zip(vectors.unbind(1), weight.unbind(), biases, strict=True)
            return torch.stack([F.linear(own, part, bias) for own, part, bias in each], dim=1)  # (N, K, O)
        if self.kernel == "product":
            # The weights on the left: their gradient then comes in their own layout, and is not copied into it.
            columns = vectors.permute(1, 2, 0)  # (K, F, N)
            if self.bias is None:
                return torch.bmm(weight, columns).permute(2, 0, 1)
            return torch.baddbmm(self.bias[:, :, None], weight, columns).permute(2, 0, 1)
        product = _by_expert if self.training else _ByExpert.forward
        return product(vectors.transpose(0, 1), weight, self.bias).transpose(0, 1)  # (N, K, O)


def _by_expert(vectors: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    device = vectors.device.type
    if torch.is_autocast_enabled(device):  # inside the function nothing casts gradients
        kind = torch.get_autocast_dtype(device)
        vectors, weight, bias = vectors.to(kind), weight.to(kind), None if bias is None else bias.to(kind)
    outputs: Tensor = _ByExpert.apply(vectors, weight, bias)
    return outputs


class _ByExpert(torch.autograd.Function):
    """A linear layer for each expert. Torch's gradient of the weights comes transposed, and is copied into place."""

    generate_vmap_rule = True

    @staticmethod
    def forward(vectors: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:  # (K, N, F), (K, O, F), (K, O)
        if bias is None:
            return torch.bmm(vectors, weight.transpose(1, 2))  # (K, N, O)
        return torch.baddbmm(bias[:, None], vectors, weight.transpose(1, 2))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor | None], output: Tensor) -> None:
        ctx.save_for_backward(*inputs[:2])

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:  # (K, N, O)
        vectors, weight = ctx.saved_tensors
        to_vectors, to_weight, to_bias = ctx.needs_input_grad
        return (
            torch.bmm(gradient, weight) if to_vectors else None,
            torch.bmm(gradient.transpose(1, 2), vectors) if to_weight else None,
            gradient.sum(1) if to_bias else None,
        )


class SharedLinear(BatchedLinear):
    """A linear layer on the trunk's own vectors: one dense product."""

    kernels = ("together",)

    def forward(self, vectors: Tensor) -> Tensor:  # (N, F)
        bias = None if self.bias is None else self.bias.flatten()
        outputs = F.linear(vectors, cast(Tensor, self.weight).flatten(0, 1), bias)
        by_expert: Tensor = outputs.unflatten(1, (self.experts, -1))
        return by_expert  # (N, K, O)
