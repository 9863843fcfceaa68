"""`nofe pack`: any source of images once into shards of small JPEGs, by many processes and in one order.

A shard takes its name when it is complete, and the manifest lists it after that; a second run goes on with the first
that is missing. What is in a shard depends on the images and the settings alone: workers encode, one process writes.
"""

import errno
import hashlib
import io
import json
import tarfile
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any, NoReturn

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from nofe.data import is_listed, list_images, load_dataset
from nofe.data.dataset import Dataset, ImageSet
from nofe.data.image_files import subfolders
from nofe.data.layouts import require_outside
from nofe.data.pictures import OF_PACK, Listing, Made, Pictures
from nofe.data.shards import CLASSES, MANIFEST, read_manifest
from nofe.data.tar_index import Sample, ShardIndex, stamp_of, write_index
from nofe.data.unreadable import some_of
from nofe.data.worker import Encode, Encoded, Outcome
from nofe.data.workers import IMAGES_A_TASK, Workers, in_order
from nofe.errors import Interrupted, RunError, UserError
from nofe.files import expand_home, remove_leftovers, replace_atomically, sha256_of
from nofe.runs import DISK_FULL, NOT_HERE
from nofe.signals import on_signals_to_end
from nofe.streams import stream
from nofe.suggestions import counted

FORMAT = 1


@dataclass(frozen=True)
class PackSettings:
    """What the shards depend on, beside the images."""

    size: int = 256  # pixels of the shorter side; smaller images stay as they are
    square: bool = False  # the middle square alone
    quality: int = 90  # of the JPEGs
    shard_megabytes: float = 256.0

    def __post_init__(self) -> None:
        if not 8 <= self.size <= 4096:
            raise UserError(f"--size {self.size}: out of range; use 8 to 4,096 pixels")
        if not 1 <= self.quality <= 100:
            raise UserError(f"--quality {self.quality}: out of range; use 1 to 100")
        if self.shard_megabytes <= 0:
            raise UserError(f"--shard-megabytes {self.shard_megabytes:g}: out of range; use a number above 0")


@dataclass(frozen=True)
class Shard:
    """One finished shard, as the manifest lists it."""

    file: str
    part: str
    first: int  # place in the order of the part
    end: int
    images: int
    bytes: int
    sha256: str
    channel_sums: tuple[int, int, int]  # over the middle squares
    pixels: int
    unreadable: tuple[str, ...] = ()


def pack(
    listing: Listing,
    folder: Path,
    settings: PackSettings,
    workers: Workers,
    *,
    skip_unreadable: bool = False,
    advance: Callable[[int], None] = lambda images: None,
    take_over: Callable[[int], None] = lambda images: None,
) -> dict[str, Any]:
    """Write shards, manifest and class names to `folder`; returns the manifest.

    `advance` is told of images that are packed, `take_over` of those that an earlier call had packed.
    At SIGTERM and SIGINT it raises Interrupted, and leaves what another call goes on with.
    """
    try:
        if folder.exists() and not folder.is_dir():
            raise UserError(f"{folder}: is a file, and shards are packed into a folder; name another")
        kind, _, path = listing.name.partition(":")
        if kind == "folder":
            require_outside(Path(path), folder, "name another folder")
        manifest = _Manifest.of(listing, folder, settings)
        packing = _Packing(settings, workers, manifest, skip_unreadable, advance, take_over)
        with on_signals_to_end(manifest.stop):
            folder.mkdir(parents=True, exist_ok=True)
            manifest.resume()
            remove_leftovers(folder, ("*.tar", "*.tar.index", MANIFEST, CLASSES))
            manifest.write(complete=False)  # before the first shard, which is then known for one of ours
            for part, pictures in listing.parts.items():
                _pack_part(part, pictures, packing)
            with replace_atomically(folder / CLASSES) as file:
                file.write(
                    "".join(f"{_one_line(name)}\n" for name in listing.class_names).encode(errors="surrogateescape")
                )
            return manifest.write(complete=True)
    except OSError as error:
        reason = f"{folder}: cannot be written to ({error.strerror or error})"
        if error.errno in (*NOT_HERE, errno.ENOENT):
            raise UserError(f"{reason}; name another folder") from error
        advice = "make room" if error.errno in DISK_FULL else "fix that"
        raise RunError(f"{reason}; {advice}, then run the same command again") from error
    finally:
        workers.close()


class _Manifest:
    """What is packed so far into a folder."""

    def __init__(self, folder: Path, head: dict[str, Any]) -> None:
        self.folder, self.head = folder, head
        self.shards: dict[str, Shard] = {}

    @classmethod
    def of(cls, listing: Listing, folder: Path, settings: PackSettings) -> "_Manifest":
        digest = hashlib.sha256(json.dumps(listing.class_names).encode())
        for pictures in listing.parts.values():
            pictures.describe_into(digest)
        head = {"format": FORMAT, "settings": asdict(settings), "source": digest.hexdigest()[:16]}
        classes = {"classes": list(listing.class_names), "class_ids": list(listing.class_ids)}
        return cls(folder, head | classes | {"groups": dict(listing.groups)})

    def resume(self) -> None:
        """Take over what an earlier run finished of the very same."""
        folder = self.folder
        earlier = read_manifest(folder)
        if earlier is None:
            if any(folder.glob("*.tar")):
                raise UserError(f"{folder}: holds shards of another origin; name an empty folder")
            if others := subfolders(folder):  # such as the images themselves
                raise UserError(f"{folder}: holds other folders (first: {others[0]}); name an empty folder")
            return
        for name in ("format", "settings", "source"):
            if earlier.get(name) != self.head[name]:
                raise UserError(
                    f"{folder}: was packed from other images or with other settings ({name} was {earlier.get(name)}, "
                    f"is {self.head[name]}); name another folder"
                )
        for line in earlier["shards"]:
            sums, unreadable = tuple(line["channel_sums"]), tuple(line["unreadable"])
            shard = Shard(**line | {"channel_sums": sums, "unreadable": unreadable})
            file = folder / shard.file
            # Who packs again what is complete wants it looked at: a damaged shard is written anew.
            is_there = file.is_file() and file.stat().st_size == shard.bytes
            if is_there and (not earlier.get("complete") or sha256_of(file) == shard.sha256):
                self.shards[shard.file] = shard

    def stop(self, number: int) -> NoReturn:
        raise Interrupted(
            f"{self.folder}: stopped by signal {number}, {len(self.shards):,} finished shards are kept; go on with the "
            "same command",
            number,
        )

    def write(self, *, complete: bool) -> dict[str, Any]:
        shards = [self.shards[name] for name in sorted(self.shards, key=lambda name: (not name.startswith("tr"), name))]
        parts = dict.fromkeys(shard.part for shard in shards)
        trained = [shard for shard in shards if shard.part == "train"]
        pixels = sum(shard.pixels for shard in trained)
        sums = np.sum([shard.channel_sums for shard in trained], axis=0, dtype=np.int64) if trained else np.zeros(3)
        value = self.head | {
            "complete": complete,
            "images": {part: sum(shard.images for shard in shards if shard.part == part) for part in parts},
            "unreadable": {part: sum(len(s.unreadable) for s in shards if s.part == part) for part in parts},
            "channel_mean": (sums / max(pixels, 1)).tolist(),
            "shards": [asdict(shard) for shard in shards],
        }
        with replace_atomically(self.folder / MANIFEST) as file:
            file.write((json.dumps(value, indent=1) + "\n").encode())
        return value


@dataclass(frozen=True)
class _Packing:
    """What is the same for all parts and shards."""

    settings: PackSettings
    workers: Workers
    manifest: _Manifest
    skip_unreadable: bool
    advance: Callable[[int], None]
    take_over: Callable[[int], None]


def _pack_part(part: str, pictures: Pictures, packing: _Packing) -> None:
    # Mixed, so that whoever reads a shard from its start to its end sees all classes.
    order = stream(0, "pack", part).permutation(len(pictures))
    settings, manifest = packing.settings, packing.manifest
    encoded = _InOrder(packing.workers, pictures, order, Encode(settings.size, settings.square, settings.quality))
    position, number = 0, 0
    while position < len(order):
        name = f"{part}-{number:06d}.tar"
        shard = manifest.shards.get(name)
        if shard is None or shard.first != position:
            encoded.stand_at(position)
            shard = _write_shard(name, part, encoded, pictures, packing)
            manifest.shards[name] = shard
            manifest.write(complete=False)
        else:
            packing.take_over(shard.end - shard.first)
        position, number = shard.end, number + 1


class _InOrder:
    """Encoded images in the order asked for, workers running ahead."""

    def __init__(self, workers: Workers, pictures: Pictures, order: NDArray[np.int64], work: Encode) -> None:
        self._workers, self._pictures, self._order, self._work = workers, pictures, order, work
        self.position = -1
        self._next: Outcome = None

    def stand_at(self, position: int) -> None:
        if position != self.position:
            self.position = position
            self._stream = self._run(position)
            self._next = next(self._stream, None)

    def peek(self) -> tuple[int, Outcome]:
        """The image at this position, and what came of it."""
        return int(self._order[self.position]), self._next

    def step(self) -> None:
        self.position += 1
        self._next = next(self._stream, None)

    def __bool__(self) -> bool:
        return self.position < len(self._order)

    def _run(self, start: int) -> Iterator[Outcome]:
        def asked(place: int) -> "Future[list[Outcome]]":
            index = self._order[place : place + IMAGES_A_TASK].tolist()
            return self._workers.ask(self._work, self._pictures, index, lambda outcomes, _: outcomes)

        places = range(start, len(self._order), IMAGES_A_TASK)
        for outcomes in in_order(asked, places, 2 * self._workers.count):
            yield from outcomes


class _Hashed(io.RawIOBase):
    """Writes through, and keeps count and checksum."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self.digest = hashlib.sha256()
        self.length = 0

    def write(self, content: Any) -> int:
        self._file.write(content)
        self.digest.update(content)
        self.length += len(content)
        return len(content)

    def tell(self) -> int:
        return self.length


def _write_shard(name: str, part: str, encoded: _InOrder, pictures: Pictures, packing: _Packing) -> Shard:
    path, first = packing.manifest.folder / name, encoded.position
    most_bytes = packing.settings.shard_megabytes * 1e6
    sums, pixels = np.zeros(3, dtype=np.int64), 0
    unreadable: list[str] = []
    samples: list[Sample] = []
    with replace_atomically(path) as file:
        hashed = _Hashed(file)
        with tarfile.open(fileobj=hashed, mode="w", format=tarfile.USTAR_FORMAT) as tar:
            while encoded:
                image, outcome = encoded.peek()
                if isinstance(outcome, Encoded):
                    if samples and hashed.length + len(outcome.jpeg) > most_bytes:
                        break
                    key, label = f"{image:09d}", str(int(pictures.labels[image]))
                    _add(tar, f"{key}.jpg", outcome.jpeg)
                    offset = hashed.length - _padded(len(outcome.jpeg))
                    samples.append(Sample(key, label, offset, len(outcome.jpeg)))
                    _add(tar, f"{key}.cls", label.encode())
                    sums += outcome.sums
                    pixels += outcome.pixels
                else:
                    unreadable.append(f"{pictures.name(image)} ({outcome})")
                encoded.step()
                packing.advance(1)
        if unreadable and not packing.skip_unreadable:
            raise UserError(
                f"{name}: {counted(len(unreadable), 'image')} for it cannot be read: {some_of(unreadable)}; "
                "repair them, or pass --skip-unreadable to leave them out"
            )
    write_index(path, ShardIndex.of(samples), stamp_of(path))
    red, green, blue = sums.tolist()
    return Shard(
        name,
        part,
        first,
        encoded.position,
        len(samples),
        hashed.length,
        hashed.digest.hexdigest(),
        (red, green, blue),
        pixels,
        tuple(unreadable),
    )


def _add(tar: tarfile.TarFile, name: str, content: bytes) -> None:
    member = tarfile.TarInfo(name)  # with no date and no owner: the same bytes whoever packs, and when
    member.size = len(content)
    tar.addfile(member, io.BytesIO(content))


def _padded(size: int) -> int:
    return -(-size // tarfile.BLOCKSIZE) * tarfile.BLOCKSIZE


def _one_line(name: str) -> str:
    return " ".join(name.split())


def listing_of(source: str, *, root: Path, test: str, seed: int) -> Listing:
    """Of any data set by name; a path alone is a folder of images or of shards."""
    if not is_listed(source) and (folder := expand_home(source)).is_dir():
        source = f"shards:{folder}" if any(folder.glob("*.tar")) else f"folder:{folder}"
    if is_listed(source):
        return list_images(source, test=test, seed=seed, spelt=OF_PACK)
    return listing_of_arrays(load_dataset(source, root=root, image_size=32, seed=seed))


def listing_of_arrays(dataset: Dataset) -> Listing:
    """A data set in memory, as if its images were files."""

    def made(part: str, images: ImageSet) -> Made:
        def read(index: int) -> bytes:
            buffer = io.BytesIO()
            Image.fromarray(images.images[index].transpose(1, 2, 0)).save(buffer, "PNG", compress_level=1)
            return buffer.getvalue()

        return Made(images.labels, read, f"{part} image", dataset.fingerprint().encode())

    train, test = made("training", dataset.train), made("test", dataset.test)
    names, groups, ids = dataset.class_names, dataset.groups, dataset.class_ids
    return Listing(dataset.name, dataset.name, names, train, test, groups, class_ids=ids)
