"""`nofe.convert`: a classifier in memory to a network of experts."""

import copy
from collections.abc import Callable

import numpy.typing as npt
import torch
from torch import Tensor, nn

from nofe.architectures.adapt import adapted, plan_of
from nofe.architectures.fit import drawn_anew, outputs_of, with_outputs
from nofe.architectures.line import WITH_WEIGHTS, first_line, require_shapes_alone
from nofe.architectures.width import with_branch_width
from nofe.errors import UserError
from nofe.experts.network import NetworkOfExperts
from nofe.specialties import Specialties

Branch = Callable[[int], nn.Module]


def convert(
    model: nn.Module,
    specialties: Specialties | npt.ArrayLike,
    cut: str | int | None = None,
    branch: Branch | None = None,
    width: float = 1.0,
    *,
    image_size: int | None = None,
) -> NetworkOfExperts:
    """A network of experts with the trunk of `model`, which is not changed.

    `specialties` may be given as the number of the specialty of each class, [0, 0, 1, ...].
    Without a `cut` each branch is one new block of the kind the model's last stage is made of, then normalisation,
    pooling and classifier as the model has them, all drawn anew. With one, each branch is a copy of all that follows;
    where the model has one output for each class, each expert's classifier is the rows of its classes, and the network
    computes what the model does. `branch` takes a number of classes and gives any module that reads the trunk's output.
    `width` scales the layers inside a branch. `image_size` is the side of the images that the model reads, found by
    trying 224, 32 and others if it is not given.
    """
    cut = "" if cut is None else str(cut)
    _require_callables(model, branch)
    if not isinstance(specialties, Specialties):
        specialties = Specialties(specialties)
    size = image_size or _readable_size(model)
    with torch.device("meta"):
        structure = copy.deepcopy(model).to("meta")
    name = type(model).__name__
    plan = plan_of(copy.deepcopy(structure), torch.zeros(1, 3, size, size, device="meta"), name, cut=cut)
    if branch is not None:
        branch = _checked(branch, plan.features)
    last = plan.classifier
    _require_one_classifier(structure, last, size, name)

    def copied(outputs: int) -> nn.Module:
        again = copy.deepcopy(model)
        if outputs != outputs_of(again.get_submodule(last)):
            with_outputs(again, last, outputs)
        return again

    def drawn(outputs: int) -> nn.Module:
        again = copied(outputs)
        drawn_anew(again)
        return again

    from_model = adapted(copied, name, size, cut=cut, branch=branch)
    new = adapted(drawn, name, size, cut=cut, branch=branch)
    width_of = with_branch_width(from_model if cut else new, width)
    trunk = from_model.trunk()
    experts = [width_of.branch(int(count)) for count in specialties.sizes]
    _require_own_parameters(experts)
    is_the_same = False
    if cut and branch is None and width == 1:
        classifier = model.get_submodule(last)
        if outputs_of(classifier) == specialties.classes:
            _share_out(classifier, experts, specialties, last)
            is_the_same = True
    place = next(model.parameters())
    network = NetworkOfExperts(trunk, experts, specialties).to(place.device, place.dtype)
    if is_the_same:
        _require_same_logits(model, network, size, last)
    return network.train(model.training)


def _require_callables(model: object, branch: object) -> None:
    if not isinstance(model, nn.Module):
        raise UserError(f"model: is {model!r:.60}, not an nn.Module; pass the network itself, already built")
    if isinstance(model, torch.jit.ScriptModule):
        raise UserError(
            "model: is a script of one (torch.jit), which has no layers to cut at; pass what it was made from"
        )
    if branch is not None and (isinstance(branch, nn.Module) or not callable(branch)):
        raise UserError(
            f"branch: is one {type(branch).__name__} for experts of any size; pass a function that takes a number of "
            "classes and gives a new module, such as lambda classes: nn.Linear(64, classes)"
        )


def _checked(branch: Branch, features: tuple[int, ...]) -> Branch:
    """Of the user's own: reads what the trunk gives, and gives a logit for each class of its specialty."""

    def checked(count: int) -> nn.Module:
        expert = branch(count)
        if not isinstance(expert, nn.Module):
            raise UserError(f"branch: gives {expert!r:.60} for {count} classes; return an nn.Module")
        place = next(expert.parameters(), torch.empty(0))
        try:
            with torch.no_grad():
                logits = expert.eval()(torch.zeros(features, device=place.device, dtype=place.dtype))
        except Exception as error:  # whatever a layer says of what it cannot read
            raise UserError(
                f"branch: cannot read what the trunk gives, {features} for one image ({first_line(error)}); make its "
                "first layer one for that shape"
            ) from error
        given = tuple(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
        if given != (1, count):
            raise UserError(
                f"branch: gives {given} for one image and a specialty of {count} classes; end it with one output for "
                f"each class, (N, {count})"
            )
        return expert.train()

    return checked


def _require_own_parameters(experts: list[nn.Module]) -> None:
    seen: set[int] = set()
    for expert in experts:
        own = {id(parameter) for parameter in expert.parameters()}
        if own & seen:
            raise UserError(
                "branch: gives the same module, or the same weights, to several experts; build new ones each time it "
                "is called"
            )
        seen |= own


def _share_out(classifier: nn.Module, experts: list[nn.Module], specialties: Specialties, last: str) -> None:
    """To each expert the rows of its classes."""
    for expert, classes in zip(experts, specialties.groups(), strict=True):
        own = expert.get_submodule(last)
        rows = torch.tensor(classes, device=next(classifier.parameters()).device)
        with torch.no_grad():
            for name, tensor in own.named_parameters():
                source = getattr(classifier, name)
                assert isinstance(source, Tensor)
                tensor.copy_(source[rows])


def _require_same_logits(model: nn.Module, network: NetworkOfExperts, size: int, last: str) -> None:
    """On noise: what comes after the classifier may move or mix classes, which experts have only some of."""
    place = next(model.parameters())
    noise = torch.randn(2, 3, size, size, generator=torch.Generator().manual_seed(0)).to(place.device, place.dtype)
    with torch.no_grad():
        expected, given = copy.deepcopy(model).eval()(noise).float(), network.eval()(noise).float()
    apart = float((given - expected).abs().max())
    rounding = 1e-2 if place.dtype in (torch.float32, torch.float64) else 1e-1
    if not apart <= rounding * float(expected.abs().max()) + 1e-6:
        raise UserError(
            f"{type(model).__name__}: experts with the rows of {last} give other logits than the model, by up to "
            f"{apart:.2g}: what comes after it, or a hook on it, moves or mixes classes; end the model with {last}, or "
            "convert it without cut="
        )


def _require_one_classifier(structure: nn.Module, last: str, size: int, name: str) -> None:
    """Experts have other numbers of outputs, which one layer alone may decide."""
    outputs = outputs_of(structure.get_submodule(last))
    alike = [
        path
        for path, layer in structure.named_modules()
        if path != last and isinstance(layer, WITH_WEIGHTS) and outputs_of(layer) == outputs
    ]
    changed = copy.deepcopy(structure).eval()
    with_outputs(changed, last, outputs + 1)
    try:
        with torch.no_grad():
            given = changed(torch.zeros(1, 3, size, size, device="meta")).shape[-1]
    except Exception as error:  # whatever the code after the classifier says
        given, reason = None, first_line(error)
    else:
        reason = f"with one more output of it the logits are {given}"
    if given != outputs + 1:
        if unused := _never_called(structure, size):
            raise UserError(
                f"{name}: its forward computes with the weights of {unused[0]}, which is never called, so experts of "
                f"other sizes cannot be given one; write it as a layer that is called, self.{unused[0]}(x)"
            )
        others = f"; it has {', '.join(alike)} with as many outputs" if alike else ""
        raise UserError(
            f"{name}: its logits are not those of its last layer {last} alone ({reason}){others}; build it with a "
            "single classifier (timm: distilled=False), or train it by name, as timm:NAME"
        )


def _never_called(structure: nn.Module, size: int) -> list[str]:
    """Layers with weights, and with as many outputs as there are logits."""
    watched = copy.deepcopy(structure).eval()
    called: set[nn.Module] = set()
    for layer in watched.modules():
        layer.register_forward_hook(lambda layer, *_: called.add(layer))
    with torch.no_grad():
        logits = watched(torch.zeros(1, 3, size, size, device="meta")).shape[-1]
    layers = ((path, layer) for path, layer in watched.named_modules() if isinstance(layer, WITH_WEIGHTS))
    return [path for path, layer in layers if layer not in called and outputs_of(layer) == logits]


def _readable_size(model: nn.Module) -> int:
    """The first usual size that the model reads; its weights do not say."""
    structure = copy.deepcopy(model).to("meta").eval()
    name, reasons = type(model).__name__, []
    for size in (224, 32, 64, 128, 28, 256, 299, 384):
        try:
            with torch.no_grad():
                logits = structure(torch.zeros(1, 3, size, size, device="meta"))
        except Exception as error:  # whatever a layer says of a size that it cannot read
            require_shapes_alone(error, name)
            reasons.append(f"{size} pixels: {first_line(error)}")
            continue
        if isinstance(logits, Tensor):
            return size
        raise UserError(
            f"{name}: gives {type(logits).__name__} for images of {size} pixels, not a tensor of logits; pass a module "
            "whose forward returns the logits alone"
        )
    raise UserError(
        f"{name}: cannot read images of three channels at a usual size ({reasons[0]}); pass image_size= the "
        "side of its images in pixels, or where it reads other channels a network for three"
    )
