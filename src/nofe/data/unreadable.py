"""What is said and done about images that cannot be read."""

import logging
from collections.abc import Sequence

from nofe.errors import UserError

logger = logging.getLogger("nofe")

NAMES_SHOWN = 10


def stop_or_leave_out(where: str, unreadable: Sequence[str], count: int, *, skip: bool, option: str) -> None:
    """Raise with their names, "a.jpg (truncated)", or say that they are left out; `option` is how to ask for that."""
    if not unreadable:
        return
    found = f"{where}: {len(unreadable):,} of {count:,} images cannot be read: {some_of(unreadable)}"
    if not skip:
        raise UserError(f"{found}; repair them, or {option} to leave them out")
    logger.warning("%s; they are left out", found)


def some_of(names: Sequence[str]) -> str:
    """The first ten, and how many more there are."""
    more = [f"and {len(names) - NAMES_SHOWN:,} more"] if len(names) > NAMES_SHOWN else []
    return "; ".join([*names[:NAMES_SHOWN], *more])
