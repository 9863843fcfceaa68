"""How the functions and methods that a branch calls are run for K experts at once.

Most are applied to each expert's value alone, by torch.vmap. The sizes that code asks for are those of one expert's
value, so a view by them means the same for K experts as for one.
"""

import operator
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

from nofe.architectures.modes import where
from nofe.experts.kinds import Kind, NotFusable

if TYPE_CHECKING:
    from nofe.experts.fused import _Walk

ARITHMETIC: set[Any] = {
    operator.add, operator.iadd, torch.add, "add", "add_", operator.mul, operator.imul, torch.mul, "mul", "mul_",
    operator.sub, torch.sub, "sub", operator.truediv, torch.div, "div", operator.floordiv,
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
        if self.call == "view":  # of one expert's part, which does not lie in one piece
            return args[0].reshape(*args[1:], **kwargs)
        if isinstance(self.call, str):
            return getattr(args[0], self.call)(*args[1:], **kwargs)
        return self.call(*args, **kwargs)


def _lists_as_tuples(arguments: Any) -> Any:
    """The compiler knows no lists of torch.fx, which are closed to writing."""
    if isinstance(arguments, dict):
        return {name: _lists_as_tuples(each) for name, each in arguments.items()}
    return tuple(map(_lists_as_tuples, arguments)) if isinstance(arguments, tuple | list) else arguments


class Place:
    def __init__(self, index: int) -> None:
        self.index = index


def function(walk: "_Walk", node: fx.Node) -> tuple[fx.Node, Kind] | None:
    """None where there is no rule."""
    target, read = node.target, node.all_input_nodes
    values, kinds = {each: walk.values[each][0] for each in read}, [walk.values[each][1] for each in read]
    if _asks_for_sizes(node):
        return _sizes_of_one(walk, node, *walk.values[read[0]])
    if target in POOLING:
        values[read[0]], kind = walk.as_map(*walk.values[read[0]])
        return walk.graph.node_copy(node, lambda each: values[each]), kind
    if target not in ARITHMETIC | REARRANGING:
        return None
    tensors = [kind for kind in kinds if kind is not Kind.NUMBERS]
    if not tensors:  # what is made of sizes is the same for all experts, too
        return walk.graph.node_copy(node, lambda each: values[each]), Kind.NUMBERS
    if walk.is_ragged and target in REARRANGING and not _keeps_outputs(node, tensors[0]):
        raise NotFusable(f"{node.name}{where(node)} (reads outputs whose number differs between experts)")
    first, alike = tensors[0], len(set(tensors)) == 1
    plain = first is Kind.SHARED or target in ARITHMETIC or (first is Kind.MAPS and _averages_map(node))
    if alike and plain and first is not Kind.WEIGHTS and (len(tensors) == 1 or first is not Kind.VECTORS):
        if kinds == [Kind.MAPS, Kind.MAPS]:
            values = dict(zip(read, of_one_width(walk, *values.values()), strict=True))
        return walk.graph.node_copy(node, lambda each: values[each]), first
    places = {each: Place(index) for index, each in enumerate(read)}
    arrangement = fx.node.map_arg((node.args, dict(node.kwargs)), lambda each: cast(Any, places[each]))
    module = EachFunction(target, cast(Any, arrangement), kinds, walk.count)
    walk.root.add_module(f"each_{node.name}", module)
    kind = Kind.WEIGHTS if module.only_weights else Kind.VECTORS
    return walk.graph.call_module(f"each_{node.name}", tuple(values.values())), kind


def _asks_for_sizes(node: fx.Node) -> bool:
    return node.target == "size" or (node.target is getattr and node.args[1:] == ("shape",))


def _sizes_of_one(walk: "_Walk", node: fx.Node, value: fx.Node, kind: Kind) -> tuple[fx.Node, Kind]:
    """All experts' values are of one shape, so the first one is asked for all."""
    if walk.is_ragged:
        raise NotFusable(f"{node.name}{where(node)} (asks for sizes that differ between experts)")
    if kind is Kind.MAPS:
        value = walk.graph.call_method("unflatten", (value, 1, (walk.count, -1)))
    if kind is not Kind.SHARED:
        value = walk.graph.call_method("select", (value, 0 if kind is Kind.WEIGHTS else 1, 0))
    return walk.graph.node_copy(node, lambda _: value), Kind.NUMBERS


def of_one_width(walk: "_Walk", one: fx.Node, other: fx.Node) -> tuple[fx.Node, fx.Node]:
    """Maps of all experts that meet in arithmetic; only as the graph runs is it known which of them is a mask."""
    wide = walk.graph.call_function(as_wide_as, (one, other, walk.count))
    return wide, walk.graph.call_function(as_wide_as, (other, one, walk.count))


def as_wide_as(mask: Tensor, maps: Tensor, experts: int) -> Tensor:
    """One channel of each expert (N, K, h, w), as spatial attention has it, for its D channels; other maps are kept."""
    channels = maps.shape[1] // experts
    is_mask = mask.shape[1] == experts and channels > 1
    return mask.repeat_interleave(channels, dim=1) if is_mask else mask


def _averages_map(node: fx.Node) -> bool:
    """mean((2, 3), keepdim=True), the squeeze of squeeze-and-excitation: as good on K*D channels."""
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
    """That are reduced; none where all are."""
    dims: Any = node.args[1] if len(node.args) > 1 else node.kwargs.get("dim")
    return set(dims) if isinstance(dims, Sequence) else set() if dims is None else {dims}
