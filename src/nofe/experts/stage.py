"""Stage 2 (Sec. 3.2): the network of experts over all classes, fine-tuned from the generalist."""

from dataclasses import dataclass
from typing import Literal

from nofe.training.recipe import Recipe


@dataclass(frozen=True, kw_only=True)
class ExpertsConfig(Recipe):
    start: Literal["generalist", "scratch"] = "generalist"  # where the trunk comes from
