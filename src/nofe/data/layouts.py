"""Folders of images, however they are laid out: what is training, what is test, which folder is a class.

PATH/train/CLASS/...  PATH/val/CLASS/...      ImageNet's (or valid/, validation/, test/)
PATH/train/CLASS/...                          a part is held out for testing
PATH/CLASS/...                                the same
PATH/GROUP/CLASS/...                          with either: classes in folders of folders
PATH/wnids.txt, train/, val/                  Tiny ImageNet's
"""

import logging
import os
from collections.abc import Sequence
from itertools import chain
from pathlib import Path

from nofe.data.decode import FORMAT_LIST, SUFFIXES
from nofe.data.pictures import DEFAULT_TEST, Files, Listing, fraction_of
from nofe.errors import UserError

logger = logging.getLogger("nofe")

TEST_FOLDERS = ("val", "valid", "validation", "test")  # in this order: the labels of `test` are often withheld
TINY_CLASSES, TINY_WORDS, TINY_ANNOTATIONS = "wnids.txt", "words.txt", "val_annotations.txt"
MAX_TEXT_BYTES = 64 << 20  # of the files that name classes


def list_folder(path: Path, *, test: str = DEFAULT_TEST, seed: int = 0) -> Listing:
    """Every image below a folder. Classes are numbered in the order of their folders' names."""
    if not path.is_dir():
        reason = "not a folder" if path.exists() else "no such folder"
        raise UserError(f"{path}: {reason}; name one that holds train/ and val/, or a folder for each class")
    if (path / TINY_CLASSES).is_file() and (path / "train").is_dir():
        return _tiny_imagenet(path)
    train_folder, test_folder = _find_parts(path, test)
    classes = _find_classes(train_folder)
    if test_folder is not None:
        _refuse_strangers(train_folder, test_folder, classes)
    train = _list_images(train_folder, classes, path)
    _require_images_of_each(train, train_folder, classes)
    judged = None
    if test_folder is not None:
        judged = _list_images(test_folder, classes, path)
        if not len(judged):
            raise UserError(f"{test_folder}: holds no images ({FORMAT_LIST}) in class folders; add some")
    listing = Listing(f"folder:{path}", str(path), tuple(classes), train, judged, _groups(classes))
    return listing.with_test(test, seed, logger.warning)


def _find_parts(path: Path, test: str) -> tuple[Path, Path | None]:
    """The folder that holds the training classes, and that of the test classes if there is one."""
    named = None
    if fraction_of(test) is None:
        named = Path(test).expanduser()
        if not named.is_dir():
            raise UserError(f"data.test={test}: neither a fraction nor a folder; use one such as {DEFAULT_TEST}")
    folders = _subfolders(path)
    given = next((name for name in TEST_FOLDERS if name in folders), None)
    if "train" not in folders:
        if given is not None:
            raise UserError(f"{path}: has no train/ folder; put the training images into {path / 'train' / 'CLASS'}")
        return path, named
    if named is not None or given is not None:
        return path / "train", named or path / str(given)
    others = [name for name in folders if name != "train"]
    if others:
        raise UserError(
            f"{path}: has no val/ or test/ folder, and {others[0]}/ beside train/; put images to judge by into "
            f"{path / 'val' / 'CLASS'}, or name them with --set data.test=FOLDER"
        )
    return path / "train", None


def _find_classes(train_folder: Path) -> list[str]:
    """Class folders, relative to the folder of the part: "crow", or "birds/crow"."""
    level = _subfolders(train_folder)
    if not level:
        raise UserError(f"{train_folder}: holds no class folders; sort the images into one folder a class")
    while (below := _nested_classes(train_folder, level)) is not None:
        level = below
    if "/" in level[0]:
        logger.warning(
            "%s: %s classes lie in folders of folders (first: %s)", train_folder, f"{len(level):,}", level[0]
        )
    return level


def _nested_classes(train_folder: Path, level: Sequence[str]) -> list[str] | None:
    """The folders one level down, if it is they that are the classes.

    So where no folder of this level holds an image itself, some have several folders, and no name comes twice: a
    class that was photographed on several days has day-1/, day-2/ like every other.
    """
    below = [_subfolders(train_folder / name) for name in level]
    names = list(chain.from_iterable(below))
    several = any(len(inner) > 1 for inner in below)
    if not several or not all(below) or len(set(names)) < len(names):
        return None
    if any(_holds_image(train_folder / name) for name in level):
        return None
    return [f"{outer}/{inner}" for outer, inners in zip(level, below, strict=True) for inner in inners]


def _holds_image(folder: Path) -> bool:
    with os.scandir(folder) as entries:
        return any(_is_image(Path(entry.name)) and entry.is_file() for entry in entries)


def _is_image(path: Path) -> bool:
    return path.suffix.lower() in SUFFIXES and not path.name.startswith(".")


def _groups(classes: Sequence[str]) -> dict[str, tuple[int, ...]]:
    """Folders that hold class folders are a grouping that somebody made."""
    outer = [name.rpartition("/")[0] for name in classes]
    ids = {name: number for number, name in enumerate(dict.fromkeys(outer))}
    return {"folder": tuple(ids[name] for name in outer)} if len(ids) > 1 else {}


def _refuse_strangers(train_folder: Path, test_folder: Path, classes: Sequence[str]) -> None:
    depth = classes[0].count("/")
    found = _subfolders(test_folder)
    for _ in range(depth):
        found = [f"{outer}/{inner}" for outer in found for inner in _subfolders(test_folder / outer)]
    strangers = sorted(set(found) - set(classes))
    if strangers:
        raise UserError(
            f"{test_folder}: class {strangers[0]!r} is not in {train_folder.name}/ ({len(strangers)} such classes "
            "in all); add training images or remove it"
        )


def _subfolders(folder: Path) -> list[str]:
    try:
        return sorted(entry.name for entry in folder.iterdir() if entry.is_dir() and not entry.name.startswith("."))
    except OSError as error:
        raise UserError(f"{folder}: cannot be read ({error.strerror or error}); check its permissions") from error


def _list_images(part: Path, classes: Sequence[str], root: Path) -> Files:
    """Image files of a part and the class of each, class by class."""
    files: list[Path] = []
    labels: list[int] = []
    passed_over: list[Path] = []
    for label, name in enumerate(classes):
        images, others = walk(part / name)
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
    return Files(files, labels, root)


def _require_images_of_each(train: Files, folder: Path, classes: Sequence[str]) -> None:
    without_images = sorted(set(range(len(classes))) - set(train.labels.tolist()))
    if without_images:
        empty = folder / classes[without_images[0]]
        raise UserError(f"{empty}: holds no images ({FORMAT_LIST}); add some or remove the folder")


def walk(folder: Path) -> tuple[list[Path], list[Path]]:
    """Images below a folder, and what else lies there; both by name, without anything hidden."""
    images: list[Path] = []
    others: list[Path] = []
    for parent, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(name for name in names if not name.startswith(".")):
            path = Path(parent, name)
            (images if path.suffix.lower() in SUFFIXES else others).append(path)
    return images, others


def _tiny_imagenet(path: Path) -> Listing:
    """train/WNID/images/*.JPEG; val/images/*.JPEG, labelled by val_annotations.txt; names by words.txt.

    Of its test images the labels are withheld; val/ is what is judged by. Boxes are not looked at.
    """
    ids = sorted({line.strip() for line in read_lines(path / TINY_CLASSES)} - {""})
    if not ids:
        raise UserError(f"{path / TINY_CLASSES}: names no classes; put the file of the archive back")
    missing = [name for name in ids if not (path / "train" / name).is_dir()]
    if missing:
        raise UserError(f"{path / 'train' / missing[0]}: no such folder, and {TINY_CLASSES} names it; unpack it again")
    files: list[Path] = []
    labels: list[int] = []
    for label, name in enumerate(ids):
        images, _ = walk(path / "train" / name)
        files.extend(images)
        labels.extend([label] * len(images))
    train = Files(files, labels, path)
    _require_images_of_each(train, path / "train", ids)
    annotations = path / "val" / TINY_ANNOTATIONS
    if annotations.is_file():
        test = _annotated(annotations, ids, path)
    else:
        test = _list_images(path / "val", ids, path)  # some people sort it into class folders
        if not len(test):
            raise UserError(f"{annotations}: no such file, and no class folders beside it; unpack the archive again")
    names = _readable(ids, path / TINY_WORDS)
    return Listing(f"folder:{path}", str(path), names, train, test, class_ids=tuple(ids))


def _annotated(annotations: Path, ids: Sequence[str], root: Path) -> Files:
    label_of = {name: label for label, name in enumerate(ids)}
    files: list[Path] = []
    labels: list[int] = []
    for number, line in enumerate(read_lines(annotations), start=1):
        if not line.strip():
            continue
        file, _, rest = line.partition("\t")
        name = rest.split("\t")[0].strip()
        if name not in label_of or Path(file).name != file:
            raise UserError(f"{annotations}: line {number} names no class of {TINY_CLASSES}; unpack the archive again")
        files.append(annotations.parent / "images" / file)
        labels.append(label_of[name])
    if not files:
        raise UserError(f"{annotations}: names no images; unpack the archive again")
    return Files(files, labels, root)


def _readable(ids: Sequence[str], words: Path) -> tuple[str, ...]:
    """The first word for each id; where two classes share it, with the id."""
    if not words.is_file():
        return tuple(ids)
    word_of = {
        name: text.split(",")[0].strip() for name, _, text in (line.partition("\t") for line in read_lines(words))
    }
    names = [word_of.get(name) or name for name in ids]
    return tuple(f"{name} ({id_})" if names.count(name) > 1 else name for name, id_ in zip(names, ids, strict=True))


def read_lines(path: Path) -> list[str]:
    try:
        if path.stat().st_size > MAX_TEXT_BYTES:
            raise UserError(f"{path}: larger than {MAX_TEXT_BYTES:,} bytes; it should be a short list")
        return path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not text"
        raise UserError(f"{path}: cannot be read ({reason}); check the file") from error
