"""Batches: every image once an epoch, in an order and with crops that depend on (seed, stage, epoch) alone."""

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from nofe.data.batches import Augmentation, Batches, DeviceImages, EpochPlan, centre_crop, pixel_mean
from nofe.data.dataset import ImageSet
from nofe.errors import UserError

COUNT, SIZE = 23, 8
CPU = torch.device("cpu")
EVERY_KIND = [
    Augmentation(SIZE),
    Augmentation(SIZE, mirror=True),
    Augmentation(SIZE, padding=2),
    Augmentation(SIZE, padding=2, mirror=True),
    Augmentation(5),
    Augmentation(5, mirror=True),
    Augmentation(5, padding=3, mirror=True),
    Augmentation(1, mirror=True),
]


def numbered(count: int = COUNT, size: int = SIZE) -> ImageSet:
    """Random pixels; the label of an image is its index, so that a batch tells which images it holds."""
    images = np.random.default_rng(0).integers(0, 256, (count, 3, size, size), dtype=np.uint8)
    return ImageSet(images, np.arange(count))


def batches_of(
    augmentation: Augmentation,
    *,
    batch: int = 5,
    seed: int = 3,
    stage: str = "base",
    rank: int = 0,
    ranks: int = 1,
    images: ImageSet | None = None,
) -> Batches:
    images = images or numbered()
    on_device = DeviceImages(images, pixel_mean(images), CPU)
    return Batches(on_device, augmentation, batch=batch, seed=seed, stage=stage, rank=rank, ranks=ranks)


def epoch_of(batches: Batches, epoch: int = 0) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """All views and labels of an epoch, in the order of the visit."""
    batches.begin(epoch)
    views, labels = zip(*(batches.next() for _ in range(batches.steps_per_epoch)), strict=True)
    return torch.cat(views).numpy(), torch.cat(labels).numpy()


def view_by_hand(pixels: NDArray[np.uint8], mean: NDArray[np.float32], plan: EpochPlan, visit: int, of: Augmentation):
    """One pixel at a time: the mean taken off where the pixel lies, zeros around, then the crop, then the mirror."""
    top, left, mirrored = plan.top[visit], plan.left[visit], plan.mirrored[visit]
    size = pixels.shape[-1]
    view = np.zeros((3, of.crop, of.crop), dtype=np.float32)
    for channel in range(3):
        for row in range(of.crop):
            for column in range(of.crop):
                y = top + row - of.padding
                x = left + (of.crop - 1 - column if mirrored else column) - of.padding
                if 0 <= y < size and 0 <= x < size:
                    view[channel, row, column] = np.float32(pixels[channel, y, x]) - mean[channel, y, x]
    return view


@pytest.mark.parametrize("augmentation", EVERY_KIND, ids=repr)
def test_the_views_are_those_of_a_literal_loop(augmentation: Augmentation) -> None:
    images = numbered()
    batches = batches_of(augmentation)
    plan = batches.plan(4)
    views, labels = epoch_of(batches, 4)
    assert len(views) == 20
    mean = pixel_mean(images)
    for visit, index in enumerate(labels):
        assert index == plan.order[visit]
        np.testing.assert_array_equal(
            views[visit], view_by_hand(images.images[index], mean, plan, visit, augmentation), strict=True
        )


@pytest.mark.parametrize("batch", [1, 4, 5, 22, COUNT, COUNT + 1, 1000])
def test_every_image_once_an_epoch_but_for_what_fills_no_batch(batch: int) -> None:
    batches = batches_of(Augmentation(5, mirror=True), batch=batch)
    effective = min(batch, COUNT)
    assert batches.global_batch == effective
    assert batches.steps_per_epoch == COUNT // effective
    left_out: set[int] = set()
    for epoch in range(12):
        _, labels = epoch_of(batches, epoch)
        assert len(labels) == COUNT - COUNT % effective
        assert len(set(labels.tolist())) == len(labels)
        left_out |= set(range(COUNT)) - set(labels.tolist())
    if COUNT % effective > 1:  # another part in every epoch, so that no image is lost for good
        assert len(left_out) > COUNT % effective


def plans_equal(one: EpochPlan, other: EpochPlan) -> bool:
    return all(np.array_equal(getattr(one, name), getattr(other, name)) for name in vars(one))


def by_image(plan: EpochPlan, name: str) -> NDArray[np.int64]:
    """Back from the order of the visit to that of the images."""
    values = np.empty(len(plan.order), dtype=np.int64)
    values[plan.order] = getattr(plan, name)
    return values


def test_the_plan_depends_on_seed_stage_and_epoch_alone() -> None:
    kind = Augmentation(5, padding=1, mirror=True)
    plan = batches_of(kind).plan(7)
    same = batches_of(kind, batch=9)
    epoch_of(same, 3)  # what was drawn before does not matter
    assert plans_equal(plan, same.plan(7))
    assert plans_equal(plan, batches_of(kind, batch=6, rank=1, ranks=2).plan(7))
    others = {
        "seed": batches_of(kind, seed=4).plan(7),
        "stage": batches_of(kind, stage="experts").plan(7),
        "epoch": batches_of(kind).plan(8),
    }
    for what, other in others.items():
        assert not np.array_equal(plan.order, other.order), what
        for name in ("top", "left", "mirrored"):
            assert not np.array_equal(by_image(plan, name), by_image(other, name)), (what, name)


@pytest.mark.parametrize("augmentation", EVERY_KIND, ids=repr)
def test_another_batch_size_or_number_of_ranks_changes_no_view(augmentation: Augmentation) -> None:
    """Image by image, and the order of the visit, too."""
    views, labels = epoch_of(batches_of(augmentation, batch=1), epoch=2)
    for batch, ranks in ((4, 1), (4, 2), (6, 3), (23, 1), (20, 4)):
        shares = [
            epoch_of(batches_of(augmentation, batch=batch, rank=rank, ranks=ranks), epoch=2) for rank in range(ranks)
        ]
        steps, share = COUNT // batch, batch // ranks
        together = np.concatenate([v.reshape(steps, share, *v.shape[1:]) for v, _ in shares], axis=1)
        named = np.concatenate([found.reshape(steps, share) for _, found in shares], axis=1)
        np.testing.assert_array_equal(named.ravel(), labels[: steps * batch])
        np.testing.assert_array_equal(together.reshape(-1, *views.shape[1:]), views[: steps * batch])


@pytest.mark.parametrize("ranks", [2, 3, 6])
def test_the_shares_of_the_ranks_partition_every_global_batch(ranks: int) -> None:
    kind = Augmentation(5, mirror=True)
    whole = batches_of(kind, batch=6)
    shares = [batches_of(kind, batch=6, rank=rank, ranks=ranks) for rank in range(ranks)]
    for one in (whole, *shares):
        one.begin(1)
    for _ in range(whole.steps_per_epoch):
        _, labels = whole.next()
        parts = [share.next()[1] for share in shares]
        assert {len(part) for part in parts} == {6 // ranks}
        assert torch.cat(parts).tolist() == labels.tolist()


def test_a_batch_that_cannot_be_shared_out() -> None:
    with pytest.raises(UserError, match="batch=5: cannot be shared out over 2 ranks"):
        batches_of(Augmentation(5), batch=5, ranks=2)


def test_an_epoch_can_begin_at_any_step() -> None:
    kind = Augmentation(SIZE, padding=2, mirror=True)
    views, labels = epoch_of(batches_of(kind), epoch=6)
    for step in range(4):
        batches = batches_of(kind)
        batches.begin(6, step)
        found, named = batches.next()
        np.testing.assert_array_equal(found, views[5 * step : 5 * (step + 1)])
        np.testing.assert_array_equal(named, labels[5 * step : 5 * (step + 1)])


def test_offsets_are_uniform_over_all_places_and_half_is_mirrored() -> None:
    many = numbered(6000, size=4)
    plan = batches_of(Augmentation(3, padding=1, mirror=True), images=many).plan(0)
    places = 4 + 2 * 1 - 3 + 1
    for offsets in (plan.top, plan.left):
        counts = np.bincount(offsets, minlength=places)
        assert len(counts) == places
        assert np.all(abs(counts - 6000 / places) < 6 * np.sqrt(6000 / places))
    assert abs(plan.mirrored.mean() - 0.5) < 0.04
    joint = np.histogram2d(plan.top, plan.left, bins=places)[0]
    assert np.all(abs(joint - 6000 / places**2) < 6 * np.sqrt(6000 / places**2))  # drawn apart from each other
    assert not batches_of(Augmentation(3), images=many).plan(0).mirrored.any()


@pytest.mark.parametrize("crop", range(1, SIZE + 1))
def test_the_centre_crop_rounds_its_offset_down(crop: int) -> None:
    images = numbered(2)
    offset = {8: 0, 7: 0, 6: 1, 5: 1, 4: 2, 3: 2, 2: 3, 1: 3}[crop]
    expected = images.images[:, :, offset : offset + crop, offset : offset + crop]
    np.testing.assert_array_equal(centre_crop(torch.from_numpy(images.images), crop), expected)


def test_evaluation_sees_the_centre_less_the_mean_of_those_pixels() -> None:
    images = numbered()
    mean = pixel_mean(images)
    view = DeviceImages(images, mean, CPU).centre_view(torch.tensor([4, 4, 0]), 5)
    expected = (images.images[[4, 4, 0]].astype(np.float32) - mean)[:, :, 1:6, 1:6]
    np.testing.assert_array_equal(view, expected)


def test_the_pixel_mean_is_exact() -> None:
    """Over more images than one piece of the sum, where sums of float32 would be rounded."""
    images = np.random.default_rng(1).integers(0, 256, (9000, 3, 4, 4), dtype=np.uint8)
    images[:, 0, 0, 0] = 255
    mean = pixel_mean(ImageSet(images, np.zeros(9000, dtype=np.int64)))
    exact = [sum(column) / 9000 for column in images.reshape(9000, -1).T.tolist()]
    assert mean.dtype == np.float32
    np.testing.assert_array_equal(mean.ravel(), np.array(exact).astype(np.float32))
    assert mean[0, 0, 0] == 255


@pytest.mark.parametrize(("crop", "padding"), [(SIZE + 1, 0), (SIZE + 2, 2), (40, 4)])
def test_a_crop_larger_than_the_images(crop: int, padding: int) -> None:
    """Padded, too: evaluation cuts its crop out of the image as it is."""
    with pytest.raises(UserError, match=f"crop={crop}: larger than the images of {SIZE} pixels"):
        batches_of(Augmentation(crop, padding)).plan(0)


def test_the_set_stays_as_bytes_on_the_device() -> None:
    assert DeviceImages(numbered(), pixel_mean(numbered()), CPU).pixels.dtype == torch.uint8


def test_images_of_some_classes() -> None:
    images = numbered()
    whole = DeviceImages(images, pixel_mean(images), CPU)
    part = whole.of_classes(torch.tensor([14, 3, 7]))
    assert part.labels.tolist() == [3, 7, 14]
    np.testing.assert_array_equal(part.pixels.numpy(), images.images[[3, 7, 14]])
    assert torch.equal(part.centred(torch.arange(3)), whole.centred(torch.tensor([3, 7, 14])))  # by the same mean
    assert len(whole) == COUNT  # as it was
