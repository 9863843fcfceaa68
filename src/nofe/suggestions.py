"""What to say to a misspelt name, and lists and counts in words."""

import difflib
from collections.abc import Iterable


def did_you_mean(name: str, known: Iterable[str], likely: Iterable[str] = ()) -> str:
    """The nearest known name, after those that are likely, or all of them."""
    known = list(known)
    close = [f"'{each}'" for each in (*likely, *difflib.get_close_matches(name.lower(), known, n=1))]
    return f"did you mean {either(close)}?" if close else f"choose from {', '.join(known)}"


def either(words: Iterable[str]) -> str:
    """One, two or three."""
    return _joined(words, "or")


def all_of(words: Iterable[str]) -> str:
    """One, two and three."""
    return _joined(words, "and")


def _joined(words: Iterable[str], by: str) -> str:
    *before, last = words
    return f"{', '.join(before)} {by} {last}" if before else last


def counted(number: int, thing: str, plural: str = "") -> str:
    """1 image, 2 images; 1 class, 2 classes."""
    return f"{number:,} {thing if number == 1 else plural or f'{thing}s'}"
