"""The partition of classes into specialties, as a value that cannot be built wrong."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from nofe.errors import UserError
from nofe.specialties.checks import IntArray, whole_numbers

FORMAT_VERSION = 1


@dataclass(frozen=True, init=False, eq=False, repr=False)
class Specialties:
    """Every class in exactly one of K specialties, numbered 0..K-1, none empty (the mapping l of Sec. 3.1).

    `columns` says which output of the generalist stands for each specialty. It is 0..K-1 until a rule empties
    a specialty: that one is dropped here, but its output stays in the generalist and its column in the
    confusion, so a later update may bring it back. Experts are grown from the partition and ignore `columns`.
    """

    specialty_of_class: IntArray  # (C,) read-only
    columns: IntArray  # (K,) read-only, ascending

    def __init__(self, specialty_of_class: npt.ArrayLike, columns: npt.ArrayLike | None = None) -> None:
        labels = _checked_labels(specialty_of_class)
        count = int(labels.max()) + 1
        outputs = np.arange(count) if columns is None else _checked_columns(columns, count)
        labels.setflags(write=False)
        outputs.setflags(write=False)
        object.__setattr__(self, "specialty_of_class", labels)
        object.__setattr__(self, "columns", outputs)

    @classmethod
    def from_groups(cls, groups: Iterable[Iterable[int]], classes: int, columns: npt.ArrayLike | None = None) -> Self:
        """The partition whose specialty k is the k-th group of class ids."""
        if classes < 1:
            raise UserError(f"specialties: {classes} classes given; pass at least one class")
        specialty_of_class = np.full(classes, -1)
        for k, group in enumerate(groups):
            ids = list(group)
            if not ids:
                raise UserError(f"specialties: specialty {k} is empty; give it a class or leave it out")
            for c in whole_numbers(ids, f"specialty {k}").tolist():
                if not 0 <= c < classes:
                    raise UserError(f"specialties: specialty {k} has class {c}; classes are 0 to {classes - 1}")
                if specialty_of_class[c] >= 0:
                    raise UserError(
                        f"specialties: class {c} is in specialty {specialty_of_class[c]} and again in {k}; "
                        "list each class once"
                    )
                specialty_of_class[c] = k
        missing = np.flatnonzero(specialty_of_class < 0)
        if missing.size:
            raise UserError(f"specialties: class {missing[0]} is in no specialty; list each class once")
        return cls(specialty_of_class, columns)

    @classmethod
    def from_labels_dropping_empty(cls, labels: npt.ArrayLike, count: int) -> Self:
        """The partition of labels that use some of 0..`count`-1; the labels in use become `columns`.

        For rules that may empty a specialty: the rest keep their order and their generalist outputs.
        """
        targets = whole_numbers(labels, "labels")
        if targets.min() < 0 or targets.max() >= count:
            raise UserError(f"labels: run from {targets.min()} to {targets.max()}; pass labels from 0 to {count - 1}")
        columns, specialty_of_class = np.unique(targets, return_inverse=True)
        return cls(specialty_of_class, columns)

    @property
    def classes(self) -> int:
        """C."""
        return len(self.specialty_of_class)

    @property
    def count(self) -> int:
        """K, specialties that hold a class; the generalist may have more outputs."""
        return len(self.columns)

    @property
    def sizes(self) -> IntArray:
        """Classes in each specialty, (K,)."""
        return np.bincount(self.specialty_of_class, minlength=self.count)

    @property
    def target_of_class(self) -> IntArray:
        """The generalist output each class is trained towards, (C,)."""
        return self.columns[self.specialty_of_class]

    @property
    def class_of_slot(self) -> IntArray:
        """Class of each concatenated expert output, (C,): expert by expert, ascending inside each."""
        return np.argsort(self.specialty_of_class, kind="stable")

    @property
    def slot_of_class(self) -> IntArray:
        """The inverse of `class_of_slot`, (C,)."""
        slots = np.empty(self.classes, dtype=np.int64)
        slots[self.class_of_slot] = np.arange(self.classes)
        return slots

    def members(self, specialty: int) -> IntArray:
        """Class ids of one specialty, ascending."""
        if not 0 <= specialty < self.count:
            raise UserError(f"specialty {specialty}: there is none; choose from 0 to {self.count - 1}")
        return np.flatnonzero(self.specialty_of_class == specialty)

    def groups(self) -> tuple[tuple[int, ...], ...]:
        """Class ids of every specialty, ascending inside each."""
        ends = np.cumsum(self.sizes)[:-1]
        return tuple(tuple(group.tolist()) for group in np.split(self.class_of_slot, ends))

    def to_json(self, class_names: Sequence[str] | None = None) -> dict[str, Any]:
        """A dict for specialties.json that a person can read: ids and, if given, names, specialty by specialty."""
        if class_names is not None and len(class_names) != self.classes:
            raise UserError(
                f"class names: {len(class_names)} given for {self.classes} classes; pass one for each class"
            )
        described: dict[str, Any] = {
            "format_version": FORMAT_VERSION,
            "class_count": self.classes,
            "specialty_count": self.count,
        }
        if not np.array_equal(self.columns, np.arange(self.count)):
            described["columns"] = self.columns.tolist()
        described["specialties"] = specialties = []
        for k, group in enumerate(self.groups()):
            specialties.append({"index": k, "size": len(group), "class_ids": list(group)})
            if class_names is not None:
                specialties[k]["class_names"] = [class_names[c] for c in group]
        return described

    @classmethod
    def from_json(cls, described: object, source: str = "specialties.json") -> Self:
        """What `to_json` wrote, checked; `source` names the input in errors."""
        fields = _Fields(described, f"{source}: ")
        version = fields.whole("format_version")
        if version != FORMAT_VERSION:
            raise UserError(f"{source}: format_version is {version}; this nofe reads {FORMAT_VERSION}")
        groups = []
        for k, entry in enumerate(fields.items("specialties")):
            specialty = _Fields(entry, f"{source}: specialties[{k}].")
            ids = specialty.whole_numbers("class_ids")
            specialty.expect("index", k)
            specialty.expect("size", len(ids))
            if "class_names" in specialty.values and len(specialty.items("class_names")) != len(ids):
                raise UserError(f"{source}: specialties[{k}] needs a name for each class id; write them in pairs")
            groups.append(ids)
        fields.expect("specialty_count", len(groups))
        fields.expect("class_count", sum(map(len, groups)))
        columns = fields.whole_numbers("columns") if "columns" in fields.values else None
        try:
            return cls.from_groups(groups, fields.whole("class_count"), columns)
        except UserError as error:
            raise UserError(f"{source}: {str(error).removeprefix('specialties: ')}") from None

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Specialties):
            return NotImplemented
        return np.array_equal(self.specialty_of_class, other.specialty_of_class) and np.array_equal(
            self.columns, other.columns
        )

    def __hash__(self) -> int:
        return hash((self.specialty_of_class.tobytes(), self.columns.tobytes()))

    def __reduce__(self) -> tuple[type[Self], tuple[IntArray, IntArray]]:
        # Copies and pickles go through __init__: numpy would give them writable arrays.
        return type(self), (self.specialty_of_class, self.columns)

    def __repr__(self) -> str:
        return f"Specialties(classes={self.classes}, count={self.count}, sizes={self.sizes.tolist()})"


class _Fields:
    """Typed reading of one JSON object; errors begin with `where` and name the field."""

    def __init__(self, value: object, where: str) -> None:
        if not isinstance(value, Mapping):
            kind = type(value).__name__
            raise UserError(f"{where.rstrip('.: ')}: a {kind} where an object belongs; write it with to_json")
        self.values: Mapping[str, object] = value
        self.where = where

    def get(self, name: str) -> object:
        if name not in self.values:
            raise UserError(f"{self.where}{name} is missing; add it or write the file again with to_json")
        return self.values[name]

    def whole(self, name: str) -> int:
        value = self.get(name)
        if type(value) is not int:
            raise UserError(f"{self.where}{name} is {value!r}; write a whole number")
        return value

    def expect(self, name: str, expected: int) -> None:
        if self.whole(name) != expected:
            raise UserError(f"{self.where}{name} is {self.get(name)} where {expected} belongs; correct it")

    def items(self, name: str) -> list[object]:
        value = self.get(name)
        if not isinstance(value, list):
            raise UserError(f"{self.where}{name} is not a list; write one")
        return value

    def whole_numbers(self, name: str) -> list[int]:
        values = [value for value in self.items(name) if type(value) is int]
        if len(values) != len(self.items(name)):
            raise UserError(f"{self.where}{name} holds something that is not a whole number; correct it")
        return values


def _checked_labels(specialty_of_class: npt.ArrayLike) -> IntArray:
    if _are_groups(specialty_of_class):
        raise UserError(
            "specialty_of_class: groups of classes, where one number for each class belongs, such as [0, 0, 1]; pass "
            "Specialties.from_groups(groups, classes)"
        )
    labels = whole_numbers(specialty_of_class, "specialty_of_class")
    # More specialties than classes would leave one empty; asked first, so that a wild label counts nothing.
    if labels.min() < 0 or labels.max() >= len(labels):
        wrong = int(np.flatnonzero((labels < 0) | (labels >= len(labels)))[0])
        raise UserError(
            f"specialty_of_class: class {wrong} is in specialty {labels[wrong]}; "
            f"number the specialties of {len(labels)} classes from 0, none empty"
        )
    empty = np.flatnonzero(np.bincount(labels) == 0)
    if empty.size:
        raise UserError(
            f"specialty_of_class: specialty {empty[0]} has no class; number them from 0 without gaps "
            "or use from_labels_dropping_empty"
        )
    return labels


def _are_groups(given: object) -> bool:
    """What `groups` gives, or groups by name."""
    in_turn = given if isinstance(given, list | tuple) else ()
    return isinstance(given, Mapping) or any(np.iterable(each) and not isinstance(each, str) for each in in_turn)


def _checked_columns(columns: npt.ArrayLike, count: int) -> IntArray:
    outputs = whole_numbers(columns, "columns")
    if len(outputs) != count:
        raise UserError(f"columns: {len(outputs)} given for {count} specialties; pass one for each")
    if outputs[0] < 0 or np.any(np.diff(outputs) <= 0):
        raise UserError("columns: must ascend from 0 or more; number specialties in the order of their outputs")
    return outputs
