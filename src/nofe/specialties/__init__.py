"""From a confusion to specialties (Sec. 3.1). Arrays only; nothing here needs torch to import."""

from nofe.specialties.agreement import (
    adjusted_rand,
    agreement,
    chance_of_pairs_together,
    class_confusion,
    classes_moved,
    pairs_in_common,
    pairs_together,
)
from nofe.specialties.balanced import exact, fully_balanced, random_balanced
from nofe.specialties.baselines import argmax, given_groups, spectral
from nofe.specialties.elastic import elasso, elasso_cost
from nofe.specialties.partition import Specialties
from nofe.specialties.rules import RULES, Rule, Update, rule_named, update_named
from nofe.specialties.wordnet import wordnet_specialties

__all__ = [
    "RULES",
    "Rule",
    "Specialties",
    "Update",
    "adjusted_rand",
    "agreement",
    "argmax",
    "chance_of_pairs_together",
    "class_confusion",
    "classes_moved",
    "elasso",
    "elasso_cost",
    "exact",
    "fully_balanced",
    "given_groups",
    "pairs_in_common",
    "pairs_together",
    "random_balanced",
    "rule_named",
    "spectral",
    "update_named",
    "wordnet_specialties",
]
