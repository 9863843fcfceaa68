"""The paper's claims on CIFAR-100, each judged by what was measured here."""

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from nofe.experiments.index import Index, Measured
from nofe.experiments.tables import ALEXNET, KS, PAPER_TABLE_3, RESNET, TABLES

SPECTRAL = "spectral clustering of the base's confusion"
Figure = Callable[[str, str], float | None]  # (table, label of a row) -> mean top-1 per cent, None if not measured


@dataclass(frozen=True)
class Comparison:
    """That one figure is above another; None where one of them is not measured."""

    words: str
    above: float | None
    below: float | None

    @property
    def holds(self) -> bool | None:
        return None if self.above is None or self.below is None else self.above > self.below

    def __str__(self) -> str:
        if self.above is None or self.below is None:
            return f"{self.words}: not measured"
        return f"{self.words}: {self.above:.2f} against {self.below:.2f}"


@dataclass(frozen=True)
class Judged:
    claim: str
    comparisons: tuple[Comparison, ...]

    @property
    def verdict(self) -> str:
        known = [comparison.holds for comparison in self.comparisons if comparison.holds is not None]
        if not known:
            return "not measured"
        verdict = "held" if all(known) else "held in part" if any(known) else "not held"
        return verdict if len(known) == len(self.comparisons) else f"{verdict}, as far as measured"


def judged(index: Index) -> list[Judged]:
    def figure(table: str, label: str) -> float | None:
        row = next(row for row in TABLES[table].rows if row.label == label)
        return mean(index.of(row))

    return [
        Judged("Experts beat the base", tuple(_experts_and_base(figure))),
        Judged(
            "Balance matters",
            _learned_beside(
                figure, {"argmax, which nothing balances": "learned, argmax", "spectral clusters": SPECTRAL}
            ),
        ),
        Judged(
            "Learned specialties beat random and spectral ones",
            _learned_beside(figure, {"random ones": "random, balanced", "spectral clusters": SPECTRAL}),
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
        Judged("Accuracy over K is an inverted U", tuple(_inverted_u(figure))),
    ]


def _learned_beside(figure: Figure, others: dict[str, str]) -> tuple[Comparison, ...]:
    """The paper's rule and others of Table 2, by what they are called and by their rows."""
    learned = figure("table-2", "learned, fully-balanced")
    return tuple(
        Comparison(f"fully-balanced and {name}", learned, figure("table-2", row)) for name, row in others.items()
    )


def mean(measured: Sequence[Measured]) -> float | None:
    return statistics.mean(each.accuracy for each in measured) if measured else None


def _experts_and_base(figure: Figure) -> list[Comparison]:
    """Against the base by the same recipe: the paper's own, where it is the experts' too."""
    labels = {row.label for row in TABLES["table-3"].rows}
    comparisons = []
    for name in PAPER_TABLE_3:
        same = f"{name}: base, experts' recipe"
        base = same if same in labels else f"{name}: base, paper's recipe"
        experts = figure("table-3", f"{name}: experts")
        comparisons.append(Comparison(f"{name}, experts and base by the same recipe", experts, figure("table-3", base)))
    return comparisons


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


def _inverted_u(figure: Figure) -> list[Comparison]:
    """Up to the best K, down after it; that it is neither the first nor the last is one comparison each."""
    by_count = {count: figure("table-1", f"fully-balanced, K={count}") for count in KS}
    if any(value is None for value in by_count.values()):
        return [Comparison("fully-balanced, a K between 2 and 50 above both", None, None)]
    best = max(by_count, key=lambda count: by_count[count] or 0.0)
    comparisons = [
        Comparison(f"fully-balanced, best K={best} and K={end}", by_count[best], by_count[end]) for end in (2, 50)
    ]
    rising = [(a, b) for a, b in pairwise(KS) if b <= best]
    falling = [(a, b) for a, b in pairwise(KS) if a >= best]
    comparisons += [Comparison(f"K={b} and K={a}", by_count[b], by_count[a]) for a, b in rising]
    comparisons += [Comparison(f"K={a} and K={b}", by_count[a], by_count[b]) for a, b in falling]
    return comparisons
