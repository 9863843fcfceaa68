"""The size of photos before they are made small, without decoding them."""

from pathlib import Path

import pytest
from PIL import Image

from nofe.data.originals import usual_side


def test_the_usual_side_is_the_median_of_shorter_sides(tmp_path: Path) -> None:
    folder = tmp_path / "birds" / "train" / "crow"
    folder.mkdir(parents=True)
    for number, size in enumerate([(500, 300), (310, 700), (2000, 1000)]):
        Image.new("RGB", size).save(folder / f"{number}.jpg")
    (folder / "3.jpg").write_bytes(b"no image")
    (folder / "notes.txt").write_text("text")
    assert usual_side(f"folder:{tmp_path / 'birds'}") == 310


def test_photos_of_many_classes_are_looked_at(tmp_path: Path) -> None:
    """Not those of the first class alone, nor those to judge by."""
    for number in range(120):
        for part in ("train", "val"):
            folder = tmp_path / part / f"{number:03}"
            folder.mkdir(parents=True)
            side = 900 if part == "val" else 400 if number < 40 else 48
            Image.new("L", (side, side)).save(folder / "0.png")
    assert usual_side(f"folder:{tmp_path}") == 48


@pytest.mark.parametrize("name", ["glyphs", "cifar100", "shards:somewhere", "folder:nowhere", "small"])
def test_of_other_data_nothing_is_said(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert usual_side(name) is None
