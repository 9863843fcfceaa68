"""How the layers of K experts become one: a rule for each kind of layer.

A rule takes the walk, the path of a layer in a branch, the layers of the K experts, and what they read, and gives what
they write.
"""

from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor, fx, nn

from nofe.architectures.caffe import AcrossChannelLRN, BatchNorm2d, WithinChannelLRN
from nofe.architectures.genuine import computes_as, is_linear_in_timm, is_norm_with_activation
from nofe.experts.each import EachModule, OneWeight, drops_images, for_every_expert
from nofe.experts.following import can_run_whole
from nofe.experts.functions import flattened
from nofe.experts.kinds import Kind, NotFusable
from nofe.experts.stacked_convolutions import GroupedConvolution, SharedConvolution
from nofe.experts.stacked_linears import BatchedLinear, SharedLinear
from nofe.experts.walk import Walk, Written

# Act on each number, or on each channel, alone: the same module serves K*D channels.
CHANNEL_BY_CHANNEL = (
    nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.ELU, nn.CELU, nn.SELU, nn.GELU, nn.SiLU, nn.Mish, nn.Hardswish, nn.Hardsigmoid,
    nn.Hardtanh, nn.Hardshrink, nn.Softshrink, nn.Softplus, nn.Softsign, nn.Tanhshrink, nn.Threshold, nn.Sigmoid,
    nn.LogSigmoid, nn.Tanh, nn.Identity, nn.MaxPool2d, nn.AvgPool2d, nn.AdaptiveAvgPool2d, nn.AdaptiveMaxPool2d,
    WithinChannelLRN,
)  # fmt: skip
ON_MAPS = (nn.MaxPool2d, nn.AvgPool2d, nn.AdaptiveAvgPool2d, nn.AdaptiveMaxPool2d, WithinChannelLRN)
RANDOM = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.AlphaDropout)
DROPS_CHANNELS = (nn.Dropout1d, nn.Dropout2d)
LEAVES = (
    *CHANNEL_BY_CHANNEL, *RANDOM, nn.Conv2d, nn.Linear, nn.BatchNorm2d, nn.GroupNorm, nn.PReLU, nn.Flatten,
    AcrossChannelLRN, nn.LocalResponseNorm,
)  # fmt: skip

SIZES = ("out_channels", "out_features")

Rule = Callable[[Walk, str, list[Any], fx.Node, Kind], Written]


def layer(walk: Walk, node: fx.Node, whole: set[nn.Module]) -> Written:
    """Write a layer of all branches by its rule; vmap runs those in `whole`, of the first branch, as they are."""
    path = str(node.target)
    layers: list[Any] = [branch.get_submodule(path) for branch in walk.branches]
    if len(node.args) != 1 or node.kwargs:
        raise NotFusable(f"{path} ({type(layers[0]).__name__} that reads more than one value)")
    settings = [[_settings(each) for each in layer.modules()] for layer in layers]
    if any(other != settings[0] for other in settings[1:]):
        raise NotFusable(f"{path} ({type(layers[0]).__name__}, which is set to something else in another expert)")
    value, kind = walk.value(node.args[0])
    rule = _rule_for(layers[0], whole)
    if rule is None:
        raise NotFusable(f"{path} ({type(layers[0]).__name__})")
    return rule(walk, path, layers, value, kind)


def _settings(layer: nn.Module) -> dict[str, str]:
    """What a layer is and does, mode included, without its number of outputs, which may differ between experts."""
    own = {name: value for name, value in vars(layer).items() if not name.startswith("_") and name not in SIZES}
    return {"class": type(layer).__qualname__} | {name: repr(value) for name, value in own.items() if _is_plain(value)}


def _is_plain(value: Any) -> bool:
    if isinstance(value, tuple | list):
        return all(map(_is_plain, value))
    return value is None or isinstance(value, bool | int | float | str)


def _rule_for(first: nn.Module, whole: set[nn.Module]) -> Rule | None:
    if drops_images(first) is not None:
        return images_dropped
    if first in whole:
        return each_module
    for types, rule in RULES:
        if isinstance(first, types):
            return rule
    # These serve all experts as they are, whatever their code: only torch's own is known to allow it.
    return next((rule for types, rule in AS_THEY_ARE if computes_as(first, *types)), None)


def convolution(walk: Walk, path: str, layers: list[Any], value: fx.Node, kind: Kind) -> Written:
    if not computes_as(layers[0], nn.Conv2d):
        raise NotFusable(f"{path} ({type(layers[0]).__name__}, with a forward of its own)")
    if layers[0].padding_mode != "zeros":
        raise NotFusable(f"{path} ({type(layers[0]).__name__}, not padded with zeros)")
    value, kind = walk.as_map(value, kind)
    walk.note_outputs(path, layers)
    stacked = SharedConvolution(layers) if kind is Kind.SHARED else GroupedConvolution(layers)
    return walk.put_weights(path, stacked, value), Kind.MAPS


def linear(walk: Walk, path: str, layers: list[Any], value: fx.Node, kind: Kind) -> Written:
    if kind is Kind.MAPS:
        raise NotFusable(f"{path} (Linear on a map)")
    if not (computes_as(layers[0], nn.Linear) or is_linear_in_timm(layers[0])):
        return linear_of_its_own(walk, path, layers, value, kind)
    walk.note_outputs(path, layers)
    stacked = SharedLinear(layers) if kind is Kind.SHARED else BatchedLinear(layers)
    return walk.put_weights(path, stacked, value), Kind.VECTORS


def linear_of_its_own(walk: Walk, path: str, layers: list[Any], value: fx.Node, kind: Kind) -> Written:
    """A class derived from nn.Linear that computes something else with its weights, such as cosines."""
    if not can_run_whole(layers[0], None):
        raise NotFusable(f"{path} ({type(layers[0]).__name__}, which has buffers)")
    result = each_module(walk, path, layers, value, kind)
    walk.note_outputs(path, layers)
    return result


def each_module(walk: Walk, path: str, layers: list[Any], value: fx.Node, kind: Kind) -> Written:
    """Run whole, by vmap."""
    walk.require_one_size(path)
    if len({inner.training for inner in layers[0].modules()}) > 1:
        raise NotFusable(f"{path} ({type(layers[0]).__name__}, a part of which is in another mode than the rest)")
    try:
        module = EachModule(layers, kind)
    except NotFusable as reason:
        raise NotFusable(f"{path}: {reason}") from reason
    name = path.replace(".", "_")
    result = walk.put(path, module, value)
    for stack, inner in module.owners.items():
        walk.path_of[f"{name}.{stack}"] = f"{path}.{inner}".removesuffix(".")
    return result, Kind.VECTORS


def batch_norm_of_maps(walk: Walk, path: str, layers: list[Any], value: fx.Node, kind: Kind) -> Written:
    """On K*D channels."""
    stacked = _stacked_norm(walk, path, layers)
    if kind is Kind.SHARED:  # the trunk's map for every expert, as each normalises it in its own way
        maps = walk.graph.call_method("repeat", (value, 1, walk.count, 1, 1))
    else:
        maps, _ = walk.as_map(value, kind)
    normalised = walk.put_weights(path, stacked, maps)
    if is_norm_with_activation(layers[0]):
        for own, follows in layers[0].named_children():
            if next(follows.parameters(), None) is not None:
                raise NotFusable(f"{path}.{own} ({type(follows).__name__}, which has weights)")
            normalised = walk.put(f"{path}.{own}", follows, normalised)
    return normalised, Kind.MAPS


def batch_norm_of_vectors(walk: Walk, path: str, layers: list[Any], value: fx.Node, kind: Kind) -> Written:
    """On (N, K, F), as one on K*F numbers."""
    if kind is not Kind.VECTORS:
        raise NotFusable(f"{path} ({type(layers[0]).__name__} of {kind.value})")
    stacked = _stacked_norm(walk, path, layers)
    flat = walk.graph.call_method("flatten", (value, 1))
    return walk.by_expert(walk.put_weights(path, stacked, flat)), Kind.VECTORS


def _stacked_norm(walk: Walk, path: str, layers: list[Any]) -> nn.Module:
    walk.require_one_size(path)
    first = layers[0]
    if not (first.affine and first.track_running_stats):
        raise NotFusable(f"{path} ({type(first).__name__} without weights or running statistics)")
    if len({int(each.num_batches_tracked) for each in layers}) > 1:
        raise NotFusable(f"{path} (experts with different numbers of training steps)")
    channels = walk.count * first.num_features
    if type(first) is BatchNorm2d:
        stacked: nn.Module = BatchNorm2d(channels, first.fraction)
    elif type(first) is nn.BatchNorm1d:
        stacked = nn.BatchNorm1d(channels, eps=first.eps, momentum=first.momentum)
    elif type(first) is nn.BatchNorm2d or is_norm_with_activation(first):
        stacked = nn.BatchNorm2d(channels, eps=first.eps, momentum=first.momentum)
    else:
        raise NotFusable(f"{path} ({type(first).__name__})")
    stacked.to(first.weight.device, first.weight.dtype)
    with torch.no_grad():
        for name in ("weight", "bias", "running_mean", "running_var"):
            getattr(stacked, name).copy_(torch.cat([getattr(each, name) for each in layers]))
        cast(Tensor, stacked.num_batches_tracked).copy_(first.num_batches_tracked)
    return stacked


def group_norm(walk: Walk, path: str, layers: list[Any], value: fx.Node, kind: Kind) -> Written:
    """On K*D channels, in K times the groups."""
    first = layers[0]
    if kind is not Kind.MAPS or type(first) is not nn.GroupNorm or not first.affine:
        return each_module(walk, path, layers, value, kind)
    walk.require_one_size(path)
    stacked = nn.GroupNorm(walk.count * first.num_groups, walk.count * first.num_channels, eps=first.eps)
    stacked.to(first.weight.device, first.weight.dtype)
    with torch.no_grad():
        for name in ("weight", "bias"):
            getattr(stacked, name).copy_(torch.cat([getattr(each, name) for each in layers]))
    return walk.put_weights(path, stacked, value), Kind.MAPS


def channel_by_channel(walk: Walk, path: str, layers: list[Any], value: fx.Node, kind: Kind) -> Written:
    if isinstance(layers[0], ON_MAPS):
        value, kind = walk.as_map(value, kind)
    return walk.put(path, layers[0], value), kind


def each_slope(walk: Walk, path: str, layers: list[Any], value: fx.Node, kind: Kind) -> Written:
    """PReLU; of the trunk's map every expert has its own, as vmap would resize one for all."""
    if kind is Kind.SHARED:
        value, kind = walk.graph.call_function(for_every_expert, (value, walk.count)), Kind.VECTORS
    return each_module(walk, path, layers, value, kind)


def random(walk: Walk, path: str, layers: list[Any], value: fx.Node, kind: Kind) -> Written:
    """Each expert drops its own."""
    if kind is Kind.SHARED or (kind is Kind.VECTORS and isinstance(layers[0], DROPS_CHANNELS)):
        return each_module(walk, path, layers, value, kind)
    return walk.put(path, layers[0], value), kind


def images_dropped(walk: Walk, path: str, layers: list[Any], value: fx.Node, kind: Kind) -> Written:
    dropping = drops_images(layers[0])
    assert dropping is not None
    dropping.experts = walk.count
    if kind is Kind.MAPS:
        dropped = walk.put(path, dropping, walk.by_expert(value))
        return walk.graph.call_method("flatten", (dropped, 1, 2)), kind
    if kind is Kind.SHARED:
        value = walk.graph.call_function(for_every_expert, (value, walk.count))
    return walk.put(path, dropping, value), Kind.VECTORS


def across_channels(walk: Walk, path: str, layers: list[Any], value: fx.Node, kind: Kind) -> Written:
    """Each expert's channels on their own: the experts become images for a moment."""
    value, kind = walk.as_map(value, kind)
    if kind is not Kind.MAPS:
        return walk.put(path, layers[0], value), kind
    apart = walk.graph.call_function(experts_as_images, (value, walk.count))
    normalised = walk.put(path, layers[0], apart)
    return walk.graph.call_function(images_as_experts, (normalised, walk.count)), Kind.MAPS


def experts_as_images(maps: Tensor, experts: int) -> Tensor:
    images: Tensor = maps.unflatten(1, (experts, -1)).flatten(0, 1)
    return images


def images_as_experts(images: Tensor, experts: int) -> Tensor:
    maps: Tensor = images.unflatten(0, (-1, experts)).flatten(1, 2)
    return maps


def flatten(walk: Walk, path: str, layers: list[Any], value: fx.Node, kind: Kind) -> Written:
    if (layers[0].start_dim, layers[0].end_dim) != (1, -1):
        raise NotFusable(f"{path} (Flatten of other dimensions)")
    return flattened(walk, value, kind)


def weight(walk: Walk, node: fx.Node) -> Written:
    """A parameter that is read by name."""
    owner, _, own = str(node.target).rpartition(".")
    holders = [branch.get_submodule(owner) for branch in walk.branches]
    if not owner or not isinstance(getattr(holders[0], own), nn.Parameter):
        raise NotFusable(f"{node.target} (a tensor that is no parameter of a layer)")
    name = walk.add(str(node.target), OneWeight(holders, [own]))
    walk.path_of[name] = owner
    return walk.graph.call_module(name, ()), Kind.WEIGHTS


RULES: list[tuple[Any, Rule]] = [
    (nn.Conv2d, convolution),
    (nn.Linear, linear),
    (nn.BatchNorm2d, batch_norm_of_maps),
    (nn.BatchNorm1d, batch_norm_of_vectors),
    (nn.GroupNorm, group_norm),
    (nn.PReLU, each_slope),
]
AS_THEY_ARE: list[tuple[tuple[type[Any], ...], Rule]] = [
    ((nn.Flatten,), flatten),
    (RANDOM, random),
    ((AcrossChannelLRN, nn.LocalResponseNorm), across_channels),
    (CHANNEL_BY_CHANNEL, channel_by_channel),
]
