"""Any classifier as trunk, head and branch: where to cut, and what a branch is.

By default the trunk ends after the last block of the last stage. A branch is what the paper gave ResNet (Sec. 4.1):
one new block of that kind, then what the model itself has after its blocks (normalisation, pooling, classifier), over
the classes of one specialty. With a `cut` the trunk ends before the named layer, and a branch is all that follows.
"""

import functools
from collections import Counter, OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, fx, nn

from nofe.architectures.architecture import Architecture
from nofe.architectures.fit import fit, keep_size, shorten
from nofe.architectures.line import (
    Line,
    first_line,
    floating_dtype,
    line_of,
    names_of_shared_weights,
    part_of,
    require_module,
)  # fmt: skip
from nofe.architectures.modes import LAYER
from nofe.errors import UserError

Build = Callable[[int], nn.Module]
"""A classifier of so many outputs, its weights drawn from torch's global generator."""

NORMS_AND_ACTIVATIONS = (nn.modules.batchnorm._BatchNorm, nn.GroupNorm, nn.LayerNorm, nn.ReLU, nn.ReLU6, nn.LeakyReLU,
                         nn.ELU, nn.GELU, nn.SiLU, nn.Hardswish, nn.Mish, nn.PReLU, nn.Sigmoid, nn.Tanh)  # fmt: skip
ACTIVATION_FUNCTIONS = {nn.functional.relu, torch.relu, nn.functional.gelu, nn.functional.silu, "relu", "relu_"}
MAX_POOLING = {nn.functional.max_pool2d, torch.max_pool2d}
SCALE = "input_scale"


class InputScale(nn.Module):
    """0..255 minus the mean image, which data is fed as, to what networks trained on ImageNet read: (x - mean) / std.

    The mean is already off, so 1 / (255 std) of each colour is left to do. `std` is of pixels of 0..1.
    """

    scale: Tensor

    def __init__(self, std: tuple[float, float, float]) -> None:
        super().__init__()
        self.std = std
        scale = torch.tensor([1 / (255 * each) for each in std])
        self.register_buffer("scale", scale[:, None, None], persistent=False)  # (3, 1, 1)

    def forward(self, images: Tensor) -> Tensor:  # (N, 3, H, W)
        return images * self.scale.to(images.dtype)

    def extra_repr(self) -> str:
        return f"std={self.std}"


@dataclass(frozen=True)
class Plan:
    """Where a model is cut. The graphs name layers of the model and serve every instance of it."""

    name: str
    trunk: fx.Graph
    tail: fx.Graph
    block: fx.Graph | None  # of the default branch; None with a cut
    block_keeps_shape: bool
    features: tuple[int, ...]  # shape of what the trunk gives for one image
    classifier: str  # path of the layer with one output for each class
    outputs: int  # logits of one image

    def is_in_branch(self, path: str) -> bool:
        """Whether a branch reads this layer, or a weight of this name."""
        return any(_is_read(path, graph) for graph in (self.block, self.tail) if graph is not None)


def adapted(
    build: Build,
    name: str,
    input_size: int,
    *,
    image_size: int | None = None,
    summary: str = "",
    cut: str = "",
    branch: Callable[[int], nn.Module] | None = None,
    std: tuple[float, float, float] | None = None,
) -> Architecture:
    """The parts of the classifier that `build` makes. Nothing is built before a part is asked for.

    With `std` the trunk begins with an `InputScale`; without it the network reads what the classifier reads.
    """

    build = functools.partial(_built, build)

    @functools.cache
    def plan() -> Plan:
        with torch.device("meta"):
            model = build(2)
            image = torch.zeros(1, 3, input_size, input_size, dtype=floating_dtype(model))
            planned = plan_of(model, image, name, cut=cut, scaled=std is not None)
        if planned.outputs != 2:
            raise UserError(
                f"{name}: gives {planned.outputs} logits where 2 classes were asked for; pass the number on to "
                f"its last layer, {planned.classifier}"
            )
        return planned

    def trunk() -> nn.Module:
        model = build(2)
        _require_no_weight_on_both_sides(model, plan())
        if std is not None:
            model.add_module(SCALE, InputScale(std))
        return part_of(model, plan().trunk)

    def head(outputs: int) -> nn.Module:
        return part_of(build(outputs), plan().tail)

    def default_branch(outputs: int) -> nn.Module:
        return branch_by(plan(), build(outputs))

    return Architecture(
        name=name,
        summary=summary,
        image_size=image_size or input_size,
        input_size=input_size,
        trunk=trunk,
        head=head,
        branch=branch or (head if cut else default_branch),
        classifier_layer=lambda: plan().classifier,
        branch_is_head=bool(cut) and branch is None,
    )


def _built(build: Build, outputs: int) -> nn.Module:
    """`build`, also on the meta device, where it may fail: some models read numbers while they are built."""
    if torch.get_default_device().type != "meta":
        return build(outputs)
    try:
        return build(outputs).to("meta")
    except (RuntimeError, NotImplementedError):
        with torch.device("cpu"):
            return build(outputs).to("meta")


def plan_of(model: nn.Module, image: Tensor, name: str, *, cut: str = "", scaled: bool = False) -> Plan:
    """Find the cut of `model`; a UserError that names the layer in the way, and what to pass instead."""
    if cut:
        require_module(model, cut, name)
    line = line_of(model, image, name, opened=cut)
    if cut:
        first, block = _first_of(line, cut, name), None
    else:
        block = _last_block(line, model, name)
        first = _after(line, _with_pooling(line, model, block[-1]), name)
    [last] = line.crossing(first)
    trunk = line.part(None, last)
    if scaled:
        _scale_input(trunk)
    keeps_shape = block is not None and line.shapes[block[-1]] == line.shapes[block[0].all_input_nodes[0]]
    return Plan(
        name=name,
        trunk=trunk,
        tail=line.part(first, None),
        block=line.part(block[0], block[-1]) if block is not None else None,
        block_keeps_shape=keeps_shape,
        features=line.shapes[last],
        classifier=line.classifier,
        outputs=line.outputs,
    )


def branch_by(plan: Plan, model: nn.Module) -> nn.Module:
    """One block, and what the model has after its blocks; `model` is new and given up to the branch."""
    assert plan.block is not None
    block: nn.Module = part_of(model, plan.block)
    tail = part_of(model, plan.tail)
    layers = [node for node in plan.block.nodes if node.op == "call_module"]
    if len(plan.block.nodes) == 3 and len(layers) == 1:
        block = model.get_submodule(str(layers[0].target))  # without a graph around it
    shortened = shorten(block)
    if not plan.block_keeps_shape:
        keep_size(block)
        if isinstance(block, nn.ModuleDict):  # DenseNet: a block adds the maps of each layer; one layer is enough
            for layer in list(block)[:-1]:
                del block[layer]
    if shortened or not plan.block_keeps_shape:
        parameter = next(model.parameters())
        features = torch.zeros(plan.features, device=parameter.device, dtype=parameter.dtype)
        try:
            fit(tail, fit(block, features))
        except Exception as error:  # whatever the code of a layer says
            raise UserError(
                f"{plan.name}: {layers[0].target} changes the shape of what it reads, and no block like it can be put "
                f"behind it ({first_line(error)}); pass cut={layers[0].target} to begin the experts with it, "
                "or a branch= of your own"
            ) from error
    return nn.Sequential(OrderedDict(block=block, tail=tail))


def _require_no_weight_on_both_sides(model: nn.Module, plan: Plan) -> None:
    """That trunk and branches share no weight: each is built on its own, and would get one of its own."""
    for names in names_of_shared_weights(model):
        before, after = (
            next((name for name in names if _is_read(name, graph)), None) for graph in (plan.trunk, plan.tail)
        )
        if before and after:
            raise UserError(
                f"{plan.name}: {before} and {after} are one weight, which the trunk and the experts would share; "
                "pass a cut= that leaves both on one side, or give each layer a weight of its own"
            )


def _is_read(weight: str, graph: fx.Graph) -> bool:
    named = (str(node.target) for node in graph.nodes if node.op in ("call_module", "get_attr"))
    return any(weight == each or weight.startswith(f"{each}.") for each in named)


# Where to cut


def _first_of(line: Line, cut: str, name: str) -> fx.Node:
    """The first step of the module `cut`."""
    first = next((step for step in line.steps if _belongs(step, cut)), None)
    if first is None:
        raise UserError(f"cut={cut}: {name} does not run this layer by itself; cut at one of {_cuts(line)}")
    if reason := _in_the_way(line, first):
        raise UserError(f"cut={cut}: {name} cannot be cut before this layer ({reason}); cut at one of {_cuts(line)}")
    return first


def _in_the_way(line: Line, first: fx.Node) -> str:
    """Why the model cannot be cut before this step; empty where one tensor alone passes."""
    crossing = line.crossing(first)
    if len(crossing) != 1:
        return f"{len(crossing)} values cross it"
    if crossing[0].op == "placeholder":
        return "nothing comes before it"
    return "" if crossing[0] in line.shapes else "it reads a list or the like, not one tensor"


def _belongs(step: fx.Node, path: str) -> bool:
    target = str(step.target)
    return step.op == "call_module" and (target == path or target.startswith(path + "."))


def _after(line: Line, step: fx.Node, name: str) -> fx.Node:
    """The first step after `step`, which must be all that it and the later ones read."""
    if not line.ends_alone(step):
        raise UserError(
            f"{name}: what follows {_name_of(step)} reads earlier layers as well, so there is no trunk up to it; "
            f"pass cut= one of {_cuts(line)}"
        )
    return line.steps[line.steps.index(step) + 1]


def _name_of(step: fx.Node) -> str:
    return str(getattr(step.target, "__name__", step.target))


def _cuts(line: Line) -> str:
    """Names of layers before which one tensor alone passes."""
    layers = [step for step in line.steps if step.op == "call_module" and LAYER not in step.meta]
    names = [str(step.target) for step in layers if not _in_the_way(line, step)]
    return ", ".join(names[-6:]) or "none: no layer has a single input; pass nn.Sequential(trunk, head) with cut='1'"


def _last_block(line: Line, model: nn.Module, name: str) -> list[fx.Node]:
    """The steps of the last block before the classifier.

    A block is a module with inner structure that the model repeats, or that keeps the shape of its input; in a model
    of plain layers it is the last convolution with the normalisation and activation behind it, and the pooling that
    ends its stage goes to the trunk.
    """
    holds_classifier = {line.classifier[:end] for end in range(len(line.classifier)) if line.classifier[end] == "."}
    holds_classifier.add(line.classifier)
    calls = [step for step in line.steps if step.op == "call_module" and step.target not in holds_classifier]
    kinds = Counter(type(module) for module in model.modules())
    blocks = [step for step in calls if _has_structure(model.get_submodule(str(step.target)), line, step)]
    convolutions = [step for step in calls if isinstance(model.get_submodule(str(step.target)), nn.Conv2d)]
    convolutions = [step for step in convolutions if len(line.crossing(step)) == 1]
    for step in reversed(blocks):
        module = model.get_submodule(str(step.target))
        keeps_shape = line.shapes[step] == line.shapes.get(step.all_input_nodes[0])
        if kinds[type(module)] > 1 or keeps_shape or _pads(module):
            later = [each for each in convolutions if calls.index(each) > calls.index(step)]
            if later and not line.ends_alone(step):  # HRNet: four maps of blocks, which a convolution brings together
                break
            return [step]
    if convolutions:
        return _with_norm_and_activation(line, model, convolutions[-1])
    if blocks:
        return [blocks[-1]]
    layers = ", ".join(dict.fromkeys(str(step.target) for step in calls)) or line.classifier
    raise UserError(
        f"{name}: no block and no convolution comes before the classifier {line.classifier} (it runs {layers}); "
        "name the layer that experts begin with (cut=, or --cut)"
    )


def _has_structure(module: nn.Module, line: Line, step: fx.Node) -> bool:
    has_weights = any(parameter.dim() >= 2 for parameter in module.parameters())
    a_map_or_tokens = len(line.shapes.get(step, ())) >= 3
    return bool(list(module.children())) and has_weights and a_map_or_tokens and len(step.all_input_nodes) == 1


def _pads(module: nn.Module) -> bool:
    """Keeps places next to each other, unlike a convolution over the whole map that begins a classifier (VGG's)."""
    return any(isinstance(layer, nn.Conv2d) and layer.padding not in (0, (0, 0)) for layer in module.modules())


def _with_pooling(line: Line, model: nn.Module, step: fx.Node) -> fx.Node:
    """The max pooling that ends a stage of plain convolutions, unless it leaves a single pixel."""
    steps = line.steps
    following = steps[steps.index(step) + 1] if step is not steps[-1] else step
    layer = model.get_submodule(str(following.target)) if following.op == "call_module" else None
    if isinstance(layer, nn.MaxPool2d) or following.target in MAX_POOLING:
        return following if line.shapes[following][-1] > 1 else step
    return step


def _with_norm_and_activation(line: Line, model: nn.Module, convolution: fx.Node) -> list[fx.Node]:
    steps = line.steps
    block = [convolution]
    for step in steps[steps.index(convolution) + 1 :]:
        module = model.get_submodule(str(step.target)) if step.op == "call_module" else None
        goes_on = step.all_input_nodes == [block[-1]] and len(block[-1].users) == 1
        if not goes_on or not (isinstance(module, NORMS_AND_ACTIVATIONS) or step.target in ACTIVATION_FUNCTIONS):
            break
        block.append(step)
    return block


def _scale_input(trunk: fx.Graph) -> None:
    [images] = [node for node in trunk.nodes if node.op == "placeholder"]
    with trunk.inserting_after(images):
        scaled = trunk.call_module(SCALE, (images,))
    images.replace_all_uses_with(scaled)
    scaled.args = (images,)
