"""Folders of images, however they are laid out: what is training, what is test, which folder is a class.

PATH/train/CLASS/...  PATH/val/CLASS/...      ImageNet's (or Train/, training/; valid/, validation/, test/, testing/)
PATH/train/CLASS/...                          a part is held out for testing
PATH/CLASS/...                                the same
PATH/GROUP/CLASS/...                          with either: classes in folders of folders
PATH/wnids.txt, train/, val/                  Tiny ImageNet's
"""

import logging
import os
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NoReturn

from nofe.data.decode import FORMAT_LIST, SUFFIXES
from nofe.data.pictures import DEFAULT_TEST, NOTHING_HELD_OUT, OF_RUN, Files, Listing, Spelling, fraction_of
from nofe.data.unreadable import some_of
from nofe.errors import UserError
from nofe.files import expand_home
from nofe.suggestions import counted

logger = logging.getLogger("nofe")

TRAIN_FOLDERS = ("train", "training")
# In this order: the labels of `test` are often withheld.
TEST_FOLDERS = ("val", "valid", "validation", "test", "testing")
TINY_CLASSES, TINY_WORDS, TINY_ANNOTATIONS = "wnids.txt", "words.txt", "val_annotations.txt"
MAX_TEXT_BYTES = 64 << 20  # of the files that name classes


def list_folder(path: Path, *, test: str = DEFAULT_TEST, seed: int = 0, spelt: Spelling = OF_RUN) -> Listing:
    """Every image below a folder. Classes are numbered in the order of their folders' names."""
    if not path.is_dir():
        reason = "not a folder" if path.exists() else "no such folder"
        raise UserError(f"{path}: {reason}; name one that holds train/ and val/, or a folder for each class")
    if (path / TINY_CLASSES).is_file() and (path / "train").is_dir():
        if fraction_of(test, spelt) is None:
            raise UserError(
                f"{spelt.test}={test}: {path} is laid out as Tiny ImageNet, tested on its val/; leave it out"
            )
        return _tiny_imagenet(path).with_test(test, seed, logger.warning, spelt)
    train_folder, test_folder = _find_parts(path, test, spelt)
    classes = _find_classes(train_folder)
    if test_folder is not None:
        _refuse_strangers(train_folder, test_folder, classes)
        _tell_parts_not_read(path, train_folder, test_folder, test)
    _tell_images_beside_classes(train_folder)
    train = _list_images(train_folder, classes, path)
    _require_images_of_each(train, train_folder, classes)
    judged = None
    if test_folder is not None:
        judged = _list_images(test_folder, classes, path)
        if not len(judged):
            raise UserError(f"{test_folder}: holds no images ({FORMAT_LIST}) in class folders; add some")
        _tell_classes_not_judged(judged, test_folder, classes)
    listing = Listing(f"folder:{path}", str(path), tuple(classes), train, judged, _groups(classes))
    return listing.with_test(test, seed, logger.warning, spelt)


def _find_parts(path: Path, test: str, spelt: Spelling) -> tuple[Path, Path | None]:
    """The folder that holds the training classes, and that of the test classes if there is one."""
    named = None
    if fraction_of(test, spelt) is None:
        named = expand_home(test)
        if not named.is_dir():
            raise UserError(
                f"{spelt.test}={test}: neither a fraction such as {DEFAULT_TEST} nor a folder that is there; a path "
                "counts from the folder that nofe is called in"
            )
    folders = subfolders(path)
    train, given = part_of(folders, TRAIN_FOLDERS), part_of(folders, TEST_FOLDERS)
    if train is not None and named is not None and named.resolve().is_relative_to((path / train).resolve()):
        raise UserError(
            f"{spelt.test}={test}: lies in {path / train}, and would be trained on; name a folder of other images"
        )
    if train is None:
        if given is not None and test == NOTHING_HELD_OUT:
            return path / given, None  # to judge by, without anything to train on
        if given is not None:
            raise UserError(f"{path}: has no train/ folder; put the training images into {path / 'train' / 'CLASS'}")
        if named is not None and named.resolve().is_relative_to(path.resolve()):
            raise UserError(
                f"{spelt.test}={test}: lies among the classes of {path}, and would be one; move it out of that folder, "
                f"or the classes into {path / 'train'}"
            )
        return path, named
    twice = [name for name in folders if name != train and name.lower() in TRAIN_FOLDERS]
    if twice:
        raise UserError(f"{path}: {train}/ and {twice[0]}/ could both be the training images; rename or remove one")
    if named is not None or given is not None:
        return path / train, named or path / str(given)
    others = [name for name in folders if name != train]
    if others:
        raise UserError(
            f"{path}: has no val/ or test/ folder, and {others[0]}/ beside {train}/; put images to judge by into "
            f"{path / 'val' / 'CLASS'}, or name them with {spelt.option}=FOLDER; if {train} is a class, move "
            f"all classes into {path / 'train'}"
        )
    return path / train, None


def require_outside(path: Path, place: Path) -> None:
    """That a folder to be made at this place is not taken for a class of the images below `path`."""
    named, images, place = place, expand_home(path).resolve(), expand_home(place).resolve()
    if not images.is_dir() or not place.is_relative_to(images) or place == images:
        return
    folders, first = subfolders(images), place.relative_to(images).parts[0]
    train, judged = part_of(folders, TRAIN_FOLDERS), part_of(folders, TEST_FOLDERS)
    if train is None or judged is None or first in (train, judged):
        raise UserError(
            f"{named}: would lie among the images of folder:{path}, and be read as a class; name "
            "another folder with --out"
        )


def part_of(folders: Sequence[str], names: Sequence[str]) -> str | None:
    """The folder that has one of these names, of which the first goes before the others; Train/ is train/."""
    found = {folder.lower(): folder for folder in reversed(folders)}
    return next((found[name] for name in names if name in found), None)


def _find_classes(train_folder: Path) -> list[str]:
    """Class folders, relative to the folder of the part: "crow", or "birds/crow"."""
    level = subfolders(train_folder)
    if not level:
        raise UserError(f"{train_folder}: holds no class folders; sort the images into one folder a class")
    while True:
        below = {name: subfolders(train_folder / name) for name in level}
        _refuse_parts_further_down(train_folder, below)
        if not _are_groups(train_folder, below):
            break
        level = [f"{outer}/{inner}" for outer, inners in below.items() for inner in inners]
    if "/" in level[0]:
        logger.warning(
            "%s: %s classes lie in folders of folders (first: %s)", train_folder, f"{len(level):,}", level[0]
        )
    return level


def _refuse_parts_further_down(train_folder: Path, below: Mapping[str, Sequence[str]]) -> None:
    """train/ and val/ inside of what looks like a class: the wrong folder was named, or the parts lie inside out."""
    if len(below) == 1:
        name = _down_to_a_choice(train_folder, next(iter(below)))
        below = {name: subfolders(train_folder / name)}
    elif not any(part_of(inner, TRAIN_FOLDERS) and part_of(inner, TEST_FOLDERS) for inner in below.values()):
        return  # a class may well be called train
    split = [name for name, inner in below.items() if part_of(inner, TRAIN_FOLDERS)]
    if len(split) > 1:
        raise UserError(
            f"{train_folder}: {len(split):,} of its folders are divided into training and test images of their own: "
            f"{some_of(split)}; lay them out as {train_folder / 'train' / 'CLASS'} and "
            f"{train_folder / 'val' / 'CLASS'}, or name one of them if each is a data set"
        )
    for name in split:
        parts = [f"{inner}/" for inner in below[name] if inner.lower() in (*TRAIN_FOLDERS, *TEST_FOLDERS)]
        raise UserError(
            f"{train_folder}: {' and '.join(parts)} lie further down, in {name}/; name that folder, "
            f"folder:{train_folder / name}"
        )


def _down_to_a_choice(folder: Path, name: str) -> str:
    """Down through folders that hold one folder and no images, unless that is train/."""
    inner = subfolders(folder / name)
    if len(inner) != 1 or part_of(inner, TRAIN_FOLDERS) or _holds_image(folder / name):
        return name
    return _down_to_a_choice(folder, f"{name}/{inner[0]}")


def _are_groups(train_folder: Path, below: Mapping[str, Sequence[str]]) -> bool:
    """Whether these folders are groups, and the folders inside of them the classes.

    So where none holds an image itself, some have several folders, and no name comes twice: a class that was
    photographed on several days has day-1/, day-2/ like every other.
    """
    if not any(len(inner) > 1 for inner in below.values()) or not all(below.values()):
        return False
    if any(_holds_image(train_folder / name) for name in below):
        return False
    homes: dict[str, list[str]] = {}
    for outer, inners in below.items():
        for inner in inners:
            homes.setdefault(inner, []).append(outer)
    twice = next((inner for inner, outers in homes.items() if len(outers) > 1), None)
    if twice is not None:
        logger.warning(
            "%s: %s/ lies in %s/ and in %s/, so the outer folders are taken as the %s classes (%s); if the inner ones "
            "are the classes, put all images of a class into one folder",
            train_folder,
            twice,
            *homes[twice][:2],
            f"{len(below):,}",
            some_of(list(below)),
        )
    return twice is None


def _holds_image(folder: Path) -> bool:
    return next(_images_in(folder), None) is not None


def _images_in(folder: Path) -> Iterator[str]:
    """Names of those that lie in it, not further down, in no order."""
    with os.scandir(folder) as entries:
        yield from (entry.name for entry in entries if _is_image(Path(entry.name)) and entry.is_file())


def _is_image(path: Path) -> bool:
    return path.suffix.lower() in SUFFIXES and not path.name.startswith(".")


def _groups(classes: Sequence[str]) -> dict[str, tuple[int, ...]]:
    """Folders that hold class folders are a grouping that somebody made."""
    outer = [name.rpartition("/")[0] for name in classes]
    ids = {name: number for number, name in enumerate(dict.fromkeys(outer))}
    return {"folder": tuple(ids[name] for name in outer)} if len(ids) > 1 else {}


def _refuse_strangers(train_folder: Path, test_folder: Path, classes: Sequence[str]) -> None:
    depth = classes[0].count("/")
    found = subfolders(test_folder)
    for _ in range(depth):
        found = [f"{outer}/{inner}" for outer in found for inner in subfolders(test_folder / outer)]
    strangers = sorted(set(found) - set(classes))
    if strangers:
        raise UserError(
            f"{test_folder}: class {strangers[0]!r} is not in {train_folder.name}/ ("
            f"{counted(len(strangers), 'such class', 'such classes')} in all); add training images or remove it"
        )


def subfolders(folder: Path) -> list[str]:
    """Their names in order, without those that are hidden."""
    try:
        return sorted(entry.name for entry in folder.iterdir() if entry.is_dir() and not entry.name.startswith("."))
    except OSError as error:
        _refuse_unlisted(error)


def _refuse_unlisted(error: OSError) -> NoReturn:
    """What lies in a folder that cannot be listed is not to be missing without a word."""
    raise UserError(f"{error.filename}: cannot be read ({error.strerror or error}); check its permissions") from error


def _list_images(part: Path, classes: Sequence[str], root: Path) -> Files:
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


def _require_images_of_each(train: Files, folder: Path, classes: Sequence[str]) -> None:
    without_images = _without_images(train, classes)
    if len(without_images) == 1:
        empty = folder / without_images[0]
        raise UserError(f"{empty}: holds no images ({FORMAT_LIST}); add some or remove the folder")
    if without_images:
        raise UserError(
            f"{folder}: {len(without_images):,} class folders hold no images ({FORMAT_LIST}): "
            f"{some_of(without_images)}; add some or remove the folders"
        )


def _without_images(part: Files, classes: Sequence[str]) -> list[str]:
    return [classes[label] for label in sorted(set(range(len(classes))) - set(part.labels.tolist()))]


def _tell_classes_not_judged(judged: Files, folder: Path, classes: Sequence[str]) -> None:
    without_images = _without_images(judged, classes)
    if without_images:
        logger.warning(
            "%s: no images of %s of the %s classes, which no accuracy will be about: %s",
            folder,
            f"{len(without_images):,}",
            f"{len(classes):,}",
            some_of(without_images),
        )


def _tell_images_beside_classes(folder: Path) -> None:
    beside = sorted(_images_in(folder))
    if beside:
        count = counted(len(beside), "image")
        logger.warning("%s: left out %s beside the class folders (first: %s)", folder, count, beside[0])


def _tell_parts_not_read(path: Path, train_folder: Path, test_folder: Path, test: str) -> None:
    """Such as test/ beside val/. Whoever names the folder to test on knows what is left."""
    if train_folder == path or fraction_of(test) is None:
        return
    for name in subfolders(path):
        images = walk(path / name)[0] if name.lower() in TEST_FOLDERS and path / name != test_folder else []
        if not images:
            continue
        advice = (
            f"test a finished run on it with nofe evaluate RUN --dataset {shlex.quote(f'folder:{path / name}')}"
            if subfolders(path / name)
            else f"label it with nofe predict RUN {shlex.quote(str(path / name))}"  # its labels are withheld
        )
        logger.warning(
            "%s: tests on %s/ and does not read %s/ (%s); %s",
            path,
            test_folder.name,
            name,
            counted(len(images), "image"),
            advice,
        )


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
        return path.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not text"
        raise UserError(f"{path}: cannot be read ({reason}); check the file") from error
