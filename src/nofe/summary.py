"""The figures of a run: sizes before it is trained, accuracies after."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import nn

from nofe import config as configuration
from nofe import runs
from nofe.architectures import parameter_count
from nofe.data import Dataset
from nofe.data.groups import group_of_class
from nofe.data.originals import usual_side
from nofe.errors import RunError
from nofe.evaluation import Predictions, by_specialty, predictions_of
from nofe.experts.size import sizes_of
from nofe.report.record import stored_name
from nofe.specialties import Specialties, chance_of_pairs_together, given_groups, pairs_together
from nofe.stages import crop_of_stage, recipe_of_stage
from nofe.task import Task
from nofe.training.recipe import recipe_field


def images_before_training(task: Task) -> dict[str, Any]:
    """The images to train on and to judge by, with their size in the files, in memory and as the network reads it."""
    dataset = task.dataset
    return {
        "dataset": task.config.data.name,
        "classes": dataset.classes,
        "train": len(dataset.train),
        "test": len(dataset.test),
        "held_out": task.config.data.hold_out > 0,
        "stored": dataset.image_size,
        "read": task.config.experts.augmentation.crop,
        "usual": usual_side(task.config.data.name),
        "architecture": task.config.architecture,
        "repeated": task.run.read_json(runs.ENVIRONMENT)["data"].get("repeated") or {},  # of older runs nobody knows
        "larger_batches": {
            f"{recipe_field(stage)}.batch": recipe.batch
            for stage, recipe in recipe_of_stage(task.config).items()
            if recipe.batch > len(dataset.train)
        },
    }


def sizes_before_training(task: Task) -> dict[str, dict[str, int]]:
    """Parameters and multiplications of base and experts, the experts' with specialties of equal size."""
    config = task.config
    experts = config.specialties.count
    if config.specialties.rule == "groups":  # their file may lie where rank 0 is
        groups = task.runtime.ranks.first(lambda: group_of_class(config.specialties.groups, task.dataset))
        experts = len(set(groups.tolist()))
    sizes = sizes_of(task.architecture, task.classes, experts, config.experts.augmentation.crop)
    return {name: dataclasses.asdict(size) for name, size in sizes.items()}


def summarise(task: Task, networks: Mapping[str, nn.Module]) -> dict[str, Any]:
    """Figures of every network after its last epoch, written with what base and experts say of every test image."""
    config = task.config
    lines = task.run.metrics()
    figures = {stage: last_epoch(task, lines, stage, network) for stage, network in networks.items()}
    over_classes = {stage: network for stage, network in networks.items() if stage != "generalist"}
    predictions = predictions_of(over_classes, crop_of_stage(config), task.test, task.runtime)
    for stage, each in predictions.items():
        named = len(np.unique(each.classes[:, 0]))
        figures[stage] |= {"accuracy": each.top(1), "top_5": each.top(5), "classes_named": named}
    summary: dict[str, Any] = {"networks": figures, "config": configuration.to_json(config)}
    if "generalist" in networks:
        specialties = Specialties.from_json(task.run.read_json(runs.SPECIALTIES))
        summary["groups"] = kept_together(task.dataset, specialties)
    if "experts" in networks:
        task.run.write_arrays(runs.PREDICTIONS, **stored_predictions(predictions))
        by_expert = by_specialty(predictions["experts"], specialties)
        summary["specialties"] = [dataclasses.asdict(specialty) for specialty in by_expert]
    task.run.write_json(runs.SUMMARY, summary)
    return summary


def stored_predictions(predictions: Mapping[str, Predictions]) -> dict[str, NDArray[Any]]:
    """What every network says of every test image, beside the labels."""
    stored: dict[str, NDArray[Any]] = {"labels": predictions["experts"].labels}
    for stage, each in predictions.items():
        stored[stored_name(stage, "classes")] = each.classes
        stored[stored_name(stage, "probabilities")] = each.probabilities
    return stored


def last_epoch(task: Task, lines: list[dict[str, Any]], stage: str, network: nn.Module) -> dict[str, Any]:
    epochs = [line for line in lines if line["stage"] == stage and "epoch" in line]
    if not epochs:
        raise RunError(f"{task.run.file(runs.METRICS)}: has no epoch of {stage}; put it back, or start a new run")
    return {
        "accuracy": epochs[-1]["test_accuracy"],
        "parameters": parameter_count(network),
        "epochs": epochs[-1]["epoch"],
        "seconds": round(sum(line["seconds"] for line in epochs), 1),
    }


def kept_together(dataset: Dataset, specialties: Specialties) -> dict[str, dict[str, float]]:
    """For each grouping by people: the share of its pairs of classes that share an expert, and that by chance."""
    chance = chance_of_pairs_together(specialties.sizes)
    return {
        name: {"together": pairs_together(given_groups(ids), specialties), "by_chance": chance}
        for name, ids in dataset.groups.items()
    }
