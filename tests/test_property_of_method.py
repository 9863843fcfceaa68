"""What the paper rests on: classes that are hard to tell apart end in one specialty, and nobody says which."""

from pathlib import Path

import numpy as np
import pytest

from alternation import learn
from nofe.data import Dataset, ImageSet
from nofe.data.glyphs import FAMILIES, Variation, load_glyphs
from nofe.generalist import GeneralistConfig
from nofe.specialties import (
    Specialties,
    chance_of_pairs_together,
    pairs_together,
    random_balanced,
    update_named,
)
from nofe.streams import stream

CHOSEN = ("round", "stroke", "comb", "peak", "cup", "cross")
CALM = Variation(ink=(16, 18), stretch=0.02, turn=3, slant=0.03, drift=1, blur=0.3, noise=(4, 12))


def glyphs_of(families: tuple[str, ...], seed: int) -> Dataset:
    """The characters of some families, large and clear: 24 images each."""
    everything = load_glyphs(seed, train_per_class=24, test_per_class=1, variation=CALM)
    family_of_class = np.array(everything.groups["family"])
    kept = np.flatnonzero(np.isin(family_of_class, [list(FAMILIES).index(name) for name in families]))
    number = np.full(everything.classes, -1)
    number[kept] = np.arange(len(kept))

    def part(images: ImageSet) -> ImageSet:
        some = images.subset(number[images.labels] >= 0)
        return ImageSet(some.images, number[some.labels])

    groups = tuple(np.unique(family_of_class[kept], return_inverse=True)[1].tolist())
    names = tuple(everything.class_names[c] for c in kept)
    return Dataset("glyphs", names, part(everything.train), part(everything.test), {"family": groups})


@pytest.mark.parametrize("seed", [0])
def test_learned_specialties_keep_look_alikes_together(seed: int, tmp_path: Path) -> None:
    """More pairs of a family share a specialty than in any of 2,000 random partitions, and 2.5 times what chance gives.

    Seeds 0 to 9 kept 42 to 72 % of the pairs when this was written; chance gives 14 %, the best of 2,000 gave 29 %.
    """
    dataset = glyphs_of(CHOSEN, seed)
    families = Specialties(dataset.groups["family"])
    count = len(CHOSEN)
    start = random_balanced(dataset.classes, count, stream(seed, "specialties", "start"))
    config = GeneralistConfig(epochs=4, batch=32, rate=0.003, weight_decay=5e-4, update_every=0.25)
    learned, _, lines = learn(tmp_path, dataset, start, update_named("exact"), config, seed)

    kept = pairs_together(families, learned)
    rng = np.random.default_rng(0)
    by_chance = [pairs_together(families, random_balanced(dataset.classes, count, rng)) for _ in range(2000)]
    assert learned.sizes.max() - learned.sizes.min() <= 1
    assert np.mean(by_chance) == pytest.approx(chance_of_pairs_together(learned.sizes), abs=0.01)
    assert kept > max(by_chance)
    assert kept > 2.5 * chance_of_pairs_together(learned.sizes)
    assert pairs_together(families, start) <= max(by_chance)
    moved = [line["moved"] for line in lines if "update" in line]
    assert sum(moved[-4:]) < sum(moved[:4])  # and the partition comes to rest
