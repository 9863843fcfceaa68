"""What `nofe.convert` must keep of a user's model, and what it says where it cannot."""

import pytest
import torch
from torch import Tensor, nn

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
