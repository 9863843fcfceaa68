"""Python data sets of pairs, and saved Hugging Face data sets, give the images that a folder of them would."""

import io
import json
import re
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import nofe
from conftest import small_dataset
from nofe.data import folder, load_dataset
from nofe.data.decode import decode_image
from nofe.data.pack import PackSettings, listing_of, pack
from nofe.data.pairs import dataset_of_pairs, square_of
from nofe.data.stored import look_through, open_dataset
from nofe.data.workers import Workers
from nofe.errors import UserError

SIZE = 8


def photo(seed: int, width: int = 20, height: int = 14) -> Image.Image:
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8))


def encoded(image: Image.Image) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, "PNG")
    return buffer.getvalue()


def expected(seed: int) -> np.ndarray:
    return decode_image(encoded(photo(seed)), SIZE)


def test_every_kind_of_image_gives_the_same_square() -> None:
    image = photo(3)
    rows = np.asarray(image)  # (H, W, 3)
    planes = np.ascontiguousarray(rows.transpose(2, 0, 1))
    kinds = {
        "Pillow": image,
        "array": rows,
        "array, colours first": planes,
        "tensor": torch.from_numpy(planes),
        "tensor from 0 to 1": torch.from_numpy(planes).float() / 255,
        "integers": rows.astype(np.int64),
        "16 bits": rows.astype(np.uint16) * 257,
    }
    for kind, value in kinds.items():
        np.testing.assert_array_equal(square_of(value, SIZE), expected(3), err_msg=kind)
    grey = np.asarray(image.convert("L"))
    for value in (image.convert("L"), grey, grey[:, :, None], torch.from_numpy(grey.copy())[None]):
        np.testing.assert_array_equal(square_of(value, SIZE), decode_image(encoded(image.convert("L")), SIZE))
    exact = np.random.default_rng(0).integers(0, 256, (3, SIZE, SIZE), dtype=np.uint8)
    np.testing.assert_array_equal(square_of(torch.from_numpy(exact), SIZE), exact)


class Photos:
    classes = ("ant", "bee")

    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[Image.Image, Any]:
        return photo(index), torch.tensor(index % 2)


def test_pairs_become_a_dataset() -> None:
    dataset = dataset_of_pairs(Photos(10), Photos(4), image_size=SIZE)
    assert (dataset.name, dataset.class_names) == ("Photos", ("ant", "bee"))
    assert dataset.test.labels.tolist() == [0, 1, 0, 1]
    np.testing.assert_array_equal(dataset.train.images, [expected(i) for i in range(10)])
    held = dataset_of_pairs(Photos(10), image_size=SIZE, class_names=("x", "y"))
    assert (len(held.train), len(held.test), held.class_names) == (8, 2, ("x", "y"))
    listed = [(photo(i), i % 3) for i in range(9)]
    assert dataset_of_pairs(listed, image_size=SIZE).class_names == ("class 0", "class 1", "class 2")


@pytest.mark.parametrize(
    ("item", "message"),
    [
        ((torch.randn(3, 9, 9), 0), "training image 0: cannot be used .its numbers are not from 0 to 1; leave norm"),
        ((np.zeros((9, 9, 4), np.uint8), 0), r"of shape \(9, 9, 4\)"),
        ((np.full((9, 9), -1), 0), "outside 0..255"),
        ((photo(0), "ant"), "training label 0: 'ant' is no class number"),
        ((photo(0), 0.5), "is no class number"),
        ((photo(0), 2**63), "'9223372036854775808' is no class number"),
        ((photo(0), 2**64), "is no class number"),
        ((photo(0), -1), "training label 0: -1 is below 0; number the classes from 0, and leave out images without"),
        (photo(0), "training item 0: not a pair of image and label but Image; give both for each image"),
        ((photo(0), 0, "x"), "not a pair of image and label but tuple of 3; give both"),
    ],
)
def test_what_cannot_be_used_is_named(item: Any, message: str) -> None:
    with pytest.raises(UserError, match=message):
        dataset_of_pairs([item], image_size=SIZE)


LISTED = [(photo(i), i % 2) for i in range(8)]
PART = nofe.ImageSet(np.zeros((2, 3, 8, 8), np.uint8), np.arange(2))


def test_what_random_split_gives_is_a_list_of_two_data_sets_and_not_two_images(tmp_path: Path) -> None:
    from torch.utils.data import random_split

    with pytest.raises(
        UserError, match=r"^dataset: a list of two data sets, as random_split gives; pass a tuple, \(train"
    ):
        nofe.train(tmp_path / "run", random_split(LISTED, [6, 2]))


class Endless(torch.utils.data.IterableDataset):
    def __len__(self) -> int:
        return 3

    def __iter__(self) -> Any:
        return iter(LISTED)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ((LISTED, LISTED, LISTED), r"dataset: a tuple of 3; pass the pairs to train on .*, \(train, test\), or"),
        ((LISTED,), "dataset: a tuple of 1; pass the pairs"),
        ((), "dataset: a tuple of 0; pass the pairs"),
        (tuple(LISTED), r"a tuple of pairs .*; pass a list of them, a tuple is \(train, test\)"),
        (tuple(LISTED[:2]), "a tuple of pairs of image and label; pass a list"),
        (torch.utils.data.DataLoader(LISTED), "a DataLoader gives batches; pass its data set, loader.dataset"),
        ((LISTED, torch.utils.data.DataLoader(LISTED)), "list: test images: a DataLoader gives batches"),
        ({"train": LISTED}, r"training images: a dict has names; pass \(train, test\)"),
        (PART, r"^dataset: an ImageSet is one part of it; pass nofe\.Dataset\("),
        ((PART, PART), r"^dataset: an ImageSet is one part of it"),
        (set(range(4)), "training images: a set has no order; give a data set that can be indexed"),
        (Endless(), "Endless: training images: cannot be had by their number"),
        ([], "training images: there are none; give pairs of image and label"),
        ((LISTED, []), "test images: there are none"),
        (None, "have no length"),
        (Path("photos"), "dataset: a path; pass 'folder:photos'"),
        ((np.zeros((4, 3, 8, 8), np.uint8), np.zeros(4, np.int64)), r"item 0: .* as list\(zip\(images, labels\)\)"),
        ([(photo(i), 1 + i % 3) for i in range(9)], "must start at 0, and the lowest is 1; subtract 1 from each"),
        ([(photo(i), 2 * i % 6) for i in range(9)], "labels go up to 4, and no image has 1, 3; number the"),
        ([(photo(i), 10**9 * i) for i in range(2)], "no image has 1, 2, 3, 4, 5, 6, 7, 8, 9, 10 and 999,999,989 more"),
    ],
)  # fmt: skip
def test_what_to_pass_instead_is_said(tmp_path: Path, given: Any, message: str) -> None:
    with pytest.raises(UserError, match=message) as caught:
        nofe.train(tmp_path / "run", given, "small", 2, device="cpu", quiet=True)
    assert "\n" not in str(caught.value)


def test_names_of_classes_are_found_through_subsets_and_joins() -> None:
    from torch.utils.data import ConcatDataset, Subset, random_split

    class Others(Photos):
        classes = ("ant", "cow")

    train, test = random_split(Photos(20), [14, 6], torch.Generator().manual_seed(0))
    assert dataset_of_pairs(train, test, image_size=SIZE).class_names == ("ant", "bee")
    nested = ConcatDataset([Subset(train, range(10)), Photos(4)])
    assert dataset_of_pairs(nested, image_size=SIZE).class_names == ("ant", "bee")
    assert dataset_of_pairs(ConcatDataset([Photos(4), LISTED]), image_size=SIZE).class_names == ("class 0", "class 1")
    mixed = ConcatDataset([Photos(4), Others(4)])
    with pytest.raises(UserError, match=r"joins name other classes \(1 is 'bee' and 'cow'\)"):
        dataset_of_pairs(mixed, image_size=SIZE)
    with pytest.raises(UserError, match=r"training and test pairs name other classes \(1 is 'bee' and 'cow'\)"):
        dataset_of_pairs(Photos(4), Others(4), image_size=SIZE)
    assert dataset_of_pairs(mixed, image_size=SIZE, class_names=["x", "y"]).class_names == ("x", "y")


def test_more_than_the_memory_is_refused_before_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    class Untouched(Photos):
        def __getitem__(self, index: int) -> Any:
            pytest.fail("read")

    monkeypatch.setattr(folder, "physical_memory", lambda: 14 * 3 * SIZE**2 - 1)
    with pytest.raises(UserError, match=r"Untouched: 14 images of 8 x 8 take .*; write it as files, a folder a class"):
        dataset_of_pairs(Untouched(10), Untouched(4), image_size=SIZE)
    monkeypatch.setattr(folder, "physical_memory", lambda: 14 * 3 * SIZE**2)
    assert len(dataset_of_pairs(Photos(10), Photos(4), image_size=SIZE).train) == 10


class Damaged(Photos):
    """Item 3 raises, as torchvision's do; image 6 is a Pillow image that cannot be decoded."""

    def __getitem__(self, index: int) -> tuple[Image.Image, Any]:
        if index == 3:
            raise OSError("cannot identify image file")
        if index == 6:
            return Image.open(io.BytesIO(encoded(photo(6))[:-60])), 0
        return super().__getitem__(index)


def test_unreadable_items_are_listed_by_their_number_or_left_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    told = (
        r"Damaged: training: 2 of 10 images cannot be read: image 3 \(OSError: cannot identify image file\); "
        r"image 6 \(.*truncated.*\); "
    )
    with pytest.raises(UserError, match=told + 'repair them, or pass settings={"data.skip_unreadable": True} to leave'):
        nofe.train(tmp_path / "stops", (Damaged(10), Photos(4)), "small", 2, device="cpu", quiet=True)
    dataset = dataset_of_pairs(Damaged(10), Damaged(5), image_size=SIZE, skip_unreadable=True)
    assert re.match(told + "they are left out", caplog.messages[0])
    kept = [0, 1, 2, 4, 5, 7, 8, 9]
    np.testing.assert_array_equal(dataset.train.images, [expected(i) for i in kept])
    assert dataset.train.labels.tolist() == [i % 2 for i in kept]
    assert dataset.left_out == {"train": ["image 3", "image 6"], "test": ["image 3"]}
    settings = {"experts.epochs": 1, "generalist.epochs": 1, "base.by": "none", "data.skip_unreadable": True}
    settings |= {"experts.batch": 4, "generalist.batch": 4}
    pairs = (Damaged(10), Photos(4))
    nofe.train(tmp_path / "run", pairs, "small", 2, settings=settings, device="cpu", quiet=True)
    noted = json.loads((tmp_path / "run" / "environment.json").read_bytes())["data"]["unreadable"]
    assert noted == {"train": ["image 3", "image 6"]}


def test_a_stream_without_a_length_is_refused() -> None:
    with pytest.raises(UserError, match="have no length"):
        dataset_of_pairs(iter([]), image_size=SIZE)  # type: ignore[arg-type]


def test_train_takes_pairs(tmp_path: Path) -> None:
    """The run is that of the same images as a nofe.Dataset."""
    dataset = small_dataset(classes=4, per_class=8)
    settings = {"experts.epochs": 1, "generalist.epochs": 1, "base.by": "none"}
    pairs = [
        [(torch.from_numpy(image), int(label)) for image, label in zip(part.images, part.labels, strict=True)]
        for part in (dataset.train, dataset.test)
    ]
    named = {"class_names": [f"colour {number}" for number in range(4)], "experts": np.int64(2), "data_root": tmp_path}
    settings |= {"generalist.rate": np.float64(0.01), "experts.drops": np.array([0.5])}
    for name, data, how in (("pairs", (pairs[0], pairs[1]), named), ("dataset", dataset, {"experts": 2})):
        nofe.train(tmp_path / name, data, "small", settings=settings, device="cpu", quiet=True, **how)
    assert nofe.load(tmp_path / "pairs").class_names == ("colour 0", "colour 1", "colour 2", "colour 3")
    with pytest.raises(UserError, match=r"3 class names, and labels up to 3; pass class_names= with one for each"):
        nofe.train(tmp_path / "few", pairs[0], class_names=["a", "b", "c"], device="cpu", quiet=True)
    with pytest.raises(UserError, match="class_names='abcd': one text; pass a list"):
        nofe.train(tmp_path / "text", pairs[0], class_names="abcd", device="cpu", quiet=True)
    with pytest.raises(UserError, match="class_names: is for pairs"):
        nofe.train(tmp_path / "both", dataset, class_names=["a"], device="cpu", quiet=True)
    one, other = ((tmp_path / name / "network.safetensors").read_bytes() for name in ("pairs", "dataset"))
    assert one == other


class Split:
    """As much of datasets.Dataset as is used."""

    def __init__(self, rows: list[dict[str, Any]], names: list[str] | None) -> None:
        self.rows = rows
        self.column_names = list(rows[0])
        self.features = {name: SimpleNamespace(decode=True) for name in self.column_names}
        self.features["label"] = SimpleNamespace(names=names)

    def __len__(self) -> int:
        return len(self.rows)

    def cast_column(self, column: str, feature: Any) -> "Split":
        assert (column, feature.decode) == ("image", False)
        return self

    def __getitem__(self, key: Any) -> Any:
        return [row[key] for row in self.rows] if isinstance(key, str) else self.rows[key]


@pytest.fixture
def saved(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    def rows(first: int, count: int) -> list[dict[str, Any]]:
        return [
            {"image": {"bytes": encoded(photo(i)), "path": None}, "label": i % 2} for i in range(first, first + count)
        ]

    splits = {"train": Split(rows(0, 6), ["ant", "bee"]), "test": Split(rows(6, 4), ["ant", "bee"])}
    module = ModuleType("datasets")
    module.load_from_disk = lambda path: splits  # type: ignore[attr-defined]
    module.Image = lambda decode: SimpleNamespace(decode=decode)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "datasets", module)
    (tmp_path / "saved").mkdir()
    return tmp_path / "saved"


def test_a_saved_hugging_face_data_set(saved: Path, tmp_path: Path) -> None:
    dataset = load_dataset(f"hf:{saved}", root=saved, image_size=SIZE)
    assert dataset.class_names == ("ant", "bee")
    np.testing.assert_array_equal(dataset.train.images, [expected(i) for i in range(6)])
    np.testing.assert_array_equal(dataset.test.images, [expected(i) for i in range(6, 10)])
    listing = listing_of(f"hf:{saved}", root=saved, test="0.2", seed=0)
    manifest = pack(listing, tmp_path / "packed", PackSettings(8), Workers(1))  # its bytes travel to the workers
    assert manifest["images"] == {"train": 6, "test": 4}


def test_a_split_that_is_not_judged_by_is_told_of(saved: Path, caplog: pytest.LogCaptureFixture) -> None:
    splits = sys.modules["datasets"].load_from_disk(saved)
    splits["validation"] = splits["train"]
    assert len(load_dataset(f"hf:{saved}", root=saved, image_size=SIZE).test) == 6
    told = "tests on the split validation and does not read test (4 images); to test on that instead, save the data"
    assert caplog.messages == [f"{saved}: {told} without validation"]


def test_classes_of_another_split_go_by_their_names(saved: Path) -> None:
    splits = sys.modules["datasets"].load_from_disk(saved)
    splits["test"] = Split(splits["test"].rows, ["bee", "ant"])
    dataset = load_dataset(f"hf:{saved}", root=saved, image_size=SIZE)
    assert dataset.train.labels.tolist() == [0, 1] * 3
    assert dataset.test.labels.tolist() == [1, 0] * 2
    splits["test"] = Split(splits["test"].rows, ["bee", "cow"])
    with pytest.raises(UserError, match="split 'test' has a label that is no class"):
        load_dataset(f"hf:{saved}", root=saved, image_size=SIZE)


@pytest.fixture
def real() -> ModuleType:
    return pytest.importorskip("datasets", reason="the package datasets is not installed")


def write_saved(real: ModuleType, path: Path, images: list[Any], labels: list[Any], label: Any = None) -> Path:
    features = real.Features({"image": real.Image(), "label": label or real.ClassLabel(names=["ant", "bee"])})
    real.Dataset.from_dict({"image": images, "label": labels}, features=features).save_to_disk(path)
    return path


def test_what_the_library_itself_saves(real: ModuleType, tmp_path: Path) -> None:
    """Read by many threads, by worker processes, and packed; split or not, with names or without."""
    one = real.load_from_disk(write_saved(real, tmp_path / "one", [photo(i) for i in range(90)], [0, 1] * 45))
    splits = real.DatasetDict({"train": one.select(range(70)), "validation": one.select(range(70, 90))})
    splits.save_to_disk(tmp_path / "splits")
    dataset = load_dataset(f"hf:{tmp_path / 'splits'}", root=tmp_path, image_size=SIZE)
    assert dataset.class_names == ("ant", "bee")
    assert dataset.test.labels.tolist() == [0, 1] * 10
    np.testing.assert_array_equal(dataset.train.images, [expected(i) for i in range(70)])
    np.testing.assert_array_equal(dataset.test.images, [expected(i) for i in range(70, 90)])
    streamed, again = (
        open_dataset(f"hf:{tmp_path / 'splits'}", root=tmp_path, image_size=SIZE, stream=True, workers=2)
        for _ in range(2)
    )
    np.testing.assert_array_equal(streamed.train.images, dataset.train.images)
    assert streamed.fingerprint() == again.fingerprint()  # or no run could be resumed
    listing = listing_of(f"hf:{tmp_path / 'splits'}", root=tmp_path, test="0.2", seed=0)
    assert pack(listing, tmp_path / "packed", PackSettings(8), Workers(1))["images"] == {"train": 70, "test": 20}
    for kind, labels, names in (
        ("string", ["cat", "dog", "cat", "dog"], ("cat", "dog")),
        ("int64", [0, 1, 0, 1], ("class 0", "class 1")),
    ):
        path = write_saved(real, tmp_path / kind, [photo(i) for i in range(4)], labels, real.Value(kind))
        whole = load_dataset(f"hf:{path}", root=tmp_path, image_size=SIZE)
        assert (whole.class_names, len(whole.train), len(whole.test)) == (names, 2, 2)


def test_what_is_wrong_in_what_the_library_saves(real: ModuleType, tmp_path: Path) -> None:
    images: list[Any] = [{"bytes": encoded(photo(i)), "path": None} for i in range(8)]
    images[1], images[3] = None, {"bytes": b"junk", "path": None}
    saved = write_saved(real, tmp_path / "saved", images, [0, 1] * 4)
    with pytest.raises(
        UserError, match=r"2 of 8 images cannot be read: .* image 1 \(empty file\); .* image 3 \(not JPEG"
    ):
        load_dataset(f"hf:{saved}", root=tmp_path, image_size=SIZE)
    missing = write_saved(
        real, tmp_path / "missing", [photo(i) for i in range(4)], [0, None, 0, 1], real.Value("int64")
    )
    with pytest.raises(UserError, match="column 'label' holds something else than class names, or numbers from 0"):
        load_dataset(f"hf:{missing}", root=tmp_path, image_size=SIZE)
    features = real.Features({"image": real.Array3D((14, 20, 3), "uint8"), "label": real.ClassLabel(names=["a", "b"])})
    arrays = {"image": [np.asarray(photo(i)) for i in range(4)], "label": [0, 1, 0, 1]}
    real.Dataset.from_dict(arrays, features=features).save_to_disk(tmp_path / "arrays")
    with pytest.raises(UserError, match="column 'image' holds no encoded images but Array3D; make it a column of"):
        load_dataset(f"hf:{tmp_path / 'arrays'}", root=tmp_path, image_size=SIZE)


def test_a_saved_path_that_is_gone_is_an_unreadable_image(saved: Path) -> None:
    """And not the end of a worker process."""
    rows = sys.modules["datasets"].load_from_disk("")["train"].rows
    rows[2]["image"] = {"bytes": None, "path": str(saved / "gone.png")}
    rows[3]["image"] = None
    told = r"2 of 10 images cannot be read: train image 2 \(no such file or directory\); train image 3 \(empty file\)"
    with pytest.raises(UserError, match=told):
        load_dataset(f"hf:{saved}", root=saved, image_size=SIZE)
    streamed = open_dataset(f"hf:{saved}", root=saved, image_size=SIZE, stream=True, workers=1)
    with pytest.raises(UserError, match=told):
        look_through(streamed, skip_unreadable=False)


def test_labels_that_are_missing_or_no_classes_are_refused(saved: Path) -> None:
    train = sys.modules["datasets"].load_from_disk("")["train"]
    train.features["label"] = SimpleNamespace(names=None)
    for wrong in (None, -1, 0.5):
        train.rows[1]["label"] = wrong
        with pytest.raises(UserError, match="column 'label' holds something else than class names"):
            load_dataset(f"hf:{saved}", root=saved, image_size=SIZE)


def test_a_column_of_something_else_is_refused(saved: Path) -> None:
    sys.modules["datasets"].load_from_disk("")["train"].features["image"] = SimpleNamespace(dtype="uint8")
    with pytest.raises(UserError, match="column 'image' holds no encoded images but SimpleNamespace; make it"):
        load_dataset(f"hf:{saved}", root=saved, image_size=SIZE)


def test_without_the_library_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(UserError, match="needs the package 'datasets', which is not installed; python -m pip install"):
        load_dataset(f"hf:{tmp_path}", root=tmp_path, image_size=SIZE)
    with pytest.raises(UserError, match="no such folder; name one that datasets"):
        load_dataset(f"hf:{tmp_path}/none", root=tmp_path, image_size=SIZE)
