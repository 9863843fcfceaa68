"""Folders of images: what is found, what is left out, and what each mistake is told."""

import logging
import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from nofe.data import folder, load_dataset
from nofe.data.dataset import Dataset
from nofe.data.folder import find_images, load_listing, read_images
from nofe.data.layouts import list_folder
from nofe.data.originals import usual_side
from nofe.data.photos import read_photos
from nofe.data.pictures import DEFAULT_TEST
from nofe.errors import UserError

SIZE = 8
COLOURS = {"ant": (255, 0, 0), "bee": (0, 255, 0), "cow": (0, 0, 255)}


def write_image(path: Path, colour: tuple[int, int, int] = (9, 9, 9)) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (12, 10), colour).save(path)
    return path


@pytest.fixture
def birds(tmp_path: Path) -> Path:
    """Three classes, each of its own colour: 2 training images and 1 to judge by."""
    root = tmp_path / "birds"
    for name, colour in COLOURS.items():
        for file in ("train/{}/1.png", "train/{}/2.bmp", "val/{}/1.png"):
            write_image(root / file.format(name), colour)
    return root


def load_folder(root: Path, size: int, *, skip_unreadable: bool = False, test: str = DEFAULT_TEST) -> Dataset:
    return load_listing(list_folder(root, test=test), size, skip_unreadable=skip_unreadable)


def damage(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-30])


def refusal(root: Path, **options: bool) -> str:
    with pytest.raises(UserError) as caught:
        load_folder(root, SIZE, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_images_get_the_label_of_their_folder(birds: Path) -> None:
    dataset = load_folder(birds, SIZE)
    assert dataset.class_names == ("ant", "bee", "cow")
    assert dataset.name == f"folder:{birds}"
    assert dataset.train.labels.tolist() == [0, 0, 1, 1, 2, 2]
    assert dataset.test.labels.tolist() == [0, 1, 2]
    for part in (dataset.train, dataset.test):
        expected = np.array(list(COLOURS.values()))[part.labels][:, :, None, None]
        np.testing.assert_array_equal(part.images, np.broadcast_to(expected, (len(part), 3, SIZE, SIZE)))


def test_many_images_stay_in_order(tmp_path: Path) -> None:
    """More than one task for the threads, each image told by its colour."""
    for i in range(100):
        write_image(tmp_path / f"train/{'ab'[i // 50]}/{i:03}.png", (i, 255 - i, 7))
    for name in "ab":
        write_image(tmp_path / f"test/{name}/1.png")
    images = load_folder(tmp_path, SIZE).train.images
    assert images[:, 0, 0, 0].tolist() == list(range(100))


def test_hidden_files_are_passed_over_and_others_are_counted(birds: Path, caplog: pytest.LogCaptureFixture) -> None:
    expected = load_folder(birds, SIZE).fingerprint()
    for hidden in ("train/.DS_Store", "train/ant/._1.png", "train/.cache/1.png", "val/bee/.hidden/x.png"):
        (birds / hidden).parent.mkdir(parents=True, exist_ok=True)
        (birds / hidden).write_bytes(b"hidden")
    with caplog.at_level(logging.WARNING, "nofe"):
        assert load_folder(birds, SIZE).fingerprint() == expected
        assert caplog.messages == []
        (birds / "train/bee/boxes.txt").write_text("0 0 5 5")
        (birds / "train/cow/photo.heic").write_bytes(b"")
        assert load_folder(birds, SIZE).fingerprint() == expected
    assert caplog.messages == [f"{birds}/train: left out 2 files without the suffix of an image (first: bee/boxes.txt)"]


def test_suffixes_in_capitals_and_folders_in_folders(birds: Path) -> None:
    write_image(birds / "train/ant/images/3.JPEG", COLOURS["ant"])
    assert load_folder(birds, SIZE).train.labels.tolist() == [0, 0, 0, 1, 1, 2, 2]


def test_val_goes_before_test_and_test_will_do(birds: Path) -> None:
    write_image(birds / "test/ant/1.png")
    assert len(load_folder(birds, SIZE).test) == 3
    (birds / "val").rename(birds / "elsewhere")
    assert len(load_folder(birds, SIZE).test) == 1


def test_unreadable_images_stop_it_and_are_counted(birds: Path) -> None:
    damage(birds / "train/bee/1.png")
    damage(birds / "val/cow/1.png")
    assert refusal(birds) == (
        f"{birds}: 2 of 9 images cannot be read: train/bee/1.png (truncated); val/cow/1.png (truncated); "
        "repair them, or pass --skip-unreadable to leave them out"
    )


def test_ten_unreadable_images_are_named_and_the_rest_counted(birds: Path) -> None:
    for number in range(3, 15):
        write_image(birds / f"train/ant/{number:02}.png").write_bytes(b"")
    told = refusal(birds)
    assert "12 of 21 images cannot be read: train/ant/03.png (empty file); train/ant/04.png" in told
    assert "train/ant/12.png (empty file); and 2 more; repair them, or pass --skip-unreadable" in told


def test_unreadable_images_are_left_out_on_demand(birds: Path, caplog: pytest.LogCaptureFixture) -> None:
    damage(birds / "train/bee/1.png")
    damage(birds / "val/cow/1.png")
    with caplog.at_level(logging.WARNING, "nofe"):
        dataset = load_dataset(f"folder:{birds}", root=birds, image_size=SIZE, skip_unreadable=True)
    assert dataset.train.labels.tolist() == [0, 0, 1, 2, 2]
    assert dataset.test.labels.tolist() == [0, 1]
    assert dataset.train.images[2, :, 0, 0].tolist() == list(COLOURS["bee"])
    assert caplog.messages == [
        f"{birds}: 2 of 9 images cannot be read: train/bee/1.png (truncated); val/cow/1.png (truncated); "
        "they are left out"
    ]
    assert dataset.left_out == {"train": ["train/bee/1.png"], "test": ["val/cow/1.png"]}


def test_a_class_that_loses_all_its_images_is_named(birds: Path) -> None:
    for path in (birds / "train/bee").iterdir():
        path.write_bytes(b"")
    assert "class 'bee' has no training images" in refusal(birds, skip_unreadable=True)


def test_layout_mistakes_are_told_apart(birds: Path, tmp_path: Path) -> None:
    assert f"{tmp_path}/brids: no such folder; name one that holds train/ and val/" in refusal(tmp_path / "brids")
    assert "1.png: not a folder" in refusal(birds / "train/ant/1.png")
    (birds / "val").rename(birds / "judged")
    assert f"{birds}: has no val/ or test/ folder, and judged/ beside train/; put images" in refusal(birds)
    (birds / "judged").rename(birds / "val")
    (birds / "train").rename(birds / "learned")
    assert "has no train/ folder; put the training images into" in refusal(birds)


def test_a_folder_that_cannot_be_listed_is_named(birds: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def forbidden(self: Path) -> None:
        raise PermissionError(13, "Permission denied", str(self))

    monkeypatch.setattr(Path, "iterdir", forbidden)  # a superuser, as in containers, may list any folder
    assert refusal(birds) == f"{birds}: cannot be read (Permission denied); check its permissions"


def test_a_folder_inside_a_class_that_cannot_be_listed_is_named(birds: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its images would be missing without a word."""
    inner = birds / "train" / "ant" / "more"
    write_image(inner / "9.png")
    scandir = os.scandir

    def forbidden(path: str | Path) -> Any:
        if Path(path) == inner:
            raise PermissionError(13, "Permission denied", str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", forbidden)
    told = f"{inner}: cannot be read (Permission denied); check its permissions"
    assert refusal(birds) == told
    with pytest.raises(UserError) as caught:
        find_images([birds / "train"])
    assert str(caught.value) == told


def test_a_class_only_in_val_is_named(birds: Path) -> None:
    write_image(birds / "val/dog/1.png")
    write_image(birds / "val/elk/1.png")
    assert f"{birds}/val: class 'dog' is not in train/ (2 such classes in all)" in refusal(birds)


def test_a_class_only_in_train_is_fine(birds: Path) -> None:
    write_image(birds / "train/dog/1.png")
    assert load_folder(birds, SIZE).classes == 4


def test_folders_without_images_are_named(birds: Path, tmp_path: Path) -> None:
    (birds / "train/dog").mkdir()
    (birds / "train/dog/readme.txt").write_text("no image")
    assert f"{birds}/train/dog: holds no images (JPEG, PNG, BMP, GIF, WEBP or TIFF)" in refusal(birds)

    flat = tmp_path / "flat"
    write_image(flat / "train/1.png")
    write_image(flat / "val/1.png")
    assert f"{flat}/train: holds no class folders; sort the images into one folder a class" in refusal(flat)
    write_image(flat / "train/ant/1.png")
    write_image(flat / "train/bee/1.png")
    assert f"{flat}/val: holds no images" in refusal(flat)


def test_one_class_is_not_enough(tmp_path: Path) -> None:
    for part in ("train", "val"):
        write_image(tmp_path / part / "ant/1.png")
    assert "telling classes apart needs at least 2" in refusal(tmp_path)


@pytest.mark.parametrize("image_size", [0, -1, 5000])
def test_impossible_sizes_are_refused(birds: Path, image_size: int) -> None:
    with pytest.raises(UserError, match=f"image size {image_size}: out of range"):
        load_folder(birds, image_size)
    with pytest.raises(UserError, match=f"image size {image_size}: out of range"):
        read_images([], image_size)


def test_more_than_the_memory_is_refused_before_decoding(birds: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folder, "physical_memory", lambda: 9 * 3 * SIZE**2 - 1)
    assert "9 images of 8 x 8 take" in refusal(birds)
    monkeypatch.setattr(folder, "physical_memory", lambda: 9 * 3 * SIZE**2)
    assert len(load_folder(birds, SIZE).train) == 6


def test_photos_to_predict_are_decoded_like_the_data_set(birds: Path) -> None:
    paths = find_images([birds / "val"])
    np.testing.assert_array_equal(read_images(paths, SIZE), load_folder(birds, SIZE).test.images)


def test_find_images_expands_folders_and_keeps_files(birds: Path) -> None:
    odd = birds / "photo.of.mine"
    odd.write_bytes(b"")
    found = find_images([odd, birds / "train", birds / "val/bee/1.png"])
    names = [str(path.relative_to(birds)) for path in found]
    train = [f"train/{name}/{file}" for name in COLOURS for file in ("1.png", "2.bmp")]
    assert names == ["photo.of.mine", *train, "val/bee/1.png"]


def test_find_images_names_what_is_not_there(tmp_path: Path) -> None:
    """A file is told of with the answers of the others, if there are any."""
    gone, there = tmp_path / "gone.jpg", tmp_path / "birds" / "there.jpg"
    write_image(there)
    assert find_images([gone, there]) == [gone, there]
    for missing, said in (([gone], "no such file; check"), ([gone, gone], "no such file (2 files are missing); check")):
        with pytest.raises(UserError) as caught:
            find_images(missing)
        assert str(caught.value) == f"{gone}: {said} the path"
    for read in (lambda path: find_images([path]), lambda path: read_photos(path, SIZE)):
        with pytest.raises(
            UserError, match=r"^https://example.com/a.jpg: a web address, and only files can be read; downl"
        ):
            read(Path("https://example.com/a.jpg"))
    there.unlink()
    with pytest.raises(UserError, match=re.escape(f"{tmp_path}: holds no images (JPEG")):
        find_images([tmp_path])


def test_read_images_names_the_file(birds: Path) -> None:
    paths = find_images([birds / "train"])
    damage(paths[2])
    damage(paths[4])
    with pytest.raises(UserError) as caught:
        read_images(paths, SIZE)
    assert str(caught.value).startswith(f"{paths[2]}: cannot be read as an image (truncated); so are 1 more; give JPEG")


def told(caplog: pytest.LogCaptureFixture, root: Path, **options: str) -> list[str]:
    caplog.clear()
    with caplog.at_level(logging.WARNING, "nofe"):
        load_folder(root, SIZE, **options)  # type: ignore[arg-type]
    return caplog.messages


def test_what_is_judged_by_less_than_one_would_think_is_told(birds: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert told(caplog, birds, test="0.3") == [
        f"{birds}: has test images of its own, so data.test=0.3 holds nothing out"
    ]
    (birds / "val/bee/1.png").unlink()
    assert told(caplog, birds) == [
        f"{birds / 'val'}: no images of 1 of the 3 classes, which no accuracy will be about: bee"
    ]


def test_images_beside_the_class_folders_are_told(birds: Path, caplog: pytest.LogCaptureFixture) -> None:
    write_image(birds / "train/stray.png")
    (birds / "train/readme.txt").write_text("text")
    assert told(caplog, birds) == [f"{birds / 'train'}: left out 1 image beside the class folders (first: stray.png)"]


def test_other_files_among_images_to_predict_are_told(birds: Path, caplog: pytest.LogCaptureFixture) -> None:
    (birds / "train/ant/readme.txt").write_text("text")
    assert "readme.txt" not in {path.name for path in find_images([birds / "train"])}
    assert caplog.messages == [
        f"{birds / 'train'}: left out 1 file without the suffix of an image (first: ant/readme.txt)"
    ]


def test_a_pipe_is_not_waited_for(birds: Path) -> None:
    os.mkfifo(birds / "train/ant/pipe.png")
    with pytest.raises(UserError, match=r"pipe\.png: cannot be read as an image \(not a regular file\)"):
        read_images([birds / "train/ant/pipe.png"], SIZE)
    with pytest.raises(UserError, match=r"1 of \d+ images cannot be read: train/ant/pipe\.png \(not a regular file\)"):
        load_folder(birds, SIZE)
    assert usual_side(f"folder:{birds}") is not None
