"""The same K branches, run as one.

Built by walking the structure of the branches (torch.fx), so a new architecture is fused without new code. Every
value on the way is shared (it is the trunk's own, the same for all experts), maps of all experts (N, K*D, h, w), or
vectors of all experts (N, K, ...). A rule for each kind of layer says what it becomes, here for the layers of the
paper's networks, in `rules.py` for others, in `functions.py` for functions; what has no rule raises NotFusable with the
name of the layer, and the reference runs instead.
"""

import operator
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

from nofe.architectures.caffe import AcrossChannelLRN, BatchNorm2d, WithinChannelLRN
from nofe.architectures.images_first import without_counting_images
from nofe.architectures.modes import LAYER, where
from nofe.experts import functions, rules
from nofe.experts.branches import Branches
from nofe.experts.following import followed
from nofe.experts.kinds import Kind
from nofe.experts.kinds import NotFusable as NotFusable
from nofe.experts.stacked import GroupedConvolution, SharedConvolution, StackedLayer

# Act on each number, or on each channel, alone: the same module serves K*D channels.
CHANNEL_BY_CHANNEL = (
    nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.ELU, nn.GELU, nn.SiLU, nn.Mish, nn.Hardswish, nn.Hardsigmoid, nn.Sigmoid,
    nn.Tanh, nn.Identity, nn.MaxPool2d, nn.AvgPool2d, nn.AdaptiveAvgPool2d, nn.AdaptiveMaxPool2d, WithinChannelLRN,
)  # fmt: skip
ON_MAPS = (nn.MaxPool2d, nn.AvgPool2d, nn.AdaptiveAvgPool2d, nn.AdaptiveMaxPool2d, WithinChannelLRN)
RANDOM = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.AlphaDropout)
DROPS_CHANNELS = (nn.Dropout1d, nn.Dropout2d)
POINTWISE_FUNCTIONS = {
    F.relu, torch.relu, F.gelu, F.silu, F.relu6, F.leaky_relu, F.elu, F.hardswish, F.hardsigmoid, torch.sigmoid,
    torch.tanh, F.sigmoid, F.tanh, "relu", "relu_", "sigmoid", "sigmoid_", "tanh", "tanh_",
}  # fmt: skip
ADDITIONS = {operator.add, torch.add, operator.iadd, "add", "add_"}
FLATTENINGS = {torch.flatten, "flatten"}
LEAVES = (*CHANNEL_BY_CHANNEL, *RANDOM, nn.Conv2d, nn.Linear, nn.BatchNorm2d, nn.Flatten, AcrossChannelLRN)


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
    # Their maps are K times as wide as the trunk's, and what acts on each number waits for memory; measured.
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


def _stack_before_loading(module: nn.Module, state: dict[str, Any], prefix: str, *_: Any) -> None:
    assert isinstance(module, FusedExperts)
    named = {name.removeprefix(prefix): state.pop(name) for name in list(state) if name.startswith(prefix)}
    state.update({prefix + name: tensor for name, tensor in module.stacked(named).items()})


def fuse(branches: Branches) -> FusedExperts:
    """Run the K branches as one from now on; their weights are copied. Raises NotFusable."""
    walk = _Walk(list(branches))
    graph = walk.fused()
    fused = FusedExperts(graph, walk.path_of, walk.outputs)
    fused.train(branches.training)
    if left := sorted(branches.state_dict().keys() - fused.state_dict().keys()):
        raise NotFusable(f"{left[0].partition('.')[2]} (weights of a branch that it does not read)")
    return fused


def unfuse(fused: FusedExperts, branches: Branches) -> None:
    """Copy the weights back to the K modules that `fused` was made of."""
    branches.load_state_dict(fused.state_dict())
    branches.train(fused.training)


class _Walk:
    """One pass over the graph of a branch, writing the graph of all K."""

    def __init__(self, branches: Sequence[nn.Module]) -> None:
        self.branches = branches
        self.count = len(branches)
        traced = [followed(branch, LEAVES) for branch in branches]
        self.traces = [graph for graph, _ in traced]
        self._whole = traced[0][1]  # modules of the first branch that vmap runs as they are
        for trace in self.traces:
            without_counting_images(trace)
        _require_alike(self.traces)
        self.graph = fx.Graph()
        self.root = nn.Module()
        self.path_of: dict[str, str] = {}
        self.outputs: list[int] = []
        self.values: dict[fx.Node, tuple[fx.Node, Kind]] = {}

    def fused(self) -> fx.GraphModule:
        for node in self.traces[0].nodes:
            if node.op == "placeholder":
                self.values[node] = self.graph.placeholder(node.name), Kind.SHARED
            elif node.op == "call_module":
                self.values[node] = self._module(node)
            elif node.op in ("call_function", "call_method"):
                self.values[node] = self._function(node)
            elif node.op == "get_attr":
                self.values[node] = rules.weight(self, node)
            elif node.op == "output":
                value, kind = self._value(node.args[0])
                if kind is not Kind.VECTORS:
                    raise NotFusable(f"the output of a branch is {kind.value}, not vectors of logits")
                self.graph.output(value)
            else:
                raise NotFusable(f"{node.op} {node.target}")
        if not self.outputs:
            raise NotFusable("no convolution or linear layer")
        return AlikeGraph(self.root, self.graph)

    @property
    def is_ragged(self) -> bool:
        return len(set(self.outputs)) > 1

    def _value(self, argument: Any) -> tuple[fx.Node, Kind]:
        if not isinstance(argument, fx.Node):
            raise NotFusable(f"a constant operand {argument!r}")
        return self.values[argument]

    def _module(self, node: fx.Node) -> tuple[fx.Node, Kind]:
        path = str(node.target)
        layers = [branch.get_submodule(path) for branch in self.branches]
        if len(node.args) != 1 or node.kwargs:
            raise NotFusable(f"{path} ({type(layers[0]).__name__} that reads more than one value)")
        value, kind = self._value(node.args[0])
        rule = next((rule for types, rule in _RULES if isinstance(layers[0], types)), None)
        if (drops := rules.drops_images(layers[0])) is not None:
            return rules.images_dropped(self, path, drops, value, kind)
        if layers[0] in self._whole:
            return rules.each_module(self, path, layers, value, kind)
        if rule is None:
            raise NotFusable(f"{path} ({type(layers[0]).__name__})")
        return rule(self, path, layers, value, kind)

    def put(self, path: str, module: nn.Module, value: fx.Node, parameters: bool) -> fx.Node:
        name = path.replace(".", "_")
        earlier = getattr(self.root, name, module)  # a layer that is run again has its weights in the same place
        if (type(earlier), getattr(earlier, "kind", None)) != (type(module), getattr(module, "kind", None)):
            raise NotFusable(f"{path} (is run twice, and not on values of one kind)")
        self.root.add_module(name, module)
        if parameters:
            self.path_of[name] = path
        return self.graph.call_module(name, (value,))

    def stacked_maps(self, value: fx.Node, kind: Kind, path: str) -> fx.Node:
        """The trunk's map repeated for every expert, where a layer must treat them apart."""
        if kind is Kind.SHARED:
            return self.graph.call_method("repeat", (value, 1, self.count, 1, 1))
        return self.as_map(value, kind)[0]

    def as_map(self, value: fx.Node, kind: Kind) -> tuple[fx.Node, Kind]:
        """For layers that read maps: what each expert has for itself must be one, (N, K, D, h, w)."""
        if kind is not Kind.VECTORS:
            return value, kind
        return self.graph.call_method("flatten", (value, 1, 2)), Kind.MAPS

    def _function(self, node: fx.Node) -> tuple[fx.Node, Kind]:
        target: Any = node.target
        if LAYER in node.meta:
            return self.random(f"each_{node.name}", [node.meta[LAYER]] * self.count, *self._value(node.args[0]))
        if target in POINTWISE_FUNCTIONS:
            value, kind = self._value(node.args[0])
            return self.graph.create_node(node.op, target, (value, *node.args[1:]), dict(node.kwargs)), kind
        if target in ADDITIONS and (result := self._sum(node)) is not None:
            return result
        if target in FLATTENINGS and node.args[1:] in ((1,), (1, -1)) and not node.kwargs:
            return self._flattened(*self._value(node.args[0]))
        if (result := functions.function(self, node)) is not None:
            return result
        name = target if isinstance(target, str) else getattr(target, "__name__", target)
        raise NotFusable(f"{node.name} ({name}{where(node)})")

    def _sum(self, node: fx.Node) -> tuple[fx.Node, Kind] | None:
        """Of two values, or None. What nobody reads is none: it is written over one of them."""
        if node.kwargs or not node.users or not all(isinstance(each, fx.Node) for each in node.args[:2]):
            return None
        (one, kind_one), (other, kind_other) = (self._value(argument) for argument in node.args[:2])
        if kind_one is kind_other:
            if kind_one is Kind.MAPS:
                one, other = functions.of_one_width(self, one, other)
            return self.graph.call_function(operator.add, (one, other)), kind_one
        if {kind_one, kind_other} == {Kind.MAPS, Kind.SHARED}:
            own, shared = (one, other) if kind_one is Kind.MAPS else (other, one)
            return self.graph.call_function(add_shared, (own, shared, self.count)), Kind.MAPS
        return None

    def _flattened(self, value: fx.Node, kind: Kind) -> tuple[fx.Node, Kind]:
        if kind is Kind.MAPS:
            return self.graph.call_function(vectors_of_maps, (value, self.count)), Kind.VECTORS
        if kind is Kind.SHARED:
            return self.graph.call_method("flatten", (value, 1)), Kind.SHARED
        return self.graph.call_method("flatten", (value, 2)), kind

    # A rule takes the layers of the K experts and what they read, and gives what they write.

    def convolution(self, path: str, layers: list[Any], value: fx.Node, kind: Kind) -> tuple[fx.Node, Kind]:
        if type(layers[0]).forward is not nn.Conv2d.forward or layers[0].padding_mode != "zeros":
            raise NotFusable(f"{path} ({type(layers[0]).__name__}, not padded with zeros)")
        value, kind = self.as_map(value, kind)
        self.note_outputs(path, layers)
        layer = SharedConvolution(layers) if kind is Kind.SHARED else GroupedConvolution(layers)
        return self.put(path, layer, value, parameters=True), Kind.MAPS

    def linear(self, path: str, layers: list[Any], value: fx.Node, kind: Kind) -> tuple[fx.Node, Kind]:
        if kind is Kind.MAPS:
            raise NotFusable(f"{path} (Linear on a map)")
        if type(layers[0]).forward is not nn.Linear.forward and not _is_plain_in_timm(layers[0]):
            return rules.linear_of_its_own(self, path, layers, value, kind)
        self.note_outputs(path, layers)
        layer = rules.SharedEachLinear(layers) if kind is Kind.SHARED else rules.EachLinear(layers)
        return self.put(path, layer, value, parameters=True), Kind.VECTORS

    def note_outputs(self, path: str, layers: list[Any]) -> None:
        if self.is_ragged:
            raise NotFusable(f"{path} (reads a layer whose size differs between experts)")
        self.outputs = [len(layer.weight) for layer in layers]

    def batch_norm(self, path: str, layers: list[Any], value: fx.Node, kind: Kind) -> tuple[fx.Node, Kind]:
        if self.is_ragged:
            raise NotFusable(f"{path} (reads a layer whose size differs between experts)")
        first = layers[0]
        if not (first.affine and first.track_running_stats):
            raise NotFusable(f"{path} ({type(first).__name__} without weights or running statistics)")
        if type(first) is BatchNorm2d:
            layer: nn.BatchNorm2d = BatchNorm2d(self.count * first.num_features, first.fraction)
        elif type(first) is nn.BatchNorm2d or _is_timms(first):
            layer = nn.BatchNorm2d(self.count * first.num_features, eps=first.eps, momentum=first.momentum)
        else:
            raise NotFusable(f"{path} ({type(first).__name__})")
        steps = {int(each.num_batches_tracked) for each in layers}
        if len(steps) > 1:
            raise NotFusable(f"{path} (experts with different numbers of training steps)")
        layer.to(first.weight.device, first.weight.dtype)
        with torch.no_grad():
            for name in ("weight", "bias", "running_mean", "running_var"):
                getattr(layer, name).copy_(torch.cat([getattr(each, name) for each in layers]))
            layer.num_batches_tracked.copy_(first.num_batches_tracked)  # type: ignore[union-attr]
        normalised = self.put(path, layer, self.stacked_maps(value, kind, path), parameters=True)
        if type(first) is not layer.__class__:
            for own in ("drop", "act"):
                normalised = self.put(f"{path}.{own}", getattr(first, own), normalised, parameters=False)
        return normalised, Kind.MAPS

    def channel_by_channel(self, path: str, layers: list[Any], value: fx.Node, kind: Kind) -> tuple[fx.Node, Kind]:
        if isinstance(layers[0], ON_MAPS):
            value, kind = self.as_map(value, kind)
        return self.put(path, layers[0], value, parameters=False), kind

    def random(self, path: str, layers: list[Any], value: fx.Node, kind: Kind) -> tuple[fx.Node, Kind]:
        """Each expert drops its own."""
        if kind is Kind.SHARED or (kind is Kind.VECTORS and isinstance(layers[0], DROPS_CHANNELS)):
            return rules.each_module(self, path, layers, value, kind)
        return self.put(path, layers[0], value, parameters=False), kind

    def across_channels(self, path: str, layers: list[Any], value: fx.Node, kind: Kind) -> tuple[fx.Node, Kind]:
        """Each expert's channels on their own: the experts become images for a moment."""
        value, kind = self.as_map(value, kind)
        if kind is not Kind.MAPS:
            return self.put(path, layers[0], value, parameters=False), kind
        apart = self.graph.call_function(experts_as_images, (value, self.count))
        normalised = self.put(path, layers[0], apart, parameters=False)
        return self.graph.call_function(images_as_experts, (normalised, self.count)), Kind.MAPS

    def flatten(self, path: str, layers: list[Any], value: fx.Node, kind: Kind) -> tuple[fx.Node, Kind]:
        if (layers[0].start_dim, layers[0].end_dim) != (1, -1):
            raise NotFusable(f"{path} (Flatten of other dimensions)")
        return self._flattened(value, kind)


_Rule = Callable[[_Walk, str, list[Any], fx.Node, Kind], tuple[fx.Node, Kind]]
_RULES: list[tuple[Any, _Rule]] = [
    (nn.Conv2d, _Walk.convolution),
    (nn.Linear, _Walk.linear),
    (nn.BatchNorm2d, _Walk.batch_norm),
    (nn.BatchNorm1d, rules.batch_norm_of_vectors),
    (nn.Flatten, _Walk.flatten),
    (RANDOM, _Walk.random),
    (AcrossChannelLRN, _Walk.across_channels),
    (CHANNEL_BY_CHANNEL, _Walk.channel_by_channel),
]


def add_shared(own: Tensor, shared: Tensor, experts: int) -> Tensor:
    """(N, K*D, h, w) plus (N, D, h, w), the same for every expert."""
    maps: Tensor = (own.unflatten(1, (experts, -1)) + shared[:, None]).flatten(1, 2)
    return maps


def vectors_of_maps(maps: Tensor, experts: int) -> Tensor:
    """(N, K*D, h, w) to (N, K, D*h*w)."""
    vectors: Tensor = maps.unflatten(1, (experts, -1)).flatten(2)
    return vectors


def experts_as_images(maps: Tensor, experts: int) -> Tensor:
    images: Tensor = maps.unflatten(1, (experts, -1)).flatten(0, 1)
    return images


def images_as_experts(images: Tensor, experts: int) -> Tensor:
    maps: Tensor = images.unflatten(0, (-1, experts)).flatten(1, 2)
    return maps


def _is_timms(norm: nn.BatchNorm2d) -> bool:
    """timm's batch norm with its activation inside."""
    return type(norm).__name__ == "BatchNormAct2d" and hasattr(norm, "drop") and hasattr(norm, "act")


def _is_plain_in_timm(linear: nn.Linear) -> bool:
    """Has a forward of its own for torchscript alone."""
    return type(linear).__module__ == "timm.layers.linear"


def _require_alike(traces: Sequence[fx.Graph]) -> None:
    def shape(graph: fx.Graph) -> list[tuple[str, str]]:
        return [(node.op, str(node.target)) for node in graph.nodes]

    if any(shape(trace) != shape(traces[0]) for trace in traces[1:]):
        raise NotFusable("branches that are not alike")
