"""Confusions to try the rules on: planted ones with a known answer, and small arbitrary ones."""

from dataclasses import dataclass

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st

from nofe.specialties import Specialties, random_balanced

few = settings(max_examples=40)


def generator(seed=0):
    return np.random.default_rng(seed)


def planted(classes, count, *, images=100, share=0.6, seed=0):
    """A confusion (C, K) where `share` of the images of each class go to its specialty, the rest anywhere."""
    # A stream of its own: from generator(seed), a random start of the same seed would be the planted answer.
    rng = np.random.default_rng([2016, seed])
    truth = random_balanced(classes, count, rng)
    chances = np.full((classes, count), (1 - share) / count)
    chances[np.arange(classes), truth.specialty_of_class] += share
    return rng.multinomial(images, chances), truth


def sizes_by_column(specialties, outputs):
    return np.bincount(specialties.target_of_class, minlength=outputs)


@dataclass(frozen=True)
class Case:
    confusion: np.ndarray
    current: Specialties
    seed: int


@st.composite
def cases(draw, max_classes=12, max_count=6, max_images=5):
    """Any confusion with at least one image, from any partition, some of its outputs perhaps unused."""
    classes = draw(st.integers(1, max_classes))
    count = draw(st.integers(1, min(classes, max_count)))
    cells = draw(st.lists(st.integers(0, max_images), min_size=classes * count, max_size=classes * count))
    confusion = np.array(cells).reshape(classes, count)
    confusion[0, 0] += confusion.sum() == 0
    labels = draw(st.lists(st.integers(0, count - 1), min_size=classes, max_size=classes))
    current = Specialties.from_labels_dropping_empty(labels, count)
    return Case(confusion, current, draw(st.integers(0, 2**32 - 1)))


@st.composite
def partitions(draw, max_classes=12):
    labels = draw(st.lists(st.integers(0, 5), min_size=1, max_size=max_classes))
    return Specialties.from_labels_dropping_empty(labels, 6)
