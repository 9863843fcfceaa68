"""Folders as people have them: which is a class, what is judged by, and what each mistake is told."""

import json
import logging
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from conftest import small_run
from nofe.data.folder import load_listing
from nofe.data.layouts import list_folder, require_outside
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
    assert "data.test=nowhere: neither a fraction such as 0.2 nor a folder that is there" in refusal(
        tmp_path / "photos", test="nowhere"
    )
    assert "data.test=1.5: out of range" in refusal(tmp_path / "photos", test="1.5")


def test_test_images_among_the_classes_are_not_trained_on(tmp_path: Path) -> None:
    write_images(tmp_path, "a/1.png", "a/2.png", "b/1.png", "judged/a/1.png", "judged/b/1.png")
    assert "lies among the classes" in refusal(tmp_path, test=str(tmp_path / "judged"))


def test_training_images_are_not_judged_by(tmp_path: Path) -> None:
    unsplit(tmp_path / "train")
    write_images(tmp_path / "val", "ant/x.png", "bee/y.png")
    (tmp_path / "linked").symlink_to(tmp_path / "train")
    for named in ("train", "linked", "train/ant"):
        told = f"data.test={tmp_path / named}: lies in {tmp_path / 'train'}, and would be trained on; name a folder of"
        assert told in refusal(tmp_path, test=str(tmp_path / named))
    assert len(list_folder(tmp_path, test=str(tmp_path / "val")).train) == 20


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


@pytest.mark.parametrize(
    ("train", "test"), [("Train", "Test"), ("training", "testing"), ("TRAIN", "Validation"), ("train", "Val")]
)
def test_parts_go_by_usual_names_in_any_case(tmp_path: Path, train: str, test: str) -> None:
    for name in ("crow", "wren"):
        write_images(tmp_path, f"{train}/{name}/1.png", f"{train}/{name}/2.png", f"{test}/{name}/3.png")
    listing = list_folder(tmp_path)
    assert listing.class_names == ("crow", "wren")
    assert members(listing, "test") == {(f"{test}/{name}/3.png", name) for name in ("crow", "wren")}


def test_a_test_part_beside_val_is_told_of(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    parts = {"train": 2, "val": 1, "test": 3}
    write_images(tmp_path, *(f"{p}/{n}/{i}.png" for p, count in parts.items() for n in "ab" for i in range(count)))
    listing = list_folder(tmp_path)
    assert {name for name, _ in members(listing, "test")} == {"val/a/0.png", "val/b/0.png"}
    begin = f"{tmp_path}: tests on val/ and does not read test/ (6 images); "
    advice = f"test a finished run on it with nofe evaluate RUN --dataset folder:{tmp_path}/test"
    assert caplog.messages == [begin + advice]
    caplog.clear()
    list_folder(tmp_path, test=str(tmp_path / "test"))  # as somebody wants it
    assert caplog.messages == []
    for name in "ab":
        shutil.rmtree(tmp_path / "test" / name)
    write_images(tmp_path, "test/1.png")
    list_folder(tmp_path)
    assert f"does not read test/ (1 image); label it with nofe predict RUN {tmp_path}/test" in caplog.text


def test_two_folders_that_could_be_the_training_images(tmp_path: Path) -> None:
    write_images(tmp_path, "train/crow/1.png", "training/crow/1.png", "val/crow/1.png")
    assert f"{tmp_path}: train/ and training/ could both be the training images; rename" in refusal(tmp_path)


@pytest.mark.parametrize("between", ["data", "data/birds"])
@pytest.mark.parametrize("parts", [("train", "val"), ("Train", "Test"), ("train",)])
def test_one_folder_too_high(tmp_path: Path, between: str, parts: tuple[str, ...]) -> None:
    write_images(tmp_path / between, *(f"{part}/{name}/1.png" for part in parts for name in ("crow", "wren")))
    told = refusal(tmp_path)
    assert f"lie further down, in {between}/; name that folder, folder:{tmp_path / between}" in told
    assert all(f"{part}/" in told for part in parts)


def test_one_folder_too_high_beside_others(tmp_path: Path) -> None:
    write_images(tmp_path, "__MACOSX/a/1.png", "data/train/crow/1.png", "data/val/crow/1.png")
    assert f"train/ and val/ lie further down, in data/; name that folder, folder:{tmp_path}/data" in refusal(tmp_path)


@pytest.mark.parametrize("group", ["", "birds/"])
def test_parts_inside_of_classes_are_not_merged(tmp_path: Path, group: str) -> None:
    parts = ("crow/train", "crow/val", "wren/train", "wren/val", "tit/train")
    write_images(tmp_path, *(f"{group}{part}/1.png" for part in parts))
    told = refusal(tmp_path)
    assert f"{tmp_path}: 3 of its folders are divided into training and test images of their own: {group}crow" in told
    assert f"lay them out as {tmp_path}/train/CLASS and {tmp_path}/val/CLASS" in told


def test_a_class_may_be_called_train(tmp_path: Path) -> None:
    """The railway's, in a group; beside train/ of its own it would be taken for a part, which is said."""
    write_images(tmp_path / "in", *(f"{n}/{i}.png" for n in ("on/bus", "on/train", "off/boat") for i in range(2)))
    assert list_folder(tmp_path / "in").class_names == ("off/boat", "on/bus", "on/train")
    write_images(tmp_path / "top", *(f"{n}/{i}.png" for n in ("bus", "train", "boat") for i in range(2)))
    assert f"if train is a class, move all classes into {tmp_path}/top/train" in refusal(tmp_path / "top")


def test_a_name_in_two_groups_is_told_with_what_was_taken_as_the_classes(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    found = ("corvids/crow", "corvids/wren", "others/wren", "others/tit")
    write_images(tmp_path, *(f"train/{n}/1.png" for n in found), *(f"val/{n}/1.png" for n in found))
    assert list_folder(tmp_path).class_names == ("corvids", "others")
    assert caplog.messages == [
        f"{tmp_path}/train: wren/ lies in corvids/ and in others/, so the outer folders are taken as the 2 classes "
        "(corvids; others); if the inner ones are the classes, put all images of a class into one folder"
    ]


def test_links_to_folders_are_followed_and_never_in_circles(tmp_path: Path) -> None:
    photos = unsplit(tmp_path / "photos")
    write_images(tmp_path / "elsewhere", "x.png", "deep/y.png", "cow/1.png", "cow/2.png")
    (photos / "ant/more").symlink_to(tmp_path / "elsewhere/deep")
    (photos / "bee/back").symlink_to(photos / "bee")
    (photos / "bee/up").symlink_to(photos / "bee/inner")
    write_images(photos, "bee/inner/z.png")
    (photos / "bee/inner/up").symlink_to(photos / "bee")
    (photos / "cow").symlink_to(tmp_path / "elsewhere/cow")
    listing = list_folder(photos)
    assert listing.class_names == ("ant", "bee", "cow")
    labels = np.concatenate([part.labels for part in listing.parts.values()])
    assert np.bincount(labels).tolist() == [11, 11, 2]
    assert ("ant/more/y.png", "ant") in members(listing, "train") | members(listing, "test")


def test_all_classes_that_lack_images_are_named(tmp_path: Path) -> None:
    for number in range(12):
        write_images(unsplit(tmp_path / "one"), f"c{number:02}/1.png")
        (unsplit(tmp_path / "none") / f"c{number:02}").mkdir()
    ten = "; ".join(f"'c{number:02}'" for number in range(10))
    assert refusal(tmp_path / "one") == (
        f"{tmp_path}/one: 12 classes ({ten}; and 2 more) have one training image, which cannot be both trained on and "
        "held out; add images or leave the class out"
    )
    told = refusal(tmp_path / "none")
    assert f"{tmp_path}/none: 12 class folders hold no images (" in told
    assert ": c00; c01; c02; c03; c04; c05; c06; c07; c08; c09; and 2 more; add some or remove the folders" in told


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


def test_tiny_imagenet_is_judged_by_its_own(tiny: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert "tested on its val/; leave it out" in refusal(tiny, test=str(tmp_path))
    list_folder(tiny, test="0.5")
    assert "so data.test=0.5 holds nothing out" in caplog.text


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


def test_a_run_is_not_made_among_the_images(tmp_path: Path) -> None:
    """It would be a class of the next one, or keep this one from finding its classes."""
    for folder in ("flat/ant", "flat/bee", "parts/train/ant", "parts/val/ant", "alone/train/ant"):
        (tmp_path / folder).mkdir(parents=True)
    for place in ("flat/runs/first", "flat/ant/run", "parts/train/run", "parts/val/x/run", "alone/runs"):
        told = rf"^{tmp_path / place}: would lie among the images of folder:.*; name another folder with --out"
        with pytest.raises(UserError, match=told):
            require_outside(tmp_path / place.split("/")[0], tmp_path / place)
    for place in ("parts/runs/first", "runs", "flats"):
        require_outside(tmp_path / "parts", tmp_path / place)
        require_outside(tmp_path / "missing", tmp_path / place)
    require_outside(tmp_path / "flat", tmp_path / "flats")
