"""A run to report on that differs from a trained one, and a reader of the page."""

import shutil
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from nofe.runs import Run

VOID = {"meta", "img", "br", "link", "input", "source", "base", "embed"}


def changed(run: Run, to: Path, name: str, change: Callable[[Any], None]) -> Run:
    """A copy of a run with one of its JSON files changed."""
    shutil.copytree(run.path, to)
    copy = Run(to)
    value = copy.read_json(name)
    change(value)
    copy.write_json(name, value)
    return copy


class Page(HTMLParser):
    """What a browser makes of the page: its elements, tables, cards and class names, entities resolved."""

    def __init__(self, source: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.tables: list[list[list[str]]] = []
        self.cards: list[str] = []
        self.names: list[str] = []  # of classes, in order
        self.text = ""
        self._open: list[str] = []
        self.feed(source)
        self.close()
        assert not self._open, f"never closed: {self._open}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self._open.append(tag)
        if tag == "table":
            self.tables.append([])
        elif tag == "tr":
            self.tables[-1].append([])
        elif tag in ("td", "th"):
            self.tables[-1][-1].append("")
        elif tag == "article":
            self.cards.append("")
        elif tag == "bdi":
            self.names.append("")
        elif tag in ("dd", "dt", "p"):
            self.handle_data(" ")

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag, f"</{tag}> closes something else"

    def handle_data(self, data: str) -> None:
        if "style" in self._open:
            return
        self.text += data
        if "article" in self._open:
            self.cards[-1] += data
        if "bdi" in self._open:
            self.names[-1] += data
        if "td" in self._open or "th" in self._open:
            self.tables[-1][-1][-1] += data

    def attributes(self, *names: str) -> list[str]:
        return [value or "" for _, attrs in self.elements for name, value in attrs.items() if name in names]
