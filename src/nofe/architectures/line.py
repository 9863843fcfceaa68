"""A model as a line of layers that can be cut (torch.fx).

The forward of a model is followed with its layers as single steps. Sequential modules, and modules that only call
others one after another (a stage), are opened, so that their blocks are steps as well; a module with a shortcut or any
other inner structure is a block and stays whole. Names are the model's own, so that its weights keep theirs.
"""

import copy
import difflib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, fx, nn

from nofe.errors import UserError

WITH_WEIGHTS = (nn.Conv2d, nn.Linear)
ROOT = "model"
LOOKS_AT_SHAPE: set[Any] = {"dim", "size", getattr, torch._assert}


@dataclass(frozen=True)
class Line:
    """The steps of a model, with the shapes that they give for one image."""

    graph: fx.Graph
    shapes: dict[fx.Node, tuple[int, ...]]
    classifier: str
    """Path of the last layer that runs and has weights: one output for each class."""

    @property
    def steps(self) -> list[fx.Node]:
        return [node for node in self.graph.nodes if node.op not in ("placeholder", "get_attr", "output")]

    def crossing(self, step: fx.Node) -> list[fx.Node]:
        """The values that `step` and those after it read from before it."""
        before: list[fx.Node] = []
        late = False
        seen: set[fx.Node] = set()
        for node in self.graph.nodes:
            late = late or node is step
            if late:
                earlier = [each for each in node.all_input_nodes if each in seen and each.op != "get_attr"]
                before += [each for each in earlier if each not in before]
            else:
                seen.add(node)
        return before

    def part(self, first: fx.Node | None, last: fx.Node | None) -> fx.Graph:
        """The steps from `first`, or the beginning, up to and with `last`, or the end, as a graph of one input."""
        [source] = [node for node in self.graph.nodes if node.op == "placeholder"]
        if first is not None:
            [source] = self.crossing(first)
        graph = fx.Graph()
        copies = {source: graph.placeholder("features" if first else "images")}
        inside = first is None
        for node in self.graph.nodes:
            inside = inside or node is first
            if node.op == "get_attr" or (inside and node.op not in ("placeholder", "output")):
                copies[node] = graph.node_copy(node, lambda each: copies[each])
            if node is last or (last is None and node.op == "output"):
                result = node.args[0] if node.op == "output" else node
                graph.output(copies[cast(fx.Node, result)])
                break
        for node in reversed(graph.nodes):
            if node.op == "get_attr" and not node.users:
                graph.erase_node(node)
        return graph


def line_of(model: nn.Module, image: Tensor, name: str, opened: str = "") -> Line:
    """Follow `model` on one image; `opened` is the path of a module that is to be seen as a step of its own."""
    stages = _stage_classes(model)
    on_the_way = {opened[:end] for end in range(len(opened)) if opened[end] == "."}

    def opens(module: nn.Module, path: str) -> bool:
        return path == "" or path in on_the_way or _is_sequential(module) or type(module) in stages

    graph = _followed(model, opens, name)
    classifier = _last_with_weights(model, image, name)
    return Line(graph, _shapes(model, graph, image), classifier)


def part_of(model: nn.Module, graph: fx.Graph) -> fx.GraphModule:
    """Those layers of `model` that `graph` names, under their own names."""
    return fx.GraphModule(model, copy.deepcopy(graph))


def require_module(model: nn.Module, path: str, name: str) -> None:
    paths = [each for each, _ in model.named_modules() if each]
    if path not in paths:
        close = difflib.get_close_matches(path, paths, n=1, cutoff=0.4)
        advice = f"did you mean '{close[0]}'?" if close else f"it has {', '.join(n for n, _ in model.named_children())}"
        raise UserError(f"cut={path}: {name} has no such layer; {advice}")


def _is_sequential(module: nn.Module) -> bool:
    return isinstance(module, nn.Sequential) and type(module).forward is nn.Sequential.forward


class _Tracer(fx.Tracer):
    def __init__(self, opens: Callable[[nn.Module, str], bool]) -> None:
        super().__init__()
        self._opens = opens

    def is_leaf_module(self, module: nn.Module, path: str) -> bool:
        return not self._opens(module, path.removeprefix(ROOT).removeprefix("."))


class OneInput(nn.Module):
    """Called with images alone, so that further arguments of a forward keep their defaults."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: Tensor) -> Any:
        return self.model(images)


def _followed(model: nn.Module, opens: Callable[[nn.Module, str], bool], name: str) -> fx.Graph:
    was_training = model.training
    try:
        graphs = [_Tracer(opens).trace(OneInput(model.train(mode))) for mode in (True, False)]
    except Exception as error:  # fx says in many ways that it cannot follow the code
        first_line = (str(error).splitlines() or [type(error).__name__])[0]
        raise UserError(
            f"{name}: cannot follow {type(model).__name__}.forward ({first_line}); move what depends on values or "
            "sizes into a module of its own, or pass nn.Sequential(trunk, head) with cut='1'"
        ) from error
    finally:
        model.train(was_training)
    training, evaluation = (list(graph.nodes) for graph in graphs)
    for one, other in zip(training, evaluation, strict=False):
        if (one.op, one.target, one.kwargs, str(one.args)) != (other.op, other.target, other.kwargs, str(other.args)):
            raise UserError(
                f"{name}: {type(model).__name__}.forward does something else in training ({one.name}); "
                "write dropout as nn.Dropout and leave extra outputs out"
            )
    for node in training:
        if node.op in ("call_module", "get_attr"):
            node.target = str(node.target).removeprefix(ROOT + ".")
    return graphs[0]


def _stage_classes(model: nn.Module) -> set[type[nn.Module]]:
    """Classes whose every instance only calls other modules one after another."""
    verdicts: dict[type[nn.Module], bool] = {}
    for module in model.modules():
        kind = type(module)
        if module is model or _is_sequential(module) or not list(module.children()) or verdicts.get(kind) is False:
            continue
        verdicts[kind] = _only_calls_in_turn(module)
    return {kind for kind, holds in verdicts.items() if holds}


def _only_calls_in_turn(module: nn.Module) -> bool:
    parameters = sum(parameter.numel() for parameter in module.parameters())
    if sum(p.numel() for block in _blocks_of(module) for p in block.parameters()) <= parameters / 2:
        return False  # mostly plain layers: a block itself, or a convolution with its batch norm
    try:
        graph = _followed(module, lambda each, path: path == "", type(module).__name__)
    except UserError:
        return False
    nodes = [node for node in graph.nodes if node.op not in ("get_attr", "output")]
    readers = [[user for user in node.users if user.target not in LOOKS_AT_SHAPE] for node in nodes]
    return all(len(users) <= 1 for users in readers) and any(node.op == "call_module" for node in nodes)


def _blocks_of(module: nn.Module) -> list[nn.Module]:
    """Modules with inner structure that `module` calls, seen through Sequential modules and lists."""
    found: list[nn.Module] = []
    for child in module.children():
        if _is_sequential(child) or isinstance(child, nn.ModuleList):
            found += _blocks_of(child)
        elif list(child.children()) and not type(child).__module__.startswith("torch.nn"):
            found.append(child)
    return found


def _last_with_weights(model: nn.Module, image: Tensor, name: str) -> str:
    ran: list[str] = []
    hooks = [
        module.register_forward_hook(lambda *_, path=path: ran.append(path))
        for path, module in model.named_modules()
        if isinstance(module, WITH_WEIGHTS)
    ]
    was_training = model.training
    try:
        with torch.no_grad():
            logits = model.eval()(image)
    except Exception as error:
        first_line = (str(error).splitlines() or [type(error).__name__])[0]
        raise UserError(
            f"{name}: cannot read images of {image.shape[-1]} pixels ({first_line}); name another size, as in NAME@224"
        ) from error
    finally:
        model.train(was_training)
        for hook in hooks:
            hook.remove()
    if not isinstance(logits, Tensor) or logits.dim() != 2:
        given = tuple(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
        raise UserError(f"{name}: gives {given} for an image, not logits of shape (N, C); pass an image classifier")
    if not ran:
        raise UserError(f"{name}: runs no convolution and no linear layer; pass a network with one")
    return ran[-1]


def _shapes(model: nn.Module, graph: fx.Graph, image: Tensor) -> dict[fx.Node, tuple[int, ...]]:
    shapes: dict[fx.Node, tuple[int, ...]] = {}

    class Noting(fx.Interpreter):
        def run_node(self, n: fx.Node) -> Any:
            value = super().run_node(n)
            if isinstance(value, Tensor):
                shapes[n] = tuple(value.shape)
            return value

    was_training = model.training
    with torch.no_grad():
        Noting(model.eval(), graph=graph).run(image)
    model.train(was_training)
    return shapes
