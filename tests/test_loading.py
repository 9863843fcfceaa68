"""A network taken away from the machine that trained it: the files it needs, photos in, and programs out of it."""

import io
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn

import nofe
from conftest import small_dataset, small_run
from nofe import inference, runs
from nofe.data.folder import read_images
from nofe.errors import UserError
from nofe.judging import Place
from nofe.pipeline import train
from nofe.training.runtime import make_runtime

SHIPPED = (runs.MANIFEST, runs.CONFIG, runs.INPUT, runs.SPECIALTIES, runs.NETWORK)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "run"
    config = small_run("base.by=none", "generalist.epochs=1", "experts.epochs=1")
    train(config, folder, dataset=small_dataset(), runtime=make_runtime("cpu"))
    return folder


@pytest.fixture(scope="module")
def shipped(run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("shipped")
    for name in SHIPPED:
        shutil.copy(run / name, folder)
    return folder


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Of other sizes than the network reads, one of them grey."""
    folder, rng = tmp_path_factory.mktemp("photos"), np.random.default_rng(0)
    files = [folder / f"{number}.png" for number in range(3)]
    for number, file in enumerate(files):
        shape = (50 + number, 70) if number == 2 else (50 + number, 70, 3)
        Image.fromarray(rng.integers(0, 256, shape, dtype=np.uint8)).save(file)
    return files


def test_five_files_are_enough(shipped: Path, photos: list[Path]) -> None:
    """And `nofe.load` names a photo as `nofe predict` does."""
    network = nofe.load(shipped)
    assert network.read is not None
    assert network.preprocess is not None
    with torch.inference_mode():
        probabilities = network(network.preprocess(network.read(photos))).softmax(1)  # (N, C)
    answers = list(inference.predict_files(shipped, photos, 1, make_runtime("cpu")))
    for row, answer in zip(probabilities, answers, strict=True):
        [best] = answer["top"]
        assert network.class_names[int(row.argmax())] == best["class"]
        assert float(row.max()) == pytest.approx(best["probability"], abs=1e-5)


@pytest.mark.parametrize("name", SHIPPED)
def test_a_file_that_was_forgotten_is_named(name: str, shipped: Path, tmp_path: Path) -> None:
    shutil.copytree(shipped, tmp_path / "copy")
    (tmp_path / "copy" / name).unlink()
    with pytest.raises(UserError, match=rf"{name} is missing|no finished {name}|there is no {name}"):
        nofe.load(tmp_path / "copy")


def test_photos_as_paths_as_text_and_opened(shipped: Path, photos: list[Path]) -> None:
    read = nofe.load(shipped).read
    assert read is not None
    expected = read_images(photos, 32)
    opened = [Image.open(file) for file in photos]
    contents = [file.read_bytes() for file in photos]
    mixed = [photos[0], opened[1], contents[2], *map(str, photos[3:])]
    for given in (photos, tuple(map(str, photos)), opened, contents, mixed, iter(photos), map(io.BytesIO, contents)):
        found = read(given)
        assert found.dtype == torch.uint8
        np.testing.assert_array_equal(found, expected)
    for alone in (photos[1], str(photos[1]), opened[1], contents[1], io.BytesIO(contents[1]), photos[1].open("rb")):
        np.testing.assert_array_equal(read(alone), expected[1:2])
    assert read([]).shape == (0, 3, 32, 32)


def test_what_is_no_photo(shipped: Path, photos: list[Path], tmp_path: Path) -> None:
    network = nofe.load(shipped)
    assert network.read is not None
    cut = tmp_path / "cut.png"
    cut.write_bytes(photos[0].read_bytes()[:500])
    with pytest.raises(UserError, match=r"cut\.png: cannot be read as an image \(truncated\)"):
        network.read([photos[0], cut])
    with pytest.raises(UserError, match=r"photo 1: cannot be read as an image \(.*truncated.*\)"):
        network.read([photos[0], Image.open(cut)])
    with pytest.raises(UserError, match=r"photo 1: cannot be read as an image \(truncated\)"):
        network.read([photos[0].read_bytes(), cut.read_bytes()])
    for other in (7, [np.zeros((32, 32, 3), np.uint8)], io.StringIO("photo")):
        with pytest.raises(
            UserError, match=r"photo 0: neither a path .* but (int|ndarray|StringIO); .* \(N, 3, 32, 32\)"
        ):
            network.read(other)  # type: ignore[arg-type]


@pytest.mark.parametrize("shape", [(2, 3, 40, 40), (3, 32, 32), (2, 1, 32, 32)])
def test_images_of_another_size_are_told_what_to_do(shape: tuple[int, ...], shipped: Path) -> None:
    preprocess = nofe.load(shipped).preprocess
    assert preprocess is not None
    with pytest.raises(UserError, match=r"trained on bytes of shape \(N, 3, 32, 32\); read photos with network\.read"):
        preprocess(torch.zeros(shape, dtype=torch.uint8))


@pytest.mark.parametrize(
    ("images", "told"),
    [
        ("photo.jpg", r"^images: neither a tensor nor an array but str; read photos with network\.read"),
        (Image.new("RGB", (32, 32)), "^images: neither a tensor nor an array but Image"),
        (np.full((1, 3, 32, 32), 256, np.uint16), "whole numbers that are not from 0 to 255; scale them to bytes"),
        (torch.full((1, 3, 32, 32), -1), "whole numbers that are not from 0 to 255"),
    ],
)
def test_what_is_not_prepared(images: Any, told: str, shipped: Path) -> None:
    preprocess: Any = nofe.load(shipped).preprocess
    with pytest.raises(UserError, match=told):
        preprocess(images)
    good = torch.full((1, 3, 32, 32), 255)
    assert torch.equal(preprocess(good), preprocess(good.to(torch.uint8)))


class Averaging(nn.Module):
    """A branch whose pooling is a method."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.conv, self.fc = nn.Conv2d(8, 8, 3, padding=1), nn.Linear(8, classes)

    def forward(self, features: Tensor) -> Tensor:  # (N, 8, h, w)
        logits: Tensor = self.fc(self.conv(features).relu().mean((2, 3)))
        return logits


def converted() -> nn.Module:
    model = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), Averaging(5))
    network = nofe.convert(model, [0, 0, 1, 1, 1], cut="2", branch=Averaging)
    network.fuse()
    network.unfuse()
    return network.eval()


@pytest.mark.parametrize("kind", ["loaded", "averaging, fused and unfused again"])
def test_exported_with_any_batch(kind: str, shipped: Path) -> None:
    network = nofe.load(shipped) if kind == "loaded" else converted()
    batch = {0: torch.export.Dim("N")}
    exported = torch.export.export(network, (torch.zeros(2, 3, 32, 32),), dynamic_shapes=(batch,)).module()
    for count in (1, 2, 5):
        images = torch.randn(count, 3, 32, 32)
        torch.testing.assert_close(exported(images), network(images))


def test_as_onnx(shipped: Path, tmp_path: Path) -> None:
    pytest.importorskip("onnxscript")
    reference = pytest.importorskip("onnx.reference")
    network = nofe.load(shipped)
    batch = {0: torch.export.Dim("N")}
    exported = torch.export.export(network, (torch.zeros(2, 3, 32, 32),), dynamic_shapes=(batch,))
    torch.onnx.export(exported, (), tmp_path / "network.onnx")
    images = torch.randn(5, 3, 32, 32)
    program = reference.ReferenceEvaluator(str(tmp_path / "network.onnx"))
    [logits] = program.run(None, {program.input_names[0]: images.numpy()})
    np.testing.assert_allclose(logits, network(images).detach(), atol=1e-3)


def test_floats_are_from_0_to_1_as_in_training(shipped: Path, photos: list[Path]) -> None:
    network = nofe.load(shipped)
    assert network.read is not None
    assert network.preprocess is not None
    pixels = network.read(photos)
    torch.testing.assert_close(network.preprocess(pixels / 255), network.preprocess(pixels))
    torch.testing.assert_close(network.preprocess(pixels.numpy()), network.preprocess(pixels))
    for wrong in (pixels.float(), pixels / 255 - 0.5):
        with pytest.raises(UserError, match="floats that are not from 0 to 1; give bytes"):
            network.preprocess(wrong)


def test_a_network_that_was_shipped_is_judged_on_other_images(run: Path, shipped: Path, tmp_path: Path) -> None:
    names = nofe.load(shipped).class_names
    for number, name in enumerate(names):
        (tmp_path / "theirs" / name).mkdir(parents=True)
        pixels = np.full((40, 40, 3), 20 * number, dtype=np.uint8)
        Image.fromarray(pixels).save(tmp_path / "theirs" / name / "0.png")
    place = Place(name=f"folder:{tmp_path / 'theirs'}")
    whole, alone = (inference.evaluate_run(each, make_runtime("cpu"), place) for each in (run, shipped))
    assert alone["experts"] == whole["experts"]
    assert alone["images"] == len(names)
    with pytest.raises(UserError, match=r"environment\.json; these are the files of a network that was shipped"):
        runs.Run(shipped).read_json(runs.ENVIRONMENT)
    with pytest.raises(UserError, match=r"summary\.json; these are the files of a network that was shipped"):
        runs.Run(shipped).read_json(runs.SUMMARY)
