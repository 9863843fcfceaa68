"""The optimizer is Caffe's: V = mu V + rate * lr_mult * (g + wd * decay_mult * w); w = w - V."""

import copy
from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from nofe.architectures import Classifier, architecture_named
from nofe.architectures.caffe import BatchNorm2d, Multipliers, multipliers_of
from nofe.architectures.resnet import resnet_head, resnet_trunk
from nofe.training.optimizer import (
    backward_and_step,
    caffe_sgd,
    current_rate,
    load_optimizer_tensors,
    optimizer_of,
    optimizer_tensors,
    set_rate,
)
from nofe.training.recipe import Recipe

RECIPE = Recipe(epochs=1, batch=4, rate=1e-3, weight_decay=0.004)
RATES = (1e-3, 1e-3, 1e-3, 1e-4, 1e-4, 1e-5, 1e-5, 1e-3, 1e-3)  # drops, and once a rise


def network(seed: int = 0) -> nn.Module:
    """AlexNet-C100: lr_mult 1 and 2, decay_mult 0, 1 and 250, all with decay of its own."""
    torch.manual_seed(seed)
    model = architecture_named("alexnet-c100").classifier(10).double()
    for parameter in model.parameters():  # biases of 0 would hide whether they are decayed
        parameter.data.add_(0.01 * torch.randn_like(parameter))
    return model


def batches() -> Iterator[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(1)
    while True:
        images = torch.rand(4, 3, 32, 32, generator=generator, dtype=torch.float64) * 255 - 128
        yield images, torch.randint(10, (4,), generator=generator)


def gradients(model: nn.Module, batch: tuple[Tensor, Tensor]) -> None:
    images, labels = batch
    model.zero_grad()
    nn.functional.cross_entropy(model(images), labels).backward()


def by_hand(
    model: nn.Module, rates: tuple[float, ...], multipliers: dict[str, Multipliers] | None = None
) -> dict[str, Tensor]:
    """Caffe's update, parameter by parameter. Trains in place, returns the velocities."""
    velocity = {name: torch.zeros_like(parameter) for name, parameter in model.named_parameters()}
    multipliers = multipliers or multipliers_of(model)
    for rate, batch in zip(rates, batches(), strict=False):
        gradients(model, batch)
        with torch.no_grad():
            for name, w in model.named_parameters():
                assert w.grad is not None
                lr_mult, decay_mult = multipliers[name].rate, multipliers[name].decay
                slope = w.grad + RECIPE.weight_decay * decay_mult * w
                velocity[name] = RECIPE.momentum * velocity[name] + rate * lr_mult * slope
                w -= velocity[name]
    return velocity


def by_optimizer(model: nn.Module, optimizer: torch.optim.SGD, rates: tuple[float, ...], skip: int = 0) -> None:
    source = batches()
    for _ in range(skip):
        next(source)
    for rate, batch in zip(rates, source, strict=False):
        set_rate(optimizer, rate)
        gradients(model, batch)
        optimizer.step()


def test_the_network_under_test_has_every_kind_of_multiplier() -> None:
    found = {(of.rate, of.decay) for of in multipliers_of(network()).values()}
    assert found == {(1, 1), (2, 1), (1, 250), (2, 0)}


@pytest.mark.parametrize("steps", range(1, len(RATES) + 1))
def test_steps_like_caffe_across_changes_of_the_rate(steps: int) -> None:
    start, literal, model = network(), network(), network()
    velocities = by_hand(literal, RATES[:steps])
    optimizer = caffe_sgd(model, RECIPE)
    by_optimizer(model, optimizer, RATES[:steps])
    buffers = optimizer_tensors(optimizer, model)
    multipliers = multipliers_of(model)
    expected, first = dict(literal.named_parameters()), dict(start.named_parameters())
    for name, parameter in model.named_parameters():
        # The way gone, not the place: a rate ten times too small would hide behind the initial weights.
        assert_alike(parameter - first[name], expected[name] - first[name])
        assert_alike(buffers[name] * RATES[steps - 1] * multipliers[name].rate, velocities[name])


def assert_alike(found: Tensor, expected: Tensor) -> None:
    """To six digits of the largest: the optimizer holds its rate in float32."""
    assert (found - expected).abs().max() <= 1e-6 * expected.abs().max()


@pytest.mark.parametrize("decay_norms", [False, True])
def test_batch_norm_is_decayed_on_request_alone(decay_norms: bool) -> None:
    """As the other weights, and nothing else changes: the bias of the output stays without decay."""

    def residual() -> nn.Module:
        torch.manual_seed(0)
        return Classifier(resnet_trunk(blocks=1, width=4), resnet_head(10, 16)).double()

    start, literal, model = residual(), residual(), residual()
    norms = {
        f"{path}.{name}"
        for path, module in model.named_modules()
        if isinstance(module, BatchNorm2d)
        for name in ("weight", "bias")
    }
    assert len(norms) == 2 * 7
    assert all(multipliers_of(model)[name] == Multipliers(1, 0) for name in (*norms, "head.fc.bias"))
    multipliers = multipliers_of(model) | ({name: Multipliers(1, 1) for name in norms} if decay_norms else {})
    by_hand(literal, RATES[:4], multipliers)
    by_optimizer(model, caffe_sgd(model, replace(RECIPE, decay_norms=decay_norms)), RATES[:4])
    for (name, one), other, first in zip(
        model.named_parameters(), literal.parameters(), start.parameters(), strict=True
    ):
        assert name in dict(literal.named_parameters())
        assert_alike(one - first, other - first)


@pytest.mark.parametrize("decay_norms", [False, True])
def test_batch_norm_of_torch_is_decayed_on_request_alone_too(decay_norms: bool) -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4))
    groups = caffe_sgd(model, replace(RECIPE, decay_norms=decay_norms)).param_groups
    decay = {id(weight): group["weight_decay"] for group in groups for weight in group["params"]}
    expected = RECIPE.weight_decay if decay_norms else 0.0
    assert [decay[id(weight)] for weight in model[1].parameters()] == [expected] * 2
    assert [decay[id(weight)] for weight in model[0].parameters()] == [RECIPE.weight_decay] * 2


def test_momentum_and_rate_are_all_that_a_checkpoint_needs() -> None:
    """Saved after a drop, loaded into a new optimizer at the first rate: the next steps are the same to the bit."""
    before, after = RATES[:5], RATES[5:]
    whole = network()
    optimizer = caffe_sgd(whole, RECIPE)
    by_optimizer(whole, optimizer, before)
    saved = {name: tensor.clone() for name, tensor in optimizer_tensors(optimizer, whole).items()}
    rate, halfway = current_rate(optimizer), copy.deepcopy(whole)
    by_optimizer(whole, optimizer, after, skip=len(before))

    assert rate == before[-1]
    resumed = caffe_sgd(halfway, RECIPE)
    set_rate(resumed, rate)
    load_optimizer_tensors(resumed, halfway, saved)
    assert current_rate(resumed) == rate
    for name, tensor in optimizer_tensors(resumed, halfway).items():
        assert torch.equal(tensor, saved[name])
    by_optimizer(halfway, resumed, after, skip=len(before))
    for (name, one), (_, other) in zip(whole.named_parameters(), halfway.named_parameters(), strict=True):
        assert torch.equal(one, other), name


def test_loaded_momentum_is_a_copy() -> None:
    model = network()
    optimizer = caffe_sgd(model, RECIPE)
    saved = {name: torch.ones_like(parameter) for name, parameter in model.named_parameters()}
    load_optimizer_tensors(optimizer, model, saved)
    by_optimizer(model, optimizer, RATES[:2])
    assert all(torch.equal(tensor, torch.ones_like(tensor)) for tensor in saved.values())


def test_a_new_optimizer_has_no_momentum_and_the_rate_of_the_recipe() -> None:
    model = network()
    optimizer = caffe_sgd(model, RECIPE)
    assert optimizer_tensors(optimizer, model) == {}
    assert current_rate(optimizer) == RECIPE.rate


def test_what_is_frozen_does_not_move() -> None:
    model = network()
    frozen = next(model.parameters())
    frozen.requires_grad_(False)
    before = frozen.clone()
    by_optimizer(model, caffe_sgd(model, RECIPE), RATES[:2])
    assert torch.equal(frozen, before)


@pytest.mark.parametrize("ranks", [1, 2])
def test_weights_wait_for_gradients_of_other_ranks(ranks: int) -> None:
    """An optimizer that steps while gradients come would take those of its own rank alone."""
    weight = nn.Parameter(torch.ones(3))
    early = []

    class Early(torch.optim.SGD):
        def backward_and_step(self, loss: Tensor) -> None:
            early.append(loss)

    backward_and_step(Early([weight], lr=0.5), weight.sum(), ranks=ranks)
    assert bool(early) == (ranks == 1)
    assert weight.tolist() == ([1.0] * 3 if early else [0.5] * 3)


@pytest.mark.parametrize("kind", ["caffe-sgd", "sgd", "adamw"])
def test_a_weight_with_gaps_in_memory_is_stepped_like_any_other(kind: str) -> None:
    """A kernel that takes it for one piece of memory would write into the gaps, and beyond the end."""
    torch.manual_seed(0)
    around = torch.randn(3, 8)
    with_gaps, plain = nn.Linear(4, 3), nn.Linear(4, 3)
    with_gaps.weight = nn.Parameter(around[:, ::2])
    plain.load_state_dict(with_gaps.state_dict())
    between = around[:, 1::2].clone()
    recipe = replace(RECIPE, optimizer=kind, momentum=0.9)
    for model in (with_gaps, plain):
        optimizer = optimizer_of(model, recipe)
        for _ in range(4):
            model.zero_grad()
            model(torch.linspace(-1, 1, 8).view(2, 4)).square().sum().backward()
            optimizer.step()
    torch.testing.assert_close(with_gaps.state_dict(), plain.state_dict())
    assert torch.equal(around[:, 1::2], between)
