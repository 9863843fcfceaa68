"""The moving average of the weights of a network in training: smoother than the last ones, and usually better.

As timm's and torchvision's: parameters, and the running statistics of batch norm with them. Only those of Caffe's
batch norm stay the network's own: they are sums that a count of steps belongs to, and an average already.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from nofe.architectures.caffe import BatchNorm2d

RAMP = 9  # steps after which the newest weights count for half: the average of a young network is a short one


class MovingAverage:
    """Of a model that stays where it is. `update` reads and writes tensors alone, so a graph can capture it."""

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.decay = decay
        counted_for = {id(buffer) for m in model.modules() if isinstance(m, BatchNorm2d) for buffer in m.buffers()}
        self._statistics = {
            name: buffer
            for name, buffer in model.named_buffers()
            if buffer.is_floating_point() and id(buffer) not in counted_for
        }
        self._of_model = {name: parameter.detach() for name, parameter in model.named_parameters()} | self._statistics
        self.tensors = {name: tensor.clone() for name, tensor in self._of_model.items()}
        self._share = torch.ones((), device=next(model.parameters()).device)  # of the newest weights
        self._set_share = 1.0

    def before(self, step: int) -> None:
        """Choose how much the weights after this step count, between two steps. The first are taken as they are."""
        share = share_of_newest(self.decay, step)
        if share != self._set_share:
            self._share.fill_(share)
            self._set_share = share

    @torch.no_grad()
    def update(self) -> None:
        averages, newest = list(self.tensors.values()), list(self._of_model.values())
        # lerp would take the share as a number, which a captured step could not change.
        changes = torch._foreach_sub(newest, averages)
        torch._foreach_mul_(changes, self._share)
        torch._foreach_add_(averages, changes)

    def statistics(self) -> list[Tensor]:
        """Averages of what each rank gathers on images of its own."""
        return [self.tensors[name] for name in self._statistics]

    @torch.no_grad()
    def load(self, tensors: dict[str, Tensor]) -> None:
        for name, tensor in self.tensors.items():
            tensor.copy_(tensors[name])

    @torch.no_grad()
    def adopt(self) -> None:
        """The model's weights become the averages, in place."""
        torch._foreach_copy_(list(self._of_model.values()), list(self.tensors.values()))

    @contextmanager
    def adopted(self) -> Iterator[None]:
        """For a while; then the model has its own weights again, to the bit."""
        own = [tensor.clone() for tensor in self._of_model.values()]
        self.adopt()
        try:
            yield
        finally:
            with torch.no_grad():
                torch._foreach_copy_(list(self._of_model.values()), own)


def share_of_newest(decay: float, step: int) -> float:
    """How much the weights after a step, counted from 0, count in the average."""
    return max(1 - decay, RAMP / (RAMP + step))
