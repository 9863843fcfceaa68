"""Files that are replaced whole or not at all."""

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO


@contextmanager
def replace_atomically(path: Path) -> Iterator[IO[bytes]]:
    """A file to write to that takes `path`'s place when all is on disk, or leaves no trace.

    Whenever the process is killed, either the old content or the new one is there.
    """
    # In the same folder: a rename across file systems would be a copy, and can be cut in two.
    temporary = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        with temporary.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)  # the rename itself must reach the disk
    finally:
        os.close(folder)


def slug(text: str) -> str:
    """A name for a file: `NVIDIA H200` is nvidia-h200."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")
