"""What a finished run is judged on: its own test images, wherever they lie now, or other labelled images."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from nofe import runs
from nofe.checks import has_same_images, require_same_images
from nofe.config import DataConfig, RunConfig
from nofe.data import ImageSet, is_known, is_listed, list_images, load_dataset, require_root_is_read
from nofe.data.dataset import all_but
from nofe.data.pictures import NOTHING_HELD_OUT, Chosen, Listing, Pictures, fraction_of, with_reasons
from nofe.data.stored import StoredImages
from nofe.data.survey import survey
from nofe.data.unreadable import stop_or_leave_out
from nofe.data.workers import Workers
from nofe.errors import UserError
from nofe.files import expand_home
from nofe.run_images import images_of_finished_run
from nofe.runs import Run
from nofe.suggestions import counted
from nofe.training.runtime import Runtime


@dataclass(frozen=True)
class Place:
    """Where the images are that somebody wants a run judged on; without a name, where the run had its own."""

    name: str | None = None
    root: Path | None = None
    skip_unreadable: bool = False


@dataclass(frozen=True)
class ToJudgeBy:
    """Images to judge a run on, labelled with its own class numbers."""

    images: ImageSet
    name: str
    of_the_run: bool = True
    whole: bool = False  # the data has no test part, so it is all of its images


def images_to_judge_by(
    config: RunConfig, class_names: tuple[str, ...], image_size: int, run: Run, runtime: Runtime, place: Place
) -> ToJudgeBy:
    """The run's own test images, checked to be unchanged, or the other data that `place` names."""
    data = _at(config.data, place)
    if place.name is None:
        if not is_known(data.name):
            raise UserError(
                f"{run.path}: its images, {data.name}, came from Python, and cannot be read again here; judge the run "
                "on labelled images with --dataset folder:PATH"
            )
        _require_images_where_they_were(data, run)
        dataset = images_of_finished_run(replace(config, data=data), run, runtime)
        if dataset.class_names != class_names:
            raise UserError(f"{data.name}: has other classes than the run {run.path}; name the data it had")
        require_same_images(dataset, run, "judge the run on other labelled images with --dataset folder:PATH")
        return ToJudgeBy(dataset.test, data.name)
    if not is_listed(data.name):
        return _of_known_data(data, class_names, image_size, run)
    listing = list_images(data.name, test=NOTHING_HELD_OUT)
    knows_its_images = run.has(runs.ENVIRONMENT)  # a network that was shipped does not
    if knows_its_images and listing.class_names == class_names and _has_as_many(listing, config.data, run):
        _require_named_test_images(listing, config.data, run)
        with suppress(UserError):  # such as an unreadable training image, which other data may have
            dataset = images_of_finished_run(replace(config, data=data), run, runtime)
            if has_same_images(dataset, run):
                return ToJudgeBy(dataset.test, data.name)
    if listing.test is None and _is_the_same_place(config.data.name, data.name):
        raise UserError(
            f"--dataset {data.name}: the run was trained on images that are there, and which of them it was judged by "
            "can no longer be told; put new images into a folder of their own and name that"
        )
    return _of_listing(listing, data, class_names, image_size, runtime)


def _require_images_where_they_were(data: DataConfig, run: Run) -> None:
    kind, _, path = data.name.partition(":")
    if is_listed(data.name) and not expand_home(path).exists():
        here = "" if expand_home(path).is_absolute() else f" in {Path.cwd()}"
        raise UserError(
            f"{path}: no such folder{here}, and the images of {run.path} were there; say where they are now with "
            f"--dataset {kind}:PATH"
        )


def _require_named_test_images(listing: Listing, data: DataConfig, run: Run) -> None:
    """Refuse what seem to be the run's training images while the folder of its test images is missing."""
    described = run.read_json(runs.ENVIRONMENT)["data"]
    trained = described.get("images", {}).get("train", 0) + len(described.get("unreadable", {}).get("train", ()))
    is_named = fraction_of(data.test) is None and not expand_home(data.test).is_dir()
    if is_named and listing.test is None and len(listing.train) == trained:
        raise UserError(
            f"--dataset {listing.name}: as many images as the run was trained on, and the folder of those it was "
            f"judged by, data.test={data.test}, is not there; call nofe where that path counts from, or name other "
            "images"
        )


def _of_known_data(data: DataConfig, class_names: Sequence[str], image_size: int, run: Run) -> ToJudgeBy:
    """CIFAR or the glyphs: as the run had them, or else their test images."""
    dataset = load_dataset(data.name, root=Path(data.root), image_size=image_size, seed=data.seed)
    as_in_run = dataset.hold_out(data.hold_out, data.seed) if data.hold_out else dataset
    if run.has(runs.ENVIRONMENT) and has_same_images(as_in_run, run):
        return ToJudgeBy(as_in_run.test, data.name)
    labels = _as_numbered(data.name, dataset.class_names, class_names)[dataset.test.labels]
    return ToJudgeBy(ImageSet(dataset.test.images, labels), data.name, of_the_run=False)


def _of_listing(
    listing: Listing, data: DataConfig, class_names: Sequence[str], image_size: int, runtime: Runtime
) -> ToJudgeBy:
    """Other data: its test images, or all of its images if it has none. They are read as they are needed."""
    pictures = listing.train if listing.test is None else listing.test
    labels = _as_numbered(data.name, listing.class_names, class_names)[pictures.labels]
    stored = StoredImages(_Relabelled(pictures, labels), image_size, Workers(runtime.workers, image_size))
    if listing.channel_mean is None:  # nofe pack has looked at its own
        stored = _readable(stored, listing.where, skip=data.skip_unreadable)
    return ToJudgeBy(stored, data.name, of_the_run=False, whole=listing.test is None)


def _at(data: DataConfig, place: Place) -> DataConfig:
    name = place.name or data.name
    if place.root is not None:
        require_root_is_read(name, place.root)
    skip = data.skip_unreadable or place.skip_unreadable
    return replace(data, name=name, root=str(place.root or data.root), skip_unreadable=skip)


def _has_as_many(listing: Listing, data: DataConfig, run: Run) -> bool:
    """Whether there are as many images as the run had; true where that cannot be told without reading them."""
    described = run.read_json(runs.ENVIRONMENT)["data"]
    if "images" not in described or fraction_of(data.test) is None:
        return True
    found, read = sum(map(len, listing.parts.values())), int(sum(described["images"].values()))
    if data.hold_out:  # its test images were not counted
        return found >= read
    left_out = sum(len(names) for names in described.get("unreadable", {}).values())
    return read <= found <= read + left_out  # unreadable ones may have been removed since


def _readable(stored: StoredImages, where: str, *, skip: bool) -> StoredImages:
    unreadable = survey(stored.pictures, stored.image_size, stored.workers).unreadable
    if not unreadable:
        return stored
    told = with_reasons(stored.pictures, unreadable)
    stop_or_leave_out(where, told, len(stored), skip=skip, option="pass --skip-unreadable")
    if len(unreadable) == len(stored):
        raise UserError(f"{where}: no image is left to judge by; name other images")
    return stored.subset(all_but(unreadable, len(stored)))


def _as_numbered(name: str, theirs: Sequence[str], ours: Sequence[str]) -> NDArray[np.int64]:
    """The number that the run has for each class of the data; the data need not have all of the run's."""
    number_of = {class_name: number for number, class_name in enumerate(ours)}
    strangers = [class_name for class_name in theirs if class_name not in number_of]
    if strangers:
        count = counted(len(strangers), "such class", "such classes")
        raise UserError(
            f"--dataset {name}: class {strangers[0]!r} is not among the {len(ours):,} of the run ({count} in all; "
            f"the run's first: {ours[0]!r}); name the class folders as the run's, or leave it out"
        )
    return np.array([number_of[class_name] for class_name in theirs], dtype=np.int64)


def _is_the_same_place(one: str, other: str) -> bool:
    paths = [expand_home(name.partition(":")[2]).resolve() for name in (one, other)]
    return is_listed(one) and paths[0] == paths[1]


class _Relabelled(Chosen):
    def __init__(self, pictures: Pictures, labels: NDArray[np.int64]) -> None:
        super().__init__(pictures, np.arange(len(pictures)))
        self.labels = labels
