"""Compile the experts in another process while the generalist trains, so that their stage need not wait for it.

What torch.compile makes is kept on disk, under a key of what it was made from. Processes that build the same network,
in the same precision, leave there what the stage will ask for: one takes a step with it, another evaluates it. When
one is done this process does the same, still while the GPU works for the generalist, so that the stage need not even
read it.
"""

import gc
import importlib
import json
import logging
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import nn

from nofe import config as configuration
from nofe.architectures.zoo import trust
from nofe.config import RunConfig, architecture_of
from nofe.data.batches import DeviceImages
from nofe.data.dataset import ImageSet
from nofe.data.workers import cores
from nofe.evaluation import accuracy
from nofe.experts.network import NetworkOfExperts, make_fast, plant_at_random
from nofe.frozen import frozen, images_at_once, is_worth_measuring
from nofe.training.loop import Objective, batches_of, start_training, train_epoch
from nofe.training.progress import Silent
from nofe.training.runtime import Runtime, cudnn_not_searching, drawing_aside, make_runtime
from nofe.training.turns import first_alone

PARTS = ("training", "evaluation")  # each about half of the work
USED_LATER = ("torch._inductor.compile_fx", "matplotlib.backends.backend_agg")  # seconds to import, each
PATIENCE_SECONDS = 120.0  # then the stage compiles what is missing itself
log = logging.getLogger("nofe")


@dataclass(frozen=True)
class Order:
    """What to compile for: shapes alone, no images."""

    part: str  # of PARTS
    config: dict[str, Any]
    classes: int
    train_images: int
    test_images: int
    device: str
    kernels: str


class CompilingAhead:
    """Other processes that compile the experts, from `begin` on; as a context: none is left when it ends.

    `images` are how many to train on and to test on. If something fails nothing is lost but time: the stage compiles
    for itself, and says what is wrong.
    """

    def __init__(self, config: RunConfig, classes: int, images: tuple[int, int], runtime: Runtime) -> None:
        self._config, self._classes, self._images, self._runtime = config, classes, images, runtime
        self._processes: list[subprocess.Popen[str]] = []

    def __enter__(self) -> "CompilingAhead":
        """Starts them: they import for seconds before they want to know more."""
        command, quiet = [sys.executable, "-m", "nofe.ahead"], subprocess.DEVNULL
        try:
            for _ in PARTS:
                self._processes.append(
                    subprocess.Popen(command, stdin=subprocess.PIPE, stdout=quiet, stderr=quiet, text=True)
                )
        except OSError:
            self.__exit__()
            raise
        return self

    def begin(self) -> None:
        """Chooses kernels first: they must build what the stage will build, and would measure beside a training."""
        config, runtime, (to_train_on, to_test_on) = self._config, self._runtime, self._images
        crop = config.experts.augmentation.crop
        network = with_kernels_chosen(config, self._classes, to_train_on, runtime)
        settings, orders = configuration.to_json(config), []
        for part, process in zip(PARTS, self._processes, strict=True):
            if part == "evaluation" and is_worth_measuring(runtime, to_test_on, crop):
                frozen(network, runtime, to_test_on, crop)
            order = Order(part, settings, self._classes, *self._images, str(runtime.device), runtime.kernels)
            orders.append(order)
            assert process.stdin is not None
            with suppress(BrokenPipeError), process.stdin:  # one that failed at once
                process.stdin.write(json.dumps(asdict(order)))
        runtime.meanwhile.extend(partial(_import, name) for name in USED_LATER)
        if not _draws(network, crop, runtime):
            runtime.meanwhile.extend(
                partial(self._rehearse, order, of) for order, of in zip(orders, self._processes, strict=True)
            )

    def wait(self) -> None:
        """For the end of it."""
        self._runtime.meanwhile.clear()
        deadline = time.monotonic() + PATIENCE_SECONDS
        for process in self._processes:
            try:
                log.debug("compiling ahead ended with %d", process.wait(deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()

    def _rehearse(self, order: Order, process: subprocess.Popen[str]) -> bool:
        """When it is done."""
        if process.poll() is None:
            return False
        if process.returncode == 0 and not self._runtime.stop_signal:
            _rehearse(order, self._runtime)
        return True

    def __exit__(self, *_: object) -> None:
        self._runtime.meanwhile.clear()
        for process in self._processes:
            process.kill()
            process.wait()


def _import(name: str) -> bool:
    with suppress(ImportError):  # who uses it will say what is missing
        importlib.import_module(name)
    return True


def _draws(network: nn.Module, crop: int, runtime: Runtime) -> bool:
    """Whether it draws when it is trained, as dropout does, which is tried.

    The compiler puts the device's generator back to where it was before it compiled: steps that drew from it meanwhile
    would draw the same again.
    """
    images = torch.zeros(2, 3, crop, crop, device=runtime.device)
    with drawing_aside(runtime.device) as has_drawn, torch.no_grad(), cudnn_not_searching():
        network.train()(images)
        return has_drawn()


def _rehearse(order: Order, runtime: Runtime) -> None:
    """Here what others did: it is quick by now. Nothing of the run is touched, and if it fails nothing is lost."""
    one_thread = importlib.import_module("torch._inductor.config").patch(compile_threads=1)
    try:
        # All is on disk: no processes to compile in need be started. The device's generator is in use.
        with one_thread, torch.random.fork_rng(devices=[]), cudnn_not_searching():
            kernels = "known" if runtime.kernels == "measure" else runtime.kernels  # all are chosen
            compile_experts(order, replace(runtime, compile=True, kernels=kernels, meanwhile=[]))
    except Exception as error:  # a compiler has many
        log.debug("rehearsing failed: %s", error)
    finally:
        gc.collect()  # a network and its compiled parts hold each other, and much of the device's memory


def with_kernels_chosen(config: RunConfig, classes: int, images: int, runtime: Runtime) -> NetworkOfExperts:
    """The experts as their stage begins with them, to be trained on so many; what is measured for it is remembered."""
    network = plant_at_random(architecture_of(config, classes), classes, config.specialties.count)
    if config.adapt.frozen_trunk:
        network.freeze_trunk()
    crop = config.experts.augmentation.crop
    make_fast(network, (min(config.experts.batch, images), 3, crop, crop), runtime)
    return network


def compile_experts(order: Order, runtime: Runtime) -> None:
    """One step, or one evaluation, of the experts' stage on images of zeros."""
    config = configuration.from_json(order.config)
    runtime.use_precision(config.precision)
    recipe, classes = config.experts, order.classes
    size, crop = architecture_of(config, classes).image_size, recipe.augmentation.crop
    network = with_kernels_chosen(config, classes, order.train_images, runtime)
    if order.part == "training":
        state = start_training("experts", network, recipe, config.seed, runtime)
        batches = batches_of(state, _zeros(order.train_images, size, runtime), runtime)
        objective = Objective(torch.arange(classes, device=runtime.device), smoothing=recipe.label_smoothing)
        state.step = 1  # with the first of an epoch torch's generators are seeded, which a training may be using
        train_epoch(state, batches, objective, runtime, Silent(), until=2)
    else:
        at_once = images_at_once(runtime)
        tested = min(order.test_images, at_once + order.test_images % at_once)  # a whole batch and the rest
        accuracy(network, _zeros(tested, size, runtime), crop, runtime)


def _start_compiling_processes() -> None:
    """Torch starts them with the first graph, and compiles one kernel after another until they are there."""
    _import("torch._inductor.compile_fx")
    start = getattr(importlib.import_module("torch._inductor.async_compile"), "maybe_warm_pool", None)
    if start is not None:
        start()


def _zeros(count: int, size: int, runtime: Runtime) -> DeviceImages:
    images = ImageSet(np.zeros((count, 3, size, size), dtype=np.uint8), np.zeros(count, dtype=np.int64))
    return DeviceImages(images, np.zeros((3, size, size), dtype=np.float32), runtime.device)


def main() -> None:
    import torch._inductor.config as compiler

    compiler.compile_threads = max(1, cores() // len(PARTS))
    _start_compiling_processes()  # while the order is made
    order = Order(**json.loads(sys.stdin.read()))
    trust(order.config["architecture"])
    runtime = make_runtime(order.device, compile=True, kernels=order.kernels)
    # What is compiled does not depend on cuDNN's choice, which would keep the device from the generalist for seconds.
    torch.backends.cudnn.benchmark = False
    settings = {name: value for name, value in order.config.items() if name != "seed"}
    with first_alone(f"torch {torch.__version__}: {replace(order, config=settings)}"):
        compile_experts(order, runtime)


if __name__ == "__main__":
    main()
