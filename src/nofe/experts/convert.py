"""`nofe.convert`: a classifier in memory to a network of experts."""

import copy
from collections.abc import Callable

import torch
from torch import Tensor, nn

from nofe.architectures.adapt import adapted
from nofe.architectures.fit import drawn_anew, outputs_of, with_outputs
from nofe.architectures.width import with_branch_width
from nofe.errors import UserError
from nofe.experts.network import NetworkOfExperts
from nofe.specialties import Specialties

Branch = Callable[[int], nn.Module]


def convert(
    model: nn.Module,
    specialties: Specialties,
    cut: str | None = None,
    branch: Branch | None = None,
    width: float = 1.0,
    *,
    image_size: int | None = None,
) -> NetworkOfExperts:
    """A network of experts with the trunk of `model`, which is not changed.

    Without a `cut` each branch is one new block of the kind the model's last stage is made of, then normalisation,
    pooling and classifier as the model has them, all drawn anew. With one, each branch is a copy of all that follows;
    where the model has one output for each class, each expert's classifier is the rows of its classes, and the network
    computes what the model does. `branch` takes a number of classes and gives any module that reads the trunk's output.
    `width` scales the layers inside a branch. `image_size` is the side of the images that the model reads, found by
    trying 224, 32 and others if it is not given.
    """
    size = image_size or _readable_size(model)
    with torch.device("meta"):
        structure = copy.deepcopy(model).to("meta")
    name = type(model).__name__
    plan = adapted(lambda outputs: copy.deepcopy(structure), name, size, cut=cut or "", branch=branch)
    assert plan.classifier_layer is not None
    last = plan.classifier_layer()

    def copied(outputs: int) -> nn.Module:
        again = copy.deepcopy(model)
        if outputs != outputs_of(again.get_submodule(last)):
            with_outputs(again, last, outputs)
        return again

    def drawn(outputs: int) -> nn.Module:
        again = copied(outputs)
        drawn_anew(again)
        return again

    from_model = adapted(copied, name, size, cut=cut or "", branch=branch)
    new = adapted(drawn, name, size, cut=cut or "", branch=branch)
    width_of = with_branch_width(from_model if cut else new, width)
    trunk = from_model.trunk()
    experts = [width_of.branch(int(count)) for count in specialties.sizes]
    if cut and branch is None and width == 1:
        classifier = model.get_submodule(last)
        if outputs_of(classifier) == specialties.classes:
            _share_out(classifier, experts, specialties, last)
    place = next(model.parameters())
    network = NetworkOfExperts(trunk, experts, specialties).to(place.device, place.dtype)
    return network.train(model.training)


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


def _readable_size(model: nn.Module) -> int:
    """The first usual size that the model reads; its weights do not say."""
    structure = copy.deepcopy(model).to("meta").eval()
    for size in (224, 32, 64, 128, 28, 256, 299, 384):
        try:
            with torch.no_grad():
                logits = structure(torch.zeros(1, 3, size, size, device="meta"))
        except Exception:  # whatever a layer says of a size that it cannot read
            continue
        if isinstance(logits, Tensor):
            return size
    raise UserError(
        f"{type(model).__name__}: reads images of no usual size; pass image_size= the side of its images in pixels"
    )
