"""Where each sample of a tar shard lies, found from the headers alone. Nothing is ever unpacked.

A sample in WebDataset's layout is a run of members that share a key: `0001.jpg` and `0001.cls`, or `0001.json`.
Only regular members count. The reader takes uncompressed tar in the ustar, pax and GNU formats, checks every header's
sum, and refuses what is damaged, cut short or larger than it should be, by the shard's name.
"""

import io
import json
import zlib
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, NamedTuple, Self
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from nofe.errors import UserError
from nofe.files import replace_atomically

BLOCK = 512
MAX_MEMBERS = 10_000_000  # of one shard
MAX_IMAGE_BYTES = 256 << 20
MAX_LABEL_BYTES = 64 << 10
MAX_HEADER_BYTES = 64 << 10  # of pax and GNU headers, which hold long names
MAX_KEY = 500  # characters, and of a label
IMAGE_SUFFIXES = frozenset({"jpg", "jpeg", "png", "bmp", "gif", "webp", "tif", "tiff"})
JSON_LABELS = ("cls", "label", "class", "class_id", "class_name")  # what people call it
INDEX_SUFFIX = ".index"
INDEX_FIELDS = ("keys", "labels", "offsets", "sizes")


@dataclass(frozen=True)
class Member:
    name: str
    offset: int  # of its content
    size: int


class Sample(NamedTuple):
    key: str
    label: str  # as written: a number or a class name
    offset: int  # of the image
    size: int


@dataclass(frozen=True, eq=False)
class ShardIndex:
    """The samples of one shard, in its order."""

    keys: NDArray[np.str_]  # (N,)
    labels: NDArray[np.str_]  # (N,)
    offsets: NDArray[np.int64]  # (N,)
    sizes: NDArray[np.int64]  # (N,)

    @classmethod
    def of(cls, samples: Sequence[Sample]) -> Self:
        keys, labels, offsets, sizes = zip(*samples, strict=True) if samples else ((), (), (), ())
        return cls(
            np.array(keys, dtype=np.str_),
            np.array(labels, dtype=np.str_),
            np.array(offsets, dtype=np.int64),
            np.array(sizes, dtype=np.int64),
        )

    def __len__(self) -> int:
        return len(self.keys)


class _DamagedError(ValueError):
    """Why a shard cannot be trusted."""


def shard_index(shard: Path) -> ShardIndex:
    """The index of a shard: the one beside it, if it was made from this very file; else made and put there."""
    stamp = stamp_of(shard)
    if (known := _read_index(index_file(shard), stamp)) is not None:
        return known
    index = scan_shard(shard)
    write_index(shard, index, stamp)
    return index


def index_file(shard: Path) -> Path:
    return shard.with_name(shard.name + INDEX_SUFFIX)


def stamp_of(shard: Path) -> NDArray[np.int64]:
    """Size and time of a shard, by which its index is known to be of this very file."""
    state = shard.stat()
    return np.array([state.st_size, state.st_mtime_ns], dtype=np.int64)


def write_index(shard: Path, index: ShardIndex, stamp: NDArray[np.int64]) -> None:
    """Beside the shard, or nowhere if its folder cannot be written to: then it is made again next time."""
    buffer = io.BytesIO()
    np.savez(buffer, stamp=stamp, **{name: getattr(index, name) for name in INDEX_FIELDS})
    with suppress(OSError), replace_atomically(index_file(shard)) as file:
        file.write(buffer.getvalue())


def _read_index(path: Path, stamp: NDArray[np.int64]) -> ShardIndex | None:
    try:
        with np.load(path, allow_pickle=False) as stored:
            if not np.array_equal(stored["stamp"], stamp):
                return None
            index = ShardIndex(*(stored[name] for name in INDEX_FIELDS))
    except (OSError, ValueError, LookupError, EOFError, MemoryError, BadZipFile, zlib.error):  # absent or damaged
        return None
    ends = index.offsets + index.sizes
    fits = len(ends) == 0 or (index.offsets.min() >= 0 and index.sizes.min() >= 0 and ends.max() <= stamp[0])
    same = len({len(getattr(index, name)) for name in INDEX_FIELDS}) == 1
    return index if fits and same else None


def scan_shard(shard: Path) -> ShardIndex:
    """Read every header, and the label of every sample."""
    try:
        with shard.open("rb") as file:
            samples = list(_samples(file, shard.stat().st_size))
    except OSError as error:
        raise UserError(f"{shard}: cannot be read ({error.strerror or error}); check the file") from error
    except _DamagedError as error:
        raise UserError(f"{shard}: not a shard that can be read ({error}); copy or pack it again") from error
    return ShardIndex.of(samples)


def _samples(file: IO[bytes], length: int) -> Iterator[Sample]:
    key: str | None = None
    image: Member | None = None
    label: str | None = None
    for member in members(file, length):
        folder, _, base = member.name.rpartition("/")
        stem, _, suffix = base.partition(".")
        own_key, suffix = f"{folder}/{stem}" if folder else stem, suffix.lower()
        if own_key != key:
            if image is not None or label is not None:
                yield _finished(key, image, label)
            key, image, label = own_key, None, None
        if len(own_key) > MAX_KEY:
            raise _DamagedError(f"a name of {len(own_key):,} characters")
        if suffix in IMAGE_SUFFIXES:
            if image is not None:
                raise _DamagedError(f"sample {own_key!r} has two images")
            if member.size > MAX_IMAGE_BYTES:
                raise _DamagedError(f"{member.name!r} has {member.size:,} bytes")
            image = member
        elif suffix in ("cls", "json"):
            label = _label(file, member, suffix) if suffix == "cls" or label is None else label
    if image is not None or label is not None:
        yield _finished(key, image, label)


def _finished(key: str | None, image: Member | None, label: str | None) -> Sample:
    if image is None or label is None:
        missing = "image" if image is None else "label (.cls, or .json with 'label')"
        raise _DamagedError(f"sample {key!r} has no {missing}")
    if len(label) > MAX_KEY:
        raise _DamagedError(f"sample {key!r} has a label of {len(label):,} characters")
    return Sample(str(key), label, image.offset, image.size)


def _label(file: IO[bytes], member: Member, suffix: str) -> str | None:
    if member.size > MAX_LABEL_BYTES:
        raise _DamagedError(f"{member.name!r} has {member.size:,} bytes")
    file.seek(member.offset)
    raw = file.read(member.size)
    try:
        text = raw.decode().strip()
        if suffix == "cls":
            return text or None
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise _DamagedError(f"{member.name!r} cannot be understood") from error
    if not isinstance(value, dict):
        return None
    found = next((value[name] for name in JSON_LABELS if isinstance(value.get(name), int | str)), None)
    return None if found is None else str(found).strip() or None


def members(file: IO[bytes], length: int) -> Iterator[Member]:
    """Regular members, in order. Links, folders and devices are passed over."""
    position, long_name, long_size = 0, None, None
    for _ in range(MAX_MEMBERS):
        file.seek(position)
        header = file.read(BLOCK)
        if len(header) < BLOCK:
            raise _DamagedError("it ends without an end mark: cut short?")
        if header == bytes(BLOCK):
            return
        kind, name, size = _parsed(header, position)
        content, position = position + BLOCK, position + BLOCK + -(-size // BLOCK) * BLOCK
        if content + size > length:
            raise _DamagedError(f"{name[:80]!r} goes on behind the end of the file: cut short?")
        if kind in b"xL":
            if size > MAX_HEADER_BYTES:
                raise _DamagedError(f"a header of {size:,} bytes")
            raw = file.read(size)
            if kind == b"L":
                long_name = _text(raw.rstrip(b"\0"))
            else:
                fields = _pax_fields(raw)
                long_name, long_size = fields.get("path", long_name), fields.get("size", long_size)
            continue
        if long_size is not None and long_size != str(size):
            raise _DamagedError("a member of 8 GiB or more")  # no image is; others would have the place wrong
        if kind in b"0\0":
            yield Member(long_name or name, content, size)
        long_name = long_size = None
    raise _DamagedError(f"more than {MAX_MEMBERS:,} members")


def _parsed(header: bytes, position: int) -> tuple[bytes, str, int]:
    """Kind, name and size of a member."""
    total = sum(header[:148]) + 8 * 32 + sum(header[156:])
    if header[:2] == b"\x1f\x8b":
        raise _DamagedError("it is compressed; unpack it with gunzip, as JPEG does not shrink")
    if _octal(header[148:156]) != total:
        raise _DamagedError(f"no header where one should be, at byte {position:,}")
    name = _text(header[:100].split(b"\0")[0])
    if header[257:263] == b"ustar\0" and (prefix := header[345:500].split(b"\0")[0]):
        name = f"{_text(prefix)}/{name}"
    size = _octal(header[124:136])
    if size is None:
        raise _DamagedError(f"{name[:80]!r} has no size that can be read")
    return header[156:157], name, size


def _octal(digits: bytes) -> int | None:
    digits = digits.strip(b" \0")
    return int(digits, 8) if digits and all(48 <= digit <= 55 for digit in digits) else None


def _pax_fields(raw: bytes) -> dict[str, str]:
    """Records of "LENGTH KEY=VALUE\\n"."""
    fields: dict[str, str] = {}
    while raw.strip(b"\0"):
        count, space, _ = raw.partition(b" ")
        length = int(count) if space and count.isdigit() and len(count) < 8 else 0
        key, equals, value = raw[len(count) + 1 : length - 1].partition(b"=")
        if not equals or not len(count) + 1 < length <= len(raw):
            raise _DamagedError("a header that cannot be understood")
        fields[_text(key)] = _text(value)
        raw = raw[length:]
    return fields


def _text(raw: bytes) -> str:
    return raw.decode(errors="replace")
