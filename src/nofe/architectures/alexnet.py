"""The three AlexNets: AlexNet-C100 and AlexNet-Quick-C100 on CIFAR-100, AlexNet-Caffe on ImageNet.

Layers, fillers and multipliers are those of reference.md, Sec. 1.1, 1.2 and 1.6.
"""

from collections import OrderedDict
from functools import partial

from torch import nn

from nofe.architectures.architecture import Architecture
from nofe.architectures.caffe import (
    AcrossChannelLRN,
    WithinChannelLRN,
    average_pool,
    convolution,
    gaussian,
    linear,
    max_pool,
)

# AlexNet-C100


def alexnet_c100_trunk() -> nn.Sequential:
    """(N, 3, 32, 32) -> (N, 64, 4, 4)."""
    return nn.Sequential(
        OrderedDict(
            # 1e-4 suits pixels of 0..255; ReLU after the pooling, and only here (reference Sec. 1.1).
            conv1=convolution(3, 32, 5, padding=2, filler=gaussian(1e-4), rate=(1, 2)),
            pool1=max_pool(3, 2),
            relu1=nn.ReLU(),
            norm1=_c100_norm(),  # 16 x 16
            conv2=convolution(32, 32, 5, padding=2, filler=gaussian(0.01), rate=(1, 2)),
            relu2=nn.ReLU(),
            pool2=average_pool(3, 2),
            norm2=_c100_norm(),  # 8 x 8
            # The biases of conv3 and conv4 learn at rate 1, unlike those before them.
            conv3=convolution(32, 64, 5, padding=2, filler=gaussian(0.01), rate=(1, 1)),
            relu3=nn.ReLU(),
            pool3=average_pool(3, 2),  # 4 x 4
        )
    )


def alexnet_c100_experts_trunk() -> nn.Sequential:
    """The same and one more normalisation, which base and generalist lack (reference Sec. 5, row 25)."""
    trunk = alexnet_c100_trunk()
    trunk.add_module("norm3", _c100_norm())
    return trunk


def alexnet_c100_head(outputs: int, inputs: int = 64) -> nn.Sequential:
    """(N, inputs, 4, 4) -> (N, outputs)."""
    return nn.Sequential(OrderedDict(flatten=nn.Flatten(), ip1=_c100_output(inputs * 4 * 4, outputs)))


def alexnet_c100_branch(outputs: int) -> nn.Sequential:
    """(N, 64, 4, 4) -> (N, outputs)."""
    return nn.Sequential(
        OrderedDict(
            conv4=convolution(64, 64, 5, padding=2, filler=gaussian(0.01), rate=(1, 1)),
            relu4=nn.ReLU(),
            pool4=average_pool(3, 2),  # 2 x 2
            flatten=nn.Flatten(),
            ip1=_c100_output(64 * 2 * 2, outputs),
        )
    )


def _c100_norm() -> WithinChannelLRN:
    return WithinChannelLRN(3, alpha=5e-5, beta=0.75)


def _c100_output(inputs: int, outputs: int) -> nn.Linear:
    # 250 times the solver's 0.004: a weight decay of 1.0, in head and branch (reference Sec. 5, row 22).
    return linear(inputs, outputs, filler=gaussian(0.01), rate=(1, 2), decay=(250, 0))


# AlexNet-Quick-C100


_quick_convolution = partial(convolution, kernel=5, padding=2, rate=(1, 2))
_quick_linear = partial(linear, filler=gaussian(0.1), rate=(1, 2))


def alexnet_quick_c100_trunk() -> nn.Sequential:
    """(N, 3, 32, 32) -> (N, 64, 4, 4)."""
    return nn.Sequential(
        OrderedDict(
            conv1=_quick_convolution(3, 32, filler=gaussian(1e-4)),
            pool1=max_pool(3, 2),
            relu1=nn.ReLU(),  # 16 x 16
            conv2=_quick_convolution(32, 32, filler=gaussian(0.01)),
            relu2=nn.ReLU(),
            pool2=average_pool(3, 2),  # 8 x 8
            conv3=_quick_convolution(32, 64, filler=gaussian(0.01)),
            relu3=nn.ReLU(),
            pool3=average_pool(3, 2),  # 4 x 4
        )
    )


def alexnet_quick_c100_head(outputs: int) -> nn.Sequential:
    """(N, 64, 4, 4) -> (N, outputs). No ReLU between ip1 and ip2 (reference Sec. 5, row 26)."""
    return nn.Sequential(
        OrderedDict(flatten=nn.Flatten(), ip1=_quick_linear(64 * 4 * 4, 64), ip2=_quick_linear(64, outputs))
    )


def alexnet_quick_c100_branch(outputs: int) -> nn.Sequential:
    """(N, 64, 4, 4) -> (N, outputs)."""
    return nn.Sequential(
        OrderedDict(
            conv4=_quick_convolution(64, 64, filler=gaussian(0.01)),
            relu4=nn.ReLU(),
            pool4=average_pool(3, 2),  # 2 x 2
            flatten=nn.Flatten(),
            ip1=_quick_linear(64 * 2 * 2, 64),
            ip2=_quick_linear(64, outputs),
        )
    )


# AlexNet-Caffe


_caffe_convolution = partial(convolution, filler=gaussian(0.01), rate=(1, 2), decay=(1, 0))
_caffe_linear = partial(linear, rate=(1, 2), decay=(1, 0))


def alexnet_caffe_trunk() -> nn.Sequential:
    """(N, 3, 227, 227) -> (N, 256, 6, 6)."""
    return nn.Sequential(
        OrderedDict(
            conv1=_caffe_convolution(3, 96, 11, stride=4),
            relu1=nn.ReLU(),
            norm1=_caffe_norm(),
            pool1=max_pool(3, 2),  # 27 x 27
            conv2=_caffe_convolution(96, 256, 5, padding=2, groups=2, bias=0.1),
            relu2=nn.ReLU(),
            norm2=_caffe_norm(),
            pool2=max_pool(3, 2),  # 13 x 13
            conv3=_caffe_convolution(256, 384, 3, padding=1),
            relu3=nn.ReLU(),
            conv4=_caffe_convolution(384, 384, 3, padding=1, groups=2, bias=0.1),
            relu4=nn.ReLU(),
            conv5=_caffe_convolution(384, 256, 3, padding=1, groups=2, bias=0.1),
            relu5=nn.ReLU(),
            pool5=max_pool(3, 2),  # 6 x 6
        )
    )


def alexnet_caffe_head(outputs: int) -> nn.Sequential:
    """(N, 256, 6, 6) -> (N, outputs)."""
    return nn.Sequential(OrderedDict(flatten=nn.Flatten(), **_caffe_classifier(256 * 6 * 6, 4096, outputs)))


def alexnet_caffe_branch(outputs: int) -> nn.Sequential:
    """(N, 256, 6, 6) -> (N, outputs). The paper's 40.4M parameters need conv6's groups and pool6's ceil."""
    return nn.Sequential(
        OrderedDict(
            conv6=_caffe_convolution(256, 256, 3, padding=1, groups=2, bias=0.1),
            relu6=nn.ReLU(),
            pool6=max_pool(3, 2),  # 3 x 3
            flatten=nn.Flatten(),
            **_caffe_classifier(256 * 3 * 3, 1024, outputs),
        )
    )


def _caffe_norm() -> AcrossChannelLRN:
    return AcrossChannelLRN(5, alpha=1e-4, beta=0.75)


def _caffe_classifier(inputs: int, hidden: int, outputs: int) -> dict[str, nn.Module]:
    return {
        "fc6": _caffe_linear(inputs, hidden, filler=gaussian(0.005), bias=0.1),
        "relu_fc6": nn.ReLU(),
        "drop6": nn.Dropout(0.5),
        "fc7": _caffe_linear(hidden, hidden, filler=gaussian(0.005), bias=0.1),
        "relu_fc7": nn.ReLU(),
        "drop7": nn.Dropout(0.5),
        "fc8": _caffe_linear(hidden, outputs, filler=gaussian(0.01)),
    }


ALEXNET_C100 = Architecture(
    name="alexnet-c100",
    summary="3 convolutions with response normalisation, 1 fully connected layer; the paper's main network",
    image_size=32,
    input_size=32,
    trunk=alexnet_c100_trunk,
    head=alexnet_c100_head,
    branch=alexnet_c100_branch,
    experts_trunk=alexnet_c100_experts_trunk,
)

ALEXNET_QUICK_C100 = Architecture(
    name="alexnet-quick-c100",
    summary="3 convolutions and 2 fully connected layers; converges fast, less accurate",
    image_size=32,
    input_size=32,
    trunk=alexnet_quick_c100_trunk,
    head=alexnet_quick_c100_head,
    branch=alexnet_quick_c100_branch,
)

ALEXNET_CAFFE = Architecture(
    name="alexnet-caffe",
    summary="Caffe's AlexNet for ImageNet: 5 convolutions and 3 fully connected layers",
    image_size=256,
    input_size=227,
    trunk=alexnet_caffe_trunk,
    head=alexnet_caffe_head,
    branch=alexnet_caffe_branch,
)
