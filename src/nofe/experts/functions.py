"""How the functions and methods that a branch calls are run for K experts at once.

Most are applied to each expert's value alone, by torch.vmap. The sizes that code asks for are those of one expert's
value, so a view by them means the same for K experts as for one.
"""

import operator
from collections.abc import Sequence
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

from nofe.architectures.modes import where
from nofe.experts.kinds import Kind, NotFusable
from nofe.experts.walk import Walk, Written

POINTWISE: set[Any] = {
    F.relu, torch.relu, F.gelu, F.silu, F.mish, F.relu6, F.leaky_relu, F.elu, F.celu, F.selu, F.hardswish,
    F.hardsigmoid, F.hardtanh, F.softplus, F.softsign, F.logsigmoid, torch.sigmoid, torch.tanh, F.sigmoid, F.tanh,
    "relu", "relu_", "sigmoid", "sigmoid_", "tanh", "tanh_",
}  # fmt: skip
ADDITIONS: set[Any] = {operator.add, torch.add, operator.iadd, "add", "add_"}
FLATTENINGS: set[Any] = {torch.flatten, "flatten"}
ARITHMETIC: set[Any] = {
    operator.add, operator.iadd, torch.add, "add", "add_", operator.mul, operator.imul, torch.mul, "mul", "mul_",
    operator.sub, torch.sub, "sub", operator.truediv, torch.div, "div", operator.floordiv, operator.neg, torch.neg,
    "neg", torch.clamp, "clamp", torch.abs, "abs", torch.exp, "exp", torch.square, "square",
}  # fmt: skip
REDUCING: set[Any] = {"mean", torch.mean, "sum", torch.sum, "amax", torch.amax}
REARRANGING: set[Any] = {
    *REDUCING, torch.cat, torch.concat, operator.getitem, "permute", torch.permute, "transpose", torch.transpose,
    "reshape", torch.reshape, "view", "flatten", torch.flatten, "unflatten", "squeeze", torch.squeeze, "unsqueeze",
    torch.unsqueeze, "contiguous", "expand", "expand_as",
}  # fmt: skip
POOLING: set[Any] = {F.adaptive_avg_pool2d, F.avg_pool2d, F.max_pool2d, F.adaptive_max_pool2d, torch.max_pool2d}


class EachFunction(nn.Module):
    """A function of each expert's values: `arrangement` is its arguments, with Place(i) for the i-th value."""

    def __init__(self, call: Any, arrangement: tuple[Any, Any], kinds: list[Kind], experts: int) -> None:
        super().__init__()
        self.call, self.arrangement, self.kinds, self.experts = call, _lists_as_tuples(arrangement), kinds, experts
        self.only_weights = set(kinds) <= {Kind.WEIGHTS, Kind.NUMBERS}

    def forward(self, *values: Any) -> Tensor:
        values = tuple(
            value.unflatten(1, (self.experts, -1)) if kind is Kind.MAPS else value
            for value, kind in zip(values, self.kinds, strict=True)
        )
        dim_of = {Kind.SHARED: None, Kind.NUMBERS: None, Kind.MAPS: 1, Kind.VECTORS: 1, Kind.WEIGHTS: 0}
        dims = tuple(dim_of[kind] for kind in self.kinds)
        every = torch.vmap(self._one, in_dims=dims, out_dims=0 if self.only_weights else 1)
        result: Tensor = every(*values)
        return result

    def _one(self, *values: Any) -> Any:
        args, kwargs = fx.node.map_aggregate(
            cast(Any, self.arrangement), lambda each: values[each.index] if isinstance(each, Place) else each
        )
        if self.call == "view":  # which fails here: the part of one expert does not lie in one piece
            return args[0].reshape(*args[1:], **kwargs)
        if isinstance(self.call, str):
            return getattr(args[0], self.call)(*args[1:], **kwargs)
        return self.call(*args, **kwargs)


def _lists_as_tuples(arguments: Any) -> Any:
    """For the compiler, which does not know the immutable lists of torch.fx."""
    if isinstance(arguments, dict):
        return {name: _lists_as_tuples(each) for name, each in arguments.items()}
    return tuple(map(_lists_as_tuples, arguments)) if isinstance(arguments, tuple | list) else arguments


class Place:
    def __init__(self, index: int) -> None:
        self.index = index


def function(walk: Walk, node: fx.Node) -> Written:
    """Write a function or method that a branch calls for all experts."""
    target: Any = node.target
    if target in ADDITIONS and (result := _sum(walk, node)) is not None:
        return result
    if target in FLATTENINGS and node.args[1:] in ((1,), (1, -1)) and not node.kwargs:
        return flattened(walk, *walk.value(node.args[0]))
    if _asks_for_sizes(node):
        return _sizes_of_one(walk, node)
    if target in POINTWISE | POOLING:
        read = node.all_input_nodes[0]  # others may be sizes
        value, kind = walk.value(read)
        if target in POOLING:
            value, kind = walk.as_map(value, kind)
        return walk.graph.node_copy(node, lambda each: value if each is read else walk.value(each)[0]), kind
    if target in ARITHMETIC | REARRANGING:
        return _of_each(walk, node)
    name = target if isinstance(target, str) else getattr(target, "__name__", target)
    raise NotFusable(f"{node.name} ({name}{where(node)})")


def _of_each(walk: Walk, node: fx.Node) -> Written:
    """Arithmetic and rearranging: on the whole if that means the same for K experts, else on each expert's value."""
    target, read = node.target, node.all_input_nodes
    values, kinds = {each: walk.value(each)[0] for each in read}, [walk.value(each)[1] for each in read]
    tensors = [kind for kind in kinds if kind is not Kind.NUMBERS]
    if not tensors:  # what is made of sizes is the same for all experts, too
        return walk.graph.node_copy(node, lambda each: values[each]), Kind.NUMBERS
    if walk.is_ragged and target in REARRANGING and not _keeps_outputs(node, tensors[0]):
        raise NotFusable(f"{node.name}{where(node)} (reads outputs whose number differs between experts)")
    first, alike = tensors[0], len(set(tensors)) == 1
    plain = first is Kind.SHARED or target in ARITHMETIC or (first is Kind.MAPS and _averages_map(node))
    if alike and plain and first is not Kind.WEIGHTS and (len(tensors) == 1 or first is not Kind.VECTORS):
        if kinds == [Kind.MAPS, Kind.MAPS]:
            values = dict(zip(read, _of_one_width(walk, *values.values()), strict=True))
        return walk.graph.node_copy(node, lambda each: values[each]), first
    places = {each: Place(index) for index, each in enumerate(read)}
    arrangement = fx.node.map_arg((node.args, dict(node.kwargs)), lambda each: cast(Any, places[each]))
    module = EachFunction(target, cast(Any, arrangement), kinds, walk.count)
    name = walk.add(f"each_{node.name}", module)
    kind = Kind.WEIGHTS if module.only_weights else Kind.VECTORS
    return walk.graph.call_module(name, tuple(values.values())), kind


def _asks_for_sizes(node: fx.Node) -> bool:
    return node.target == "size" or (node.target is getattr and node.args[1:] == ("shape",))


def _sizes_of_one(walk: Walk, node: fx.Node) -> Written:
    """The size of the first expert's value: those of the others are the same."""
    value, kind = walk.value(node.all_input_nodes[0])
    if walk.is_ragged:
        raise NotFusable(f"{node.name}{where(node)} (asks for sizes that differ between experts)")
    if kind is Kind.MAPS:
        value = walk.by_expert(value)
    if kind is not Kind.SHARED:
        value = walk.graph.call_method("select", (value, 0 if kind is Kind.WEIGHTS else 1, 0))
    return walk.graph.node_copy(node, lambda _: value), Kind.NUMBERS


def _sum(walk: Walk, node: fx.Node) -> Written | None:
    """The sum of two values; None where it is no plain one, as when its result is not read but written in place."""
    if node.kwargs or not node.users or not all(isinstance(each, fx.Node) for each in node.args[:2]):
        return None
    (one, kind_one), (other, kind_other) = (walk.value(argument) for argument in node.args[:2])
    if kind_one is kind_other:
        if kind_one is Kind.MAPS:
            one, other = _of_one_width(walk, one, other)
        return walk.graph.call_function(operator.add, (one, other)), kind_one
    if {kind_one, kind_other} == {Kind.MAPS, Kind.SHARED}:
        own, shared = (one, other) if kind_one is Kind.MAPS else (other, one)
        return walk.graph.call_function(add_shared, (own, shared, walk.count)), Kind.MAPS
    return None


def flattened(walk: Walk, value: fx.Node, kind: Kind) -> Written:
    if kind is Kind.MAPS:
        return walk.graph.call_function(vectors_of_maps, (value, walk.count)), Kind.VECTORS
    if kind is Kind.SHARED:
        return walk.graph.call_method("flatten", (value, 1)), Kind.SHARED
    return walk.graph.call_method("flatten", (value, 2)), kind


def add_shared(own: Tensor, shared: Tensor, experts: int) -> Tensor:
    """(N, K*D, h, w) plus (N, D, h, w), the same for every expert."""
    maps: Tensor = (own.unflatten(1, (experts, -1)) + shared[:, None]).flatten(1, 2)
    return maps


def vectors_of_maps(maps: Tensor, experts: int) -> Tensor:
    """(N, K*D, h, w) to (N, K, D*h*w)."""
    vectors: Tensor = maps.unflatten(1, (experts, -1)).flatten(2)
    return vectors


def _of_one_width(walk: Walk, one: fx.Node, other: fx.Node) -> tuple[fx.Node, fx.Node]:
    """Two maps as wide as each other, for arithmetic: which of them is a mask is only known when the graph runs."""
    wide = walk.graph.call_function(as_wide_as, (one, other, walk.count))
    return wide, walk.graph.call_function(as_wide_as, (other, one, walk.count))


def as_wide_as(mask: Tensor, maps: Tensor, experts: int) -> Tensor:
    """One channel of each expert (N, K, h, w), as spatial attention has it, for its D channels; other maps are kept."""
    channels = maps.shape[1] // experts
    is_mask = mask.shape[1] == experts and channels > 1
    return mask.repeat_interleave(channels, dim=1) if is_mask else mask


def _averages_map(node: fx.Node) -> bool:
    """mean((2, 3), keepdim=True), the squeeze of squeeze-and-excitation, which is right on K*D channels, too."""
    keeps = node.args[2] if len(node.args) > 2 else node.kwargs.get("keepdim", False)
    return node.target in ("mean", torch.mean) and keeps is True and _dims(node) in ({2, 3}, {-2, -1})


def _keeps_outputs(node: fx.Node, kind: Kind) -> bool:
    """Whether dimension 1, which is padded where an expert has fewer outputs, stays as it is."""
    if node.target is operator.getitem:
        index = node.args[1]
        return isinstance(index, tuple) and index[:2] == (slice(None), slice(None))
    if node.target in REDUCING:
        pixels = {2, 3, -2, -1} if kind is Kind.MAPS else {2, 3}
        return bool(dims := _dims(node)) and dims <= pixels
    return node.target in {"squeeze", torch.squeeze, "contiguous", "flatten", torch.flatten}


def _dims(node: fx.Node) -> set[int]:
    """The dimensions that are reduced; none given are all of them."""
    dims: Any = node.args[1] if len(node.args) > 1 else node.kwargs.get("dim")
    return set(dims) if isinstance(dims, Sequence) else set() if dims is None else {dims}
