"""Confusions of classes, by hand."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.sparse import csr_array

from nofe.report.record import (
    ConfusedPair,
    confused_inside_and_across,
    confused_pairs,
    pairs_of_specialty,
)
from nofe.specialties import Specialties, class_confusion

SPECIALTIES = Specialties([0, 0, 1, 1, 1])
CONFUSION = csr_array(
    [
        [7, 1, 0, 2, 0],
        [4, 6, 0, 0, 0],
        [0, 0, 9, 0, 1],
        [5, 0, 0, 5, 0],
        [0, 0, 4, 0, 16],
    ]
)


def test_most_confused_pairs() -> None:
    """Both directions count; (0, 1) and (2, 4) tie at 5, and the smaller class number goes first."""
    assert confused_pairs(CONFUSION, SPECIALTIES) == [
        ConfusedPair(first=3, second=0, first_as_second=5, second_as_first=2, images=20, inside=False),
        ConfusedPair(first=1, second=0, first_as_second=4, second_as_first=1, images=20, inside=True),
        ConfusedPair(first=4, second=2, first_as_second=4, second_as_first=1, images=30, inside=True),
    ]
    assert [pair.confused for pair in confused_pairs(CONFUSION, SPECIALTIES)] == [7, 5, 5]


def test_pairs_of_each_specialty() -> None:
    across, first, second = confused_pairs(CONFUSION, SPECIALTIES)
    assert pairs_of_specialty([across, first, second], SPECIALTIES, 0) == (first, across)
    assert pairs_of_specialty([across, first, second], SPECIALTIES, 1) == (second, across)
    assert pairs_of_specialty([first], SPECIALTIES, 1) == (None, None)


def test_inside_and_across() -> None:
    assert confused_inside_and_across(CONFUSION, SPECIALTIES) == (1 + 4 + 1 + 4, 2 + 5)


def test_rows_are_the_true_classes() -> None:
    counts = class_confusion(np.array([0, 0, 2, 2]), np.array([0, 1, 2, 0]), classes=4)
    assert counts.toarray().tolist() == [[1, 1, 0, 0], [0, 0, 0, 0], [1, 0, 1, 0], [0, 0, 0, 0]]


@given(st.integers(2, 9).flatmap(lambda c: st.tuples(st.just(c), st.integers(0, 2**32 - 1))))
def test_every_mistake_is_in_one_pair(case: tuple[int, int]) -> None:
    classes, seed = case
    rng = np.random.default_rng(seed)
    confusion = csr_array(rng.integers(0, 4, size=(classes, classes)))
    specialties = Specialties.from_labels_dropping_empty(rng.integers(0, 3, size=classes), 3)
    pairs = confused_pairs(confusion, specialties)
    inside, across = confused_inside_and_across(confusion, specialties)
    assert sum(pair.confused for pair in pairs if pair.inside) == inside
    assert sum(pair.confused for pair in pairs if not pair.inside) == across
    assert inside + across == confusion.sum() - confusion.trace()
    assert [pair.confused for pair in pairs] == sorted((pair.confused for pair in pairs), reverse=True)
    assert all(pair.first_as_second >= pair.second_as_first for pair in pairs)


def test_without_a_mistake_there_is_no_pair() -> None:
    assert confused_pairs(csr_array(np.diag([3, 0, 2])), Specialties([0, 1, 1])) == []
    assert confused_inside_and_across(csr_array(np.diag([3, 0, 2])), Specialties([0, 1, 1])) == (0, 0)


@pytest.mark.parametrize("specialty", [0, 1])
def test_a_pair_across_belongs_to_both_of_its_specialties(specialty: int) -> None:
    pairs = confused_pairs(CONFUSION, SPECIALTIES)
    assert pairs_of_specialty(pairs, SPECIALTIES, specialty)[1] == pairs[0]
