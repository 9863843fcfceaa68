"""Photos to be classified: files, or images that Pillow has opened."""

import os
from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from nofe.data.decode import UnreadableError, middle_square
from nofe.data.folder import read_images, require_no_address
from nofe.errors import UserError
from nofe.files import expand_home

Photo = str | os.PathLike[str] | Image.Image


def read_photos(photos: Photo | Iterable[Photo], image_size: int) -> NDArray[np.uint8]:
    """One or several, as the images of a data set are read: upright, the middle square, `image_size` pixels a side.

    (N, 3, H, W), with N = 1 for a single one.
    """
    alone = isinstance(photos, str | os.PathLike | Image.Image) or not isinstance(photos, Iterable)
    several: list[Any] = [photos] if alone else list(photos)  # type: ignore[arg-type]
    images = np.empty((len(several), 3, image_size, image_size), dtype=np.uint8)
    files = {number: expand_home(photo) for number, photo in enumerate(several) if isinstance(photo, str | os.PathLike)}
    for file in files.values():
        require_no_address(file)
    images[list(files)] = read_images(list(files.values()), image_size)
    for number, photo in enumerate(several):
        if number not in files:
            images[number] = _square_of(photo, number, image_size)
    return images


def _square_of(photo: Any, number: int, image_size: int) -> NDArray[np.uint8]:
    if not isinstance(photo, Image.Image):
        raise UserError(
            f"photo {number}: neither a path nor a Pillow image but {type(photo).__name__}; "
            f"give one of these, or bytes of shape (N, 3, {image_size}, {image_size}) to preprocess itself"
        )
    try:
        return np.asarray(middle_square(photo, image_size)).transpose(2, 0, 1)
    except (UnreadableError, OSError, SyntaxError, ValueError) as error:  # Pillow decodes when pixels are asked for
        raise UserError(f"photo {number}: cannot be read as an image ({error}); repair it or leave it out") from error
