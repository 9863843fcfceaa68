"""What every rule asks of its arrays, said once."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from nofe.errors import UserError

if TYPE_CHECKING:
    from nofe.specialties.partition import Specialties

IntArray = npt.NDArray[np.int64]


def whole_numbers(values: npt.ArrayLike, name: str, dimensions: int = 1) -> IntArray:
    """A copy of `values` as int64. Whole floats pass (ranks may sum counts as floats); booleans do not."""
    try:
        array = np.asarray(values)
    except (ValueError, TypeError):
        raise UserError(f"{name}: not an array of numbers; pass whole numbers, every row as long") from None
    if array.ndim != dimensions:
        raise UserError(f"{name}: has {array.ndim} dimensions; pass an array of {dimensions}")
    if array.size == 0:
        raise UserError(f"{name}: is empty; pass at least one number")
    if array.dtype.kind == "f":
        if not np.all(np.isfinite(array)) or np.any(array != np.floor(array)):
            raise UserError(f"{name}: holds fractions or values that are not finite; pass whole numbers")
    elif array.dtype.kind not in "iu":
        raise UserError(f"{name}: holds {array.dtype} values; pass whole numbers")
    if array.max() >= 2**53 or array.min() <= -(2**53):
        raise UserError(f"{name}: holds numbers of 2^53 or more; pass smaller ones")
    return array.astype(np.int64)


def image_counts(confusion: npt.ArrayLike) -> IntArray:
    """A checked copy of a table of images by class and column."""
    counts = whole_numbers(confusion, "confusion", dimensions=2)
    if counts.min() < 0:
        raise UserError("confusion: holds negative counts; pass the number of images of a class in each cell")
    total = counts.sum(dtype=np.float64)
    if total == 0:
        raise UserError("confusion: counts no image; send at least one image through the generalist")
    if total >= 2**53:
        raise UserError("confusion: counts 2^53 images or more; pass counts of real images")
    return counts


def counts_for(confusion: npt.ArrayLike, specialties: Specialties) -> IntArray:
    """A checked copy of `confusion`, (C, K): a row for each class, a column for each generalist output."""
    counts = image_counts(confusion)
    if counts.shape[0] != specialties.classes:
        raise UserError(
            f"confusion: has {counts.shape[0]} rows and the specialties have {specialties.classes} classes; "
            "count a row for each class"
        )
    last = int(specialties.columns[-1])
    if counts.shape[1] <= last:
        raise UserError(
            f"confusion: has {counts.shape[1]} columns and the specialties use generalist output {last}; "
            "count a column for each output of the generalist"
        )
    return counts


def check_shareable(classes: int, count: int) -> None:
    """`classes` can be parted into `count` specialties, none empty."""
    if classes < 1:
        raise UserError(f"classes: {classes} given; pass at least one class")
    if not 1 <= count <= classes:
        raise UserError(f"specialties: {count} of them cannot share {classes} classes; choose between 1 and {classes}")
