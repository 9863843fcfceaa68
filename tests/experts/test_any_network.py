"""One contract over the kinds of networks that people bring: what every one of them must do as a network of experts."""

import copy
from collections import OrderedDict
from collections.abc import Callable
from functools import cache

import numpy as np
import pytest
import safetensors.torch
import timm
import torch
import torch.nn.functional as F
import torchvision
from torch import Tensor, nn
from torchvision.models.convnext import CNBlockConfig, ConvNeXt
from torchvision.models.efficientnet import EfficientNet, MBConvConfig

from nofe.architectures import Architecture
from nofe.architectures.adapt import adapted
from nofe.architectures.cifar import resnet18, wide_resnet
from nofe.architectures.pretrained import start_from
from nofe.data.batches import Augmentation, Batches, DeviceImages, pixel_mean
from nofe.data.dataset import ImageSet
from nofe.experts.branches import Branches
from nofe.experts.fused import FusedExperts
from nofe.experts.network import NetworkOfExperts, grow_experts, plant_experts
from nofe.frozen import FrozenNetwork
from nofe.specialties import Specialties
from nofe.training.loop import Objective, start_training, train_epoch
from nofe.training.progress import Silent
from nofe.training.recipe import Recipe
from nofe.training.runtime import Runtime

Build = Callable[[int], nn.Module]
RAGGED = Specialties(np.array([0, 1, 2, 1, 0, 1, 2, 1]))  # sizes 2, 4 and 2, and no specialty's classes in a row


class Residual(nn.Module):
    """A block of the user's own, with what a hand-written one may have: a gate, a scale, a function for ReLU."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, channels, 3, padding=1)
        self.norm = nn.GroupNorm(2, channels)
        self.gate = nn.Conv2d(channels, channels, 1)
        self.scale = nn.Parameter(torch.full((channels, 1, 1), 0.5))

    def forward(self, features: Tensor) -> Tensor:
        inside = torch.relu(self.norm(self.conv(features)))
        return features + self.scale * inside * torch.sigmoid(self.gate(inside.mean((2, 3), keepdim=True)))


class OwnResidual(nn.Module):
    def __init__(self, outputs: int) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, stride=2, padding=1)
        self.blocks = nn.ModuleList([Residual(8), Residual(8)])
        self.bn = nn.BatchNorm2d(8)
        self.out = nn.Linear(8, outputs)

    def forward(self, images: Tensor) -> Tensor:
        features = self.stem(images)
        for block in self.blocks:
            features = block(features)
        return self.out(self.bn(features).mean((2, 3)))


class SqueezeAndExcitation(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.avg_pool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Sequential(
            nn.Linear(channels, channels // 2, bias=False),
            nn.ReLU(inplace=True),
            nn.Linear(channels // 2, channels, bias=False),
            nn.Sigmoid(),
        )

    def forward(self, x: Tensor) -> Tensor:
        b, c, _, _ = x.size()
        y = self.avg_pool(x).view(b, c)
        y = self.fc(y).view(b, c, 1, 1)
        return x * y.expand_as(x)


class ExcitedBlock(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.bn = nn.BatchNorm2d(channels)
        self.se = SqueezeAndExcitation(channels)
        self.p = 0.2

    def forward(self, features: Tensor) -> Tensor:
        inside = F.dropout(self.se(self.bn(self.conv(features))), self.p, training=self.training)
        return F.relu(features + inside)


class OwnExcited(nn.Module):
    """Squeeze and excitation as it is written most often, with sizes unpacked, and dropout inside a block."""

    def __init__(self, outputs: int) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, stride=2, padding=1)
        self.layers = nn.Sequential(ExcitedBlock(8), ExcitedBlock(8))
        self.linear = nn.Linear(8, outputs)

    def forward(self, images: Tensor) -> Tensor:
        features = self.layers(self.stem(images))
        features = F.avg_pool2d(features, features.size()[2:])
        return self.linear(features.view(features.size(0), -1))


def own_sequential(outputs: int) -> nn.Module:
    return nn.Sequential(
        OrderedDict(
            conv1=nn.Conv2d(3, 8, 3, padding=1),
            relu1=nn.ReLU(),
            pool1=nn.MaxPool2d(2),
            conv2=nn.Conv2d(8, 12, 3, padding=1),
            bn2=nn.BatchNorm2d(12),
            relu2=nn.ReLU(),
            pool2=nn.MaxPool2d(2),
            flatten=nn.Flatten(),
            fc1=nn.Linear(12 * 8 * 8, 16),
            bn3=nn.BatchNorm1d(16),
            relu3=nn.ReLU(),
            drop=nn.Dropout(0.1),
            fc2=nn.Linear(16, outputs),
        )
    )


class OwnFunctional(nn.Module):
    """As in many a tutorial: functions for all that has no weights, and convolutions without padding."""

    def __init__(self, outputs: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 6, 5)
        self.conv2 = nn.Conv2d(6, 16, 5)
        self.fc1 = nn.Linear(16 * 5 * 5, 24)
        self.fc2 = nn.Linear(24, outputs)

    def forward(self, images: Tensor) -> Tensor:
        features = F.max_pool2d(F.relu(self.conv1(images)), 2)
        features = F.max_pool2d(F.relu(self.conv2(features)), 2)
        features = F.dropout(features.view(features.size(0), -1), 0.25, self.training)
        return self.fc2(F.dropout(F.relu(self.fc1(features)), p=0.5, training=self.training))


def of_timm(name: str, **settings: object) -> Build:
    return lambda outputs: timm.create_model(name, num_classes=outputs, **settings)


SMALL_RESNEXT = {"channels": (16, 32, 32, 64), "layers": (1, 1, 1, 2), "cardinality": 4, "base_width": 16}
SMALL_VIT = {"img_size": 32, "patch_size": 8, "embed_dim": 32, "depth": 2, "num_heads": 2}
# With the class of what a branch must begin with; a GraphModule is a convolution with what directly follows it.
NETWORKS: dict[str, tuple[Build, str]] = {
    "resnet": (of_timm("test_resnet"), "BasicBlock"),
    "resnet18-cifar": (lambda outputs: resnet18(outputs, width=4), "BasicBlock"),
    "resnext": (of_timm("resnext50_32x4d", **SMALL_RESNEXT), "Bottleneck"),
    "wide-resnet": (lambda outputs: wide_resnet(outputs, depth=10, width=1), "WideBlock"),
    "regnet": (of_timm("regnety_002"), "Bottleneck"),
    "vgg-with-batch-norm": (of_timm("vgg11_bn", mlp_ratio=0.004), "GraphModule"),
    "densenet": (
        lambda outputs: torchvision.models.DenseNet(8, (2, 2, 2), num_init_features=16, num_classes=outputs),
        "_DenseBlock",
    ),
    "mobilenet-v3": (of_timm("mobilenetv3_small_050"), "InvertedResidual"),
    "efficientnet": (of_timm("test_efficientnet"), "InvertedResidual"),
    "convnext": (of_timm("test_convnext"), "ConvNeXtBlock"),
    "convnext-of-torchvision": (
        lambda outputs: ConvNeXt([CNBlockConfig(16, 32, 1), CNBlockConfig(32, None, 2)], 0.4, num_classes=outputs),
        "CNBlock",
    ),
    "efficientnet-of-torchvision": (
        lambda outputs: EfficientNet(
            [MBConvConfig(2, 3, 2, 8, 16, 1, 1, 1), MBConvConfig(2, 3, 1, 16, 16, 2, 1, 1)],
            dropout=0.2,
            stochastic_depth_prob=0.4,
            last_channel=32,
            num_classes=outputs,
        ),
        "MBConv",
    ),
    "vision-transformer": (of_timm("vit_tiny_patch16_224", **SMALL_VIT), "Block"),
    "vision-transformer-of-torchvision": (
        lambda outputs: torchvision.models.VisionTransformer(32, 8, 2, 2, 32, 64, num_classes=outputs),
        "EncoderBlock",
    ),
    "own-sequential": (own_sequential, "GraphModule"),
    "own-functional": (OwnFunctional, "GraphModule"),
    "own-residual": (OwnResidual, "Residual"),
    "own-excited": (OwnExcited, "ExcitedBlock"),
}
every_network = pytest.mark.parametrize("name", NETWORKS)


@cache
def architecture(name: str) -> Architecture:
    return adapted(NETWORKS[name][0], name, 32)


def images(count: int = 4) -> Tensor:
    return torch.randn(count, 3, 32, 32, generator=torch.Generator().manual_seed(5)).double()


def shaken(model: nn.Module) -> nn.Module:
    """No weight at the zero that some begin with, where it would hide what stands behind it; nothing is dropped."""
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.05 * torch.randn(parameter.shape, generator=generator).to(parameter.dtype))
    for module in model.modules():
        for rate in ("p", "drop_prob"):
            if isinstance(getattr(module, rate, None), float):
                setattr(module, rate, 0.0)
    return model


def network_of(name: str, seed: int = 0) -> NetworkOfExperts:
    torch.manual_seed(seed)
    network = shaken(plant_experts(architecture(name), RAGGED)).double()
    assert isinstance(network, NetworkOfExperts)
    return network


@every_network
def test_a_branch_is_a_block_of_the_last_stage_and_what_the_model_ends_with(name: str) -> None:
    branch = architecture(name).branch(3)
    assert type(branch.block).__name__ == NETWORKS[name][1]
    layer = architecture(name).classifier_layer
    assert layer is not None
    assert len(branch.tail.get_submodule(layer()).weight) == 3


@every_network
def test_trunk_and_head_are_the_model_cut_in_two(name: str) -> None:
    """With the model's weights they compute what it does, so nothing is lost or doubled at the cut."""
    torch.manual_seed(0)
    model = shaken(NETWORKS[name][0](5)).double().eval()
    classifier = architecture(name).classifier(5).double().eval()
    start_from(classifier, model.state_dict(), architecture(name), "test")
    layer = architecture(name).classifier_layer
    assert layer is not None
    classifier.head.get_submodule(layer()).load_state_dict(model.get_submodule(layer()).state_dict())
    with torch.no_grad():
        torch.testing.assert_close(classifier(images()), model(images()))
    names = {name.removeprefix("trunk.").removeprefix("head.") for name in classifier.state_dict()}
    assert names == set(model.state_dict())


@every_network
def test_logits_are_in_class_order(name: str) -> None:
    network = network_of(name).eval()
    with torch.no_grad():
        logits = network(images())
        features = network.trunk(images())
        assert logits.shape == (4, RAGGED.classes)
        for branch, classes in zip(network.branches(), RAGGED.groups(), strict=True):
            torch.testing.assert_close(logits[:, list(classes)], branch(features))


@every_network
def test_fused_is_the_same_function_and_every_parameter_has_a_gradient(
    name: str, recwarn: pytest.WarningsRecorder
) -> None:
    reference = network_of(name).train()
    fused = copy.deepcopy(reference)
    assert fused.fuse()
    assert isinstance(fused.experts, FusedExperts)
    labels = torch.tensor([0, 1, 2, 3])
    found = []
    for network in (reference, fused):
        logits = network(images())
        nn.functional.cross_entropy(logits, labels).backward()
        found.append((logits.detach(), network.to_disk({n: p.grad for n, p in network.named_parameters()})))
    (logits, gradients), (fused_logits, fused_gradients) = found
    without = [n for n, g in gradients.items() if g is None or not g.any() or not g.isfinite().all()]
    assert not without
    torch.testing.assert_close(fused_logits, logits)
    assert fused_gradients.keys() == gradients.keys()
    for parameter, gradient in gradients.items():
        torch.testing.assert_close(fused_gradients[parameter], gradient, msg=parameter)
    saved, fused_saved = reference.state_dict(), fused.state_dict()
    assert fused_saved.keys() == saved.keys()
    for tensor in saved:  # the running statistics, too
        torch.testing.assert_close(fused_saved[tensor], saved[tensor], msg=tensor)
    reference.eval(), fused.eval()
    with torch.inference_mode():
        torch.testing.assert_close(fused(images()), reference(images()))
    assert not [each for each in recwarn if "performance drop" in str(each.message)]  # vmap in a loop is not fused


@pytest.mark.parametrize("kind", ["base", "branches", "fused"])
@every_network
def test_evaluation_gives_the_networks_own_answers(name: str, kind: str) -> None:
    """With batch norm folded: some layers do more than normalise."""
    network: nn.Module = network_of(name).float()
    if kind == "base":
        network = shaken(architecture(name).classifier(5))
    elif kind == "fused":
        assert isinstance(network, NetworkOfExperts)
        assert network.fuse()
    pictures = images().float()
    network.train()
    with torch.no_grad():
        for _ in range(2):  # running statistics that do something
            network(pictures)
    network.eval()
    with torch.no_grad():
        expected = network(pictures)
    found = FrozenNetwork(network, Runtime(torch.device("cpu")), len(pictures), 32)(pictures)
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-3 * float(expected.abs().max()))


def train_for_two_steps(network: NetworkOfExperts, runtime: Runtime) -> None:
    recipe = Recipe(epochs=1, batch=4, rate=1e-2, weight_decay=1e-3, augmentation=Augmentation(crop=32))
    rng = np.random.default_rng(0)
    pixels = ImageSet(rng.integers(0, 256, (8, 3, 32, 32), dtype=np.uint8), rng.integers(0, RAGGED.classes, 8))
    state = start_training("experts", network, recipe, 0, runtime)
    on_device = DeviceImages(pixels, pixel_mean(pixels), runtime.device)
    batches = Batches(on_device, recipe.augmentation, batch=4, seed=0, stage="experts")
    train_epoch(state, batches, Objective(torch.arange(RAGGED.classes)), runtime, Silent())


@every_network
def test_the_loop_trains_fused_experts_as_it_does_one_by_one(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In double, so that what differs is a mistake and no rounding."""
    monkeypatch.setattr(Runtime, "input_dtype", torch.float64)
    runtime = Runtime(torch.device("cpu"), kernels="together")
    trained = []
    for fused in (False, True):
        network = network_of(name)
        if fused:
            assert network.fuse()
            network.choose_kernels((4, 3, 32, 32), runtime, training=True)
            assert isinstance(network.experts, FusedExperts)
        train_for_two_steps(network, runtime)
        trained.append(network.state_dict())
    before, (reference, fused_weights) = network_of(name).state_dict(), trained
    assert any(not torch.equal(before[key], tensor) for key, tensor in reference.items())
    for key, tensor in reference.items():
        torch.testing.assert_close(fused_weights[key], tensor, rtol=1e-5, atol=1e-7, msg=key)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("name", ["convnext-of-torchvision", "efficientnet-of-torchvision"])
def test_experts_that_leave_out_images_are_trained_fused(name: str, precision: str) -> None:
    """Their layers draw in training alone, and are tried there, with nothing of the run changed by it."""
    torch.manual_seed(0)
    runtime = Runtime(torch.device("cpu"), precision, kernels="together")
    network = plant_experts(architecture(name), RAGGED)
    assert network.fuse()
    before = {key: tensor.clone() for key, tensor in network.state_dict().items()}
    generator = torch.get_rng_state()
    network.choose_kernels((4, 3, 32, 32), runtime, training=True)
    assert isinstance(network.experts, FusedExperts)
    assert torch.equal(torch.get_rng_state(), generator)
    assert all(torch.equal(tensor, before[key]) for key, tensor in network.state_dict().items())
    assert all(parameter.grad is None for parameter in network.parameters())
    train_for_two_steps(network, runtime)
    of_experts = [key for key in before if key.startswith("experts.") and key.endswith("weight")]
    after = network.state_dict()
    assert all(after[key].isfinite().all() for key in of_experts)
    assert any(not torch.equal(after[key], before[key]) for key in of_experts)


class DrawsInItsOwnWay(nn.Module):
    """Into a tensor that does not come from the features, so that vmap does not know whose it is."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(8, 1, 1))

    def forward(self, features: Tensor) -> Tensor:
        return features * self.scale * (torch.empty(1).bernoulli_(0.5) if self.training else 1)


@pytest.mark.parametrize("wrong", ["differs", "fails"])
def test_what_is_wrong_in_training_alone_is_noticed(
    wrong: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def branch(size: int) -> nn.Module:
        layer = DrawsInItsOwnWay() if wrong == "fails" else nn.ReLU()
        return nn.Sequential(layer, nn.Flatten(), nn.Linear(32, size))

    network = NetworkOfExperts(nn.Conv2d(3, 8, 16, stride=16), [branch(size) for size in (2, 4, 2)], RAGGED)
    assert network.fuse()
    forward = FusedExperts.forward
    if wrong == "differs":
        monkeypatch.setattr(
            FusedExperts, "forward", lambda self, maps: (1.1 if self.training else 1.0) * forward(self, maps)
        )
    runtime = Runtime(torch.device("cpu"), kernels="together")
    network.choose_kernels((2, 3, 32, 32), runtime, training=False)
    assert isinstance(network.experts, FusedExperts), "it is right in evaluation"
    generator = torch.get_rng_state()
    network.choose_kernels((2, 3, 32, 32), runtime, training=True)
    assert torch.equal(torch.get_rng_state(), generator)
    assert isinstance(network.experts, Branches)
    assert ("they differ (by" if wrong == "differs" else "they fail (vmap: Cannot ask for") in caplog.text
    assert len(caplog.records) == 1
    train_for_two_steps(network, runtime)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_fused_experts_that_are_right_are_used_in_every_precision(precision: str) -> None:
    network = network_of("resnet").float()
    assert network.fuse()
    runtime = Runtime(torch.device("cpu"), precision, kernels="together")
    network.choose_kernels((2, 3, 32, 32), runtime, training=True)
    assert isinstance(network.experts, FusedExperts)


@pytest.mark.parametrize("wrong", ["differs", "fails"])
def test_fused_experts_that_are_not_what_they_were_made_of_are_not_used(
    wrong: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A layer that a rule mistakes for another must cost time, not accuracy."""
    network = network_of("own-residual").float()
    assert network.fuse()
    features = network._example_features((2, 3, 32, 32), Runtime(torch.device("cpu")))
    with torch.no_grad():
        expected = network.eval().branches()(features)
    forward = FusedExperts.forward

    def other(self: FusedExperts, features: Tensor) -> Tensor:
        if wrong == "fails":
            raise RuntimeError("expected 8 channels, but got 2\nin all")
        return 1.1 * forward(self, features)

    monkeypatch.setattr(FusedExperts, "forward", other)
    network.choose_kernels((2, 3, 32, 32), Runtime(torch.device("cpu"), kernels="together"), training=True)
    assert isinstance(network.experts, Branches)
    torch.testing.assert_close(network.experts(features).detach(), expected)
    said = "they differ (by" if wrong == "differs" else "they fail (expected 8 channels, but got 2)"
    assert said in caplog.text


@every_network
def test_saved_fused_and_loaded_one_by_one(name: str) -> None:
    network = network_of(name, seed=0)
    network(images())  # statistics that are not those of the start
    network.eval().fuse()
    content = safetensors.torch.save({name: tensor.contiguous() for name, tensor in network.state_dict().items()})
    again = network_of(name, seed=1).eval()
    with torch.no_grad():
        expected = network(images())
        assert not torch.allclose(again(images()), expected)
        again.load_state_dict(safetensors.torch.load(content))
        torch.testing.assert_close(again(images()), expected)
        third = network_of(name, seed=2).eval()
        third.fuse()
        third.load_state_dict(safetensors.torch.load(content))
        torch.testing.assert_close(third(images()), expected)
    named = dict(again.named_parameters())
    there_and_back = third.to_disk(third.from_disk(named))  # as momentum goes through a checkpoint
    assert there_and_back.keys() == named.keys()
    assert all(torch.equal(there_and_back[parameter], named[parameter]) for parameter in named)


@every_network
def test_experts_grow_on_the_generalists_trunk_bit_for_bit(name: str) -> None:
    torch.manual_seed(0)
    generalist = architecture(name).classifier(RAGGED.count)
    generalist(images(2).float())
    network = grow_experts(architecture(name), RAGGED, generalist)
    trunk = network.trunk.state_dict()
    assert trunk.keys() == generalist.trunk.state_dict().keys()
    assert all(torch.equal(tensor, trunk[key]) for key, tensor in generalist.trunk.state_dict().items())
    first, second, *_ = network.branches()
    for one, other in zip(first.block.parameters(), second.block.parameters(), strict=True):
        assert one.dim() < 2 or len(one.unique()) == 1 or not torch.equal(one, other)  # each expert is drawn by itself
