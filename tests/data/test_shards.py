"""Tar shards: every sample is found where it lies, and what is damaged or hostile is refused by name."""

import io
import json
import os
import tarfile
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from nofe.data import list_images, load_dataset
from nofe.data.decode import decode_image
from nofe.data.pictures import NOTHING_HELD_OUT
from nofe.data.shards import list_shards
from nofe.data.tar_index import index_file, scan_shard, shard_index
from nofe.errors import UserError

SIZE = 8


def picture(number: int, kind: str = "PNG") -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", (10, 9), (number, 2 * number % 256, 200)).save(buffer, kind)
    return buffer.getvalue()


def write_tar(path: Path, files: dict[str, bytes], form: int = tarfile.PAX_FORMAT, mtime: float = 0) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w", format=form) as tar:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size, member.mtime = len(content), mtime
            tar.addfile(member, io.BytesIO(content))
    return path


def samples(first: int, count: int) -> dict[str, bytes]:
    files = {}
    for number in range(first, first + count):
        files[f"{number:04}.png"] = picture(number)
        files[f"{number:04}.cls"] = str(number % 3).encode()
    return files


@pytest.fixture
def shards(tmp_path: Path) -> Path:
    root = tmp_path / "shards"
    write_tar(root / "train-000000.tar", samples(0, 7))
    write_tar(root / "train-000001.tar", samples(7, 5))
    write_tar(root / "test-000000.tar", samples(50, 3))
    (root / "classes.txt").write_text("ant\nbee\ncow\n")
    return root


def test_test_shards_beside_val_are_told_of(shards: Path, caplog: pytest.LogCaptureFixture) -> None:
    write_tar(shards / "val-000000.tar", samples(90, 2))
    assert len(list_shards(shards).parts["test"]) == 2
    told = "does not read test-*.tar (1 shard); to test on that instead, move val-*.tar elsewhere"
    assert caplog.messages == [f"{shards}: tests on val-*.tar and {told}"]


def refusal(root: Path) -> str:
    with pytest.raises(UserError) as caught:
        list_shards(root)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("named", [True, False])
def test_labels_that_count_from_one_are_told(shards: Path, named: bool) -> None:
    for file in shards.glob("*.tar"):
        file.unlink()
    files = {
        f"{i}.{kind}": picture(i) if kind == "png" else b"%d" % (1 + i % 3) for i in range(6) for kind in ("png", "cls")
    }
    write_tar(shards / "train-0.tar", files)
    if not named:
        (shards / "classes.txt").unlink()
    assert "labels must start at 0, and the lowest is 1; subtract 1 from each" in refusal(shards)


@pytest.mark.parametrize("named", [True, False])
def test_images_without_a_class_are_no_class_of_their_own(shards: Path, named: bool) -> None:
    """Where nobody named the classes, -1 became the name of one; where somebody did, it was to be listed."""
    if not named:
        (shards / "classes.txt").unlink()
    write_tar(shards / "train-000002.tar", {"a.png": picture(1), "a.cls": b"-1"})
    assert "label -1 is below 0; number the classes from 0, and leave out images without a class" in refusal(shards)


def test_shards_to_judge_by_need_not_have_the_first_classes(shards: Path) -> None:
    """Subtracting would call every image another class than it is."""
    for file in (*shards.glob("*.tar"), shards / "classes.txt"):
        file.unlink()
    write_tar(shards / "train-0.tar", {"a.png": picture(1), "a.cls": b"2", "b.png": picture(2), "b.cls": b"4"})
    listing = list_images(f"shards:{shards}", test=NOTHING_HELD_OUT)
    assert [listing.class_names[label] for label in listing.train.labels] == ["class 2", "class 4"]


def test_every_image_is_read_from_its_place(shards: Path) -> None:
    dataset = load_dataset(f"shards:{shards}", root=shards, image_size=SIZE)
    assert dataset.class_names == ("ant", "bee", "cow")
    assert dataset.train.labels.tolist() == [number % 3 for number in range(12)]
    for part, first in ((dataset.train, 0), (dataset.test, 50)):
        expected = [decode_image(picture(number), SIZE) for number in range(first, first + len(part))]
        np.testing.assert_array_equal(part.images, expected)


@pytest.mark.parametrize("form", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
@pytest.mark.parametrize("mtime", [0, 1700000000.25])  # WebDataset's writer gives fractions, kept in a pax header
def test_every_format_of_tar(tmp_path: Path, form: int, mtime: float) -> None:
    long = "folder/" * 20 + "a name of more than a hundred characters"
    files = {f"{long}.jpg": picture(1, "JPEG"), f"{long}.json": b'{"label": 2, "caption": "."}'}
    if form == tarfile.USTAR_FORMAT:
        files = {name.replace("a name of", ""): content for name, content in files.items()}
    path = write_tar(tmp_path / "train-0.tar", files | {"b.c.jpg": b"", "b.cls": b"1"} | samples(0, 2), form, mtime)
    with tarfile.open(path) as tar:
        expected = [member.offset_data for member in tar if member.name.endswith((".jpg", ".png"))]
    with pytest.raises(UserError, match="sample 'b' has no image"):  # WebDataset's suffix begins at the first dot
        scan_shard(path)
    path = write_tar(path, files | samples(0, 2), form, mtime)
    with tarfile.open(path) as tar:
        expected = [member.offset_data for member in tar if member.name.endswith((".jpg", ".png"))]
    index = scan_shard(path)
    assert index.offsets.tolist() == expected
    assert index.labels.tolist() == ["2", "0", "1"]
    assert index.keys[0] == next(iter(files)).removesuffix(".jpg")


def test_the_index_is_used_while_the_shard_stays_the_same(shards: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shard = shards / "train-000000.tar"
    found = shard_index(shard)
    with monkeypatch.context() as patched:
        patched.setattr("nofe.data.tar_index.scan_shard", lambda _: pytest.fail("scanned again"))
        again = shard_index(shard)
    assert again.keys.tolist() == found.keys.tolist()
    np.testing.assert_array_equal(again.offsets, found.offsets)
    write_tar(shard, samples(3, 7))
    os.utime(shard, (1, 1))
    assert shard_index(shard).keys[0] == "0003"
    index_file(shard).write_bytes(index_file(shard).read_bytes()[:-9])  # a damaged one is made again
    assert shard_index(shard).keys[0] == "0003"
    monkeypatch.setattr("nofe.data.tar_index.replace_atomically", lambda _: (_ for _ in ()).throw(PermissionError()))
    index_file(shard).unlink()
    assert shard_index(shard).keys[0] == "0003"  # a folder that cannot be written to goes without


def test_class_names_from_anywhere(shards: Path) -> None:
    (shards / "classes.txt").unlink()
    assert list_shards(shards).class_names == ("class 0", "class 1", "class 2")
    for value in (
        ["x", "y", "z"],
        {"classes": ["x", "y", "z"]},
        {"y": 1, "x": 0, "z": 2},
        {"0": "x", "2": "z", "1": "y"},
    ):
        (shards / "index.json").write_text(json.dumps(value))
        assert list_shards(shards).class_names == ("x", "y", "z")
    (shards / "index.json").write_text("[1, 2]")
    assert "index.json: names no classes" in refusal(shards)
    (shards / "index.json").unlink()
    named = {"a.png": picture(1), "a.cls": b"wren", "b.png": picture(2), "b.cls": b"crow"}
    for part in ("train", "test"):
        write_tar(shards / f"named/{part}-0.tar", named)
    assert list_shards(shards / "named").class_names == ("crow", "wren")
    assert list_shards(shards / "named").train.labels.tolist() == [1, 0]
    (shards / "named/classes.txt").write_text("\ufeffwren\ncrow\n")
    assert list_shards(shards / "named").class_names == ("wren", "crow"), "a mark of the encoding is no part of a name"
    (shards / "classes.txt").write_text("2\n0\n1\n")
    assert "label '0' could be the number of a class or the name of another" in refusal(shards)
    (shards / "classes.txt").write_text("1\n2\n3\n")
    assert list_shards(shards).train.labels.tolist()[:3] == [0, 1, 2], "0 is no name, so labels are numbers"
    (shards / "named/classes.txt").write_text("crow\nrook\n")
    assert "train-0.tar: label 'wren' is none of the 2 classes" in refusal(shards / "named")


def test_without_test_shards_some_are_held_out(shards: Path) -> None:
    (shards / "test-000000.tar").unlink()
    listing = list_shards(shards)
    assert (len(listing.train), len(listing.test or ())) == (9, 3)
    (shards / "train-000000.tar").rename(shards / "000000.tar")
    assert "000000.tar: neither train-*.tar nor val" in refusal(shards)
    (shards / "train-000001.tar").rename(shards / "000001.tar")
    assert len(list_shards(shards).train) == 9


def test_links_folders_and_devices_are_passed_over(shards: Path) -> None:
    """A link is not followed and nothing is written, wherever it points."""
    path = shards / "train-000000.tar"
    with tarfile.open(path, "w") as tar:
        for name, kind in (("../../evil.png", tarfile.SYMTYPE), ("0.png", tarfile.LNKTYPE), ("d", tarfile.DIRTYPE)):
            member = tarfile.TarInfo(name)
            member.type, member.linkname = kind, "/etc/passwd"
            tar.addfile(member)
        for name, content in samples(0, 1).items():
            member = tarfile.TarInfo(f"../../{name}")
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    before = sorted(shards.parent.rglob("*"))
    index = scan_shard(path)
    assert (index.labels.tolist(), index.keys.tolist()) == (["0"], ["../../0000"])
    assert sorted(shards.parent.rglob("*")) == before


@pytest.mark.parametrize("keep", [0, 100, 512, 700, 1024, 5000, -1025])
def test_a_truncated_shard_is_refused_by_name(shards: Path, keep: int) -> None:
    path = shards / "train-000001.tar"
    whole = path.read_bytes().rstrip(b"\0")
    length = len(whole) + 1024 if keep < 0 else keep
    path.write_bytes((whole + bytes(1024 * 1024))[: length + keep] if keep < 0 else whole[:keep])
    assert f"{path}: not a shard that can be read (" in refusal(shards)


def header(**fields: bytes) -> bytes:
    block = bytearray(tarfile.TarInfo("0.png").tobuf(tarfile.USTAR_FORMAT))
    places = {"name": (0, 100), "size": (124, 136), "kind": (156, 157)}
    for name, value in fields.items():
        start, stop = places[name]
        block[start:stop] = value.ljust(stop - start, b"\0")
    block[148:156] = b" " * 8
    block[148:156] = b"%06o\0 " % sum(block)
    return bytes(block)


HOSTILE = {
    "larger than the file": header(size=b"77777777777"),
    "negative size": header(size=b"-0000000001"),
    "size of 8 GiB or more": header(size=b"\x80" + b"\xff" * 11),
    "endless name": header(kind=b"L", size=b"00000300000") + bytes(0o300000),
    "pax without an end": header(kind=b"x", size=b"00000000020") + b"9999 path=x".ljust(512, b"\0"),
    "pax that says 0": header(kind=b"x", size=b"00000000020") + b"0 path=x\n".ljust(512, b"\0"),
    "checksum": header()[:130] + b"7" + header()[131:],
    "compressed": b"\x1f\x8b" + bytes(600),
    "not a tar": b"once upon a time " * 100,
}


@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_shards_are_refused_by_name(shards: Path, case: str) -> None:
    (shards / "train-000001.tar").write_bytes(HOSTILE[case] + bytes(2048))
    message = refusal(shards)
    assert message.startswith(f"{shards / 'train-000001.tar'}: not a shard that can be read (")
    assert len(message) < 300 + len(str(shards))


@pytest.mark.parametrize(
    ("files", "reason"),
    [
        ({"a.png": b"x"}, "sample 'a' has no label"),
        ({"a.cls": b"1"}, "sample 'a' has no image"),
        ({"a.png": b"x", "b.cls": b"1"}, "sample 'a' has no label"),
        ({"a.png": b"x", "a.jpg": b"x", "a.cls": b"1"}, "sample 'a' has two images"),
        ({"a.png": b"x", "a.json": b"{"}, "'a.json' cannot be understood"),
        ({"a.png": b"x", "a.json": b"[" * 60_000}, "'a.json' cannot be understood"),
        ({"a.png": b"x", "a.json": b'{"colour": 1}'}, "sample 'a' has no label"),
        ({"a.png": b"x", "a.cls": b"1" * 100_000}, "'a.cls' has 100,000 bytes"),
        ({"a.png": b"x", "a.cls": b"1" * 5_000}, "sample 'a' has a label of 5,000 characters"),
        ({"a.png": b"x", "a.cls": b"\n"}, "sample 'a' has no label"),
        ({"a.png": b"x", "a.json": b'{"label": ""}'}, "sample 'a' has no label"),
    ],
)
def test_samples_that_are_not_whole(tmp_path: Path, files: dict[str, bytes], reason: str) -> None:
    with pytest.raises(UserError, match=reason):
        scan_shard(write_tar(tmp_path / "train-0.tar", files))


@given(st.lists(st.tuples(st.integers(0, 20_000), st.integers(0, 255)), min_size=1, max_size=6))
@settings(max_examples=150)
def test_damage_is_refused_or_read_inside_the_file(tmp_path_factory: pytest.TempPathFactory, damage: list) -> None:
    path = tmp_path_factory.mktemp("damaged") / "train-0.tar"
    raw = bytearray(write_tar(path, samples(0, 4)).read_bytes())
    for place, value in damage:
        raw[place % len(raw)] = value
    path.write_bytes(raw)
    with suppress(UserError):
        index = scan_shard(path)
        assert all(0 <= offset <= len(raw) - size for offset, size in zip(index.offsets, index.sizes, strict=True))


def test_folders_without_shards(tmp_path: Path, shards: Path) -> None:
    assert "nowhere: no such folder" in refusal(tmp_path / "nowhere")
    assert "holds no .tar files; make some with nofe pack" in refusal(tmp_path)
    (tmp_path / "train-000.tar.gz").touch()
    assert "train-000.tar.gz is compressed; unpack it with gunzip" in refusal(tmp_path)
    for file in shards.glob("train-*"):
        file.unlink()
    assert "has no train-*.tar; put the training shards beside test-000000.tar" in refusal(shards)
