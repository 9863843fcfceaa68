"""What a user may choose about an architecture beside its name."""

import functools
from dataclasses import dataclass

from nofe.architectures.architecture import Architecture
from nofe.architectures.registry import architecture_named
from nofe.architectures.width import width_within, with_branch_width
from nofe.errors import UserError


@dataclass(frozen=True, kw_only=True)
class AdaptConfig:
    cut: str = ""  # experts from this layer on; empty is after the last block, and one new block in each branch
    branch_width: float = 1.0  # of the layers inside a branch
    parameters: int = 0  # narrow the branches until experts have no more than so many; 0 is no limit
    weights: str = ""  # base and generalist start from: empty (random), "pretrained", or a file
    frozen_trunk: bool = False  # the trunk does not learn, and its batch norms keep their statistics

    def __post_init__(self) -> None:
        if not 0 < self.branch_width <= 8:
            raise UserError(f"adapt.branch_width={self.branch_width}: out of range; use a number from above 0 to 8")
        if self.parameters < 0:
            raise UserError(f"adapt.parameters={self.parameters}: out of range; use 0 for no limit")
        if self.parameters and self.branch_width != 1:
            raise UserError(
                f"adapt.branch_width={self.branch_width} and adapt.parameters={self.parameters}: the limit sets the "
                "width; give one of the two"
            )


@functools.lru_cache(maxsize=64)  # a limit on parameters is met by trying widths
def architecture_with(name: str, options: AdaptConfig, classes: int, experts: int) -> Architecture:
    """The network as it is run: cut, and its branches as wide as was asked for."""
    architecture = architecture_named(name, options.cut)
    width = options.branch_width
    if options.parameters:
        width = width_within(architecture, options.parameters, balanced_sizes(classes, experts))
    return with_branch_width(architecture, width)


def balanced_sizes(classes: int, experts: int) -> list[int]:
    """Sizes that differ by at most one, as those of the specialties are not known before they are learned."""
    return [classes // experts + (expert < classes % experts) for expert in range(experts)]
