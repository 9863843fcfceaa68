"""CIFAR-10 and CIFAR-100 in their official Python layout, downloaded where absent."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from nofe.data.archives import UnreachableError, download_members
from nofe.data.dataset import Dataset, ImageSet
from nofe.data.plain_pickle import read_plain_pickle
from nofe.errors import UserError

IMAGE_SHAPE = (3, 32, 32)
PIXELS = 3 * 32 * 32  # a row of the files: all red, then all green, then all blue


@dataclass(frozen=True)
class CifarLayout:
    """Where one of the two lies: its folder under the root, its files, the keys inside them, its origin."""

    folder: str
    train_files: tuple[str, ...]
    test_file: str
    names_file: str
    names_key: str
    labels_key: str
    superclass_key: str | None
    url: str
    md5: str

    @property
    def files(self) -> tuple[str, ...]:
        return (*self.train_files, self.test_file, self.names_file)


LAYOUTS = {
    "cifar10": CifarLayout(
        folder="cifar-10-batches-py",
        train_files=tuple(f"data_batch_{i}" for i in range(1, 6)),
        test_file="test_batch",
        names_file="batches.meta",
        names_key="label_names",
        labels_key="labels",
        superclass_key=None,
        url="https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz",
        md5="c58f30108f718f92721af3b95e74349a",
    ),
    "cifar100": CifarLayout(
        folder="cifar-100-python",
        train_files=("train",),
        test_file="test",
        names_file="meta",
        names_key="fine_label_names",
        labels_key="fine_labels",
        superclass_key="coarse_labels",
        url="https://www.cs.toronto.edu/~kriz/cifar-100-python.tar.gz",
        md5="eb9058c3a382ffc7106e4002c42a8d85",
    ),
}


# CIFAR-100's 20 superclasses, by two: ten groups that a person would make. Superclasses are numbered by name.
SUPERCLASS_PAIRS = (
    (0, 1),  # aquatic mammals, fish
    (2, 4),  # flowers, fruit and vegetables
    (3, 5),  # food containers, household electrical devices
    (6, 9),  # household furniture, large man-made outdoor things
    (7, 13),  # insects, other invertebrates
    (8, 11),  # large carnivores, large omnivores and herbivores
    (10, 17),  # large natural outdoor scenes, trees
    (12, 16),  # medium-sized mammals, small mammals
    (14, 15),  # people, reptiles: what is left
    (18, 19),  # vehicles 1, vehicles 2
)
PAIR_OF_SUPERCLASS = {superclass: index for index, pair in enumerate(SUPERCLASS_PAIRS) for superclass in pair}


def load_cifar(
    name: str, root: Path, *, download: bool = True, url: str | None = None, md5: str | None = None
) -> Dataset:
    """`name` is cifar10 or cifar100. `url` and `md5` stand in for the official archive, as for a mirror."""
    layout = LAYOUTS[name]
    folder = root / layout.folder
    absent = [file for file in layout.files if not (folder / file).is_file()]
    if absent:
        _fetch(layout, folder, absent, url or layout.url, md5 or layout.md5, download)
    parts = [_read_part(folder / file, layout) for file in (*layout.train_files, layout.test_file)]
    train, test = _join(parts[:-1]), parts[-1]
    class_names = _read_names(folder / layout.names_file, layout.names_key)
    groups: dict[str, tuple[int, ...]] = {}
    if layout.superclass_key is not None:
        superclass_of_class = _superclass_of_class(folder, [train, test], len(class_names))
        groups["superclass"] = superclass_of_class
        if set(superclass_of_class) == set(PAIR_OF_SUPERCLASS):  # not of a small copy for tests
            groups["superclass-pair"] = tuple(PAIR_OF_SUPERCLASS[superclass] for superclass in superclass_of_class)
    return Dataset(
        name=name,
        class_names=class_names,
        train=ImageSet(train.images, train.labels),
        test=ImageSet(test.images, test.labels),
        groups=groups,
    )


def _fetch(layout: CifarLayout, folder: Path, absent: list[str], url: str, md5: str, download: bool) -> None:
    by_hand = (
        f"download {layout.url} on a machine that can reach it and unpack it into {folder.parent}, "
        f"so that {folder / absent[0]} exists"
    )
    if not download:
        raise UserError(f"{folder}: {', '.join(absent)} absent and downloading is off; {by_hand}")
    try:
        # Only what is absent: a file that is there may be in use by another run.
        download_members(url, md5, {f"{layout.folder}/{file}": folder / file for file in absent})
    except UnreachableError as error:
        raise UserError(f"{folder}: {', '.join(absent)} absent and {url} not reached ({error}); {by_hand}") from error


@dataclass(frozen=True)
class _Part:
    """What one file, or several joined, holds."""

    images: NDArray[np.uint8]  # (N, 3, 32, 32)
    labels: NDArray[np.int64]  # (N,)
    superclasses: NDArray[np.int64]  # (N,), or (0,) where the data set has none


def _read_part(path: Path, layout: CifarLayout) -> _Part:
    content = read_plain_pickle(path)
    rows = content.get("data")
    if not isinstance(rows, np.ndarray) or rows.ndim != 2 or rows.shape[1] != PIXELS:
        raise UserError(f"{path}: its 'data' is not rows of {PIXELS:,} bytes; put the official file in its place")
    # A copy, so that the images are writable (torch warns of others) and the file's bytes are freed.
    images = np.array(rows, order="C").reshape(-1, *IMAGE_SHAPE)
    labels = _read_numbers(path, content, layout.labels_key, len(images))
    superclasses = np.empty(0, dtype=np.int64)
    if layout.superclass_key is not None:
        superclasses = _read_numbers(path, content, layout.superclass_key, len(images))
    return _Part(images, labels, superclasses)


def _read_numbers(path: Path, content: dict[str, object], key: str, count: int) -> NDArray[np.int64]:
    numbers = content.get(key)
    if (
        not isinstance(numbers, list)
        or len(numbers) != count
        or not all(type(number) is int and 0 <= number < 1000 for number in numbers)
    ):
        raise UserError(
            f"{path}: its {key!r} is not a list of {count:,} class numbers; put the official file in its place"
        )
    return np.array(numbers, dtype=np.int64)


def _read_names(path: Path, key: str) -> tuple[str, ...]:
    names = read_plain_pickle(path).get(key)
    if not isinstance(names, list) or not all(isinstance(name, str | bytes) for name in names):
        raise UserError(f"{path}: its {key!r} is not a list of names; put the official file in its place")
    return tuple(name.decode("latin-1") if isinstance(name, bytes) else name for name in names)


def _join(parts: list[_Part]) -> _Part:
    if len(parts) == 1:
        return parts[0]  # np.concatenate would copy CIFAR-100's 150 MB once more
    return _Part(
        np.concatenate([part.images for part in parts]),
        np.concatenate([part.labels for part in parts]),
        np.concatenate([part.superclasses for part in parts]),
    )


def _superclass_of_class(folder: Path, parts: list[_Part], classes: int) -> tuple[int, ...]:
    """The map no file states: every image tells its class and its superclass, and all must agree."""
    labels = np.concatenate([part.labels for part in parts])
    superclasses = np.concatenate([part.superclasses for part in parts])
    superclass_of_class = np.zeros(max(classes, int(labels.max(initial=-1)) + 1), dtype=np.int64)
    superclass_of_class[labels] = superclasses
    strays = np.flatnonzero(superclass_of_class[labels] != superclasses)
    if len(strays) > 0:
        raise UserError(
            f"{folder}: images of class {labels[strays[0]]} are in several superclasses; "
            "put the official files in their place"
        )
    return tuple(int(superclass) for superclass in superclass_of_class[:classes])
