"""Neighbours in features: what is found is what a literal search finds, and what is read is the layer that is meant."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch import Tensor, nn

from conftest import small_dataset
from nofe import retrieval
from nofe.architectures import ARCHITECTURES, architecture_named
from nofe.architectures.matched import MATCHED
from nofe.data import ImageSet
from nofe.data.batches import DeviceImages, pixel_mean
from nofe.errors import UserError
from nofe.experts.network import NetworkOfExperts, plant_experts
from nofe.retrieval import (
    Retrieval,
    features_of,
    grid_of,
    nearest,
    neighbours_by_base,
    neighbours_by_experts,
    precision_at,
    retrieve,
)
from nofe.specialties import Specialties
from nofe.training.runtime import Runtime

CPU = torch.device("cpu")
RUNTIME = Runtime(CPU)


def random_features(images: int, width: int = 5, seed: int = 0) -> Tensor:
    return torch.randn(images, width, generator=torch.Generator().manual_seed(seed)) + 30  # far from the origin


def literal_search(features: NDArray[np.float64], query: int, distance: str) -> list[int]:
    """All other images, nearest first."""
    if distance == "euclidean":
        away = np.linalg.norm(features - features[query], axis=1)
    else:
        away = 1 - features @ features[query] / np.linalg.norm(features, axis=1) / np.linalg.norm(features[query])
    return [int(other) for other in np.argsort(away) if other != query]


# Searching


def test_planted_neighbours_are_found() -> None:
    """Pairs of points on a line: each point's nearest is its partner, then come the pairs beside it."""
    places = np.array([0, 1, 100, 101.5, 203, 205])
    features = torch.tensor(places, dtype=torch.float32)[:, None]
    found = nearest(features, torch.arange(6), 2)
    assert found.tolist() == [[1, 2], [0, 2], [3, 1], [2, 1], [5, 3], [4, 3]]


@pytest.mark.parametrize("distance", ["euclidean", "cosine"])
@given(images=st.integers(2, 40), seed=st.integers(0, 1000), data=st.data())
def test_what_is_found_is_what_a_literal_search_finds(
    distance: retrieval.Distance, images: int, seed: int, data: st.DataObject
) -> None:
    features = random_features(images, seed=seed).double()
    count = data.draw(st.integers(1, images - 1))
    queries = data.draw(st.lists(st.integers(0, images - 1), min_size=1, max_size=10))
    block = data.draw(st.integers(1, 12))
    found = nearest(features, torch.tensor(queries), count, distance, block).tolist()
    assert found == [literal_search(features.numpy(), query, distance)[:count] for query in queries]


@given(images=st.integers(2, 30), copies=st.integers(1, 30), block=st.integers(1, 31))
def test_no_query_is_its_own_neighbour(images: int, copies: int, block: int) -> None:
    """Not even among copies of itself, which are just as near."""
    features = random_features(images)
    features[: min(copies, images)] = features[0]
    found = nearest(features, torch.arange(images), images - 1, block=block)
    for query, neighbours in enumerate(found.tolist()):
        assert sorted([query, *neighbours]) == list(range(images))


def test_blocks_of_any_size_give_the_same_answer() -> None:
    features = random_features(101, width=8)
    queries = torch.randperm(101, generator=torch.Generator().manual_seed(1))
    whole = nearest(features, queries, 10, block=1000)
    for block in (1, 2, 7, 50, 100, 101):
        assert torch.equal(nearest(features, queries, 10, block=block), whole)


# Counting


@given(data=st.data(), images=st.integers(2, 30), classes=st.integers(1, 5), seed=st.integers(0, 100))
def test_precision_is_that_of_a_literal_count(data: st.DataObject, images: int, classes: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    labels = rng.integers(classes, size=images)
    features = rng.normal(size=(images, 3))
    depth = data.draw(st.integers(1, images - 1))
    hits = [
        labels[other] == labels[query]
        for query in range(images)
        for other in literal_search(features, query, "euclidean")[:depth]
    ]
    found = nearest(torch.from_numpy(features), torch.arange(images), images - 1).numpy()
    assert precision_at(found, labels, [depth]) == {depth: pytest.approx(np.mean(hits))}


def test_precision_made_by_hand() -> None:
    labels = np.array([0, 0, 1, 1])
    neighbours = np.array([[1, 2, 3], [2, 0, 3], [0, 1, 3], [2, 0, 1]])
    found = precision_at(neighbours, labels, (1, 2, 3))
    assert found == {1: pytest.approx(2 / 4), 2: pytest.approx(3 / 8), 3: pytest.approx(4 / 12)}


# Reading features


def direct_features(name: str, trunk: nn.Module, last: nn.Module, images: Tensor) -> Tensor:
    """Layer by layer up to and with the ReLU of the last convolution, by the names that the architecture gives them."""
    base_stops = {
        "alexnet-c100": "trunk.relu3", "alexnet-quick-c100": "trunk.relu3", "vgg11-c100": "trunk.relu3_4",
        "nin-c100": "trunk.relu_cccp5", "resnet56-c100": "trunk.stage3", "small": "trunk.bn3",  # pooled before its ReLU
    }  # fmt: skip
    branch_stops = {
        "alexnet-c100": "last.relu4", "alexnet-quick-c100": "last.relu4", "vgg11-c100": "last.relu4_2",
        "nin-c100": "last.relu_cccp7", "resnet56-c100": "last.block1", "small": "last.relu4",
    }  # fmt: skip
    is_branch = any(f"last.{path}" == branch_stops[name] for path, _ in last.named_children())
    stop = branch_stops[name] if is_branch else base_stops[name]
    value = images
    for part, module in (("trunk", trunk), ("last", last)):
        for path, layer in module.named_children():
            value = layer(value)
            if f"{part}.{path}" == stop:
                return value.flatten(1)
    raise AssertionError(stop)


def some_images(size: int, count: int = 5) -> DeviceImages:
    rng = np.random.default_rng(3)
    images = ImageSet(rng.integers(0, 256, size=(count, 3, size, size), dtype=np.uint8), np.arange(count) % 4)
    return DeviceImages(images, pixel_mean(images), CPU)


def small_network(name: str, sizes: list[int], seed: int = 0) -> NetworkOfExperts:
    torch.manual_seed(seed)
    network = plant_experts(architecture_named(name), Specialties(np.repeat(np.arange(len(sizes)), sizes)))
    side = architecture_named(name).input_size
    with torch.no_grad():  # statistics of batch norm that are not those of the start
        network(100 * torch.randn(8, 3, side, side))
    return network


ON_CIFAR = [name for name in ARCHITECTURES if name != "alexnet-caffe" and name not in {one.name for one in MATCHED}]


@pytest.mark.parametrize("name", ON_CIFAR)
def test_the_features_of_the_base_are_those_of_its_last_convolution(name: str) -> None:
    torch.manual_seed(0)
    architecture = architecture_named(name)
    base = architecture.classifier(4)
    images = some_images(32)
    views = images.centre_view(torch.arange(5), architecture.input_size)
    found = features_of(base, lambda part: views[part], 5, RUNTIME)
    assert base.training  # as it was
    base.eval()
    with torch.no_grad():
        expected = direct_features(name, base.trunk, base.head, views)
    torch.testing.assert_close(found, expected)
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in base.modules())


@pytest.mark.parametrize("fused", [False, True], ids=["branches", "fused"])
@pytest.mark.parametrize("name", ON_CIFAR)
def test_the_features_of_an_expert_are_those_of_its_branch(name: str, fused: bool) -> None:
    network = small_network(name, [2, 1, 3]).eval()
    views = some_images(32).centre_view(torch.arange(5), architecture_named(name).input_size)
    with torch.no_grad():
        maps = network.trunk(views)
        expected = [direct_features(name, network.trunk, branch, views) for branch in network.branches()]
    if fused:
        assert network.fuse()
    for branch, directly in zip(network.branches(), expected, strict=True):
        found = features_of(branch, lambda part: maps[part], 5, RUNTIME)
        torch.testing.assert_close(found, directly)


def test_the_first_linear_layer_as_on_imagenet() -> None:
    """After its ReLU, and without its dropout, which only training has."""
    torch.manual_seed(0)
    branch = architecture_named("alexnet-caffe").branch(3)
    maps = torch.rand(2, 256, 6, 6)
    found = features_of(branch, lambda part: maps[part], 2, RUNTIME, layer="linear")
    branch.eval()
    with torch.no_grad():
        expected = branch[:6](maps)  # conv6, relu6, pool6, flatten, fc6, relu_fc6
    assert found.shape == (2, 1024)
    torch.testing.assert_close(found, expected)


def test_without_such_a_layer_what_the_classifier_reads() -> None:
    head = nn.Sequential(nn.AvgPool2d(2), nn.Flatten(), nn.Linear(12, 4))
    maps = torch.rand(7, 3, 4, 4)
    for layer in ("convolution", "linear"):
        found = features_of(head, lambda part: maps[part], 7, RUNTIME, layer=layer)
        torch.testing.assert_close(found, F.avg_pool2d(maps, 2).flatten(1))


def test_the_order_is_that_of_execution_not_of_definition() -> None:
    class Backwards(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.classifier = nn.Linear(2 * 16, 3)
            self.second = nn.Conv2d(4, 2, 1)
            self.first = nn.Conv2d(3, 4, 1)

        def forward(self, images: Tensor) -> Tensor:
            return self.classifier(F.relu(self.second(F.relu(self.first(images)))).flatten(1))

    model, images = Backwards(), torch.rand(3, 3, 4, 4)
    found = features_of(model, lambda part: images[part], 3, RUNTIME)
    torch.testing.assert_close(found, F.relu(model.second(F.relu(model.first(images)))).flatten(1).detach())


# All together


@pytest.mark.parametrize("fused", [False, True], ids=["branches", "fused"])
def test_each_query_is_searched_with_the_expert_of_its_predicted_class(
    fused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retrieval, "EVALUATION_BATCH", 7)  # the last part is smaller
    dataset = small_dataset(classes=6, per_class=4)
    images = DeviceImages(dataset.train, pixel_mean(dataset.train), CPU)
    network = small_network("small", [1, 3, 2])
    views = images.centre_view(torch.arange(len(images)), 32)
    with torch.no_grad():  # every class is predicted for some image
        usual = network.eval()(views).mean(0)
        for expert, branch in enumerate(network.branches()):
            branch.fc.bias -= usual[network.specialties.members(expert)]
    network.train()
    if fused:
        network.fuse()
    found, expert_of_query = neighbours_by_experts(network, images, 32, RUNTIME, count=5)
    assert network.training
    assert isinstance(network.experts, nn.ModuleList) != fused  # runs as it ran
    network.eval()
    with torch.no_grad():
        predicted = network(views).argmax(1).numpy()
        maps = network.trunk(views)
        of_expert = [branch[:3](maps).flatten(1).double().numpy() for branch in network.branches()]
    assert set(expert_of_query.tolist()) == {0, 1, 2}
    for query in range(len(images)):
        expert = int(network.specialties.specialty_of_class[predicted[query]])
        assert expert_of_query[query] == expert
        assert found[query].tolist() == literal_search(of_expert[expert], query, "euclidean")[:5]


def test_experts_that_write_over_the_trunks_map_find_the_same_when_they_run_as_one() -> None:
    def branch() -> nn.Module:
        return nn.Sequential(nn.SiLU(inplace=True), nn.Conv2d(8, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 2))

    torch.manual_seed(0)
    specialties = Specialties([0, 0, 1, 1, 2, 2])
    network = NetworkOfExperts(nn.Conv2d(3, 8, 1), [branch() for _ in range(3)], specialties)
    images = some_images(8, count=40)
    one_by_one = neighbours_by_experts(network, images, 8, RUNTIME, count=5)
    assert network.fuse()
    as_one = neighbours_by_experts(network, images, 8, RUNTIME, count=5)
    for found, expected in zip(as_one, one_by_one, strict=True):
        np.testing.assert_array_equal(found, expected)


def test_experts_against_base() -> None:
    dataset = small_dataset(classes=4, per_class=6)
    images = DeviceImages(dataset.train, pixel_mean(dataset.train), CPU)
    network = small_network("small", [2, 2])
    base = architecture_named("small").classifier(4)
    made = retrieve(network, base, images, 32, RUNTIME, count=4)
    np.testing.assert_array_equal(made.by_base, neighbours_by_base(base, images, 32, RUNTIME, count=4))
    np.testing.assert_array_equal(made.by_experts, neighbours_by_experts(network, images, 32, RUNTIME, count=4)[0])
    precision = made.precision((1, 4))
    assert precision["base"] == {str(d): p for d, p in precision_at(made.by_base, dataset.train.labels, (1, 4)).items()}
    grid = grid_of(made, images, [5, 0], shown=2)
    np.testing.assert_array_equal(grid.queries, dataset.train.images[[5, 0]])
    np.testing.assert_array_equal(grid.by_experts[0, 1], dataset.train.images[made.by_experts[5, 1]])
    assert grid.base_match[1, 0] == (dataset.train.labels[made.by_base[0, 0]] == dataset.train.labels[0])


# What cannot be


def test_more_neighbours_than_other_images() -> None:
    with pytest.raises(UserError, match="5 neighbours: cannot be found among 5 images; ask for 1 to 4"):
        nearest(random_features(5), torch.arange(5), 5)
    with pytest.raises(UserError, match="10 neighbours: cannot be found among 3 images"):
        neighbours_by_base(architecture_named("small").classifier(2), some_images(32, 3), 32, RUNTIME)


def test_unknown_distance_and_layer() -> None:
    with pytest.raises(UserError, match="distance 'manhattan': there is none; choose from euclidean, cosine"):
        nearest(random_features(5), torch.arange(5), 1, "manhattan")  # type: ignore[arg-type]
    with pytest.raises(UserError, match="layer 'first': there is none; choose from convolution, linear"):
        features_of(nn.Linear(2, 2), lambda part: part, 5, RUNTIME, "first")  # type: ignore[arg-type]


def test_features_that_are_no_numbers() -> None:
    features = random_features(5)
    features[2, 1] = torch.nan
    with pytest.raises(UserError, match="not all are finite"):
        nearest(features, torch.arange(5), 1)


def test_depths_and_queries_out_of_range() -> None:
    made = Retrieval(np.array([0, 1]), np.array([0, 0]), np.array([[1], [0]]), np.array([[1], [0]]))
    with pytest.raises(UserError, match="depth 3: 1 neighbours of each query were looked for"):
        made.precision((3,))
    with pytest.raises(UserError, match="neighbours: have shape"):
        precision_at(np.zeros((3, 1), dtype=np.int64), np.zeros(2, dtype=np.int64), (1,))
    for queries in ([], [2], [-1]):
        with pytest.raises(UserError, match="queries: pass one or more numbers of test images, from 0 to 1"):
            grid_of(made, some_images(32, 2), queries, shown=1)


def test_a_network_without_layers() -> None:
    with pytest.raises(UserError, match="Identity: runs no convolution"):
        features_of(nn.Identity(), lambda part: torch.rand(len(part), 3), 4, RUNTIME)
