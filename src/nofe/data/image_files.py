"""Image files below a folder, and the short lists of names that lie beside them."""

import logging
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NoReturn

from nofe.data.decode import FORMAT_LIST, SUFFIXES
from nofe.data.pictures import Files
from nofe.data.unreadable import some_of
from nofe.errors import UserError
from nofe.suggestions import counted

logger = logging.getLogger("nofe")

MAX_TEXT_BYTES = 64 << 20  # of the files that name classes


def subfolders(folder: Path) -> list[str]:
    """Their names in order, without those that are hidden."""
    try:
        return sorted(entry.name for entry in folder.iterdir() if entry.is_dir() and not entry.name.startswith("."))
    except OSError as error:
        _refuse_unlisted(error)


def walk(folder: Path) -> tuple[list[Path], list[Path]]:
    """Images below a folder, and what else lies there; both by name, without anything hidden.

    Links are followed, and no folder is read twice: one may lead back to where it lies.
    """
    images: list[Path] = []
    others: list[Path] = []
    seen: set[tuple[int, int]] = set()
    for parent, folders, names in os.walk(folder, onerror=_refuse_unlisted, followlinks=True):
        state = os.stat(parent)
        if (state.st_dev, state.st_ino) in seen:
            folders.clear()
            continue
        seen.add((state.st_dev, state.st_ino))
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(name for name in names if not name.startswith(".")):
            path = Path(parent, name)
            (images if path.suffix.lower() in SUFFIXES else others).append(path)
    return images, others


def _refuse_unlisted(error: OSError) -> NoReturn:
    """Images must not go missing without a word because their folder cannot be listed."""
    raise UserError(f"{error.filename}: cannot be read ({error.strerror or error}); check its permissions") from error


def list_images(part: Path, classes: Sequence[str], root: Path) -> Files:
    """Image files of a part and the class of each, class by class."""
    files: list[Path] = []
    labels: list[int] = []
    passed_over: list[Path] = []
    for label, name in enumerate(classes):
        if not (part / name).is_dir():  # to judge by there need not be images of every class
            continue
        images, others = walk(part / name)
        files.extend(images)
        labels.extend([label] * len(images))
        passed_over.extend(others)
    tell_passed_over(part, passed_over)
    return Files(files, labels, root)


def tell_passed_over(folder: Path, others: Sequence[Path]) -> None:
    """What lies among images and is not named like one."""
    if others:
        count, first = counted(len(others), "file"), others[0].relative_to(folder)
        logger.warning("%s: left out %s without the suffix of an image (first: %s)", folder, count, first)


def require_images_of_each(train: Files, folder: Path, classes: Sequence[str]) -> None:
    without_images = classes_without_images(train, classes)
    if len(without_images) == 1:
        empty = folder / without_images[0]
        raise UserError(f"{empty}: holds no images ({FORMAT_LIST}); add some or remove the folder")
    if without_images:
        raise UserError(
            f"{folder}: {len(without_images):,} class folders hold no images ({FORMAT_LIST}): "
            f"{some_of(without_images)}; add some or remove the folders"
        )


def classes_without_images(part: Files, classes: Sequence[str]) -> list[str]:
    return [classes[label] for label in sorted(set(range(len(classes))) - set(part.labels.tolist()))]


def images_in(folder: Path) -> Iterator[str]:
    """Names of those that lie in it, not further down, in no order."""
    with os.scandir(folder) as entries:
        yield from (entry.name for entry in entries if _is_image(Path(entry.name)) and entry.is_file())


def holds_image(folder: Path) -> bool:
    return next(images_in(folder), None) is not None


def _is_image(path: Path) -> bool:
    return path.suffix.lower() in SUFFIXES and not path.name.startswith(".")


def read_lines(path: Path) -> list[str]:
    try:
        if path.stat().st_size > MAX_TEXT_BYTES:
            raise UserError(f"{path}: larger than {MAX_TEXT_BYTES:,} bytes; it should be a short list")
        return path.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not text"
        raise UserError(f"{path}: cannot be read ({reason}); check the file") from error
