"""Plain networks that match a network of ten experts in parameters, and in parameters and depth (Sec. 4.1, Table 4).

`-deeper`: ten times the convolutions, or residual blocks, of one branch, put before the base's own last layers, which
is the paper's rule (the counts then differ by up to 12 %, as branches have smaller fully connected layers).
`-wider`: the convolutions of one branch, with as many filters as it takes. The paper gives no widths; these match the
experts' parameters to 1 %. `alexnet-c100-conv4` and `alexnet-caffe-conv6`: one more convolution, that of a branch
(depth against specialisation). They are trained as bases; their experts would be those of the network they are made
from.

Layers that are added are drawn as those of a branch are. Only ten or twenty on top of each other without batch norm
are not: neither maps nor gradients would pass (AlexNet-C100's logits would be 1e-10, and stay there), so they are drawn
to keep the variance.
"""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from torch import Tensor, nn

from nofe.architectures.alexnet import ALEXNET_C100, ALEXNET_CAFFE, alexnet_c100_head, alexnet_caffe_head
from nofe.architectures.architecture import Architecture
from nofe.architectures.caffe import Filler, convolution, gaussian, xavier
from nofe.architectures.resnet import RESNET56_C100, ResidualBlock, resnet_head
from nofe.architectures.vgg import VGG11_C100, vgg_head

Head = Callable[[int], nn.Module]
_OF_ALEXNET = gaussian(0.01)
MAP = 4  # pixels of a side, where layers are added to AlexNet-C100 and VGG11-C100


def _keeping_variance(weight: Tensor) -> None:
    """N(0, 2 / n), n being the inputs that an output meets: of maps as small as these half lie beyond the border."""
    _, inputs, side, _ = weight.shape
    reach = side // 2  # padding keeps the size
    met = sum(min(at + reach, MAP - 1) - max(at - reach, 0) + 1 for at in range(MAP)) / MAP  # of a side, on average
    nn.init.normal_(weight, std=(2 / (inputs * met**2)) ** 0.5)


def _alexnet(convolutions: int, width: int, filler: Filler = _OF_ALEXNET) -> Head:
    layer = partial(convolution, kernel=5, padding=2, filler=filler)
    numbers = [f"{number}" for number in range(4, 4 + convolutions)]
    return _with_convolutions(numbers, 64, width, layer, alexnet_c100_head)


def _vgg(convolutions: int, width: int, filler: Filler = xavier) -> Head:
    layer = partial(convolution, kernel=3, padding=1, filler=filler, rate=(1, 2))
    numbers = [f"4_{number}" for number in range(1, 1 + convolutions)]
    return _with_convolutions(numbers, 256, width, layer, vgg_head)


def _caffe() -> Head:
    layer = partial(
        convolution, kernel=3, padding=1, groups=2, bias=0.1, filler=gaussian(0.01), rate=(1, 2), decay=(1, 0)
    )
    return _with_convolutions(["6"], 256, 256, layer, lambda outputs, _: alexnet_caffe_head(outputs))


def _with_convolutions(
    numbers: Sequence[str],
    inputs: int,
    width: int,
    layer: Callable[[int, int], nn.Module],
    head_on: Callable[[int, int], nn.Module],
) -> Head:
    """Convolutions with ReLUs, then the base's own head on their maps."""

    def head(outputs: int) -> nn.Sequential:
        layers: OrderedDict[str, nn.Module] = OrderedDict()
        for number, channels in zip(numbers, [inputs, *[width] * len(numbers)], strict=False):
            layers[f"conv{number}"] = layer(channels, width)
            layers[f"relu{number}"] = nn.ReLU()
        return nn.Sequential(OrderedDict(**layers, head=head_on(outputs, width)))

    return head


def _resnet(blocks: int, width: int) -> Head:
    def head(outputs: int) -> nn.Sequential:
        layers = OrderedDict(block1=ResidualBlock(256, width))
        for number in range(2, 1 + blocks):
            layers[f"block{number}"] = ResidualBlock(width, width)
        return nn.Sequential(OrderedDict(**layers, head=resnet_head(outputs, width)))

    return head


def _matched(base: Architecture, suffix: str, summary: str, head: Head) -> Architecture:
    return replace(base, name=f"{base.name}-{suffix}", summary=summary, head=head)


MATCHED = (
    _matched(
        ALEXNET_C100,
        "deeper",
        "10 more convolutions: the parameters of 10 experts",
        _alexnet(10, 64, _keeping_variance),
    ),
    _matched(ALEXNET_C100, "wider", "1 wide convolution more: parameters and depth of 10 experts", _alexnet(1, 328)),
    _matched(ALEXNET_C100, "conv4", "1 more convolution of 64 filters: the depth of experts", _alexnet(1, 64)),
    _matched(ALEXNET_CAFFE, "conv6", "1 more convolution of 256 filters: the depth of experts", _caffe()),
    _matched(
        VGG11_C100, "deeper", "20 more convolutions: the parameters of 10 experts", _vgg(20, 256, _keeping_variance)
    ),
    _matched(VGG11_C100, "wider", "2 wide convolutions more: parameters and depth of 10 experts", _vgg(2, 734)),
    _matched(RESNET56_C100, "deeper", "10 more blocks: the parameters of 10 experts", _resnet(10, 256)),
    _matched(RESNET56_C100, "wider", "1 wide block more: parameters and depth of 10 experts", _resnet(1, 1020)),
)
