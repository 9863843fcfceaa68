"""The value every data source ends in: labelled images of C classes, in a training and a test part."""

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial

import numpy as np
from numpy.typing import NDArray

from nofe.data.unreadable import some_of
from nofe.errors import UserError

DIGEST_BYTES = 12  # of an image: two of ten million are alike by chance once in 10^15 times


@dataclass(frozen=True, eq=False)
class ImageSet:
    """Labelled images of one size. Frozen: the arrays are shared between stages and never written to."""

    images: NDArray[np.uint8]  # (N, 3, H, W), contiguous
    labels: NDArray[np.int64]  # (N,)
    channel_mean: tuple[float, float, float] | None = None  # subtracted where it is known, instead of each pixel's mean
    name_of: Callable[[int], str] | None = None  # what messages call each image, where it has a name

    def __post_init__(self) -> None:
        images, labels = self.images, self.labels
        if not (isinstance(images, np.ndarray) and isinstance(labels, np.ndarray)):
            found = " and ".join(type(given).__name__ for given in (images, labels))
            raise UserError(f"images and labels: expected arrays of numpy, found {found}; pass them through np.asarray")
        if images.dtype != np.uint8 or images.ndim != 4 or images.shape[1] != 3:
            raise UserError(
                f"images: expected uint8 of shape (N, 3, H, W), found {images.dtype} of shape {images.shape}; "
                "put the colours second and scale to 0..255"
            )
        if labels.dtype != np.int64 or labels.ndim != 1:
            raise UserError(
                f"labels: expected int64 of shape (N,), found {labels.dtype} of shape {labels.shape}; "
                "give one class number an image"
            )
        if len(images) != len(labels):
            raise UserError(f"labels: {len(labels):,} for {len(images):,} images; give one class number an image")
        if not images.flags.c_contiguous:
            raise UserError("images: not contiguous in memory; pass them through np.ascontiguousarray")

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def shape(self) -> tuple[int, ...]:
        """(N, 3, H, W)."""
        return self.images.shape

    def describe_into(self, digest: "hashlib._Hash") -> None:
        """All that tells these images from others."""
        digest.update(np.ascontiguousarray(self.labels).data)
        digest.update(self.images.data)

    def mean_of_channels(self) -> NDArray[np.float32] | None:
        """(3, H, W), where it is known."""
        if self.channel_mean is None:
            return None
        channels = np.array(self.channel_mean, dtype=np.float32)[:, None, None]
        return np.ascontiguousarray(np.broadcast_to(channels, self.shape[1:]))

    def name(self, index: int) -> str:
        return (self.name_of or _numbered)(index)

    def digests(self) -> Sequence[bytes] | None:
        """Of the pixels of each image; None where they would have to be read for it."""
        return [digest_of(image) for image in self.images]

    def subset(self, chosen: NDArray[np.bool_]) -> "ImageSet":
        """The images where `chosen` (N,) is true, in the same order and under the same names."""
        names = partial(_name_among, self.name_of or _numbered, np.flatnonzero(chosen))  # which keep no image
        return ImageSet(self.images[chosen], self.labels[chosen], self.channel_mean, names)


def _numbered(index: int) -> str:
    return f"image {index}"


def _name_among(name_of: Callable[[int], str], chosen: NDArray[np.int64], index: int) -> str:
    return name_of(int(chosen[index]))


def digest_of(image: NDArray[np.uint8]) -> bytes:
    return hashlib.sha256(np.ascontiguousarray(image).data).digest()[:DIGEST_BYTES]


@dataclass(frozen=True, eq=False)
class Dataset:
    """Images to learn from, images to judge by, and what the C class numbers stand for.

    `groups` are groupings of the classes made by people ("superclass", "family"): a group id per class.
    They are for comparison only; the method learns its specialties without them. `left_out` names, for each part,
    the images that cannot be read and are no longer in it. `class_ids` are what a dictionary calls the classes, such as
    WordNet's n02084071, where the names are other words.
    """

    name: str
    class_names: tuple[str, ...]
    train: ImageSet
    test: ImageSet
    groups: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    left_out: Mapping[str, Sequence[str]] = field(default_factory=dict)
    class_ids: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        _check_class_names(self.name, self.class_names)
        if self.test is None:
            raise UserError(
                f"{self.name}: has no test images; give some, or train on list(zip(images, labels)), of which a part "
                "is held out"
            )
        for part, image_set in (("training", self.train), ("test", self.test)):
            _check_labels(f"{self.name}: {part} part", image_set.labels, self.classes)
        _check_same_size(self.name, self.train.shape, self.test.shape)
        _require_images_of_each(self.name, self.train.labels, self.class_names)
        for group, ids in self.groups.items():
            if len(ids) != self.classes:
                raise UserError(
                    f"{self.name}: grouping {group!r} has {len(ids)} ids for {self.classes} classes; "
                    "give one id a class"
                )

        if self.class_ids and len(self.class_ids) != self.classes:
            raise UserError(
                f"{self.name}: {len(self.class_ids)} class ids for {self.classes} classes; give one a class, or none"
            )

    @property
    def classes(self) -> int:
        """C."""
        return len(self.class_names)

    @property
    def image_size(self) -> int:
        """Height of the images in pixels, which is their width too."""
        return int(self.train.shape[2])

    def hold_out(self, fraction: float, seed: int) -> "Dataset":
        """Split the training images, class by class, so that choices are made without touching test data."""
        if not 0 < fraction < 1:
            raise UserError(f"{self.name}: cannot hold out {fraction} of the training images; ask for 0 < part < 1")
        held = held_out(self.name, self.train.labels, self.class_names, fraction, seed)
        kept, put_aside = self.train.subset(~held), self.train.subset(held)
        return replace(self, name=f"{self.name}/hold-out", train=kept, test=put_aside)

    def repeated(self) -> dict[str, str] | None:
        """Test images that are among the training images, pixel for pixel: the name here of each, and there.

        None where the pixels are not at hand.
        """
        train, test = self.train.digests(), self.test.digests()
        if train is None or test is None:
            return None
        place = {digest: index for index, digest in reversed(list(enumerate(train)))}
        found = {i: place[digest] for i, digest in enumerate(test) if digest in place}
        return {self.test.name(i): self.train.name(j) for i, j in found.items()}

    def fingerprint(self) -> str:
        """16 hex digits that change with any pixel, label or class name: a run resumes on the same data only."""
        return self._fingerprint

    @cached_property
    def _fingerprint(self) -> str:
        digest = hashlib.sha256()
        # JSON keeps ("ab", "c") and ("a", "bc") apart; the shapes keep the arrays that follow apart.
        shapes = [self.train.shape, self.test.shape]
        digest.update(json.dumps([self.class_names, shapes]).encode())
        for image_set in (self.train, self.test):
            image_set.describe_into(digest)
        return digest.hexdigest()[:16]


def all_but(index: Iterable[int], count: int) -> NDArray[np.bool_]:
    """Which of `count` images (N,) are not among these."""
    chosen = np.ones(count, dtype=np.bool_)
    chosen[list(index)] = False
    return chosen


def held_out(
    dataset: str, labels: NDArray[np.int64], class_names: Sequence[str], fraction: float, seed: int
) -> NDArray[np.bool_]:
    """Which images (N,) to put aside: `fraction` of each class, at least one, never all."""
    _check_labels(f"{dataset}: training part", labels, len(class_names))
    _require_images_of_each(dataset, labels, class_names)
    counts = np.bincount(labels, minlength=len(class_names))
    if (counts == 1).any():
        alone = _named([class_names[label] for label in np.flatnonzero(counts == 1).tolist()])
        raise UserError(
            f"{dataset}: {alone} one training image, which cannot be both trained on and held out; "
            "add images or leave the class out"
        )
    rng = np.random.default_rng(seed)
    held = np.zeros(len(labels), dtype=np.bool_)
    for members in np.split(np.argsort(labels, kind="stable"), np.cumsum(counts)[:-1]):
        count = min(max(round(fraction * len(members)), 1), len(members) - 1)
        held[rng.choice(members, size=count, replace=False)] = True
    return held


def _named(classes: Sequence[str]) -> str:
    """The beginning of a sentence: class 'crow' has; 12 classes ('ant'; 'bee'; ...; and 2 more) have."""
    if len(classes) == 1:
        return f"class {classes[0]!r} has"
    return f"{len(classes):,} classes ({some_of([repr(name) for name in classes])}) have"


def _require_images_of_each(dataset: str, labels: NDArray[np.int64], class_names: Sequence[str]) -> None:
    without_images = np.flatnonzero(np.bincount(labels, minlength=len(class_names)) == 0)
    if len(without_images) > 0:
        empty = _named([class_names[label] for label in without_images.tolist()])
        raise UserError(f"{dataset}: {empty} no training images; add some or leave the class out")


def _check_class_names(dataset: str, class_names: tuple[str, ...]) -> None:
    if len(class_names) < 2:
        raise UserError(f"{dataset}: {len(class_names)} class; telling classes apart needs at least 2")
    if len(set(class_names)) < len(class_names):
        repeated = next(name for name in class_names if class_names.count(name) > 1)
        raise UserError(f"{dataset}: class name {repeated!r} appears twice; rename one of the two")


def _check_labels(part: str, labels: NDArray[np.int64], classes: int) -> None:
    if len(labels) == 0:
        raise UserError(f"{part} holds no images; add some")
    low, high = int(labels.min()), int(labels.max())
    if low < 0 or high >= classes:
        wrong = low if low < 0 else high
        raise UserError(f"{part} has label {wrong}, outside 0..{classes - 1}; name every class or correct the labels")


def _check_same_size(dataset: str, train: tuple[int, ...], test: tuple[int, ...]) -> None:
    train_size, test_size = train[2:], test[2:]
    if train_size != test_size:
        raise UserError(
            f"{dataset}: training images are {train_size[0]} x {train_size[1]} pixels and test images "
            f"{test_size[0]} x {test_size[1]}; resize one of them"
        )
    if train_size[0] != train_size[1] or train_size[0] == 0:
        raise UserError(f"{dataset}: images are {train_size[0]} x {train_size[1]} pixels; crop them square")
