"""Operations in batches are torchvision's own, one image at a time."""

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from nofe.data import augment
from nofe.data.augment import MAGNITUDES, OPERATIONS, draw_operations, draw_wide_operations, operate
from nofe.data.batches import Augmentation, Batches, DeviceImages
from nofe.data.dataset import ImageSet
from nofe.training.launch import launcher
from nofe.training.runtime import Runtime

SIZE = 32
FILL = torch.tensor([120.0, 110.0, 100.0])
SIGNED = OPERATIONS[1:10]


def pictures(count: int, size: int = SIZE, seed: int = 0) -> Tensor:
    """Bytes: noise; smooth ramps in part of the range; one colour; two values."""
    generator = torch.Generator().manual_seed(seed)
    noise = torch.randint(0, 256, (count, 3, size, size), generator=generator)
    ramp = torch.linspace(40, 180, size).expand(3, size, size).round().long()
    noise[0], noise[1], noise[2] = ramp, 77, torch.where(noise[2] < 128, 3, 250)
    return noise.to(torch.uint8)


def by_torchvision(picture: Tensor, name: str, amount: float) -> Tensor:
    """The same operation with the same strength; amounts are in our units."""
    autoaugment = pytest.importorskip("torchvision.transforms.autoaugment")
    from torchvision.transforms import InterpolationMode

    theirs = {"color": "Color", "autocontrast": "AutoContrast"}.get(name, name.title().replace("-", ""))
    in_their_units = {"rotate": math.degrees, "posterize": lambda step: 8 - math.log2(step)}
    magnitude = in_their_units.get(name, float)(amount)
    fill = FILL.tolist()
    made: Tensor = autoaugment._apply_op(picture, theirs, magnitude, InterpolationMode.NEAREST, fill)
    return made


def strengths(name: str) -> list[float]:
    """Every amount that RandAugment and TrivialAugment can draw for this operation, thinned out."""
    kinds = np.full((2000, 1), OPERATIONS.index(name))
    rng = np.random.default_rng(0)
    wide = augment._amounts(
        kinds,
        rng.integers(MAGNITUDES + 1, size=kinds.shape) / MAGNITUDES,
        np.where(rng.random(kinds.shape) < 0.5, -1.0, 1.0),
        {k: {"rotate": 2.3, "translate-x": 32.0, "translate-y": 32.0}.get(n, 0.99) for k, n in enumerate(OPERATIONS)},
        fewest_bits=2,
    )
    return [float(amount) for amount in np.unique(wide)][:: max(1, len(np.unique(wide)) // 8)]


@pytest.mark.parametrize("name", OPERATIONS)
def test_each_operation_is_that_of_torchvision(name: str) -> None:
    bytes_ = pictures(6)
    for amount in strengths(name):
        kinds = torch.full((6,), OPERATIONS.index(name))
        found = operate(bytes_.float(), kinds, torch.full((6,), amount), FILL)
        expected = torch.stack([by_torchvision(picture, name, amount) for picture in bytes_]).float()
        assert torch.equal(found, found.round())
        differing = (found - expected).abs()
        if name in ("shear-x", "shear-y", "rotate"):  # a tie between two pixels may be broken otherwise
            assert (differing > 0).float().mean() < 0.01, amount
        elif name in ("brightness", "color", "contrast", "sharpness"):
            assert differing.max() <= 1, amount
            # Theirs loses one where nothing is lacking, as in one colour and at the border: 1.2 x - 0.2 x is 76.99999.
            apart = differing[2:, :, 1:-1, 1:-1] if name == "sharpness" else differing
            assert (apart > 0).float().mean() < 0.02, amount
        else:
            assert torch.equal(found, expected), amount


def test_a_batch_of_all_kinds_is_each_image_alone() -> None:
    """No image sees what happens to another."""
    count = 3 * len(OPERATIONS)
    images = pictures(count).float()
    rng = np.random.default_rng(1)
    kinds, amounts = (torch.from_numpy(values[:, 0]) for values in draw_wide_operations(rng, count))
    kinds = torch.arange(count) % len(OPERATIONS)
    amounts = torch.where(kinds == OPERATIONS.index("posterize"), 8.0, amounts.abs().clamp(max=1))
    together = operate(images, kinds, amounts, FILL)
    for index in range(count):
        one = slice(index, index + 1)
        assert torch.equal(operate(images[one], kinds[one], amounts[one], FILL), together[one]), OPERATIONS[
            kinds[index]
        ]


@pytest.mark.parametrize("name", [*SIGNED, "identity", "posterize", "solarize"])
def test_no_strength_is_no_change(name: str) -> None:
    images = pictures(4).float()
    nothing = {"posterize": 1.0, "solarize": 256.0}.get(name, 0.0)
    kinds = torch.full((4,), OPERATIONS.index(name))
    assert torch.equal(operate(images, kinds, torch.full((4,), nothing), FILL), images)


def test_what_comes_in_from_outside_is_the_fill() -> None:
    images = torch.full((1, 3, 8, 8), 200.0)
    found = operate(images, torch.tensor([OPERATIONS.index("translate-x")]), torch.tensor([3.0]), FILL)
    assert torch.equal(found[0, :, :, :3], FILL[:, None, None].expand(3, 8, 3))
    assert bool((found[0, :, :, 3:] == 200).all())


@pytest.mark.gpu
@pytest.mark.parametrize("cutmix", [0.0, 1.0])
def test_compiled_and_captured_batches_are_the_same(cutmix: float) -> None:
    """But for a rounding to the next of 255 values, where a sum is rounded otherwise."""
    made = ImageSet(pictures(256).numpy(), np.arange(256))
    images = DeviceImages(made, np.full((3, SIZE, SIZE), 110, dtype=np.float32), torch.device("cuda:0"))
    augmentation = Augmentation(padding=4, mirror=True, trivialaugment=True)
    as_it_is, compiled = (
        Batches(images, augmentation, batch=32, seed=0, stage="experts", cutmix=cutmix) for _ in range(2)
    )
    as_it_is.begin(0)
    compiled.begin(0)
    batch = torch.compile(compiled.next, dynamic=False)
    given: list[Tensor] = []
    launch = launcher(lambda: given.__setitem__(slice(None), [batch()[0]]), Runtime(images.mean.device, capture=True))
    for _ in range(8):
        launch()
        expected = as_it_is.next()[0]
        differing = (given[0] - expected).abs() > 0.01
        assert float(differing.float().mean()) < 0.001


@pytest.mark.parametrize("magnitude", [0, 9, 17, MAGNITUDES])
def test_randaugments_strengths_are_torchvisions(magnitude: int) -> None:
    theirs = pytest.importorskip("torchvision.transforms").RandAugment()
    space = theirs._augmentation_space(MAGNITUDES + 1, (SIZE, SIZE))
    kinds, amounts = draw_operations(np.random.default_rng(0), 5000, 2, magnitude, SIZE)
    compare_with(space, kinds, amounts, {magnitude})


def test_trivialaugments_strengths_are_torchvisions() -> None:
    theirs = pytest.importorskip("torchvision.transforms").TrivialAugmentWide()
    kinds, amounts = draw_wide_operations(np.random.default_rng(0), 20000)
    compare_with(theirs._augmentation_space(MAGNITUDES + 1), kinds, amounts, set(range(MAGNITUDES + 1)))


def compare_with(space: dict, kinds: np.ndarray, amounts: np.ndarray, magnitudes: set[int]) -> None:
    """Each operation equally often, both signs, and exactly the strengths that torchvision would draw from."""
    assert len(space) == len(OPERATIONS)
    for kind, (name, (table, signed)) in enumerate(space.items()):
        chosen = amounts[kinds == kind]
        expected = kinds.size / len(OPERATIONS)
        assert abs(len(chosen) - expected) < 6 * np.sqrt(expected)
        values = [float(table[m]) for m in magnitudes] if table.ndim else [0.0]
        values = [-v for v in values] + values if signed else values
        if name == "Rotate":
            values = [math.radians(v) for v in values]
        if name == "Posterize":
            values = [2 ** (8 - v) for v in values]
        if name.startswith("Translate"):
            values = [math.trunc(round(v, 3)) for v in values]  # their 16 is 15.999999
        np.testing.assert_allclose(np.unique(chosen + 0.0), sorted({v + 0.0 for v in values}), rtol=1e-5, atol=1e-4)
