"""Speed, measured side by side: base, reference and fused experts; eager, captured, compiled.

Every number is a median over rounds in which cases take turns, so that a machine that slows down slows all of them:
the ratios hold where the milliseconds do not. Those that take turns are a base and the experts compared with it; one
such group after another is on the device, so that a sweep over K and C needs no more memory than its largest case.
"""

import gc
import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from nofe.architectures import Architecture, architecture_named, parameter_count
from nofe.architectures.packing import product_with
from nofe.bench.cases import Case
from nofe.bench.stand_ins import first_batches, noise, recipe_of, same_step
from nofe.data.batches import Batches
from nofe.errors import UserError
from nofe.experts.branches import Branches
from nofe.experts.network import make_fast, plant_at_random
from nofe.frozen import FrozenNetwork
from nofe.training.launch import compile_blocks, in_mode, launcher, launches_in, milliseconds
from nofe.training.loop import Objective, start_training
from nofe.training.recipe import Recipe
from nofe.training.runtime import Runtime, environment

MANY = 10**9  # images to come: all that may make their evaluation faster is worth it


@dataclass(frozen=True)
class Timing:
    case: Case
    milliseconds: float  # a step, median
    images_per_second: float
    ratio_to_base: float | None  # of the same mode and task
    peak_megabytes: float | None  # of a few steps, beyond weights and images: activations, gradients, velocities
    parameters: int
    gigaflops: float  # of the step; a multiplication and an addition are two
    share_of_peak: float | None  # of the matrix product measured in the same run
    by_branches: bool  # fused experts would not have been faster: branches ran one after another in their place


@dataclass
class _Prepared:
    launch: Callable[[], None]
    parameters: int
    gigaflops: float
    megabytes: float | None
    by_branches: bool
    steps: int = 0
    times: list[float] = field(default_factory=list)


def measure(
    architecture: str,
    cases: Sequence[Case],
    runtime: Runtime,
    *,
    rounds: int = 7,
    seconds_a_round: float = 0.25,
) -> dict[str, Any]:
    """Time all cases, group by group. Cases that the device cannot run are left out."""
    known = architecture_named(architecture)
    cases = [case for case in cases if runtime.device.type == "cuda" or "captured" not in case.mode]
    if not cases:
        raise UserError("bench: no case is left that this device can run; choose other modes")
    peak = _peak_gigaflops(runtime)
    ratios: dict[Case, float | None] = {}
    finished: dict[Case, _Prepared] = {}
    prepared: dict[Case, _Prepared] = {}
    for group in _groups(cases):
        for gone in prepared.keys() - set(group):
            finished[gone] = replace(prepared.pop(gone), launch=_nothing)  # so that it no longer holds the network
        _release(runtime)
        for case in group:
            if case not in prepared:
                prepared[case] = _prepare(known, case, runtime)
                prepared[case].steps = launches_in(prepared[case].launch, seconds_a_round, runtime)
        times: dict[Case, list[float]] = {case: [] for case in group}
        for _ in range(rounds):
            for case in group:
                times[case].append(milliseconds(prepared[case].launch, prepared[case].steps, runtime))
        for case in group:
            prepared[case].times += times[case]
        of_base = next((statistics.median(times[case]) for case in group if case.network == "base"), None)
        for case in group:
            # The base is in several groups, and its own row is over all of them; a ratio is inside one.
            ratios[case] = None if of_base is None else statistics.median(times[case]) / of_base
    finished |= prepared
    peak = max(peak, _peak_gigaflops(runtime))  # measured twice: what disturbed one may be gone in the other
    return {
        "architecture": architecture,
        "environment": environment(runtime, seed=0),
        "kernels": runtime.kernels,
        "rounds": rounds,
        "peak_gigaflops": round(peak, 1),
        "timings": [asdict(_timing(case, finished[case], ratios[case], peak)) for case in cases],
    }


def prepare(architecture: str, case: Case, runtime: Runtime) -> Callable[[], None]:
    """One step of the case, which has been run often enough to be compiled and captured."""
    return _prepare(architecture_named(architecture), case, runtime).launch


def _groups(cases: Sequence[Case]) -> list[list[Case]]:
    """The cases of one task, mode, batch, C and K, and the base that they are compared with."""
    bases = {_setting(case): case for case in cases if case.network == "base"}
    groups: dict[tuple[Any, ...], list[Case]] = {}
    order = list(dict.fromkeys(map(_setting, cases)))  # in order of appearance, so that a base is prepared once
    for case in sorted(cases, key=lambda case: order.index(_setting(case))):
        if case.network != "base":
            base = bases.get(_setting(case))
            groups.setdefault((*_setting(case), case.experts), [] if base is None else [base]).append(case)
    alone = [[base] for setting, base in bases.items() if not any(key[:-1] == setting for key in groups)]
    return [*groups.values(), *alone]


def _setting(case: Case) -> tuple[Any, ...]:
    return case.task, case.mode, case.batch, case.classes


def _timing(case: Case, measured: _Prepared, ratio: float | None, peak: float) -> Timing:
    ms = statistics.median(measured.times)
    return Timing(
        case=case,
        milliseconds=round(ms, 4),
        images_per_second=round(1000 * case.batch / ms, 1),
        ratio_to_base=None if ratio is None else round(ratio, 4),
        peak_megabytes=measured.megabytes,
        parameters=measured.parameters,
        gigaflops=round(measured.gigaflops, 3),
        share_of_peak=round(measured.gigaflops / ms * 1000 / peak, 4),
        by_branches=measured.by_branches,
    )


def _nothing() -> None:
    pass


def _release(runtime: Runtime) -> None:
    gc.collect()  # captured graphs and networks hold each other
    if runtime.device.type == "cuda":
        torch.cuda.empty_cache()


def _prepare(architecture: Architecture, case: Case, runtime: Runtime) -> _Prepared:
    runtime = in_mode(runtime, case.mode)
    torch.manual_seed(0)
    model: nn.Module
    if case.network == "base":
        model = architecture.classifier(case.classes)
    else:
        network = plant_at_random(architecture, case.classes, case.experts)
        if case.network == "fused" and not network.fuse():
            raise UserError(f"{architecture.name}: its branches cannot be fused; leave the network 'fused' out")
        model = network
    parameters = parameter_count(model)
    recipe = recipe_of(architecture, case.batch)
    batches = first_batches(noise(architecture, case.classes, case.batch, runtime), recipe)
    gigaflops = _gigaflops(model, batches, case, runtime)
    before = _allocated(runtime)
    if case.network == "fused" and case.task != "inference":  # inference chooses its kernels itself
        shape = (case.batch, 3, architecture.input_size, architecture.input_size)
        make_fast(network, shape, runtime, training=case.task == "train")
    answers: nn.Module = model
    if case.task == "train":
        launch = _training(model, recipe, batches, case.classes, runtime)
    elif case.task == "forward":
        launch = _forward(model, batches, runtime)
    else:
        launch, answers = _inference(model, batches, runtime)
    by_branches = case.network == "fused" and isinstance(answers.get_submodule("experts"), Branches)
    if runtime.device.type == "cpu" and not runtime.compile:
        megabytes: float | None = round(_peak_on_processor(launch) / 2**20, 1)
    else:
        megabytes = None
    launch()  # compilation, and the choice of kernels, which tries some that want much memory
    if runtime.device.type == "cuda":
        runtime.synchronize()
        torch.cuda.reset_peak_memory_stats()
    for _ in range(5):  # two more before the capture, the capture, and replays, which allocate nothing
        launch()
    runtime.synchronize()
    if runtime.device.type == "cuda":
        megabytes = round((torch.cuda.max_memory_allocated() - before) / 2**20, 1)
    return _Prepared(launch, parameters, gigaflops, megabytes, by_branches)


def _peak_on_processor(launch: Callable[[], None]) -> int:
    """Bytes beyond those in use before: over two launches, as the first makes what stays, such as velocities."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as noted:
        launch()
        launch()
    now = most = 0
    for event in noted.profiler.kineto_results.events():
        if event.name() == "[memory]":
            now += event.nbytes()
            most = max(most, now)
    return most


def _training(model: nn.Module, recipe: Recipe, batches: Batches, classes: int, runtime: Runtime) -> Callable[[], None]:
    state = start_training("bench", model, recipe, 0, runtime)
    return same_step(state, batches, Objective(torch.arange(classes, device=runtime.device)), runtime)


def _forward(model: nn.Module, batches: Batches, runtime: Runtime) -> Callable[[], None]:
    model.to(runtime.device, memory_format=torch.channels_last)  # type: ignore[call-overload]
    model.eval()
    compile_blocks(model, runtime)
    images, _ = batches.next()
    images = images.contiguous(memory_format=torch.channels_last)

    def step() -> None:
        with torch.inference_mode(), runtime.autocast():
            model(images)

    return launcher(step, runtime)


def _inference(model: nn.Module, batches: Batches, runtime: Runtime) -> tuple[Callable[[], None], nn.Module]:
    """The path of nofe evaluate and predict, and what answers there; a captured pass is launched by itself."""
    images, _ = batches.next()
    ready = FrozenNetwork(model, runtime, MANY, images.shape[-1], at_once=len(images))

    def answer() -> None:
        ready(images)

    return answer, ready.network


def _gigaflops(model: nn.Module, batches: Batches, case: Case, runtime: Runtime) -> float:
    """Of convolutions and matrix products, as torch counts them; backward is twice forward."""
    from torch.utils.flop_counter import FlopCounterMode

    model.to(runtime.device).eval()
    images, _ = batches.next()
    batches.rewind()
    with FlopCounterMode(display=False) as counter, torch.no_grad(), runtime.autocast():
        model(images)
    forward = float(counter.get_total_flops()) / 1e9
    return forward * (3 if case.task == "train" else 1)


def _peak_gigaflops(runtime: Runtime) -> float:
    """The largest matrix product this device does in the precision of the run.

    By either library that layers use: on a processor MKL may do half of what oneDNN does.
    """
    size = 8192 if runtime.device.type == "cuda" else 1024
    kind = torch.bfloat16 if runtime.precision == "bf16" else torch.float32
    one, other = torch.randn(2, size, size, device=runtime.device, dtype=kind)
    with torch.inference_mode():
        product = product_with(other, size)
        best = min(_milliseconds_of(way, runtime) for way in (lambda: torch.mm(one, other), lambda: product(one, None)))
    return 2 * size**3 / 1e9 / best * 1000


def _milliseconds_of(multiply: Callable[[], Tensor], runtime: Runtime) -> float:
    def step() -> None:
        multiply()

    for _ in range(3):
        step()
    return min(milliseconds(step, 10, runtime) for _ in range(3))


def _allocated(runtime: Runtime) -> int:
    return torch.cuda.memory_allocated() if runtime.device.type == "cuda" else 0
