"""Networks by name: the paper's, a small one, plain ones of the experts' size, two of today's, and other libraries'."""

import functools
from collections.abc import Callable

from nofe.architectures.alexnet import ALEXNET_C100, ALEXNET_CAFFE, ALEXNET_QUICK_C100
from nofe.architectures.architecture import Architecture
from nofe.architectures.cifar import RESNET18_CIFAR, WRN_28_10
from nofe.architectures.matched import MATCHED
from nofe.architectures.nin import NIN_C100
from nofe.architectures.resnet import RESNET56_C100
from nofe.architectures.small import SMALL
from nofe.architectures.vgg import VGG11_C100
from nofe.architectures.zoo import SOURCES, is_zoo_name, names_in_libraries, zoo_architecture
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
ADAPTED: dict[str, Callable[..., Architecture]] = {"resnet18-cifar": RESNET18_CIFAR, "wrn-28-10": WRN_28_10}
"""Of a `cut`: these are cut like the networks of other libraries."""


@functools.lru_cache(maxsize=64)  # what is found about a network is kept with it
def architecture_named(name: str, cut: str = "") -> Architecture:
    """The network of that name; a UserError with the nearest name where there is none."""
    if is_zoo_name(name):
        return zoo_architecture(name, cut)
    if name in ADAPTED:
        return ADAPTED[name](cut=cut)
    if name in ARCHITECTURES:
        if cut:
            raise UserError(
                f"cut={cut}: {name} has a fixed place where it is cut; leave it out, or name another network"
            )
        return ARCHITECTURES[name]
    advice = did_you_mean(name, [*ARCHITECTURES, *ADAPTED, *SOURCES], likely=names_in_libraries(name))
    raise UserError(f"architecture {name!r}: no network has this name; {advice}")


def summaries() -> dict[str, str]:
    """A line on every architecture, for `nofe list`."""
    named = {name: architecture_named(name).summary for name in (*ARCHITECTURES, *ADAPTED)}
    return named | SOURCES
