"""The paper's SGD, and two of today's.

Caffe's SGD has multipliers for each parameter, and the learning rate inside the momentum buffer: it steps by
V = mu V + rate (g + decay w), w = w - V; PyTorch by B = mu B + (g + decay w), w = w - rate B. With B = V / rate they
are the same, so PyTorch's own kernels serve as long as B is rescaled whenever the rate changes: after a drop the old,
larger velocity then dies away over some ten steps, as it did in the release.

`sgd` and `adamw` are PyTorch's own: one rate for all, and no decay of norms and biases unless asked for.
"""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor, nn

from nofe.architectures.caffe import Multipliers, multipliers_of
from nofe.training.recipe import Recipe

SECOND_MOMENTUM = 0.999  # of AdamW's squared gradients
# What an optimizer remembers of each parameter, by PyTorch's name and by the one in a checkpoint. AdamW's count of
# steps is left out: it is that of the stage.
MEMORY = {"momentum_buffer": "momentum", "exp_avg": "exp_avg", "exp_avg_sq": "exp_avg_sq"}


def optimizer_of(model: nn.Module, recipe: Recipe) -> torch.optim.Optimizer:
    if recipe.optimizer == "caffe-sgd":
        return caffe_sgd(model, recipe)
    groups = _groups(model, recipe, _plain_multipliers(model, recipe))
    device = next(model.parameters()).device
    if recipe.optimizer == "sgd":
        return _fastest_sgd(groups, lr=recipe.rate, momentum=recipe.momentum, nesterov=recipe.nesterov)
    on_gpu = device.type == "cuda"
    # Foreach takes a rate that is a tensor on a GPU alone.
    how = {"fused": True} if _lie_without_gaps(groups) else {"foreach": on_gpu}
    betas = (recipe.momentum, SECOND_MOMENTUM)
    adamw = torch.optim.AdamW(groups, lr=recipe.rate, betas=betas, capturable=on_gpu, **how)
    # The steps before a capture run without one, which is no cause for a warning.
    adamw._warned_capturable_if_run_uncaptured = True
    return adamw


def caffe_sgd(model: nn.Module, recipe: Recipe) -> torch.optim.SGD:
    multipliers = multipliers_of(model)
    decay = 1.0 if recipe.decay_norms else 0.0  # also for torch's own batch norm, which knows no multipliers
    multipliers |= {name: replace(multipliers[name], decay=decay) for name in _batch_norms(model)}
    groups = _groups(model, recipe, multipliers, velocity_holds_rate=True)
    return _fastest_sgd(groups, lr=recipe.rate, momentum=recipe.momentum)


def _groups(
    model: nn.Module, recipe: Recipe, multipliers: Mapping[str, Multipliers], *, velocity_holds_rate: bool = False
) -> list[dict[str, Any]]:
    """A parameter group for each pair of multipliers."""
    alike: dict[Multipliers, list[nn.Parameter]] = defaultdict(list)
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            alike[multipliers[name]].append(parameter)
    device = next(model.parameters()).device
    return [
        {
            "params": parameters,
            # A tensor, so that a captured step reads the rate of the day.
            "lr": torch.tensor(recipe.rate * of.rate, device=device),
            "rate": recipe.rate,
            "rate_multiplier": of.rate,
            "weight_decay": recipe.weight_decay * of.decay,
            "velocity_holds_rate": velocity_holds_rate,
        }
        for of, parameters in alike.items()
    ]


def _fastest_sgd(groups: list[dict[str, Any]], **settings: Any) -> torch.optim.SGD:
    """A kernel that reads and writes everything once; foreach goes over all weights four times.

    On Apple's GPU foreach would also fetch the rate at every step, and wait for it.
    """
    if not _lie_without_gaps(groups):
        return torch.optim.SGD(groups, foreach=True, **settings)
    weights = [weight for group in groups for weight in group["params"]]
    on_gpu = bool(weights) and weights[0].device.type == "cuda"
    if not on_gpu or find_spec("triton") is None or any(weight.dtype != torch.float32 for weight in weights):
        return torch.optim.SGD(groups, fused=True, **settings)
    from nofe.training.one_launch import OneLaunchSGD

    return OneLaunchSGD(groups, **settings)


def _lie_without_gaps(groups: list[dict[str, Any]]) -> bool:
    """Whether a single kernel may be used: it takes a weight and its gradient for memory laid out alike, unchecked.

    Torch lays gradients out like weights, but not where these have gaps.
    """
    weights = [weight for group in groups for weight in group["params"]]
    reach = [1 + sum((n - 1) * stride for n, stride in zip(w.shape, w.stride(), strict=True)) for w in weights]
    return all(weight.numel() in (0, places) for weight, places in zip(weights, reach, strict=True))


def backward_and_step(optimizer: torch.optim.Optimizer, loss: Tensor, *, ranks: int = 1) -> None:
    """Weights are stepped during backward, if the optimizer can and gradients need not be averaged over ranks."""
    at_once = getattr(optimizer, "backward_and_step", None)
    if at_once and ranks == 1:
        at_once(loss)
    else:
        loss.backward()
        optimizer.step()


def weights_may_have_changed(optimizer: torch.optim.Optimizer) -> None:
    """To be called when something else than a step may have changed them: an optimizer that has copies renews them."""
    refresh = getattr(optimizer, "refresh_copies", None)
    if refresh:
        refresh()


def _plain_multipliers(model: nn.Module, recipe: Recipe) -> dict[str, Multipliers]:
    """Norms and biases without decay, unless the recipe wants it; the multipliers of Caffe's layers do not count."""
    found = {}
    for name, parameter in model.named_parameters():
        owner, _, own_name = name.rpartition(".")
        # By name as well as by shape: fused experts have a bias for each, (K, O), and layers that hold those of norms.
        layer = model.get_submodule(owner)
        of_norm = "norm" in getattr(layer, "stands_for", type(layer).__name__).lower()
        spared = parameter.dim() <= 1 or own_name == "bias" or of_norm
        found[name] = Multipliers(decay=0.0 if spared and not recipe.decay_norms else 1.0)
    return found


def _batch_norms(model: nn.Module) -> list[str]:
    """The parameters of batch norm, by name."""
    return [
        f"{path}.{name}"
        for path, module in model.named_modules()
        if isinstance(module, nn.modules.batchnorm._BatchNorm)
        for name, _ in module.named_parameters(recurse=False)
    ]


def set_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """Change the learning rate, between two steps; Caffe's velocity is kept. Nothing waits for the device."""
    for group in optimizer.param_groups:
        if group["rate"] == rate:
            continue
        if group["velocity_holds_rate"]:
            found = (_memory(optimizer, p, "momentum_buffer") for p in group["params"])
            if velocities := [buffer for buffer in found if buffer is not None]:
                torch._foreach_mul_(velocities, group["rate"] / rate)
        group["lr"].fill_(rate * group["rate_multiplier"])
        group["rate"] = rate


def current_rate(optimizer: torch.optim.Optimizer) -> float:
    rate: float = optimizer.param_groups[0]["rate"]
    return rate


def optimizer_tensors(
    optimizer: torch.optim.Optimizer, model: nn.Module, kind: str = "momentum_buffer"
) -> dict[str, Tensor]:
    """One kind of MEMORY by parameter name; with the rate and the step they are all that a checkpoint needs."""
    named = ((name, _memory(optimizer, parameter, kind)) for name, parameter in model.named_parameters())
    return {name: buffer for name, buffer in named if buffer is not None}


def load_optimizer_tensors(
    optimizer: torch.optim.Optimizer,
    model: nn.Module,
    tensors: dict[str, Tensor],
    kind: str = "momentum_buffer",
    step: int = 0,
) -> None:
    """Put one kind of MEMORY back as it was after so many steps."""
    for name, parameter in model.named_parameters():
        if name in tensors:
            buffer = tensors[name].to(parameter.device, copy=True)
            memory = optimizer.state[parameter]
            memory[kind] = torch.empty_like(parameter).copy_(buffer)
            if isinstance(optimizer, torch.optim.AdamW):
                memory["step"] = torch.tensor(float(step), device=parameter.device)


def _memory(optimizer: torch.optim.Optimizer, parameter: nn.Parameter, kind: str) -> Tensor | None:
    buffer: Tensor | None = optimizer.state.get(parameter, {}).get(kind)
    return buffer
