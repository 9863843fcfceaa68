"""Branches made narrower, so that K of them fit into a number of parameters.

The paper scaled the fully connected layers of VGG's and AlexNet's branches for this. Here every layer inside a branch
whose width nothing outside depends on is scaled: not what is added to a shortcut, nor the logits.
"""

import functools
import math
from collections import defaultdict
from dataclasses import replace
from typing import Any, cast

import torch
from torch import Tensor, fx, nn

from nofe.architectures.architecture import Architecture, parameter_count
from nofe.architectures.fit import NORMS, drawn_like, fit, require_own_weight
from nofe.architectures.line import OneInput, first_line, floating_dtype
from nofe.errors import UserError

STEPS = 64  # widths that a budget is met with are multiples of 1 / 64
ROUND_FROM, ROUND_TO = 32, 8  # larger widths are multiples of 8, which kernels like
UNKNOWN = ("Attention",)
INSTEAD = "leave it out, or for smaller branches cut at a later layer (cut=)"


def with_branch_width(
    architecture: Architecture, width: float, option: str = "branch_width", *, must_change: bool = False
) -> Architecture:
    """The same network with branches of this part of their width; `option` is what its user calls it.

    With `must_change` a width that leaves a branch as it is is refused: whoever narrows branches has room for so many
    parameters and no more. That is for before training; what was trained with such a width can still be read.
    """
    if width == 1:
        return architecture
    if width <= 0:
        raise UserError(f"{option}={width:g}: out of range; use a number above 0, such as 0.5")

    @functools.cache
    def features() -> tuple[int, ...]:
        return features_of(architecture)

    def branch(outputs: int) -> nn.Module:
        made = architecture.branch(outputs)
        whole = parameter_count(made)
        _scale(made, width, features(), f"{option}={width:g}", architecture.name)
        if must_change and parameter_count(made) == whole:
            raise _unchanged(made, f"{option}={width:g}", architecture.name)
        return made

    return replace(architecture, branch=branch, branch_is_head=False)


def _unchanged(branch: nn.Module, asked: str, name: str) -> UserError:
    if _free_layers(branch):
        return UserError(f"{asked}: rounds to the full width in {name}; use another number")
    return UserError(
        f"{asked}: changes nothing in the branches of {name}, where each width is that of a shortcut, or read by code "
        f"that cannot be followed; {INSTEAD}"
    )


def _scale(branch: nn.Module, width: float, features: tuple[int, ...], asked: str, name: str) -> None:
    try:
        scale_width(branch, width, features)
    except Exception as error:  # whatever a layer says that reads another width than it was written for
        raise UserError(f"{asked}: the branches of {name} cannot be scaled ({first_line(error)}); {INSTEAD}") from error


def width_within(architecture: Architecture, parameters: int, sizes: list[int]) -> float:
    """The largest width, at most 1, at which trunk and branches have no more than so many parameters."""
    with torch.device("meta"):
        trunk = parameter_count(architecture.trunk_of_experts())
        features = features_of(architecture)

        def total(step: int) -> int:
            of_size = {}
            for size in set(sizes):
                branch = architecture.branch(size)
                if step != STEPS:
                    _scale(branch, step / STEPS, features, f"parameters={parameters:,}", architecture.name)
                of_size[size] = parameter_count(branch)
            return trunk + sum(of_size[size] for size in sizes)

        if total(STEPS) <= parameters:
            return 1.0
        smallest = total(1)
        if smallest > parameters:
            raise UserError(
                f"parameters={parameters:,}: {architecture.name} with {len(sizes)} experts has {smallest:,} at the "
                f"least, {trunk:,} of them in the trunk; allow more, or take fewer experts"
            )
        low, high = 1, STEPS  # fits, does not
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if total(middle) <= parameters else (low, middle)
    return low / STEPS


def features_of(architecture: Architecture) -> tuple[int, ...]:
    """Shape of what the trunk gives for one image."""
    with torch.device("meta"), torch.no_grad():
        trunk = architecture.trunk_of_experts().eval()
        images = torch.zeros(1, 3, architecture.input_size, architecture.input_size, dtype=floating_dtype(trunk))
        return tuple(trunk(images).shape)


def scale_width(branch: nn.Module, width: float, features: tuple[int, ...]) -> None:
    """In place; layers of another size are drawn anew, with the spread that they had."""
    path_of = {layer: path for path, layer in branch.named_modules()}
    for layer, multiple in _free_layers(branch):
        require_own_weight(layer, path_of[layer])
        outputs = len(layer.weight)
        multiple = math.lcm(multiple, ROUND_TO) if outputs >= ROUND_FROM else multiple
        _set_outputs(layer, max(multiple, multiple * round(outputs * width / multiple)))
    parameter = next(branch.parameters())
    fit(branch, torch.zeros(features, device=parameter.device, dtype=parameter.dtype))


def _set_outputs(layer: nn.Conv2d | nn.Linear, outputs: int) -> None:
    weight, bias = layer.weight, layer.bias
    if outputs == len(weight):
        return
    layer.weight = drawn_like(weight, (outputs, *weight.shape[1:]))
    if bias is not None:
        repeated = bias.detach().repeat(math.ceil(outputs / len(bias)))[:outputs]
        layer.bias = nn.Parameter(repeated.clone())
    if isinstance(layer, nn.Conv2d):
        layer.out_channels = outputs
    else:
        layer.out_features = outputs


class _Tracer(fx.Tracer):
    def __init__(self, closed: set[nn.Module]) -> None:
        super().__init__()
        self._closed = closed

    def is_leaf_module(self, module: nn.Module, path: str) -> bool:
        if module in self._closed or isinstance(module, NORMS) or any(w in type(module).__name__ for w in UNKNOWN):
            return True
        return not list(module.children()) or (
            not isinstance(module, fx.GraphModule) and super().is_leaf_module(module, path)
        )


def _trace(branch: nn.Module) -> fx.Graph:
    """Follow a module; inner ones that cannot be followed become single steps, and keep their widths."""
    closed: set[nn.Module] = set()
    for module in reversed(list(branch.modules())):
        if list(module.children()) and module is not branch:
            try:
                _Tracer(closed).trace(OneInput(module))
            except Exception:  # fx says in many ways that it cannot follow the code
                closed.add(module)
    return _Tracer(closed).trace(branch)


class _Widths:
    """Which widths must be equal, which must stay, and what they must be a multiple of."""

    def __init__(self) -> None:
        self._parent: list[int] = []
        self.fixed: set[int] = set()
        self.multiple: dict[int, int] = defaultdict(lambda: 1)

    def new(self) -> int:
        self._parent.append(len(self._parent))
        return len(self._parent) - 1

    def root(self, width: int) -> int:
        while self._parent[width] != width:
            width = self._parent[width]
        return width

    def fix(self, width: int) -> None:
        self.fixed.add(self.root(width))

    def equal(self, one: int, other: int) -> None:
        one, other = self.root(one), self.root(other)
        if one != other:
            self._parent[other] = one
            self.multiple[one] = math.lcm(self.multiple[one], self.multiple[other])
            if other in self.fixed:
                self.fixed.add(one)


def _free_layers(branch: nn.Module) -> list[tuple[nn.Conv2d | nn.Linear, int]]:
    """Layers whose number of outputs is free, and what it must be a multiple of."""
    widths = _Widths()
    width_of: dict[fx.Node, int] = {}
    layers: list[tuple[nn.Conv2d | nn.Linear, int]] = []
    for node in _trace(branch).nodes:
        read = [width_of[each] for each in node.all_input_nodes]
        module = branch.get_submodule(str(node.target)) if node.op == "call_module" else None
        if node.op == "output":
            for width in read:
                widths.fix(width)
        elif node.op in ("placeholder", "get_attr"):
            width_of[node] = widths.new()
            widths.fix(width_of[node])
        elif isinstance(module, nn.Conv2d) and module.groups > 1:
            depthwise = module.groups == module.in_channels == module.out_channels
            width_of[node] = read[0] if depthwise else widths.new()
            if not depthwise:
                for width in (read[0], width_of[node]):
                    root = widths.root(width)
                    widths.multiple[root] = math.lcm(widths.multiple[root], module.groups)
                layers.append((module, width_of[node]))
        elif isinstance(module, nn.Conv2d | nn.Linear):
            width_of[node] = widths.new()
            layers.append((module, width_of[node]))
        elif _joins_side_by_side(node) or (module is not None and _is_unknown(module)):
            for width in read:
                widths.fix(width)
            width_of[node] = widths.new()
            widths.fix(width_of[node])
        else:  # acts on each channel, or adds and multiplies: all that it reads is equally wide
            width_of[node] = read[0] if read else widths.new()
            for width in read[1:]:
                widths.equal(read[0], width)
    free = [(layer, widths.root(width)) for layer, width in layers if widths.root(width) not in widths.fixed]
    return [(layer, widths.multiple[width]) for layer, width in free]


def _joins_side_by_side(node: fx.Node) -> bool:
    return cast(Any, node.target) in (torch.cat, torch.concat, "chunk", "split", "reshape", "view", torch.chunk)


def _is_unknown(module: nn.Module) -> bool:
    """A step with weights of its own that is no layer known here."""
    return not isinstance(module, NORMS) and next(module.parameters(), cast("Tensor | None", None)) is not None
