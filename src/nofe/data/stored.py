"""Images that stay on disk: a data set of any size, decoded image by image while a network trains or is judged."""

import hashlib
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import compress
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from nofe.data import is_listed, list_images, load_dataset
from nofe.data.dataset import Dataset, ImageSet
from nofe.data.pictures import DEFAULT_TEST, Listing, Pictures, with_reasons
from nofe.data.survey import Survey, survey
from nofe.data.unreadable import stop_or_leave_out
from nofe.data.workers import Pending, Workers
from nofe.errors import UserError
from nofe.signals import ending_at_once

logger = logging.getLogger("nofe")

MANY = 50_000  # images that take a while to read


class StoredImages(ImageSet):
    """An ImageSet whose pixels are read when they are asked for; `images` decodes all of them into memory."""

    def __init__(
        self,
        pictures: Pictures,
        image_size: int,
        workers: Workers,
        channel_mean: tuple[float, float, float] | None = None,
        known_mean: NDArray[np.float32] | None = None,
        known_digests: Sequence[bytes] | None = None,
    ) -> None:
        own = {"labels": pictures.labels, "pictures": pictures, "image_size": image_size, "workers": workers}
        known = {"channel_mean": channel_mean, "known_mean": known_mean, "known_digests": known_digests}
        for name, value in (own | known).items():
            object.__setattr__(self, name, value)  # frozen, as every ImageSet

    pictures: Pictures
    image_size: int
    workers: Workers
    channel_mean: tuple[float, float, float] | None
    known_mean: NDArray[np.float32] | None  # (3, H, W), from when they were looked through
    known_digests: Sequence[bytes] | None  # (N,), as well

    @property
    def images(self) -> NDArray[np.uint8]:
        out = np.empty(self.shape, dtype=np.uint8)
        self.read_into(np.arange(len(self)), out).wait()
        return out

    @property
    def shape(self) -> tuple[int, int, int, int]:
        return (len(self), 3, self.image_size, self.image_size)

    def read_into(self, index: NDArray[np.int64], out: NDArray[np.uint8]) -> Pending:
        """Begin to decode images into the rows of `out` (B, 3, H, W)."""
        return self.workers.decode_into(self.pictures, index, out)

    def name(self, index: int) -> str:
        return self.pictures.name(index)

    def digests(self) -> Sequence[bytes] | None:
        return self.known_digests

    def subset(self, chosen: NDArray[np.bool_]) -> "StoredImages":
        pictures = self.pictures.subset(np.flatnonzero(chosen))
        digests = self.known_digests and list(compress(self.known_digests, chosen))
        return StoredImages(pictures, self.image_size, self.workers, self.channel_mean, known_digests=digests)

    def describe_into(self, digest: "hashlib._Hash") -> None:
        digest.update(f"stored at {self.image_size}".encode())
        self.pictures.describe_into(digest)

    def mean(self) -> NDArray[np.float32]:
        """(3, H, W): of each channel where `nofe pack` noted it, else of each pixel, for which all are read once."""
        if (known := self.mean_of_channels()) is not None:
            return known
        if self.known_mean is not None:
            return self.known_mean
        _say_if_many(len(self))
        found = _survey(self)
        names = with_reasons(self.pictures, found.unreadable)
        stop_or_leave_out("training images", names, len(self), skip=False, option="begin a run with --skip-unreadable")
        return _mean(found.total, len(self))


def open_dataset(
    name: str,
    *,
    root: Path,
    image_size: int,
    seed: int = 0,
    skip_unreadable: bool = False,
    test: str = DEFAULT_TEST,
    stream: bool | None = None,
    memory: float | None = None,
    workers: int = 0,
) -> Dataset:
    """The data set of that name: in memory, or on disk where it would take more than `memory` bytes.

    `stream` decides it instead. Unreadable images on disk are found later, by `look_through`.
    """
    with ending_at_once(f"{name}: while its images were read"):
        if not is_listed(name):
            if stream:
                raise UserError(
                    f"data.stream=true: {name} is always in memory; leave it out, or train on packed shards"
                )
            return load_dataset(name, root=root, image_size=image_size, seed=seed)
        listing = list_images(name, test=test, seed=seed)
        needed = sum(map(len, listing.parts.values())) * 3 * image_size**2
        if stream is None:
            stream = memory is not None and needed > memory
        if stream:
            return stored_dataset(listing, image_size, workers)
        from nofe.data.folder import load_listing

        return load_listing(listing, image_size, skip_unreadable=skip_unreadable)


def stored_dataset(listing: Listing, image_size: int, workers: int = 0) -> Dataset:
    """What is listed, left where it is. Both parts are read by the same worker processes."""
    assert listing.test is not None  # Listing.with_test sees to it
    shared = Workers(workers, image_size)
    train = StoredImages(listing.train, image_size, shared, listing.channel_mean)
    test = StoredImages(listing.test, image_size, shared)
    return Dataset(listing.name, listing.class_names, train, test, listing.groups, class_ids=listing.class_ids)


@dataclass(frozen=True, eq=False)
class Findings:
    """What was found by looking at every image of a data set on disk."""

    unreadable: Mapping[str, Sequence[str]]  # names, for each part that has some
    mean: NDArray[np.float32] | None = None  # of the readable training images, (3, H, W)
    digests: Mapping[str, Sequence[bytes]] = field(default_factory=dict)  # of all images, for each part


def look_through(dataset: Dataset, *, skip_unreadable: bool) -> Findings:
    """Find the images on disk that cannot be read before a network trains on the others.

    Those that nofe pack wrote are not looked at: it has decoded each of them.
    """
    train, test = dataset.train, dataset.test
    if not (isinstance(train, StoredImages) and isinstance(test, StoredImages)) or train.channel_mean is not None:
        return Findings({})
    count = len(train) + len(test)
    _say_if_many(count)
    names: dict[str, list[str]] = {}
    told: list[str] = []
    with ending_at_once(f"{dataset.name}: while its images were looked through"):
        found = {"train": _survey(train), "test": _survey(test)}
    for part, stored in (("train", train), ("test", test)):
        if unreadable := found[part].unreadable:
            names[part] = [stored.pictures.name(i) for i in unreadable]
            told += with_reasons(stored.pictures, unreadable)
    where = dataset.name.partition(":")[2] or dataset.name
    stop_or_leave_out(where, told, count, skip=skip_unreadable, option="pass --skip-unreadable")
    mean = _mean(found["train"].total, len(train) - len(found["train"].unreadable))
    return Findings(names, mean, {part: each.digests for part, each in found.items()})


def leave_out(dataset: Dataset, findings: Findings) -> Dataset:
    """The data set on disk without what cannot be read; by name, so that a resumed run has the same images."""
    if not (isinstance(dataset.train, StoredImages) and isinstance(dataset.test, StoredImages)):
        return dataset
    train = _readable(dataset.train, findings, "train", findings.mean)
    test = _readable(dataset.test, findings, "test")
    return replace(dataset, train=train, test=test, left_out=findings.unreadable)


def _readable(
    images: StoredImages, findings: Findings, part: str, mean: NDArray[np.float32] | None = None
) -> StoredImages:
    pictures, digests = images.pictures, findings.digests.get(part)
    if unwanted := set(findings.unreadable.get(part, ())):  # without any the fingerprint is as it was
        keep = [pictures.name(i) not in unwanted for i in range(len(images))]
        pictures, digests = pictures.subset(np.flatnonzero(keep)), digests and list(compress(digests, keep))
    return StoredImages(pictures, images.image_size, images.workers, images.channel_mean, mean, digests)


def _survey(images: StoredImages) -> Survey:
    return survey(images.pictures, images.image_size, images.workers)


def _mean(total: NDArray[np.int64], count: int) -> NDArray[np.float32]:
    return (total.astype(np.float64) / max(count, 1)).astype(np.float32)


def _say_if_many(count: int) -> None:
    if count >= MANY:
        logger.warning(
            "%s images are read once for their mean and to find unreadable ones; nofe pack would have done both",
            f"{count:,}",
        )
