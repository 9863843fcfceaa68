"""Tables of measured results beside the paper's: in the terminal, and as Markdown."""

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from nofe.experiments.costs import Growth, left_of
from nofe.experiments.index import Index, Measured
from nofe.experiments.paper_tables import RETRIEVAL
from nofe.experiments.reproduce import Filed, Job
from nofe.experiments.table import Experiment, Row, Table
from nofe.experiments.tables import TABLES, experiments_of, tables_named
from nofe.report.text import table as text_table


def mean_and_deviation(figures: Sequence[float]) -> str:
    if not figures:
        return "not measured"
    deviation = f" ± {statistics.stdev(figures):.2f}" if len(figures) > 1 else ""
    return f"{statistics.mean(figures):.2f}{deviation} (n={len(figures)})"


def cells(row: Row, measured: Sequence[Measured]) -> tuple[str, ...]:
    """Label, ours, the paper's, the difference, top-5, parameters, seconds."""
    accuracies = [each.accuracy for each in measured]
    difference = "" if row.paper is None or not measured else f"{statistics.mean(accuracies) - row.paper:+.2f}"
    top_5 = [each.top_5 for each in measured if each.top_5 is not None]
    return (
        row.label,
        mean_and_deviation(accuracies),
        "" if row.paper is None else f"{row.paper:.2f}",
        difference,
        f"{statistics.mean(top_5):.2f}" if top_5 else "",
        f"{measured[0].parameters:,}" if measured else "",
        f"{statistics.mean(each.seconds for each in measured):.0f}" if measured else "",
    )


def table_in_words(table: Table, results: Sequence[Mapping[str, Any]]) -> str:
    index = Index(results)
    if table == RETRIEVAL:
        head = RETRIEVAL_HEAD
        rows = retrieval_cells(index)
    else:
        head = ("", f"{table.measure} %, mean and deviation", "paper", "difference", "top-5 %", "parameters", "seconds")
        rows = [cells(row, index.of(row)) for row in table.rows]
    return f"{table.title}\n\n" + text_table(head, rows)


RETRIEVAL_HEAD: tuple[str, ...] = ("network", "features", "at 1", "at 3", "at 10")


def retrieval_cells(index: Index) -> list[tuple[str, ...]]:
    """Precision at 1, 3 and 10 by features of the experts and of the base, for each network."""
    lines = []
    for row in RETRIEVAL.rows:
        precisions = [found["precision"] for found in index.measures(row.experiment, "retrieval").values()]
        for features in ("experts", "base"):
            figures = ([100 * precision[features][depth] for precision in precisions] for depth in ("1", "3", "10"))
            lines.append((row.label, features, *(mean_and_deviation(each) for each in figures)))
    return lines


def overview(
    tables: Sequence[Table], seeds: int, results: Sequence[Mapping[str, Any]], growth: Growth, at_once: int
) -> str:
    """Every table with its rows: how many of its runs are done, and an estimate of what all and the missing ones cost.

    Rows have stages in common: each has the price that it has by itself, a table and the total pay for a stage once.
    """
    filed = Filed(results)
    lines: list[tuple[str, ...]] = []
    titles: dict[int, str] = {}  # by line: too long for a column
    for table in tables:
        titles[len(lines)] = table.title
        lines.append((table.name, *_state(table.experiments(), seeds, filed, growth, at_once)))
        lines += [(f"    {row.label}", *_state([row.experiment], seeds, filed, growth, at_once)) for row in table.rows]
    for title, counted in (("the paper on CIFAR-100", tables_named(["all"])), ("everything", list(TABLES.values()))):
        if len(tables) > 1 and all(table in tables for table in counted):
            lines.append((f"total, {title}", *_state(experiments_of(counted), seeds, filed, growth, at_once)))
    head = ("", "runs done", "state", "GPU minutes", "missing", "side by side")
    names, rule, *listed = text_table(head, lines).splitlines()
    listed = [f"{line}  {titles[place]}" if place in titles else line for place, line in enumerate(listed)]
    notes = (
        "Minutes are estimates for an H200, each run alone on it; side by side those of what is missing, up to "
        f"{at_once} at a time,\nwhere the network was measured so. What it takes to begin a run comes on top."
    )
    return "\n".join([names, rule, *listed, "", notes])


def _state(
    experiments: Sequence[Experiment], seeds: int, filed: Filed, growth: Growth, at_once: int
) -> tuple[str, ...]:
    """Runs that are done, of how many; a word for it; minutes of all of them, and of the missing, alone and not."""
    jobs = [Job(experiment, seed) for experiment in experiments for seed in range(seeds)]
    done = sum(job.done(filed) for job in jobs)
    counted, whole = f"{done}/{len(jobs)}", str(left_of(experiments, seeds, Filed([]), growth))
    if done == len(jobs):
        return counted, "done", whole, "", ""
    left = (str(left_of(experiments, seeds, filed, growth, beside)) for beside in (1, at_once))
    return counted, "in part" if done else "missing", whole, *left
