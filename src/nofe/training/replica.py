"""The model as each of several ranks trains it."""

import copy

import torch
from torch import Tensor, nn

from nofe.training.runtime import Runtime, cudnn_not_searching, drawing_aside


class Replica:
    """A function of images, the gradients of the model averaged over ranks.

    Whether it has weights without a gradient, which are waited for in vain unless they are looked for at every step, is
    seen at the first batch: a module may hold more than its forward reads.
    """

    def __init__(self, model: nn.Module, runtime: Runtime) -> None:
        self._model, self._runtime = model, runtime
        self._replica: nn.Module | None = None

    def __call__(self, images: Tensor) -> Tensor:
        ranks = self._runtime.ranks
        if self._replica is None:
            idle = torch.tensor(idle_weights(self._model, images[:2], self._runtime))
            self._replica = ranks.replica(self._model, with_idle_weights=bool(ranks.sum(idle)))
        # Layer by layer: were weights cast at once, gradients would come at once, and none travel during backward.
        with self._runtime.autocast():
            logits: Tensor = self._replica(images)
        return logits


def idle_weights(model: nn.Module, images: Tensor, runtime: Runtime) -> int:
    """How many of those that learn have no gradient; with a copy, which may count."""
    with drawing_aside(runtime.device), cudnn_not_searching(), torch.enable_grad(), runtime.autocast():
        trial = copy.deepcopy(model)
        trial(images).float().sum().backward()
    return sum(weight.grad is None for weight in trial.parameters() if weight.requires_grad)
