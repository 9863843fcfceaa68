"""However a step is run, it is the same training."""

import copy
import sys
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

from nofe.architectures import architecture_named
from nofe.architectures.caffe import BatchNorm2d, counting_steps_together
from nofe.architectures.resnet import resnet_branch, resnet_head, resnet_trunk
from nofe.data.batches import Augmentation, Batches, DeviceImages, pixel_mean
from nofe.data.dataset import ImageSet
from nofe.experts.network import NetworkOfExperts, plant_experts
from nofe.specialties import Specialties
from nofe.training import half, launch, optimizer
from nofe.training.half import forward_of
from nofe.training.launch import CapturedStep, after_capture, compile_blocks
from nofe.training.loop import Objective, start_training, train_epoch, training_step
from nofe.training.mended import mend_pooling
from nofe.training.progress import Silent
from nofe.training.recipe import Recipe
from nofe.training.runtime import Runtime

CLASSES, BATCH = 6, 8
ON_CPU = Runtime(torch.device("cpu"))


def small_resnet() -> NetworkOfExperts:
    """Two blocks of each kind and a stem, narrow enough for a test."""
    torch.manual_seed(3)
    architecture = replace(
        architecture_named("resnet56-c100"),
        trunk=lambda: resnet_trunk(blocks=2, width=4),
        head=lambda outputs: resnet_head(outputs, inputs=16),
        branch=lambda outputs: resnet_branch(outputs, inputs=16),
    )
    return plant_experts(architecture, Specialties([0, 1, 0, 1, 1, 1]))


def images_on(device: torch.device, count: int = 3 * BATCH) -> DeviceImages:
    rng = np.random.default_rng(0)
    images = ImageSet(rng.integers(0, 256, (count, 3, 32, 32), dtype=np.uint8), rng.integers(0, CLASSES, count))
    return DeviceImages(images, pixel_mean(images), device)


def losses(model: nn.Module, runtime: Runtime, steps: int = 6, rate: float = 1e-2) -> list[float]:
    """Of each step, by the loop itself, one step at a time."""
    recipe = Recipe(epochs=100, batch=BATCH, rate=rate, weight_decay=1e-3, augmentation=Augmentation(28, mirror=True))
    state = start_training("test", model, recipe, 0, runtime)
    batches = Batches(images_on(runtime.device), recipe.augmentation, batch=BATCH, seed=0, stage="test")
    objective = Objective(torch.arange(CLASSES, device=runtime.device))
    total, each = 0.0, []
    for step in range(steps):
        if step % batches.steps_per_epoch == 0:
            total = 0.0
        train_epoch(state, batches, objective, runtime, Silent(), until=step + 1)
        now = float(state.totals[0])
        each.append((now - total) / BATCH)
        total = now
    return each


def test_weights_cast_at_once_are_the_weights_of_autocast() -> None:
    """Losses and gradients, bit for bit; parameters that autocast leaves alone stay in float32."""
    images = torch.randn(4, 3, 28, 28)
    runtime = replace(ON_CPU, precision="bf16")
    for fused in (False, True):
        one = small_resnet()
        if fused:
            one.fuse()
        other = copy.deepcopy(one)
        with runtime.autocast():
            wanted = one(images)
        got = forward_of(other, runtime)(images)
        assert torch.equal(got, wanted)
        wanted.float().square().mean().backward()
        got.float().square().mean().backward()
        for (name, parameter), same in zip(one.named_parameters(), other.parameters(), strict=True):
            assert parameter.grad is not None, name
            assert same.grad is not None, name
            assert same.grad.dtype == torch.float32
            assert torch.equal(parameter.grad, same.grad), name


def test_a_weight_that_no_output_depends_on_gets_no_gradient() -> None:
    class Half(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.unused = nn.Linear(3, 2), nn.Linear(3, 2)

        def forward(self, values: torch.Tensor) -> torch.Tensor:
            return self.used(values)

    model = Half()
    forward_of(model, replace(ON_CPU, precision="bf16"))(torch.randn(4, 3)).sum().backward()
    assert model.used.weight.grad is not None
    assert model.unused.weight.grad is None


def test_counting_together_counts_what_the_layers_would() -> None:
    apart, together = small_resnet(), small_resnet()
    images = torch.randn(4, 3, 28, 28)
    for model in (apart, together):
        model.train()
    for _ in range(3):
        apart(images)
    with counting_steps_together(together) as taken:
        for _ in range(3):
            together(images)
            taken[0] += 1
    torch.testing.assert_close(together.state_dict(), apart.state_dict(), rtol=0, atol=0)
    together(images)
    counts = {int(m.num_batches_tracked) for m in together.modules() if isinstance(m, BatchNorm2d)}
    assert counts == {4}, "outside the loop each layer counts for itself again"


def test_the_loop_counts_every_step() -> None:
    model = small_resnet()
    losses(model, ON_CPU, steps=5)
    assert {int(m.num_batches_tracked) for m in model.modules() if isinstance(m, BatchNorm2d)} == {5}


def test_a_compiled_step_is_the_same_training(monkeypatch: pytest.MonkeyPatch) -> None:
    """By graphs that aot_eager runs: what is cut into parts and how state passes through them, without a compiler."""
    plain = losses(small_resnet(), ON_CPU)
    real = torch.compile
    monkeypatch.setattr(torch, "compile", lambda f, **_: real(f, dynamic=False, backend="aot_eager"))
    torch._dynamo.reset()
    np.testing.assert_allclose(losses(small_resnet(), replace(ON_CPU, compile=True)), plain, rtol=1e-4)


def test_a_compiled_network_has_the_gradients_of_an_uncompiled_one() -> None:
    """AlexNet-C100 begins with every layer that is Caffe's own. Layer by layer: at the start of training a loss tells
    nothing, and the compiler once had the gradients of average pooling wrong without any other sign of it."""
    runtime = Runtime(torch.device("cpu"), compile=True)
    torch.manual_seed(0)
    layers = dict(architecture_named("alexnet-c100").trunk().named_children())
    begin = {name: layers[name] for name in ("conv1", "pool1", "relu1", "norm1", "conv2", "relu2", "pool2")}
    network = nn.Sequential(OrderedDict(**begin, flatten=nn.Flatten(), output=nn.Linear(32 * 8 * 8, 10)))
    for weight in network.parameters():
        if weight.dim() > 1:
            nn.init.kaiming_normal_(weight)
    network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    images = torch.randn(4, 3, 32, 32).contiguous(memory_format=torch.channels_last)
    expected = gradients(network, images)
    compile_blocks(network, runtime)
    compiled = gradients(network, images)
    for name, gradient in expected.items():
        torch.testing.assert_close(compiled[name], gradient, rtol=1e-4, atol=1e-6, msg=lambda m, n=name: f"{n}: {m}")


def gradients(network: nn.Module, images: Tensor) -> dict[str, Tensor]:
    network.zero_grad()
    network(images).logsumexp(1).mean().backward()
    return {name: weight.grad.clone() for name, weight in network.named_parameters() if weight.grad is not None}


@pytest.mark.parametrize("padding", [0, 1])
def test_the_compiler_averages_over_the_border_as_torch_does(padding: int) -> None:
    """In a user's own forward, where no layer of ours stands between."""
    runtime = Runtime(torch.device("cpu"), compile=True)

    def pooled(maps: Tensor) -> Tensor:
        return F.avg_pool2d(maps, 3, 2, padding, ceil_mode=True)

    found = []
    for function in (pooled, launch.compiled(pooled, runtime)):
        maps = torch.arange(64.0).view(1, 1, 8, 8).requires_grad_()
        function(maps).square().sum().backward()
        found.append(maps.grad)
    torch.testing.assert_close(found[1], found[0])


def test_compiled_parts_cover_the_network_once() -> None:
    """Every layer with weights lies in exactly one compiled part; a repeated block is a part of its own."""
    model = small_resnet()
    model.fuse()
    compile_blocks(model, replace(ON_CPU, compile=True))
    parts = [name for name, module in model.named_modules() if module._compiled_call_impl is not None]
    assert "trunk.stem" in parts
    assert "trunk.stage1.block2" in parts
    assert "experts" in parts
    for name, _ in model.named_parameters():
        assert sum(name.startswith(part + ".") for part in parts) == 1, name


@pytest.mark.parametrize(
    ("device", "mended"), [("cpu", set()), ("cuda", {"padded"}), ("mps", {"plain", "padded", "all"})]
)
def test_averages_whose_gradients_are_wrong_get_channels_first(device: str, mended: set[str]) -> None:
    pools = nn.ModuleDict(
        {
            "plain": nn.AvgPool2d(2),
            "padded": nn.AvgPool2d(3, 1, 1),
            "all": nn.AdaptiveAvgPool2d(1),
            "most": nn.MaxPool2d(2),
        }
    )
    seen = {}
    for _ in range(2):  # a stage that is started again
        mend_pooling(pools, torch.device(device))
    maps = torch.randn(2, 3, 4, 4).contiguous(memory_format=torch.channels_last)
    for name, pool in pools.items():
        pool.register_forward_hook(lambda _, inputs, __, name=name: seen.update({name: inputs[0]}))
        torch.testing.assert_close(pool(maps), type(pool).forward(pool, maps))
    assert {name for name, given in seen.items() if given.is_contiguous()} == mended
    assert all(len(pool._forward_pre_hooks) <= 1 for pool in pools.values())


def test_blocks_of_many_widths_are_all_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a DenseNet, where every layer is wider than the one before."""

    class Wider(nn.Module):
        def __init__(self, width: int) -> None:
            super().__init__()
            self.layer = nn.Linear(width, width + 1)

        def forward(self, vectors: Tensor) -> Tensor:
            return self.layer(vectors).relu()

    graphs = []

    def count(graph: fx.GraphModule, _: object) -> Callable[..., object]:
        graphs.append(graph)
        return graph.forward

    by_torch = torch.compile
    monkeypatch.setattr(torch, "compile", lambda function, **_: by_torch(function, backend=count, dynamic=False))
    network = nn.Sequential(*(Wider(width) for width in range(1, 70)))
    compile_blocks(network, replace(ON_CPU, compile=True))
    network(torch.ones(2, 1))
    assert len(graphs) == len(network)


class WritesOver(nn.Module):
    """In the three ways there are, all of them on what it is given."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how, self.conv, self.act = how, nn.Conv2d(4, 4, 3, padding=1), nn.ReLU(inplace=True)

    def forward(self, maps: Tensor) -> Tensor:
        shortcut = maps
        if self.how == "layer":
            self.act(maps)
        elif self.how == "function":
            maps = F.relu(maps, inplace=True)
        else:
            maps += 1
        return self.conv(maps) + shortcut  # type: ignore[no-any-return]


class CountsOnIt(nn.Module):
    """Takes no notice of what its ReLU returns."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.stem, self.act = nn.Conv2d(3, 4, 3), nn.ReLU(inplace=True)
        self.blocks = nn.Sequential(*(WritesOver(how) for _ in range(3)))

    def forward(self, images: Tensor) -> Tensor:
        maps = self.stem(images)
        self.act(maps)
        return self.blocks(maps + 0).flatten(1)  # type: ignore[no-any-return]


@pytest.mark.parametrize("how", ["layer", "function", "arithmetic"])
def test_layers_that_write_over_what_they_are_given_are_the_same_compiled(how: str) -> None:
    """Between two blocks of timm's and torchvision's networks there is a ReLU that does so."""
    torch.manual_seed(0)
    network = CountsOnIt(how)
    images = torch.randn(2, 3, 8, 8)
    outputs, expected = network(images), gradients(network, images)
    compile_blocks(network, replace(ON_CPU, compile=True))
    torch.testing.assert_close(network(images), outputs, rtol=1e-4, atol=1e-5)
    for name, gradient in gradients(network, images).items():
        torch.testing.assert_close(gradient, expected[name], rtol=1e-4, atol=1e-5)


def test_gradients_leave_a_compiled_part_in_channels_last(monkeypatch: pytest.MonkeyPatch) -> None:
    """Or the part before, which was compiled for that, copies them."""
    real = torch.compile
    monkeypatch.setattr(torch, "compile", lambda f, **_: real(f, dynamic=False, backend="aot_eager"))
    torch._dynamo.reset()
    head = resnet_head(CLASSES, inputs=4)
    features = torch.randn(2, 4, 7, 7).contiguous(memory_format=torch.channels_last).requires_grad_()
    layouts = []
    for part in (nn.Sequential(head), nn.Sequential(head)):
        if layouts:
            compile_blocks(part, replace(ON_CPU, compile=True))
        maps = features * 1
        maps.register_hook(lambda gradient: layouts.append(gradient.is_contiguous(memory_format=torch.channels_last)))
        part(maps).sum().backward()
    assert layouts == [False, True]


def test_blocks_of_a_network_that_was_traced_are_compiled() -> None:
    """Torch's tracer keeps a stage as a module that has the blocks and is never called itself."""
    model = architecture_named("resnet18-cifar").classifier(CLASSES)
    compile_blocks(model, replace(ON_CPU, compile=True))
    parts = {name: module for name, module in model.named_modules() if module._compiled_call_impl is not None}
    assert all(type(module) is not nn.Module for module in parts.values())
    assert {"trunk.stage1.block1", "trunk.stage4.block2"} <= parts.keys()
    for name, _ in model.named_parameters():
        assert sum(name.startswith(part + ".") for part in parts) == 1, name


def test_layers_of_a_network_in_one_line_reach_the_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch 2.11 passes over what its own Sequential calls, and says nothing."""
    compiled: list[str] = []

    def noting(graph: torch.fx.GraphModule, _: object) -> Callable[..., object]:
        compiled.extend(getattr(node.target, "__name__", "") for node in graph.graph.nodes)
        return graph.forward

    real = torch.compile
    monkeypatch.setattr(torch, "compile", lambda f, **_: real(f, dynamic=False, backend=noting))
    torch._dynamo.reset()
    model = architecture_named("alexnet-c100").classifier(CLASSES)
    compile_blocks(model, replace(ON_CPU, compile=True))
    model(torch.zeros(2, 3, 32, 32))
    assert [compiled.count(kind) for kind in ("conv2d", "max_pool2d", "linear")] == [3, 1, 1]


def test_tensors_with_gaps_are_cast_like_the_others() -> None:
    """A compiled product is padded, and what it gives is a slice."""
    whole, transposed, padded = torch.randn(4, 5), torch.randn(5, 4).t(), torch.randn(4, 8)[:, :5]
    cast = half._cast([whole, padded, transposed], torch.bfloat16)
    for before, after in zip([whole, padded, transposed], cast, strict=True):
        assert after.dtype == torch.bfloat16
        torch.testing.assert_close(after, before.bfloat16(), rtol=0, atol=0)


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_captured_step_is_the_same_training(precision: str) -> None:
    eager = Runtime(torch.device("cuda:0"), precision)
    captured = replace(eager, capture=True)
    np.testing.assert_allclose(
        losses(small_resnet(), captured, steps=12), losses(small_resnet(), eager, steps=12), rtol=2e-2
    )


@pytest.mark.gpu
def test_a_captured_step_is_the_same_while_others_take_steps() -> None:
    """Two epochs of 40 steps: while the second is replayed another network is compiled and trained."""

    def weights_after(runtime: Runtime) -> list[Tensor]:
        model = small_resnet()
        recipe = Recipe(epochs=2, batch=BATCH, rate=1e-3, weight_decay=1e-3, augmentation=Augmentation(28, mirror=True))
        state = start_training("test", model, recipe, 0, runtime)
        images = images_on(runtime.device, count=40 * BATCH)
        batches = Batches(images, recipe.augmentation, batch=BATCH, seed=0, stage="test")
        objective = Objective(torch.arange(CLASSES, device=runtime.device))
        for _ in range(2):
            train_epoch(state, batches, objective, runtime, Silent())
        return [weight.detach().cpu() for weight in model.parameters()]

    captured = Runtime(torch.device("cuda:0"), capture=True)
    compiled = replace(captured, capture=False, compile=True)
    alone = weights_after(captured)
    beside: list[list[float]] = []

    def train_another() -> bool:
        beside.append(losses(small_resnet(), compiled, steps=2))
        return True

    torch.testing.assert_close(weights_after(replace(captured, meanwhile=[train_another])), alone, rtol=2e-2, atol=1e-4)
    np.testing.assert_allclose(beside, [losses(small_resnet(), compiled, steps=2)], rtol=1e-3)


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("capture", [False, True])
def test_weights_stepped_by_one_kernel_are_the_same_training(
    precision: str, capture: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime = Runtime(torch.device("cuda:0"), precision, capture=capture)
    monkeypatch.setattr("nofe.training.one_launch.ENOUGH", 2000)  # so that weights are stepped beside backward
    ours = losses(small_resnet(), runtime, steps=12)
    monkeypatch.setattr(optimizer, "find_spec", lambda name: None)  # as if there were no triton
    theirs = losses(small_resnet(), runtime, steps=12)
    np.testing.assert_allclose(ours, theirs, rtol=2e-3 if precision == "fp32" else 2e-2)


class FakeGraph:
    """Records while a step runs, replays what it recorded: enough of a CUDA graph to test who calls what."""

    def __init__(self) -> None:
        self.replayed = 0

    def replay(self) -> None:
        self.replayed += 1


@pytest.fixture
def fake_graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    class Nothing:
        def __init__(self, *_: object, **__: object) -> None: ...
        def __enter__(self) -> None: ...
        def __exit__(self, *_: object) -> None: ...
        def wait_stream(self, _: object) -> None: ...

    monkeypatch.setattr(torch.cuda, "CUDAGraph", FakeGraph)
    monkeypatch.setattr(torch.cuda, "graph", Nothing)
    monkeypatch.setattr(torch.cuda, "Stream", Nothing)
    monkeypatch.setattr(torch.cuda, "stream", Nothing)
    monkeypatch.setattr(torch.cuda, "current_stream", Nothing)


@pytest.mark.usefixtures("fake_graphs")
def test_capturing_does_no_step_twice_and_leaves_none_out() -> None:
    ran = []
    step = CapturedStep(lambda: ran.append(1))
    for _ in range(10):
        step()
    assert len(ran) == 4, "three eager steps, and one that is only recorded"
    assert isinstance(step._graph, FakeGraph)
    assert step._graph.replayed == 7


@pytest.mark.usefixtures("fake_graphs")
def test_what_is_left_for_after_the_capture_is_done_once_and_before_the_first_replay(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told: list[str] = []
    monkeypatch.setattr(FakeGraph, "replay", lambda self: told.append("replay"))
    eager = iter([True] * 3)

    def one_step() -> None:
        if not next(eager, False):
            after_capture(lambda: told.append("after"))
        told.append("step")

    step = CapturedStep(one_step)
    for _ in range(5):
        step()
    assert told == ["step", "step", "step", "step", "after", "replay", "replay"]


@pytest.mark.usefixtures("fake_graphs")
def test_what_a_failed_capture_left_is_not_done_after_another() -> None:
    told: list[str] = []

    def step_of(name: str, fails: bool) -> CapturedStep:
        taken = iter(range(4))

        def one_step() -> None:
            if next(taken) == 3:
                after_capture(lambda: told.append(name))
                if fails:
                    raise RuntimeError("not while it is captured")

        return CapturedStep(one_step)

    failing, following = step_of("failed", True), step_of("captured", False)
    for _ in range(3):
        failing()
        following()
    with pytest.raises(RuntimeError, match="not while"):
        failing()
    following()
    assert told == ["captured"]


def test_a_step_reads_the_batches_in_their_order() -> None:
    """`training_step` makes a function; each call is the next batch of the epoch."""
    model = small_resnet()
    recipe = Recipe(epochs=1, batch=BATCH, rate=1e-3, weight_decay=0.0, augmentation=Augmentation(28))
    state = start_training("test", model, recipe, 0, ON_CPU)
    batches = Batches(images_on(torch.device("cpu")), recipe.augmentation, batch=BATCH, seed=0, stage="test")
    batches.begin(0)
    seen: list[torch.Tensor] = []

    class Noting(Objective):
        def __call__(self, logits: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            seen.append(labels)
            return super().__call__(logits, labels)

    step = training_step(state, batches, Noting(torch.arange(CLASSES)), ON_CPU)
    for _ in range(batches.steps_per_epoch):
        step()
    plan = batches.plan(0)
    assert torch.equal(torch.cat(seen), batches.images.labels[torch.from_numpy(plan.order)])


class AsIfCaptured(CapturedStep):
    """A processor captures nothing; from the third step on this one says that it did."""

    threads: list[threading.Thread]

    @property
    def is_captured(self) -> bool:
        return self._taken >= 3

    def __call__(self) -> None:
        self._taken += 1
        self.threads.append(threading.current_thread())
        self._step()


def test_captured_steps_are_launched_while_something_is_prepared(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same training; what is to be done meanwhile is done by the thread that trains, until it says it is done."""
    alone = losses(small_resnet(), ON_CPU)
    asked: list[threading.Thread] = []

    def third_time_lucky() -> bool:
        asked.append(threading.current_thread())
        return len(asked) == 3

    AsIfCaptured.threads = []
    monkeypatch.setattr("nofe.training.loop.launcher", lambda step, _: AsIfCaptured(step))
    runtime = replace(ON_CPU, meanwhile=[third_time_lucky])
    assert losses(small_resnet(), runtime, steps=7)[:6] == alone
    here = threading.current_thread()
    assert asked == [here] * 3
    assert [thread is here for thread in AsIfCaptured.threads] == [True] * 3 + [False] * 3 + [True]
    assert not runtime.meanwhile


def test_what_cannot_be_prepared_yet_waits_for_the_next_epoch_or_is_asked_for_until_the_last_ends() -> None:
    asked: list[int] = []
    is_ready = threading.Event()

    def third_time_lucky() -> bool:
        asked.append(len(asked))
        if len(asked) == 3:
            is_ready.set()
        return is_ready.is_set()

    def steps() -> None:
        is_ready.wait(10)

    runtime = replace(ON_CPU, meanwhile=[third_time_lucky])
    launch.launch_while_preparing(lambda: time.sleep(0.3), runtime, are_last=False)
    assert (asked, runtime.meanwhile) == ([0], [third_time_lucky])
    launch.launch_while_preparing(steps, runtime, are_last=True)
    assert (asked, runtime.meanwhile) == ([0, 1, 2], [])


def test_what_is_not_prepared_when_the_steps_are_launched_has_other_epochs() -> None:
    done: list[str] = []

    def takes_long() -> bool:
        time.sleep(0.3)
        done.append("long")
        return True

    def comes_later() -> bool:
        done.append("later")
        return True

    runtime = replace(ON_CPU, meanwhile=[takes_long, comes_later])
    launch.launch_while_preparing(lambda: None, runtime, are_last=False)
    assert (done, runtime.meanwhile) == (["long"], [comes_later])
    launch.launch_while_preparing(lambda: time.sleep(0.3), runtime, are_last=False)
    assert (done, runtime.meanwhile) == (["long", "later"], [])


def test_a_step_that_fails_in_another_thread_fails() -> None:
    def fails() -> None:
        raise ValueError("out of order")

    usual = sys.getswitchinterval()
    with pytest.raises(ValueError, match="out of order"):
        launch.launch_while_preparing(fails, replace(ON_CPU, meanwhile=[lambda: True]), are_last=False)
    assert sys.getswitchinterval() == usual


def test_launches_that_give_way_are_a_few_steps_ahead_of_the_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a GPU that ends a step only when it is waited for."""
    launched, ended, ahead = [0], [0], []

    class Graph:
        def replay(self) -> None:
            launched[0] += 1
            ahead.append(launched[0] - ended[0])

    class Event:
        def __init__(self, blocking: bool) -> None:
            assert blocking, "to wait must leave the processor to the thread that prepares"

        def record(self) -> None:
            self.step = launched[0]

        def synchronize(self) -> None:
            ended[0] = self.step

    monkeypatch.setattr(torch.cuda, "Event", Event)
    step = CapturedStep(lambda: None)
    step._graph = Graph()  # type: ignore[assignment]
    with step.giving_way():
        for _ in range(launch.UNDER_WAY + 4):
            step()
    assert max(ahead) == launch.UNDER_WAY + 1
    assert ahead[-1] == launch.UNDER_WAY + 1, "and the GPU always has work"
    for _ in range(20):
        step()
    assert ahead[-1] == launch.UNDER_WAY + 20
