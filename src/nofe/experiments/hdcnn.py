"""HD-CNN on the paper's NIN, trained with the pieces and on the data of the network of experts it is compared with.

    images, some held out -> a network whose confusion gives the coarse categories
    all training images   -> building block network, or one that a run has trained
                          -> a fine component for each coarse category, on the images of its classes
                          -> all of it, jointly

The paper quotes HD-CNN's own figures (67.38 %, 9.2M parameters) beside 67.96 % and 4.7M of the network of experts. Here
both are trained alike: the same NIN, crops, device and evaluation. Layers (shared up to the first pooling), rates and
the share held out are those of HD-CNN's authors; their 25,000 steps of each fine component and 20,000 of fine-tuning
are cut to what a network of experts with its base takes, and the network for the confusion has a fifth of its epochs.
"""

import json
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from nofe import config as configuration
from nofe import runs
from nofe.architectures import Architecture, Classifier, parameter_count
from nofe.architectures.nin import NIN_C100
from nofe.checks import has_same_images
from nofe.classifier import train_by, train_classifier
from nofe.data import Dataset
from nofe.data.batches import Augmentation, pixel_mean
from nofe.data.stream import on_device
from nofe.errors import UserError
from nofe.evaluation import accuracy, count_confusion, mean_probabilities, predict
from nofe.experiments.hdcnn_network import (
    HDCNN,
    CoarseCategories,
    Joint,
    JointObjective,
    cut,
    fine_component,
    overlapping_categories,
)
from nofe.recipes import NIN
from nofe.runs import Run, open_run
from nofe.specialties import spectral
from nofe.streams import seed_for, stream
from nofe.training.journal import Journal
from nofe.training.loop import Objective
from nofe.training.progress import Progress, Silent, closing
from nofe.training.recipe import Recipe
from nofe.training.runtime import Runtime, environment, make_runtime, stopping_on_signals
from nofe.training.weights import load_weights, restored, write_weights
from nofe.training.workbench import Workbench

CATEGORIES = "coarse-categories.json"
BUILDING_BLOCK = "building-block.safetensors"
NETWORK = "hdcnn.safetensors"


def _recipe(epochs: int, rate: float, drops: tuple[float, ...], batch: int = 128) -> Recipe:
    return Recipe(
        epochs=epochs,
        drops=drops,
        batch=batch,
        rate=rate,
        weight_decay=1e-3,
        augmentation=Augmentation(26, mirror=True),
    )


def _nin_base() -> Recipe:
    assert NIN.base is not None
    return NIN.base


@dataclass(frozen=True, kw_only=True)
class HDCNNConfig:
    """Everything but the data and the seed."""

    coarse_categories: int = 9  # K
    gamma: float = 5.0  # a class joins the categories that are likelier than 1 / (gamma K)
    consistency: float = 20.0  # lambda
    held_out: float = 0.2  # of the training images, for the confusion
    shared_until: str = "drop1"  # the last shared layer; conv1 to pool1 and its dropout in NIN
    confusion: Recipe = field(default_factory=lambda: _recipe(66, 0.01, (282 / 333, 295 / 333)))
    building_block: Recipe = field(default_factory=_nin_base)
    fine: Recipe = field(default_factory=lambda: _recipe(20, 0.01, (8 / 25, 15 / 25)))  # epochs of its own images
    joint: Recipe = field(default_factory=lambda: _recipe(40, 0.001, (0.5,), batch=256))

    def __post_init__(self) -> None:
        if self.coarse_categories < 2:
            raise UserError(f"coarse_categories={self.coarse_categories}: out of range; use 2 or more")
        if self.gamma <= 0 or self.consistency < 0:
            raise UserError("hd-cnn: gamma must be above 0, and consistency 0 or more")
        if not 0 < self.held_out < 1:
            raise UserError(f"held_out={self.held_out}: out of range; use a fraction between 0 and 1")


def train_hdcnn(
    config: HDCNNConfig,
    dataset: Dataset,
    out: Path,
    *,
    architecture: Architecture = NIN_C100,
    seed: int = 0,
    resume: bool = False,
    runtime: Runtime | None = None,
    progress: Progress | None = None,
    run_of_base: Path | None = None,
) -> dict[str, Any]:
    """Train an HD-CNN in the folder `out`; returns its summary. A finished stage is not run again.

    The building block network may be the base, by the paper's recipe, of a run on the same images.
    """
    runtime = runtime or make_runtime()
    progress = progress or Silent()
    _require_fitting(config, architecture, dataset)
    described = {
        "method": "hd-cnn",
        "architecture": architecture.name,
        "data": {"name": dataset.name, "fingerprint": dataset.fingerprint()},
        "seed": seed,
        "hdcnn": asdict(config),
    }
    with open_run(out, resume=resume, check=lambda run: _require_same(described, run)) as run:
        if run.has(runs.SUMMARY) and not run.damaged():
            return dict(run.read_json(runs.SUMMARY))
        if not run.has(runs.CONFIG):
            run.discard_all()  # what an earlier configuration may have left here
            run.write_json(runs.ENVIRONMENT, environment(runtime, seed))
            run.write_json(runs.CONFIG, described)
        with stopping_on_signals(runtime), closing(progress):
            mean = pixel_mean(dataset.train)
            train, test = (on_device(part, mean, runtime.device) for part in (dataset.train, dataset.test))
            journal = Journal(run, runtime, progress)
            task = Task(
                config=config,
                architecture=architecture,
                dataset=dataset,
                train=train,
                test=test,
                seed=seed,
                runtime=runtime,
                journal=journal,
            )
            categories = find_categories(task)
            building_block = train_building_block(task, run_of_base)
            with runtime.compiling(False):  # few steps, of sizes that no other component or seed has
                network = train_fine_components(task, building_block, categories)
                fine_tune(task, network, categories)
                return summarise(task, network, categories)


def is_hdcnn(out: Path) -> bool:
    return Run(out).has(NETWORK)


def open_hdcnn(out: Path | str, architecture: Architecture = NIN_C100) -> HDCNN:
    """The trained network of a finished folder, in evaluation mode, on the CPU; `run_as_one` makes it faster."""
    run = Run(Path(out))
    categories = CoarseCategories.from_json(run.read_json(CATEGORIES))
    building_block = architecture.classifier(categories.classes)
    network = assemble(building_block, categories, run.read_json(runs.CONFIG)["hdcnn"]["shared_until"])
    load_weights(network, run, NETWORK)
    return network.eval()


@dataclass(frozen=True, kw_only=True)
class Task(Workbench):
    """What every stage needs."""

    config: HDCNNConfig
    architecture: Architecture
    dataset: Dataset

    def new_classifier(self, what: str) -> Classifier:
        torch.manual_seed(seed_for(self.seed, what, "weights"))
        return self.architecture.classifier(self.dataset.classes)


def find_categories(task: Task) -> CoarseCategories:
    """Spectral groups of the confusion on held-out training images, extended by likely classes."""
    config, runtime, classes = task.config, task.runtime, task.dataset.classes
    if task.run.has(CATEGORIES):
        return CoarseCategories.from_json(task.run.read_json(CATEGORIES))
    task.run.discard(*_files_of_components(config))
    split = task.dataset.hold_out(config.held_out, seed_for(task.seed, "hd-cnn", "held-out"))
    mean = task.train.mean.cpu().numpy()  # that of all training images: one scale for every stage
    kept, held_out = (on_device(part, mean, runtime.device) for part in (split.train, split.test))
    network = task.new_classifier("confusion")
    recipe = config.confusion
    train_classifier("confusion", network, recipe, classes, replace(task, train=kept, test=held_out))
    everything = torch.arange(len(held_out), device=runtime.device)
    crop = recipe.augmentation.crop
    confusion = count_confusion(network, held_out, crop, (classes, classes), runtime, everything)
    disjoint = spectral(confusion, config.coarse_categories, stream(task.seed, "hd-cnn", "categories"))
    said = mean_probabilities(network, held_out, crop, classes, runtime)
    categories = overlapping_categories(disjoint, said, config.gamma)
    task.run.write_json(CATEGORIES, categories.to_json(task.dataset.class_names))
    return categories


def train_building_block(task: Task, run_of_base: Path | None = None) -> Classifier:
    """NIN over all classes, on all training images: it becomes the coarse component, and the start of the fine ones."""
    network = task.new_classifier("building-block")
    if restored(network, task.run, BUILDING_BLOCK, task.runtime.device):
        return network
    task.run.discard(*_files_of_components(task.config))
    recipe, classes = task.config.building_block, task.dataset.classes
    if run_of_base is not None:
        _take_base(task, network, Run(run_of_base))
    else:
        train_classifier("building-block", network, recipe, classes, task)
    write_weights(network, task.run, BUILDING_BLOCK)
    return network


def _take_base(task: Task, network: Classifier, donor: Run) -> None:
    """Its weights, and what was written down of its epochs."""
    trained = configuration.from_json(donor.read_config())
    if not (trained.base.paper == task.config.building_block and trained.seed == task.seed):
        raise UserError(f"{donor.path}: its base has another recipe or seed; name a run with those of the HD-CNN")
    if not has_same_images(task.dataset, donor):
        raise UserError(f"{donor.path}: was trained on other images; name a run on those of the HD-CNN")
    load_weights(network, donor, runs.PAPER_BASE)
    task.run.forget_metrics("building-block", after_step=-1)
    for line in donor.metrics():
        if line["stage"] == "base-paper":
            task.run.append_metrics(line | {"stage": "building-block"})


def assemble(building_block: Classifier, categories: CoarseCategories, shared_until: str) -> HDCNN:
    """Every component as the building block network has it."""
    shared, rear = cut(building_block, shared_until)
    fine = [fine_component(rear, categories.classes_of(k)) for k in range(categories.count)]
    return HDCNN(shared, rear, fine, categories)


def train_fine_components(task: Task, building_block: Classifier, categories: CoarseCategories) -> HDCNN:
    """Each on the images of its own classes, over shared layers that stay as they are."""
    network = assemble(building_block, categories, task.config.shared_until)
    if task.run.has(NETWORK):
        return network  # what follows is done
    network.shared.requires_grad_(False)
    for k, component in enumerate(network.fine):  # type: ignore[arg-type]
        if not restored(component, task.run, _fine_file(k), task.runtime.device):
            task.run.discard(NETWORK, runs.SUMMARY)
            if categories.sizes[k] > 1:  # of one class it has nothing to learn
                train_fine_component(task, f"fine-{k}", network.shared, component, categories.classes_of(k))
            write_weights(component, task.run, _fine_file(k))
    network.shared.requires_grad_(True)
    return network


def train_fine_component(
    task: Task, stage: str, shared: nn.Module, component: nn.Module, classes: NDArray[np.int64]
) -> None:
    device = task.runtime.device
    wanted = torch.from_numpy(classes).to(device)
    place_of_class = torch.zeros(task.dataset.classes, dtype=torch.int64, device=device)
    place_of_class[wanted] = torch.arange(len(classes), device=device)
    train, test = (images.of_classes(wanted) for images in (task.train, task.test))
    model, recipe = nn.Sequential(shared, component), task.config.fine

    def test_accuracy() -> float | None:
        """None where no test image is of these classes."""
        crop = recipe.augmentation.crop
        return accuracy(model, test, crop, task.runtime, place_of_class) if len(test) else None

    train_by(
        Objective(place_of_class, smoothing=recipe.label_smoothing),
        stage,
        model,
        recipe,
        replace(task, train=train, test=test),
        test_accuracy,
    )


def fine_tune(task: Task, network: HDCNN, categories: CoarseCategories) -> None:
    """All components and the shared layers, by the loss of the averaged prediction."""
    if restored(network, task.run, NETWORK, task.runtime.device):
        return
    task.run.discard(runs.SUMMARY)
    network.run_as_one()
    device, recipe = task.runtime.device, task.config.joint
    shares = torch.from_numpy(categories.shares(task.dataset.train.labels)).float().to(device)
    everything = torch.arange(task.dataset.classes, device=device)
    train_by(
        JointObjective(everything, shares, task.config.consistency, smoothing=recipe.label_smoothing),
        "joint",
        Joint(network),
        recipe,
        task,
        lambda: accuracy(network, task.test, recipe.augmentation.crop, task.runtime),
    )
    network.run_apart()  # as one they are padded to the largest, which would count as parameters
    write_weights(network, task.run, NETWORK)


def summarise(task: Task, network: HDCNN, categories: CoarseCategories) -> dict[str, Any]:
    """Figures of the last epoch; `seconds` are those of each stage, evaluation included."""
    predictions = predict(network, task.test, task.config.joint.augmentation.crop, task.runtime)
    seconds: dict[str, float] = {}
    last: dict[str, dict[str, Any]] = {}
    for line in task.run.metrics():
        stage = "fine" if line["stage"].startswith("fine-") else line["stage"]
        seconds[stage] = seconds.get(stage, 0.0) + line["seconds"]
        last[stage] = line
    summary = {
        "top_1": predictions.top(1),
        "top_5": predictions.top(5),
        "parameters": parameter_count(network),
        "coarse_categories": categories.sizes.tolist(),
        "building_block": {
            "top_1": last["building-block"]["test_accuracy"],
            "epochs": last["building-block"]["epoch"],
        },
        "seconds": {stage: round(taken, 1) for stage, taken in seconds.items()},
        "total_seconds": round(sum(seconds.values()), 1),
        "config": task.run.read_json(runs.CONFIG),
    }
    task.run.write_json(runs.SUMMARY, summary)
    return summary


def _fine_file(category: int) -> str:
    return f"fine-{category}.safetensors"


def _files_of_components(config: HDCNNConfig) -> list[str]:
    """Files that are out of date once the coarse categories or the building block network are made again."""
    return [*(_fine_file(k) for k in range(config.coarse_categories)), NETWORK, runs.SUMMARY]


def _require_fitting(config: HDCNNConfig, architecture: Architecture, dataset: Dataset) -> None:
    """Before anything is trained."""
    if config.coarse_categories > dataset.classes:
        raise UserError(
            f"coarse_categories={config.coarse_categories}: more than the {dataset.classes} classes of "
            f"{dataset.name}; use 2 to {dataset.classes}"
        )
    cut(architecture.classifier(2), config.shared_until)


def _require_same(described: dict[str, Any], run: Run) -> None:
    earlier, now = run.read_config(), json.loads(json.dumps(described))
    if "hdcnn" in earlier:  # read and written again: a field that is newer than the run has its default
        known = configuration.structured(earlier["hdcnn"], HDCNNConfig)
        earlier["hdcnn"] = json.loads(json.dumps(asdict(known)))
    differing = [name for name in sorted(earlier.keys() | now.keys()) if earlier.get(name) != now.get(name)]
    if differing:
        raise UserError(
            f"{run.path}: was started with another {' and '.join(differing)}; "
            "resume it with its own, or name another folder"
        )
