"""What stands in for a run when something is timed: noise, and a recipe that leaves the weights about as they are."""

from collections.abc import Callable

import numpy as np

from nofe.architectures import Architecture
from nofe.architectures.caffe import counting_steps_together
from nofe.data.batches import Augmentation, Batches, DeviceImages, pixel_mean
from nofe.data.dataset import ImageSet
from nofe.training.launch import launcher
from nofe.training.loop import Objective, TrainState, training_step
from nofe.training.recipe import Recipe
from nofe.training.runtime import Runtime


def recipe_of(architecture: Architecture, batch: int) -> Recipe:
    """So low a rate that after many steps the losses are still those of a beginning."""
    augmentation = Augmentation(crop=architecture.input_size, mirror=True)
    return Recipe(epochs=1, batch=batch, rate=1e-6, weight_decay=5e-4, augmentation=augmentation)


def noise(architecture: Architecture, classes: int, images: int, runtime: Runtime) -> DeviceImages:
    rng = np.random.default_rng(0)
    size = architecture.image_size
    pixels = rng.integers(0, 256, size=(images, 3, size, size), dtype=np.uint8)
    labelled = ImageSet(pixels, rng.integers(0, classes, size=images))
    return DeviceImages(labelled, pixel_mean(labelled), runtime.device)


def first_batches(images: DeviceImages, recipe: Recipe) -> Batches:
    batches = Batches(images, recipe.augmentation, batch=recipe.batch, seed=0, stage="bench")
    batches.begin(0)
    return batches


def same_step(state: TrainState, batches: Batches, objective: Objective, runtime: Runtime) -> Callable[[], None]:
    """A training step on the same batch each time, launched as those of a training are."""
    state.model.train()
    one_step = training_step(state, batches, objective, runtime)

    def step() -> None:
        batches.rewind()
        with counting_steps_together(state.model):
            one_step()

    return launcher(step, runtime)
