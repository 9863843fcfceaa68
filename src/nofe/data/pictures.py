"""Encoded images before they are decoded: where each lies, what class it has, what an error calls it.

Every source of photos ends in a `Listing`. What is decoded into memory, packed into shards or streamed while a network
trains is read from there, one image at a time.
"""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from nofe.data.dataset import held_out
from nofe.errors import UserError

DEFAULT_TEST = "0.2"  # of the images of each class, where the data has no test part of its own
NOTHING_HELD_OUT = ""  # instead of a part: a listing then has a test part only where the data has one


@dataclass(frozen=True)
class Stored:
    """The bytes of one image: a file, or `size` bytes of one."""

    path: str
    offset: int = 0
    size: int = -1  # to the end

    def read(self) -> bytes:
        with open(self.path, "rb") as file:
            file.seek(self.offset)
            content = file.read(self.size)
        if self.size >= 0 and len(content) < self.size:
            raise OSError(f"ends {self.size - len(content):,} bytes early")
        return content


Source = Stored | bytes


class Pictures(ABC):
    """Labelled images, encoded."""

    labels: NDArray[np.int64]  # (N,)

    def __len__(self) -> int:
        return len(self.labels)

    @abstractmethod
    def source(self, index: int) -> Source:
        """Where its bytes are, or they themselves; either can be sent to another process."""

    @abstractmethod
    def name(self, index: int) -> str:
        """What a message calls it."""

    @abstractmethod
    def describe_into(self, digest: "hashlib._Hash") -> None:
        """All that tells these images from others and is known without reading them."""

    def subset(self, index: NDArray[np.int64]) -> "Pictures":
        return Chosen(self, index)


def with_reasons(pictures: Pictures, unreadable: Mapping[int, str]) -> list[str]:
    """Those that cannot be read, by index, as messages list them: "crow/7.jpg (truncated)"."""
    return [f"{pictures.name(i)} ({reason})" for i, reason in unreadable.items()]


class Files(Pictures):
    """A file an image."""

    def __init__(self, paths: Sequence[Path], labels: Sequence[int], root: Path) -> None:
        self.paths, self.root = paths, root
        self.labels = np.array(labels, dtype=np.int64)

    def source(self, index: int) -> Source:
        return Stored(str(self.paths[index]))

    def name(self, index: int) -> str:
        path = self.paths[index]
        return str(path.relative_to(self.root)) if path.is_relative_to(self.root) else str(path)

    def describe_into(self, digest: "hashlib._Hash") -> None:
        digest.update(self.labels.tobytes())
        for index, path in enumerate(self.paths):
            digest.update(f"{self.name(index)}\0{_size_of(path)}\n".encode(errors="surrogateescape"))


def _size_of(path: Path) -> int:
    """-1 where there is no file, as at the end of a link: reading it will say so."""
    try:
        return path.stat().st_size
    except OSError:
        return -1


class Ranges(Pictures):
    """Parts of large files."""

    def __init__(
        self,
        files: Sequence[Path],
        file: NDArray[np.int64],
        offsets: NDArray[np.int64],
        sizes: NDArray[np.int64],
        keys: NDArray[np.str_],
        labels: NDArray[np.int64],
        checksums: Sequence[str],
    ) -> None:
        self.files, self.file, self.offsets, self.sizes, self.keys = files, file, offsets, sizes, keys
        self.labels = labels
        self.checksums = checksums  # of each file, or what stands in for it

    def source(self, index: int) -> Source:
        return Stored(str(self.files[self.file[index]]), int(self.offsets[index]), int(self.sizes[index]))

    def name(self, index: int) -> str:
        return f"{self.files[self.file[index]].name}: {self.keys[index]}"

    def describe_into(self, digest: "hashlib._Hash") -> None:
        for array in (self.labels, self.file, self.offsets, self.sizes):
            digest.update(array.tobytes())
        digest.update("\n".join(self.checksums).encode())


class Made(Pictures):
    """Images that only this process can get at."""

    def __init__(self, labels: NDArray[np.int64], read: Callable[[int], Source], what: str, identity: bytes) -> None:
        self.labels = labels
        self._read, self._what, self._identity = read, what, identity

    def source(self, index: int) -> Source:
        return self._read(index)

    def name(self, index: int) -> str:
        return f"{self._what} {index}"

    def describe_into(self, digest: "hashlib._Hash") -> None:
        digest.update(self.labels.tobytes())
        digest.update(self._identity)


class Chosen(Pictures):
    """Some of others."""

    def __init__(self, pictures: Pictures, index: NDArray[np.int64]) -> None:
        self._pictures, self._index = pictures, index
        self.labels = pictures.labels[index]

    def source(self, index: int) -> Source:
        return self._pictures.source(int(self._index[index]))

    def name(self, index: int) -> str:
        return self._pictures.name(int(self._index[index]))

    def describe_into(self, digest: "hashlib._Hash") -> None:
        self._pictures.describe_into(digest)
        digest.update(self._index.tobytes())


class Spelling(NamedTuple):
    """How the user writes the choice of test images, for messages."""

    test: str
    seed: str
    option: str


OF_RUN = Spelling("data.test", "data.seed", "--set data.test")
OF_PACK = Spelling("--test", "--seed", "--test")


@dataclass(frozen=True, eq=False)
class Listing:
    """What a data source holds. `test` is None where it has no images to judge by."""

    name: str  # as on the command line
    where: str  # what messages begin with
    class_names: tuple[str, ...]
    train: Pictures
    test: Pictures | None
    groups: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    channel_mean: tuple[float, float, float] | None = None  # of the training images, where it is known
    class_ids: tuple[str, ...] = ()  # as in Dataset

    @property
    def parts(self) -> dict[str, Pictures]:
        return {"train": self.train} | ({"test": self.test} if self.test is not None else {})

    def with_test(self, test: str, seed: int, say: Callable[[str], None], spelt: Spelling = OF_RUN) -> "Listing":
        """Hold a part of the training images out, class by class, where there is no test part."""
        fraction = fraction_of(test, spelt)
        if self.test is not None and test not in (DEFAULT_TEST, NOTHING_HELD_OUT) and fraction is not None:
            say(f"{self.where}: has test images of its own, so {spelt.test}={test} holds nothing out")
        if self.test is not None or test == NOTHING_HELD_OUT:
            return self
        if fraction is None:
            raise UserError(
                f"{spelt.test}={test}: for {self.where} it must be a fraction; use one such as {DEFAULT_TEST}"
            )
        held = held_out(self.where, self.train.labels, self.class_names, fraction, seed)
        say(
            f"{self.where}: has no test images; {int(held.sum()):,} of {len(held):,}, drawn from each class by "
            f"{spelt.seed}={seed}, are held out for testing ({spelt.option}={fraction:g})"
        )
        kept, put_aside = (self.train.subset(np.flatnonzero(chosen)) for chosen in (~held, held))
        return replace(self, train=kept, test=put_aside)


def fraction_of(test: str, spelt: Spelling = OF_RUN) -> float | None:
    """Of data.test, which is a fraction or names a folder."""
    if test == NOTHING_HELD_OUT:
        return 0.0
    try:
        fraction = float(test)
    except ValueError:
        return None
    if not 0 < fraction < 1:
        raise UserError(f"{spelt.test}={test}: out of range; use a fraction above 0 and below 1, or name a folder")
    return fraction
