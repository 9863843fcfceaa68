"""Random numbers that depend on names, not on what was drawn before.

Every random choice of a run comes from `stream(seed, what, when)`. Nothing carries generator state from one epoch
to the next, so a resumed run draws the very numbers that the uninterrupted run would have drawn.
"""

import zlib

import numpy as np


def seed_for(seed: int, *path: str | int) -> int:
    """A 63-bit seed for one use, e.g. `seed_for(run_seed, "base", "dropout", epoch)`."""
    return int(stream(seed, *path).integers(2**63))


def stream(seed: int, *path: str | int) -> np.random.Generator:
    """A generator of its own for one use, e.g. `stream(run_seed, "generalist", "order", epoch)`."""
    words = [part if isinstance(part, int) else zlib.crc32(part.encode()) for part in path]
    return np.random.default_rng([seed, *words])
