"""The command line: what a user can do with it, and the one line that every mistake is answered with.

The commands run in this process, through `nofe.__main__.main`, because every start of Python costs seconds.
"""

import csv
import fcntl
import io
import json
import platform
import re
import shutil
import subprocess
import sys
import threading
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

import nofe
from conftest import small_dataset
from nofe import evaluation, inference, runs
from nofe.__main__ import main
from nofe.architectures import ARCHITECTURES
from nofe.data import DATASETS
from nofe.data.batches import DeviceImages
from nofe.data.folder import read_readable_images
from nofe.evaluation import Predictions
from nofe.experiments.measures import ten_crops
from nofe.loading import open_finished
from nofe.recipes import SMALL, SUMMARIES
from nofe.report.against import alone_in_words
from nofe.report.record import Alone
from nofe.runs import Run
from nofe.specialties import RULES, exact
from nofe.training.runtime import Runtime, make_runtime

COLOURS = {"ant": (220, 30, 30), "bee": (220, 60, 30), "cow": (30, 30, 220), "dog": (30, 60, 220)}
SHORT = [
    *("--architecture", "alexnet-quick-c100", "--experts", "2", "--device", "cpu"),
    *("--set", "experts.epochs=2", "--set", "generalist.epochs=2"),
    *("--set", "experts.batch=8", "--set", "generalist.batch=8"),
]


class Answer(NamedTuple):
    code: int
    out: str
    err: str


def command(*arguments: str | Path) -> Answer:
    """`nofe ARGUMENTS`, here. An exception that main lets through fails the test, as a traceback would."""
    out, err = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
        patch.setattr(sys, "argv", ["nofe", *map(str, arguments)])
        with pytest.raises(SystemExit) as end:
            main()
    code = end.value.code
    assert isinstance(code, int)
    return Answer(code, out.getvalue(), err.getvalue())


def refusal(*arguments: str | Path, code: int = 2) -> str:
    """The one line on stderr."""
    answer = command(*arguments)
    assert answer.code == code, answer
    assert answer.err.startswith("nofe: ")
    assert answer.err.count("\n") == 1, answer.err
    assert answer.err.endswith("\n")
    return answer.err.removeprefix("nofe: ").rstrip("\n")


def answered(*arguments: str | Path) -> str:
    answer = command(*arguments)
    assert answer.code == 0, answer
    assert answer.err == ""
    return answer.out


def write_animals(root: Path) -> Path:
    """Four classes of 32 x 32 noise around a colour: 8 training images each and 2 to judge by."""
    rng = np.random.default_rng(0)
    for part, count in (("train", 8), ("val", 2)):
        for name, colour in COLOURS.items():
            folder = root / part / name
            folder.mkdir(parents=True)
            for number in range(count):
                pixels = np.clip(np.array(colour) + rng.integers(-30, 31, (32, 32, 3)), 0, 255).astype(np.uint8)
                Image.fromarray(pixels).save(folder / f"{number}.png")
    return root


@pytest.fixture(scope="module")
def animals(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_animals(tmp_path_factory.mktemp("data") / "animals")


@pytest.fixture(scope="module")
def finished(animals: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that is complete."""
    folder = tmp_path_factory.mktemp("runs") / "finished"
    answered("train", "--dataset", f"folder:{animals}", *SHORT, "--out", folder)
    return folder


@pytest.fixture
def unfinished(animals: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run that was stopped in stage 1."""
    from nofe import generalist
    from nofe.errors import RunError

    def full(*_: Any, **__: Any) -> None:
        raise RunError("the disk is full")

    folder = tmp_path / "unfinished"
    with monkeypatch.context() as patch:
        patch.setattr(generalist, "train_epoch", full)
        assert refusal("train", "--dataset", f"folder:{animals}", *SHORT, "--out", folder, code=1)
    assert Run(folder).has(runs.BASE)
    return folder


def content(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


# From training to predictions


def test_a_run_holds_what_the_documentation_promises(finished: Path) -> None:
    run = Run(finished)
    for name in (runs.CONFIG, runs.ENVIRONMENT, runs.INPUT, runs.BASE, runs.GENERALIST, runs.NETWORK):
        assert run.has(name), name
    for name in (runs.SPECIALTIES, runs.PREDICTIONS, runs.SUMMARY, runs.TIME):
        assert run.has(name), name
    assert {line["stage"] for line in run.metrics()} == {"base", "generalist", "experts"}
    assert not list(finished.rglob("*.partial"))


def test_training_says_what_came_out(finished: Path, animals: Path, tmp_path: Path) -> None:
    said = answered("train", "--dataset", f"folder:{animals}", *SHORT, "--out", tmp_path / "run")
    summary = Run(tmp_path / "run").read_json(runs.SUMMARY)
    for figures in summary["networks"].values():
        assert f"{figures['accuracy']:.2%}" in said
        assert f"{figures['parameters']:,}" in said
    for name in COLOURS:
        assert name in said
    assert str(tmp_path / "run") in said
    first = f"folder:{animals}: 4 classes, 32 training and 8 test images of 32 x 32 pixels"
    assert said.splitlines()[0] == first
    seconds = Run(tmp_path / "run").read_json(runs.TIME)
    assert seconds["experts"] >= summary["networks"]["experts"]["seconds"] - 0.1
    assert f"It took {sum(seconds.values()):,.0f} s" in said
    # The same command gives the same network.
    assert Run(tmp_path / "run").read(runs.NETWORK) == Run(finished).read(runs.NETWORK)


@pytest.mark.parametrize("stream", ["true", "false"])
def test_training_says_what_it_trains_on(stream: str, tmp_path: Path) -> None:
    """In memory or on disk, and that a network for 32 x 32 sees little of a photo."""
    for number in range(20):
        folder = tmp_path / "birds" / "train" / ("crow" if number % 2 else "jay, blue")
        folder.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (200, 120), (number, 0, 0)).save(folder / f"{number}.jpg")
    settings = ["--set", f"data.stream={stream}", "--set", "until=base", "--set", "experts.epochs=1"]
    answer = command("train", "--dataset", f"folder:{tmp_path / 'birds'}", *SHORT, *settings, "--out", tmp_path / "run")
    assert answer.code == 0
    line, hint, *_ = answer.out.splitlines()
    assert line == f"folder:{tmp_path / 'birds'}: 2 classes, 16 training and 4 test images of 32 x 32 pixels"
    assert hint.startswith("The files are of about 120 pixels a side, and alexnet-quick-c100 reads 32;")


def test_evaluate_repeats_the_figures_of_the_run(finished: Path) -> None:
    figures = json.loads(answered("evaluate", finished, "--json"))
    summary = Run(finished).read_json(runs.SUMMARY)
    assert figures["images"] == 8
    assert figures["experts"]["top_1"] == summary["networks"]["experts"]["accuracy"]
    assert figures["experts"]["top_5"] == 1  # of four classes
    assert figures["base"]["top_1"] == summary["networks"]["base"]["accuracy"]
    assert figures["specialties"] == summary["specialties"]
    experts = figures["experts"]
    of_classes = [each["accuracy"]["experts"] for each in figures["classes"]]
    assert experts["mean_over_classes"] == pytest.approx(sum(of_classes) / len(of_classes))
    assert experts["top_1"] + experts["confused_inside"] + experts["confused_across"] == pytest.approx(1)
    assert sum(each["images"] for each in figures["specialties"]) == 8
    assert f"{experts['top_1']:.2%}" in answered("evaluate", finished)


def test_evaluate_writes_the_answers_for_each_image(finished: Path, animals: Path, tmp_path: Path) -> None:
    """Under the names of the files, so that they can be looked at: prediction says the same of these."""
    file = tmp_path / "new" / "answers.csv"
    said = answered("evaluate", finished, "--precision", "fp32", "--answers", file)
    assert said.endswith(f"\n{file} has the answers for each image\n")
    with file.open(encoding="utf-8", newline="") as table:
        rows = list(csv.DictReader(table))
    figures = json.loads(answered("evaluate", finished, "--precision", "fp32", "--json"))
    assert len(rows) == figures["images"]
    for stage in ("base", "experts"):
        assert sum(row[stage] == row["class"] for row in rows) == round(figures[stage]["top_1"] * len(rows))
    paths = [animals / row["image"] for row in rows]
    assert [path.parent.name for path in paths] == [row["class"] for row in rows]
    owners = {each["name"]: each["specialty"] for each in figures["classes"]}
    assert [int(row["expert"]) for row in rows] == [owners[row["class"]] for row in rows]
    predicted = json.loads(answered("predict", finished, *paths, "--precision", "fp32", "--json"))
    for row, answer in zip(rows, predicted, strict=True):
        assert row["experts"] == answer["top"][0]["class"]
        assert float(row["experts probability"]) == pytest.approx(answer["top"][0]["probability"], abs=1e-3)


def test_answers_that_cannot_be_written_are_refused_before_anything_is_judged(finished: Path, tmp_path: Path) -> None:
    assert f"{tmp_path}: is a folder; name another file" in refusal("evaluate", finished, "--answers", tmp_path)


def test_evaluate_says_where_base_and_experts_differ(finished: Path) -> None:
    figures = json.loads(answered("evaluate", finished, "--json"))
    for stage in ("base", "experts"):
        each = figures[stage]
        assert each["top_1"] + each["confused_inside"] + each["confused_across"] == pytest.approx(1)
        right = sum(c["images"] * c["accuracy"][stage] for c in figures["classes"])
        assert right == pytest.approx(8 * each["top_1"])
    assert [each["name"] for each in figures["classes"]] == sorted(COLOURS)
    specialty_of = {each["name"]: each["specialty"] for each in figures["classes"]}
    for pair in figures["pairs"]:
        assert [specialty_of[name] for name in pair["names"]] == pair["specialties"]
        assert pair["inside"] == (len(set(pair["specialties"])) == 1)
        assert pair["images"] == 4
    alone = figures["alone"]
    assert alone["experts"] - alone["base"] == round(8 * (figures["experts"]["top_1"] - figures["base"]["top_1"]))
    said = answered("evaluate", finished)
    assert alone_in_words(Alone(alone["experts"], alone["base"])) in said
    assert re.search(r"Of \d+ images the experts take .* the base for another class", said)
    assert "confused inside" in said.split("\n\n")[1]
    wrong = figures["base"]["top_1"] < 1
    assert ("pair that the base confuses most" in said) == wrong
    changed = any(each["accuracy"]["base"] != each["accuracy"]["experts"] for each in figures["classes"])
    assert ("class that" in said) == changed


def test_a_run_that_ends_with_its_bases_is_evaluated_too(animals: Path, tmp_path: Path) -> None:
    until = [*SHORT, "--dataset", f"folder:{animals}", "--base", "both", "--set", "base.paper.epochs=1", "--set"]
    said = answered("train", *until, "until=base", "--out", tmp_path / "bases")
    assert said.endswith(f"The run is in {tmp_path / 'bases'}; next: nofe evaluate {tmp_path / 'bases'}\n")
    figures = json.loads(answered("evaluate", tmp_path / "bases", "--json"))
    networks = Run(tmp_path / "bases").read_json(runs.SUMMARY)["networks"]
    assert {name: figures[name]["top_1"] for name in networks} == {
        name: each["accuracy"] for name, each in networks.items()
    }
    assert networks.keys() == {"base", "base-paper"}
    assert "base-paper" in answered("evaluate", tmp_path / "bases")
    assert [each["accuracy"].keys() for each in figures["classes"]] == 4 * [networks.keys()]
    assert "has until=base, and a page is of experts" in refusal("report", tmp_path / "bases")


def test_each_network_is_judged_by_the_crop_of_its_own_recipe(
    animals: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the run, by `evaluate` after it, and by the ten crops of an experiment."""
    run, predict = tmp_path / "run", evaluation.predict
    crops: list[int] = []

    def noting(model: nn.Module, images: DeviceImages, crop: int, *rest: Any) -> Predictions:
        crops.append(crop)
        return predict(model, images, crop, *rest)

    monkeypatch.setattr(evaluation, "predict", noting)
    network = [*SHORT, "--architecture", "timm:test_resnet@32"]  # which reads images of any size
    base = ["--base", "paper", "--set", "base.paper.epochs=1", "--set", "base.paper.augmentation.crop=20"]
    answered("train", "--dataset", f"folder:{animals}", *network, *base, "--out", run)
    figures = json.loads(answered("evaluate", run, "--json"))
    for stage, each in Run(run).read_json(runs.SUMMARY)["networks"].items():
        if stage != "generalist":
            assert (figures[stage]["top_1"], figures[stage]["top_5"]) == (each["accuracy"], each["top_5"])
    assert ten_crops(run, make_runtime("cpu")).keys() == {"base-paper", "experts"}
    assert crops == 3 * [20, 32]


def test_specialties_alone_are_no_classifier(animals: Path, tmp_path: Path) -> None:
    settings = [*SHORT, "--dataset", f"folder:{animals}", "--base", "none", "--set", "until=specialties"]
    said = answered("train", *settings, "--out", tmp_path / "run")
    assert said.endswith(f"The run is in {tmp_path / 'run'}; next: nofe specialties {tmp_path / 'run'}\n")
    assert "has specialties and no classifier; train experts" in refusal("evaluate", tmp_path / "run")
    assert ten_crops(tmp_path / "run", make_runtime("cpu")) == {}


def test_specialties_are_a_partition_of_the_classes(finished: Path) -> None:
    described = json.loads(answered("specialties", finished, "--json"))
    assert [each["size"] for each in described["specialties"]] == [2, 2]
    assert sorted(name for each in described["specialties"] for name in each["class_names"]) == sorted(COLOURS)
    lines = answered("specialties", finished).splitlines()
    for line, each in zip(lines, described["specialties"], strict=True):
        assert line.endswith(", ".join(each["class_names"]))


def test_predict_names_classes_with_the_experts_that_own_them(finished: Path, animals: Path) -> None:
    pictures = [animals / "val" / "dog" / "1.png", animals / "train" / "ant"]
    answers = json.loads(answered("predict", finished, *pictures, "--json"))
    assert [answer["file"] for answer in answers] == [
        str(pictures[0]),
        *(str(pictures[1] / f"{number}.png") for number in range(8)),
    ]
    described = json.loads(answered("specialties", finished, "--json"))
    expert_of = {name: each["index"] for each in described["specialties"] for name in each["class_names"]}
    for answer in answers:
        probabilities = [each["probability"] for each in answer["top"]]
        assert sorted(each["class"] for each in answer["top"]) == sorted(COLOURS)
        assert sum(probabilities) == pytest.approx(1, abs=1e-5)
        assert probabilities == sorted(probabilities, reverse=True)
        assert all(each["expert"] == expert_of[each["class"]] for each in answer["top"])
    [best] = json.loads(answered("predict", finished, pictures[0], "--top", "1", "--json"))
    assert best["top"] == answers[0]["top"][:1]
    assert best["top"][0]["probability"] <= 1
    assert best["top"][0]["class"] in answered("predict", finished, pictures[0], "--top", "1")


def test_predict_and_the_test_images_of_the_run_agree(finished: Path, animals: Path) -> None:
    """The same picture, once as a file and once as a part of the data set."""
    with np.load(io.BytesIO(Run(finished).read(runs.PREDICTIONS))) as stored:
        classes, probabilities = stored["classes"], stored["probabilities"]
    answers = json.loads(answered("predict", finished, animals / "val", "--json"))
    names = sorted(COLOURS)
    for answer, expected, probability in zip(answers, classes, probabilities, strict=True):
        assert [each["class"] for each in answer["top"]] == [names[c] for c in expected]
        np.testing.assert_allclose([each["probability"] for each in answer["top"]], probability, atol=1e-5)


def test_an_exported_network_answers_as_predict_does(finished: Path, animals: Path, tmp_path: Path) -> None:
    file = tmp_path / "new" / "animals.pt2"
    said = f"{file} is written; {file}.json says what it reads and gives\n"
    assert answered("export", finished, file) == said
    photo, about = animals / "val" / "dog" / "1.png", json.loads(Path(f"{file}.json").read_text())
    [shares] = torch.export.load(file).module()(nofe.load(finished).read(photo)).softmax(1)
    [answer] = json.loads(answered("predict", finished, photo, "--json"))
    by_name = {each["class"]: each["probability"] for each in answer["top"]}
    assert dict(zip(about["classes"], shares.tolist(), strict=True)) == pytest.approx(by_name, abs=1e-4)
    assert "animals.h5: unknown kind of file" in refusal("export", finished, tmp_path / "animals.h5")


@pytest.mark.parametrize("verb", ["evaluate", "predict"])
def test_what_answers_is_fused_and_compiled_on_request(
    verb: str, finished: Path, animals: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The compiler itself is left out: what it makes of a frozen network is tested there."""
    asked = []

    def note(network: nn.Module, runtime: Runtime) -> None:
        asked.append((bool(runtime.compile), [type(part).__name__ for part in network.children()]))

    monkeypatch.setattr("nofe.frozen.compile_blocks", note)
    pictures = [animals / "val"] if verb == "predict" else []
    plain = answered(verb, finished, *pictures)
    assert asked
    assert all(not compiled for compiled, _ in asked)
    asked.clear()
    assert answered(verb, finished, *pictures, "--compile") == plain
    assert asked
    assert all(compiled for compiled, _ in asked)
    assert any("FusedExperts" in parts for _, parts in asked)


@pytest.mark.parametrize("verb", ["evaluate", "predict"])
def test_the_precision_of_an_answer_is_the_runs_or_what_is_asked_for(
    verb: str, finished: Path, animals: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    used: list[str] = []
    monkeypatch.setattr("nofe.frozen.compile_blocks", lambda _, runtime: used.append(runtime.precision))
    run, opened = {}, open_finished(finished)
    monkeypatch.setattr(inference, "open_finished", lambda _: run["opened"])
    given = [finished, *([animals / "val"] if verb == "predict" else [])]
    for asked, of_run, precision in (
        ([], "auto", "fp32"),
        ([], "bf16", "bf16"),
        (["--precision", "bf16"], "auto", "bf16"),
        (["--precision", "fp32"], "bf16", "fp32"),
        (["--precision", "auto"], "bf16", "fp32"),
    ):
        used.clear()
        run["opened"] = replace(opened, config=replace(opened.config, precision=of_run))
        answered(verb, *given, "--device", "cpu", *asked)
        assert set(used) == {precision}, (asked, of_run)
    told = "--precision fp16: unknown; choose one of auto, bf16, tf32, fp32"
    assert refusal(verb, *given, "--precision", "fp16") == told


def test_resume_needs_no_option_but_out(unfinished: Path, finished: Path) -> None:
    base = Run(unfinished).read(runs.BASE)
    said = answered("train", "--out", unfinished, "--resume")
    assert "base " not in said.split("network")[0]  # its epochs are not trained again
    for name in (runs.BASE, runs.GENERALIST, runs.SPECIALTIES, runs.NETWORK):
        assert Run(unfinished).read(name) == Run(finished).read(name)
    assert Run(unfinished).read(runs.BASE) == base


def test_a_misspelt_run_is_not_gone_on_with_as_another(finished: Path, animals: Path) -> None:
    brids = finished.parent / "brids"
    told = (
        f"{brids}: no run is here (there is no config.json); name the folder of one (beside it: {finished}), or a data "
        "set to begin a run on"
    )
    assert refusal("train", "--out", brids, "--resume") == told
    assert refusal("train", "--out", brids, "--resume", "--set", "experts.epochs=1", "--seed", "1") == told
    with pytest.raises(nofe.NofeError, match="or a data set to begin a run on"):
        nofe.train(brids, resume=True, quiet=True)
    assert not brids.exists()


def test_resume_without_a_folder_is_of_the_usual_one(
    finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And begins no run that nobody asked for: `nofe train --resume` of somebody who forgot --out trained the demo."""
    monkeypatch.chdir(tmp_path)
    usual = Path("runs") / "glyphs-small-k10"
    beside = shutil.copytree(finished, usual.with_name("another"))
    told = f"{usual}: no run is here (there is no config.json); name the folder of one (beside it: {beside}), or a data"
    assert refusal("train", "--resume").startswith(told)
    assert not usual.exists()
    beside.rename(usual)
    assert f"{usual}: this run is complete" in answered("train", "--resume")  # whatever it was configured as


def test_paths_may_begin_at_home(finished: Path, animals: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(finished.parent))
    run = f"~/{finished.name}"
    picture = finished.parent / "home.png"
    shutil.copy(animals / "val" / "ant" / "0.png", picture)
    try:
        assert answered("evaluate", run) == answered("evaluate", finished)
        assert answered("specialties", run) == answered("specialties", finished)
        assert answered("predict", run, "~/home.png") == answered("predict", finished, picture)
        network = nofe.load(run)
        assert torch.equal(network.read("~/home.png"), network.read([picture]))
    finally:
        picture.unlink()
    nobody = "~nobody-of-this-name"
    assert f"{nobody}/run: no run is here" in refusal("evaluate", f"{nobody}/run")
    train = ("train", "--dataset", f"folder:{animals}", *SHORT, "--out", finished.parent / "other")
    assert f"data.test={nobody}: neither a fraction" in refusal(*train, "--set", f"data.test={nobody}")
    assert nobody in refusal(*train, "--weights", f"{nobody}/weights.pt")
    assert "holds a run already" in refusal(*train[:-1], run)


def test_a_run_is_no_folder_of_images(finished: Path, tmp_path: Path) -> None:
    told = f"{finished}: is the folder of a run, not of images; name the folder that its images lie in"
    assert refusal("train", "--dataset", f"folder:{finished}", *SHORT, "--out", tmp_path / "run") == told
    assert refusal("pack", finished, tmp_path / "packed") == told
    assert refusal("evaluate", finished, "--dataset", f"folder:{finished}") == told


def test_resuming_a_complete_run_changes_nothing(finished: Path) -> None:
    before = content(finished)
    assert "this run is complete; its images are not read again" in answered("train", "--out", finished, "--resume")
    assert content(finished) == before


def test_list_names_everything_there_is() -> None:
    listed = answered("list")
    for name in (*ARCHITECTURES, *DATASETS, *RULES, *SUMMARIES):
        assert f"  {name} " in listed


def test_a_recipe_by_name(animals: Path, finished: Path, tmp_path: Path) -> None:
    """It is that of all stages, --set changes its fields, and the page says what it is."""
    out = tmp_path / "run"
    epochs = ("experts.epochs=2", "generalist.epochs=2", "experts.warmup_epochs=0.5", "generalist.warmup_epochs=0.5")
    settings = [word for setting in (*epochs, "experts.ema=0.9") for word in ("--set", setting)]
    options = ("--recipe", "modern", "--architecture", "small", "--experts", "2", "--device", "cpu", "--out", out)
    answered("train", "--dataset", f"folder:{animals}", *options, *settings)
    config = json.loads((out / "config.json").read_text())
    for recipe in (config["generalist"], config["experts"]):
        assert (recipe["optimizer"], recipe["nesterov"], recipe["schedule"]) == ("sgd", True, "cosine")
        assert (recipe["rate"], recipe["label_smoothing"]) == (0.1, 0.1)
    rates = [line["rate"] for line in Run(out).metrics() if line["stage"] == "base"]
    assert rates[-1] < 0.1
    assert "SGD with Nesterov's momentum; warm-up of 0.5 epochs; cosine" in (out / "report.html").read_text().replace(
        "&#x27;", "'"
    )
    told = refusal("train", "--out", finished, "--resume", "--recipe", "modern")
    assert f"--recipe modern: the run in {finished} has its own; leave it out" in told
    assert "--recipe modren: there is none; did you mean 'modern'?" in refusal("train", "--recipe", "modren")


def test_groups_of_a_file(animals: Path, tmp_path: Path) -> None:
    """As many experts as groups, whatever --experts would be by default."""
    groups = tmp_path / "groups.json"
    groups.write_text(json.dumps({"small": ["bee", "ant"], "large": ["dog"], "other": ["cow"]}))
    options = ["--rule", "groups", "--set", f"specialties.groups={groups}", "--base", "none", "--device", "cpu"]
    short = ["--architecture", "alexnet-quick-c100", "--set", "experts.epochs=1", "--set", "generalist.epochs=1"]
    answered("train", "--dataset", f"folder:{animals}", *options, *short, "--out", tmp_path / "run")
    described = json.loads(answered("specialties", tmp_path / "run", "--json"))
    assert [each["class_names"] for each in described["specialties"]] == [["ant", "bee"], ["dog"], ["cow"]]


def test_a_network_that_cannot_be_compiled_gets_advice(animals: Path, tmp_path: Path) -> None:
    """Whatever the network is, it can be trained; the compiler's own complaint is a page long."""
    from torch._dynamo.exc import InternalTorchDynamoError

    def fail(*_: object, **__: object) -> None:
        raise InternalTorchDynamoError("Error in a call\n  Explanation: no way to trace this\n  Hint: ...\n")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("nofe.pipeline.train", fail)
        said = refusal("train", "--dataset", f"folder:{animals}", *SHORT, "--out", tmp_path / "run", code=1)
    assert "no way to trace this" in said
    assert "--no-compile" in said
    assert "Hint" not in said


# Help, and how fast it is there


def test_help_does_not_wait_for_torch() -> None:
    script = """
import sys
from nofe.__main__ import main
for arguments in (["--help"], ["train", "--help"], ["--version"]):
    sys.argv = ["nofe", *arguments]
    try:
        main()
    except SystemExit as end:
        assert not end.code
print([name for name in ("torch", "numpy", "PIL", "matplotlib", "sklearn", "scipy") if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert "predict" in done.stdout
    assert "--experts" in done.stdout
    *_, versions, imported = done.stdout.splitlines()
    assert versions == f"nofe {version('nofe')}, torch {version('torch')}, Python {platform.python_version()}"
    assert imported == "[]"


def test_as_a_program() -> None:
    """The exit code and the one line reach the shell, and `python -m nofe` is nofe."""
    done = subprocess.run([sys.executable, "-m", "nofe", "trian"], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "nofe: No such command 'trian'. Did you mean 'train'?; see nofe --help\n"


def test_without_a_command_there_is_help() -> None:
    assert answered() == answered("--help")
    assert "Measure and reproduce" in answered()


# What a user can type wrong


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["--epochs", "5"],
            "No such option: --epochs; use --set generalist.epochs=5 --set experts.epochs=5; see nofe train --help",
        ),
        (["--lr=0.1"], "No such option: --lr; use --set generalist.rate=0.1 --set experts.rate=0.1; see nofe train"),
        (["--batch-size"], "use --set generalist.batch=VALUE --set experts.batch=VALUE"),
        (["--hold_out", "0.1"], "No such option: --hold_out; use --set data.hold_out=0.1;"),
        (["--model", "small"], "No such option: --model; use --architecture small; see nofe train --help"),
        (["-k", "5"], "No such option: -k; use --experts 5; see nofe train --help"),
        (["--expert", "5"], "No such option: --expert; use --experts 5; see nofe train --help"),
        (["--nonsense", "5"], "No such option: --nonsense"),
        (["--experts", "five"], "--experts"),
        (["--experts"], "--experts"),
        (["surplus"], "surplus"),
        (["--seed", "1.5"], "--seed"),
        (["--seed", "-1"], "seed=-1: out of range; use 0 or more"),
        (["--experts", "1"], "--experts 1: a network of experts needs at least 2"),
        (["--experts", "-3"], "--experts -3: a network of experts needs at least 2"),
        (["--experts", "5"], "--experts 5: more than the 4 classes of folder:"),
        (["--architecture", "alexnett"], "architecture 'alexnett': no network has this name; did you mean 'alexnet-"),
        (["--architecture", "zzz"], "no network has this name; choose from alexnet-c100"),
        (["--reuse", "nowhere"], "--reuse nowhere: no run is here (there is no config.json); name the folder of one"),
        (["--rule", "balanced"], "rule 'balanced': there is none; did you mean 'fully-balanced'?"),
        (["--rule", "groups"], "set both or neither"),
        (["--base", "nothing"], "'nothing' is not one of experts, paper, both, none"),
        (["--base", "none", "--rule", "spectral"], "base.by=none"),
        (["--set", "generalist.epoch=5"], "GeneralistConfig has no field 'epoch'; did you mean 'epochs'?"),
        (["--set", "generalist.epochs"], "has no '='"),
        (["--set", "generalist.epochs=0"], "epochs=0: out of range"),
        (["--set", "experts.augmentation.crop=20"], "crop=20: alexnet-quick-c100 cannot read images of this size"),
        (["--set", "generalist.augmentation.crop=33"], "crop=33: larger than the images of 32 pixels"),
        (["--set", "base.by=paper", "--set", "base.paper.augmentation.crop=20"], "base.paper.augmentation.crop=20"),
        (["--set", "architecture=zzz"], "architecture 'zzz': no network has this name"),
        (["--device", "gpu"], "--device gpu: unknown; choose one of auto, cuda, mps, cpu"),
        (["--device", "cuda:one"], "--device cuda:one: unknown"),
        (["--precision", "fp16"], "--precision fp16: unknown; choose one of auto, bf16, tf32, fp32"),
        (["--capture"], "--capture: only a CUDA device"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_options_of_train(arguments: list[str], message: str, animals: Path, tmp_path: Path) -> None:
    known = ["train", "--dataset", f"folder:{animals}", *SHORT, "--out", str(tmp_path / "run")]
    assert message in refusal(*known, *arguments)
    assert not (tmp_path / "run" / runs.CONFIG).exists()  # no run has begun


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_device_that_is_not_there() -> None:
    assert "PyTorch sees no GPU here; use --device cpu" in refusal("train", "--device", "cuda")


@pytest.mark.parametrize(
    ("arguments", "instead"),
    [
        (
            ["sweep", "--wd", "0.1"],
            "use --set generalist.weight_decay=0.1 --set experts.weight_decay=0.1; see nofe sweep --help",
        ),
        (["sweep", "--seed", "2"], "use --seeds 2; see nofe sweep --help"),
        (["evaluate", "run", "--data", "folder:birds"], "use --dataset folder:birds; see nofe evaluate --help"),
        (["bench", "--k", "5"], "use --experts 5; see nofe bench --help"),
        (["bench", "data", "--num-workers=3"], "use --workers 3; see nofe bench data --help"),
        (["predict", "run", "--epochs", "5"], "option: --epochs; see nofe predict --help"),  # it has no --set
        (["train", "--no-resume"], "--resume, --reuse); see nofe train --help"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_an_option_that_a_command_does_not_have_is_answered_with_what_it_has(
    arguments: list[str], instead: str
) -> None:
    assert refusal(*arguments).endswith(instead)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("cifar", "cifar: no such data set; did you mean 'cifar1"),
        ("nonsense", "nonsense: no such data set; choose from glyphs, cifar100, cifar10, folder:PATH"),
        ("folder:", "no folder is named; write folder:PATH"),
        ("folder:nowhere", "nowhere: no such folder"),
        ("{animals}", "not a data set's name but a folder; did you mean 'folder:"),
        ("folder:{animals}/val/ant", "holds no class folders; sort the images into one folder a class"),
        ("shards:{animals}", "holds no .tar files; make some with nofe pack"),
        ("hf:{animals}/nowhere", "no such folder; name one that datasets.save_to_disk wrote"),
        ("folder:{animals}/train/ant/0.png", "not a folder"),
    ],
)
def test_data_sets_that_are_none(name: str, message: str, animals: Path, tmp_path: Path) -> None:
    assert message in refusal("train", *SHORT, "--dataset", name.format(animals=animals), "--out", tmp_path / "run")


def test_data_sets_that_are_broken(tmp_path: Path) -> None:
    animals = write_animals(tmp_path / "animals")

    def told(*more: str) -> str:
        out = ["--out", str(tmp_path / "run")]
        return refusal("train", "--dataset", f"folder:{animals}", *SHORT, *out, *more)

    (animals / "train" / "eel").mkdir()
    assert "eel: holds no images" in told()
    (animals / "train" / "eel").rmdir()
    (animals / "val" / "eel").mkdir()
    assert "class 'eel' is not in train/" in told()
    (animals / "val" / "eel").rmdir()
    (animals / "train" / "ant" / "0.png").write_bytes(b"not an image")
    assert "1 of 40 images cannot be read: train/ant/0.png (not JPEG" in told()
    assert "pass --skip-unreadable" in told()
    answer = command(
        *("train", "--dataset", f"folder:{animals}", *SHORT, "--out", tmp_path / "skipped", "--skip-unreadable")
    )
    assert answer.code == 0
    described = Run(tmp_path / "skipped").read_json(runs.ENVIRONMENT)
    assert described["data"]["classes"] == sorted(COLOURS)
    for name in COLOURS:
        for file in (animals / "train" / name).iterdir():
            file.unlink()
        (animals / "train" / name).rmdir()
    assert "train: holds no class folders" in told()


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        ("superclass", "(none) nor a readable JSON file (No such file or directory); write {"),
        (
            '{"a": ["ant", "bee"], "b": ["cow", "cat"]}',
            "'cat' is no class of the data, 'dog' is in no group; name every",
        ),
        ('{"a": ["ant"], "b": ["cow"]}', "'bee' is in no group (2 such names); name every class once"),
        ('{"a": ["ant", "bee"], "b": ["cow", "dog", "ant"]}', "'ant' is named twice; name every class once"),
        ('{"a": ["ant", "bee", "cow", "dog"]}', "has 1 group; experts need two or more"),
        ('{"a": ["ant", "bee"], "b": ["cow", "dog", 1, "x"]}', "group 'b' is not a list of class names"),
        ('{"a": ["ant", "bee"], "b": ["cow", "dog"], "c": []}', "group 'c' is not a list of class names"),
        ('{"a": 5}', "group 'a' is not a list of class names"),
        ("[]", "is not an object of groups"),
        ("{", "nor a readable JSON file (Expecting property name enclosed in double quotes: line 1 column 2"),
    ],
)
def test_groups_that_are_none(groups: str, message: str, animals: Path, tmp_path: Path) -> None:
    """Told before the base is trained for hours."""
    file = tmp_path / "groups.json"
    file.write_text(groups)
    named = groups if groups == "superclass" else file
    options = ["--rule", "groups", "--set", f"specialties.groups={named}", "--out", tmp_path / "run"]
    assert message in refusal("train", "--dataset", f"folder:{animals}", *SHORT, *options)
    assert not (tmp_path / "run" / runs.BASE).exists()


@pytest.mark.parametrize(
    ("setting", "stage", "advice"),
    [
        ("experts.rate=1e12", "base", "--set experts.rate=1e+11"),
        ("generalist.rate=1e12", "generalist", "--set generalist.rate=1e+11"),
        ("base.paper.rate=1e12", "base-paper", "--set base.paper.rate=1e+11"),
    ],
)
def test_a_loss_that_is_not_finite(setting: str, stage: str, advice: str, animals: Path, tmp_path: Path) -> None:
    options = ["--set", setting, "--out", tmp_path / "run"]
    if stage == "base-paper":
        options += ["--base", "paper"]
    told = refusal("train", "--dataset", f"folder:{animals}", *SHORT, *options, code=1)
    assert told.startswith(f"{stage}: the loss is not finite in epoch ")
    assert advice in told
    # The advice can be followed: it names a field.
    from nofe.config import with_settings
    from nofe.recipes import default_run

    with_settings(default_run(), [advice.removeprefix("--set ")])


def test_out_is_a_file(animals: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    for out in (tmp_path / "file", tmp_path / "file" / "run"):
        assert "--out" in refusal("train", "--dataset", f"folder:{animals}", *SHORT, "--out", out)
    assert (tmp_path / "file").read_text() == "mine"


def test_a_folder_that_holds_a_run(finished: Path, animals: Path) -> None:
    before = content(finished)
    known = ["train", "--dataset", f"folder:{animals}", *SHORT, "--out", finished]
    assert "holds a run already; go on with --resume" in refusal(*known)
    assert "was started with another configuration (seed was 0, is 1)" in refusal(*known, "--resume", "--seed", "1")
    told = refusal("train", "--out", finished, "--resume", "--rule", "exact", "--dataset", "glyphs")
    assert "data.name was folder:" in told
    assert "specialties.rule was fully-balanced, is exact" in told
    assert content(finished) == before


def test_a_folder_in_use(unfinished: Path) -> None:
    before = content(unfinished)
    with (unfinished / runs.LOCK).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert "in use by another process" in refusal("train", "--out", unfinished, "--resume")
    assert content(unfinished) == before


def test_a_configuration_that_was_tampered_with(unfinished: Path) -> None:
    file = unfinished / runs.CONFIG
    file.write_text(file.read_text().replace('"seed": 0', '"seed": 1'))
    told = refusal("train", "--out", unfinished, "--resume", code=1)
    assert "config.json: content changed since it was written; put the old one back, or start a new run" in told
    assert "config.json: content changed" in refusal("evaluate", unfinished, code=1)


def test_killed_before_the_configuration_was_listed(unfinished: Path, finished: Path) -> None:
    """As if the process had died after config.json was written and before the manifest was."""
    manifest = json.loads((unfinished / runs.MANIFEST).read_text())
    kept = {name: digest for name, digest in manifest.items() if name in (runs.ENVIRONMENT, runs.INPUT)}
    (unfinished / runs.MANIFEST).write_text(json.dumps(kept))
    answered("train", "--out", unfinished, "--resume")
    assert Run(unfinished).read(runs.NETWORK) == Run(finished).read(runs.NETWORK)


def what_else(verb: str, animals: Path, tmp_path: Path) -> list[Path]:
    """Such a command is given beside a run."""
    return {"predict": [animals / "val" / "ant" / "0.png"], "export": [tmp_path / "network.pt2"]}.get(verb, [])


@pytest.mark.parametrize("verb", ["evaluate", "predict", "specialties", "export"])
@pytest.mark.parametrize("what", ["nothing", "a folder", "a file", "somebody else's"])
def test_a_run_that_is_none(verb: str, what: str, animals: Path, tmp_path: Path) -> None:
    path = tmp_path / "run"
    if what == "a file":
        path.write_text("text")
    elif what != "nothing":
        path.mkdir()
    if what == "somebody else's":
        (path / runs.CONFIG).write_text("{}")
    given = (verb, path, *what_else(verb, animals, tmp_path))
    told = refusal(*given)
    assert str(path) in told
    assert ("name the folder of one" in told) == (what != "somebody else's")
    if verb != "specialties":  # which runs no code
        assert refusal(*given, "--trust-code") == told


def test_runs_that_may_have_been_meant_are_named(finished: Path, tmp_path: Path) -> None:
    for number in range(7):
        shutil.copytree(finished, tmp_path / "runs" / f"run-{number}")
    named = ", ".join(str(tmp_path / "runs" / f"run-{number}") for number in range(5))
    assert refusal("evaluate", tmp_path / "runs").endswith(f"name the folder of one (inside: {named} and 2 more)")
    assert refusal("evaluate", tmp_path).endswith(f"name the folder of one (inside: {named} and 2 more)")
    told = refusal("evaluate", tmp_path / "runs" / "rnu-1")
    assert told.endswith(f"name the folder of one (beside it: {named} and 2 more)")
    assert refusal("evaluate", tmp_path / "elsewhere").endswith("(there is no config.json); name the folder of one")


@pytest.mark.parametrize("verb", ["evaluate", "predict", "specialties", "export"])
def test_a_run_that_is_not_finished(verb: str, unfinished: Path, animals: Path, tmp_path: Path) -> None:
    told = refusal(verb, unfinished, *what_else(verb, animals, tmp_path))
    assert f"is the run complete? go on with nofe train --out {unfinished} --resume" in told


def test_damaged_weights(finished: Path, animals: Path) -> None:
    file = finished / runs.NETWORK
    good = file.read_bytes()
    file.write_bytes(good[:-1] + bytes([good[-1] ^ 1]))
    try:
        assert "network.safetensors: content changed" in refusal("evaluate", finished, code=1)
    finally:
        file.write_bytes(good)


def test_predict_on_what_is_no_image(finished: Path, animals: Path, tmp_path: Path) -> None:
    text, empty = tmp_path / "text.png", tmp_path / "empty"
    text.write_text("text")
    empty.mkdir()
    told = "1 of 1 files cannot be read as images (first: {}, not JPEG,"
    assert told.format(text) in refusal("predict", finished, text)
    nowhere = tmp_path / "nowhere.png"
    assert refusal("predict", finished, nowhere) == f"{nowhere}: no such file; check the path"
    beside = command("predict", finished, nowhere, animals / "val" / "ant" / "0.png")
    assert beside.out.count("class ") == 1
    told_beside = (
        f"1 of 2 files cannot be read as images (first: {nowhere}, no such file or directory); check the paths"
    )
    assert (beside.code, beside.err) == (2, f"nofe: {told_beside}\n")
    assert "empty: holds no images" in refusal("predict", finished, empty)
    assert "Missing argument" in refusal("predict", finished)
    assert "--top" in refusal("predict", finished, text, "--top", "0")


@pytest.mark.parametrize("at_once", [1, 3, 64])
def test_one_bad_file_loses_no_other_prediction(
    at_once: int, finished: Path, animals: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In any batch, alone in it or among others."""
    monkeypatch.setattr(inference, "FILES_AT_ONCE", at_once)
    good = sorted((animals / "val").rglob("*.png"))
    alone = json.loads(answered("predict", finished, *good, "--json"))
    bad = tmp_path / "bad.png"
    bad.write_bytes(good[0].read_bytes()[:200])
    files = [*good[:4], bad, *good[4:], bad]
    answer = command("predict", finished, *files, "--json")
    assert answer.code == 2
    assert f"2 of 10 files cannot be read as images (first: {bad}, truncated)" in answer.err
    answers = json.loads(answer.out)
    assert [each["file"] for each in answers] == [str(file) for file in files]
    assert [each for each in answers if "error" in each] == 2 * [{"file": str(bad), "error": "truncated"}]
    for found, expected in zip([each for each in answers if "top" in each], alone, strict=True):
        assert [each["class"] for each in found["top"]] == [each["class"] for each in expected["top"]]
    text = command("predict", finished, *files)
    assert text.code == 2
    assert f"{bad}\ncannot be read: truncated\n\n{good[4]}\nclass " in text.out


def test_a_batch_larger_than_the_data_is_told_of(animals: Path, tmp_path: Path) -> None:
    options = ["--set", "experts.batch=64", "--set", "until=base", "--set", "experts.epochs=1"]
    said = answered("train", "--dataset", f"folder:{animals}", *SHORT, *options, "--out", tmp_path / "run")
    cut = "experts.batch=64: more than there are training images, so a step sees all 32 of them"
    assert said.splitlines()[1] == cut


def test_predictions_come_as_batches_are_done(finished: Path, animals: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inference, "FILES_AT_ONCE", 2)
    read: list[int] = []
    monkeypatch.setattr(
        inference,
        "read_readable_images",
        lambda files, size: read.append(len(files)) or read_readable_images(files, size),
    )
    answers = inference.predict_files(finished, [animals / "val"], 1, make_runtime("cpu"))
    next(answers), next(answers)
    assert read == [2]
    assert len(list(answers)) == 6


def test_evaluate_without_the_data(animals: Path, tmp_path: Path) -> None:
    moved = write_animals(tmp_path / "animals")
    answered("train", "--dataset", f"folder:{moved}", *SHORT, "--base", "none", "--out", tmp_path / "run")
    moved.rename(tmp_path / "elsewhere")
    told = f"{moved}: no such folder, and the images of {tmp_path / 'run'} were there; say where they are now with "
    assert refusal("evaluate", tmp_path / "run") == f"{told}--dataset folder:PATH"
    assert command("evaluate", tmp_path / "run", "--dataset", f"folder:{tmp_path / 'elsewhere'}").code == 0
    (tmp_path / "elsewhere" / "train" / "ant").rename(tmp_path / "elsewhere" / "train" / "ape")
    (tmp_path / "elsewhere" / "val" / "ant").rename(tmp_path / "elsewhere" / "val" / "ape")
    (tmp_path / "elsewhere").rename(moved)
    assert "has other classes than the run" in refusal("evaluate", tmp_path / "run")


# From Python


def test_the_public_names() -> None:
    assert len(nofe.__all__) == 13
    for name in nofe.__all__:
        assert getattr(nofe, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        nofe.nonsense  # noqa: B018
    assert issubclass(nofe.NofeError, Exception)
    assert nofe.__version__ == version("nofe")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """From images in memory."""
    folder = tmp_path_factory.mktemp("runs") / "memory"
    settings = {"experts.epochs": 2, "generalist.epochs": 2, "experts.drops": [0.5], "base.by": "none"}
    summary = nofe.train(
        folder,
        small_dataset(),
        "alexnet-quick-c100",
        experts=3,
        rule="exact",
        settings=settings,
        device="cpu",
        quiet=True,
    )
    return folder, summary


def test_resuming_from_python_needs_no_settings_again(trained: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(trained[0], folder)
    (folder / runs.NETWORK).unlink()
    again = nofe.train(folder, small_dataset(), resume=True, device="cpu", quiet=True)
    assert again["networks"]["experts"]["accuracy"] == trained[1]["networks"]["experts"]["accuracy"]
    assert again["config"] == trained[1]["config"]
    with pytest.raises(nofe.NofeError, match=r"specialties.count was 3, is 2"):
        nofe.train(folder, small_dataset(), experts=2, resume=True, device="cpu", quiet=True)


def test_reuse_from_python(
    trained: tuple[Path, dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nofe.pipeline.train_generalist", lambda *_: pytest.fail("is trained again"))
    first, out = trained[0], tmp_path / "run"
    settings = {"experts.epochs": 1, "generalist.epochs": 2, "base.by": "none"}
    given = {"rule": "exact", "settings": settings, "quiet": True, "device": torch.device("cpu")}
    nofe.train(out, small_dataset(), "alexnet-quick-c100", 3, reuse=first, kernels="together", **given)
    assert Run(out).read(runs.GENERALIST) == Run(first).read(runs.GENERALIST)
    with pytest.raises(nofe.NofeError, match=r"^--reuse .*absent: no run is here"):
        nofe.train(tmp_path / "other", small_dataset(), reuse=[tmp_path / "absent"], **given)
    assert not (tmp_path / "other").exists()


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"rule": exact}, r"^rule: not a name of nofe list but function; with one of your own, alternate by hand"),
        ({"recipe": SMALL.experts}, r"^recipe: not a name of nofe list but ExpertsConfig; its fields are changed"),
        (
            {"settings": ["experts.epochs=1"]},
            r"^settings: not a dictionary but list; give one such as \{'generalist\.epochs",
        ),
        ({"settings": "experts.epochs=1"}, r"^settings: not a dictionary but str"),
    ],
)
def test_what_is_no_name_and_no_dictionary(given: dict[str, Any], told: str, tmp_path: Path) -> None:
    with pytest.raises(nofe.NofeError, match=told):
        nofe.train(tmp_path / "run", "glyphs", quiet=True, **given)


def test_a_run_is_not_made_among_its_images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    animals = write_animals(tmp_path / "animals") / "train"
    monkeypatch.chdir(animals)
    for verb in ("train", "sweep"):
        told = refusal(verb, "--dataset", "folder:.", *SHORT)
        assert "would lie among the images of folder:., and be read as a class; name another folder with --out" in told
    assert sorted(path.name for path in animals.iterdir()) == sorted(COLOURS)


def test_training_on_images_in_memory(trained: tuple[Path, dict[str, Any]]) -> None:
    folder, summary = trained
    assert summary == Run(folder).read_json(runs.SUMMARY)
    assert summary["config"]["experts"]["epochs"] == 2
    assert summary["networks"].keys() == {"generalist", "experts"}
    assert sorted(each["classes"] for each in summary["specialties"]) == [2, 3, 3]


def test_a_loaded_network_gives_the_predictions_of_the_run(trained: tuple[Path, dict[str, Any]]) -> None:
    folder, _ = trained
    network = nofe.load(folder)
    test = small_dataset().test
    assert isinstance(network, nofe.NetworkOfExperts)
    assert network.class_names == small_dataset().class_names
    assert not network.training
    with torch.inference_mode():
        logits = network(network.preprocess(torch.from_numpy(test.images)))
    assert logits.shape == (len(test), 8)
    with np.load(io.BytesIO(Run(folder).read(runs.PREDICTIONS))) as stored:
        assert stored["labels"].tolist() == test.labels.tolist()
        best = logits.softmax(1).topk(5)
        assert stored["classes"].tolist() == best.indices.tolist()
        np.testing.assert_allclose(stored["probabilities"], best.values, atol=1e-5)
        assert (logits.argmax(1).numpy() == test.labels).mean() == (stored["classes"][:, 0] == test.labels).mean()


def test_labels_out_of_range() -> None:
    good = small_dataset(per_class=2)
    wrong = nofe.ImageSet(good.train.images, good.train.labels + 1)
    with pytest.raises(nofe.NofeError, match=r"training part has label 8, outside 0\.\.7"):
        nofe.Dataset("mine", good.class_names, wrong, good.test)


def test_images_of_another_size_than_the_network_reads(tmp_path: Path) -> None:
    with pytest.raises(nofe.NofeError, match="larger than the images of 16 pixels; bring images of 32 pixels"):
        nofe.train(tmp_path / "run", small_dataset(size=16), experts=2, quiet=True, device="cpu")


def test_training_in_a_thread(tmp_path: Path) -> None:
    """Where Python lets nobody set signal handlers."""
    settings = {"experts.epochs": 1, "generalist.epochs": 1, "base.by": "none"}
    result: dict[str, Any] = {}

    def work() -> None:
        dataset = small_dataset(per_class=2)
        folder = tmp_path / "run"
        result.update(nofe.train(folder, dataset, "alexnet-quick-c100", 2, settings=settings, device="cpu", quiet=True))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert result.keys() >= {"networks", "specialties"}


@pytest.mark.parametrize(
    ("name", "option"), [("sweep", "--minutes"), ("reproduce", "--minutes"), ("reproduce", "--gone-in")]
)
def test_no_time_can_be_negative(name: str, option: str) -> None:
    told = refusal(name, option, "-1")  # in the words of the version of typer
    assert re.match(f"Invalid value for '{option}': .*(greater than or equal to 0|not in the range x>=0)", told)


def test_reproduce_finds_imagenet_where_it_is_said_to_lie(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[Any] = []
    monkeypatch.setattr("nofe.experiments.reproduce.reproduce", lambda jobs, *_, **__: given.extend(jobs) or [])

    def names(*arguments: str | Path) -> set[str]:
        given.clear()
        answer = command("reproduce", *arguments, "--folder", tmp_path, "--seeds", "1")
        assert answer.code == 0, answer
        return {job.config.data.name for job in given}

    assert names("imagenet", "--dataset", "shards:photos") == {"shards:photos"}
    assert names("imagenet-generalists", "--data-root", "/data") == {"folder:/data/imagenet"}
    assert names("mirroring", "--dataset", "shards:photos") == {"cifar100"}
    message = refusal("reproduce", "imagenet", "--dataset", "cifar100", "--folder", tmp_path)
    assert message == "--dataset cifar100: says where ImageNet lies; write folder:PATH or shards:PATH"


@pytest.mark.parametrize("verb", ["train", "sweep"])
def test_a_root_is_not_passed_over_where_the_images_lie_elsewhere(tmp_path: Path, verb: str) -> None:
    message = refusal(verb, "--dataset", "folder:birds", "--data-root", tmp_path, "--out", tmp_path / "run")
    assert message == (
        f"--data-root {tmp_path}: says where CIFAR lies, not where folder:birds does; "
        f"say that with --dataset folder:{tmp_path / 'birds'}"
    )
    assert not (tmp_path / "run").exists()


def test_reproduce_trains_only_the_experiments_that_are_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[Any] = []
    monkeypatch.setattr("nofe.experiments.reproduce.reproduce", lambda jobs, *_, **__: given.extend(jobs) or [])
    only = ("--only", "nin-c100-base", "--only", "vgg11-c100-fully")
    answer = command("reproduce", "table-3", *only, "--folder", tmp_path, "--seeds", "1")
    assert answer.code == 0, answer
    of_vgg = {"vgg11-c100-fully-balanced-k10", "vgg11-c100-fully-balanced-k10-358-epochs"}
    wanted = {"nin-c100-base", "nin-c100-base-paper"} | of_vgg
    assert {job.experiment.name for job in given} == wanted
    message = refusal("reproduce", "table-3", *only, "--only", "lenet", "--folder", tmp_path)
    assert message == "--only lenet: no experiment of these tables has this in its name; see --list"


def test_results_writes_the_page_and_the_table_of_the_readme_above_it(tmp_path: Path) -> None:
    root = Path(__file__).parents[1]
    readme = tmp_path / "README.md"
    readme.write_text("Before\n<!-- made by nofe results -->\nold\n<!-- end -->\nAfter\n")
    page = tmp_path / "docs" / "results.md"
    answer = command("results", "--folder", root / "results", "--page", page, "--benchmarks", tmp_path)
    assert answer.code == 0, answer
    text = readme.read_text()
    assert text.startswith("Before\n<!-- made by nofe results -->\n\n| network | base | base, longer | experts |")
    assert text.endswith("|\n\n<!-- end -->\nAfter\n")
    readme.write_text("no marks\n")
    command("results", "--folder", root / "results", "--page", page, "--benchmarks", tmp_path)
    assert readme.read_text() == "no marks\n"


@pytest.mark.parametrize("name", ["results.md", "speed.md"])
def test_results_replaces_no_page_that_somebody_else_wrote(name: str, tmp_path: Path) -> None:
    root = Path(__file__).parents[1]
    page, theirs = tmp_path / "docs" / "results.md", tmp_path / "docs" / name
    theirs.parent.mkdir()
    theirs.write_text("# My own\n")
    arguments = ["results", "--folder", root / "results", "--page", page, "--benchmarks", tmp_path]
    told = f"{theirs}: nofe results did not write it and would replace it; name another page with --page"
    assert refusal(*arguments) == told
    assert content(tmp_path) == {f"docs/{name}": b"# My own\n"}
    theirs.unlink()
    for _ in range(2):  # those that it wrote itself it writes again
        assert answered(*arguments).endswith(f"wrote {page}\nwrote {page.with_name('speed.md')}\n")


def test_an_interruption_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Typer ends with the code alone."""

    def interrupted() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("nofe.architectures.summaries", interrupted)
    assert (
        refusal("list", code=130) == "interrupted; run the same command again, a training that has begun with --resume"
    )


def test_what_the_system_refuses_is_told_in_one_line(animals: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever reads or writes, and the output itself."""
    again = "see to it and run the same command again, a training that has begun with --resume"
    met: list[OSError] = []

    def refused() -> None:
        raise met[-1]

    monkeypatch.setattr("nofe.architectures.summaries", refused)
    for error, told in (
        (PermissionError(13, "Permission denied", "photos/ant"), "photos/ant: permission denied"),
        (OSError(28, "No space left on device"), "no space left on device"),
        (OSError(21, "Is a directory", ".a.partial", None, "a"), "a: is a directory"),
    ):
        met.append(error)
        assert refusal("list", code=1) == f"{told}; {again}"
    met.append(ConnectionError(104, "Connection reset"))  # not about a file, and not told as if it were
    with pytest.raises(ConnectionError):
        command("list")


def test_sweep_takes_what_is_said_of_networks_and_images_to_train() -> None:
    """But what each run of it has of its own, and what a sweep decides."""
    import inspect

    from nofe.cli.experiments import sweep
    from nofe.cli.training import train

    of_train, of_sweep = (set(inspect.signature(each).parameters) for each in (train, sweep))
    of_a_run = {"seed", "resume", "reuse", "capture", "kernels", "checkpoint_seconds", "workers", "sync_batch_norm"}
    assert of_train - of_sweep == of_a_run


def test_options_out_of_range_and_folders_that_cannot_be(animals: Path, tmp_path: Path) -> None:
    dataset = ("--dataset", f"folder:{animals}", *SHORT)
    assert "--checkpoint-seconds" in refusal("train", *dataset, "--checkpoint-seconds", "-1")
    assert "/proc/x: cannot be made" in refusal("train", *dataset, "--out", "/proc/x")
    assert "holds other folders (first: train); name an empty folder" in refusal(
        "pack", animals, animals, "--size", "32"
    )


def test_a_run_that_ended_early_is_gone_on_with_elsewhere(animals: Path, tmp_path: Path) -> None:
    early, whole = tmp_path / "early", tmp_path / "whole"
    dataset = ("--dataset", f"folder:{animals}", *SHORT)
    answered("train", *dataset, "--out", early, "--set", "until=specialties")
    picture = animals / "val" / "ant" / "0.png"
    assert f"to end before it (until=specialties); train on in another folder, with nofe train --reuse {early}" in (
        refusal("predict", early, picture)
    )
    assert "generalist: taken from another run" in answered("train", *dataset, "--out", whole, "--reuse", early)
