"""How large the photos of a folder are before they are made small, at a glance."""

import os
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from statistics import median_low

from PIL import Image

from nofe.data.decode import FORMATS, SUFFIXES

LOOKED_AT = 9


def usual_side(name: str) -> int | None:
    """Pixels of the shorter side of the first photos of a data set folder:PATH; None of any other, or without any."""
    kind, _, path = name.partition(":")
    if kind != "folder":
        return None
    sides = [side for side in map(_shorter_side, islice(_photos(Path(path).expanduser()), LOOKED_AT)) if side]
    return median_low(sides) if sides else None


def _photos(folder: Path) -> Iterator[Path]:
    for parent, _, names in os.walk(folder):
        yield from (Path(parent, name) for name in sorted(names) if Path(name).suffix.lower() in SUFFIXES)


def _shorter_side(path: Path) -> int | None:
    """By the head of the file, no pixel is decoded."""
    try:
        with Image.open(path, formats=FORMATS) as image:
            return min(image.size)
    except Exception:  # Pillow raises nearly anything at a damaged file; what is wrong with it is said elsewhere
        return None
