"""Several processes that are about to compile the same: one does, and the others find it done.

Runs side by side begin together, with networks that differ in their seed alone. Each would compile for itself, and all
of them wait for all of it; what the compiler has made is kept on disk, so one of them is enough.
"""

import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial

from nofe.training.runtime import cache_folder

FOLDER = "compiled"  # in the user's cache; while a file is empty, its step is being compiled or has failed to
DONE = b"done\n"


@contextmanager
def first_alone(what: str) -> Iterator[None]:
    """The first process with this `what` is alone in here; the others wait until it is done, then go on together."""
    import fcntl

    path = cache_folder() / FOLDER / hashlib.sha256(what.encode()).hexdigest()[:32]
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = path.open("ab", buffering=0)
    except OSError:  # nothing is lost but time
        yield
        return
    with file:  # closing it gives up the lock, as the end of the process does
        while file.seek(0, 2) == 0:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                fcntl.flock(file, fcntl.LOCK_SH)  # when the first is done, or has failed
                fcntl.flock(file, fcntl.LOCK_UN)
                continue
            except OSError:  # a file system without locks
                break
            if file.seek(0, 2):  # done just before
                fcntl.flock(file, fcntl.LOCK_UN)
                break
            yield
            with suppress(OSError):  # of a full disk, which is no reason to end a training
                file.write(DONE)
            return
        yield


def alone_at_first(step: Callable[[], None], what: str) -> Callable[[], None]:
    """The step, its first call inside `first_alone`, as that is the one that compiles."""
    pending = [partial(first_alone, what)]

    def taken() -> None:
        if pending:
            with pending.pop()():
                step()
        else:
            step()

    return taken
