"""The images of a run: the same on every rank, and the same again when the run goes on or is finished."""

import math
from collections.abc import Callable
from pathlib import Path

import torch

from nofe import runs
from nofe.architectures import architecture_named
from nofe.config import RunConfig
from nofe.data import Dataset
from nofe.data.stored import Findings, leave_out, look_through, open_dataset
from nofe.errors import UserError
from nofe.runs import Run
from nofe.training.ranks import Ranks
from nofe.training.runtime import Runtime


def images_of_run(config: RunConfig, run: Run, runtime: Runtime, given: Dataset | None = None) -> Dataset:
    """Those that are given, or those that the configuration names."""
    ranks, streamed, memory = runtime.ranks, was_streamed(run), least_memory(runtime)
    listed = read_by_every_rank(lambda: given or read_dataset(config, runtime, streamed, memory), ranks)
    readable = without_unreadable(config, listed, run, ranks)
    return ranks.each(lambda: held_out(config, readable))


def images_of_finished_run(config: RunConfig, run: Run, runtime: Runtime) -> Dataset:
    """Without the images that were unreadable when it began; the others are not looked at again."""
    listed = read_dataset(config, runtime, was_streamed(run))
    return held_out(config, leave_out(listed, left_out_earlier(run) or Findings({})))


def least_memory(runtime: Runtime) -> float:
    """For images, of all ranks: they keep them in memory or on disk alike."""
    own = runtime.memory_for_images()
    return float(runtime.ranks.gather(torch.tensor(math.inf if own is None else own, dtype=torch.float64)).min())


def read_dataset(
    config: RunConfig, runtime: Runtime | None = None, streamed: bool | None = None, memory: float | None = None
) -> Dataset:
    """In memory, or on disk where the images take more; `streamed` is how the run had them when it began."""
    if memory is None and runtime:
        memory = runtime.memory_for_images()
    return open_dataset(
        config.data.name,
        root=Path(config.data.root),
        image_size=architecture_named(config.architecture).image_size,
        seed=config.data.seed,
        skip_unreadable=config.data.skip_unreadable,
        test=config.data.test,
        stream=streamed if config.data.stream is None else config.data.stream,
        memory=memory,
        workers=runtime.workers if runtime else 0,
    )


def was_streamed(run: Run) -> bool | None:
    """None before the run has begun."""
    if not (run.has(runs.CONFIG) and run.has(runs.ENVIRONMENT)):
        return None
    return bool(run.read_json(runs.ENVIRONMENT)["data"].get("streamed", False))


def without_unreadable(config: RunConfig, dataset: Dataset, run: Run, ranks: Ranks) -> Dataset:
    """Before a run begins, rank 0 looks at each image on disk; a resumed run leaves out what was unreadable then."""
    found = left_out_earlier(run) or ranks.first(
        lambda: look_through(dataset, skip_unreadable=config.data.skip_unreadable)
    )
    return leave_out(dataset, found)


def left_out_earlier(run: Run) -> Findings | None:
    """None before the run has begun."""
    if was_streamed(run) is None:
        return None
    return Findings(run.read_json(runs.ENVIRONMENT)["data"].get("unreadable", {}))


def held_out(config: RunConfig, dataset: Dataset) -> Dataset:
    """With data.hold_out the test images are put aside, and a part of the training images stands in for them."""
    return dataset.hold_out(config.data.hold_out, config.data.seed) if config.data.hold_out else dataset


def read_by_every_rank(read: Callable[[], Dataset], ranks: Ranks) -> Dataset:
    """Nodes may share no disk, so every rank reads for itself; all must find the same images."""
    dataset = ranks.each(read)
    of_first = ranks.first(dataset.fingerprint)

    def require_the_same() -> None:
        if dataset.fingerprint() != of_first:
            raise UserError(f"{dataset.name}: other images than on rank 0; put the same data on every node")

    ranks.each(require_the_same)
    return dataset
