"""Images that stay on disk: a data set of any size, decoded image by image while a network trains or is judged."""

import hashlib
import logging
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from nofe.data import is_listed, list_images, load_dataset
from nofe.data.dataset import Dataset, ImageSet
from nofe.data.pictures import DEFAULT_TEST, Listing, Pictures
from nofe.data.workers import Pending, Workers
from nofe.errors import UserError

logger = logging.getLogger("nofe")

IMAGES_AT_ONCE = 256
MANY = 50_000  # images that take a while to read


class StoredImages(ImageSet):
    """An ImageSet whose pixels are read when they are asked for; `images` decodes all of them into memory."""

    def __init__(
        self,
        pictures: Pictures,
        image_size: int,
        workers: Workers,
        channel_mean: tuple[float, float, float] | None = None,
    ) -> None:
        own = {"labels": pictures.labels, "pictures": pictures, "image_size": image_size, "workers": workers}
        for name, value in (own | {"channel_mean": channel_mean}).items():
            object.__setattr__(self, name, value)  # frozen, as every ImageSet

    pictures: Pictures
    image_size: int
    workers: Workers
    channel_mean: tuple[float, float, float] | None

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

    def subset(self, chosen: NDArray[np.bool_]) -> "StoredImages":
        pictures = self.pictures.subset(np.flatnonzero(chosen))
        return StoredImages(pictures, self.image_size, self.workers, self.channel_mean)

    def describe_into(self, digest: "hashlib._Hash") -> None:
        digest.update(f"stored at {self.image_size}".encode())
        self.pictures.describe_into(digest)

    def mean(self) -> NDArray[np.float32]:
        """(3, H, W): of each channel where `nofe pack` noted it, else of each pixel, for which all are read once."""
        if self.channel_mean is not None:
            channels = np.array(self.channel_mean, dtype=np.float32)[:, None, None]
            return np.ascontiguousarray(np.broadcast_to(channels, self.shape[1:]))
        if len(self) >= MANY:
            logger.warning("%s images are read once for their mean; nofe pack would have noted it", f"{len(self):,}")
        total = np.zeros(self.shape[1:], dtype=np.float64)
        parts = np.split(np.arange(len(self)), range(IMAGES_AT_ONCE, len(self), IMAGES_AT_ONCE))
        buffers = np.empty((2, min(IMAGES_AT_ONCE, len(self)), *self.shape[1:]), dtype=np.uint8)
        pending = self.read_into(parts[0], buffers[0])
        for number, part in enumerate(parts):
            pending.wait()
            if number + 1 < len(parts):
                pending = self.read_into(parts[number + 1], buffers[(number + 1) % 2])
            total += buffers[number % 2, : len(part)].sum(axis=0, dtype=np.int64)
        return (total / len(self)).astype(np.float32)


def open_dataset(
    name: str,
    *,
    root: Path,
    image_size: int,
    seed: int = 0,
    skip_unreadable: bool = False,
    test: str = DEFAULT_TEST,
    stream: bool | None = None,
    memory: int | None = None,
    workers: int = 0,
) -> Dataset:
    """The data set of that name: in memory, or on disk where it would take more than `memory` bytes.

    `stream` decides it instead.
    """
    if not is_listed(name):
        if stream:
            raise UserError(f"data.stream=true: {name} is always in memory; leave it out, or train on packed shards")
        return load_dataset(name, root=root, image_size=image_size, seed=seed)
    listing = list_images(name, test=test, seed=seed)
    needed = sum(map(len, listing.parts.values())) * 3 * image_size**2
    if stream is None:
        stream = memory is not None and needed > memory
    if stream:
        if skip_unreadable:
            raise UserError(
                f"--skip-unreadable: images that are read while training cannot be left out; "
                f"nofe pack --skip-unreadable {name} DEST, then train on shards:DEST"
            )
        return stored_dataset(listing, image_size, workers)
    from nofe.data.folder import load_listing

    return load_listing(listing, image_size, skip_unreadable=skip_unreadable)


def stored_dataset(listing: Listing, image_size: int, workers: int = 0) -> Dataset:
    """What is listed, left where it is. Both parts are read by the same worker processes."""
    assert listing.test is not None  # Listing.with_test sees to it
    shared = Workers(workers, image_size)
    train = StoredImages(listing.train, image_size, shared, listing.channel_mean)
    test = StoredImages(listing.test, image_size, shared)
    return Dataset(listing.name, listing.class_names, train, test, listing.groups)
