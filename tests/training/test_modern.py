"""Recipes of today: each part is the formula it is named after."""

import copy
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from nofe.architectures import Classifier
from nofe.architectures.caffe import BatchNorm2d
from nofe.architectures.resnet import resnet_branch, resnet_head, resnet_trunk
from nofe.data.batches import Augmentation, DeviceImages, pixel_mean
from nofe.data.dataset import ImageSet
from nofe.data.mixing import MixedLabels
from nofe.experts.network import NetworkOfExperts
from nofe.specialties import Specialties
from nofe.training.average import MovingAverage, share_of_newest
from nofe.training.loop import Objective, TrainState, batches_of, start_training, train_epoch
from nofe.training.optimizer import (
    MEMORY,
    current_rate,
    load_optimizer_tensors,
    optimizer_of,
    optimizer_tensors,
    set_rate,
)
from nofe.training.progress import Silent
from nofe.training.recipe import Recipe, rate_at, rate_in_epoch
from nofe.training.runtime import Runtime

ON_CPU = Runtime(torch.device("cpu"))
CLASSES, BATCH, COUNT = 6, 8, 30
SGD = Recipe(epochs=4, batch=BATCH, rate=0.05, weight_decay=0.01, optimizer="sgd", nesterov=True, schedule="cosine")
ADAM = replace(SGD, optimizer="adamw", nesterov=False, rate=0.01)
FULL_AUGMENTATION = Augmentation(32, padding=2, mirror=True, randaugment=2, erasing=0.5)
RECIPES = {"sgd": SGD, "adamw": ADAM}


def images(size: int = 32) -> DeviceImages:
    rng = np.random.default_rng(0)
    made = ImageSet(rng.integers(0, 256, (COUNT, 3, size, size), dtype=np.uint8), rng.integers(0, CLASSES, COUNT))
    return DeviceImages(made, pixel_mean(made), ON_CPU.device)


def network(seed: int = 0) -> nn.Module:
    """With torch's batch norm, a bias, and numbers of a size that float64 tells apart."""
    torch.manual_seed(seed)
    layers = (nn.Conv2d(3, 4, 3, stride=4, bias=False), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.LazyLinear(6))
    model = nn.Sequential(*layers)
    model(torch.zeros(2, 3, 32, 32))
    return model


def trained(model: nn.Module, recipe: Recipe, steps: int) -> TrainState:
    state = start_training("test", model, recipe, 0, ON_CPU)
    batches = batches_of(state, images(), ON_CPU)
    while state.step < steps:
        train_epoch(state, batches, Objective(torch.arange(CLASSES)), ON_CPU, Silent(), until=steps)
    return state


# Schedules


@given(st.integers(1, 40), st.integers(1, 30), st.floats(0, 0.99))
def test_a_cosine_after_warm_up_is_its_formula_at_every_step(epochs: int, steps: int, warm: float) -> None:
    recipe = replace(SGD, epochs=epochs, warmup_epochs=warm * epochs)
    rates = [rate_at(recipe, step, steps) for step in range(epochs * steps)]
    rising = round(warm * epochs * steps)
    assert rates[:rising] == pytest.approx([recipe.rate * (step + 1) / rising for step in range(rising)])
    falling = epochs * steps - rising
    assert rates[rising:] == pytest.approx(
        [recipe.rate * 0.5 * (1 + math.cos(math.pi * t / falling)) for t in range(falling)]
    )
    assert all(0 < rate <= recipe.rate for rate in rates)
    assert rates[rising:] == sorted(rates[rising:], reverse=True)


def test_warm_up_leads_to_the_papers_schedule() -> None:
    recipe = Recipe(epochs=8, batch=1, rate=0.1, weight_decay=0, drops=(0.5, 0.75), warmup_epochs=1.5)
    rates = [rate_at(recipe, step, 4) for step in range(32)]
    assert rates[:6] == pytest.approx([0.1 * (step + 1) / 6 for step in range(6)])
    assert rates[6:] == [rate_in_epoch(recipe, step // 4) for step in range(6, 32)]
    without = replace(recipe, warmup_epochs=0)
    assert [rate_at(without, step, 4) for step in range(32)] == [rate_in_epoch(recipe, step // 4) for step in range(32)]


@pytest.mark.parametrize("optimizer", ["caffe-sgd", "sgd", "adamw"])
def test_every_step_of_the_loop_has_its_rate(optimizer: Any) -> None:
    """As the optimizer reads it, for every group; and a training that is cut in two has the same."""
    recipe = replace(SGD, optimizer=optimizer, nesterov=False, warmup_epochs=1.0)
    found: list[float] = []

    class Watching(Silent):
        def advance(self, state: TrainState, images: int) -> None:
            rates = {float(group["lr"]) for group in state.optimizer.param_groups}
            assert len(rates) == 1
            assert current_rate(state.optimizer) == pytest.approx(next(iter(rates)), rel=1e-6)
            found.append(rates.pop())

    state = start_training("test", network(), recipe, 0, ON_CPU)
    batches = batches_of(state, images(), ON_CPU)
    stops = [2, 3, 5, 6, 9, 12]
    for stop in stops:
        train_epoch(state, batches, Objective(torch.arange(CLASSES)), ON_CPU, Watching(), until=stop)
    assert found == pytest.approx([rate_at(recipe, step, 3) for step in range(12)], rel=1e-6)


# Optimizers


def gradients(model: nn.Module, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    pictures = torch.randn(4, 3, 32, 32, generator=generator, dtype=torch.float64)
    model.zero_grad()
    F.cross_entropy(model(pictures), torch.randint(CLASSES, (4,), generator=generator)).backward()


def decayed(name: str) -> bool:
    return name in ("0.weight", "4.weight")  # neither batch norm nor a bias


@pytest.mark.parametrize("decay_norms", [False, True])
def test_adamw_is_its_formula_across_changes_of_the_rate(decay_norms: bool) -> None:
    recipe = replace(ADAM, decay_norms=decay_norms)
    model, literal = network().double(), network().double()
    optimizer = optimizer_of(model, recipe)
    first = {name: torch.zeros_like(w) for name, w in literal.named_parameters()}
    second = copy.deepcopy(first)
    for step in range(1, 13):
        rate = rate_at(recipe, step - 1, 3)
        set_rate(optimizer, rate)
        gradients(model, step)
        optimizer.step()
        gradients(literal, step)
        with torch.no_grad():
            for name, w in literal.named_parameters():
                assert w.grad is not None
                decay = recipe.weight_decay if decay_norms or decayed(name) else 0.0
                w *= 1 - rate * decay
                first[name] = 0.9 * first[name] + 0.1 * w.grad
                second[name] = 0.999 * second[name] + 0.001 * w.grad**2
                mean, square = first[name] / (1 - 0.9**step), second[name] / (1 - 0.999**step)
                w -= rate * mean / (square.sqrt() + 1e-8)
    for (name, found), expected in zip(model.named_parameters(), literal.parameters(), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-8, msg=name)


@pytest.mark.parametrize("decay_norms", [False, True])
def test_adamw_is_that_of_torch(decay_norms: bool) -> None:
    """Its plainest form: no tensors for rates, nothing fused."""
    recipe = replace(ADAM, decay_norms=decay_norms)
    model, plain = network(), network()
    own = optimizer_of(model.double(), recipe)
    spared = [w for name, w in plain.double().named_parameters() if not (decay_norms or decayed(name))]
    rest = [w for name, w in plain.named_parameters() if decay_norms or decayed(name)]
    groups = [{"params": rest}, {"params": spared, "weight_decay": 0.0}]
    theirs = torch.optim.AdamW(groups, weight_decay=recipe.weight_decay, foreach=False, fused=False)
    for step in range(12):
        rate = rate_at(recipe, step, 3)
        set_rate(own, rate)
        for group in theirs.param_groups:
            group["lr"] = rate
        for one, optimizer in ((model, own), (plain, theirs)):
            gradients(one, step)
            optimizer.step()
    for found, expected in zip(model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("nesterov", [False, True])
def test_sgd_keeps_no_rate_in_its_velocity(nesterov: bool) -> None:
    """Sutskever's form as PyTorch has it: B = mu B + g, and the rate of the day on all of it."""
    recipe = replace(SGD, nesterov=nesterov)
    model, literal = network().double(), network().double()
    optimizer = optimizer_of(model, recipe)
    velocity = {name: torch.zeros_like(w) for name, w in literal.named_parameters()}
    for step in range(12):
        rate = rate_at(recipe, step, 3)
        set_rate(optimizer, rate)
        gradients(model, step)
        optimizer.step()
        gradients(literal, step)
        with torch.no_grad():
            for name, w in literal.named_parameters():
                assert w.grad is not None
                slope = w.grad + (recipe.weight_decay if decayed(name) else 0.0) * w
                velocity[name] = 0.9 * velocity[name] + slope
                w -= rate * (slope + 0.9 * velocity[name] if nesterov else velocity[name])
    for (name, found), expected in zip(model.named_parameters(), literal.parameters(), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-7, msg=name)


def experts() -> NetworkOfExperts:
    torch.manual_seed(0)
    specialties = Specialties([0, 0, 0, 0, 1, 1])
    branches = [resnet_branch(int(size), inputs=16) for size in specialties.sizes]
    return NetworkOfExperts(resnet_trunk(blocks=1, width=4), branches, specialties)


@pytest.mark.parametrize("recipe", RECIPES.values(), ids=RECIPES)
@pytest.mark.parametrize("fused", [False, True])
def test_norms_and_biases_are_spared_also_where_experts_are_one(recipe: Recipe, fused: bool) -> None:
    """Fused experts have matrices of biases; Caffe's multipliers, which these layers carry, do not count."""
    model = experts()
    if fused:
        assert model.fuse()
    for decay_norms in (False, True):
        optimizer = optimizer_of(model, replace(recipe, decay_norms=decay_norms))
        decay = {id(p): group["weight_decay"] for group in optimizer.param_groups for p in group["params"]}
        assert {group["rate_multiplier"] for group in optimizer.param_groups} == {1}
        of_norms = {id(p) for m in model.modules() if isinstance(m, BatchNorm2d) for p in m.parameters(recurse=False)}
        for name, parameter in model.named_parameters():
            spared = not decay_norms and (name.endswith("bias") or id(parameter) in of_norms)
            assert decay[id(parameter)] == (0 if spared else recipe.weight_decay), name


@pytest.mark.parametrize("recipe", RECIPES.values(), ids=RECIPES)
def test_norms_that_are_run_whole_are_spared_like_those_of_branches(recipe: Recipe) -> None:
    """Also with a weight for each number of a map, which by its shape could be that of a product."""
    torch.manual_seed(0)
    layers = [[nn.Conv2d(3, 4, 3), nn.LayerNorm([4, 6, 6]), nn.Flatten(), nn.Linear(144, size)] for size in (2, 3)]
    one_by_one = NetworkOfExperts(
        nn.Identity(), [nn.Sequential(*each) for each in layers], Specialties([0, 0, 1, 1, 1])
    )
    fused = copy.deepcopy(one_by_one)
    assert fused.fuse()
    images = torch.randn(4, 3, 8, 8)
    for model in (one_by_one, fused):
        optimizer = optimizer_of(model, recipe)
        for _ in range(3):
            optimizer.zero_grad()
            model(images).square().mean().backward()
            optimizer.step()
    torch.testing.assert_close(fused.state_dict(), one_by_one.state_dict())


@pytest.mark.parametrize("recipe", RECIPES.values(), ids=RECIPES)
def test_memory_rate_and_step_are_all_that_a_checkpoint_needs(recipe: Recipe) -> None:
    whole = network().double()
    optimizer = optimizer_of(whole, recipe)

    def train(model: nn.Module, by: torch.optim.Optimizer, steps: range) -> None:
        for step in steps:
            set_rate(by, rate_at(recipe, step, 3))
            gradients(model, step)
            by.step()

    train(whole, optimizer, range(5))
    saved = {kind: copy.deepcopy(optimizer_tensors(optimizer, whole, kind)) for kind in MEMORY}
    assert sum(map(len, saved.values())) == (10 if recipe.optimizer == "adamw" else 5)
    halfway, rate = copy.deepcopy(whole), current_rate(optimizer)
    train(whole, optimizer, range(5, 12))
    resumed = optimizer_of(halfway, recipe)
    set_rate(resumed, rate)
    for kind, tensors in saved.items():
        load_optimizer_tensors(resumed, halfway, tensors, kind, step=5)
    train(halfway, resumed, range(5, 12))
    for one, other in zip(whole.parameters(), halfway.parameters(), strict=True):
        assert torch.equal(one, other)


# The moving average


def test_the_average_is_its_formula() -> None:
    """Parameters and running statistics; the first weights are taken as they are, young averages are short."""
    decay = 0.9
    model = network().double()
    average = MovingAverage(model, decay)
    expected: dict[str, Tensor] = {}
    generator = torch.Generator().manual_seed(0)
    for step in range(120):
        with torch.no_grad():
            for tensor in (*model.parameters(), model[1].running_mean, model[1].running_var):
                tensor.add_(torch.randn(tensor.shape, generator=generator, dtype=tensor.dtype))
        average.before(step)
        average.update()
        share = max(1 - decay, 9 / (9 + step))
        now = {name: t.detach().clone() for name, t in model.state_dict().items() if t.is_floating_point()}
        expected = {name: (1 - share) * expected[name] + share * t if expected else t for name, t in now.items()}
    assert average.tensors.keys() == expected.keys()
    assert share_of_newest(decay, 0) == 1
    assert share_of_newest(decay, 119) == pytest.approx(1 - decay)
    for name, tensor in average.tensors.items():
        torch.testing.assert_close(tensor, expected[name], rtol=1e-5, atol=1e-7, msg=name)


def test_the_average_is_that_of_timm() -> None:
    """Once the ramp is over, from the same start."""
    utils = pytest.importorskip("timm.utils")
    model = network()
    own, theirs = MovingAverage(model, 0.9), utils.ModelEmaV3(model, decay=0.9)
    for step in range(200, 220):
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(torch.randn_like(parameter))
        model(torch.randn(4, 3, 32, 32))
        own.before(step)
        own.update()
        theirs.update(model)
    for name, tensor in theirs.module.state_dict().items():
        if tensor.is_floating_point():
            torch.testing.assert_close(own.tensors[name], tensor, rtol=1e-5, atol=1e-6, msg=name)


def test_evaluation_sees_the_average_and_training_does_not() -> None:
    """Training is the same with it and without; the model ends with it."""
    recipe = replace(SGD, augmentation=Augmentation(mirror=True))
    without, state = trained(network(), recipe, 12), trained(network(), replace(recipe, ema=0.9), 12)
    assert state.average is not None
    own = {name: tensor.clone() for name, tensor in state.model.state_dict().items()}
    torch.testing.assert_close(own, without.model.state_dict(), rtol=0, atol=0)
    with state.as_evaluated():
        inside = {name: tensor.clone() for name, tensor in state.model.state_dict().items()}
    torch.testing.assert_close(state.model.state_dict(), own, rtol=0, atol=0)
    for name, tensor in state.average.tensors.items():
        assert torch.equal(inside[name], tensor)
        assert not torch.equal(inside[name], own[name]), name
    state.finish()
    torch.testing.assert_close(state.model.state_dict(), inside, rtol=0, atol=0)
    with without.as_evaluated():  # where there is none, nothing changes
        torch.testing.assert_close(without.model.state_dict(), own, rtol=0, atol=0)


def test_the_weights_come_back_when_evaluation_fails() -> None:
    state = trained(network(), replace(SGD, ema=0.9), 5)
    own = copy.deepcopy(state.model.state_dict())
    with pytest.raises(KeyError), state.as_evaluated():
        raise KeyError
    torch.testing.assert_close(state.model.state_dict(), own, rtol=0, atol=0)


def test_caffes_statistics_stay_with_their_count() -> None:
    """Sums that a count of steps belongs to: averaged, they would be divided by the wrong number."""
    torch.manual_seed(0)
    model = Classifier(resnet_trunk(blocks=1, width=4), resnet_head(CLASSES, 16))
    state = trained(model, replace(SGD, ema=0.9, augmentation=Augmentation(28)), 5)
    assert state.average is not None
    assert state.average.tensors.keys() == dict(model.named_parameters()).keys()
    before = {name: buffer.clone() for name, buffer in model.named_buffers()}
    state.finish()
    for name, buffer in model.named_buffers():
        assert torch.equal(buffer, before[name])


# Targets


def one_hot(target: int, outputs: int, smoothing: float) -> Tensor:
    spread = torch.full((outputs,), smoothing / outputs, dtype=torch.float64)
    spread[target] += 1 - smoothing
    return spread


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("targets", [[0, 1, 2, 3, 4, 5], [1, 0, 1, 2, 0, 2]], ids=["classes", "specialties"])
def test_the_loss_is_that_of_each_image_alone(targets: list[int], smoothing: float) -> None:
    """Mixed and smoothed, against classes and against specialties."""
    generator = torch.Generator().manual_seed(0)
    outputs = max(targets) + 1
    logits = 3 * torch.randn(50, outputs, generator=generator)
    own, other = torch.randint(CLASSES, (2, 50), generator=generator)
    share = torch.rand(50, generator=generator)
    objective = Objective(torch.tensor(targets), smoothing=smoothing)
    loss, recognised = objective(logits, MixedLabels(own, other, share))
    losses, right = [], 0
    for index in range(50):
        log_p = logits[index].double().log_softmax(0)
        first, second = targets[own[index]], targets[other[index]]
        weight = float(share[index])
        wanted = weight * one_hot(first, outputs, smoothing) + (1 - weight) * one_hot(second, outputs, smoothing)
        losses.append(-float((wanted * log_p).sum()))
        right += int(logits[index].argmax()) == (first if weight >= 0.5 else second)
    assert float(loss) == pytest.approx(sum(losses) / 50, rel=1e-5)
    assert int(recognised) == right
    whole, counted = objective(logits, MixedLabels(own, other, torch.ones(50)))
    plain, also = objective(logits, own)
    torch.testing.assert_close(whole, plain)
    assert int(counted) == int(also)


def test_unsmoothed_and_unmixed_is_the_papers_loss() -> None:
    logits, labels = torch.randn(9, CLASSES), torch.randint(CLASSES, (9,))
    loss, _ = Objective(torch.arange(CLASSES))(logits, labels)
    assert torch.equal(loss, F.cross_entropy(logits, labels))


# Whole steps


@pytest.mark.parametrize("recipe", RECIPES.values(), ids=RECIPES)
def test_a_compiled_step_is_the_same_training(recipe: Recipe, monkeypatch: pytest.MonkeyPatch) -> None:
    full = replace(
        recipe,
        ema=0.9,
        mixup=0.8,
        cutmix=1.0,
        label_smoothing=0.1,
        warmup_epochs=1.0,
        augmentation=FULL_AUGMENTATION,
    )

    def found(compile: bool) -> list[float]:
        torch.manual_seed(0)
        model = Classifier(resnet_trunk(blocks=1, width=4), resnet_head(CLASSES, 16))
        runtime = replace(ON_CPU, compile=compile)
        state = start_training("test", model, full, 0, runtime)
        batches = batches_of(state, images(), runtime)
        losses = []
        for _ in range(2):
            train_epoch(state, batches, Objective(torch.arange(CLASSES), smoothing=0.1), runtime, Silent())
            losses.append(float(state.totals[0]))
        return losses

    eager = found(compile=False)
    real = torch.compile
    monkeypatch.setattr(torch, "compile", lambda f, **_: real(f, dynamic=False, backend="aot_eager"))
    torch._dynamo.reset()
    np.testing.assert_allclose(found(compile=True), eager, rtol=1e-3)


@pytest.mark.gpu
@pytest.mark.parametrize("recipe", RECIPES.values(), ids=RECIPES)
def test_a_captured_step_is_the_same_training(recipe: Recipe) -> None:
    full = replace(
        recipe,
        epochs=8,
        ema=0.9,
        mixup=0.8,
        cutmix=1.0,
        warmup_epochs=1.0,
        augmentation=FULL_AUGMENTATION,
    )
    ends = []
    for capture in (False, True):
        runtime = Runtime(torch.device("cuda:0"), capture=capture)
        torch.manual_seed(0)
        state = start_training("test", network().to(runtime.device), replace(full), 0, runtime)
        pictures = images()
        made = ImageSet(pictures.pixels.numpy(), pictures.labels.numpy())
        batches = batches_of(state, DeviceImages(made, pixel_mean(made), runtime.device), runtime)
        for _ in range(8):
            train_epoch(state, batches, Objective(torch.arange(CLASSES, device="cuda")), runtime, Silent())
        state.finish()
        ends.append({name: tensor.cpu() for name, tensor in state.model.state_dict().items()})
    torch.testing.assert_close(ends[0], ends[1], rtol=1e-2, atol=1e-3)
