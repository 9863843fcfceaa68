"""Batches and augmentation, on the training device.

The whole set lies on the device as bytes. The order of an epoch and all that happens to an image in it depend on
(seed, stage, epoch) alone, so training can stop after any step and go on exactly. Images are 0..255 minus the
per-pixel mean: the initialisers and rates of the paper's networks depend on that scale.
"""

import copy
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from nofe.data.augment import MAGNITUDES, draw_operations, draw_wide_operations, operate
from nofe.data.dataset import ImageSet
from nofe.data.mixing import Labels, MixedLabels, draw_erased, draw_mixing, erase, mix
from nofe.data.stored import StoredImages
from nofe.errors import UserError
from nofe.streams import stream


@dataclass(frozen=True)
class Augmentation:
    """Random crops of the zero-padded image, and mirroring; RandAugment or TrivialAugment before, erasing after it."""

    crop: int = 32  # pixels fed to the network
    padding: int = 0  # zeros on each side before cropping; 0 after the mean is subtracted
    mirror: bool = False
    randaugment: int = 0  # operations for each image, before it is cropped; 0 is none
    magnitude: int = 9  # of RandAugment's operations, 0 to 30
    trivialaugment: bool = False  # instead of RandAugment: one operation for each image, of any magnitude
    erasing: float = 0.0  # probability that a box of the crop is erased

    def __post_init__(self) -> None:
        if self.crop < 1 or self.padding < 0:
            raise UserError(f"crop={self.crop}, padding={self.padding}: out of range; use a crop of at least 1 pixel")
        if self.randaugment < 0:
            raise UserError(f"randaugment={self.randaugment}: out of range; use 0 for none, e.g. 2 operations")
        if not 0 <= self.magnitude <= MAGNITUDES:
            raise UserError(f"magnitude={self.magnitude}: out of range; use 0 to {MAGNITUDES}")
        if self.randaugment and self.trivialaugment:
            raise UserError(f"randaugment={self.randaugment}, trivialaugment=True: one excludes the other; choose one")
        if not 0 <= self.erasing <= 1:
            raise UserError(f"erasing={self.erasing}: out of range; use a probability, 0 for none")

    @property
    def operations(self) -> int:
        """Of RandAugment or TrivialAugment, for each image."""
        return 1 if self.trivialaugment else self.randaugment


def _nothing() -> NDArray[Any]:
    return np.empty(0)


@dataclass(frozen=True)
class EpochPlan:
    """What happens to every image of an epoch, in the order of the visits; what does not happen is empty."""

    order: NDArray[np.int64]  # (N,) index of the image
    top: NDArray[np.int64]  # (N,) offset of the crop in the padded image
    left: NDArray[np.int64]  # (N,)
    mirrored: NDArray[np.bool_]  # (N,)
    operations: NDArray[np.int64] = field(default_factory=_nothing)  # (N, operations) of OPERATIONS
    amounts: NDArray[np.float32] = field(default_factory=_nothing)  # (N, operations)
    erased: NDArray[np.int64] = field(default_factory=_nothing)  # (N, 4) of the crop: top, left, bottom, right
    partner: NDArray[np.int64] = field(default_factory=_nothing)  # (N,) visit of the image it is mixed with
    kept: NDArray[np.float32] = field(default_factory=_nothing)  # (N,) share of its own in each pixel outside the box
    pasted: NDArray[np.int64] = field(default_factory=_nothing)  # (N, 4) box in which all pixels are the partner's
    share: NDArray[np.float32] = field(default_factory=_nothing)  # (N,) of the image that is its own


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
        mixup: float = 0.0,
        cutmix: float = 0.0,
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
        self._mixup, self._cutmix = mixup, cutmix
        device = images.labels.device
        self._share = torch.arange(self.batch, device=device) + rank * self.batch  # (B,)
        # The plan of the epoch and the place in it stay at one address, so that a captured step can read them.
        self._planned: dict[str, Tensor] = {}
        self._step = torch.zeros((), dtype=torch.int64, device=device)
        self._fill = images.mean.mean((1, 2)).round()  # (3,) nearest to 0 once the mean is subtracted

    def plan(self, epoch: int) -> EpochPlan:
        """Drawn for each image, then put in the order of the visit: another batch size changes no crop."""
        count, height = len(self.images), self.images.pixels.shape[-1]
        places = height + 2 * self.augmentation.padding - self.augmentation.crop + 1
        if self.augmentation.crop > height:  # even with padding: evaluation crops the image as it is
            raise UserError(
                f"crop={self.augmentation.crop}: larger than the images of {height} pixels; set a smaller crop"
            )
        order = self._stream("order", epoch).permutation(count)
        rng = self._stream("augmentation", epoch)
        top, left = rng.integers(places, size=(2, count))
        mirrored = rng.random(count) < (0.5 if self.augmentation.mirror else 0.0)
        drawn = {"top": top, "left": left, "mirrored": mirrored} | self._drawn_by_choice(epoch, order)
        return EpochPlan(order, **{name: values[order] for name, values in drawn.items()})

    def _drawn_by_choice(self, epoch: int, order: NDArray[np.int64]) -> dict[str, NDArray[Any]]:
        """What the recipe has beyond crops and mirroring, for each image."""
        of, count, size = self.augmentation, len(self.images), self.images.pixels.shape[-1]
        drawn: dict[str, NDArray[Any]] = {}
        if of.randaugment:
            rng = self._stream("operations", epoch)
            drawn["operations"], drawn["amounts"] = draw_operations(rng, count, of.randaugment, of.magnitude, size)
        if of.trivialaugment:
            drawn["operations"], drawn["amounts"] = draw_wide_operations(self._stream("operations", epoch), count)
        if of.erasing:
            drawn["erased"] = draw_erased(self._stream("erasing", epoch), count, of.erasing, of.crop)
        if self.mixes:
            visit_of_image = np.empty_like(order)
            visit_of_image[order] = np.arange(count)
            mixing = draw_mixing(self._stream("mixing", epoch), count, self._mixup, self._cutmix, of.crop)
            drawn |= vars(mixing) | {"partner": visit_of_image[mixing.partner]}
        return drawn

    @property
    def mixes(self) -> bool:
        return bool(self._mixup or self._cutmix)

    def _stream(self, what: str, epoch: int) -> np.random.Generator:
        return stream(self._seed, self._stage, what, epoch)

    def begin(self, epoch: int, step: int = 0) -> None:
        """Stand before a step of an epoch."""
        for name, values in vars(self.plan(epoch)).items():
            planned = torch.from_numpy(values)
            if name in self._planned:
                self._planned[name].copy_(planned)
            else:
                self._planned[name] = planned.to(self._step.device, copy=True)
        self._step.fill_(step)

    def rewind(self) -> None:
        """Stand before the first step of the epoch again."""
        self._step.zero_()

    def feed(self) -> None:
        """Before each step, outside of what is captured: for images that are not on the device yet."""

    def next(self) -> tuple[Tensor, Labels]:
        """Images (B, 3, h, w) and labels (B,) of the next step. Only tensors change, so a graph can capture it."""
        visit = self._step * self.global_batch + self._share  # (B,)
        self._step += 1
        views, labels = self._views(visit)
        if not self.mixes:
            return views, labels
        planned = self._planned
        # The partner may be another rank's: it is made here, too, as it is made there.
        others, other_labels = self._views(planned["partner"][visit])
        mixed = mix(views, others, planned["kept"][visit], planned["pasted"][visit])
        return mixed, MixedLabels(labels, other_labels, planned["share"][visit])

    def _views(self, visit: Tensor) -> tuple[Tensor, Tensor]:
        """Images as they are augmented in this epoch, and their labels."""
        index = self._planned["order"][visit]
        if self.augmentation.operations:
            centred = self._operated(index, visit) - self.images.mean
        else:
            centred = self.images.centred(index)
        views = self._cropped(centred, visit)
        if self.augmentation.erasing:
            views = erase(views, self._planned["erased"][visit])
        return views, self.images.labels[index]

    def _operated(self, index: Tensor, visit: Tensor) -> Tensor:
        kinds, amounts = self._planned["operations"][visit], self._planned["amounts"][visit]  # (B, operations)
        images = self.images.pixels[index].float()  # (B, 3, H, W)
        for each in range(self.augmentation.operations):
            images = operate(images, kinds[:, each], amounts[:, each], self._fill)
        return images

    def _cropped(self, centred: Tensor, visit: Tensor) -> Tensor:
        crop, padding = self.augmentation.crop, self.augmentation.padding
        mirrored = self._planned["mirrored"][visit]  # (B,)
        if crop == centred.shape[-1] and not padding:
            if not self.augmentation.mirror:
                return centred
            return torch.where(mirrored[:, None, None, None], centred.flip(-1), centred)
        padded = F.pad(centred, (padding, padding, padding, padding)) if padding else centred
        along = torch.arange(crop, device=centred.device)
        rows = self._planned["top"][visit, None] + along  # (B, h)
        columns = self._planned["left"][visit, None] + torch.where(mirrored[:, None], along.flip(0), along)  # (B, w)
        image = torch.arange(len(padded), device=centred.device)
        views = padded[image[:, None, None], :, rows[:, :, None], columns[:, None, :]]  # (B, h, w, 3)
        return views.permute(0, 3, 1, 2)


def centre_crop(images: Tensor, crop: int) -> Tensor:
    """(N, 3, H, W) -> (N, 3, crop, crop), Caffe's centre: the offset is rounded down."""
    top, left = (images.shape[-2] - crop) // 2, (images.shape[-1] - crop) // 2
    return images[..., top : top + crop, left : left + crop]


TEN = 10


def ten_crops(images: Tensor, crop: int) -> Tensor:
    """(N, 3, H, W) -> (10, N, 3, crop, crop): the four corners and the centre, and each of them mirrored."""
    bottom, right = images.shape[-2] - crop, images.shape[-1] - crop
    corners = [images[..., top : top + crop, left : left + crop] for top in (0, bottom) for left in (0, right)]
    views = torch.stack([*corners, centre_crop(images, crop)])
    return torch.cat([views, views.flip(-1)])


def pixel_mean(images: ImageSet) -> NDArray[np.float32]:
    """What is subtracted, (3, H, W): the mean training image, or where `nofe pack` noted it that of each channel."""
    if isinstance(images, StoredImages):
        return images.mean()
    if (known := images.mean_of_channels()) is not None:
        return known
    total = np.zeros(images.images.shape[1:], dtype=np.float64)
    for start in range(0, len(images.labels), 4096):
        total += images.images[start : start + 4096].sum(axis=0, dtype=np.int64)
    return (total / len(images.labels)).astype(np.float32)
