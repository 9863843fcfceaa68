"""What a stage writes down: a line for each epoch, and checkpoints to go on from."""

import time
from typing import Any, NoReturn

import torch

from nofe.errors import Interrupted
from nofe.runs import Run
from nofe.streams import seed_for
from nofe.training.checkpoint import (
    Checkpoint,
    checkpoint_from,
    discard_checkpoints,
    stored_checkpoint,
    write_checkpoint,
)
from nofe.training.loop import Objective, TrainState, advice_on_rate
from nofe.training.optimizer import MEMORY, current_rate, load_optimizer_tensors, optimizer_tensors, set_rate
from nofe.training.progress import Progress
from nofe.training.ranks import Ranks
from nofe.training.recipe import rate_at
from nofe.training.runtime import Runtime, generator_state, set_generator_state

EPOCHS_TO_LEARN_IN, CLEARLY_LEARNED = 3, 0.999  # below this share of the loss of guessing
SHARE_OF_CHECKPOINTS = 0.01  # of the time of a run, at most, where nobody says how far apart they are


class Journal:
    """The memory of a run across interruptions. Rank 0 writes it and reads it to the others."""

    def __init__(self, run: Run, runtime: Runtime, progress: Progress) -> None:
        self.run, self.runtime, self.progress = run, runtime, progress
        self.ranks = runtime.ranks
        self._epoch_began = time.monotonic()
        self._seen_before = 0  # images of the epoch that an interrupted run saw, in a time that is not known
        self._saved = time.monotonic()
        self._writing = 0.0  # seconds that the last checkpoint took

    def begin(self, state: TrainState, steps: int, batch: int) -> dict[str, Any]:
        """Put the state where an earlier, interrupted run left it. Returns that run's notes; none is empty."""
        content = self.ranks.first(lambda: stored_checkpoint(self.run, state.stage))
        checkpoint = None if content is None else checkpoint_from(content)
        if checkpoint is not None:
            exact = _restore(state, checkpoint, self.runtime)
            rounding = "the same to rounding, on another machine, a GPU or several ranks"
            how = "exactly as if never interrupted" if exact else rounding
            self.progress.say(f"{state.stage}: going on after step {state.step:,} of {steps:,}, {how}")
        else:
            self.ranks.first(lambda: discard_checkpoints(self.run))
        self.run.forget_metrics(state.stage, after_step=state.step if checkpoint else -1)
        self.progress.begin(state, steps, batch)
        inside_epoch = state.step % (steps // state.recipe.epochs)
        self._epoch_began, self._seen_before = time.monotonic(), state.images if inside_epoch else 0
        return checkpoint.notes["stage_notes"] if checkpoint else {}

    def epoch_done(self, state: TrainState, epoch: int, **figures: Any) -> None:
        """One line in metrics.jsonl. Waits for the device."""
        loss, accuracy = state.mean_loss_and_accuracy()
        seconds = time.monotonic() - self._epoch_began
        line = {
            "stage": state.stage,
            "epoch": epoch,
            "step": state.step,
            "loss": loss,
            "accuracy": accuracy,
            "rate": rate_at(state.recipe, state.step - 1, state.step // epoch),  # of its last step
            "seconds": round(seconds, 3),
            "images_per_second": round((state.images - self._seen_before) / seconds, 1),
            **figures,
        }
        self.run.append_metrics(line)
        self.progress.end_epoch(line)
        self._epoch_began, self._seen_before = time.monotonic(), 0

    def tell_if_it_guesses(self, state: TrainState, epoch: int, objective: Objective) -> None:
        """Warn once, after epochs in which any network should have learned something."""
        if epoch == EPOCHS_TO_LEARN_IN:
            loss, guessing = state.mean_loss_and_accuracy()[0], objective.loss_of_guessing()
            if loss > CLEARLY_LEARNED * guessing:
                self.progress.say(
                    f"{state.stage}: after {epoch} epochs the loss is still that of guessing, {guessing:.3f}: the "
                    f"network learns nothing; {advice_on_rate(state)}"
                )

    def save(self, state: TrainState, **stage_notes: Any) -> None:
        """At the end of an epoch, if the last checkpoint is as old as the runtime wants."""
        if self.ranks.first(lambda: time.monotonic() - self._saved >= self._seconds_apart()):
            self._write(state, stage_notes)

    def _seconds_apart(self) -> float:
        wanted = self.runtime.checkpoint_seconds
        return self._writing / SHARE_OF_CHECKPOINTS if wanted is None else wanted

    def stop(self, state: TrainState, **stage_notes: Any) -> NoReturn:
        """A signal cut the epoch short: save in the middle of it, and end."""
        self._write(state, stage_notes)
        self.progress.end()
        number = self.runtime.stop_signal or 0
        raise Interrupted(
            f"{self.run.path}: stopped by signal {number} in stage {state.stage} after step {state.step:,}, "
            "all saved; go on with --resume",
            number,
        )

    def _write(self, state: TrainState, stage_notes: dict[str, Any]) -> None:
        began = time.monotonic()
        checkpoint = _snapshot(state, stage_notes, self.ranks)
        self.ranks.first(lambda: write_checkpoint(self.run, checkpoint))
        self._saved = time.monotonic()
        self._writing = self._saved - began


def _snapshot(state: TrainState, stage_notes: dict[str, Any], ranks: Ranks) -> Checkpoint:
    tensors = {f"model.{name}": tensor for name, tensor in state.model.state_dict().items()}
    for kind, prefix in MEMORY.items():
        memory = _renamed("to_disk", state, optimizer_tensors(state.optimizer, state.model, kind))
        tensors |= {f"{prefix}.{name}": tensor for name, tensor in memory.items()}
    if state.average:
        average = _renamed("to_disk", state, state.average.tensors)
        tensors |= {f"ema.{name}": tensor for name, tensor in average.items()}
    tensors["totals"] = state.totals
    tensors["generator.cpu"] = ranks.gather(torch.get_rng_state())  # (ranks, ...): each has its own dropout
    device = state.totals.device
    if (own := generator_state(device)) is not None:
        tensors[f"generator.{device.type}"] = ranks.gather(own)
    notes = {
        "images": state.images,
        "rate": current_rate(state.optimizer),
        "threads": torch.get_num_threads(),
        "arithmetic": _arithmetic(state, ranks),
        "stage_notes": stage_notes,
    }
    return Checkpoint(state.stage, state.step, tensors, notes)


def _arithmetic(state: TrainState, ranks: Ranks) -> str:
    """What must be the same for the same bits to come out; a GPU does not promise it in any case."""
    if state.totals.device.type != "cpu":
        return state.totals.device.type
    return f"cpu {torch.backends.cpu.get_cpu_capability()} torch {torch.__version__} ranks {ranks.count}"


def _restore(state: TrainState, checkpoint: Checkpoint, runtime: Runtime) -> bool:
    """Returns whether the rest of the training will be the same bit for bit."""

    def of(prefix: str) -> dict[str, torch.Tensor]:
        return {k.removeprefix(prefix): v for k, v in checkpoint.tensors.items() if k.startswith(prefix)}

    notes = checkpoint.notes
    state.model.load_state_dict(of("model."))
    # The rate first: the momentum buffers were saved as they stood at that rate.
    set_rate(state.optimizer, notes["rate"])
    for kind, prefix in MEMORY.items():
        memory = _renamed("from_disk", state, of(f"{prefix}."))
        load_optimizer_tensors(state.optimizer, state.model, memory, kind, checkpoint.step)
    if state.average:
        state.average.load(_renamed("from_disk", state, of("ema.")))
    state.totals.copy_(checkpoint.tensors["totals"])
    state.images, state.step = notes["images"], checkpoint.step
    _restore_generators(state, checkpoint, runtime)
    torch.set_num_threads(notes["threads"])
    # Several ranks averaged what their batch norms gathered when they stopped, which rounds once more; and a sum over
    # more than two is rounded by its place in DDP's buffers, which a fresh start lays out anew.
    repeatable = state.totals.device.type == "cpu" and runtime.ranks.count == 1
    return bool(notes["arithmetic"] == _arithmetic(state, runtime.ranks) and repeatable)


def _restore_generators(state: TrainState, checkpoint: Checkpoint, runtime: Runtime) -> None:
    ranks, of_ranks = runtime.ranks, checkpoint.tensors["generator.cpu"]
    if len(of_ranks) != ranks.count:  # dropout is another one for the rest of this epoch
        torch.manual_seed(seed_for(state.seed, state.stage, "dropout", "after step", state.step) + ranks.rank)
        return
    # Copies: torch reads the state as if it were aligned, and crashes where a row of a file is not.
    torch.set_rng_state(of_ranks[ranks.rank].clone())
    own = checkpoint.tensors.get(f"generator.{runtime.device.type}") if runtime.device.type != "cpu" else None
    if own is not None:
        set_generator_state(runtime.device, own[ranks.rank].clone())


def _renamed(how: str, state: TrainState, tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """A model whose weights have other names and shapes on disk renames what belongs to them in the same way."""
    rename = getattr(state.model, how, None)
    return rename(tensors) if callable(rename) else tensors
