"""What a trained network knows: accuracy, by specialty too, confusions inside and across specialties."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from nofe.data.batches import TEN, DeviceImages, ten_crops
from nofe.errors import UserError
from nofe.frozen import FrozenNetwork, frozen
from nofe.specialties import Specialties
from nofe.training.runtime import Runtime


@dataclass(frozen=True)
class Predictions:
    """The five most probable classes of every test image."""

    labels: NDArray[np.int64]  # (N,)
    classes: NDArray[np.int64]  # (N, 5), most probable first; fewer columns when C < 5
    probabilities: NDArray[np.float32]  # (N, 5)

    def top(self, count: int) -> float:
        """Share of images whose class is among the `count` most probable."""
        hits = (self.classes[:, :count] == self.labels[:, None]).any(axis=1)
        return float(hits.mean())


@dataclass(frozen=True)
class SpecialtyFigures:
    """How one expert does on the images of its classes."""

    specialty: int
    classes: int
    images: int
    accuracy: float
    confused_inside: float  # share of images taken for another class of the same specialty
    confused_across: float  # share of images taken for a class of another specialty


def visits(
    model: nn.Module, images: DeviceImages, crop: int, runtime: Runtime, index: Tensor | None = None, views: int = 1
) -> Iterator[tuple[Tensor, FrozenNetwork]]:
    """Indices of some images, and the network to run on them in evaluation mode; the model stays in its own mode.

    Whole batches are dealt out to ranks: no image is padded in, what is in a batch does not depend on how many ranks
    there are, and together they have each image once.
    """
    every = torch.arange(len(images), device=runtime.device) if index is None else index
    network = frozen(model, runtime, views * len(every), crop)
    with torch.inference_mode():
        for part in images.ahead(torch.split(every, network.batch)[runtime.ranks.rank :: runtime.ranks.count]):
            yield part, network


def logits_of(
    model: nn.Module, images: DeviceImages, crop: int, runtime: Runtime, index: Tensor | None = None
) -> Iterator[tuple[Tensor, Tensor]]:
    """Logits and labels of this rank's share of the images."""
    for part, network in visits(model, images, crop, runtime, index):
        yield network(images.centre_view(part, crop)), images.labels[part]


def accuracy(
    model: nn.Module, images: DeviceImages, crop: int, runtime: Runtime, target_of_class: Tensor | None = None
) -> float:
    """Share of images whose target, the class by default, has the largest logit."""
    recognised = torch.zeros((), dtype=torch.int64, device=runtime.device)
    for logits, labels in logits_of(model, images, crop, runtime):
        targets = labels if target_of_class is None else target_of_class[labels]
        recognised += (logits.argmax(1) == targets).sum()
    return int(runtime.ranks.sum(recognised)) / len(images)


def count_confusion(
    model: nn.Module, images: DeviceImages, crop: int, shape: tuple[int, int], runtime: Runtime, index: Tensor
) -> NDArray[np.int64]:
    """M of Sec. 3.1, as counts: images of class i that the model sends to output j. (C, K)."""
    classes, outputs = shape
    counts = torch.zeros(classes * outputs, dtype=torch.int64, device=runtime.device)
    for logits, labels in logits_of(model, images, crop, runtime, index):
        counts += torch.bincount(labels * outputs + logits.argmax(1), minlength=classes * outputs)
    return runtime.ranks.sum(counts).view(classes, outputs).cpu().numpy()


def mean_probabilities(
    model: nn.Module, images: DeviceImages, crop: int, classes: int, runtime: Runtime
) -> NDArray[np.float64]:
    """The mean prediction for the images of each class, a row a class; zeros for a class without images. (C, C)."""
    sums = torch.zeros(classes, classes, device=runtime.device)
    for logits, labels in logits_of(model, images, crop, runtime):
        sums.index_add_(0, labels, logits.softmax(1))
    counts = torch.bincount(images.labels, minlength=classes).clamp(min=1)
    return (runtime.ranks.sum(sums) / counts[:, None]).cpu().double().numpy()


def probabilities_of(
    model: nn.Module, images: DeviceImages, crop: int, runtime: Runtime, crops: int = 1
) -> Iterator[tuple[Tensor, Tensor]]:
    """Indices of images and their probabilities by class: of the centre, or the mean over ten crops (Sec. 4.2)."""
    if crops not in (1, TEN):
        raise UserError(f"--crops {crops}: there are 1, the centre, and {TEN}, corners and centre and their mirrors")
    for part, network in visits(model, images, crop, runtime, views=crops):
        if crops == 1:
            yield part, network(images.centre_view(part, crop)).softmax(1)
        else:
            views = ten_crops(images.centred(part), crop)  # (10, B, 3, h, w)
            yield part, torch.stack([network(view).softmax(1) for view in views]).mean(0)


def predict(model: nn.Module, images: DeviceImages, crop: int, runtime: Runtime, crops: int = 1) -> Predictions:
    classes = torch.zeros(len(images), 5, dtype=torch.int64, device=runtime.device)
    probabilities = torch.zeros(len(images), 5, device=runtime.device)
    known = 0  # columns that are filled: fewer than five when C < 5
    for part, shares in probabilities_of(model, images, crop, runtime, crops):
        known = min(5, shares.shape[1])
        top = shares.topk(known)
        classes[part, :known] = top.indices
        probabilities[part, :known] = top.values
    # The rows of other ranks are zero; rank 0 has the first part, and so knows the columns.
    filled = slice(runtime.ranks.first(lambda: known))
    whole = (runtime.ranks.sum(table)[:, filled].cpu().numpy() for table in (classes, probabilities))
    return Predictions(images.labels.cpu().numpy(), *whole)


def predictions_of(
    networks: Mapping[str, nn.Module],
    crop_of_stage: Mapping[str, int],
    images: DeviceImages,
    runtime: Runtime,
    crops: int = 1,
) -> dict[str, Predictions]:
    """Those of every network of a run, by stage: each reads images of the size that its own recipe has."""
    return {
        stage: predict(network.to(runtime.device), images, crop_of_stage[stage], runtime, crops)
        for stage, network in networks.items()
    }


def by_specialty(predictions: Predictions, specialties: Specialties) -> list[SpecialtyFigures]:
    first = predictions.classes[:, 0]
    truth = specialties.specialty_of_class[predictions.labels]  # (N,)
    same = truth == specialties.specialty_of_class[first]
    right = first == predictions.labels
    figures = []
    for specialty in range(specialties.count):
        own = truth == specialty
        images = max(int(own.sum()), 1)
        figures.append(
            SpecialtyFigures(
                specialty=specialty,
                classes=int(specialties.sizes[specialty]),
                images=int(own.sum()),
                accuracy=float((own & right).sum() / images),
                confused_inside=float((own & same & ~right).sum() / images),
                confused_across=float((own & ~same).sum() / images),
            )
        )
    return figures
