"""`hf:PATH`: a data set that the Hugging Face library `datasets` saved with `save_to_disk`."""

import logging
from pathlib import Path
from typing import Any

import numpy as np

from nofe.data.layouts import TEST_FOLDERS, TRAIN_FOLDERS
from nofe.data.pictures import DEFAULT_TEST, OF_RUN, Listing, Made, Source, Spelling, Stored
from nofe.errors import UserError
from nofe.suggestions import counted, either

logger = logging.getLogger("nofe")

IMAGE_COLUMNS = ("image", "img", "jpg", "png", "picture")
LABEL_COLUMNS = ("label", "labels", "fine_label", "class", "cls")


def list_saved(path: Path, *, test: str = DEFAULT_TEST, seed: int = 0, spelt: Spelling = OF_RUN) -> Listing:
    """Every image of a saved data set, encoded as it was saved."""
    if not path.is_dir():
        reason = "not a folder" if path.exists() else "no such folder"
        raise UserError(f"{path}: {reason}; name one that datasets.save_to_disk wrote")
    splits = _splits(_load(path))
    train_name = next((name for name in TRAIN_FOLDERS if name in splits), None)
    if train_name is None:
        raise UserError(f"{path}: has no split 'train' (it has {', '.join(splits)}); save it under this name")
    test_name = next((name for name in TEST_FOLDERS if name in splits), None)
    for other in (name for name in TEST_FOLDERS if name in splits and name != test_name):
        logger.warning(
            "%s: tests on the split %s and does not read %s (%s); to test on that instead, save the data without %s",
            path,
            test_name,
            other,
            counted(len(splits[other]), "image"),
            test_name,
        )
    train = splits[train_name]
    image_column, label_column = _column(path, train, IMAGE_COLUMNS), _column(path, train, LABEL_COLUMNS)
    class_names = _class_names(path, train, label_column)
    number_of = {name: number for number, name in enumerate(class_names)}
    parts = {
        name: _pictures(path, splits[name], name, image_column, label_column, number_of)
        for name in (train_name, test_name)
        if name is not None
    }
    listing = Listing(f"hf:{path}", str(path), class_names, parts[train_name], parts.get(test_name or ""))
    return listing.with_test(test, seed, logger.warning, spelt)


def _load(path: Path) -> Any:
    try:
        import datasets
    except ImportError as error:
        raise UserError(
            f"hf:{path}: needs the package 'datasets', which is not installed; python -m pip install datasets"
        ) from error
    try:
        return datasets.load_from_disk(str(path))
    except Exception as error:  # it raises whatever its parts raise
        text = " ".join(str(error).split())[:200]
        raise UserError(f"{path}: datasets cannot load it ({text}); save it again with save_to_disk") from error


def _splits(loaded: Any) -> dict[str, Any]:
    """A DatasetDict is a dictionary of splits; a single Dataset is all training images."""
    return dict(loaded) if isinstance(loaded, dict) else {"train": loaded}


def _column(path: Path, split: Any, known: tuple[str, ...]) -> str:
    column = next((name for name in known if name in split.column_names), None)
    if column is None:
        raise UserError(f"{path}: none of its columns ({', '.join(split.column_names)}) is {either(known)}; rename one")
    return column


def _class_names(path: Path, train: Any, column: str) -> tuple[str, ...]:
    feature = train.features[column]
    if getattr(feature, "names", None):
        return tuple(str(name) for name in feature.names)
    values = set(train[column])
    if all(isinstance(value, str) for value in values):
        return tuple(sorted(values))
    if not all(isinstance(value, int) and value >= 0 for value in values):  # None, too: a label that is missing
        raise UserError(
            f"{path}: column '{column}' holds something else than class names, or numbers from 0; convert it"
        )
    return tuple(f"class {number}" for number in range(max(values) + 1))


def _pictures(path: Path, split: Any, name: str, image: str, label: str, number_of: dict[str, int]) -> Made:
    values = list(split[label])
    own_names = getattr(split.features[label], "names", None)  # which a split may have in an order of its own
    try:
        names = [own_names[v] if own_names and isinstance(v, int) and v >= 0 else v for v in values]
        labels = np.array([number_of[v] if isinstance(v, str) else v for v in names], dtype=np.int64)
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise UserError(f"{path}: split '{name}' has a label that is no class ({error}); correct it") from error
    feature = split.features[image]
    if hasattr(feature, "decode"):
        import datasets

        split = split.cast_column(image, datasets.Image(decode=False))  # the bytes as they are, not yet decoded
    elif getattr(feature, "dtype", "") not in ("binary", "large_binary"):
        raise UserError(
            f"{path}: column '{image}' holds no encoded images but {type(feature).__name__}; make it a column of "
            "datasets.Image and save it again"
        )

    def read(index: int) -> Source:
        return _encoded(split[index][image])

    identity = f"{path.name} {name} {getattr(split, '_fingerprint', '')}".encode()
    return Made(labels, read, f"{name} image", identity)


def _encoded(value: Any) -> Source:
    """An image of {"bytes": ..., "path": ...}, either of which may be missing, or of bare bytes; else empty."""
    if isinstance(value, dict):
        content, path = value.get("bytes"), value.get("path")
        return Stored(path) if content is None and path else bytes(content or b"")
    return bytes(value or b"")
