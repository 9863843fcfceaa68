"""K branches run one after another: the reference for every faster way to run them, and good for any module."""

from collections.abc import Iterable

import torch
from torch import Tensor, nn

OWN_CODE = ("torch.nn.", "nofe.")  # which writes over what it is given only where it says `inplace`


class Branches(nn.ModuleList):
    """Its parameters are named by expert (`3.conv4.weight`), so one expert can be read or replaced alone."""

    def __init__(self, experts: Iterable[nn.Module] = ()) -> None:
        super().__init__(experts)
        self._may_write = any(map(may_write_over, self))

    def forward(self, features: Tensor) -> Tensor:  # (N, D, h, w)
        if not self._may_write:
            return torch.cat([expert(features) for expert in self], dim=1)  # (N, C) in slot order
        # What one wrote, such as by an activation in place, the next would read.
        return torch.cat([expert(features.clone()) for expert in self], dim=1)


def may_write_over(branch: nn.Module) -> bool:
    """Whether a branch may write over the trunk's map, as far as its layers tell; of a user's code nobody knows."""
    return any(
        getattr(layer, "inplace", False) or not f"{type(layer).__module__}.".startswith(OWN_CODE)
        for layer in branch.modules()
    )
