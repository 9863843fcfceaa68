"""Files that are replaced whole or not at all."""

import hashlib
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from fnmatch import fnmatch
from pathlib import Path
from typing import IO

from nofe.errors import UserError


def expand_home(path: str | os.PathLike[str]) -> Path:
    """The path with ~ or ~user expanded; unchanged where there is no such user, so that it is reported as missing."""
    try:
        return Path(path).expanduser()
    except RuntimeError:
        return Path(path)


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


def require_place_for(file: Path) -> None:
    """That a file can be written, before what is to be in it is worked out, which may take a while."""
    if file.is_dir():
        raise UserError(f"{file}: is a folder; name another file")
    folder = next(above for above in file.absolute().parents if above.exists())
    if not folder.is_dir():
        raise UserError(f"{file}: {folder} is a file, not a folder; name another place")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise UserError(f"{file}: {folder} may not be written to; name another place")


def remove_leftovers(folder: Path, names: Sequence[str]) -> None:
    """What `replace_atomically` could not clear away, its process being killed, of files with names like these."""
    for file in folder.glob(".*.partial"):
        parts = re.fullmatch(r"\.(.+)\.(\d{1,9})\.partial", file.name)
        if parts is None or not any(fnmatch(parts[1], name) for name in names):
            continue
        process = int(parts[2])
        if process == os.getpid() or not _is_running(process):
            file.unlink(missing_ok=True)


def _is_running(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # somebody else's
        return True
    return True


def slug(text: str) -> str:
    """A name for a file: `NVIDIA H200` is nvidia-h200."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")


def sha256_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
