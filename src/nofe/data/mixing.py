"""Random erasing, mixup and cutmix: drawn for each image on the processor, applied in batches on the device.

As timm's, but that an image is mixed with any other of the epoch, not of its batch: then neither the batch size nor
the number of ranks changes what an image is mixed with.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

ERASED_AREA = (0.02, 1 / 3)  # of the crop
ERASED_ASPECT = 0.3  # height over width, from this to its inverse
ATTEMPTS = 10  # to draw a box that fits


class MixedLabels(NamedTuple):
    """Two labels of each image, and how much of it is of its own."""

    own: Tensor  # (B,)
    other: Tensor  # (B,)
    share: Tensor  # (B,) of `own`


Labels = Tensor | MixedLabels  # (B,)


@dataclass(frozen=True)
class Mixing:
    """What every image is mixed with."""

    partner: NDArray[np.int64]  # (N,) another image, or by chance itself
    kept: NDArray[np.float32]  # (N,) share of each pixel that is its own, outside the box
    pasted: NDArray[np.int64]  # (N, 4) box in which all pixels are the partner's: top, left, bottom, right
    share: NDArray[np.float32]  # (N,) of the image that is its own


def draw_mixing(rng: np.random.Generator, images: int, mixup: float, cutmix: float, crop: int) -> Mixing:
    """With both, half of the images are mixed by each."""
    partner = rng.permutation(images)
    chance = 0.5 if mixup and cutmix else float(cutmix > 0)
    cut = rng.random(images) < chance
    blended = rng.beta(mixup, mixup, images) if mixup else np.ones(images)
    uncut = rng.beta(cutmix, cutmix, images) if cutmix else np.ones(images)
    centre = rng.integers(crop, size=(2, images))  # row, column
    reach = (crop * np.sqrt(1 - uncut)).astype(np.int64) // 2
    box = np.stack([*(centre - reach), *(centre + reach)], axis=1).clip(0, crop)  # (N, 4)
    pasted = np.where(cut[:, None], box, 0)
    kept = np.where(cut, 1.0, blended)
    share = np.where(cut, 1 - areas(pasted) / crop**2, blended)
    return Mixing(partner, kept.astype(np.float32), pasted, share.astype(np.float32))


def draw_erased(rng: np.random.Generator, images: int, probability: float, crop: int) -> NDArray[np.int64]:
    """A box for some of the images, an empty one for the others: (N, 4) top, left, bottom, right."""
    erased = rng.random(images) < probability
    area = rng.uniform(*ERASED_AREA, size=(ATTEMPTS, images)) * crop**2
    aspect = ERASED_ASPECT ** rng.uniform(-1, 1, size=(ATTEMPTS, images))
    sides = np.round(np.sqrt([area * aspect, area / aspect])).astype(np.int64)  # (2, attempts, N) height, width
    fits = (sides < crop).all(axis=0)
    first = fits.argmax(axis=0)
    extent = np.where(erased & fits.any(axis=0), sides[:, first, np.arange(images)], 0)  # (2, N)
    corner = (rng.random((2, images)) * (crop - extent + 1)).astype(np.int64)
    return np.concatenate([corner, corner + extent]).T


def areas(boxes: NDArray[np.int64]) -> NDArray[np.int64]:
    top, left, bottom, right = boxes.T
    areas: NDArray[np.int64] = (bottom - top) * (right - left)
    return areas


def inside(boxes: Tensor, crop: int) -> Tensor:
    """(B, 4) to (B, 1, h, w)."""
    top, left, bottom, right = boxes[:, :, None].unbind(1)  # (B, 1) each
    along = torch.arange(crop, device=boxes.device)
    rows, columns = (along >= top) & (along < bottom), (along >= left) & (along < right)  # (B, h), (B, w)
    return (rows[:, :, None] & columns[:, None, :])[:, None]


def erase(views: Tensor, boxes: Tensor) -> Tensor:
    """To zero, which is the mean."""
    return torch.where(inside(boxes, views.shape[-1]), 0.0, views)


def mix(views: Tensor, partners: Tensor, kept: Tensor, pasted: Tensor) -> Tensor:
    own = torch.where(inside(pasted, views.shape[-1]), 0.0, kept[:, None, None, None])  # (B, 1, h, w)
    return own * views + (1 - own) * partners
