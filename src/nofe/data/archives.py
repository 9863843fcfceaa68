"""Fetch a data set's archive and take the files out of it that are wanted, and nothing else."""

import hashlib
import shutil
import tarfile
import tempfile
import urllib.request
import zlib
from collections.abc import Iterator, Mapping
from http.client import HTTPException
from pathlib import Path
from typing import IO

from nofe.errors import RunError, UserError
from nofe.files import replace_atomically

MAX_ARCHIVE_BYTES = 512 << 20  # the largest archive here has 163 MiB
MAX_MEMBER_BYTES = 256 << 20
MAX_MEMBERS = 1000
CHUNK_BYTES = 1 << 20
TIMEOUT_SECONDS = 30  # without a byte; the whole download may take as long as it needs


class UnreachableError(Exception):
    """The address did not answer. The caller knows what to advise instead."""


def download_members(url: str, md5: str, members: Mapping[str, Path]) -> None:
    """Download a .tar.gz, check it, and write each member named to its path; all in the paths' own folder."""
    folder = next(iter(members.values())).parent
    try:
        folder.mkdir(parents=True, exist_ok=True)
        # Beside its destination, not in /tmp, which may be another and a small file system.
        with tempfile.TemporaryFile(dir=folder, prefix=".download-") as archive:
            _download(url, md5, archive)
            archive.seek(0)
            _extract(url, archive, members)
    except OSError as error:
        raise RunError(
            f"{folder}: cannot be written to ({error.strerror or error}); make room or name another"
        ) from error


def _download(url: str, md5: str, target: IO[bytes]) -> None:
    digest = hashlib.md5(usedforsecurity=False)  # guards against damage; the official page gives no other
    received = 0
    for chunk in _chunks(url):
        received += len(chunk)
        if received > MAX_ARCHIVE_BYTES:
            raise UserError(f"{url}: sends more than {MAX_ARCHIVE_BYTES:,} bytes; check the address")
        digest.update(chunk)
        target.write(chunk)
    if digest.hexdigest() != md5:
        raise UserError(
            f"{url}: downloaded {received:,} bytes with MD5 {digest.hexdigest()} instead of {md5}; "
            "try again, or check that no login page or proxy answers in its place"
        )


def _chunks(url: str) -> Iterator[bytes]:
    """The bytes at an address. Network errors are told apart from those of the disk, both being OSError."""
    try:
        with urllib.request.urlopen(url, timeout=TIMEOUT_SECONDS) as answer:
            while chunk := answer.read(CHUNK_BYTES):
                yield chunk
    except (OSError, HTTPException, ValueError) as error:  # ValueError: not an address at all
        raise UnreachableError(str(getattr(error, "reason", error))) from error


def _extract(url: str, archive: IO[bytes], members: Mapping[str, Path]) -> None:
    wanted = dict(members)
    try:
        with tarfile.open(fileobj=archive, mode="r|gz") as tar:
            for count, member in enumerate(tar):
                if count >= MAX_MEMBERS or member.size > MAX_MEMBER_BYTES:
                    raise UserError(f"{url}: the archive unpacks to more than it should; check the address")
                # A link or a folder of the right name is passed over; where to write never comes from the archive.
                if member.isreg() and (path := wanted.pop(member.name, None)) is not None:
                    content = tar.extractfile(member)
                    assert content is not None  # of a regular member
                    with replace_atomically(path) as target:
                        shutil.copyfileobj(content, target, CHUNK_BYTES)
    except (tarfile.TarError, zlib.error, EOFError) as error:
        raise UserError(f"{url}: the archive cannot be unpacked ({error}); try again") from error
    if wanted:
        raise UserError(f"{url}: the archive lacks {', '.join(wanted)}; check the address")
