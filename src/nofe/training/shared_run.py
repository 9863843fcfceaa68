"""The run folder as several ranks see it. It lies where rank 0 is; the others need no disk in common with it."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from nofe.runs import Run, open_run
from nofe.training.ranks import Ranks


class SharedRun(Run):
    """Rank 0 reads and writes; the others are told what it read, and raise what it raised.

    Every method is a collective: all ranks call it, in the same order.
    """

    def __init__(self, path: Path, ranks: Ranks) -> None:
        super().__init__(path)
        self._ranks = ranks

    def write(self, name: str, content: bytes) -> None:
        self._ranks.first(lambda: super(SharedRun, self).write(name, content))

    def read(self, name: str) -> bytes:
        return self._ranks.first(lambda: super(SharedRun, self).read(name))

    def read_config(self) -> Any:
        return self._ranks.first(super().read_config)

    def has(self, name: str) -> bool:
        return self._ranks.first(lambda: super(SharedRun, self).has(name))

    def damaged(self) -> list[str]:
        return self._ranks.first(super().damaged)

    def discard(self, *names: str) -> None:
        self._ranks.first(lambda: super(SharedRun, self).discard(*names))

    def discard_all(self) -> None:
        self._ranks.first(super().discard_all)

    def append_metrics(self, line: dict[str, Any]) -> None:
        self._ranks.first(lambda: super(SharedRun, self).append_metrics(line))

    def metrics(self) -> list[dict[str, Any]]:
        return self._ranks.first(super().metrics)

    def forget_metrics(self, stage: str, after_step: int) -> None:
        self._ranks.first(lambda: super(SharedRun, self).forget_metrics(stage, after_step))


@contextmanager
def open_shared_run(path: Path, *, resume: bool, check: Callable[[Run], None], ranks: Ranks) -> Iterator[SharedRun]:
    """`open_run` by rank 0. A run that this launch began is gone on with when torchrun starts the ranks again.

    A run that was refused once is refused again: only what was opened counts as begun.
    """
    begun = f"begun in {path.absolute()}"
    with ExitStack() as held:

        def opened() -> None:
            going_on = resume or ranks.recall(begun) is not None
            held.enter_context(open_run(path, resume=going_on, check=check))
            ranks.remember(begun, "yes")

        ranks.first(opened)
        yield SharedRun(path, ranks)
