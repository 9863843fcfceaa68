"""How alike two partitions are, what moved between them, and how well a partition fits a confusion."""

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from nofe.errors import UserError
from nofe.specialties.checks import IntArray, counts_for, whole_numbers
from nofe.specialties.partition import Specialties

if TYPE_CHECKING:
    from scipy.sparse import csr_array


def class_confusion(labels: npt.ArrayLike, taken_for: npt.ArrayLike, classes: int) -> "csr_array":
    """Images of class i that are taken for class j, (C, C). Sparse: there are no more cells than images."""
    from scipy.sparse import csr_array

    pairs, counts = np.unique(np.asarray(labels) * classes + np.asarray(taken_for), return_counts=True)
    return csr_array((counts, (pairs // classes, pairs % classes)), shape=(classes, classes))


def agreement(confusion: npt.ArrayLike, specialties: Specialties) -> float:
    """Share of the counted images that the generalist sends to the specialty of their class."""
    counts = counts_for(confusion, specialties)  # (C, K)
    recognised = counts[np.arange(len(counts)), specialties.target_of_class].sum()
    return int(recognised) / int(counts.sum())


def classes_moved(before: Specialties, after: Specialties) -> int:
    """How many classes changed their generalist output.

    Outputs and not specialty numbers: when a specialty is dropped those behind it are renumbered, and none
    of their classes has moved.
    """
    _same_classes(before, after)
    return int((before.target_of_class != after.target_of_class).sum())


def pairs_in_common(a: Specialties, b: Specialties) -> int:
    """Pairs of classes that share a specialty in `a` and in `b`; with `a` twice, all pairs of `a`."""
    return _pairs(_overlaps(a, b))


def pairs_together(a: Specialties, b: Specialties) -> float:
    """Share of the pairs of `a` that are together in `b`; 1 where `a` has no pair to separate."""
    common, pairs = pairs_in_common(a, b), _pairs(a.sizes)
    return common / pairs if pairs else 1.0


def chance_of_pairs_together(sizes: npt.ArrayLike) -> float:
    """Expected `pairs_together(a, b)`, whatever `a`, for a random `b` with specialties of these sizes."""
    numbers = whole_numbers(sizes, "sizes")
    if numbers.min() < 1:
        raise UserError(f"sizes: a specialty of {numbers.min()} classes; pass sizes of 1 or more")
    all_pairs = _pairs(numbers.sum())
    return _pairs(numbers) / all_pairs if all_pairs else 1.0


def adjusted_rand(a: Specialties, b: Specialties) -> float:
    """Rand index adjusted for chance: 1 for the same partition, on average 0 for random ones."""
    common, pairs_a, pairs_b = pairs_in_common(a, b), _pairs(a.sizes), _pairs(b.sizes)
    all_pairs = _pairs(np.asarray(a.classes))
    if pairs_a == pairs_b == common:  # the same partition; the quotient is 0/0 when it is trivial
        return 1.0
    expected = pairs_a * pairs_b / all_pairs
    return (common - expected) / ((pairs_a + pairs_b) / 2 - expected)


def _pairs(sizes: IntArray) -> int:
    return int((sizes * (sizes - 1) // 2).sum())


def _overlaps(a: Specialties, b: Specialties) -> IntArray:
    """Classes in specialty i of `a` and j of `b`, (K_a * K_b,)."""
    _same_classes(a, b)
    cells = a.specialty_of_class * b.count + b.specialty_of_class
    return np.bincount(cells, minlength=a.count * b.count)


def _same_classes(a: Specialties, b: Specialties) -> None:
    if a.classes != b.classes:
        raise UserError(
            f"specialties: one partition has {a.classes} classes, the other {b.classes}; "
            "compare partitions of the same classes"
        )
