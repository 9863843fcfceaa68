"""How one network is trained, as data. A stage adds its own fields to a Recipe."""

import math
from dataclasses import dataclass, field
from typing import Literal, get_args

from nofe.data.batches import Augmentation
from nofe.errors import UserError

Optimizer = Literal["caffe-sgd", "sgd", "adamw"]
Schedule = Literal["steps", "cosine"]


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """By default the paper's: SGD with Caffe's momentum, and a rate that falls tenfold at each drop.

    Drops are fractions of the epochs, so that a shorter or longer training keeps its shape.
    """

    epochs: int
    batch: int
    rate: float
    weight_decay: float
    drops: tuple[float, ...] = ()  # with schedule=steps
    momentum: float = 0.9  # with adamw: of the gradient's average; that of its square has 0.999
    decay_norms: bool = False  # weight decay on norms, too, which the release spares; with sgd and adamw on biases, too
    augmentation: Augmentation = field(default_factory=Augmentation)
    optimizer: Optimizer = "caffe-sgd"
    nesterov: bool = False  # with sgd
    schedule: Schedule = "steps"
    warmup_epochs: float = 0.0  # in which the rate rises, step by step, to its full height
    label_smoothing: float = 0.0  # share of every target that is spread over all outputs
    mixup: float = 0.0  # images are blended with others, by shares from Beta(mixup, mixup); 0 is never
    cutmix: float = 0.0  # a box of another image is pasted in, its area from Beta(cutmix, cutmix); 0 is never
    ema: float = 0.0  # decay of the moving average of the weights, which is evaluated and kept; 0 keeps the last ones

    def __post_init__(self) -> None:
        _require(self.epochs >= 1, "epochs", self.epochs, "train at least 1 epoch")
        _require(self.batch >= 1, "batch", self.batch, "use at least 1 image a batch")
        _require(self.rate > 0, "rate", self.rate, "use a learning rate above 0")
        _require(self.weight_decay >= 0, "weight_decay", self.weight_decay, "use 0 for none")
        _require(0 <= self.momentum < 1, "momentum", self.momentum, "use 0 to below 1")
        ordered = list(self.drops) == sorted(self.drops) and all(0 < drop < 1 for drop in self.drops)
        _require(ordered, "drops", self.drops, "give rising fractions of the epochs, e.g. [0.5, 0.75]")
        _require_one_of("optimizer", self.optimizer, get_args(Optimizer))
        _require_one_of("schedule", self.schedule, get_args(Schedule))
        _require(0 <= self.label_smoothing < 1, "label_smoothing", self.label_smoothing, "use 0 to below 1")
        _require(self.mixup >= 0, "mixup", self.mixup, "use 0 for none, e.g. 0.2")
        _require(self.cutmix >= 0, "cutmix", self.cutmix, "use 0 for none, e.g. 1")
        _require(0 <= self.ema < 1, "ema", self.ema, "use 0 for none, or a decay below 1 such as 0.999")
        rises = 0 <= self.warmup_epochs < self.epochs
        _require(rises, "warmup_epochs", self.warmup_epochs, f"use 0 to below the {self.epochs} epochs")
        if self.nesterov and not (self.optimizer == "sgd" and self.momentum):
            raise UserError(
                f"nesterov=True, optimizer={self.optimizer}, momentum={self.momentum:g}: Nesterov's momentum is that "
                "of sgd; set optimizer=sgd and a momentum, or nesterov=false"
            )
        if self.schedule == "cosine" and self.drops:
            raise UserError(f"schedule=cosine, drops={list(self.drops)}: a cosine has no drops; set drops=[]")


def training_steps(recipe: Recipe, images: int) -> int:
    """Of a whole stage. Where there are fewer images than a batch has, a step sees all of them."""
    return recipe.epochs * (images // min(recipe.batch, images))


def rate_at(recipe: Recipe, step: int, steps_per_epoch: int) -> float:
    """The learning rate of a step, counted from 0 over the whole stage; never 0."""
    rising = round(recipe.warmup_epochs * steps_per_epoch)
    if step < rising:
        return recipe.rate * ((step + 1) / rising)
    if recipe.schedule == "cosine":
        falling = recipe.epochs * steps_per_epoch - rising
        return recipe.rate * (1 + math.cos(math.pi * (step - rising) / falling)) / 2
    return rate_in_epoch(recipe, step // steps_per_epoch)


def rate_in_epoch(recipe: Recipe, epoch: int) -> float:
    """With schedule=steps, after warm-up, counted from 0. The first epoch has the full rate, however few there are."""
    dropped = sum(epoch >= max(1, round(drop * recipe.epochs)) for drop in recipe.drops)
    return recipe.rate * 0.1**dropped


def _require(holds: bool, name: str, value: object, advice: str) -> None:
    if not holds:
        raise UserError(f"{name}={value}: out of range; {advice}")


def _require_one_of(name: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise UserError(f"{name}={value}: there is none; use {', '.join(known[:-1])} or {known[-1]}")


def recipe_field(stage: str) -> str:
    """The field of a configuration that holds what a stage is trained by; the base follows the experts' recipe."""
    return {"base": "experts", "base-paper": "base.paper"}.get(stage, stage)
