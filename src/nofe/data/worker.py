"""What a worker process does: decode images into memory that it shares, or shrink and encode them.

It is started by `workers.py`, imports no torch, and knows nothing of data sets: each task brings the places of its
images along. It takes no notice of SIGTERM and SIGINT, which a process group gets as one, and ends when the process
that started it is gone.
"""

import io
import mmap
import signal
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection

import numpy as np
from numpy.typing import NDArray

from nofe.data.decode import UnreadableError, decode_image, decode_picture
from nofe.data.pictures import Source

PROGRESS_BYTES = 8  # before the pixels: how many images of the task are done


@dataclass(frozen=True)
class Decode:
    """Each image's middle square, into the shared memory."""

    image_size: int


@dataclass(frozen=True)
class Encode:
    """Each image as a JPEG of its own."""

    shorter: int
    square: bool
    quality: int


@dataclass(frozen=True)
class Encoded:
    jpeg: bytes
    sums: tuple[int, int, int]  # of each channel, over the middle square
    pixels: int  # in the middle square


Work = Decode | Encode
Outcome = Encoded | str | None  # a text says why the image cannot be read


def serve(pipe: int, area: int, length: int) -> None:
    """Answer tasks until there are no more."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    connection = Connection(pipe)
    shared = mmap.mmap(area, length)
    with suppress(EOFError, OSError):  # the other side is gone: so is the work
        while True:
            work, sources = connection.recv()
            connection.send(run(work, sources, shared))


def run(work: Work, sources: Sequence[Source], shared: mmap.mmap) -> list[Outcome]:
    pixels = None
    if isinstance(work, Decode):
        pixels = shared_pixels(shared, len(sources), work.image_size)
    outcomes: list[Outcome] = []
    for done, source in enumerate(sources):
        shared[:PROGRESS_BYTES] = done.to_bytes(PROGRESS_BYTES, "little")
        try:
            if isinstance(work, Encode):
                outcomes.append(encode(source, work))
            else:
                assert pixels is not None
                decode_image(source, work.image_size, pixels[done])
                outcomes.append(None)
        except UnreadableError as error:
            outcomes.append(str(error))
    return outcomes


def shared_pixels(shared: mmap.mmap, count: int, image_size: int) -> NDArray[np.uint8]:
    """(N, 3, H, W) in the shared memory."""
    size = count * 3 * image_size**2
    flat = np.frombuffer(shared, dtype=np.uint8, count=size, offset=PROGRESS_BYTES)
    return flat.reshape(count, 3, image_size, image_size)


def encode(source: Source, work: Encode) -> Encoded:
    picture = decode_picture(source, work.shorter, square=work.square)
    buffer = io.BytesIO()
    picture.save(buffer, "JPEG", quality=work.quality)
    side = min(picture.size)
    left, top = (picture.width - side) // 2, (picture.height - side) // 2
    middle = np.asarray(picture)[top : top + side, left : left + side]  # (h, w, 3)
    red, green, blue = middle.sum(axis=(0, 1), dtype=np.int64).tolist()
    return Encoded(buffer.getvalue(), (red, green, blue), side * side)
