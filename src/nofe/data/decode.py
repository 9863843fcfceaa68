"""One encoded image to pixels, whatever its format, colours and orientation."""

import io
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError

from nofe.data.jpeg import ORIENTATION_TAG, decode_plain_jpeg
from nofe.data.pictures import Source, Stored
from nofe.suggestions import either

FORMATS = ("JPEG", "PNG", "BMP", "GIF", "WEBP", "TIFF")  # Pillow reads many more, not all of them robustly
FORMAT_LIST = either(FORMATS)
SUFFIXES = frozenset({".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff"})
MAX_MEGAPIXELS = 64  # a file of 10 KB can claim more, and would take gigabytes to decode

MAX_ASPECT = 4  # of a picture that is kept whole
Box = tuple[float, float, float, float]  # left, top, right, bottom

# EXIF's orientation tag -> what turns the stored picture upright (1 is upright already).
UPRIGHT = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}


class UnreadableError(Exception):
    """Why one image cannot be read, in a few words: "truncated", "empty file"."""


@dataclass(frozen=True)
class Whole:
    """A picture in RGB at the size it was decoded to, as it is stored: `turn`, if any, makes it upright."""

    image: Image.Image
    turn: Image.Transpose | None

    def shrunk(self, box: Box, size: tuple[int, int]) -> Image.Image:
        """What is inside the box, at another size and upright. Turned last: the middle stays the middle."""
        small = _resized(self.image, box, size)
        return small if self.turn is None else small.transpose(self.turn)


def decode_image(source: Path | Source, image_size: int, out: NDArray[np.uint8] | None = None) -> NDArray[np.uint8]:
    """The middle square of an image, `image_size` pixels a side: (3, H, W). An animation gives its first frame.

    `out` is where to put it; what cannot be read leaves it as it was.
    """
    with _saying_why(source):
        square = square_of_whole(decode_whole(source, image_size), image_size)
        if out is None:
            return np.ascontiguousarray(square)
        out[:] = square
        return out


def square_of_whole(whole: Whole, image_size: int) -> NDArray[np.uint8]:
    """The middle square of a decoded picture, upright: (3, H, W)."""
    small = whole.shrunk(_middle(*whole.image.size, 1), (image_size, image_size))
    return np.asarray(small).transpose(2, 0, 1)  # a view: it is copied once, to where it is wanted


def middle_square(image: Image.Image, image_size: int) -> Image.Image:
    """The same of an image that is open already, as a Pillow image in RGB."""
    _check_pixels(*image.size)
    square = _resized(_to_rgb(image), _middle(*image.size, 1), (image_size, image_size))
    turn = UPRIGHT.get(_orientation(image))
    return square if turn is None else square.transpose(turn)


def decode_picture(source: Path | Source, shorter: int, *, square: bool = False) -> Image.Image:
    """An image upright, in RGB, its shorter side brought down to `shorter` pixels; smaller ones stay as they are.

    All of it, but for what sticks out of a strip MAX_ASPECT times as long as wide; or its middle square.
    """

    with _saying_why(source):
        whole = decode_whole(source, shorter)
        box = _middle(*whole.image.size, 1 if square else MAX_ASPECT)
        width, height = box[2] - box[0], box[3] - box[1]
        scale = min(shorter / min(width, height), 1)
        return whole.shrunk(box, (max(round(width * scale), 1), max(round(height * scale), 1)))


def decode_whole(source: Path | Source, wanted: int) -> Whole:
    """Open, check, decode and convert; `wanted` is the shorter side that will be left of it."""
    with _saying_why(source):
        content = _content(source)
        with Image.open(io.BytesIO(content) if isinstance(content, bytes) else content, formats=FORMATS) as image:
            _check_pixels(*image.size)
            whole = decode_plain_jpeg(image, content, wanted)
            if whole is None:
                # A JPEG can be decoded at half its size or less, far faster; twice the target is left to average.
                image.draft(None, (2 * wanted, 2 * wanted))
                image.load()
                whole = _to_rgb(image)
            return Whole(whole, UPRIGHT.get(_orientation(image)))


@contextmanager
def _saying_why(source: Path | Source) -> Iterator[None]:
    try:
        yield
    except UnreadableError:
        raise
    except Exception as error:  # Pillow's decoders raise nearly anything at a damaged file
        raise UnreadableError(_reason(source, error)) from error


def _content(source: Path | Source) -> Path | bytes:
    if isinstance(source, Stored):
        return Path(source.path) if source.size < 0 else source.read()
    return source


def _check_pixels(width: int, height: int) -> None:
    if width * height > MAX_MEGAPIXELS * 1_000_000:
        raise UnreadableError(f"{width:,} x {height:,} pixels, over the limit of {MAX_MEGAPIXELS} megapixels")


def _to_rgb(image: Image.Image) -> Image.Image:
    if image.mode.startswith("I;16"):
        # Pillow's own conversion cuts everything over 255 off to white.
        wide = np.asarray(image)
        shrunk = bytes_of_16_bits(wide)
        if isinstance(transparent := image.info.get("transparency"), int):
            shrunk[wide == transparent] = 255
        return Image.fromarray(shrunk).convert("RGB")
    if image.mode in ("I", "F"):
        raise UnreadableError("32 bits a pixel, with no telling which value is white")
    transparent = image.info.get("transparency")
    if isinstance(transparent, tuple) and max(transparent) > 255:  # of 16 bits, of which Pillow keeps the upper half
        image.info["transparency"] = tuple(value >> 8 for value in transparent)
    if image.has_transparency_data:
        # What lies under transparent pixels is arbitrary, often black; viewers show the page, which is white.
        layer = image.convert("RGBA")
        page = Image.new("RGBA", layer.size, "white")
        return Image.alpha_composite(page, layer).convert("RGB")
    return image if image.mode == "RGB" else image.convert("RGB")  # convert always copies


def bytes_of_16_bits(values: NDArray[np.integer]) -> NDArray[np.uint8]:
    """0..65535 to the nearest of 0..255."""
    return ((values.astype(np.uint32) * 255 + 32767) // 65535).astype(np.uint8)


def _middle(width: int, height: int, aspect: int) -> Box:
    """The middle of a picture, at most `aspect` times as long as wide.

    The box comes before resizing: all of a picture 1 pixel high and a million wide would fill the memory.
    """
    longest = min(width, height) * aspect
    inner_width, inner_height = min(width, longest), min(height, longest)
    left, top = (width - inner_width) / 2, (height - inner_height) / 2
    return (left, top, left + inner_width, top + inner_height)


def _resized(image: Image.Image, box: Box, size: tuple[int, int]) -> Image.Image:
    left, top = int(box[0]), int(box[1])
    if (box[2] - box[0], box[3] - box[1]) == size:  # cut, not blurred by a shift of half a pixel
        return image.crop((left, top, left + size[0], top + size[1]))
    return image.resize(size, Image.Resampling.BICUBIC, box)  # Pillow's resize is antialiased


def _orientation(image: Image.Image) -> int:
    """Read after loading, when Pillow has already turned a TIFF upright and dropped the tag."""
    try:
        return int(image.getexif().get(ORIENTATION_TAG, 1))
    except Exception:  # broken EXIF is common and no reason to give the picture up
        return 1


def _reason(source: Path | Source, error: Exception) -> str:
    if isinstance(error, Image.DecompressionBombError | Image.DecompressionBombWarning):
        return f"over the limit of {MAX_MEGAPIXELS} megapixels"
    if isinstance(error, UnidentifiedImageError):
        return "empty file" if _length(source) == 0 else f"not {FORMAT_LIST}"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror.lower()
    text = " ".join(str(error).split())
    return "truncated" if "truncated" in text.lower() else f"damaged: {text[:80] or type(error).__name__}"


def _length(source: Path | Source) -> int:
    if isinstance(source, bytes):
        return len(source)
    if isinstance(source, Stored) and source.size >= 0:
        return source.size
    return Path(source.path if isinstance(source, Stored) else source).stat().st_size
