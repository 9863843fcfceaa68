"""What every architecture promises to the rest of nofe, and the parts that are their own: shortcut, names."""

import copy

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from nofe.architectures import (
    ARCHITECTURES,
    Architecture,
    Classifier,
    Multipliers,
    architecture_named,
    multipliers_of,
)
from nofe.architectures.matched import MATCHED
from nofe.architectures.resnet import ResidualBlock, identity_shortcut
from nofe.errors import UserError

IMAGE_AND_INPUT_SIZES = {
    "alexnet-c100": (32, 32),
    "alexnet-quick-c100": (32, 32),
    "vgg11-c100": (32, 32),
    "nin-c100": (32, 26),
    "resnet56-c100": (32, 28),
    "alexnet-caffe": (256, 227),
}


def images_for(architecture: Architecture, count: int = 2) -> Tensor:
    """Noise of the scale of pixels 0..255 minus their mean, which the fillers expect."""
    side = architecture.input_size
    return 60 * torch.randn(count, 3, side, side, generator=torch.Generator().manual_seed(1))


def test_the_six_networks_of_the_paper_are_there_by_name() -> None:
    others = {"small", *(matched.name for matched in MATCHED)}
    sizes = {name: (one.image_size, one.input_size) for name, one in ARCHITECTURES.items() if name not in others}
    assert sizes == IMAGE_AND_INPUT_SIZES
    assert all(architecture_named(name).name == name for name in ARCHITECTURES)
    assert len({one.summary for one in ARCHITECTURES.values()}) == len(ARCHITECTURES)


@pytest.mark.parametrize(
    ("name", "next_move"),
    [
        ("resnet-c100", "did you mean 'resnet56-c100'?"),
        ("AlexNet-C100", "did you mean 'alexnet-c100'?"),
        ("transformer", "choose from alexnet-c100, alexnet-quick-c100, vgg11-c100, nin-c100, "),
    ],
)
def test_an_unknown_name_is_answered_with_the_next_move(name: str, next_move: str) -> None:
    with pytest.raises(UserError) as error:
        architecture_named(name)
    assert str(error.value).startswith(f"architecture {name!r}: ")
    assert next_move in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("outputs", [1, 2, 13])
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_heads_and_branches_give_as_many_logits_as_asked(name: str, outputs: int) -> None:
    architecture = ARCHITECTURES[name]
    with torch.device("meta"):
        images = torch.zeros(3, 3, architecture.input_size, architecture.input_size)
        assert architecture.classifier(outputs)(images).shape == (3, outputs)
        assert architecture.branch(outputs)(architecture.trunk_of_experts()(images)).shape == (3, outputs)


@pytest.mark.parametrize("end", ["head", "branch"])
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_gradient_reaches_every_parameter(name: str, end: str) -> None:
    torch.manual_seed(0)
    architecture = ARCHITECTURES[name]
    if end == "head":
        model = architecture.classifier(5)
    else:
        model = Classifier(architecture.trunk_of_experts(), architecture.branch(5))
    logits = model(images_for(architecture))
    assert logits.shape == (2, 5)
    F.cross_entropy(logits, torch.tensor([0, 3])).backward()
    without = [
        parameter_name
        for parameter_name, parameter in model.named_parameters()
        if parameter.grad is None or not parameter.grad.any() or not parameter.grad.isfinite().all()
    ]
    assert not without


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_the_experts_trunk_loads_the_generalists_strictly(name: str) -> None:
    architecture = ARCHITECTURES[name]
    torch.manual_seed(0)
    generalist = architecture.classifier(10)
    torch.manual_seed(1)
    trunk = architecture.trunk_of_experts()
    assert not torch.equal(next(trunk.parameters()), next(generalist.trunk.parameters()))
    trunk.load_state_dict(generalist.trunk.state_dict(), strict=True)
    torch.testing.assert_close(trunk.state_dict(), generalist.trunk.state_dict(), rtol=0, atol=0)


def test_only_alexnet_c100_normalises_once_more_under_its_experts() -> None:
    for name, architecture in ARCHITECTURES.items():
        with torch.device("meta"):
            extra = {layer for layer, _ in architecture.trunk_of_experts().named_children()} - {
                layer for layer, _ in architecture.trunk().named_children()
            }
        assert extra == ({"norm3"} if name.startswith("alexnet-c100") else set())


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_parts_are_drawn_anew_from_the_global_generator(name: str) -> None:
    architecture = ARCHITECTURES[name]
    drawn = []
    for seed in (3, 3, 4):
        torch.manual_seed(seed)
        drawn.append(next(architecture.branch(2).parameters()))
    assert torch.equal(drawn[0], drawn[1])
    assert not torch.equal(drawn[0], drawn[2])


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_copies_keep_the_multipliers(name: str) -> None:
    with torch.device("meta"):
        model = ARCHITECTURES[name].classifier(3)
    assert multipliers_of(copy.deepcopy(model)) == multipliers_of(model)
    assert set(multipliers_of(model).values()) != {Multipliers()}


def test_nin_logits_are_averages_of_relu_outputs() -> None:
    torch.manual_seed(0)
    architecture = ARCHITECTURES["nin-c100"]
    trunk = architecture.trunk().eval()
    features = trunk(images_for(architecture))  # (N, 192, 6, 6)
    for end, last in ((architecture.head(20), "cccp6"), (architecture.branch(20), "cccp8")):
        before_relu: list[Tensor] = []
        end.get_submodule(last).register_forward_hook(lambda *call, kept=before_relu: kept.append(call[2]))
        logits = end(features)
        torch.testing.assert_close(logits, before_relu[0].clamp(min=0).sum((2, 3)) / 36)
        assert before_relu[0].min() < 0 < logits.max()


@pytest.mark.parametrize(("inputs", "outputs", "side"), [(64, 128, 28), (128, 256, 14), (3, 5, 7)])
def test_the_shortcut_is_a_1_by_1_convolution_with_identity_weights(inputs: int, outputs: int, side: int) -> None:
    frozen = nn.Conv2d(inputs, outputs, 1, stride=2, bias=False)
    with torch.no_grad():
        frozen.weight.copy_(torch.eye(outputs, inputs)[:, :, None, None])
    features = torch.randn(2, inputs, side, side, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(identity_shortcut(features, outputs, stride=2), frozen(features), rtol=0, atol=0)


@pytest.mark.parametrize(("inputs", "outputs", "stride"), [(4, 4, 1), (4, 8, 2)])
def test_a_residual_block_is_conv_bn_relu_conv_bn_add_relu(inputs: int, outputs: int, stride: int) -> None:
    torch.manual_seed(0)
    block = ResidualBlock(inputs, outputs, stride)
    with torch.no_grad():
        for norm in (block.bn1, block.bn2):
            norm.weight.normal_()
            norm.bias.normal_()
    features = torch.randn(3, inputs, 6, 6)

    def normalised(maps: Tensor, norm: nn.BatchNorm2d) -> Tensor:
        return F.batch_norm(maps, None, None, norm.weight, norm.bias, training=True, eps=1e-5)

    residual = normalised(F.conv2d(features, block.conv1.weight, stride=stride, padding=1), block.bn1).clamp(min=0)
    residual = normalised(F.conv2d(residual, block.conv2.weight, padding=1), block.bn2)
    shortcut = torch.zeros_like(residual)
    shortcut[:, :inputs] = features[:, :, ::stride, ::stride]
    torch.testing.assert_close(block(features), (residual + shortcut).clamp(min=0))


def test_a_residual_block_refuses_to_drop_channels() -> None:
    with pytest.raises(UserError, match="cannot take 8 channels to 4; pass outputs of 8 or more"):
        ResidualBlock(8, 4)
