"""A walk over the graph of one branch, on which the graph of all K is written.

Rules (`rules.py` for layers, `functions.py` for functions) read from it what a step of the branch reads, and write what
the step becomes; it knows none of them.
"""

from collections.abc import Sequence
from typing import Any

from torch import fx, nn

from nofe.experts.kinds import Kind, NotFusable

Written = tuple[fx.Node, Kind]  # a value in the graph of all experts, and what it is there


class Walk:
    def __init__(self, branches: Sequence[nn.Module]) -> None:
        self.branches = branches
        self.count = len(branches)
        self.graph = fx.Graph()
        self.root = nn.Module()
        self.path_of: dict[str, str] = {}  # name of a layer with weights in the new graph -> its path in a branch
        self.outputs: list[int] = []  # of the last layer with weights so far, by expert
        self._written: dict[fx.Node, Written] = {}
        self._added: dict[str, str] = {}  # name of a module in the new graph -> its path in a branch
        self._modes: dict[str, bool] = {
            path: each.training for path, each in branches[0].named_modules(remove_duplicate=False)
        }

    @property
    def is_ragged(self) -> bool:
        return len(set(self.outputs)) > 1

    def require_one_size(self, path: str) -> None:
        if self.is_ragged:
            raise NotFusable(f"{path} (reads a layer whose size differs between experts)")

    def note(self, node: fx.Node, written: Written) -> None:
        """What a step of the branch has become."""
        self._written[node] = written

    def value(self, argument: Any) -> Written:
        if not isinstance(argument, fx.Node):
            raise NotFusable(f"a constant operand {argument!r}")
        return self._written[argument]

    def note_outputs(self, path: str, layers: Sequence[Any]) -> None:
        self.require_one_size(path)
        self.outputs = [len(layer.weight) for layer in layers]

    def put(self, path: str, module: nn.Module, value: fx.Node) -> fx.Node:
        """A layer without weights of its own, or whose weights are noted elsewhere."""
        return self.graph.call_module(self.add(path, module), (value,))

    def add(self, path: str, module: nn.Module) -> str:
        """In the mode of what is at this path in a branch, or around it. Returns the name to call it by."""
        name = path.replace(".", "_")
        if self._added.setdefault(name, path) != path or (name not in self.root._modules and hasattr(self.root, name)):
            raise NotFusable(f"{path} (a layer with a name that is taken here)")
        earlier = self.root._modules.get(name, module)  # a layer that is run again has its weights in the same place
        if (type(earlier), getattr(earlier, "kind", None)) != (type(module), getattr(module, "kind", None)):
            raise NotFusable(f"{path} (is run twice, and not on values of one kind)")
        self.root.add_module(name, module.train(self._mode_at(path)))
        return name

    def _mode_at(self, path: str) -> bool:
        while path not in self._modes:
            path = path.rpartition(".")[0]
        return self._modes[path]

    def put_weights(self, path: str, module: nn.Module, value: fx.Node) -> fx.Node:
        """A layer with those of all experts, which are saved under the path of the layer."""
        self.path_of[path.replace(".", "_")] = path
        return self.put(path, module, value)

    def as_map(self, value: fx.Node, kind: Kind) -> Written:
        """For layers that read maps: what each expert has for itself must be one, (N, K, D, h, w)."""
        if kind is not Kind.VECTORS:
            return value, kind
        return self.graph.call_method("flatten", (value, 1, 2)), Kind.MAPS

    def by_expert(self, maps: fx.Node) -> fx.Node:
        """(N, K*D, ...) to (N, K, D, ...)."""
        return self.graph.call_method("unflatten", (maps, 1, (self.count, -1)))
