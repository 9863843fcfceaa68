import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import adjusted_rand_score
from specialty_cases import cases, few, generator, partitions

from nofe.errors import UserError
from nofe.specialties import (
    Specialties,
    adjusted_rand,
    agreement,
    chance_of_pairs_together,
    classes_moved,
    given_groups,
    pairs_in_common,
    pairs_together,
    random_balanced,
)

# The release's map of AlexNet-C100, and the random map all its runs began from: class ids by specialty.
RELEASED = """
12 20 23 36 41 49 71 76 84 85 / 8 9 10 16 40 61 66 83 86 87 / 13 22 24 39 48 58 60 81 89 90
1 7 33 38 44 50 51 77 79 80 / 2 11 28 35 46 47 53 94 96 98 / 0 6 14 18 26 45 57 62 70 92
3 4 15 19 21 29 31 32 64 97 / 5 25 34 42 43 54 68 75 88 91 / 17 37 52 56 59 63 69 73 78 82
27 30 55 65 67 72 74 93 95 99
"""
RANDOM_START = """
37 39 45 55 57 67 74 77 87 90 / 6 23 26 27 56 60 63 64 73 88 / 7 10 24 32 50 53 58 66 83 84
1 20 42 46 61 69 70 94 96 99 / 16 19 29 30 41 49 65 75 81 97 / 2 4 8 11 21 31 47 48 82 92
18 22 34 38 43 71 78 85 93 95 / 3 14 17 35 68 72 76 79 80 89 / 13 15 25 28 36 44 51 54 86 91
0 5 9 12 33 40 52 59 62 98
"""
# CIFAR-100's superclass of each class.
SUPERCLASSES = """
4 1 14 8 0 6 7 7 18 3 3 14 9 18 7 11 3 9 7 11 6 11 5 10 7 6 13 15 3 15 0 11 1 10 12 14 16 9 11 5 5 19 8 8 15 13
14 17 18 10 16 4 17 4 2 0 17 4 18 17 10 3 2 12 12 16 12 1 9 19 2 10 0 1 16 12 9 13 15 13 16 19 2 4 6 19 5 5 8 19
18 1 2 15 6 0 17 8 14 13
"""


def read(text):
    groups = [map(int, group.split()) for line in text.split("\n") if line for group in line.split("/")]
    return Specialties.from_groups(groups, 100)


def test_pairs_of_the_released_map():
    released, start = read(RELEASED), read(RANDOM_START)
    superclasses = given_groups([int(i) for i in SUPERCLASSES.split()])
    assert pairs_in_common(released, released) == 450
    assert pairs_in_common(superclasses, superclasses) == 200
    assert pairs_in_common(superclasses, released) == 68
    assert pairs_in_common(superclasses, start) == 17
    assert pairs_in_common(start, released) == 39
    assert pairs_together(superclasses, released) == 68 / 200
    assert pairs_together(released, superclasses) == 68 / 450
    assert 200 * chance_of_pairs_together(released.sizes) == pytest.approx(18.2, abs=0.05)
    assert 450 * chance_of_pairs_together(released.sizes) == pytest.approx(40.9, abs=0.05)


def pairs_of(specialties):
    return {pair for group in specialties.groups() for pair in itertools.combinations(group, 2)}


two_partitions = (
    st.integers(1, 12)
    .flatmap(lambda n: st.tuples(*[st.lists(st.integers(0, 4), min_size=n, max_size=n)] * 2))
    .map(lambda two: [Specialties.from_labels_dropping_empty(labels, 5) for labels in two])
)


@few
@given(two_partitions)
def test_pairs_are_pairs(two):
    a, b = two
    common = pairs_of(a) & pairs_of(b)
    assert pairs_in_common(a, b) == len(common)
    assert pairs_together(a, b) == (len(common) / len(pairs_of(a)) if pairs_of(a) else 1.0)


@few
@given(two_partitions)
def test_adjusted_rand_is_the_usual_one(two):
    a, b = two
    expected = adjusted_rand_score(a.specialty_of_class, b.specialty_of_class)
    assert adjusted_rand(a, b) == pytest.approx(expected)
    assert adjusted_rand(a, a) == 1.0


def test_random_partitions_agree_by_chance():
    a = Specialties([0, 0, 0, 0, 1, 1, 1, 2, 2, 3])
    sizes = [5, 3, 1, 1]
    drawn = [Specialties(generator(seed).permutation(np.repeat(np.arange(4), sizes))) for seed in range(2000)]
    assert np.mean([pairs_together(a, b) for b in drawn]) == pytest.approx(chance_of_pairs_together(sizes), abs=0.01)
    assert np.mean([adjusted_rand(a, b) for b in drawn]) == pytest.approx(0, abs=0.02)
    assert chance_of_pairs_together([1]) == 1.0
    with pytest.raises(UserError, match="sizes: a specialty of 0 classes"):
        chance_of_pairs_together([3, 0])


@few
@given(cases())
def test_agreement_is_the_share_of_images_in_their_own_specialty(case):
    own = sum(case.confusion[c, j] for c, j in enumerate(case.current.target_of_class))
    assert agreement(case.confusion, case.current) == own / case.confusion.sum()


def test_moves_are_counted_by_generalist_output():
    before = Specialties([0, 1, 2, 2])
    dropped = Specialties.from_labels_dropping_empty([0, 0, 2, 2], count=3)
    assert dropped.specialty_of_class.tolist() == [0, 0, 1, 1]  # renumbered, yet only class 1 moved
    assert classes_moved(before, dropped) == 1
    assert classes_moved(dropped, Specialties([0, 0, 1, 1])) == 2
    assert classes_moved(before, before) == 0


@few
@given(partitions(), partitions())
def test_only_partitions_of_the_same_classes_compare(a, b):
    if a.classes == b.classes:
        assert classes_moved(a, b) == sum(a.target_of_class != b.target_of_class)
        return
    for measure in (classes_moved, pairs_in_common, pairs_together, adjusted_rand):
        with pytest.raises(UserError, match="compare partitions of the same classes"):
            measure(a, b)


def test_agreement_checks_the_confusion():
    with pytest.raises(UserError, match="confusion: has 2 rows and the specialties have 3 classes"):
        agreement(np.ones((2, 3)), random_balanced(3, 3, generator()))
