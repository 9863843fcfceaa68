"""Whether one network is above another, by their runs, and what that says of a claim."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

FEWEST_RUNS = 3  # of each side; fewer say nothing about their spread
LEVEL = 0.05
LEARNED = 2.0  # per cent, of a hundred classes; less is chance
Figures = Sequence[float]  # per cent, one for each run


@dataclass(frozen=True)
class Comparison:
    """Figures for the claim that one network is above another."""

    words: str
    above: Figures
    below: Figures
    why_not_judged: str = ""
    remark: str = ""  # what is to be known of it, however it came out

    @property
    def outcome(self) -> str:
        """One of OUTCOMES. A difference counts when Welch's t test, two-sided, rejects chance at LEVEL."""
        if not self.above or not self.below:
            return NOT_MEASURED
        if min(len(self.above), len(self.below)) < FEWEST_RUNS:
            return TOO_FEW
        if self.why_not_judged or self._learned_nothing():
            return NOT_JUDGED
        if chance_of_difference(self.above, self.below) >= LEVEL:
            return TOO_CLOSE
        return HELD if statistics.mean(self.above) > statistics.mean(self.below) else NOT_HELD

    def _learned_nothing(self) -> str:
        """How many runs did, in words: their mean with runs that learned would be the accuracy of neither."""
        sides = {"first": self.above, "second": self.below}
        idle = {side: sum(each < LEARNED for each in figures) for side, figures in sides.items()}
        said = ", ".join(f"{idle[side]} of {len(sides[side])} of the {side}" for side in sides if idle[side])
        return f"runs learned nothing, {said}, which says nothing about the others" if said else ""

    @property
    def why(self) -> str:
        """What stands in the way of judging it; else nothing."""
        return (self.why_not_judged or self._learned_nothing()) if self.outcome == NOT_JUDGED else ""

    @property
    def chance(self) -> float | None:
        """That two networks that are alike differ as much; None where it is not judged."""
        if self.outcome not in (HELD, NOT_HELD, TOO_CLOSE):
            return None
        return chance_of_difference(self.above, self.below)


HELD, NOT_HELD, TOO_CLOSE, TOO_FEW, NOT_MEASURED, NOT_JUDGED = OUTCOMES = (
    "held",
    "not held",
    "too close to call",
    "too few runs",
    "not measured",
    "not judged",
)


def chance_of_difference(first: Figures, second: Figures) -> float:
    """Welch's t test: of a gap as wide as this if both had the same mean. Figures without any spread differ or not."""
    if statistics.pvariance(first) == statistics.pvariance(second) == 0:
        return 1.0 if statistics.mean(first) == statistics.mean(second) else 0.0
    from scipy.stats import ttest_ind

    return float(ttest_ind(first, second, equal_var=False).pvalue)


@dataclass(frozen=True)
class Judged:
    claim: str
    comparisons: tuple[Comparison, ...]

    @property
    def verdict(self) -> str:
        """By the comparisons that are decided: a claim is made of all of them, so one that fails refutes it.

        One that is too close to call does not bear the claim out, nor does it refute it.
        """
        outcomes = [comparison.outcome for comparison in self.comparisons]
        decided = {outcome for outcome in outcomes if outcome in (HELD, NOT_HELD, TOO_CLOSE)}
        if not decided:
            return next(outcome for outcome in (NOT_JUDGED, TOO_FEW, NOT_MEASURED) if outcome in outcomes)
        if NOT_HELD in decided:
            return NOT_HELD
        verdict = next(iter(decided)) if len(decided) == 1 else "held in part"
        return verdict if decided == set(outcomes) else f"{verdict}, as far as measured"

    @property
    def counts(self) -> str:
        """How many comparisons came out how."""
        outcomes = [comparison.outcome for comparison in self.comparisons]
        return ", ".join(f"{outcomes.count(outcome)} {outcome}" for outcome in OUTCOMES if outcome in outcomes)
