"""Two networks that are trained on 32 x 32 images today: ResNet-18 with a 3 x 3 stem, and a wide ResNet.

Not networks of the paper: torch's layers and batch norm (eps 1e-5), He's initialiser, no Caffe multipliers. Where they
are cut and what a branch is, is found as for any other network.
"""

from collections import OrderedDict
from functools import partial

from torch import Tensor, nn

from nofe.architectures.adapt import adapted

CIFAR_STD = (0.2673, 0.2564, 0.2762)  # of CIFAR-100's training pixels, 0..1


def _convolution(inputs: int, outputs: int, kernel: int, stride: int = 1) -> nn.Conv2d:
    layer = nn.Conv2d(inputs, outputs, kernel, stride=stride, padding=kernel // 2, bias=False)
    nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
    return layer


class BasicBlock(nn.Module):
    """Convolution, BN, ReLU, convolution, BN, plus the shortcut, ReLU (He et al., 2015)."""

    def __init__(self, inputs: int, outputs: int, stride: int = 1) -> None:
        super().__init__()
        self.conv1 = _convolution(inputs, outputs, 3, stride)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.relu1 = nn.ReLU()
        self.conv2 = _convolution(outputs, outputs, 3)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.relu2 = nn.ReLU()
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            projection = _convolution(inputs, outputs, 1, stride)
            self.shortcut = nn.Sequential(OrderedDict(conv=projection, bn=nn.BatchNorm2d(outputs)))

    def forward(self, features: Tensor) -> Tensor:  # (N, inputs, H, W)
        residual = self.relu1(self.bn1(self.conv1(features)))  # (N, outputs, h, w)
        residual = self.bn2(self.conv2(residual))
        added: Tensor = self.relu2(residual + self.shortcut(features))
        return added


class WideBlock(nn.Module):
    """BN, ReLU, convolution, twice, plus the shortcut; a projection reads what is already normalised
    (Zagoruyko and Komodakis, 2016; dropout 0)."""

    def __init__(self, inputs: int, outputs: int, stride: int = 1) -> None:
        super().__init__()
        self.bn1 = nn.BatchNorm2d(inputs)
        self.relu1 = nn.ReLU()
        self.conv1 = _convolution(inputs, outputs, 3, stride)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.relu2 = nn.ReLU()
        self.conv2 = _convolution(outputs, outputs, 3)
        self.projection = _convolution(inputs, outputs, 1, stride) if stride != 1 or inputs != outputs else None

    def forward(self, features: Tensor) -> Tensor:  # (N, inputs, H, W)
        normalised = self.relu1(self.bn1(features))
        shortcut = features if self.projection is None else self.projection(normalised)  # (N, outputs, h, w)
        residual = self.conv1(normalised)
        added: Tensor = self.conv2(self.relu2(self.bn2(residual))) + shortcut
        return added


def _stage(block: type[BasicBlock] | type[WideBlock], inputs: int, outputs: int, blocks: int, stride: int) -> nn.Module:
    first = OrderedDict(block1=block(inputs, outputs, stride))
    rest = {f"block{number}": block(outputs, outputs) for number in range(2, blocks + 1)}
    return nn.Sequential(OrderedDict(**first, **rest))


def resnet18(outputs: int, width: int = 64) -> nn.Sequential:
    """(N, 3, 32, 32) -> (N, outputs)."""
    stages = {
        f"stage{number}": _stage(BasicBlock, inputs * width, channels * width, 2, stride)
        for number, (inputs, channels, stride) in enumerate([(1, 1, 1), (1, 2, 2), (2, 4, 2), (4, 8, 2)], start=1)
    }
    return nn.Sequential(
        OrderedDict(
            conv1=_convolution(3, width, 3),
            bn1=nn.BatchNorm2d(width),
            relu1=nn.ReLU(),
            **stages,  # 32, 16, 8 and 4 pixels
            pool=nn.AdaptiveAvgPool2d(1),
            flatten=nn.Flatten(),
            fc=nn.Linear(8 * width, outputs),
        )
    )


def wide_resnet(outputs: int, depth: int = 28, width: int = 10) -> nn.Sequential:
    """(N, 3, 32, 32) -> (N, outputs): WRN-depth-width."""
    blocks, channels = (depth - 4) // 6, 16 * width
    return nn.Sequential(
        OrderedDict(
            conv1=_convolution(3, 16, 3),
            stage1=_stage(WideBlock, 16, channels, blocks, 1),  # 32 x 32
            stage2=_stage(WideBlock, channels, 2 * channels, blocks, 2),  # 16 x 16
            stage3=_stage(WideBlock, 2 * channels, 4 * channels, blocks, 2),  # 8 x 8
            bn=nn.BatchNorm2d(4 * channels),
            relu=nn.ReLU(),
            pool=nn.AdaptiveAvgPool2d(1),
            flatten=nn.Flatten(),
            fc=nn.Linear(4 * channels, outputs),
        )
    )


_for_cifar = partial(adapted, input_size=32, std=CIFAR_STD)
RESNET18_CIFAR = partial(
    _for_cifar, resnet18, "resnet18-cifar", summary="ResNet-18 with a 3 x 3 stem, for 32 x 32 images"
)
WRN_28_10 = partial(
    _for_cifar, wide_resnet, "wrn-28-10", summary="wide ResNet of 28 layers, ten times as wide; for 32 x 32 images"
)
