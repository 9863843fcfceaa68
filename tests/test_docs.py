"""The documentation: links lead somewhere, examples run, commands and messages are those of the program."""

import ast
import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import typer
from PIL import Image

import nofe
from nofe.cli import app
from nofe.config import with_settings
from nofe.experts.fused import FusedExperts
from nofe.export import export_run
from nofe.recipes import default_run
from nofe.specialties import classes_moved, random_balanced

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")] + sorted(ROOT.glob("docs/**/*.md"))
GENERATED = ("results.md", "speed.md")
BY_HAND = [page for page in PAGES if page.name not in GENERATED and page.parent.name != "decisions"]
FENCED = re.compile(r"^```.*?^```$", re.DOTALL | re.MULTILINE)
# A command among indented lines, and what it is called with up to a comment.
COMMAND = re.compile(r"^ {4,}(?:torchrun .*?-m )?nofe (bench (?:data|runs)\b|[a-z]+)([^#\n]*)", re.MULTILINE)
OF_TORCHRUN = {"--nnodes", "--nproc-per-node", "--rdzv-backend", "--rdzv-endpoint", "--rdzv-id", "--max-restarts"}


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


# Links


def anchors(text: str) -> set[str]:
    """As GitHub makes them of headings."""
    found: set[str] = set()
    for heading in re.findall(r"^#{1,6} +(.+?) *$", FENCED.sub("", text), re.MULTILINE):
        anchor = re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
        times = sum(re.fullmatch(rf"{re.escape(anchor)}(-\d+)?", each) is not None for each in found)
        found.add(f"{anchor}-{times}" if times else anchor)
    return found


def broken_links(page: Path) -> list[str]:
    """Relative links of a page to a file or a heading that is not there."""
    text = re.sub(r"`[^`\n]*`", "", FENCED.sub("", page.read_text()))
    broken = []
    for link in re.findall(r"\]\(([^()\s]+)\)", text):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = page.parent / path if path else page
        if not target.exists() or (anchor and anchor not in anchors(target.read_text())):
            broken.append(link)
    return broken


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_link_leads_to_a_file_and_a_heading(page: Path) -> None:
    assert broken_links(page) == []


def test_a_link_that_leads_nowhere_is_found(tmp_path: Path) -> None:
    (tmp_path / "other.md").write_text("# Two words, and more\n\n## Twice\n\n## Twice\n\n```\n# no heading\n```\n")
    page = tmp_path / "page.md"
    page.write_text(
        "# Own `code`\n\n[a](other.md) [b](other.md#two-words-and-more) [c](#own-code) [d](https://absent.example/x)\n"
        "[e](other.md#twice-1) `[f](in-code.md)`\n\n"
        "![g](absent.png) [h](other.md#no-heading) [i](#absent) [j](other.md#twice-2)\n"
    )
    assert broken_links(page) == ["absent.png", "other.md#no-heading", "#absent", "other.md#twice-2"]


def test_every_page_is_within_reach_of_the_guide() -> None:
    guide = (ROOT / "docs" / "guide.md").read_text()
    for page in ROOT.glob("docs/*.md"):
        assert page.name == "guide.md" or f"]({page.name})" in guide, page.name


# Python


def blocks_of(page: Path) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```$", page.read_text(), re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("page", [page for page in BY_HAND if blocks_of(page)], ids=name_of)
def test_examples_use_what_there_is(page: Path) -> None:
    """Those, too, that would download something."""
    for block in blocks_of(page):
        for node in ast.walk(ast.parse(block)):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "nofe":
                assert node.attr in nofe.__all__, node.attr


def run_blocks(page: str, *numbers: int, **given: Any) -> dict[str, Any]:
    """Some of the examples of a page, one after another; what they leave."""
    blocks, names = blocks_of(ROOT / "docs" / page), dict(given)
    for number in numbers or range(len(blocks)):
        exec(compile(blocks[number], f"{page}, example {number}", "exec"), names)
    return names


def draw_photos(folder: Path, names: list[str], rng: np.random.Generator) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        Image.fromarray(rng.integers(0, 255, (48, 40, 3), dtype=np.uint8)).save(folder / name)


def test_the_example_of_conversion_runs(capsys: pytest.CaptureFixture[str]) -> None:
    run_blocks("networks.md")
    assert capsys.readouterr().out == "torch.Size([1, 8]) torch.Size([1, 8])\n"


def test_the_example_of_alternating_by_hand_learns(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """On a third of the images that it names."""
    third = nofe.load_dataset("glyphs").hold_out(1 / 3, seed=0).test
    monkeypatch.setattr(nofe, "load_dataset", lambda name: SimpleNamespace(train=third))
    torch.manual_seed(0)
    left = run_blocks("training.md")
    *shares, accuracy = (float(line.split("%")[0]) for line in capsys.readouterr().out.splitlines())
    assert shares[0] < shares[1] < shares[2]
    assert accuracy > 10  # of 120 classes
    start = random_balanced(120, 10, np.random.default_rng(0))
    assert classes_moved(start, left["specialties"]) > 60
    assert isinstance(left["network"].experts, FusedExperts)


def test_the_examples_of_training_shipping_and_export_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("onnxscript")
    pytest.importorskip("onnxruntime")
    monkeypatch.chdir(tmp_path)
    trained = run_blocks("using.md", 0)
    assert trained["summary"]["networks"]["experts"]["accuracy"] > 0.5  # an eighth is by chance
    draw_photos(tmp_path, ["photo.jpg", "one.jpg", "another.jpg"], np.random.default_rng(0))
    copied: set[str] = set()
    for page in ("guide.md", "using.md"):
        [files] = re.findall(r"^ +cp runs/birds/\{(.*?)\} birds-network/$", (ROOT / "docs" / page).read_text(), re.M)
        copied |= set(files.split(","))
        shutil.rmtree("birds-network", ignore_errors=True)
        Path("birds-network").mkdir()
        for file in files.split(","):
            shutil.copy(Path("runs/bars") / file, "birds-network")
        capsys.readouterr()
        left = run_blocks(page, 0) if page == "guide.md" else run_blocks(page, 1)
        assert capsys.readouterr().out.startswith("colour ")
    assert len(copied) == 5
    export_run(Path("birds-network"), Path("birds.onnx"))
    for photo, given in photos_of_all_kinds(np.random.default_rng(1)):
        photo.save("photo.jpg", **given)  # by the content it is told what it is
        left, exported = run_blocks("using.md", 1), run_blocks("using.md", 2)
        [expected, found] = capsys.readouterr().out.splitlines()
        assert expected.startswith(found)
        shares = torch.from_numpy(exported["logits"]).softmax(1)
        torch.testing.assert_close(shares, left["shares"], rtol=1e-3, atol=1e-4)  # that each has read itself


def photos_of_all_kinds(rng: np.random.Generator) -> list[tuple[Image.Image, dict[str, Any]]]:
    """Of which each comes out otherwise where a step of the preparation is left out."""
    small, large = (
        Image.fromarray(rng.integers(0, 255, size, dtype=np.uint8)) for size in ((48, 40, 3), (400, 331, 3))
    )
    upside_down = Image.Exif()
    upside_down[0x0112] = 3  # a quarter turn would be rounded in another order
    clear = small.convert("RGBA")
    clear.putalpha(small.getchannel("R"))
    return [
        (small, {"format": "JPEG"}),
        (large, {"format": "JPEG"}),
        (small, {"format": "PNG", "exif": upside_down}),
        (clear, {"format": "PNG"}),
        (small.quantize(16), {"format": "PNG", "transparency": 3}),
        (small.convert("L"), {"format": "PNG"}),
    ]


def test_the_example_of_neighbours_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a run that takes less time than the one that it names."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    for name in ("crow", "jay", "owl", "wren"):
        draw_photos(tmp_path / "birds" / name, [f"{number}.png" for number in range(10)], rng)
    epochs = {"generalist.epochs": 1, "experts.epochs": 1, "data.test": 0.5}
    nofe.train("runs/glyphs-small-k10", "folder:birds", experts=2, settings=epochs, device="cpu", quiet=True)
    found = run_blocks("using.md", 3)["found"]
    assert found.precision()
    with Image.open("neighbours.png") as picture:
        assert min(picture.size) > 8


# Symbols


def symbols_in(text: str) -> Iterator[tuple[str, str]]:
    """File and name of `report/page.py: page, draw`, and without a name of `report/page.py`."""
    for file, names in re.findall(r"`((?:\w+/)*\w+\.py)(?:: ([\w., ]+))?`", text):
        for name in names.split(", "):
            yield file, name


def is_defined(file: str, name: str) -> bool:
    """At whatever depth the file lies; a method by its own name."""
    own = name.rpartition(".")[2]
    definition = re.compile(rf"^ *(?:(?:async )?def|class) {own}\b|^ *{own}(?:: .*)? = ", re.MULTILINE)
    files = [path for folder in ("src", "tests", "benchmarks") for path in (ROOT / folder).rglob(Path(file).name)]
    texts = [path.read_text() for path in files if path.as_posix().endswith(f"/{file}")]
    return any(not own or definition.search(text) for text in texts)


@pytest.mark.parametrize("page", [page for page in PAGES if page.name not in GENERATED], ids=name_of)
def test_what_is_said_to_be_in_a_file_is_there(page: Path) -> None:
    assert [each for each in symbols_in(page.read_text()) if not is_defined(*each)] == []


def test_the_paper_map_names_symbols_that_there_are() -> None:
    table = (ROOT / "docs" / "paper-map.md").read_text().split("\n## ")[1]
    cells = " ".join(row.split(" | ")[-1] for row in table.splitlines() if row.startswith("| "))
    named = [(f"{module}.py", name) for module, name in re.findall(r"`([a-z_]+)\.(?!json|py)(\w+)`", cells)]
    assert len(named) > 10
    assert [each for each in named if not is_defined(*each)] == []


def test_epochs_that_stand_for_steps_of_the_release_are_said_to_be_read_so_or_not() -> None:
    """The paper counts NIN's and ResNet56's steps of 128 images as if they were of 100: 500 an epoch."""
    text = (ROOT / "docs" / "paper-map.md").read_text()
    rows = {int(row.split(" | ")[0][2:]): row for row in text.splitlines() if re.match(r"\| \d+ \|", row)}
    in_batches_of_128 = {epochs: 500 * epochs / (50_000 // 128) for epochs in (12, 200, 260)}
    nin, resnet = default_run("nin-c100"), default_run("resnet56-c100")

    assert (nin.base.paper.epochs, f"{nin.base.paper.epochs} epochs" in rows[9]) == (int(in_batches_of_128[260]), True)
    assert (nin.generalist.epochs, resnet.generalist.epochs) == (200, 12), "as printed"
    assert f"200 and 12 epochs are {in_batches_of_128[200]:.0f} and {in_batches_of_128[12]:.0f}" in rows[4]


def test_a_symbol_that_is_not_in_its_file_is_found() -> None:
    text = "`report/page.py: page, absent`, `page.py`, `training/page.py`, `pipeline.train`, `metrics.jsonl`"
    assert [each for each in symbols_in(text) if not is_defined(*each)] == [
        ("report/page.py", "absent"),
        ("training/page.py", ""),
    ]


# The command line


def options_of() -> dict[str, set[str]]:
    """By command: "train", "bench data"."""
    found: dict[str, set[str]] = {}

    def note(name: str, command: Any) -> None:
        found[name] = {
            option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)
        }
        found[name].add("--help")
        for inner, subcommand in getattr(command, "commands", {}).items():
            note(f"{name} {inner}".strip(), subcommand)

    note("", typer.main.get_command(app))
    return found


def commands_in(text: str) -> Iterator[tuple[str, str]]:
    """Each with its options; lines that end in a backslash go on."""
    yield from COMMAND.findall(re.sub(r"\\\n *", "", text))


@pytest.mark.parametrize("page", BY_HAND, ids=name_of)
def test_commands_have_the_options_that_they_are_shown_with(page: Path) -> None:
    known, config = options_of(), default_run()
    text = page.read_text()
    for command, rest in commands_in(text):
        assert command in known, command
        assert set(re.findall(r"(?<!\S)--[a-z][a-z-]*", rest)) <= known[command], f"{command} {rest}"
    every = set().union(*known.values()) | OF_TORCHRUN
    in_text = set(re.findall(r"`(--[a-z][a-z-]*)", text))
    assert in_text <= every, in_text - every
    for field in re.findall(r"--set '?([a-z_.]+)=", text):
        *parts, last = field.split(".")
        owner: Any = config
        for part in parts:
            owner = getattr(owner, part)
        assert hasattr(owner, last), field


def test_the_settings_of_the_examples_are_accepted() -> None:
    given = ["generalist.epochs=20", "experts.rate=0.05", "experts.drops=[0.5,0.75]"]
    example = "nofe train " + " ".join(f"--set '{each}'" if "[" in each else f"--set {each}" for each in given)
    assert example in (ROOT / "docs" / "configuration.md").read_text()
    assert with_settings(default_run(), given).experts.drops == (0.5, 0.75)


# Messages

HOLE = "{}"  # in a text of the program for what is put in, in a message of the page for what is left out


def texts_of(module: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(module.read_text())):
        if isinstance(node, ast.JoinedStr):
            yield "".join(str(part.value) if isinstance(part, ast.Constant) else HOLE for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value.replace("%s", HOLE)


def could_say(text: str, message: str) -> bool:
    """Whether a message is part of what the text says with its holes filled in, with three words that are its own."""
    words, own = message.split(), text.split()
    enough = min(3, len(words))
    return any(_goes_on(words, own[start:], enough) for start in range(len(own)))


def _goes_on(words: list[str], own: list[str], enough: int) -> bool:
    if not words:
        return enough <= 0
    if not own:
        return False
    if HOLE not in own[0]:
        if HOLE in words[0] and _goes_on(words[1:], own[1:], enough):
            return True
        is_same = words[0] == (own[0] if words[1:] else own[0].rstrip(";,:."))
        return is_same and _goes_on(words[1:], own[1:], enough - 1)
    rest = " ".join(words)
    if enough <= 0 and rest.startswith(own[0].partition(HOLE)[0]):
        return True  # ends in what is put in
    pattern = re.escape(own[0]).replace(re.escape(HOLE), ".*")
    ends = (end for end in range(1, len(words) + 1) if re.fullmatch(pattern, " ".join(words[:end])))
    return any(_goes_on(words[end:], own[1:], enough) for end in ends)


def test_the_messages_of_the_page_on_troubles_are_those_of_the_program() -> None:
    said = {text for module in sorted((ROOT / "src").rglob("*.py")) for text in texts_of(module)}
    cells = re.findall(r"^\| (`.*?) \| ", (ROOT / "docs" / "troubleshooting.md").read_text(), re.MULTILINE)
    shown = [message for cell in cells for message in re.findall(r"`([^`]+)`", cell)]
    assert len(shown) > 40
    messages = [re.sub(r"[^\s(]*\.\.\.", HOLE, message) for message in shown]
    assert [message for message in messages if not any(could_say(text, message) for text in said)] == []


def test_a_message_that_nothing_says_is_found() -> None:
    text = "{}: {} of {} images cannot be read: {}; repair them"
    assert could_say(text, "1 of 40 images cannot be read: {}")
    assert could_say(text, "images cannot be read: a.jpg (truncated)")
    assert not could_say(text, "1 of 40 pictures cannot be read")
    assert not could_say(text, "images cannot be seen")
    assert not could_say("{}: {}", "1 of 40 images cannot be read")


def test_the_gain_of_packing_is_that_of_the_measured_rates() -> None:
    page = " ".join((ROOT / "docs" / "data.md").read_text().split())
    folder = ROOT / "benchmarks" / "results" / "amd-epyc-2-cores"
    before, after = (json.loads((folder / f"data-{kind}.json").read_text()) for kind in ("folder", "shards"))
    assert before["workers"] == after["workers"] == 2
    loose, packed = (each["images_per_second"]["workers"] for each in (before, after))
    assert f"Two worker processes read {loose:,.0f} synthetic photos" in page
    assert f"a second, and {packed:,.0f} after packing" in page
