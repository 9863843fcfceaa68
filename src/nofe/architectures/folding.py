"""Batch norm folded into the convolution before it: in evaluation mode the two are one convolution, to rounding."""

from collections import Counter
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, fx, nn

from nofe.architectures.caffe import BatchNorm2d
from nofe.architectures.genuine import computes_as, is_hooked, is_norm_with_activation
from nofe.architectures.line import names_of_shared_weights


class Pair(NamedTuple):
    """Paths of a convolution and of the batch norm that alone reads it."""

    convolution: str
    norm: str


def convolutions_with_norms(model: nn.Module) -> list[Pair]:
    """Found by following the code of the model (torch.fx); none if that cannot be followed."""
    try:
        graph = _Tracer().trace(model)
    except Exception:  # fx says in many ways that it cannot follow the code; the model then runs as it is
        return []
    calls = Counter(node.target for node in graph.nodes if node.op == "call_module")
    # A weight that is used elsewhere, too, must not change with one norm; a norm whose tensors are read must stay.
    elsewhere = [name for names in names_of_shared_weights(model) for name in names]
    elsewhere += [str(node.target) for node in graph.nodes if node.op == "get_attr"]
    shared = {name.rpartition(".")[0] for name in elsewhere}
    pairs = []
    for node in graph.nodes:
        if node.op != "call_module" or not _is_fixed_in_evaluation(model.get_submodule(str(node.target))):
            continue
        before = node.all_input_nodes[0]
        if before.op != "call_module" or len(before.users) > 1:
            continue
        once = calls[before.target] == calls[node.target] == 1 and not {before.target, node.target} & shared
        if once and _is_convolution(model.get_submodule(str(before.target))):
            pairs.append(Pair(str(before.target), str(node.target)))
    return pairs


class _Tracer(fx.Tracer):
    def is_leaf_module(self, module: nn.Module, path: str) -> bool:
        return _is_fixed_in_evaluation(module) or not list(module.children())


def _is_convolution(module: nn.Module) -> bool:
    """Whether it uses its weight as it is, or says that its weight and bias have the outputs in front."""
    plain = computes_as(module, nn.Conv2d) and isinstance(module._parameters.get("weight"), Tensor)
    return (plain or getattr(module, "outputs_in_front", False)) and not is_hooked(module)


def _is_fixed_in_evaluation(module: nn.Module) -> bool:
    """Whether it is a batch norm that in evaluation mode is a factor and a shift, with its children after them."""
    known = computes_as(module, nn.BatchNorm2d, BatchNorm2d) or is_norm_with_activation(module)
    is_fixed = known and isinstance(module, nn.BatchNorm2d) and module.running_mean is not None
    return is_fixed and not is_hooked(module)


class FoldedNorm(nn.BatchNorm2d):
    """A batch norm that a convolution has taken up: nothing, or the activation of what it would have normalised.

    The module itself with another class, as code may read whatever it has (`eps`, `running_var`) by name.
    """

    follows: tuple[str, ...]  # names of children

    def forward(self, input: Tensor) -> Tensor:  # (N, D, h, w), called as torch's norm is
        for name in self.follows:
            input = self.get_submodule(name)(input)
        return input


class FixedNorm(FoldedNorm):
    """What batch norm is in evaluation mode, where no convolution takes it up: a factor and a shift a channel."""

    factor: Tensor
    shift: Tensor

    def forward(self, input: Tensor) -> Tensor:  # (N, D, h, w)
        return super().forward(input * self.factor[:, None, None] + self.shift[:, None, None])


def _become(norm: nn.BatchNorm2d, kind: type[FoldedNorm]) -> None:
    follows = tuple(name for name, _ in norm.named_children()) if is_norm_with_activation(norm) else ()
    norm.__class__ = kind
    cast(FoldedNorm, norm).follows = follows


def factor_and_shift(norm: nn.BatchNorm2d) -> tuple[Tensor, Tensor]:
    """(D,) each, computed in double precision."""
    if isinstance(norm, BatchNorm2d):
        mean, variance = norm.statistics()
    else:
        mean, variance = cast(Tensor, norm.running_mean), cast(Tensor, norm.running_var)
    factor = (variance.double() + norm.eps).rsqrt()
    if norm.affine:
        factor = factor * norm.weight.double()
    shift = -mean.double() * factor + (norm.bias.double() if norm.affine else 0.0)
    return factor.to(mean.dtype), shift.to(mean.dtype)


def remove_norms(model: nn.Module, pairs: list[Pair]) -> None:
    """In place: the convolutions get a bias to fold into, the norms go. `folded_tensors` has the numbers for it."""
    for pair in pairs:
        convolution: Any = model.get_submodule(pair.convolution)
        if convolution.bias is None:
            weight = convolution.weight
            convolution.bias = nn.Parameter(weight.new_zeros(len(weight)), requires_grad=False)
        _become(cast(nn.BatchNorm2d, model.get_submodule(pair.norm)), FoldedNorm)
    for module in list(model.modules()):
        if _is_fixed_in_evaluation(module):
            norm = cast(nn.BatchNorm2d, module)
            factor, shift = factor_and_shift(norm)
            norm.register_buffer("factor", factor)
            norm.register_buffer("shift", shift)
            _become(norm, FixedNorm)


@torch.no_grad()
def folded_tensors(model: nn.Module, pairs: list[Pair]) -> dict[str, Tensor]:
    """Weights and buffers, by their names in the model without norms, of `model`, which has them."""
    tensors: dict[str, Tensor] = dict(model.named_parameters(remove_duplicate=False))
    tensors |= dict(model.named_buffers(remove_duplicate=False))
    for path, module in model.named_modules(remove_duplicate=False):
        if _is_fixed_in_evaluation(module):
            tensors[f"{path}.factor"], tensors[f"{path}.shift"] = factor_and_shift(cast(nn.BatchNorm2d, module))
    for pair in pairs:
        factor, shift = tensors[f"{pair.norm}.factor"], tensors[f"{pair.norm}.shift"]  # (O,)
        weight, bias = tensors[f"{pair.convolution}.weight"], tensors.get(f"{pair.convolution}.bias")
        tensors[f"{pair.convolution}.weight"] = weight * factor.view(-1, *[1] * (weight.dim() - 1))
        tensors[f"{pair.convolution}.bias"] = shift if bias is None else bias * factor + shift
    return tensors
