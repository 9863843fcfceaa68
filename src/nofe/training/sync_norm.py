"""Batch norm over the images of all ranks, for networks whose share of a batch is too small to normalise by.

torch's own SyncBatchNorm does not know Caffe's running statistics, is another class than `experts/rules.py` looks
for, and runs on GPUs alone. Here the layers stay what they are, and only their forward in training is another.
"""

from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nofe.architectures.caffe import BatchNorm2d
from nofe.architectures.genuine import computes_as, is_norm_with_activation
from nofe.errors import UserError
from nofe.training.ranks import Ranks

KNOWN = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, BatchNorm2d)


def synchronise_batch_norm(model: nn.Module, ranks: Ranks) -> None:
    """In place, until the end of the process; names, weights and buffers stay as they are."""
    if ranks.count == 1:
        return
    forward = torch.compiler.disable(_forward)  # a compiler cannot look into what ranks tell each other
    for path, module in model.named_modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm) and module.affine and module.track_running_stats:
            if not (computes_as(module, *KNOWN) or is_norm_with_activation(module)):
                raise UserError(
                    f"--sync-batch-norm: {path} ({type(module).__name__}) has a forward of its own, which cannot be "
                    "synchronised; leave the option out"
                )
            module.forward = partial(forward, module, ranks)  # type: ignore[method-assign]


def _forward(norm: nn.modules.batchnorm._BatchNorm, ranks: Ranks, features: Tensor) -> Tensor:  # (B, D, h, w)
    if not norm.training:
        return type(norm).forward(norm, features)
    assert norm.running_mean is not None
    assert norm.running_var is not None
    assert norm.num_batches_tracked is not None
    normalised, mean, variance = _Normalise.apply(features, norm.weight, norm.bias, norm.eps, ranks)
    with torch.no_grad():
        if getattr(norm, "counts_steps", True):  # Caffe's may be counted for
            norm.num_batches_tracked.add_(1)
        momentum = 1.0 / int(norm.num_batches_tracked) if norm.momentum is None else norm.momentum
        numbers = ranks.count * features.numel() // features.shape[1]  # a channel, of all ranks
        norm.running_mean.lerp_(mean, momentum)
        norm.running_var.lerp_(variance * (numbers / max(numbers - 1, 1)), momentum)
    if is_norm_with_activation(norm):
        for follows in norm.children():
            normalised = follows(normalised)
    return normalised  # type: ignore[no-any-return]


class _Normalise(torch.autograd.Function):
    """Normalise by the mean and variance of all ranks' images; every rank has as many."""

    @staticmethod
    def forward(
        ctx: Any, features: Tensor, weight: Tensor, bias: Tensor, eps: float, ranks: Ranks
    ) -> tuple[Tensor, Tensor, Tensor]:
        over = _all_but_channels(features)
        own = torch.stack(torch.var_mean(_exact(features), over, correction=0))  # (2, D): variance, mean
        variances, means = ranks.gather(own).unbind(1)  # (ranks, D) each
        mean = means.mean(0)  # (D,)
        # Of the shares, and between them: E[x^2] - E[x]^2 would lose digits where the mean is large.
        variance = (variances + (means - mean).square()).mean(0)
        ctx.save_for_backward(features, weight, mean, (variance + eps).rsqrt())
        ctx.ranks = ranks
        ctx.mark_non_differentiable(mean, variance)
        return F.batch_norm(features, mean, variance, weight, bias, False, 0.0, eps), mean, variance

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, Tensor, None, None]:
        features, weight, mean, scale = ctx.saved_tensors
        over = _all_but_channels(features)
        shape = [-1 if dimension == 1 else 1 for dimension in range(features.dim())]
        gradient = _exact(gradients[0])
        unit = (_exact(features) - mean.view(shape)) * scale.view(shape)  # the output before weight and bias
        own = torch.stack([gradient.sum(over), (gradient * unit).sum(over)])  # (2, D)
        numbers = ctx.ranks.count * features.numel() // features.shape[1]
        along_mean, along_variance = (ctx.ranks.sum(own) / numbers).unbind()
        kept = gradient - along_mean.view(shape) - unit * along_variance.view(shape)
        of_features = (kept * (weight * scale).view(shape)).to(features.dtype)
        # Weight and bias: of this rank's images, like those of every other parameter; DDP averages them.
        return of_features, own[1].to(weight.dtype), own[0].to(weight.dtype), None, None


def _exact(features: Tensor) -> Tensor:
    """Statistics of bfloat16 in float32, as torch's own layer does."""
    return features.to(torch.promote_types(features.dtype, torch.float32))


def _all_but_channels(features: Tensor) -> list[int]:
    return [dimension for dimension in range(features.dim()) if dimension != 1]
