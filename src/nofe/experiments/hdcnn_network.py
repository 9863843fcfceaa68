"""HD-CNN (Yan et al., ICCV 2015) as a network: what the paper compares a network of experts on NIN with.

Low layers are shared. A coarse component says which coarse category an image is in; for each coarse category a fine
component says which of its classes. The prediction is the average of the fine components, weighted by the coarse one.
Coarse categories are not specialties: they overlap. Here B, K, C, gamma and lambda are HD-CNN's own letters.
"""

import copy
from collections import OrderedDict
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from nofe.architectures import Classifier
from nofe.data.mixing import Labels
from nofe.errors import UserError
from nofe.experts.branches import Branches
from nofe.experts.fused import FusedExperts, NotFusable, fuse, unfuse
from nofe.specialties import Specialties
from nofe.training.loop import Objective


@dataclass(frozen=True, eq=False)
class CoarseCategories:
    """K sets of classes, none empty; each class is in one of them or more."""

    members: NDArray[np.bool_]  # (K, C)

    def __post_init__(self) -> None:
        if self.members.ndim != 2 or self.members.dtype != np.bool_:
            raise UserError(
                f"coarse categories: are {self.members.dtype} of {self.members.shape}; pass (K, C) booleans"
            )
        if not self.members.any(axis=1).all():
            raise UserError("coarse categories: one has no class; leave it out")
        if not self.members.any(axis=0).all():
            lost = int(np.flatnonzero(~self.members.any(axis=0))[0])
            raise UserError(f"coarse categories: class {lost} is in none; put it in one")

    @property
    def count(self) -> int:
        """K."""
        return len(self.members)

    @property
    def classes(self) -> int:
        """C."""
        return int(self.members.shape[1])

    @property
    def sizes(self) -> NDArray[np.int64]:
        """Classes in each, (K,)."""
        sizes: NDArray[np.int64] = self.members.sum(axis=1)
        return sizes

    def classes_of(self, category: int) -> NDArray[np.int64]:
        """Ascending."""
        return np.flatnonzero(self.members[category])

    def shares(self, labels: NDArray[np.int64]) -> NDArray[np.float64]:
        """t: the part of each category in all images, an image counted once for each category of its class. (K,)"""
        images = self.members @ np.bincount(labels, minlength=self.classes)  # (K,)
        shares: NDArray[np.float64] = images / images.sum()
        return shares

    def to_json(self, class_names: Sequence[str]) -> dict[str, Any]:
        named = [[class_names[c] for c in self.classes_of(k)] for k in range(self.count)]
        ids = [self.classes_of(k).tolist() for k in range(self.count)]
        return {
            "class_count": self.classes,
            "categories": [{"class_ids": i, "class_names": n} for i, n in zip(ids, named, strict=True)],
        }

    @classmethod
    def from_json(cls, described: dict[str, Any]) -> Self:
        members = np.zeros((len(described["categories"]), described["class_count"]), dtype=np.bool_)
        for k, category in enumerate(described["categories"]):
            members[k, category["class_ids"]] = True
        return cls(members)


def overlapping_categories(
    disjoint: Specialties, mean_probabilities: NDArray[np.float64], gamma: float
) -> CoarseCategories:
    """Each class stays where it was put, and joins every category that its images are likely enough to be sent to.

    `mean_probabilities` (C, C): what a network says, on average, of held-out images of each class. The likelihood of a
    category is the sum over the classes that it began with, and 1 / (gamma K) is enough.
    """
    if mean_probabilities.shape != (disjoint.classes, disjoint.classes):
        raise UserError(
            f"mean probabilities: have shape {mean_probabilities.shape} for {disjoint.classes} classes; "
            "pass a row and a column for each class"
        )
    if gamma <= 0:
        raise UserError(f"gamma={gamma}: out of range; use a number above 0")
    own = disjoint.specialty_of_class[:, None] == np.arange(disjoint.count)  # (C, K)
    likelihood = mean_probabilities @ own  # (C, K)
    return CoarseCategories((own | (likelihood >= 1 / (gamma * disjoint.count))).T)


def cut(network: Classifier, after: str) -> tuple[nn.Sequential, nn.Sequential]:
    """The layers up to and with `after`, which HD-CNN shares, and the rear layers, which each component has."""
    front = list(network.trunk.named_children())
    names = [name for name, _ in front]
    if after not in names:
        raise UserError(f"shared_until={after}: the trunk has no such layer; choose from {', '.join(names)}")
    place = names.index(after) + 1
    rear = [*front[place:], *network.head.named_children()]
    shared = nn.Sequential(OrderedDict(front[:place]))
    if any(isinstance(layer, nn.modules.batchnorm._BatchNorm) for layer in shared.modules()):
        raise UserError(
            f"shared_until={after}: batch norm in the shared layers would change while fine components train on "
            "images of their own; use a network without it, such as nin-c100"
        )
    return shared, nn.Sequential(OrderedDict(rear))


def fine_component(rear: nn.Sequential, classes: NDArray[np.int64]) -> nn.Sequential:
    """A copy of the rear layers with the outputs of some classes: at first it says of them what the whole says.

    (The authors' release begins the last layer anew, as it copies layers by name and that one has another.)
    """
    component = copy.deepcopy(rear)
    last = [layer for layer in component if isinstance(layer, nn.Conv2d | nn.Linear)][-1]
    kept = torch.from_numpy(classes).to(last.weight.device)
    last.weight = nn.Parameter(last.weight.detach()[kept].clone())
    if last.bias is not None:
        last.bias = nn.Parameter(last.bias.detach()[kept].clone())
    if isinstance(last, nn.Conv2d):
        last.out_channels = len(classes)
    else:
        last.out_features = len(classes)
    return component


class HDCNN(nn.Module):
    """Images (N, 3, H, W) to log probabilities (N, C), which serve as logits: their softmax is the probabilities."""

    member: Tensor
    slot: Tensor

    def __init__(
        self, shared: nn.Module, coarse: nn.Module, fine: Sequence[nn.Module], categories: CoarseCategories
    ) -> None:
        super().__init__()
        self.shared, self.coarse = shared, coarse
        self.fine: Branches | FusedExperts = Branches(fine)
        member = torch.from_numpy(categories.members.copy())  # (K, C)
        # Fine outputs lie one component after another; what is said of a class outside a component is masked.
        slot = (member.flatten().cumsum(0) - 1).clamp(min=0).view_as(member)
        self.register_buffer("member", member, persistent=False)
        self.register_buffer("slot", slot, persistent=False)

    @property
    def classes(self) -> int:
        """C."""
        return int(self.member.shape[1])

    def forward(self, images: Tensor) -> Tensor:  # (N, 3, H, W)
        log_probabilities, _ = self.predictions(images)
        return log_probabilities  # (N, C)

    def predictions(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """log p(y | x) (N, C) and log B (N, K)."""
        features = self.shared(images)  # (N, D, h, w)
        log_coarse = coarse_from_fine(self.coarse(features).float().log_softmax(1), self.member)  # (N, K)
        outputs = self.fine(features).float()  # (N, sum of the sizes)
        by_class = outputs.index_select(1, self.slot.flatten()).unflatten(1, self.slot.shape)  # (N, K, C)
        log_fine = by_class.masked_fill(~self.member, -torch.inf).log_softmax(2)
        return probabilistic_average(log_coarse, log_fine), log_coarse

    def run_as_one(self) -> None:
        """The fine components are alike, so they run as one like experts do: the same function, faster."""
        if isinstance(self.fine, Branches):
            with suppress(NotFusable):  # then one after another
                apart, self.fine = self.fine, fuse(self.fine)
                self._apart = [apart]  # in a list, so that it is no part of this module's state

    def run_apart(self) -> None:
        """One after another again, with the weights as they are now."""
        if isinstance(self.fine, FusedExperts):
            [apart] = self._apart
            unfuse(self.fine, apart)
            self.fine = apart


def coarse_from_fine(log_probabilities: Tensor, member: Tensor) -> Tensor:
    """log B (N, K): the probabilities of a category's classes summed, then over all categories to one."""
    of_members = log_probabilities[:, None].masked_fill(~member, -torch.inf)  # (N, K, C)
    return of_members.logsumexp(2).log_softmax(1)


def probabilistic_average(log_coarse: Tensor, log_fine: Tensor) -> Tensor:
    """log of sum over k of B_k p_k(y) / sum over k of B_k: (N, K) and (N, K, C) to (N, C)."""
    weighted = log_coarse.log_softmax(1)[:, :, None] + log_fine  # (N, K, C)
    return weighted.logsumexp(1)


class Joint(nn.Module):
    """HD-CNN as it is fine-tuned: log p(y | x) and log B side by side, (N, C + K), as the loss needs both."""

    def __init__(self, network: HDCNN) -> None:
        super().__init__()
        self.network = network

    def forward(self, images: Tensor) -> Tensor:
        return torch.cat(self.network.predictions(images), dim=1)


@dataclass
class JointObjective(Objective):
    """Multinomial logistic loss of the average, plus the coarse category consistency term."""

    shares: Tensor  # (K,) t
    weight: float  # lambda

    def __call__(self, outputs: Tensor, labels: Labels) -> tuple[Tensor, Tensor]:
        widths = [len(self.target_of_class), len(self.shares)]
        log_probabilities, log_coarse = outputs.float().split(widths, dim=1)
        loss, recognised = super().__call__(log_probabilities, labels)
        return loss + self.weight * inconsistency(log_coarse.exp(), self.shares), recognised


def inconsistency(coarse: Tensor, shares: Tensor) -> Tensor:
    """Half the squared difference of the mean coarse prediction (N, K) from the shares (K,) it should have."""
    return (shares - coarse.mean(0)).square().sum() / 2
