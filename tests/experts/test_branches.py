"""Branches that write over the map they are given, which is the trunk's, and the other experts' too."""

import copy
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from nofe.architectures import ARCHITECTURES, architecture_named
from nofe.experts.branches import Branches, may_write_over
from nofe.experts.fused import FusedExperts
from nofe.experts.network import NetworkOfExperts
from nofe.specialties import Specialties
from nofe.training.runtime import Runtime

SIZES = (3, 2, 4)


class AddsOne(nn.Module):
    def forward(self, features: Tensor) -> Tensor:
        return features.add_(1)


WRITING: dict[str, Callable[[], nn.Module]] = {
    "ReLU": lambda: nn.ReLU(inplace=True),
    "SiLU": lambda: nn.SiLU(inplace=True),
    "a user's code": AddsOne,
}


def branch(first: nn.Module, classes: int) -> nn.Module:
    return nn.Sequential(first, nn.Conv2d(4, 4, 3), nn.Flatten(), nn.Linear(4 * 36, classes))


@pytest.fixture(params=WRITING)
def network(request: pytest.FixtureRequest) -> NetworkOfExperts:
    torch.manual_seed(0)
    branches = [branch(WRITING[request.param](), size) for size in SIZES]
    return NetworkOfExperts(nn.Conv2d(3, 4, 1), branches, Specialties(np.repeat(np.arange(len(SIZES)), SIZES)))


def trained(network: NetworkOfExperts, logits: Callable[[Tensor], Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
    """The logits, and the gradients of a network by the names that weights have on disk."""
    network.train()
    images = torch.randn(5, 3, 8, 8, generator=torch.Generator().manual_seed(1))
    found = logits(images)
    found.square().sum().backward()
    return found, network.to_disk({name: weight.grad for name, weight in network.named_parameters()})


def assert_same(one: tuple[Tensor, dict[str, Tensor]], other: tuple[Tensor, dict[str, Tensor]]) -> None:
    torch.testing.assert_close(one[0], other[0])
    assert one[1].keys() == other[1].keys()
    for name, gradient in one[1].items():
        torch.testing.assert_close(gradient, other[1][name], atol=1e-4, rtol=1e-4, msg=name)


def each_with_a_map_of_its_own(network: NetworkOfExperts) -> tuple[Tensor, dict[str, Tensor]]:
    return trained(network, lambda images: torch.cat([each(network.trunk(images)) for each in network.experts], dim=1))


def test_no_expert_reads_what_another_wrote(network: NetworkOfExperts) -> None:
    expected = each_with_a_map_of_its_own(copy.deepcopy(network))
    assert isinstance(network.experts, Branches)
    assert_same(trained(network, network), expected)


def test_they_are_fused_for_a_training_all_the_same(
    network: NetworkOfExperts, caplog: pytest.LogCaptureFixture
) -> None:
    expected = each_with_a_map_of_its_own(copy.deepcopy(network))
    assert network.fuse()
    network.choose_kernels((5, 3, 8, 8), Runtime(torch.device("cpu"), kernels="together"), training=True)
    assert isinstance(network.experts, FusedExperts), caplog.text
    assert_same(trained(network, network), expected)


def test_each_expert_drops_in_place_what_is_its_own() -> None:
    network = NetworkOfExperts(
        nn.Identity(), [branch(nn.Dropout(0.5, inplace=True), 2) for _ in range(2)], Specialties(np.array([0, 0, 1, 1]))
    )
    before = copy.deepcopy(network.experts[0].state_dict())
    network.experts[1].load_state_dict(before)
    assert network.fuse()
    one, other = network.train()(torch.ones(3, 4, 8, 8)).chunk(2, dim=1)
    assert not torch.allclose(one, other), "they drop other numbers"


def test_fused_and_branches_that_write_can_be_timed(network: NetworkOfExperts, monkeypatch: pytest.MonkeyPatch) -> None:
    from nofe.experts import kernels

    network.fuse()
    monkeypatch.setattr(kernels, "choices_of_this_user", kernels.Choices)
    network.choose_kernels((5, 3, 8, 8), Runtime(torch.device("cpu")), training=True)
    network(torch.randn(5, 3, 8, 8)).sum().backward()


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_the_papers_branches_are_known_not_to_write(name: str) -> None:
    """Nothing is copied for them: the loop that speed is compared with does no more than it must."""
    assert not may_write_over(architecture_named(name).branch(3))
