"""How large networks are, before they are trained."""

from dataclasses import dataclass

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from nofe.architectures import Architecture, parameter_count
from nofe.architectures.options import balanced_sizes


@dataclass(frozen=True)
class Size:
    parameters: int
    multiplications: int  # of convolutions and matrix products, for one image


def size_of(model: nn.Module, crop: int) -> Size:
    """Of a model on the meta device."""
    with torch.device("meta"), torch.no_grad(), FlopCounterMode(display=False) as counter:
        model.eval()(torch.zeros(1, 3, crop, crop))
    return Size(parameter_count(model), counter.get_total_flops() // 2)


def sizes_of(architecture: Architecture, classes: int, experts: int, crop: int) -> dict[str, Size]:
    """Base and experts, with specialties of equal size: which they will be is not known before they are learned."""
    with torch.device("meta"):
        base = size_of(architecture.classifier(classes), crop)
        trunk = size_of_trunk(architecture, crop)
        total = trunk
        branches = {
            size: size_of(nn.Sequential(architecture.trunk_of_experts(), architecture.branch(size)), crop)
            for size in set(balanced_sizes(classes, experts))
        }
    for size in balanced_sizes(classes, experts):
        total = Size(
            total.parameters + branches[size].parameters - trunk.parameters,
            total.multiplications + branches[size].multiplications - trunk.multiplications,
        )
    return {"base": base, "experts": total}


def size_of_trunk(architecture: Architecture, crop: int) -> Size:
    return size_of(architecture.trunk_of_experts(), crop)
