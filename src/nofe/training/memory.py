"""The memory of a process that computes on a CPU."""

import ctypes
import sys

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # of glibc's malloc.h
LARGEST_KEPT = 2**30  # bytes of one piece, larger than a map of any layer
MOST = 2**31 - 1  # bytes, what an int holds


def keep_freed_memory() -> None:
    """Let the C library keep what is freed, for the next step to take.

    By default it returns the larger tensors of a step to the system as they are freed and asks for them again in the
    next one, and the system clears every page anew: an eighth of a training step of the demo's base (decision 21).
    Where there is no glibc nothing happens.
    """
    if not sys.platform.startswith("linux"):
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(M_MMAP_THRESHOLD, LARGEST_KEPT)
        mallopt(M_TRIM_THRESHOLD, MOST)
