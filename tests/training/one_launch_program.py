"""Run by test_one_launch.py with Triton's interpreter, which takes the kernel to a processor; prints what it found."""

import copy
import gc
import json
import weakref

import torch
from torch import Tensor, nn

from nofe.training import one_launch
from nofe.training.half import forward_of
from nofe.training.one_launch import PIECE, OneLaunchSGD
from nofe.training.runtime import Runtime

IN_BF16 = Runtime(torch.device("cpu"), "bf16")


def network() -> nn.Sequential:
    """With a weight of several pieces, one of a whole number of them, and small ones; channels last."""
    torch.manual_seed(0)
    layers = nn.Conv2d(3, 32, 3), nn.ReLU(), nn.Conv2d(32, 37, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten()
    made = nn.Sequential(*layers, nn.Linear(37, 512), nn.Linear(512, PIECE // 512))
    return made.to(memory_format=torch.channels_last)  # type: ignore[call-overload]


def groups(model: nn.Module) -> list[dict[str, object]]:
    weights = list(model.parameters())
    return [
        {"params": weights[::2], "lr": torch.tensor(0.1), "weight_decay": 0.01},
        {"params": weights[1::2], "lr": torch.tensor(0.2), "weight_decay": 0.0},
    ]


def farthest(one: nn.Module, other: nn.Module) -> float:
    pairs = zip(one.parameters(), other.parameters(), strict=True)
    return max(float((a - b).detach().abs().max()) for a, b in pairs)


def images(step: int) -> Tensor:
    return torch.randn(5, 3, 8, 8, generator=torch.Generator().manual_seed(step))


def moved_apart(nesterov: bool) -> dict[str, float]:
    """From torch's SGD, in float32; the rate changes, one weight has no gradient, another's is laid out otherwise."""
    one = network()
    other, start = copy.deepcopy(one), copy.deepcopy(one)
    for model in (one, other):
        model[5].bias.requires_grad_(False)
    theirs = torch.optim.SGD(groups(one), lr=0.1, momentum=0.9, nesterov=nesterov)  # type: ignore[arg-type]
    ours = OneLaunchSGD(groups(other), lr=0.1, momentum=0.9, nesterov=nesterov)
    for step in range(4):
        for model, optimizer in ((one, theirs), (other, ours)):
            optimizer.zero_grad()
            model(images(step)).square().mean().backward()
            model[2].weight.grad = model[2].weight.grad.contiguous()
            optimizer.param_groups[0]["lr"].fill_(0.1 / (step + 1))
            optimizer.step()
    return {"apart": farthest(one, other), "moved": farthest(one, start)}


def moved_apart_beside_backward() -> dict[str, object]:
    """Weights stepped while gradients come, in lots, against torch's SGD; once a step is taken the usual way."""
    one_launch.ENOUGH = PIECE
    one = network()
    other, start = copy.deepcopy(one), copy.deepcopy(one)
    for model in (one, other):
        model[5].bias.requires_grad_(False)
    theirs = torch.optim.SGD(groups(one), lr=0.1, momentum=0.9)  # type: ignore[arg-type]
    ours = OneLaunchSGD(groups(other), lr=0.1, momentum=0.9)
    early: list[list[int]] = []  # for each step: how many weights had no gradient yet when a lot was launched
    launch = ours._step

    def noted(lot: one_launch._Lot) -> None:
        early[-1].append(sum(weight.grad is None for weight in other.parameters()))
        launch(lot)

    ours._step = noted  # type: ignore[method-assign]
    for step in range(5):
        theirs.zero_grad()
        one(images(step)).square().mean().backward()
        theirs.step()
        early.append([])
        ours.zero_grad()
        loss = other(images(step)).square().mean()
        if step == 2:
            loss.backward()
            ours.step()
        else:
            ours.backward_and_step(loss)
    return {"apart": farthest(one, other), "moved": farthest(one, start), "early": early}


def is_kept_after_use() -> bool:
    """Whether weights outlive those who use them."""
    model = network()
    optimizer = OneLaunchSGD(groups(model), lr=0.1, momentum=0.9)
    for step in range(2):
        optimizer.zero_grad()
        optimizer.backward_and_step(model(images(step)).square().mean())
    weight = weakref.ref(model[2].weight)
    del model, optimizer
    gc.collect()
    return weight() is not None


def after_a_failure() -> float:
    """How far from torch's SGD, when a backward has failed half way and the weights were put back."""
    one_launch.ENOUGH = PIECE
    one = network()
    other, start = copy.deepcopy(one), copy.deepcopy(one)
    theirs = torch.optim.SGD(groups(one), lr=0.1, momentum=0.9)  # type: ignore[arg-type]
    ours = OneLaunchSGD(groups(other), lr=0.1, momentum=0.9)
    ours.backward_and_step(other(images(0)).square().mean())
    handle = other[0].weight.register_hook(fail)
    try:
        ours.zero_grad()
        ours.backward_and_step(other(images(1)).square().mean())
    except ZeroDivisionError:
        handle.remove()
        other.load_state_dict(start.state_dict())
        for memory in ours.state.values():
            memory["momentum_buffer"].zero_()
    for step in range(2):
        for model, optimizer in ((one, theirs), (other, ours)):
            optimizer.zero_grad()
            loss = model(images(step)).square().mean()
            if optimizer is ours:
                ours.backward_and_step(loss)
            else:
                loss.backward()
                optimizer.step()
    return farthest(one, other)


def fail(_: Tensor) -> None:
    raise ZeroDivisionError


def stepped_too_early() -> str:
    """What torch says where a gradient still needs a weight that was stepped."""
    one_launch.ENOUGH = 1
    weight, other = nn.Parameter(torch.ones(4, 4)), nn.Parameter(torch.ones(4, 4))
    groups_of_two = [{"params": [weight, other], "lr": torch.tensor(0.1), "weight_decay": 0.0}]
    optimizer = OneLaunchSGD(groups_of_two, lr=0.1, momentum=0.9)
    try:
        for _ in range(3):
            optimizer.zero_grad()
            hidden = (torch.ones(2, 4) @ other) @ weight.detach()
            optimizer.backward_and_step((hidden @ weight).square().mean())
    except RuntimeError as error:
        return str(error)
    return ""


def copies_apart(beside: bool) -> dict[str, object]:
    """Weights kept in bfloat16 against weights cast at every step."""
    one_launch.ENOUGH = PIECE
    one = network()
    other = copy.deepcopy(one)
    theirs = torch.optim.SGD(groups(one), lr=0.1, momentum=0.9)  # type: ignore[arg-type]
    ours = OneLaunchSGD(groups(other), lr=0.1, momentum=0.9)
    forwards = (one, theirs, forward_of(one, IN_BF16)), (other, ours, forward_of(other, IN_BF16, ours))
    apart = []
    for step in range(3):
        if step == 2:  # as by a checkpoint
            with torch.no_grad():
                for model in (one, other):
                    model[0].weight.mul_(-4)
            ours.refresh_copies()
        for _, optimizer, forward in forwards:
            optimizer.zero_grad()
            loss = forward(images(step)).float().square().mean()
            if beside and optimizer is ours:
                ours.backward_and_step(loss)
            else:
                loss.backward()
                optimizer.step()
        apart.append(farthest(one, other))
    kept = ours.keep_copies([other[0].weight])[0]
    return {
        "apart": apart,
        "weights_have_no_gradient": all(weight.grad is None for weight in (other[0].weight, other[5].weight)),
        "copy_from_weight": float((kept.float() - other[0].weight).detach().abs().max()),
        "largest_weight": float(other[0].weight.detach().abs().max()),
    }


if __name__ == "__main__":
    found = {"plain": moved_apart(False), "nesterov": moved_apart(True), "copies": copies_apart(False)}
    found |= {"beside": moved_apart_beside_backward(), "kept": is_kept_after_use(), "copies beside": copies_apart(True)}
    print(json.dumps(found | {"after a failure": after_a_failure(), "too early": stepped_too_early()}))
