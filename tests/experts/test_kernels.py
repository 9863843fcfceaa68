"""Every kernel is the same function; the choice among them is made once, is remembered, and changes nothing else."""

import dataclasses
import json
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from test_fused import BALANCED, FEATURES, RAGGED, Trunkless, pair
from timm.layers import DropPath
from torch import Tensor, nn
from torchvision.ops import StochasticDepth

from nofe.experts import kernels
from nofe.experts.branches import Branches
from nofe.experts.fused import FusedExperts, fuse
from nofe.experts.kernels import KERNELS, Choices, choose_kernels, kernels_of, pin_kernels
from nofe.experts.network import NetworkOfExperts
from nofe.experts.stacked import StackedLayer
from nofe.experts.stacked_convolutions import GroupedConvolution
from nofe.experts.stacked_linears import BatchedLinear
from nofe.training.runtime import Runtime, make_runtime

CPU = Runtime(torch.device("cpu"))


def step(network: NetworkOfExperts, features: Tensor, labels: Tensor) -> dict[str, Tensor]:
    """Everything that a training step computes, by its name on disk."""
    network.train()
    network.zero_grad()
    given = features.clone().requires_grad_()
    logits = network(given)
    nn.functional.cross_entropy(logits, labels).backward()
    gradients = network.to_disk({name: parameter.grad for name, parameter in network.named_parameters()})
    return {"logits": logits.detach(), "to trunk": given.grad, **gradients} | {
        f"saved {name}": tensor.clone() for name, tensor in network.state_dict().items()
    }


def layers_of(network: NetworkOfExperts) -> list[StackedLayer]:
    return [module for module in network.modules() if isinstance(module, StackedLayer)]


@pytest.mark.parametrize("sizes", [BALANCED, RAGGED], ids=["balanced", "ragged"])
@pytest.mark.parametrize("name", FEATURES)
def test_every_candidate_of_every_layer_is_the_reference(name: str, sizes: list[int]) -> None:
    features = torch.randn(3, *FEATURES[name], dtype=torch.float64)
    labels = torch.randint(sum(sizes), (3,))
    reference, _ = pair(name, sizes)
    expected = step(reference, features, labels)
    _, counted = pair(name, sizes)
    most = max(len(layer.candidates()) for layer in layers_of(counted))
    for number in range(most):
        _, fused = pair(name, sizes)
        for layer in layers_of(fused):
            candidates = layer.candidates()
            layer.use(*candidates[number % len(candidates)])
        found = step(fused, features, labels)
        assert found.keys() == expected.keys()
        for what, tensor in expected.items():
            torch.testing.assert_close(found[what], tensor, msg=lambda text, what=what: f"{what}: {text}")


def test_candidates_cover_what_there_is_to_choose_from() -> None:
    _, fused = pair("nin-c100", BALANCED)
    by_layer = {kernel for layer in layers_of(fused) for kernel, _ in layer.candidates(frozen=True)}
    assert by_layer == set(KERNELS)
    layouts = {layout for layer in layers_of(fused) for _, layout in layer.candidates()}
    assert layouts == {"last", "first"}


@pytest.mark.parametrize(
    "settings",
    [
        {"kernel_size": 3, "padding": 1},
        {"kernel_size": (3, 2), "padding": (1, 0), "stride": (2, 1)},
        {"kernel_size": 3, "padding": 2, "dilation": (2, 1), "bias": False},
        {"kernel_size": 1, "stride": 2},
        {"kernel_size": 5, "groups": 2},
    ],
)
def test_a_product_of_columns_is_the_convolution(settings: dict[str, Any]) -> None:
    layers = [nn.Conv2d(4, 6, **settings, dtype=torch.float64) for _ in range(3)]
    stacked = GroupedConvolution(layers)
    stacked.use("product", "last")
    maps = torch.randn(2, 12, 7, 8, dtype=torch.float64, requires_grad=True)
    expected = torch.cat([layer(own) for layer, own in zip(layers, maps.chunk(3, dim=1), strict=True)], dim=1)
    found = stacked(maps)
    torch.testing.assert_close(found, expected)
    wanted = torch.autograd.grad(expected.square().sum(), [maps, *(layer.weight for layer in layers)])
    got = torch.autograd.grad(found.square().sum(), [maps, cast(Tensor, stacked.weight)])
    torch.testing.assert_close(got[0], wanted[0])
    torch.testing.assert_close(got[1], torch.cat(wanted[1:]))


def test_what_cannot_be_the_fastest_is_not_measured() -> None:
    maps = torch.randn(2, 12, 7, 8)
    wide, pointwise = (GroupedConvolution([nn.Conv2d(4, 6, size) for _ in range(3)]) for size in (3, 1))
    assert pointwise.is_promising("product", "last", maps, "fp32")
    assert not wide.is_promising("product", "last", maps, "fp32"), "nine copies of each pixel, on a processor"
    assert wide.is_promising("loop", "first", maps, "fp32")


def experts_of(name: str) -> FusedExperts:
    _, fused = pair(name, RAGGED)
    assert isinstance(fused.experts, FusedExperts)
    return fused.experts


def test_measured_once_and_remembered_on_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    features = torch.randn(2, *FEATURES["vgg11-c100"], dtype=torch.float64)
    file = tmp_path / "cache" / "kernels.json"
    first = experts_of("vgg11-c100")
    made = choose_kernels(first, features, CPU, training=True, remembered=Choices(file))
    assert len(made) == len(json.loads(file.read_text())) == len(kernels_of(first))
    monkeypatch.setattr(kernels, "_fastest", lambda *_: pytest.fail("measured twice"))
    again = experts_of("vgg11-c100")
    remembered = Choices(file, json.loads(file.read_text()))
    assert choose_kernels(again, features, CPU, training=True, remembered=remembered) == made
    assert kernels_of(again) == kernels_of(first)


def test_known_choices_go_before_remembered_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a resumed run computes the same bits, whatever the user's file says by now."""
    features = torch.randn(2, *FEATURES["small"], dtype=torch.float64)
    monkeypatch.setattr(kernels, "_fastest", lambda steps, *_: list(steps)[-1])
    remembered = Choices()
    made = choose_kernels(experts_of("small"), features, CPU, training=True, remembered=remembered)
    monkeypatch.setattr(kernels, "_fastest", lambda steps, *_: next(iter(steps)))
    remembered.chosen.clear()
    resumed = experts_of("small")
    assert choose_kernels(resumed, features, CPU, training=True, known=made, remembered=remembered) == made
    assert set(kernels_of(resumed).values()) == set(made.values())
    assert not remembered.chosen


def test_known_kernels_are_used_and_others_not_looked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NOFE_CACHE", str(tmp_path))
    monkeypatch.setattr(kernels, "_fastest", lambda steps, *_: list(steps)[-1])
    shape = (2, *FEATURES["small"])

    def chosen(how: str, batch: int) -> dict[str, str]:
        _, network = pair("small", RAGGED)
        runtime = Runtime(torch.device("cpu"), kernels=how)
        return network.choose_kernels((batch, *shape[1:]), runtime, training=True)

    made = chosen("measure", 2)
    monkeypatch.setattr(kernels, "_fastest", lambda *_: pytest.fail("measured"))
    assert chosen("known", 2) == made != {}
    assert chosen("known", 3) == {}


def test_a_choice_depends_on_pass_shape_and_precision() -> None:
    keys: set[str] = set()
    for shape, training, precision in [(2, True, "fp32"), (3, True, "fp32"), (2, False, "fp32"), (2, False, "bf16")]:
        features = torch.randn(shape, *FEATURES["small"])
        experts = experts_of("small").float()
        runtime = Runtime(torch.device("cpu"), precision)
        made = choose_kernels(experts, features, runtime, training=training, remembered=Choices())
        assert not keys & made.keys()
        keys |= made.keys()


@pytest.mark.parametrize("other", [(8, 2), (4, 3)], ids=["wider", "more classes"])
def test_what_holds_for_branches_is_not_remembered_for_others(
    other: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of layers with the same names and kernels, on the same features."""
    runtime, remembered, measured = Runtime(torch.device("cpu")), Choices(), []
    monkeypatch.setattr(kernels, "_fastest", lambda steps, *_: measured.append(1) or next(iter(steps)))
    for width, classes in ((4, 2), other, other):
        layers = [[nn.Conv2d(3, width, 1), nn.Flatten(), nn.Linear(9 * width, classes)] for _ in range(2)]
        branches = Branches([nn.Sequential(*each) for each in layers])
        fused = fuse(branches)
        kernels.faster_than_branches(
            fused, branches, torch.randn(2, 3, 3, 3), runtime, training=True, remembered=remembered
        )
    assert len(measured) == len(remembered.chosen) == 2


def test_choosing_changes_no_weight_no_statistic_and_draws_nothing() -> None:
    _, network = pair("vgg11-c100", RAGGED)
    network.train()
    for module in network.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.5
    before = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    generator = torch.get_rng_state()
    network.choose_kernels((2, *FEATURES["vgg11-c100"]), CPU, training=True)
    assert network.training
    assert torch.equal(torch.get_rng_state(), generator)
    assert all(torch.equal(tensor, before[name]) for name, tensor in network.state_dict().items())
    assert all(parameter.grad is None for parameter in network.parameters())


@pytest.mark.parametrize(
    "drops",
    [
        lambda: nn.Dropout(0.5),
        lambda: nn.AlphaDropout(0.5),
        lambda: nn.Dropout2d(0.5),
        lambda: DropPath(0.5),
        lambda: StochasticDepth(0.5, "batch"),
    ],
)
def test_layers_that_draw_are_measured_with_the_generator_put_back(
    drops: Callable[[], nn.Module], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NOFE_CACHE", str(tmp_path))
    branches = [nn.Sequential(nn.Conv2d(4, 4, 1), drops(), nn.Flatten(), nn.Linear(64, size)) for size in RAGGED]
    network = Trunkless(branches, RAGGED)
    assert network.fuse()
    before = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    generator = torch.get_rng_state()
    made = network.train().choose_kernels((2, 4, 4, 4), CPU, training=True)
    assert sorted(made) == sorted(key.partition(": ")[2] for key in json.loads((tmp_path / kernels.FILE).read_text()))
    assert torch.equal(torch.get_rng_state(), generator)
    assert all(torch.equal(tensor, before[name]) for name, tensor in network.state_dict().items())


def test_nothing_is_measured_where_it_may_not_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "_fastest", lambda *_: pytest.fail("measured"))
    _, network = pair("small", BALANCED)
    shape = (2, *FEATURES["small"])
    assert network.double().choose_kernels(shape, CPU, training=False, may_measure=False) == {}
    for kernel in ("together", "loop", "product"):
        network.choose_kernels(shape, dataclasses.replace(CPU, kernels=kernel), training=True)
        assert kernels_of(network.experts)["fc"] == kernel  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("device", "of_branches", "winner"),
    [
        *(("cpu", times, kernels.BRANCHES) for times in (0.98, 0.995, 1.005)),
        ("cpu", 1.02, "fused"),
        ("cuda:0", 0.98, kernels.BRANCHES),
        *(("cuda:0", times, "fused") for times in (0.995, 1.005, 1.02)),
    ],
)
def test_fused_experts_do_not_stay_where_branches_are_a_little_faster(
    device: str, of_branches: float, winner: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unlike a layer's usual kernel, which another must beat by more: as much is given away only once.

    On a processor branches run where both are as fast, so that fused experts are never the slower by chance.
    """
    least = {"fused": 1.0, kernels.BRANCHES: of_branches}
    monkeypatch.setattr(kernels, "_least_seconds", lambda steps, _: {name: least[name] for name in steps})
    monkeypatch.setattr(kernels, "_step", lambda *_: lambda: None)
    monkeypatch.setattr(kernels, "drawing_aside", lambda _: nullcontext())
    monkeypatch.setattr(kernels, "device_name", lambda _: "a device")
    runtime = Runtime(torch.device(device))
    reference, network = pair("small", BALANCED)
    features = torch.randn(2, *FEATURES["small"])
    fused, branches = network.experts.float(), reference.experts.float()
    assert isinstance(fused, FusedExperts)
    assert isinstance(branches, Branches)
    pin_kernels(fused, "loop")  # or nothing is measured on a GPU
    is_fused, made = kernels.faster_than_branches(
        fused, branches, features, runtime, training=False, remembered=Choices(), may_measure=True
    )
    assert (is_fused, *made.values()) == (winner == "fused", winner)


def test_the_reference_runs_where_it_is_fastest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fastest(steps: dict[str, Callable[[], None]], *_: object) -> str:
        return kernels.BRANCHES if kernels.BRANCHES in steps else list(steps)[-1]

    monkeypatch.setattr(kernels, "_fastest", fastest)
    monkeypatch.setenv("NOFE_CACHE", str(tmp_path))
    reference, network = pair("small", RAGGED)
    made = network.choose_kernels((2, *FEATURES["small"]), CPU, training=True)
    assert isinstance(network.experts, Branches)
    assert list(made.values())[-1] == kernels.BRANCHES
    features = torch.randn(2, *FEATURES["small"], dtype=torch.float64)
    torch.testing.assert_close(network.eval()(features), reference.eval()(features))


def test_on_a_gpu_the_reference_is_measured_only_where_some_layer_runs_in_a_loop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reference, fused = pair("small", BALANCED)
    features = torch.randn(2, *FEATURES["small"], dtype=torch.float64)
    assert isinstance(fused.experts, FusedExperts)
    assert isinstance(reference.experts, Branches)
    monkeypatch.setattr(kernels, "_fastest", lambda *_: kernels.BRANCHES)
    monkeypatch.setattr(kernels, "_step", lambda *_: lambda: None)
    monkeypatch.setattr(kernels, "device_name", lambda device: "a GPU")
    on_gpu = Runtime(torch.device("cuda:0"))
    for kernel, is_fused in (("together", True), ("loop", False)):
        pin_kernels(fused.experts, kernel)
        choice, _ = kernels.faster_than_branches(
            fused.experts, reference.experts, features, on_gpu, training=True, remembered=Choices()
        )
        assert choice == is_fused


def test_the_chosen_layout_outlives_a_move_of_the_network() -> None:
    experts = experts_of("vgg11-c100")
    for layer in (module for module in experts.modules() if isinstance(module, StackedLayer)):
        if layer.layouts:
            layer.use("together", "first")
            experts.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
            assert layer.weight.is_contiguous()


@pytest.mark.parametrize("content", ["", "{", "[1]", '{"a": 1}'])
def test_a_damaged_file_of_choices_is_made_again(tmp_path: Path, content: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NOFE_CACHE", str(tmp_path))
    (tmp_path / kernels.FILE).write_text(content)
    features = torch.randn(2, *FEATURES["small"], dtype=torch.float64)
    made = choose_kernels(experts_of("small"), features, CPU, training=True)
    stored = json.loads((tmp_path / kernels.FILE).read_text())
    assert sorted(stored.values()) == sorted(made.values())


def test_compiled_code_follows_a_pinned_kernel() -> None:
    reference, fused = pair("small", RAGGED)
    assert isinstance(fused.experts, FusedExperts)
    features = torch.randn(2, *FEATURES["small"], dtype=torch.float64)
    expected = reference.eval()(features)
    fused.eval()
    for kernel in KERNELS:
        pin_kernels(fused.experts, kernel)
        compiled = torch.compile(fused, backend="eager", fullgraph=True)
        torch.testing.assert_close(compiled(features), expected)


def test_an_unknown_kernel_is_refused() -> None:
    from nofe.errors import UserError

    with pytest.raises(UserError, match=r"--kernels fast: unknown; choose one of measure"):
        make_runtime("cpu", kernels="fast")


@pytest.mark.parametrize("kernel", ["together", "product"])
def test_gradients_of_batched_products_lie_as_the_weights_do(kernel: str) -> None:
    """Or all of them would be copied at every step."""
    layer = BatchedLinear([nn.Linear(5, 4) for _ in range(3)])
    layer.use(kernel, None)
    weight = cast(Tensor, layer.weight)
    strides = []
    weight.register_hook(lambda gradient: strides.append(gradient.stride()))
    layer(torch.randn(2, 3, 5)).sum().backward()
    assert strides == [weight.stride()]


def test_a_batched_product_has_gradients_of_gradients() -> None:
    """As any layer of torch has; in float64, against differences."""
    layer = BatchedLinear([nn.Linear(3, 2) for _ in range(2)]).double()
    vectors = torch.randn(2, 2, 3, dtype=torch.float64, requires_grad=True)

    def outputs(vectors: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return torch.func.functional_call(layer, {"weight": weight, "bias": bias}, (vectors,))

    inputs = (vectors, *layer.parameters())
    assert torch.autograd.gradcheck(outputs, inputs)
    assert torch.autograd.gradgradcheck(outputs, inputs)


@pytest.mark.parametrize("learning", [(True, False, False), (False, True, False), (False, False, True)])
def test_a_batched_product_computes_the_gradients_that_are_wanted(learning: tuple[bool, bool, bool]) -> None:
    layer = BatchedLinear([nn.Linear(3, 2) for _ in range(2)])
    vectors = torch.randn(2, 2, 3)
    inputs = (vectors, *layer.parameters())
    for tensor, learns in zip(inputs, learning, strict=True):
        tensor.requires_grad_(learns)
    layer(vectors).sum().backward()
    assert [tensor.grad is not None for tensor in inputs] == list(learning)


def test_a_batched_product_in_autocast_is_that_of_torch() -> None:
    layer = BatchedLinear([nn.Linear(5, 4) for _ in range(3)])
    vectors = torch.randn(2, 3, 5)
    found = []
    for training in (True, False):  # by a function of ours, and by torch's own
        layer.train(training).zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            outputs = layer(vectors)
        outputs.float().square().sum().backward()
        found.append((outputs, *(parameter.grad for parameter in layer.parameters())))
    for ours, theirs in zip(*found, strict=True):
        assert ours.dtype == theirs.dtype
        torch.testing.assert_close(ours, theirs)
