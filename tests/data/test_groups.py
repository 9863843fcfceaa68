"""Groups of classes that people made: by the name of a grouping, or from a file of theirs."""

import json
import unicodedata
from pathlib import Path

import numpy as np
import pytest

from nofe.data.dataset import Dataset, ImageSet
from nofe.data.groups import group_of_class

NAMES = ("été", "wren", "lynx")
NAMED = json.dumps({"birds": ["wren"], "other": ["lynx", "été"]}, ensure_ascii=False)


def photos() -> Dataset:
    images = ImageSet(np.zeros((3, 3, 4, 4), np.uint8), np.arange(3))
    return Dataset("photos", NAMES, images, images, {"colour": (1, 0, 1)})


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig"])
def test_a_file_is_found_at_home_and_read_whatever_editor_wrote_it(
    encoding: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some begin a file with a mark."""
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "groups.json").write_text(NAMED, encoding=encoding)
    assert group_of_class("~/groups.json", photos()).tolist() == [1, 0, 1]


@pytest.mark.parametrize("form", ["NFC", "NFD"])
def test_a_name_is_the_same_however_its_accents_are_spelt(form: str, tmp_path: Path) -> None:
    """Folders of a Mac have each accent as a character of its own."""
    (tmp_path / "groups.json").write_text(unicodedata.normalize(form, NAMED), encoding="utf-8")
    images = photos()
    for other in ("NFC", "NFD"):
        names = tuple(unicodedata.normalize(other, name) for name in NAMES)
        spelt = Dataset("photos", names, images.train, images.test)
        assert group_of_class(str(tmp_path / "groups.json"), spelt).tolist() == [1, 0, 1]
