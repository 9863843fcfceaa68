"""The fused experts are the same function as the branches one after another, with the same gradients and statistics."""

from collections import OrderedDict

import numpy as np
import pytest
import torch
from torch import Tensor, nn

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
    reference, fused = pair(name, sizes)
    features = torch.randn(5, *FEATURES[name], dtype=torch.float64)
    labels = torch.randint(sum(sizes), (5,))
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


def test_multipliers_are_kept() -> None:
    from nofe.architectures.caffe import multipliers_of

    reference, fused = pair("alexnet-c100", RAGGED)
    of_expert = {n.split(".", 2)[2]: m for n, m in multipliers_of(reference).items() if n.startswith("experts.0.")}
    assert {n.removeprefix("experts.graph."): m for n, m in multipliers_of(fused).items()} == of_expert


class Twice(nn.Module):
    def forward(self, features: Tensor) -> Tensor:
        return features.cumsum(1)


@pytest.mark.parametrize(
    ("branch", "layer"),
    [
        (lambda: nn.Sequential(OrderedDict(odd=Twice(), flatten=nn.Flatten(), fc=nn.Linear(64, 3))), "cumsum"),
        (lambda: nn.Sequential(OrderedDict(norm=nn.InstanceNorm2d(4), flat=nn.Flatten(), fc=nn.Linear(64, 3))), "norm"),
        (lambda: nn.Sequential(OrderedDict(conv=nn.Conv2d(4, 3, 3))), "output of a branch is maps"),
    ],
)  # fmt: skip
def test_what_cannot_be_fused_is_named_and_runs_through_the_reference(
    branch, layer: str, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(NotFusable, match=layer):
        fuse(Branches([branch() for _ in range(2)]))
    if layer != "output of a branch is maps":
        network = Trunkless([branch() for _ in range(2)], [3, 3])
        assert not network.fuse()
        assert layer in caplog.text
        assert network(torch.randn(2, 4, 4, 4)).shape == (2, 6)


def test_branches_that_differ_are_not_fused() -> None:
    one = nn.Sequential(nn.Flatten(), nn.Linear(64, 3))
    other = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, 3))
    with pytest.raises(NotFusable, match="not alike"):
        fuse(Branches([one, other]))


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
