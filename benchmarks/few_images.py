"""What Caffe's velocity, which outlives a drop of the rate by some ten steps, costs where images are few.

    python benchmarks/few_images.py

trains the base of two networks by their default recipes, with PyTorch's SGD and with Caffe's, on 360 images of ten
glyphs that look alike, and judges it by 240 others, all of them training images of the built-in data. The accuracies
are written to results/<device>/optimizer-by-few-images.json.
"""

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

import nofe
from nofe.files import slug
from nofe.runs import ENVIRONMENT, Run, write_atomically

QUESTION = (
    "what Caffe's velocity costs where ten steps are epochs (docs/decisions/0004-torch-sgd-with-caffe-velocity.md)"
)
DATA = "glyphs, ten classes: a family of look-alikes and four of the next; 36 training images to train on, 24 to test"
RECIPE = "the base, by the default recipe of the network but for the optimizer and the number of epochs"
CLASSES, TRAINED_ON = 10, 36
OPTIMIZERS = ("sgd", "caffe-sgd")
TRAININGS = (("small", 7), ("small", 60), ("timm:resnet10t@32", 12), ("timm:resnet10t@32", 60))


def few_images() -> nofe.Dataset:
    glyphs = nofe.load_dataset("glyphs")
    train, test = [], []
    for label in range(CLASSES):
        of_class = np.flatnonzero(glyphs.train.labels == label)
        train.extend(of_class[:TRAINED_ON])
        test.extend(of_class[TRAINED_ON:])
    parts = (nofe.ImageSet(glyphs.train.images[part], glyphs.train.labels[part]) for part in (train, test))
    return nofe.Dataset("few glyphs", glyphs.class_names[:CLASSES], *parts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--results", type=Path, default=Path("results"))
    chosen = parser.parse_args()
    dataset, runs = few_images(), []
    environment: dict[str, Any] = {}
    for architecture, epochs in TRAININGS:
        for optimizer in OPTIMIZERS:
            for seed in range(chosen.seeds):
                with tempfile.TemporaryDirectory() as folder:
                    settings = {"until": "base", "experts.optimizer": optimizer, "experts.epochs": epochs}
                    out = Path(folder) / "run"
                    summary = nofe.train(out, dataset, architecture, seed=seed, settings=settings, quiet=True)
                    environment = Run(out).read_json(ENVIRONMENT)
                accuracy = summary["networks"]["base"]["accuracy"]
                run = {"architecture": architecture, "epochs": epochs, "optimizer": optimizer, "seed": seed}
                runs.append(run | {"accuracy": accuracy})
            ended = [each["accuracy"] for each in runs[-chosen.seeds :]]
            print(f"{architecture}, {epochs} epochs, {optimizer}: {np.mean(ended):.1%} ± {np.std(ended, ddof=1):.1%}")
    for name in ("data", "files", "seed"):
        environment.pop(name)
    path = chosen.results / slug(environment["device"]) / "optimizer-by-few-images.json"
    measured = {"question": QUESTION, "data": DATA, "recipe": RECIPE, "environment": environment, "runs": runs}
    write_atomically(path, (json.dumps(measured, indent=1) + "\n").encode())
    print(path)


if __name__ == "__main__":
    main()
