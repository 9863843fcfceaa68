"""The figures of a run: how it learned, how its specialties settled, and what its experts confuse.

No text in them comes from the data: class names can hold anything, and there are too many of them for a picture.
"""

import io
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from nofe.report import digest
from nofe.report.record import Record

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDTH = 4.2  # inches; at 9 points the text stays readable where a phone shows the figure over its whole width
DOTS_PER_INCH = 220

# After Okabe and Ito: told apart by people who see fewer hues, and 3:1 or more against white where a line is drawn.
PAPER, INK, GRID = "#ffffff", "#24292f", "#d9dde2"
COLOURS = {"experts": "#d55e00", "base": "#0072b2", "base-paper": "#a8508a", "generalist": "#00815e"}
RIGHT, INSIDE, ACROSS = "#0072b2", "#7cc0ea", "#d55e00"  # the right specialty is blue, the right class dark blue
FEW, ALL = "#5aa5d8", "#062f52"  # shares of images; none is the paper itself
MARKERS = {"experts": "o", "base": "s", "base-paper": "^", "generalist": "D"}
LABELS = {"experts": "experts", "base": "base", "base-paper": "base, paper's recipe", "generalist": "generalist"}


@dataclass(frozen=True)
class Picture:
    """One figure as PNG, with what a reader who cannot see it needs."""

    name: str
    caption: str
    alternative: str
    png: bytes


def draw_pictures(record: Record) -> list[Picture]:
    drawings: dict[str, tuple[Callable[[Record], Figure], str, str]] = {
        "accuracy": (
            draw_accuracy,
            "Accuracy by epoch. The generalist recognises specialties, the others classes. Training images are "
            "counted as they pass, augmented and by the weights of that moment.",
            f"Lines over epochs. At the end, on {record.judged_by}: {_last_accuracies(record)}.",
        ),
        "loss": (
            draw_loss,
            "Training loss by epoch, mean cross-entropy.",
            f"Lines over epochs. At the end: {_last_losses(record)}.",
        ),
        "specialties": (
            draw_shares,
            f"What becomes of the {record.judged_by} of each expert's classes. Blue is the right specialty.",
            "Stacked bars, one for each expert; the numbers are listed with the experts below.",
        ),
        "confusion": (
            draw_confusion,
            f"{record.judged_by.capitalize()} by class and predicted class, ordered by specialty. Each square on the "
            "diagonal is one expert: what lies in it is confused inside the specialty. The colour scale is a square "
            "root.",
            "Heat map of all classes; the most confused pairs are listed below.",
        ),
    }
    if record.updates:
        drawings["updates"] = (
            draw_updates,
            "The alternation: classes that changed their specialty at each update, and the share of the counted "
            "training images that the generalist sends to the specialty of their class.",
            f"Bars and a line over {len(record.updates)} updates. At the last {record.updates[-1]['moved']} classes "
            f"moved and the agreement was {record.updates[-1]['agreement']:.2%}.",
        )
    order = ("accuracy", "loss", "updates", "specialties", "confusion")
    return [_picture(name, record, *drawings[name]) for name in order if name in drawings]


def _picture(name: str, record: Record, draw: "Callable[[Record], Figure]", caption: str, alternative: str) -> Picture:
    return Picture(name, caption, alternative, png_of(lambda: draw(record)))


def png_of(draw: "Callable[[], Figure]") -> bytes:
    """What `draw` draws, in the style of the report, with the digest of its data."""
    import matplotlib.style

    buffer = io.BytesIO()
    with matplotlib.style.context(["default", figure_style()]):  # not what the user's matplotlibrc says
        figure = draw()
        figure.savefig(buffer, format="png", metadata={digest.KEY: digest.digest_of(figure)})
    return buffer.getvalue()


def figure_style() -> dict[str, Any]:
    return {
        "figure.facecolor": PAPER,
        "figure.dpi": DOTS_PER_INCH,
        "savefig.dpi": "figure",
        "figure.constrained_layout.use": True,
        "font.size": 9,
        "text.color": INK,
        "axes.facecolor": PAPER,
        "axes.edgecolor": INK,
        "axes.labelcolor": INK,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.grid": True,
        "axes.grid.axis": "y",
        "axes.axisbelow": True,
        "grid.color": GRID,
        "grid.linewidth": 0.6,
        "xtick.color": INK,
        "ytick.color": INK,
        "lines.linewidth": 1.6,
        "lines.markersize": 3.5,
        "legend.frameon": False,
        "legend.columnspacing": 1.2,
        "legend.handlelength": 1.6,
    }


def new_figure(height: float) -> "tuple[Figure, Axes]":
    """Of the report's width; to be drawn inside `png_of`."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(WIDTH, height))
    return figure, figure.subplots()


def draw_accuracy(record: Record) -> "Figure":
    from matplotlib.lines import Line2D
    from matplotlib.ticker import PercentFormatter

    figure, axes = new_figure(3.3)
    for stage in _drawn_last_is_on_top(record):
        _by_epoch(axes, record.epochs[stage], "accuracy", stage, linestyle=":", markersize=0)
        _by_epoch(axes, record.epochs[stage], "test_accuracy", stage, label=LABELS[stage])
    axes.set(xlabel="epoch", ylabel="images recognised (%)", ylim=(0, None))
    axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0, symbol=""))
    _whole_numbers(axes)
    networks, _ = axes.get_legend_handles_labels()
    kinds = [Line2D([], [], color=INK, label="test"), Line2D([], [], color=INK, ls=":", label="training")]
    figure.legend(handles=kinds, loc="outside upper center", ncols=2)
    figure.legend(handles=networks[::-1], loc="outside lower center", ncols=2 if len(networks) > 3 else 3)
    return figure


def draw_loss(record: Record) -> "Figure":
    figure, axes = new_figure(3.3)
    for stage in _drawn_last_is_on_top(record):
        _by_epoch(axes, record.epochs[stage], "loss", stage, label=LABELS[stage])
    axes.set(xlabel="epoch", ylabel="training loss (nats an image)", ylim=(0, None))
    _whole_numbers(axes)
    networks, _ = axes.get_legend_handles_labels()
    figure.legend(handles=networks[::-1], loc="outside lower center", ncols=2 if len(networks) > 3 else 3)
    return figure


def draw_updates(record: Record) -> "Figure":
    """One below the other: two scales in one picture would suggest that their crossing means something."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import PercentFormatter

    lost = any(line["specialties"] != record.config["specialties"]["count"] for line in record.updates)
    number = [line["update"] for line in record.updates]
    figure = Figure(figsize=(WIDTH, 4.4 if lost else 3.3))
    rows = figure.subplots(3 if lost else 2, sharex=True)
    rows[0].bar(number, [line["moved"] for line in record.updates], color=RIGHT, width=0.7)
    rows[0].set(ylabel=f"classes moved\n(of {record.specialties.classes:,})", ylim=(0, None))
    rows[0].yaxis.get_major_locator().set_params(integer=True)
    colour = COLOURS["generalist"]
    rows[1].plot(number, [line["agreement"] for line in record.updates], color=colour, marker=_marker(number))
    rows[1].set(ylabel="agreement (%)", ylim=(0, None))
    rows[1].yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0, symbol=""))
    if lost:
        rows[2].plot(number, [line["specialties"] for line in record.updates], color=INK, drawstyle="steps-mid")
        rows[2].set(ylabel="specialties\nwith a class", ylim=(0, 1.1 * record.config["specialties"]["count"]))
        rows[2].yaxis.get_major_locator().set_params(integer=True)
    rows[-1].set(xlabel="update of the specialties")
    _whole_numbers(rows[-1])
    figure.align_ylabels()
    return figure


def draw_shares(record: Record) -> "Figure":
    from matplotlib.ticker import PercentFormatter

    count = record.specialties.count
    figure, axes = new_figure(min(1.3 + 0.2 * count, 6.5))
    parts = {"accuracy": "right class", "confused_inside": "confused inside", "confused_across": "confused across"}
    left = np.zeros(count)
    for (field, label), colour in zip(parts.items(), (RIGHT, INSIDE, ACROSS), strict=True):
        share = np.array([each[field] for each in record.by_specialty])  # (K,)
        axes.barh(np.arange(count), share, left=left, color=colour, label=label, edgecolor=PAPER, linewidth=0.6)
        left += share
    axes.set(xlabel=f"{record.judged_by} of the expert's classes (%)", ylabel="expert")
    axes.set(xlim=(0, 1), ylim=(count - 0.4, -0.6))
    axes.xaxis.set_major_formatter(PercentFormatter(1.0, decimals=0, symbol=""))
    axes.set_yticks(_at_most(30, count))
    axes.grid(False)
    figure.legend(loc="outside lower center", ncols=3)
    return figure


def draw_confusion(record: Record) -> "Figure":
    from matplotlib.colors import LinearSegmentedColormap, PowerNorm
    from matplotlib.patches import Rectangle
    from matplotlib.ticker import PercentFormatter

    figure, axes = new_figure(4.8)
    specialties = record.specialties
    colours = LinearSegmentedColormap.from_list("shares", [PAPER, FEW, ALL])
    # A few images in a hundred are the interesting part; on a linear scale they would look like none.
    edge = specialties.classes - 0.5
    image = axes.imshow(
        shares_by_expert(record),
        cmap=colours,
        norm=PowerNorm(0.5, vmin=0, vmax=1),
        origin="upper",
        extent=(-0.5, edge, edge, -0.5),
    )
    ends = np.cumsum(specialties.sizes)  # (K,)
    middles = ends - specialties.sizes / 2 - 0.5
    for end, size in zip(ends, specialties.sizes, strict=True):
        axes.axhline(end - 0.5, color=GRID, linewidth=0.4)
        axes.axvline(end - 0.5, color=GRID, linewidth=0.4)
        corner = end - size - 0.5
        axes.add_patch(Rectangle((corner, corner), size, size, fill=False, edgecolor=INK, linewidth=0.6, zorder=3))
    shown = _apart(middles, specialties.classes / 20)
    axes.set_xticks(middles[shown], [f"{k}" for k in shown])
    axes.set_yticks(middles[shown], [f"{k}" for k in shown])
    axes.set(xlabel="predicted class, by expert", ylabel="class of the image, by expert")
    axes.spines[["top", "right"]].set_visible(True)
    axes.tick_params(length=0)
    axes.grid(False)
    bar = figure.colorbar(
        image, ax=axes, orientation="horizontal", shrink=0.8, aspect=30, format=PercentFormatter(1.0, decimals=0)
    )
    bar.set_ticks([0, 0.01, 0.05, 0.2, 0.5, 1.0])
    bar.set_label(f"of the {record.judged_by} of the class")
    return figure


MOST_CELLS = 600  # a side; more could not be told apart in a picture


def shares_by_expert(record: Record) -> NDArray[np.float64]:
    """Share of the images of each class that is taken for each class, both in expert order; 0 without images. (C, C)

    Of more than MOST_CELLS classes some neighbours share a cell.
    """
    classes = record.specialties.classes
    side = min(classes, MOST_CELLS)
    place_of_class = np.argsort(np.concatenate(record.specialties.groups()))  # (C,) expert by expert
    cell_of_class = place_of_class * side // classes  # (C,)
    cells = record.confusion.tocoo()
    counts = np.zeros((side, side))
    np.add.at(counts, (cell_of_class[cells.row], cell_of_class[cells.col]), cells.data)
    shares: NDArray[np.float64] = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    return shares


def _drawn_last_is_on_top(record: Record) -> list[str]:
    return [stage for stage in ("generalist", "base-paper", "base", "experts") if stage in record.epochs]


def _by_epoch(axes: "Axes", epochs: list[dict[str, Any]], field: str, stage: str, **line: Any) -> None:
    known = [each for each in epochs if each.get(field) is not None]
    number = [each["epoch"] for each in known]
    drawn: dict[str, Any] = {
        "color": COLOURS[stage],
        "marker": MARKERS[stage],
        "markevery": max(1, len(number) // 12),
    } | line
    axes.plot(number, [each[field] for each in known], **drawn)


def _marker(points: list[int]) -> str:
    return "o" if len(points) <= 30 else ""


def _whole_numbers(axes: "Axes") -> None:
    from matplotlib.ticker import MaxNLocator

    axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))


def _at_most(ticks: int, count: int) -> NDArray[np.int64]:
    """0..count-1, in steps of such a size that they fit."""
    return np.arange(0, count, -(-count // ticks))


def _apart(places: NDArray[np.float64], distance: float) -> list[int]:
    """The first place, and each later one that is far enough from the last chosen."""
    chosen: list[int] = []
    for index, place in enumerate(places):
        if not chosen or place - places[chosen[-1]] >= distance:
            chosen.append(index)
    return chosen


def _last_accuracies(record: Record) -> str:
    return ", ".join(f"{LABELS[stage]} {record.networks[stage]['accuracy']:.2%}" for stage in record.networks)


def _last_losses(record: Record) -> str:
    return ", ".join(f"{LABELS[stage]} {epochs[-1]['loss']:.3f}" for stage, epochs in record.epochs.items() if epochs)
