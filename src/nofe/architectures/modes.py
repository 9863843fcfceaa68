"""What code does in training alone.

torch.fx writes down the calls of one mode, with `self.training` as the constant that it was. Followed in both modes, a
network shows what depends on it: F.dropout(x, p, self.training) stands for a layer, which knows its mode at every call;
anything else cannot be written as one graph.
"""

import pickle
import random
from collections.abc import Callable
from typing import Any, cast

import numpy as np
import torch
import torch.nn.functional as F
from torch import fx, nn

DROPOUTS: dict[Any, Callable[[float], nn.Module]] = {
    F.dropout: nn.Dropout, F.dropout1d: nn.Dropout1d, F.dropout2d: nn.Dropout2d, F.alpha_dropout: nn.AlphaDropout,
}  # fmt: skip
LAYER = "layer"  # key in the notes of a step (fx.Node.meta): the layer that can stand for it in both modes


class DependsOnMode(Exception):
    """A step that is a different one in evaluation, or is missing there."""

    def __init__(self, step: fx.Node) -> None:
        super().__init__(f"does something else in training: {step.name}{where(step)}")
        self.step = step


class DrawsNumbersError(Exception):
    """Code that draws random numbers while it is followed: the graph would keep them as constants."""

    def __init__(self) -> None:
        super().__init__("draws random numbers, which would be the same ever after")


class SwitchedError(Exception):
    """Code that switches something for some of its steps (no_grad, autocast), which would be lost in the graph."""

    def __init__(self, switch: str, step: str) -> None:
        super().__init__(f"switches {switch} for {step}, which would be lost")
        self.switch, self.step = switch, step


class Follower(fx.Tracer):
    """Follows code, and notices if it switches something on the way."""

    def trace(self, root: Any, concrete_args: dict[str, Any] | None = None) -> fx.Graph:
        self._switches = _switches()
        return super().trace(root, concrete_args)

    def create_node(self, kind: str, target: Any, *rest: Any, **named: Any) -> fx.Node:
        for switch, state in _switches().items():
            if state != self._switches[switch]:
                raise SwitchedError(switch, str(getattr(target, "__name__", target)).removeprefix("model."))
        return super().create_node(kind, target, *rest, **named)


def _switches() -> dict[str, bool]:
    return {
        "gradients": torch.is_grad_enabled(),
        "autocast": torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda"),
    }


def followed_in_both_modes(model: nn.Module, follow: Callable[[nn.Module], fx.Graph]) -> fx.Graph:
    """What `follow` gives in training, with the layer noted at each function that drops in training alone."""
    modes = {module: module.training for module in model.modules()}
    before = _random_states()
    try:
        graphs = [follow(model.train(mode)) for mode in (True, False)]
    finally:
        model.train()  # makes timm's layers forget weights that they have cached, which were only traced
        for module, was_training in modes.items():
            module.training = was_training
    if _random_states() != before:
        raise DrawsNumbersError
    for training, evaluation in zip(*(graph.nodes for graph in graphs), strict=False):
        if _drops_in_training(training, evaluation):
            training.meta[LAYER] = DROPOUTS[training.target](float(cast(Any, training.kwargs["p"])))
        elif call_of(training) != call_of(evaluation):
            raise DependsOnMode(training)
    return graphs[0]


def _random_states() -> tuple[object, ...]:
    """Of all the generators that code draws from unless it names another."""
    return random.getstate(), pickle.dumps(np.random.get_state()), bytes(torch.get_rng_state().numpy())


def _drops_in_training(training: fx.Node, evaluation: fx.Node) -> bool:
    """Whether it is F.dropout(x, p, self.training): two calls that differ in the last argument alone."""
    by_mode = (training.kwargs.get("training"), evaluation.kwargs.get("training"))
    alike = call_of(training, "training") == call_of(evaluation, "training")
    return training.target in DROPOUTS and by_mode == (True, False) and alike


def call_of(step: fx.Node, *without: str) -> tuple[Any, ...]:
    """A step in words, to be compared with that of another graph, whose values are other objects."""
    kwargs = {name: each for name, each in step.kwargs.items() if name not in without}
    return step.op, step.target, str(step.args), str(kwargs)


def where(step: fx.Node) -> str:
    """For messages: the layer that a function is called in."""
    owner = owner_of(step)
    return f" in {owner}" if owner else ""


def owner_of(step: fx.Node) -> str:
    """The path of the module whose forward calls a function, as far as it is known."""
    stack: dict[str, Any] = step.meta.get("nn_module_stack") or {}
    return list(stack)[-1] if stack else ""
