"""What is drawn is what was measured."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.sparse import csr_array

from nofe.report import figures
from nofe.report.record import Record
from nofe.specialties import Specialties


def epochs(count: int, rise: float) -> list[dict[str, Any]]:
    return [
        {"epoch": e, "loss": 3 / e, "accuracy": rise * e, "test_accuracy": 0.9 * rise * e} for e in range(1, count + 1)
    ]


@pytest.fixture(scope="module")
def record() -> Record:
    """Five classes; the last has no test image. Specialties {1, 2, 4} and {0, 3}."""
    confusion = np.array([[8, 0, 0, 2, 0], [0, 5, 4, 0, 1], [1, 0, 9, 0, 0], [0, 0, 0, 4, 0], [0, 0, 0, 0, 0]])
    return Record(
        path=Path("run"),
        config={"specialties": {"count": 2}, "data": {"hold_out": 0.0}},
        environment={},
        networks={"base": {"accuracy": 0.7}, "generalist": {"accuracy": 0.8}, "experts": {"accuracy": 0.9}},
        by_specialty=[
            {"accuracy": 0.7, "confused_inside": 0.25, "confused_across": 0.05},
            {"accuracy": 12 / 14, "confused_inside": 2 / 14, "confused_across": 0.0},
        ],
        specialties=Specialties([1, 0, 0, 1, 0]),
        class_names=tuple("abcde"),
        epochs={"base": epochs(4, 0.2), "generalist": epochs(2, 0.3), "experts": epochs(3, 0.25)},
        updates=[
            {"update": 1, "moved": 4, "agreement": 0.4, "specialties": 2},
            {"update": 2, "moved": 1, "agreement": 0.6, "specialties": 2},
        ],
        confusion=csr_array(confusion),
    )


def lines_of(axes: Any) -> set[tuple[str, str, tuple[float, ...], tuple[float, ...]]]:
    return {
        (line.get_color(), line.get_linestyle(), tuple(line.get_xdata()), tuple(line.get_ydata()))
        for line in axes.lines
    }


def test_accuracy_of_every_network_on_test_and_training_images(record: Record) -> None:
    (axes,) = figures.draw_accuracy(record).axes
    expected = set()
    for stage, measured in record.epochs.items():
        number = tuple(each["epoch"] for each in measured)
        for field, style in (("test_accuracy", "-"), ("accuracy", ":")):
            expected.add((figures.COLOURS[stage], style, number, tuple(each[field] for each in measured)))
    assert lines_of(axes) == expected
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("epoch", "images recognised (%)")


def test_an_epoch_that_was_not_tested_is_left_out(record: Record) -> None:
    partly = [{"epoch": 1, "accuracy": 0.1, "test_accuracy": None}, {"epoch": 2, "accuracy": 0.2, "test_accuracy": 0.3}]
    (axes,) = figures.draw_accuracy(replace(record, epochs={"experts": partly})).axes
    assert (figures.COLOURS["experts"], "-", (2,), (0.3,)) in lines_of(axes)


def test_loss(record: Record) -> None:
    (axes,) = figures.draw_loss(record).axes
    drawn = {(colour, y) for colour, _, _, y in lines_of(axes)}
    assert drawn == {(figures.COLOURS[s], tuple(e["loss"] for e in lines)) for s, lines in record.epochs.items()}
    assert "nats" in axes.get_ylabel()


def test_updates(record: Record) -> None:
    moved, agreement = figures.draw_updates(record).axes
    assert [bar.get_height() for bar in moved.patches] == [4, 1]
    assert [tuple(line.get_ydata()) for line in agreement.lines] == [(0.4, 0.6)]


def test_a_lost_specialty_gets_a_panel_of_its_own(record: Record) -> None:
    lossy = replace(record, config={"specialties": {"count": 3}})
    *_, specialties = figures.draw_updates(lossy).axes
    assert [tuple(line.get_ydata()) for line in specialties.lines] == [(2, 2)]


def test_bars_of_each_expert_fill_up(record: Record) -> None:
    (axes,) = figures.draw_shares(record).axes
    right, inside, across = ([bar.get_width() for bar in bars] for bars in axes.containers)
    assert right == pytest.approx([0.7, 12 / 14])
    assert inside == pytest.approx([0.25, 2 / 14])
    assert across == pytest.approx([0.05, 0.0])
    assert [bar.get_x() for bar in axes.containers[2]] == pytest.approx([0.95, 1.0])


def test_heat_map_is_in_expert_order_and_shows_the_boundaries(record: Record) -> None:
    axes, _ = figures.draw_confusion(record).axes
    drawn = np.asarray(axes.images[0].get_array())
    order = [1, 2, 4, 0, 3]
    for row, c in enumerate(order):
        images = record.confusion.toarray()[c].sum()
        expected = record.confusion.toarray()[c][order] / images if images else np.zeros(5)
        np.testing.assert_allclose(drawn[row], expected)
    squares = [(square.get_x(), square.get_y(), square.get_width()) for square in axes.patches]
    assert squares == [(-0.5, -0.5, 3), (2.5, 2.5, 2)]
    assert [label.get_text() for label in axes.get_xticklabels()] == ["0", "1"]
    assert list(axes.get_xticks()) == [1.0, 3.5]  # the middle of each expert's classes


def test_pictures_do_not_depend_on_the_users_settings(record: Record) -> None:
    import matplotlib

    before = figures.draw_pictures(record)
    with matplotlib.rc_context({"font.size": 30, "axes.linewidth": 5, "font.family": "monospace", "savefig.dpi": 20}):
        assert figures.draw_pictures(record) == before


def test_colours_are_told_apart_from_the_paper() -> None:
    """3:1, what WCAG asks of graphics, for what is drawn as thin as a line."""

    def luminance(colour: str) -> float:
        channels = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)]) / 255
        linear = np.where(channels <= 0.04045, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4)
        return float(linear @ [0.2126, 0.7152, 0.0722])

    for colour in (*figures.COLOURS.values(), figures.INK):
        assert (luminance(figures.PAPER) + 0.05) / (luminance(colour) + 0.05) >= 3


def test_of_many_classes_neighbours_share_a_cell(record: Record) -> None:
    """1,500 classes, all right: a picture of no more than 600 cells a side, all on its diagonal."""
    classes = 3 * figures.MOST_CELLS - 300
    specialties = Specialties(np.arange(classes) % 7)
    many = replace(record, specialties=specialties, confusion=csr_array(np.eye(classes, dtype=np.int64)))
    shares = figures.shares_by_expert(many)
    assert shares.shape == (figures.MOST_CELLS, figures.MOST_CELLS)
    assert (np.diag(shares) == 1).all()
    assert shares.sum() == figures.MOST_CELLS
