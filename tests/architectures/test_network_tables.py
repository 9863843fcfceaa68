"""Every layer of the six networks against the tables of reference.md, Sec. 1.1 to 1.6."""

import math
import re
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn

from nofe.architectures import ARCHITECTURES, Multipliers, multipliers_of
from nofe.architectures.caffe import AcrossChannelLRN, BatchNorm2d, WithinChannelLRN
from nofe.architectures.resnet import ResidualBlock

OUTPUTS = 100

ALEXNET_C100_TRUNK = """
    conv1: conv 5 pad 2 -> 32x32x32
    pool1: MAX 3/2 -> 32x16x16
    relu1: ReLU -> 32x16x16
    norm1: LRN within 3 alpha 5e-05 beta 0.75 -> 32x16x16
    conv2: conv 5 pad 2 -> 32x16x16
    relu2: ReLU -> 32x16x16
    pool2: AVE 3/2 -> 32x8x8
    norm2: LRN within 3 alpha 5e-05 beta 0.75 -> 32x8x8
    conv3: conv 5 pad 2 -> 64x8x8
    relu3: ReLU -> 64x8x8
    pool3: AVE 3/2 -> 64x4x4
"""

# Name and part: the layers in order, with the shape of what each returns for one image.
LAYERS = {
    ("alexnet-c100", "trunk"): ALEXNET_C100_TRUNK,
    ("alexnet-c100", "experts trunk"): ALEXNET_C100_TRUNK + "norm3: LRN within 3 alpha 5e-05 beta 0.75 -> 64x4x4",
    ("alexnet-c100", "head"): """
        flatten -> 1024
        ip1: fc -> 100
    """,
    ("alexnet-c100", "branch"): """
        conv4: conv 5 pad 2 -> 64x4x4
        relu4: ReLU -> 64x4x4
        pool4: AVE 3/2 -> 64x2x2
        flatten -> 256
        ip1: fc -> 100
    """,
    ("alexnet-quick-c100", "trunk"): """
        conv1: conv 5 pad 2 -> 32x32x32
        pool1: MAX 3/2 -> 32x16x16
        relu1: ReLU -> 32x16x16
        conv2: conv 5 pad 2 -> 32x16x16
        relu2: ReLU -> 32x16x16
        pool2: AVE 3/2 -> 32x8x8
        conv3: conv 5 pad 2 -> 64x8x8
        relu3: ReLU -> 64x8x8
        pool3: AVE 3/2 -> 64x4x4
    """,
    ("alexnet-quick-c100", "head"): """
        flatten -> 1024
        ip1: fc -> 64
        ip2: fc -> 100
    """,
    ("alexnet-quick-c100", "branch"): """
        conv4: conv 5 pad 2 -> 64x4x4
        relu4: ReLU -> 64x4x4
        pool4: AVE 3/2 -> 64x2x2
        flatten -> 256
        ip1: fc -> 64
        ip2: fc -> 100
    """,
    ("vgg11-c100", "trunk"): """
        conv1_1: conv 3 pad 1 -> 64x32x32
        relu1_1: ReLU -> 64x32x32
        conv1_2: conv 3 pad 1 -> 64x32x32
        relu1_2: ReLU -> 64x32x32
        pool1: MAX 2/2 -> 64x16x16
        conv2_1: conv 3 pad 1 -> 128x16x16
        relu2_1: ReLU -> 128x16x16
        conv2_2: conv 3 pad 1 -> 128x16x16
        relu2_2: ReLU -> 128x16x16
        pool2: MAX 2/2 -> 128x8x8
        conv3_1: conv 3 pad 1 -> 256x8x8
        relu3_1: ReLU -> 256x8x8
        conv3_2: conv 3 pad 1 -> 256x8x8
        relu3_2: ReLU -> 256x8x8
        conv3_3: conv 3 pad 1 -> 256x8x8
        relu3_3: ReLU -> 256x8x8
        conv3_4: conv 3 pad 1 -> 256x8x8
        relu3_4: ReLU -> 256x8x8
        pool3: MAX 2/2 -> 256x4x4
    """,
    ("vgg11-c100", "head"): """
        flatten -> 4096
        fc1: fc -> 1024
        relu_fc1: ReLU -> 1024
        drop1: dropout 0.5 -> 1024
        fc2: fc -> 1024
        relu_fc2: ReLU -> 1024
        drop2: dropout 0.5 -> 1024
        fc3: fc -> 100
    """,
    ("vgg11-c100", "branch"): """
        conv4_1: conv 3 pad 1 -> 256x4x4
        relu4_1: ReLU -> 256x4x4
        conv4_2: conv 3 pad 1 -> 256x4x4
        relu4_2: ReLU -> 256x4x4
        pool4: MAX 2/2 -> 256x2x2
        flatten -> 1024
        fc1: fc -> 512
        relu_fc1: ReLU -> 512
        drop1: dropout 0.5 -> 512
        fc2: fc -> 512
        relu_fc2: ReLU -> 512
        drop2: dropout 0.5 -> 512
        fc3: fc -> 100
    """,
    ("nin-c100", "trunk"): """
        conv1: conv 5 pad 2 -> 192x26x26
        relu_conv1: ReLU -> 192x26x26
        cccp1: conv 1 -> 160x26x26
        relu_cccp1: ReLU -> 160x26x26
        cccp2: conv 1 -> 96x26x26
        relu_cccp2: ReLU -> 96x26x26
        pool1: MAX 3/2 -> 96x13x13
        drop1: dropout 0.5 -> 96x13x13
        conv2: conv 5 pad 2 -> 192x13x13
        relu_conv2: ReLU -> 192x13x13
        cccp3: conv 1 -> 192x13x13
        relu_cccp3: ReLU -> 192x13x13
        cccp4: conv 1 -> 192x13x13
        relu_cccp4: ReLU -> 192x13x13
        pool2: MAX 3/2 -> 192x6x6
        drop2: dropout 0.5 -> 192x6x6
        conv3: conv 3 pad 1 -> 192x6x6
        relu_conv3: ReLU -> 192x6x6
        cccp5: conv 1 -> 192x6x6
        relu_cccp5: ReLU -> 192x6x6
    """,
    ("nin-c100", "head"): """
        cccp6: conv 1 -> 100x6x6
        relu_cccp6: ReLU -> 100x6x6
        pool3: AVE all -> 100x1x1
        flatten -> 100
    """,
    ("nin-c100", "branch"): """
        conv4: conv 3 pad 1 -> 192x6x6
        relu_conv4: ReLU -> 192x6x6
        cccp7: conv 1 -> 192x6x6
        relu_cccp7: ReLU -> 192x6x6
        cccp8: conv 1 -> 100x6x6
        relu_cccp8: ReLU -> 100x6x6
        pool4: AVE all -> 100x1x1
        flatten -> 100
    """,
    ("resnet56-c100", "trunk"): "\n".join(
        ["stem.conv1: conv 3 pad 1 -> 64x28x28", "stem.bn1: BN -> 64x28x28", "stem.relu1: ReLU -> 64x28x28"]
        + [f"stage1.block{number}: residual -> 64x28x28" for number in range(1, 10)]
        + ["stage2.block1: residual stride 2 -> 128x14x14"]
        + [f"stage2.block{number}: residual -> 128x14x14" for number in range(2, 10)]
        + ["stage3.block1: residual stride 2 -> 256x7x7"]
        + [f"stage3.block{number}: residual -> 256x7x7" for number in range(2, 10)]
    ),
    ("resnet56-c100", "head"): """
        pool: AVE all -> 256x1x1
        flatten -> 256
        fc: fc -> 100
    """,
    ("resnet56-c100", "branch"): """
        block1: residual -> 256x7x7
        pool: AVE all -> 256x1x1
        flatten -> 256
        fc: fc -> 100
    """,
    ("alexnet-caffe", "trunk"): """
        conv1: conv 11 stride 4 -> 96x55x55
        relu1: ReLU -> 96x55x55
        norm1: LRN across 5 alpha 0.0001 beta 0.75 -> 96x55x55
        pool1: MAX 3/2 -> 96x27x27
        conv2: conv 5 pad 2 group 2 -> 256x27x27
        relu2: ReLU -> 256x27x27
        norm2: LRN across 5 alpha 0.0001 beta 0.75 -> 256x27x27
        pool2: MAX 3/2 -> 256x13x13
        conv3: conv 3 pad 1 -> 384x13x13
        relu3: ReLU -> 384x13x13
        conv4: conv 3 pad 1 group 2 -> 384x13x13
        relu4: ReLU -> 384x13x13
        conv5: conv 3 pad 1 group 2 -> 256x13x13
        relu5: ReLU -> 256x13x13
        pool5: MAX 3/2 -> 256x6x6
    """,
    ("alexnet-caffe", "head"): """
        flatten -> 9216
        fc6: fc -> 4096
        relu_fc6: ReLU -> 4096
        drop6: dropout 0.5 -> 4096
        fc7: fc -> 4096
        relu_fc7: ReLU -> 4096
        drop7: dropout 0.5 -> 4096
        fc8: fc -> 100
    """,
    ("alexnet-caffe", "branch"): """
        conv6: conv 3 pad 1 group 2 -> 256x6x6
        relu6: ReLU -> 256x6x6
        pool6: MAX 3/2 -> 256x3x3
        flatten -> 2304
        fc6: fc -> 1024
        relu_fc6: ReLU -> 1024
        drop6: dropout 0.5 -> 1024
        fc7: fc -> 1024
        relu_fc7: ReLU -> 1024
        drop7: dropout 0.5 -> 1024
        fc8: fc -> 100
    """,
}


def layers_in_order(part: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    for name, child in part.named_children():
        if isinstance(child, nn.Sequential):
            yield from ((f"{name}.{inner}", layer) for inner, layer in layers_in_order(child))
        else:
            yield name, child


def kind_of(layer: nn.Module) -> str:
    match layer:
        case nn.Conv2d():
            options = {"stride": layer.stride[0], "pad": layer.padding[0], "group": layer.groups}
            usual = {"stride": 1, "pad": 0, "group": 1}
            said = [f"{option} {value}" for option, value in options.items() if value != usual[option]]
            return " ".join(["conv", str(layer.kernel_size[0]), *said])
        case ResidualBlock():
            return "residual" + (f" stride {layer.stride}" if layer.stride != 1 else "")
        case WithinChannelLRN() | AcrossChannelLRN():
            where = "within" if isinstance(layer, WithinChannelLRN) else "across"
            return f"LRN {where} {layer.size} alpha {layer.alpha} beta {layer.beta}"
        case nn.MaxPool2d():
            return f"MAX {layer.kernel_size}/{layer.stride}"
        case nn.AvgPool2d():
            return f"AVE {layer.kernel_size}/{layer.stride}"
        case nn.AdaptiveAvgPool2d():
            return "AVE all"
        case nn.Dropout():
            return f"dropout {layer.p}"
        case _:
            return {BatchNorm2d: "BN", nn.ReLU: "ReLU", nn.Linear: "fc", nn.Flatten: ""}[type(layer)]


def described(part: nn.Module, features: Tensor) -> tuple[list[str], Tensor]:
    lines = []
    for name, layer in layers_in_order(part):
        features = layer(features)
        shape = "x".join(map(str, features.shape[1:]))
        kind = kind_of(layer)
        lines.append(f"{name}{': ' if kind else ''}{kind} -> {shape}")
    return lines, features


@pytest.mark.parametrize("name", sorted({name for name, _ in LAYERS}))
def test_layers_and_shapes_are_those_of_the_tables(name: str) -> None:
    architecture = ARCHITECTURES[name]

    def check(part: str, layers: nn.Module, features: Tensor) -> Tensor:
        table = LAYERS.get((name, part)) or LAYERS[name, "trunk"]
        lines, features = described(layers, features)
        assert lines == [line.strip() for line in table.strip().splitlines()]
        return features

    with torch.device("meta"):  # shapes alone, no arithmetic
        images = torch.zeros(2, 3, architecture.input_size, architecture.input_size)
        features = check("trunk", architecture.trunk(), images)
        check("head", architecture.head(OUTPUTS), features)
        features = check("experts trunk", architecture.trunk_of_experts(), images)
        check("branch", architecture.branch(OUTPUTS), features)


# {layer or pattern of layers: (filler of the weights, start of the biases, lr, decay)}, as in the tables.
ALEXNET_C100 = {
    "conv1": ("gauss 1e-4", 0, "1/2", "1/1"),
    "conv2": ("gauss 0.01", 0, "1/2", "1/1"),
    "conv3": ("gauss 0.01", 0, "1/1", "1/1"),
    "conv4": ("gauss 0.01", 0, "1/1", "1/1"),
    "ip1": ("gauss 0.01", 0, "1/2", "250/0"),
}
QUICK_C100 = {
    "conv1": ("gauss 1e-4", 0, "1/2", "1/1"),
    "conv[234]": ("gauss 0.01", 0, "1/2", "1/1"),
    "ip[12]": ("gauss 0.1", 0, "1/2", "1/1"),
}
VGG_C100 = {
    r"conv\d_\d": ("xavier", 0, "1/2", "1/1"),
    "fc[12]": ("xavier", 0, "1/2", "2/0"),
    "fc3": ("xavier", 0, "1/2", "1/0"),
}
NIN_C100 = {r"(conv|cccp)\d": ("gauss 0.05", 0, "1/2", "1/0")}
RESNET_C100 = {
    r"(.*\.)?conv\d": ("msra", None, "1", "1"),
    r"(.*\.)?bn\d": ("ones", 0, "1/1", "0/0"),
    "fc": ("gauss 0.01", 0, "1/1", "1/0"),
}
CAFFE = {
    "conv[13]": ("gauss 0.01", 0, "1/2", "1/0"),
    "conv[2456]": ("gauss 0.01", 0.1, "1/2", "1/0"),
    "fc[67]": ("gauss 0.005", 0.1, "1/2", "1/0"),
    "fc8": ("gauss 0.01", 0, "1/2", "1/0"),
}
START = {
    "alexnet-c100": ALEXNET_C100,
    "alexnet-quick-c100": QUICK_C100,
    "vgg11-c100": VGG_C100,
    "nin-c100": NIN_C100,
    "resnet56-c100": RESNET_C100,
    "alexnet-caffe": CAFFE,
}


def assert_filled(weight: Tensor, filler: str, layer: str) -> None:
    if filler == "ones":
        assert torch.equal(weight, torch.ones_like(weight)), layer
        return
    receptive = weight[0, 0].numel()
    fan_in, fan_out = weight.shape[1] * receptive, weight.shape[0] * receptive
    std = {"xavier": 1 / math.sqrt(fan_in), "msra": math.sqrt(2 / fan_out)}.get(filler) or float(filler.split()[1])
    count = weight.numel()
    assert weight.std().item() == pytest.approx(std, rel=4 / math.sqrt(2 * count)), layer  # 4 standard errors
    assert abs(weight.mean().item()) < 5 * std / math.sqrt(count), layer
    kurtosis = (weight / std).pow(4).mean().item()
    expected = 1.8 if filler == "xavier" else 3.0  # of a uniform, of a normal
    assert kurtosis == pytest.approx(expected, abs=5 * math.sqrt(96 / count)), layer


@pytest.mark.parametrize("name", START)
def test_fillers_and_multipliers_are_those_of_the_tables(name: str) -> None:
    torch.manual_seed(0)
    architecture = ARCHITECTURES[name]
    unused = set(START[name])
    for part in (architecture.trunk(), architecture.head(OUTPUTS), architecture.branch(OUTPUTS)):
        multipliers = multipliers_of(part)
        for layer_name, layer in part.named_modules():
            own = dict(layer.named_parameters(recurse=False))
            if not own:
                continue
            (pattern,) = [pattern for pattern in START[name] if re.fullmatch(pattern, layer_name)]
            unused.discard(pattern)
            filler, bias, rate, decay = START[name][pattern]
            assert_filled(own["weight"].detach(), filler, layer_name)
            assert ("bias" in own) == (bias is not None), layer_name
            if bias is not None:
                assert torch.equal(own["bias"], torch.full_like(own["bias"], bias)), layer_name
            for parameter, rate_of, decay_of in zip(own, rate.split("/"), decay.split("/"), strict=True):
                expected = Multipliers(rate=float(rate_of), decay=float(decay_of))
                assert multipliers[f"{layer_name}.{parameter}"] == expected, f"{layer_name}.{parameter}"
    assert not unused


def test_the_logits_of_the_generalist_of_nin_are_not_cut_off_at_zero() -> None:
    """Else some of the ten outputs, or all, die in the first steps; the base's are, as in the release."""
    torch.manual_seed(0)
    images = 60 * torch.randn(8, 3, 26, 26)
    nin = ARCHITECTURES["nin-c100"]
    base, generalist = nin.classifier(10).eval(), nin.generalist(10).eval()
    generalist.load_state_dict(base.state_dict())
    with torch.no_grad():
        assert float(base(images).min()) == 0
        assert float(generalist(images).min()) < 0
    for name, architecture in ARCHITECTURES.items():
        kinds = [
            [str(layer) for layer in each(3).modules()] for each in (architecture.classifier, architecture.generalist)
        ]
        assert (kinds[0] == kinds[1]) == (name != "nin-c100"), name
