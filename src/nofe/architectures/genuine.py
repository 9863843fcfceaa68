"""Whether a layer computes what torch's class does: a class derived from it may do more, or something else."""

from typing import Any

from torch import Tensor, nn


def computes_as(layer: nn.Module, *kinds: type[Any]) -> bool:
    """Whether it is of one of these classes, or of one derived from it that has its forward."""
    return isinstance(layer, kinds) and type(layer).forward in {kind.forward for kind in kinds}


def is_hooked(layer: nn.Module) -> bool:
    """Whether somebody looks at, or changes, what it reads or gives."""
    return bool(layer._forward_hooks or layer._forward_pre_hooks)


def looks_at_gradients(layer: nn.Module) -> bool:
    """Whether somebody looks at, or changes, the gradients that pass it."""
    return bool(layer._backward_hooks or layer._backward_pre_hooks)


def is_hooked_weight(weight: Tensor) -> bool:
    """Whether somebody looks at, or changes, its gradient."""
    return bool(weight._backward_hooks or weight._post_accumulate_grad_hooks)


def is_norm_with_activation(layer: nn.Module) -> bool:
    """timm's batch norm, which drops and activates what it has normalised: its children, in this order."""
    return type(layer).__name__ == "BatchNormAct2d" and [name for name, _ in layer.named_children()] == ["drop", "act"]


def is_linear_in_timm(layer: nn.Module) -> bool:
    """A linear layer that has a forward of its own for torchscript alone."""
    return isinstance(layer, nn.Linear) and type(layer).__module__ == "timm.layers.linear"
