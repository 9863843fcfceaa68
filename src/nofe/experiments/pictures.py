"""Figures of the results page: drawn from result files alone."""

import base64
import statistics
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import cycle
from typing import TYPE_CHECKING, Any

from nofe.experiments.imagenet_tables import IMAGENET_GENERALISTS
from nofe.experiments.index import Index
from nofe.experiments.paper_tables import GENERALISTS, KS, PAPER_BASE, PAPER_TABLE_1, RETRIEVAL, SIZES, TABLE_1
from nofe.experiments.table import Row, Table
from nofe.experiments.tables import row_of
from nofe.report.figures import INK, WIDTH, new_figure, png_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# After Okabe and Ito, dark enough for lines on white.
LINES = ("#d55e00", "#0072b2", "#00815e", "#a8508a", "#5c5c5c")
MARKERS = ("o", "s", "D", "^", "v")


def pictures(index: Index) -> dict[str, bytes]:
    """PNG by file name, of the figures that have data."""
    drawings: dict[str, tuple[Callable[[Index], Figure], tuple[Row, ...]]] = {
        "table-1.png": (draw_by_count, TABLE_1.rows),
        **{
            f"{table.name}.png": (partial(draw_generalists, table), table.rows)
            for table in (GENERALISTS, IMAGENET_GENERALISTS)
        },
        "specialty-sizes.png": (draw_sizes, SIZES.rows),
    }
    drawn = {
        name: png_of(partial(draw, index))
        for name, (draw, rows) in drawings.items()
        if any(index.of(row) for row in rows)
    }
    for row in RETRIEVAL.rows:
        found = index.measures(row.experiment, "retrieval")
        if found:
            drawn[f"retrieval-{row.label}.png"] = base64.b64decode(found[min(found)]["picture"]["png"])
    return drawn


def draw_by_count(index: Index) -> "Figure":
    """Table 1: accuracy over K, ours with deviations, the paper's dashed."""
    figure, axes = new_figure(WIDTH * 0.75)
    for (rule, of_paper), colour, marker in zip(PAPER_TABLE_1.items(), LINES, MARKERS, strict=False):
        points = [
            (count, [each.accuracy for each in index.of(row_of("table-1", f"{rule}, K={count}"))]) for count in KS
        ]
        points = [(count, figures) for count, figures in points if figures]
        if points:
            means = [statistics.mean(figures) for _, figures in points]
            spread = [statistics.stdev(figures) if len(figures) > 1 else 0.0 for _, figures in points]
            counts = [count for count, _ in points]
            axes.errorbar(counts, means, spread, color=colour, marker=marker, capsize=3, label=rule)
        known = [figure for figure in of_paper if figure is not None]
        if known:
            axes.plot(KS, known, color=colour, linestyle="--", linewidth=1, label=f"{rule}, paper")
    base = [each.accuracy for each in index.of(row_of("table-1", "base"))]
    if base:
        axes.axhline(statistics.mean(base), color=INK, linewidth=1, label="base")
    axes.axhline(PAPER_BASE, color=INK, linestyle="--", linewidth=1, label="base, paper")
    axes.set_xscale("log")
    axes.set_xticks(KS, [str(count) for count in KS])
    axes.minorticks_off()
    axes.set_xlabel("experts, K")
    axes.set_ylabel("top-1, %")
    axes.legend(fontsize=7)
    return figure


def draw_generalists(table: Table, index: Index) -> "Figure":
    """On CIFAR-100 or ImageNet: accuracy of the generalist on its specialties by epoch, mean over seeds."""
    figure, axes = new_figure(WIDTH * 0.75)
    runs = {
        row.label: [
            [100 * share for share in each.result["test_accuracy_by_epoch"]["generalist"]] for each in index.of(row)
        ]
        for row in table.rows
    }
    _mean_lines(axes, runs, mark_every=10)
    axes.set_xlabel("epoch")
    axes.set_ylabel("generalist's accuracy, %")
    axes.legend(fontsize=7)
    return figure


def draw_sizes(index: Index) -> "Figure":
    """Sizes of specialties in decreasing order, one line for each lambda, mean over seeds."""
    figure, axes = new_figure(WIDTH * 0.75)
    sizes = {row.label: [_largest_first(each.result) for each in index.of(row)] for row in SIZES.rows}
    _mean_lines(axes, sizes, mark_every=1)
    axes.set_xlabel("specialty, largest first")
    axes.set_ylabel("classes")
    axes.set_ylim(bottom=0)
    axes.legend(fontsize=7)
    return figure


def _largest_first(result: Mapping[str, Any]) -> list[int]:
    """Classes of each specialty that was asked for; one that came out empty has none."""
    sizes = sorted((specialty["size"] for specialty in result["specialties"]["specialties"]), reverse=True)
    return sizes + [0] * (result["config"]["specialties"]["count"] - len(sizes))


def _mean_lines(axes: "Axes", runs_of: Mapping[str, Sequence[Sequence[float]]], mark_every: int) -> None:
    """A line for each label: the mean over its runs, place by place."""
    for (label, runs), colour, marker in zip(runs_of.items(), cycle(LINES), cycle(MARKERS), strict=False):
        if runs:
            means = [statistics.mean(column) for column in zip(*runs, strict=False)]
            places = range(1, len(means) + 1)
            axes.plot(places, means, color=colour, marker=marker, markevery=mark_every, markersize=4, label=label)
