"""The paper's picture of nearest neighbours: a query, its nearest by the experts, its nearest by the base."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from nofe.errors import UserError
from nofe.report.figures import ACROSS, INK, RIGHT, WIDTH, Picture, png_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


@dataclass(frozen=True, eq=False)
class NeighbourGrid:
    """Q queries with M neighbours each, by two networks; a neighbour matches if it has the query's class."""

    queries: NDArray[np.uint8]  # (Q, 3, H, W)
    by_experts: NDArray[np.uint8]  # (Q, M, 3, H, W)
    by_base: NDArray[np.uint8]  # (Q, M, 3, H, W)
    experts_match: NDArray[np.bool_]  # (Q, M)
    base_match: NDArray[np.bool_]  # (Q, M)

    def __post_init__(self) -> None:
        count, *image = self.queries.shape
        shown = self.by_experts.shape[1]
        same = self.by_experts.shape == self.by_base.shape == (count, shown, *image)
        if count == 0 or not same or not self.experts_match.shape == self.base_match.shape == (count, shown):
            raise UserError(
                f"neighbours: {self.by_experts.shape} by experts and {self.by_base.shape} by the base do not fit "
                f"queries of {self.queries.shape}; give every query as many of both"
            )


def neighbours_picture(grid: NeighbourGrid) -> Picture:
    shown = grid.experts_match.size
    return Picture(
        "neighbours",
        "Test images (left), and those nearest to them in the features of the expert of the predicted class (middle) "
        "and of the base (right). A full frame is an image of the query's class, a dashed one of another.",
        f"Rows of pictures. Of {shown} neighbours shown for each network, {int(grid.experts_match.sum())} by the "
        f"experts and {int(grid.base_match.sum())} by the base have the query's class.",
        png_of(lambda: draw_neighbours(grid)),
    )


def draw_neighbours(grid: NeighbourGrid) -> "Figure":
    from matplotlib.figure import Figure

    count, shown = grid.experts_match.shape
    # A narrow empty column parts the three blocks.
    columns = [1.0, 0.2, *[1.0] * shown, 0.2, *[1.0] * shown]
    figure = Figure(figsize=(WIDTH, 0.3 + count * WIDTH / sum(columns)))
    cells = figure.subplots(count, len(columns), squeeze=False, gridspec_kw={"width_ratios": columns})
    experts, base = slice(2, 2 + shown), slice(3 + shown, None)
    for axes in cells.flat:
        axes.set_axis_off()
    for row in range(count):
        _show(cells[row, 0], grid.queries[row], INK, "-")
        for block, pictures, matches in (
            (experts, grid.by_experts, grid.experts_match),
            (base, grid.by_base, grid.base_match),
        ):
            for axes, picture, matching in zip(cells[row, block], pictures[row], matches[row], strict=True):
                _show(axes, picture, RIGHT if matching else ACROSS, "-" if matching else (0, (2, 1.5)))
    for column, title in ((0, "query"), (2 + shown // 2, "by the expert"), (3 + shown + shown // 2, "by the base")):
        cells[0, column].set_title(title, fontsize=8)
    return figure


def _show(axes: "Axes", image: NDArray[np.uint8], colour: str, line: object) -> None:
    from matplotlib.patches import Rectangle

    height, width = image.shape[1:]
    axes.imshow(image.transpose(1, 2, 0), interpolation="nearest")
    # On the outside of the picture, so that it covers none of it.
    axes.add_patch(
        Rectangle(
            (-1, -1), width + 1, height + 1, fill=False, edgecolor=colour, linewidth=1.4, linestyle=line, clip_on=False
        )
    )
