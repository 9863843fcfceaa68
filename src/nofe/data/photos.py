"""Photos to be classified: files, their content, or images that Pillow has opened."""

import os
from collections.abc import Iterable
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from nofe.data.decode import UnreadableError, decode_image, middle_square
from nofe.data.folder import read_images, require_no_address
from nofe.errors import UserError
from nofe.files import expand_home

Content = bytes | IO[bytes]  # of a file, such as a web server is sent
Photo = str | os.PathLike[str] | Image.Image | Content


def read_photos(photos: Photo | Iterable[Photo], image_size: int) -> NDArray[np.uint8]:
    """One or several, as the images of a data set are read: upright, the middle square, `image_size` pixels a side.

    (N, 3, H, W), with N = 1 for a single one.
    """
    alone = isinstance(photos, str | os.PathLike | Image.Image | bytes) or not isinstance(photos, Iterable)
    alone = alone or _is_open_file(photos)  # which is an iterable, of lines
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
    content = photo.read() if _is_open_file(photo) else photo
    if not isinstance(content, Image.Image | bytes):
        raise UserError(
            f"photo {number}: neither a path nor a Pillow image nor the content of a file but {type(photo).__name__}; "
            f"give one of these, or an array of shape (N, 3, {image_size}, {image_size}) to preprocess itself"
        )
    try:
        if isinstance(content, bytes):
            return decode_image(content, image_size)
        return np.asarray(middle_square(content, image_size)).transpose(2, 0, 1)
    except (UnreadableError, OSError, SyntaxError, ValueError) as error:  # Pillow decodes when pixels are asked for
        raise UserError(f"photo {number}: cannot be read as an image ({error}); repair it or leave it out") from error


def _is_open_file(photo: Any) -> bool:
    return callable(getattr(photo, "read", None))
