"""Small: three convolutions with batch norm, for a first run on a processor. Not a network of the paper.

The paper's AlexNets start on a plateau that lasts for thousands of steps; batch norm is past it in a few hundred.
Torch's batch norm, not Caffe's: an average over a thousand steps would lag behind so short a training.
"""

from collections import OrderedDict
from functools import partial

from torch import nn

from nofe.architectures.architecture import Architecture
from nofe.architectures.caffe import convolution, gaussian, linear, max_pool, msra

_convolution = partial(convolution, kernel=3, padding=1, filler=msra, bias=None)


def small_trunk(width: int = 32) -> nn.Sequential:
    """(N, 3, 32, 32) -> (N, 2 * width, 4, 4)."""
    return nn.Sequential(
        OrderedDict(
            **_layer(1, 3, width),  # 16 x 16
            **_layer(2, width, 2 * width),  # 8 x 8
            **_layer(3, 2 * width, 2 * width),  # 4 x 4
        )
    )


def small_head(outputs: int, inputs: int = 64) -> nn.Sequential:
    """(N, inputs, 4, 4) -> (N, outputs)."""
    return nn.Sequential(OrderedDict(flatten=nn.Flatten(), fc=_output(inputs * 4 * 4, outputs)))


def small_branch(outputs: int) -> nn.Sequential:
    """(N, 64, 4, 4) -> (N, outputs)."""
    layer = _layer(4, 64, 64)
    del layer["pool4"]  # where a stroke lies tells look-alikes apart, and 4 x 4 places are few as it is
    return nn.Sequential(OrderedDict(**layer, flatten=nn.Flatten(), fc=_output(64 * 4 * 4, outputs)))


def _layer(number: int, inputs: int, outputs: int) -> dict[str, nn.Module]:
    return {
        f"conv{number}": _convolution(inputs, outputs),
        f"bn{number}": nn.BatchNorm2d(outputs),
        # Pooled first: the largest of four is the same number before and after a ReLU, which then has a quarter to do.
        f"pool{number}": max_pool(2, 2),
        f"relu{number}": nn.ReLU(),
    }


def _output(inputs: int, outputs: int) -> nn.Linear:
    return linear(inputs, outputs, filler=gaussian(0.01), decay=(1, 0))


SMALL = Architecture(
    name="small",
    summary="three convolutions with batch norm; minutes on a processor (not in the paper)",
    image_size=32,
    input_size=32,
    trunk=small_trunk,
    head=small_head,
    branch=small_branch,
)
