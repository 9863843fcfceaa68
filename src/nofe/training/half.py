"""Weights in bfloat16, all cast at once, or kept beside the others by the optimizer.

Autocast casts each weight on its own, and each gradient back: two tiny kernels for every layer at every step. Here a
handful of kernels cast them all, or none, where the kernel that steps them all does it in passing. The numbers are the
same ones, bit for bit.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from nofe.architectures.genuine import computes_as, is_linear_in_timm
from nofe.training.replica import Replica
from nofe.training.runtime import Runtime


def forward_of(
    model: nn.Module, runtime: Runtime, optimizer: torch.optim.Optimizer | None = None
) -> Callable[[Tensor], Tensor]:
    """The model as a function of images in the precision of the runtime, its gradients averaged over ranks.

    An optimizer that can keep weights in bfloat16 is asked to; the gradients are then left with those.
    """
    if runtime.ranks.count > 1:
        return Replica(model, runtime)
    if runtime.precision != "bf16":
        return model
    names = [
        f"{path}.{name}" if path else name
        for path, module in model.named_modules()
        if _is_cast_by_autocast(module)
        for name, weight in module.named_parameters(recurse=False)
        if weight.requires_grad  # or a frozen trunk would be differentiated for nothing
    ]
    keep_copies = getattr(optimizer, "keep_copies", None)
    kept = keep_copies([model.get_parameter(name) for name in names]) if keep_copies else None

    def forward(images: Tensor) -> Tensor:
        with runtime.autocast():
            halves = kept or _AllAtOnce.apply(*(model.get_parameter(name) for name in names))
            logits: Tensor = torch.func.functional_call(model, dict(zip(names, halves, strict=True)), (images,))
        return logits

    return forward


def _is_cast_by_autocast(module: nn.Module) -> bool:
    """Whether autocast would cast the weights of a module as they are; layers of our own say so themselves."""
    plain = computes_as(module, nn.Conv2d, nn.Linear) or is_linear_in_timm(module)
    return plain or getattr(module, "cast_by_autocast", False)


class _AllAtOnce(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *weights: Tensor) -> tuple[Tensor, ...]:
        ctx.set_materialize_grads(False)
        return _cast(weights, torch.bfloat16)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        there = [gradient for gradient in gradients if gradient is not None]
        cast = iter(_cast(there, torch.float32))
        return tuple(None if gradient is None else next(cast) for gradient in gradients)


def _cast(tensors: Any, kind: torch.dtype) -> tuple[Tensor, ...]:
    cast = [torch.empty_like(tensor, dtype=kind) for tensor in tensors]
    pairs = list(zip(cast, tensors, strict=True))
    alike = [(own, tensor) for own, tensor in pairs if own.stride() == tensor.stride()]
    if alike:
        torch._foreach_copy_([own for own, _ in alike], [tensor for _, tensor in alike])
    # A tensor with gaps (a compiled product is padded, and its gradient a slice) among the others would have all of
    # them copied one by one.
    for own, tensor in pairs:
        if own.stride() != tensor.stride():
            own.copy_(tensor)
    return tuple(cast)
