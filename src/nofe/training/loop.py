"""One training loop for every stage; a stage brings its objective."""

import math
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nofe.architectures.caffe import counting_steps_together
from nofe.data.batches import Batches, DeviceImages
from nofe.data.mixing import Labels
from nofe.data.stream import batches_over
from nofe.errors import RunError
from nofe.streams import seed_for
from nofe.training.average import MovingAverage
from nofe.training.half import forward_of
from nofe.training.launch import compile_blocks, compiled, launch_all, launcher
from nofe.training.mended import mend_pooling
from nofe.training.optimizer import backward_and_step, optimizer_of, set_rate, weights_may_have_changed
from nofe.training.progress import Progress
from nofe.training.recipe import Recipe, rate_at, recipe_field
from nofe.training.runtime import Runtime, device_name
from nofe.training.sync_norm import synchronise_batch_norm
from nofe.training.turns import alone_at_first


@dataclass
class Objective:
    """Cross entropy against a target for each class: the class itself, or its specialty (Eq. 1 and 2)."""

    target_of_class: Tensor  # (C,)
    smoothing: float = field(default=0.0, kw_only=True)  # share of a target that is spread over all outputs

    def __call__(self, logits: Tensor, labels: Labels) -> tuple[Tensor, Tensor]:
        """The mean loss, and the number of images recognised; a mixed one counts by the larger of its parts."""
        logits = logits.float()
        if isinstance(labels, Tensor):
            targets = self.target_of_class[labels]
            loss = F.cross_entropy(logits, targets, label_smoothing=self.smoothing)
            return loss, (logits.argmax(1) == targets).sum()
        own, other = self.target_of_class[labels.own], self.target_of_class[labels.other]
        of_own, of_other = (
            F.cross_entropy(logits, targets, reduction="none", label_smoothing=self.smoothing)  # (B,)
            for targets in (own, other)
        )
        loss = (labels.share * of_own + (1 - labels.share) * of_other).mean()
        return loss, (logits.argmax(1) == torch.where(labels.share >= 0.5, own, other)).sum()

    def loss_of_guessing(self) -> float:
        """The loss of a network to which every target is as likely as the others. Waits for the device."""
        return math.log(int(self.target_of_class.max()) + 1)

    def retarget(self, target_of_class: Tensor) -> None:
        """In place: a step that was captured or compiled keeps reading the same memory."""
        self.target_of_class.copy_(target_of_class)


@dataclass
class TrainState:
    """A network in training. `step` counts from the start of the stage."""

    stage: str
    model: nn.Module
    optimizer: torch.optim.Optimizer
    recipe: Recipe
    seed: int
    totals: Tensor  # (2,) loss and recognised images of all ranks, summed since the epoch began
    step: int = 0
    images: int = 0  # seen since the epoch began
    launch: Callable[[], None] | None = None  # one training step, however the runtime runs it
    average: MovingAverage | None = None  # of the weights, where the recipe wants one

    def mean_loss_and_accuracy(self) -> tuple[float, float]:
        """Over the epoch so far. Waits for the device."""
        loss, recognised = self.totals.tolist()
        return loss / max(self.images, 1), recognised / max(self.images, 1)

    def as_evaluated(self) -> AbstractContextManager[None]:
        """The model has its averaged weights for a while; without an average it is as it is."""
        return self.average.adopted() if self.average else nullcontext()

    def finish(self) -> None:
        """The model has the weights that the stage is to leave behind."""
        if self.average:
            self.average.adopt()


def start_training(stage: str, model: nn.Module, recipe: Recipe, seed: int, runtime: Runtime) -> TrainState:
    # Channels last: about 1.5 times as fast, on a CPU as on a GPU.
    model.to(runtime.device, memory_format=torch.channels_last)  # type: ignore[call-overload]
    if runtime.sync_batch_norm:
        synchronise_batch_norm(model, runtime.ranks)
    if not runtime.compile:
        mend_pooling(model, runtime.device)
    compile_blocks(model, runtime)
    totals = torch.zeros(2, device=runtime.device)
    average = MovingAverage(model, recipe.ema) if recipe.ema else None
    return TrainState(stage, model, optimizer_of(model, recipe), recipe, seed, totals, average=average)


def batches_of(state: TrainState, images: DeviceImages, runtime: Runtime) -> Batches:
    recipe = state.recipe
    return batches_over(
        images,
        recipe.augmentation,
        batch=recipe.batch,
        seed=state.seed,
        stage=state.stage,
        mixup=recipe.mixup,
        cutmix=recipe.cutmix,
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
        # Each rank has dropout of its own.
        torch.manual_seed(seed_for(state.seed, state.stage, "dropout", epoch) + runtime.ranks.rank)
    batches.begin(epoch, position)
    weights_may_have_changed(state.optimizer)
    state.model.train()
    if state.launch is None:
        state.launch = launcher(training_step(state, batches, objective, runtime), runtime)
    launch = state.launch

    def launch_steps(taken: list[int]) -> None:
        while state.step < stop and not runtime.stops_before(state.step):
            batches.feed()
            # Numbers of this step, put where the step reads them: nothing waits for the device.
            set_rate(state.optimizer, rate_at(state.recipe, state.step, batches.steps_per_epoch))
            if state.average:
                state.average.before(state.step)
            launch()
            state.step += 1
            taken[0] += 1
            state.images += batches.global_batch
            progress.advance(state, batches.global_batch)

    are_last = stop == state.recipe.epochs * batches.steps_per_epoch
    with counting_steps_together(state.model) as taken:
        launch_all(partial(launch_steps, taken), launch, runtime, are_last=are_last)
    averaged = state.average.statistics() if state.average else []
    runtime.ranks.average([state.totals, *running_statistics(state.model), *averaged])
    _require_finite(state, epoch)


def training_step(state: TrainState, batches: Batches, objective: Objective, runtime: Runtime) -> Callable[[], None]:
    """One step as a function: batch, forward, loss, backward, weights. It reads and writes tensors alone."""
    forward = forward_of(state.model, runtime, state.optimizer)

    def next_batch() -> tuple[Tensor, Labels]:  # (B, 3, h, w), (B,)
        images, labels = batches.next()
        return images.to(runtime.input_dtype, memory_format=torch.channels_last), labels

    def score(logits: Tensor, labels: Labels) -> Tensor:
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
        backward_and_step(state.optimizer, loss, ranks=runtime.ranks.count)
        if state.average:
            state.average.update()

    # Ranks would wait for each other in their first step, and must take it together.
    if not runtime.compile or runtime.ranks.count > 1:
        return step
    return alone_at_first(step, _what_is_compiled(state, runtime))


def _what_is_compiled(state: TrainState, runtime: Runtime) -> str:
    """All that the compiled code of a step depends on, but not the values it computes with."""
    recipe = state.recipe
    of_batches = (
        recipe.batch,
        recipe.augmentation,
        recipe.mixup,
        recipe.cutmix,
        recipe.label_smoothing,
        recipe.optimizer,
    )
    return f"torch {torch.__version__}, {device_name(runtime.device)}, {runtime.precision}: {of_batches} {state.model}"


def running_statistics(model: nn.Module) -> list[Tensor]:
    """What batch norm gathered. Moving averages: the mean over ranks is that of all images, whenever it is taken."""
    return [buffer for buffer in model.buffers() if buffer.is_floating_point()]


def advice_on_rate(state: TrainState) -> str:
    """Advice for a network that does not learn."""
    return f"try a lower rate (--set {recipe_field(state.stage)}.rate={state.recipe.rate / 10:g}) in a new run"


def _require_finite(state: TrainState, epoch: int) -> None:
    loss, _ = state.mean_loss_and_accuracy()
    if not math.isfinite(loss):
        raise RunError(
            f"{state.stage}: the loss is not finite in epoch {epoch + 1}, at or before step {state.step}; "
            f"{advice_on_rate(state)}"
        )
