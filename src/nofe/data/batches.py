"""Batches and augmentation, on the training device.

The whole set lies on the device as bytes. The order of an epoch and the augmentation of every image in it depend on
(seed, stage, epoch) alone, so training can stop after any step and go on exactly. Images are 0..255 minus the
per-pixel mean: the initialisers and rates of the paper's networks depend on that scale.
"""

import copy
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from nofe.data.dataset import ImageSet
from nofe.data.stored import StoredImages
from nofe.errors import UserError
from nofe.streams import stream


@dataclass(frozen=True)
class Augmentation:
    """Random crops of the zero-padded image, and mirroring."""

    crop: int = 32  # pixels fed to the network
    padding: int = 0  # zeros on each side before cropping; 0 after the mean is subtracted
    mirror: bool = False

    def __post_init__(self) -> None:
        if self.crop < 1 or self.padding < 0:
            raise UserError(f"crop={self.crop}, padding={self.padding}: out of range; use a crop of at least 1 pixel")


@dataclass(frozen=True)
class EpochPlan:
    """What happens to every image of an epoch, in the order in which they are visited."""

    order: NDArray[np.int64]  # (N,) index of the image
    top: NDArray[np.int64]  # (N,) offset of the crop in the padded image
    left: NDArray[np.int64]  # (N,)
    mirrored: NDArray[np.bool_]  # (N,)


class DeviceImages:
    """A set of images on the device, with the mean they are centred by."""

    def __init__(self, images: ImageSet, mean: NDArray[np.float32], device: torch.device) -> None:
        self.pixels = torch.from_numpy(images.images).to(device)  # (N, 3, H, W) uint8
        self.labels = torch.from_numpy(images.labels).to(device)  # (N,)
        self.mean = torch.from_numpy(mean).to(device)  # (3, H, W)

    def __len__(self) -> int:
        return len(self.labels)

    def of_classes(self, classes: Tensor) -> "DeviceImages":
        """The images of some classes alone, centred by the same mean."""
        chosen = torch.isin(self.labels, classes)  # (N,)
        part = copy.copy(self)
        part.pixels, part.labels = self.pixels[chosen], self.labels[chosen]
        return part

    def ahead(self, parts: Iterable[Tensor]) -> Iterable[Tensor]:
        """Indices that `centre_view` will be asked for, one part after another; for images that must be read first."""
        return parts

    def centred(self, index: Tensor) -> Tensor:
        return self.pixels[index].float() - self.mean  # (B, 3, H, W)

    def centre_view(self, index: Tensor, crop: int) -> Tensor:
        """What the network sees in evaluation: the centre crop, not mirrored."""
        return centre_crop(self.centred(index), crop)


class Batches:
    """Training batches of one stage.

    The last N mod batch images of an epoch's random order are left out, so that every step has the same shape.
    With several ranks each takes its share of every global batch.
    """

    def __init__(
        self,
        images: DeviceImages,
        augmentation: Augmentation,
        *,
        batch: int,
        seed: int,
        stage: str,
        rank: int = 0,
        ranks: int = 1,
    ) -> None:
        self.images = images
        self.augmentation = augmentation
        self.global_batch = min(batch, len(images))
        if self.global_batch % ranks:
            raise UserError(
                f"batch={self.global_batch}: cannot be shared out over {ranks} ranks; use a multiple of {ranks}"
            )
        self.ranks = ranks
        self.batch = self.global_batch // ranks
        self.steps_per_epoch = len(images) // self.global_batch
        self._seed, self._stage = seed, stage
        count, device = len(images), images.labels.device
        self._share = torch.arange(self.batch, device=device) + rank * self.batch  # (B,)
        # The plan of the epoch and the place in it stay at one address, so that a captured step can read them.
        self._order, self._top, self._left = torch.zeros(3, count, dtype=torch.int64, device=device)
        self._mirrored = torch.zeros(count, dtype=torch.bool, device=device)
        self._step = torch.zeros((), dtype=torch.int64, device=device)

    def plan(self, epoch: int) -> EpochPlan:
        """Drawn for each image, then put in the order of the visit: another batch size changes no crop."""
        count, height = len(self.images), self.images.pixels.shape[-1]
        places = height + 2 * self.augmentation.padding - self.augmentation.crop + 1
        if self.augmentation.crop > height:  # even with padding: evaluation crops the image as it is
            raise UserError(
                f"crop={self.augmentation.crop}: larger than the images of {height} pixels; set a smaller crop"
            )
        order = stream(self._seed, self._stage, "order", epoch).permutation(count)
        rng = stream(self._seed, self._stage, "augmentation", epoch)
        top, left = rng.integers(places, size=(2, count))
        mirrored = rng.random(count) < (0.5 if self.augmentation.mirror else 0.0)
        return EpochPlan(order, top[order], left[order], mirrored[order])

    def begin(self, epoch: int, step: int = 0) -> None:
        """Stand before a step of an epoch."""
        plan = self.plan(epoch)
        self._order.copy_(torch.from_numpy(plan.order))
        self._top.copy_(torch.from_numpy(plan.top))
        self._left.copy_(torch.from_numpy(plan.left))
        self._mirrored.copy_(torch.from_numpy(plan.mirrored))
        self._step.fill_(step)

    def rewind(self) -> None:
        """Stand before the first step of the epoch again."""
        self._step.zero_()

    def feed(self) -> None:
        """Before each step, outside of what is captured: for images that are not on the device yet."""

    def next(self) -> tuple[Tensor, Tensor]:
        """Images (B, 3, h, w) and labels (B,) of the next step. Only tensors change, so a graph can capture it."""
        visit = self._step * self.global_batch + self._share  # (B,)
        self._step += 1
        index = self._order[visit]
        return self._augment(self.images.centred(index), visit), self.images.labels[index]

    def _augment(self, centred: Tensor, visit: Tensor) -> Tensor:
        crop, padding = self.augmentation.crop, self.augmentation.padding
        mirrored = self._mirrored[visit]  # (B,)
        if crop == centred.shape[-1] and not padding:
            if not self.augmentation.mirror:
                return centred
            return torch.where(mirrored[:, None, None, None], centred.flip(-1), centred)
        padded = F.pad(centred, (padding, padding, padding, padding)) if padding else centred
        along = torch.arange(crop, device=centred.device)
        rows = self._top[visit, None] + along  # (B, h)
        columns = self._left[visit, None] + torch.where(mirrored[:, None], along.flip(0), along)  # (B, w)
        image = torch.arange(len(padded), device=centred.device)
        views = padded[image[:, None, None], :, rows[:, :, None], columns[:, None, :]]  # (B, h, w, 3)
        return views.permute(0, 3, 1, 2)


def centre_crop(images: Tensor, crop: int) -> Tensor:
    """(N, 3, H, W) -> (N, 3, crop, crop), Caffe's centre: the offset is rounded down."""
    top, left = (images.shape[-2] - crop) // 2, (images.shape[-1] - crop) // 2
    return images[..., top : top + crop, left : left + crop]


def pixel_mean(images: ImageSet) -> NDArray[np.float32]:
    """The mean training image, (3, H, W), in double precision over all images."""
    if isinstance(images, StoredImages):
        return images.mean()
    total = np.zeros(images.images.shape[1:], dtype=np.float64)
    for start in range(0, len(images.labels), 4096):
        total += images.images[start : start + 4096].sum(axis=0, dtype=np.int64)
    return (total / len(images.labels)).astype(np.float32)
