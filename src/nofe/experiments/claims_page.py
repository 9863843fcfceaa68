"""The paper's claims in docs/results.md: a checklist, and the comparisons behind each verdict."""

import re
import statistics
from collections.abc import Sequence

from nofe.experiments.claims import judged
from nofe.experiments.comparison import FEWEST_RUNS, LEVEL, Comparison, Judged
from nofe.experiments.index import Index
from nofe.report.text import markdown_table


def claims_section(index: Index) -> str:
    """A checklist; what each verdict rests on is in the evidence."""
    rows = [
        (f"[{each.claim}](#{anchor(each.claim)})", f"**{each.verdict}**", differences(each), each.counts)
        for each in judged(index)
    ]
    checklist = markdown_table(("claim", "by these results", "differences", "comparisons"), rows)
    words = (
        f"A difference counts from {FEWEST_RUNS} runs on each side, when Welch's t test, two-sided, rejects chance at "
        f"{LEVEL:.0%}; smaller ones are too close to call. A claim is made of all its comparisons: one that is not "
        "held refutes it. Differences are in points, in favour of the claim if positive."
    )
    return "\n".join(["## The paper's claims", "", checklist, "", words])


def evidence_section(index: Index) -> str:
    """For each claim the comparisons that its verdict rests on."""
    words = (
        "p is of each comparison by itself: of twenty without any difference one would count. The test takes figures "
        "to be normally distributed; of three against three, one that does not could reject nothing at "
        f"{LEVEL:.0%}. {_if_seeds_count_once(index)}"
    )
    tables = [
        part for each in judged(index) for part in ("", f"### {each.claim}", "", comparisons_table(each.comparisons))
    ]
    return "\n".join(["## Claims by their comparisons", "", words, *tables])


def anchor(heading: str) -> str:
    """Of a link to it, as GitHub makes them."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def differences(claim: Judged) -> str:
    """From the smallest to the largest of those that are judged."""
    found = sorted(
        statistics.mean(each.above) - statistics.mean(each.below)
        for each in claim.comparisons
        if each.chance is not None
    )
    if not found:
        return ""
    return f"{found[0]:+.2f}" if len(found) == 1 else f"{found[0]:+.2f} to {found[-1]:+.2f}"


def _if_seeds_count_once(index: Index) -> str:
    """Runs of one seed begin with the same weights and see the same images; whether that matters to any outcome."""
    every, once = (
        [one for claim in judged(index, once_a_seed=way) for one in claim.comparisons] for way in (False, True)
    )
    changed = [
        f"{one.words} ({other.outcome})" for one, other in zip(every, once, strict=True) if one.outcome != other.outcome
    ]
    return "With one figure for each seed, the mean of its runs, " + (
        f"other outcomes are: {'; '.join(changed)}." if changed else "every outcome is the same."
    )


def comparisons_table(comparisons: Sequence[Comparison]) -> str:
    """Of each the mean of the network that is claimed to be above, and of the other."""
    rows = []
    for each in comparisons:
        above, below = (statistics.mean(figures) if figures else None for figures in (each.above, each.below))
        means = ("" if mean is None else f"{mean:.2f}" for mean in (above, below))
        difference = "" if above is None or below is None else f"{above - below:+.2f}"
        chance = "" if each.chance is None else f"{each.chance:.2g}"
        outcome = ": ".join(part for part in (each.outcome, each.why or each.remark) if part)
        rows.append((each.words, *means, difference, f"{len(each.above)}, {len(each.below)}", chance, outcome))
    return markdown_table(("compared", "the first", "the second", "difference", "n", "p", "outcome"), rows)
