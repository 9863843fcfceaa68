"""What to say to a misspelt name, and how to say how many."""

import difflib
from collections.abc import Iterable, Sequence


def did_you_mean(name: str, known: Iterable[str], likely: Iterable[str] = ()) -> str:
    """The nearest known name, after those that are likely, or all of them."""
    known = list(known)
    close = [f"'{each}'" for each in (*likely, *difflib.get_close_matches(name.lower(), known, n=1))]
    return f"did you mean {either(close)}?" if close else f"choose from {', '.join(known)}"


def either(names: Sequence[str]) -> str:
    """One, two or three."""
    *before, last = names
    return f"{', '.join(before)} or {last}" if before else last


def counted(number: int, thing: str, plural: str = "") -> str:
    """1 image, 2 images; 1 class, 2 classes."""
    return f"{number:,} {thing if number == 1 else plural or f'{thing}s'}"
