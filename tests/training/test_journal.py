"""The figures that a stage writes down."""

from pathlib import Path

import pytest
import torch
from torch import nn

from nofe.errors import Interrupted
from nofe.runs import Run
from nofe.training import journal as module
from nofe.training.checkpoint import Checkpoint
from nofe.training.journal import Journal
from nofe.training.loop import Objective, TrainState
from nofe.training.optimizer import caffe_sgd
from nofe.training.progress import Silent
from nofe.training.recipe import Recipe
from nofe.training.runtime import Runtime

RECIPE = Recipe(epochs=4, batch=10, rate=0.1, weight_decay=0.0, drops=(0.5,))
RUNTIME = Runtime(torch.device("cpu"), checkpoint_seconds=0)


class Clock:
    now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(module, "time", made)
    return made


def state_at(step: int, images: int) -> TrainState:
    """40 images an epoch, in 4 steps; every one recognised with a loss of 0.25."""
    model = nn.Linear(2, 2)
    totals = torch.tensor([0.25 * images, float(images)])
    return TrainState("base", model, caffe_sgd(model, RECIPE), RECIPE, 0, totals, step=step, images=images)


def test_a_line_for_each_epoch(tmp_path: Path, clock: Clock) -> None:
    journal = Journal(Run(tmp_path), RUNTIME, Silent())
    journal.begin(state_at(0, 0), 16, 10)
    for epoch in (1, 2, 3):
        clock.now += 2 * epoch
        journal.epoch_done(state_at(4 * epoch, 40), epoch, test_accuracy=epoch / 10)
    lines = Run(tmp_path).metrics()
    assert [(line["stage"], line["epoch"], line["step"]) for line in lines] == [("base", k, 4 * k) for k in (1, 2, 3)]
    assert [(line["seconds"], line["images_per_second"]) for line in lines] == [(2, 20), (4, 10), (6, 6.7)]
    assert [line["rate"] for line in lines] == pytest.approx([0.1, 0.1, 0.01])  # of the epoch that ended
    assert [(line["loss"], line["accuracy"]) for line in lines] == [(0.25, 1)] * 3
    assert [line["test_accuracy"] for line in lines] == [0.1, 0.2, 0.3]


def test_an_epoch_cut_in_two_is_as_fast_as_its_second_part(tmp_path: Path, clock: Clock) -> None:
    """The images that the interrupted run saw are not counted into the time of the one that goes on."""
    first = Journal(Run(tmp_path), RUNTIME, Silent())
    first.begin(state_at(0, 0), 16, 10)
    with pytest.raises(Interrupted, match=r"stage base after step 3, all saved; go on with --resume"):
        first.stop(state_at(3, 30))
    clock.now += 1000
    state = state_at(0, 0)
    resumed = Journal(Run(tmp_path), RUNTIME, Silent())
    resumed.begin(state, 16, 10)
    assert (state.step, state.images, state.totals.tolist()) == (3, 30, [7.5, 30])
    clock.now += 2
    resumed.epoch_done(state_at(4, 40), 1)
    clock.now += 2
    resumed.epoch_done(state_at(8, 40), 2)
    assert [line["images_per_second"] for line in Run(tmp_path).metrics()] == [5, 20]


def test_an_epoch_after_a_finished_one_is_as_fast_as_it_is(tmp_path: Path, clock: Clock) -> None:
    """The checkpoint at the end of an epoch still holds that epoch's images; they are not the next one's."""
    first = Journal(Run(tmp_path), RUNTIME, Silent())
    first.begin(state_at(0, 0), 16, 10)
    first.save(state_at(4, 40))
    resumed = Journal(Run(tmp_path), RUNTIME, Silent())
    resumed.begin(state_at(0, 0), 16, 10)
    clock.now += 2
    resumed.epoch_done(state_at(8, 40), 2)
    assert [line["images_per_second"] for line in Run(tmp_path).metrics()] == [20]


def test_checkpoints_are_as_far_apart_as_the_runtime_wants(tmp_path: Path, clock: Clock) -> None:
    from nofe.training.checkpoint import read_checkpoint

    journal = Journal(Run(tmp_path), Runtime(torch.device("cpu"), checkpoint_seconds=10), Silent())
    journal.begin(state_at(0, 0), 16, 10)
    steps = []
    for step in range(1, 8):
        clock.now += 4
        journal.save(state_at(step, 10))
        found = read_checkpoint(Run(tmp_path), "base")
        steps.append(found.step if found else 0)
    assert steps == [0, 0, 3, 3, 3, 6, 6]


def test_checkpoints_take_little_of_the_time(tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    """One second to write, so a hundred apart."""
    written = []

    def write(run: Run, checkpoint: Checkpoint) -> None:
        clock.now += 1
        written.append(checkpoint.step)

    monkeypatch.setattr("nofe.training.journal.write_checkpoint", write)
    journal = Journal(Run(tmp_path), Runtime(torch.device("cpu"), checkpoint_seconds=None), Silent())
    journal.begin(state_at(0, 0), 16, 10)
    for step in range(1, 9):
        clock.now += 20
        journal.save(state_at(step, 10))
    assert written == [1, 6]


class Said(Silent):
    def __init__(self) -> None:
        self.texts: list[str] = []

    def say(self, text: str) -> None:
        self.texts.append(text)


@pytest.mark.parametrize(("loss", "epoch", "told"), [(2.3026, 3, 1), (2.29, 3, 0), (2.3026, 2, 0), (2.3026, 4, 0)])
def test_a_network_that_guesses_is_told_of_once(loss: float, epoch: int, told: int, tmp_path: Path) -> None:
    """Of ten targets, by 100 classes."""
    said = Said()
    state = state_at(4 * epoch, 40)
    state.totals[0] = 40 * loss
    objective = Objective(torch.arange(100) % 10)
    Journal(Run(tmp_path), RUNTIME, said).tell_if_it_guesses(state, epoch, objective)
    assert len(said.texts) == told
    assert all("base: after 3 epochs the loss is still that of guessing, 2.303" in text for text in said.texts)
