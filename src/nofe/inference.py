"""A finished run at work: on its test images, and on pictures."""

import dataclasses
from pathlib import Path
from typing import Any

import torch

from nofe.data.folder import find_images, read_images
from nofe.errors import UserError
from nofe.evaluation import by_specialty, predictions_of
from nofe.frozen import frozen
from nofe.judging import Place
from nofe.loading import open_finished
from nofe.stages import crop_of_stage
from nofe.training.runtime import Runtime

FILES_AT_ONCE = 64


def evaluate_run(path: Path, runtime: Runtime, place: Place | None = None, crops: int = 1) -> dict[str, Any]:
    """Top-1 and top-5 of every network that tells classes apart, and where the experts' mistakes go.

    On the run's own test images, or on those at another place; by one view of an image, or by ten.
    """
    finished = open_finished(path)
    runtime.use_precision(finished.config.precision)
    networks = finished.classifiers()
    if not networks:
        raise UserError(
            f"{path}: has specialties and no classifier; train experts, with another --out and without until"
        )
    judged = finished.to_judge_by(runtime, place or Place())
    test = finished.on_device(judged, runtime)
    predictions = predictions_of(networks, crop_of_stage(finished.config), test, runtime, crops)
    figures: dict[str, Any] = {"run": str(path), "images": len(test), "crops": crops, "dataset": judged.name}
    figures |= {"other_data": not judged.of_the_run, "all_images": judged.whole}
    figures |= {stage: {"top_1": each.top(1), "top_5": each.top(5)} for stage, each in predictions.items()}
    if "experts" in predictions:
        by_expert = by_specialty(predictions["experts"], finished.specialties())
        for kind in ("confused_inside", "confused_across"):
            total = sum(getattr(figure, kind) * figure.images for figure in by_expert)
            figures["experts"][kind] = total / len(test)
        figures["specialties"] = [dataclasses.asdict(figure) for figure in by_expert]
    return figures


def predict_files(path: Path, images: list[Path], top: int, runtime: Runtime) -> list[dict[str, Any]]:
    """The `top` most probable classes of each picture, each with the expert that owns it."""
    finished = open_finished(path)
    runtime.use_precision(finished.config.precision)
    network = finished.network().to(runtime.device)
    network.fuse()
    files = find_images(images)
    ready = frozen(network, runtime, len(files), finished.crop)
    height = finished.mean.shape[-1]
    answers = []
    for start in range(0, len(files), FILES_AT_ONCE):
        some = files[start : start + FILES_AT_ONCE]
        pixels = torch.from_numpy(read_images(some, height)).to(runtime.device)  # (N, 3, H, W)
        with torch.inference_mode():
            logits = ready(finished.preprocess(pixels))  # (N, C)
        best = logits.softmax(1).topk(min(top, logits.shape[1]))
        for file, classes, probabilities in zip(some, best.indices.tolist(), best.values.tolist(), strict=True):
            named = [
                {
                    "class": finished.class_names[c],
                    "probability": probability,
                    "expert": int(network.specialties.specialty_of_class[c]),
                }
                for c, probability in zip(classes, probabilities, strict=True)
            ]
            answers.append({"file": str(file), "top": named})
    return answers
