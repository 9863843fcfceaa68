"""A Python data set of (image, label) pairs, as torchvision's are, to a `Dataset` in memory."""

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from nofe.data.dataset import Dataset, ImageSet, held_out
from nofe.data.decode import UnreadableError, middle_square
from nofe.data.pictures import DEFAULT_TEST, fraction_of
from nofe.data.unreadable import stop_or_leave_out
from nofe.errors import UserError


class Pairs(Protocol):
    """Anything with a length whose items are an image (Pillow's, or an array or tensor) and a class number."""

    def __len__(self) -> int: ...
    def __getitem__(self, index: int, /) -> Any: ...


def dataset_of_pairs(
    train: Pairs,
    test: Pairs | None = None,
    *,
    image_size: int,
    class_names: Sequence[str] | None = None,
    name: str | None = None,
    hold_out: str = DEFAULT_TEST,
    seed: int = 0,
    skip_unreadable: bool = False,
) -> Dataset:
    """Every image as the middle square of `image_size` pixels. Without `test` a part of each class is held out.

    Items that cannot be read stop it with their numbers, or are left out. Class names are those given, or the `classes`
    of `train` as in torchvision, or numbers.
    """
    name = name or type(train).__name__
    left_out: dict[str, list[str]] = {}
    of_train, lost = _images_of(train, f"{name}: training", image_size, skip_unreadable)
    left_out |= {"train": lost} if lost else {}
    of_test = None
    if test is not None:
        of_test, lost = _images_of(test, f"{name}: test", image_size, skip_unreadable)
        left_out |= {"test": lost} if lost else {}
    names = tuple(str(each) for each in (class_names or getattr(train, "classes", None) or ()))
    if not names:
        largest = max(int(part.labels.max(initial=0)) for part in (of_train, of_test) if part is not None)
        names = tuple(f"class {number}" for number in range(largest + 1))
    if of_test is None:
        fraction = fraction_of(hold_out)
        if fraction is None:
            raise UserError(f"data.test={hold_out}: {name} takes a fraction alone; use one such as {DEFAULT_TEST}")
        held = held_out(name, of_train.labels, names, fraction, seed)
        of_train, of_test = of_train.subset(~held), of_train.subset(held)
    return Dataset(name, names, of_train, of_test, left_out=left_out)


def _images_of(pairs: Pairs, what: str, image_size: int, skip_unreadable: bool) -> tuple[ImageSet, list[str]]:
    """Images and labels, and what is left out of them."""
    try:
        count = len(pairs)
    except TypeError as error:
        raise UserError(f"{what} images: have no length; give a data set that can be indexed") from error
    images = np.empty((count, 3, image_size, image_size), dtype=np.uint8)
    labels = np.zeros(count, dtype=np.int64)
    unreadable: dict[int, str] = {}
    for index in range(count):
        try:
            pair = pairs[index]
        except Exception as error:  # whatever its decoder raises at a damaged file
            unreadable[index] = _in_words(error)
            continue
        if not isinstance(pair, tuple | list) or len(pair) != 2:
            raise UserError(f"{what} item {index}: not a pair of image and label but {type(pair).__name__}")
        labels[index] = _label_of(pair[1], f"{what} label {index}")
        try:
            images[index] = square_of(pair[0], image_size)
        except _UnfitError as error:  # all of them are so: no file is damaged, the data set is made another way
            raise UserError(f"{what} image {index}: cannot be used ({error}); convert it to RGB bytes") from error
        except Exception as error:  # Pillow decodes when it is asked for the pixels
            unreadable[index] = _in_words(error)
    told = [f"image {index} ({reason})" for index, reason in unreadable.items()]
    option = 'pass settings={"data.skip_unreadable": True}'
    stop_or_leave_out(what, told, count, skip=skip_unreadable, option=option)
    if not unreadable:
        return ImageSet(images, labels), []
    readable = np.ones(count, dtype=np.bool_)
    readable[list(unreadable)] = False
    return ImageSet(images, labels).subset(readable), [f"image {index}" for index in unreadable]


def _in_words(error: Exception) -> str:
    text = " ".join(str(error).split())[:80]
    return text if isinstance(error, UnreadableError) else f"{type(error).__name__}: {text}"


class _UnfitError(ValueError):
    """Why an array is no image."""


def square_of(image: Any, image_size: int) -> NDArray[np.uint8]:
    """(3, H, W) of a Pillow image, of a tensor (colours, H, W), or of an array (H, W, colours) or (H, W)."""
    if not isinstance(image, Image.Image):
        pixels = _bytes_of(image)  # (H, W, 3)
        if pixels.shape[:2] == (image_size, image_size):
            return np.ascontiguousarray(pixels.transpose(2, 0, 1))
        image = Image.fromarray(pixels)
    return np.ascontiguousarray(np.asarray(middle_square(image, image_size)).transpose(2, 0, 1))


def _bytes_of(value: Any) -> NDArray[np.uint8]:
    is_tensor = hasattr(value, "detach")  # torch's, which have colours first
    array = np.asarray(value.detach().cpu().numpy() if is_tensor else value)
    if array.ndim == 2:
        array = array[:, :, None]
    elif array.ndim == 3 and (is_tensor or (array.shape[0] in (1, 3) and array.shape[2] not in (1, 3))):
        array = array.transpose(1, 2, 0)
    if array.ndim != 3 or array.shape[2] not in (1, 3) or 0 in array.shape:
        raise _UnfitError(f"of shape {array.shape}")
    if array.dtype == np.bool_:
        array = array.astype(np.uint8) * np.uint8(255)
    elif np.issubdtype(array.dtype, np.floating):
        if not np.isfinite(array).all() or array.min() < 0 or array.max() > 1:
            raise _UnfitError("its numbers are not from 0 to 1; leave normalising to nofe")
        array = np.rint(array * 255).astype(np.uint8)
    elif array.dtype == np.uint16:
        array = ((array.astype(np.uint32) * 255 + 32767) // 65535).astype(np.uint8)
    elif array.dtype != np.uint8:
        if array.min() < 0 or array.max() > 255:
            raise _UnfitError(f"of {array.dtype} outside 0..255")
        array = array.astype(np.uint8)
    return np.ascontiguousarray(np.broadcast_to(array, (*array.shape[:2], 3)))


def _label_of(value: Any, what: str) -> int:
    array = np.asarray(value.detach().cpu().numpy() if hasattr(value, "detach") else value)
    if array.size != 1 or not np.issubdtype(array.dtype, np.integer):
        raise UserError(f"{what}: {str(value)[:40]!r} is no class number; give one from 0 to C - 1")
    return int(array.reshape(()))
