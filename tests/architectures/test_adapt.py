"""Where networks are cut, how branches are sized, where weights come from, and what is said when that cannot be."""

import copy
import pickle
import sys
import warnings
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import timm
import torch
import torch.nn.functional as F
import torchvision
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

import nofe
from nofe.architectures import architecture_named, parameter_count, zoo
from nofe.architectures.adapt import InputScale, adapted
from nofe.architectures.options import AdaptConfig, architecture_with, balanced_sizes
from nofe.architectures.pretrained import read_weights, start_from
from nofe.architectures.width import width_within, with_branch_width
from nofe.errors import UserError
from nofe.experts.branches import Branches
from nofe.experts.fused import NotFusable, fuse
from nofe.experts.network import grow_experts, plant_experts
from nofe.experts.size import Size, size_of, sizes_of, without_values
from nofe.recipes import default_run
from nofe.specialties import Specialties

HALVES = Specialties(np.array([0, 1, 0, 1, 1, 0]))


def plain(outputs: int = 6) -> nn.Sequential:
    return nn.Sequential(
        OrderedDict(
            conv1=nn.Conv2d(3, 4, 3, padding=1),
            bn1=nn.BatchNorm2d(4),
            relu1=nn.ReLU(),
            pool1=nn.MaxPool2d(4),
            conv2=nn.Conv2d(4, 8, 3, padding=1),
            relu2=nn.ReLU(),
            pool2=nn.MaxPool2d(4),
            flatten=nn.Flatten(),
            fc1=nn.Linear(32, 64),
            relu3=nn.ReLU(),
            fc2=nn.Linear(64, outputs),
        )
    )


def some_images(count: int = 3) -> Tensor:
    return torch.randn(count, 3, 32, 32, generator=torch.Generator().manual_seed(0))


# Where to cut


def test_plain_layers_are_cut_after_the_last_pooling_and_a_branch_begins_with_a_convolution() -> None:
    """As the paper cut VGG: pool3 in the trunk, conv4 in the branch. The last convolution had 4 inputs."""
    architecture = adapted(plain, "plain", 32)
    assert list(dict(architecture.trunk().named_children())) == [*plain()._modules][:7]
    branch = architecture.branch(2)
    assert branch.block.conv2.weight.shape == (8, 8, 3, 3)
    assert branch(architecture.trunk()(some_images())).shape == (3, 2)


@pytest.mark.parametrize("cut", ["conv2", "relu2", "fc1", "fc2"])
def test_converted_at_a_cut_it_computes_what_the_model_did(cut: str) -> None:
    torch.manual_seed(0)
    model = plain().eval()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    network = nofe.convert(model, HALVES, cut=cut)
    assert not network.training
    torch.testing.assert_close(network(some_images()), model(some_images()))
    names = [*plain()._modules]
    assert list(dict(network.trunk.named_children())) == names[: names.index(cut)]
    assert network.fuse()
    torch.testing.assert_close(network(some_images()), model(some_images()))
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


@pytest.mark.parametrize(
    ("name", "cut"),
    [("test_resnet", "layer3"), ("test_resnet", "layer4.0"), ("test_convnext", "stages.3"),
     ("test_efficientnet", "conv_head")],
)  # fmt: skip
def test_converted_at_a_stage_or_a_block_of_it(name: str, cut: str) -> None:
    torch.manual_seed(0)
    model = timm.create_model(name, num_classes=6).eval()
    network = nofe.convert(model, HALVES, cut=cut, image_size=32)
    torch.testing.assert_close(network(some_images()), model(some_images()))
    assert not [path for path in network.trunk.state_dict() if path.startswith(cut + ".")]


def test_a_layer_of_a_sequence_may_be_named_by_its_number() -> None:
    layers = (nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 6))
    model = nn.Sequential(*layers).eval()
    by_number, by_name = (nofe.convert(model, HALVES, cut=cut) for cut in (2, "2"))
    assert by_number.state_dict().keys() == by_name.state_dict().keys()
    torch.testing.assert_close(by_number(some_images()), model(some_images()))
    with pytest.raises(UserError, match="cut=77: Sequential has no such layer"):
        nofe.convert(model, HALVES, cut=77)


def test_converted_without_a_cut_the_trunk_is_kept_and_the_branches_are_new() -> None:
    torch.manual_seed(0)
    model = timm.create_model("test_resnet", num_classes=100)  # of other classes than the experts
    network = nofe.convert(model, HALVES)
    trunk = network.trunk.state_dict()
    assert trunk.keys() == {name for name in model.state_dict() if not name.startswith("fc.")}
    assert all(torch.equal(trunk[name], model.state_dict()[name]) for name in trunk)
    last_block = dict(model.layer4[-1].named_parameters())
    for branch in network.branches():
        assert not torch.equal(branch.block.conv1.weight, last_block["conv1.weight"])
        assert branch.tail.fc.weight.shape[0] == 3
    assert trunk["conv1.0.weight"].data_ptr() != model.conv1[0].weight.data_ptr()


def test_new_branches_learn_on_a_frozen_model() -> None:
    network = nofe.convert(plain().requires_grad_(False), HALVES)
    assert all(each.requires_grad for each in network.experts.parameters())
    assert not any(each.requires_grad for each in network.trunk.parameters())


def test_a_branch_of_the_users_own() -> None:
    made: list[int] = []

    def branch(classes: int) -> nn.Module:
        made.append(classes)
        return nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, classes))

    network = nofe.convert(plain(), HALVES, cut="flatten", branch=branch)
    assert made == [3, 3]
    assert network(some_images()).shape == (3, 6)


def read(channels: int, outputs: int) -> nn.Module:
    return nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, outputs))


@pytest.mark.parametrize("width", [1.0, 0.5])
@pytest.mark.parametrize(
    ("branch", "said"),
    [
        (lambda classes: read(8, classes - 1), ["gives (1, 2)", "a specialty of 3 classes", "(N, 3)"]),
        (lambda classes: nn.Conv2d(8, classes, 1), ["gives (1, 3, 2, 2)", "(N, 3)"]),
        (lambda classes: read(9, classes), ["cannot read what the trunk gives, (1, 8, 2, 2)", "first layer"]),
        (lambda classes: "a linear layer", ["gives 'a linear layer'", "return an nn.Module"]),
        (read(8, 3), ["is a Sequential, and each expert needs one of its own", "lambda classes:"]),
    ],
)
def test_a_branch_that_does_not_fit_is_refused_before_it_is_run(branch: object, said: list[str], width: float) -> None:
    with pytest.raises(UserError, match=r"^branch: ") as error:
        nofe.convert(plain(), HALVES, cut="flatten", branch=branch, width=width)  # type: ignore[arg-type]
    assert all(words in str(error.value) for words in said), error.value
    assert "\n" not in str(error.value)


def test_specialties_may_be_a_number_for_each_class() -> None:
    model = plain().eval()
    given = HALVES.specialty_of_class.tolist()
    network = nofe.convert(model, given, cut="fc1")
    torch.testing.assert_close(network(some_images()), nofe.convert(model, HALVES, cut="fc1")(some_images()))
    with pytest.raises(UserError, match="class 5 is in specialty 7"):
        nofe.convert(model, [*given[:-1], 7])
    with pytest.raises(UserError, match=r"not an nn\.Module; pass the network itself"):
        nofe.convert("resnet18", HALVES)  # type: ignore[arg-type]


def test_with_a_cut_experts_begin_as_the_generalists_head() -> None:
    torch.manual_seed(0)
    architecture = architecture_named("timm:test_resnet@32", "layer4")
    generalist = architecture.classifier(2)
    network = grow_experts(architecture, HALVES, generalist)
    for branch in network.branches():
        for name, tensor in branch.layer4.state_dict().items():
            assert torch.equal(tensor, generalist.head.layer4.state_dict()[name])
        assert branch.fc.weight.shape[0] == 3


class Skips(nn.Module):
    """The first map is read again at the end."""

    def __init__(self) -> None:
        super().__init__()
        self.early = nn.Conv2d(3, 4, 3, padding=1)
        self.late = nn.Conv2d(4, 4, 3, padding=1)
        self.after = nn.ReLU()
        self.fc = nn.Linear(8, 6)

    def forward(self, images: Tensor) -> Tensor:
        early = self.early(images)
        return self.fc(torch.cat([early, self.after(self.late(early))], 1).mean((2, 3)))


class Chooses(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)
        self.fc = nn.Linear(4, 6)

    def forward(self, images: Tensor) -> Tensor:
        features = self.conv(images).mean((2, 3))
        return self.fc(features if images.sum() > 0 else -features)


class Doubles(nn.Module):
    """Adds its input twice over, side by side: cannot keep the number of channels."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv = nn.Sequential(nn.Conv2d(channels, 2 * channels, 3, padding=1), nn.ReLU())

    def forward(self, features: Tensor) -> Tensor:
        return torch.cat([features, features], 1) + self.conv(features)


class Merges(nn.Module):
    """As HRNet: a list of maps that a block writes to, brought together by a last convolution."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 4, 3, padding=1)
        self.first = EachMap()
        self.second = EachMap()
        self.final = nn.Sequential(nn.Conv2d(8, 8, 1), nn.BatchNorm2d(8), nn.ReLU())
        self.fc = nn.Linear(8, 6)

    def forward(self, images: Tensor) -> Tensor:
        stem = self.stem(images)
        maps = self.second(self.first([stem, stem]))
        return self.fc(self.final(torch.cat([maps[0], maps[1]], 1)).mean((2, 3)))


class EachMap(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.convs = nn.ModuleList([nn.Conv2d(4, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1)])

    def forward(self, maps: list[Tensor]) -> list[Tensor]:
        for place, conv in enumerate(self.convs):
            maps[place] = conv(maps[place])
        return maps


class Probable(nn.Sequential):
    def forward(self, images: Tensor) -> Tensor:
        probabilities: Tensor = super().forward(images).softmax(1)
        return probabilities


class OnlyOnce(nn.Module):
    """A layer that goes by more than what it reads."""

    def __init__(self) -> None:
        super().__init__()
        self.ran = False

    def forward(self, features: Tensor) -> Tensor:
        if self.ran:
            raise RuntimeError("ran before\nin some file")
        self.ran = True
        return features


class Centres(nn.Sequential):
    def forward(self, images: Tensor) -> Tensor:
        return super().forward(images - torch.tensor([0.5, 0.4, 0.3])[:, None, None])


DOUBLES = nn.Sequential(Doubles(3), Doubles(6), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(12, 6))


class ShakenInTraining(nn.Sequential):
    def forward(self, images: Tensor) -> Tensor:
        return super().forward(images + torch.randn_like(images) if self.training else images)


class Tied(nn.Sequential):
    """Its second convolution has the weight of one before."""

    def __init__(self) -> None:
        square = nn.Conv2d(8, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1)
        square[1].weight = square[0].weight
        ends = nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 6)
        super().__init__(nn.Conv2d(3, 8, 3), nn.ReLU(), square[0], nn.ReLU(), square[1], nn.ReLU(), *ends)


class Moves(nn.Sequential):
    """Does something to its logits that is of all classes, and whose number says nothing."""

    def __init__(self, what: Callable[[Tensor], Tensor]) -> None:
        super().__init__(nn.Conv2d(3, 8, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 6))
        self.what = what

    def forward(self, images: Tensor) -> Tensor:
        return self.what(super().forward(images))


def hooked(before: bool = False) -> nn.Module:
    model = Moves(lambda logits: logits)
    if before:
        model[3].register_forward_pre_hook(lambda _, given: given[0] * 5)
    else:
        model[3].register_forward_hook(lambda *given: given[-1] * 5)
    return model


class SideBySide(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.other, self.fc = nn.Conv2d(3, 4, 3), nn.Conv2d(3, 4, 3), nn.Linear(8, 6)

    def forward(self, images: Tensor) -> Tensor:
        maps = torch.cat([nn.functional.relu(self.one(images)), nn.functional.relu(self.other(images))], 1)
        return self.fc(maps.mean((2, 3)))


class DrawsAsItIsFollowed(nn.Sequential):
    def forward(self, images: Tensor) -> Tensor:
        return super().forward(images * (1 if torch.rand(1).item() < 2 else 0))


@pytest.mark.parametrize(
    ("model", "cut", "said"),
    [
        (Tied(), "4", ["Tied: 2.weight and 4.weight are one weight", "pass a cut= that leaves both on one side"]),
        (Moves(lambda logits: logits.flip(1)), "3", ["the rows of 3 give other logits", "convert it without cut="]),
        (Moves(lambda logits: logits.cumsum(1)), "3", ["the rows of 3 give other logits"]),
        (hooked(), "3", ["the rows of 3 give other logits", "or a hook on it"]),
        (hooked(before=True), "3", ["the rows of 3 give other logits", "or a hook on it"]),
        (SideBySide(), "", ["what follows relu reads earlier layers"]),
        (DrawsAsItIsFollowed(*plain()), "", ["cannot follow DrawsAsItIsFollowed.forward (draws random numbers"]),
        (plain(), "conv3", ["cut=conv3: Sequential has no such layer", "did you mean 'conv2'?"]),
        (plain(), "conv1", ["cut=conv1", "nothing comes before it", "cut at one of", "fc2"]),
        (nn.Sequential(nn.Flatten(), nn.Linear(3072, 6)), "", ["no convolution comes before", "cut=, or --cut"]),
        (Skips(), "", ["what follows after reads earlier layers", "pass cut= one of late, fc"]),
        (Skips(), "after", ["cut=after", "2 values cross it", "cut at one of late, fc"]),
        (DOUBLES, "", ["Sequential: 1 changes the shape", "pass cut=1 to begin", "branch= of your own"]),
        (Chooses(), "", ["cannot follow Chooses.forward", "pass nn.Sequential(trunk, head)"]),
        (ShakenInTraining(*plain()), "", ["something else in training (randn_like)", "nn.Dropout", "aux_logits"]),
        (Merges(), "second", ["cut=second", "it reads a list", "cut at one of first, final.0, final.1"]),
        (nn.Sequential(OnlyOnce(), *plain()), "", ["Sequential: 0 cannot be run", "(ran before)", "with cut='1'"]),
        (Centres(*plain()), "", ["Centres.forward reads a tensor that no layer holds (in", "register_buffer"]),
        (nn.Conv2d(3, 4, 3), "", ["gives (1, 4,", "pass an image classifier"]),
        (nn.Sequential(plain(), nn.LogSoftmax(1)), "", ["Sequential: ends in 1, and one softmax", "return the logits"]),
        (Probable(*plain()), "", ["Probable: ends in softmax, and one softmax", "return the logits"]),
    ],
)  # fmt: skip
def test_what_cannot_be_converted_is_named_with_the_next_move(model: nn.Module, cut: str, said: list[str]) -> None:
    with pytest.raises(UserError) as error:
        nofe.convert(model, HALVES, cut=cut, image_size=32)
    assert all(words in str(error.value) for words in said), error.value
    assert "\n" not in str(error.value)


class Placed(nn.Module):
    """Its own code fails at images of another size, and not that of a layer."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1)
        self.place, self.head = nn.Parameter(torch.zeros(4, 32, 32)), nn.Linear(4, 6)

    def forward(self, images: Tensor) -> Tensor:
        features: Tensor = self.last(self.first(images) + self.place)
        logits: Tensor = self.head(features.mean((2, 3)))
        return logits


def test_what_a_part_cannot_read_is_raised_and_not_printed(capfd: pytest.CaptureFixture[str]) -> None:
    """Or the traceback stands before the line that says what to do; parts are tried on sizes."""
    network = nofe.convert(Placed(), HALVES, cut="last", image_size=32)
    assert network(torch.zeros(1, 3, 32, 32)).shape == (1, 6)
    with pytest.raises(RuntimeError, match="must match the size"):
        network(torch.zeros(1, 3, 20, 20))
    assert capfd.readouterr().err == ""


def test_a_model_that_reads_no_usual_size_is_asked_for_its_own() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(4 * 98 * 98, 6))
    with pytest.raises(UserError, match="pass image_size="):
        nofe.convert(model, HALVES)
    with pytest.raises(UserError, match=r"usual size \(224 pixels: .*197136.*38416, 6"):
        nofe.convert(model, HALVES)
    assert nofe.convert(model, HALVES, image_size=100, cut="1")(torch.zeros(1, 3, 100, 100)).shape == (1, 6)


class WithFeatures(nn.Sequential):
    """Reads 32 pixels, and gives more than logits."""

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        return super().forward(images), images


class Cosine(nn.Module):
    """Its last layer is not called: its weights are taken from it."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.AdaptiveAvgPool2d(1))
        self.fc = nn.Linear(8, 6)

    def forward(self, images: Tensor) -> Tensor:
        return F.linear(self.trunk(images).flatten(1), F.normalize(self.fc.weight))


def scripted(model: nn.Module) -> nn.Module:
    with warnings.catch_warnings(action="ignore", category=FutureWarning):
        return torch.jit.script(model)


class OwnChoice(nn.Module):
    """Goes by values as `Chooses` does, but inside a layer."""

    def forward(self, features: Tensor) -> Tensor:
        return features if features.sum() > 0 else -features


@pytest.mark.parametrize(
    ("model", "said"),
    [
        (Chooses(), ["goes by the values that it reads", "take that out"]),
        (WithFeatures(*plain()), ["gives tuple for images of 32 pixels", "returns the logits alone"]),
        (Cosine(), ["the weights of fc, which is never called", "self.fc(x)"]),
        (scripted(plain()), ["torch.jit", "pass the module that it was made from"]),
        (nn.Sequential(OwnChoice(), *plain()), ["goes by the values that it reads", "take that out"]),
        (nn.Sequential(nn.Conv2d(1, 3, 1), *plain()), ["reads images of 1 channel,", "nofe's images have 3"]),
        (timm.create_model("levit_128s", num_classes=6), ["head_dist.linear alone", "head.linear", "timm:levit_128s"]),
        (torchvision.models.googlenet(num_classes=6, init_weights=False), ["something else in training", "aux_logits"]),
    ],
)
def test_the_reason_is_the_networks_own_and_not_the_size(model: nn.Module, said: list[str]) -> None:
    with pytest.raises(UserError) as error:
        nofe.convert(model, HALVES)
    assert all(words in str(error.value) for words in said), error.value
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(("name", "block"), [("googlenet", "Inception"), ("inception_v3", "InceptionE")])
def test_networks_of_torchvision_with_extra_outputs_are_built_without(name: str, block: str) -> None:
    architecture = architecture_named(f"torchvision:{name}@96")
    with torch.device("meta"):
        branch, trunk = architecture.branch(5), architecture.trunk()
        assert branch(trunk(torch.zeros(2, 3, 96, 96))).shape == (2, 5)
        assert not [path for path in trunk.state_dict() if path.lower().startswith("aux")]
    assert type(branch.block).__name__ == block
    assert trunk.input_scale.std == (0.5, 0.5, 0.5)


class ByFunctions(nn.Module):
    """What stands between `conv2` and `fc` is one of the ways to write it."""

    def __init__(self, flat: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 6, 5)
        self.conv2 = nn.Conv2d(6, 8, 5)
        self.fc = nn.Linear(8 * 5 * 5, 6)
        self.flat = flat

    def forward(self, images: Tensor) -> Tensor:
        early = F.max_pool2d(F.relu(self.conv1(images)), 2)
        return self.fc(self.flat(F.max_pool2d(F.relu(self.conv2(early)), 2), early))


def with_sizes_unpacked(features: Tensor, early: Tensor) -> Tensor:
    images, _, _, _ = features.size()
    return features.view(images, -1)


@pytest.mark.parametrize(
    "flat",
    [
        lambda features, early: features.view(features.size(0), -1),
        lambda features, early: features.view(features.size()[0], 200),
        lambda features, early: features.reshape((features.shape[0], -1)),
        lambda features, early: torch.reshape(features, (features.shape[0], 200)),
        lambda features, early: features.view(early.size(0), -1),  # the number would cross the cut
        lambda features, early: features.view(-1, 200),
        lambda features, early: features.view(features.size(0), 8, -1).flatten(1),
        lambda features, early: torch.flatten(input=features, start_dim=1),
        with_sizes_unpacked,
    ],
)
def test_views_by_the_number_of_images_are_cut_after_the_pooling_and_fused(
    flat: Callable[[Tensor, Tensor], Tensor],
) -> None:
    torch.manual_seed(0)
    model = ByFunctions(flat).eval()
    network = nofe.convert(model, HALVES, image_size=32)
    assert network.trunk(some_images()).shape == (3, 8, 5, 5)
    assert network.branches()[0].tail.fc.weight.shape == (3, 200)  # the new convolution takes no pixels off
    expected = network(some_images())
    assert network.fuse()
    torch.testing.assert_close(network(some_images()), expected)
    same = nofe.convert(model, HALVES, cut="conv2", image_size=32)
    assert same.fuse()
    torch.testing.assert_close(same(some_images()), model(some_images()))


def test_a_view_that_puts_something_else_first_is_left_alone() -> None:
    """The first size of a map turned round is its channels, and as many images as that is chance."""
    from nofe.architectures.images_first import without_counting_images

    class Turned(nn.Module):
        def forward(self, features: Tensor) -> Tensor:
            return features.permute(1, 0, 2, 3).reshape(features.size(0), -1)

    graph = torch.fx.Tracer().trace(Turned())
    without_counting_images(graph)
    features = torch.randn(3, 3, 2, 2)
    assert torch.equal(torch.fx.GraphModule(Turned(), graph)(features), Turned()(features))
    assert [node.target for node in graph.nodes if node.op == "call_method"] == ["permute", "size", "reshape"]


class DropsByFunction(nn.Sequential):
    def forward(self, images: Tensor) -> Tensor:
        return F.dropout(super().forward(images), 0.5, self.training)


def test_dropout_by_a_function_drops_in_training_alone() -> None:
    torch.manual_seed(0)
    model = DropsByFunction(*plain().children()).eval()
    network = nofe.convert(model, HALVES, cut="8", image_size=32)
    assert not [name for name, _ in model.named_modules() if "functional" in name]
    for _ in range(2):
        torch.testing.assert_close(network.eval()(some_images()), model(some_images()))
        learning = copy.deepcopy(network).train()  # whose batch norms move on
        zeros = (learning(some_images(100)) == 0).float().mean()
        assert 0.4 < zeros < 0.6
        assert network.fuse()


def test_blocks_may_write_to_the_lists_they_read() -> None:
    torch.manual_seed(0)
    model = Merges().eval()
    network = nofe.convert(model, HALVES, image_size=32)
    assert network.trunk.final.get_submodule("2").__class__ is nn.ReLU
    assert network(some_images()).shape == (3, 6)
    cut = nofe.convert(model, HALVES, cut="final", image_size=32)
    torch.testing.assert_close(cut(some_images()), model(some_images()))


@pytest.mark.parametrize(("name", "block"), [("hrnet_w18_small", "GraphModule"), ("vovnet39a", "OsaBlock")])
def test_networks_that_hand_lists_on_have_a_trunk_and_a_branch(name: str, block: str) -> None:
    with torch.device("meta"):
        architecture = architecture_named(f"timm:{name}@64")
        branch = architecture.branch(5).eval()
        features = architecture.trunk().eval()(torch.zeros(1, 3, 64, 64))
        assert branch(features).shape == (1, 5)
    assert type(branch.block).__name__ == block


@pytest.mark.parametrize(
    ("name", "block", "parts"),
    [
        ("timm:poolformer_s12@64", "MetaFormerBlock", 0),  # a stage that only looks at its shape is opened
        ("timm:pvt_v2_b0@64", "PyramidVisionTransformerStage", 1),  # one that hands its map's size on is shortened
        ("timm:caformer_s18@64", "MetaFormerStage", 1),
        ("timm:xception41@64", "XceptionModule", 0),  # a block of three convolutions, not a stage
    ],
)
def test_a_branch_has_one_block_and_not_a_whole_stage(name: str, block: str, parts: int) -> None:
    architecture = architecture_named(name)
    with torch.device("meta"):
        branch = architecture.branch(5).eval()
        assert branch(architecture.trunk().eval()(torch.zeros(2, 3, 64, 64))).shape == (2, 5)
    assert type(branch.block).__name__ == block
    if parts:
        assert len(branch.block.blocks) == parts
    if name.startswith("timm:xception41"):
        assert len(branch.block.stack) == 3


def test_a_block_that_is_not_fused_is_named_and_the_network_runs() -> None:
    model = torchvision.models.shufflenet_v2_x0_5(num_classes=6).eval()
    network = nofe.convert(model, HALVES, image_size=32)
    with pytest.raises(NotFusable, match=r"chunk in block"):
        fuse(Branches(network.branches()))
    assert not network.fuse()
    assert network(some_images()).shape == (3, 6)


class Scaled(nn.Module):
    """A block with a parameter of its own, which vmap runs whole, and with it the layer inside."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer, self.scale = layer, nn.Parameter(torch.ones(1, 1, 1))

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        return self.layer(features) * self.scale


DROPS = {
    "DropPath": lambda: timm.layers.DropPath(0.25),
    "DropPath, not scaled": lambda: timm.layers.DropPath(0.25, scale_by_keep=False),
    "StochasticDepth by row": lambda: torchvision.ops.StochasticDepth(0.25, "row"),
    "StochasticDepth by batch": lambda: torchvision.ops.StochasticDepth(0.25, "batch"),
}
PLACES = {
    "on the trunk's map": lambda layer: [layer],
    "on each expert's map": lambda layer: [nn.Conv2d(1, 1, 1, bias=False), layer],
    "on vectors": lambda layer: [nn.Flatten(), layer],
    "in a block": lambda layer: [Scaled(layer)],
    "in a block on each expert's map": lambda layer: [nn.Conv2d(1, 1, 1, bias=False), Scaled(layer)],
}


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("layer", DROPS)
def test_each_expert_drops_other_images_as_the_layer_does(layer: str, place: str) -> None:
    """Stochastic depth leaves whole images out of a block, or the block out for a whole batch."""
    torch.manual_seed(0)
    branches = [
        nn.Sequential(*PLACES[place](DROPS[layer]()), nn.Flatten(), nn.Linear(16, 2, bias=False)) for _ in range(3)
    ]
    for each in nn.ModuleList(branches).parameters():
        nn.init.ones_(each)
    fused = fuse(Branches(branches).train())
    ones = torch.ones(64, 1, 4, 4)
    passes = [fused(ones).view(64, 3, 2) for _ in range(20)]
    drawn = torch.stack(passes)  # passes, images, experts, classes
    drawn.sum().backward()
    torch.testing.assert_close(drawn.amax(), torch.tensor(16.0 if "not scaled" in layer else 16 / 0.75))
    kept = drawn > 0
    assert len(drawn.unique()) == 2
    assert torch.equal(kept[..., 0], kept[..., 1])
    assert (kept.unique(dim=1).shape[1] == 1) == ("batch" in layer)
    assert len(kept.flatten(0, 1).unique(dim=0)) > 4, "experts that drop together"
    assert 0.6 < kept.float().mean() < 0.9
    assert torch.equal(fused.eval()(ones), torch.full((64, 6), 16.0))


# Names


def test_the_name_says_how_large_images_are() -> None:
    assert (architecture_named("timm:test_resnet").input_size, architecture_named("timm:test_resnet").image_size) == (
        160,
        182,
    )
    small = architecture_named("timm:test_resnet@48")
    assert (small.input_size, small.image_size) == (48, 48)
    vit = architecture_named("timm:vit_tiny_patch16_224@64")
    with torch.device("meta"):
        assert vit.trunk()(torch.zeros(1, 3, 64, 64)).shape == (1, 17, 192)
    assert architecture_named("torchvision:resnet18").input_size == 224
    run = default_run("timm:test_resnet@48", "folder:x")
    assert {run.generalist.augmentation, run.experts.augmentation} == {nofe_augmentation(48, 6)}
    assert default_run("torchvision:resnet18", "folder:x").experts.augmentation == nofe_augmentation(224, 0)


def nofe_augmentation(crop: int, padding: int) -> object:
    from nofe.data.batches import Augmentation

    return Augmentation(crop, padding, mirror=True)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("timm:resnt18", "did you mean 'resnet18'?"),
        ("torchvision:convnext_tny", "did you mean 'convnext_tiny'?"),
        ("timm:resnet18@big", "write NAME@64"),
        ("python:nowhere_to_be_found", "write python:my_module:my_function"),
        ("python:nowhere_to_be_found:net", "pass --trust-code"),
    ],
)
def test_a_wrong_name_is_answered_with_the_next_move(name: str, said: str) -> None:
    with pytest.raises(UserError, match=r"architecture '" + name) as error:
        architecture_named(name)
    assert said in str(error.value)


def test_a_library_that_is_absent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(UserError, match="pip install timm"):
        architecture_named("timm:resnet26")


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (
            "def net(classes):",
            "gives 1000 logits where 2 classes were asked for; pass the number on to its last layer, 4",
        ),
        ("def net(classes, width):", "missing a required argument: 'width'); give the rest of its arguments defaults"),
    ],
)
def test_a_function_that_does_not_do_with_a_number_of_classes(
    function: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is told before anything is trained."""
    (tmp_path / "a_net_of_mine.py").write_text(
        f"from torch import nn\n{function}\n"
        "    pool = nn.AdaptiveAvgPool2d(1)\n"
        "    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), pool, nn.Flatten(), nn.Linear(4, 1000))\n"
    )
    monkeypatch.chdir(tmp_path)
    zoo.trust("python:a_net_of_mine:net")
    try:
        with pytest.raises(UserError) as error:
            architecture_named("python:a_net_of_mine:net").classifier(5)
        assert said in str(error.value)
    finally:
        sys.modules.pop("a_net_of_mine", None)
        architecture_named.cache_clear()


def test_code_that_a_folder_names_is_not_run_until_the_user_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a_net_of_mine.py").write_text(
        "from torch import nn\n"
        "def net(classes):\n"
        "    pool = nn.AdaptiveAvgPool2d(1)\n"
        "    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), pool, nn.Flatten(), nn.Linear(4, classes))\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(zoo, "_trusted", set())
    name = "python:a_net_of_mine:net"
    with pytest.raises(UserError, match="--trust-code"):
        architecture_named(name)
    assert "a_net_of_mine" not in sys.modules
    zoo.trust(name)
    try:
        assert architecture_named(name).classifier(5)(some_images()).shape == (3, 5)
    finally:
        sys.modules.pop("a_net_of_mine", None)
        architecture_named.cache_clear()


@pytest.mark.parametrize(("name", "parameters"), [("resnet18-cifar", 11_220_132), ("wrn-28-10", 36_536_884)])
def test_the_networks_for_small_images_have_the_published_sizes(name: str, parameters: int) -> None:
    with torch.device("meta"):
        assert parameter_count(architecture_named(name).classifier(100)) == parameters
        assert architecture_named(name).classifier(100)(torch.zeros(2, 3, 32, 32)).shape == (2, 100)


def test_a_network_of_the_paper_keeps_its_cut() -> None:
    with pytest.raises(UserError, match="has a fixed place where it is cut"):
        architecture_named("vgg11-c100", "conv3_1")


# Width and size


def test_width_scales_what_nothing_outside_depends_on() -> None:
    half = with_branch_width(adapted(plain, "plain", 32), 0.5).branch(5)
    assert half.block.conv2.weight.shape == (4, 8, 3, 3)
    assert half.tail.fc1.weight.shape == (32, 16)
    assert half.tail.fc2.weight.shape == (5, 32)
    assert half(torch.zeros(2, 8, 2, 2)).shape == (2, 5)


NARROWED = [
    "timm:test_resnet@32", "timm:mobilenetv3_small_050@32", "timm:test_convnext@32", "timm:regnety_002@32",
    "vgg11-c100", "resnet18-cifar",
]  # fmt: skip


@pytest.mark.parametrize("name", NARROWED)
def test_narrow_branches_are_smaller_and_run_fused(name: str) -> None:
    torch.manual_seed(0)
    whole = architecture_named(name)
    narrow = with_branch_width(whole, 0.5)
    with torch.device("meta"):
        full = parameter_count(whole.branch(3))
    branches = Branches([narrow.branch(size) for size in (3, 2)])
    assert parameter_count(branches[0]) < 0.8 * full
    with torch.device("meta"):
        features = torch.empty(whole.trunk_of_experts().eval()(torch.zeros(4, 3, 32, 32)).shape)
    given = torch.randn(features.shape)
    for module in branches.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    expected = branches.train()(given)
    again = fuse(branches.train())(given)
    torch.testing.assert_close(again, expected, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("timm:xcit_nano_12_p16_224", "changes nothing in the branches of timm:xcit_nano_12_p16_224"),
        ("timm:res2net50_14w_8s", "each width is that of a shortcut, or read by code that cannot be followed"),
        ("timm:eca_nfnet_l0", "cannot be scaled (weight should contain 192 elements not 384)"),
    ],
)
def test_branches_that_cannot_be_narrowed_are_not_passed_off_as_narrow(name: str, said: str) -> None:
    whole = architecture_named(name)
    with torch.device("meta"), pytest.raises(UserError, match=r"^branch_width=0\.5: ") as error:
        with_branch_width(whole, 0.5, must_change=True).branch(3)
    assert said in str(error.value)


def test_a_limit_leaves_branches_as_they_are_where_they_fit() -> None:
    whole = architecture_named("timm:eca_nfnet_l0")  # whose branches cannot be narrowed
    enough = sizes_of(whole, 10, 4, 224)["experts"].parameters
    assert width_within(whole, enough, balanced_sizes(10, 4)) == 1
    with pytest.raises(UserError, match="cannot be scaled"):
        width_within(whole, enough // 2, balanced_sizes(10, 4))


def test_a_width_that_rounding_takes_back_is_said() -> None:
    resnet = architecture_named("timm:test_resnet@32")
    with pytest.raises(UserError, match=r"branch_width=0\.99: rounds to the full width"):
        with_branch_width(resnet, 0.99, must_change=True).branch(3)
    with_branch_width(resnet, 0.5, must_change=True).branch(3)
    with_branch_width(resnet, 0.99).branch(3)  # of a run that has it


def test_a_limit_on_parameters_is_kept_and_used() -> None:
    whole = sizes_of(architecture_named("timm:test_resnet@32"), 10, 4, 32)["experts"].parameters
    for limit in (whole, 800_000, 600_000):
        architecture = architecture_with("timm:test_resnet@32", AdaptConfig(parameters=limit), 10, 4)
        specialties = Specialties(np.repeat(np.arange(4), balanced_sizes(10, 4)))
        total = parameter_count(plant_experts(architecture, specialties))
        assert 0.85 * limit < total <= limit
    with pytest.raises(UserError, match=r"parameters=400,000: .* at the least, 372,688 of them in the trunk"):
        architecture_with("timm:test_resnet@32", AdaptConfig(parameters=400_000), 10, 4)
    with pytest.raises(UserError, match="give one of the two"):
        AdaptConfig(parameters=10, branch_width=0.5)


def test_sizes_are_counted_by_hand() -> None:
    """conv1 on 32 x 32, conv2 on 8 x 8, both of 9 places; then two linear layers."""
    with torch.device("meta"):
        counted = size_of(plain(), 32)
    assert counted.multiplications == 32 * 32 * 27 * 4 + 8 * 8 * 36 * 8 + 32 * 64 + 64 * 6
    assert counted.parameters == (27 * 4 + 4) + 8 + (36 * 8 + 8) + (32 * 64 + 64) + (64 * 6 + 6)
    sizes = sizes_of(adapted(plain, "plain", 32), 6, 2, 32)
    trunk = 32 * 32 * 27 * 4 + 8 * 8 * 36 * 8
    assert sizes["experts"].multiplications == trunk + 2 * (2 * 2 * 72 * 8 + 32 * 64 + 64 * 3)
    assert sizes["base"] == counted


def test_sizes_are_those_of_networks_that_compute() -> None:
    """What leaves shapes as they are is left out of the count, and no weight is filled: neither multiplies anything."""
    known = architecture_named("resnet56-c100")
    with without_values():
        counted = size_of(known.classifier(100), known.input_size)
        filled = nn.init.normal_(torch.zeros(3, device="cpu"))
    model = known.classifier(100).eval()
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        model(torch.zeros(1, 3, known.input_size, known.input_size))
    assert counted == Size(parameter_count(model), counter.get_total_flops() // 2)
    assert bool(filled.all())  # a tensor with values is


# Weights


def test_what_the_data_side_feeds_becomes_what_imagenet_networks_read() -> None:
    """The mean is taken off by the data side, the spread by the network."""
    mean, std = torch.tensor([0.485, 0.456, 0.406])[:, None, None], torch.tensor([0.229, 0.224, 0.225])[:, None, None]
    pixels = torch.randint(256, (2, 3, 8, 8)).float()
    fed = pixels - 255 * mean
    torch.testing.assert_close(InputScale((0.229, 0.224, 0.225))(fed), (pixels / 255 - mean) / std)
    trunk = architecture_named("timm:test_resnet@32").trunk()
    assert next(iter(dict(trunk.named_children()).values())).std == timm.get_pretrained_cfg("test_resnet").std
    assert "input_scale" not in " ".join(trunk.state_dict())


@pytest.mark.parametrize("suffix", [".safetensors", ".pth"])
def test_weights_of_a_file(tmp_path: Path, suffix: str) -> None:
    torch.manual_seed(0)
    model = timm.create_model("test_convnext", num_classes=11)
    file = tmp_path / f"weights{suffix}"
    state = {name: tensor.contiguous() for name, tensor in model.state_dict().items()}
    if suffix == ".pth":
        torch.save({"state_dict": {f"module.{name}": tensor for name, tensor in state.items()}}, file)
    else:
        safetensors.torch.save_file(state, file)
    architecture = architecture_named("timm:test_convnext@32")
    generalist = architecture.classifier(3)
    start_from(generalist, read_weights(str(file), architecture.name), architecture, str(file))
    for name, tensor in generalist.trunk.state_dict().items():
        assert torch.equal(tensor, state[name])
    assert torch.equal(generalist.head.head.norm.weight, state["head.norm.weight"])
    assert generalist.head.head.fc.weight.shape == (3, 64)
    of_run = tmp_path / "base.safetensors"
    safetensors.torch.save_file({name: each.contiguous() for name, each in generalist.state_dict().items()}, of_run)
    cut = architecture_with("timm:test_convnext@32", AdaptConfig(cut="stages.3"), 5, 2)
    again = cut.classifier(5)
    start_from(again, read_weights(str(of_run), cut.name), cut, str(of_run))
    assert any(name.startswith("stages.3") for name in again.head.state_dict()), "it was the trunk's before"
    for name, tensor in (again.trunk.state_dict() | again.head.state_dict()).items():
        assert name.startswith("head.fc.") or torch.equal(tensor, state[name])
    other = architecture_named("timm:test_resnet@32")
    with pytest.raises(UserError, match="name weights of the same network"):
        start_from(other.classifier(3), read_weights(str(file), other.name), other, str(file))


class Bomb:
    def __reduce__(self) -> tuple[object, ...]:
        return print, ("code in a file of weights was run",)


def test_a_file_of_weights_cannot_run_code(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "bomb.pth"
    torch.save({"weight": Bomb()}, file)
    with pytest.raises(UserError, match="cannot be read as tensors alone"):
        read_weights(str(file), "small")
    (tmp_path / "bare.pth").write_bytes(pickle.dumps(Bomb(), protocol=2))
    with pytest.raises(UserError, match="cannot be read as tensors alone"):
        read_weights(str(tmp_path / "bare.pth"), "small")
    assert "was run" not in capsys.readouterr().out


def test_a_file_that_holds_no_weights_is_described_in_plain_words(tmp_path: Path) -> None:
    """Neither torch's colours nor its advice to trust the file."""
    whole, script, cut_off = tmp_path / "whole.pth", tmp_path / "train.py", tmp_path / "cut-off.pth"
    model = timm.create_model("test_resnet")
    torch.save(model, whole)
    script.write_text("print('hello')\n")
    torch.save(model.state_dict(), cut_off)
    cut_off.write_bytes(cut_off.read_bytes()[:1000])
    reasons = {
        whole: "it holds a timm.models.resnet.ResNet, too, which is code, as in a model that was pickled whole",
        script: "it is no file that torch.save wrote",
        cut_off: "its content is damaged or cut off",
        tmp_path: "is a directory",
    }
    for file, reason in reasons.items():
        with pytest.raises(UserError) as told:
            read_weights(str(file), "timm:test_resnet@32")
        assert str(told.value) == (
            f"--weights {file}: cannot be read as tensors alone ({reason}); save the state_dict with "
            "safetensors.torch.save_file"
        )


def test_weights_that_are_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match="no such file"):
        read_weights(str(tmp_path / "none.safetensors"), "small")
    with pytest.raises(UserError, match="nobody has trained small"):
        read_weights("pretrained", "small")

    def unreachable(*_: object, **__: object) -> None:
        raise OSError("no route to host")

    monkeypatch.setattr(timm, "create_model", unreachable)
    with pytest.raises(UserError, match=r"no route to host\); fetch them elsewhere .* --weights FILE"):
        read_weights("pretrained", "timm:test_resnet")


def test_a_frozen_trunk_does_not_learn_and_keeps_its_statistics() -> None:
    from nofe.architectures.caffe import counting_steps_together

    torch.manual_seed(0)
    network = plant_experts(architecture_named("small"), HALVES)
    network.freeze_trunk()
    network.fuse()
    network.train()
    before = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    optimizer = torch.optim.SGD([p for p in network.parameters() if p.requires_grad], lr=0.1)
    with counting_steps_together(network) as taken:
        network(some_images(8)).logsumexp(1).sum().backward()
        optimizer.step()
        taken[0] += 1
    after = network.state_dict()
    assert all(torch.equal(tensor, after[name]) for name, tensor in before.items() if name.startswith("trunk."))
    changed = [name for name, tensor in before.items() if not torch.equal(tensor, after[name])]
    assert {"experts.0.bn4.running_mean", "experts.1.conv4.weight"} <= set(changed)


def test_experts_that_share_weights_are_refused() -> None:
    """Fused they would be two, and one of them lost when they are taken apart."""
    only = nn.Linear(32, 3)
    with pytest.raises(UserError, match="branch: gives the same module, or the same weights, to several experts"):
        nofe.convert(plain(), HALVES, cut="fc1", branch=lambda _: only)
    with pytest.raises(UserError, match="the same weights"):
        nofe.convert(plain(), HALVES, cut="fc1", branch=lambda _: nn.Sequential(only))


def of_no_classes() -> type[nn.Module]:
    class TakesNothing(nn.Module):
        pass

    return TakesNothing


def broken(classes: int) -> nn.Module:
    raise RuntimeError("the table of layers is missing\nand more")


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (broken, "fails for .* RuntimeError: the table of layers is missing"),
        (of_no_classes(), "fails for .* TypeError"),
    ],
)
def test_code_of_the_user_that_fails_is_told_with_its_line(
    function: Any, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = f"network_of_{function.__name__}"  # known by it from then on
    monkeypatch.setattr(f"conftest.{name}", function, raising=False)
    with pytest.raises(UserError, match=rf"'python:conftest:{name}': {said}.*\(.*, line \d+\)"):
        architecture_named(f"python:conftest:{name}").classifier(2)
