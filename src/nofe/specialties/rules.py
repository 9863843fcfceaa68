"""The rules by the names that configurations use."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final

import numpy as np
import numpy.typing as npt

from nofe.errors import UserError
from nofe.specialties.balanced import exact, fully_balanced
from nofe.specialties.baselines import argmax
from nofe.specialties.elastic import elasso
from nofe.specialties.partition import Specialties
from nofe.suggestions import did_you_mean

# (confusion (C, K), current, rng) -> specialties: the second step of the alternation, Sec. 3.1
Update = Callable[[npt.ArrayLike, Specialties, np.random.Generator], Specialties]


@dataclass(frozen=True)
class Rule:
    """A way to choose specialties."""

    name: str
    summary: str
    updates: bool  # applied again and again during the alternation; otherwise fixed before it


RULES: Final[dict[str, Rule]] = {
    rule.name: rule
    for rule in (
        Rule("fully-balanced", "equal sizes: the paper's greedy, classes in random order", updates=True),
        Rule("exact", "equal sizes: the most images in their own specialty; settles", updates=True),
        Rule("elasso", "sizes softly kept equal by an exclusive lasso of a given strength", updates=True),
        Rule("argmax", "sizes left free: each class to the specialty that recognises it best", updates=True),
        Rule("random", "equal sizes, drawn once", updates=False),
        Rule("spectral", "spectral groups of a base network's confusion of classes", updates=False),
        Rule("groups", "groups that a person or the data set gives", updates=False),
        Rule("wordnet", "a slice of WordNet's hypernyms; for classes named as in ImageNet", updates=False),
    )
}


def rule_named(name: str) -> Rule:
    """The rule of this name, or an error that suggests one."""
    if name in RULES:
        return RULES[name]
    raise UserError(f"rule '{name}': there is none; {did_you_mean(name, RULES)}")


def update_named(name: str, *, strength: float = 1000.0, sweeps: int | None = 1) -> Update:
    """The update of a rule, ready for the alternation; `strength` and `sweeps` matter to elasso alone."""
    if not rule_named(name).updates:
        updating = ", ".join(rule.name for rule in RULES.values() if rule.updates)
        raise UserError(f"rule '{name}': its specialties are fixed; for an alternation choose from {updating}")
    updates: dict[str, Update] = {
        "fully-balanced": fully_balanced,
        "exact": exact,
        "elasso": partial(elasso, strength=strength, sweeps=sweeps),
        "argmax": argmax,
    }
    return updates[name]
