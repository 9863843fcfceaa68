"""The memory of a process that computes on a CPU."""

import ctypes
import sys

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # of glibc's malloc.h
LARGEST_KEPT = (2**30, 2**25)  # bytes of one piece: larger than a map of any layer, or the most of older glibcs
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
    # Not the second alone: the first would then stay at 128 KB, where by default it grows with what is freed.
    if mallopt is not None and any(mallopt(M_MMAP_THRESHOLD, size) for size in LARGEST_KEPT):
        mallopt(M_TRIM_THRESHOLD, MOST)
