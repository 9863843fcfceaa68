"""Layers made to read what they are given: other channels than they were built for, and the same map size."""

import functools
import math
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

NORMS = (nn.modules.batchnorm._BatchNorm, nn.GroupNorm, nn.LayerNorm)
SKIP_FLAGS = ("has_skip", "use_res_connect")  # of timm and torchvision: a block adds its input where sizes allow


def fit(module: nn.Module, features: Tensor) -> Tensor:
    """Run `module` on `features`, and give every layer that reads another number of channels new weights for it."""
    layers = [named for named in module.named_modules() if isinstance(named[1], (nn.Conv2d, nn.Linear, *NORMS))]
    hooks = [layer.register_forward_pre_hook(functools.partial(_fit_layer, path)) for path, layer in layers]
    was_training = module.training
    try:
        with torch.no_grad():
            result: Tensor = module.eval()(features)
    finally:
        module.train(was_training)
        for hook in hooks:
            hook.remove()
    return result


def keep_size(block: nn.Module) -> None:
    """Make a block that halves the map, or changes the channels, one that does neither."""
    for layer in block.modules():
        if isinstance(layer, nn.Conv2d):
            layer.stride = (1, 1)
            _pad(layer)
        if isinstance(layer, nn.AvgPool2d | nn.MaxPool2d) and layer.stride not in (1, (1, 1)):
            layer.kernel_size, layer.stride, layer.padding = 1, 1, 0
    for flag in SKIP_FLAGS:
        if getattr(block, flag, None) is False:
            setattr(block, flag, True)


def shorten(block: nn.Module) -> bool:
    """Keep the last block alone of a whole stage, which PVT and others run as one module; whether it was a stage."""
    whole = _parameters(block)
    for layers in block.modules():
        if not isinstance(layers, nn.ModuleList | nn.Sequential) or len(layers) < 2:
            continue
        alike = len({type(layer) for layer in layers}) == 1 and all(_has_parts(layer) for layer in layers)
        if alike and _parameters(layers) > whole / 2:
            del layers[:-1]
            return True
    return False


def _parameters(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def _has_parts(block: nn.Module) -> bool:
    """Whether it is an attention or a perceptron, not a convolution with its norm."""
    return any(
        list(part.children()) and any(weight.dim() >= 2 for weight in part.parameters()) for part in block.children()
    )


def _pad(layer: nn.Conv2d) -> None:
    """A convolution of odd sides without padding, LeNet's, takes pixels off the map; timm's own pad themselves."""
    if type(layer).forward is nn.Conv2d.forward and isinstance(layer.padding, tuple):
        sides = zip(layer.kernel_size, layer.dilation, layer.padding, strict=True)
        padding = tuple(padding or (dilation * (side - 1) // 2 if side % 2 else 0) for side, dilation, padding in sides)
        layer.padding = cast("tuple[int, int]", padding)


def _fit_layer(path: str, layer: nn.Module, inputs: tuple[Any, ...]) -> None:
    shape = inputs[0].shape
    if isinstance(layer, nn.Conv2d):
        if layer.in_channels != shape[1]:
            require_own_weight(layer, path)
            _fit_convolution(layer, int(shape[1]))
    elif isinstance(layer, nn.Linear):
        if layer.in_features != shape[-1]:
            require_own_weight(layer, path)
            layer.in_features, weight = int(shape[-1]), layer.weight
            layer.weight = drawn_like(weight, (len(weight), layer.in_features))
    else:
        _fit_norm(layer, shape)


def require_own_weight(layer: nn.Module, path: str) -> None:
    if parametrize.is_parametrized(layer):
        raise ValueError(f"the weight of {path} is parametrized, which fixes its size")


def _fit_convolution(layer: nn.Conv2d, channels: int) -> None:
    weight, depthwise = layer.weight, layer.groups == layer.in_channels > 1
    if depthwise:
        layer.out_channels = layer.out_channels // layer.in_channels * channels
        layer.groups = channels
        if layer.bias is not None:
            layer.bias = _constant_like(layer.bias, layer.out_channels)
    elif channels % layer.groups:
        layer.groups = math.gcd(channels, layer.groups)
    layer.in_channels = channels
    layer.weight = drawn_like(weight, (layer.out_channels, channels // layer.groups, *weight.shape[2:]))


def _fit_norm(layer: nn.Module, shape: torch.Size) -> None:
    weight = cast("Tensor | None", getattr(layer, "weight", None))
    over_last = isinstance(layer, nn.LayerNorm) and "2d" not in type(layer).__name__
    channels = int(shape[-1] if over_last else shape[1])
    if isinstance(layer, nn.LayerNorm):
        if len(layer.normalized_shape) != 1 or layer.normalized_shape[0] == channels:
            return
        layer.normalized_shape = (channels,)
    elif isinstance(layer, nn.GroupNorm):
        if layer.num_channels == channels:
            return
        layer.num_channels, layer.num_groups = channels, math.gcd(channels, layer.num_groups)
    else:
        norm = cast(nn.BatchNorm2d, layer)
        if norm.num_features == channels:
            return
        norm.num_features = channels
        if norm.running_mean is not None and norm.running_var is not None:
            norm.running_mean = norm.running_mean.new_zeros(channels)
            norm.running_var = norm.running_var.new_ones(channels)
            norm.reset_running_stats()
    if weight is not None:
        cast(Any, layer).weight = nn.Parameter(weight.new_ones(channels))
        if getattr(layer, "bias", None) is not None:
            cast(Any, layer).bias = nn.Parameter(weight.new_zeros(channels))


def drawn_like(weight: Tensor, shape: tuple[int, ...]) -> nn.Parameter:
    """Normal weights with the spread of `weight`, rescaled so that sums over more or fewer inputs keep theirs."""
    if weight.is_meta:
        return nn.Parameter(weight.new_empty(shape))
    inputs_then, inputs_now = weight[0].numel(), math.prod(shape[1:])
    std = float(weight.detach().std()) * math.sqrt(inputs_then / inputs_now)
    return nn.Parameter(weight.new_empty(shape).normal_(std=std))


def _constant_like(bias: Tensor, size: int) -> nn.Parameter:
    return nn.Parameter(bias.new_zeros(size))
