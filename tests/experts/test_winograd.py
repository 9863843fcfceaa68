"""Minimal filtering is the convolution; it is offered where weights are frozen and it fits, and follows the weights."""

import copy
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from test_fused import FEATURES, RAGGED, pair
from torch import Tensor, nn

from nofe.experts import kernels
from nofe.experts.fused import FusedExperts
from nofe.experts.kernels import Choices, choose_kernels, kernels_of, pin_kernels
from nofe.experts.stacked_convolutions import GroupedConvolution, SharedConvolution
from nofe.experts.winograd import Winograd
from nofe.training.runtime import Runtime

CPU = Runtime(torch.device("cpu"))


def convolved(maps: Tensor, weight: Tensor, bias: Tensor | None, padding: tuple[int, int], experts: int) -> Tensor:
    groups = maps.shape[1] // weight.shape[1]
    assert groups in (1, experts)
    return nn.functional.conv2d(maps, weight, bias, padding=padding, groups=groups)


@settings(max_examples=150)
@given(
    images=st.integers(1, 3),
    size=st.tuples(st.integers(1, 10), st.integers(1, 10)),
    padding=st.tuples(st.integers(0, 2), st.integers(0, 2)),
    experts=st.integers(1, 3),
    channels=st.tuples(st.integers(1, 4), st.integers(1, 5)),
    shared=st.booleans(),
    has_bias=st.booleans(),
    last=st.booleans(),
)
def test_minimal_filtering_is_the_convolution(
    images: int,
    size: tuple[int, int],
    padding: tuple[int, int],
    experts: int,
    channels: tuple[int, int],
    shared: bool,
    has_bias: bool,
    last: bool,
) -> None:
    padding = tuple(max(own, 1) if pixels < 3 else own for pixels, own in zip(size, padding, strict=True))  # type: ignore[assignment]
    inputs, outputs = channels
    torch.manual_seed(0)
    maps = torch.randn(images, inputs if shared else experts * inputs, *size, dtype=torch.float64)
    maps = maps.contiguous(memory_format=torch.channels_last) if last else maps
    weight = torch.randn(experts * outputs, inputs, 3, 3, dtype=torch.float64)
    bias = torch.randn(experts * outputs, dtype=torch.float64) if has_bias else None
    found = Winograd(weight, bias, experts, maps, padding, shared=shared)(maps)
    torch.testing.assert_close(found, convolved(maps, weight, bias, padding, experts), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("size", [(7, 7), (8, 8), (5, 6)])
def test_float32_rounds_to_a_hundred_thousandth_of_the_largest_output(size: tuple[int, int], shared: bool) -> None:
    """With the channels of ResNet56-C100; a direct convolution rounds to a millionth."""
    torch.manual_seed(0)
    experts, channels = 2, 256
    maps = torch.randn(4, channels if shared else experts * channels, *size).relu()
    weight = torch.randn(experts * channels, channels, 3, 3)
    exact = convolved(maps.double(), weight.double(), None, (1, 1), experts)
    found = Winograd(weight, None, experts, maps, (1, 1), shared=shared)(maps)
    assert float((found - exact).abs().max() / exact.abs().max()) < 1e-5


def layers(**settings: Any) -> list[nn.Conv2d]:
    return [nn.Conv2d(8, 6, **({"kernel_size": 3, "padding": 1} | settings)) for _ in range(3)]


@pytest.mark.parametrize("kind", [SharedConvolution, GroupedConvolution])
def test_offered_for_frozen_convolutions_of_three_by_three_alone(kind: type[SharedConvolution]) -> None:
    def offered(frozen: bool = True, **settings: Any) -> bool:
        return "winograd" in {name for name, _ in kind(layers(**settings)).candidates(frozen=frozen)}

    assert offered()
    assert offered(padding=0)
    assert not offered(frozen=False)
    for unlike in (
        {"stride": 2},
        {"dilation": 2},
        {"groups": 2},
        {"kernel_size": 5},
        {"kernel_size": 1},
        {"kernel_size": (1, 3)},
        {"padding": "same"},
    ):
        assert not offered(**unlike), unlike


def test_a_layer_keeps_nothing_of_its_weights_until_it_is_frozen_nor_past_it() -> None:
    maps = torch.randn(2, 8, 7, 7)

    def is_right(layer: SharedConvolution, maps: Tensor) -> bool:
        exact = convolved(maps, layer.weight, layer.bias, (1, 1), 3)
        return torch.allclose(layer(maps), exact, atol=1e-4)  # twice the weights are off by ones

    for kernel in ("together", "winograd"):
        layer = SharedConvolution(layers())
        layer.use(kernel, "last")
        with torch.no_grad():
            assert is_right(layer, maps)
            layer.weight.mul_(2)
            assert is_right(layer, maps)
            layer.freeze()
            assert is_right(layer, maps)
            twin = copy.deepcopy(layer)  # of what is packed, too
            layer.weight.mul_(2)
            assert not is_right(layer, maps)
            layer.freeze()
            assert is_right(layer, maps)
            assert is_right(layer, torch.randn(3, 8, 5, 6))  # maps of another size
            twin.weight.mul_(2)
            assert is_right(twin, maps)
        assert twin(maps).requires_grad  # a copy can be trained


def experts_of(name: str) -> FusedExperts:
    _, fused = pair(name, RAGGED)
    assert isinstance(fused.experts, FusedExperts)
    return fused.experts.float()


def test_measured_for_frozen_weights_and_never_for_training(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[set[str]] = []
    monkeypatch.setattr(kernels, "_fastest", lambda steps, *_: seen.append(set(steps)) or list(steps)[-1])
    features = torch.randn(2, *FEATURES["small"])
    made: dict[bool, dict[str, str]] = {}
    for training, frozen in ((True, False), (False, False), (False, True)):
        seen.clear()
        how: Any = {"training": training, "frozen": frozen, "remembered": Choices()}
        made[frozen] = choose_kernels(experts_of("small"), features, CPU, **how)
        assert any("winograd, channels last" in steps for steps in seen) is frozen
    assert not made[True].keys() & made[False].keys()  # what was chosen for other passes says nothing here


def test_a_pin_holds_where_a_layer_has_it_and_weights_are_frozen() -> None:
    experts = experts_of("nin-c100")
    pin_kernels(experts, "winograd", frozen=True)
    assert list(kernels_of(experts).values()) == ["winograd", "together", "together"]
    pin_kernels(experts, "winograd")
    assert set(kernels_of(experts).values()) == {"together"}
