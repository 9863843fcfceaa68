"""How large networks are, before they are trained."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils.flop_counter import FlopCounterMode

from nofe.architectures import Architecture, parameter_count
from nofe.architectures.options import balanced_sizes


@dataclass(frozen=True)
class Size:
    parameters: int
    multiplications: int  # of convolutions and matrix products, for one image

    def __add__(self, other: "Size") -> "Size":
        return Size(self.parameters + other.parameters, self.multiplications + other.multiplications)


KEEP_SHAPES = (F.batch_norm, F.relu)  # and multiply no matrices; in Python they take most of the time on this device
FILLS = ("normal_", "trunc_normal_", "uniform_")  # of torch.nn.init and of tensors


class _ShapesAlone(TorchFunctionMode):
    """Nothing is computed and no weight is filled where there are no values anyway."""

    def __torch_function__(self, function: Callable[..., Any], _: Any, given: Any = (), named: Any = None) -> Any:
        named = named or {}
        if function in KEEP_SHAPES or getattr(function, "__name__", "") in FILLS:
            first = next(iter((*given, *named.values())))
            if first.is_meta:
                return first
        return function(*given, **named)


@contextmanager
def without_values() -> Iterator[None]:
    """Networks that are made here have shapes alone."""
    with torch.device("meta"), _ShapesAlone():
        yield


def size_of(model: nn.Module, crop: int) -> Size:
    """Of a model without values."""
    return _counted(model, torch.zeros(1, 3, crop, crop, device="meta"))[0]


def sizes_of(architecture: Architecture, classes: int, experts: int, crop: int) -> dict[str, Size]:
    """Base and experts, with specialties of equal size: which they will be is not known before they are learned."""
    of_experts = balanced_sizes(classes, experts)
    with without_values():
        base = size_of(architecture.classifier(classes), crop)
        trunk, features = _counted(architecture.trunk_of_experts(), torch.zeros(1, 3, crop, crop))
        branches = {size: _counted(architecture.branch(size), features)[0] for size in set(of_experts)}
    return {"base": base, "experts": sum((branches[size] for size in of_experts), start=trunk)}


def _counted(module: nn.Module, given: Tensor) -> tuple[Size, Tensor]:
    """The size of a model without values, and what it makes of its inputs."""
    with without_values(), torch.no_grad(), FlopCounterMode(display=False) as counter:
        made = module.eval()(given)
    return Size(parameter_count(module), counter.get_total_flops() // 2), made
