"""VGG11-C100: three blocks of 3 x 3 convolutions, three fully connected layers (reference.md, Sec. 1.3)."""

from collections import OrderedDict
from functools import partial

from torch import nn

from nofe.architectures.architecture import Architecture
from nofe.architectures.caffe import convolution, linear, max_pool, xavier

# Biases are decayed in the convolutions, not in the fully connected layers (reference Sec. 5, row 24).
_convolution = partial(convolution, kernel=3, padding=1, filler=xavier, rate=(1, 2), decay=(1, 1))


def vgg_trunk() -> nn.Sequential:
    """(N, 3, 32, 32) -> (N, 256, 4, 4)."""
    return nn.Sequential(
        OrderedDict(
            **_block(1, 3, 64, convolutions=2),  # 16 x 16
            **_block(2, 64, 128, convolutions=2),  # 8 x 8
            **_block(3, 128, 256, convolutions=4),  # 4 x 4
        )
    )


def vgg_head(outputs: int, inputs: int = 256) -> nn.Sequential:
    """(N, inputs, 4, 4) -> (N, outputs)."""
    return nn.Sequential(OrderedDict(flatten=nn.Flatten(), **_classifier(inputs * 4 * 4, 1024, outputs)))


def vgg_branch(outputs: int) -> nn.Sequential:
    """(N, 256, 4, 4) -> (N, outputs)."""
    return nn.Sequential(
        OrderedDict(
            **_block(4, 256, 256, convolutions=2),  # 2 x 2
            flatten=nn.Flatten(),
            **_classifier(256 * 2 * 2, 512, outputs),
        )
    )


def _block(block: int, inputs: int, width: int, convolutions: int) -> dict[str, nn.Module]:
    layers: dict[str, nn.Module] = {}
    for number in range(1, convolutions + 1):
        layers[f"conv{block}_{number}"] = _convolution(inputs if number == 1 else width, width)
        layers[f"relu{block}_{number}"] = nn.ReLU()
    layers[f"pool{block}"] = max_pool(2, 2)
    return layers


def _classifier(inputs: int, hidden: int, outputs: int) -> dict[str, nn.Module]:
    return {
        "fc1": linear(inputs, hidden, filler=xavier, rate=(1, 2), decay=(2, 0)),
        "relu_fc1": nn.ReLU(),
        "drop1": nn.Dropout(0.5),
        "fc2": linear(hidden, hidden, filler=xavier, rate=(1, 2), decay=(2, 0)),
        "relu_fc2": nn.ReLU(),
        "drop2": nn.Dropout(0.5),
        "fc3": linear(hidden, outputs, filler=xavier, rate=(1, 2), decay=(1, 0)),
    }


VGG11_C100 = Architecture(
    name="vgg11-c100",
    summary="8 convolutions of 3 x 3 and 3 fully connected layers with dropout",
    image_size=32,
    input_size=32,
    trunk=vgg_trunk,
    head=vgg_head,
    branch=vgg_branch,
)
