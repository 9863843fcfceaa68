"""ResNet56-C100: 27 post-activation residual blocks, four times as wide as usual (reference.md, Sec. 1.5)."""

from collections import OrderedDict
from functools import partial

from torch import Tensor, nn
from torch.nn import functional as F

from nofe.architectures.architecture import Architecture
from nofe.architectures.caffe import BatchNorm2d, convolution, gaussian, linear, msra
from nofe.errors import UserError

_convolution = partial(convolution, kernel=3, padding=1, filler=msra, bias=None)
# Caffe's 0.999 averages over 2.6 epochs, and lags so far behind these short schedules that evaluation, and with it
# the confusion that the generalist is steered by, misses much of what the network knows (decisions/0009).
_batch_norm = partial(BatchNorm2d, fraction=0.9)


def identity_shortcut(features: Tensor, channels: int, stride: int) -> Tensor:
    """Every stride-th pixel, the channels copied and the further ones zero: option A, without parameters.

    The release writes it as a frozen 1 x 1 convolution with identity weights.
    """
    subsampled = features[:, :, ::stride, ::stride]  # (N, D, h, w)
    return F.pad(subsampled, (0, 0, 0, 0, 0, channels - features.shape[1]))  # (N, channels, h, w)


class ResidualBlock(nn.Module):
    """Convolution, BN, ReLU, convolution, BN, plus the shortcut, ReLU."""

    def __init__(self, inputs: int, outputs: int, stride: int = 1) -> None:
        super().__init__()
        if outputs < inputs:
            raise UserError(
                f"ResidualBlock: an identity shortcut cannot take {inputs} channels to {outputs}; "
                f"pass outputs of {inputs} or more"
            )
        self.outputs, self.stride = outputs, stride
        self.keeps_shape = inputs == outputs and stride == 1
        self.conv1 = _convolution(inputs, outputs, stride=stride)
        self.bn1 = _batch_norm(outputs)
        self.conv2 = _convolution(outputs, outputs)
        self.bn2 = _batch_norm(outputs)

    def forward(self, features: Tensor) -> Tensor:  # (N, inputs, H, W)
        residual = F.relu(self.bn1(self.conv1(features)))  # (N, outputs, h, w)
        residual = self.bn2(self.conv2(residual))
        shortcut = features if self.keeps_shape else identity_shortcut(features, self.outputs, self.stride)
        return F.relu(residual + shortcut)


def resnet_trunk(blocks: int = 9, width: int = 64) -> nn.Sequential:
    """(N, 3, 28, 28) -> (N, 4 * width, 7, 7), with ``blocks`` residual blocks in each of three stages."""
    return nn.Sequential(
        OrderedDict(
            stem=nn.Sequential(
                OrderedDict(conv1=_convolution(3, width), bn1=_batch_norm(width), relu1=nn.ReLU()),
            ),
            stage1=_stage(width, width, blocks, stride=1),  # 28 x 28
            stage2=_stage(width, 2 * width, blocks, stride=2),  # 14 x 14
            stage3=_stage(2 * width, 4 * width, blocks, stride=2),  # 7 x 7
        )
    )


def resnet_head(outputs: int, inputs: int = 256) -> nn.Sequential:
    """(N, inputs, 7, 7) -> (N, outputs)."""
    return nn.Sequential(OrderedDict(**_classifier(inputs, outputs)))


def resnet_branch(outputs: int, inputs: int = 256) -> nn.Sequential:
    """(N, inputs, 7, 7) -> (N, outputs)."""
    return nn.Sequential(OrderedDict(block1=ResidualBlock(inputs, inputs), **_classifier(inputs, outputs)))


def _stage(inputs: int, outputs: int, blocks: int, stride: int) -> nn.Sequential:
    stage = OrderedDict(block1=ResidualBlock(inputs, outputs, stride))
    for number in range(2, blocks + 1):
        stage[f"block{number}"] = ResidualBlock(outputs, outputs)
    return nn.Sequential(OrderedDict(**stage))


def _classifier(inputs: int, outputs: int) -> dict[str, nn.Module]:
    return {
        "pool": nn.AdaptiveAvgPool2d(1),  # 7 x 7 at the paper's size
        "flatten": nn.Flatten(),
        "fc": linear(inputs, outputs, filler=gaussian(0.01), rate=(1, 1), decay=(1, 0)),
    }


RESNET56_C100 = Architecture(
    name="resnet56-c100",
    summary="27 residual blocks of 64, 128 and 256 channels; the paper's most accurate network",
    image_size=32,
    input_size=28,
    trunk=resnet_trunk,
    head=resnet_head,
    branch=resnet_branch,
)
