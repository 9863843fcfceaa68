"""Which kernel runs each layer of the fused experts: chosen by measurement, once, and remembered.

One convolution for all K experts, K small ones in turn, a batched product or, where weights are frozen, Winograd's
minimal filtering, in channels last or first: which is fastest depends on device, shape, precision and pass, and no rule
of thumb held on all of them. So the candidates of every layer (experts/stacked.py) take turns on the shape at hand, and
the winner is kept, in memory and in one small file for all runs of a user. The choice is made before anything is
compiled or captured, and is a plain attribute then.
"""

import copy
import json
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, fx, nn

from nofe.architectures.packing import freeze, pack_layers
from nofe.experts.branches import Branches
from nofe.experts.fused import FusedExperts
from nofe.experts.stacked import StackedLayer
from nofe.files import replace_atomically
from nofe.training.launch import EAGER_STEPS, launcher, milliseconds
from nofe.training.runtime import Runtime, cache_folder, device_name, drawing_aside

KERNELS = ("together", "loop", "product", "winograd")
BRANCHES = "branches"  # no kernel of a layer: the reference, branch by branch
FILE = "kernels.json"
LEAST_ROUNDS, MOST_ROUNDS = 5, 30  # in which the candidates take turns
SECONDS_A_CANDIDATE = 0.2  # for all its rounds, within these limits
LAUNCHES_ON_A_GPU = 10  # in a round, as a GPU begins late what a processor launches
HOPELESS = 2.0  # times slower than the best in the first round: not measured again
CLEARLY = 0.95  # of the first candidate's time; what is not clearly faster is not worth another rounding
AT_ALL = 0.99  # of the first one's time; to choose between branches and fused experts
log = logging.getLogger("nofe")


@dataclass
class Choices:
    """What won, by what was measured: `chosen["H200 ... conv ... forward"]` is `loop, channels last`."""

    file: Path | None = None  # where they are kept; None is in memory alone
    chosen: dict[str, str] = field(default_factory=dict)

    def add(self, chosen: dict[str, str]) -> None:
        """Together with what another process may have added in the meantime."""
        self.chosen |= chosen
        if self.file is None:
            return
        try:
            self.file.parent.mkdir(parents=True, exist_ok=True)
            with replace_atomically(self.file) as file:
                file.write((json.dumps(_read(self.file) | self.chosen, indent=1, sort_keys=True) + "\n").encode())
        except OSError as error:  # measured again next time; no reason to fail
            log.warning(
                "%s: cannot keep which kernels are fastest (%s); set NOFE_CACHE to another folder", *_why(error)
            )


def _why(error: OSError) -> tuple[str, str]:
    return str(error.filename), str(error.strerror)


def _read(file: Path) -> dict[str, str]:
    """What is kept; nothing if the file is damaged or of another kind."""
    try:
        stored = json.loads(file.read_text())
    except (OSError, ValueError):
        return {}
    return stored if isinstance(stored, dict) and all(isinstance(v, str) for v in stored.values()) else {}


_of_this_user: dict[Path, Choices] = {}


def choices_of_this_user() -> Choices:
    file = cache_folder() / FILE
    if file not in _of_this_user:
        _of_this_user[file] = Choices(file, _read(file))
    return _of_this_user[file]


def pin_kernels(experts: FusedExperts, kernel: str, *, frozen: bool = False) -> None:
    """The same kernel wherever a layer has it, without measuring; elsewhere all experts together."""
    for layer in _layers(experts).values():
        known = {name for name, _ in layer.candidates(frozen=frozen)}
        layer.use(kernel if kernel in known else "together", None)


def kernels_of(experts: FusedExperts) -> dict[str, str]:
    """What runs each layer, by its path in a branch."""
    return {path: _in_words(layer.kernel, layer.layout) for path, layer in _layers(experts).items()}


def choose_kernels(
    experts: FusedExperts,
    features: Tensor,
    runtime: Runtime,
    *,
    training: bool,
    frozen: bool = False,
    known: dict[str, str] | None = None,
    remembered: Choices | None = None,
    may_measure: bool = True,
) -> dict[str, str]:
    """Choose for features of this shape, on the device where they are. Returns every choice by what it depends on.

    `frozen`: the weights will stay as they are for many passes, and layers are told so (architectures/packing.py).
    `known` goes before what is remembered: a resumed run repeats the choices it began with, to the bit. Without
    `may_measure` a layer that nothing is known of stays as it is. Weights, statistics and generators stay as they are.
    """
    remembered = choices_of_this_user() if remembered is None else remembered
    prefix = _prefix(runtime)
    made: dict[str, str] = {}
    measured: dict[str, str] = {}

    def choose(layer: StackedLayer, inputs: Tensor) -> None:
        by_name = {_in_words(*candidate): candidate for candidate in layer.candidates(frozen=frozen)}
        if len(by_name) == 1:
            return
        key = _key(layer, inputs, runtime, _pass(runtime, training, frozen))
        choice = (known or {}).get(key) or remembered.chosen.get(prefix + key)
        if choice not in by_name:
            if not may_measure:
                return
            steps = {}
            for name, candidate in by_name.items():
                if not layer.is_promising(*candidate, inputs, runtime.precision):
                    continue
                # A copy each: they lay their weights out in different ways, and a captured graph keeps addresses.
                own = copy.deepcopy(layer)
                own.use(*candidate)
                steps[name] = _step(own, inputs, runtime, training, frozen)
            choice = _fastest(steps, runtime)
            measured[prefix + key] = choice
        layer.use(*by_name[choice])
        made[key] = choice

    was_training = experts.training
    experts.eval()  # so that nothing is counted, and nothing drawn
    with torch.no_grad():
        _LayerByLayer(experts.graph, choose, runtime).run(features)
    experts.train(was_training)
    if measured:
        remembered.add(measured)
    return made


class _LayerByLayer(fx.Interpreter):
    """Chooses in the order of the forward pass: a layer is measured on maps in the layout that those before it give.

    Each layer casts its own weights, as in a step; inside one autocast they would be cast once and then be at hand.
    """

    def __init__(self, graph: fx.GraphModule, choose: Callable[[StackedLayer, Tensor], None], runtime: Runtime) -> None:
        super().__init__(graph)
        self._choose, self._runtime = choose, runtime

    def run_node(self, node: fx.Node) -> Any:
        if node.op == "call_module":
            layer = self.fetch_attr(str(node.target))
            if isinstance(layer, StackedLayer):
                (inputs,), _ = self.fetch_args_kwargs_from_env(node)
                self._choose(layer, inputs)
        with self._runtime.autocast():
            return super().run_node(node)


def _layers(experts: FusedExperts) -> dict[str, StackedLayer]:
    named = {name: experts.graph.get_submodule(name) for name in experts.path_of}
    return {experts.path_of[name]: layer for name, layer in named.items() if isinstance(layer, StackedLayer)}


def _in_words(kernel: str, layout: str | None) -> str:
    return kernel if layout is None else f"{kernel}, channels {layout}"


def _prefix(runtime: Runtime) -> str:
    return f"{device_name(runtime.device)}, {torch.get_num_threads()} threads, torch {torch.__version__}: "


def _key(layer: StackedLayer, inputs: Tensor, runtime: Runtime, passes: str) -> str:
    weight = cast(Tensor, layer.weight)
    convolution = {**getattr(layer, "settings", {}), "groups": getattr(layer, "groups", 1)}
    details = " ".join(f"{name}={value}" for name, value in convolution.items() if inputs.dim() == 4)
    shape = f"weight {tuple(weight.shape)} {weight.dtype} {details}".rstrip().replace("torch.", "")
    name = f"{type(layer).__name__} K={layer.experts}"
    return f"{name} {_inputs(inputs, runtime)}; {shape}; {passes}"


def _inputs(inputs: Tensor, runtime: Runtime) -> str:
    last = inputs.dim() == 4 and inputs.is_contiguous(memory_format=torch.channels_last)
    kind = str(inputs.dtype).removeprefix("torch.")
    return f"of {tuple(inputs.shape)}{' channels last' if last else ''} {kind} in {runtime.precision}"


def _pass(runtime: Runtime, training: bool, frozen: bool) -> str:
    passes = "forward and backward" if training else "forward of frozen weights" if frozen else "forward"
    return passes + (", captured" if runtime.capture else "")


def faster_than_branches(
    experts: FusedExperts,
    branches: Branches,
    features: Tensor,
    runtime: Runtime,
    *,
    training: bool,
    frozen: bool = False,
    known: dict[str, str] | None = None,
    remembered: Choices | None = None,
    may_measure: bool = True,
) -> tuple[bool, dict[str, str]]:
    """Whether the fused experts, with the kernels they have, are faster than `branches`, the same weights.

    On a processor the small maps of one branch may stay in its cache where those of all branches do not, so fused
    experts must be faster there, or branches run: users are never to wait longer for them. On a GPU branches are the
    loop of every layer, and where each has a faster kernel there is nothing to measure.
    """
    layers = _layers(experts).values()
    if runtime.device.type == "cuda" and all("loop" in layer.kernels and layer.kernel != "loop" for layer in layers):
        return True, {}
    remembered = choices_of_this_user() if remembered is None else remembered
    numbers = sum(weight.numel() for weight in experts.parameters())  # by width and by classes
    name = f"{type(branches[0]).__name__} of {numbers} weights K={experts.experts}"
    passes = f"{_pass(runtime, training, frozen)}; fused as {json.dumps(kernels_of(experts))}"
    key = f"{name} {_inputs(features, runtime)}; {passes}"
    choice = (known or {}).get(key) or remembered.chosen.get(_prefix(runtime) + key)
    if choice not in ("fused", BRANCHES):
        if not may_measure:
            return True, {}
        either: list[tuple[str, nn.Module]] = [("fused", experts), (BRANCHES, branches)]
        if runtime.device.type == "cpu":
            either.reverse()
        steps = {name: _step(copy.deepcopy(each), features, runtime, training, frozen) for name, each in either}
        choice = _fastest(steps, runtime, AT_ALL)
        remembered.add({_prefix(runtime) + key: choice})
    return choice == "fused", {key: choice}


def _fastest(steps: dict[str, Callable[[], None]], runtime: Runtime, enough: float = CLEARLY) -> str:
    """The name of the fastest; the first one, unless another takes less than `enough` of its time."""
    with drawing_aside(runtime.device):
        least = _least_seconds(steps, runtime)
    log.debug("%s", {name: f"{1000 * seconds:.3f} ms" for name, seconds in least.items()})
    winner = min(least, key=lambda name: least[name])
    first = next(iter(steps))
    return first if first in least and least[winner] > enough * least[first] else winner


def _least_seconds(steps: dict[str, Callable[[], None]], runtime: Runtime) -> dict[str, float]:
    """By name, but without those that cannot be the fastest."""
    seconds: dict[str, list[float]] = {}
    for name, step in steps.items():
        for _ in range(EAGER_STEPS + 2 if runtime.capture else 1):  # libraries choose their own kernels
            step()
        seconds[name] = [_time(step, runtime)]
    best = min(min(each) for each in seconds.values())
    hopeful = [name for name in steps if min(seconds[name]) < HOPELESS * best]
    a_round = best * _launches(runtime)
    for _ in range(min(max(LEAST_ROUNDS, int(SECONDS_A_CANDIDATE / a_round)), MOST_ROUNDS)):
        for name in hopeful:
            seconds[name].append(_time(steps[name], runtime))
    # The least of several: what disturbs a measurement makes it longer, never shorter.
    return {name: min(seconds[name]) for name in hopeful}


def _step(module: nn.Module, inputs: Tensor, runtime: Runtime, training: bool, frozen: bool) -> Callable[[], None]:
    """One pass through `module`, which must be a copy: it is trained, or frozen."""
    module.train(training)
    if frozen:
        module.to(runtime.input_dtype)
        pack_layers(module)
        freeze(module)
    given = inputs.detach().clone()  # keeps the layout
    is_layer = isinstance(module, StackedLayer)

    def forward() -> None:
        with torch.inference_mode(), runtime.autocast():
            module(given)

    def forward_and_backward() -> None:
        # As in training, down to the gradients: one that comes in another layout than its weight is copied.
        module.zero_grad(set_to_none=True)
        given.grad = None
        with torch.enable_grad():
            with runtime.autocast():
                outputs = module(given if is_layer else given.clone())  # experts may write over it, but not over a leaf
            outputs.backward(outputs.detach())

    given.requires_grad_(training)
    return launcher(forward_and_backward if training else forward, runtime)


def _time(step: Callable[[], None], runtime: Runtime) -> float:
    return milliseconds(step, _launches(runtime), runtime) / 1000


def _launches(runtime: Runtime) -> int:
    return LAUNCHES_ON_A_GPU if runtime.device.type == "cuda" else 1
