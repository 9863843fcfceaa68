"""Nearest neighbours in the features of an expert, and of the base (supplement, "Nearest Neighbor Retrieval").

A query is compared with all other test images in the features of the expert that owns its predicted class. The paper
shows examples; here they are counted as well: the share of the nearest images that have the query's class.

Which layer is read is found by running the network, so any architecture will do:

- `convolution`, the paper's "last CONV layer" on CIFAR-100: the last convolution before the classifier (the last layer
  with weights: NIN's is itself a convolution, of class scores), as the layer after it reads it, that is normalised,
  added to its shortcut and rectified. In Caffe, where ReLU works in place, that is what the layer's name stands for.
- `linear`, the paper's "first FC layer" on ImageNet: the first fully connected layer before the classifier, rectified.

Where a branch has no such layer, what its classifier reads is taken.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from nofe.architectures.line import WITH_WEIGHTS
from nofe.data.batches import DeviceImages
from nofe.errors import UserError
from nofe.experts.network import NetworkOfExperts
from nofe.report.neighbours import NeighbourGrid
from nofe.training.runtime import Runtime

Layer = Literal["convolution", "linear"]
Distance = Literal["euclidean", "cosine"]
DEPTHS = (1, 3, 10)
EVALUATION_BATCH = 500
QUERIES_AT_ONCE = 1000  # a block of distances to 10,000 images is 40 MB

# What a finished map is read by; batch norm, additions and ReLU still belong to the convolution before them.
READERS = (
    *WITH_WEIGHTS, nn.MaxPool2d, nn.AvgPool2d, nn.AdaptiveAvgPool2d, nn.AdaptiveMaxPool2d, nn.Flatten, nn.Dropout,
    nn.Dropout2d,
)  # fmt: skip


@dataclass(frozen=True)
class Retrieval:
    """The nearest test images of every test image, itself left out."""

    labels: NDArray[np.int64]  # (N,)
    expert_of_query: NDArray[np.int64]  # (N,) the expert of the predicted class, whose features were compared
    by_experts: NDArray[np.int64]  # (N, k) nearest first
    by_base: NDArray[np.int64]  # (N, k)

    def precision(self, depths: Sequence[int] = DEPTHS) -> dict[str, dict[str, float]]:
        """{"experts": {"1": 0.5, ...}, "base": ...}: share of the nearest images that have the query's class."""
        found = {"experts": self.by_experts, "base": self.by_base}
        return {
            name: {str(depth): share for depth, share in precision_at(neighbours, self.labels, depths).items()}
            for name, neighbours in found.items()
        }


def retrieve(
    network: NetworkOfExperts,
    base: nn.Module,
    images: DeviceImages,
    crop: int,
    runtime: Runtime,
    *,
    count: int = max(DEPTHS),
    distance: Distance = "euclidean",
    layer: Layer = "convolution",
) -> Retrieval:
    """The `count` nearest of every image, by the experts and by the base; neither network is changed."""
    by_experts, expert_of_query = neighbours_by_experts(
        network, images, crop, runtime, count=count, distance=distance, layer=layer
    )
    by_base = neighbours_by_base(base, images, crop, runtime, count=count, distance=distance, layer=layer)
    return Retrieval(images.labels.cpu().numpy(), expert_of_query, by_experts, by_base)


def neighbours_by_experts(
    network: NetworkOfExperts,
    images: DeviceImages,
    crop: int,
    runtime: Runtime,
    *,
    count: int = max(DEPTHS),
    distance: Distance = "euclidean",
    layer: Layer = "convolution",
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Neighbours (N, count), and the expert (N,) that each query speaks through.

    The trunk runs once over all images, and each expert once; its features are let go before the next expert's.
    """
    _require_enough(len(images), count)
    everything = torch.arange(len(images), device=runtime.device)
    with torch.inference_mode(), evaluating(network):
        branches = network.branches()
        maps, logits = [], []
        for part in torch.split(everything, EVALUATION_BATCH):
            with runtime.autocast():
                maps.append(network.trunk(images.centre_view(part, crop)))
                logits.append(network.classify(maps[-1].clone()))  # some experts write over what they read
        shared = torch.cat(maps)  # (N, D, h, w)
        del maps
        predicted = torch.cat(logits).argmax(1)  # (N,) classes
        specialty_of_class = torch.from_numpy(network.specialties.specialty_of_class.copy()).to(runtime.device)
        expert_of_query = specialty_of_class[predicted]  # (N,)
        found = torch.zeros(len(images), count, dtype=torch.int64, device=runtime.device)
        for expert, branch in enumerate(branches):
            queries = torch.nonzero(expert_of_query == expert)[:, 0]
            if len(queries) == 0:
                continue
            features = features_of(branch, lambda part: shared[part], len(images), runtime, layer)  # (N, F)
            found[queries] = nearest(features, queries, count, distance)
            del features
    return found.cpu().numpy(), expert_of_query.cpu().numpy()


def neighbours_by_base(
    base: nn.Module,
    images: DeviceImages,
    crop: int,
    runtime: Runtime,
    *,
    count: int = max(DEPTHS),
    distance: Distance = "euclidean",
    layer: Layer = "convolution",
) -> NDArray[np.int64]:
    """Neighbours (N, count) in the features of a plain network."""
    _require_enough(len(images), count)
    with torch.inference_mode():
        features = features_of(base, lambda part: images.centre_view(part, crop), len(images), runtime, layer)
        queries = torch.arange(len(images), device=runtime.device)
        return nearest(features, queries, count, distance).cpu().numpy()


def features_of(
    model: nn.Module, read: Callable[[Tensor], Tensor], count: int, runtime: Runtime, layer: Layer = "convolution"
) -> Tensor:
    """What the chosen layer of `model` says of `count` inputs, (N, F) in float32; `read` gives those of an index."""
    if layer not in get_args(Layer):
        raise UserError(f"layer '{layer}': there is none; choose from {', '.join(get_args(Layer))}")
    if count < 1:
        raise UserError("retrieval: there are no images; pass at least 2")
    parts = torch.split(torch.arange(count, device=runtime.device), EVALUATION_BATCH)
    features: Tensor | None = None
    with (
        torch.inference_mode(),
        evaluating(model),
        runtime.autocast(),
        listening(model, read(parts[0][:1]), layer) as tap,
    ):
        for part in parts:
            model(read(part))
            heard = tap.take().flatten(1)
            if features is None:  # once, instead of parts that are then put together: half the memory
                features = torch.empty(count, heard.shape[1], device=heard.device)
            features[part] = heard.float()
    assert features is not None
    return features


def nearest(
    features: Tensor,
    queries: Tensor,
    count: int,
    distance: Distance = "euclidean",
    block: int = QUERIES_AT_ONCE,
) -> Tensor:
    """For each query, an index into `features` (N, F), its `count` nearest others: (Q, count), nearest first."""
    if distance not in get_args(Distance):
        raise UserError(f"distance '{distance}': there is none; choose from {', '.join(get_args(Distance))}")
    if features.dim() != 2:
        raise UserError(f"features: have shape {tuple(features.shape)}; pass one row for each image")
    if block < 1:
        raise UserError(f"block={block}: out of range; compare at least 1 query at a time")
    _require_enough(len(features), count)
    if not bool(torch.isfinite(features).all()):
        raise UserError("features: not all are finite numbers; has the network been trained?")
    if distance == "cosine":
        points = torch.nn.functional.normalize(features, dim=1)
        offsets = torch.zeros(len(points), device=points.device)
    else:
        points = features - features.mean(0)  # changes no distance, and the products below lose fewer digits
        offsets = torch.linalg.vector_norm(points, dim=1).square() / 2  # (N,)
    found = []
    with exact_products():
        for some in torch.split(queries, block):
            # |a - b|^2 = |a|^2 - 2 (a.b - |b|^2 / 2), and |a| is the same for all that a query is compared with.
            closeness = points[some] @ points.T - offsets  # (B, N)
            closeness.scatter_(1, some[:, None], -torch.inf)  # a query is not its own neighbour
            found.append(closeness.topk(count, dim=1).indices)
    return torch.cat(found) if found else queries.new_empty(0, count)


def precision_at(
    neighbours: NDArray[np.int64], labels: NDArray[np.int64], depths: Sequence[int] = DEPTHS
) -> dict[int, float]:
    """Mean over all queries of the share of the first `depth` neighbours that have the query's class."""
    if neighbours.ndim != 2 or len(neighbours) != len(labels):
        raise UserError(
            f"neighbours: have shape {neighbours.shape} for {len(labels):,} labels; pass a row for each labelled image"
        )
    for depth in depths:
        if not 1 <= depth <= neighbours.shape[1]:
            raise UserError(
                f"depth {depth}: {neighbours.shape[1]} neighbours of each query were looked for; "
                f"ask for 1 to {neighbours.shape[1]}"
            )
    same = labels[neighbours] == labels[:, None]  # (N, k)
    return {depth: float(same[:, :depth].mean()) for depth in depths}


def grid_of(retrieval: Retrieval, images: DeviceImages, queries: Sequence[int], shown: int = 3) -> NeighbourGrid:
    """The paper's figure as arrays: each query with its `shown` nearest by the experts and by the base.

    Choose the queries without looking, e.g. `stream(seed, "retrieval", "examples").choice(len(images), 8, False)`.
    """
    chosen = np.asarray(queries, dtype=np.int64)
    if chosen.ndim != 1 or chosen.size == 0 or chosen.min() < 0 or chosen.max() >= len(retrieval.labels):
        raise UserError(f"queries: pass one or more numbers of test images, from 0 to {len(retrieval.labels) - 1}")
    if not 1 <= shown <= retrieval.by_experts.shape[1]:
        raise UserError(f"shown={shown}: out of range; {retrieval.by_experts.shape[1]} neighbours were looked for")

    def pixels(index: NDArray[np.int64]) -> NDArray[np.uint8]:  # of any shape, to (..., 3, H, W)
        read: NDArray[np.uint8] = images.pixels[torch.from_numpy(index.ravel()).to(images.labels.device)].cpu().numpy()
        return read.reshape(*index.shape, *read.shape[1:])

    by_experts, by_base = (found[chosen, :shown] for found in (retrieval.by_experts, retrieval.by_base))  # (Q, shown)
    own = retrieval.labels[chosen][:, None]  # (Q, 1)
    return NeighbourGrid(
        queries=pixels(chosen),
        by_experts=pixels(by_experts),
        by_base=pixels(by_base),
        experts_match=retrieval.labels[by_experts] == own,
        base_match=retrieval.labels[by_base] == own,
    )


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """In evaluation mode for a while."""
    was_training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(was_training)


@contextmanager
def exact_products() -> Iterator[None]:
    """In float32 even where training lets products round their inputs: near neighbours differ in the last digits."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


class Tap:
    """Keeps the last thing it heard until it is taken."""

    def __init__(self) -> None:
        self._waiting = False
        self._heard: Tensor | None = None

    def wait(self, *_: Any) -> None:
        """The layer has run: the next reader reads what is wanted."""
        self._waiting = True

    def read(self, module: nn.Module, inputs: tuple[Any, ...]) -> None:
        if self._waiting:
            self._heard, self._waiting = inputs[0], False

    def read_always(self, module: nn.Module, inputs: tuple[Any, ...]) -> None:
        self._heard = inputs[0]

    def take(self) -> Tensor:
        heard, self._heard = self._heard, None
        assert heard is not None  # the classifier runs last, and is a reader
        return heard


@contextmanager
def listening(model: nn.Module, sample: Tensor, layer: Layer) -> Iterator[Tap]:
    """A tap on the chosen layer of `model`, found by running it on a `sample`."""
    *before, classifier = _in_order_of_execution(model, sample)
    source: nn.Module | None
    if layer == "convolution":
        source = next((each for each in reversed(before) if isinstance(each, nn.Conv2d)), None)
    else:
        source = next((each for each in before if isinstance(each, nn.Linear)), None)
    tap = Tap()
    if source is None:
        hooks = [classifier.register_forward_pre_hook(tap.read_always)]
    else:
        hooks = [source.register_forward_hook(tap.wait)]
        readers = (each for each in model.modules() if isinstance(each, READERS))
        hooks += [reader.register_forward_pre_hook(tap.read) for reader in readers]
    try:
        yield tap
    finally:
        for hook in hooks:
            hook.remove()


def _in_order_of_execution(model: nn.Module, sample: Tensor) -> list[nn.Module]:
    """The layers with weights, as they run; a module may list them in another order."""
    executed: list[nn.Module] = []
    layers = [each for each in model.modules() if isinstance(each, WITH_WEIGHTS)]
    hooks = [each.register_forward_pre_hook(lambda module, _: executed.append(module)) for each in layers]
    try:
        model(sample)
    finally:
        for hook in hooks:
            hook.remove()
    if not executed:
        raise UserError(f"{type(model).__name__}: runs no convolution and no linear layer; pass a network with one")
    return executed


def _require_enough(images: int, count: int) -> None:
    if not 1 <= count < images:
        raise UserError(f"{count} neighbours: cannot be found among {images:,} images; ask for 1 to {images - 1}")
