"""A finished run at work: on its test images, and on pictures."""

import csv
import dataclasses
import io
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from nofe.data import ImageSet
from nofe.data.folder import find_images, read_readable_images
from nofe.errors import UserError
from nofe.evaluation import Predictions, by_specialty, predictions_of
from nofe.files import require_place_for
from nofe.frozen import frozen
from nofe.judging import Place
from nofe.loading import open_finished
from nofe.report.against import base_of, class_figures, mean_over_classes, pair_figures, shares_of_mistakes
from nofe.report.record import recognised_alone
from nofe.runs import write_atomically
from nofe.specialties import Specialties, class_confusion
from nofe.stages import crop_of_stage
from nofe.training.runtime import Runtime

FILES_AT_ONCE = 64


def evaluate_run(
    path: Path,
    runtime: Runtime,
    place: Place | None = None,
    crops: int = 1,
    precision: str | None = None,
    answers: Path | None = None,
) -> dict[str, Any]:
    """Top-1 and top-5 of every network that tells classes apart, and where its mistakes go: by class and by pair.

    On the run's own test images, or on those at another place; by one view of an image, or by ten; in the run's
    precision, or another. What every network says of each image is written to the file `answers`, if one is named.
    """
    if answers is not None:
        require_place_for(answers)
    finished = open_finished(path)
    runtime.use_precision(precision or finished.config.precision)
    networks = finished.classifiers()
    if not networks:
        raise UserError(
            f"{path}: has specialties and no classifier; train experts, with another --out and without until"
        )
    judged = finished.to_judge_by(runtime, place or Place())
    test = finished.on_device(judged, runtime)
    predictions = predictions_of(networks, crop_of_stage(finished.config), test, runtime, crops)
    figures = {
        "run": str(path),
        "images": len(test),
        "crops": crops,
        "dataset": judged.name,
        "other_data": not judged.of_the_run,
        "all_images": judged.whole,
        "held_out": judged.of_the_run and finished.config.data.hold_out > 0,
    }
    specialties = None if finished.config.until == "base" else finished.specialties()
    if answers is not None:
        write_atomically(answers, _answers(judged.images, predictions, finished.class_names, specialties))
    return figures | _figures_of(predictions, finished.class_names, specialties)


def _figures_of(
    predictions: Mapping[str, Predictions], class_names: tuple[str, ...], specialties: Specialties | None
) -> dict[str, Any]:
    """By network, and of what the networks confuse by class; with specialties also inside and across them."""
    confusions = {
        stage: class_confusion(each.labels, each.classes[:, 0], len(class_names)) for stage, each in predictions.items()
    }
    figures: dict[str, Any] = {
        stage: {"top_1": each.top(1), "top_5": each.top(5), "mean_over_classes": mean_over_classes(confusions[stage])}
        for stage, each in predictions.items()
    }
    if specialties is not None:
        for stage, confusion in confusions.items():
            figures[stage] |= shares_of_mistakes(confusion, specialties)
        if "experts" in predictions:
            figures["specialties"] = _as_dictionaries(by_specialty(predictions["experts"], specialties))
            if base := base_of(predictions):
                first = {stage: predictions[stage].classes[:, 0] for stage in (base, "experts")}
                alone = recognised_alone(predictions[base].labels, first[base], first["experts"])
                figures["alone"] = dataclasses.asdict(alone) | {"by_chance": alone.by_chance}
        figures["pairs"] = _as_dictionaries(pair_figures(confusions, specialties, class_names))
    figures["classes"] = _as_dictionaries(class_figures(confusions, specialties, class_names))
    return figures


def _as_dictionaries(values: Iterable[Any]) -> list[dict[str, Any]]:
    return [dataclasses.asdict(each) for each in values]


def _answers(
    images: ImageSet,
    predictions: Mapping[str, Predictions],
    class_names: tuple[str, ...],
    specialties: Specialties | None,
) -> bytes:
    """As CSV: a line for each image, with its name, its class and the expert of this, and each network's answer."""
    table = io.StringIO(newline="")
    lines = csv.writer(table, lineterminator="\n")
    networks = [name for stage in predictions for name in (stage, f"{stage} probability")]
    lines.writerow(["image", "class", *([] if specialties is None else ["expert"]), *networks])
    for i, label in enumerate(images.labels.tolist()):
        expert = [] if specialties is None else [int(specialties.specialty_of_class[label])]
        said = [
            value
            for each in predictions.values()
            for value in (class_names[each.classes[i, 0]], f"{each.probabilities[i, 0]:.4f}")
        ]
        lines.writerow([images.name(i), class_names[label], *expert, *said])
    return table.getvalue().encode("utf-8", "surrogateescape")


def predict_files(
    path: Path, images: list[Path], top: int, runtime: Runtime, precision: str | None = None
) -> Iterator[dict[str, Any]]:
    """The `top` most probable classes of each picture, each with the expert that owns it, as batches are done.

    A file that cannot be read is answered with its `error`. Without `precision` it is the run's.
    """
    finished = open_finished(path)
    files = find_images(images)
    runtime.use_precision(precision or finished.config.precision)
    network = finished.network().to(runtime.device)
    network.fuse()
    specialties = network.specialties
    ready = frozen(network, runtime, len(files), finished.crop)
    height = finished.mean.shape[-1]
    for start in range(0, len(files), FILES_AT_ONCE):
        some = files[start : start + FILES_AT_ONCE]
        pixels, errors = read_readable_images(some, height)
        readable = [index for index in range(len(some)) if index not in errors]
        named = {}
        if readable:
            bytes_ = torch.from_numpy(pixels[readable]).to(runtime.device)  # (N, 3, H, W)
            with torch.inference_mode():
                logits = ready(finished.preprocess(bytes_))  # (N, C)
            named = dict(zip(readable, _most_probable(logits, top, finished.class_names, specialties), strict=True))
        for index, file in enumerate(some):
            answer = {"error": errors[index]} if index in errors else {"top": named[index]}
            yield {"file": str(file)} | answer


def _most_probable(
    logits: Tensor, top: int, class_names: tuple[str, ...], specialties: Specialties
) -> list[list[dict[str, Any]]]:
    """For each row of logits (N, C): the first classes with their probabilities and experts."""
    best = logits.softmax(1).topk(min(top, logits.shape[1]))
    return [
        [
            {"class": class_names[c], "probability": p, "expert": int(specialties.specialty_of_class[c])}
            for c, p in zip(classes, probabilities, strict=True)
        ]
        for classes, probabilities in zip(best.indices.tolist(), best.values.tolist(), strict=True)
    ]
