"""A slice of WordNet is a partition by meaning."""

import re
from importlib.resources import files
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nofe.errors import UserError
from nofe.specialties import Specialties, wordnet_specialties
from nofe.specialties.wordnet import hypernyms, path_of

DOG, CAT, TROUT, TENCH, DAISY, CAR, TRUCK = (
    "n02084071", "n02121620", "n01449374", "n01440764", "n11939491", "n02958343", "n04490091",
)  # fmt: skip
SYNSETS = sorted(hypernyms())


def test_the_table_is_wordnet_3_0() -> None:
    assert hypernyms()[DOG] == ("n02083346", "n01317541"), "a canine and a domestic animal"
    assert [name for name, above in hypernyms().items() if not above] == ["n00001740"], "entity is above all"
    assert all(parent in hypernyms() for above in hypernyms().values() for parent in above)
    assert len(hypernyms()) > 21_841


def test_the_licence_goes_with_the_table() -> None:
    notice = (files("nofe.specialties") / "wordnet-LICENSE.txt").read_text()
    assert "WordNet 3.0 Copyright 2006 by Princeton University" in notice
    assert "appear on ALL copies" in notice


def test_a_path_goes_down_from_the_root_by_first_hypernyms() -> None:
    path = path_of(DOG)
    assert path[0] == "n00001740"
    assert path[-1] == DOG
    for above, below in pairwise(path):
        assert hypernyms()[below][0] == above


def test_animals_plants_and_vehicles_part_where_a_person_would_part_them() -> None:
    names = [DOG, CAR, TENCH, DAISY, CAT, TRUCK, TROUT]
    groups = {frozenset(names[c] for c in group) for group in wordnet_specialties(names, 3).groups()}
    assert frozenset({CAR, TRUCK}) in groups
    assert frozenset({DAISY}) in groups
    assert frozenset({DOG, CAT, TENCH, TROUT}) in groups


@given(names=st.lists(st.sampled_from(SYNSETS), min_size=2, max_size=60, unique=True), data=st.data())
def test_any_classes_in_any_number_of_groups(names: list[str], data: st.DataObject) -> None:
    count = data.draw(st.integers(2, len(names)))
    specialties = wordnet_specialties(names, count)
    assert specialties.classes == len(names)
    assert specialties.count == count


@given(names=st.lists(st.sampled_from(SYNSETS), min_size=2, max_size=40, unique=True), data=st.data())
def test_the_order_of_the_classes_does_not_matter(names: list[str], data: st.DataObject) -> None:
    count = data.draw(st.integers(2, len(names)))
    order = data.draw(st.permutations(range(len(names))))
    one = wordnet_specialties(names, count).specialty_of_class
    other = wordnet_specialties([names[i] for i in order], count).specialty_of_class
    together = one[:, None] == one[None, :]
    assert ((other[:, None] == other[None, :]) == together[np.ix_(order, order)]).all()


@given(names=st.lists(st.sampled_from(SYNSETS), min_size=2, max_size=40, unique=True))
def test_as_many_groups_as_classes(names: list[str]) -> None:
    assert wordnet_specialties(names, len(names)) == Specialties(np.arange(len(names)))


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["dog", CAT], "class 'dog' is not the id of a WordNet synset such as n02084071; name classes as ImageNet"),
        (["n99999999", CAT], "'n99999999' is no synset of ImageNet; ids must be of WordNet 3.0"),
    ],
)
def test_classes_that_are_no_synsets(names: list[str], message: str) -> None:
    with pytest.raises(UserError, match=re.escape(message)):
        wordnet_specialties(names, 2)
