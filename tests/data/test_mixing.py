"""What is mixed, erased and operated on depends on (seed, stage, epoch) and the image alone."""

import random

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from nofe.data.augment import operate
from nofe.data.batches import Augmentation, Batches, DeviceImages, pixel_mean
from nofe.data.dataset import ImageSet
from nofe.data.mixing import MixedLabels, areas, draw_erased, draw_mixing, erase, mix
from nofe.errors import UserError

COUNT, SIZE, CROP = 23, 12, 9
EVERYTHING = Augmentation(CROP, padding=2, mirror=True, randaugment=2, magnitude=15, erasing=0.5)
MIXED = {"mixup": 0.8, "cutmix": 1.0}


def batches_of(augmentation: Augmentation, *, batch: int = 5, seed: int = 3, stage: str = "base", **more) -> Batches:
    pixels = np.random.default_rng(0).integers(0, 256, (COUNT, 3, SIZE, SIZE), dtype=np.uint8)
    images = ImageSet(pixels, np.arange(COUNT))
    on_device = DeviceImages(images, pixel_mean(images), torch.device("cpu"))
    return Batches(on_device, augmentation, batch=batch, seed=seed, stage=stage, **more)


def epoch_of(batches: Batches, epoch: int = 0) -> dict[str, NDArray]:
    """All views and labels of an epoch, in the order of the visit."""
    batches.begin(epoch)
    found: dict[str, list[torch.Tensor]] = {"views": [], "own": [], "other": [], "share": []}
    for _ in range(batches.steps_per_epoch):
        views, labels = batches.next()
        if not isinstance(labels, MixedLabels):
            labels = MixedLabels(labels, labels, torch.ones(len(labels)))
        for name, values in {"views": views, **labels._asdict()}.items():
            found[name].append(values)
    return {name: torch.cat(parts).numpy() for name, parts in found.items()}


@pytest.mark.parametrize("trivial", [False, True])
def test_another_batch_size_or_number_of_ranks_changes_nothing(trivial: bool) -> None:
    kind = Augmentation(CROP, padding=2, mirror=True, trivialaugment=True, erasing=0.5) if trivial else EVERYTHING
    alone = epoch_of(batches_of(kind, batch=1, **MIXED), epoch=2)
    for batch, ranks in ((4, 1), (4, 2), (6, 3), (23, 1), (20, 4)):
        shares = [
            epoch_of(batches_of(kind, batch=batch, rank=rank, ranks=ranks, **MIXED), epoch=2) for rank in range(ranks)
        ]
        steps, share = COUNT // batch, batch // ranks
        for name, expected in alone.items():
            parts = [found[name].reshape(steps, share, *expected.shape[1:]) for found in shares]
            together = np.concatenate(parts, axis=1).reshape(-1, *expected.shape[1:])
            np.testing.assert_array_equal(together, expected[: steps * batch], err_msg=name)


def test_an_epoch_can_begin_at_any_step() -> None:
    whole = epoch_of(batches_of(EVERYTHING, **MIXED), epoch=6)
    for step in range(4):
        batches = batches_of(EVERYTHING, **MIXED)
        batches.begin(6, step)
        views, labels = batches.next()
        np.testing.assert_array_equal(views, whole["views"][5 * step : 5 * (step + 1)])
        np.testing.assert_array_equal(labels.share, whole["share"][5 * step : 5 * (step + 1)])


def test_the_plan_depends_on_seed_stage_and_epoch_alone() -> None:
    plan = vars(batches_of(EVERYTHING, **MIXED).plan(7))
    again = batches_of(EVERYTHING, batch=9, **MIXED)
    epoch_of(again, 3)  # what was drawn before does not matter
    for name, values in vars(again.plan(7)).items():
        np.testing.assert_array_equal(values, plan[name], err_msg=name)
    for other in (
        batches_of(EVERYTHING, seed=4, **MIXED).plan(7),
        batches_of(EVERYTHING, stage="experts", **MIXED).plan(7),
        batches_of(EVERYTHING, **MIXED).plan(8),
    ):
        for name, values in vars(other).items():
            assert not np.array_equal(values, plan[name]), name


def test_what_is_added_does_not_change_crops_and_mirroring() -> None:
    """Each choice has a stream of its own; without them, a plan is as small as it was."""
    plain = vars(batches_of(Augmentation(CROP, padding=2, mirror=True)).plan(1))
    full = vars(batches_of(EVERYTHING, **MIXED).plan(1))
    for name in ("order", "top", "left", "mirrored"):
        np.testing.assert_array_equal(plain[name], full[name])
    assert {name for name, values in plain.items() if not len(values)} == plain.keys() - {
        "order",
        "top",
        "left",
        "mirrored",
    }


def test_mixed_views_are_those_of_a_literal_loop() -> None:
    """The view of the image and that of its partner, as both are augmented in this epoch."""
    plain = epoch_of(batches_of(EVERYTHING, batch=1), epoch=4)
    batches = batches_of(EVERYTHING, batch=1, **MIXED)
    plan, mixed = batches.plan(4), epoch_of(batches, 4)
    kinds = set()
    for visit in range(COUNT):
        own, partner = plain["views"][visit], plain["views"][plan.partner[visit]]
        top, left, bottom, right = plan.pasted[visit]
        expected = plan.kept[visit] * own + (1 - plan.kept[visit]) * partner
        expected[:, top:bottom, left:right] = partner[:, top:bottom, left:right]
        np.testing.assert_allclose(mixed["views"][visit], expected, rtol=1e-6, atol=1e-4)
        assert mixed["own"][visit] == plan.order[visit]
        assert mixed["other"][visit] == plan.order[plan.partner[visit]]
        pasted = (bottom - top) * (right - left)
        kinds.add("cutmix" if plan.kept[visit] == 1 else "mixup")
        if plan.kept[visit] == 1:
            assert mixed["share"][visit] == pytest.approx(1 - pasted / CROP**2)
        else:
            assert (pasted, mixed["share"][visit]) == (0, plan.kept[visit])
    assert kinds == {"mixup", "cutmix"}


def test_a_share_of_one_is_no_mixing() -> None:
    views, partners = torch.randn(2, 4, 3, 8, 8) * 100
    nothing = torch.zeros(4, 4, dtype=torch.int64)
    assert torch.equal(mix(views, partners, torch.ones(4), nothing), views)
    assert torch.equal(erase(views, nothing), views)
    assert torch.equal(mix(views, partners, torch.zeros(4), nothing), partners)


def test_shares_are_spread_as_asked_for() -> None:
    """Beta(1, 1) is uniform; a small alpha leaves most images nearly whole; partners are a permutation."""
    uniform = draw_mixing(np.random.default_rng(0), 20_000, 1.0, 0.0, 32)
    assert sorted(uniform.partner.tolist()) == list(range(20_000))
    np.testing.assert_allclose(np.quantile(uniform.share, [0.25, 0.5, 0.75]), [0.25, 0.5, 0.75], atol=0.02)
    assert not areas(uniform.pasted).any()
    whole = draw_mixing(np.random.default_rng(0), 20_000, 0.1, 0.0, 32).share
    assert np.mean((whole < 0.05) | (whole > 0.95)) > 0.7
    cut = draw_mixing(np.random.default_rng(0), 20_000, 0.0, 1.0, 32)
    assert (cut.kept == 1).all()
    assert cut.pasted.min() >= 0
    assert cut.pasted.max() <= 32
    np.testing.assert_allclose(cut.share, 1 - areas(cut.pasted) / 32**2, rtol=1e-6)
    both = draw_mixing(np.random.default_rng(0), 20_000, 1.0, 1.0, 32)
    assert abs(np.mean(both.kept == 1) - 0.5) < 0.02


def test_boxes_are_erased_as_timm_erases_them() -> None:
    boxes = draw_erased(np.random.default_rng(0), 20_000, 0.3, 32)
    erased = areas(boxes) > 0
    assert abs(erased.mean() - 0.3) < 0.02
    assert boxes.min() >= 0
    assert boxes.max() <= 32
    share = areas(boxes[erased]) / 32**2
    assert 0.01 < share.min() < 0.03
    assert 0.33 < share.max() < 0.37  # a third, sides rounded
    heights, widths = boxes[erased][:, 2] - boxes[erased][:, 0], boxes[erased][:, 3] - boxes[erased][:, 1]
    assert abs(np.mean(np.log(heights / widths))) < 0.05
    assert not areas(draw_erased(np.random.default_rng(0), 1000, 0.0, 32)).any()


def test_what_is_erased_is_zero_and_the_rest_is_as_it_was() -> None:
    kind = Augmentation(CROP, padding=2, mirror=True)
    erasing = batches_of(Augmentation(CROP, padding=2, mirror=True, erasing=0.7))
    plan, plain, erased = erasing.plan(0), epoch_of(batches_of(kind))["views"], epoch_of(erasing)["views"]
    assert areas(plan.erased).any()
    for visit, view in enumerate(erased):
        top, left, bottom, right = plan.erased[visit]
        expected = plain[visit].copy()
        expected[:, top:bottom, left:right] = 0
        np.testing.assert_array_equal(view, expected)


def test_operations_come_before_the_mean_is_subtracted() -> None:
    kind = Augmentation(SIZE, randaugment=2, magnitude=20)
    batches = batches_of(kind)
    plan, views = batches.plan(0), epoch_of(batches)["views"]
    fill = batches.images.mean.mean((1, 2)).round()
    for visit, view in enumerate(views):
        image = batches.images.pixels[plan.order[visit]][None].float()
        for each in range(2):
            kinds, amounts = plan.operations[visit, each], plan.amounts[visit, each]
            image = operate(image, torch.tensor([kinds]), torch.tensor([amounts]), fill)
        np.testing.assert_array_equal(view, (image - batches.images.mean)[0])


def test_a_batch_can_be_captured() -> None:
    """One graph without a break, so nothing is read back; no generator moves; the plan stays where it is."""
    eager, traced = (batches_of(EVERYTHING, **MIXED) for _ in range(2))
    eager.begin(0)
    traced.begin(0)
    addresses = {name: tensor.data_ptr() for name, tensor in traced._planned.items()}
    states = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()
    compiled = torch.compile(traced.next, fullgraph=True, dynamic=False, backend="aot_eager")
    for epoch in (0, 1):
        eager.begin(epoch)
        traced.begin(epoch)
        for _ in range(2):
            (views, labels), (same, same_labels) = eager.next(), compiled()
            torch.testing.assert_close(same, views, rtol=1e-6, atol=1e-4)
            assert torch.equal(same_labels.share, labels.share)
    assert {name: tensor.data_ptr() for name, tensor in traced._planned.items()} == addresses
    assert (random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()) == states


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"randaugment": -1}, "randaugment=-1: out of range; use 0 for none"),
        ({"magnitude": 31}, "magnitude=31: out of range; use 0 to 30"),
        ({"magnitude": -1}, "magnitude=-1: out of range"),
        ({"randaugment": 2, "trivialaugment": True}, "one excludes the other; choose one"),
        ({"erasing": 1.1}, "erasing=1.1: out of range; use a probability"),
        ({"erasing": float("nan")}, "erasing=nan: out of range"),
    ],
)
def test_values_out_of_range(wrong: dict, message: str) -> None:
    with pytest.raises(UserError, match=message):
        Augmentation(**wrong)
