"""How a training step reaches the device: kernel by kernel, compiled, or as one captured CUDA graph.

Small networks keep a GPU waiting for the processor that launches their kernels; a captured step is one launch.
"""

import sys
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import replace
from types import MethodType
from typing import Any, TypeVar

import torch
from torch import nn

from nofe.errors import UserError
from nofe.training.mended import mend_compiler
from nofe.training.runtime import Runtime

MODES = ("eager", "captured", "compiled", "compiled+captured")
# nn.Module itself, too: torch.fx nests modules by their path in plain ones, which nobody calls.
NEVER_CALLED = (nn.Module, nn.ModuleList, nn.ModuleDict)
CONTAINERS = (nn.Sequential, *NEVER_CALLED)
PREPARING_GIVES_WAY_AFTER = 0.0005  # seconds: to the thread that launches steps
ASKED_AGAIN_AFTER = 0.1  # seconds, until what was not ready to be prepared is tried again
UNDER_WAY = 16  # steps launched ahead of the GPU: enough for it to do while an import keeps the interpreter
EAGER_STEPS = 3  # before the capture: libraries choose their kernels, momentum buffers come to be

Function = TypeVar("Function", bound=Callable[..., object])


def launcher(step: Callable[[], None], runtime: Runtime) -> Callable[[], None]:
    return CapturedStep(step) if runtime.capture else step


class CapturedStep:
    """The first steps run as they are, on a stream of their own; then one is captured, and replayed from there on.

    All of them are steps of the training: capturing computes nothing, so no step is done twice. The step must read
    and write tensors that stay where they are.
    """

    def __init__(self, step: Callable[[], None]) -> None:
        self._step = step
        self._taken = 0
        self._graph: torch.cuda.CUDAGraph | None = None
        self._ends: deque[torch.cuda.Event] | None = None

    @contextmanager
    def giving_way(self) -> Iterator[None]:
        """Stay a few steps ahead of the GPU, instead of filling its queue.

        A thread that launches into a full queue blocks the driver until there is room; whatever another thread asks of
        the GPU meanwhile, if only to copy a weight, then takes a good part of a step.
        """
        self._ends = deque()
        try:
            yield
        finally:
            self._ends = None

    @property
    def is_captured(self) -> bool:
        return self._graph is not None

    def __call__(self) -> None:
        if self._graph is None and self._taken < EAGER_STEPS:
            self._taken += 1
            aside = torch.cuda.Stream()
            aside.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(aside):
                self._step()
            torch.cuda.current_stream().wait_stream(aside)
            return
        if self._graph is None:
            _left_for_after.clear()  # by a capture that failed
            graph = torch.cuda.CUDAGraph()
            # With priority: what a step does on another stream, such as to step weights, only fills the gaps.
            with torch.cuda.graph(graph, stream=torch.cuda.Stream(priority=-1)):
                self._step()
            self._graph = graph
            while _left_for_after:
                _left_for_after.pop()()
        self._graph.replay()
        if self._ends is not None:
            self._ends.append(torch.cuda.Event(blocking=True))
            self._ends[-1].record()
            if len(self._ends) > UNDER_WAY:
                self._ends.popleft().synchronize()


def launch_all(steps: Callable[[], None], launch: Callable[[], None], runtime: Runtime, *, are_last: bool) -> None:
    """`steps` makes many launches of `launch`; captured ones leave this thread free for what is to be prepared.

    Those that `are_last` are the last of a stage.
    """
    if runtime.meanwhile and isinstance(launch, CapturedStep) and launch.is_captured:
        with launch.giving_way():
            launch_while_preparing(steps, runtime, are_last=are_last)
    else:
        steps()


def launch_while_preparing(steps: Callable[[], None], runtime: Runtime, *, are_last: bool) -> None:
    """Launch captured steps from another thread; this one does meanwhile what the runtime has to do.

    Launching keeps a thread waiting for the GPU most of the time. What is prepared stays with this thread: the compiler
    does not survive being used by two, nor would it survive modules that are called beside it.
    """

    on_gpu = runtime.device.type == "cuda"
    stream = torch.cuda.current_stream(runtime.device) if on_gpu else None
    # What is prepared waits for what it copies and tries: not for all the steps that are launched before.
    aside = torch.cuda.Stream(runtime.device, priority=-1) if on_gpu else None

    def launch() -> None:
        with torch.cuda.stream(stream):  # of this thread; and its device
            steps()

    usual = sys.getswitchinterval()
    sys.setswitchinterval(PREPARING_GIVES_WAY_AFTER)
    try:
        with ThreadPoolExecutor(1) as another, torch.cuda.stream(aside):
            launched = another.submit(launch)
            _prepare(runtime.meanwhile, launched, is_last_chance=are_last)
            launched.result()
    finally:
        sys.setswitchinterval(usual)


def _prepare(tasks: list[Callable[[], bool]], launched: Future[None], *, is_last_chance: bool) -> None:
    """Call each task once while steps are launched; at the last chance, again until all are done.

    What is left has the next epoch from its beginning: the next steps wait for a task that is still at work when these
    are launched, so one that begins late keeps the GPU idle for longer.
    """
    while tasks:
        for task in list(tasks):
            if task():
                tasks.remove(task)
            if launched.done():
                return
        if not is_last_chance or wait([launched], timeout=ASKED_AGAIN_AFTER).done:
            return


_left_for_after: list[Callable[[], object]] = []


def after_capture(do: Callable[[], object]) -> None:
    """Call `do` once, after the capture under way and before its first replay: for what is known only then."""
    _left_for_after.append(do)


def milliseconds(launch: Callable[[], None], times: int, runtime: Runtime) -> float:
    """Of a launch, the mean of several, begun when the device has nothing left to do."""
    runtime.synchronize()
    began = time.perf_counter()
    for _ in range(times):
        launch()
    runtime.synchronize()
    return 1000 * (time.perf_counter() - began) / times


def launches_in(launch: Callable[[], None], seconds: float, runtime: Runtime) -> int:
    """How many launches fit in so many seconds; at least one."""
    return max(1, int(1000 * seconds / max(milliseconds(launch, 3, runtime), 1e-3)))


def in_mode(runtime: Runtime, mode: str) -> Runtime:
    """The runtime with steps run in one of MODES."""
    if mode not in MODES or ("captured" in mode and runtime.device.type != "cuda"):
        raise UserError(f"--mode {mode}: unknown, or not for this device; choose from {', '.join(MODES)}")
    return replace(runtime, compile="compiled" in mode, capture="captured" in mode)


def mode_of(runtime: Runtime) -> str:
    """The one of MODES that its steps run in."""
    ways = [way for way, is_so in (("compiled", runtime.compile), ("captured", runtime.capture)) if is_so]
    return "+".join(ways) or "eager"


def compiled(function: Function, runtime: Runtime) -> Function:
    if not runtime.compile:
        return function
    mend_compiler()
    return torch.compile(function, dynamic=False)  # type: ignore[return-value]


def compile_blocks(model: nn.Module, runtime: Runtime) -> None:
    """Compile in place, as the largest parts that can be reused.

    A block that a network repeats is compiled once for all its copies, which saves minutes; between such blocks the
    largest modules without any are compiled whole.
    """
    if not runtime.compile:
        return
    mend_compiler()
    inner = [module for module in model.modules() if list(module.children()) and type(module) not in CONTAINERS]
    repeated = {kind for kind, times in Counter(map(type, inner)).items() if times >= 3}
    # One for each width and stride, in training and in evaluation: a DenseNet has sixty widths, and what goes beyond
    # the limit would run uncompiled.
    torch._dynamo.config.recompile_limit = 512
    torch._dynamo.config.accumulated_recompile_limit = 2048
    # What is compiled ahead is kept whole, though its layout of gradients, below, is a function of our own.
    torch._functorch.config.autograd_cache_allow_custom_autograd_functions = True
    for part in model.children():
        _compile_parts(part, repeated)


def _compile_parts(module: nn.Module, repeated: set[type[nn.Module]]) -> None:
    whole = type(module) in repeated or not any(type(inner) in repeated for inner in module.modules())
    if getattr(module, "inplace", False) is True and not list(module.children()):
        return  # a network may count on what it writes over, and alone there is nothing to gain
    if whole and type(module) not in NEVER_CALLED:
        # What module.compile() does, but for a frame of our own: torch 2.11 passes over those of its own containers,
        # and an AlexNet, which is one Sequential, was left as it was.
        options = getattr(module, "compile_options", None)
        module._compiled_call_impl = torch.compile(MethodType(_called, module), dynamic=False, options=options)
        return
    for child in module.children():
        _compile_parts(child, repeated)


def _called(module: nn.Module, *inputs: Any) -> Any:
    return module._call_impl(*(_ChannelsLast.apply(each) if _is_map(each) else each for each in inputs))


def _is_map(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.dim() == 4 and value.requires_grad


class _ChannelsLast(torch.autograd.Function):
    """The same maps, whose gradient is laid out in channels last before it leaves the compiled part.

    The compiler is free in how it lays out what leaves; the part before would then copy all of it.
    """

    @staticmethod
    def forward(ctx: Any, maps: torch.Tensor) -> torch.Tensor:
        return maps.clone()  # which the compiler leaves out; but on a view no layer may write, and some do

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient.contiguous(memory_format=torch.channels_last)
