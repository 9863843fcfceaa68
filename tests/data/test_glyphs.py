"""The glyphs are the same every time, differ by shape and by nothing else, and can be told apart."""

import string
from dataclasses import replace
from pathlib import Path

import matplotlib
import numpy as np
import pytest
from fontTools.ttLib import TTFont
from numpy.typing import NDArray
from PIL import Image

from nofe.data import glyphs, load_dataset
from nofe.data.glyphs import CHARACTERS, FAMILIES, FONTS, Variation, class_name, fonts_of, glyph_mask, load_glyphs
from nofe.errors import UserError

STILL = Variation(ink=(22, 22), stretch=0, turn=0, slant=0, drift=0, blur=0, noise=(0, 0))


def test_shape_of_the_data_set() -> None:
    dataset = load_dataset("glyphs", root=Path("nowhere"), image_size=32)
    assert 100 <= dataset.classes <= 130
    assert dataset.train.images.shape == (60 * dataset.classes, 3, 32, 32)
    assert np.bincount(dataset.train.labels).tolist() == [60] * dataset.classes
    assert np.bincount(dataset.test.labels).tolist() == [25] * dataset.classes


def test_families() -> None:
    groups = load_glyphs(train_per_class=1, test_per_class=1).groups["family"]
    sizes = np.bincount(groups)
    assert 20 <= len(sizes) <= 25
    assert all(3 <= size <= 8 for size in sizes)
    for members, family in zip(FAMILIES.values(), range(len(FAMILIES)), strict=True):
        assert {groups[CHARACTERS.index(character)] for character in members} == {family}


def test_class_names_are_readable_and_unique() -> None:
    names = [class_name(character) for character in CHARACTERS]
    assert len(set(names)) == len(set(CHARACTERS)) == len(CHARACTERS)
    assert {"latin-O", "digit-0", "greek-omega", "greek-Omega", "cyrillic-sha", "dollar-sign"} <= set(names)
    assert set("".join(names)) <= set(string.ascii_letters + string.digits + "-")


def test_the_same_seed_draws_the_same_images() -> None:
    first, again, other = (load_glyphs(seed, train_per_class=2, test_per_class=1) for seed in (3, 3, 4))
    assert first.fingerprint() == again.fingerprint()
    assert (first.train.images == other.train.images).mean() < 0.1


def test_training_and_test_images_come_from_different_streams() -> None:
    dataset = load_glyphs(0, train_per_class=3, test_per_class=3)
    assert (dataset.train.images == dataset.test.images).mean() < 0.1
    trained_on = {image.tobytes() for image in dataset.train.images}
    assert len(trained_on) == len(dataset.train)
    assert not trained_on & {image.tobytes() for image in dataset.test.images}


def test_every_font_has_every_character_it_draws() -> None:
    folder = Path(matplotlib.get_data_path()) / "fonts" / "ttf"
    for font in FONTS:
        known = TTFont(folder / font).getBestCmap()
        lacking = [character for character in CHARACTERS if font in fonts_of(character) and ord(character) not in known]
        assert lacking == [], font
    assert min(len(fonts_of(character)) for character in CHARACTERS) >= 6


def test_a_character_that_a_font_lacks_is_refused() -> None:
    with pytest.raises(UserError, match="cannot draw hiragana-a"):
        glyph_mask("STIXGeneral.ttf", "あ")


def shape_of(font: str, character: str) -> NDArray[np.float32]:
    """Ink at 24 x 24: place and size are gone, as they are for a network that sees them at random."""
    mask = np.asarray(glyph_mask(font, character), dtype=np.float32)[12:84, 12:84] / 255
    return mask.reshape(24, 3, 24, 3).mean(axis=(1, 3))


def overlap(shape: NDArray[np.float32], others: NDArray[np.float32]) -> NDArray[np.float32]:
    """Ink in both over ink in either: 1 for the same picture."""
    both = np.minimum(shape, others).sum(axis=(1, 2))
    return both / (shape.sum() + others.sum(axis=(1, 2)) - both)


def test_overlap_notices_the_same_picture() -> None:
    latin, greek, cyrillic = (shape_of("DejaVuSans.ttf", character) for character in "AΑА")
    assert overlap(latin, np.stack([greek, cyrillic])).min() > 0.99


@pytest.mark.parametrize("mirrored", [False, True])
def test_no_two_classes_are_the_same_picture_in_any_fonts(mirrored: bool) -> None:
    drawn = [(font, character) for character in CHARACTERS for font in fonts_of(character)]
    shapes = np.stack([shape_of(font, character) for font, character in drawn])
    labels = np.array([CHARACTERS.index(character) for _, character in drawn])
    for shape, label, source in zip(shapes, labels, drawn, strict=True):
        alike = overlap(shape[:, ::-1] if mirrored else shape, shapes)
        alike[labels == label] = 0
        worst = int(alike.argmax())
        assert alike[worst] < 0.96, (source, drawn[worst])


def test_only_one_class_is_a_plain_bar() -> None:
    """Overlap is blind to how long and thin a bar is, and so is a network that sees it stretched at random."""
    bars = set()
    for character in CHARACTERS:
        for font in fonts_of(character):
            ink = glyph_mask(font, character)
            rows = np.asarray(ink.crop(ink.getbbox()))[2:-2].mean(axis=1) / 255  # without the blurred ends
            if rows.min() > 0.7:  # the gap under a dot, the stem under a serif: some row is emptier in all others
                bars.add(character)
    assert bars == {"|"}


def test_colours_do_not_tell_the_class() -> None:
    dataset = load_glyphs(0, train_per_class=40, test_per_class=1).hold_out(0.25, 0)
    train, test = (part.images.mean(axis=(2, 3)) for part in (dataset.train, dataset.test))  # (N, 3)
    centres = np.stack([train[dataset.train.labels == label].mean(axis=0) for label in range(dataset.classes)])
    guesses = np.linalg.norm(test[:, None] - centres, axis=2).argmin(axis=1)
    assert (guesses == dataset.test.labels).mean() < 0.03  # chance is 0.008


def ink_of(images: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Where pixels differ from the corner's colour, as rows of length 1: (N, H * W)."""
    distance = np.abs(images - images[:, :, :1, :1].astype(np.float32)).sum(axis=1)
    flat = distance.reshape(len(images), -1)
    return flat / np.linalg.norm(flat, axis=1, keepdims=True)


def test_shapes_do_tell_the_class() -> None:
    """Without the variation, and whatever the colours, the nearest training image is of the same class."""
    dataset = load_glyphs(0, train_per_class=24, test_per_class=4, variation=STILL)
    nearest = (ink_of(dataset.test.images) @ ink_of(dataset.train.images).T).argmax(axis=1)
    assert (dataset.train.labels[nearest] == dataset.test.labels).mean() > 0.7


def test_a_class_is_drawn_in_all_its_fonts(monkeypatch: pytest.MonkeyPatch) -> None:
    used: set[tuple[str, str]] = set()

    def note(font: str, character: str) -> Image.Image:
        used.add((font, character))
        return glyph_mask(font, character)

    monkeypatch.setattr(glyphs, "glyph_mask", note)
    load_glyphs(0, train_per_class=90, test_per_class=1)
    assert used == {(font, character) for character in CHARACTERS for font in fonts_of(character)}


def test_drift_moves_the_ink_within_its_bounds() -> None:
    def centres_of_plus(drift: float) -> NDArray[np.float64]:
        """Where the ink lies off the middle, in pixels down and across: (N, 2)."""
        variation = replace(STILL, ink=(14, 14), drift=drift)
        plus = load_glyphs(0, train_per_class=12, test_per_class=1, variation=variation)
        images = plus.train.images[plus.train.labels == CHARACTERS.index("+")].astype(np.float64)
        distance = np.abs(images - images[:, :, :1, :1]).sum(axis=1)
        ink = distance > 0.6 * distance.max(axis=(1, 2), keepdims=True)
        return np.array([np.argwhere(one).mean(axis=0) for one in ink]) - 15.5

    assert np.median(np.abs(centres_of_plus(0))) < 0.7
    moved = centres_of_plus(5)
    assert 1.8 < np.median(np.abs(moved)) < 3.2
    assert np.quantile(np.abs(moved), 0.9) < 5.7


@pytest.mark.parametrize("wrong", [{"seed": -1}, {"train_per_class": 0}, {"test_per_class": 0}])
def test_impossible_requests_are_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(UserError, match="glyphs: "):
        load_glyphs(**wrong)
