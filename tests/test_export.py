"""A network as one file that runs without nofe: it gives what the network gives, from bytes, for any number of them."""

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import nofe
from conftest import small_dataset, small_run
from nofe import export, runs
from nofe.errors import RunError, UserError
from nofe.export import export_run, some_images
from nofe.loading import FinishedRun, open_finished
from nofe.pipeline import train
from nofe.training.runtime import make_runtime


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of a network that reads a crop: 28 of 32 pixels."""
    folder = tmp_path_factory.mktemp("runs") / "run"
    crop = [f"{stage}.augmentation.crop=28" for stage in ("generalist", "experts")]
    config = small_run("architecture=small", "base.by=none", "generalist.epochs=1", "experts.epochs=1", *crop)
    train(config, folder, dataset=small_dataset(), runtime=make_runtime("cpu"))
    return folder


def by_torch(file: Path) -> Callable[[Tensor], Tensor]:
    program: Callable[[Tensor], Tensor] = torch.export.load(file).module()
    return program


def by_onnxruntime(file: Path) -> Callable[[Tensor], Tensor]:
    session = pytest.importorskip("onnxruntime").InferenceSession(str(file))
    return lambda images: torch.from_numpy(session.run(["logits"], {"images": images.numpy()})[0])


@pytest.mark.parametrize(("name", "opened"), [("net.pt2", by_torch), ("net.onnx", by_onnxruntime)])
def test_an_exported_program_gives_what_the_network_gives(
    name: str, opened: Callable[[Path], Callable[[Tensor], Tensor]], run: Path, tmp_path: Path
) -> None:
    made = export_run(run, tmp_path / "new" / name)
    assert made.compared_by == {".pt2": "torch", ".onnx": "onnxruntime"}[made.file.suffix]
    network = nofe.load(run)
    assert network.preprocess is not None
    program = opened(made.file)
    for count in (1, 2, 7):
        images = some_images(count, open_finished(run))
        with torch.no_grad():
            expected = network(network.preprocess(images))
        torch.testing.assert_close(program(images), expected, rtol=1e-4, atol=1e-4)
    about = json.loads(made.about.read_text())
    assert made.about == tmp_path / "new" / f"{name}.json"
    assert tuple(about["classes"]) == network.class_names
    assert about["experts"] == [[network.class_names[c] for c in group] for group in network.specialties.groups()]
    assert about["input"]["shape"] == ["N", 3, 32, 32]
    assert about["sha256"] == hashlib.sha256(made.file.read_bytes()).hexdigest()
    assert sorted(file.name for file in made.file.parent.iterdir()) == [name, f"{name}.json"], "no weights beside it"


def test_a_network_that_was_shipped_is_exported_alike(run: Path, tmp_path: Path) -> None:
    (tmp_path / "shipped").mkdir()
    for name in (runs.MANIFEST, runs.CONFIG, runs.INPUT, runs.SPECIALTIES, runs.NETWORK):
        shutil.copy(run / name, tmp_path / "shipped")
    whole, alone = (export_run(each, tmp_path / f"{each.name}.pt2") for each in (run, tmp_path / "shipped"))
    images = some_images(3, open_finished(run))
    assert torch.equal(by_torch(whole.file)(images), by_torch(alone.file)(images))


def test_a_program_that_differs_is_not_written(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    as_torch = export._as_torch

    def slightly_wrong(traced: torch.export.ExportedProgram) -> tuple[bytes, Callable[[Tensor], Tensor], str]:
        content, program, compared_by = as_torch(traced)
        return content, lambda images: 1.01 * program(images), compared_by

    monkeypatch.setitem(export._FORMATS, ".pt2", slightly_wrong)
    with pytest.raises(RunError, match=r"net\.pt2: not written, as the exported program differs from the network"):
        export_run(run, tmp_path / "net.pt2")
    assert not list(tmp_path.iterdir())


def test_what_cannot_be_exported_is_said_in_a_line(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match=r"net\.h5: unknown kind of file; name one that ends in \.pt2 .* or \.onnx"):
        export_run(run, tmp_path / "net.h5")
    with pytest.raises(UserError, match="no run is here"):
        export_run(tmp_path, tmp_path / "net.pt2")
    with monkeypatch.context() as patch:
        patch.setattr(export, "find_spec", lambda _: None)
        with pytest.raises(UserError, match=r"ONNX needs the package onnx, .* or export a \.pt2 file"):
            export_run(run, tmp_path / "net.onnx")

    class Branching(nn.Module):
        def forward(self, images: Tensor) -> Tensor:
            return images if float(images.sum()) > 0 else -images

    monkeypatch.setattr(FinishedRun, "network", lambda self: Branching())
    with pytest.raises(RunError, match=r"torch\.export cannot trace its network \(.+\); ship the run folder instead"):
        export_run(run, tmp_path / "net.pt2")
    assert not list(tmp_path.iterdir())


def test_without_onnxruntime_it_is_said_that_nothing_was_compared(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("onnxscript")
    there = export.find_spec
    monkeypatch.setattr(export, "find_spec", lambda name: None if name == "onnxruntime" else there(name))
    assert export_run(run, tmp_path / "net.onnx").compared_by is None
    assert (tmp_path / "net.onnx").exists()
