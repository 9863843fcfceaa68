"""Parameter counts against reference.md, Sec. 1.7, and formulas written from its tables, Sec. 1.1 to 1.6."""

from collections.abc import Sequence
from functools import cache

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from nofe.architectures import ARCHITECTURES, parameter_count
from nofe.architectures.resnet import resnet_branch, resnet_head, resnet_trunk


@cache
def trunk_count(name: str) -> int:
    with torch.device("meta"):
        return parameter_count(ARCHITECTURES[name].trunk_of_experts())


@cache
def head_count(name: str, outputs: int) -> int:
    with torch.device("meta"):
        return parameter_count(ARCHITECTURES[name].head(outputs))


@cache
def branch_count(name: str, outputs: int) -> int:
    with torch.device("meta"):
        return parameter_count(ARCHITECTURES[name].branch(outputs))


def experts_count(name: str, specialty_sizes: Sequence[int]) -> int:
    return trunk_count(name) + sum(branch_count(name, size) for size in specialty_sizes)


# Sec. 1.7: name, C, K, generalist, base, trunk, one branch, network of experts. ImageNet's base has C = 1000.
TABLE = [
    ("alexnet-c100", 100, 10, 89_578, 181_828, 79_328, 105_034, 1_129_668),
    ("alexnet-quick-c100", 100, 10, 145_578, 151_428, 79_328, 119_562, 1_274_948),
    ("vgg11-c100", 100, 10, 7_580_746, 7_672_996, 2_325_568, 1_972_746, 22_053_028),
    ("nin-c100", 100, 10, 966_986, 984_356, 965_056, 370_954, 4_674_596),
    ("resnet56-c100", 100, 10, 13_586_506, 13_609_636, 13_583_936, 1_183_242, 25_416_356),
    ("alexnet-caffe", 1000, 10, 56_909_194, 60_965_224, 2_334_080, 3_807_588, 40_409_960),
    ("alexnet-caffe", 1000, 40, 57_032_104, 60_965_224, 2_334_080, 3_730_713, 151_562_600),
]


@pytest.mark.parametrize(
    ("name", "classes", "specialties", "generalist", "base", "trunk", "branch", "experts"),
    TABLE,
    ids=[f"{row[0]}-{row[2]}" for row in TABLE],
)
def test_counts_of_the_reference(
    name: str,
    classes: int,
    specialties: int,
    generalist: int,
    base: int,
    trunk: int,
    branch: int,
    experts: int,
) -> None:
    with torch.device("meta"):
        assert parameter_count(ARCHITECTURES[name].classifier(specialties)) == generalist
        assert parameter_count(ARCHITECTURES[name].classifier(classes)) == base
        assert parameter_count(ARCHITECTURES[name].trunk()) == trunk
    assert trunk_count(name) == trunk
    assert branch_count(name, classes // specialties) == branch
    assert experts_count(name, [classes // specialties] * specialties) == experts


@pytest.mark.parametrize(
    ("specialties", "experts"),
    [(2, 309_956), (5, 617_348), (10, 1_129_668), (20, 2_154_308), (50, 5_228_228)],
)
def test_alexnet_c100_counts_by_number_of_experts(specialties: int, experts: int) -> None:
    assert experts_count("alexnet-c100", [100 // specialties] * specialties) == experts


def test_imagenet_count_without_biases() -> None:
    with torch.device("meta"):
        architecture = ARCHITECTURES["alexnet-caffe"]
        trunk, branch = architecture.trunk(), architecture.branch(25)
    weights = [
        sum(p.numel() for name, p in part.named_parameters() if name.endswith("weight")) for part in (trunk, branch)
    ]
    assert weights[0] + 40 * weights[1] == 151_468_064


def conv(inputs: int, outputs: int, kernel: int, groups: int = 1) -> int:
    return inputs // groups * outputs * kernel**2 + outputs


def fc(inputs: int, outputs: int) -> int:
    return inputs * outputs + outputs


def residual_block(inputs: int, outputs: int) -> int:
    return 9 * inputs * outputs + 9 * outputs * outputs + 2 * 2 * outputs


ALEXNET_C100_TRUNK = conv(3, 32, 5) + conv(32, 32, 5) + conv(32, 64, 5)
VGG_TRUNK = (
    conv(3, 64, 3) + conv(64, 64, 3) + conv(64, 128, 3) + conv(128, 128, 3) + conv(128, 256, 3) + 3 * conv(256, 256, 3)
)
RESNET_TRUNK = (
    9 * 3 * 64
    + 2 * 64
    + 9 * residual_block(64, 64)
    + residual_block(64, 128)
    + 8 * residual_block(128, 128)
    + residual_block(128, 256)
    + 8 * residual_block(256, 256)
)
NIN_TRUNK = (
    conv(3, 192, 5)
    + conv(192, 160, 1)
    + conv(160, 96, 1)
    + conv(96, 192, 5)
    + conv(192, 192, 3)
    + 3 * conv(192, 192, 1)
)
CAFFE_TRUNK = conv(3, 96, 11) + conv(96, 256, 5, 2) + conv(256, 384, 3) + conv(384, 384, 3, 2) + conv(384, 256, 3, 2)

# The tables of Sec. 1.1 to 1.6 for any number of outputs n: trunk, head of n, branch of n.
FORMULAS = {
    "alexnet-c100": (
        ALEXNET_C100_TRUNK,
        lambda n: fc(1024, n),
        lambda n: conv(64, 64, 5) + fc(256, n),
    ),
    "alexnet-quick-c100": (
        ALEXNET_C100_TRUNK,
        lambda n: fc(1024, 64) + fc(64, n),
        lambda n: conv(64, 64, 5) + fc(256, 64) + fc(64, n),
    ),
    "vgg11-c100": (
        VGG_TRUNK,
        lambda n: fc(4096, 1024) + fc(1024, 1024) + fc(1024, n),
        lambda n: 2 * conv(256, 256, 3) + fc(1024, 512) + fc(512, 512) + fc(512, n),
    ),
    "nin-c100": (
        NIN_TRUNK,
        lambda n: conv(192, n, 1),
        lambda n: conv(192, 192, 3) + conv(192, 192, 1) + conv(192, n, 1),
    ),
    "resnet56-c100": (
        RESNET_TRUNK,
        lambda n: fc(256, n),
        lambda n: residual_block(256, 256) + fc(256, n),
    ),
    "alexnet-caffe": (
        CAFFE_TRUNK,
        lambda n: fc(9216, 4096) + fc(4096, 4096) + fc(4096, n),
        lambda n: conv(256, 256, 3, 2) + fc(2304, 1024) + fc(1024, 1024) + fc(1024, n),
    ),
}


@pytest.mark.parametrize("name", FORMULAS)
@given(specialty_sizes=st.lists(st.integers(1, 30), min_size=1, max_size=12))
def test_counts_follow_the_tables_for_any_partition(name: str, specialty_sizes: list[int]) -> None:
    trunk, head, branch = FORMULAS[name]
    classes, specialties = sum(specialty_sizes), len(specialty_sizes)
    assert trunk_count(name) == trunk
    assert head_count(name, classes) == head(classes)
    assert head_count(name, specialties) == head(specialties)
    assert experts_count(name, specialty_sizes) == trunk + sum(branch(size) for size in specialty_sizes)


def test_counts_of_a_narrower_and_shallower_resnet() -> None:
    with torch.device("meta"):
        small = resnet_trunk(blocks=2, width=16)
        assert small(torch.zeros(1, 3, 28, 28)).shape == (1, 64, 7, 7)
        assert parameter_count(resnet_branch(7, inputs=64)) == residual_block(64, 64) + fc(64, 7)
        assert parameter_count(resnet_head(7, inputs=64)) == fc(64, 7)


@pytest.mark.parametrize("name", ["alexnet-c100", "vgg11-c100", "resnet56-c100"])
def test_wider_bases_match_ten_experts_in_parameters_and_depth(name: str) -> None:
    experts = experts_count(name, [10] * 10)
    assert trunk_count(name) + head_count(f"{name}-wider", 100) == pytest.approx(experts, rel=0.01)
    assert layers_with_weights(f"{name}-wider") == layers_with_weights(name) + ADDED[name]


@pytest.mark.parametrize("name", ["alexnet-c100", "vgg11-c100"])
def test_maps_keep_their_scale_through_the_layers_of_deeper_bases(name: str) -> None:
    """Drawn like those of a branch, ten layers of AlexNet-C100 would leave a ten millionth of them."""
    torch.manual_seed(0)
    base = ARCHITECTURES[f"{name}-deeper"].classifier(100).eval()
    with torch.no_grad():
        maps = base.trunk(60 * torch.randn(16, 3, 32, 32))
        before = float(maps.square().mean().sqrt())
        for layer, module in base.head.named_children():
            maps = module(maps) if layer != "head" else maps
    assert 0.3 < float(maps.square().mean().sqrt()) / before < 3


@pytest.mark.parametrize("name", ["alexnet-c100", "vgg11-c100", "resnet56-c100"])
def test_deeper_bases_have_ten_times_the_convolutions_of_a_branch(name: str) -> None:
    assert layers_with_weights(f"{name}-deeper") == layers_with_weights(name) + 10 * ADDED[name]
    experts = experts_count(name, [10] * 10)
    assert trunk_count(name) + head_count(f"{name}-deeper", 100) == pytest.approx(experts, rel=0.12)


@pytest.mark.parametrize(
    ("name", "base", "added"),
    [
        ("alexnet-c100-conv4", "alexnet-c100", conv(64, 64, 5)),
        ("alexnet-caffe-conv6", "alexnet-caffe", conv(128, 256, 3)),
    ],
)
def test_bases_of_the_experts_depth_have_one_convolution_more(name: str, base: str, added: int) -> None:
    """AlexNet-Caffe's is in two groups, as in its branches."""
    assert layers_with_weights(name) == layers_with_weights(base) + 1
    assert head_count(name, 100) == head_count(base, 100) + added


ADDED = {"alexnet-c100": 1, "vgg11-c100": 2, "resnet56-c100": 2}  # convolutions of one branch


def layers_with_weights(name: str) -> int:
    with torch.device("meta"):
        base = ARCHITECTURES[name].classifier(100)
    return sum(isinstance(layer, torch.nn.Conv2d | torch.nn.Linear) for layer in base.modules())
