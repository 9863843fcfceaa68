"""What a run left in its folder, read once for the page and its figures."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array, triu
from scipy.special import bdtr  # the binomial distribution

from nofe import runs
from nofe.runs import Run
from nofe.specialties import Specialties, class_confusion


def judged_by(held_out: bool) -> str:
    return "held-out training images" if held_out else "test images"


@dataclass(frozen=True)
class Alone:
    """Test images that one of two networks recognises and the other does not."""

    experts: int
    base: int

    @property
    def by_chance(self) -> float:
        """How often a fair coin would part them as unevenly or more: McNemar's test, exact."""
        return min(1.0, 2 * float(bdtr(min(self.experts, self.base), self.experts + self.base, 0.5)))


@dataclass(frozen=True)
class Record:
    path: Path
    config: dict[str, Any]
    environment: dict[str, Any]
    networks: dict[str, dict[str, Any]]  # base, base-paper, generalist, experts: those that were trained
    by_specialty: list[dict[str, Any]]  # (K,) accuracy and confusions of each expert
    specialties: Specialties
    class_names: tuple[str, ...]  # (C,)
    epochs: dict[str, list[dict[str, Any]]]  # by network, in order
    updates: list[dict[str, Any]]  # of the specialties; none for a rule that fixes them beforehand
    confusion: csr_array  # (C, C) test images of class i that the experts take for class j; most cells are empty
    base_confusions: dict[str, csr_array] = field(default_factory=dict)  # of the bases; older runs did not keep them
    alone: dict[str, Alone] = field(default_factory=dict)  # by base, and what the experts recognise beside it

    @property
    def test_images(self) -> int:
        return int(self.confusion.sum())

    @property
    def judged_by(self) -> str:
        return judged_by(self.config["data"]["hold_out"] > 0)


@dataclass(frozen=True)
class ConfusedPair:
    """Two classes that the experts take for each other; `first` is the one more often mistaken."""

    first: int
    second: int
    first_as_second: int  # test images of the first class that are taken for the second
    second_as_first: int
    images: int  # test images of both classes
    inside: bool  # one specialty holds both

    @property
    def confused(self) -> int:
        return self.first_as_second + self.second_as_first


def read_record(run: Run) -> Record:
    summary = run.read_json(runs.SUMMARY)
    described = run.read_json(runs.SPECIALTIES)
    specialties = Specialties.from_json(described, str(run.file(runs.SPECIALTIES)))
    names = {c: name for each in described["specialties"] for c, name in zip(*_ids_and_names(each), strict=True)}
    predictions = run.read_arrays(runs.PREDICTIONS)
    labels = predictions["labels"]
    first = {
        stage: predictions[name][:, 0]
        for stage in summary["networks"]
        if (name := stored_name(stage, "classes")) in predictions
    }
    confusions = {stage: class_confusion(labels, each, specialties.classes) for stage, each in first.items()}
    lines = run.metrics()
    return Record(
        path=run.path,
        config=run.read_json(runs.CONFIG),
        environment=run.read_json(runs.ENVIRONMENT),
        networks=summary["networks"],
        by_specialty=summary["specialties"],
        specialties=specialties,
        class_names=tuple(names[c] for c in range(specialties.classes)),
        epochs={
            stage: [line for line in lines if line["stage"] == stage and "epoch" in line]
            for stage in summary["networks"]
        },
        updates=[line for line in lines if "update" in line],
        confusion=confusions.pop("experts"),
        base_confusions=confusions,
        alone={stage: recognised_alone(labels, first[stage], first["experts"]) for stage in confusions},
    )


def recognised_alone(labels: NDArray[np.int64], base: NDArray[np.int64], experts: NDArray[np.int64]) -> Alone:
    """By the classes that both give to each image."""
    of_base, of_experts = base == labels, experts == labels
    return Alone(experts=int((of_experts & ~of_base).sum()), base=int((of_base & ~of_experts).sum()))


def stored_name(stage: str, field: str) -> str:
    """In predictions.npz: the fields of the experts have their own names, those of a base its name before them."""
    return field if stage == "experts" else f"{stage.replace('-', '_')}_{field}"


def _ids_and_names(specialty: dict[str, Any]) -> tuple[list[int], list[str]]:
    return specialty["class_ids"], specialty["class_names"]


def confused_pairs(confusion: csr_array, specialties: Specialties) -> list[ConfusedPair]:
    """Every pair of classes that is confused at least once, the most confused first, ties by class number."""
    either_way = triu(confusion + confusion.T, 1).tocsr().tocoo()  # (C, C), in the order of rows
    order = np.argsort(-either_way.data, kind="stable")
    images = confusion.sum(axis=1)  # (C,)
    pairs = []
    for a, b in zip(either_way.row[order].tolist(), either_way.col[order].tolist(), strict=True):
        first, second = (a, b) if confusion[a, b] >= confusion[b, a] else (b, a)
        pairs.append(
            ConfusedPair(
                first=first,
                second=second,
                first_as_second=int(confusion[first, second]),
                second_as_first=int(confusion[second, first]),
                images=int(images[a] + images[b]),
                inside=bool(specialties.specialty_of_class[a] == specialties.specialty_of_class[b]),
            )
        )
    return pairs


def pairs_of_specialty(
    pairs: list[ConfusedPair], specialties: Specialties, specialty: int
) -> tuple[ConfusedPair | None, ConfusedPair | None]:
    """The first pair of two classes of the specialty, and the first of one of them and one from elsewhere."""
    of = specialties.specialty_of_class
    own = [pair for pair in pairs if specialty in (of[pair.first], of[pair.second])]
    return next((pair for pair in own if pair.inside), None), next((pair for pair in own if not pair.inside), None)


def confused_inside_and_across(confusion: csr_array, specialties: Specialties) -> tuple[int, int]:
    """Test images taken for another class of their specialty, and for a class of another one."""
    of = specialties.specialty_of_class
    cells = confusion.tocoo()
    same = of[cells.row] == of[cells.col]
    inside = int(cells.data[same].sum() - confusion.trace())
    return inside, int(cells.data[~same].sum())
