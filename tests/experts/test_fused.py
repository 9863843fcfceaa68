"""The fused experts are the same function as the branches one after another, with the same gradients and statistics."""

import copy
import re
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from timm.layers import BatchNormAct2d, ScaledStdConv2d
from torch import Tensor, nn

import nofe
from nofe.architectures import ARCHITECTURES, architecture_named
from nofe.architectures.caffe import BatchNorm2d
from nofe.architectures.matched import MATCHED
from nofe.experts.branches import Branches
from nofe.experts.fused import FusedExperts, NotFusable, fuse
from nofe.experts.network import NetworkOfExperts, plant_experts
from nofe.specialties import Specialties, random_balanced

FEATURES = {
    "alexnet-c100": (64, 4, 4),
    "alexnet-quick-c100": (64, 4, 4),
    "vgg11-c100": (256, 4, 4),
    "nin-c100": (192, 6, 6),
    "resnet56-c100": (256, 7, 7),
    "alexnet-caffe": (256, 6, 6),
    "small": (64, 4, 4),
}
BALANCED, RAGGED = [4, 4, 4], [2, 5, 3]


class Trunkless(NetworkOfExperts):
    """Features in, so that the big trunks do not slow the test down."""

    def __init__(self, branches: list[nn.Module], sizes: list[int]) -> None:
        super().__init__(nn.Identity(), branches, Specialties(np.repeat(np.arange(len(sizes)), sizes)))


def without_dropout(module: nn.Module) -> None:
    for each in module.modules():
        if isinstance(each, nn.Dropout):
            each.p = 0.0


def pair(name: str, sizes: list[int]) -> tuple[NetworkOfExperts, NetworkOfExperts]:
    torch.manual_seed(0)
    reference = Trunkless([architecture_named(name).branch(size) for size in sizes], sizes).double()
    without_dropout(reference)
    torch.manual_seed(0)
    fused = Trunkless([architecture_named(name).branch(size) for size in sizes], sizes).double()
    without_dropout(fused)
    assert fused.fuse()
    return reference, fused


def test_every_architecture_is_covered() -> None:
    """A plain network of the experts' size has the branches of the one that it is made from."""
    assert FEATURES.keys() == ARCHITECTURES.keys() - {matched.name for matched in MATCHED}


@pytest.mark.parametrize("sizes", [BALANCED, RAGGED], ids=["balanced", "ragged"])
@pytest.mark.parametrize("name", FEATURES)
def test_same_outputs_gradients_and_statistics(name: str, sizes: list[int]) -> None:
    assert_same_function(*pair(name, sizes), FEATURES[name])


def assert_same_function(reference: NetworkOfExperts, fused: NetworkOfExperts, shape: tuple[int, ...]) -> None:
    features = torch.randn(5, *shape, dtype=torch.float64)
    labels = torch.randint(reference.specialties.classes, (5,))
    gradients = []
    for network in (reference, fused):
        network.train()
        given = features.clone().requires_grad_()
        logits = network(given)
        nn.functional.cross_entropy(logits, labels).backward()
        named = {n: p.grad for n, p in network.named_parameters()}
        gradients.append((logits.detach(), given.grad, network.to_disk(named)))
    (logits, to_trunk, own), (fused_logits, fused_to_trunk, fused_own) = gradients
    torch.testing.assert_close(fused_logits, logits)
    torch.testing.assert_close(fused_to_trunk, to_trunk)
    assert fused_own.keys() == own.keys()
    for parameter, gradient in own.items():
        torch.testing.assert_close(fused_own[parameter], gradient, msg=parameter)
    # Running statistics, and everything else that is saved, under the same names.
    saved, fused_saved = reference.state_dict(), fused.state_dict()
    assert saved.keys() == fused_saved.keys()
    for tensor in saved:
        torch.testing.assert_close(fused_saved[tensor], saved[tensor], msg=tensor)
    for network in (reference, fused):
        network.eval()
    torch.testing.assert_close(fused(features), reference(features))


@pytest.mark.parametrize("sizes", [BALANCED, RAGGED], ids=["balanced", "ragged"])
@pytest.mark.parametrize("name", ["resnet56-c100", "nin-c100", "vgg11-c100"])
def test_weights_travel_between_fused_and_reference(name: str, sizes: list[int]) -> None:
    reference, fused = pair(name, sizes)
    with torch.no_grad():
        for parameter in reference.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.01)
    fused.load_state_dict(reference.state_dict())
    features = torch.randn(2, *FEATURES[name], dtype=torch.float64)
    reference.eval(), fused.eval()
    torch.testing.assert_close(fused(features), reference(features))
    named = dict(reference.named_parameters())
    back = fused.to_disk(fused.from_disk(named))
    assert back.keys() == named.keys()
    assert all(torch.equal(back[name], named[name]) for name in named)
    fused.unfuse()
    assert isinstance(fused.experts, Branches)
    assert all(torch.equal(a, b) for a, b in zip(fused.parameters(), reference.parameters(), strict=True))


@pytest.mark.parametrize("name", ["small", "resnet56-c100"])
def test_experts_keep_the_precision_that_they_were_given_while_fused(name: str) -> None:
    _, fused = pair(name, RAGGED)
    fused.eval().float()
    features = torch.randn(2, *FEATURES[name])
    expected = fused(features)
    fused.unfuse()
    assert {tensor.dtype for tensor in fused.state_dict().values() if tensor.is_floating_point()} == {torch.float32}
    torch.testing.assert_close(fused(features), expected)


def test_weights_that_are_not_all_there_are_loaded_as_far_as_k_modules_would() -> None:
    """And what is wrong with them is told by the same names, whole networks of more or fewer classes included."""
    name, trained = "nin-c100", pair("nin-c100", RAGGED)[0]
    given = trained.state_dict()
    layer = next(key for key in given if key.startswith("experts.1.") and key.endswith("weight"))
    damaged = {
        "missing": {key: tensor for key, tensor in given.items() if key != layer},
        "unexpected": given | {"experts.0.more.weight": torch.ones(3), "experts.9.out": torch.ones(1)},
        "too small": given | {layer: torch.zeros(1, dtype=torch.float64)},
        "other sizes": pair(name, BALANCED)[0].state_dict(),
    }
    for kind, tensors in damaged.items():
        reference, fused = pair(name, RAGGED)
        told = []
        for network in (reference, fused):
            with pytest.raises(RuntimeError) as error:
                network.load_state_dict(tensors)
            lines = str(error.value).splitlines()
            told.append({(line.split()[0], at) for line in lines for at in re.findall(r"experts\.[\w.]+\w", line)})
        assert told[0] == told[1] != set(), kind
        features = torch.randn(2, *FEATURES[name], dtype=torch.float64)
        reference.eval(), fused.eval()
        torch.testing.assert_close(fused(features), reference(features), msg=kind)
        if "size" not in str(error.value):
            answers = [network.load_state_dict(tensors, strict=False) for network in (reference, fused)]
            assert [sorted(each) for each in answers[0]] == [sorted(each) for each in answers[1]], kind


def test_ragged_padding_never_learns() -> None:
    _, fused = pair("resnet56-c100", RAGGED)
    optimizer = torch.optim.SGD(fused.parameters(), lr=0.1, momentum=0.9, weight_decay=0.1)
    for _ in range(3):
        fused(torch.randn(4, 256, 7, 7, dtype=torch.float64)).logsumexp(1).sum().backward()
        optimizer.step()
    assert isinstance(fused.experts, FusedExperts)
    layer = fused.experts.graph.get_submodule("fc")
    for expert, size in enumerate(RAGGED):
        assert not layer.weight[expert, size:].any()
        assert not layer.bias[expert, size:].any()


def test_experts_drop_different_numbers() -> None:
    branches = Branches([nn.Sequential(nn.Dropout(0.5), nn.Flatten(), nn.Linear(64, 2)) for _ in range(2)])
    with torch.no_grad():
        for branch in branches:
            branch[2].weight.fill_(1)
    outputs = fuse(branches.train())(torch.ones(8, 4, 4, 4))  # (N, 4): two classes of each expert
    assert not torch.equal(outputs[:, 0], outputs[:, 2])


class Drops(nn.Module):
    """Numbers in, numbers out, with a dropout by a function on the way."""

    def __init__(self, drop: Callable[..., Tensor], place: str) -> None:
        super().__init__()
        self.drop, self.place = drop, place
        self.conv = nn.Conv2d(4, 4, 1, bias=False)
        self.out = nn.Linear(36, 36, bias=False)
        with torch.no_grad():
            self.conv.weight.copy_(torch.eye(4)[:, :, None, None])
            self.out.weight.copy_(torch.eye(36))

    def forward(self, maps: Tensor) -> Tensor:
        maps = self._dropped(maps, "the trunk's map")
        maps = self._dropped(self.conv(maps), "a map of each expert")
        maps = self._dropped(torch.cat([maps[:, :2], maps[:, 2:]], 1), "a part of each expert")
        return self.out(self._dropped(maps.flatten(1), "vectors"))

    def _dropped(self, values: Tensor, place: str) -> Tensor:
        return self.drop(values, 0.5, training=self.training) if place == self.place else values


PLACES = ["the trunk's map", "a map of each expert", "a part of each expert", "vectors"]


@pytest.mark.parametrize(
    ("drop", "place"), [*((F.dropout, place) for place in PLACES), *((F.dropout2d, place) for place in PLACES[:3])]
)
def test_dropout_by_a_function_is_each_experts_own_and_in_training_alone(
    drop: Callable[..., Tensor], place: str
) -> None:
    ones = torch.ones(64, 4, 3, 3)
    for mode in (True, False):
        fused = fuse(Branches([Drops(drop, place) for _ in range(2)]).train(mode))
        assert torch.equal(fused.eval()(ones), torch.ones(64, 72))
        dropped = fused.train()(ones).view(64, 2, 4, 9)  # images, experts, channels, pixels
        assert set(dropped.unique().tolist()) == {0.0, 2.0}
        assert 0.4 < dropped.mean() / 2 < 0.6
        whole_channels = torch.equal(dropped.amin(3), dropped.amax(3))
        assert whole_channels == (drop is F.dropout2d)
        one, other = dropped.unbind(1)
        assert not torch.equal(one, other)
        assert not torch.equal(one[:, 0], one[:, 1])


def test_multipliers_are_kept() -> None:
    from nofe.architectures.caffe import multipliers_of

    reference, fused = pair("alexnet-c100", RAGGED)
    of_expert = {n.split(".", 2)[2]: m for n, m in multipliers_of(reference).items() if n.startswith("experts.0.")}
    assert {n.removeprefix("experts.graph."): m for n, m in multipliers_of(fused).items()} == of_expert


class Twice(nn.Module):
    def forward(self, features: Tensor) -> Tensor:
        return features.cumsum(1)


class AlwaysDrops(nn.Module):
    def forward(self, features: Tensor) -> Tensor:
        return F.dropout(features)


class Shifts(nn.Module):
    def forward(self, features: Tensor) -> Tensor:
        return features + 1 if self.training else features


class HoldsMore(nn.Module):
    """Weights that no forward reads would be lost when the experts are taken apart again."""

    def __init__(self) -> None:
        super().__init__()
        self.spare = nn.Linear(2, 2)

    def forward(self, features: Tensor) -> Tensor:
        return features * 2


class Tied(nn.Module):
    """Two layers with one weight."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(4, 4, 1), nn.Conv2d(4, 4, 1)
        self.second.weight = self.first.weight

    def forward(self, features: Tensor) -> Tensor:
        return self.second(self.first(features))


class SometimesLeftOut(nn.Module):
    """By a number that is drawn as the code is followed: whether it shows in the graph is chance."""

    def __init__(self, share: float = 0.0) -> None:
        super().__init__()
        self.share = share
        self.conv = nn.Conv2d(4, 4, 1)

    def forward(self, features: Tensor) -> Tensor:
        return features if self.training and torch.rand(1).item() < self.share else self.conv(features)


class Scaled(nn.Module):
    """By a parameter that is called what the fused layer calls something else."""

    def __init__(self) -> None:
        super().__init__()
        self.kernel = nn.Parameter(torch.ones(4, 1, 1))

    def forward(self, features: Tensor) -> Tensor:
        return features * self.kernel


class ReadTwice(nn.Module):
    """A weight that its layer computes with, and that the code around it reads by name."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(4, 4, 1)

    def forward(self, features: Tensor) -> Tensor:
        return self.conv(features) * self.conv.bias.view(1, -1, 1, 1)


class NamedAlike(nn.Module):
    """Two layers whose paths, inner.act and inner_act, differ in a dot alone."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(OrderedDict(act=nn.LeakyReLU(0.5)))
        self.inner_act = nn.LeakyReLU(0.1)

    def forward(self, features: Tensor) -> Tensor:
        return self.inner_act(self.inner(features))


class AcrossChannels(nn.Identity):
    """Derived from a layer that leaves every channel alone, and does not."""

    def forward(self, features: Tensor) -> Tensor:
        return features.flip(1)


def hooked(layer: nn.Module) -> nn.Module:
    layer.register_forward_hook(lambda layer, inputs, maps: maps.abs())
    return layer


def hooked_backward(layer: nn.Module) -> nn.Module:
    layer.register_full_backward_hook(lambda layer, *gradients: None)
    return layer


def hooked_weight(layer: nn.Module, register: str) -> nn.Module:
    getattr(layer.get_parameter("weight"), register)(lambda seen: None)
    return layer


def ends_in_linear(**layers: nn.Module) -> nn.Module:
    return nn.Sequential(OrderedDict(layers, flatten=nn.Flatten(), fc=nn.Linear(64, 3)))


@pytest.mark.parametrize(
    ("branch", "layer"),
    [
        (lambda: ends_in_linear(odd=Twice()), "cumsum"),
        (lambda: ends_in_linear(norm=nn.InstanceNorm2d(4)), "norm"),
        (lambda: ends_in_linear(odd=AcrossChannels()), "odd .AcrossChannels"),
        (lambda: ends_in_linear(norm=BatchNormAct2d(4, act_layer=nn.PReLU)), "norm.act .PReLU, which has weights"),
        (lambda: ends_in_linear(conv=ScaledStdConv2d(4, 4, 1)), "conv .ScaledStdConv2d, with a forward of its own"),
        (lambda: ends_in_linear(odd=AlwaysDrops()), "dropout in odd"),
        (lambda: ends_in_linear(odd=Shifts()), "does something else in training: add in odd"),
        (lambda: ends_in_linear(odd=HoldsMore()), "odd.spare"),
        (lambda: ends_in_linear(odd=Tied()), "odd.second.weight .the same weight as odd.first.weight"),
        (lambda: ends_in_linear(conv=hooked(nn.Conv2d(4, 4, 1))), "conv .has a hook"),
        (lambda: ends_in_linear(conv=hooked_backward(nn.Conv2d(4, 4, 1))), "conv .has a hook"),
        (lambda: ends_in_linear(inner=hooked(nn.Sequential(nn.Conv2d(4, 4, 1)))), "inner .has a hook"),
        (lambda: ends_in_linear(norm=hooked(nn.LayerNorm([4, 4, 4]))), "norm .has a hook"),
        (lambda: ends_in_linear(inner=hooked_backward(nn.Sequential(nn.Conv2d(4, 4, 1)))), "inner .has a hook"),
        (
            lambda: ends_in_linear(conv=hooked_weight(nn.Conv2d(4, 4, 1), "register_hook")),
            r"conv\.weight .has a hook",
        ),
        (
            lambda: ends_in_linear(conv=hooked_weight(nn.Conv2d(4, 4, 1), "register_post_accumulate_grad_hook")),
            r"conv\.weight .has a hook",
        ),
        (lambda: hooked(ends_in_linear(conv=nn.Conv2d(4, 4, 1))), "the branch .has a hook"),
        (lambda: ends_in_linear(odd=Scaled()), "odd: kernel of Scaled"),
        (lambda: ends_in_linear(odd=ReadTwice()), r"odd\.conv\.bias .a weight that is read by name, too"),
        (lambda: ends_in_linear(odd=NamedAlike()), "odd.inner_act .a layer with a name that is taken"),
        (lambda: ends_in_linear(odd=SometimesLeftOut()), "odd .SometimesLeftOut: draws random numbers"),
        (lambda: ends_in_linear(**dict.fromkeys(("odd", "again"), nn.Conv2d(4, 4, 1))), "odd .*run twice"),
        (lambda: nn.Sequential(OrderedDict(conv=nn.Conv2d(4, 3, 3))), "output of a branch is maps"),
    ],
)
def test_what_cannot_be_fused_is_named_and_runs_through_the_reference(
    branch, layer: str, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(NotFusable, match=layer):
        fuse(Branches([branch() for _ in range(2)]))
    if layer != "output of a branch is maps":
        network = Trunkless([branch() for _ in range(2)], [3, 3])
        assert not network.fuse()
        assert re.search(layer, caplog.text)
        assert network(torch.randn(2, 4, 4, 4)).shape == (2, 6)


class Written(nn.Module):
    """Arithmetic of a user's own, on each number alone."""

    def forward(self, features: Tensor) -> Tensor:
        return torch.exp(-features.abs().clamp(max=2)) + F.softplus(torch.square(features))


OF_NUMBERS_AND_CHANNELS = (
    nn.CELU, nn.ELU, nn.GELU, nn.Hardshrink, nn.Hardsigmoid, nn.Hardswish, nn.Hardtanh, nn.LeakyReLU, nn.LogSigmoid,
    nn.Mish, nn.ReLU6, nn.SELU, nn.SiLU, nn.Softplus, nn.Softshrink, nn.Softsign, nn.Tanhshrink, Written,
    nn.PReLU, lambda: nn.PReLU(6), lambda: nn.LocalResponseNorm(3), lambda: nn.Threshold(0.1, 0.2),
)  # fmt: skip


@pytest.mark.parametrize("place", [0, 1, 3, 4], ids=["on the trunk's map", "on maps", "on vectors", "on logits"])
@pytest.mark.parametrize("layer", OF_NUMBERS_AND_CHANNELS)
@pytest.mark.filterwarnings("error")
def test_layers_of_each_number_or_of_neighbouring_channels_are_fused(
    layer: Callable[[], nn.Module], place: int
) -> None:
    if (place == 4 and isinstance(layer(), nn.PReLU)) or (place > 1 and isinstance(layer(), nn.LocalResponseNorm)):
        pytest.skip("there are no channels, or others for every expert")

    def branch(classes: int) -> nn.Module:
        layers = [nn.Conv2d(6, 6, 3), nn.Flatten(), nn.Linear(54, 6), nn.Linear(6, classes)]
        layers.insert(place, layer())
        if isinstance(layers[place], nn.PReLU):
            nn.init.uniform_(layers[place].weight)
        return nn.Sequential(*layers)

    reference = Trunkless([branch(size) for size in RAGGED], RAGGED).double()
    fused = copy.deepcopy(reference)
    assert fused.fuse()
    assert_same_function(reference, fused, (6, 5, 5))


@pytest.mark.parametrize("before", ["convolution", "nothing"])
def test_group_norms_are_one_with_the_groups_of_all(before: str) -> None:
    """On maps of their own; the trunk's map, which each normalises in its own way, is left to vmap."""

    def branch(classes: int) -> nn.Module:
        first = OrderedDict(conv=nn.Conv2d(4, 6, 3, padding=1)) if before == "convolution" else OrderedDict()
        norm = nn.GroupNorm(2, 6 if first else 4)
        nn.init.normal_(norm.weight), nn.init.normal_(norm.bias)
        layers = OrderedDict(**first, norm=norm, relu=nn.ReLU(), pool=nn.AdaptiveAvgPool2d(1), flatten=nn.Flatten())
        return nn.Sequential(OrderedDict(**layers, fc=nn.Linear(norm.num_channels, classes)))

    reference = Trunkless([branch(size) for size in RAGGED], RAGGED).double()
    fused = copy.deepcopy(reference)
    assert fused.fuse()
    stacked = [layer.num_groups for layer in fused.modules() if isinstance(layer, nn.GroupNorm)]
    assert stacked == ([2 * len(RAGGED)] if before == "convolution" else [])
    assert_same_function(reference, fused, (4, 5, 5))


def test_an_expert_that_is_frozen_stays_so() -> None:
    network = Trunkless([ends_in_linear(conv=nn.Conv2d(4, 4, 1)) for _ in range(2)], [3, 3])
    network.experts[0].requires_grad_(False)
    with pytest.raises(NotFusable, match=r"conv\.weight .frozen in some experts and not in others"):
        fuse(network.experts)


def test_a_hook_on_what_one_expert_runs_whole_is_not_lost() -> None:
    branches = [nn.Sequential(nn.Flatten(), nn.LayerNorm(6), nn.Linear(6, 2)) for _ in range(2)]
    fuse(Branches(branches))
    hooked(branches[1][1])
    with pytest.raises(NotFusable, match=r"1 \(has a hook"):
        fuse(Branches(branches))


def test_a_layer_that_is_frozen_in_every_expert_stays_so() -> None:
    def branch(classes: int) -> nn.Module:
        conv, norm, fc = nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4), nn.Linear(4, classes)
        pool = nn.AdaptiveAvgPool2d(1)
        layers = nn.Sequential(OrderedDict(conv=conv, norm=norm, pool=pool, flatten=nn.Flatten(), fc=fc))
        layers.get_submodule("conv").weight.requires_grad_(False)
        layers.get_submodule("norm").bias.requires_grad_(False)
        return layers

    network = Trunkless([branch(size) for size in RAGGED], RAGGED)
    before = copy.deepcopy(network.state_dict())
    assert network.fuse()
    assert sum(not parameter.requires_grad for parameter in network.parameters()) == 2
    network(torch.randn(8, 4, 5, 5)).sum().backward()
    optimizer = torch.optim.SGD([each for each in network.parameters() if each.requires_grad], lr=0.1)
    optimizer.step()
    network.unfuse()
    for name, tensor in network.named_parameters():
        is_frozen = name.endswith(("conv.weight", "norm.bias"))
        assert tensor.requires_grad != is_frozen, name
        if is_frozen or name.endswith("fc.bias"):
            assert torch.equal(tensor, before[name]) == is_frozen, name


def test_branches_that_differ_are_not_fused() -> None:
    one = nn.Sequential(nn.Flatten(), nn.Linear(64, 3))
    other = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, 3))
    with pytest.raises(NotFusable, match="not alike"):
        fuse(Branches([one, other]))


class Divided(nn.Module):
    def __init__(self, by: int) -> None:
        super().__init__()
        self.by = by

    def forward(self, features: Tensor) -> Tensor:
        return features / self.by


@pytest.mark.parametrize(
    "layer",
    [
        Divided,
        lambda size: nn.Dropout(size / 10),
        lambda size: nn.LeakyReLU(size / 10),
        lambda size: nn.ReLU() if size > 3 else nn.GELU(),
        lambda size: nn.Conv2d(4, 4, 3, padding=size, dilation=size),
        lambda size: nn.BatchNorm2d(4, momentum=size / 10),
        lambda size: nn.LayerNorm([4, 4, 4], eps=size / 10),
        lambda size: nn.BatchNorm2d(4).train(size > 3),
    ],
    ids=["constant", "dropout", "slope", "class", "dilation", "momentum", "run whole", "mode"],
)
def test_branches_that_their_factory_sets_by_their_number_of_classes_are_not_fused(
    layer: Callable[[int], nn.Module],
) -> None:
    """One graph, and most of its layers, are the first expert's: the others would silently compute what it does."""

    def branches(*settings: int) -> Branches:
        return Branches([ends_in_linear(first=nn.Conv2d(4, 4, 1), odd=layer(each)) for each in settings])

    fuse(branches(2, 2))
    with pytest.raises(NotFusable, match=r"set to something else in another expert|branches that are not alike"):
        fuse(branches(2, 4))


class Modes(nn.Module):
    """With a norm, a dropout as a layer and one by a function, and a block that is run whole."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.conv, self.norm, self.drop = nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4), nn.Dropout(0.5)
        self.inner, self.whole = DropsVectors(), Normalised("linear")
        self.out = nn.Linear(6, classes)

    def forward(self, features: Tensor) -> Tensor:
        maps = self.drop(self.norm(self.conv(features)))
        return self.out(self.whole(self.inner(maps.mean(3).flatten(1)[:, :6])))


class DropsVectors(nn.Module):
    def forward(self, vectors: Tensor) -> Tensor:
        return F.dropout(vectors, 0.5, self.training)


def test_layers_in_evaluation_mode_for_good_stay_so() -> None:
    """Such as norms that are to keep their statistics: fused, and one by one again."""
    reference = Trunkless([Modes(size) for size in RAGGED], RAGGED).double()
    reference(torch.randn(8, 4, 4, 4, dtype=torch.float64))  # so that there are statistics
    for branch in reference.experts:
        for layer in (branch.norm, branch.drop, branch.inner, branch.whole):
            layer.eval()
    fused = copy.deepcopy(reference)
    assert fused.fuse()
    assert fused.training
    features = torch.randn(8, 4, 4, 4, dtype=torch.float64)
    before = {name: tensor.clone() for name, tensor in reference.state_dict().items()}
    torch.testing.assert_close(fused(features), reference(features))
    torch.testing.assert_close(fused.state_dict(), before)
    fused.experts.graph.get_submodule("norm").train()
    fused.unfuse()
    assert all(branch.norm.training and not branch.whole.linear.training for branch in fused.experts)
    reference.experts[0].whole.train().norm.eval()
    with pytest.raises(NotFusable, match=r"whole .Normalised, which is set to something else"):
        fuse(reference.experts)
    for branch in reference.experts:
        branch.whole.train().norm.eval()
    with pytest.raises(NotFusable, match=r"whole .Normalised, a part of which is in another mode"):
        fuse(reference.experts)


def test_a_users_residual_branch_is_fused_without_new_code() -> None:
    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.Sequential(nn.Conv2d(4, 4, 3, padding=1), BatchNorm2d(4), nn.SiLU())
            self.pool = nn.AdaptiveAvgPool2d(1)
            self.out = nn.Linear(4, 3)

        def forward(self, features: Tensor) -> Tensor:
            return self.out(torch.flatten(self.pool(features + self.layers(features)), 1))

    branches = Branches([Block() for _ in range(3)]).double()
    features = torch.randn(6, 4, 5, 5, dtype=torch.float64)
    expected = branches(features)
    fresh = Branches([Block() for _ in range(3)]).double()
    fused = fuse(fresh)
    fused.load_state_dict({name: t for name, t in branches.state_dict().items() if "running" not in name}, strict=False)
    torch.testing.assert_close(fused(features), expected)


def gated_by_shape(layer: nn.Module, maps: Tensor) -> Tensor:
    images, channels = maps.shape[:2]
    return (maps * layer(maps.mean([-1, -2])).view(images, channels, 1, 1)).flatten(1)


def in_groups(layer: nn.Module, maps: Tensor) -> Tensor:
    images, channels, height, width = maps.shape
    groups = layer(maps).view(images, 2, channels // 2, height, width)
    return groups.transpose(1, 2).reshape(images, -1, height, width).flatten(1)


def squeezed_joined(layer: nn.Module, maps: Tensor) -> Tensor:
    squeezed = torch.cat([maps, 2 - maps], 1).mean((2, 3), keepdim=True)
    return layer(squeezed).flatten(1)


def written_over(layer: nn.Module, maps: Tensor) -> Tensor:
    more = layer(maps)
    more.add_(maps)
    return more.flatten(1)


def attended(layer: nn.Module, maps: Tensor) -> Tensor:
    """CBAM's channel attention, which runs its layers twice."""
    gate = torch.sigmoid(layer(F.adaptive_avg_pool2d(maps, 1)) + layer(F.adaptive_max_pool2d(maps, 1)))
    return (maps * gate).flatten(1)


Tail = Callable[[nn.Module, Tensor], Tensor]  # a layer and the maps (N, 6, 4, 5) of a branch, to vectors
TAILS: dict[str, tuple[Callable[[], nn.Module], Tail]] = {
    "gate by shape": (lambda: nn.Linear(6, 6), gated_by_shape),
    "gate by None": (
        lambda: nn.Linear(6, 6),
        lambda layer, maps: (maps * torch.sigmoid(layer(maps.amax((2, 3))))[:, :, None, None]).sum((2, 3)),
    ),
    "layer run twice": (lambda: nn.Conv2d(6, 6, 1), attended),
    "mask": (lambda: nn.Conv2d(6, 1, 1), lambda layer, maps: (maps * layer(maps)).flatten(1)),
    "mask that is added": (lambda: nn.Conv2d(6, 1, 1), lambda layer, maps: (layer(maps) + maps).flatten(1)),
    "groups": (lambda: nn.Conv2d(6, 6, 1), in_groups),
    "joined maps": (lambda: nn.Conv2d(6, 2, 1), lambda layer, maps: torch.cat([maps, layer(maps)], dim=1).flatten(1)),
    "squeezed joined maps": (lambda: nn.Conv2d(12, 2, 1), squeezed_joined),
    "written over": (lambda: nn.Conv2d(6, 6, 1), written_over),
    "mean by name": (nn.Identity, lambda layer, maps: torch.mean(maps, dim=[2, 3])),
    "mean from the end": (nn.Identity, lambda layer, maps: maps.mean([-1, -2])),
    "flattened pixels": (nn.Identity, lambda layer, maps: maps.flatten(2).mean(2)),
    "view": (nn.Identity, lambda layer, maps: maps.view(maps.size(0), -1)),
    "view of so many": (nn.Identity, lambda layer, maps: maps.view(-1, 120)),
    "view by sizes": (
        nn.Identity,
        lambda layer, maps: maps.view(maps.size(0), maps.size(1) * maps.size(2) * maps.size(3)),
    ),
    "pooling by sizes": (nn.Identity, lambda layer, maps: F.avg_pool2d(maps, maps.size()[2:]).view(maps.size(0), -1)),
    "by keyword": (nn.Identity, lambda layer, maps: torch.sigmoid(input=maps - 0.5).flatten(1)),
    "leaky": (nn.Identity, lambda layer, maps: F.leaky_relu(maps - 0.5, 0.1).flatten(1)),
}


class OwnResidual(nn.Module):
    def __init__(self, tail: str, classes: int) -> None:
        super().__init__()
        make, self.tail = TAILS[tail]
        self.conv = nn.Conv2d(6, 6, 3, padding=1)
        self.bn = nn.BatchNorm2d(6)
        self.layer = make()
        self.out = nn.Linear(self.tail(self.layer, torch.zeros(1, 6, 4, 5)).shape[1], classes)

    def forward(self, features: Tensor) -> Tensor:
        return self.out(self.tail(self.layer, F.relu(features + self.bn(self.conv(features)))))


@pytest.mark.parametrize("sizes", [BALANCED, RAGGED], ids=["balanced", "ragged"])
@pytest.mark.parametrize("tail", TAILS)
def test_what_a_users_residual_branch_may_end_with(tail: str, sizes: list[int]) -> None:
    torch.manual_seed(0)
    reference = Trunkless([OwnResidual(tail, size) for size in sizes], sizes).double()
    fused = copy.deepcopy(reference)
    assert fused.fuse()
    assert_same_function(reference, fused, (6, 4, 5))


@pytest.mark.parametrize("tail", TAILS)
def test_it_can_be_compiled_in_one_piece(tail: str) -> None:
    torch._dynamo.reset()
    fused = fuse(Branches([OwnResidual(tail, size) for size in RAGGED])).eval()
    features = torch.randn(5, 6, 4, 5)
    compiled = torch.compile(fused, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(features), fused(features))


class Normalised(nn.Module):
    """A block that vmap runs whole; its layer goes by any name."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.norm, self.name = nn.LayerNorm(6), name
        self.add_module(name, nn.Linear(6, 6))

    def forward(self, vectors: Tensor) -> Tensor:
        return getattr(self, self.name)(self.norm(vectors))


@pytest.mark.parametrize("name", ["own", "experts", "kind", "owners"])
def test_a_users_layer_may_be_called_what_something_of_ours_is(name: str) -> None:
    reference = Trunkless([nn.Sequential(nn.Flatten(), Normalised(name), nn.Linear(6, 4)) for _ in BALANCED], BALANCED)
    fused = copy.deepcopy(reference.double())
    assert fused.fuse()
    assert_same_function(reference, fused, (6, 1, 1))


class ScaledConvolution(nn.Module):
    """A convolution in a block that vmap runs whole, behind another one, as in ConvNeXt's stages."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.scale = nn.Conv2d(6, 6, 3, padding=1, groups=6), nn.Parameter(torch.ones(6, 1, 1))

    def forward(self, maps: Tensor) -> Tensor:
        return maps + self.scale * self.conv(maps)


def test_a_convolution_that_is_run_whole_reads_what_autocast_made_bfloat16() -> None:
    layers = [[nn.Conv2d(6, 6, 1), ScaledConvolution(), nn.Flatten(), nn.Linear(120, size)] for size in RAGGED]
    reference = Trunkless([nn.Sequential(*each) for each in layers], RAGGED)
    fused = copy.deepcopy(reference)
    assert fused.fuse()
    features = torch.randn(3, 6, 4, 5)
    outputs = []
    for network in (reference, fused):
        with torch.autocast("cpu", torch.bfloat16):
            outputs.append(network(features))
        outputs[-1].float().square().sum().backward()
    torch.testing.assert_close(outputs[1], outputs[0], rtol=0.05, atol=0.02)


class Cosines(nn.Linear):
    def forward(self, features: Tensor) -> Tensor:
        return F.linear(features, F.normalize(self.weight, dim=1), self.bias)


def test_what_a_linear_layer_of_the_users_own_computes_is_kept() -> None:
    def branches(sizes: list[int]) -> list[nn.Module]:
        return [nn.Sequential(nn.Flatten(), Cosines(6, 4), Cosines(4, size)) for size in sizes]

    reference = Trunkless(branches(BALANCED), BALANCED).double()
    fused = copy.deepcopy(reference)
    assert fused.fuse()
    assert_same_function(reference, fused, (6, 1, 1))
    with pytest.raises(NotFusable, match=r"2: weight of Cosines .*differs between experts"):
        fuse(Branches(branches(RAGGED)))


class Centred(nn.Module):
    def __init__(self, classes: int, by: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.out, self.by = nn.Linear(6, classes), by

    def forward(self, features: Tensor) -> Tensor:
        logits = self.out(features.mean((2, 3)))
        return logits - self.by(logits)


@pytest.mark.parametrize(
    ("by", "step"),
    [(lambda logits: logits.mean(1, keepdim=True), "mean"), (lambda logits: 1 / logits.size(1), "size")],
)
def test_what_depends_on_the_number_of_classes_is_fused_where_that_is_the_same(
    by: Callable[[Tensor], Tensor], step: str
) -> None:
    reference = Trunkless([Centred(size, by) for size in BALANCED], BALANCED).double()
    fused = copy.deepcopy(reference)
    assert fused.fuse()
    assert_same_function(reference, fused, (6, 4, 5))
    with pytest.raises(NotFusable, match=f"{step}.* differ"):
        fuse(Branches([Centred(size, by) for size in RAGGED]))


def test_fusing_leaves_the_branches_as_they_were() -> None:
    """A layer that is kept in evaluation, too, and nothing that following the code has left behind."""

    class Doubled(nn.Module):
        def forward(self, features: Tensor) -> Tensor:
            return features * torch.tensor(2.0)

    branches = Branches([nn.Sequential(nn.BatchNorm2d(4), Doubled(), nn.Flatten(), nn.Linear(64, 3)) for _ in range(2)])
    for branch in branches:
        branch[0].eval()
    before = [(module.training, set(vars(module))) for module in branches.modules()]
    with pytest.raises(NotFusable, match="a tensor that is no parameter"):
        fuse(branches)
    assert [(module.training, set(vars(module))) for module in branches.modules()] == before


def test_logits_are_in_class_order_whatever_the_partition() -> None:
    """Each expert's logits are its classes' numbers, so class c must come out as c."""
    rng = np.random.default_rng(0)
    for _ in range(5):
        specialties = random_balanced(11, 3, rng)
        branches = []
        for group in specialties.groups():
            layer = nn.Linear(1, len(group))
            with torch.no_grad():
                layer.weight.zero_()
                layer.bias.copy_(torch.tensor(group, dtype=torch.float32))
            branches.append(nn.Sequential(nn.Flatten(), layer))
        network = NetworkOfExperts(nn.Identity(), branches, specialties)
        for fuse_it in (False, True):
            if fuse_it:
                assert network.fuse()
            assert network(torch.zeros(2, 1)).tolist() == [list(range(11))] * 2


def test_only_experts_know_slots() -> None:
    """And the partition, which defines them; all others get logits in class order."""
    package = Path(nofe.__file__).parent
    sources = {path.relative_to(package): path.read_text() for path in package.rglob("*.py")}
    knowing = {path for path, text in sources.items() if re.search(r"slot_of_class|class_of_slot|\.experts\(", text)}
    assert {path for path in knowing if path.parts[0] != "experts"} == {Path("specialties/partition.py")}


def test_gradients_return_to_the_slot_of_their_class() -> None:
    specialties = Specialties([0, 2, 1, 2, 0, 2])
    network = plant_experts(architecture_named("alexnet-quick-c100"), specialties)
    slots = torch.randn(3, 6, requires_grad=True)
    network.trunk, network.experts = nn.Identity(), nn.Identity()  # type: ignore[assignment]
    wanted = torch.randn(3, 6)
    network(slots).backward(wanted)
    ours, slots.grad = slots.grad, None
    slots[:, network.slot_of_class].backward(wanted)
    torch.testing.assert_close(ours, slots.grad, rtol=0, atol=0)


def test_grown_trunk_is_the_generalists_and_branches_are_new() -> None:
    from nofe.experts.network import grow_experts

    architecture = architecture_named("alexnet-c100")
    generalist = architecture.classifier(3)
    specialties = random_balanced(9, 3, np.random.default_rng(0))
    network = grow_experts(architecture, specialties, generalist)
    for name, tensor in generalist.trunk.state_dict().items():
        assert torch.equal(network.trunk.state_dict()[name], tensor)
    planted = plant_experts(architecture, specialties)
    assert not torch.equal(planted.trunk.conv1.weight, generalist.trunk.conv1.weight)
