"""NIN-C100, network in network: 1 x 1 convolutions ("cccp") after each larger one (reference.md, Sec. 1.4).

The logits are averages of ReLU outputs, never negative, in the base and in branches (reference Sec. 5, row 26). The
generalist has no ReLU there: of ten such outputs some die within the first steps, never to give a logit or a gradient
again, and with some seeds all of them.
"""

from collections import OrderedDict
from collections.abc import Callable
from functools import partial

from torch import nn

from nofe.architectures.architecture import Architecture
from nofe.architectures.caffe import convolution, gaussian, max_pool

_convolution = partial(convolution, filler=gaussian(0.05), rate=(1, 2), decay=(1, 0))


def nin_trunk() -> nn.Sequential:
    """(N, 3, 26, 26) -> (N, 192, 6, 6)."""
    return nn.Sequential(
        OrderedDict(
            conv1=_convolution(3, 192, 5, padding=2),
            relu_conv1=nn.ReLU(),
            cccp1=_convolution(192, 160, 1),
            relu_cccp1=nn.ReLU(),
            cccp2=_convolution(160, 96, 1),
            relu_cccp2=nn.ReLU(),
            pool1=max_pool(3, 2),  # 13 x 13
            drop1=nn.Dropout(0.5),
            conv2=_convolution(96, 192, 5, padding=2),
            relu_conv2=nn.ReLU(),
            cccp3=_convolution(192, 192, 1),
            relu_cccp3=nn.ReLU(),
            cccp4=_convolution(192, 192, 1),
            relu_cccp4=nn.ReLU(),
            # MAX everywhere, as in the paper. The release's generalist averages, which gives the conv3 copied
            # from it inputs of another scale (reference Sec. 5, row 10).
            pool2=max_pool(3, 2),  # 6 x 6
            drop2=nn.Dropout(0.5),
            conv3=_convolution(192, 192, 3, padding=1),
            relu_conv3=nn.ReLU(),
            cccp5=_convolution(192, 192, 1),
            relu_cccp5=nn.ReLU(),
        )
    )


def nin_head(outputs: int, last: Callable[[], nn.Module] = nn.ReLU) -> nn.Sequential:
    """(N, 192, 6, 6) -> (N, outputs)."""
    return nn.Sequential(
        OrderedDict(
            cccp6=_convolution(192, outputs, 1),
            relu_cccp6=last(),
            pool3=nn.AdaptiveAvgPool2d(1),  # 6 x 6 at the paper's size
            flatten=nn.Flatten(),
        )
    )


def nin_branch(outputs: int) -> nn.Sequential:
    """(N, 192, 6, 6) -> (N, outputs)."""
    return nn.Sequential(
        OrderedDict(
            conv4=_convolution(192, 192, 3, padding=1),
            relu_conv4=nn.ReLU(),
            cccp7=_convolution(192, 192, 1),
            relu_cccp7=nn.ReLU(),
            cccp8=_convolution(192, outputs, 1),
            relu_cccp8=nn.ReLU(),
            pool4=nn.AdaptiveAvgPool2d(1),  # 6 x 6 at the paper's size
            flatten=nn.Flatten(),
        )
    )


NIN_C100 = Architecture(
    name="nin-c100",
    summary="network in network: 9 convolutions, 6 of them 1 x 1, and no fully connected layer",
    image_size=32,
    input_size=26,
    trunk=nin_trunk,
    head=nin_head,
    branch=nin_branch,
    generalist_head=partial(nin_head, last=nn.Identity),
)
