"""Compile the experts in another process while the generalist trains, so that their stage need not wait for it.

What torch.compile makes is kept on disk, under a key of what it was made from. A process that builds the same network,
in the same precision, and takes one step and one evaluation with it leaves there what the stage will ask for.
"""

import json
import logging
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch

from nofe import config as configuration
from nofe.architectures.zoo import trust
from nofe.config import RunConfig, architecture_of
from nofe.data.batches import DeviceImages
from nofe.data.dataset import ImageSet
from nofe.evaluation import accuracy
from nofe.experts.network import plant_experts
from nofe.frozen import images_at_once
from nofe.specialties import random_balanced
from nofe.training.loop import Objective, batches_of, start_training, train_epoch
from nofe.training.progress import Silent
from nofe.training.runtime import Runtime, make_runtime

PATIENCE_SECONDS = 120.0  # then the stage compiles what is missing itself
log = logging.getLogger("nofe")


@dataclass(frozen=True)
class Order:
    """What to compile for: shapes alone, no images."""

    config: dict[str, Any]
    classes: int
    train_images: int
    test_images: int
    device: str
    kernels: str


@contextmanager
def compiling_ahead(
    config: RunConfig, classes: int, images: tuple[int, int], runtime: Runtime
) -> Iterator[Callable[[], None]]:
    """Gives a function that waits for the end of it. `images` are how many to train on and to test on.

    If it fails nothing is lost but time: the stage compiles for itself, and says what is wrong.
    """
    order = Order(configuration.to_json(config), classes, *images, str(runtime.device), runtime.kernels)
    quiet = subprocess.DEVNULL
    process = subprocess.Popen(
        [sys.executable, "-m", "nofe.ahead"], stdin=subprocess.PIPE, stdout=quiet, stderr=quiet, text=True
    )
    assert process.stdin is not None
    process.stdin.write(json.dumps(asdict(order)))
    process.stdin.close()

    def wait() -> None:
        try:
            ended = process.wait(PATIENCE_SECONDS)
            log.debug("compiling ahead ended with %d", ended)
        except subprocess.TimeoutExpired:
            process.kill()

    try:
        yield wait
    finally:
        process.kill()
        process.wait()


def compile_experts(order: Order, runtime: Runtime) -> None:
    """One step and one evaluation of the experts' stage, on images of zeros."""
    config = configuration.from_json(order.config)
    runtime.use_precision(config.precision)
    recipe, classes = config.experts, order.classes
    architecture = architecture_of(config, classes)
    network = plant_experts(architecture, random_balanced(classes, config.specialties.count, np.random.default_rng(0)))
    if config.adapt.frozen_trunk:
        network.freeze_trunk()
    network.fuse()
    network.to(runtime.device, memory_format=torch.channels_last)  # type: ignore[call-overload]
    crop, batch = recipe.augmentation.crop, min(recipe.batch, order.train_images)
    network.choose_kernels((batch, 3, crop, crop), runtime, training=True, may_measure=False)
    state = start_training("experts", network, recipe, config.seed, runtime)
    batches = batches_of(state, _zeros(order.train_images, architecture.image_size, runtime), runtime)
    objective = Objective(torch.arange(classes, device=runtime.device), smoothing=recipe.label_smoothing)
    train_epoch(state, batches, objective, runtime, Silent(), until=1)
    at_once = images_at_once(runtime, crop)
    tested = min(order.test_images, at_once + order.test_images % at_once)  # a whole batch and the rest
    with state.as_evaluated():
        accuracy(network, _zeros(tested, architecture.image_size, runtime), crop, runtime)


def _zeros(count: int, size: int, runtime: Runtime) -> DeviceImages:
    images = ImageSet(np.zeros((count, 3, size, size), dtype=np.uint8), np.zeros(count, dtype=np.int64))
    return DeviceImages(images, np.zeros((3, size, size), dtype=np.float32), runtime.device)


def main() -> None:
    order = Order(**json.loads(sys.stdin.read()))
    trust(order.config["architecture"])
    compile_experts(order, make_runtime(order.device, compile=True, capture=False, kernels=order.kernels))


if __name__ == "__main__":
    main()
