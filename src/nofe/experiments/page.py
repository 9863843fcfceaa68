"""Tables of measured results beside the paper's: in the terminal, and as Markdown."""

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from nofe.experiments.index import Index, Measured
from nofe.experiments.reproduce import Job, keys_with_results
from nofe.experiments.tables import RETRIEVAL, Row, Table
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


def overview(tables: Sequence[Table], seeds: int, results: Sequence[Mapping[str, Any]]) -> str:
    """Every table: how many of its runs are done, and an estimate of what the missing ones cost alone on an H200."""
    there = keys_with_results(results)
    lines = []
    for table in tables:
        jobs = [Job(experiment, seed) for experiment in table.experiments() for seed in range(seeds)]
        done = sum(job.done(there, results) for job in jobs)
        left: set[str] = set()
        seconds = 0.0
        for job in jobs:  # a stage that several runs share is paid for once; one of a finished run, once more
            if not job.done(there, results):
                seconds += job.seconds(left)
                left |= job.keys()
        state = "done" if done == len(jobs) else "missing" if done == 0 else "in part"
        cost = "" if done == len(jobs) else f"{seconds / 60:.1f}" if math.isfinite(seconds) else "not known"
        lines.append((table.name, table.title, f"{len(table.rows)}", f"{done}/{len(jobs)}", state, cost))
    head = ("name", "what", "rows", "runs done", "state", "GPU minutes missing")
    return text_table(head, lines)
