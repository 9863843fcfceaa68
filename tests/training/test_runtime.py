"""What is chosen for a device, and what is asked of one; of GPUs that are not here, as far as Python goes."""

import signal
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from nofe.training import journal
from nofe.training.ranks import Ranks
from nofe.training.runtime import Runtime, drawing_aside, make_runtime

APPLE = torch.device("mps")


class AppleGenerator:
    """In place of torch.mps, where there is no such GPU."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.drawn = 0
        self.waited = 0
        monkeypatch.setattr(torch.mps, "get_rng_state", lambda: torch.tensor([self.drawn], dtype=torch.uint8))
        monkeypatch.setattr(torch.mps, "set_rng_state", lambda state: setattr(self, "drawn", int(state)))
        monkeypatch.setattr(torch.mps, "synchronize", lambda: setattr(self, "waited", self.waited + 1))


@pytest.fixture
def apple(monkeypatch: pytest.MonkeyPatch) -> AppleGenerator:
    return AppleGenerator(monkeypatch)


@pytest.mark.parametrize(("emulated", "expected"), [(True, "fp32"), (False, "bf16")])
def test_bfloat16_is_chosen_where_a_gpu_has_it_and_not_where_it_is_emulated(
    emulated: bool, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """torch says that it is supported either way, unless it is asked more closely."""

    def supported(including_emulation: bool = True) -> bool:
        return including_emulation or not emulated

    for name, answer in {"is_available": True, "device_count": 1, "set_device": None}.items():
        monkeypatch.setattr(torch.cuda, name, lambda *_, answer=answer: answer)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", supported)
    for owner, name in ((torch.backends.cudnn, "benchmark"), (torch.backends.cudnn, "allow_tf32")):
        monkeypatch.setattr(owner, name, getattr(owner, name))  # put back after the test
    before = torch.get_float32_matmul_precision()
    try:
        assert make_runtime("cuda").precision == expected
    finally:
        torch.set_float32_matmul_precision(before)


def test_what_apples_gpu_was_told_is_waited_for(apple: AppleGenerator) -> None:
    """Or kernels would be chosen, and tables made, by the time that launching takes."""
    Runtime(APPLE).synchronize()
    assert apple.waited == 1


def test_what_apples_gpu_draws_is_noticed_and_put_back(apple: AppleGenerator) -> None:
    """Where it is not, fused experts with dropout are compared with branches that drop other numbers."""
    with drawing_aside(APPLE) as has_drawn:
        assert not has_drawn()
        apple.drawn += 1
        assert has_drawn()
    assert apple.drawn == 0


def test_what_a_processor_draws_is_noticed_and_put_back() -> None:
    before = torch.get_rng_state()
    with drawing_aside(torch.device("cpu")) as has_drawn:
        assert not has_drawn()
        torch.rand(1)
        assert has_drawn()
    assert torch.equal(torch.get_rng_state(), before)


def test_a_stage_goes_on_with_the_numbers_that_apples_gpu_was_to_draw(apple: AppleGenerator) -> None:
    tensors = {"generator.cpu": torch.get_rng_state()[None], "generator.mps": torch.tensor([[7]], dtype=torch.uint8)}
    runtime: Any = SimpleNamespace(device=APPLE, ranks=Ranks())
    journal._restore_generators(SimpleNamespace(), SimpleNamespace(tensors=tensors), runtime)  # type: ignore[arg-type]
    assert apple.drawn == 7


SIGNALS = """
import os, sys, time
from nofe.training import runtime

run = runtime.make_runtime("cpu")
with runtime.stopping_on_signals(run):
    for seconds in map(float, sys.argv[2:]):
        time.sleep(seconds)
        os.kill(os.getpid(), int(sys.argv[1]))
    print(run.stop_signal)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_that_comes_twice_at_once_is_one_and_a_later_one_ends_the_process(number: signal.Signals) -> None:
    """`timeout` reaches a worker of a sweep itself and by way of its parent: it must come to its checkpoint."""

    def signalled_after(*seconds: float) -> tuple[int, str]:
        program = [sys.executable, "-c", SIGNALS, str(int(number)), *map(str, seconds)]
        done = subprocess.run(program, capture_output=True, text=True, timeout=120)
        return done.returncode, done.stdout.strip()

    assert signalled_after(0, 0, 0.1) == (0, str(int(number)))
    assert signalled_after(0, 2.2) == (-number, "")
