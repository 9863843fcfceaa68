"""Small data and small runs that several tests share."""

import os
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import numpy as np
import pytest
import torch
from PIL import Image

from nofe.config import RunConfig, with_settings
from nofe.data import Dataset, ImageSet
from nofe.recipes import default_run

# The same examples every time, however long one takes: what fails on a busy machine must fail on every other, too.
hypothesis.settings.register_profile("same", deadline=None, derandomize=True, database=None)
hypothesis.settings.load_profile("same")

torch.manual_seed(0)  # what a module of tests draws while it is imported is the same every time, too

REAL_CIFAR = Path(__file__).parents[2] / "shared" / "cifar100" / "restore.py"


@pytest.hookimpl(optionalhook=True)  # without xdist, too, tests run
def pytest_xdist_auto_num_workers() -> int:
    """More than there are cores: a third of the time many tests wait, for processes they start and for time to pass."""
    return max(1, 3 * len(os.sched_getaffinity(0)) // 2 if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> None:
    """Small networks are faster on one thread, and tests that run side by side do not disturb each other."""
    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _same_numbers() -> None:
    """Whatever ran before in this process: what is drawn does not depend on how tests were shared out."""
    torch.manual_seed(0)


@pytest.fixture(autouse=True, scope="session")
def _kernels_of_these_tests(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Measured once for all tests and the processes they start, and not kept among the user's."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NOFE_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(autouse=True)
def _gpu_where_one_is_needed(request: pytest.FixtureRequest) -> None:
    if request.node.get_closest_marker("gpu") and not torch.cuda.is_available():
        pytest.skip("needs a GPU and CUDA")


def small_dataset(classes: int = 8, per_class: int = 20, size: int = 32, seed: int = 0) -> Dataset:
    """Classes come in look-alike pairs: a pair shares its colour, its members differ in where a bar stands."""
    rng = np.random.default_rng(seed)
    colours = rng.integers(40, 216, size=(classes, 3))

    def split(count: int) -> ImageSet:
        labels = np.tile(np.arange(classes), count)
        images = rng.integers(0, 40, size=(len(labels), 3, size, size)) + colours[labels // 2][:, :, None, None]
        upright = labels % 2 == 0
        images[upright, :, :, size // 2 - 2 : size // 2 + 2] = 255
        images[~upright, :, size // 2 - 2 : size // 2 + 2, :] = 255
        return ImageSet(images.clip(0, 255).astype(np.uint8), labels.astype(np.int64))

    names = tuple(f"class-{index}" for index in range(classes))
    pairs = {"pair": tuple(index // 2 for index in range(classes))}
    return Dataset("small", names, split(per_class), split(per_class // 2), pairs)


def small_run(*settings: str) -> RunConfig:
    """AlexNet-Quick for a few steps."""
    short = ("specialties.count=2", "generalist.epochs=3", "experts.epochs=3", "generalist.confusion_images=80")
    batch = ("generalist.batch=16", "experts.batch=16", "experts.rate=0.0005", "generalist.rate=0.0005")
    return with_settings(default_run("alexnet-quick-c100", "small"), [*short, *batch, *settings])


@pytest.fixture(scope="session")
def dataset() -> Dataset:
    return small_dataset()


@pytest.fixture(scope="session")
def shades(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four shades of grey, a folder each."""
    root = tmp_path_factory.mktemp("data") / "shades"
    rng = np.random.default_rng(0)
    for part, count in (("train", 6), ("val", 3)):
        for shade in range(4):
            folder = root / part / f"shade{shade}"
            folder.mkdir(parents=True)
            for number in range(count):
                pixels = rng.integers(60 * shade, 60 * shade + 40, (32, 32, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(folder / f"{number}.png")
    return root
