import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from specialty_cases import cases, few, generator, planted

from nofe.errors import UserError
from nofe.specialties import Specialties, argmax, elasso, elasso_cost, random_balanced

strengths = st.sampled_from([0.0, 1.0, 100.0, 1000.0, 3000.0, 1e5])


def equation_3(confusion, labels, strength):
    """As printed: lambda ||F||_e - ||M o F||_{1,1}, lambda on the scale of these counts."""
    indicator = np.eye(confusion.shape[1])[labels]  # F, (C, K)
    norm = math.sqrt(sum(sum(row[j] for row in indicator) ** 2 for j in range(confusion.shape[1])))
    return strength * confusion.sum() / 10_000 * norm - np.abs(confusion * indicator).sum()


@few
@given(cases(), strengths)
def test_cost_is_the_equation(case, strength):
    expected = equation_3(case.confusion, case.current.target_of_class, strength)
    assert elasso_cost(case.confusion, case.current, strength) == pytest.approx(expected, abs=1e-9)
    labels = case.current.target_of_class.tolist()
    assert elasso_cost(case.confusion, labels, strength) == pytest.approx(expected, abs=1e-9)


@few
@given(cases(), strengths)
def test_a_sweep_puts_each_class_at_its_best_place_and_never_raises_the_cost(case, strength):
    labels = case.current.target_of_class
    for c in generator(case.seed).permutation(len(labels)):  # the same draw as the rule's
        costs = []
        for j in range(case.confusion.shape[1]):
            labels[c], before = j, labels[c]
            costs.append(equation_3(case.confusion, labels, strength))
            labels[c] = before
        if min(costs) < costs[labels[c]] - 1e-6:
            labels[c] = next(j for j, cost in enumerate(costs) if cost < min(costs) + 1e-6)
    updated = elasso(case.confusion, case.current, generator(case.seed), strength=strength)
    assert updated.target_of_class.tolist() == labels.tolist()


@few
@given(cases(max_classes=30, max_count=8), strengths)
def test_the_cost_falls_from_sweep_to_sweep_to_a_place_no_class_wants_to_leave(case, strength):
    def swept(sweeps):
        return elasso(case.confusion, case.current, generator(case.seed), strength=strength, sweeps=sweeps)

    settled = swept(None)
    partitions = [case.current, *(swept(n) for n in (1, 2, 3)), settled]
    costs = [elasso_cost(case.confusion, partition, strength) for partition in partitions]
    assert all(after <= before + 1e-9 for before, after in itertools.pairwise(costs))

    labels = settled.target_of_class
    for c in range(len(labels)):
        for j in range(case.confusion.shape[1]):
            moved = np.where(np.arange(len(labels)) == c, j, labels)
            assert elasso_cost(case.confusion, moved, strength) >= costs[-1] - 1e-6
    assert elasso(case.confusion, settled, generator(1), strength=strength, sweeps=None) == settled


def test_one_sweep_is_the_default_and_more_go_further():
    confusion, _ = planted(100, 10, images=100)
    start = random_balanced(100, 10, generator(5))
    swept = {n: elasso(confusion, start, generator(1), sweeps=n) for n in (1, 2, 3, None)}
    assert swept[1] == elasso(confusion, start, generator(1))
    costs = {n: elasso_cost(confusion, partition) for n, partition in swept.items()}
    assert costs[1] - 1 > costs[2] > costs[3] >= costs[None]


@few
@given(cases(), st.integers(2, 50), strengths)
def test_strength_follows_the_number_of_images(case, factor, strength):
    options = {"strength": strength, "sweeps": None}
    few_images = elasso(case.confusion, case.current, generator(case.seed), **options)
    many_images = elasso(factor * case.confusion, case.current, generator(case.seed), **options)
    assert few_images == many_images


@pytest.mark.parametrize(("count", "images"), [(2, 14.1), (5, 22.4), (10, 31.6), (20, 44.7), (50, 70.7)])
def test_price_of_imbalance_as_measured_in_the_release(count, images):
    """Counts that one class must gain to leave a balanced partition of 100 classes, lambda 1000, 10,000 images."""
    even = np.arange(100) % count
    uneven = np.where(np.arange(100) == 0, 1, even)
    confusion = np.zeros((100, count), dtype=int)
    confusion[:, -1] = 100
    confusion[[0, 1]] = 100 // count  # so that the move itself gains nothing
    confusion[2, -1] += 10_000 - confusion.sum()
    price = elasso_cost(confusion, uneven) - elasso_cost(confusion, even)
    gain = confusion[0, 1] - confusion[0, 0]
    assert gain == 0
    assert price == pytest.approx(images, rel=0.02)


def test_ties_keep_the_current_specialty():
    start = random_balanced(30, 5, generator(2))
    assert elasso(np.ones((30, 5)), start, generator(), sweeps=None) == start
    # Without a price for size: one class ties with another column, one class would rather be elsewhere.
    confusion = [[1, 4, 4], [4, 4, 0], [3, 2, 1]]
    start = Specialties([2, 1, 0])
    assert elasso(confusion, start, generator(), strength=0) == start
    assert elasso([[1, 4, 5], [4, 5, 0], [2, 3, 1]], start, generator(), strength=0).groups() == ((1, 2), (0,))


def test_no_strength_is_argmax_and_much_strength_is_balance():
    confusion, _ = planted(60, 7, images=1000, share=0.02)
    confusion = 7 * confusion + generator().permuted(np.tile(np.arange(7), (60, 1)), axis=1)  # no ties in a row
    start = random_balanced(60, 7, generator(1))
    free = elasso(confusion, start, generator(), strength=0)
    assert free == argmax(confusion, start, generator())
    assert free.sizes.max() - free.sizes.min() > 1
    from_one = Specialties.from_labels_dropping_empty(np.zeros(60, int), 7)
    even = elasso(confusion, from_one, generator(), strength=1e6, sweeps=None)
    assert (even.count, even.sizes.max() - even.sizes.min()) == (7, 1)


def test_from_a_balanced_start_nothing_moves_once_a_move_costs_a_whole_class():
    confusion, _ = planted(200, 100, images=100, share=0.9)
    start = random_balanced(200, 100, generator(8))
    assert elasso(confusion, start, generator(), strength=1000, sweeps=None) == start
    assert elasso(confusion, start, generator(), strength=300, sweeps=None) != start


@pytest.mark.parametrize("rule", [elasso, argmax])
def test_an_emptied_specialty_is_dropped_and_comes_back(rule):
    options = {"strength": 10.0} if rule is elasso else {}
    away = np.array([[9, 0, 0], [9, 0, 0], [0, 0, 9], [0, 0, 9]])
    dropped = rule(away, Specialties([0, 1, 2, 1]), generator(), **options)
    assert dropped.count == 2
    assert dropped.columns.tolist() == [0, 2]
    assert dropped.target_of_class.tolist() == [0, 0, 2, 2]
    back = np.array([[9, 0, 0], [0, 9, 0], [0, 0, 9], [0, 0, 9]])
    assert rule(back, dropped, generator(), **options) == Specialties([0, 1, 2, 2])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"strength": -1.0}, "strength: -1.0 given"),
        ({"strength": math.nan}, "strength: nan given"),
        ({"strength": math.inf}, "strength: inf given"),
        ({"sweeps": 0}, "sweeps: 0 given; pass at least 1, or None"),
    ],
)
def test_options_are_checked(options, message):
    with pytest.raises(UserError, match=message):
        elasso(np.ones((2, 2)), Specialties([0, 1]), generator(), **options)
