"""Images in: every data source by name, as one `Dataset` value."""

from pathlib import Path

from nofe.data.dataset import Dataset, ImageSet
from nofe.errors import UserError
from nofe.suggestions import did_you_mean

__all__ = ["DATASETS", "Dataset", "ImageSet", "load_dataset"]

DATASETS: dict[str, str] = {
    "glyphs": "120 Latin, Greek and Cyrillic look-alikes drawn on the spot, 32 x 32; needs no files",
    "cifar100": "CIFAR-100: 50,000 + 10,000 photos of 100 classes in 20 superclasses, 32 x 32",
    "cifar10": "CIFAR-10: 50,000 + 10,000 photos of 10 classes, 32 x 32",
    "folder:PATH": "your own images: PATH/train/CLASS/*.jpg and PATH/val/CLASS/*.jpg",
}

FOLDER_PREFIX = "folder:"
SMALL_IMAGE_SIZE = 32  # pixels a side of CIFAR and of the glyphs


def load_dataset(
    name: str,
    *,
    root: Path,
    image_size: int,
    seed: int = 0,
    skip_unreadable: bool = False,
    download: bool = True,
) -> Dataset:
    """The data set of that name, its images `image_size` pixels a side.

    `root` is where CIFAR lies or is downloaded to; `seed` draws the glyphs; `skip_unreadable` leaves out
    the images of a folder that cannot be decoded instead of stopping at them.
    """
    # Each source is imported where it is used: `nofe list` should not wait for Pillow or matplotlib.
    if name.startswith(FOLDER_PREFIX):
        from nofe.data.folder import load_folder

        given = name.removeprefix(FOLDER_PREFIX)
        if not given:
            raise UserError(f"{name}: no folder is named; write {FOLDER_PREFIX}PATH")
        path = Path(given).expanduser()
        return load_folder(path, image_size, skip_unreadable=skip_unreadable)
    if name == "glyphs":
        from nofe.data.glyphs import load_glyphs

        _require_small(name, image_size)
        return load_glyphs(seed)
    if name in ("cifar10", "cifar100"):
        from nofe.data.cifar import load_cifar

        _require_small(name, image_size)
        return load_cifar(name, root, download=download)
    raise UserError(_unknown(name))


def _require_small(name: str, image_size: int) -> None:
    if image_size != SMALL_IMAGE_SIZE:
        raise UserError(
            f"{name}: its images are {SMALL_IMAGE_SIZE} pixels a side and the architecture wants {image_size}; "
            "pick one made for CIFAR (32 x 32) or bring larger images as folder:PATH"
        )


def _unknown(name: str) -> str:
    if Path(name).is_dir():
        return f"{name}: not a data set's name but a folder; did you mean 'folder:{name}'?"
    return f"{name}: no such data set; {did_you_mean(name, DATASETS)}"
