"""Packing: what comes out is what Pillow makes of each image, whoever packs it and however often it is killed."""

import errno
import hashlib
import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import nofe
from nofe.data import load_dataset
from nofe.data.batches import pixel_mean
from nofe.data.decode import decode_image, decode_picture
from nofe.data.folder import load_listing
from nofe.data.pack import PackSettings, listing_of, pack
from nofe.data.shards import list_shards
from nofe.data.tar_index import index_file, scan_shard, shard_index
from nofe.data.workers import Workers
from nofe.errors import Interrupted, NofeError, RunError, UserError
from nofe.training.progress import counting

SMALL = PackSettings(size=24, quality=90, shard_megabytes=0.03)
CLASSES = ("ant", "bee", "cow")
DOCS = Path(__file__).parents[2] / "docs"


def photo(seed: int, width: int, height: int) -> Image.Image:
    """Something smooth, as photos are."""
    coarse = np.random.default_rng(seed).integers(0, 256, (4, 4, 3), dtype=np.uint8)
    return Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC)


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of many sizes: wide, tall, smaller than asked for, and one turned by its EXIF tag."""
    root = tmp_path_factory.mktemp("photos")
    for number in range(45):
        part = "val" if number % 5 == 4 else "train"
        path = root / part / CLASSES[number % 3] / f"{number:02}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        exif = Image.Exif()
        exif[0x0112] = 6 if number == 7 else 1
        photo(number, 16 + 3 * number, 100 - 2 * number).save(path, exif=exif, quality=95)
    return root


def packed(source: Path | str, out: Path, settings: PackSettings = SMALL, workers: int = 1, **options: Any) -> dict:
    listing = listing_of(str(source), root=out, test="0.2", seed=0)
    return pack(listing, out, settings, Workers(workers), **options)


@pytest.fixture(scope="module")
def once(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("once")
    packed(photos, out)
    return out


def contents(folder: Path) -> dict[str, bytes]:
    """All but the indices, which know when a shard was written."""
    return {file.name: file.read_bytes() for file in folder.iterdir() if file.suffix != ".index"}


def test_packed_and_read_equals_decoded_and_resized(photos: Path, once: Path) -> None:
    files = sorted((photos / "train").rglob("*.jpg"))
    listing = list_shards(once)
    assert listing.class_names == CLASSES
    for i in range(len(listing.train)):
        number = int(listing.train.keys[i])
        expected = decode_picture(files[number], 24)
        with Image.open(io.BytesIO(listing.train.source(i).read())) as found:
            assert found.size == expected.size
            difference = np.abs(np.asarray(found).astype(int) - np.asarray(expected))
        assert difference.mean() < 6  # what a JPEG of quality 90 does to colours that change within a few pixels
        assert CLASSES[listing.train.labels[i]] == files[number].parent.name


def test_training_images_are_those_of_the_folder_but_for_jpeg(photos: Path, once: Path) -> None:
    whole = load_dataset(f"folder:{photos}", root=photos, image_size=24)
    shards = load_dataset(f"shards:{once}", root=once, image_size=24)
    for part in ("train", "test"):
        order = np.argsort(list_shards(once).parts[part].keys)
        one, other = getattr(whole, part), getattr(shards, part)
        np.testing.assert_array_equal(one.labels, other.labels[order])
        assert np.abs(one.images.astype(int) - other.images[order]).mean() < 4


def test_the_manifest_tells_the_truth(once: Path) -> None:
    manifest = json.loads((once / "manifest.json").read_bytes())
    assert manifest["images"] == {"train": 36, "test": 9}
    assert manifest["complete"] is True
    assert len(manifest["shards"]) > 3
    for shard in manifest["shards"]:
        content = (once / shard["file"]).read_bytes()
        assert shard["sha256"] == hashlib.sha256(content).hexdigest()
        assert shard["bytes"] == len(content) <= 30_000 + 2 * 10_240  # tar fills up to 20 blocks
        with tarfile.open(once / shard["file"]) as tar:
            assert shard["images"] == sum(name.endswith(".jpg") for name in tar.getnames())
    listing = list_shards(once)
    mean = np.mean([decode_image(listing.train.source(i), 24).mean(axis=(1, 2)) for i in range(36)], axis=0)
    assert np.abs(mean - manifest["channel_mean"]).max() < 4
    assert (once / "classes.txt").read_text().split() == list(CLASSES)


def test_packed_images_are_centred_by_channel_and_those_of_a_folder_by_pixel(photos: Path, once: Path) -> None:
    """As docs/data.md and docs/reproducing.md say, where a paper's mean image is meant."""
    of_folder, of_shards = (
        pixel_mean(load_dataset(name, root=photos, image_size=24).train)
        for name in (f"folder:{photos}", f"shards:{once}")
    )
    assert np.ptp(of_folder, axis=(1, 2)).min() > 0
    assert np.ptp(of_shards, axis=(1, 2)).max() == 0
    np.testing.assert_allclose(of_shards[:, 0, 0], of_folder.mean((1, 2)), atol=4)
    pages = "".join((DOCS / name).read_text() for name in ("data.md", "reproducing.md"))
    assert len(re.findall(r"mean\s+of\s+each\s+colour\s+channel", pages)) == 3, "subtracted, twice, and in the manifest"


def test_the_index_written_is_the_one_a_scan_finds(once: Path) -> None:
    for shard in once.glob("*.tar"):
        assert index_file(shard).is_file()
        written, scanned = shard_index(shard), scan_shard(shard)
        for name in ("keys", "labels", "offsets", "sizes"):
            np.testing.assert_array_equal(getattr(written, name), getattr(scanned, name))


@pytest.mark.parametrize("workers", [2, 5])
def test_any_number_of_workers_gives_the_same_bytes(photos: Path, once: Path, tmp_path: Path, workers: int) -> None:
    packed(photos, tmp_path, workers=workers)
    assert contents(tmp_path) == contents(once)


def test_what_is_missing_is_made_again_and_nothing_else(photos: Path, once: Path, tmp_path: Path) -> None:
    packed(photos, tmp_path)
    times = {file.name: file.stat().st_mtime_ns for file in tmp_path.glob("*.tar")}
    (tmp_path / "train-000001.tar").unlink()
    (tmp_path / "test-000000.tar").write_bytes(b"cut short")
    packed(photos, tmp_path)
    assert contents(tmp_path) == contents(once)
    changed = {file.name for file in tmp_path.glob("*.tar") if file.stat().st_mtime_ns != times[file.name]}
    assert changed == {"train-000001.tar", "test-000000.tar"}


def test_what_was_packed_before_does_not_count_for_the_speed(
    photos: Path, once: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(once, tmp_path / "packed")
    lost = sorted((tmp_path / "packed").glob("train-*.tar"))[-1]
    with tarfile.open(lost) as tar:
        images = len(tar.getnames()) // 2
    lost.unlink()
    clock = iter([0.0, *[2.0] * 50])  # begun at 0, and two seconds have gone whenever it is looked at
    monkeypatch.setattr("nofe.training.progress.time.monotonic", lambda: next(clock))
    with counting("pack", 45) as counted:
        packed(photos, tmp_path / "packed", advance=counted.advance, take_over=counted.take_over)
    told = capsys.readouterr().out.splitlines()
    assert told[0].endswith(" of 45 images"), "nothing is packed yet"
    assert told[-1] == f"pack         45 of 45 images  {images / 2:,.0f} images/s"


def test_packing_again_what_is_complete_mends_it(photos: Path, once: Path, tmp_path: Path) -> None:
    """Of the same length, and other bytes: the checksum tells."""
    packed(photos, tmp_path)
    shard = tmp_path / "train-000001.tar"
    shard.write_bytes(bytes(600) + shard.read_bytes()[600:])
    packed(photos, tmp_path)
    assert contents(tmp_path) == contents(once)


def test_where_a_file_is_no_shards_are_packed(photos: Path, tmp_path: Path) -> None:
    (tmp_path / "out").write_text("x")
    with pytest.raises(UserError, match="out: is a file, and shards are packed into a folder"):
        packed(photos, tmp_path / "out")


def test_shards_are_not_packed_among_the_classes(photos: Path, tmp_path: Path) -> None:
    """They would be a class without images, and the source could not be read any more."""
    shutil.copytree(photos / "train", tmp_path / "flat")
    for place in ("shards", "ant/shards"):
        told = f"{tmp_path / 'flat' / place}: would lie among the images of folder:{tmp_path / 'flat'}, and be read as "
        with pytest.raises(UserError, match=re.escape(told) + "a class; name another folder$"):
            packed(tmp_path / "flat", tmp_path / "flat" / place)
        assert not (tmp_path / "flat" / place).exists()
    shutil.copytree(photos, tmp_path / "parts")
    packed(tmp_path / "parts", tmp_path / "parts" / "shards")  # beside train/ and val/ they are no class
    assert sum(list_shards(tmp_path / "parts" / "shards").train.labels == 0) == len(
        list((photos / "train/ant").iterdir())
    )


def test_classes_whose_names_are_numbers_stay_who_they_are(tmp_path: Path) -> None:
    """10 comes before 2 by name, so the number of a class is not its name."""
    for number in range(11):
        for part, count in (("train", 2), ("val", 1)):
            for each in range(count):
                file = tmp_path / "photos" / part / str(number) / f"{each}.png"
                file.parent.mkdir(parents=True, exist_ok=True)
                Image.new("RGB", (24, 24), (20 * number, 20 * number, 20 * number)).save(file)
    packed(tmp_path / "photos", tmp_path / "shards")
    dataset = load_listing(list_shards(tmp_path / "shards"), 24)
    assert dataset.class_names[2] == "10"
    for part in (dataset.train, dataset.test):
        shown = np.round(part.images.mean(axis=(1, 2, 3)) / 20).astype(int)
        assert [dataset.class_names[label] for label in part.labels] == [str(number) for number in shown]


def test_a_link_to_nothing_is_an_unreadable_image(photos: Path, tmp_path: Path) -> None:
    shutil.copytree(photos, tmp_path / "photos")
    first = next(folder for folder in sorted((tmp_path / "photos" / "train").iterdir()) if folder.is_dir())
    (first / "zz.png").symlink_to(tmp_path / "nowhere.png")
    with pytest.raises(UserError, match=r"zz\.png"):
        packed(tmp_path / "photos", tmp_path / "out")
    assert packed(tmp_path / "photos", tmp_path / "out", skip_unreadable=True)["unreadable"]["train"] >= 1


def test_a_killed_pack_goes_on_to_the_same_manifest(photos: Path, once: Path, tmp_path: Path) -> None:
    program = (
        "import sys, time; from pathlib import Path; from nofe.data.pack import *\n"
        "from nofe.data.workers import Workers\n"
        f"listing = listing_of({str(photos)!r}, root=Path(), test='0.2', seed=0)\n"
        "pack(listing, Path(sys.argv[1]), PackSettings(24, False, 90, 0.03), Workers(2), "
        "advance=lambda images: time.sleep(0.03))\n"
    )
    environment = os.environ | {"PYTHONPATH": str(Path(nofe.__file__).parents[1])}
    for wanted in (1, 3):
        process = subprocess.Popen([sys.executable, "-c", program, str(tmp_path)], env=environment)
        until = time.monotonic() + 30
        while len(list(tmp_path.glob("*.tar"))) < wanted and time.monotonic() < until:
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert not list(tmp_path.glob("test-*.tar"))
        assert not json.loads((tmp_path / "manifest.json").read_bytes())["complete"]
        with pytest.raises(UserError, match="is not packed to its end"):
            list_shards(tmp_path)
    (tmp_path / f".train-000001.tar.{os.getppid()}.partial").touch()  # of a process that runs
    (tmp_path / ".notes.txt.partial").touch()  # of somebody else
    packed(photos, tmp_path, workers=2)  # clears away the shards that were being written
    assert {file.name for file in tmp_path.glob(".*.partial")} == {
        f".train-000001.tar.{os.getppid()}.partial",
        ".notes.txt.partial",
    }
    for partial in tmp_path.glob(".*.partial"):
        partial.unlink()
    assert contents(tmp_path) == contents(once)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_in_words_and_the_same_command_goes_on(
    photos: Path, once: Path, tmp_path: Path, number: signal.Signals
) -> None:
    images = 0

    def interrupt(count: int) -> None:
        nonlocal images
        images += count
        if images == 20:
            os.kill(os.getpid(), number)

    told = rf"{tmp_path}: stopped by signal {number:d}, \d finished shards are kept; go on with the same command"
    with pytest.raises(Interrupted, match=told) as caught:
        packed(photos, tmp_path, workers=2, advance=interrupt)
    assert caught.value.exit_code == 128 + number
    assert list(tmp_path.glob("*.tar"))
    assert not list(tmp_path.glob(".*.partial"))
    packed(photos, tmp_path, workers=2)
    assert contents(tmp_path) == contents(once)


def test_unreadable_images_stop_it_by_name_or_are_counted(photos: Path, tmp_path: Path) -> None:
    for source in photos.rglob("*.jpg"):
        target = tmp_path / "photos" / source.relative_to(photos)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(source.read_bytes())
    for number, content in ((3, b""), (6, b"text"), (12, (photos / "train/ant/12.jpg").read_bytes()[:200])):
        (tmp_path / f"photos/train/ant/{number:02}.jpg").write_bytes(content)
    with pytest.raises(UserError, match=r"images? for it cannot be read: train/ant/.*\.jpg \(.*--skip-unreadable"):
        packed(tmp_path / "photos", tmp_path / "out")
    manifest = packed(tmp_path / "photos", tmp_path / "out", skip_unreadable=True)
    assert manifest["unreadable"] == {"train": 3, "test": 0}
    assert manifest["images"] == {"train": 33, "test": 9}
    named = sorted(name for shard in manifest["shards"] for name in shard["unreadable"])
    assert [name.split()[0] for name in named] == [f"train/ant/{n}.jpg" for n in ("03", "06", "12")]
    assert len(list_shards(tmp_path / "out").train) == 33


def test_squares_and_strips(tmp_path: Path) -> None:
    images = tmp_path / "images"
    for name in ("ant", "bee"):
        (images / name).mkdir(parents=True)
        photo(1, 300, 30).save(images / name / "strip.png")
        photo(2, 60, 90).save(images / name / "tall.png")
    assert decode_picture(images / "ant/strip.png", 24).size == (96, 24)  # no longer than four times its width
    assert decode_picture(images / "ant/tall.png", 24).size == (24, 36)
    packed(images, tmp_path / "out", PackSettings(24, square=True))
    listing = list_shards(tmp_path / "out")
    for part in listing.parts.values():
        for i in range(len(part)):
            np.testing.assert_array_equal(decode_picture(part.source(i), 24).size, (24, 24))


def test_other_images_or_settings_are_not_mixed_in(photos: Path, once: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="with other settings"):
        packed(photos, once, PackSettings(25, shard_megabytes=0.03))
    with pytest.raises(UserError, match="from other images"):
        packed(photos / "train", once)
    (tmp_path / "train-000000.tar").touch()
    with pytest.raises(UserError, match="shards of another origin"):
        packed(photos, tmp_path)


def test_shards_and_arrays_can_be_packed_again(once: Path, tmp_path: Path) -> None:
    again = packed(f"shards:{once}", tmp_path / "again", PackSettings(16))
    assert again["images"] == {"train": 36, "test": 9}
    assert list_shards(tmp_path / "again").class_names == CLASSES


@pytest.mark.parametrize(("field", "value"), [("size", 0), ("quality", 101), ("shard_megabytes", 0)])
def test_impossible_settings(field: str, value: int) -> None:
    with pytest.raises(UserError, match="out of range"):
        PackSettings(**{field: value})


def test_a_shard_that_was_changed_or_lost_is_named(photos: Path, tmp_path: Path) -> None:
    packed(photos, tmp_path)
    shard = tmp_path / "train-000001.tar"
    content = shard.read_bytes()
    shard.write_bytes(content + bytes(512))
    with pytest.raises(UserError, match=r"train-000001.tar: has .* bytes and not the"):
        list_shards(tmp_path)
    shard.unlink()
    with pytest.raises(UserError, match=r"train-000001.tar: no such file, and manifest.json lists it"):
        list_shards(tmp_path)
    shard.write_bytes(content)
    for judged in tmp_path.glob("test-*.tar"):
        judged.unlink()
    with pytest.raises(UserError, match=r"test-000000.tar: no such file, and manifest.json lists it"):
        list_shards(tmp_path)  # and not judged by training images


@pytest.mark.parametrize(
    ("number", "kind", "said"),
    [
        (errno.EROFS, UserError, "name another"),
        (errno.ENOENT, UserError, "name another"),
        (errno.ENOSPC, RunError, "make room"),
        (errno.EIO, RunError, "fix that, then run"),
    ],
)
def test_what_to_do_where_nothing_can_be_written(
    number: int, kind: type[NofeError], said: str, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr("nofe.data.pack.replace_atomically", failing)
    with pytest.raises(NofeError, match=said) as caught:
        packed(photos, tmp_path / "out")
    assert type(caught.value) is kind


def test_a_folder_below_home_is_packed(photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(photos.parent))
    listing = listing_of(f"~/{photos.name}", root=photos, test="0.2", seed=0)
    assert listing.name == f"folder:{photos}"


def test_what_is_held_out_is_told_by_the_options_of_pack(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for name in ("ant", "bee"):
        (tmp_path / "photos" / name).mkdir(parents=True)
        for number in range(4):
            photo(number, 30, 30).save(tmp_path / "photos" / name / f"{number}.png")

    def refusal(test: str) -> str:
        with pytest.raises(UserError) as caught:
            listing_of(str(tmp_path / "photos"), root=tmp_path, test=test, seed=1)
        return str(caught.value)

    assert refusal("2").startswith("--test=2: out of range")
    assert refusal("nowhere").startswith("--test=nowhere: neither a fraction")
    assert listing_of(str(tmp_path / "photos"), root=tmp_path, test="0.25", seed=1).test is not None
    [told] = caplog.messages
    assert told.endswith("drawn from each class by --seed=1, are held out for testing (--test=0.25)")
