"""Layers of K experts that act on each expert's values alone, run for all of them at once.

Most are run by torch.vmap, with the experts as one more dimension: convolutions become grouped ones, products batched
ones. This serves every module without buffers; batch norm, which keeps statistics, has a rule of its own.
"""

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from nofe.experts.kinds import Kind, NotFusable
from nofe.experts.stacked import StackedLayer


class ParameterStack(StackedLayer):
    """Parameters of one module of each expert under their own names, one after another: (K*O, ...) of (O, ...).

    Flat, because a convolution's weight of five dimensions cannot be laid out channels last.
    """

    flat = True
    cast_by_autocast = False  # norms and scales stay in float32; what is a product casts its operands itself

    def __init__(self, modules: Sequence[nn.Module], names: Sequence[str]) -> None:
        nn.Module.__init__(self)
        self.experts = len(modules)
        self.stands_for = type(modules[0]).__name__
        if any(getattr(modules[0], name).dim() == 0 for name in names):
            raise NotFusable(f"{names[0]} of {type(modules[0]).__name__} (a parameter that is a single number)")
        self.outputs = [max(len(getattr(modules[0], name)) for name in names)] * self.experts
        for name in names:
            if hasattr(self, name):
                raise NotFusable(f"{name} of {type(modules[0]).__name__} (a parameter with a name that is taken here)")
            parts = [cast(Tensor, getattr(module, name)).detach() for module in modules]
            if any(part.shape != parts[0].shape for part in parts):
                raise NotFusable(f"{name} of {type(modules[0]).__name__} (its size differs between experts)")
            self.register_parameter(name, nn.Parameter(torch.cat(parts)))
        cast(Any, self).multipliers = getattr(modules[0], "multipliers", {})


class OneWeight(ParameterStack):
    """A parameter that a block reads by name."""

    def forward(self) -> Tensor:
        [weight] = self.parameters()
        by_expert: Tensor = weight.unflatten(0, (self.experts, -1))
        return by_expert  # (K, ...)


class EachModule(nn.Module):
    """One module of every expert, run by vmap: (N, ...) or (N, K*D, h, w) or (N, K, ...) to (N, K, ...)."""

    def __init__(self, modules: Sequence[nn.Module], kind: Kind) -> None:
        super().__init__()
        self.experts, self.kind = len(modules), kind
        self.stacks = nn.ModuleList()  # numbered: a name of the user's may be taken here
        self.owners: dict[str, str] = {}  # stack in this module -> path in the module of an expert
        for path, inner in modules[0].named_modules():
            names = [name for name, _ in inner.named_parameters(recurse=False)]
            if names:
                self.owners[f"stacks.{len(self.stacks)}"] = path
                self.stacks.append(ParameterStack([module.get_submodule(path) for module in modules], names))
        template = copy.deepcopy(modules[0]).to("meta")
        for path, inner in list(template.named_modules()):
            if path and (drops := drops_images(inner)) is not None:
                template.set_submodule(path, drops)
            if isinstance(inner, nn.modules.conv._ConvNd):
                inner.register_forward_pre_hook(_as_its_weights)
        # Torch 2.11 cannot ask for the layout of maps inside vmap, as its group norm does unless channels come first.
        self.channels_first = any(isinstance(inner, nn.GroupNorm) for inner in template.modules())
        # Only its code is used. In a list, so that it is no part of this module.
        self._template = [template]

    def forward(self, value: Tensor) -> Tensor:
        [template] = self._template
        template.train(self.training)
        weights: dict[str, Tensor] = {
            f"{path}.{name}".removeprefix("."): weight.unflatten(0, (self.experts, -1))
            for stack, path in self.owners.items()
            for name, weight in self.get_submodule(stack).named_parameters()
        }

        def one(own: dict[str, Tensor], given: Tensor) -> Any:
            return torch.func.functional_call(template, own, (given,))

        if self.channels_first:
            weights = {name: weight.contiguous() for name, weight in weights.items()}
            value = value.contiguous()
        if self.kind is Kind.MAPS:
            value = value.unflatten(1, (self.experts, -1))
        where = None if self.kind is Kind.SHARED else 1
        if not weights and where is None:  # experts without weights still draw their own random numbers
            value, where = for_every_expert(value, self.experts).contiguous(), 1  # it may be written over
        every = torch.vmap(one, in_dims=(0, where), out_dims=1, randomness="different")
        with batchable_attention(value.device):
            result: Tensor = every(weights, value)
        return result


def _as_its_weights(layer: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Inside vmap autocast does not reach convolutions on a processor, whose maps may be in bfloat16."""
    return (inputs[0].to(cast(Tensor, layer.weight).dtype), *inputs[1:]) if inputs[0].device.type == "cpu" else inputs


@contextmanager
def batchable_attention(device: torch.device) -> Iterator[None]:
    """Kernels of attention that vmap knows: not the processor's flash attention, nor torch's shortcut in evaluation."""
    shortcut = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with sdpa_kernel(SDPBackend.MATH) if device.type == "cpu" else nullcontext():
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(shortcut)


class DropsImages(nn.Module):
    """Leaves out whole images, or all of a batch at once: of each expert its own, (N, K, ...).

    Without a number of experts it reads what one of them has, (N, ...), as vmap shows it.
    """

    def __init__(self, rate: float, *, by_image: bool, scaled: bool) -> None:
        super().__init__()
        self.kept, self.by_image = 1 - rate, by_image
        self.scale = 1 / self.kept if scaled and self.kept > 0 else 1.0
        self.experts: int | None = None

    def forward(self, value: Tensor) -> Tensor:
        if not self.training or self.kept == 1:
            return value
        apart = (len(value) if self.by_image else 1, *([] if self.experts is None else [self.experts]))
        # Not by bernoulli_ on an empty tensor, as libraries do: vmap would not know that each expert draws its own.
        mask = torch.bernoulli(value.new_full(apart + (1,) * (value.dim() - len(apart)), self.kept))
        return value * (mask * self.scale)


def drops_images(layer: nn.Module) -> DropsImages | None:
    """A layer that does the same as timm's or torchvision's; None for any other."""
    library, name, own = type(layer).__module__.partition(".")[0], type(layer).__name__, cast(Any, layer)
    if (library, name) == ("timm", "DropPath"):
        return DropsImages(own.drop_prob, by_image=True, scaled=own.scale_by_keep)
    if (library, name) == ("torchvision", "StochasticDepth"):
        return DropsImages(own.p, by_image=own.mode == "row", scaled=True)
    return None


def for_every_expert(value: Tensor, experts: int) -> Tensor:
    """(N, ...) to (N, K, ...), a view."""
    return value[:, None].expand(-1, experts, *value.shape[1:])
