"""Linear layers of K experts as one: a batched product, on vectors (N, K, F) or tokens (N, K, T, F)."""

from collections.abc import Sequence
from functools import partial
from typing import Any, ClassVar, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nofe.architectures.packing import Computed, Freezable, product_with
from nofe.experts.stacked import StackedLayer


class BatchedLinear(StackedLayer, Freezable):
    flat = False
    kernels: ClassVar[tuple[str, ...]] = ("together", "product", "loop")

    def __init__(self, layers: Sequence[nn.Linear]) -> None:
        super().__init__(layers)
        self._frozen = False
        self._products: list[Computed] | None = None  # of one expert each, or of all at once

    def freeze(self) -> None:
        self._frozen, self._products = True, None

    def __getstate__(self) -> dict[str, Any]:
        """A copy may be trained: it is not frozen."""
        return self.__dict__ | {"_frozen": False, "_products": None}

    def _with(self, weights: Sequence[Tensor], vectors: int) -> Sequence[Computed]:
        if not self._frozen:
            return [partial(_linear, weight) for weight in weights]
        if self._products is None:
            self._products = [product_with(weight, vectors) for weight in weights]
        return self._products

    def forward(self, vectors: Tensor) -> Tensor:  # (N, K, F) or (N, K, T, F)
        if vectors.dim() == 3:
            return self._every(vectors)
        tokens = vectors.movedim(1, -2)  # (N, T, K, F)
        outputs: Tensor = self._every(tokens.flatten(0, -3)).unflatten(0, tokens.shape[:-2])  # (N, T, K, O)
        return outputs.movedim(-2, 1)

    def _every(self, vectors: Tensor) -> Tensor:  # (N, K, F)
        weight = cast(Tensor, self.weight)  # (K, O, F)
        if self.kernel == "loop":
            biases = [None] * self.experts if self.bias is None else self.bias.unbind()
            each = zip(self._with(weight.unbind(), len(vectors)), vectors.unbind(1), biases, strict=True)
            return torch.stack([product(own, bias) for product, own, bias in each], dim=1)  # (N, K, O)
        if self.kernel == "product":
            # The weights on the left: their gradient then comes in their own layout, and is not copied into it.
            columns = vectors.permute(1, 2, 0)  # (K, F, N)
            if self.bias is None:
                return torch.bmm(weight, columns).permute(2, 0, 1)
            return torch.baddbmm(self.bias[:, :, None], weight, columns).permute(2, 0, 1)
        product = _by_expert if self.training else _ByExpert.forward
        return product(vectors.transpose(0, 1), weight, self.bias).transpose(0, 1)  # (N, K, O)


def _linear(weight: Tensor, vectors: Tensor, bias: Tensor | None) -> Tensor:
    return F.linear(vectors, weight, bias)


def _by_expert(vectors: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    device = vectors.device.type
    if torch.is_autocast_enabled(device):  # inside the function nothing casts gradients
        kind = torch.get_autocast_dtype(device)
        vectors, weight, bias = vectors.to(kind), weight.to(kind), None if bias is None else bias.to(kind)
    outputs: Tensor = _ByExpert.apply(vectors, weight, bias)
    return outputs


class _ByExpert(torch.autograd.Function):
    """A linear layer for each expert. Torch's gradient of the weights comes transposed, and is copied into place."""

    generate_vmap_rule = True

    @staticmethod
    def forward(vectors: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:  # (K, N, F), (K, O, F), (K, O)
        if bias is None:
            return torch.bmm(vectors, weight.transpose(1, 2))  # (K, N, O)
        return torch.baddbmm(bias[:, None], vectors, weight.transpose(1, 2))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor | None], output: Tensor) -> None:
        ctx.save_for_backward(*inputs[:2])

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:  # (K, N, O)
        vectors, weight = ctx.saved_tensors
        to_vectors, to_weight, to_bias = ctx.needs_input_grad
        return (
            torch.bmm(gradient, weight) if to_vectors else None,
            torch.bmm(gradient.transpose(1, 2), vectors) if to_weight else None,
            gradient.sum(1) if to_bias else None,
        )


class SharedLinear(BatchedLinear):
    """On the trunk's own vectors (N, F) or tokens (N, T, F): one dense product."""

    kernels = ("together",)

    def forward(self, vectors: Tensor) -> Tensor:
        weight = cast(Tensor, self.weight).flatten(0, 1)
        [product] = self._with([weight], vectors.numel() // weight.shape[1])
        outputs = product(vectors, None if self.bias is None else self.bias.flatten())  # (N, ..., K*O)
        by_expert: Tensor = outputs.unflatten(-1, (self.experts, -1)).movedim(-2, 1)
        return by_expert  # (N, K, O) or (N, K, T, O)
