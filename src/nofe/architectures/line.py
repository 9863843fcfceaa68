"""A model as a line of layers that can be cut (torch.fx).

The forward of a model is followed with its layers as single steps. Sequential modules, and modules that only call
others one after another (a stage), are opened, so that their blocks are steps as well; a module with a shortcut or any
other inner structure is a block and stays whole. Names are the model's own, so that its weights keep theirs.
"""

import copy
import difflib
import inspect
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

from nofe.architectures.images_first import without_counting_images
from nofe.architectures.modes import LAYER, DependsOnMode, Follower, SwitchedError, followed_in_both_modes
from nofe.errors import UserError
from nofe.suggestions import counted

WITH_WEIGHTS = (nn.Conv2d, nn.Linear)
ROOT = "model"
OTHER_CHANNELS = (1, 4, 2)  # grey, with transparency or infrared; a pair
SOFTMAX = (
    nn.Softmax, nn.LogSoftmax, F.softmax, F.log_softmax, torch.softmax, torch.log_softmax, "softmax", "log_softmax",
)  # fmt: skip
INSTEAD_OF = {
    "gradients": "freeze the layers with requires_grad_(False), or detach() what they give",
    "autocast": "put it around the whole model, where it is called, or into the forward of a layer",
}
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

    @property
    def outputs(self) -> int:
        """Logits of one image."""
        [outcome] = (node for node in self.graph.nodes if node.op == "output")
        return self.shapes[outcome.args[0]][-1]

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

    def ends_alone(self, step: fx.Node) -> bool:
        """Whether what `step` gives is all that the steps after it read, and there are such."""
        following = self.steps[self.steps.index(step) + 1 :]
        return bool(following) and self.crossing(following[0]) == [step]

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
    """Follow `model` on one image; `opened` is the path of a module that is to be seen as a step of its own.

    Layers that stand for functions are added to `model`, here and by `part_of`.
    """
    require_images_alone(model, name)
    stages = _stage_classes(model)
    on_the_way = {opened[:end] for end in range(len(opened)) if opened[end] == "."}

    def opens(module: nn.Module, path: str) -> bool:
        return path == "" or path in on_the_way or _is_sequential(module) or type(module) in stages

    graph = _followed(model, opens, name)
    _require_logits(model, graph, name)
    _dropouts_as_layers(graph)
    _add_layers(model, graph)
    classifier = _last_with_weights(model, image, name)
    return Line(graph, _shapes(model, graph, image, name), classifier)


def _require_logits(model: nn.Module, graph: fx.Graph, name: str) -> None:
    """Experts that normalise over their own classes could not be compared with one another."""
    [outcome] = (node for node in graph.nodes if node.op == "output")
    last = outcome.args[0]
    if not isinstance(last, fx.Node):
        return  # no logits either; others say so
    made_by = type(model.get_submodule(str(last.target))) if last.op == "call_module" else last.target
    if made_by in SOFTMAX:
        layer = last.target if last.op == "call_module" else last.name
        raise UserError(f"{name}: ends in {layer}, and one softmax over all experts follows; return the logits")


def part_of(model: nn.Module, graph: fx.Graph) -> fx.GraphModule:
    """Those layers of `model` that `graph` names, under their own names."""
    _add_layers(model, graph)
    part = fx.GraphModule(model, copy.deepcopy(graph))
    # A class of its own, whose call would print a traceback of what fails beside raising it: parts are tried on sizes
    # that they may not be able to read, and who tries them says so in one line.
    type(part).__call__ = nn.Module.__call__  # type: ignore[method-assign]
    return part


def names_of_shared_weights(model: nn.Module) -> list[list[str]]:
    """All names of each parameter that has several: two layers hold it, or one layer has two names."""
    names: dict[nn.Parameter, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names.setdefault(parameter, []).append(name)
    return [several for several in names.values() if len(several) > 1]


def require_module(model: nn.Module, path: str, name: str) -> None:
    paths = [each for each, _ in model.named_modules() if each]
    if path not in paths:
        close = difflib.get_close_matches(path, paths, n=1, cutoff=0.4)
        advice = f"did you mean '{close[0]}'?" if close else f"it has {', '.join(n for n, _ in model.named_children())}"
        raise UserError(f"cut={path}: {name} has no such layer; {advice}")


def _is_sequential(module: nn.Module) -> bool:
    return isinstance(module, nn.Sequential) and type(module).forward is nn.Sequential.forward


class _Tracer(Follower):
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
    try:
        graph = followed_in_both_modes(model, lambda each: _Tracer(opens).trace(OneInput(each)))
    except DependsOnMode as error:
        raise UserError(
            f"{name}: {type(model).__name__}.forward does something else in training ({error.step.name}); "
            "write dropout as nn.Dropout, and build it without outputs for training alone (torchvision: "
            "aux_logits=False)"
        ) from error
    except SwitchedError as error:
        raise UserError(
            f"{name}: {type(model).__name__}.forward switches {error.switch} for some of its layers (from {error.step} "
            f"on), and trunk and experts cut out of it would not; {INSTEAD_OF[error.switch]}"
        ) from error
    except Exception as error:  # fx says in many ways that it cannot follow the code
        raise UserError(
            f"{name}: cannot follow {type(model).__name__}.forward ({first_line(error)}); move what depends on "
            "values or sizes into a module of its own, or pass nn.Sequential(trunk, head) with cut='1'"
        ) from error
    for node in graph.nodes:
        if node.op == "get_attr" and str(node.target).startswith("_tensor_constant"):
            raise UserError(
                f"{name}: {type(model).__name__}.forward reads a tensor that no layer holds ({_readers(node)}); keep "
                "it as a buffer (register_buffer), or hand it on as an argument"
            )
        if node.op in ("call_module", "get_attr"):
            node.target = str(node.target).removeprefix(ROOT + ".")
    without_counting_images(graph)
    return graph


def _dropouts_as_layers(graph: fx.Graph) -> None:
    """Put layers in the place of dropout functions: a graph has one mode, and a layer follows the model's."""
    for node in list(graph.nodes):
        if LAYER in node.meta:
            with graph.inserting_before(node):
                layer = graph.call_module(f"functional_{node.name}", node.args)
            layer.meta[LAYER] = node.meta[LAYER]
            node.replace_all_uses_with(layer)
            graph.erase_node(node)


def _add_layers(model: nn.Module, graph: fx.Graph) -> None:
    """Give the model the layers that stand for functions, which it does not have itself."""
    for node in graph.nodes:
        if LAYER in node.meta:
            model.add_module(str(node.target), copy.deepcopy(node.meta[LAYER]))


def _readers(node: fx.Node) -> str:
    return "in " + ", ".join(user.name for user in node.users)


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
    one_each = all(len(users) <= 1 for users in readers) and all(_reads_once(node) for node in nodes)
    return one_each and any(node.op == "call_module" for node in nodes)


def _reads_once(step: fx.Node) -> bool:
    """Whether its inputs are different values; VoVNet's blocks read one alone and again in a list."""
    read: list[fx.Node] = []
    fx.node.map_arg((step.args, step.kwargs), lambda each: read.append(each) or each)  # type: ignore[func-returns-value]
    return len(set(read)) == len(read)


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
        require_shapes_alone(error, name)
        require_three_channels(model, name, image)
        raise UserError(
            f"{name}: cannot read images of three colours and {image.shape[-1]} pixels ({first_line(error)}); name "
            "another size, as in NAME@224 or image_size=224"
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


def _shapes(model: nn.Module, graph: fx.Graph, image: Tensor, name: str) -> dict[fx.Node, tuple[int, ...]]:
    shapes: dict[fx.Node, tuple[int, ...]] = {}

    reached: list[fx.Node] = []

    class Noting(fx.Interpreter):
        def fetch_args_kwargs_from_env(self, n: fx.Node) -> Any:
            return _of_its_own(super().fetch_args_kwargs_from_env(n))

        def run_node(self, n: fx.Node) -> Any:
            reached.append(n)
            value = super().run_node(n)
            if isinstance(value, Tensor):
                shapes[n] = tuple(value.shape)
            return value

    was_training = model.training
    try:
        with torch.no_grad():
            Noting(model.eval(), graph=graph).run(image)
    except Exception as error:  # whatever the code of a layer says
        step = reached[-1]
        layer = step.target if step.op == "call_module" else step.name
        raise UserError(
            f"{name}: {layer} cannot be run as a step by itself ({first_line(error)}); write it as a module that "
            "depends on what it reads alone, or pass nn.Sequential(trunk, head) with cut='1'"
        ) from error
    finally:
        model.train(was_training)
    return shapes


def _of_its_own(arguments: Any) -> Any:
    """Lists and dictionaries that a layer may write to, as HRNet's and VoVNet's do; those of a graph are closed."""
    if isinstance(arguments, dict):
        return {name: _of_its_own(each) for name, each in arguments.items()}
    if type(arguments) is tuple or isinstance(arguments, list):
        return (tuple if isinstance(arguments, tuple) else list)(_of_its_own(each) for each in arguments)
    return arguments


def require_shapes_alone(error: Exception, name: str) -> None:
    """Refuse code that asks for a number: shapes are found without any, on torch's meta device."""
    if "meta tensor" in str(error).lower():
        raise UserError(
            f"{name}: a layer goes by the values that it reads, not by their shapes alone ({first_line(error)}), so "
            "that it has no one structure to share out; take that out of its forward"
        ) from error


def require_images_alone(model: nn.Module, name: str) -> None:
    try:
        inspect.signature(model.forward).bind("images")
    except TypeError as error:
        raise UserError(
            f"{name}: its forward cannot be called with images alone ({error}); give the other arguments defaults, or "
            "wrap it in a module that takes images alone"
        ) from error


def require_three_channels(model: nn.Module, name: str, image: Tensor) -> None:
    """Why a model in evaluation mode does not read `image`."""
    for channels in OTHER_CHANNELS:
        try:
            with torch.no_grad():
                model(image.new_zeros(1, channels, *image.shape[2:]))
        except Exception:  # whatever the code of a layer says
            continue
        raise UserError(
            f"{name}: reads images of {counted(channels, 'channel')}, and nofe's images have 3; begin it with a layer "
            "that reads 3"
        )


def floating_dtype(model: nn.Module) -> torch.dtype:
    """What the model computes in, and reads images in."""
    kinds = (parameter.dtype for parameter in model.parameters() if parameter.is_floating_point())
    return next(kinds, torch.get_default_dtype())


def in_users_code(error: Exception) -> str:
    """What went wrong in code that is not ours, and where: "KeyError: 'no table' (mine.py, line 3)"."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__}: {first_line(error)} ({Path(last.filename).name}, line {last.lineno})"


def first_line(error: BaseException) -> str:
    """What an error of another library says, without what torch adds below."""
    return (str(error).splitlines() or [type(error).__name__])[0]
