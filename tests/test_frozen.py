"""A frozen network gives the answers of the network in evaluation mode, with its weights of now."""

import copy
import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch
from timm.layers import BatchNormAct2d, ScaledStdConv2d
from timm.models import levit
from torch import Tensor, fx, nn

from nofe.architectures import ARCHITECTURES, architecture_named
from nofe.architectures.caffe import BatchNorm2d
from nofe.architectures.folding import convolutions_with_norms
from nofe.architectures.modes import DependsOnMode, followed_in_both_modes
from nofe.architectures.packing import PackedConvolution, PackedLinear
from nofe.experts.network import plant_experts
from nofe.frozen import FrozenNetwork, frozen
from nofe.specialties import Specialties
from nofe.training.runtime import Runtime

CPU = Runtime(torch.device("cpu"))
RAGGED = Specialties(np.repeat(np.arange(3), [2, 4, 3]))
SMALL_NETWORKS = [name for name in ARCHITECTURES if name != "alexnet-caffe"]


def network_of(name: str, kind: str) -> nn.Module:
    torch.manual_seed(0)
    architecture = architecture_named(name)
    if kind == "base":
        return architecture.classifier(9)
    network = plant_experts(architecture, RAGGED)
    if kind == "fused":
        assert network.fuse()
    return network


def images_for(name: str, count: int = 5) -> Tensor:
    size = architecture_named(name).input_size
    return 60 * torch.randn(count, 3, size, size)


def trained_a_little(network: nn.Module, images: Tensor) -> None:
    """So that batch norm has statistics, and a scale and a shift that do something."""
    network.train()
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter) * parameter.abs().mean().clamp(min=1e-3))
        for _ in range(2):
            network(images)


def answers(network: nn.Module, images: Tensor) -> Tensor:
    twin = copy.deepcopy(network).eval()
    with torch.no_grad():
        return twin(images)


@pytest.mark.parametrize("kind", ["base", "branches", "fused"])
@pytest.mark.parametrize("name", SMALL_NETWORKS)
def test_the_answers_are_the_networks_own(name: str, kind: str) -> None:
    network, images = network_of(name, kind), images_for(name)
    trained_a_little(network, images)
    before = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    expected = answers(network, images)
    found = FrozenNetwork(network, CPU, len(images), images.shape[-1])(images)
    scale = float(expected.abs().max())
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-4 * scale)
    assert network.training
    assert all(torch.equal(tensor, before[name]) for name, tensor in network.state_dict().items())


@pytest.mark.parametrize("kind", ["base", "branches", "fused"])
@pytest.mark.parametrize("name", ["small", "resnet56-c100"])
def test_every_batch_norm_is_folded(name: str, kind: str) -> None:
    network = network_of(name, kind)
    norms = {path for path, module in network.named_modules() if isinstance(module, nn.BatchNorm2d)}
    assert {pair.norm for pair in convolutions_with_norms(network)} == norms


@pytest.mark.parametrize("kind", ["base", "branches", "fused"])
def test_what_was_prepared_follows_the_training(kind: str) -> None:
    network, images = network_of("small", kind), images_for("small")
    first = frozen(network, CPU, len(images), 32)
    first(images)
    for _ in range(2):
        trained_a_little(network, images)
        again = frozen(network, CPU, len(images), 32)
        assert again is first
        torch.testing.assert_close(again(images), answers(network, images), rtol=1e-3, atol=1e-3)


class Attending(nn.Module):
    """Attention of timm's LeViT, which keeps the biases that it looked up of its weights until `train` is called."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = levit.Attention(8, 4, num_heads=2, attn_ratio=1.0, resolution=(4, 4))
        nn.init.ones_(self.attention.proj.ln.bn.weight)  # timm begins with nothing of it

    def forward(self, maps: Tensor) -> Tensor:  # (N, 8, 4, 4)
        attended: Tensor = self.attention(maps.flatten(2).transpose(1, 2))
        return attended.mean(1)


def test_what_layers_keep_of_weights_follows_the_training_where_a_captured_pass_reads_it() -> None:
    network, images = nn.Sequential(nn.Conv2d(3, 8, 1), nn.BatchNorm2d(8), Attending()), torch.randn(5, 3, 4, 4)
    trained_a_little(network, images)
    first = frozen(network, CPU, len(images), 4)
    before = first(images)
    kept = first.network[2].attention.attention_bias_cache["cpu"]
    trained_a_little(network, images)
    with torch.no_grad():
        network[2].attention.attention_biases.normal_(0, 3)
    after = frozen(network, CPU, len(images), 4)(images)
    assert not torch.allclose(after, before, rtol=1e-2)
    torch.testing.assert_close(after, answers(network, images), rtol=1e-4, atol=1e-4)
    assert first.network[2].attention.attention_bias_cache["cpu"] is kept


def test_what_is_kept_while_code_is_followed_is_no_part_of_the_answer() -> None:
    """torch.fx computes nothing: what layers keep of that is no number, and cannot always be copied."""
    network, maps = Attending().eval(), torch.randn(5, 8, 4, 4)
    expected = answers(network, maps)
    with pytest.raises(DependsOnMode):
        followed_in_both_modes(network, fx.Tracer().trace)
    assert not network.attention.attention_bias_cache
    torch.testing.assert_close(answers(network, maps), expected)
    with_norm, images = nn.Sequential(nn.Conv2d(3, 8, 1), nn.BatchNorm2d(8), network).eval(), torch.randn(5, 3, 4, 4)
    ready = FrozenNetwork(with_norm, CPU, len(images), 4)
    assert not ready.network[2].attention.attention_bias_cache
    torch.testing.assert_close(ready(images), answers(with_norm, images))


@pytest.mark.parametrize("name", ["small", "resnet56-c100"])
def test_a_kernel_with_weights_of_its_own_answers_alike_and_follows_the_training(name: str) -> None:
    """Minimal filtering transforms the weights once for all passes, until they change."""
    network, images = network_of(name, "fused"), images_for(name, 3)
    ready = FrozenNetwork(network, dataclasses.replace(CPU, kernels="winograd"), len(images), images.shape[-1])
    kernels = [getattr(layer, "kernel", None) for layer in ready._network.modules()]
    assert kernels.count("winograd") == {"small": 1, "resnet56-c100": 2}[name]
    for _ in range(2):
        trained_a_little(network, images)
        ready.refresh(network)
        expected = answers(network, images)
        scale = float(expected.abs().max())
        for _ in range(2):
            torch.testing.assert_close(ready(images), expected, rtol=1e-3, atol=1e-4 * scale)


def test_weights_keep_their_form_for_a_compiler() -> None:
    runtime = dataclasses.replace(CPU, kernels="winograd", compile=True)
    ready = FrozenNetwork(network_of("small", "fused"), runtime, 5, 32)
    assert not any(isinstance(layer, PackedConvolution | PackedLinear) for layer in ready._network.modules())
    assert not any(getattr(layer, "kernel", None) == "winograd" for layer in ready._network.modules())


@pytest.mark.parametrize("kind", ["base", "branches", "fused"])
@pytest.mark.parametrize("name", SMALL_NETWORKS)
def test_in_bfloat16_a_processor_answers_as_without_packing_and_nearly_as_in_float32(name: str, kind: str) -> None:
    network, images = network_of(name, kind), images_for(name)
    trained_a_little(network, images)
    expected = answers(network, images)
    ready = FrozenNetwork(network, dataclasses.replace(CPU, precision="bf16"), len(images), images.shape[-1])
    found = ready(images)
    assert float((found - expected).abs().max() / expected.abs().max()) < 0.03
    packed = {PackedConvolution: nn.Conv2d, PackedLinear: nn.Linear}
    unpacked = [layer for layer in ready._network.modules() if type(layer) in packed]
    assert unpacked
    for layer in unpacked:
        layer.__class__ = packed[type(layer)]
    assert float((found - ready(images)).abs().max() / expected.abs().max()) < 0.02


@pytest.mark.parametrize("kernels", ["measure", "winograd"])
def test_winograd_s_kernel_is_too_coarse_for_bfloat16(
    kernels: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "nofe.experts.kernels._fastest",
        lambda steps, *_: next((name for name in steps if "winograd" in name or name == "fused"), next(iter(steps))),
    )
    monkeypatch.setattr("nofe.frozen.is_worth_measuring", lambda *_: True)
    monkeypatch.setenv("NOFE_CACHE", str(tmp_path))
    used = {}
    for precision in ("fp32", "bf16"):
        network = network_of("small", "fused")
        ready = FrozenNetwork(network, Runtime(CPU.device, precision, kernels=kernels), 5, 32)
        used[precision] = {getattr(layer, "kernel", None) for layer in ready._network.modules()}
    assert ("winograd" in used["fp32"], "winograd" in used["bf16"]) == (True, False)


@pytest.mark.parametrize("kind", ["base", "fused"])
def test_more_images_than_are_good_at_once_go_in_pieces(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    network, images = network_of("small", kind), images_for("small", 11)
    trained_a_little(network, images)
    monkeypatch.setattr("nofe.frozen.images_at_once", lambda *_: 4)
    ready = FrozenNetwork(network, CPU, 11, 32, at_once=11)
    given: list[int] = []
    ready._network.register_forward_pre_hook(lambda _, args: given.append(len(args[0])))
    torch.testing.assert_close(ready(images), answers(network, images), rtol=1e-3, atol=1e-3)
    assert given == [4, 4, 3]


def test_batches_of_any_size_answer_alike() -> None:
    """Also where passes have one shape each, as when they are compiled or captured."""
    network, images = network_of("small", "fused"), images_for("small", 11)
    trained_a_little(network, images)
    expected = answers(network, images)
    for runtime in (CPU, dataclasses.replace(CPU, compile=True)):
        ready = FrozenNetwork(network, CPU, 11, 32)
        ready._runtime = runtime  # the shapes of compiled passes, without waiting for a compiler
        for count in (1, 2, 3, 7, 8, 11):
            torch.testing.assert_close(ready(images[:count]), expected[:count], rtol=1e-3, atol=1e-3)


class Unfollowable(nn.Module):
    """Branches on a value, and calls one norm twice: neither may be folded."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 4, 3), BatchNorm2d(4)

    def forward(self, images: Tensor) -> Tensor:
        maps = self.norm(self.conv(images))
        return self.norm(maps if maps.sum() > 0 else -maps).mean((2, 3))


class Shared(Unfollowable):
    """The convolution is read twice."""

    def forward(self, images: Tensor) -> Tensor:
        maps = self.conv(images)
        return (self.norm(maps) + maps).mean((2, 3))


@pytest.mark.parametrize("kind", [Unfollowable, Shared])
def test_what_cannot_be_folded_runs_all_the_same(kind: type[nn.Module]) -> None:
    network, images = kind(), torch.randn(3, 3, 8, 8)
    trained_a_little(network, images)
    assert convolutions_with_norms(network) == []
    torch.testing.assert_close(FrozenNetwork(network, CPU, 3, 8)(images), answers(network, images))


class NormAndSquare(nn.BatchNorm2d):
    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input).square()


class StandardisedConvolution(nn.Conv2d):
    """Undoes whatever factor its weight is given."""

    def forward(self, input: Tensor) -> Tensor:
        weight = self.weight / self.weight.flatten(1).std(1).view(-1, 1, 1, 1)
        return nn.functional.conv2d(input, weight, self.bias, self.stride, self.padding)


class TwoNames(nn.Module):
    """One norm under two names, called twice."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = (nn.Conv2d(3, 3, 3, padding=1) for _ in range(2))
        self.norm1 = self.norm2 = nn.BatchNorm2d(3)

    def forward(self, images: Tensor) -> Tensor:
        return self.norm2(self.conv2(self.norm1(self.conv1(images)))).mean((2, 3))


class OneWeight(nn.Module):
    """Two convolutions with one weight, and a norm of its own behind each."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = (nn.Conv2d(3, 3, 3, padding=1, bias=False) for _ in range(2))
        self.conv2.weight = self.conv1.weight
        self.norm1, self.norm2 = nn.BatchNorm2d(3), nn.BatchNorm2d(3)

    def forward(self, images: Tensor) -> Tensor:
        return self.norm2(self.conv2(self.norm1(self.conv1(images)).relu())).mean((2, 3))


class WeightReadTwice(nn.Module):
    """By the convolution, and by name; layers are called by keyword."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 6, 3, bias=False), nn.BatchNorm2d(6)

    def forward(self, images: Tensor) -> Tensor:
        again = nn.functional.conv2d(images, self.conv.weight)
        return (self.norm(input=self.conv(input=images)) + again).mean((2, 3))


class NormReadByName(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 6, 3, bias=False), nn.BatchNorm2d(6)

    def forward(self, images: Tensor) -> Tensor:
        return self.norm(self.conv(images)).mean((2, 3)) * self.norm.weight + self.norm.running_mean


class NormSettingsReadByName(NormReadByName):
    """As code does that folds its norm itself; by sizes that torch.fx cannot follow, or that it can."""

    def __init__(self, followed: bool) -> None:
        super().__init__()
        self.followed = followed

    def forward(self, images: Tensor) -> Tensor:
        norm, sizes = self.norm, (-1 if self.followed else len(images), self.norm.num_features)
        if self.training or not isinstance(norm, nn.BatchNorm2d):
            return norm(self.conv(images)).mean((2, 3)).view(sizes)
        statistics = norm.running_mean, norm.running_var, norm.weight, norm.bias
        maps = nn.functional.batch_norm(self.conv(images), *statistics, norm.training, norm.momentum, norm.eps)
        return maps.mean((2, 3)).view(sizes)


class FoldedNormSettingsReadByName(NormReadByName):
    def forward(self, images: Tensor) -> Tensor:
        return self.norm(self.conv(images)).mean((2, 3)).view(-1, self.norm.num_features) * self.norm.eps


def hooked(layer: nn.Module) -> nn.Module:
    layer.register_forward_hook(lambda layer, inputs, maps: maps.relu())
    return layer


def summed(*layers: nn.Module) -> nn.Module:
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten())


OF_THEIR_OWN = {
    "norm": lambda: summed(nn.Conv2d(3, 6, 3), NormAndSquare(6)),
    "norm with an activation that has weights": lambda: summed(
        nn.Conv2d(3, 6, 3), BatchNormAct2d(6, act_layer=nn.PReLU, inplace=False)
    ),
    "norm with an activation, alone": lambda: summed(BatchNormAct2d(3), nn.Conv2d(3, 6, 3)),
    "convolution": lambda: summed(StandardisedConvolution(3, 6, 3), nn.BatchNorm2d(6)),
    "convolution of timm": lambda: summed(ScaledStdConv2d(3, 6, 3), nn.BatchNorm2d(6)),
    "weight by norm and direction": lambda: summed(
        nn.utils.parametrizations.weight_norm(nn.Conv2d(3, 6, 3)), nn.BatchNorm2d(6)
    ),
    "two names": TwoNames,
    "one weight": OneWeight,
    "weight read twice": WeightReadTwice,
    "norm read by name": NormReadByName,
    "settings of a norm read by name": lambda: NormSettingsReadByName(followed=True),
    "settings of a norm read by name, not followed": lambda: NormSettingsReadByName(followed=False),
    "settings of a folded norm read by name": FoldedNormSettingsReadByName,
    "hook on the convolution": lambda: summed(hooked(nn.Conv2d(3, 6, 3)), nn.BatchNorm2d(6)),
    "hook on the norm": lambda: summed(nn.Conv2d(3, 6, 3), hooked(nn.BatchNorm2d(6))),
}


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("kind", OF_THEIR_OWN)
def test_layers_that_compute_more_than_their_class_says_answer_as_they_do(kind: str, precision: str) -> None:
    network, images = OF_THEIR_OWN[kind](), torch.randn(4, 3, 8, 8)
    trained_a_little(network, images)
    ready = FrozenNetwork(network, dataclasses.replace(CPU, precision=precision), 4, 8)
    for _ in range(2):
        expected = answers(network, images)
        near = {"rtol": 1e-4, "atol": 1e-5} if precision == "fp32" else {"rtol": 0.05, "atol": 0.05}
        torch.testing.assert_close(ready(images), expected, **near)
        trained_a_little(network, images)
        ready.refresh(network)


def test_an_activation_inside_a_norm_stays_where_the_norm_is_folded() -> None:
    network = summed(nn.Conv2d(3, 6, 3), BatchNormAct2d(6))
    assert [pair.norm for pair in convolutions_with_norms(network)] == ["1"]


def test_a_network_that_is_gone_leaves_nothing_behind() -> None:
    import gc
    import weakref

    network = network_of("small", "base")
    prepared = weakref.ref(frozen(network, CPU, 4, 32))
    del network
    gc.collect()
    assert prepared() is None
