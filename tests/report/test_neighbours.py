"""The picture of neighbours shows the images it is given, framed by whether they match."""

import io

import numpy as np
import pytest

from nofe.errors import UserError
from nofe.report.figures import ACROSS, INK, RIGHT
from nofe.report.neighbours import NeighbourGrid, draw_neighbours, neighbours_picture


@pytest.fixture
def grid() -> NeighbourGrid:
    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 256, size=(2, 7, 3, 8, 8), dtype=np.uint8)
    return NeighbourGrid(
        queries=pixels[:, 0],
        by_experts=pixels[:, 1:4],
        by_base=pixels[:, 4:],
        experts_match=np.array([[True, True, False], [True, False, True]]),
        base_match=np.array([[False, True, False], [False, False, False]]),
    )


def test_every_image_is_where_it_belongs_in_the_right_frame(grid: NeighbourGrid) -> None:
    import matplotlib.colors

    rows = np.array(draw_neighbours(grid).axes).reshape(2, -1)
    for row in range(2):
        shown = [axes for axes in rows[row] if axes.images]
        expected = [grid.queries[row], *grid.by_experts[row], *grid.by_base[row]]
        colours = [INK, *(RIGHT if m else ACROSS for m in [*grid.experts_match[row], *grid.base_match[row]])]
        lines = ["-", *("-" if m else "--" for m in [*grid.experts_match[row], *grid.base_match[row]])]
        assert len(shown) == 7
        for axes, image, colour, line in zip(shown, expected, colours, lines, strict=True):
            np.testing.assert_array_equal(np.asarray(axes.images[0].get_array()), image.transpose(1, 2, 0))
            [frame] = axes.patches
            assert matplotlib.colors.to_hex(frame.get_edgecolor()) == colour
            assert (frame.get_linestyle() in ("-", "solid")) == (line == "-")  # told apart without colours, too


def test_the_picture_is_a_png_with_words_for_those_who_cannot_see_it(grid: NeighbourGrid) -> None:
    from PIL import Image

    picture = neighbours_picture(grid)
    width, height = Image.open(io.BytesIO(picture.png)).size
    assert width > height > 100
    assert "Of 6 neighbours shown for each network, 4 by the experts and 1 by the base" in picture.alternative


def test_one_query_with_one_neighbour() -> None:
    image = np.zeros((1, 3, 8, 8), dtype=np.uint8)
    match = np.ones((1, 1), dtype=np.bool_)
    assert neighbours_picture(NeighbourGrid(image, image[:, None], image[:, None], match, match)).png


def test_shapes_that_do_not_fit(grid: NeighbourGrid) -> None:
    with pytest.raises(UserError, match="do not fit queries of"):
        NeighbourGrid(grid.queries, grid.by_experts, grid.by_base[:, :2], grid.experts_match, grid.base_match)
