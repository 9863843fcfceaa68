"""The experts beside the base: classes that gained and lost, and what became of the pairs that the base confuses.

Confusions (C, C) are counts of test images of class i that a network takes for class j.
"""

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from nofe.report.record import Alone, confused_inside_and_across, confused_pairs
from nofe.specialties import Specialties
from nofe.suggestions import counted

BASES = ("base", "base-paper")  # by the experts' recipe, which is the fairer comparison, and by the paper's
CHANGED = 5  # classes that are named of those that gained, and of those that lost
RARE = 0.001  # below, nobody asks how rare a chance is
PAIRS = 10  # that are shown; JSON has twice as many


@dataclass(frozen=True)
class ClassFigures:
    """How each network does on the images of one class."""

    name: str
    specialty: int | None
    images: int
    accuracy: dict[str, float | None]  # by network; None without images


@dataclass(frozen=True)
class PairFigures:
    """Two classes that the base confuses."""

    names: tuple[str, str]  # the one that the base mistakes more often first
    specialties: tuple[int, int]
    inside: bool
    images: int  # test images of both
    confused: dict[str, int]  # by network: how many of them are taken for the other class


def base_of(stages: Container[str]) -> str | None:
    """What the experts are compared with."""
    return next((stage for stage in BASES if stage in stages), None)


def shares_of_mistakes(confusion: csr_array, specialties: Specialties) -> dict[str, float]:
    """Of all test images."""
    inside, across = confused_inside_and_across(confusion, specialties)
    images = max(int(confusion.sum()), 1)
    return {"confused_inside": inside / images, "confused_across": across / images}


def by_class(confusion: csr_array) -> NDArray[np.float64]:
    """Accuracy of each class; nan where the set has no image of it."""
    with np.errstate(invalid="ignore"):
        return np.asarray(confusion.diagonal() / confusion.sum(axis=1))


def mean_over_classes(confusion: csr_array) -> float:
    """The accuracy if every class had as many images; of classes that have any."""
    return float(np.nanmean(by_class(confusion)))


def class_figures(
    confusions: Mapping[str, csr_array], specialties: Specialties | None, class_names: Sequence[str]
) -> list[ClassFigures]:
    """Every class, in order; the confusions of all networks are of the same images."""
    images = next(iter(confusions.values())).sum(axis=1)  # (C,)
    accuracies = {stage: by_class(confusion).tolist() for stage, confusion in confusions.items()}
    return [
        ClassFigures(
            name=name,
            specialty=None if specialties is None else int(specialties.specialty_of_class[c]),
            images=int(images[c]),
            accuracy={stage: each[c] if images[c] else None for stage, each in accuracies.items()},
        )
        for c, name in enumerate(class_names)
    ]


def pair_figures(
    confusions: Mapping[str, csr_array], specialties: Specialties, class_names: Sequence[str], count: int = 2 * PAIRS
) -> list[PairFigures]:
    """The pairs that the base confuses most, most confused first, with the figures of every network."""
    base = base_of(confusions)
    if base is None:
        return []
    of = specialties.specialty_of_class
    found = []
    for pair in confused_pairs(confusions[base], specialties)[:count]:
        a, b = pair.first, pair.second
        confused = {stage: int(each[a, b] + each[b, a]) for stage, each in confusions.items()}
        names = (class_names[a], class_names[b])
        found.append(PairFigures(names, (int(of[a]), int(of[b])), pair.inside, pair.images, confused))
    return found


def most_changed(
    classes: Sequence[Mapping[str, Any]], base: str, count: int = CHANGED
) -> tuple[list[Mapping[str, Any]], list[Mapping[str, Any]]]:
    """Of `ClassFigures` as dictionaries: those that gained most, and those that lost most; ties by class number."""
    known = [each for each in classes if each["images"]]
    gained = sorted((each for each in known if gain(each, base) > 0), key=lambda each: -gain(each, base))
    lost = sorted((each for each in known if gain(each, base) < 0), key=lambda each: gain(each, base))
    return gained[:count], lost[:count]


def gain(figures: Mapping[str, Any], base: str) -> float:
    """Of a class with images."""
    return float(figures["accuracy"]["experts"] - figures["accuracy"][base])


def difference_in_words(base: Mapping[str, float], experts: Mapping[str, float], images: int, alone: Alone) -> str:
    """Where the gain comes from, shares of mistakes told as numbers of images, and whether it may be chance."""

    def beside_the_base(kind: str) -> str:
        less = round((base[kind] - experts[kind]) * images)
        if less == 0:
            return "as many as the base"
        return f"{abs(less):,} {'fewer' if less > 0 else 'more'} than the base"

    if not any(each[kind] for each in (base, experts) for kind in ("confused_inside", "confused_across")):
        return f"Neither the experts nor the base take any of {images:,} images for another class."
    return (
        f"Of {images:,} images the experts take {beside_the_base('confused_inside')} for another class of the right "
        f"specialty, and {beside_the_base('confused_across')} for a class of another one. {alone_in_words(alone)}"
    )


def alone_in_words(alone: Alone) -> str:
    """Whether there are test images enough to tell the two networks apart."""
    count = alone.experts + alone.base
    if not count:
        return "Both recognise the same images."
    cases = f"{alone.by_chance:.0%}" if alone.by_chance >= RARE else f"less than {RARE:.1%}"
    return (
        f"{counted(alone.experts, 'image')} only the experts recognise, and {alone.base:,} only the base: a fair coin "
        f"would part {count:,} as unevenly, or more, in {cases} of all cases."
    )
