"""The paper's claims on CIFAR-100, each judged by what was measured here."""

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from nofe.experiments.index import Index, Measured
from nofe.experiments.reproduce import epochs_of
from nofe.experiments.tables import (
    ALEXNET,
    ARGMAX,
    KS,
    PAPER_TABLE_3,
    RESNET,
    UNEVEN,
    base_of_same_recipe,
    label_as_long,
    row_of,
)

SPECTRAL = "spectral clustering of the base's confusion"
PEAK = 10  # experts, the best of the paper's Table 1; not chosen by the figures it is compared with
FEWEST_RUNS = 3  # of each side; fewer say nothing about their spread
LEVEL = 0.05
LEARNED = 2.0  # per cent, of a hundred classes; less is chance
Figures = Sequence[float]  # per cent, one for each seed
Figure = Callable[[str, str], Figures]  # (table, label of a row) -> what was measured


@dataclass(frozen=True)
class Comparison:
    """That one network is above another."""

    words: str
    above: Figures
    below: Figures
    remark: str = ""

    @property
    def outcome(self) -> str:
        """One of OUTCOMES. A difference counts when Welch's t test, two-sided, rejects chance at LEVEL."""
        if not self.above or not self.below:
            return NOT_MEASURED
        if min(len(self.above), len(self.below)) < FEWEST_RUNS:
            return TOO_FEW
        if self._learned_nothing():
            return DID_NOT_LEARN
        if chance_of_difference(self.above, self.below) >= LEVEL:
            return TOO_CLOSE
        return HELD if statistics.mean(self.above) > statistics.mean(self.below) else NOT_HELD

    def _learned_nothing(self) -> str:
        """Which runs did; their mean with others that learned is the accuracy of neither."""
        sides = {"first": self.above, "second": self.below}
        idle = {side: sum(each < LEARNED for each in figures) for side, figures in sides.items()}
        return ", ".join(f"{idle[side]} of {len(sides[side])} of the {side}" for side in sides if idle[side])

    def __str__(self) -> str:
        if self.outcome == NOT_MEASURED:
            return f"{self.words}: {NOT_MEASURED}"
        figures = f"{statistics.mean(self.above):.2f} against {statistics.mean(self.below):.2f}"
        of_runs = f"n={len(self.above)} and {len(self.below)}"
        if self.outcome != TOO_FEW:
            of_runs += f", p={chance_of_difference(self.above, self.below):.2g}"
        remarks = [remark for remark in (self.remark, self._learned_nothing()) if remark]
        remark = f" ({'; '.join(remarks)})" if remarks else ""
        return f"{self.words}: {figures} ({of_runs}), {self.outcome}{remark}"


HELD, NOT_HELD, TOO_CLOSE, TOO_FEW, NOT_MEASURED, DID_NOT_LEARN = OUTCOMES = (
    "held",
    "not held",
    "too close to call",
    "too few runs",
    "not measured",
    "runs that learned nothing, which say nothing about the others",
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
        """By the comparisons that have enough runs; one that is too close to call does not bear the claim out."""
        outcomes = {comparison.outcome for comparison in self.comparisons}
        decided = outcomes & {HELD, NOT_HELD, TOO_CLOSE}
        if not decided:
            return TOO_FEW if outcomes & {TOO_FEW, DID_NOT_LEARN} else NOT_MEASURED
        if HELD in decided:
            verdict = HELD if decided == {HELD} else "held in part"
        else:
            verdict = NOT_HELD if NOT_HELD in decided else TOO_CLOSE
        return verdict if decided == outcomes else f"{verdict}, as far as measured"


def judged(index: Index) -> list[Judged]:
    def figure(table: str, label: str) -> Figures:
        return [each.accuracy for each in index.of(row_of(table, label))]

    collapsed = collapsed_in_words(index.of(row_of("table-2", ARGMAX)))

    return [
        Judged("Experts beat the base", tuple(_experts_and_base(figure))),
        Judged(
            "Balance matters",
            _learned_beside(
                figure,
                {"argmax, which nothing balances": ARGMAX, "elasso with little balance": UNEVEN},
                {ARGMAX: collapsed},
            ),
        ),
        Judged(
            "Learned specialties beat random and spectral ones",
            _learned_beside(figure, {"random ones": "random, balanced", "spectral clusters": SPECTRAL}, {}),
        ),
        Judged(
            "The generalist is needed",
            (
                *(
                    Comparison(
                        f"{name}, trunk from the generalist and from scratch",
                        figure("scratch", f"{name}: from the generalist"),
                        figure("scratch", f"{name}: from scratch"),
                    )
                    for name in (ALEXNET, RESNET)
                ),
                Comparison(
                    f"{ALEXNET}, generalist from random weights and from the base",
                    figure("from-base", "experts, generalist from random weights"),
                    figure("from-base", "experts, generalist from the base"),
                ),
            ),
        ),
        Judged("Neither depth nor parameters explain the gain", tuple(_sizes(figure))),
        Judged("Accuracy over K is an inverted U", tuple(inverted_u(figure))),
    ]


def _learned_beside(figure: Figure, others: dict[str, str], remarks: dict[str, str]) -> tuple[Comparison, ...]:
    """The paper's rule and others of Table 2, by what they are called and by their rows; remarks by row."""
    learned = figure("table-2", "learned, fully-balanced")
    return tuple(
        Comparison(f"fully-balanced and {name}", learned, figure("table-2", row), remarks.get(row, ""))
        for name, row in others.items()
    )


def collapsed_in_words(measured: Sequence[Measured]) -> str:
    """Where a network ended with fewer experts than it was asked for; else nothing."""
    asked_and_left = [
        (each.result["config"]["specialties"]["count"], len(each.result["specialties"]["specialties"]))
        for each in measured
    ]
    fewer = sorted({left for asked, left in asked_and_left if left < asked})
    if not fewer:
        return ""
    left = " or ".join(str(count) for count in fewer)
    return f"it ended with {left} of {asked_and_left[0][0]} experts: what is left is close to a base"


def _experts_and_base(figure: Figure) -> list[Comparison]:
    """Against the base by the same recipe: its own, where it is the experts' too; and against a longer training."""
    by_recipe = [
        Comparison(
            f"{name}, experts and base by the same recipe",
            figure("table-3", f"{name}: experts"),
            figure("table-3", base_of_same_recipe(name).label),
        )
        for name in PAPER_TABLE_3
    ]
    as_long = [
        Comparison(
            f"{name}, experts and a base of {epochs_of_row(label_as_long(name))} epochs, where generalist and experts "
            f"have {epochs_of_row(f'{name}: experts')}",
            figure("table-3", f"{name}: experts"),
            figure("table-3", label_as_long(name)),
        )
        for name in PAPER_TABLE_3
    ]
    return [*by_recipe, *as_long]


def epochs_of_row(label: str) -> int:
    """Of Table 3, all stages together."""
    row = row_of("table-3", label)
    stages = epochs_of(row.experiment.config)
    return stages[row.network] if row.network.startswith("base") else stages["generalist"] + stages["experts"]


def _sizes(figure: Figure) -> list[Comparison]:
    comparisons = [
        Comparison(
            f"{name}, experts and a base of the {what}",
            figure("table-4", f"{name}: experts"),
            figure("table-4", f"{name}: base, {what}"),
        )
        for name in (ALEXNET, "vgg11-c100", RESNET)
        for what in ("same parameters", "same parameters and depth")
    ]
    return [
        *comparisons,
        Comparison(
            f"{ALEXNET}, experts and a base with one more convolution",
            figure("from-base", "experts, generalist from random weights"),
            figure("from-base", "base with one more convolution"),
        ),
    ]


def inverted_u(figure: Figure) -> list[Comparison]:
    """The paper's best K, ten, is above the first and the last, by each of the paper's rules."""
    return [
        Comparison(
            f"{rule}, K={PEAK} and K={end}",
            figure("table-1", f"{rule}, K={PEAK}"),
            figure("table-1", f"{rule}, K={end}"),
        )
        for rule in ("fully-balanced", "elasso")
        for end in (KS[0], KS[-1])
    ]
