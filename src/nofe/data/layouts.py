"""Folders of images, however they are laid out: what is training, what is test, which folder is a class.

PATH/train/CLASS/...  PATH/val/CLASS/...      ImageNet's (or Train/, training/; valid/, validation/, test/, testing/)
PATH/train/CLASS/...                          a part is held out for testing
PATH/CLASS/...                                the same
PATH/GROUP/CLASS/...                          with either: classes in folders of folders
PATH/wnids.txt, train/, val/                  Tiny ImageNet's
"""

import logging
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

from nofe.data.decode import FORMAT_LIST
from nofe.data.image_files import (
    classes_without_images,
    holds_image,
    images_in,
    list_images,
    require_images_of_each,
    subfolders,
    walk,
)
from nofe.data.pictures import DEFAULT_TEST, NOTHING_HELD_OUT, OF_RUN, Files, Listing, Spelling, fraction_of
from nofe.data.tiny_imagenet import is_tiny_imagenet, tiny_imagenet
from nofe.data.unreadable import some_of
from nofe.errors import UserError
from nofe.files import expand_home
from nofe.suggestions import counted

logger = logging.getLogger("nofe")

TRAIN_FOLDERS = ("train", "training")
# In this order: the labels of `test` are often withheld.
TEST_FOLDERS = ("val", "valid", "validation", "test", "testing")


def list_folder(path: Path, *, test: str = DEFAULT_TEST, seed: int = 0, spelt: Spelling = OF_RUN) -> Listing:
    """Every image below a folder. Classes are numbered in the order of their folders' names."""
    if not path.is_dir():
        reason = "not a folder" if path.exists() else "no such folder"
        raise UserError(f"{path}: {reason}; name one that holds train/ and val/, or a folder for each class")
    if is_tiny_imagenet(path):
        if fraction_of(test, spelt) is None:
            raise UserError(
                f"{spelt.test}={test}: {path} is laid out as Tiny ImageNet, tested on its val/; leave it out"
            )
        return tiny_imagenet(path).with_test(test, seed, logger.warning, spelt)
    train_folder, test_folder = _find_parts(path, test, spelt)
    classes = _find_classes(train_folder)
    if test_folder is not None:
        _refuse_strangers(train_folder, test_folder, classes)
        _tell_parts_not_read(path, train_folder, test_folder, test)
    _tell_images_beside_classes(train_folder)
    train = list_images(train_folder, classes, path)
    require_images_of_each(train, train_folder, classes)
    judged = None
    if test_folder is not None:
        judged = list_images(test_folder, classes, path)
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


def require_outside(path: Path, place: Path, advice: str = "name another folder with --out") -> None:
    """That a folder to be made at this place is not taken for a class of the images below `path`."""
    named, images, place = place, expand_home(path).resolve(), expand_home(place).resolve()
    if not images.is_dir() or not place.is_relative_to(images) or place == images:
        return
    folders, first = subfolders(images), place.relative_to(images).parts[0]
    train, judged = part_of(folders, TRAIN_FOLDERS), part_of(folders, TEST_FOLDERS)
    if train is None or judged is None or first in (train, judged):
        raise UserError(f"{named}: would lie among the images of folder:{path}, and be read as a class; {advice}")


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
    if len(inner) != 1 or part_of(inner, TRAIN_FOLDERS) or holds_image(folder / name):
        return name
    return _down_to_a_choice(folder, f"{name}/{inner[0]}")


def _are_groups(train_folder: Path, below: Mapping[str, Sequence[str]]) -> bool:
    """Whether these folders are groups, and the folders inside of them the classes.

    They are if none holds an image itself, some hold several folders, and no name comes twice: a class that was
    photographed on several days has day-1/, day-2/ like every other.
    """
    if not any(len(inner) > 1 for inner in below.values()) or not all(below.values()):
        return False
    if any(holds_image(train_folder / name) for name in below):
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


def _tell_classes_not_judged(judged: Files, folder: Path, classes: Sequence[str]) -> None:
    without_images = classes_without_images(judged, classes)
    if without_images:
        logger.warning(
            "%s: no images of %s of the %s classes, which no accuracy will be about: %s",
            folder,
            f"{len(without_images):,}",
            f"{len(classes):,}",
            some_of(without_images),
        )


def _tell_images_beside_classes(folder: Path) -> None:
    beside = sorted(images_in(folder))
    if beside:
        count = counted(len(beside), "image")
        logger.warning("%s: left out %s beside the class folders (first: %s)", folder, count, beside[0])


def _tell_parts_not_read(path: Path, train_folder: Path, test_folder: Path, test: str) -> None:
    """A warning of test/ beside val/, say; none to a user who has named the folder to test on."""
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
