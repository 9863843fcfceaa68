"""A network as the paper cuts it: a trunk that experts share, a head for base and generalist, a branch."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

from torch import Tensor, nn


class WithTrunk(nn.Module):
    """A trunk and what stands on it. A frozen trunk does not learn, nor do its batch norms average any further."""

    trunk: nn.Module
    trunk_is_frozen = False

    def freeze_trunk(self) -> None:
        self.trunk_is_frozen = True
        self.trunk.requires_grad_(False)
        self.train(self.training)

    def train(self, mode: bool = True) -> Self:
        super().train(mode)
        if self.trunk_is_frozen:
            self.trunk.eval()
        return self


class Classifier(WithTrunk):
    """A trunk and one head: the base over C classes, or the generalist over K specialties."""

    def __init__(self, trunk: nn.Module, head: nn.Module) -> None:
        super().__init__()
        self.trunk = trunk
        self.head = head

    def forward(self, images: Tensor) -> Tensor:  # (N, 3, H, W)
        features: Tensor = self.trunk(images)  # (N, D, h, w)
        logits: Tensor = self.head(features)  # (N, outputs)
        return logits


@dataclass(frozen=True)
class Architecture:
    """How to build the parts of one network. Each call draws new weights from torch's global generator."""

    name: str
    summary: str
    image_size: int
    """Side of the stored images, in pixels."""
    input_size: int
    """Side of the crop that the network reads, in pixels."""
    trunk: Callable[[], nn.Module]
    head: Callable[[int], nn.Module]
    """Of a number of outputs, 1 or more: C for the base, K for the generalist."""
    branch: Callable[[int], nn.Module]
    """Of the number of classes of one specialty, 1 or more."""
    experts_trunk: Callable[[], nn.Module] | None = None
    """The trunk under the experts, where it has layers without parameters that the generalist's has not."""
    generalist_head: Callable[[int], nn.Module] | None = None
    """The generalist's, where it is another than the base's with as many parameters; it is dropped after stage 1."""
    classifier_layer: Callable[[], str] | None = None
    """Path in the head of its last layer, which is new for every number of outputs; for pretrained weights."""
    branch_is_head: bool = False
    """Branches are made like the head: experts then start from the generalist's, all but the last layer."""

    def classifier(self, outputs: int) -> Classifier:
        """The base, with C outputs."""
        return Classifier(self.trunk(), self.head(outputs))

    def generalist(self, outputs: int) -> Classifier:
        """The generalist, with K outputs."""
        return Classifier(self.trunk(), (self.generalist_head or self.head)(outputs))

    def trunk_of_experts(self) -> nn.Module:
        """The trunk of a network of experts; it loads the generalist's trunk strictly, key by key."""
        return (self.experts_trunk or self.trunk)()


def parameter_count(model: nn.Module) -> int:
    """How many numbers are weights and biases, frozen or not; no buffers."""
    return sum(parameter.numel() for parameter in model.parameters())
