"""Pieces of a page."""

from collections.abc import Container, Iterable, Sequence
from html import escape
from typing import NewType

Html = NewType("Html", str)


def text(value: str) -> Html:
    """Any text, so that it shows as it is and nothing in it is markup."""
    return Html(escape(value))


def isolated(name: str) -> Html:
    """So that a name that is written from right to left turns nothing around it."""
    return Html(f"<bdi>{text(name)}</bdi>")


def described(items: Iterable[tuple[str, str]]) -> Html:
    return Html("<dl>" + "".join(f"<dt>{text(name)}</dt><dd>{text(words)}</dd>" for name, words in items) + "</dl>")


def table(
    head: Sequence[str], rows: Sequence[Sequence[Html]], numbers: Container[int] = (), emphasised: int | None = None
) -> Html:
    """The columns in `numbers` stand to the right; the first names its row."""
    side = ["number" if column in numbers else "words" for column in range(len(head))]
    titles = "".join(f'<th scope="col" class="{side[i]}">{text(title)}</th>' for i, title in enumerate(head))
    body = []
    for number, (first, *rest) in enumerate(rows):
        cells = "".join(f'<td class="{side[i]}">{cell}</td>' for i, cell in enumerate(rest, start=1))
        kind = "main" if number == emphasised else "other"
        body.append(Html(f'<tr class="{kind}"><th scope="row" class="{side[0]}">{first}</th>{cells}</tr>'))
    inner = f"<thead><tr>{titles}</tr></thead>\n<tbody>{lines(body)}</tbody>"
    return Html(f'<div class="wide" tabindex="0"><table>{inner}</table></div>')


def lines(parts: Iterable[Html]) -> Html:
    return Html("\n".join(parts))
