"""CIFAR in its official layout: content, superclasses, damaged and absent files."""

import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from python2_pickle import python2_dumps

from nofe.data import load_dataset
from nofe.data.cifar import LAYOUTS, load_cifar
from nofe.errors import UserError

Dumps = Callable[[object], bytes]
WRITERS: dict[str, Dumps] = {
    "python 2": python2_dumps,
    "protocol 4": lambda value: pickle.dumps(value, protocol=4),
}
NAMES = ["apple", "bear", "crab", "dove"]
SUPERCLASS_OF_CLASS = (1, 0, 0, 1)
RESTORE = Path(__file__).parents[3] / "shared" / "cifar100" / "restore.py"


def make_batch(seed: int, images: int) -> dict[str, object]:
    rng = np.random.default_rng(seed)
    labels = [i % len(NAMES) for i in range(images)]
    return {
        "filenames": [f"{i}.png" for i in range(images)],
        "fine_labels": labels,
        "coarse_labels": [SUPERCLASS_OF_CLASS[label] for label in labels],
        "data": rng.integers(0, 256, size=(images, 3072), dtype=np.uint8),
    }


def write_cifar100(root: Path, dumps: Dumps) -> Path:
    folder = root / "cifar-100-python"
    folder.mkdir(parents=True)
    (folder / "train").write_bytes(dumps(make_batch(0, 12)))
    (folder / "test").write_bytes(dumps(make_batch(1, 4)))
    (folder / "meta").write_bytes(dumps({"fine_label_names": NAMES, "coarse_label_names": ["x", "y"]}))
    return folder


@pytest.mark.parametrize("writer", WRITERS)
def test_cifar100_round_trip(tmp_path: Path, writer: str) -> None:
    write_cifar100(tmp_path, WRITERS[writer])
    dataset = load_dataset("cifar100", root=tmp_path, image_size=32, download=False)
    assert dataset.name == "cifar100"
    assert dataset.class_names == tuple(NAMES)
    assert dataset.groups == {"superclass": SUPERCLASS_OF_CLASS}
    for part, batch in ((dataset.train, make_batch(0, 12)), (dataset.test, make_batch(1, 4))):
        rows = np.asarray(batch["data"])
        np.testing.assert_array_equal(part.images.reshape(len(rows), 3072), rows)
        np.testing.assert_array_equal(part.labels, batch["fine_labels"])
        assert part.images.flags.writeable, "torch warns of arrays it may not write to"


@pytest.mark.parametrize("writer", WRITERS)
def test_cifar10_joins_its_five_files_in_order(tmp_path: Path, writer: str) -> None:
    folder = tmp_path / "cifar-10-batches-py"
    folder.mkdir()
    dumps = WRITERS[writer]
    for i, file in enumerate([*LAYOUTS["cifar10"].train_files, "test_batch"]):
        rows = np.full((2, 3072), i, dtype=np.uint8)
        (folder / file).write_bytes(dumps({"labels": [0, 1], "data": rows}))
    (folder / "batches.meta").write_bytes(dumps({"num_vis": 3072, "label_names": ["airplane", "bird"]}))
    dataset = load_cifar("cifar10", tmp_path)
    assert dataset.train.images[:, 0, 0, 0].tolist() == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]
    assert dataset.test.images[:, 2, 31, 31].tolist() == [5, 5]
    assert dataset.class_names == ("airplane", "bird")
    assert dataset.groups == {}


def test_colours_come_out_as_planes(tmp_path: Path) -> None:
    folder = write_cifar100(tmp_path, python2_dumps)
    batch = make_batch(0, 12)
    rows = np.zeros((12, 3072), dtype=np.uint8)
    rows[:, 1024 + 32 * 5 + 7] = 200  # green, sixth row, eighth column
    batch["data"] = rows
    (folder / "train").write_bytes(python2_dumps(batch))
    images = load_cifar("cifar100", tmp_path).train.images
    assert images[0, 1, 5, 7] == 200
    assert images.sum() == 12 * 200


WRONG_CONTENT: dict[str, tuple[str, dict[str, object], str]] = {
    "no data": ("train", {"data": None}, "its 'data' is not rows of 3,072 bytes"),
    "rows too short": ("train", {"data": np.zeros((12, 3071), np.uint8)}, "its 'data' is not rows of 3,072 bytes"),
    "one long row": ("test", {"data": np.zeros(3072, np.uint8)}, "its 'data' is not rows of 3,072 bytes"),
    "labels missing": ("train", {"fine_labels": [0] * 11}, "its 'fine_labels' is not a list of 12 class numbers"),
    "labels of text": ("train", {"fine_labels": ["0"] * 12}, "its 'fine_labels' is not a list"),
    "negative labels": ("train", {"fine_labels": [-1] * 12}, "its 'fine_labels' is not a list"),
    "labels unnamed": ("test", {"fine_labels": [0, 1, 2, 4], "coarse_labels": [1, 0, 0, 0]}, "label 4, outside 0..3"),
    "superclasses missing": ("test", {"coarse_labels": []}, "its 'coarse_labels' is not a list of 4"),
    "superclasses differ": ("test", {"coarse_labels": [1, 0, 1, 1]}, "class 2 are in several superclasses"),
    "names missing": ("meta", {"fine_label_names": 4}, "its 'fine_label_names' is not a list of names"),
    "names too few": ("meta", {"fine_label_names": NAMES[:3]}, "label 3, outside 0..2"),
}


@pytest.mark.parametrize("case", WRONG_CONTENT)
def test_wrong_content_is_named(tmp_path: Path, case: str) -> None:
    file, change, message = WRONG_CONTENT[case]
    folder = write_cifar100(tmp_path, python2_dumps)
    content = pickle.loads((folder / file).read_bytes(), encoding="latin-1")
    (folder / file).write_bytes(python2_dumps(content | change))
    with pytest.raises(UserError, match=message):
        load_cifar("cifar100", tmp_path)


def test_a_truncated_file_is_named_with_the_way_out(tmp_path: Path) -> None:
    train = write_cifar100(tmp_path, python2_dumps) / "train"
    train.write_bytes(train.read_bytes()[:-100])
    with pytest.raises(UserError, match=r"cifar-100-python/train: damaged or cut short; delete it") as caught:
        load_cifar("cifar100", tmp_path)
    assert "\n" not in str(caught.value)


def test_absent_files_without_download_say_what_goes_where(tmp_path: Path) -> None:
    folder = write_cifar100(tmp_path, python2_dumps)
    (folder / "meta").unlink()
    with pytest.raises(UserError) as caught:
        load_dataset("cifar100", root=tmp_path, image_size=32, download=False)
    message = str(caught.value)
    assert message.startswith(f"{folder}: meta absent and downloading is off")
    assert "https://www.cs.toronto.edu/~kriz/cifar-100-python.tar.gz" in message
    assert f"so that {folder / 'meta'} exists" in message


@pytest.mark.real_data
@pytest.mark.skipif(not RESTORE.is_file(), reason=f"the real CIFAR-100 is not at {RESTORE}")
def test_the_real_cifar100(tmp_path: Path) -> None:
    subprocess.run([sys.executable, str(RESTORE), str(tmp_path)], check=True, capture_output=True)
    dataset = load_dataset("cifar100", root=tmp_path, image_size=32, download=False)
    assert dataset.train.images.shape == (50_000, 3, 32, 32)
    assert dataset.test.images.shape == (10_000, 3, 32, 32)
    assert np.bincount(dataset.train.labels).tolist() == [500] * 100
    assert np.bincount(dataset.groups["superclass"]).tolist() == [5] * 20
    superclass = dict(zip(dataset.class_names, dataset.groups["superclass"], strict=True))
    assert superclass["maple_tree"] == superclass["oak_tree"] != superclass["bus"]
    # The published per-channel mean of the training images.
    mean = dataset.train.images.mean(axis=(0, 2, 3)) / 255
    np.testing.assert_allclose(mean, [0.5071, 0.4865, 0.4409], atol=1e-4)
