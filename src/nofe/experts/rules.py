"""How the layers of today's networks are run for K experts at once: normalised tokens, attention, gates, scales.

What acts on each expert alone is run for all of them by torch.vmap, with the experts as one more dimension: its
convolutions become grouped ones, its products batched ones. This serves every module without buffers; batch norm, which
keeps statistics, has a rule of its own in `fused.py`.
"""

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from nofe.experts.kinds import Kind, NotFusable
from nofe.experts.stacked import BatchedLinear, SharedLinear, StackedLayer

if TYPE_CHECKING:
    from nofe.experts.fused import _Walk

BATCHED = (nn.LayerNorm, nn.GroupNorm, nn.MultiheadAttention)
DROPS_IMAGES = ("DropPath", "StochasticDepth")  # timm's and torchvision's, and those written after them
CONTAINERS = (nn.Sequential, nn.ModuleList, nn.ModuleDict, fx.GraphModule)


class ParameterStack(StackedLayer):
    """Parameters of one module of each expert under their own names, one after another: (K*O, ...) of (O, ...).

    Flat, because a convolution's weight of five dimensions cannot be laid out channels last.
    """

    flat = True
    cast_by_autocast = False  # norms and scales stay in float32; what is a product casts its operands itself

    def __init__(self, modules: Sequence[nn.Module], names: Sequence[str]) -> None:
        nn.Module.__init__(self)
        self.experts = len(modules)
        if any(getattr(modules[0], name).dim() == 0 for name in names):
            raise NotFusable(f"{names[0]} of {type(modules[0]).__name__} (a parameter that is a single number)")
        self.outputs = [max(len(getattr(modules[0], name)) for name in names)] * self.experts
        for name in names:
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
        self.owners: dict[str, str] = {}  # stack in this module -> path in the module of an expert
        for path, inner in modules[0].named_modules():
            names = [name for name, _ in inner.named_parameters(recurse=False)]
            if names:
                stack = path.replace(".", "_") or "own"
                self.add_module(stack, ParameterStack([module.get_submodule(path) for module in modules], names))
                self.owners[stack] = path
        template = copy.deepcopy(modules[0]).to("meta")
        for path, inner in list(template.named_modules()):
            if path and (drops := drops_images(inner)) is not None:
                template.set_submodule(path, drops)
        # For its code alone, and in a list, so that it is no part of this module.
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

        if self.kind is Kind.MAPS:
            value = value.unflatten(1, (self.experts, -1))
        where = None if self.kind is Kind.SHARED else 1
        if not weights and where is None:  # nothing tells the experts apart but what they draw
            value, where = for_every_expert(value, self.experts), 1
        every = torch.vmap(one, in_dims=(0, where), out_dims=1, randomness="different")
        with batchable_attention(value.device):
            result: Tensor = every(weights, value)
        return result


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
    """The same as timm's or torchvision's layer; None for any other."""
    library, name, own = type(layer).__module__.partition(".")[0], type(layer).__name__, cast(Any, layer)
    if (library, name) == ("timm", "DropPath"):
        return DropsImages(own.drop_prob, by_image=True, scaled=own.scale_by_keep)
    if (library, name) == ("torchvision", "StochasticDepth"):
        return DropsImages(own.p, by_image=own.mode == "row", scaled=True)
    return None


class EachLinear(BatchedLinear):
    """A linear layer on vectors (N, K, F) or on tokens (N, K, T, F)."""

    def forward(self, vectors: Tensor) -> Tensor:
        if vectors.dim() == 3:
            return super().forward(vectors)
        tokens = vectors.movedim(1, -2)  # (N, T, K, F)
        outputs: Tensor = super().forward(tokens.flatten(0, -3)).unflatten(0, tokens.shape[:-2])  # (N, T, K, O)
        return outputs.movedim(-2, 1)


class SharedEachLinear(SharedLinear):
    """A linear layer on the trunk's own vectors (N, F) or tokens (N, T, F)."""

    def forward(self, vectors: Tensor) -> Tensor:
        if vectors.dim() == 2:
            return super().forward(vectors)
        bias = None if self.bias is None else self.bias.flatten()
        outputs = F.linear(vectors, cast(Tensor, self.weight).flatten(0, 1), bias)  # (N, T, K*O)
        by_expert: Tensor = outputs.unflatten(-1, (self.experts, -1)).movedim(-2, 1)
        return by_expert  # (N, K, T, O)


# What is run whole


def can_run_whole(module: nn.Module, classifier: nn.Module | None) -> bool:
    """Whether vmap could run a module: without buffers, which it cannot write, and without the ragged classifier."""
    is_container = isinstance(module, CONTAINERS)
    has_classifier = any(each is classifier for each in module.modules())
    return not is_container and not has_classifier and next(module.buffers(), None) is None


def runs_whole(module: nn.Module, classifier: nn.Module | None) -> bool:
    """Whether a module is run by vmap as it is, instead of being followed inside."""
    if type(module).__name__ in DROPS_IMAGES:
        return True
    if not can_run_whole(module, classifier) or next(module.parameters(), None) is None:
        return False
    if isinstance(module, BATCHED):
        return True
    if type(module).__module__.startswith("torch.nn"):
        return False
    if next(module.parameters(recurse=False), None) is not None and not isinstance(module, nn.Conv2d | nn.Linear):
        return True  # a scale, or a block with one
    inner = list(module.modules())
    return any(isinstance(each, BATCHED) for each in inner) or "Attention" in type(module).__name__


def classifier_of(branch: nn.Module) -> nn.Module | None:
    layers = [module for module in branch.modules() if isinstance(module, nn.Conv2d | nn.Linear)]
    return layers[-1] if layers else None


# Rules: what the layers of the K experts read, and what they write


def each_module(walk: "_Walk", path: str, layers: list[Any], value: fx.Node, kind: Kind) -> tuple[fx.Node, Kind]:
    if walk.is_ragged:
        raise NotFusable(f"{path} (reads a layer whose size differs between experts)")
    try:
        module = EachModule(layers, kind)
    except NotFusable as reason:
        raise NotFusable(f"{path}: {reason}") from reason
    name = path.replace(".", "_")
    result = walk.put(path, module, value, parameters=False)
    for stack, inner in module.owners.items():
        walk.path_of[f"{name}.{stack}"] = f"{path}.{inner}".removesuffix(".")
    return result, Kind.VECTORS


def images_dropped(walk: "_Walk", path: str, layer: DropsImages, value: fx.Node, kind: Kind) -> tuple[fx.Node, Kind]:
    layer.experts = walk.count
    if kind is Kind.MAPS:
        by_expert = walk.graph.call_method("unflatten", (value, 1, (walk.count, -1)))
        dropped = walk.put(path, layer, by_expert, parameters=False)
        return walk.graph.call_method("flatten", (dropped, 1, 2)), kind
    if kind is Kind.SHARED:
        value = walk.graph.call_function(for_every_expert, (value, walk.count))
    return walk.put(path, layer, value, parameters=False), Kind.VECTORS


def for_every_expert(value: Tensor, experts: int) -> Tensor:
    """(N, ...) to (N, K, ...), a view."""
    return value[:, None].expand(-1, experts, *value.shape[1:])


def linear_of_its_own(walk: "_Walk", path: str, layers: list[Any], value: fx.Node, kind: Kind) -> tuple[fx.Node, Kind]:
    """A class derived from nn.Linear that computes something else with its weights, such as cosines."""
    if not can_run_whole(layers[0], None):
        raise NotFusable(f"{path} ({type(layers[0]).__name__}, which has buffers)")
    result = each_module(walk, path, layers, value, kind)
    walk.note_outputs(path, layers)
    return result


def batch_norm_of_vectors(
    walk: "_Walk", path: str, layers: list[Any], value: fx.Node, kind: Kind
) -> tuple[fx.Node, Kind]:
    """nn.BatchNorm1d on (N, K, F), as one on K*F numbers."""
    first = layers[0]
    if (
        type(first) is not nn.BatchNorm1d
        or kind is not Kind.VECTORS
        or not (first.affine and first.track_running_stats)
    ):
        raise NotFusable(f"{path} ({type(first).__name__} of {kind.value}, or without weights or running statistics)")
    if walk.is_ragged or len({int(layer.num_batches_tracked) for layer in layers}) > 1:
        raise NotFusable(f"{path} (experts differ in size or in their number of training steps)")
    layer = nn.BatchNorm1d(walk.count * first.num_features, eps=first.eps, momentum=first.momentum)
    layer.to(first.weight.device, first.weight.dtype)
    with torch.no_grad():
        for name in ("weight", "bias", "running_mean", "running_var"):
            getattr(layer, name).copy_(torch.cat([getattr(each, name) for each in layers]))
    layer.num_batches_tracked = cast(Tensor, first.num_batches_tracked).clone()
    flat = walk.graph.call_method("flatten", (value, 1))
    normalised = walk.put(path, layer, flat, parameters=True)
    return walk.graph.call_method("unflatten", (normalised, 1, (walk.count, -1))), Kind.VECTORS


def weight(walk: "_Walk", node: fx.Node) -> tuple[fx.Node, Kind]:
    """A parameter that is read by name."""
    owner, _, own = str(node.target).rpartition(".")
    holders = [branch.get_submodule(owner) for branch in walk.branches]
    if not owner or not isinstance(getattr(holders[0], own), nn.Parameter):
        raise NotFusable(f"{node.target} (a tensor that is no parameter of a layer)")
    name = str(node.target).replace(".", "_")
    walk.root.add_module(name, OneWeight(holders, [own]))
    walk.path_of[name] = owner
    return walk.graph.call_module(name, ()), Kind.WEIGHTS
