"""The paper's claims in docs/results.md: a checklist, and the comparisons behind each verdict."""

import statistics
from collections.abc import Sequence

from nofe.experiments.claims import FEWEST_RUNS, LEVEL, Comparison, judged
from nofe.experiments.index import Index


def claims_section(index: Index) -> str:
    """A checklist, then for each claim the comparisons that its verdict rests on."""
    claims = judged(index)
    checklist = ["| claim | by these results | comparisons |", "|---|---|---|"]
    checklist += [f"| {each.claim} | **{each.verdict}** | {each.counts} |" for each in claims]
    words = (
        f"A difference counts from {FEWEST_RUNS} runs on each side, when Welch's t test, two-sided, rejects chance at "
        f"{LEVEL:.0%}; smaller ones are too close to call. p is of each comparison by itself: of twenty without any "
        "difference one would count. A claim is made of all its comparisons: one that is not held refutes it."
    )
    evidence = [part for each in claims for part in ("", f"### {each.claim}", "", *comparisons_table(each.comparisons))]
    return "\n".join(["## The paper's claims", "", *checklist, "", words, *evidence])


def comparisons_table(comparisons: Sequence[Comparison]) -> list[str]:
    """Of each the mean of the network that is claimed to be above, and of the other."""
    lines = ["| compared | the first | the second | difference | n | p | outcome |", "|---|---|---|---|---|---|---|"]
    for each in comparisons:
        above, below = (statistics.mean(figures) if figures else None for figures in (each.above, each.below))
        means = ("" if mean is None else f"{mean:.2f}" for mean in (above, below))
        difference = "" if above is None or below is None else f"{above - below:+.2f}"
        chance = "" if each.chance is None else f"{each.chance:.2g}"
        outcome = f"{each.outcome}: {each.why}" if each.why else each.outcome
        cells_of_one = (each.words, *means, difference, f"{len(each.above)}, {len(each.below)}", chance, outcome)
        lines.append("| " + " | ".join(cells_of_one) + " |")
    return lines
