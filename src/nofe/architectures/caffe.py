"""Caffe's layers and initialisers, where they differ from torch's (reference.md, Sec. 1.0).

The paper's networks were trained with Caffe. A pool that rounds down, a filler that counts the wrong fan or
a bias that is decayed gives another network under the same name, so each such rule is written here once.
"""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from nofe.errors import UserError

Filler = Callable[[Tensor], None]
"""Fills a weight in place, drawing from torch's global generator: the caller seeds."""


@dataclass(frozen=True)
class Multipliers:
    """Factors on one parameter's learning rate and weight decay: Caffe's lr_mult and decay_mult."""

    rate: float = 1.0
    decay: float = 1.0


def multipliers_of(model: nn.Module) -> dict[str, Multipliers]:
    """The multipliers of every parameter, by its name in ``named_parameters()``; 1 and 1 by default."""
    multipliers = {}
    for name, _ in model.named_parameters():
        owner, _, own_name = name.rpartition(".")
        by_own_name: dict[str, Multipliers] = getattr(model.get_submodule(owner), "multipliers", {})
        multipliers[name] = by_own_name.get(own_name, Multipliers())
    return multipliers


# Fillers


def gaussian(std: float) -> Filler:
    """N(0, std^2)."""

    def fill(weight: Tensor) -> None:
        nn.init.normal_(weight, std=std)

    return fill


def xavier(weight: Tensor) -> None:
    """U(-a, a) with a = sqrt(3 / fan_in). Caffe's xavier counts the fan-in alone, torch's both fans."""
    nn.init.kaiming_uniform_(weight, mode="fan_in", nonlinearity="linear")


def msra(weight: Tensor) -> None:
    """N(0, 2 / fan_out): Caffe's msra with variance_norm FAN_OUT."""
    nn.init.kaiming_normal_(weight, mode="fan_out", nonlinearity="relu")


# Layers with weights. `rate` and `decay` are (weight, bias), as "lr 1/2" and "decay 250/0" in reference.md.


def convolution(
    inputs: int,
    outputs: int,
    kernel: int,
    *,
    filler: Filler,
    stride: int = 1,
    padding: int = 0,
    groups: int = 1,
    bias: float | None = 0.0,
    rate: tuple[float, float] = (1, 1),
    decay: tuple[float, float] = (1, 1),
) -> nn.Conv2d:
    """A convolution with Caffe's filler and multipliers; biases start at ``bias``, None for no biases."""
    _require_outputs("convolution", outputs)
    layer = nn.Conv2d(inputs, outputs, kernel, stride=stride, padding=padding, groups=groups, bias=bias is not None)
    _fill(layer, filler, bias, rate, decay)
    return layer


def linear(
    inputs: int,
    outputs: int,
    *,
    filler: Filler,
    bias: float | None = 0.0,
    rate: tuple[float, float] = (1, 1),
    decay: tuple[float, float] = (1, 1),
) -> nn.Linear:
    """A fully connected layer with Caffe's filler and multipliers; ``bias`` as in ``convolution``."""
    _require_outputs("linear", outputs)
    layer = nn.Linear(inputs, outputs, bias=bias is not None)
    _fill(layer, filler, bias, rate, decay)
    return layer


def _require_outputs(layer: str, outputs: int) -> None:
    if outputs < 1:
        raise UserError(f"{layer}: outputs={outputs} leaves nothing to compute; pass outputs of 1 or more")


def _fill(
    layer: nn.Conv2d | nn.Linear,
    filler: Filler,
    bias: float | None,
    rate: tuple[float, float],
    decay: tuple[float, float],
) -> None:
    filler(layer.weight)
    multipliers = {"weight": Multipliers(rate[0], decay[0])}
    if layer.bias is not None and bias is not None:
        nn.init.constant_(layer.bias, bias)
        multipliers["bias"] = Multipliers(rate[1], decay[1])
    # A plain attribute, which copy.deepcopy keeps. The cast: nn.Module's stubs know no such type.
    cast(Any, layer).multipliers = multipliers


# Pooling


def max_pool(kernel: int, stride: int) -> nn.MaxPool2d:
    """Max pooling, its output size rounded up: 3/2 takes 32 to 16, 8, 4, 2; torch's default 15, 7, 3, 1."""
    return nn.MaxPool2d(kernel, stride, ceil_mode=True)


def average_pool(kernel: int, stride: int) -> nn.AvgPool2d:
    """Average pooling, rounded up likewise; a window over the border is divided by the pixels it has.

    Without padding `count_include_pad` changes nothing, but compiled with it the gradient at the border is wrong
    (PyTorch issue 198119): AlexNet-C100's experts lost three points.
    """
    return nn.AvgPool2d(kernel, stride, ceil_mode=True, count_include_pad=False)


# Local response normalisation, in float32 at least: 1 + alpha * mean is lost in the 8 bits of bfloat16.


class WithinChannelLRN(nn.Module):
    """y = x / (1 + alpha / n^2 * sum of x^2 over n x n pixels around)^beta, per channel; zeros outside."""

    def __init__(self, size: int, alpha: float, beta: float) -> None:
        super().__init__()
        self.size, self.alpha, self.beta = size, alpha, beta

    def forward(self, features: Tensor) -> Tensor:  # (N, D, H, W)
        exact = _at_least_float32(features)
        # Always divided by n^2, at the border too: average pooling counts the zero padding.
        around = (self.size - 1) // 2
        mean_square = _averages(exact.square(), (self.size, self.size), (around, around))
        return (exact * (1 + self.alpha * mean_square).pow(-self.beta)).to(features.dtype)

    def extra_repr(self) -> str:
        return f"{self.size}, alpha={self.alpha}, beta={self.beta}"


class AcrossChannelLRN(nn.Module):
    """y = x / (1 + alpha / n * sum of x^2 over n channels around)^beta, per pixel; zeros outside.

    The formula of nn.LocalResponseNorm, without its avg_pool3d: that has no deterministic backward on CUDA.
    """

    def __init__(self, size: int, alpha: float, beta: float) -> None:
        super().__init__()
        self.size, self.alpha, self.beta = size, alpha, beta

    def forward(self, features: Tensor) -> Tensor:  # (N, D, H, W)
        exact = _at_least_float32(features)
        squares = exact.square().flatten(2).unsqueeze(1)  # (N, 1, D, H * W)
        mean_square = _averages(squares, (self.size, 1), ((self.size - 1) // 2, 0))
        mean_square = mean_square.reshape(exact.shape)  # (N, D, H, W)
        return (exact * (1 + self.alpha * mean_square).pow(-self.beta)).to(features.dtype)

    def extra_repr(self) -> str:
        return f"{self.size}, alpha={self.alpha}, beta={self.beta}"


def _averages(maps: Tensor, size: tuple[int, int], around: tuple[int, int]) -> Tensor:
    """Over the neighbours of every pixel, zeros outside."""
    if maps.is_cpu:
        return F.avg_pool2d(maps, size, stride=1, padding=around)
    # In channels last torch's gradient of a padded average was wrong on CUDA (PyTorch issue 188344), and on Apple's
    # GPUs that of any (issue 175190).
    padded = F.pad(maps, (around[1], around[1], around[0], around[0]))
    return F.avg_pool2d(padded if maps.is_cuda else padded.contiguous(), size, stride=1)


def _at_least_float32(features: Tensor) -> Tensor:
    return features.to(torch.promote_types(features.dtype, torch.float32))


# Batch normalisation

CAFFE_FRACTION = 0.999


class BatchNorm2d(nn.BatchNorm2d):
    """Caffe's BatchNorm and Scale: evaluation divides the moving sums of the statistics by their weights.

    After t steps the buffers hold (1 - f) * sum over s of f^(t - s) * statistic(s); the weights add up to 1 - f^t.
    With Caffe's f of 0.999, torch's start (mean 0, variance 1) would weigh a third at step 1000.
    The state_dict has the keys of nn.BatchNorm2d, but neither layer can use the other's running statistics.

    All of it is tensor operations on the device, the count of steps too: a captured CUDA graph stays right.
    """

    running_mean: Tensor
    running_var: Tensor
    num_batches_tracked: Tensor
    multipliers: dict[str, Multipliers]
    counts_steps = True  # False while `counting_steps_together` counts for all layers of a network

    def __init__(self, num_features: int, fraction: float = CAFFE_FRACTION) -> None:
        super().__init__(num_features, eps=1e-5, momentum=1 - fraction)
        self.fraction = fraction
        self.multipliers = {"weight": Multipliers(decay=0), "bias": Multipliers(decay=0)}

    def reset_running_stats(self) -> None:
        self.running_mean.zero_()
        self.running_var.zero_()
        self.num_batches_tracked.zero_()

    def statistics(self) -> tuple[Tensor, Tensor]:
        """The mean and variance that evaluation uses, (D,) each; 0 and 1 before the first training step."""
        steps = self.num_batches_tracked.to(self.running_var.dtype)
        # 1 - f^t; written as expm1, since 1 - 0.999 in float32 is already off in the fifth digit.
        weight = -torch.expm1(steps * math.log(self.fraction))
        trained = steps > 0
        weight = torch.where(trained, weight, 1.0)
        return self.running_mean / weight, torch.where(trained, self.running_var / weight, 1.0)

    def forward(self, input: Tensor) -> Tensor:  # (N, D, H, W)
        self._check_input_dim(input)
        if not self.training:
            mean, variance = self.statistics()
            return F.batch_norm(input, mean, variance, self.weight, self.bias, False, 0.0, self.eps)
        if self.counts_steps:
            self.num_batches_tracked.add_(1)
        # The batch is normalised with the biased variance; the moving sum gets the unbiased one, m / (m - 1).
        return F.batch_norm(
            input,
            self.running_mean,
            self.running_var,
            self.weight,
            self.bias,
            True,
            1 - self.fraction,
            self.eps,
        )


@contextmanager
def counting_steps_together(model: nn.Module) -> Iterator[list[int]]:
    """Batch norms of `model` count no steps of their own; what is in the list at the end is added to all, at once.

    Training does not read the count, and a tiny kernel for each layer at each step adds up on a GPU.
    """
    layers = [module for module in model.modules() if isinstance(module, BatchNorm2d) and module.training]
    taken = [0]
    for layer in layers:
        layer.counts_steps = False
    try:
        yield taken
    finally:
        for layer in layers:
            layer.counts_steps = True
        if layers:
            torch._foreach_add_([layer.num_batches_tracked for layer in layers], taken[0])
