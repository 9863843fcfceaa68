"""How large the photos of a folder are before they are made small, at a glance."""

import os
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from statistics import median_low

from PIL import Image

from nofe.data.decode import FORMATS, SUFFIXES
from nofe.data.image_files import subfolders
from nofe.data.layouts import TRAIN_FOLDERS, part_of
from nofe.files import expand_home

LOOKED_AT = 25


def usual_side(name: str) -> int | None:
    """Pixels of the shorter side of photos of a data set folder:PATH; None of any other, or without any."""
    kind, _, path = name.partition(":")
    if kind != "folder":
        return None
    sides = [side for side in map(_shorter_side, _photos(expand_home(path))) if side]
    return median_low(sides) if sides else None


def _photos(folder: Path) -> Iterator[Path]:
    """The first photos of some class folders, taken at even distances; of train/, if there is one."""
    if not folder.is_dir():
        return
    train = part_of(subfolders(folder), TRAIN_FOLDERS)
    folder = folder if train is None else folder / train
    folders = [folder / name for name in subfolders(folder)]
    some = folders[:: max(1, len(folders) // LOOKED_AT)]
    for each in some:
        yield from islice(_photos_below(each), max(1, LOOKED_AT // len(some)))


def _photos_below(folder: Path) -> Iterator[Path]:
    for parent, folders, names in os.walk(folder):
        folders.sort()
        yield from (Path(parent, name) for name in sorted(names) if Path(name).suffix.lower() in SUFFIXES)


def _shorter_side(path: Path) -> int | None:
    """By the head of the file, no pixel is decoded."""
    try:
        if not path.is_file():  # a pipe, say
            return None
        with Image.open(path, formats=FORMATS) as image:
            return min(image.size)
    except Exception:  # Pillow raises nearly anything at a damaged file; what is wrong with it is said elsewhere
        return None
