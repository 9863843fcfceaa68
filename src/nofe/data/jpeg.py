"""JPEG by torchcodec, where it is installed and can decode images (0.16 or newer); else Pillow does it all."""

import os
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
from PIL import Image

END_MARK = b"\xff\xd9"
PLAIN_MODES = ("RGB", "L")
ORIENTATION_TAG = 0x0112  # EXIF's; 1 is upright


@cache
def torchcodec_decoder() -> Callable[[bytes], Any] | None:
    """Its function from bytes to a tensor (3, H, W)."""
    try:
        from torchcodec.decoders import decode_jpeg
    except (ImportError, RuntimeError, OSError):  # absent, too old, or without the libraries it needs
        return None
    decoder: Callable[[bytes], Any] = decode_jpeg
    return decoder


def decode_plain_jpeg(opened: Image.Image, content: bytes | os.PathLike[str], wanted: int) -> Image.Image | None:
    """The picture in RGB, if it is one that torchcodec is sure to decode as Pillow would; else None.

    Not print colours, and not one so large that Pillow decodes it at half its size or less. Not one to be turned
    upright: torchcodec turns it by itself, and the caller would turn it again. One that is cut short might come back
    half grey without a word, so the end mark must be there.
    """
    if opened.format != "JPEG" or opened.mode not in PLAIN_MODES or min(opened.size) >= 4 * wanted:
        return None
    if (decoder := torchcodec_decoder()) is None or not _is_upright(opened):
        return None
    if not isinstance(content, bytes):
        with open(content, "rb") as file:
            content = file.read()
    if not content.endswith(END_MARK):
        return None
    try:
        pixels = np.asarray(decoder(content))  # (3, H, W)
    except Exception:  # Pillow then says what is wrong
        return None
    if pixels.dtype != np.uint8 or pixels.shape != (3, opened.height, opened.width):
        return None
    return Image.fromarray(np.ascontiguousarray(pixels.transpose(1, 2, 0)))


def _is_upright(opened: Image.Image) -> bool:
    try:
        return bool(opened.getexif().get(ORIENTATION_TAG, 1) == 1)
    except Exception:  # broken EXIF, of which torchcodec might make something else
        return False
