"""Layers drawn anew, and classifiers for another number of classes: both of the class that the model has."""

import copy
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from nofe.architectures.line import WITH_WEIGHTS
from nofe.errors import UserError

POWER_ITERATIONS = 15  # of a new spectral norm, as in torch


def outputs_of(layer: nn.Module) -> int:
    return int(cast(Tensor, layer.weight).shape[0])


def with_outputs(model: nn.Module, path: str, outputs: int) -> None:
    """Replace the classifier of `model` by one of the same class and settings with so many outputs and new weights."""
    layer = model.get_submodule(path)
    if not isinstance(layer, WITH_WEIGHTS) or getattr(layer, "groups", 1) != 1:
        raise UserError(
            f"{path} ({type(layer).__name__}): a classifier is a linear layer or a convolution without groups"
        )
    new = copy.deepcopy(layer)
    for name, tensor in tensors_by_class(new).items():
        holder, _, own = name.rpartition(".")
        rows = torch.arange(outputs, device=tensor.device) % len(tensor)
        resized = tensor.detach()[rows].clone()
        tensors = new.get_submodule(holder)
        if isinstance(tensor, nn.Parameter):
            tensors._parameters[own] = nn.Parameter(resized)
        else:
            tensors._buffers[own] = resized
    setattr(new, "out_features" if isinstance(new, nn.Linear) else "out_channels", outputs)
    for hooks in (new._forward_hooks, new._forward_pre_hooks):  # fused experts would not call them
        hooks.clear()
    if drawn_anew(new):
        raise UserError(
            f"{path}: its weight is parametrized in a way that allows one number of outputs alone; remove that with "
            "torch.nn.utils.parametrize.remove_parametrizations"
        )
    model.set_submodule(path, new)


def tensors_by_class(classifier: nn.Module) -> dict[str, Tensor]:
    """Its parameters and buffers with a row for each class, those that a derived class adds included."""
    outputs = outputs_of(classifier)
    tensors = [*classifier.named_parameters(), *classifier.named_buffers()]
    return {name: tensor for name, tensor in tensors if tensor.dim() and len(tensor) == outputs}


def drawn_anew(module: nn.Module) -> list[str]:
    """New weights by torch's own initialisers, all to be learned; what has none (scales, tokens) keeps its values.

    Returns the paths of parametrized layers that could not be initialised again, and keep their weights.
    """
    module.requires_grad_(True)
    kept = []
    for path, each in module.named_modules():
        reset = getattr(each, "reset_parameters", None) or getattr(each, "_reset_parameters", None)
        if not callable(reset) or next(each.parameters(), None) is None:
            continue
        if not parametrize.is_parametrized(each):
            reset()
            continue
        try:
            _draw_through_parametrizations(each)
        except Exception:  # each parametrization says in its own way that it has no inverse, or only for one shape
            kept.append(path)
    return kept


@torch.no_grad()
def _draw_through_parametrizations(layer: nn.Module) -> None:
    """Initialise a plain copy and assign its weight: `reset_parameters` itself would write to a computed tensor."""
    names: list[str] = list(cast(nn.ModuleDict, layer.parametrizations))
    plain = copy.deepcopy(layer)
    # Not remove_parametrizations, which changes the class: that of the user's own layer as well.
    plain.__class__ = parametrize.type_before_parametrizations(layer)
    del plain.parametrizations
    for name in names:
        plain.register_parameter(name, nn.Parameter(cast(Tensor, getattr(layer, name)).clone()))
    plain.reset_parameters()  # type: ignore[operator]
    layer.load_state_dict(plain.state_dict(), strict=False)  # what is not parametrized
    for name in names:
        steps = cast(nn.ModuleList, cast(nn.ModuleDict, layer.parametrizations)[name])
        kinds = {type(step).__name__ for step in steps}
        value = cast(Tensor, getattr(plain, name)).detach()
        if "_Orthogonal" in kinds:  # assigned weights must be orthogonal already
            value = _orthogonal(value)
        setattr(layer, name, value)
        if "_SpectralNorm" in kinds:
            was_training = layer.training
            layer.train()
            for _ in range(POWER_ITERATIONS):
                getattr(layer, name)
            layer.train(was_training)


def _orthogonal(weight: Tensor) -> Tensor:
    """Its last two dimensions are matrices, as in torch's parametrization."""
    is_wide = weight.shape[-2] < weight.shape[-1]
    made: Tensor = torch.linalg.qr((weight.mT if is_wide else weight).float()).Q.to(weight.dtype)
    return made.mT if is_wide else made
