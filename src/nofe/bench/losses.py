"""That every way to run a step is the same training: what the first steps do, beside those of the plainest way.

Losses alone prove little. Near its start a network's loss may hardly depend on its weights, and wrong gradients go
unseen; so the gradient of each weight in the first step is compared too, and how far each weight has moved after a
few steps, the last of which are captured where steps are.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from nofe.architectures import Architecture, architecture_named
from nofe.data import Dataset
from nofe.data.batches import Augmentation, Batches, DeviceImages, pixel_mean
from nofe.errors import RunError, UserError
from nofe.experts.network import NetworkOfExperts, make_fast, plant_at_random
from nofe.experts.rules import RANDOM
from nofe.training.launch import EAGER_STEPS, MODES, in_mode
from nofe.training.loop import Objective, TrainState, start_training, train_epoch
from nofe.training.optimizer import optimizer_tensors
from nofe.training.progress import Silent
from nofe.training.recipe import Recipe
from nofe.training.runtime import Runtime, environment

CAPTURED_BY = EAGER_STEPS + 3  # steps: one is captured, two are replays


def measure_first_losses(
    architecture: str,
    dataset: Dataset,
    recipe: Recipe,
    experts: int,
    runtime: Runtime,
    modes: Sequence[str] | None = None,
    steps: int = 50,
    *,
    network: str = "experts",
) -> dict[str, Any]:
    """First steps on the same batches from the same weights, without dropout, which draws differently in every mode.

    The plainest way, eager and the experts one after another, is the reference; the fused experts in every mode are
    compared with it. Or, for the network "base", the base in every mode with the eager one.
    """
    if network not in ("base", "experts"):
        raise UserError(f"--network {network}: has no losses to compare; choose base or experts")
    known = architecture_named(architecture)
    usual = [mode for mode in MODES if runtime.device.type == "cuda" or "captured" not in mode]
    images = DeviceImages(dataset.train, pixel_mean(dataset.train), runtime.device)

    def first_steps(kind: str, mode: str) -> _FirstSteps:
        try:
            return _first_steps(known, images, recipe, dataset.classes, experts, steps, kind, in_mode(runtime, mode))
        except RunError as error:  # of a loss that is not finite
            raise RunError(f"{kind}, {mode}: {error}") from error

    plain, fast = ("base", "base") if network == "base" else ("loop", "fused")
    beside = f"{plain}, eager"
    reference = first_steps(plain, "eager")
    compared = {f"{beside}, once more": first_steps(plain, "eager")}
    for mode in modes or usual:
        compared[f"{fast}, {mode}"] = first_steps(fast, mode)
    return {
        "architecture": architecture,
        "data": dataset.name,
        "network": network,
        "experts": experts,
        "batch": recipe.batch,
        "rate": recipe.rate,
        "steps": len(reference.losses),
        "steps_of_moves": min(CAPTURED_BY, len(reference.losses)),
        "environment": environment(runtime, seed=0),
        "beside": beside,
        beside: _rounded(reference.losses),
        "compared": {
            name: {
                "losses": _rounded(each.losses),
                "largest_difference": _largest(each.losses, reference.losses),
                "gradient": _farthest(each.gradients, reference.gradients),
                "move": _farthest(each.moves, reference.moves),
            }
            for name, each in compared.items()
        },
    }


@dataclass(frozen=True)
class _FirstSteps:
    losses: list[float]  # of each step
    gradients: dict[str, Tensor]  # of the first one, by the weight's name on disk
    moves: dict[str, Tensor]  # of the first CAPTURED_BY steps together, likewise


def _first_steps(
    architecture: Architecture,
    images: DeviceImages,
    recipe: Recipe,
    classes: int,
    experts: int,
    steps: int,
    network: str,
    runtime: Runtime,
) -> _FirstSteps:
    """Take the first steps, in the loop that trains."""
    torch.manual_seed(0)
    model = architecture.classifier(classes) if network == "base" else plant_at_random(architecture, classes, experts)
    for module in model.modules():
        if isinstance(module, RANDOM):
            module.p = 0.0
    if isinstance(model, NetworkOfExperts) and network == "fused":
        make_fast(model, (recipe.batch, 3, architecture.input_size, architecture.input_size), runtime)
    state = start_training("losses", model, recipe, 0, runtime)
    augmentation = Augmentation(crop=architecture.input_size, mirror=True)
    batches = Batches(images, augmentation, batch=recipe.batch, seed=0, stage="losses")
    objective = Objective(torch.arange(classes, device=runtime.device))
    noted = _Noted()
    steps = min(steps, batches.steps_per_epoch)

    def train_until(step: int) -> None:
        if state.step < min(step, steps):
            train_epoch(state, batches, objective, runtime, noted, until=min(step, steps))

    start, decayed = _exact(model, dict(model.named_parameters())), _decayed(state)
    train_until(1)
    velocities = _exact(model, optimizer_tensors(state.optimizer, model))
    gradients = {name: velocity - decayed[name] for name, velocity in velocities.items()}
    train_until(CAPTURED_BY)
    moves = {name: there - start[name] for name, there in _exact(model, dict(model.named_parameters())).items()}
    train_until(steps)
    losses = [(now - before) / batches.global_batch for before, now in pairwise([0.0, *noted.totals])]
    return _FirstSteps(losses, gradients, moves)


def _decayed(state: TrainState) -> dict[str, Tensor]:
    """What weight decay adds to the gradients, as the weights are now."""
    decay_of = {weight: group["weight_decay"] for group in state.optimizer.param_groups for weight in group["params"]}
    named = {name: decay_of[weight] * weight.detach() for name, weight in state.model.named_parameters()}
    return _exact(state.model, named)


def _exact(model: nn.Module, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """By the names on disk, which are the same for fused experts and for the loop."""
    on_disk = model.to_disk(tensors) if isinstance(model, NetworkOfExperts) else tensors
    return {name: tensor.detach().to("cpu", torch.float64, copy=True) for name, tensor in on_disk.items()}


class _Noted(Silent):
    """Notes the sum of the losses after every step, and waits for the device each time."""

    def __init__(self) -> None:
        self.totals: list[float] = []

    def advance(self, state: TrainState, images: int) -> None:
        self.totals.append(float(state.totals[0]))


def _rounded(losses: Sequence[float]) -> list[float]:
    return [round(loss, 6) for loss in losses]


def _largest(losses: Sequence[float], reference: Sequence[float]) -> float:
    """The largest difference, relative to the loss of the reference."""
    return round(max(abs(a - b) / abs(b) for a, b in zip(losses, reference, strict=True)), 8)


def _farthest(found: dict[str, Tensor], reference: dict[str, Tensor]) -> dict[str, Any]:
    """The weight that is farthest from the reference, relative to the length of what the reference has."""
    apart = {
        name: float((found[name] - own).norm() / own.norm()) for name, own in reference.items() if float(own.norm()) > 0
    }
    if not apart:
        raise UserError(
            "losses: nothing to compare; the recipe's optimizer keeps no momentum from which to tell gradients"
        )
    weight = max(apart, key=lambda name: (math.isnan(apart[name]), apart[name]))
    return {"weight": weight, "largest_difference": float(f"{apart[weight]:.3g}")}
