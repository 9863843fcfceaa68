"""Caffe's pooling, LRN, fillers and multipliers, each against the literal rule of reference.md, Sec. 1.0."""

import copy
import itertools
import math

import pytest
import torch
from torch import Tensor, nn

from nofe.architectures.caffe import (
    AcrossChannelLRN,
    Multipliers,
    WithinChannelLRN,
    average_pool,
    convolution,
    gaussian,
    linear,
    max_pool,
    msra,
    multipliers_of,
    xavier,
)
from nofe.errors import UserError


def literal_pool(image: Tensor, kernel: int, stride: int, reduce: str) -> Tensor:
    """Caffe's loop over one channel: rounded up, each window clipped to the image."""
    height, width = image.shape
    rows, columns = (math.ceil((side - kernel) / stride) + 1 for side in (height, width))
    pooled = torch.empty(rows, columns, dtype=image.dtype)
    for row, column in itertools.product(range(rows), range(columns)):
        top, left = row * stride, column * stride
        window = image[top : min(top + kernel, height), left : min(left + kernel, width)]
        pooled[row, column] = window.max() if reduce == "max" else window.sum() / window.numel()
    return pooled


@pytest.mark.parametrize("side", [4, 5, 6, 7, 8, 13])
@pytest.mark.parametrize(("kernel", "stride"), [(3, 2), (2, 2)])
@pytest.mark.parametrize("reduce", ["max", "average"])
def test_pooling_is_caffes(side: int, kernel: int, stride: int, reduce: str) -> None:
    image = torch.randn(side, side, generator=torch.Generator().manual_seed(side), dtype=torch.float64)
    pool = max_pool(kernel, stride) if reduce == "max" else average_pool(kernel, stride)
    torch.testing.assert_close(pool(image[None, None])[0, 0], literal_pool(image, kernel, stride, reduce))


def test_users_who_compile_our_networks_themselves_get_the_right_gradients() -> None:
    """Of the two ways to ask for the same averages, the compiler has one wrong (docs/decisions/0019)."""
    ours, other = average_pool(3, 2), nn.AvgPool2d(3, 2, ceil_mode=True)
    assert not ours.count_include_pad
    maps = torch.randn(2, 3, 8, 8, dtype=torch.double)
    torch.testing.assert_close(ours(maps), other(maps))


@pytest.mark.parametrize("pool", [max_pool(3, 2), average_pool(3, 2)])
def test_pools_of_3_by_2_halve_a_side_and_keep_a_map_of_ones(pool: nn.Module) -> None:
    features = torch.ones(1, 1, 32, 32)
    for side in (16, 8, 4, 2):
        features = pool(features)
        assert torch.equal(features, torch.ones(1, 1, side, side))


def test_within_channel_lrn_is_the_formula() -> None:
    features = 100 * torch.randn(2, 3, 4, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    size, alpha, beta = 3, 5e-5, 0.75
    expected = torch.empty_like(features)
    for n, d, row, column in itertools.product(*map(range, features.shape)):
        squares = sum(
            float(features[n, d, i, j]) ** 2
            for i in range(max(row - 1, 0), min(row + 2, 4))
            for j in range(max(column - 1, 0), min(column + 2, 5))
        )
        expected[n, d, row, column] = features[n, d, row, column] / (1 + alpha / size**2 * squares) ** beta
    torch.testing.assert_close(WithinChannelLRN(size, alpha, beta)(features), expected)


def test_across_channel_lrn_is_the_formula_and_torchs() -> None:
    features = 100 * torch.randn(2, 8, 2, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    size, alpha, beta = 5, 1e-4, 0.75
    expected = torch.empty_like(features)
    for n, d, row, column in itertools.product(*map(range, features.shape)):
        squares = sum(float(features[n, c, row, column]) ** 2 for c in range(max(d - 2, 0), min(d + 3, 8)))
        expected[n, d, row, column] = features[n, d, row, column] / (1 + alpha / size * squares) ** beta
    ours = AcrossChannelLRN(size, alpha, beta)(features)
    torch.testing.assert_close(ours, expected)
    torch.testing.assert_close(ours, nn.LocalResponseNorm(size, alpha, beta, k=1.0)(features))


@pytest.mark.parametrize("lrn", [WithinChannelLRN(3, 5e-5, 0.75), AcrossChannelLRN(5, 1e-4, 0.75)], ids=repr)
@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
def test_lrn_in_bfloat16_loses_only_the_rounding_of_its_output(
    lrn: nn.Module, memory_format: torch.memory_format
) -> None:
    features = 20 * torch.randn(2, 8, 6, 6, generator=torch.Generator().manual_seed(0))
    rounded = features.bfloat16().to(memory_format=memory_format)
    normalised = lrn(rounded)
    assert normalised.dtype is torch.bfloat16
    # Half a unit in the last of 8 bits; the same sums in bfloat16 throughout are off by more.
    torch.testing.assert_close(normalised.float(), lrn(rounded.float()).contiguous(), rtol=2**-8, atol=0)


def test_gaussian_has_its_deviation() -> None:
    torch.manual_seed(0)
    for std in (1e-4, 0.01, 0.1):
        weight = linear(500, 400, filler=gaussian(std)).weight
        assert weight.std().item() == pytest.approx(std, rel=0.01)
        assert abs(weight.mean().item()) < 0.02 * std
        assert (weight.abs() > 3 * std).float().mean().item() == pytest.approx(0.0027, rel=0.2)


def test_xavier_is_uniform_and_counts_the_fan_in_alone() -> None:
    torch.manual_seed(0)
    for layer, fan_in in [
        (convolution(32, 128, 3, filler=xavier), 32 * 9),
        (convolution(64, 128, 3, groups=2, filler=xavier), 32 * 9),
        (linear(900, 50, filler=xavier), 900),
    ]:
        bound = math.sqrt(3 / fan_in)
        assert layer.weight.abs().max().item() <= bound
        assert layer.weight.abs().max().item() == pytest.approx(bound, rel=0.01)
        assert layer.weight.std().item() == pytest.approx(1 / math.sqrt(fan_in), rel=0.02)


def test_msra_is_normal_and_counts_the_fan_out() -> None:
    torch.manual_seed(0)
    weight = convolution(32, 128, 3, filler=msra, bias=None).weight
    std = math.sqrt(2 / (128 * 9))
    assert weight.std().item() == pytest.approx(std, rel=0.02)
    assert weight.abs().max().item() > 3.5 * std  # a uniform of this deviation ends at 1.73


def test_biases_start_at_their_constant() -> None:
    assert torch.equal(convolution(3, 4, 3, filler=msra).bias, torch.zeros(4))
    assert torch.equal(convolution(3, 4, 3, filler=msra, bias=0.1).bias, torch.full((4,), 0.1))
    assert torch.equal(linear(3, 4, filler=xavier, bias=0.1).bias, torch.full((4,), 0.1))
    assert convolution(3, 4, 3, filler=msra, bias=None).bias is None


def test_layers_are_torchs_own() -> None:
    assert type(convolution(3, 4, 3, filler=msra)) is nn.Conv2d
    assert type(linear(3, 4, filler=xavier)) is nn.Linear


def test_the_global_generator_decides_the_weights() -> None:
    drawn = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        drawn.append(linear(5, 4, filler=gaussian(1.0)).weight)
    assert torch.equal(drawn[0], drawn[1])
    assert not torch.equal(drawn[0], drawn[2])


def test_multipliers_name_every_parameter_and_survive_a_copy() -> None:
    model = nn.Sequential(
        convolution(3, 4, 3, filler=msra, rate=(1, 2)),
        convolution(4, 4, 3, filler=msra, bias=None, rate=(3, 7), decay=(5, 7)),
        nn.Sequential(linear(4, 2, filler=gaussian(0.01), rate=(1, 2), decay=(250, 0))),
        nn.Linear(2, 2),
    )
    expected = {
        "0.weight": Multipliers(rate=1, decay=1),
        "0.bias": Multipliers(rate=2, decay=1),
        "1.weight": Multipliers(rate=3, decay=5),
        "2.0.weight": Multipliers(rate=1, decay=250),
        "2.0.bias": Multipliers(rate=2, decay=0),
        "3.weight": Multipliers(rate=1, decay=1),
        "3.bias": Multipliers(rate=1, decay=1),
    }
    assert multipliers_of(model) == expected
    assert list(multipliers_of(model)) == [name for name, _ in model.named_parameters()]
    assert multipliers_of(copy.deepcopy(model)) == expected
    assert multipliers_of(model[0]) == {"weight": Multipliers(), "bias": Multipliers(rate=2)}


@pytest.mark.parametrize("outputs", [0, -1])
def test_a_layer_without_outputs_is_refused(outputs: int) -> None:
    with pytest.raises(UserError, match=f"outputs={outputs} .*1 or more"):
        linear(4, outputs, filler=xavier)
    with pytest.raises(UserError, match=f"outputs={outputs} .*1 or more"):
        convolution(4, outputs, 3, filler=xavier)
