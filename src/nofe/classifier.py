"""Minimise Eq. 1: one network over all C classes. The base and the network of experts are trained alike."""

from collections.abc import Callable

import torch
from torch import nn

from nofe.evaluation import accuracy
from nofe.training.loop import Objective, batches_of, start_training, train_epoch
from nofe.training.recipe import Recipe
from nofe.training.workbench import Workbench


def train_classifier(stage: str, model: nn.Module, recipe: Recipe, classes: int, bench: Workbench) -> None:
    """Train `model` in place. The test accuracy of each epoch is noted; nothing is chosen by it."""
    objective = Objective(torch.arange(classes, device=bench.runtime.device), smoothing=recipe.label_smoothing)
    crop = recipe.augmentation.crop
    train_by(objective, stage, model, recipe, bench, lambda: accuracy(model, bench.test, crop, bench.runtime))


def train_by(
    objective: Objective,
    stage: str,
    model: nn.Module,
    recipe: Recipe,
    bench: Workbench,
    test_accuracy: Callable[[], float | None],
) -> None:
    """Train `model` in place by any objective that stays the same; `test_accuracy` is asked after every epoch."""
    runtime, journal = bench.runtime, bench.journal
    state = start_training(stage, model, recipe, bench.seed, runtime)
    batches = batches_of(state, bench.train, runtime)
    journal.begin(state, recipe.epochs * batches.steps_per_epoch, batches.global_batch)
    for epoch in range(state.step // batches.steps_per_epoch, recipe.epochs):
        train_epoch(state, batches, objective, runtime, journal.progress)
        if state.step < (epoch + 1) * batches.steps_per_epoch:
            journal.stop(state)
        with state.as_evaluated():
            tested = test_accuracy()
        journal.epoch_done(state, epoch + 1, test_accuracy=tested)
        journal.tell_if_it_guesses(state, epoch + 1, objective)
        journal.save(state)
    state.finish()
    journal.progress.end()
