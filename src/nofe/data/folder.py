"""Listed images decoded into memory: a data set that fits there, and photos to predict."""

import os
import re
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from nofe.data.dataset import Dataset, ImageSet, all_but
from nofe.data.decode import FORMAT_LIST, UnreadableError, decode_image
from nofe.data.image_files import tell_passed_over, walk
from nofe.data.pictures import Listing, Source, Stored, with_reasons
from nofe.data.unreadable import stop_or_leave_out
from nofe.errors import UserError

MAX_IMAGE_SIZE = 4096
MAX_THREADS = 8  # each may hold one large image; Pillow decodes without the interpreter's lock
IMAGES_PER_TASK = 32


def load_listing(listing: Listing, image_size: int, *, skip_unreadable: bool = False) -> Dataset:
    """Every image of a listing, decoded and in memory."""
    _check_image_size(image_size)
    assert listing.test is not None  # Listing.with_test sees to it
    count = sum(map(len, listing.parts.values()))
    require_memory(listing.where, count, image_size, "let them be read while training with --set data.stream=true")
    images: dict[str, ImageSet] = {}
    unreadable: dict[str, dict[int, str]] = {}
    told: list[str] = []
    for part, pictures in listing.parts.items():
        pixels, reasons = _decode_all(len(pictures), pictures.source, image_size)
        images[part] = ImageSet(pixels, pictures.labels, listing.channel_mean, pictures.name)
        if reasons:
            unreadable[part] = reasons
            told += with_reasons(pictures, reasons)
    stop_or_leave_out(listing.where, told, count, skip=skip_unreadable, option="pass --skip-unreadable")
    left_out: dict[str, list[str]] = {}
    for part, reasons in unreadable.items():
        images[part] = images[part].subset(all_but(reasons, len(images[part])))
        left_out[part] = [listing.parts[part].name(i) for i in reasons]
    train, test = images["train"], images["test"]
    return Dataset(listing.name, listing.class_names, train, test, listing.groups, left_out, listing.class_ids)


def find_images(paths: Iterable[Path]) -> list[Path]:
    """Files as they are given, there or not, and for each folder the images anywhere below it, by name."""
    paths, found = list(paths), []
    for path in paths:
        require_no_address(path)
    missing = [path for path in paths if not path.exists()]
    if missing and len(missing) == len(paths):
        more = f" ({len(missing):,} files are missing)" * (len(missing) > 1)
        raise UserError(f"{missing[0]}: no such file{more}; check the path")
    for path in paths:
        if path.is_dir():
            below, others = walk(path)
            if not below:
                raise UserError(f"{path}: holds no images ({FORMAT_LIST}); name another folder")
            tell_passed_over(path, others)
            found.extend(below)
        else:
            found.append(path)
    return found


def require_no_address(path: Path) -> None:
    if address := re.fullmatch(r"(https?|ftp|s3|gs):/+(.+)", str(path)):
        raise UserError(f"{address[1]}://{address[2]}: a web address, and only files can be read; download it first")


def read_images(paths: Sequence[Path], image_size: int) -> NDArray[np.uint8]:
    """Photos to predict, decoded as those of a data set are: (N, 3, H, W). All of them, or none."""
    images, reasons = read_readable_images(paths, image_size)
    if reasons:
        first = next(iter(reasons))
        others = f"; so are {len(reasons) - 1} more" if len(reasons) > 1 else ""
        raise UserError(
            f"{paths[first]}: cannot be read as an image ({reasons[first]}){others}; give {FORMAT_LIST} files"
        )
    return images


def read_readable_images(paths: Sequence[Path], image_size: int) -> tuple[NDArray[np.uint8], dict[int, str]]:
    """The same, and by index why some cannot be read; those stay zero."""
    _check_image_size(image_size)
    return _decode_all(len(paths), lambda i: Stored(str(paths[i])), image_size)


def _check_image_size(image_size: int) -> None:
    if not 1 <= image_size <= MAX_IMAGE_SIZE:
        raise UserError(f"image size {image_size}: out of range; ask for 1 to {MAX_IMAGE_SIZE:,} pixels a side")


def require_memory(where: str, count: int, image_size: int, advice: str) -> None:
    """Refuse early what the machine would be killed for late."""
    needed, present = count * 3 * image_size**2, physical_memory()
    if present is not None and needed > present:
        raise UserError(
            f"{where}: {count:,} images of {image_size} x {image_size} take {needed / 1e9:,.0f} GB of memory and "
            f"this machine has {present / 1e9:,.0f}; {advice}"
        )


def physical_memory() -> int | None:
    """Bytes; None where the system does not say."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):  # not a Unix system
        return None


def _without_waiting(source: Source) -> Source:
    """Refuse a pipe: opening it waits for its writer, and a thread cannot be given up as a worker process can."""
    path = Path(source.path) if isinstance(source, Stored) else None
    if path is not None and not path.is_file() and path.exists() and not path.is_dir():  # most are files: one question
        raise UnreadableError("not a regular file")
    return source


def _decode_all(
    count: int, source: Callable[[int], Source], image_size: int
) -> tuple[NDArray[np.uint8], dict[int, str]]:
    """Images (N, 3, H, W) and, by index in their order, why some could not be read; those stay zero."""
    images = np.zeros((count, 3, image_size, image_size), dtype=np.uint8)
    reasons: dict[int, str] = {}

    def decode_some(start: int) -> None:
        for i in range(start, min(start + IMAGES_PER_TASK, count)):
            try:
                decode_image(_without_waiting(source(i)), image_size, images[i])
            except UnreadableError as error:
                reasons[i] = str(error)

    with ThreadPoolExecutor(min(MAX_THREADS, os.cpu_count() or 1)) as pool:
        try:
            for _ in pool.map(decode_some, range(0, count, IMAGES_PER_TASK)):
                pass  # drawing the results raises what a thread raised
        except BaseException:  # or a signal
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return images, dict(sorted(reasons.items()))
