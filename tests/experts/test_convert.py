"""What `nofe.convert` must keep of a user's model, and what it says where it cannot."""

import copy
import warnings
from collections.abc import Callable

import pytest
import timm
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.parametrizations import orthogonal, spectral_norm, weight_norm
from torch.nn.utils.parametrize import register_parametrization

import nofe
from nofe.errors import UserError

SPECIALTIES = [0, 1, 0, 2, 1, 0, 2]


class Block(nn.Module):
    def __init__(self, channels: int, learns: bool = True) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, channels, 3, padding=1)
        self.bn = nn.BatchNorm2d(channels)
        self.last = nn.Conv2d(channels, channels, 3, padding=1)
        self.learns = learns

    def forward(self, features: Tensor) -> Tensor:
        with torch.set_grad_enabled(self.learns and torch.is_grad_enabled()):
            inside = self.last(torch.relu(self.bn(self.conv(features))))
        return torch.relu(features + inside)


class Net(nn.Module):
    """A small residual network; `end` stands for its classifier."""

    def __init__(self, end: nn.Module | None = None) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, stride=2, padding=1)
        self.layer1 = nn.Sequential(Block(8), Block(8))
        self.layer2 = nn.Sequential(Block(8), Block(8))
        self.fc = end or nn.Linear(8, 7)

    def backbone(self, images: Tensor) -> Tensor:
        return self.layer2(self.layer1(self.stem(images))).mean((2, 3))

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.fc(self.backbone(images))
        return logits


def some_images() -> Tensor:
    return torch.randn(3, 3, 32, 32, generator=torch.Generator().manual_seed(0))


def refusal(model: nn.Module, **options: object) -> str:
    with pytest.raises(UserError) as error:
        nofe.convert(model, SPECIALTIES, **options)  # type: ignore[arg-type]
    assert "\n" not in str(error.value)
    return str(error.value)


# What is switched inside a forward


class FrozenInside(Net):
    def forward(self, images: Tensor) -> Tensor:
        with torch.no_grad():
            features = self.backbone(images)
        return self.fc(features)


class FrozenMethod(Net):
    @torch.no_grad()
    def backbone(self, images: Tensor) -> Tensor:
        return super().backbone(images)


class CastInside(Net):
    def forward(self, images: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            features = self.backbone(images)
        return self.fc(features.float())


@pytest.mark.parametrize("cut", ["", "fc"])
@pytest.mark.parametrize(
    ("kind", "said"),
    [
        (FrozenInside, "switches gradients for some of its layers (from stem on)"),
        (FrozenMethod, "freeze the layers with requires_grad_(False)"),
        (CastInside, "switches autocast for some of its layers"),
    ],
)
def test_what_a_forward_switches_for_its_layers_is_not_lost_in_silence(kind: type[Net], said: str, cut: str) -> None:
    """A graph of the layers would train a backbone that the model does not."""
    assert said in refusal(kind(), cut=cut)


def test_a_block_that_switches_gradients_off_keeps_doing_so() -> None:
    model = Net()
    model.layer2[1] = Block(8, learns=False)
    network = nofe.convert(model, SPECIALTIES)
    network.fuse()
    network(some_images()).sum().backward()
    experts = [each for name, each in network.named_parameters() if name.startswith("experts.") and ".conv." in name]
    assert experts
    assert all(each.grad is None for each in experts)
    assert network.trunk.stem.weight.grad is not None


def test_a_model_is_converted_where_gradients_are_off() -> None:
    with torch.no_grad():
        network = nofe.convert(Net(), SPECIALTIES, cut="fc")
    network(some_images()).sum().backward()
    assert network.trunk.stem.weight.grad is not None


# Classifiers with code and settings of their own


class Cosines(nn.Linear):
    """A factor for all classes, and an offset for each."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(inputs, outputs, bias=False)
        self.factor = nn.Parameter(torch.tensor(10.0))
        self.register_buffer("offset", torch.arange(outputs) / 10)

    def forward(self, features: Tensor) -> Tensor:
        cosines = F.linear(F.normalize(features), F.normalize(self.weight))
        return self.factor * cosines + self.offset


class KnowsItsOutputs(nn.Linear):
    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(inputs, outputs)
        self.outputs = outputs

    def forward(self, features: Tensor) -> Tensor:
        return super().forward(features).view(-1, self.outputs)


class Reflecting(Net):
    """A convolution classifies each place."""

    def __init__(self) -> None:
        super().__init__(nn.Conv2d(8, 7, 3, padding=1, padding_mode="reflect"))

    def forward(self, images: Tensor) -> Tensor:
        return self.fc(self.layer2(self.layer1(self.stem(images)))).mean((2, 3))


@pytest.mark.parametrize("build", [lambda: Net(Cosines(8, 7)), Reflecting], ids=["cosines", "reflecting"])
def test_a_classifier_of_its_own_is_that_of_each_expert(build: Callable[[], Net]) -> None:
    model = build().eval()
    for cut in ("fc", "layer2"):
        same = nofe.convert(model, SPECIALTIES, cut=cut)
        torch.testing.assert_close(same(some_images()), model(some_images()))
    for size, branch in zip((3, 2, 2), nofe.convert(model, SPECIALTIES).branches(), strict=True):
        own = branch.tail.fc
        assert type(own) is type(model.fc)
        assert getattr(own, "padding_mode", None) == getattr(model.fc, "padding_mode", None)
        assert len(own.weight) == size
        of_classes = model.fc.weight.flatten(1)
        assert not (own.weight.flatten(1)[:, None] == of_classes).all(2).any(), "drawn anew, none of the model's"


@pytest.mark.parametrize("cut", ["", "fc"])
def test_a_classifier_that_knows_its_number_of_outputs_is_refused(cut: str) -> None:
    assert "fc is a KnowsItsOutputs, whose forward does not run with the other" in refusal(
        Net(KnowsItsOutputs(8, 7)), cut=cut
    )


# Precision


@pytest.mark.parametrize("cut", ["", "layer2"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_a_model_of_another_precision_is_read_in_it(dtype: torch.dtype, cut: str) -> None:
    model = Net().to(dtype).eval()
    images = some_images().to(dtype)
    network = nofe.convert(model, SPECIALTIES, cut=cut, width=1 if cut else 0.5)
    logits = network(images)
    assert logits.dtype is dtype
    if cut:
        torch.testing.assert_close(logits, model(images))


def test_a_model_of_two_precisions_is_refused() -> None:
    model = Net()
    model.fc.double()
    assert "stem.weight is torch.float32 and fc.weight is torch.float64" in refusal(model)


# Weights that are computed from others


def with_norm(norm: Callable[[nn.Module], nn.Module], path: str) -> Net:
    model = Net()
    model.set_submodule(path, norm(model.get_submodule(path)))
    return model


@pytest.mark.parametrize("cut", ["", "layer2"])
@pytest.mark.parametrize("path", ["layer1.0.conv", "layer2.1.conv"])
@pytest.mark.parametrize("norm", [weight_norm, spectral_norm, orthogonal])
def test_parametrized_layers_are_copied_and_drawn_anew(
    norm: Callable[[nn.Module], nn.Module], path: str, cut: str
) -> None:
    model = with_norm(norm, path).train()
    before = copy.deepcopy(model.state_dict())
    network = nofe.convert(model, SPECIALTIES, cut=cut).eval()
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    network(some_images()).sum().backward()
    model.eval()
    if cut:
        torch.testing.assert_close(network(some_images()), model(some_images()))
    elif path == "layer2.1.conv":
        weights = [branch.block.conv.weight for branch in network.branches()]
        assert not any(torch.isclose(weight, model.layer2[1].conv.weight).all() for weight in weights)
        assert not torch.isclose(weights[0], weights[1]).all()
        if norm is orthogonal:
            torch.testing.assert_close(weights[0] @ weights[0].mT, torch.eye(3).expand(8, 8, 3, 3))
        if norm is spectral_norm:
            assert 0.9 < float(torch.linalg.matrix_norm(weights[0].detach().flatten(1), 2)) < 1.1


@pytest.mark.parametrize("norm", [weight_norm, spectral_norm])
def test_a_parametrized_classifier_is_that_of_each_expert(norm: Callable[[nn.Module], nn.Module]) -> None:
    model = with_norm(norm, "fc").eval()
    first, *_ = nofe.convert(model, SPECIALTIES).branches()
    assert first.tail.fc.weight.shape == (3, 8)
    if norm is weight_norm:
        network = nofe.convert(model, SPECIALTIES, cut="fc")
        torch.testing.assert_close(network(some_images()), model(some_images()))
    else:
        before = copy.deepcopy(model.train().state_dict())
        assert "its weight is computed from all rows" in refusal(model, cut="fc")
        assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


class Doubled(nn.Module):
    """There is no way back."""

    def forward(self, weight: Tensor) -> Tensor:
        return 2 * weight


def doubled(layer: nn.Module) -> nn.Module:
    return register_parametrization(layer, "weight", Doubled())


@pytest.mark.parametrize(
    ("model", "options", "said"),
    [
        (with_norm(weight_norm, "layer2.1.conv"), {"width": 0.5}, "the weight of block.conv is parametrized"),
        (with_norm(orthogonal, "fc"), {}, "fc: its weight is parametrized in a way that allows one number of outputs"),
        (
            with_norm(doubled, "layer2.1.conv"),
            {},
            "the weight of layer2.1.conv is parametrized in a way that cannot be init",
        ),
        (with_norm(torch.nn.utils.spectral_norm, "stem"), {}, "stem has torch.nn.utils.spectral_norm"),
    ],
)
def test_parametrized_layers_that_cannot_be_drawn_are_named(
    model: nn.Module, options: dict[str, float], said: str
) -> None:
    assert said in refusal(model, **options)


def test_what_is_not_drawn_anew_does_not_matter_in_the_trunk() -> None:
    assert nofe.convert(with_norm(doubled, "layer1.0.conv"), SPECIALTIES)(some_images()).shape == (3, 7)


def test_old_weight_norm_is_refused() -> None:
    with warnings.catch_warnings(action="ignore", category=FutureWarning):
        model = with_norm(torch.nn.utils.weight_norm, "layer1.0.conv")
    assert "use torch.nn.utils.parametrizations.weight_norm" in refusal(model)


# What is given


def fails(classes: int) -> nn.Module:
    raise KeyError("no table")


class TakesAMask(Net):
    def forward(self, images: Tensor, mask: Tensor) -> Tensor:  # type: ignore[override]
        return super().forward(images) * mask


def of_channels(channels: int) -> nn.Module:
    model = Net()
    model.stem = nn.Conv2d(channels, 8, 3, padding=1)
    return model


@pytest.mark.parametrize(
    ("model", "options", "said"),
    [
        (Net(nn.LazyLinear(7)), {}, "fc.weight has no size yet; call the model on images once"),
        (Net(), {"image_size": -5}, "image_size=-5: not the side"),
        (Net(), {"image_size": 0}, "image_size=0: not the side"),
        (Net(), {"image_size": "32"}, "image_size='32': not the side"),
        (Net(), {"image_size": 32.0}, "image_size=32.0: not the side"),
        (Net(), {"image_size": (32, 64)}, "image_size=(32, 64): not the side"),
        (Net(), {"width": "0.5"}, "width='0.5': not a number above 0"),
        (Net(), {"width": None}, "width=None: not a number above 0"),
        (Net(), {"width": -1}, "width=-1: not a number above 0"),
        (Net(), {"branch": fails}, "your function fails for 3 classes with KeyError: 'no table' (test_convert.py"),
        (TakesAMask(), {}, "with images alone (missing a required argument: 'mask')"),
        (of_channels(1), {}, "reads images of 1 channel, and nofe's images have 3"),
        (of_channels(4), {"image_size": 32}, "reads images of 4 channels, and nofe's images have 3"),
        (Net(nn.Sequential(nn.Linear(8, 7), nn.BatchNorm1d(7))), {}, "make fc.0 the last step of the model"),
        (Net(), {"cut": "fc", "width": 0.5}, "width=0.5: changes nothing in the branches of Net"),
    ],
)  # fmt: skip
def test_what_is_given_wrong_is_said_in_one_line(model: nn.Module, options: dict[str, object], said: str) -> None:
    assert said in refusal(model, **options)


def test_a_second_classifier_is_told_by_what_timm_calls_it() -> None:
    said = refusal(timm.create_model("repvit_m0_9", num_classes=7))
    assert said.endswith("train it by name, as timm:repvit_m0_9, or build it with distillation=False")


def test_a_compiled_model_is_converted_as_what_it_was_made_of() -> None:
    model = Net().eval()
    network = nofe.convert(torch.compile(model), SPECIALTIES, cut="fc")
    torch.testing.assert_close(network(some_images()), model(some_images()))


# What is left as it was


def test_layers_in_evaluation_mode_stay_so() -> None:
    model = Net().train()
    model.layer1.eval()
    model.layer2[1].bn.eval()
    network = nofe.convert(model, SPECIALTIES, cut="layer2.1")
    assert network.training
    assert network.trunk.get_submodule("layer2.0.bn").training
    assert not any(module.training for module in network.trunk.layer1.modules())
    assert not any(branch.get_submodule("layer2.1.bn").training for branch in network.branches())
    new = nofe.convert(model, SPECIALTIES)
    assert not new.trunk.get_submodule("layer2.1.bn").training
    assert all(module.training for branch in new.branches() for module in branch.modules())
    assert not any(module.training for module in nofe.convert(Net().eval(), SPECIALTIES).modules())


def test_classifiers_of_other_classes_begin_at_random_and_that_is_said(caplog: pytest.LogCaptureFixture) -> None:
    nofe.convert(Net(), SPECIALTIES, cut="fc")
    assert not caplog.text
    nofe.convert(Net(nn.Linear(8, 10)), SPECIALTIES, cut="fc")
    assert "fc has 10 outputs and the specialties have 7 classes" in caplog.text


def test_a_conversion_that_copies_draws_no_numbers() -> None:
    model = Net()
    before = torch.get_rng_state()
    nofe.convert(model, SPECIALTIES, cut="layer2")
    assert torch.equal(torch.get_rng_state(), before)
    one, other = (nofe.convert(model, SPECIALTIES).branches()[0].tail.fc.weight for _ in range(2))
    assert not torch.equal(one, other), "new branches are new each time"


@pytest.mark.parametrize("cut", ["", "layer2"])
def test_a_network_converted_in_inference_mode_can_be_trained(cut: str) -> None:
    with torch.inference_mode():
        network = nofe.convert(Net(), SPECIALTIES, cut=cut)
    network(some_images()).sum().backward()
    assert all(parameter.grad is not None for parameter in network.parameters())
