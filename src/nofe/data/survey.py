"""Images on disk, looked through once before anything is trained: which cannot be read, and the sum of the others."""

import threading
from concurrent.futures import Future
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from nofe.data.dataset import digest_of
from nofe.data.pictures import Pictures
from nofe.data.worker import Decode, Outcome
from nofe.data.workers import IMAGES_A_TASK, Workers, in_order

TASKS_AHEAD = 4  # of each worker


@dataclass(frozen=True, eq=False)
class Survey:
    unreadable: dict[int, str]  # why, by index, in the order of the images
    total: NDArray[np.int64]  # (3, H, W), over the readable ones; exact in any order, being whole numbers
    digests: list[bytes]  # of the pixels of each; nothing for an unreadable one


def survey(pictures: Pictures, image_size: int, workers: Workers) -> Survey:
    """Every image decoded once, by all workers; the same for any number of them."""
    work = Decode(image_size)
    total = np.zeros((3, image_size, image_size), dtype=np.int64)
    digests = [b""] * len(pictures)
    adding = threading.Lock()

    def looked_at(index: list[int], outcomes: list[Outcome], pixels: NDArray[np.uint8]) -> dict[int, str]:
        readable = np.array([outcome is None for outcome in outcomes])
        of_task = pixels[readable].sum(axis=0, dtype=np.int64)
        with adding:
            np.add(total, of_task, out=total)
        for i, image, is_readable in zip(index, pixels, readable, strict=True):
            digests[i] = digest_of(image) if is_readable else b""
        return {i: outcome for i, outcome in zip(index, outcomes, strict=True) if isinstance(outcome, str)}

    def asked(start: int) -> "Future[dict[int, str]]":
        index = list(range(start, min(start + IMAGES_A_TASK, len(pictures))))
        return workers.ask(
            work,
            pictures,
            index,
            lambda outcomes, worker: looked_at(index, outcomes, worker.pixels(len(index), image_size)),
        )

    unreadable: dict[int, str] = {}
    for found in in_order(asked, range(0, len(pictures), IMAGES_A_TASK), TASKS_AHEAD * workers.count):
        unreadable |= found
    return Survey(unreadable, total, digests)
