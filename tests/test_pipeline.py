"""The stages and their files: where each begins, and that what is damaged is made again with what stands on it."""

import io
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy

from conftest import small_dataset, small_run
from nofe import pipeline, runs
from nofe.errors import RunError
from nofe.pipeline import train
from nofe.runs import Run
from nofe.specialties import Specialties
from nofe.summary import kept_together
from nofe.training.runtime import make_runtime

SETTINGS = ("experts.epochs=1", "generalist.epochs=2")
WEIGHTS = (runs.BASE, runs.GENERALIST, runs.SPECIALTIES, runs.NETWORK)


def go_on(folder: Path) -> dict[str, Any]:
    return train(small_run(*SETTINGS), folder, resume=True, dataset=small_dataset(), runtime=make_runtime("cpu"))


def damage(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)


@pytest.fixture
def finished(tmp_path: Path, whole: Path) -> Path:
    """A complete run of one's own."""
    return shutil.copytree(whole, tmp_path / "run")


@pytest.fixture(autouse=True)
def _no_report(monkeypatch: pytest.MonkeyPatch) -> None:
    """Drawing takes longer than training here, and other tests look at it."""
    monkeypatch.setattr(pipeline, "report_if_possible", lambda run: None)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "whole"
    go_on(folder)
    return folder


@pytest.mark.parametrize("name", [*WEIGHTS, runs.PREDICTIONS, runs.INPUT, runs.SUMMARY])
def test_a_damaged_file_of_a_complete_run_is_made_again(name: str, whole: Path, finished: Path) -> None:
    damage(finished / name)
    if name in WEIGHTS:
        (finished / runs.SUMMARY).unlink()  # a file that is gone counts as damaged
    summary = go_on(finished)
    assert Run(finished).damaged() == []
    for made in WEIGHTS:
        assert Run(finished).read(made) == Run(whole).read(made), made
    for arrays in (runs.PREDICTIONS, runs.INPUT):
        assert_same_arrays(Run(finished).read(arrays), Run(whole).read(arrays))
    before = Run(whole).read_json(runs.SUMMARY)
    assert summary["specialties"] == before["specialties"]
    for stage, figures in summary["networks"].items():
        assert figures["accuracy"] == before["networks"][stage]["accuracy"]
    assert [(line["stage"], line["step"]) for line in sorted(Run(finished).metrics(), key=str)] == [
        (line["stage"], line["step"]) for line in sorted(Run(whole).metrics(), key=str)
    ]


def assert_same_arrays(found: bytes, expected: bytes) -> None:
    """To rounding: weights from a file lie in memory in another order than those just trained."""
    with np.load(io.BytesIO(found)) as one, np.load(io.BytesIO(expected)) as other:
        assert one.files == other.files
        for name in one.files:
            if one[name].dtype == np.float32:
                np.testing.assert_allclose(one[name], other[name], atol=1e-5)
            else:
                np.testing.assert_array_equal(one[name], other[name])


@pytest.mark.parametrize("name", [runs.CONFIG, runs.ENVIRONMENT])
def test_what_a_run_is_made_from_cannot_be_made_again(name: str, finished: Path) -> None:
    damage(finished / name)
    with pytest.raises(RunError, match=f"{name}: content changed since it was written; put the old one back"):
        go_on(finished)


def test_experts_are_trained_again_when_other_specialties_come_out(
    finished: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a GPU a training does not repeat bit for bit. Experts of the old specialties must not pass for the new."""
    old = Specialties.from_json(Run(finished).read_json(runs.SPECIALTIES))
    old_network = Run(finished).read(runs.NETWORK)
    other = Specialties(np.roll(old.specialty_of_class, 1))
    assert other != old
    train_generalist = pipeline.train_generalist

    def another_way(*arguments: Any) -> Specialties:
        train_generalist(*arguments)
        return other

    monkeypatch.setattr(pipeline, "train_generalist", another_way)
    monkeypatch.setattr(pipeline, "summarise", lambda *_: {})
    damage(finished / runs.GENERALIST)
    go_on(finished)
    assert Specialties.from_json(Run(finished).read_json(runs.SPECIALTIES)) == other
    assert Run(finished).read(runs.NETWORK) != old_network
    sizes = [
        safetensors.numpy.load(Run(finished).read(runs.NETWORK))[f"experts.{k}.ip2.weight"].shape[0]
        for k in range(other.count)
    ]
    assert sizes == other.sizes.tolist()
    assert not Run(finished).has(runs.SUMMARY)  # the figures were those of the old experts


def test_a_stage_that_begins_anew_takes_no_checkpoint_of_a_later_one(finished: Path) -> None:
    """Whatever the base's checkpoints were, those of the experts are gone once the base is trained again."""
    from nofe.training.checkpoint import read_checkpoint

    assert read_checkpoint(Run(finished), "experts") is not None
    damage(finished / runs.BASE)
    config, runtime = small_run(*SETTINGS), make_runtime("cpu", checkpoint_seconds=1e6)
    train(config, finished, resume=True, dataset=small_dataset(), runtime=runtime)
    assert read_checkpoint(Run(finished), "experts") is None


def test_the_configuration_is_the_last_to_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder with a configuration is a run that has begun: what it needs is there."""
    written: list[str] = []
    write = Run.write

    def note(self: Run, name: str, content: bytes) -> None:
        written.append(name)
        write(self, name, content)

    monkeypatch.setattr(Run, "write", note)
    go_on(tmp_path / "run")
    assert written[:3] == [runs.ENVIRONMENT, runs.INPUT, runs.CONFIG]
    assert json.loads((tmp_path / "run" / runs.CONFIG).read_text())["architecture"] == "alexnet-quick-c100"


def test_groups_kept_together_are_counted_in_pairs() -> None:
    dataset = small_dataset(classes=8)  # four pairs
    one_pair_apart = Specialties(np.array([0, 0, 0, 1, 1, 1, 0, 1]))  # 2-3 and 6-7 are split
    assert kept_together(dataset, one_pair_apart) == {"pair": {"together": 0.5, "by_chance": pytest.approx(12 / 28)}}


def test_spectral_specialties_are_found_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that goes on with its experts predicts no training image for them again; on a GPU others might be found."""
    config, folder = small_run(*SETTINGS, "specialties.rule=spectral"), tmp_path / "run"
    train(config, folder, dataset=small_dataset(), runtime=make_runtime("cpu"))
    network = Run(folder).read(runs.NETWORK)
    (folder / runs.NETWORK).unlink()
    monkeypatch.setattr(pipeline, "spectral", lambda *_: pytest.fail("found again"))
    train(config, folder, resume=True, dataset=small_dataset(), runtime=make_runtime("cpu"))
    assert Run(folder).read(runs.NETWORK) == network


STILL = ("experts.epochs=1", "generalist.epochs=1", "experts.rate=1e-12", "generalist.rate=1e-12")


@pytest.mark.parametrize(
    ("start_of_generalist", "start_of_experts"),
    [("random", "generalist"), ("base", "generalist"), ("random", "scratch")],
)
def test_where_the_trunks_come_from(start_of_generalist: str, start_of_experts: str, tmp_path: Path) -> None:
    """At a rate of almost nothing the weights stay what they started as."""
    starts = (f"generalist.start={start_of_generalist}", f"experts.start={start_of_experts}")
    train(small_run(*STILL, *starts), tmp_path / "run", dataset=small_dataset(), runtime=make_runtime("cpu"))
    run = Run(tmp_path / "run")
    base, generalist, network = (
        safetensors.numpy.load(run.read(name))["trunk.conv2.weight"]
        for name in (runs.BASE, runs.GENERALIST, runs.NETWORK)
    )
    assert np.allclose(generalist, base, atol=1e-8) == (start_of_generalist == "base")
    assert np.allclose(network, generalist, atol=1e-8) == (start_of_experts == "generalist")


@pytest.mark.parametrize("rule", ["random", "spectral", "groups"])
def test_rules_that_do_not_learn_keep_their_specialties(rule: str, tmp_path: Path) -> None:
    settings = [f"specialties.rule={rule}", *(["specialties.groups=pair"] if rule == "groups" else [])]
    train(small_run(*STILL, *settings), tmp_path / "run", dataset=small_dataset(), runtime=make_runtime("cpu"))
    run = Run(tmp_path / "run")
    specialties = Specialties.from_json(run.read_json(runs.SPECIALTIES))
    assert not any("update" in line for line in run.metrics())
    if rule == "groups":
        assert specialties.groups() == ((0, 1), (2, 3), (4, 5), (6, 7))
    else:
        assert specialties.count <= 2
