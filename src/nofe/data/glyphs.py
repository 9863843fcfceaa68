"""The embedded default data set: characters of three scripts that are easily taken for one another.

Every image is drawn here, from the fonts that come with matplotlib, so that a first run needs no files.
The classes are chosen so that only the shape of a character tells them apart: no two classes are the same
picture in a font (Latin A, Greek Alpha and Cyrillic A would be), none is another one enlarged (o and O) or
mirrored (p and q), because place, size and colours are random and the paper's recipes mirror their images.
"""

import unicodedata
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from nofe.data.dataset import Dataset, ImageSet
from nofe.errors import UserError

IMAGE_SIZE = 32  # pixels a side
TRAIN_PER_CLASS, TEST_PER_CLASS = 60, 25

# Look-alikes by the stroke they share; a class is its place in this table read line by line.
FAMILIES: dict[str, str] = {
    "round": "O0QΘØ©",
    "bowl": "DĐPÞR",
    "stroke": "Il1|i!",
    "hook": "jJ)]}",
    "two-bowls": "B8&ßβ",
    "snake": "S5$§",
    "zigzag": "Z27?Ž",
    "open-round": "CGeє€Ç",
    "comb": "EFΞΣ",
    "curl": "3ξζς",
    "cup": "uνyμυγ",
    "arch": "nhηпħñ",
    "tail": "pg9þ",
    "wave": "wωшщψm",
    "arms": "KkЖXχ",
    "roof": "TΓτŦŁ",
    "peak": "AΛΔДЛ",
    "posts": "HЙNMЮ",
    "belly": "aαåæ",
    "loop": "6бσθφδ",
    "cross": "tf†‡ŧ+",
    "box": "UЦЧΩ",
    "fork": "Y¥Ў",
    "soft-sign": "ЪЬЫБѣ",
}
CHARACTERS = "".join(FAMILIES.values())

# Upright fonts only: in the italics a Cyrillic pe is a Latin n. Slant is added to every image instead.
SANS = ("DejaVuSans.ttf", "DejaVuSans-Bold.ttf")
FONTS = (
    *SANS,
    "DejaVuSansMono.ttf",
    "DejaVuSansMono-Bold.ttf",
    "DejaVuSerif.ttf",
    "DejaVuSerif-Bold.ttf",
    "STIXGeneral.ttf",
    "STIXGeneralBol.ttf",
)
BARE_STROKES_IN_SANS = "Il"  # there both are a plain bar, as | is everywhere: other fonts draw them

NO_CHARACTER = "\uffff"  # for which a font draws the box that stands for what it lacks

FONT_PIXELS = 96
INK_PIXELS = 64  # longer side of the ink in a mask, whatever the character: size must not tell the class
MASK_PIXELS = 96
OVERSAMPLING = 2  # images are drawn at twice their size and averaged, against jagged edges


@dataclass(frozen=True)
class Variation:
    """How far images of one class differ: the spread of each random quantity."""

    ink: tuple[float, float] = (10, 19)  # longer side of the character, pixels
    stretch: float = 0.12  # width over height, relative
    turn: float = 10  # degrees either way
    slant: float = 0.2  # sideways pixels per pixel of height
    drift: float = 3  # pixels off the centre, each way
    blur: float = 0.5  # largest weight of each neighbour, of 1
    noise: tuple[float, float] = (8, 45)  # deviation, of 255


def load_glyphs(
    seed: int = 0,
    *,
    train_per_class: int = TRAIN_PER_CLASS,
    test_per_class: int = TEST_PER_CLASS,
    variation: Variation | None = None,
) -> Dataset:
    """Draw the data set. The same seed gives the same images; the two parts come from different streams."""
    if seed < 0:
        raise UserError(f"glyphs: seed {seed} is negative; take 0 or more")
    if train_per_class < 1 or test_per_class < 1:
        raise UserError(
            f"glyphs: {train_per_class} training and {test_per_class} test images a class; draw at least 1 of each"
        )
    variation = variation or Variation()
    return Dataset(
        name="glyphs",
        class_names=tuple(class_name(character) for character in CHARACTERS),
        train=_draw_part(np.random.default_rng([seed, 0]), train_per_class, variation),
        test=_draw_part(np.random.default_rng([seed, 1]), test_per_class, variation),
        groups={"family": tuple(i for i, members in enumerate(FAMILIES.values()) for _ in members)},
    )


def class_name(character: str) -> str:
    """An ASCII name: latin-O, greek-omega, cyrillic-sha, digit-0, dollar-sign; greek-Omega is the capital."""
    words = unicodedata.name(character).replace("LAMDA", "LAMBDA").split()  # Unicode's spelling
    if words[0] == "DIGIT":
        return f"digit-{character}"
    if "LETTER" not in words:
        return "-".join(words).lower()
    script, letter = words[0].lower(), "-".join(words[words.index("LETTER") + 1 :])
    return f"{script}-{letter.capitalize() if 'CAPITAL' in words else letter.lower()}"


def fonts_of(character: str) -> tuple[str, ...]:
    """The fonts that draw this class."""
    return tuple(font for font in FONTS if not (font in SANS and character in BARE_STROKES_IN_SANS))


@cache
def glyph_mask(font: str, character: str) -> Image.Image:
    """The character in white on black, its ink centred and INK_PIXELS along its longer side."""
    ink = _ink(font, character)
    if ink.tobytes() == _ink(font, NO_CHARACTER).tobytes():
        raise UserError(f"glyphs: {font} cannot draw {class_name(character)}; reinstall matplotlib's own fonts")
    scale = INK_PIXELS / max(ink.size)
    width, height = (max(1, round(side * scale)) for side in ink.size)
    mask = Image.new("L", (MASK_PIXELS, MASK_PIXELS))
    small = ink.resize((width, height), Image.Resampling.BOX)
    mask.paste(small, ((MASK_PIXELS - width) // 2, (MASK_PIXELS - height) // 2))
    return mask


@cache
def _ink(font: str, character: str) -> Image.Image:
    """The character as large as it comes, cut out."""
    canvas = Image.new("L", (2 * FONT_PIXELS, 2 * FONT_PIXELS))
    position = (FONT_PIXELS, FONT_PIXELS * 1.4)  # of the baseline's middle
    ImageDraw.Draw(canvas).text(position, character, fill=255, font=_open_font(font), anchor="ms")
    return canvas.crop(canvas.getbbox())


@cache
def _open_font(font: str) -> ImageFont.FreeTypeFont:
    import matplotlib

    path = Path(matplotlib.get_data_path()) / "fonts" / "ttf" / font
    try:
        # The basic layout is always there; the other one depends on how Pillow was built.
        return ImageFont.truetype(str(path), FONT_PIXELS, layout_engine=ImageFont.Layout.BASIC)
    except OSError as error:
        raise UserError(f"{path}: the glyphs' font cannot be read ({error}); reinstall matplotlib") from error


def _draw_part(rng: np.random.Generator, per_class: int, variation: Variation) -> ImageSet:
    images = [_draw_class(character, rng, per_class, variation) for character in CHARACTERS]
    labels = np.repeat(np.arange(len(CHARACTERS), dtype=np.int64), per_class)
    return ImageSet(np.concatenate(images), labels)


def _draw_class(character: str, rng: np.random.Generator, count: int, variation: Variation) -> NDArray[np.uint8]:
    """`count` images of one character: (count, 3, H, W)."""
    fonts = fonts_of(character)
    matrices = _random_transforms(rng, count, variation)  # (count, 6)
    size = (IMAGE_SIZE * OVERSAMPLING, IMAGE_SIZE * OVERSAMPLING)
    large = np.empty((count, *size), dtype=np.uint8)
    for i, font in enumerate(rng.integers(len(fonts), size=count)):
        mask = glyph_mask(fonts[font], character)
        drawn = mask.transform(size, Image.Transform.AFFINE, matrices[i].tolist(), Image.Resampling.BILINEAR)
        large[i] = np.asarray(drawn)
    cells = large.reshape(count, IMAGE_SIZE, OVERSAMPLING, IMAGE_SIZE, OVERSAMPLING)
    coverage = cells.mean(axis=(2, 4), dtype=np.float32) / 255  # (count, H, W), 1 where there is ink
    return _paint(coverage, rng, variation)


def _random_transforms(rng: np.random.Generator, count: int, variation: Variation) -> NDArray[np.float64]:
    """Pillow's affine coefficients (count, 6), which map a place in the image to one in the mask."""
    angle = np.deg2rad(rng.uniform(-variation.turn, variation.turn, count))
    slant = rng.uniform(-variation.slant, variation.slant, count)
    stretch = np.exp(rng.uniform(-variation.stretch, variation.stretch, count) / 2)
    # Mask pixels per drawn pixel: an ink of INK_PIXELS shrinks to the size asked for.
    scale = INK_PIXELS / (rng.uniform(*variation.ink, count) * OVERSAMPLING)
    drift = rng.uniform(-variation.drift, variation.drift, (count, 2)) * OVERSAMPLING
    cos, sin = np.cos(angle) * scale, np.sin(angle) * scale
    a, b = (cos + slant * sin) / stretch, (-sin + slant * cos) / stretch
    d, e = sin * stretch, cos * stretch
    x, y = (drift + IMAGE_SIZE * OVERSAMPLING / 2).T  # where the middle of the mask goes
    return np.stack([a, b, MASK_PIXELS / 2 - a * x - b * y, d, e, MASK_PIXELS / 2 - d * x - e * y], axis=1)


def _paint(coverage: NDArray[np.float32], rng: np.random.Generator, variation: Variation) -> NDArray[np.uint8]:
    """Random ink on a random background with noise, the same for every class: (count, 3, H, W)."""
    count = len(coverage)
    coverage = _blur(coverage, rng.uniform(0, variation.blur, count).astype(np.float32))
    paper, paper_end, ink = _random_colours(rng, count)  # each (count, 3, 1, 1)
    ramp = np.linspace(0, 1, IMAGE_SIZE, dtype=np.float32)
    across, down = rng.random((2, count, 1, 1, 1), dtype=np.float32)  # direction of the background's gradient
    gradient = (across * ramp + down * ramp[:, None]) / (across + down)  # (count, 1, H, W)
    background = paper + (paper_end - paper) * gradient
    colours = background + (ink - background) * coverage[:, None]
    deviation = rng.uniform(*variation.noise, (count, 1, 1, 1)).astype(np.float32)
    colours += deviation * rng.standard_normal(colours.shape, dtype=np.float32)
    painted: NDArray[np.uint8] = np.clip(colours + 0.5, 0, 255).astype(np.uint8)
    return painted


def _blur(coverage: NDArray[np.float32], weight: NDArray[np.float32]) -> NDArray[np.float32]:
    """Give each pixel `weight` (count,) of both its neighbours, down and then across."""
    side = weight[:, None, None]
    for axis in (1, 2):
        neighbours = np.roll(coverage, 1, axis) + np.roll(coverage, -1, axis)
        coverage = (coverage + side * neighbours) / (1 + 2 * side)
    return coverage


def _random_colours(
    rng: np.random.Generator, count: int
) -> tuple[NDArray[np.float32], NDArray[np.float32], NDArray[np.float32]]:
    """Colours of the background's two ends and of the ink: any light ink on any dark paper, like chalk on slate.

    With ink now lighter, now darker than the paper a small network needs ten times as long to see shapes at all.
    """
    paper = rng.uniform(0, 130, (count, 3)).astype(np.float32)
    paper_end = np.clip(paper + rng.uniform(-50, 50, (count, 3)), 0, 130).astype(np.float32)
    ink = rng.uniform(130, 255, (count, 3)).astype(np.float32)
    ink[np.arange(count), rng.integers(3, size=count)] = 255  # one bright channel, so that no image is all but empty
    return paper[..., None, None], paper_end[..., None, None], ink[..., None, None]
