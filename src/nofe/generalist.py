"""Stage 1 (Sec. 3.1): learn the specialties and the generalist that recognises them, together."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor

from nofe.architectures import Classifier
from nofe.errors import UserError
from nofe.evaluation import accuracy, count_confusion
from nofe.report.text import specialties_left_empty, specialties_that_stayed
from nofe.specialties import Specialties, Update, agreement, classes_moved
from nofe.streams import stream
from nofe.training.loop import Objective, batches_of, start_training, train_epoch
from nofe.training.recipe import Recipe
from nofe.training.runtime import Runtime
from nofe.training.workbench import Workbench

STAGE = "generalist"


@dataclass(frozen=True, kw_only=True)
class GeneralistConfig(Recipe):
    update_every: float = 1.0  # epochs between two updates of the specialties
    confusion_images: int = 10_000  # training images an update looks at
    settle: int = 0  # stop once the partition stayed the same for so many updates in a row; 0 is never
    start: Literal["random", "base"] = "random"  # where the weights come from

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("update_every", "confusion_images"):
            if getattr(self, name) <= 0:
                raise UserError(f"generalist.{name}={getattr(self, name)}: out of range; use a number above 0")
        if self.settle < 0:
            raise UserError(f"generalist.settle={self.settle}: out of range; use 0 to never stop early")


def train_generalist(
    generalist: Classifier,
    specialties: Specialties,
    update_rule: Update | None,
    config: GeneralistConfig,
    bench: Workbench,
) -> Specialties:
    """Alternate between the weights, trained in place, and the specialties, returned.

    Without an update rule the specialties stay as given (random, spectral or the user's own groups).
    """
    outputs = specialties.count  # of the generalist; a rule may later leave some of them unused
    crop = config.augmentation.crop
    seed, runtime, journal = bench.seed, bench.runtime, bench.journal
    state = start_training(STAGE, generalist, config, seed, runtime)
    batches = batches_of(state, bench.train, runtime)
    notes = journal.begin(state, config.epochs * batches.steps_per_epoch, batches.global_batch)
    if notes:
        specialties = Specialties.from_labels_dropping_empty(notes["targets"], outputs)
    settled = notes.get("settled", 0)
    moved = notes.get("moved", 0)
    objective = Objective(_targets(specialties, runtime), smoothing=config.label_smoothing)

    def so_far() -> dict[str, Any]:
        return {"targets": specialties.target_of_class.tolist(), "settled": settled, "moved": moved}

    for stop in stops(config, batches.steps_per_epoch, after=state.step, updates=update_rule is not None):
        if config.settle and settled >= config.settle and state.step % batches.steps_per_epoch == 0:
            journal.progress.say(f"generalist: the specialties settled after {state.step:,} steps")
            break
        train_epoch(state, batches, objective, runtime, journal.progress, until=stop.step)
        if state.step < stop.step:
            journal.stop(state, **so_far())
        if stop.epoch:  # before the update: on the specialties that it was trained for
            with state.as_evaluated():
                test_accuracy = accuracy(generalist, bench.test, crop, runtime, objective.target_of_class)
        if stop.update and update_rule is not None:
            sample = _sample(len(bench.train), config.confusion_images, seed, stop.update, runtime)
            shape = (specialties.classes, outputs)
            with state.as_evaluated():
                confusion = count_confusion(generalist, bench.train, crop, shape, runtime, sample)  # (C, K)
            rng = stream(seed, STAGE, "assignment", stop.update)
            # By rank 0 for all: solvers may round differently on the processors of another node.
            updated = runtime.ranks.first(partial(update_rule, confusion, specialties, rng))
            changes = classes_moved(specialties, updated)
            settled = 0 if changes else settled + 1
            moved += changes
            specialties = updated
            objective.retarget(_targets(specialties, runtime))
            journal.run.append_metrics(
                {
                    "stage": STAGE,
                    "step": state.step,
                    "update": stop.update,
                    "moved": changes,
                    "agreement": agreement(confusion, specialties),
                    "specialties": specialties.count,
                }
            )
        if stop.epoch:
            journal.epoch_done(state, stop.epoch, test_accuracy=test_accuracy, moved=moved)
            journal.tell_if_it_guesses(state, stop.epoch, objective)
            moved = 0
            journal.save(state, **so_far())
    state.finish()
    journal.progress.end()
    if update_rule is not None:
        updates = [line for line in journal.run.metrics() if line["stage"] == STAGE and "update" in line]
        for said in (specialties_that_stayed(updates), specialties_left_empty(outputs, specialties.count)):
            if said:
                journal.progress.say(f"{STAGE}: {said}")
    return specialties


@dataclass(frozen=True)
class Stop:
    """A step after which something happens: update number `update`, or the end of epoch `epoch`; 0 is neither."""

    step: int
    update: int
    epoch: int


def stops(config: GeneralistConfig, steps_per_epoch: int, *, after: int, updates: bool) -> Iterator[Stop]:
    """Every update and every end of an epoch, in order.

    The last training step is followed by no update: the specialties that the experts get are the ones that the
    generalist was trained on (the release updates once more, to a partition it never saw).
    """
    last = config.epochs * steps_per_epoch
    period = max(1, round(config.update_every * steps_per_epoch))
    at_update = {step: step // period for step in range(period, last, period)} if updates else {}
    at_epoch = {step: step // steps_per_epoch for step in range(steps_per_epoch, last + 1, steps_per_epoch)}
    for step in sorted(at_update.keys() | at_epoch.keys()):
        if step > after:
            yield Stop(step, at_update.get(step, 0), at_epoch.get(step, 0))


def _sample(images: int, wanted: int, seed: int, update: int, runtime: Runtime) -> Tensor:
    """A random subset of the training images (the set S of Sec. 3.1), another one at every update."""
    sample = stream(seed, STAGE, "confusion", update).permutation(images)[:wanted]
    return torch.from_numpy(sample).to(runtime.device)


def _targets(specialties: Specialties, runtime: Runtime) -> Tensor:
    """The output of the generalist that stands for each class: l(y) of Eq. 2."""
    return torch.from_numpy(specialties.target_of_class).to(runtime.device)
