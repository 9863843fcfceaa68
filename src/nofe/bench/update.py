"""What an update of the specialties costs, confusion included, beside the epoch of training that it follows."""

import statistics
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from nofe.architectures import architecture_named
from nofe.bench.cases import usual_mode
from nofe.bench.stand_ins import first_batches, noise, recipe_of, same_step
from nofe.evaluation import count_confusion
from nofe.specialties import random_balanced, update_named
from nofe.training.launch import in_mode, milliseconds
from nofe.training.loop import Objective, start_training
from nofe.training.runtime import Runtime, environment

EPOCH, SAMPLE = 50_000, 10_000  # images of an epoch, and of them those an update looks at, as for CIFAR-100
RULES = ("fully-balanced", "exact")


def measure_update(
    architecture: str, classes: int, experts: int, batch: int, runtime: Runtime, rounds: int = 7
) -> dict[str, Any]:
    """Milliseconds of an epoch, of the confusion and of each rule; on a processor of a part of them, scaled up."""
    known = architecture_named(architecture)
    part = 1 if runtime.device.type == "cuda" else 8  # the fixed cost of a count is scaled up, too
    rng = np.random.default_rng(0)
    images = noise(known, classes, max(SAMPLE // part, batch), runtime)
    torch.manual_seed(0)
    generalist = known.generalist(experts)
    recipe = recipe_of(known, batch)
    state = start_training("bench", generalist, recipe, 0, runtime)
    specialties = random_balanced(classes, experts, rng)
    objective = Objective(torch.from_numpy(specialties.target_of_class).to(runtime.device))
    train = same_step(state, first_batches(images, recipe), objective, runtime)
    sample = torch.arange(SAMPLE // part, device=runtime.device)

    def count() -> None:
        count_confusion(generalist, images, known.input_size, (classes, experts), runtime, sample)

    for _ in range(6):  # compilation, choice of kernels, capture
        train()
        count()
    steps = max(1, 40 // part)
    of_step, of_count = [], []
    for _ in range(rounds):  # all take turns
        of_step.append(milliseconds(train, steps, runtime))
        of_count.append(milliseconds(count, 1, runtime))
    epoch = statistics.median(of_step) * (EPOCH // batch)
    confusion = statistics.median(of_count) * part
    counts = _planted(classes, experts, rng)

    def assign(rule: str) -> None:
        update_named(rule)(counts, specialties, np.random.default_rng(0))

    rules = {}
    for rule in RULES:
        assignment = statistics.median(milliseconds(partial(assign, rule), 1, runtime) for _ in range(rounds))
        share = (confusion + assignment) / epoch
        rules[rule] = {"assignment": round(assignment, 3), "share_of_epoch": round(share, 5)}
    return {
        "architecture": architecture,
        "environment": environment(runtime, seed=0),
        "mode": "+".join(name for name in ("compile", "capture") if getattr(runtime, name)) or "eager",
        "classes": classes,
        "experts": experts,
        "batch": batch,
        "epoch_images": EPOCH,
        "confusion_images": SAMPLE,
        "measured_part": f"1/{part}",
        "milliseconds": {"step": round(statistics.median(of_step), 4), "epoch": round(epoch, 1)}
        | {"confusion": round(confusion, 2)},
        "rules": rules,
    }


def runtime_for(modes: Sequence[str] | None, runtime: Runtime) -> Runtime:
    """The first of the modes, or how a training on this device runs."""
    return in_mode(runtime, modes[0] if modes else usual_mode(runtime.device))


def _planted(classes: int, experts: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Counts (C, K) as a generalist gives them half way: half of a class's images in its specialty."""
    chances = np.full((classes, experts), 0.5 / experts)
    chances[np.arange(classes), random_balanced(classes, experts, rng).specialty_of_class] += 0.5
    counts: NDArray[np.int64] = rng.multinomial(max(1, SAMPLE // classes), chances)
    return counts
