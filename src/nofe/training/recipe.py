"""How one network is trained, as data. A stage adds its own fields to a Recipe."""

from dataclasses import dataclass, field

from nofe.data.batches import Augmentation
from nofe.errors import UserError


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """SGD with momentum; the rate falls tenfold at each drop.

    Drops are fractions of the epochs, so that a shorter or longer training keeps its shape.
    """

    epochs: int
    batch: int
    rate: float
    weight_decay: float
    drops: tuple[float, ...] = ()
    momentum: float = 0.9
    decay_norms: bool = False  # weight decay on the scales and shifts of batch norm, too; the release spares them
    augmentation: Augmentation = field(default_factory=Augmentation)

    def __post_init__(self) -> None:
        _require(self.epochs >= 1, "epochs", self.epochs, "train at least 1 epoch")
        _require(self.batch >= 1, "batch", self.batch, "use at least 1 image a batch")
        _require(self.rate > 0, "rate", self.rate, "use a learning rate above 0")
        _require(self.weight_decay >= 0, "weight_decay", self.weight_decay, "use 0 for none")
        _require(0 <= self.momentum < 1, "momentum", self.momentum, "use 0 to below 1")
        ordered = list(self.drops) == sorted(self.drops) and all(0 < drop < 1 for drop in self.drops)
        _require(ordered, "drops", self.drops, "give rising fractions of the epochs, e.g. [0.5, 0.75]")


def rate_in_epoch(recipe: Recipe, epoch: int) -> float:
    """The learning rate of an epoch, counted from 0. The first epoch has the full rate, however few there are."""
    dropped = sum(epoch >= max(1, round(drop * recipe.epochs)) for drop in recipe.drops)
    return recipe.rate * 0.1**dropped


def _require(holds: bool, name: str, value: object, advice: str) -> None:
    if not holds:
        raise UserError(f"{name}={value}: out of range; {advice}")
