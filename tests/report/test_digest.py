"""A picture's digest changes with what it shows, and with nothing else."""

from collections.abc import Callable

from nofe.report.digest import digest_in
from nofe.report.figures import new_figure, png_of


def drawn(
    change: Callable[..., object] = lambda axes: None, colour: str = "#000000", spread: float = 0.5
) -> str | None:
    def draw():  # type: ignore[no-untyped-def]
        figure, axes = new_figure(2.0)
        axes.errorbar([1, 2], [3.0, 4.0], [spread, spread], color=colour, label="line")
        axes.bar([1, 2], [3.0, 4.0], color=colour)
        axes.imshow([[0.0, 1.0]])
        change(axes)
        return figure

    return digest_in(png_of(draw))


def test_digest_of_what_is_shown() -> None:
    first = drawn()
    assert first is not None
    assert first == drawn()
    assert first == drawn(colour="#ff0000")
    changes: dict[str, Callable[..., object]] = {
        "a line": lambda axes: axes.plot([1, 2], [0, 1]),
        "a bar": lambda axes: axes.patches[0].set_height(3.1),
        "a label": lambda axes: axes.set_xlabel("epoch"),
        "a pixel": lambda axes: axes.images[0].set_data([[0.0, 0.9]]),
    }
    digests = {name: drawn(change) for name, change in changes.items()} | {"a deviation": drawn(spread=0.6)}
    assert len({first, *digests.values()}) == len(digests) + 1
