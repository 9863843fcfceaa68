"""One image file to one square of pixels, whatever its format, colours and orientation."""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError

FORMATS = ("JPEG", "PNG", "BMP", "GIF", "WEBP", "TIFF")  # Pillow reads many more, not all of them robustly
FORMAT_LIST = f"{', '.join(FORMATS[:-1])} or {FORMATS[-1]}"
SUFFIXES = frozenset({".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff"})
MAX_MEGAPIXELS = 64  # a file of 10 KB can claim more, and would take gigabytes to decode

# EXIF's orientation tag -> what turns the stored picture upright (1 is upright already).
ORIENTATION_TAG = 0x0112
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


def decode_image(path: Path, image_size: int) -> NDArray[np.uint8]:
    """The middle square of an image, `image_size` pixels a side: (3, H, W). An animation gives its first frame."""
    try:
        with Image.open(path, formats=FORMATS) as image:
            _check_pixels(*image.size)
            # A JPEG can be decoded at half its size or less, far faster; twice the target is left to average.
            image.draft(None, (2 * image_size, 2 * image_size))
            image.load()
            square = _middle_square(_to_rgb(image), image_size)
            turn = UPRIGHT.get(_orientation(image))  # of the square: it is the middle either way, and small
        upright = square if turn is None else square.transpose(turn)
        return np.ascontiguousarray(np.asarray(upright).transpose(2, 0, 1))
    except UnreadableError:
        raise
    except Exception as error:  # Pillow's decoders raise nearly anything at a damaged file
        raise UnreadableError(_reason(path, error)) from error


def _check_pixels(width: int, height: int) -> None:
    if width * height > MAX_MEGAPIXELS * 1_000_000:
        raise UnreadableError(f"{width:,} x {height:,} pixels, over the limit of {MAX_MEGAPIXELS} megapixels")


def _to_rgb(image: Image.Image) -> Image.Image:
    if image.mode.startswith("I;16"):
        # Pillow's own conversion cuts everything over 255 off to white.
        wide = np.asarray(image).astype(np.uint32)
        return Image.fromarray(((wide * 255 + 32767) // 65535).astype(np.uint8)).convert("RGB")
    if image.mode in ("I", "F"):
        raise UnreadableError("32 bits a pixel, with no telling which value is white")
    if image.has_transparency_data:
        # What lies under transparent pixels is arbitrary, often black; viewers show the page, which is white.
        layer = image.convert("RGBA")
        page = Image.new("RGBA", layer.size, "white")
        return Image.alpha_composite(page, layer).convert("RGB")
    return image.convert("RGB")


def _middle_square(image: Image.Image, image_size: int) -> Image.Image:
    """Shorter side to `image_size` and the middle of the longer one, in one step.

    The box comes first: resizing all of a picture 1 pixel high and a million wide would fill the memory.
    """
    width, height = image.size
    side = min(width, height)
    left, top = (width - side) / 2, (height - side) / 2
    box = (left, top, left + side, top + side)
    return image.resize((image_size, image_size), Image.Resampling.BICUBIC, box)  # Pillow's resize is antialiased


def _orientation(image: Image.Image) -> int:
    """Read after loading, when Pillow has already turned a TIFF upright and dropped the tag."""
    try:
        return int(image.getexif().get(ORIENTATION_TAG, 1))
    except Exception:  # broken EXIF is common and no reason to give the picture up
        return 1


def _reason(path: Path, error: Exception) -> str:
    if isinstance(error, Image.DecompressionBombError | Image.DecompressionBombWarning):
        return f"over the limit of {MAX_MEGAPIXELS} megapixels"
    if isinstance(error, UnidentifiedImageError):
        return "empty file" if path.stat().st_size == 0 else f"not {FORMAT_LIST}"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror.lower()
    text = " ".join(str(error).split())
    return "truncated" if "truncated" in text.lower() else f"damaged: {text[:80] or type(error).__name__}"
