"""What is missing is trained, once, and filed."""

import copy
import json
import re
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from nofe import runs
from nofe.config import RunConfig, to_json, with_settings
from nofe.errors import UserError
from nofe.experiments import measures
from nofe.experiments import reproduce as reproduction
from nofe.experiments.estimates import HDCNN_SECONDS_AN_EPOCH, SECONDS_TO_BEGIN, seconds_of
from nofe.experiments.imagenet_tables import on_data
from nofe.experiments.index import Index
from nofe.experiments.keys import keys_of_experiment
from nofe.experiments.page import cells, overview, table_in_words
from nofe.experiments.paper_tables import KS, PAPER_TABLE_3
from nofe.experiments.reproduce import (
    Job,
    Workshop,
    missing,
    reproduce,
    require_images,
    run_job,
    time_inference,
    trained_in,
    with_progress,
)
from nofe.experiments.results import results_in
from nofe.experiments.table import Experiment, Row, Table
from nofe.experiments.tables import TABLES, experiments_by_name, experiments_of, tables_named
from nofe.generalist import stops
from nofe.pipeline import train
from nofe.recipes import default_run
from nofe.reuse import stage_keys
from nofe.runs import Run
from nofe.side_by_side import Outcome
from nofe.specialties.wordnet import hypernyms
from nofe.training.runtime import Runtime, make_runtime

ROOT = Path(__file__).parents[2]


def experiment(shades: Path, name: str, *settings: str) -> Experiment:
    config = with_settings(
        default_run("alexnet-quick-c100", f"folder:{shades}"),
        ["specialties.count=2", "base.by=none", "experts.epochs=2", "generalist.epochs=2", *settings],
    )
    return Experiment(name, config)


@pytest.fixture
def workshop(tmp_path: Path) -> Workshop:
    return Workshop(tmp_path / "runs", tmp_path / "results", tmp_path, device="cpu")


def weights_of(workshop: Workshop, name: str, file: str) -> bytes:
    return Run(workshop.runs / name).read(file)


def test_a_stage_is_trained_once_and_shared(shades: Path, workshop: Workshop) -> None:
    """Base, spectral experts on it, and experts by another recipe on the same generalist."""
    base = experiment(shades, "base", "until=base", "base.by=experts")
    experts = experiment(shades, "experts", "base.by=experts")
    longer = experiment(shades, "longer", "experts.epochs=3")
    for each in (base, experts, longer):
        run_job(Job(each, 0), workshop)
    said = Run(workshop.runs / "experts-seed0").metrics()
    assert [line["stage"] for line in said if "epoch" in line] == ["base"] * 2 + ["generalist"] * 2 + ["experts"] * 2
    assert weights_of(workshop, "base-seed0", "base.safetensors") == weights_of(
        workshop, "experts-seed0", "base.safetensors"
    )
    assert weights_of(workshop, "experts-seed0", "generalist.safetensors") == weights_of(
        workshop, "longer-seed0", "generalist.safetensors"
    )
    first, second = (
        json.loads((workshop.runs / f"{n}-seed0" / "summary.json").read_text()) for n in ("base", "experts")
    )
    assert first["networks"]["base"] == second["networks"]["base"], "seconds included: it was not trained again"


def test_keys_tell_apart_what_differs_and_only_that(shades: Path) -> None:
    config = experiment(shades, "x", "base.by=experts").config

    def changed(*settings: str) -> set[str]:
        other = stage_keys(with_settings(config, settings))
        return {stage for stage, key in stage_keys(config).items() if other[stage] != key}

    assert changed("data.root=elsewhere") == set()
    assert changed("seed=1") == {"base", "generalist", "experts"}
    assert changed("experts.start=scratch") == {"experts"}
    assert changed("experts.epochs=5") == {"base", "experts"}, "the base follows the experts' recipe"
    assert changed("generalist.epochs=5") == {"generalist", "experts"}
    assert changed("specialties.count=3") == {"generalist", "experts"}
    spectral = with_settings(config, ["specialties.rule=spectral"])
    longer = with_settings(spectral, ["experts.epochs=5"])
    assert stage_keys(spectral)["generalist"] != stage_keys(longer)["generalist"], "it clusters the base's confusion"


def test_side_by_side_everything_missing_is_filed_and_then_nothing_is_missing(
    shades: Path, workshop: Workshop, capsys: pytest.CaptureFixture[str]
) -> None:
    good = experiment(shades, "good", "until=specialties")
    bad = experiment(shades, "bad", "until=base", "base.by=experts", "experts.rate=1e30")
    jobs = missing([good, bad], 2, [])
    assert len(jobs) == 4
    outcome = reproduce(jobs, workshop, side_by_side=2)
    assert sorted(outcome.failed) == ["bad-seed0", "bad-seed1"], "a run that fails is named, and ends no other"
    assert outcome.in_words() == f"2 failed (first: {outcome.failed[0]})"
    assert "the loss is not finite" in capsys.readouterr().out
    found = results_in(workshop.results)
    assert {result["experiment"] for result in found} == {"good"}
    assert [job.name for job in missing([good, bad], 2, found)] == ["bad-seed0", "bad-seed1"]
    row = Row("good", good, "generalist", paper=10.0)
    accuracies = [100 * result["networks"]["generalist"]["accuracy"] for result in found]
    assert cells(row, Index(found).of(row))[1].startswith(f"{np.mean(accuracies):.2f} ±")


def test_what_is_measured_on_a_run_is_filed_with_it(
    shades: Path, workshop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measures, "INFERENCE_BATCHES", (1, 16))
    monkeypatch.setattr(measures, "ROUNDS", 1)
    both = replace(experiment(shades, "both", "base.by=experts"), measures=("retrieval", "inference"))
    run_job(Job(both, 0), workshop)
    [untimed] = results_in(workshop.results)
    assert "inference" not in untimed, "others may be training on the device"
    elsewhere = untimed | {"environment": untimed["environment"] | {"device": "Another"}}
    other = workshop.results / "another" / "both-seed0.json"
    other.parent.mkdir()
    other.write_text(json.dumps(elsewhere))
    time_inference([Job(both, 0)], workshop)
    assert "inference" not in json.loads(other.read_text()), "that device was not timed"
    other.unlink()
    [found] = results_in(workshop.results)
    precision = found["retrieval"]["precision"]
    assert precision.keys() == {"experts", "base"}
    assert all(0 <= share <= 1 for by_depth in precision.values() for share in by_depth.values())
    assert all(found["inference"][name]["16"] > found["inference"][name]["1"] > 0 for name in ("base", "experts"))
    assert missing([both], 1, [found]) == []
    plain = {name: value for name, value in found.items() if name != "retrieval"}
    assert [job.name for job in missing([both], 1, [plain])] == ["both-seed0"], "trained, but not all is measured"
    earlier = copy.deepcopy(found)
    earlier["config"]["experts"]["rate"] = 0.5
    assert [job.name for job in missing([both], 1, [plain, earlier])] == ["both-seed0"], "measured by another recipe"


def test_images_that_are_not_there_are_missed_before_any_run_is_begun(
    workshop: Workshop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = [Job(on_data(row.experiment, "folder:nowhere"), 0) for row in TABLES["imagenet"].rows]
    with pytest.raises(UserError, match=r"nowhere: no such folder, and 5 runs want it; .* --dataset folder:PATH"):
        reproduce(jobs, workshop, side_by_side=2)
    assert not workshop.runs.exists()
    (tmp_path / "data" / "imagenet").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    require_images([Job(on_data(row.experiment, "folder:data/imagenet"), 0) for row in TABLES["imagenet"].rows])


def short_on_imagenet(label: str, photos: Path) -> Experiment:
    """A row of ImageNet's tables, for an epoch on a few images of its layout."""
    names = sorted(hypernyms())[4000:4004]
    rng = np.random.default_rng(0)
    for folder in (photos / part / name for part in ("train", "val") for name in names):
        folder.mkdir(parents=True, exist_ok=True)
        for number in range(2 if folder.parent.name == "train" else 1):
            pixels = rng.integers(0, 256, (270, 300, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / f"{folder.name}_{number}.JPEG")
    rows = {row.label: row.experiment for name in ("imagenet", "imagenet-generalists") for row in TABLES[name].rows}
    short = [
        "generalist.epochs=1",
        "generalist.batch=8",
        "base.paper.epochs=1",
        "base.paper.batch=8",
        "specialties.count=3",
    ]
    return replace(rows[label], config=with_settings(rows[label].config, short))


def test_imagenet_s_experiments_run_on_a_folder_of_its_layout(tmp_path: Path, workshop: Workshop) -> None:
    """Real ids, larger pictures of other shapes, ten crops: all but the millions of images. Wherever they lie."""
    base, wordnet = (short_on_imagenet(label, tmp_path / "photos") for label in ("base", "WordNet"))
    for each in (base, wordnet):
        run_job(Job(on_data(each, f"folder:{tmp_path / 'photos'}"), 0), workshop)
    assert missing([base, wordnet], 1, results_in(workshop.results)) == [], "a result does not depend on the place"
    assert not any(str(tmp_path) in path.read_text() for path in workshop.results.glob("*/*.json"))
    assert not is_streamed(base, workshop)
    found = {result["experiment"]: result for result in results_in(workshop.results)}
    assert found[base.name]["ten_crops"]["base-paper"]["top_5"] >= found[base.name]["ten_crops"]["base-paper"]["top_1"]
    assert found[wordnet.name]["specialties"]["specialty_count"] == 3
    assert len(found[wordnet.name]["classes_moved_by_update"]) == 0, "WordNet does not learn"


def test_images_that_are_more_than_the_memory_holds_are_read_while_training(
    tmp_path: Path, workshop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Runtime, "memory_for_images", lambda _: 1_000_000)
    wordnet = short_on_imagenet("WordNet", tmp_path / "photos")
    run_job(Job(on_data(wordnet, f"folder:{tmp_path / 'photos'}"), 0), workshop)
    assert is_streamed(wordnet, workshop)


def is_streamed(experiment: Experiment, workshop: Workshop) -> bool:
    environment = Run(workshop.runs / f"{experiment.name}-seed0").read_json(runs.ENVIRONMENT)
    return bool(environment["data"]["streamed"])


def test_a_thousand_classes_end_to_end(tmp_path: Path) -> None:
    """ImageNet's number of classes, real ids, its layout: generalist, specialties of 100 classes each, experts."""
    names = sorted(hypernyms())[::7][:1000]
    rng = np.random.default_rng(0)
    for part in ("train", "val"):
        for name in names:
            folder = tmp_path / part / name
            folder.mkdir(parents=True)
            Image.fromarray(rng.integers(0, 256, (36, 48, 3), dtype=np.uint8)).save(folder / f"{name}_1.JPEG")
    settings = ["base.by=none", "generalist.epochs=1", "generalist.update_every=0.5", "experts.epochs=1"]
    config = with_settings(default_run("small", f"folder:{tmp_path}"), settings)
    summary = train(config, tmp_path / "run", runtime=make_runtime("cpu"))
    assert summary["networks"].keys() == {"generalist", "experts"}
    assert [each["classes"] for each in summary["specialties"]] == [100] * 10
    named = json.loads((tmp_path / "run" / "specialties.json").read_text())["specialties"]
    assert sorted(name for each in named for name in each["class_names"]) == sorted(names)


def test_base_and_experts_of_today_have_one_recipe() -> None:
    """But for how long they are trained; and what is chosen is chosen without the test images."""
    rows = {row.label: row for row in TABLES["today"].rows}
    assert len(rows) == 4
    for label, row in rows.items():
        config = row.experiment.config
        base, experts = (to_json(config)[part] for part in ("base", "experts"))
        of_base = base["paper"] | {"epochs": 0}
        assert {name: experts[name] for name in of_base} | {"epochs": 0} == of_base, label
        assert config.data.hold_out == 0
    assert all(row.experiment.config.data.hold_out == 0.1 for row in TABLES["today-search"].rows)


def test_base_and_experts_of_today_have_the_same_time_and_no_run_more_than_ten_minutes() -> None:
    """With what it takes to begin, twice that for a network that nothing is compiled of, and 40 seconds to spare."""
    for name, base_of in (("today", {"resnet18-cifar": 200, "wrn-28-10": 100}), ("today-search", {"wrn-28-10": 25})):
        rows = [Job(row.experiment, 0) for row in TABLES[name].rows]
        bases = {(job.config.architecture, job.config.base.paper.epochs) for job in rows if job.config.until == "base"}
        assert bases == set(base_of.items())
        time_of_base = {
            job.config.architecture: job.seconds_of_training() for job in rows if job.config.until == "base"
        }
        for job in rows:
            assert job.seconds_of_training() == pytest.approx(time_of_base[job.config.architecture], rel=0.03), job.name
            assert job.seconds_of_training() + 2 * SECONDS_TO_BEGIN + 40 < 600, job.name


def test_the_specialties_of_today_settle_however_short_the_generalist() -> None:
    for row in (*TABLES["today"].rows, *TABLES["today-search"].rows):
        config = row.experiment.config
        if config.until == "experts":
            stages = stops(config.generalist, 390, after=0, updates=True)
            assert sum(stop.update > 0 for stop in stages) >= 9, row.label


def test_what_folders_of_runs_have_is_not_planned_for_again(workshop: Workshop) -> None:
    """Of its own run every epoch, of others the stages that are complete."""
    retrieval = experiments_by_name()["resnet56-c100-fully-balanced-k10-77-epochs-retrieval"]
    scratch = experiments_by_name()["resnet56-c100-fully-balanced-k10-scratch"]
    whole = Job(retrieval, 0)
    run = Run(workshop.runs / whole.name)
    run.path.mkdir(parents=True)
    run.write_json(runs.CONFIG, to_json(whole.config))
    for epoch in range(1, 13):
        run.append_metrics({"stage": "generalist", "step": 390 * epoch, "epoch": epoch})
    for epoch in range(1, 41):
        run.append_metrics({"stage": "base", "step": 390 * epoch, "epoch": epoch})
    (workshop.runs / "no-run").mkdir()
    keys = stage_keys(whole.config)
    assert trained_in(workshop.runs) == {keys["generalist"]}
    [going_on] = with_progress([whole], workshop.runs)
    assert going_on == whole
    a_base, a_generalist = (seconds_of(whole.config, stage, 1) for stage in ("base", "generalist"))
    saved = whole.seconds() - going_on.seconds(trained_in(workshop.runs))
    assert saved == pytest.approx(40 * a_base + 12 * a_generalist)
    [other] = with_progress([Job(scratch, 0)], workshop.runs)
    assert other.seconds() - other.seconds(trained_in(workshop.runs)) == pytest.approx(12 * a_generalist)


def test_what_the_base_of_an_hd_cnn_has_trained_is_not_planned_for_again(workshop: Workshop) -> None:
    """It is in a folder of its own; nor is what the HD-CNN has of its own stages."""
    job, other_seed = (Job(experiments_by_name()["nin-c100-hd-cnn"], seed) for seed in (0, 1))
    base = Job(experiments_by_name()["nin-c100-base-paper"], 0)

    def saved() -> float:
        [going_on, without] = with_progress([job, other_seed], workshop.runs)
        assert without.seconds() == job.seconds(), "of another seed"
        return job.seconds() - going_on.seconds()

    of_base, an_epoch = (seconds_of(base.config, "base-paper", epochs) for epochs in (333, 1))
    assert job.seconds() == pytest.approx(SECONDS_TO_BEGIN + of_base + 300, abs=1)
    assert saved() == 0
    for epoch in range(1, 201):
        Run(workshop.runs / base.name).path.mkdir(parents=True, exist_ok=True)
        Run(workshop.runs / base.name).append_metrics({"stage": "base-paper", "step": epoch, "epoch": epoch})
    assert saved() == pytest.approx(200 * an_epoch)
    of_itself = Run(workshop.runs / job.name)
    of_itself.path.mkdir()
    for stage, epochs in {"confusion": 66, "fine-0": 20, "fine-1": 20, "building-block": 200, "joint": 30}.items():
        of_itself.append_metrics({"stage": stage, "step": epochs, "epoch": epochs})
    left = {"fine": 7 * 20, "joint": 10}
    assert job.seconds() - saved() == pytest.approx(
        SECONDS_TO_BEGIN + 133 * an_epoch + sum(left[stage] * HDCNN_SECONDS_AN_EPOCH[stage] for stage in left)
    )


def test_minutes_are_those_of_the_whole_command(
    shades: Path, workshop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Choosing kernels, which is done before, is part of them."""
    asked: dict[str, Any] = {}
    monkeypatch.setattr(reproduction, "_choose_kernels", lambda *_: time.sleep(0.6))
    monkeypatch.setattr(reproduction, "run_side_by_side", lambda jobs, work, **more: asked.update(more) or Outcome())
    jobs = missing([experiment(shades, "good", "until=specialties")], 2, [])
    reproduce(jobs, workshop, side_by_side=2, minutes=9, gone_in=20)
    assert asked["minutes"] == pytest.approx(9 - 0.01, abs=0.005)
    assert asked["gone_in"] == pytest.approx(20 - 0.01, abs=0.005)


def test_before_a_machine_is_gone_what_was_begun_comes_first_and_then_the_cheapest(
    workshop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One half trained would be lost; of several the one that ends soonest first."""
    given: list[str] = []
    monkeypatch.setattr(reproduction, "_choose_kernels", lambda *_: None)
    monkeypatch.setattr(
        reproduction, "run_side_by_side", lambda jobs, *_, **__: given.extend(job.name for job in jobs) or Outcome()
    )
    monkeypatch.setattr(reproduction, "_apart", lambda *_: True)
    names = ("alexnet-c100-base", "nin-c100-fully-balanced-k10", "nin-c100-hd-cnn", "vgg11-c100-base")
    jobs = missing([experiments_by_name()[name] for name in names], 1, [])

    def order(**limits: float) -> list[str]:
        given.clear()
        reproduce(jobs, workshop, side_by_side=3, **limits)
        return [name.removesuffix("-seed0") for name in given]

    cheapest_first = [names[place] for place in (0, 3, 1, 2)]
    assert order() == order(minutes=9) == cheapest_first
    assert order(minutes=9, gone_in=28) == cheapest_first
    for name, stage, epochs in (("nin-c100-fully-balanced-k10", "generalist", 1), ("vgg11-c100-base", "base", 40)):
        begun = Run(workshop.runs / f"{name}-seed0")
        begun.path.mkdir(parents=True)
        begun.append_metrics({"stage": stage, "step": 390, "epoch": epochs})
    assert order(gone_in=28) == [
        "vgg11-c100-base",
        "nin-c100-fully-balanced-k10",
        "alexnet-c100-base",
        "nin-c100-hd-cnn",
    ]
    assert order() == cheapest_first, "where nothing is lost"


def test_timing_ends_soon_after_the_minutes(workshop: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who has ten minutes for a command does not lose it to what is measured at its end."""
    patience: list[float] = []
    monkeypatch.setattr(reproduction, "_apart", lambda seconds, *_: bool(patience.append(seconds)) or True)
    monkeypatch.setattr(reproduction, "run_side_by_side", lambda *_, **__: Outcome())
    jobs = [Job(experiments_by_name()["nin-c100-hd-cnn"], 0)]
    reproduce(jobs, workshop, side_by_side=1, minutes=9)
    reproduce(jobs, workshop, side_by_side=1)
    assert patience == [60.0, 300.0]


def test_a_run_alone_chooses_its_kernels_itself(
    shades: Path, workshop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No process before it, and nothing measured for a run that there is no time for."""
    found: dict[Any, str] = {}
    monkeypatch.setattr(reproduction, "_choose_kernels", lambda *_: found.update(beside="before"))

    def note(jobs: Any, work: Any, **more: Any) -> Outcome:
        found[more["at_once"]] = work.keywords["workshop"].kernels
        return Outcome()

    monkeypatch.setattr(reproduction, "run_side_by_side", note)
    jobs = missing([experiment(shades, "good", "until=specialties")], 2, [])
    reproduce(jobs, workshop, side_by_side=1)
    assert found == {1: "measure"}
    reproduce(jobs, workshop, side_by_side=2)
    assert found == {1: "measure", "beside": "before", 2: "known"}


def test_no_time_starts_nothing(shades: Path, workshop: Workshop) -> None:
    jobs = missing([experiment(shades, "good", "until=specialties")], 1, [])
    assert reproduce(jobs, workshop, side_by_side=1, minutes=0).not_begun == ["good-seed0"]
    assert results_in(workshop.results) == []


def result(config: Any, accuracy: float) -> dict[str, Any]:
    networks = {stage: {"accuracy": accuracy, "parameters": 1, "seconds": 1.0} for stage in stage_keys(config)}
    return {"config": json.loads(json.dumps(to_json(config))), "networks": networks}


def test_a_row_finds_its_seeds_whatever_the_file(shades: Path) -> None:
    one = experiment(shades, "one")
    row = Row("one", one, paper=45.0)
    results = [result(one.seeded(seed), 0.5 + 0.01 * seed) for seed in (2, 0)]
    assert [each.accuracy for each in Index(results).of(row)] == [50.0, 52.0]
    other = Row("other", experiment(shades, "one", "experts.rate=0.5"))
    assert Index(results).of(other) == []
    assert cells(row, Index(results).of(row))[:4] == ("one", "51.00 ± 1.41 (n=2)", "45.00", "+6.00")
    assert cells(other, [])[1] == "not measured"


def test_the_list_counts_runs_and_minutes() -> None:
    one = next(row.experiment for row in TABLES["table-1"].rows if row.label == "fully-balanced, K=10")
    other = Experiment("other", with_settings(one.config, ["experts.epochs=150"]))
    table = Table("t", "a title", (Row("first", one), Row("second", other)))

    def states(results: list[dict[str, Any]]) -> list[list[str]]:
        lines = overview([table], 3, results, {}, 8).splitlines()[2:5]
        return [re.split(r"  +", line.strip()) for line in lines]

    assert [line[:3] for line in states([])] == [
        ["t", "0/6", "missing"],
        ["first", "0/3", "missing"],
        ["second", "0/3", "missing"],
    ]
    assert states([])[0][6] == "a title"
    whole, first, second = (float(line[3]) for line in states([]))
    assert max(first, second) < whole < first + second, "the generalist is paid for once"
    some = [result(one.seeded(0), 0.5)]
    assert [line[1:3] for line in states(some)] == [["1/6", "in part"], ["1/3", "in part"], ["0/3", "missing"]]
    every = [result(one.seeded(seed), 0.5) for seed in range(3)]
    assert states(every)[1] == ["first", "3/3", "done", str(first)], "what it cost, and nothing is missing"
    left, _, _ = (line[3:5] for line in states(some))
    assert float(left[0]) == whole > float(left[1]) > second
    beside = [float(line[5]) for line in states([])]
    assert beside == pytest.approx([whole * 6**-0.25, first * 3**-0.25, second * 3**-0.25], abs=0.1), (
        "six, three, three"
    )
    assert "one" in table_in_words(Table("t", "", (Row("one", one),)), every)


def test_the_list_has_every_table_every_row_and_totals() -> None:
    lines = overview(list(TABLES.values()), 3, results_in(ROOT / "results"), {}, 8).splitlines()
    for table in TABLES.values():
        [place] = [number for number, line in enumerate(lines) if line.split()[:1] == [table.name]]
        for row, line in zip(table.rows, lines[place + 1 :], strict=False):
            assert line.startswith(f"    {row.label} ")
    [paper] = [line for line in lines if line.startswith("total, the paper on CIFAR-100")]
    [every] = [line for line in lines if line.startswith("total, everything")]
    of_tables = (overview([table], 3, results_in(ROOT / "results"), {}, 8) for table in tables_named(["all"]))
    minutes = [re.split(r"  +", text.splitlines()[2])[3] for text in of_tables]
    whole, *missing = (float(cell) for cell in re.split(r"  +", paper)[3:])
    assert all(each < whole for each in missing)
    assert whole < sum(map(float, minutes)), "tables have stages in common"
    assert "more than" in every, "nobody has measured ImageNet's steps"


# The tables themselves


def test_every_experiment_has_one_configuration_and_every_row_a_network_of_it() -> None:
    by_name: dict[str, Any] = {}
    for table in TABLES.values():
        for row in table.rows:
            assert by_name.setdefault(row.experiment.name, row.experiment.config) == row.experiment.config
            assert row.network in keys_of_experiment(row.experiment, 0), row.label
    experiments = experiments_of(list(TABLES.values()))
    assert len({name.lower() for name in by_name}) == len(experiments)
    assert len({json.dumps(sorted(keys_of_experiment(each, 0).items())) for each in experiments}) == len(experiments)


def test_the_tables_hold_what_the_paper_reports() -> None:
    table_1 = {row.label: row.paper for row in TABLES["table-1"].rows}
    assert table_1["fully-balanced, K=10"] == 56.2
    assert table_1["elasso, K=5"] == 53.6
    assert len(table_1) == 1 + 3 * len(KS)
    elasso = next(row for row in TABLES["table-1"].rows if row.label == "elasso, K=5").experiment.config
    assert (elasso.specialties.rule, elasso.specialties.count, elasso.specialties.strength) == ("elasso", 5, 1000.0)
    of_resnet = {row.label: row for row in TABLES["table-3"].rows if row.label.startswith("resnet56")}
    assert [row.paper for row in of_resnet.values()] == [73.52, None, 76.24, None, None, 76.24, None]
    longer = of_resnet["resnet56-c100: experts, the release's steps"].experiment.config.experts
    assert [round(longer.epochs * 390 * share, -2) for share in (*longer.drops, 1)] == [15_000, 22_500, 30_000]
    by_base = of_resnet["resnet56-c100: experts, base's recipe"].experiment.config.experts
    assert by_base.weight_decay == 1e-4
    assert by_base.start == "generalist"
    assert {row.label.partition(":")[0] for row in TABLES["table-3"].rows} == PAPER_TABLE_3.keys()


def test_tables_by_name() -> None:
    others = ("imagenet", "imagenet-generalists", "today", "today-search")  # not at hand, and not the paper's
    assert tables_named(["all"]) == [table for name, table in TABLES.items() if name not in others]
    assert [row.experiment.config.specialties.count for row in TABLES["imagenet"].rows] == [10, 10, 40, 10, 10]
    assert [table.name for table in tables_named(["table-4", "scratch"])] == ["table-4", "scratch"]
    with pytest.raises(UserError, match="table3: no table or figure has this name; did you mean 'table-3'"):
        tables_named(["table3"])
    both = experiments_of(tables_named(["table-1", "table-2"]))
    assert len({each.name for each in both}) == len(both)


def test_an_experiment_with_a_seed_is_the_same_but_for_it(shades: Path) -> None:
    one = experiment(shades, "one")
    assert replace(one.seeded(3), seed=0) == one.config


def test_kernels_are_measured_for_long_trainings_of_experts_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured: list[str] = []

    def note(seconds: float, function: object, configs: list[RunConfig], workshop: Workshop) -> None:
        measured.extend(config.architecture for config in configs)

    monkeypatch.setattr(reproduction, "_apart", note)
    by_name = experiments_by_name()

    def asked_for(*names: str) -> list[str]:
        measured.clear()
        jobs = [Job(by_name[name], seed) for name in names for seed in range(2)]
        reproduction._choose_kernels(jobs, Workshop(tmp_path, tmp_path, tmp_path))
        return measured

    assert asked_for("resnet56-c100-base", "nin-c100-hd-cnn") == [], "no process is started for those"
    assert asked_for("alexnet-c100-random-k10") == [], "too short"
    assert asked_for("resnet56-c100-base", "resnet56-c100-fully-balanced-k10") == ["resnet56-c100"]
