"""The figures of `nofe bench data` fit together, and the limit it names is the slowest step."""

import json
import re
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from torch import nn
from typer.testing import CliRunner

from nofe.bench import data
from nofe.bench.data import AT_ONCE, IN_ONE, decode_and_resize, limit_of, measure_data
from nofe.cli import app
from nofe.data import list_images
from nofe.errors import UserError
from nofe.experts.fused import FusedExperts
from nofe.experts.kernels import kernels_of
from nofe.experts.network import NetworkOfExperts
from nofe.report.measured import data_in_words
from nofe.training.loop import TrainState, start_training
from nofe.training.runtime import make_runtime


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("photos")
    rng = np.random.default_rng(0)
    for number in range(40):
        path = root / "ab"[number % 2] / f"{number}.jpg"
        path.parent.mkdir(exist_ok=True)
        small = Image.fromarray(rng.integers(0, 256, (6, 8, 3), dtype=np.uint8))
        small.resize((400, 300), Image.Resampling.BICUBIC).save(path)
    return root


@pytest.mark.parametrize(
    ("changed", "limit", "inside"),
    [
        ({}, "workers", "decode"),
        ({"read": 40}, "workers", "read"),
        ({"resize": 90}, "workers", "resize"),
        ({"copy": 350}, "copy", "copy"),
        ({"augment": 300, "read": 1}, "augment", "augment"),
        ({"step": 399, "train": 10}, "step", "step"),
        ({"step": 401, "whole": 10}, "workers", "decode"),
    ],
)
def test_the_limit_of_known_speeds(changed: dict[str, float], limit: str, inside: str) -> None:
    """One process reads, decodes and resizes fewer a second than all of them do; that alone is no limit."""
    speeds = {"read": 9000, "decode": 100, "resize": 500, "workers": 400, "copy": 5000, "augment": 7000, "whole": 390}
    assert limit_of(speeds | changed) == (limit, inside)


@pytest.mark.parametrize("slow", ["decode", "resize"])
def test_decoding_is_timed_by_the_decoder_that_is_used(
    photos: Path, monkeypatch: pytest.MonkeyPatch, slow: str
) -> None:
    """JPEGs that torchcodec would decode are; a slow half is not put down to the other."""
    asked = []

    def decoder(content: bytes) -> np.ndarray:
        asked.append(content)
        time.sleep(0.02 if slow == "decode" else 0)
        return np.zeros((3, 300, 400), dtype=np.uint8)

    def resize(image: Image.Image, size: tuple[int, int], *_: object) -> Image.Image:
        time.sleep(0.02)
        return Image.new("RGB", size)

    monkeypatch.setattr("nofe.data.jpeg.torchcodec_decoder", lambda: decoder)
    if slow == "resize":
        monkeypatch.setattr(Image.Image, "resize", resize)
    speeds = decode_and_resize(list_images(f"folder:{photos}").train.subset(np.arange(5)), 100)
    assert len(asked) == 5
    assert speeds[slow] <= 50
    assert min(speeds, key=speeds.__getitem__) == slow


def test_an_unreadable_image_is_named(tmp_path: Path, photos: Path) -> None:
    for name in ("a/0.jpg", "a/2.jpg", "b/1.jpg", "b/3.jpg"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes((photos / name).read_bytes()[:500])
    with pytest.raises(UserError, match=r"^[ab]/\d\.jpg: cannot be read as an image \(.*nofe pack --skip-unreadable"):
        measure_data(f"folder:{tmp_path}", "small", make_runtime("cpu", workers=1), rounds=1)


def test_steps_and_limit(photos: Path) -> None:
    runtime = make_runtime("cpu", workers=1)
    measured = measure_data(f"folder:{photos}", "alexnet-caffe", runtime, batch=8, images=24, rounds=1)
    speeds = measured["images_per_second"]
    assert list(speeds) == [*IN_ONE, *AT_ONCE, "whole"]
    assert all(speed > 0 for speed in speeds.values())
    assert (measured["limit"], measured["inside"]) == limit_of(speeds)
    assert (measured["images"], measured["batch"]) == (24, 8)
    assert f"The limit is {measured['limit']}" in data_in_words(measured)


def test_the_training_loop_is_measured_on_images_as_they_come(photos: Path) -> None:
    runtime = make_runtime("cpu", workers=1)
    measured = measure_data(f"folder:{photos}", "small", runtime, batch=4, images=16, rounds=1, experts=2)
    speeds = measured["images_per_second"]
    assert list(speeds) == [*IN_ONE, *AT_ONCE, "whole", "step", "train"]
    assert all(speed > 0 for speed in speeds.values())
    assert (measured["limit"], measured["inside"]) == limit_of(speeds)
    assert "2 experts, eager, on images that are there" in data_in_words(measured)


def test_what_is_trained_on_them_has_its_kernels_chosen_as_in_a_run(
    photos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[nn.Module] = []

    def noting(stage: str, model: nn.Module, *rest: Any) -> TrainState:
        begun.append(model)
        return start_training(stage, model, *rest)

    monkeypatch.setattr(data, "start_training", noting)
    runtime = make_runtime("cpu", workers=1, kernels="product")
    measure_data(f"folder:{photos}", "small", runtime, batch=4, images=8, rounds=1, experts=2)
    assert len(begun) == 2
    for network in begun:
        assert isinstance(network, NetworkOfExperts)
        assert isinstance(network.experts, FusedExperts)
        assert "product" in kernels_of(network.experts).values()


def test_from_the_command_line(photos: Path, tmp_path: Path) -> None:
    shards, out = tmp_path / "shards", tmp_path / "data.json"
    packed = CliRunner().invoke(app, ["pack", str(photos), str(shards), "--size", "64", "--workers", "1"])
    assert packed.exit_code == 0, packed.output
    assert re.search(r"32 train, 8 test images in 2 shards, 0 unreadable; nofe train --dataset shards:", packed.output)
    assert len(list_images(f"shards:{shards}").train) == 32
    arguments = ["--dataset", f"shards:{shards}", "--architecture", "small", "--rounds", "1", "--images", "16"]
    measured = CliRunner().invoke(app, ["bench", "data", *arguments, "--device", "cpu", "--out", str(out)])
    assert measured.exit_code == 0, measured.output
    assert "The limit is" in measured.output
    assert json.loads(out.read_bytes())["images"] == 16


def test_what_is_in_memory_is_not_measured() -> None:
    with pytest.raises(UserError, match="--dataset glyphs: is in memory from the start"):
        measure_data("glyphs", "small", make_runtime("cpu"))
