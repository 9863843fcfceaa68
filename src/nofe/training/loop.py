"""One training loop for every stage; a stage brings its objective."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nofe.architectures.caffe import counting_steps_together
from nofe.data.batches import Batches, DeviceImages
from nofe.data.stream import batches_over
from nofe.errors import RunError
from nofe.streams import seed_for
from nofe.training.half import forward_of
from nofe.training.launch import compile_blocks, compiled, launcher
from nofe.training.optimizer import caffe_sgd, set_rate
from nofe.training.progress import Progress
from nofe.training.recipe import Recipe, rate_in_epoch
from nofe.training.runtime import Runtime
from nofe.training.sync_norm import synchronise_batch_norm


@dataclass
class Objective:
    """Cross entropy against a target for each class: the class itself, or its specialty (Eq. 1 and 2)."""

    target_of_class: Tensor  # (C,)

    def __call__(self, logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """The mean loss, and the number of images recognised."""
        targets = self.target_of_class[labels]
        logits = logits.float()
        return F.cross_entropy(logits, targets), (logits.argmax(1) == targets).sum()

    def retarget(self, target_of_class: Tensor) -> None:
        """In place: a step that was captured or compiled keeps reading the same memory."""
        self.target_of_class.copy_(target_of_class)


@dataclass
class TrainState:
    """A network in training. `step` counts from the start of the stage."""

    stage: str
    model: nn.Module
    optimizer: torch.optim.SGD
    recipe: Recipe
    seed: int
    totals: Tensor  # (2,) loss and recognised images of all ranks, summed since the epoch began
    step: int = 0
    images: int = 0  # seen since the epoch began
    launch: Callable[[], None] | None = None  # one training step, however the runtime runs it

    def mean_loss_and_accuracy(self) -> tuple[float, float]:
        """Over the epoch so far. Waits for the device."""
        loss, recognised = self.totals.tolist()
        return loss / max(self.images, 1), recognised / max(self.images, 1)


def start_training(stage: str, model: nn.Module, recipe: Recipe, seed: int, runtime: Runtime) -> TrainState:
    # Channels last: about 1.5 times as fast, on a CPU as on a GPU.
    model.to(runtime.device, memory_format=torch.channels_last)  # type: ignore[call-overload]
    if runtime.sync_batch_norm:
        synchronise_batch_norm(model, runtime.ranks)
    compile_blocks(model, runtime)
    totals = torch.zeros(2, device=runtime.device)
    return TrainState(stage, model, caffe_sgd(model, recipe), recipe, seed, totals)


def batches_of(state: TrainState, images: DeviceImages, runtime: Runtime) -> Batches:
    recipe = state.recipe
    return batches_over(
        images,
        recipe.augmentation,
        batch=recipe.batch,
        seed=state.seed,
        stage=state.stage,
        rank=runtime.ranks.rank,
        ranks=runtime.ranks.count,
    )


def train_epoch(
    state: TrainState,
    batches: Batches,
    objective: Objective,
    runtime: Runtime,
    progress: Progress,
    until: int | None = None,
) -> None:
    """Train to the end of the epoch, or only to the step `until` in it. Stops early when a signal asks for it."""
    epoch, position = divmod(state.step, batches.steps_per_epoch)
    stop = (epoch + 1) * batches.steps_per_epoch
    stop = stop if until is None else min(until, stop)
    if position == 0:
        state.totals.zero_()
        state.images = 0
        # Every rank drops other numbers.
        torch.manual_seed(seed_for(state.seed, state.stage, "dropout", epoch) + runtime.ranks.rank)
    set_rate(state.optimizer, rate_in_epoch(state.recipe, epoch))
    batches.begin(epoch, position)
    state.model.train()
    if state.launch is None:
        state.launch = launcher(training_step(state, batches, objective, runtime), runtime)
    with counting_steps_together(state.model) as taken:
        while state.step < stop and not runtime.stops_before(state.step):
            batches.feed()
            state.launch()
            state.step += 1
            taken[0] += 1
            state.images += batches.global_batch
            progress.advance(state, batches.global_batch)
    runtime.ranks.average([state.totals, *running_statistics(state.model)])
    _require_finite(state, epoch)


def training_step(state: TrainState, batches: Batches, objective: Objective, runtime: Runtime) -> Callable[[], None]:
    """One step as a function: batch, forward, loss, backward, weights. It reads and writes tensors alone."""
    forward = forward_of(state.model, runtime)

    def next_batch() -> tuple[Tensor, Tensor]:  # (B, 3, h, w), (B,)
        images, labels = batches.next()
        return images.to(runtime.input_dtype, memory_format=torch.channels_last), labels

    def score(logits: Tensor, labels: Tensor) -> Tensor:
        loss, recognised = objective(logits, labels)
        # As if every rank's share were like this one; averaged over ranks it is the sum of all shares.
        of_all = torch.stack([loss.detach() * batches.global_batch, (recognised * batches.ranks).to(loss.dtype)])
        state.totals.add_(of_all)
        return loss

    next_batch, score = compiled(next_batch, runtime), compiled(score, runtime)

    def step() -> None:
        images, labels = next_batch()
        loss = score(forward(images), labels)
        state.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        state.optimizer.step()

    return step


def running_statistics(model: nn.Module) -> list[Tensor]:
    """What batch norm gathered. Moving averages: the mean over ranks is that of all images, whenever it is taken."""
    return [buffer for buffer in model.buffers() if buffer.is_floating_point()]


def _require_finite(state: TrainState, epoch: int) -> None:
    loss, _ = state.mean_loss_and_accuracy()
    if not math.isfinite(loss):
        recipe = {"base": "experts", "base-paper": "base.paper"}.get(state.stage, state.stage)
        raise RunError(
            f"{state.stage}: the loss is not finite in epoch {epoch + 1}, at or before step {state.step}; "
            f"try a lower rate (--set {recipe}.rate={state.recipe.rate / 10:g}) in a new run"
        )
