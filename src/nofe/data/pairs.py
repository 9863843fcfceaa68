"""A Python data set of (image, label) pairs, as torchvision's are, to a `Dataset` in memory."""

import os
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from nofe.data.dataset import Dataset, ImageSet, all_but, held_out
from nofe.data.decode import UnreadableError, bytes_of_16_bits, middle_square
from nofe.data.folder import require_memory
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
    count = _length(train, f"{name}: training") + (0 if test is None else _length(test, f"{name}: test"))
    advice = "a Python data set is read into memory; write it as files, a folder a class, and train on folder:PATH"
    require_memory(name, count, image_size, advice)
    names = _class_names(name, train, test, class_names)
    left_out: dict[str, list[str]] = {}
    of_train, lost = _images_of(train, f"{name}: training", image_size, skip_unreadable)
    left_out |= {"train": lost} if lost else {}
    of_test = None
    if test is not None:
        of_test, lost = _images_of(test, f"{name}: test", image_size, skip_unreadable)
        left_out |= {"test": lost} if lost else {}
    labels = np.unique(np.concatenate([part.labels for part in (of_train, of_test) if part is not None]))
    if names is None:
        names = _numbered(name, labels)
    elif len(labels) and labels[-1] >= len(names):
        _require_count_from_zero(name, labels)
        raise UserError(
            f"{name}: {len(names):,} class names, and labels up to {labels[-1]:,}; pass class_names= with one for each "
            "number from 0"
        )
    if of_test is None:
        fraction = fraction_of(hold_out)
        if fraction is None:
            raise UserError(f"data.test={hold_out}: for {name} it must be a fraction; use one such as {DEFAULT_TEST}")
        held = held_out(name, of_train.labels, names, fraction, seed)
        of_train, of_test = of_train.subset(~held), of_train.subset(held)
    return Dataset(name, names, of_train, of_test, left_out=left_out)


def parts_of(dataset: Pairs | tuple[Pairs, Pairs | None]) -> tuple[Pairs, Pairs | None]:
    """Training and test pairs of what somebody gave for them."""
    if isinstance(dataset, os.PathLike):
        raise UserError(f"dataset: a path; pass 'folder:{dataset}', a text, for the images below it")
    if any(isinstance(each, ImageSet) for each in (dataset if isinstance(dataset, tuple) else (dataset,))):
        raise UserError("dataset: an ImageSet is one part of it; pass nofe.Dataset(name, class_names, train=, test=)")
    if isinstance(dataset, list) and len(dataset) == 2 and all(map(_is_data_set, dataset)):
        raise UserError("dataset: a list of two data sets, as random_split gives; pass a tuple, (train, test)")
    if not isinstance(dataset, tuple):
        return dataset, None
    if dataset and all(_is_pair(each) for each in dataset):
        raise UserError("dataset: a tuple of pairs of image and label; pass a list of them, a tuple is (train, test)")
    if len(dataset) != 2:
        raise UserError(
            f"dataset: a tuple of {len(dataset)}; pass the pairs to train on and those to test by, (train, test), or "
            "the training pairs alone"
        )
    return dataset


def _is_pair(value: Any) -> bool:
    """Whether it is an image with its label, and not a data set."""
    if not isinstance(value, tuple | list) or len(value) != 2:
        return False
    return isinstance(value[1], int | np.integer) or getattr(value[1], "ndim", None) == 0


def _is_data_set(value: Any) -> bool:
    """Whether it is one of torch or like it, and neither a pair nor an image."""
    has_items = hasattr(value, "__getitem__") and hasattr(value, "__len__")
    return has_items and not isinstance(value, tuple | list) and not hasattr(value, "ndim")


def _length(pairs: Pairs, what: str) -> int:
    """How many there are of them, if they are pairs by number at all."""
    if hasattr(pairs, "batch_sampler"):
        raise UserError(f"{what} images: a DataLoader gives batches; pass its data set, loader.dataset")
    if isinstance(pairs, Mapping):
        raise UserError(f"{what} images: a {type(pairs).__name__} has names; pass (train, test) or a list of pairs")
    try:
        count = len(pairs)
    except TypeError as error:
        raise UserError(f"{what} images: have no length; give a data set that can be indexed") from error
    if not hasattr(pairs, "__getitem__"):
        raise UserError(f"{what} images: a {type(pairs).__name__} has no order; give a data set that can be indexed")
    if count == 0:
        raise UserError(f"{what} images: there are none; give pairs of image and label")
    return count


def _class_names(name: str, train: Pairs, test: Pairs | None, given: Sequence[str] | None) -> tuple[str, ...] | None:
    """Those given, or those that the data sets know; None where nobody names them."""
    if isinstance(given, str):
        raise UserError(f"class_names={given!r}: one text; pass a list with a name for each class")
    if given is not None:
        return tuple(str(each) for each in given)
    known = _known_names(name, train)
    of_test = None if test is None else _known_names(name, test)
    if known and of_test and known != of_test:
        raise UserError(
            f"{name}: training and test pairs name other classes ({_first_other(known, of_test)}); number them alike, "
            "then pass class_names="
        )
    return known


def _known_names(name: str, pairs: Any) -> tuple[str, ...] | None:
    """`classes`, as torchvision has them; through torch's Subset, and ConcatDataset where all agree."""
    if getattr(pairs, "classes", None):
        return tuple(str(each) for each in pairs.classes)
    if hasattr(pairs, "dataset") and hasattr(pairs, "indices"):
        return _known_names(name, pairs.dataset)
    found = [_known_names(name, each) for each in getattr(pairs, "datasets", ())]
    named = [names for names in found if names]
    for names in named[1:]:
        if names != named[0]:
            raise UserError(
                f"{name}: the data sets that it joins name other classes ({_first_other(named[0], names)}); number "
                "them alike, then pass class_names="
            )
    return named[0] if found and len(named) == len(found) else None


def _first_other(names: Sequence[str], others: Sequence[str]) -> str:
    if len(names) != len(others):
        return f"{len(names):,} and {len(others):,} of them"
    number = next(number for number in range(len(names)) if names[number] != others[number])
    return f"{number} is {names[number]!r} and {others[number]!r}"


def _numbered(name: str, labels: NDArray[np.int64]) -> tuple[str, ...]:
    """Names for numbers, which are to be 0 to C - 1."""
    count = int(labels[-1]) + 1 if len(labels) else 0
    _require_count_from_zero(name, labels)
    if len(labels) < count:
        present = set(labels.tolist())
        absent = ", ".join(str(each) for each in islice((each for each in range(count) if each not in present), 10))
        more = count - len(labels) - 10
        raise UserError(
            f"{name}: labels go up to {count - 1:,}, and no image has {absent}{f' and {more:,} more' * (more > 0)}; "
            "number the classes from 0 and leave no number out"
        )
    return tuple(f"class {number}" for number in range(count))


def _require_count_from_zero(name: str, labels: NDArray[np.int64]) -> None:
    if len(labels) and labels[0] > 0:
        raise UserError(
            f"{name}: labels must start at 0, and the lowest is {labels[0]:,}; subtract {labels[0]:,} from each"
        )


def _images_of(pairs: Pairs, what: str, image_size: int, skip_unreadable: bool) -> tuple[ImageSet, list[str]]:
    """Images and labels, and what is left out of them."""
    count = len(pairs)
    images = np.empty((count, 3, image_size, image_size), dtype=np.uint8)
    labels = np.zeros(count, dtype=np.int64)
    unreadable: dict[int, str] = {}
    for index in range(count):
        try:
            pair = pairs[index]
        except NotImplementedError as error:  # torch's IterableDataset
            raise UserError(f"{what} images: cannot be had by their number; give a data set that can be") from error
        except Exception as error:  # whatever its decoder raises at a damaged file
            unreadable[index] = _in_words(error)
            continue
        if not isinstance(pair, tuple | list) or len(pair) != 2:
            kind = type(pair).__name__ + (f" of {len(pair)}" if isinstance(pair, tuple | list) else "")
            raise UserError(
                f"{what} item {index}: not a pair of image and label but {kind}; give both for each image, as "
                "list(zip(images, labels)) does"
            )
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
    readable = ImageSet(images, labels).subset(all_but(unreadable, count))
    return readable, [f"image {index}" for index in unreadable]


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
        array = bytes_of_16_bits(array)
    elif array.dtype != np.uint8:
        if array.min() < 0 or array.max() > 255:
            raise _UnfitError(f"of {array.dtype} outside 0..255")
        array = array.astype(np.uint8)
    return np.ascontiguousarray(np.broadcast_to(array, (*array.shape[:2], 3)))


def _label_of(value: Any, what: str) -> int:
    array = np.asarray(value.detach().cpu().numpy() if hasattr(value, "detach") else value)
    is_one = array.size == 1 and np.issubdtype(array.dtype, np.integer)
    if not is_one or int(array.reshape(())) > np.iinfo(np.int64).max:  # as a hash of a class may be
        raise UserError(f"{what}: {str(value)[:40]!r} is no class number; give one from 0 to C - 1")
    label = int(array.reshape(()))
    if label < 0:
        raise UserError(f"{what}: {label} is below 0; number the classes from 0, and leave out images without a class")
    return label
