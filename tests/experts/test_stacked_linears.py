"""Linear layers of K experts as one give what each gives on its own."""

from typing import Any

import pytest
import torch
from torch import nn

from nofe.experts.stacked_linears import BatchedLinear, SharedLinear

OUTPUTS = (2, 6, 3)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("form", [(), (5,)], ids=["vectors", "tokens"])
@pytest.mark.parametrize(
    ("kind", "kernel"), [(kind, kernel) for kind in (BatchedLinear, SharedLinear) for kernel in kind.kernels]
)
def test_outputs_are_those_of_each_layer_and_zero_beyond_them(
    kind: type[Any], kernel: str, form: tuple[int, ...], bias: bool
) -> None:
    layers = [nn.Linear(4, outputs, bias=bias) for outputs in OUTPUTS]
    stacked = kind(layers)
    stacked.use(kernel, None)
    vectors = torch.randn(7, len(layers), *form, 4) if kind is BatchedLinear else torch.randn(7, *form, 4)
    for training in (True, False):
        every = stacked.train(training)(vectors)  # (N, K, ..., 6)
        assert every.shape == (7, len(layers), *form, max(OUTPUTS))
        for expert, layer in enumerate(layers):
            own = layer(vectors[:, expert] if kind is BatchedLinear else vectors)
            torch.testing.assert_close(every[:, expert, ..., : layer.out_features], own)
            assert not every[:, expert, ..., layer.out_features :].any()
