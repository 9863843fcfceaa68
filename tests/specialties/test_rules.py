"""What holds for every rule, and finding one by name."""

import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from specialty_cases import cases, few, generator, planted, sizes_by_column

from nofe.errors import UserError
from nofe.specialties import (
    RULES,
    Specialties,
    adjusted_rand,
    agreement,
    classes_moved,
    elasso,
    random_balanced,
    rule_named,
    update_named,
)

UPDATING = [rule.name for rule in RULES.values() if rule.updates]


@pytest.mark.parametrize("name", UPDATING)
@few
@given(case=cases())
def test_an_update_is_a_pure_function_to_a_partition_of_the_same_classes(name, case):
    update = update_named(name)
    confusion, current = case.confusion.copy(), Specialties(case.current.specialty_of_class, case.current.columns)
    updated = update(case.confusion, case.current, generator(case.seed))
    assert (updated.classes, updated.sizes.sum()) == (len(confusion), len(confusion))
    assert updated.columns[0] >= 0
    assert updated.columns[-1] < confusion.shape[1]
    assert (case.confusion == confusion).all()
    assert case.current == current
    assert update(confusion, current, generator(case.seed)) == updated
    assert update(confusion.astype(float).tolist(), current, generator(case.seed)) == updated


@pytest.mark.parametrize("name", ["fully-balanced", "exact"])
@few
@given(case=cases(max_classes=30, max_count=12))
def test_balanced_rules_use_every_output_and_differ_in_size_by_at_most_one(name, case):
    classes, outputs = case.confusion.shape
    updated = update_named(name)(case.confusion, case.current, generator(case.seed))
    sizes = sizes_by_column(updated, outputs)
    assert sizes.min() == classes // outputs
    assert (sizes > classes // outputs).sum() == classes % outputs
    assert sizes.max() <= -(-classes // outputs)


@pytest.mark.parametrize("name", UPDATING)
@pytest.mark.parametrize(("classes", "count"), [(100, 10), (103, 10)])
def test_planted_specialties_are_recovered(name, classes, count):
    confusion, truth = planted(classes, count, images=100, share=0.6, seed=classes)
    start = random_balanced(classes, count, generator(1))
    update = update_named(name, strength=100.0, sweeps=None)
    assert adjusted_rand(start, truth) < 0.1
    assert update(confusion, start, generator(2)) == truth


@pytest.mark.parametrize("name", UPDATING)
def test_planted_specialties_are_found_under_noise(name):
    # Classes out of place, mean of 20 seeds: exact 9, argmax 10, elasso 13, fully-balanced 17, by chance 360.
    # The greedy has the most: a class that looks better elsewhere takes the seat of one that belongs there.
    confusion, truth = planted(400, 10, images=40, share=0.25)
    update = update_named(name, strength=200.0, sweeps=None)
    updated = update(confusion, random_balanced(400, 10, generator(1)), generator(2))
    assert classes_moved(truth, updated) <= 40
    if name == "exact":  # the planted partition is one it may choose
        assert agreement(confusion, updated) >= agreement(confusion, truth)


@pytest.mark.parametrize("name", UPDATING)
def test_extremes(name):
    update = update_named(name)
    assert update([[3], [0], [1]], Specialties([0, 0, 0]), generator()) == Specialties([0, 0, 0])
    assert update([[7]], Specialties([0]), generator()) == Specialties([0])
    one_each = np.roll(np.eye(5, dtype=int), 1, axis=1)
    if name != "elasso":  # whose default strength prices every move away here
        assert update(one_each, Specialties(range(5)), generator()) == Specialties([1, 2, 3, 4, 0])


@pytest.mark.parametrize("name", UPDATING)
@pytest.mark.parametrize(
    ("confusion", "message"),
    [
        (np.ones((3, 2)), "has 3 rows and the specialties have 4 classes; count a row for each class"),
        (np.ones((4, 2)), "has 2 columns and the specialties use generalist output 2"),
        (np.full((4, 3), 0.25), "holds fractions"),
        (np.full((4, 3), np.nan), "not finite"),
        (np.full((4, 3), -1), "holds negative counts"),
        (np.zeros((4, 3)), "counts no image"),
        (np.full((4, 3), 2**52), r"counts 2\^53 images or more"),
        (np.ones(4), "has 1 dimensions"),
        (np.ones((4, 3), dtype=bool), "holds bool values"),
        ([[1, 2, 3], [1, 2]], "not an array of numbers"),
    ],
)
def test_a_wrong_confusion_is_refused(name, confusion, message):
    with pytest.raises(UserError, match=f"^confusion: .*{message}") as caught:
        update_named(name)(confusion, Specialties([0, 1, 2, 2]), generator())
    assert "\n" not in str(caught.value)


def test_rules_are_found_by_name():
    assert list(RULES) == ["fully-balanced", "exact", "elasso", "argmax", "random", "spectral", "groups", "wordnet"]
    assert UPDATING == ["fully-balanced", "exact", "elasso", "argmax"]
    for name, rule in RULES.items():
        assert rule_named(name) is rule
        assert rule.name == name
        assert "\n" not in rule.summary
    with pytest.raises(UserError, match=r"^rule 'fuly-balanced': there is none; did you mean 'fully-balanced'"):
        rule_named("fuly-balanced")
    with pytest.raises(UserError, match=r"^rule 'xyz': there is none; choose from fully-balanced, exact, el"):
        rule_named("xyz")


def test_fixed_rules_do_not_update():
    for name in ("random", "spectral", "groups"):
        with pytest.raises(UserError, match=f"^rule '{name}': its specialties are fixed"):
            update_named(name)
    with pytest.raises(UserError, match="did you mean 'elasso'"):
        update_named("elaso")


def test_options_reach_elasso():
    confusion, _ = planted(100, 10)
    start = random_balanced(100, 10, generator(1))
    for options in ({"strength": 50.0}, {"sweeps": None}, {"strength": 500.0, "sweeps": 2}):
        named = update_named("elasso", **options)(confusion, start, generator(1))
        assert named == elasso(confusion, start, generator(1), **options)
        assert named != elasso(confusion, start, generator(1))


def test_importing_specialties_is_light():
    heavy = "{'torch', 'ot', 'sklearn', 'scipy'} & set(sys.modules)"
    code = f"import sys, nofe.specialties; print(sorted({heavy}))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "[]\n"
