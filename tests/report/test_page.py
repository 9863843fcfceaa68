"""The page says what the files say, shows any name as it is, and needs nothing but itself."""

import base64
import dataclasses
import io
import json
import shlex
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from report_cases import Page, changed

from conftest import small_dataset, small_run
from nofe import runs
from nofe.config import from_json, to_json, with_settings
from nofe.errors import RunError, UserError
from nofe.pipeline import train
from nofe.recipes import default_run
from nofe.report import figures, page
from nofe.report.page import report_if_possible, write_report
from nofe.report.record import Record, read_record
from nofe.report.text import comparison, specialties_at_a_glance, specialties_in_words
from nofe.report.words import RECIPE_HEAD, beyond_the_paper, recipe_rows, what_was_trained, with_another_seed
from nofe.runs import Run
from nofe.specialties import Specialties
from nofe.training.runtime import make_runtime

HOSTILE = (
    "<script>alert(1)</script>",
    '"><img src="http://example.com/x.png" onerror="alert(1)">',
    "&amp; is not &",
    "$title ${pairs} %s {0}",
    "\u202eright to left",
    "</table></body>",
    "line\nbreak and 名前",
)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("runs") / "whole"
    train(
        small_run("base.by=both", "base.paper.epochs=2"), folder, dataset=small_dataset(), runtime=make_runtime("cpu")
    )
    return Run(folder)


@pytest.fixture(scope="module")
def odd(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """No base, specialties of 4 and 3 classes, names that try to be markup, a folder that a shell would split."""
    folder = tmp_path_factory.mktemp("runs") / "an 'odd' <run>"
    dataset = dataclasses.replace(small_dataset(classes=7), class_names=HOSTILE, groups={})
    train(small_run("base.by=none"), folder, dataset=dataset, runtime=make_runtime("cpu"))
    return Run(folder)


def page_of(run: Run) -> Page:
    return Page(run.read(runs.REPORT).decode())


@pytest.mark.parametrize(
    ("adapt", "starts"),
    [
        ({}, ["random weights", "random weights", "random weights", "the generalist's trunk"]),
        (
            {"weights": "pretrained", "frozen_trunk": True},
            [f"{start}; the trunk frozen" for start in [*["pretrained weights"] * 3, "the generalist's trunk"]],
        ),
        ({"weights": "mine.pt"}, [*["mine.pt"] * 3, "the generalist's trunk"]),
    ],
)
def test_what_each_network_begins_with(run: Run, adapt: dict[str, Any], starts: list[str]) -> None:
    record = read_record(run)
    config = record.config | {"adapt": record.config["adapt"] | adapt}
    assert [row[-1] for row in recipe_rows(dataclasses.replace(record, config=config))] == starts


def test_comparison_has_the_figures_of_the_summary(run: Run) -> None:
    head, *rows = page_of(run).tables[0]
    networks = run.read_json(runs.SUMMARY)["networks"]
    assert list(networks) == ["base", "base-paper", "generalist", "experts"]
    assert head == ["network", "accuracy", "parameters", "epochs", "training (s)"]
    for (_, *cells), figures_of_network in zip(rows, networks.values(), strict=True):
        assert cells == [
            f"{figures_of_network['accuracy']:.2%}",
            f"{figures_of_network['parameters']:,}",
            f"{figures_of_network['epochs']}",
            f"{figures_of_network['seconds']:,.1f}",
        ]
    assert f"{networks['experts']['top_5']:.2%}" in page_of(run).text


@pytest.mark.parametrize(
    ("base", "experts", "said"), [(0.5, 0.625, "12.50 points above"), (0.625, 0.5, "12.50 points below")]
)
def test_gain_has_its_sign(run: Run, tmp_path: Path, base: float, experts: float, said: str) -> None:
    def change(summary: Any) -> None:
        summary["networks"]["base"]["accuracy"] = base
        summary["networks"]["experts"]["accuracy"] = experts

    assert said in rendered(read_record(changed(run, tmp_path / "copy", runs.SUMMARY, change))).text


def test_equal_accuracies_are_no_gain(run: Run, tmp_path: Path) -> None:
    def change(summary: Any) -> None:
        summary["networks"]["base"]["accuracy"] = summary["networks"]["experts"]["accuracy"] = 0.5

    said = rendered(read_record(changed(run, tmp_path / "copy", runs.SUMMARY, change))).text
    assert "recognise 50.00% of 80 test images, and are as good as the base, which by the same" in said


def test_held_out_images_are_not_called_test_images(run: Run, tmp_path: Path) -> None:
    """Which they stand in for, to choose by."""

    def hold_out(config: Any) -> None:
        config["data"]["hold_out"] = 0.1

    said = rendered(read_record(changed(run, tmp_path / "copy", runs.CONFIG, hold_out)))
    assert "% of 80 held-out training images" in said.text
    assert "Accuracy on the held-out training images after the last epoch, for choosing between settings" in said.text
    assert "nothing was chosen by it" not in said.text
    assert "nothing was chosen by it" in page_of(run).text
    assert all("test images" not in card for card in said.cards)
    assert all("test images" not in cell for table in said.tables for cell in table[0])
    assert not any("test images" in text for text in said.attributes("alt"))


@pytest.mark.parametrize("moved", [[0, 0], [0, 3], []])
def test_specialties_that_no_update_changed_are_told(run: Run, moved: list[int]) -> None:
    record = dataclasses.replace(read_record(run), updates=[{"moved": each} for each in moved])
    assert ("they are still the random ones at the start" in page.stayed(record)) == (3 not in moved)
    config = record.config | {"specialties": record.config["specialties"] | {"rule": "random"}}
    assert page.stayed(dataclasses.replace(record, config=config)) == ""


def test_five_most_probable_classes_of_five_are_not_counted(run: Run) -> None:
    assert "five most probable" in page_of(run).text
    five = Specialties([0, 0, 1, 1, 1])
    assert "five most probable" not in page.comparison(dataclasses.replace(read_record(run), specialties=five))


def test_each_expert_has_its_classes_and_its_figures(run: Run) -> None:
    cards = page_of(run).cards
    described = run.read_json(runs.SPECIALTIES)["specialties"]
    summary = run.read_json(runs.SUMMARY)["specialties"]
    for k, (card, specialty, numbers) in enumerate(zip(cards, described, summary, strict=True)):
        assert card.startswith(f"Expert {k}\n")
        assert f" {', '.join(specialty['class_names'])}\n" in card
        assert f" classes {specialty['size']} test images {numbers['images']} " in card
        for field in ("accuracy", "confused_inside", "confused_across"):
            assert f" {field.replace('_', ' ')} {numbers[field]:.2%}" in card


def test_most_confused_pairs_by_an_independent_count(run: Run) -> None:
    with np.load(io.BytesIO(run.read(runs.PREDICTIONS))) as predictions:
        labels, taken_for = predictions["labels"], predictions["classes"][:, 0]
    counts = Counter((int(i), int(j)) for i, j in zip(labels, taken_for, strict=True) if i != j)
    either_way = Counter({(i, j): counts[i, j] + counts[j, i] for i in range(8) for j in range(i + 1, 8)})
    expert_of = {
        name: each["index"] for each in run.read_json(runs.SPECIALTIES)["specialties"] for name in each["class_names"]
    }
    head, *rows = page_of(run).tables[2]
    assert head == ["", "class A", "class B", "images confused", "A taken for B", "B taken for A", "experts"]
    assert len(rows) == min(20, len(+either_way)) > 0
    for (_, first, second, images, there, back, where), (pair, _) in zip(rows, either_way.most_common(), strict=False):
        i, j = int(first.removeprefix("class-")), int(second.removeprefix("class-"))
        assert either_way[min(i, j), max(i, j)] == either_way[pair]  # ties may be in another order
        assert images == f"{counts[i, j] + counts[j, i]} of 20"
        assert (there, back) == (f"{counts[i, j]}", f"{counts[j, i]}")
        experts = expert_of[first], expert_of[second]
        assert where == (
            f"inside {experts[0]}" if experts[0] == experts[1] else f"across {experts[0]} and {experts[1]}"
        )


def test_shares_of_all_test_images(run: Run) -> None:
    """As the experts' own figures add up to, weighted by their images."""
    summary = run.read_json(runs.SUMMARY)["specialties"]
    images = sum(each["images"] for each in summary)
    inside = sum(each["confused_inside"] * each["images"] for each in summary) / images
    across = sum(each["confused_across"] * each["images"] for each in summary) / images
    assert f"Of all {images} test images, {inside:.2%} are taken for another class" in page_of(run).text
    assert f"{across:.2%} for a class of another one" in page_of(run).text


def test_settings_and_environment(run: Run) -> None:
    text = page_of(run).text
    environment = run.read_json(runs.ENVIRONMENT)
    for said in (environment["device"], environment["date"], environment["versions"]["torch"], environment["python"]):
        assert said in text
    images = run.read_json(runs.ENVIRONMENT)["data"]["images"]
    assert f"small: 8 classes, {images['train']} training and 80 test images; data seed 0" in text
    assert f"{environment['precision']}, 1 thread " in text
    assert "fully-balanced" in text
    recipe = dict(zip(*[page_of(run).tables[1][i] for i in (0, -1)], strict=True))
    assert recipe["network"] == "network of experts"
    assert recipe["epochs"] == "3"
    assert recipe["learning rate"] == "0.0005, a tenth after epochs 2 and 2"  # 8/12 and 10/12 of 3
    assert recipe["weight decay"] == "0.004"


def test_what_was_left_out_of_images_and_branches_is_told(run: Run) -> None:
    record = read_record(run)
    data = record.environment["data"] | {"unreadable": {"train": ["a", "b"], "test": ["c"]}}
    adapt = record.config["adapt"] | {"cut": "layer3", "branch_width": 0.5}
    changed_record = dataclasses.replace(
        record, environment=record.environment | {"data": data}, config=record.config | {"adapt": adapt}
    )
    said, plain = dict(what_was_trained(changed_record)), dict(what_was_trained(record))
    assert "80 test images, without 3 unreadable images; data seed 0" in said["Data"]
    assert record.environment["data"]["repeated"] == {}
    copies = {**record.environment, "data": data | {"repeated": {"image 3": "image 7", "image 5": "image 7"}}}
    told = dict(what_was_trained(dataclasses.replace(record, environment=copies)))["Data"]
    assert "images; 2 of the test images are among those to train on, too, pixel for pixel; data seed 0" in told
    assert said["Architecture"] == f"{plain['Architecture']}; experts from layer3 on; branches 0.5 as wide"
    limited = record.config | {"adapt": record.config["adapt"] | {"parameters": 30_000}}
    assert (
        "to 30,000 parameters in all"
        in dict(what_was_trained(dataclasses.replace(record, config=limited)))["Architecture"]
    )


@pytest.mark.parametrize(
    ("optimizer", "decayed"), [("caffe-sgd", "on batch norm too"), ("adamw", "on norms and biases too")]
)
def test_what_is_decayed_beside_the_weights_depends_on_the_optimizer(run: Run, optimizer: str, decayed: str) -> None:
    record = read_record(run)
    for norms, said in ((True, f"0.004, {decayed}"), (False, "0.004")):
        experts = record.config["experts"] | {"optimizer": optimizer, "decay_norms": norms}
        rows = recipe_rows(dataclasses.replace(record, config=record.config | {"experts": experts}))
        assert rows[-1][RECIPE_HEAD.index("weight decay")] == said


def test_hostile_names_are_shown_and_do_nothing(odd: Run) -> None:
    shown = page_of(odd)
    described = odd.read_json(runs.SPECIALTIES)["specialties"]
    assert shown.names[:4] == described[0]["class_names"]  # letter for letter, entities and dollar signs included
    assert set(shown.names) == set(HOSTILE)
    assert {tag for tag, _ in shown.elements} <= {
        *("html", "head", "meta", "title", "style", "body", "header", "main", "footer", "section", "article"),
        *("h1", "h2", "h3", "p", "cite", "bdi", "div", "dl", "dt", "dd", "pre", "details", "summary"),
        *("figure", "figcaption", "img", "table", "thead", "tbody", "tr", "th", "td"),
    }
    assert not [name for _, attrs in shown.elements for name in attrs if name.startswith("on")]


def test_a_name_that_is_no_text_is_no_obstacle(run: Run, tmp_path: Path) -> None:
    """File systems allow bytes that are no UTF-8; Python hands them on as lone surrogates."""

    def change(specialties: Any) -> None:
        specialties["specialties"][0]["class_names"][0] = "caf\udce9"

    copy = changed(run, tmp_path / "copy", runs.SPECIALTIES, change)
    write_report(copy)
    assert "caf?" in page_of(copy).names


@pytest.mark.parametrize("which", ["run", "odd"])
def test_nothing_is_fetched(which: str, request: pytest.FixtureRequest) -> None:
    folder: Run = request.getfixturevalue(which)
    shown = page_of(folder)
    sources = shown.attributes("src", "href", "srcset", "data", "action", "poster", "background", "style")
    assert sources
    assert all(source.startswith("data:image/png;base64,") for source in sources)
    source = folder.read(runs.REPORT).decode()
    style = source[source.index("<style>") : source.index("</style>")]
    assert "url(" not in style
    assert "@import" not in style
    policies = [attrs["content"] for _, attrs in shown.elements if attrs.get("http-equiv") == "Content-Security-Policy"]
    assert policies == ["default-src 'none'; img-src data:; style-src 'unsafe-inline'"]


def test_figures_are_files_and_on_the_page(run: Run) -> None:
    names = ["accuracy", "loss", "updates", "specialties", "confusion"]
    files = [run.read(f"{runs.FIGURES}/{name}.png") for name in names]
    assert sorted(path.stem for path in run.file(runs.FIGURES).iterdir()) == sorted(names)
    embedded = [base64.b64decode(source.partition(",")[2]) for source in page_of(run).attributes("src")]
    assert embedded == files
    for content in files:
        image = Image.open(io.BytesIO(content), formats=["PNG"])
        image.load()  # checks every block
        assert image.width == round(figures.WIDTH * figures.DOTS_PER_INCH)
        assert len(image.convert("RGB").getcolors(image.width * image.height) or []) > 3  # something is drawn
    assert all(page_of(run).attributes("alt"))


def test_a_base_that_learned_nothing_is_told_of_first(run: Run, tmp_path: Path) -> None:
    stored = run.read_arrays(runs.PREDICTIONS)
    networks = run.read_json(runs.SUMMARY)["networks"]
    for stage, name in (("base", "base_classes"), ("base-paper", "base_paper_classes"), ("experts", "classes")):
        assert networks[stage]["classes_named"] == len(set(stored[name][:, 0].tolist()))

    def change(summary: Any) -> None:
        for stage in ("base", "base-paper", "experts"):
            summary["networks"][stage]["classes_named"] = 1 if stage == "base" else 8

    copy = changed(run, tmp_path / "copy", runs.SUMMARY, change)
    write_report(copy)
    told = "The base names the same class for all images: it learned nothing"
    assert told in page_of(copy).text.partition("Comparison")[0]
    assert told in comparison(copy.read_json(runs.SUMMARY))


def test_against_the_base_by_an_independent_count(run: Run) -> None:
    stored = run.read_arrays(runs.PREDICTIONS)
    labels, base, experts = stored["labels"], stored["base_classes"][:, 0], stored["classes"][:, 0]
    networks = run.read_json(runs.SUMMARY)["networks"]
    assert (base == labels).mean() == pytest.approx(networks["base"]["accuracy"])
    assert (stored["base_paper_classes"][:, 0] == labels).mean() == pytest.approx(networks["base-paper"]["accuracy"])
    of = np.empty(8, dtype=int)
    for each in run.read_json(runs.SPECIALTIES)["specialties"]:
        of[each["class_ids"]] = each["index"]
    shown = page_of(run)
    assert "Against the base" in shown.text
    alone = ((experts == labels) & (base != labels)).sum(), ((experts != labels) & (base == labels)).sum()
    assert f"{alone[0]} image" in shown.text
    assert f"only the experts recognise, and {alone[1]} only the base" in shown.text
    mistakes, classes, pairs = shown.tables[3:]
    for row, first in zip(mistakes[1:], (base, experts), strict=True):
        inside = ((of[labels] == of[first]) & (labels != first)).mean()
        across = (of[labels] != of[first]).mean()
        assert row[1:] == [f"{(first == labels).mean():.2%}", f"{inside:.2%}", f"{across:.2%}"]
    points = [100 * ((experts == labels)[labels == c].mean() - (base == labels)[labels == c].mean()) for c in range(8)]
    changed_points = [float(row[-1]) for row in classes[1:]]
    assert changed_points == sorted((round(p, 2) for p in points if p), reverse=True)  # 8 classes: all are named
    for name, _, _, of_base, of_experts, change in classes[1:]:
        own = labels == int(name.removeprefix("class-"))
        assert (of_base, of_experts) == (
            f"{(base == labels)[own].mean():.2%}",
            f"{(experts == labels)[own].mean():.2%}",
        )
        assert change == f"{points[int(name.removeprefix('class-'))]:+.2f}"
    for first, second, by_base, by_experts, place in pairs[1:]:
        a, b = (int(name.removeprefix("class-")) for name in (first, second))
        counts = [
            int((((labels == a) & (taken == b)) | ((labels == b) & (taken == a))).sum()) for taken in (base, experts)
        ]
        assert (by_base, by_experts) == (f"{counts[0]} of 20", f"{counts[1]}")
        assert place.startswith("inside" if of[a] == of[b] else "across")
    by_base = [int(row[2].split()[0]) for row in pairs[1:]]
    assert by_base == sorted(by_base, reverse=True)
    assert 0 < len(by_base) <= 10


def test_a_run_that_did_not_keep_what_its_base_predicts(run: Run, tmp_path: Path) -> None:
    """As those of before it was kept."""
    copy = changed(run, tmp_path / "copy", runs.CONFIG, lambda config: None)
    arrays = copy.read_arrays(runs.PREDICTIONS)
    copy.write_arrays(runs.PREDICTIONS, **{name: arrays[name] for name in ("labels", "classes", "probabilities")})
    write_report(copy)
    shown = page_of(copy)
    assert len(shown.tables) == 3
    assert f"did not keep what its base predicts; the figures are those of:\nnofe evaluate {copy.path}" in shown.text


def test_names_with_commas_are_quoted_in_lists(run: Run, tmp_path: Path) -> None:
    def change(described: Any) -> None:
        for each in described["specialties"]:
            each["class_names"] = [f"{name}, blue" if name == "class-3" else name for name in each["class_names"]]

    copy = changed(run, tmp_path / "copy", runs.SPECIALTIES, change)
    shown = rendered(read_record(copy))
    assert any('"class-3, blue"' in card for card in shown.cards)
    assert "class-3, blue" in shown.names  # in tables as it is
    assert '"class-3, blue"' in specialties_in_words(copy.path)
    assert '"class-4"' not in specialties_in_words(copy.path)


def test_so_many_experts_and_classes_are_listed_in_part_when_a_training_ends(run: Run, tmp_path: Path) -> None:
    assert specialties_at_a_glance(run.path) == specialties_in_words(run.path), "a few are listed as they are"

    def many(described: Any) -> None:
        described["specialties"] = [
            {"index": k, "class_names": [f"class-{1000 * k + c}" for c in range(250 if k else 20)]} for k in range(21)
        ]

    copy = changed(run, tmp_path / "copy", runs.SPECIALTIES, many)
    first, second, *_, last, rest, where = specialties_at_a_glance(copy.path).splitlines()
    assert first == "expert  0: " + ", ".join(f"class-{c}" for c in range(20))
    assert second == "expert  1: " + ", ".join(f"class-{1000 + c}" for c in range(20)) + ", and 230 more"
    assert last.startswith("expert 19: ")
    assert (rest, where) == ("and 1 more expert", f"All classes of each: nofe specialties {copy.path}")
    assert specialties_in_words(copy.path).splitlines()[20].endswith("class-20249")


def test_without_a_base(odd: Run) -> None:
    shown = page_of(odd)
    assert [row[0] for row in shown.tables[0][1:]] == ["generalist, over 2 specialties", "network of experts"]
    assert "no gain to report" in shown.text
    assert "points" not in shown.text
    assert "Against the base" not in shown.text


def test_ragged_specialties(odd: Run) -> None:
    shown = page_of(odd)
    assert "K = 2, with 3 to 4 classes each" in shown.text
    assert [" classes 4 " in shown.cards[0], " classes 3 " in shown.cards[1]] == [True, True]
    assert "among pairs of classes drawn at random it would be 42.9%" in shown.text  # (6 + 3) of 21 pairs


def test_a_rule_without_updates(run: Run, tmp_path: Path) -> None:
    def change(config: Any) -> None:
        config["specialties"]["rule"] = "random"

    copy = changed(run, tmp_path / "copy", runs.CONFIG, change)
    kept = [line for line in copy.metrics() if "update" not in line]
    copy.file(runs.METRICS).write_text("".join(json.dumps(line) + "\n" for line in kept))
    record = read_record(copy)
    assert "updates" not in [picture.name for picture in figures.draw_pictures(record)]
    assert "fixed before the generalist was trained" in rendered(record).text


def test_specialties_that_a_rule_emptied_are_mentioned(run: Run, tmp_path: Path) -> None:
    def change(config: Any) -> None:
        config["specialties"]["count"] = 5

    record = read_record(changed(run, tmp_path / "copy", runs.CONFIG, change))
    assert "K = 2, with 4 classes each; 5 were asked for" in rendered(record).text


def test_command_for_another_seed_differs_in_the_seed_alone(odd: Run) -> None:
    """With what a shell and `nofe train` make of it."""
    program, verb, *words = shlex.split(with_another_seed(read_record(odd)))
    assert (program, verb) == ("nofe", "train")
    options = [word.partition("=")[::2] for word in words]
    chosen = {name: value for name, value in options if name != "--set"}
    assert chosen.keys() == {"--architecture", "--dataset"}
    again = default_run(chosen["--architecture"], chosen["--dataset"])
    again = with_settings(again, [value for name, value in options if name == "--set"])
    config = from_json(odd.read_json(runs.CONFIG))
    assert again == dataclasses.replace(config, seed=config.seed + 1)


def test_commands_name_the_folder_as_a_shell_needs_it(odd: Run) -> None:
    assert f"nofe evaluate {shlex.quote(str(odd.path))}" in page_of(odd).text


def test_report_command_writes_the_same_page_again(run: Run, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    from nofe.cli import app

    before = run.read(runs.REPORT)
    run.file(runs.REPORT).unlink()
    app(["report", str(run.path)], standalone_mode=False)
    assert run.read(runs.REPORT) == before
    assert str(run.file(runs.REPORT)) in capsys.readouterr().out
    with pytest.raises(UserError, match="no run is here"):
        app(["report", str(tmp_path / "nowhere")], standalone_mode=False)
    assert not (tmp_path / "nowhere").exists()


def test_a_failing_report_fails_no_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(run: Run) -> None:
        raise ZeroDivisionError("nothing to draw")

    monkeypatch.setattr(page, "write_report", fail)
    config = small_run("base.by=none", "generalist.epochs=1", "experts.epochs=1")
    summary = train(config, tmp_path / "run", dataset=small_dataset(), runtime=make_runtime("cpu"))
    assert summary == Run(tmp_path / "run").read_json(runs.SUMMARY)
    assert "nothing to draw" in caplog.text
    assert f"nofe report {tmp_path / 'run'}" in caplog.text


def test_damaged_predictions_are_noticed(run: Run, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    copy = changed(run, tmp_path / "copy", runs.CONFIG, lambda config: None)
    copy.file(runs.PREDICTIONS).write_bytes(b"damaged")
    with pytest.raises(RunError, match=r"predictions\.npz"):
        write_report(copy)
    report_if_possible(copy)
    assert "predictions.npz" in caplog.text


def rendered(record: Record) -> Page:
    return Page(page.page(record, []))


def test_a_recipe_in_words() -> None:
    """What the paper's recipes have is in the table; what goes beyond them is said, and nothing else."""
    paper = to_json(default_run("resnet56-c100", "cifar100"))["experts"]
    assert beyond_the_paper(paper) == []
    old = {name: value for name, value in paper.items() if name in ("epochs", "rate", "drops", "augmentation")}
    assert beyond_the_paper(old | {"augmentation": {"crop": 28, "padding": 0, "mirror": True}}) == []
    assert beyond_the_paper(to_json(default_run("resnet56-c100", "cifar100", "modern"))["experts"]) == [
        "SGD with Nesterov's momentum",
        "warm-up of 5 epochs",
        "cosine",
        "labels smoothed by 0.1",
    ]
    assert beyond_the_paper(to_json(default_run("resnet56-c100", "cifar100", "adamw"))["experts"]) == [
        "AdamW",
        "warm-up of 5 epochs",
        "cosine",
        "labels smoothed by 0.1",
        "RandAugment, 2 at 9",
        "25% erased",
        "mixup 0.8 and cutmix 1",
        "weights averaged with decay 0.999",
    ]
