"""How fast images reach the network: reading, decoding, resizing, copying, augmenting, and all of it at once.

Workers read, decode and resize side by side; copying and augmentation happen on the device's side while they do. So
the whole is as fast as the slowest of workers, copy and augmentation, and what the workers spend most of their time on
is what to change first. With a network of experts its training joins in: `step` is one on images that are there, and
`train` the loop of `nofe train` on images as they come.
"""

import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

from nofe.architectures import Architecture, architecture_named
from nofe.bench.stand_ins import recipe_of
from nofe.data import is_listed, list_images
from nofe.data.batches import Augmentation, Batches, DeviceImages
from nofe.data.dataset import ImageSet
from nofe.data.decode import UnreadableError, decode_whole, square_of_whole
from nofe.data.jpeg import torchcodec_decoder
from nofe.data.pictures import Pictures, Stored
from nofe.data.stored import StoredImages
from nofe.data.stream import batches_over, on_device
from nofe.data.workers import Workers
from nofe.errors import UserError
from nofe.experts.network import make_fast, plant_at_random
from nofe.training.launch import mode_of
from nofe.training.loop import Objective, batches_of, start_training, train_epoch
from nofe.training.progress import Silent
from nofe.training.runtime import Runtime, environment

IN_ONE = ("read", "decode", "resize")  # what one worker does with an image, one after another
AT_ONCE = ("workers", "copy", "augment")  # what happens at the same time
DECODED = 128  # images to time decoding and resizing by
ORDER = (*IN_ONE, *AT_ONCE, "whole", "step", "train")
ADVICE = {
    "read": "a faster disk, or nofe pack, whose shards are read by offset",
    "decode": "nofe pack with a smaller --size, or more --workers",
    "resize": "nofe pack with --size at what the network stores, or more --workers",
    "copy": "a smaller image size",
    "augment": "a faster device, or fewer augmentations",
    "step": "a faster device, or a smaller network",
}


def measure_data(
    dataset: str,
    architecture: str,
    runtime: Runtime,
    *,
    batch: int = 128,
    images: int = 1024,
    rounds: int = 3,
    experts: int = 0,
) -> dict[str, Any]:
    """Images a second of each step, medians over rounds, and which step is the limit; 0 experts: nothing is trained."""
    if not is_listed(dataset):
        raise UserError(f"--dataset {dataset}: is in memory from the start; name a folder:, shards: or hf: data set")
    if min(batch, images, rounds) < 1:
        raise UserError("bench data: batch, images and rounds must be 1 or more")
    network = architecture_named(architecture)
    listing = list_images(dataset)
    pictures = listing.train
    index = np.random.default_rng(0).permutation(len(pictures))[:images]
    chosen = pictures.subset(index)
    batch = min(batch, len(chosen))
    pool = Workers(runtime.workers, network.image_size)
    try:
        timers = _timers(chosen, network.image_size, network.input_size, batch, pool, runtime)
        if experts:
            stored = StoredImages(chosen, network.image_size, pool)
            timers |= _trainings(network, stored, len(listing.class_names), experts, batch, runtime)
        decode_and_resize(chosen, network.image_size)
        for run in timers.values():
            run()  # caches, processes, kernels
        halves = [decode_and_resize(chosen, network.image_size) for _ in range(rounds)]
        speeds = {name: round(statistics.median(half[name] for half in halves), 1) for name in halves[0]}
        speeds |= {
            name: round(statistics.median(_images_per_second(run, runtime) for _ in range(rounds)), 1)
            for name, run in timers.items()
        }
    finally:
        pool.close()
    limit, inside = limit_of(speeds)
    return {
        "dataset": dataset.partition(":")[0],
        "architecture": architecture,
        "image_size": network.image_size,
        "batch": batch,
        "images": len(chosen),
        "megabytes": round(_encoded_bytes(chosen) / 1e6, 3),
        "workers": pool.count,
        "jpegs_by": "torchcodec" if torchcodec_decoder() else "Pillow",
        "rounds": rounds,
        "environment": environment(runtime, seed=0),
        "experts": experts,
        "classes": len(listing.class_names),
        "mode": mode_of(runtime),
        "images_per_second": {name: speeds[name] for name in ORDER if name in speeds},
        "limit": limit,
        "inside": inside,
        "advice": ADVICE[inside],
    }


def limit_of(speeds: Mapping[str, float]) -> tuple[str, str]:
    """The slowest of what happens at the same time; if it is the workers, what they spend most of their time on."""
    limit = min((name for name in (*AT_ONCE, "step") if name in speeds), key=speeds.__getitem__)
    return limit, min(IN_ONE, key=speeds.__getitem__) if limit == "workers" else limit


def decode_and_resize(pictures: Pictures, image_size: int) -> dict[str, float]:
    """Images a second of the two halves of a worker's decoding, by whichever decoder it has for an image.

    Timed image by image: all of them decoded and not yet resized may be more than the memory holds.
    """
    seconds = dict.fromkeys(("decode", "resize"), 0.0)
    count = min(len(pictures), DECODED)
    for index in range(count):
        content = _read(pictures, index)
        try:
            began = time.perf_counter()
            whole = decode_whole(content, image_size)
            decoded = time.perf_counter()
            square_of_whole(whole, image_size)
            resized = time.perf_counter()
        except UnreadableError as error:
            raise UserError(
                f"{pictures.name(index)}: cannot be read as an image ({error}); repair or remove it, or measure what "
                "nofe pack --skip-unreadable makes of the data"
            ) from error
        seconds["decode"] += decoded - began
        seconds["resize"] += resized - decoded
    return {name: count / max(spent, 1e-9) for name, spent in seconds.items()}


def _timers(
    pictures: Pictures, image_size: int, crop: int, batch: int, pool: Workers, runtime: Runtime
) -> dict[str, Callable[[], int]]:
    """Each does its step to some images and says how many."""
    out = np.empty((len(pictures), 3, image_size, image_size), dtype=np.uint8)
    stored = StoredImages(pictures, image_size, pool)
    mean = np.zeros((3, image_size, image_size), dtype=np.float32)
    augmentation = Augmentation(crop, mirror=True)
    host = torch.zeros(batch, 3, image_size, image_size, dtype=torch.uint8, pin_memory=runtime.device.type == "cuda")
    place = torch.empty_like(host, device=runtime.device)
    resident = ImageSet(np.zeros(tuple(host.shape), dtype=np.uint8), np.zeros(batch, dtype=np.int64))
    on_place = Batches(DeviceImages(resident, mean, runtime.device), augmentation, batch=batch, seed=0, stage="bench")
    on_place.begin(0)
    streamed = on_device(stored, mean, runtime.device)

    def read() -> int:
        return sum(len(_read(pictures, i)) > 0 for i in range(len(pictures)))

    def workers() -> int:
        stored.read_into(np.arange(len(pictures)), out).wait()
        return len(pictures)

    def copy() -> int:
        for _ in range(10):
            place.copy_(host, non_blocking=True)
        return 10 * batch

    def augment() -> int:
        for _ in range(10):
            on_place.rewind()
            on_place.next()
        return 10 * batch

    def whole() -> int:
        batches = batches_over(streamed, augmentation, batch=batch, seed=0, stage="bench")
        batches.begin(0)
        for _ in range(batches.steps_per_epoch):
            batches.feed()
            batches.next()
        return batches.steps_per_epoch * batch

    each = (read, workers, copy, augment, whole)
    return {step.__name__: step for step in each}


def _trainings(
    architecture: Architecture, stored: StoredImages, classes: int, experts: int, batch: int, runtime: Runtime
) -> dict[str, Callable[[], int]]:
    """A network of experts, trained on one batch that is there, and on all images as they come."""
    size, crop = architecture.image_size, architecture.input_size
    mean = np.zeros((3, size, size), dtype=np.float32)
    recipe = recipe_of(architecture, batch)
    there = ImageSet(np.zeros((batch, 3, size, size), dtype=np.uint8), np.zeros(batch, dtype=np.int64))

    def ready(images: DeviceImages) -> Callable[[], int]:
        torch.manual_seed(0)
        network = plant_at_random(architecture, classes, experts)
        make_fast(network, (batch, 3, crop, crop), runtime)
        state = start_training("bench", network, recipe, 0, runtime)
        batches = batches_of(state, images, runtime)
        objective = Objective(torch.arange(classes, device=runtime.device))

        def epoch() -> int:
            train_epoch(state, batches, objective, runtime, Silent())
            return batches.steps_per_epoch * batch

        return epoch

    one = ready(DeviceImages(there, mean, runtime.device))

    def step() -> int:
        return sum(one() for _ in range(20))

    return {"step": step, "train": ready(on_device(stored, mean, runtime.device))}


def _read(pictures: Pictures, index: int) -> bytes:
    source = pictures.source(index)
    return source.read() if isinstance(source, Stored) else source


def _encoded_bytes(pictures: Pictures) -> int:
    return sum(len(_read(pictures, i)) for i in range(len(pictures)))


def _images_per_second(run: Callable[[], int], runtime: Runtime) -> float:
    runtime.synchronize()
    began = time.perf_counter()
    count = run()
    runtime.synchronize()
    return count / max(time.perf_counter() - began, 1e-9)
