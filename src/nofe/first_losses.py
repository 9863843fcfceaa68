"""That every way to run a step is the same training: the losses of its first steps, beside those of the plainest."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import torch

from nofe.architectures import Architecture, architecture_named
from nofe.data import Dataset
from nofe.data.batches import Augmentation, Batches, DeviceImages, pixel_mean
from nofe.experts.network import plant_experts
from nofe.specialties import random_balanced
from nofe.training.launch import MODES, in_mode
from nofe.training.loop import Objective, TrainState, start_training, train_epoch
from nofe.training.progress import Silent
from nofe.training.recipe import Recipe
from nofe.training.runtime import Runtime, environment


def measure_first_losses(
    architecture: str,
    dataset: Dataset,
    recipe: Recipe,
    experts: int,
    runtime: Runtime,
    modes: Sequence[str] | None = None,
    steps: int = 50,
) -> dict[str, Any]:
    """Losses of the experts' first steps on the same batches from the same weights: one after another and eager is the
    reference, the fused experts in every mode are compared with it."""
    known = architecture_named(architecture)
    usual = [mode for mode in MODES if runtime.device.type == "cuda" or "captured" not in mode]
    images = DeviceImages(dataset.train, pixel_mean(dataset.train), runtime.device)
    reference = _losses(known, images, recipe, dataset.classes, experts, in_mode(runtime, "eager"), steps, fused=False)
    again = _losses(known, images, recipe, dataset.classes, experts, in_mode(runtime, "eager"), steps, fused=False)
    compared = {"loop, eager, once more": again}
    for mode in modes or usual:
        compared[f"fused, {mode}"] = _losses(
            known, images, recipe, dataset.classes, experts, in_mode(runtime, mode), steps, fused=True
        )
    return {
        "architecture": architecture,
        "data": dataset.name,
        "experts": experts,
        "batch": recipe.batch,
        "rate": recipe.rate,
        "steps": steps,
        "environment": environment(runtime, seed=0),
        "loop, eager": _rounded(reference),
        "compared": {
            name: {"losses": _rounded(losses), "largest_difference": _largest(losses, reference)}
            for name, losses in compared.items()
        },
    }


def _losses(
    architecture: Architecture,
    images: DeviceImages,
    recipe: Recipe,
    classes: int,
    experts: int,
    runtime: Runtime,
    steps: int,
    *,
    fused: bool,
) -> list[float]:
    """Of each step, by the loop that trains."""
    torch.manual_seed(0)
    network = plant_experts(architecture, random_balanced(classes, experts, np.random.default_rng(0)))
    if fused:
        network.fuse()
        network.to(runtime.device, memory_format=torch.channels_last)  # type: ignore[call-overload]
        size = architecture.input_size
        network.choose_kernels((recipe.batch, 3, size, size), runtime, training=True)  # as a run does
    state = start_training("losses", network, recipe, 0, runtime)
    augmentation = Augmentation(crop=architecture.input_size, mirror=True)
    batches = Batches(images, augmentation, batch=recipe.batch, seed=0, stage="losses")
    objective = Objective(torch.arange(classes, device=runtime.device))
    noted = _Noted()
    train_epoch(state, batches, objective, runtime, noted, until=min(steps, batches.steps_per_epoch))
    return [(now - before) / batches.global_batch for before, now in pairwise([0.0, *noted.totals])]


class _Noted(Silent):
    """Looks at the sum of the losses after every step, and waits for the device each time."""

    def __init__(self) -> None:
        self.totals: list[float] = []

    def advance(self, state: TrainState, images: int) -> None:
        self.totals.append(float(state.totals[0]))


def _rounded(losses: Sequence[float]) -> list[float]:
    return [round(loss, 6) for loss in losses]


def _largest(losses: Sequence[float], reference: Sequence[float]) -> float:
    """Relative to the loss of the reference."""
    return round(max(abs(a - b) / abs(b) for a, b in zip(losses, reference, strict=True)), 8)
