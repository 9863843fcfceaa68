"""All thousand classes of ImageNet, by their real ids and in its layout, from the folder to ten crops."""

import io
import json
from pathlib import Path

import numpy as np
import pytest
import timm.data
from PIL import Image

from nofe.data.layouts import list_folder
from nofe.data.shards import list_shards
from nofe.runs import Run
from test_cli import answered

LARGEST = [932, 26, 22, 10, 5, 1, 1, 1, 1, 1]  # of WordNet's ten groups


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """photos/train/n01440764/n01440764_0.JPEG: a photo of each class, another under val/, of many shapes."""
    root = tmp_path_factory.mktemp("imagenet") / "photos"
    rng = np.random.default_rng(0)
    for number, name in enumerate(timm.data.ImageNetInfo().label_names()):
        buffer = io.BytesIO()
        pixels = rng.integers(0, 256, (36 + number % 9, 40, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(buffer, "JPEG")
        for place in (f"train/{name}/{name}_{number}", f"val/{name}/ILSVRC2012_val_{number:08}"):
            file = root / f"{place}.JPEG"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(buffer.getvalue())
    return root


def test_from_the_folder_to_ten_crops(photos: Path, tmp_path: Path) -> None:
    answered("pack", f"folder:{photos}", tmp_path / "packed", "--size", "32")
    packed, listed = list_shards(tmp_path / "packed"), list_folder(photos)
    assert packed.class_names == listed.class_names == tuple(sorted(timm.data.ImageNetInfo().label_names()))
    assert np.bincount(packed.train.labels, minlength=1000).tolist() == [1] * 1000
    assert packed.test is not None
    assert sorted(packed.test.labels) == list(range(1000))

    crop = ["--set", "experts.augmentation.crop=24", "--set", "generalist.augmentation.crop=24"]
    short = ["--set", "generalist.epochs=1", "--set", "experts.epochs=1", "--base", "none", *crop]
    network = ["--architecture", "timm:test_resnet@32", "--experts", "10", "--rule", "wordnet", *short]
    answered(
        "train", "--dataset", f"shards:{tmp_path / 'packed'}", *network, "--out", tmp_path / "run", "--device", "cpu"
    )
    sizes = [each["size"] for each in Run(tmp_path / "run").read_json("specialties.json")["specialties"]]
    assert sorted(sizes, reverse=True) == LARGEST, "exactly ten groups at depth 3, one far larger"

    found = json.loads(answered("evaluate", tmp_path / "run", "--crops", "10", "--json", "--device", "cpu"))
    assert (found["images"], found["crops"], len(found["classes"])) == (1000, 10, 1000)
    assert 0 <= found["experts"]["top_1"] <= found["experts"]["top_5"] <= 1
