"""The same K branches, run as one.

Built by walking the structure of the branches (torch.fx), so a new architecture is fused without new code. Every
value on the way is shared (it is the trunk's own, the same for all experts), maps of all experts (N, K*D, h, w), or
vectors of all experts (N, K, ...). A rule for each kind of layer (`rules.py`) and of function (`functions.py`) says
what it becomes; what has no rule raises NotFusable with the name of the layer, and the reference runs instead.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, fx, nn

from nofe.architectures.genuine import is_hooked, is_hooked_weight, looks_at_gradients
from nofe.architectures.line import names_of_shared_weights
from nofe.architectures.modes import LAYER, call_of, owner_of, where
from nofe.experts import functions, rules
from nofe.experts.branches import Branches
from nofe.experts.following import followed
from nofe.experts.kinds import Kind
from nofe.experts.kinds import NotFusable as NotFusable
from nofe.experts.stacked import StackedLayer
from nofe.experts.walk import Walk, Written


class AlikeGraph(fx.GraphModule):
    """Graphs of the same code have one class: what torch compiled for one of them serves the others.

    torch.fx makes a class for each, and the compiler looks at it. The graph is not changed any more.
    """

    def __init__(self, root: Any, graph: fx.Graph, *more: Any) -> None:
        super().__init__(root, graph, *more)
        code = self.graph.python_code("self")
        same = (code.src, tuple((name, id(value)) for name, value in code.globals.items()))
        self.__class__ = _class_of_code.setdefault(same, type(self))

    @classmethod
    def _deepcopy_init(cls) -> Any:
        return AlikeGraph.__init__


_class_of_code: dict[tuple[str, tuple[tuple[str, int], ...]], type[AlikeGraph]] = {}


class FusedExperts(nn.Module):
    """Features (N, D, h, w) to logits (N, C) in slot order, with the parameters of all experts stacked.

    On disk weights are named by expert all the same: `state_dict` and `load_state_dict` speak the reference's names.
    """

    kept: Tensor
    # Measured: their maps are K times as wide as the trunk's, and layers that act on each number wait for memory.
    compile_options: ClassVar = {
        "triton.persistent_reductions": False,  # sums over few pixels, far apart in channels last
        "triton.prefer_nd_tiling": True,  # the numbers of a channel are read once for many pixels
        "triton.tile_reductions": True,
        "max_autotune_pointwise": True,
    }

    def __init__(self, graph: fx.GraphModule, stacked: dict[str, str], outputs: list[int]) -> None:
        super().__init__()
        self.graph = graph
        self.experts = len(outputs)
        self.path_of = stacked  # name of a stacked layer in the graph -> its path in a branch
        largest = max(outputs)
        kept = [k * largest + place for k, size in enumerate(outputs) for place in range(size)]
        self.ragged = len(set(outputs)) > 1
        self.register_buffer("kept", torch.tensor(kept), persistent=False)
        self.register_load_state_dict_pre_hook(_stack_before_loading)  # type: ignore[no-untyped-call]

    def forward(self, features: Tensor) -> Tensor:  # (N, D, h, w)
        slots: Tensor = self.graph(features).flatten(1)  # (N, K * largest)
        return slots.index_select(1, self.kept) if self.ragged else slots  # (N, C)

    def state_dict(self, *args: Any, destination: Any = None, prefix: str = "", keep_vars: bool = False) -> Any:
        own = super().state_dict(prefix="", keep_vars=keep_vars)
        destination = {} if destination is None else destination
        destination.update({prefix + name: tensor for name, tensor in self.by_expert(own).items()})
        return destination

    def by_expert(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        """`graph.conv4.weight` (K, O, ...) to `3.conv4.weight` (O_3, ...), for every expert."""
        named = {}
        for expert in range(self.experts):
            for name, tensor in tensors.items():
                layer, _, own = name.removeprefix("graph.").rpartition(".")
                named[f"{expert}.{self.path_of[layer]}.{own}"] = self._part(layer, tensor, expert)
        return named

    def name_in_branch(self, name: str) -> str:
        """`graph.conv4.weight` to `conv4.weight`."""
        layer, _, own = name.removeprefix("graph.").rpartition(".")
        return f"{self.path_of[layer]}.{own}"

    def _part(self, layer: str, tensor: Tensor, expert: int) -> Tensor:
        module = self.graph.get_submodule(layer)
        if tensor.dim() == 0:  # a count of steps, the same for all
            return tensor.clone()
        parts = _parts(tensor, self.experts) if _is_flat(module) else tensor  # (K, O, ...)
        return parts[expert, : module.outputs[expert]] if isinstance(module, StackedLayer) else parts[expert]

    def stacked(self, named: dict[str, Tensor]) -> dict[str, Tensor]:
        """The inverse of `by_expert`; names that are not all there are left out."""
        own = dict(self.named_parameters()) | dict(self.named_buffers())
        tensors = {}
        for name, like in own.items():
            if name == "kept":
                continue
            layer, _, last = name.removeprefix("graph.").rpartition(".")
            wanted = [f"{expert}.{self.path_of[layer]}.{last}" for expert in range(self.experts)]
            if not all(each in named for each in wanted):
                continue
            full = torch.zeros_like(like, requires_grad=False)
            for expert, each in enumerate(wanted):
                if like.dim() == 0:
                    full = named[each].detach().to(like.device)
                else:
                    self._part(layer, full, expert).copy_(named[each].detach())
            tensors[name] = full
        return tensors


def _is_flat(module: nn.Module) -> bool:
    return not isinstance(module, StackedLayer) or module.flat


def _parts(flat: Tensor, experts: int) -> Tensor:
    """(K*O, ...) to (K, O, ...), a view."""
    return flat.view(experts, -1, *flat.shape[1:])


def _stack_before_loading(
    module: nn.Module,
    state: dict[str, Any],
    prefix: str,
    _metadata: object,
    _strict: bool,
    missing: list[str],
    unexpected: list[str],
    errors: list[str],
) -> None:
    """What cannot be loaded is left as it is, and reported by the names that it has in K modules."""
    assert isinstance(module, FusedExperts)
    named = {name.removeprefix(prefix): state.pop(name) for name in list(state) if name.startswith(prefix)}
    own: dict[str, Tensor] = module.state_dict()
    fitting = {name: tensor for name, tensor in named.items() if name in own and tensor.shape == own[name].shape}
    missing.extend(prefix + name for name in own if name not in named)
    unexpected.extend(prefix + name for name in named if name not in own)
    errors.extend(
        f"size mismatch for {prefix}{name}: the weights have {tuple(named[name].shape)}, this network "
        f"{tuple(tensor.shape)}."
        for name, tensor in own.items()
        if name in named and name not in fitting
    )
    state.update({prefix + name: tensor for name, tensor in module.stacked(own | fitting).items()})


def fuse(branches: Branches) -> FusedExperts:
    """Run the K branches as one from now on; their weights are copied. Raises NotFusable."""
    for branch in branches:
        _require_no_hook_is_lost(branch)
    walk = _walked(list(branches))
    for branch in branches:
        _require_own_weights(branch)
    _require_frozen_alike(list(branches))
    fused = FusedExperts(AlikeGraph(walk.root, walk.graph), walk.path_of, walk.outputs)
    for module in (fused, fused.graph):  # not train(): layers keep modes of their own
        module.training = branches.training
    _require_one_place(fused)
    if left := sorted(branches.state_dict().keys() - fused.state_dict().keys()):
        raise NotFusable(f"{left[0].partition('.')[2]} (weights of a branch that it does not read)")
    for name, parameter in fused.named_parameters():
        parameter.requires_grad_(branches[0].get_parameter(fused.name_in_branch(name)).requires_grad)
    return fused


def unfuse(fused: FusedExperts, branches: Branches) -> None:
    """Copy the weights back to the K modules that `fused` was made of."""
    branches.train(fused.training)
    for name, path in fused.path_of.items():  # precision and mode may have changed since
        layer = fused.graph.get_submodule(name)
        for branch in branches:
            own = branch.get_submodule(path).to(next(layer.parameters()).dtype)
            own.training = layer.training
    branches.load_state_dict(fused.state_dict())
    for name, parameter in fused.named_parameters():
        for branch in branches:
            branch.get_parameter(fused.name_in_branch(name)).requires_grad_(parameter.requires_grad)


def _walked(branches: Sequence[nn.Module]) -> Walk:
    """The graph of all K branches, written in one walk over the graph of the first."""
    traced = [followed(branch, rules.LEAVES) for branch in branches]
    _require_alike([graph for graph, _ in traced])
    graph, whole = traced[0]
    walk = Walk(branches)
    for node in graph.nodes:
        if node.op == "output":
            value, kind = walk.value(node.args[0])
            if kind is not Kind.VECTORS:
                raise NotFusable(f"the output of a branch is {kind.value}, not vectors of logits")
            walk.graph.output(value)
        else:
            walk.note(node, _written(walk, node, whole))
    if not walk.outputs:
        raise NotFusable("no convolution or linear layer")
    return walk


def _written(walk: Walk, node: fx.Node, whole: set[nn.Module]) -> Written:
    if node.op == "placeholder":
        return walk.graph.placeholder(node.name), Kind.SHARED
    if node.op == "get_attr":
        return rules.weight(walk, node)
    if node.op == "call_module":
        return rules.layer(walk, node, whole)
    if LAYER in node.meta:
        path = f"{owner_of(node)}.each_{node.name}".removeprefix(".")
        return rules.random(walk, path, [node.meta[LAYER]] * walk.count, *walk.value(node.args[0]))
    return functions.function(walk, node)


def _require_own_weights(branch: nn.Module) -> None:
    """Each layer stacks its own: a weight that two layers have would become two."""
    for first, second, *_ in names_of_shared_weights(branch):
        raise NotFusable(f"{second} (the same weight as {first})")


def _require_one_place(fused: FusedExperts) -> None:
    """A weight that its layer computes with, and that code reads by name as well, would become two that drift apart."""
    for name, places in Counter(fused.name_in_branch(name) for name, _ in fused.named_parameters()).items():
        if places > 1:
            raise NotFusable(f"{name} (a weight that is read by name, too)")


def _require_no_hook_is_lost(branch: nn.Module) -> None:
    """A hook would be called once, with what torch.fx follows the code with, and never with a map of one expert."""
    for path, module in branch.named_modules():
        if is_hooked(module) or looks_at_gradients(module):
            raise NotFusable(f"{path or 'the branch'} (has a hook, which would not be called)")
    for name, weight in branch.named_parameters():  # stacked with those of other experts it is another tensor
        if is_hooked_weight(weight):
            raise NotFusable(f"{name} (has a hook, which would not be called)")


def _require_frozen_alike(branches: Sequence[nn.Module]) -> None:
    """All experts' weights of a layer are one tensor, which learns or does not."""
    learning = [{name: each.requires_grad for name, each in branch.named_parameters()} for branch in branches]
    for name, learns in learning[0].items():
        if any(other.get(name, learns) != learns for other in learning[1:]):
            raise NotFusable(f"{name} (frozen in some experts and not in others)")


def _require_alike(traces: Sequence[fx.Graph]) -> None:
    """One graph stands for all of them, with its constants; the settings of layers are compared by the rules."""
    first = list(traces[0].nodes)
    for other in (list(trace.nodes) for trace in traces[1:]):
        if len(other) != len(first):
            raise NotFusable("branches that are not alike")
        for step, its in zip(first, other, strict=True):
            if call_of(step) != call_of(its):
                raise NotFusable(f"{step.name}{where(step)} (branches that are not alike)")
