"""What is compiled ahead is what the experts' stage compiles."""

import dataclasses
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from conftest import small_dataset, small_run
from nofe import config as configuration
from nofe import pipeline
from nofe.ahead import PARTS, CompilingAhead, Order, _draws, compile_experts
from nofe.frozen import PIXELS_WORTH_MEASURING
from nofe.training.runtime import STEPS_WORTH_COMPILING, Runtime, make_runtime

SETTINGS = ("base.by=none", "generalist.epochs=1", "experts.epochs=2", "specialties.count=3")


@pytest.fixture
def graphs(monkeypatch: pytest.MonkeyPatch) -> Iterator[set[str]]:
    """Of everything that is given to the compiler: the code, and shape, layout and kind of its inputs."""
    seen: set[str] = set()

    def noting(graph: torch.fx.GraphModule, inputs: list[Any]) -> Callable[..., object]:
        shapes = [(tuple(i.shape), i.stride(), i.dtype) if isinstance(i, torch.Tensor) else i for i in inputs]
        seen.add(f"{graph.code} {shapes}")
        return graph.forward

    real = torch.compile
    monkeypatch.setattr(torch, "compile", lambda f, **_: real(f, dynamic=False, backend=noting))
    torch._dynamo.reset()
    yield seen
    torch._dynamo.reset()


def order_for(config: configuration.RunConfig, part: str) -> Order:
    data = small_dataset()
    counts = len(data.train.labels), len(data.test.labels)
    return Order(part, configuration.to_json(config), data.classes, *counts, "cpu", "measure")


@pytest.mark.parametrize("kernels", ["together", "measure"])
def test_the_stage_finds_all_that_it_compiles(
    kernels: str, graphs: set[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NOFE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setitem(PIXELS_WORTH_MEASURING, "cpu", 1)
    monkeypatch.setattr("nofe.compiling.STEPS_WORTH_MEASURING", 0)  # as for any stage that is compiled ahead
    config = small_run(*SETTINGS)
    for part in PARTS:
        torch._dynamo.reset()
        compile_experts(order_for(config, part), make_runtime("cpu", compile=True, kernels=kernels))
    ahead = set(graphs)
    of_stage = pipeline.train_experts

    def from_here_on(*arguments: Any) -> Any:
        torch._dynamo.reset()
        graphs.clear()
        return of_stage(*arguments)

    monkeypatch.setattr(pipeline, "train_experts", from_here_on)
    runtime = make_runtime("cpu", compile=True, kernels=kernels)
    pipeline.train(config, tmp_path / "run", runtime=runtime, dataset=small_dataset())
    assert len(graphs) > 3
    assert graphs <= ahead


def test_a_short_generalist_trains_uncompiled_while_the_experts_are_compiled(
    graphs: set[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    happened: list[str] = []

    class Noting(CompilingAhead):
        def __enter__(self) -> "Noting":
            happened.append("started")
            return self

        def begin(self) -> None:
            happened.append(f"begun for {self._classes} classes, {self._images[0]} + {self._images[1]} images")

        def wait(self) -> None:
            happened.append(f"waited for, {len(graphs)} compiled here")

        def __exit__(self, *_: object) -> None:
            happened.append("ended")

    monkeypatch.setattr("nofe.compiling.CompilingAhead", Noting)
    runtime = make_runtime("cpu", compile=True, kernels="together")
    runtime.compile_ahead = True
    pipeline.train(small_run(*SETTINGS), tmp_path / "run", runtime=runtime, dataset=small_dataset())
    assert happened == ["started", "begun for 8 classes, 160 + 80 images", "waited for, 0 compiled here", "ended"]
    assert len(graphs) > 3
    assert runtime.compile


def test_another_process_does_it() -> None:
    """Down to the step, which images too small for the recipe end. Without a compiler: all the rest of it."""
    order = dataclasses.replace(order_for(small_run(*SETTINGS), "training"), kernels="together")

    def ended(order: Order) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "nofe.ahead"],
            input=json.dumps(asdict(order)),
            env=os.environ | {"TORCH_COMPILE_DISABLE": "1"},
            capture_output=True,
            text=True,
            timeout=120,
        )

    done = ended(order)
    assert done.returncode == 0, done.stderr
    order.config["experts"]["augmentation"]["crop"] = 33
    failed = ended(order)
    assert (failed.returncode, "crop" in failed.stderr) == (1, True), failed.stderr


def test_a_run_that_ends_early_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[subprocess.Popen[str]] = []

    class Noted(subprocess.Popen):  # type: ignore[type-arg]
        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(["sleep", "60"], **options)
            started.append(self)

    monkeypatch.setattr(subprocess, "Popen", Noted)
    runtime = make_runtime("cpu")
    with pytest.raises(KeyboardInterrupt), CompilingAhead(small_run(*SETTINGS), 4, (8, 4), runtime):
        raise KeyboardInterrupt
    assert len(started) == len(PARTS)
    assert all(process.returncode is not None for process in started)


class Ended(subprocess.Popen):  # type: ignore[type-arg]
    """Compiles nothing, and ends with `code`."""

    code = 0

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(["sh", "-c", f"exit {self.code}"], **options)


def test_what_was_rehearsed_is_not_compiled_again(
    graphs: set[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch._inductor.config as compiler

    monkeypatch.setattr(subprocess, "Popen", Ended)
    config, data = small_run(*SETTINGS), small_dataset()
    counts = len(data.train.labels), len(data.test.labels)
    runtime = make_runtime("cpu", compile=True, kernels="together")
    threads = compiler.compile_threads
    with CompilingAhead(config, data.classes, counts, runtime) as ahead:
        ahead.begin()
        for process in ahead._processes:
            process.wait()
        before = torch.get_rng_state()
        assert all(task() for task in runtime.meanwhile)
        assert torch.equal(torch.get_rng_state(), before), "what the run draws is not touched"
    assert compiler.compile_threads == threads
    assert len(graphs) > 6
    of_stage = pipeline.train_experts

    def from_here_on(*arguments: Any) -> Any:
        graphs.clear()
        return of_stage(*arguments)

    monkeypatch.setattr(pipeline, "train_experts", from_here_on)
    pipeline.train(config, tmp_path / "run", runtime=runtime, dataset=data)
    assert not graphs


def test_a_rehearsal_waits_for_what_is_compiled_and_is_left_out_when_it_comes_late(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Busy(Ended):
        def poll(self) -> None:
            return None

    monkeypatch.setattr(subprocess, "Popen", Busy)
    runtime = make_runtime("cpu")
    with CompilingAhead(small_run(*SETTINGS), 4, (8, 4), runtime) as ahead:
        ahead.begin()
        assert [task() for task in runtime.meanwhile] == [True, True, False, False]
        ahead.wait()
        assert not runtime.meanwhile


@pytest.mark.parametrize(("code", "signal", "rehearsed"), [(0, None, 2), (1, None, 0), (0, 15, 0)])
def test_nothing_is_rehearsed_that_failed_or_when_the_run_is_to_stop(
    code: int, signal: int | None, rehearsed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []
    monkeypatch.setattr(Ended, "code", code)
    monkeypatch.setattr(subprocess, "Popen", Ended)
    monkeypatch.setattr("nofe.ahead._rehearse", lambda order, _: done.append(order.part))
    runtime = make_runtime("cpu")
    with CompilingAhead(small_run(*SETTINGS), 4, (8, 4), runtime) as ahead:
        ahead.begin()
        for process in ahead._processes:
            process.wait()
        runtime.stop_signal = signal
        assert all(task() for task in runtime.meanwhile)
    assert len(done) == rehearsed


def test_a_network_that_drops_is_not_rehearsed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The compiler would put the generator back that its generalist draws from."""
    monkeypatch.setattr(subprocess, "Popen", Ended)
    runtime = make_runtime("cpu", kernels="together")
    for architecture, tasks in (("small", 4), ("vgg11-c100", 2)):
        config = dataclasses.replace(small_run(*SETTINGS), architecture=architecture)
        with CompilingAhead(config, 4, (8, 4), runtime) as ahead:
            ahead.begin()
            assert len(runtime.meanwhile) == tasks


class DropsByFunction(nn.Module):
    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return F.dropout(images, 0.5, self.training)


def test_whatever_draws_is_noticed() -> None:
    from torchvision.ops import StochasticDepth

    runtime = make_runtime("cpu")
    networks: tuple[tuple[nn.Module, bool], ...] = (
        (nn.Conv2d(3, 4, 3), False),
        (nn.Sequential(nn.BatchNorm2d(3), nn.ReLU()), False),
        (nn.Dropout(0.5), True),
        (DropsByFunction(), True),
        (StochasticDepth(0.1, "row"), True),
        (nn.RReLU(), True),
    )
    before = torch.get_rng_state()
    for network, draws in networks:
        assert _draws(network, 8, runtime) == draws
    assert torch.equal(torch.get_rng_state(), before)


def test_no_process_is_left_when_one_cannot_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[subprocess.Popen[str]] = []

    class Second(subprocess.Popen):  # type: ignore[type-arg]
        def __init__(self, *arguments: Any, **options: Any) -> None:
            if started:
                raise OSError("out of memory")
            super().__init__(["sleep", "60"], **options)
            started.append(self)

    monkeypatch.setattr(subprocess, "Popen", Second)
    with pytest.raises(OSError, match="out of memory"):
        CompilingAhead(small_run(*SETTINGS), 4, (8, 4), make_runtime("cpu")).__enter__()
    assert started[0].returncode is not None


def test_only_long_stages_on_a_gpu_are_compiled() -> None:
    on_gpu = Runtime(torch.device("cuda:0"), compile=None)
    on_gpu.decide_on_compiling(STEPS_WORTH_COMPILING - 1)
    assert (on_gpu.compile, on_gpu.compile_ahead) == (False, False)
    on_gpu = Runtime(torch.device("cuda:0"), compile=None)
    on_gpu.decide_on_compiling(STEPS_WORTH_COMPILING)
    assert (on_gpu.compile, on_gpu.compile_ahead) == (True, True)
    asked = Runtime(torch.device("cuda:0"), compile=True)
    asked.decide_on_compiling(STEPS_WORTH_COMPILING)
    assert (asked.compile, asked.compile_ahead) == (True, False)
    on_cpu = Runtime(torch.device("cpu"), compile=None)
    on_cpu.decide_on_compiling(10 * STEPS_WORTH_COMPILING)
    assert (on_cpu.compile, on_cpu.compile_ahead) == (False, False)
