import warnings

import numpy as np
import pytest
from hypothesis import given
from specialty_cases import cases, few, generator, planted

from nofe.errors import UserError
from nofe.specialties import (
    Specialties,
    adjusted_rand,
    argmax,
    baselines,
    exact,
    given_groups,
    random_balanced,
    spectral,
)


@few
@given(cases())
def test_argmax_takes_the_best_and_moves_only_for_more(case):
    updated = argmax(case.confusion, case.current, generator(case.seed)).target_of_class
    rows = np.arange(len(updated))
    best = case.confusion.max(axis=1)
    assert (case.confusion[rows, updated] == best).all()
    was_best = case.confusion[rows, case.current.target_of_class] == best
    assert (updated == case.current.target_of_class)[was_best].all()


def test_argmax_ties_favour_no_specialty():
    confusion = [[0, 5, 5]]
    start = Specialties([0])
    picks = [argmax(confusion, start, generator(seed)).target_of_class[0] for seed in range(300)]
    assert 0.4 < np.mean(np.array(picks) == 1) < 0.6
    assert set(picks) == {1, 2}


def test_argmax_is_as_uneven_as_the_paper_says():
    """A generalist that prefers one output: argmax follows it, the balanced rule does not."""
    confusion, _ = planted(100, 10, images=100, share=0.2)
    confusion[:, 4] += 25
    start = random_balanced(100, 10, generator())
    assert argmax(confusion, start, generator()).sizes.max() > 50
    assert exact(confusion, start, generator()).sizes.max() == 10


def confused_blocks(truth, inside, across, seed=0):
    """A base's confusion of classes: mistakes inside a specialty and across, most images right."""
    same = truth.specialty_of_class[:, None] == truth.specialty_of_class
    counts = generator(seed).poisson(np.where(same, inside, across))
    np.fill_diagonal(counts, 60)
    return counts


@pytest.mark.parametrize(("classes", "count"), [(60, 6), (50, 7), (9, 3), (8, 2)])
def test_spectral_recovers_planted_specialties(classes, count):
    truth = random_balanced(classes, count, generator(classes))
    confusion = confused_blocks(truth, inside=4, across=0.2)
    before = confusion.copy()
    found = spectral(confusion, count, generator())
    assert adjusted_rand(truth, found) > 0.95
    assert (confusion == before).all()
    assert found == spectral(confusion, count, generator())
    assert found.columns.tolist() == list(range(found.count))


def test_spectral_reads_mistakes_both_ways():
    truth = random_balanced(40, 4, generator(1))
    one_way = np.triu(confused_blocks(truth, inside=8, across=0.2))
    assert adjusted_rand(truth, spectral(one_way, 4, generator())) > 0.95


@pytest.mark.parametrize("isolated", [0, 3])
def test_spectral_takes_a_confusion_in_pieces(isolated):
    truth = random_balanced(40, 4, generator(1))
    confusion = confused_blocks(truth, inside=6, across=0)
    assert (confusion[truth.specialty_of_class[:, None] != truth.specialty_of_class] == 0).all()
    for c in range(isolated):  # classes that are always right and never mistaken for
        confusion[c], confusion[:, c], confusion[c, c] = 0, 0, 60
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = spectral(confusion, 4, generator())
    keep = slice(isolated, None)
    assert adjusted_rand(*(given_groups(s.specialty_of_class[keep]) for s in (truth, found))) > 0.95


@pytest.mark.parametrize("count", [1, 2, 5, 6])
def test_spectral_survives_a_confusion_without_mistakes(count):
    found = spectral(np.eye(6, dtype=int), count, generator())
    assert found.classes == 6
    assert 1 <= found.count <= count
    if count in (1, 6):
        assert found.count == count


@pytest.mark.parametrize(
    ("confusion", "count", "message"),
    [
        (np.ones((3, 2)), 2, "confusion of classes: has 3 rows and 2 columns"),
        (np.ones((3, 3)), 4, "specialties: 4 of them cannot share 3 classes"),
        (np.ones((3, 3)), 0, "specialties: 0 of them"),
        (np.zeros((3, 3)), 2, "confusion: counts no image"),
        (-np.ones((3, 3)), 2, "confusion: holds negative counts"),
    ],
)
def test_spectral_checks_its_input(confusion, count, message):
    with pytest.raises(UserError, match=message):
        spectral(confusion, count, generator())


def test_given_groups_are_renumbered():
    assert given_groups([30, 7, 30, -2]).specialty_of_class.tolist() == [2, 1, 2, 0]
    assert given_groups(["fish", "bird", "fish"]).specialty_of_class.tolist() == [1, 0, 1]
    assert given_groups(np.array([5, 5])) == Specialties([0, 0])


@pytest.mark.parametrize("groups", [[], [[1, 2]], [1.5, 2.0], [None, None]])
def test_given_groups_are_checked(groups):
    with pytest.raises(UserError, match=r"groups: .*; pass"):
        given_groups(groups)


def test_many_classes_go_the_sparse_way_and_come_out_as_planted(monkeypatch):
    """Groups that nothing links are pieces of the graph; the sparse way joins them by weak links."""
    from scipy.sparse import csr_array

    monkeypatch.setattr(baselines, "DENSE_CLASSES", 50)
    rng = np.random.default_rng(0)
    truth = np.arange(120) % 4
    counts = rng.integers(0, 5, size=(120, 120)) * (truth[:, None] == truth[None, :])
    found = spectral(csr_array(counts), 4, np.random.default_rng(1))
    assert adjusted_rand(Specialties(truth), found) == 1.0
    dense = spectral(counts[:48, :48], 4, np.random.default_rng(1))
    assert dense == spectral(csr_array(counts[:48, :48]), 4, np.random.default_rng(1)), "sparse or not is the same"


def test_an_eigensolver_that_ends_near_enough_says_nothing(monkeypatch):
    """It would print the accuracy of each vector, a hundred of them in the midst of a training."""
    monkeypatch.setattr(baselines, "DENSE_CLASSES", 50)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for seed in range(3):
            rng = np.random.default_rng(seed)
            rarely_confused = np.eye(120, dtype=np.int64) * 20 + (rng.random((120, 120)) < 1 / 300)
            assert spectral(rarely_confused, 4, rng).count == 4
