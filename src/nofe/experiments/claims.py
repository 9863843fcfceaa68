"""The paper's claims on CIFAR-100, each judged by what was measured here."""

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from nofe.experiments.index import Index, Measured
from nofe.experiments.tables import (
    ALEXNET,
    ARGMAX,
    AS_LONG,
    KS,
    PAPER_TABLE_3,
    RESNET,
    UNEVEN,
    base_of_same_recipe,
    label_as_long,
    row_of,
)

SPECTRAL = "spectral clustering of the base's confusion"
FEWEST_RUNS = 3  # of each side; fewer say nothing about their spread
LEVEL = 0.05
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
        if chance_of_difference(self.above, self.below) >= LEVEL:
            return TOO_CLOSE
        return HELD if statistics.mean(self.above) > statistics.mean(self.below) else NOT_HELD

    def __str__(self) -> str:
        if self.outcome == NOT_MEASURED:
            return f"{self.words}: {NOT_MEASURED}"
        figures = f"{statistics.mean(self.above):.2f} against {statistics.mean(self.below):.2f}"
        of_runs = f"n={len(self.above)} and {len(self.below)}"
        if self.outcome != TOO_FEW:
            of_runs += f", p={chance_of_difference(self.above, self.below):.2g}"
        remark = f" ({self.remark})" if self.remark else ""
        return f"{self.words}: {figures} ({of_runs}), {self.outcome}{remark}"


HELD, NOT_HELD, TOO_CLOSE, TOO_FEW, NOT_MEASURED = OUTCOMES = (
    "held",
    "not held",
    "too close to call",
    "too few runs",
    "not measured",
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
            return TOO_FEW if TOO_FEW in outcomes else NOT_MEASURED
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
    """Against the base by the same recipe: its own, where it is the experts' too; and one trained as long as both."""
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
            f"{name}, experts and a base trained for as many epochs as generalist and experts",
            figure("table-3", f"{name}: experts"),
            figure("table-3", label_as_long(name)),
        )
        for name in AS_LONG
    ]
    return [*by_recipe, *as_long]


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
    """Of the K between, the best is above the first and the last, by each of the paper's rules."""
    return [comparison for rule in ("fully-balanced", "elasso") for comparison in _inner_against_ends(figure, rule)]


def _inner_against_ends(figure: Figure, rule: str) -> list[Comparison]:
    by_count = {count: figure("table-1", f"{rule}, K={count}") for count in KS}
    first, *inner, last = KS
    if not all(by_count.values()):
        return [Comparison(f"{rule}, a K between {first} and {last} above both", (), ())]
    best = max(inner, key=lambda count: statistics.mean(by_count[count]))
    return [
        Comparison(f"{rule}, K={best}, the best between, and K={end}", by_count[best], by_count[end])
        for end in (first, last)
    ]
