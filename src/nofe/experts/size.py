"""How large networks are, before they are trained."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from nofe.architectures import Architecture, parameter_count
from nofe.architectures.options import balanced_sizes


@dataclass(frozen=True)
class Size:
    parameters: int
    multiplications: int  # of convolutions and matrix products, for one image

    def __add__(self, other: "Size") -> "Size":
        return Size(self.parameters + other.parameters, self.multiplications + other.multiplications)


def size_of(model: nn.Module, crop: int) -> Size:
    """Of a model on the meta device."""
    return _counted(model, torch.zeros(1, 3, crop, crop, device="meta"))[0]


def sizes_of(architecture: Architecture, classes: int, experts: int, crop: int) -> dict[str, Size]:
    """Base and experts, with specialties of equal size: which they will be is not known before they are learned."""
    of_experts = balanced_sizes(classes, experts)
    with torch.device("meta"):
        base = size_of(architecture.classifier(classes), crop)
        trunk, features = _counted(architecture.trunk_of_experts(), torch.zeros(1, 3, crop, crop))
        branches = {size: _counted(architecture.branch(size), features)[0] for size in set(of_experts)}
    return {"base": base, "experts": sum((branches[size] for size in of_experts), start=trunk)}


def _counted(module: nn.Module, given: Tensor) -> tuple[Size, Tensor]:
    """The size of a model on the meta device, and what it makes of its inputs."""
    with torch.device("meta"), torch.no_grad(), FlopCounterMode(display=False) as counter:
        made = module.eval()(given)
    return Size(parameter_count(module), counter.get_total_flops() // 2), made
