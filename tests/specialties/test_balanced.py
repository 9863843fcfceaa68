import itertools

import numpy as np
import pytest
from hypothesis import given
from scipy.optimize import linear_sum_assignment
from specialty_cases import cases, few, generator, planted

from nofe.errors import RunError, UserError
from nofe.specialties import (
    Specialties,
    agreement,
    balanced,
    classes_moved,
    exact,
    fully_balanced,
    random_balanced,
)


def recognised(confusion, labels):
    return confusion[np.arange(len(confusion)), labels].sum()


def all_balanced_labels(classes, count):
    labels = np.array(list(itertools.product(range(count), repeat=classes)))  # (K^C, C)
    sizes = (labels[:, :, None] == np.arange(count)).sum(axis=1)
    return labels[sizes.max(axis=1) - sizes.min(axis=1) <= 1]


@few
@given(cases(max_classes=6, max_count=4))
def test_exact_is_the_optimum_that_keeps_the_most(case):
    candidates = all_balanced_labels(*case.confusion.shape)
    kept = (candidates == case.current.target_of_class).sum(axis=1)
    values = [(recognised(case.confusion, labels), k) for labels, k in zip(candidates, kept, strict=True)]
    found = exact(case.confusion, case.current, generator())
    assert max(values) == (
        recognised(case.confusion, found.target_of_class),
        found.classes - classes_moved(case.current, found),
    )


@pytest.mark.parametrize("seed", range(5))
def test_exact_equals_the_assignment_of_classes_to_seats(seed):
    confusion, _ = planted(120, 8, images=12, share=0.1, seed=seed)
    seats = np.repeat(confusion, 120 // 8, axis=1)  # (C, C), a column for each seat
    best = seats[linear_sum_assignment(seats, maximize=True)].sum()
    found = exact(confusion, random_balanced(120, 8, generator(seed)), generator())
    assert recognised(confusion, found.specialty_of_class) == best


@few
@given(cases(max_classes=40, max_count=9, max_images=3))
def test_exact_is_never_below_greedy_and_settles(case):
    greedy = fully_balanced(case.confusion, case.current, generator(case.seed))
    first = exact(case.confusion, case.current, generator())
    assert agreement(case.confusion, first) >= agreement(case.confusion, greedy)
    assert exact(case.confusion, first, generator()) == first


def test_exact_beats_greedy_where_classes_compete():
    confusion, _ = planted(100, 10, images=20, share=0.1)
    current = random_balanced(100, 10, generator())
    greedy = fully_balanced(confusion, current, generator())
    assert agreement(confusion, exact(confusion, current, generator())) > agreement(confusion, greedy)


@pytest.mark.parametrize(("first", "sizes"), [(0, [3, 2, 2]), (1, [2, 3, 2]), (2, [2, 2, 3])])
def test_exact_chooses_which_specialty_is_larger(first, sizes):
    confusion = np.ones((7, 3), dtype=int)
    confusion[:, first] = 9  # every class would go there; three may
    assert exact(confusion, Specialties([0, 0, 0, 1, 1, 2, 2]), generator()).sizes.tolist() == sizes


def test_exact_ties_keep_the_current_specialty():
    current = random_balanced(30, 4, generator(3))
    assert exact(np.ones((30, 4)), current, generator()) == current
    # One specialty of four is unused: its quota of two classes is all that has to move.
    lopsided = Specialties.from_labels_dropping_empty([0, 0, 0, 1, 1, 1, 3, 3], count=4)
    filled = exact(np.ones((8, 4)), lopsided, generator())
    assert classes_moved(lopsided, filled) == 2
    assert filled.sizes.tolist() == [2, 2, 2, 2]


def test_exact_says_when_the_solver_stops_early(monkeypatch):
    confusion, truth = planted(100, 10)
    monkeypatch.setattr(balanced, "MAX_PIVOTS", 3)
    with pytest.raises(RunError, match=r"exact: the solver stopped before the optimum.*use fully-balanced"):
        exact(confusion, truth, generator())


def test_exact_refuses_counts_beyond_exact_arithmetic():
    confusion = np.full((10, 2), 10**14)
    with pytest.raises(UserError, match="too large for exact arithmetic; sample fewer images"):
        exact(confusion, random_balanced(10, 2, generator()), generator())


def greedy_by_the_paper(confusion, order):
    classes, count = confusion.shape
    at_ceiling_left, floor = classes % count, classes // count
    sizes, labels = [0] * count, [None] * classes
    for c in order:
        for j in sorted(range(count), key=lambda j: -confusion[c, j]):
            if sizes[j] < floor or (sizes[j] == floor and at_ceiling_left > 0):
                at_ceiling_left -= sizes[j] == floor
                sizes[j] += 1
                labels[c] = j
                break
    return tuple(labels)


@pytest.mark.parametrize(("classes", "count"), [(6, 2), (6, 3), (5, 2), (5, 3), (4, 4), (5, 1)])
def test_greedy_visits_classes_in_random_order(classes, count):
    rng = generator(classes * 10 + count)
    confusion = rng.permuted(np.tile(np.arange(count), (classes, 1)), axis=1)  # no ties in a row
    confusion[0, 0] += confusion.sum() == 0
    outcomes = {greedy_by_the_paper(confusion, order) for order in itertools.permutations(range(classes))}
    current = random_balanced(classes, count, rng)
    reached = {
        tuple(fully_balanced(confusion, current, generator(seed)).specialty_of_class.tolist()) for seed in range(400)
    }
    assert reached == outcomes


def test_greedy_ties_favour_no_specialty():
    current = random_balanced(5, 2, generator())
    updates = [fully_balanced(np.ones((5, 2)), current, generator(seed)) for seed in range(400)]
    assert 0.4 < np.mean([update.sizes[0] == 3 for update in updates]) < 0.6


@pytest.mark.parametrize(("classes", "count"), [(100, 10), (7, 3), (5, 5), (4, 1)])
def test_random_start_is_balanced_and_favours_nothing(classes, count):
    draws = [random_balanced(classes, count, generator(seed)) for seed in range(300)]
    assert all(draw.sizes.max() - draw.sizes.min() <= 1 for draw in draws)
    visits = sum((draw.specialty_of_class[:, None] == np.arange(count)).astype(float) for draw in draws)
    expected = draws[0].sizes / classes  # of class c in specialty k, whatever c
    assert np.abs(visits / 300 - expected).max() < 5 * np.sqrt(0.25 / 300)


def test_more_specialties_than_classes_cannot_be_balanced():
    with pytest.raises(UserError, match="specialties: 4 of them cannot share 3 classes"):
        random_balanced(3, 4, generator())
    with pytest.raises(UserError, match="classes: 0 given"):
        random_balanced(0, 1, generator())
    for rule in (exact, fully_balanced):
        with pytest.raises(UserError, match="specialties: 4 of them cannot share 3 classes"):
            rule(np.ones((3, 4)), Specialties([0, 1, 2]), generator())
