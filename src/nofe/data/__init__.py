"""Images in: every data source by name, as one `Dataset` value."""

from pathlib import Path
from typing import TYPE_CHECKING

from nofe.data.dataset import Dataset, ImageSet
from nofe.data.pictures import DEFAULT_TEST, OF_RUN, Spelling
from nofe.errors import UserError
from nofe.files import expand_home
from nofe.runs import is_run
from nofe.suggestions import did_you_mean

if TYPE_CHECKING:
    from nofe.data.pictures import Listing

__all__ = ["DATASETS", "Dataset", "ImageSet", "load_dataset"]

DATASETS: dict[str, str] = {
    "glyphs": "120 Latin, Greek and Cyrillic look-alikes drawn on the spot, 32 x 32; needs no files",
    "cifar100": "CIFAR-100: 50,000 + 10,000 photos of 100 classes in 20 superclasses, 32 x 32",
    "cifar10": "CIFAR-10: 50,000 + 10,000 photos of 10 classes, 32 x 32",
    "folder:PATH": "your own images, a folder a class: PATH/train/CLASS and PATH/val/CLASS, or PATH/CLASS",
    "shards:PATH": "WebDataset shards: PATH/train-*.tar and PATH/test-*.tar; nofe pack makes them from any other",
    "hf:PATH": "a Hugging Face data set saved by save_to_disk, with an image and a label column",
}

PREFIXES = tuple(name.removesuffix("PATH") for name in DATASETS if name.endswith("PATH"))
SMALL_IMAGE_SIZE = 32  # pixels a side of CIFAR and of the glyphs


def load_dataset(
    name: str,
    *,
    root: Path | str = "data",
    image_size: int = SMALL_IMAGE_SIZE,
    seed: int = 0,
    skip_unreadable: bool = False,
    download: bool = True,
    test: str = DEFAULT_TEST,
) -> Dataset:
    """The data set of that name in memory, its images `image_size` pixels a side: 32, as `small` reads them.

    `root` is where CIFAR lies or is downloaded to; `seed` draws the glyphs, and the test images where the data has
    none: then `test` is their part of each class. `skip_unreadable` leaves out the photos that cannot be decoded
    instead of stopping at them.
    """
    # Each source is imported where it is used: `nofe list` should not wait for Pillow or matplotlib.
    if is_listed(name):
        from nofe.data.folder import load_listing

        return load_listing(list_images(name, test=test, seed=seed), image_size, skip_unreadable=skip_unreadable)
    if name == "glyphs":
        from nofe.data.glyphs import load_glyphs

        _require_small(name, image_size)
        return load_glyphs(seed)
    if name in ("cifar10", "cifar100"):
        from nofe.data.cifar import load_cifar

        _require_small(name, image_size)
        return load_cifar(name, expand_home(root), download=download)
    raise UserError(_unknown(name))


def is_known(name: str) -> bool:
    """Whether images can be read by this name; those of a data set in memory cannot."""
    return name in DATASETS or is_listed(name)


def is_listed(name: str) -> bool:
    """Whether the images are files of any size, to be listed first and decoded when they are needed."""
    return name.startswith(PREFIXES)


def require_root_is_read(name: str, root: Path) -> None:
    """Refuse a root that is not read: its user would think that these images are looked for there."""
    if is_listed(name):
        kind, _, path = name.partition(":")
        raise UserError(
            f"--data-root {root}: says where CIFAR lies, not where {name} does; "
            f"say that with --dataset {kind}:{root / Path(path).name}"
        )


def list_images(name: str, *, test: str = DEFAULT_TEST, seed: int = 0, spelt: Spelling = OF_RUN) -> "Listing":
    """What a folder, shards or a saved data set hold, without decoding anything."""
    prefix, _, given = name.partition(":")
    if not given:
        raise UserError(f"{name}: no folder is named; write {prefix}:PATH")
    path = expand_home(given)
    if is_run(path):
        raise UserError(f"{path}: is the folder of a run, not of images; name the folder that its images lie in")
    if prefix == "folder":
        from nofe.data.layouts import list_folder

        return list_folder(path, test=test, seed=seed, spelt=spelt)
    if prefix == "shards":
        from nofe.data.shards import list_shards

        return list_shards(path, test=test, seed=seed, spelt=spelt)
    from nofe.data.hugging_face import list_saved

    return list_saved(path, test=test, seed=seed, spelt=spelt)


def _require_small(name: str, image_size: int) -> None:
    if image_size != SMALL_IMAGE_SIZE:
        raise UserError(
            f"{name}: its images are {SMALL_IMAGE_SIZE} pixels a side and the architecture wants {image_size}; "
            "pick one made for CIFAR (32 x 32) or bring larger images as folder:PATH"
        )


def _unknown(name: str) -> str:
    if Path(name).is_dir():
        kind = "shards" if any(Path(name).glob("*.tar")) else "folder"
        return f"{name}: not a data set's name but a folder; did you mean '{kind}:{name}'?"
    return f"{name}: no such data set; {did_you_mean(name, DATASETS)}"
