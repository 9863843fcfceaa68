"""`nofe.convert`: a classifier in memory to a network of experts."""

import copy
import inspect
import logging

import numpy.typing as npt
import torch
from torch import Tensor, nn

from nofe.architectures.adapt import adapted, plan_of
from nofe.architectures.anew import drawn_anew, outputs_of, tensors_by_class, with_outputs
from nofe.architectures.genuine import computes_as, is_linear_in_timm
from nofe.architectures.line import WITH_WEIGHTS, first_line, floating_dtype
from nofe.architectures.width import with_branch_width
from nofe.errors import UserError
from nofe.experts.given import Branch, checked, copy_of, require_factory, require_width, size_read, uncompiled
from nofe.experts.network import NetworkOfExperts
from nofe.specialties import Specialties

log = logging.getLogger("nofe")
SECOND_CLASSIFIER = ("distillation", "use_aux_head")  # arguments of timm's models


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
    computes what the model does; otherwise the classifiers begin with random weights, and a warning says so.
    `branch` takes a number of classes and gives any module that reads the trunk's output. `width` scales the layers
    inside a branch. `image_size` is the side of the images that the model reads, found by trying 224, 32 and others if
    it is not given.
    """
    cut = "" if cut is None else str(cut)
    require_width(width)
    require_factory(branch)
    if not isinstance(specialties, Specialties):
        specialties = Specialties(specialties)
    with torch.inference_mode(False), torch.enable_grad():  # where they are off, nothing that is made could learn
        return _converted(model, specialties, cut, branch, width, image_size)


def _converted(
    given: nn.Module, specialties: Specialties, cut: str, branch: Branch | None, width: float, image_size: int | None
) -> NetworkOfExperts:
    given = uncompiled(given)
    model = copy_of(given)
    name = type(model).__name__
    size = size_read(model, image_size)
    with torch.device("meta"):
        structure = copy.deepcopy(model).to("meta")
    image = torch.zeros(1, 3, size, size, device="meta", dtype=floating_dtype(model))
    plan = plan_of(copy.deepcopy(structure), image, name, cut=cut)
    if branch is not None:
        branch = checked(branch, plan.features)
    last = plan.classifier
    _require_one_classifier(structure, last, image, name)

    def copied(outputs: int) -> nn.Module:
        again = copy.deepcopy(model)
        if outputs != outputs_of(again.get_submodule(last)):
            with_outputs(again, last, outputs)
        return again

    def drawn(outputs: int) -> nn.Module:
        again = copied(outputs)
        for path in drawn_anew(again):
            if plan.is_in_branch(path):
                raise UserError(
                    f"{name}: the weight of {path} is parametrized in a way that cannot be initialised again for each "
                    "expert; pass a cut= before it, to copy it instead, or a branch= of your own"
                )
        return again

    from_model = adapted(copied, name, size, cut=cut, branch=branch)
    new = adapted(drawn, name, size, cut=cut, branch=branch)
    width_of = with_branch_width(from_model if cut else new, width, "width", must_change=True)
    copies_branches = bool(cut) and branch is None
    classifier = model.get_submodule(last)
    has_rows = outputs_of(classifier) == specialties.classes
    is_the_same = copies_branches and width == 1 and has_rows
    if copies_branches and not has_rows:
        log.warning(
            f"{name}: {last} has {outputs_of(classifier)} outputs and the specialties have {specialties.classes} "
            "classes, so the experts' classifiers begin with random weights; the layers before them are copied"
        )
    place = next(model.parameters())
    drawn_on = [place.device] if place.is_cuda else []
    with torch.random.fork_rng(drawn_on, enabled=is_the_same):  # all that is drawn will be written over
        trunk = from_model.trunk()
        experts = [width_of.branch(int(count)) for count in specialties.sizes]
    _require_own_parameters(experts)
    if is_the_same:
        _share_out(classifier, experts, specialties, last)
    network = NetworkOfExperts(trunk, experts, specialties).to(place.device, place.dtype)
    if is_the_same:
        _require_same_logits(model, network, size, last)
    network.train(given.training)
    for part in (trunk, *(experts if copies_branches else ())):
        _set_modes_as_in(given, part)
    return network


def _set_modes_as_in(model: nn.Module, part: nn.Module) -> None:
    """Layer by layer: a user may have put batch norms, say, in evaluation mode to keep their statistics."""
    modes = {path: module.training for path, module in model.named_modules(remove_duplicate=False)}
    for path, module in part.named_modules():
        module.training = modes.get(path, model.training)


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
    """Copy to each expert the rows of its classes."""
    for expert, classes in zip(experts, specialties.groups(), strict=True):
        own = expert.get_submodule(last)
        rows = torch.tensor(classes, device=next(classifier.parameters()).device)
        tensors = dict(own.named_parameters()) | dict(own.named_buffers())
        by_class = tensors_by_class(classifier)
        with torch.no_grad():
            for name, source in (*classifier.named_parameters(), *classifier.named_buffers()):
                tensors[name].copy_(source[rows] if name in by_class else source)


def _require_same_logits(model: nn.Module, network: NetworkOfExperts, size: int, last: str) -> None:
    """Compared on noise: the code after the classifier may move or mix classes, of which an expert has only some."""
    place = next(model.parameters())
    noise = torch.randn(2, 3, size, size, generator=torch.Generator().manual_seed(0)).to(place.device, place.dtype)
    with torch.no_grad():
        expected, given = copy.deepcopy(model).eval()(noise).float(), network.eval()(noise).float()
    apart = float((given - expected).abs().max())
    rounding = 1e-2 if place.dtype in (torch.float32, torch.float64) else 1e-1
    if not apart <= rounding * float(expected.abs().max()) + 1e-6:
        raise UserError(
            f"{type(model).__name__}: experts with the rows of {last} give other logits than the model, by up to "
            f"{apart:.2g}: what comes after it, or a hook on it, moves or mixes classes, or its weight is computed "
            f"from all rows; end the model with {last}, or convert it without cut="
        )


def _require_one_classifier(structure: nn.Module, last: str, image: Tensor, name: str) -> None:
    """That one layer alone decides how many logits there are: experts have other numbers of them."""
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
            given = changed(image).shape[-1]
    except Exception as error:  # whatever the code after the classifier says
        given, reason = None, first_line(error)
    else:
        reason = f"with one more output of it the logits are {given}"
    if given != outputs + 1:
        if unused := _never_called(structure, image):
            raise UserError(
                f"{name}: its forward computes with the weights of {unused[0]}, which is never called, so experts of "
                f"other sizes cannot be given one; write it as a layer that is called, self.{unused[0]}(x)"
            )
        classifier = structure.get_submodule(last)
        if given is None and not (computes_as(classifier, *WITH_WEIGHTS) or is_linear_in_timm(classifier)):
            raise UserError(
                f"{name}: {last} is a {type(classifier).__name__}, whose forward does not run with the other "
                f"numbers of outputs that experts have ({reason}); let it read the number from the shape of its weight"
            )
        others = f"; it has {', '.join(alike)} with as many outputs" if alike else ""
        raise UserError(
            f"{name}: its logits are not those of its last layer {last} alone ({reason}){others}; "
            f"{_single_classifier(structure, last, bool(alike))}"
        )


def _single_classifier(model: nn.Module, last: str, several: bool) -> str:
    """How to get a model with one classifier; timm builds some with a second, and notes what it built."""
    found = []
    timms = getattr(model, "pretrained_cfg", None)
    if isinstance(timms, dict) and timms.get("architecture"):
        found.append(f"train it by name, as timm:{timms['architecture']}")
    arguments = inspect.signature(type(model)).parameters
    found += [f"build it with {switch}=False" for switch in SECOND_CLASSIFIER if several and switch in arguments]
    return ", or ".join(found) or f"make {last} the last step of the model"


def _never_called(structure: nn.Module, image: Tensor) -> list[str]:
    """Layers with as many outputs as there are logits, whose weights are used but which are not called."""
    watched = copy.deepcopy(structure).eval()
    called: set[nn.Module] = set()
    for layer in watched.modules():
        layer.register_forward_hook(lambda layer, *_: called.add(layer))
    with torch.no_grad():
        logits = watched(image).shape[-1]
    layers = ((path, layer) for path, layer in watched.named_modules() if isinstance(layer, WITH_WEIGHTS))
    return [path for path, layer in layers if layer not in called and outputs_of(layer) == logits]
