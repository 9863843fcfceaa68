"""Stage 1: when things happen, and that the alternation learns the specialties it should."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from alternation import learn
from nofe import generalist
from nofe.data import Dataset, ImageSet
from nofe.data.batches import DeviceImages, pixel_mean
from nofe.evaluation import accuracy
from nofe.generalist import GeneralistConfig, Stop, stops
from nofe.runs import Run
from nofe.specialties import (
    Specialties,
    Update,
    chance_of_pairs_together,
    pairs_together,
    random_balanced,
    update_named,
)
from nofe.streams import stream
from nofe.training.runtime import Runtime

SHORT = {"epochs": 3, "batch": 16, "rate": 0.01, "weight_decay": 5e-4}


def config(**changes: Any) -> GeneralistConfig:
    return GeneralistConfig(**(SHORT | changes))


# When


@given(
    epochs=st.integers(1, 6),
    steps=st.integers(1, 30),
    every=st.one_of(st.sampled_from([0.01, 0.2, 0.25, 0.5, 1, 1.024, 2, 100]), st.floats(0.01, 4)),
    updates=st.booleans(),
)
def test_the_stops_are_those_of_a_literal_count(epochs: int, steps: int, every: float, updates: bool) -> None:
    found = list(stops(config(epochs=epochs, update_every=every), steps, after=0, updates=updates))
    period = max(1, round(every * steps))
    expected = []
    since_update = number = 0
    for step in range(1, epochs * steps + 1):
        since_update += 1
        update = epoch = 0
        if since_update == period and updates:
            since_update, number = 0, number + 1
            update = number if step < epochs * steps else 0
        if step % steps == 0:
            epoch = step // steps
        if update or epoch:
            expected.append(Stop(step, update, epoch))
    assert found == expected


@given(epochs=st.integers(1, 5), steps=st.integers(1, 20), every=st.floats(0.05, 3), updates=st.booleans())
def test_after_any_step_the_rest_is_the_same(epochs: int, steps: int, every: float, updates: bool) -> None:
    chosen = config(epochs=epochs, update_every=every)
    whole = list(stops(chosen, steps, after=0, updates=updates))
    for after in range(epochs * steps + 1):
        tail = list(stops(chosen, steps, after=after, updates=updates))
        assert tail == [stop for stop in whole if stop.step > after]


def test_no_update_follows_the_last_step() -> None:
    """The experts get the specialties that the generalist was trained on."""
    for every in (0.2, 0.5, 1, 2, 3):
        *_, last = stops(config(epochs=6, update_every=every), 10, after=0, updates=True)
        assert last == Stop(60, update=0, epoch=6)


def test_the_paper_on_imagenet_updates_five_times_an_epoch() -> None:
    found = list(stops(config(epochs=2, update_every=0.2), 5000, after=0, updates=True))
    assert [stop.step for stop in found] == list(range(1000, 10_001, 1000))
    assert [stop.epoch for stop in found if stop.epoch] == [1, 2]
    assert [stop.update for stop in found] == [*range(1, 10), 0]


# What


def updates_in(lines: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    return [line for line in lines if "update" in line]


@pytest.fixture(scope="module")
def pairs() -> Dataset:
    """Six colours, two classes of each that are hard to tell apart: which half is a little lighter, under noise."""
    rng = np.random.default_rng(0)
    colours = np.array([[60 + 100 * (pair >> channel & 1) for channel in range(3)] for pair in range(6)])

    def split(count: int) -> ImageSet:
        labels = np.tile(np.arange(12), count)
        images = colours[labels // 2][:, :, None, None] + rng.integers(0, 60, (len(labels), 3, 32, 32))
        images[labels % 2 == 0, :, :, :16] += 10
        images[labels % 2 == 1, :, :, 16:] += 10
        return ImageSet(images.astype(np.uint8), labels)

    names = tuple(f"class-{index}" for index in range(12))
    return Dataset("pairs", names, split(16), split(2), {"pair": tuple(index // 2 for index in range(12))})


def far_from(planted: Specialties, count: int) -> Specialties:
    """A balanced start that parts every planted pair."""
    start = Specialties(np.arange(planted.classes) % count)
    assert pairs_together(planted, start) == 0
    return start


@pytest.mark.parametrize(("count", "chance", "least"), [(3, 0.28, 1), (6, 0.1, 0.6)])
def test_the_alternation_recovers_planted_pairs(
    count: int, chance: float, least: float, pairs: Dataset, tmp_path: Path
) -> None:
    """From a start that parts all of them. Of eight seeds all 16 trainings did, 15 of them without a mistake."""
    planted = Specialties(pairs.groups["pair"])
    chosen = config(epochs=4, rate=0.001, update_every=0.1)
    learned, _, _ = learn(tmp_path, pairs, far_from(planted, count), update_named("exact"), chosen)
    assert learned.sizes.tolist() == [12 // count] * count
    assert chance_of_pairs_together(learned.sizes) < chance
    assert pairs_together(planted, learned) >= least


def test_the_generalist_ends_trained_on_the_specialties_it_returns(pairs: Dataset, tmp_path: Path) -> None:
    chosen = config(epochs=4, rate=0.002, update_every=0.5)
    learned, model, lines = learn(tmp_path, pairs, far_from(Specialties(pairs.groups["pair"]), 4), keep_moving, chosen)
    *_, last_update = updates_in(lines)
    last = lines[-1]
    assert last["step"] == 4 * 12
    assert last_update["step"] == last["step"] - 6  # half an epoch before the end
    mean = pixel_mean(pairs.train)
    test = DeviceImages(pairs.test, mean, torch.device("cpu"))
    targets = torch.from_numpy(learned.target_of_class)
    assert last["test_accuracy"] == accuracy(model, test, 32, Runtime(torch.device("cpu")), targets)


def keep_moving(confusion: Any, current: Specialties, rng: np.random.Generator) -> Specialties:
    """A rule that moves every class at every update."""
    return Specialties((current.specialty_of_class + 1) % current.count)


def keep(confusion: Any, current: Specialties, rng: np.random.Generator) -> Specialties:
    return current


def test_the_next_steps_train_towards_the_updated_specialties(pairs: Dataset, tmp_path: Path) -> None:
    """After the one update the targets are other ones, and so are the weights; before it they are the same."""
    start = random_balanced(12, 4, stream(0, "start"))
    chosen = config(epochs=2)
    (same, one, _), (moved, other, lines) = (
        learn(tmp_path / rule.__name__, pairs, start, rule, chosen) for rule in (keep, keep_moving)
    )
    assert same == start
    assert moved.specialty_of_class.tolist() == ((start.specialty_of_class + 1) % 4).tolist()
    assert [line["moved"] for line in updates_in(lines)] == [12]
    assert not torch.equal(one.head.fc.weight, other.head.fc.weight)
    first_epoch = [
        next(line for line in Run(tmp_path / name).metrics() if line.get("epoch") == 1)
        for name in ("keep", "keep_moving")
    ]
    for figure in ("loss", "test_accuracy"):  # tested on what it was trained for, not on what comes next
        assert first_epoch[0][figure] == first_epoch[1][figure]


def test_without_a_rule_the_specialties_stay(pairs: Dataset, tmp_path: Path) -> None:
    start = random_balanced(12, 3, stream(1, "start"))
    learned, _, lines = learn(tmp_path, pairs, start, None, config(epochs=2))
    assert learned == start
    assert updates_in(lines) == []
    assert [line["epoch"] for line in lines] == [1, 2]


def test_settled_specialties_end_the_training_early(pairs: Dataset, tmp_path: Path) -> None:
    start = random_balanced(12, 3, stream(0, "start"))
    moves = iter([True, True, False, True, False, False, True])

    def settling(confusion: Any, current: Specialties, rng: np.random.Generator) -> Specialties:
        return (keep_moving if next(moves) else keep)(confusion, current, rng)

    learned, _, lines = learn(tmp_path, pairs, start, settling, config(epochs=20, settle=2))
    assert [line["moved"] for line in updates_in(lines)] == [12, 12, 0, 12, 0, 0]
    assert lines[-1]["epoch"] == 6
    assert learned.specialty_of_class.tolist() == start.specialty_of_class.tolist()  # three turns of three


@pytest.mark.parametrize(("rule", "told"), [(keep, True), (keep_moving, False), (None, False)])
def test_specialties_that_no_update_changed_are_told_of(
    rule: Update | None, told: bool, pairs: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    monkeypatch.setattr("nofe.training.progress.Silent.say", lambda _, text: said.append(text))
    learn(tmp_path, pairs, random_balanced(12, 3, stream(0, "start")), rule, config(epochs=3))
    assert sum("no class moved in 2 updates of the specialties" in text for text in said) == told


@pytest.mark.parametrize(
    ("kept", "told"), [(3, ""), (2, "so there are 2 experts"), (1, "so one expert has all classes")]
)
def test_specialties_that_a_rule_left_empty_are_told_of(
    kept: int, told: str, pairs: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    monkeypatch.setattr("nofe.training.progress.Silent.say", lambda _, text: said.append(text))

    def crowd(confusion: Any, current: Specialties, rng: np.random.Generator) -> Specialties:
        return Specialties.from_labels_dropping_empty(np.arange(12) % kept, 3)

    learned, _, _ = learn(tmp_path, pairs, random_balanced(12, 3, stream(0, "start")), crowd, config(epochs=2))
    assert learned.count == kept
    [*warnings] = [text for text in said if "empty" in text]
    assert len(warnings) == (kept < 3)
    assert all(f"{3 - kept} of 3 specialties" in text and told in text for text in warnings)


def test_settling_waits_for_the_end_of_the_epoch(pairs: Dataset, tmp_path: Path) -> None:
    start = random_balanced(12, 3, stream(0, "start"))
    _, _, lines = learn(tmp_path, pairs, start, keep, config(epochs=9, settle=1, update_every=0.25))
    assert lines[-1]["epoch"] == 1
    assert lines[-1]["step"] == 12
    assert len(updates_in(lines)) == 4


def test_exact_settles_by_itself(pairs: Dataset, tmp_path: Path) -> None:
    """Classes move first, then none does; of eight seeds every training settled within 5 epochs."""
    chosen = config(epochs=20, rate=0.002, update_every=0.25, settle=4)
    start = far_from(Specialties(pairs.groups["pair"]), 4)
    _, _, lines = learn(tmp_path, pairs, start, update_named("exact"), chosen)
    moved = [line["moved"] for line in updates_in(lines)]
    assert lines[-1]["epoch"] < 20
    assert sum(moved) > 0
    assert moved[-4:] == [0, 0, 0, 0]


def test_each_update_looks_at_other_training_images_and_counts_them_once(
    pairs: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    samples: list[list[int]] = []
    counts = []
    count_confusion = generalist.count_confusion

    def watched(model: Any, images: DeviceImages, crop: int, shape: Any, runtime: Runtime, index: Any) -> Any:
        samples.append(index.tolist())
        assert len(images) == len(pairs.train)  # never test images
        counted = count_confusion(model, images, crop, shape, runtime, index)
        counts.append(counted)
        return counted

    monkeypatch.setattr(generalist, "count_confusion", watched)
    start = random_balanced(12, 3, stream(0, "start"))
    learn(tmp_path, pairs, start, keep, config(epochs=4, confusion_images=50))
    assert [len(set(sample)) for sample in samples] == [50, 50, 50]
    assert len({tuple(sample) for sample in samples}) == 3
    for sample, counted in zip(samples, counts, strict=True):
        assert counted.shape == (12, 3)
        by_class = np.bincount(pairs.train.labels[sample], minlength=12)
        assert counted.sum(axis=1).tolist() == by_class.tolist()
    samples.clear()
    learn(tmp_path / "all", pairs, start, keep, config(epochs=2, confusion_images=10_000))
    [every] = samples
    assert sorted(every) == list(range(len(pairs.train)))
