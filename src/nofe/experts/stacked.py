"""Layers of K experts held and run as one. Weights of the K layers lie one after another in one tensor.

A map of all experts is (N, K*D, h, w), their vectors are (N, K, F). A layer whose number of outputs differs between
experts is padded with zeros to the largest: the padded outputs are never read, so they get no gradient and stay zero.
"""

from collections.abc import Sequence
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def stacked_tensor(parts: Sequence[Tensor]) -> Tensor:
    """(K, O, ...) from K tensors of (O_k, ...), padded with zeros to the largest O_k."""
    if all(part.shape == parts[0].shape for part in parts):
        return torch.stack(list(parts))
    largest = max(len(part) for part in parts)
    padded = [torch.cat([part, part.new_zeros(largest - len(part), *part.shape[1:])]) for part in parts]
    return torch.stack(padded)


class StackedLayer(nn.Module):
    """K layers as one. Each parameter is (K, O, ...), or (K*O, ...) if flat; `outputs` are the O_k of the experts."""

    flat = True
    cast_by_autocast = True  # convolutions and products: training casts all such weights at once

    def __init__(self, layers: Sequence[nn.Module]) -> None:
        super().__init__()
        self.experts = len(layers)
        self.outputs = [int(_outputs(layer)) for layer in layers]
        names = [name for name, _ in layers[0].named_parameters(recurse=False)]
        for name in names:
            parts = [cast(Tensor, getattr(layer, name)).detach() for layer in layers]
            stacked = stacked_tensor(parts)
            # A convolution's weight keeps four dimensions, which channels last needs.
            self.register_parameter(name, nn.Parameter(stacked.flatten(0, 1) if self.flat else stacked))
        if "bias" not in names:
            self.bias = None
        cast(Any, self).multipliers = getattr(layers[0], "multipliers", {})

    @property
    def largest(self) -> int:
        return max(self.outputs)


def _outputs(layer: nn.Module) -> int:
    return int(layer.weight.shape[0])  # type: ignore[index]


class SharedConvolution(StackedLayer):
    """The first convolution of every expert reads the same trunk map, so all K are one dense convolution."""

    def __init__(self, layers: Sequence[nn.Conv2d]) -> None:
        super().__init__(layers)
        self.settings = _settings(layers[0])
        self.groups = layers[0].groups

    def forward(self, features: Tensor) -> Tensor:  # (N, D, h, w)
        weight, bias = cast(Tensor, self.weight), self.bias  # (K*O, D / groups, kh, kw)
        if self.groups == 1:
            return F.conv2d(features, weight, bias, **self.settings)  # (N, K*O, h, w)
        # Torch wants the outputs of one group together: (groups, K, O / groups), and they are wanted by expert.
        per_group = weight.unflatten(0, (self.experts, self.groups, -1)).transpose(0, 1)  # (groups, K, O / groups, ...)
        maps = F.conv2d(features, per_group.flatten(0, 2), None, groups=self.groups, **self.settings)
        by_expert: Tensor = maps.unflatten(1, (self.groups, self.experts, -1)).transpose(1, 2).flatten(1, 3)
        return by_expert if bias is None else by_expert + bias[:, None, None]


class GroupedConvolution(StackedLayer):
    """A later convolution: each expert reads its own map."""

    def __init__(self, layers: Sequence[nn.Conv2d]) -> None:
        super().__init__(layers)
        self.settings = _settings(layers[0])
        self.groups = layers[0].groups

    def forward(self, maps: Tensor) -> Tensor:  # (N, K*D, h, w)
        groups = self.experts * self.groups
        return F.conv2d(maps, cast(Tensor, self.weight), self.bias, groups=groups, **self.settings)  # (N, K*O, h, w)


def _settings(layer: nn.Conv2d) -> dict[str, Any]:
    return {"stride": layer.stride, "padding": layer.padding, "dilation": layer.dilation}


class BatchedLinear(StackedLayer):
    flat = False

    def __init__(self, layers: Sequence[nn.Linear]) -> None:
        super().__init__(layers)

    def forward(self, vectors: Tensor) -> Tensor:  # (N, K, F)
        weight = cast(Tensor, self.weight).transpose(1, 2)  # (K, F, O)
        by_expert = vectors.transpose(0, 1)  # (K, N, F)
        if self.bias is None:
            return torch.bmm(by_expert, weight).transpose(0, 1)  # (N, K, O)
        return torch.baddbmm(self.bias[:, None], by_expert, weight).transpose(0, 1)


class SharedLinear(BatchedLinear):
    """A linear layer on the trunk's own vectors: one dense product."""

    def forward(self, vectors: Tensor) -> Tensor:  # (N, F)
        bias = None if self.bias is None else self.bias.flatten()
        outputs = F.linear(vectors, cast(Tensor, self.weight).flatten(0, 1), bias)
        by_expert: Tensor = outputs.unflatten(1, (self.experts, -1))
        return by_expert  # (N, K, O)
