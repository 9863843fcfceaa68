"""The six networks of the paper, a small one to begin with, and plain ones of the experts' size, by name."""

from nofe.architectures.alexnet import ALEXNET_C100, ALEXNET_CAFFE, ALEXNET_QUICK_C100
from nofe.architectures.architecture import Architecture
from nofe.architectures.matched import MATCHED
from nofe.architectures.nin import NIN_C100
from nofe.architectures.resnet import RESNET56_C100
from nofe.architectures.small import SMALL
from nofe.architectures.vgg import VGG11_C100
from nofe.errors import UserError
from nofe.suggestions import did_you_mean

ARCHITECTURES: dict[str, Architecture] = {
    architecture.name: architecture
    for architecture in (
        ALEXNET_C100,
        ALEXNET_QUICK_C100,
        VGG11_C100,
        NIN_C100,
        RESNET56_C100,
        ALEXNET_CAFFE,
        SMALL,
        *MATCHED,
    )
}


def architecture_named(name: str) -> Architecture:
    """The network of that name; a UserError with the nearest name where there is none."""
    if name in ARCHITECTURES:
        return ARCHITECTURES[name]
    raise UserError(f"architecture {name!r}: no network has this name; {did_you_mean(name, ARCHITECTURES)}")
