"""The experts beside the base, by hand and by counting again."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.sparse import csr_array
from scipy.stats import binomtest

from nofe.report.against import (
    alone_in_words,
    base_of,
    by_class,
    class_figures,
    difference_in_words,
    gain,
    most_changed,
    pair_figures,
    shares_of_mistakes,
)
from nofe.report.record import Alone, recognised_alone
from nofe.specialties import Specialties, class_confusion

NAMES = ("crow", "jay, blue", "lynx", "puma", "yeti")
SPECIALTIES = Specialties([0, 0, 1, 1, 1])
BASE = csr_array([[6, 4, 0, 0, 0], [2, 5, 3, 0, 0], [0, 1, 9, 0, 0], [0, 0, 0, 10, 0], [0, 0, 0, 0, 0]])
EXPERTS = csr_array([[9, 1, 0, 0, 0], [1, 7, 2, 0, 0], [0, 2, 8, 0, 0], [0, 0, 0, 10, 0], [0, 0, 0, 0, 0]])
BOTH = {"base": BASE, "experts": EXPERTS}


def test_accuracy_of_every_class_for_both() -> None:
    """The last has no test images."""
    assert by_class(BASE)[:4].tolist() == [0.6, 0.5, 0.9, 1.0]
    assert np.isnan(by_class(BASE)[4])
    crow, *_, yeti = class_figures(BOTH, SPECIALTIES, NAMES)
    assert (crow.name, crow.specialty, crow.images, crow.accuracy) == ("crow", 0, 10, {"base": 0.6, "experts": 0.9})
    assert (yeti.images, yeti.accuracy) == (0, {"base": None, "experts": None})


def test_classes_that_gained_and_lost_most() -> None:
    classes = [dataclasses.asdict(each) for each in class_figures(BOTH, SPECIALTIES, NAMES)]
    gained, lost = most_changed(classes, "base")
    assert [each["name"] for each in gained] == ["crow", "jay, blue"]
    assert [each["name"] for each in lost] == ["lynx"]
    assert gain(gained[0], "base") == pytest.approx(0.3)
    assert [each["name"] for each in most_changed(classes, "base", count=1)[0]] == ["crow"]


def test_pairs_that_the_base_confuses() -> None:
    first, second = pair_figures(BOTH, SPECIALTIES, NAMES)
    assert (first.names, first.inside, first.images) == (("crow", "jay, blue"), True, 20)
    assert first.confused == {"base": 6, "experts": 2}
    assert (second.names, second.specialties, second.inside) == (("jay, blue", "lynx"), (0, 1), False)
    assert second.confused == {"base": 4, "experts": 4}
    assert pair_figures({"experts": EXPERTS}, SPECIALTIES, NAMES) == []


def test_where_the_gain_comes_from() -> None:
    shares = {stage: shares_of_mistakes(each, SPECIALTIES) for stage, each in BOTH.items()}
    assert shares["base"] == {"confused_inside": 6 / 40, "confused_across": 4 / 40}
    told = difference_in_words(shares["base"], shares["experts"], 40, Alone(5, 1))
    assert "Of 40 images the experts take 4 fewer than the base for another class of the right specialty" in told
    assert f"and as many as the base for a class of another one. {alone_in_words(Alone(5, 1))}" in told
    assert "take 4 more than the base" in difference_in_words(shares["experts"], shares["base"], 40, Alone(1, 5))


@pytest.mark.parametrize("counts", [(0, 0), (1, 0), (14, 7), (7, 14), (30, 30), (9, 0), (2100, 1900), (1, 3000)])
def test_what_chance_alone_would_do_is_the_sign_test(counts: tuple[int, int]) -> None:
    expected = binomtest(counts[0], sum(counts)).pvalue if sum(counts) else 1.0
    assert Alone(*counts).by_chance == pytest.approx(expected, abs=1e-12)


def test_images_that_one_network_alone_recognises() -> None:
    labels, base, experts = np.array([[0, 1, 2, 3, 4, 0], [0, 1, 1, 1, 1, 2], [0, 1, 2, 3, 0, 3]])
    alone = recognised_alone(labels, base, experts)
    assert alone == Alone(experts=2, base=0)
    told = "2 images only the experts recognise, and 0 only the base: a fair coin would part 2 as unevenly, or more, in"
    assert alone_in_words(alone) == f"{told} 50% of all cases."
    assert alone_in_words(Alone(90, 9)).endswith("in less than 0.1% of all cases.")
    assert alone_in_words(recognised_alone(labels, base, base)) == "Both recognise the same images."


def test_the_base_by_the_same_recipe_comes_first() -> None:
    assert base_of({"base-paper", "base", "experts"}) == "base"
    assert base_of({"base-paper", "experts"}) == "base-paper"
    assert base_of({"experts"}) is None


@given(data=st.data(), classes=st.integers(2, 6), images=st.integers(1, 40))
def test_figures_add_up(data: st.DataObject, classes: int, images: int) -> None:
    several = st.lists(st.integers(0, classes - 1), min_size=images, max_size=images)
    labels, base, experts = (np.array(data.draw(several)) for _ in range(3))
    specialties = Specialties(np.arange(classes) % 2)
    names = [f"{c}" for c in range(classes)]
    both = {"base": class_confusion(labels, base, classes), "experts": class_confusion(labels, experts, classes)}
    for stage, first in (("base", base), ("experts", experts)):
        right = sum(each.images * (each.accuracy[stage] or 0) for each in class_figures(both, specialties, names))
        assert right == pytest.approx((first == labels).sum())
        shares = shares_of_mistakes(both[stage], specialties)
        assert sum(shares.values()) == pytest.approx((first != labels).mean())
    for pair in pair_figures(both, specialties, names):
        a, b = map(int, pair.names)
        for stage, first in (("base", base), ("experts", experts)):
            literally = sum((y, p) in ((a, b), (b, a)) for y, p in zip(labels, first, strict=True))
            assert pair.confused[stage] == literally
