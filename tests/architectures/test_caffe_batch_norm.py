"""Caffe's batch normalisation against its recursion, written out in float64 (reference.md, Sec. 1.0)."""

import copy

import pytest
import torch
from torch import Tensor, nn

from nofe.architectures.caffe import BatchNorm2d, Multipliers, multipliers_of

EPS = 1e-5


def batches(count: int, side: int = 4) -> list[Tensor]:
    """Batches whose mean and variance drift, so that their order and weights matter."""
    generator = torch.Generator().manual_seed(0)
    noise = [torch.randn(5, 3, side, side, generator=generator) for _ in range(count)]
    return [(1 + 0.3 * step) * batch + step - 2 for step, batch in enumerate(noise)]


def caffe_statistics(seen: list[Tensor]) -> tuple[Tensor, Tensor]:
    """Caffe's three blobs: the sums of means, of variances and of weights, each times 0.999 at every step."""
    mean_sum, variance_sum, weight_sum = torch.zeros(3).double(), torch.zeros(3).double(), 0.0
    for batch in seen:
        values = batch.double().transpose(0, 1).flatten(1)  # (D, m)
        m = values.shape[1]
        mean = values.sum(1) / m
        variance = (values - mean[:, None]).square().sum(1) / m
        weight_sum = 0.999 * weight_sum + 1
        mean_sum = 0.999 * mean_sum + mean
        variance_sum = 0.999 * variance_sum + m / (m - 1) * variance
    return mean_sum / weight_sum, variance_sum / weight_sum


def normalised(images: Tensor, mean: Tensor, variance: Tensor, gamma: Tensor, beta: Tensor) -> Tensor:
    mean, variance, gamma, beta = (t.double().view(-1, 1, 1) for t in (mean, variance, gamma, beta))
    return ((images.double() - mean) / (variance + EPS).sqrt() * gamma + beta).float()


def scaled(layer: BatchNorm2d) -> BatchNorm2d:
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([0.5, 2.0, -1.0]))
        layer.bias.copy_(torch.tensor([1.0, 0.0, -3.0]))
    return layer


@pytest.mark.parametrize("steps", [1, 2, 7])
def test_running_statistics_follow_caffes_recursion(steps: int) -> None:
    layer = scaled(BatchNorm2d(3))
    for batch in batches(steps):
        layer(batch)
    mean, variance = caffe_statistics(batches(steps))
    torch.testing.assert_close(layer.statistics()[0].double(), mean, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(layer.statistics()[1].double(), variance, rtol=1e-5, atol=0)
    images = batches(3)[-1]
    expected = normalised(images, mean, variance, layer.weight.detach(), layer.bias.detach())
    torch.testing.assert_close(layer.eval()(images), expected, rtol=1e-4, atol=1e-5)


def test_training_normalises_by_the_biased_variance_of_the_batch() -> None:
    layer = scaled(BatchNorm2d(3))
    for batch in batches(3, side=1):  # m = 5: biased and unbiased are far apart
        output = layer(batch)
        variance, mean = torch.var_mean(batch, (0, 2, 3), correction=0)
        expected = normalised(batch, mean, variance, layer.weight.detach(), layer.bias.detach())
        torch.testing.assert_close(output, expected, rtol=1e-4, atol=1e-5)


def test_before_any_step_the_mean_is_0_and_the_variance_1() -> None:
    layer = BatchNorm2d(3).eval()
    assert torch.equal(layer.weight, torch.ones(3))
    assert torch.equal(layer.bias, torch.zeros(3))
    assert torch.equal(layer.statistics()[0], torch.zeros(3))
    assert torch.equal(layer.statistics()[1], torch.ones(3))
    images = batches(1)[0]
    torch.testing.assert_close(layer(images), images / (1 + EPS) ** 0.5)


def test_many_equal_steps_settle_on_the_batch_and_evaluation_changes_nothing() -> None:
    layer = BatchNorm2d(3)
    batch = batches(2)[1]
    variance, mean = torch.var_mean(batch, (0, 2, 3), correction=1)
    for _ in range(50):  # uncorrected, the sums would still be at 5% of their value
        layer(batch)
    torch.testing.assert_close(layer.statistics(), (mean, variance), rtol=1e-4, atol=1e-5)
    before = copy.deepcopy(layer.state_dict())
    layer.eval()(batches(1)[0])
    torch.testing.assert_close(layer.state_dict(), before, rtol=0, atol=0)


def test_state_has_torchs_keys_and_reset_forgets() -> None:
    layer = BatchNorm2d(3)
    assert list(layer.state_dict()) == list(nn.BatchNorm2d(3).state_dict())
    for batch in batches(3):
        layer(batch)
    assert layer.num_batches_tracked.item() == 3
    restored = BatchNorm2d(3)
    restored.load_state_dict(layer.state_dict())
    torch.testing.assert_close(restored.statistics(), layer.statistics(), rtol=0, atol=0)
    layer.reset_running_stats()
    torch.testing.assert_close(layer.statistics(), (torch.zeros(3), torch.ones(3)), rtol=0, atol=0)


def test_scale_and_shift_are_not_decayed() -> None:
    expected = {"weight": Multipliers(rate=1, decay=0), "bias": Multipliers(rate=1, decay=0)}
    assert multipliers_of(BatchNorm2d(3)) == expected
    assert multipliers_of(copy.deepcopy(BatchNorm2d(3))) == expected


def test_compiled_is_the_same_layer_in_one_graph() -> None:
    plain, traced = scaled(BatchNorm2d(3)), scaled(BatchNorm2d(3))
    # aot_eager: dynamo and functionalisation, where a buffer's update can be lost, but no C++ compiler.
    compiled = torch.compile(traced, backend="aot_eager", fullgraph=True)
    for batch in batches(3):
        torch.testing.assert_close(compiled(batch), plain(batch))
    torch.testing.assert_close(traced.state_dict(), plain.state_dict())
    assert traced.num_batches_tracked.item() == 3
    plain.eval()
    traced.eval()
    torch.testing.assert_close(compiled(batches(1)[0]), plain(batches(1)[0]))


def test_bfloat16_activations_leave_the_statistics_in_float32() -> None:
    layer, exact = BatchNorm2d(3), BatchNorm2d(3)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        for batch in batches(4):
            output = layer(batch.bfloat16())
            exact(batch.bfloat16().float())
        evaluated = layer.eval()(batches(1)[0].bfloat16())
    assert output.dtype is torch.bfloat16
    assert evaluated.dtype is torch.bfloat16
    assert layer.running_var.dtype is torch.float32
    torch.testing.assert_close(layer.statistics(), exact.statistics(), rtol=1e-4, atol=1e-4)
    expected = exact.eval()(batches(1)[0].bfloat16().float())
    torch.testing.assert_close(evaluated.float(), expected, rtol=2**-7, atol=2**-7)
