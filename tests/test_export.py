"""A network as one file that runs without nofe: it gives what the network gives, from bytes, for any number of them."""

import errno
import hashlib
import json
import os
import shutil
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import nofe
from conftest import small_dataset, small_run
from nofe import export, runs
from nofe.errors import RunError, UserError
from nofe.export import export_run, some_images
from nofe.loading import FinishedRun, open_finished
from nofe.pipeline import train
from nofe.training.runtime import make_runtime
from test_cli import answered


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


def about_inside(file: Path) -> str:
    if file.suffix == ".pt2":
        torch.export.load(file, extra_files=(inside := {export.ABOUT: ""}))
        return inside[export.ABOUT]
    session = pytest.importorskip("onnxruntime").InferenceSession(str(file))
    assert session.get_inputs()[0].shape[0] == session.get_outputs()[0].shape[0] == "N"
    text: str = session.get_modelmeta().custom_metadata_map[export.ABOUT]
    return text


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
        images = some_images(count, open_finished(run).mean.shape)
        with torch.no_grad():
            expected = network(network.preprocess(images))
        torch.testing.assert_close(program(images), expected, rtol=1e-4, atol=1e-4)
    about = json.loads(made.about.read_text())
    assert made.about == tmp_path / "new" / f"{name}.json"
    assert tuple(about["classes"]) == network.class_names
    assert about["experts"] == [[network.class_names[c] for c in group] for group in network.specialties.groups()]
    assert about["input"]["shape"] == ["N", 3, 32, 32]
    assert json.loads(about_inside(made.file)) == {key: value for key, value in about.items() if key != "sha256"}
    assert about["sha256"] == hashlib.sha256(made.file.read_bytes()).hexdigest()
    assert sorted(file.name for file in made.file.parent.iterdir()) == [name, f"{name}.json"], "no weights beside it"


class Attention(nn.Module):
    """Of 49 patches to each other, with a bias for each pair that is looked up in a table, as in BEiT and MaxViT."""

    def __init__(self) -> None:
        super().__init__()
        self.embedded, self.turned = nn.Linear(3, 32), nn.Linear(32, 8)
        self.table, self.number = nn.Parameter(torch.randn(4, 9)), torch.arange(49 * 49).view(49, 49) % 9

    def forward(self, images: Tensor) -> Tensor:  # (N, 3, h, w)
        patches = F.adaptive_avg_pool2d(images / 60, 7).flatten(2).transpose(1, 2)  # (N, 49, 3)
        heads = self.embedded(patches).reshape(-1, 49, 4, 8).transpose(1, 2)  # (N, 4, 49, 8)
        bias = self.table[:, self.number].contiguous()[None]  # (1, 4, 49, 49)
        seen = F.scaled_dot_product_attention(heads, heads, heads, attn_mask=bias)
        logits: Tensor = self.turned(seen.transpose(1, 2).reshape(-1, 49, 32)).mean(1)  # (N, 8)
        return logits


@pytest.mark.parametrize(("name", "opened"), [("net.pt2", by_torch), ("net.onnx", by_onnxruntime)])
def test_attention_with_a_learned_bias_is_exported_and_asks_for_no_gradients(
    name: str,
    opened: Callable[[Path], Callable[[Tensor], Tensor]],
    run: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    network = Attention()
    monkeypatch.setattr(FinishedRun, "network", lambda self: network)
    made = export_run(run, tmp_path / name)
    finished = open_finished(run)
    images = some_images(3, finished.mean.shape)
    logits = opened(made.file)(images)
    assert not logits.requires_grad, "or its users could not make an array of it"
    torch.testing.assert_close(logits, network(finished.preprocess(images)), rtol=1e-4, atol=1e-4)


def test_a_network_that_was_shipped_is_exported_alike(run: Path, tmp_path: Path) -> None:
    (tmp_path / "shipped").mkdir()
    for name in (runs.MANIFEST, runs.CONFIG, runs.INPUT, runs.SPECIALTIES, runs.NETWORK):
        shutil.copy(run / name, tmp_path / "shipped")
    whole, alone = (export_run(each, tmp_path / f"{each.name}.pt2") for each in (run, tmp_path / "shipped"))
    images = some_images(3, open_finished(run).mean.shape)
    assert torch.equal(by_torch(whole.file)(images), by_torch(alone.file)(images))


@pytest.mark.parametrize("kind", [".pt2", ".onnx"])
def test_no_file_names_and_no_code_are_shipped(kind: str, run: Path, tmp_path: Path) -> None:
    if kind == ".onnx":
        pytest.importorskip("onnxscript")
    content = export_run(run, tmp_path / f"net{kind}").file.read_bytes()
    code = b"self.network(centre_crop("
    assert code in Path(export.__file__).read_bytes()
    for private in (code, *(str(Path(module.__file__).parent).encode() for module in (nofe, torch))):
        assert private not in content


def test_where_the_program_cannot_be_written_nothing_is(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replace = os.replace

    def full(source: Path, target: Path) -> None:
        if target.suffix == ".pt2":
            raise OSError(errno.ENOSPC, "No space left on device")
        replace(source, target)

    monkeypatch.setattr("os.replace", full)
    with pytest.raises(OSError, match="No space left"):
        export_run(run, tmp_path / "net.pt2")
    assert not list(tmp_path.iterdir())


def test_what_the_exporters_say_is_not_passed_on(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    as_torch = export._as_torch

    def talkative(traced: torch.export.ExportedProgram, about: str) -> tuple[bytes, Callable[[Tensor], Tensor], str]:
        print("Applied 15 of general pattern rewrite rules.")
        warnings.warn("use treespec.is_leaf() instead", FutureWarning, stacklevel=1)
        return as_torch(traced, about)

    monkeypatch.setitem(export._FORMATS, ".pt2", talkative)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        export_run(run, tmp_path / "net.pt2")
    assert capsys.readouterr() == ("", "")


def test_a_program_that_differs_is_not_written(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    as_torch = export._as_torch

    def slightly_wrong(
        traced: torch.export.ExportedProgram, about: str
    ) -> tuple[bytes, Callable[[Tensor], Tensor], str]:
        content, program, compared_by = as_torch(traced, about)
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
    (tmp_path / "net.pt2").mkdir()
    (tmp_path / "other.pt2.json").mkdir()
    (tmp_path / "file").touch()
    for place, reason in {
        "net.pt2": r"net\.pt2: is a folder; name another file",
        "other.pt2": r"other\.pt2\.json: is a folder; name another file",
        "file/new/net.pt2": r"net\.pt2: .*file is a file, not a folder; name another place",
    }.items():
        with pytest.raises(UserError, match=reason):
            export_run(tmp_path / "no run is read before", tmp_path / place)
    monkeypatch.setattr("os.access", lambda place, rights: place != tmp_path)
    with pytest.raises(UserError, match="may not be written to; name another place"):
        export_run(run, tmp_path / "new" / "net.pt2")
    monkeypatch.undo()
    for made in ("net.pt2", "other.pt2.json"):
        (tmp_path / made).rmdir()
    (tmp_path / "file").unlink()
    with monkeypatch.context() as patch:
        patch.setattr(export, "find_spec", lambda _: None)
        with pytest.raises(UserError, match=r"ONNX needs the package onnx, .* or export a \.pt2 file"):
            export_run(tmp_path / "no run is read before", tmp_path / "net.onnx")

    class Branching(nn.Module):
        def forward(self, images: Tensor) -> Tensor:
            return images if float(images.sum()) > 0 else -images

    monkeypatch.setattr(FinishedRun, "network", lambda self: Branching())
    with pytest.raises(RunError, match=r"torch\.export cannot trace its network \(.+\); ship the run folder instead"):
        export_run(run, tmp_path / "net.pt2")

    class Fixed(nn.Module):
        def forward(self, images: Tensor) -> Tensor:
            return images.reshape(len(images), -1)

    class Asking(nn.Module):
        def forward(self, images: Tensor) -> Tensor:
            return images.flatten(1) if images.shape[0] < 100 else images.flatten(1) / 2

    for network in (Fixed(), Asking()):
        monkeypatch.setattr(FinishedRun, "network", lambda self, network=network: network)
        with pytest.raises(RunError, match=r"not the same program for any number of images, .* ship the run folder"):
            export_run(run, tmp_path / "net.pt2")
    assert not list(tmp_path.iterdir())


WITHOUT_NOFE = """
import sys

sys.modules["nofe"] = None  # whoever imports it gets an ImportError
import torch

images, expected = torch.load(sys.argv[2])
torch.testing.assert_close(torch.export.load(sys.argv[1]).module()(images), expected, rtol=1e-4, atol=1e-4)
"""


def test_a_process_without_nofe_runs_it(run: Path, tmp_path: Path) -> None:
    made = export_run(run, tmp_path / "net.pt2")
    assert made.needs == ()
    network, images = nofe.load(run), some_images(3, open_finished(run).mean.shape)
    assert network.preprocess is not None
    with torch.no_grad():
        torch.save((images, network(network.preprocess(images))), tmp_path / "expected.pt")
    command = [sys.executable, "-c", WITHOUT_NOFE, str(made.file), str(tmp_path / "expected.pt")]
    ended = subprocess.run(command, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr


def test_operators_that_are_not_torchs_are_named(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What runs where it is made does not run where nobody has defined them."""

    @torch.library.custom_op("birdwatch::flipped", mutates_args=())
    def flipped(images: Tensor) -> Tensor:
        return images.flip(-1)

    flipped.register_fake(torch.empty_like)

    class Flipping(nn.Module):
        def forward(self, images: Tensor) -> Tensor:
            return flipped(images).flatten(1)

    monkeypatch.setattr(FinishedRun, "network", lambda self: Flipping())
    assert export_run(run, tmp_path / "net.pt2").needs == ("birdwatch",)
    told = answered("export", run, tmp_path / "net.pt2")
    assert "It has operators of birdwatch: import what defines them before it is loaded." in told


def test_more_weights_than_a_file_of_onnx_holds_are_told_before_it_is_traced(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("onnxscript")
    weights = sum(tensor.nbytes for tensor in open_finished(run).network().state_dict().values())
    monkeypatch.setattr(export, "MOST_OF_ONNX", weights)  # and the mean is in the file, too
    with monkeypatch.context() as patch:
        patch.setattr("torch.export.export", lambda *_, **__: pytest.fail("is traced"))
        with pytest.raises(UserError, match=r"run: its weights take .* GB, and one file of ONNX has room for .* \.pt2"):
            export_run(run, tmp_path / "net.onnx")
    assert not list(tmp_path.iterdir())
    assert export_run(run, tmp_path / "net.pt2").file.stat().st_size > weights


def test_a_layer_that_onnx_has_not_is_named(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("onnxscript")

    class Bessel(nn.Module):
        def forward(self, images: Tensor) -> Tensor:
            return torch.special.bessel_j0(images)

    monkeypatch.setattr(FinishedRun, "network", lambda self: Bessel())
    with pytest.raises(
        RunError, match=r"cannot be written as \.onnx \(.*bessel_j0.*\); export the other kind, \.pt2 or"
    ):
        export_run(run, tmp_path / "net.onnx")
    assert not list(tmp_path.iterdir())


def test_without_onnxruntime_it_is_said_that_nothing_was_compared(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("onnxscript")
    there = export.find_spec
    monkeypatch.setattr(export, "find_spec", lambda name: None if name == "onnxruntime" else there(name))
    assert export_run(run, tmp_path / "net.onnx").compared_by is None
    assert (tmp_path / "net.onnx").exists()
