"""What several ranks have to say: each thing once."""

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

log = logging.getLogger("nofe")


class Said(logging.Filter):
    """Of one rank. Rank 0 speaks; what others would say is kept, for it may be something that rank 0 did not see."""

    def __init__(self, rank: int) -> None:
        super().__init__()
        self._speaks = rank == 0
        self._kept: list[str] = []
        self._known: set[str] = set()

    def filter(self, record: logging.LogRecord) -> bool:
        (self._known.add if self._speaks else self._kept.append)(record.getMessage())
        return self._speaks

    def kept(self) -> list[str]:
        """Since this was last asked."""
        kept, self._kept = self._kept, []
        return kept

    def say_for(self, kept_by_rank: Sequence[Sequence[str]]) -> None:
        """What others kept and nobody has said yet, by rank 0."""
        for rank, kept in enumerate(kept_by_rank):
            for words in kept:
                if self._speaks and words not in self._known:
                    self._known.add(words)
                    log.warning("rank %d: %s", rank, words)


@contextmanager
def said_once(rank: int) -> Iterator[Said]:
    said = Said(rank)
    log.addFilter(said)
    try:
        yield said
    finally:
        log.removeFilter(said)
