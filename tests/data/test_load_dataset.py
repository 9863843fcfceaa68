"""Data sets by name, and what a misspelt one is told."""

from pathlib import Path

import pytest
from PIL import Image

from nofe.data import DATASETS, load_dataset
from nofe.data.glyphs import CHARACTERS
from nofe.errors import UserError


def refusal(name: str, image_size: int = 32) -> str:
    with pytest.raises(UserError) as caught:
        load_dataset(name, root=Path("nowhere"), image_size=image_size, download=False)
    message = str(caught.value)
    assert "\n" not in message
    return message


@pytest.mark.parametrize(
    ("name", "meant"),
    [("glyph", "glyphs"), ("cifar-100", "cifar100"), ("CIFAR10", "cifar10"), ("folder", "folder:PATH")],
)
def test_a_misspelt_name_gets_a_suggestion(name: str, meant: str) -> None:
    assert f"{name}: no such data set; did you mean '{meant}'?" in refusal(name)


def test_an_unknown_name_gets_the_list() -> None:
    message = refusal("zzz")
    assert "did you mean" not in message
    assert all(name in message for name in DATASETS)


def test_a_path_gets_the_prefix(tmp_path: Path) -> None:
    assert f"did you mean 'folder:{tmp_path}'?" in refusal(str(tmp_path))


def test_the_prefix_alone_is_not_the_current_folder() -> None:
    assert "write folder:PATH" in refusal("folder:")


@pytest.mark.parametrize("name", ["glyphs", "cifar10", "cifar100"])
def test_small_images_are_not_blown_up(name: str) -> None:
    message = refusal(name, image_size=224)
    assert f"{name}: its images are 32 pixels a side and the architecture wants 224" in message
    assert "CIFAR (32 x 32)" in message


def test_every_name_leads_to_its_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for part in ("train", "val"):
        for name in ("ant", "bee"):
            (tmp_path / "data" / part / name).mkdir(parents=True)
            Image.new("RGB", (20, 20), "red").save(tmp_path / "data" / part / name / "1.png")
    monkeypatch.setenv("HOME", str(tmp_path))
    dataset = load_dataset("folder:~/data", root=Path("nowhere"), image_size=16)
    assert (dataset.class_names, dataset.image_size) == (("ant", "bee"), 16)
    assert load_dataset("folder:~/data").image_size == 32  # as `nofe train` reads them by itself
    assert "cifar-100-python" in refusal("cifar100")
    assert "cifar-10-batches-py" in refusal("cifar10")


def test_the_summary_of_the_glyphs_is_true() -> None:
    assert DATASETS["glyphs"].startswith(f"{len(CHARACTERS)} ")
