"""Your own images: `PATH/train/CLASS/...` and `PATH/val/CLASS/...` (or `test`), a folder a class."""

import logging
import os
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from nofe.data.dataset import Dataset, ImageSet
from nofe.data.decode import FORMAT_LIST, SUFFIXES, UnreadableError, decode_image
from nofe.errors import UserError

logger = logging.getLogger("nofe")

TEST_FOLDERS = ("val", "test")  # in this order: where there are both, the labels of `test` are often withheld
MAX_IMAGE_SIZE = 4096
MAX_THREADS = 8  # each may hold one large image; Pillow decodes without the interpreter's lock
IMAGES_PER_TASK = 32


def load_folder(path: Path, image_size: int, *, skip_unreadable: bool = False) -> Dataset:
    """Every image, decoded and in memory. Classes are numbered in the order of their folders' names."""
    _check_image_size(image_size)
    train_folder, test_folder = _find_parts(path)
    class_names = _find_classes(train_folder, test_folder)
    train_files, train_labels = _list_images(train_folder, class_names)
    test_files, test_labels = _list_images(test_folder, class_names)
    without_images = sorted(set(range(len(class_names))) - set(train_labels))
    if without_images:
        empty = train_folder / class_names[without_images[0]]
        raise UserError(f"{empty}: holds no images ({FORMAT_LIST}); add some or remove the folder")
    if not test_files:
        raise UserError(f"{test_folder}: holds no images ({FORMAT_LIST}) in class folders; add some")

    files, labels = train_files + test_files, np.array(train_labels + test_labels, dtype=np.int64)
    _check_memory(path, len(files), image_size)
    images, reasons = _decode_all(files, image_size)
    split = len(train_files)
    train, test = ImageSet(images[:split], labels[:split]), ImageSet(images[split:], labels[split:])
    if reasons:
        _report_unreadable(path, files, reasons, skip_unreadable)
        readable = np.ones(len(files), dtype=np.bool_)
        readable[list(reasons)] = False
        train, test = train.subset(readable[:split]), test.subset(readable[split:])
    return Dataset(name=f"folder:{path}", class_names=class_names, train=train, test=test)


def find_images(paths: Iterable[Path]) -> list[Path]:
    """Files as they are given, and for each folder the images anywhere below it, by name."""
    found: list[Path] = []
    for path in paths:
        if path.is_dir():
            below, _ = _walk(path)
            if not below:
                raise UserError(f"{path}: holds no images ({FORMAT_LIST}); name another folder")
            found.extend(below)
        elif path.exists():
            found.append(path)
        else:
            raise UserError(f"{path}: no such file or folder; check the spelling")
    return found


def read_images(paths: Sequence[Path], image_size: int) -> NDArray[np.uint8]:
    """Photos to predict, decoded as those of a data set are: (N, 3, H, W)."""
    _check_image_size(image_size)
    images, reasons = _decode_all(paths, image_size)
    if reasons:
        first = min(reasons)
        others = f"; so are {len(reasons) - 1} more" if len(reasons) > 1 else ""
        raise UserError(
            f"{paths[first]}: cannot be read as an image ({reasons[first]}){others}; give {FORMAT_LIST} files"
        )
    return images


def _check_image_size(image_size: int) -> None:
    if not 1 <= image_size <= MAX_IMAGE_SIZE:
        raise UserError(f"image size {image_size}: out of range; ask for 1 to {MAX_IMAGE_SIZE:,} pixels a side")


def _find_parts(path: Path) -> tuple[Path, Path]:
    if not path.is_dir():
        reason = "not a folder" if path.exists() else "no such folder"
        raise UserError(f"{path}: {reason}; name one that holds train/ and val/")
    train = path / "train"
    if not train.is_dir():
        raise UserError(f"{path}: has no train/ folder; put the training images into {train / 'CLASS'}")
    for name in TEST_FOLDERS:
        if (path / name).is_dir():
            return train, path / name
    raise UserError(f"{path}: has no val/ or test/ folder; put images to judge by into {path / 'val' / 'CLASS'}")


def _find_classes(train_folder: Path, test_folder: Path) -> tuple[str, ...]:
    class_names = _subfolders(train_folder)
    if not class_names:
        raise UserError(f"{train_folder}: holds no class folders; sort the images into one folder a class")
    strangers = sorted(set(_subfolders(test_folder)) - set(class_names))
    if strangers:
        raise UserError(
            f"{test_folder}: class {strangers[0]!r} is not in {train_folder.name}/ ({len(strangers)} such classes "
            "in all); add training images or remove it"
        )
    return tuple(class_names)


def _subfolders(folder: Path) -> list[str]:
    try:
        return sorted(entry.name for entry in folder.iterdir() if entry.is_dir() and not entry.name.startswith("."))
    except OSError as error:
        raise UserError(f"{folder}: cannot be read ({error.strerror or error}); check its permissions") from error


def _list_images(part: Path, class_names: Sequence[str]) -> tuple[list[Path], list[int]]:
    """Image files of a part and the class of each, class by class."""
    files: list[Path] = []
    labels: list[int] = []
    passed_over: list[Path] = []
    for label, name in enumerate(class_names):
        images, others = _walk(part / name)
        files.extend(images)
        labels.extend([label] * len(images))
        passed_over.extend(others)
    if passed_over:
        logger.warning(
            "%s: %s files are not images by their name and are left out (first: %s)",
            part,
            f"{len(passed_over):,}",
            passed_over[0].relative_to(part),
        )
    return files, labels


def _walk(folder: Path) -> tuple[list[Path], list[Path]]:
    """Images below a folder, and what else lies there; both by name, without anything hidden."""
    images: list[Path] = []
    others: list[Path] = []
    for parent, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(name for name in names if not name.startswith(".")):
            path = Path(parent, name)
            (images if path.suffix.lower() in SUFFIXES else others).append(path)
    return images, others


def _check_memory(path: Path, count: int, image_size: int) -> None:
    """Refuse early what the machine would be killed for late."""
    needed, present = count * 3 * image_size**2, _physical_memory()
    if present is not None and needed > present:
        raise UserError(
            f"{path}: {count:,} images of {image_size} x {image_size} take {needed / 1e9:,.0f} GB of memory and "
            f"this machine has {present / 1e9:,.0f}; use fewer images or a smaller image size"
        )


def _physical_memory() -> int | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):  # not a Unix system
        return None


def _decode_all(files: Sequence[Path], image_size: int) -> tuple[NDArray[np.uint8], dict[int, str]]:
    """Images (N, 3, H, W) and, by index, why some could not be read; those stay zero."""
    images = np.zeros((len(files), 3, image_size, image_size), dtype=np.uint8)
    reasons: dict[int, str] = {}

    def decode_some(start: int) -> None:
        for i in range(start, min(start + IMAGES_PER_TASK, len(files))):
            try:
                images[i] = decode_image(files[i], image_size)
            except UnreadableError as error:
                reasons[i] = str(error)

    with ThreadPoolExecutor(min(MAX_THREADS, os.cpu_count() or 1)) as pool:
        for _ in pool.map(decode_some, range(0, len(files), IMAGES_PER_TASK)):
            pass  # drawing the results raises what a thread raised
    return images, reasons


def _report_unreadable(path: Path, files: Sequence[Path], reasons: dict[int, str], skip: bool) -> None:
    first = min(reasons)
    found = (
        f"{path}: {len(reasons):,} of {len(files):,} images cannot be read "
        f"(first: {files[first].relative_to(path)}, {reasons[first]})"
    )
    if not skip:
        raise UserError(f"{found}; pass --skip-unreadable to leave them out")
    logger.warning("%s; they are left out", found)
