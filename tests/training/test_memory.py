"""Steps on a CPU find the memory of the step before."""

import ctypes
import subprocess
import sys

import pytest

from nofe.training.memory import M_MMAP_THRESHOLD, M_TRIM_THRESHOLD, MOST, keep_freed_memory

SCRIPT = """
import resource
import sys
import torch

from nofe.training.runtime import make_runtime

if sys.argv[1] == "kept":
    make_runtime("cpu")

def step():
    maps = [torch.ones(10 * 2**20) for _ in range(3)]  # 40 MB each, which glibc returns to the system as it is freed

for _ in range(10):  # in the first few the heap still grows
    step()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(5):
    step()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def pages_cleared(how: str) -> int:
    done = subprocess.run([sys.executable, "-c", SCRIPT, how], capture_output=True, text=True, timeout=120, check=True)
    return int(done.stdout)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the allocator of other systems is not told")
def test_memory_that_a_step_frees_is_there_for_the_next() -> None:
    """Against what is returned, which is fewer pages where the system gives large ones."""
    assert pages_cleared("kept") < pages_cleared("returned") / 10


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the allocator of other systems is not told")
@pytest.mark.parametrize("most", [2**30, 2**25, 0], ids=["new glibc", "old glibc", "neither"])
def test_an_allocator_that_takes_less_is_told_as_much_or_nothing(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A trim threshold alone makes it return every piece of 128 KB or more, which it would keep by default."""
    told = {}

    class Library:
        @staticmethod
        def mallopt(option: int, value: int) -> int:
            if option == M_MMAP_THRESHOLD and value > most:
                return 0
            told[option] = value
            return 1

    monkeypatch.setattr(ctypes, "CDLL", lambda _: Library)
    keep_freed_memory()
    assert told == ({M_MMAP_THRESHOLD: most, M_TRIM_THRESHOLD: MOST} if most else {})
