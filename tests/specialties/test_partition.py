import copy
import json
import pickle
from dataclasses import FrozenInstanceError

import numpy as np
import pytest
from hypothesis import given
from specialty_cases import few, partitions

from nofe.errors import UserError
from nofe.specialties import Specialties

LABELS = [1, 0, 1, 2, 0]
NAMES = ["apple", "bear", "cup", "dog", "eel"]


def test_reads_as_written():
    specialties = Specialties(LABELS)
    assert (specialties.classes, specialties.count) == (5, 3)
    assert specialties.specialty_of_class.tolist() == LABELS
    assert specialties.sizes.tolist() == [2, 2, 1]
    assert specialties.groups() == ((1, 4), (0, 2), (3,))
    assert specialties.members(1).tolist() == [0, 2]
    assert specialties.class_of_slot.tolist() == [1, 4, 0, 2, 3]
    assert specialties.slot_of_class.tolist() == [2, 0, 3, 4, 1]
    assert specialties.target_of_class.tolist() == LABELS


@pytest.mark.parametrize(
    "labels", [tuple(LABELS), np.array(LABELS, np.uint8), np.array(LABELS, np.int32), np.array(LABELS, float)]
)
def test_any_sequence_of_whole_numbers_builds_it(labels):
    assert Specialties(labels) == Specialties(LABELS)
    assert Specialties(labels).specialty_of_class.dtype == np.int64


@few
@given(partitions())
def test_slots_order_classes_by_expert(specialties):
    slots = specialties.slot_of_class
    assert specialties.class_of_slot[slots].tolist() == list(range(specialties.classes))
    expert_of_slot = specialties.specialty_of_class[specialties.class_of_slot]
    assert expert_of_slot.tolist() == sorted(expert_of_slot)
    assert [c for group in specialties.groups() for c in group] == specialties.class_of_slot.tolist()
    assert all(list(group) == sorted(group) for group in specialties.groups())


@few
@given(partitions())
def test_groups_and_json_lead_back(specialties):
    assert Specialties.from_groups(specialties.groups(), specialties.classes, specialties.columns) == specialties
    names = [f"class {c}" for c in range(specialties.classes)]
    for described in (specialties.to_json(names), specialties.to_json()):
        assert Specialties.from_json(json.loads(json.dumps(described))) == specialties


def test_json_is_for_people():
    assert Specialties(LABELS).to_json(NAMES) == {
        "format_version": 1,
        "class_count": 5,
        "specialty_count": 3,
        "specialties": [
            {"index": 0, "size": 2, "class_ids": [1, 4], "class_names": ["bear", "eel"]},
            {"index": 1, "size": 2, "class_ids": [0, 2], "class_names": ["apple", "cup"]},
            {"index": 2, "size": 1, "class_ids": [3], "class_names": ["dog"]},
        ],
    }
    assert Specialties(LABELS, [0, 2, 3]).to_json(NAMES)["columns"] == [0, 2, 3]
    with pytest.raises(UserError, match="class names: 2 given for 5 classes"):
        Specialties(LABELS).to_json(["apple", "bear"])


def test_dropping_empty_keeps_order_and_outputs():
    specialties = Specialties.from_labels_dropping_empty([4, 1, 4, 1, 3], count=6)
    assert specialties.specialty_of_class.tolist() == [2, 0, 2, 0, 1]
    assert specialties.columns.tolist() == [1, 3, 4]
    assert specialties.target_of_class.tolist() == [4, 1, 4, 1, 3]
    with pytest.raises(UserError, match="labels: run from 1 to 4; pass labels from 0 to 3"):
        Specialties.from_labels_dropping_empty([4, 1, 4, 1, 3], count=4)


def test_equality_is_of_partition_and_columns():
    assert Specialties(LABELS) == Specialties(tuple(LABELS), range(3))
    assert hash(Specialties(LABELS)) == hash(Specialties(tuple(LABELS), range(3)))
    assert Specialties(LABELS) != Specialties(LABELS, [0, 1, 3])
    assert Specialties(LABELS) != Specialties([1, 0, 1, 2, 1])
    assert Specialties(LABELS) != LABELS
    assert len({Specialties(LABELS), Specialties(LABELS), Specialties([0, 1, 1, 2, 0])}) == 2


def test_cannot_be_changed():
    given_labels = np.array(LABELS)
    specialties = Specialties(given_labels)
    given_labels[0] = 0
    assert specialties.specialty_of_class[0] == 1
    with pytest.raises(FrozenInstanceError):
        specialties.columns = np.arange(3)
    for copied in (specialties, copy.deepcopy(specialties), pickle.loads(pickle.dumps(specialties))):
        assert copied == specialties
        for array in (copied.specialty_of_class, copied.columns):
            with pytest.raises(ValueError, match="read-only"):
                array[0] = 0


@pytest.mark.parametrize(
    ("labels", "columns", "message"),
    [
        ([], None, "specialty_of_class: is empty"),
        (np.array([[0, 1]]), None, "has 2 dimensions"),
        ([[0, 1], [2]], None, r"groups of classes, .* pass Specialties\.from_groups"),
        (Specialties(LABELS).groups(), None, "groups of classes"),
        ({"birds": [0, 1], "cats": [2]}, None, "groups of classes"),
        ([0, 1, 1], [[0], [1, 2]], "columns: not an array of numbers"),
        ([0, 0.5], None, "fractions"),
        ([0, float("nan")], None, "not finite"),
        ([True, False], None, "holds bool values"),
        (["0", "1"], None, "pass whole numbers"),
        ([0, 2**60], None, "2\\^53"),
        ([0, 10**30], None, "holds object values"),
        ([0, -1, 1], None, "class 1 is in specialty -1"),
        ([0, 3, 1], None, "class 1 is in specialty 3"),
        ([0, 2, 2], None, "specialty 1 has no class"),
        ([0, 1], [0], "columns: 1 given for 2 specialties"),
        ([0, 1], [1, 0], "columns: must ascend"),
        ([0, 1], [1, 1], "columns: must ascend"),
        ([0, 1], [-1, 1], "columns: must ascend"),
    ],
)
def test_cannot_be_built_wrong(labels, columns, message):
    with pytest.raises(UserError, match=message) as caught:
        Specialties(labels, columns)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("groups", "classes", "message"),
    [
        ([[0, 1], []], 2, "specialty 1 is empty"),
        ([[0, 1], [2, 0]], 3, "class 0 is in specialty 0 and again in 1"),
        ([[0, 1], [1]], 3, "class 1 is in specialty 0 and again in 1"),
        ([[0, 2]], 3, "class 1 is in no specialty"),
        ([[0, 3]], 3, "specialty 0 has class 3; classes are 0 to 2"),
        ([[0, -1]], 3, "specialty 0 has class -1"),
        ([], 0, "0 classes given"),
    ],
)
def test_groups_must_be_a_partition(groups, classes, message):
    with pytest.raises(UserError, match=message):
        Specialties.from_groups(groups, classes)


def test_members_of_no_specialty():
    with pytest.raises(UserError, match="specialty 3: there is none; choose from 0 to 2"):
        Specialties(LABELS).members(3)
    with pytest.raises(UserError, match="specialty -1"):
        Specialties(LABELS).members(-1)


def _with(change):
    described = Specialties(LABELS, [0, 2, 3]).to_json(NAMES)
    change(described, described["specialties"])
    return described


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda top, _: top.update(format_version=2), "x.json: format_version is 2; this nofe reads 1"),
        (lambda top, _: top.pop("class_count"), "x.json: class_count is missing"),
        (lambda top, _: top.update(class_count=6), "x.json: class_count is 6 where 5 belongs"),
        (lambda top, _: top.update(class_count=True), "x.json: class_count is True; write a whole number"),
        (lambda top, _: top.update(specialty_count=2), "x.json: specialty_count is 2 where 3 belongs"),
        (lambda top, _: top.update(specialties={}), "x.json: specialties is not a list"),
        (lambda top, _: top.update(columns=[0, 2]), "x.json: columns: 2 given for 3"),
        (lambda top, _: top.update(columns=[0, 2, 2.5]), "x.json: columns holds something"),
        (lambda _, parts: parts.__setitem__(1, []), r"x.json: specialties\[1\]: a list where an object"),
        (lambda _, parts: parts[1].update(index=0), r"x.json: specialties\[1\].index is 0 where 1"),
        (lambda _, parts: parts[1].update(size=3), r"x.json: specialties\[1\].size is 3 where 2"),
        (lambda _, parts: parts[1].update(class_names=["a"]), r"specialties\[1\] needs a name for each"),
        (lambda _, parts: parts[1].update(class_ids=[0, "2"]), r"specialties\[1\].class_ids holds something"),
        (lambda _, parts: parts[1].update(class_ids=[0, 4]), "x.json: class 4 is in specialty 0 and again"),
        (lambda _, parts: parts[1].update(class_ids=[0, 5]), "x.json: specialty 1 has class 5"),
    ],
)
def test_json_is_checked(change, message):
    with pytest.raises(UserError, match=f"^.*{message}"):
        Specialties.from_json(_with(change), source="x.json")


def test_json_must_be_an_object():
    with pytest.raises(UserError, match=r"^specialties.json: a list where an object belongs"):
        Specialties.from_json([1, 2])
