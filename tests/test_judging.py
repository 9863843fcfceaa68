"""What a finished run is judged on: the images it was made with, at any place, or others by their class names."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import nofe
from conftest import small_dataset
from nofe import runs
from nofe.runs import Run
from test_cli import COLOURS, SHORT, answered, command, refusal, write_animals

Copied = tuple[Path, Path]


def split_by_run(folder: Path) -> Path:
    """A folder for each class alone: which images to test on is drawn."""
    write_animals(folder)
    for name in COLOURS:
        for image in (folder / "val" / name).iterdir():
            image.rename(folder / "train" / name / f"more-{image.name}")
        (folder / "train" / name).rename(folder / name)
    shutil.rmtree(folder / "train")
    shutil.rmtree(folder / "val")
    return folder


def draw(file: Path, colour: tuple[int, int, int]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.full((40, 32, 3), colour, dtype=np.uint8)).save(file)


def trained(data: Path, out: Path, *options: str) -> Path:
    assert command("train", "--dataset", f"folder:{data}", *SHORT, *options, "--out", out).code == 0
    return out


@pytest.fixture(scope="module")
def drawn(tmp_path_factory: pytest.TempPathFactory) -> Copied:
    """Data without a test part, and a run on it."""
    root = tmp_path_factory.mktemp("drawn")
    data = split_by_run(root / "animals")
    return data, trained(data, root / "run")


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory) -> Copied:
    """Data with val/, and a run on it."""
    root = tmp_path_factory.mktemp("given")
    data = write_animals(root / "animals")
    return data, trained(data, root / "run")


@pytest.fixture
def changing(tmp_path: Path) -> Copied:
    """The same, to change."""
    data = write_animals(tmp_path / "animals")
    return data, trained(data, tmp_path / "run", "--base", "none")


def figures(*arguments: str | Path) -> dict[str, object]:
    answer = command("evaluate", *arguments, "--json")
    assert answer.code == 0, answer
    found: dict[str, object] = json.loads(answer.out)
    return found


def test_images_that_are_added_would_have_the_test_images_drawn_anew(tmp_path: Path) -> None:
    data = split_by_run(tmp_path / "animals")
    run = trained(data, tmp_path / "run", "--base", "none")
    for number in range(10):
        draw(data / "ant" / f"new-{number}.png", COLOURS["ant"])
    answer = command("evaluate", run)
    assert answer.code == 2
    assert (
        f"nofe: {run}: the images changed since the run was started (32 to train on then, 40 now, 8 to test on then, "
        "10 now); put the old ones back, or judge the run on other labelled images with --dataset folder:PATH"
    ) in answer.err
    # Named in so many words, they are still those that it was trained on.
    assert "the run was trained on images that are there" in refusal("evaluate", run, "--dataset", f"folder:{data}")


def test_training_images_are_not_judged_by_where_the_named_test_images_are_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = split_by_run(tmp_path / "animals")
    shutil.copytree(data, tmp_path / "judged")
    monkeypatch.chdir(tmp_path)
    run = trained(data, tmp_path / "run", "--base", "none", "--set", "data.test=judged")
    assert not figures(run, "--dataset", "folder:animals")["other_data"]
    (tmp_path / "below").mkdir()
    monkeypatch.chdir(tmp_path / "below")
    told = refusal("evaluate", run, "--dataset", "folder:../animals")
    assert "as many images as the run was trained on" in told
    assert "data.test=judged, is not there; call nofe where that path counts from" in told
    shutil.copytree(data, tmp_path / "others")
    (tmp_path / "others" / "ant" / "0.png").unlink()
    assert figures(run, "--dataset", "folder:../others")["other_data"], "which nobody need have trained on"


def test_images_to_test_on_are_the_same_or_are_called_others(changing: Copied) -> None:
    data, run = changing
    (data / "val" / "ant" / "0.png").unlink()
    assert "32 to train on then, 32 now, 8 to test on then, 7 now" in refusal("evaluate", run)
    said = answered("evaluate", run, "--dataset", f"folder:{data}")
    assert said.startswith(f"Other data than the run's: folder:{data}, its test images.")
    assert figures(run, "--dataset", f"folder:{data}")["images"] == 7
    draw(data / "val" / "ant" / "0.png", COLOURS["dog"])
    assert "as many as then, but other pixels" in refusal("evaluate", run)


def test_a_run_of_before_images_were_counted_is_checked_too(changing: Copied) -> None:
    data, path = changing
    run = Run(path)
    environment = run.read_json(runs.ENVIRONMENT)
    del environment["data"]["images"]
    run.write_json(runs.ENVIRONMENT, environment)
    assert not figures(path, "--dataset", f"folder:{data}")["other_data"]
    (data / "val" / "ant" / "0.png").unlink()
    assert "the images changed since the run was started; put" in refusal("evaluate", path)


@pytest.mark.parametrize("data_of", ["drawn", "given"])
def test_data_at_another_place_is_the_same_data(
    data_of: str, request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the images that were held out, where they were drawn."""
    data, run = request.getfixturevalue(data_of)
    shutil.copytree(data, tmp_path / "elsewhere")
    monkeypatch.chdir(tmp_path)
    before, after = figures(run), figures(run, "--dataset", "folder:elsewhere")
    assert after.pop("dataset") == "folder:elsewhere"
    assert before.pop("dataset") == f"folder:{data}"
    assert before == after
    assert not after["other_data"]


def test_a_run_goes_on_with_data_at_another_place(
    given: Copied, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from nofe import generalist
    from nofe.errors import RunError

    def full(*_: object, **__: object) -> None:
        raise RunError("the disk is full")

    data, finished = given
    old, new, out = tmp_path / "old", tmp_path / "new", tmp_path / "run"
    shutil.copytree(data, old)
    with monkeypatch.context() as patch:
        patch.setattr(generalist, "train_epoch", full)
        refusal("train", "--dataset", f"folder:{old}", *SHORT, "--out", out, code=1)
    old.rename(new)
    assert f"{old}: no such folder" in refusal("train", "--out", out, "--resume")
    config = Run(out).read(runs.CONFIG)
    answered("train", "--out", out, "--resume", "--dataset", f"folder:{new}")
    assert Run(out).read(runs.NETWORK) == Run(finished).read(runs.NETWORK)
    assert Run(out).read(runs.CONFIG) == config, "the run is the one that was started"
    assert Run(out).read_json(runs.SUMMARY)["config"] == json.loads(config)
    assert "this run is complete" in answered("train", "--out", out, "--resume", "--dataset", f"folder:{new}")
    (new / "val" / "ant" / "0.png").unlink()
    assert "the images changed" in refusal("train", "--out", out, "--resume", "--dataset", f"folder:{new}")
    told = refusal("train", "--out", out, "--resume", "--dataset", "glyphs")
    assert f"data.name was folder:{old}, is glyphs" in told


def test_other_images_are_judged_by_the_names_of_their_classes(given: Copied, tmp_path: Path) -> None:
    """All of them where there is no test part; of some classes alone, in another order."""
    _, run = given
    for number in range(3):
        draw(tmp_path / "more" / "dog" / f"{number}.png", COLOURS["dog"])
    draw(tmp_path / "more" / "bee" / "one.png", COLOURS["bee"])
    place = f"folder:{tmp_path / 'more'}"
    found = figures(run, "--dataset", place)
    assert (found["images"], found["other_data"], found["dataset"]) == (4, True, place)
    answers = json.loads(answered("predict", run, tmp_path / "more", "--top", "1", "--json"))
    right = [answer["top"][0]["class"] == Path(answer["file"]).parent.name for answer in answers]
    assert found["experts"]["top_1"] == np.mean(right)  # type: ignore[index]
    said = answered("evaluate", run, "--dataset", place)
    assert said.startswith(f"Other data than the run's: {place}, all of its images, as it has no test part.")
    shutil.copytree(tmp_path / "more", tmp_path / "parts" / "val")
    in_val = figures(run, "--dataset", f"folder:{tmp_path / 'parts'}")
    assert in_val["experts"] == found["experts"], "a folder of images to judge by alone"
    shutil.rmtree(tmp_path / "more" / "bee")
    lines = answered("evaluate", run, "--dataset", place).splitlines()
    [head] = [number for number, line in enumerate(lines) if line.startswith("expert  ")]
    by_expert = [line.split() for line in lines[head + 2 : head + 4]]
    assert sorted(len(cells) for cells in by_expert) == [3, 6], "no accuracy where there are no images"
    assert all(len(cells) == 6 for cells in by_expert if cells[2] != "0")
    draw(tmp_path / "more" / "eel" / "one.png", (0, 0, 0))
    assert "class 'eel' is not among the 4 of the run (1 such" in refusal("evaluate", run, "--dataset", place)


def test_an_unreadable_image_that_is_removed_later_does_not_make_the_images_others(tmp_path: Path) -> None:
    data = write_animals(tmp_path / "animals")
    for part in ("train", "val"):
        (data / part / "ant" / "broken.png").write_bytes(b"")
    run = trained(data, tmp_path / "run", "--base", "none", "--skip-unreadable")
    for part in ("val", "train"):
        (data / part / "ant" / "broken.png").unlink()
        assert figures(run, "--dataset", f"folder:{data}")["other_data"] is False
    assert figures(run)["images"] == 8


def test_unreadable_images_among_others(given: Copied, tmp_path: Path) -> None:
    _, run = given
    for name in COLOURS:
        draw(tmp_path / "more" / name / "0.png", COLOURS[name])
    (tmp_path / "more" / "ant" / "1.png").write_bytes(b"no image")
    place = f"folder:{tmp_path / 'more'}"
    assert "1 of 5 images cannot be read: ant/1.png" in refusal("evaluate", run, "--dataset", place)
    assert figures(run, "--dataset", place, "--skip-unreadable")["images"] == 4


def test_a_run_on_images_in_memory_is_judged_on_files(tmp_path: Path) -> None:
    settings = {"experts.epochs": 1, "generalist.epochs": 1, "base.by": "none"}
    nofe.train(tmp_path / "run", small_dataset(), "small", 2, settings=settings, device="cpu", quiet=True)
    said = refusal("evaluate", tmp_path / "run")
    assert "its images, small, came from Python" in said
    assert "with --dataset folder:PATH" in said
    for name in small_dataset().class_names:
        draw(tmp_path / "more" / name / "0.png", (1, 2, 3))
    assert figures(tmp_path / "run", "--dataset", f"folder:{tmp_path / 'more'}")["images"] == 8


def test_the_place_of_cifar_is_not_that_of_a_folder(given: Copied, tmp_path: Path) -> None:
    _, run = given
    told = refusal("evaluate", run, "--data-root", tmp_path)
    assert f"--data-root {tmp_path}: says where CIFAR lies, not where folder:" in told
    assert told.endswith(f"say that with --dataset folder:{tmp_path / 'animals'}")


def test_held_out_images_are_found_again(tmp_path: Path) -> None:
    """With data.hold_out, by which the test images are put aside; of other data they are not."""
    data = write_animals(tmp_path / "animals")
    run = trained(data, tmp_path / "run", "--base", "none", "--set", "data.hold_out=0.25")
    data.rename(tmp_path / "moved")
    found = figures(run, "--dataset", f"folder:{tmp_path / 'moved'}")
    assert (found["images"], found["other_data"]) == (8, False)
    assert found["experts"]["top_1"] == Run(run).read_json(runs.SUMMARY)["networks"]["experts"]["accuracy"]  # type: ignore[index]
    (tmp_path / "moved" / "train" / "ant" / "0.png").unlink()
    assert figures(run, "--dataset", f"folder:{tmp_path / 'moved'}")["other_data"]


def test_test_images_beside_val_are_judged_by_as_the_run_advises(tmp_path: Path) -> None:
    data = write_animals(tmp_path / "animals")
    for name, colour in COLOURS.items():
        draw(data / "test" / name / "1.png", colour)
    answer = command("train", "--dataset", f"folder:{data}", *SHORT, "--set", "until=base", "--out", tmp_path / "run")
    assert answer.code == 0
    [advised] = answer.err.splitlines()
    begin = f"nofe: {data}: tests on val/ and does not read test/ (4 images); "
    begin += "test a finished run on it with nofe "
    assert advised.startswith(begin)
    verb, _, *options = advised.removeprefix(begin).split()
    found = json.loads(answered(verb, tmp_path / "run", *options, "--json"))
    assert (found["images"], found["other_data"]) == (4, True)
    held = trained(data, tmp_path / "held", "--set", "until=base", "--set", "data.hold_out=0.25")
    judged = command(verb, held, *options)
    assert (judged.code, judged.err) == (0, "")  # nothing is held out of what is all judged by
    packed = command("pack", data, tmp_path / "packed", "--size", "32", "--workers", "1")
    assert packed.err.splitlines()[0] == advised
