"""What every stage of a run needs, and how it is made ready."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from nofe import config as configuration
from nofe import runs
from nofe.architectures import Architecture
from nofe.checks import files_of, require_fitting, require_same_files, require_same_images
from nofe.config import RunConfig, architecture_of
from nofe.data import Dataset
from nofe.data.batches import pixel_mean
from nofe.data.stored import StoredImages
from nofe.data.stream import on_device
from nofe.runs import Run
from nofe.stages import recipe_of_stage
from nofe.streams import seed_for
from nofe.training.journal import Journal
from nofe.training.progress import Progress
from nofe.training.recipe import training_steps
from nofe.training.runtime import Runtime, environment
from nofe.training.workbench import Workbench


@dataclass(frozen=True, kw_only=True)
class Task(Workbench):
    """What every stage of a run needs."""

    config: RunConfig
    architecture: Architecture
    dataset: Dataset

    @property
    def classes(self) -> int:
        return self.dataset.classes

    def seeded(self, what: str) -> None:
        """Initial weights depend on the seed and on what they are for, not on what ran before."""
        torch.manual_seed(seed_for(self.seed, what, "weights"))


def prepare(config: RunConfig, dataset: Dataset, run: Run, runtime: Runtime, progress: Progress) -> Task:
    """Write down what is about to run, or check that it is what was begun, and bring the images to the device."""
    require_fitting(config, dataset, run, runtime.ranks, sync_batch_norm=runtime.sync_batch_norm)
    runtime.decide_on_compiling(longest_stage(config, len(dataset.train.labels)))
    if begun := run.has(runs.CONFIG):
        require_same_images(dataset, run)
        require_same_files(config, run)
        config = configuration.from_json(run.read_config())  # which has the first place of data that was moved
        then = run.read_json(runs.ENVIRONMENT)
        torch.set_num_threads(then.get("threads", torch.get_num_threads()))  # another number would round differently
    else:
        run.discard_all()  # what an earlier configuration may have left here
        found = {"data": _described(dataset), "files": files_of(config)}
        run.write_json(runs.ENVIRONMENT, environment(runtime, config.seed) | found)
    if not (begun and run.has(runs.INPUT)):
        mean = runtime.ranks.first(lambda: pixel_mean(dataset.train))
        run.write_arrays(runs.INPUT, mean=mean, class_names=np.array(dataset.class_names))
    if not begun:
        run.write_json(runs.CONFIG, configuration.to_json(config))  # last: its presence marks a run that has begun
    mean = run.read_arrays(runs.INPUT)["mean"]
    return Task(
        config=config,
        architecture=architecture_of(config, dataset.classes),
        dataset=dataset,
        train=on_device(dataset.train, mean, runtime.device),
        test=on_device(dataset.test, mean, runtime.device),
        seed=config.seed,
        runtime=runtime,
        journal=Journal(run, runtime, progress),
    )


def _described(dataset: Dataset) -> dict[str, Any]:
    return {
        "dataset": dataset.name,
        "fingerprint": dataset.fingerprint(),
        "images": {"train": len(dataset.train), "test": len(dataset.test)},
        "classes": list(dataset.class_names),
        "streamed": isinstance(dataset.train, StoredImages),
        "unreadable": {part: list(names) for part, names in dataset.left_out.items()},
        "repeated": dataset.repeated(),
    }


def longest_stage(config: RunConfig, images: int) -> int:
    """How many training steps it has."""
    return max(training_steps(recipe, images) for recipe in recipe_of_stage(config).values())
