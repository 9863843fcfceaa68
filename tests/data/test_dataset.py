"""A Dataset cannot be built wrong, splits by class, and knows its content again."""

import dataclasses

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from nofe.data import Dataset, ImageSet
from nofe.errors import UserError


def image_set(labels: list[int], size: int = 4, seed: int = 0) -> ImageSet:
    images = np.random.default_rng(seed).integers(0, 256, size=(len(labels), 3, size, size), dtype=np.uint8)
    return ImageSet(images, np.array(labels, dtype=np.int64))


def dataset(train: list[int], test: list[int] | None = None, names: tuple[str, ...] = ("a", "b")) -> Dataset:
    return Dataset("small", names, image_set(train), image_set(test or [0], seed=1), {"family": (0,) * len(names)})


def test_what_it_tells() -> None:
    small = dataset([0, 1, 1], [1])
    assert (small.classes, small.image_size, len(small.train), len(small.test)) == (2, 4, 3, 1)


IMAGES, LABELS = np.zeros((2, 3, 4, 4), np.uint8), np.zeros(2, np.int64)
WRONG_SETS = {
    "floats": (IMAGES.astype(np.float32), LABELS, "expected uint8"),
    "colours last": (np.zeros((2, 4, 4, 3), np.uint8), LABELS, r"found uint8 of shape \(2, 4, 4, 3\)"),
    "one image": (IMAGES[0], LABELS, r"shape \(3, 4, 4\)"),
    "narrow labels": (IMAGES, LABELS.astype(np.int32), "expected int64"),
    "label rows": (IMAGES, LABELS[:, None], "expected int64 of shape"),
    "too few labels": (IMAGES, LABELS[:1], "1 for 2 images"),
    "tensors": (torch.from_numpy(IMAGES), torch.from_numpy(LABELS), "found Tensor and Tensor; .* np.asarray"),
    "list": (IMAGES, [0, 1], "arrays of numpy, found ndarray and list"),
    "strided": (np.zeros((2, 3, 4, 8), np.uint8)[..., ::2], LABELS, "not contiguous"),
}


@pytest.mark.parametrize("case", WRONG_SETS)
def test_wrong_arrays_are_refused(case: str) -> None:
    images, labels, message = WRONG_SETS[case]
    with pytest.raises(UserError, match=message):
        ImageSet(images, labels)


def test_a_class_without_training_images_is_named() -> None:
    with pytest.raises(UserError, match=r"2 classes \('b'; 'd'\) have no training images; add some"):
        dataset([0, 2], names=("a", "b", "c", "d"))


def test_test_images_of_every_class_are_not_asked_for() -> None:
    assert len(dataset([0, 1], [1]).test) == 1


@pytest.mark.parametrize(("train", "test"), [([0, 1, 2], [0]), ([0, 1], [2]), ([0, 1, -1], [0])])
def test_labels_outside_the_classes_are_refused(train: list[int], test: list[int]) -> None:
    with pytest.raises(UserError, match=r"(training|test) part has label (2|-1), outside 0..1"):
        dataset(train, test)


def test_other_wrong_values_are_refused() -> None:
    good = dataset([0, 1])
    with pytest.raises(UserError, match="telling classes apart needs at least 2"):
        dataset([0, 0], names=("a",))
    with pytest.raises(UserError, match="class name 'a' appears twice"):
        dataset([0, 1], names=("a", "a"))
    with pytest.raises(UserError, match="training images are 4 x 4 pixels and test images 5 x 5"):
        dataclasses.replace(good, test=image_set([0], size=5))
    wide = ImageSet(np.zeros((2, 3, 4, 5), np.uint8), np.array([0, 1]))
    with pytest.raises(UserError, match="crop them square"):
        Dataset("wide", ("a", "b"), wide, wide)
    with pytest.raises(UserError, match="test part holds no images"):
        dataclasses.replace(good, test=image_set([]))
    with pytest.raises(UserError, match=r"has no test images; give some, or train on list\(zip\(images, labels\)\)"):
        dataclasses.replace(good, test=None)
    with pytest.raises(UserError, match="grouping 'family' has 3 ids for 2 classes"):
        dataclasses.replace(good, groups={"family": (0, 1, 2)})


@settings(max_examples=50)
@given(st.lists(st.integers(2, 30), min_size=2, max_size=6), st.floats(0.01, 0.99), st.integers(0, 2**31))
def test_hold_out_splits_every_class_and_loses_nothing(counts: list[int], fraction: float, seed: int) -> None:
    labels = np.random.default_rng(seed).permutation(np.repeat(np.arange(len(counts)), counts))
    whole = dataset(labels.tolist(), names=tuple(map(str, range(len(counts)))))
    split = whole.hold_out(fraction, seed)

    held = np.bincount(split.test.labels, minlength=len(counts))
    for count, part in zip(counts, held, strict=True):
        assert 1 <= part <= count - 1
        assert abs(part - fraction * count) <= 1
    # Together the two parts are the training images, each with its own label, once.
    before = sorted((image.tobytes(), label) for image, label in zip(whole.train.images, labels, strict=True))
    after = [
        (image.tobytes(), label)
        for part in (split.train, split.test)
        for image, label in zip(part.images, part.labels, strict=True)
    ]
    assert sorted(after) == before
    assert split.groups == whole.groups


def test_hold_out_depends_on_the_seed_alone() -> None:
    whole = dataset([0, 1] * 20)
    assert whole.hold_out(0.3, 1).fingerprint() == whole.hold_out(0.3, 1).fingerprint()
    assert whole.hold_out(0.3, 1).fingerprint() != whole.hold_out(0.3, 2).fingerprint()


@pytest.mark.parametrize("fraction", [0.0, 1.0, -0.1, float("nan")])
def test_hold_out_of_nothing_or_everything_is_refused(fraction: float) -> None:
    with pytest.raises(UserError, match="cannot hold out"):
        dataset([0, 0, 1, 1]).hold_out(fraction, 0)


def test_hold_out_of_a_lone_image_is_refused() -> None:
    with pytest.raises(UserError, match="class 'b' has one training image"):
        dataset([0, 0, 1]).hold_out(0.5, 0)


def test_fingerprint_is_the_contents() -> None:
    original = dataset([0, 1, 1], [0, 1])
    assert original.fingerprint() == dataset([0, 1, 1], [0, 1]).fingerprint()
    assert dataclasses.replace(original, name="other").fingerprint() == original.fingerprint()
    assert len(original.fingerprint()) == 16

    pixel = original.train.images.copy()
    pixel[2, 2, 3, 3] ^= 1
    others = {
        "a pixel": dataclasses.replace(original, train=ImageSet(pixel, original.train.labels)),
        "a label": dataclasses.replace(original, train=ImageSet(original.train.images, np.array([0, 1, 0]))),
        "a test label": dataclasses.replace(original, test=ImageSet(original.test.images, np.array([0, 0]))),
        "the parts": dataclasses.replace(original, train=original.test, test=original.train),
        "a name": dataclasses.replace(original, class_names=("a", "c")),
    }
    prints = {what: other.fingerprint() for what, other in others.items()}
    assert len({original.fingerprint(), *prints.values()}) == len(others) + 1, prints


def test_test_images_that_are_trained_on_are_named() -> None:
    train, test = image_set([0, 1, 1, 0]), image_set([0, 1, 1], seed=1)
    test.images[[0, 2]] = train.images[[3, 1]]
    with_copies = Dataset("small", ("a", "b"), train, test)
    assert with_copies.repeated() == {"image 0": "image 3", "image 2": "image 1"}
    test.images[2, 0, 0, 0] += 1  # one byte
    assert with_copies.repeated() == {"image 0": "image 3"}
    assert dataset([0, 1, 1, 0], [0, 1, 1]).repeated() == {}


def test_parts_keep_the_names_of_their_images() -> None:
    """Or a copy that a hold-out parts from its original would be looked for among others."""
    named = ImageSet(image_set([0] * 6 + [1] * 6).images, np.array([0] * 6 + [1] * 6), name_of="photo {}".format)
    named.images[1:6] = named.images[0]
    split = Dataset("small", ("a", "b"), named, image_set([0])).hold_out(0.5, seed=0)
    found = split.repeated()
    assert found is not None
    assert len(found) == 3
    assert {*found, *found.values()} <= {f"photo {i}" for i in range(6)}
    assert {split.test.name(i) for i in range(6)} | {split.train.name(i) for i in range(6)} == {
        f"photo {i}" for i in range(12)
    }


def test_it_cannot_be_changed() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        dataset([0, 1]).name = "other"  # type: ignore[misc]
