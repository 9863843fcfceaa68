"""Layers that keep their weights packed compute what torch's own compute, with the weights they were frozen with."""

import copy
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nofe.architectures.packing import (
    Freezable,
    PackedConvolution,
    PackedLinear,
    convolution_with,
    freeze,
    pack_layers,
    product_with,
)
from nofe.experts.stacked_linears import BatchedLinear, SharedLinear

CLOSE = {torch.float32: 1e-5, torch.bfloat16: 0.02, torch.float64: 1e-10}


@pytest.mark.parametrize("kind", CLOSE)
@pytest.mark.parametrize("with_bias", [True, False])
def test_a_product_is_torchs_for_vectors_of_any_form(with_bias: bool, kind: torch.dtype) -> None:
    weight, bias = torch.randn(48, 32, dtype=kind), torch.randn(48, dtype=kind) if with_bias else None
    product = product_with(weight, 5)
    for vectors in (
        torch.randn(5, 32, dtype=kind),
        torch.randn(1, 32, dtype=kind),
        torch.randn(32, dtype=kind),
        torch.randn(0, 32, dtype=kind),
        torch.randn(2, 7, 32, dtype=kind),
        torch.randn(32, 5, dtype=kind).t(),
        torch.randn(3, 10, 32, dtype=kind)[:, 2],
    ):
        expected = F.linear(vectors, weight, bias)
        torch.testing.assert_close(product(vectors, bias), expected, rtol=CLOSE[kind], atol=10 * CLOSE[kind])


def test_what_is_packed_in_bfloat16_reads_float32_as_under_autocast() -> None:
    weight, vectors, taps, maps = torch.randn(6, 4), torch.randn(2, 4), torch.randn(6, 4, 3, 3), torch.randn(2, 4, 8, 8)
    with torch.autocast("cpu", torch.bfloat16):
        expected = F.linear(vectors, weight), F.conv2d(maps, taps)
        product, convolved = product_with(weight.bfloat16(), 2), convolution_with(taps.bfloat16(), maps.shape)
        found = product(vectors, None), convolved(maps, None)
    torch.testing.assert_close(found, expected, rtol=0.02, atol=0.02)


@pytest.mark.parametrize("supported", [True, False])
def test_weights_are_packed_in_a_precision_that_onednn_has(supported: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """An older processor has no products in bfloat16: torch's own layers answer there."""
    reordered: list[tuple[int, torch.dtype]] = []
    real = torch.ops.mkldnn

    def reorder(weight: Tensor, *how: Any) -> Tensor:
        reordered.append((weight.dim(), weight.dtype))
        return (real._reorder_convolution_weight if weight.dim() == 4 else real._reorder_linear_weight)(weight, *how)

    ops = SimpleNamespace(
        _is_mkldnn_bf16_supported=lambda: supported,
        _reorder_convolution_weight=reorder,
        _reorder_linear_weight=reorder,
        _convolution_pointwise=real._convolution_pointwise,
        _linear_pointwise=real._linear_pointwise,
    )
    monkeypatch.setattr("nofe.architectures.packing.torch.ops.mkldnn", ops)
    for kind in CLOSE:
        weight, maps = torch.randn(6, 4, 3, 3, dtype=kind), torch.randn(2, 4, 8, 8, dtype=kind)
        found = convolution_with(weight, maps.shape, padding=(1, 1))(maps, None)
        close: Any = {"rtol": CLOSE[kind], "atol": 10 * CLOSE[kind]}
        torch.testing.assert_close(found, F.conv2d(maps, weight, padding=1), **close)
        weight, vectors = torch.randn(6, 4, dtype=kind), torch.randn(2, 4, dtype=kind)
        torch.testing.assert_close(product_with(weight, 2)(vectors, None), F.linear(vectors, weight), **close)
    kinds = [torch.float32, torch.bfloat16][: 1 + supported]
    assert reordered == [(dimensions, kind) for kind in kinds for dimensions in (4, 2)]


def test_layers_that_compute_something_else_are_not_packed() -> None:
    class Cosines(nn.Linear):
        pass

    model = nn.Sequential(
        nn.Conv2d(3, 4, 3, padding=1),
        nn.Conv2d(4, 4, 3, padding=1, padding_mode="reflect"),
        nn.Linear(8, 2),
        Cosines(2, 2),
    )
    pack_layers(model)
    assert [type(layer) for layer in model] == [PackedConvolution, nn.Conv2d, PackedLinear, Cosines]


def test_a_packed_convolution_reads_maps_of_any_number_and_size_and_one_by_itself() -> None:
    plain = nn.Conv2d(3, 4, 3, stride=2, padding=1).requires_grad_(False)
    model = nn.Sequential(copy.deepcopy(plain))
    pack_layers(model)
    for shape in ((2, 3, 8, 8), (5, 3, 8, 8), (0, 3, 8, 8), (2, 3, 11, 7), (3, 8, 8)):
        maps = torch.randn(shape)
        torch.testing.assert_close(model(maps), plain(maps), rtol=1e-5, atol=1e-5)


def packed_linear() -> Freezable:
    model = nn.Sequential(nn.Linear(8, 6))
    pack_layers(model)
    layer: Any = model[0]
    return layer


def batched(kind: Any, kernel: str) -> Freezable:
    layer = kind([nn.Linear(8, outputs) for outputs in (2, 6, 3)])
    layer.use(kernel, None)
    return layer


@pytest.mark.parametrize(
    ("made", "shape"),
    [
        (packed_linear, (2, 8)),
        (lambda: batched(BatchedLinear, "loop"), (2, 3, 8)),
        (lambda: batched(BatchedLinear, "loop"), (2, 3, 5, 8)),
        (lambda: batched(SharedLinear, "together"), (2, 8)),
        (lambda: batched(SharedLinear, "together"), (2, 5, 8)),
    ],
)
def test_a_linear_layer_keeps_its_weights_from_when_it_is_frozen_until_it_is_again(
    made: Any, shape: tuple[int, ...]
) -> None:
    layer: Any = made()
    vectors, other = torch.randn(shape), torch.randn(4, *shape[1:])
    freeze(layer)
    with torch.inference_mode():
        first = layer(vectors)
    twin = copy.deepcopy(layer)
    with torch.no_grad():
        layer.weight.mul_(2)
        layer.bias.mul_(2)
    with torch.inference_mode():
        assert not torch.allclose(layer(vectors), 2 * first, rtol=1e-4, atol=1e-4)  # twice the bias alone
        freeze(layer)
        torch.testing.assert_close(layer(vectors), 2 * first)
        assert layer(other).shape == (4, *first.shape[1:])  # another number of vectors
        torch.testing.assert_close(layer(other)[:2], layer(other[:2]), rtol=1e-4, atol=1e-4)
    assert torch.equal(twin.weight * 2, layer.weight)
    with torch.no_grad():
        twin.weight.zero_()
        twin.bias.zero_()
        assert not twin(vectors).any(), "a copy answers with weights of its own"
    if not isinstance(twin, PackedLinear):
        assert twin(vectors).requires_grad  # a copy can be trained
