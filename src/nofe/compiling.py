"""What of a run is compiled and when, and by which kernels its experts run."""

from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace

import torch

from nofe import runs
from nofe.ahead import CompilingAhead
from nofe.data.stored import StoredImages
from nofe.experts.network import NetworkOfExperts
from nofe.stages import base_recipes
from nofe.task import Task
from nofe.training.recipe import training_steps
from nofe.training.runtime import STEPS_WORTH_COMPILING

# Fewer steps of the experts do not repay the seconds it takes to measure which kernels are fastest. Besides, so short a
# training, such as the demo, should give the same figures every time.
STEPS_WORTH_MEASURING = 1_000


def experts_compiled_ahead(task: Task) -> AbstractContextManager[CompilingAhead | None]:
    """Compile the experts while other stages train, if the runtime wants it and they are still to be trained."""
    wanted = task.config.until == "experts" and not task.run.has(runs.NETWORK)
    if not (task.runtime.compile_ahead and wanted) or isinstance(task.dataset.train, StoredImages):
        return nullcontext()
    images = len(task.train), len(task.test)
    return CompilingAhead(task.config, task.classes, images, task.runtime)


def is_generalist_compiled(task: Task) -> bool:
    """It is, unless the stage is short and no base has had the same parts compiled."""
    runtime = task.runtime
    if not runtime.compile_ahead or base_recipes(task.config):
        return bool(runtime.compile)
    return training_steps(task.config.generalist, len(task.train)) >= STEPS_WORTH_COMPILING


def choose_kernels(task: Task, network: NetworkOfExperts) -> None:
    """Other kernels round differently, so a resumed run uses those that it began with."""
    recipe, device = task.config.experts, task.runtime.device
    network.to(device, memory_format=torch.channels_last)  # type: ignore[call-overload]
    noted = task.run.read_json(runs.KERNELS) if task.run.has(runs.KERNELS) else {"device": None, "choices": {}}
    known = noted["choices"] if noted["device"] == device.type else {}
    runtime, ranks = task.runtime, task.runtime.ranks
    is_short = training_steps(recipe, len(task.train)) < STEPS_WORTH_MEASURING
    if runtime.kernels == "measure" and is_short and not known:
        runtime = replace(runtime, kernels="together")
    batch = min(recipe.batch, len(task.train))
    shape = (batch // ranks.count, 3, recipe.augmentation.crop, recipe.augmentation.crop)
    # All ranks must hold the same parameters: the first one measures.
    chosen = ranks.first(lambda: network.choose_kernels(shape, runtime, training=True, known=known))
    if ranks.rank:
        network.choose_kernels(shape, runtime, training=True, known=chosen, may_measure=False)
    if chosen and chosen != known:
        task.run.write_json(runs.KERNELS, {"device": device.type, "choices": chosen})
