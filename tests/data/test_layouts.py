"""Folders as people have them: which is a class, what is judged by, and what each mistake is told."""

import json
import logging
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from conftest import small_run
from nofe.data.folder import load_listing
from nofe.data.layouts import list_folder
from nofe.data.pack import PackSettings, listing_of_arrays, pack
from nofe.data.pictures import Listing
from nofe.data.shards import list_shards
from nofe.data.stored import stored_dataset
from nofe.data.workers import Workers
from nofe.errors import UserError
from nofe.pipeline import train
from nofe.specialties import Specialties
from nofe.training.runtime import make_runtime


def write_images(root: Path, *names: str) -> None:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (6, 5), (len(name), 7, 9)).save(root / name)


def refusal(root: Path, **options: str) -> str:
    with pytest.raises(UserError) as caught:
        list_folder(root, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def members(listing: Listing, part: str) -> set[tuple[str, str]]:
    pictures = listing.parts[part]
    return {(pictures.name(i), listing.class_names[pictures.labels[i]]) for i in range(len(pictures))}


def unsplit(root: Path) -> Path:
    write_images(root, *(f"{name}/{i}.png" for name in ("ant", "bee") for i in range(10)))
    return root


@pytest.mark.parametrize("below", ["", "train"])
def test_without_a_test_part_some_of_each_class_are_held_out(
    tmp_path: Path, below: str, caplog: pytest.LogCaptureFixture
) -> None:
    unsplit(tmp_path / below)
    with caplog.at_level(logging.WARNING, "nofe"):
        listing = list_folder(tmp_path, test="0.3", seed=1)
    assert caplog.messages == [
        f"{tmp_path}: has no test images; 6 of 20, drawn from each class by data.seed=1, are held out for testing "
        "(--set data.test=0.3)"
    ]
    assert listing.class_names == ("ant", "bee")
    assert np.bincount(listing.train.labels).tolist() == [7, 7]
    train, test = members(listing, "train"), members(listing, "test")
    assert not train & test
    assert len(train | test) == 20
    assert members(list_folder(tmp_path, test="0.3", seed=1), "test") == test
    assert members(list_folder(tmp_path, test="0.3", seed=2), "test") != test


def test_a_folder_of_test_images_can_be_named(tmp_path: Path) -> None:
    unsplit(tmp_path / "photos")
    write_images(tmp_path / "judged", "ant/x.png", "bee/y.png")
    listing = list_folder(tmp_path / "photos", test=str(tmp_path / "judged"))
    assert len(listing.train) == 20
    assert members(listing, "test") == {
        (str(tmp_path / "judged/ant/x.png"), "ant"),
        (str(tmp_path / "judged/bee/y.png"), "bee"),
    }
    assert "data.test=nowhere: neither a fraction nor a folder" in refusal(tmp_path / "photos", test="nowhere")
    assert "data.test=1.5: out of range" in refusal(tmp_path / "photos", test="1.5")


def test_one_image_cannot_be_held_out(tmp_path: Path) -> None:
    write_images(unsplit(tmp_path), "cow/1.png")
    assert "class 'cow' has one training image, which cannot be both" in refusal(tmp_path)


def test_classes_in_folders_of_folders_and_their_groups(tmp_path: Path) -> None:
    for part in ("train", "val"):
        write_images(tmp_path / part, *(f"{name}/1.png" for name in ("birds/crow", "birds/wren", "cats/lynx")))
    write_images(tmp_path / "train", "cats/lynx/young/2.png")
    listing = list_folder(tmp_path)
    assert listing.class_names == ("birds/crow", "birds/wren", "cats/lynx")
    assert listing.train.labels.tolist() == [0, 1, 2, 2]
    assert listing.groups == {"folder": (0, 0, 1)}
    write_images(tmp_path / "val", "cats/puma/1.png")
    assert "class 'cats/puma' is not in train/" in refusal(tmp_path)


def test_folders_that_every_class_has_are_no_classes(tmp_path: Path) -> None:
    """Days, cameras, an images/ in each: such names come again and again."""
    write_images(tmp_path / "days", *(f"{name}/day-{d}/1.png" for name in ("crow", "wren") for d in range(2)))
    assert list_folder(tmp_path / "days").class_names == ("crow", "wren")
    write_images(tmp_path / "inner", *(f"{name}/images/{i}.png" for name in ("crow", "wren") for i in range(2)))
    assert list_folder(tmp_path / "inner").class_names == ("crow", "wren")
    write_images(tmp_path / "mixed", "crow/1.png", "crow/a/2.png", "wren/b/1.png", "wren/c/1.png")
    assert list_folder(tmp_path / "mixed").class_names == ("crow", "wren")
    assert list_folder(tmp_path / "mixed").groups == {}


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    """Tiny ImageNet's layout, with two classes of one name."""
    ids = ("n02", "n01", "n03")
    (tmp_path / "wnids.txt").write_text("\n".join(ids) + "\n")
    (tmp_path / "words.txt").write_text("n01\tcrane\nn02\tEgyptian cat, Felis\nn03\tcrane, lifter\nn09\tunused\n")
    for name in ids:
        write_images(tmp_path / f"train/{name}/images", f"{name}_0.JPEG", f"{name}_1.JPEG")
        (tmp_path / f"train/{name}/{name}_boxes.txt").write_text("0 0 1 1")
    write_images(tmp_path / "val/images", "val_0.JPEG", "val_1.JPEG")
    (tmp_path / "val/val_annotations.txt").write_text("val_0.JPEG\tn03\t0\t0\t9\t9\nval_1.JPEG\tn02\t0\t0\t9\t9\n")
    write_images(tmp_path / "test/images", "test_0.JPEG")
    return tmp_path


def test_tiny_imagenet(tiny: Path) -> None:
    listing = list_folder(tiny)
    assert listing.class_names == ("crane (n01)", "Egyptian cat", "crane (n03)")
    assert listing.train.labels.tolist() == [0, 0, 1, 1, 2, 2]
    assert members(listing, "test") == {
        ("val/images/val_0.JPEG", "crane (n03)"),
        ("val/images/val_1.JPEG", "Egyptian cat"),
    }
    assert listing.class_ids == ("n01", "n02", "n03")
    (tiny / "words.txt").unlink()
    assert list_folder(tiny).class_names == ("n01", "n02", "n03")


def test_ids_of_classes_go_where_the_images_go(tiny: Path, tmp_path: Path) -> None:
    """Into memory, to the hold-out, through shards, and to images that stay on disk."""
    ids = ("n01", "n02", "n03")
    dataset = load_listing(list_folder(tiny), 8)
    assert dataset.class_ids == dataset.hold_out(0.5, 0).class_ids == ids
    assert listing_of_arrays(dataset).class_ids == ids
    pack(list_folder(tiny), tmp_path / "shards", PackSettings(8), Workers(1))
    packed = list_shards(tmp_path / "shards")
    assert (packed.class_names, packed.class_ids) == (dataset.class_names, ids)
    assert stored_dataset(packed, 8, 1).class_ids == ids
    with pytest.raises(UserError, match="2 class ids for 3 classes; give one a class, or none"):
        replace(dataset, class_ids=ids[:2])


def test_the_rule_wordnet_knows_the_classes_of_tiny_imagenet(tmp_path: Path) -> None:
    """A cat, a dog, a car and a bus, by their ids, though they are called by their words."""
    words = {"n02123045": "tabby", "n02106662": "German shepherd", "n02930766": "cab", "n04146614": "school bus"}
    photos = tmp_path / "tiny"
    for name in words:
        write_images(photos / f"train/{name}/images", *(f"{i}.JPEG" for i in range(4)))
    write_images(photos / "val/images", *(f"{name}.JPEG" for name in words))
    (photos / "wnids.txt").write_text("\n".join(words))
    (photos / "words.txt").write_text("\n".join(f"{name}\t{word}" for name, word in words.items()))
    (photos / "val/val_annotations.txt").write_text("\n".join(f"{name}.JPEG\t{name}" for name in words))
    settings = ("experts.epochs=1", "generalist.epochs=1", "experts.batch=4", "generalist.batch=4", "base.by=none")
    chosen = ("specialties.rule=wordnet", "specialties.count=2", f"data.name=folder:{photos}")
    train(small_run(*settings, *chosen), tmp_path / "run", runtime=make_runtime("cpu"))
    found = Specialties.from_json(json.loads((tmp_path / "run" / "specialties.json").read_bytes()))
    names = load_listing(list_folder(photos), 8).class_names
    groups = {frozenset(names[c] for c in group) for group in found.groups()}
    assert groups == {frozenset({"tabby", "German shepherd"}), frozenset({"cab", "school bus"})}


def test_tiny_imagenet_with_parts_missing(tiny: Path) -> None:
    annotations = tiny / "val/val_annotations.txt"
    annotations.write_text("val_0.JPEG\tn77\n")
    assert f"{annotations}: line 1 names no class of wnids.txt" in refusal(tiny)
    annotations.write_text("../../words.txt\tn01\n")  # no file outside is ever read
    assert "line 1 names no class" in refusal(tiny)
    annotations.unlink()
    assert f"{annotations}: no such file, and no class folders" in refusal(tiny)
    (tiny / "wnids.txt").write_text("n01\nn44\n")
    assert f"{tiny}/train/n44: no such folder, and wnids.txt names it" in refusal(tiny)
