"""HD-CNN: its coarse categories, its averaging, its start, its loss, and a small one from beginning to end."""

import copy
import dataclasses
import json
from collections import OrderedDict
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch import Tensor, nn

from conftest import small_dataset
from nofe import pipeline, runs
from nofe.architectures import ARCHITECTURES, Architecture, Classifier, architecture_named, parameter_count
from nofe.architectures.caffe import convolution, max_pool, multipliers_of, xavier
from nofe.architectures.nin import NIN_C100
from nofe.config import RunConfig, to_json, with_settings
from nofe.data.batches import Augmentation, DeviceImages, pixel_mean
from nofe.errors import Interrupted, UserError
from nofe.evaluation import accuracy, mean_probabilities
from nofe.experiments import hdcnn, measures, reproduce
from nofe.experiments.estimates import HDCNN_SECONDS_AN_EPOCH
from nofe.experiments.hdcnn import HDCNNConfig, assemble, open_hdcnn, train_hdcnn
from nofe.experiments.hdcnn_network import (
    HDCNN,
    CoarseCategories,
    Joint,
    JointObjective,
    cut,
    fine_component,
    inconsistency,
    overlapping_categories,
    probabilistic_average,
)
from nofe.experiments.keys import keys_of, keys_of_experiment
from nofe.experiments.tables import TABLES
from nofe.recipes import default_run
from nofe.runs import Run
from nofe.specialties import Specialties, random_balanced, spectral
from nofe.training.recipe import Recipe
from nofe.training.runtime import Runtime

CPU = torch.device("cpu")
RUNTIME = Runtime(CPU)


# Coarse categories


def random_categories(classes: int, count: int, rng: np.random.Generator) -> CoarseCategories:
    members = rng.random((count, classes)) < 0.3
    members[random_balanced(classes, count, rng).specialty_of_class, np.arange(classes)] = True
    return CoarseCategories(members)


@given(data=st.data(), classes=st.integers(2, 12), gamma=st.floats(0.5, 20), seed=st.integers(0, 1000))
def test_categories_cover_every_class_and_obey_the_threshold(
    data: st.DataObject, classes: int, gamma: float, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    count = data.draw(st.integers(1, classes))
    disjoint = random_balanced(classes, count, rng)
    said = rng.dirichlet(np.full(classes, 0.3), size=classes)  # (C, C)
    found = overlapping_categories(disjoint, said, gamma)
    assert found.members.any(axis=0).all()
    for j in range(classes):
        for k in range(count):
            own = disjoint.specialty_of_class[j] == k
            likelihood = sum(said[j, c] for c in range(classes) if disjoint.specialty_of_class[c] == k)
            assert found.members[k, j] == (own or likelihood >= 1 / (gamma * count))


def test_planted_blocks_come_back() -> None:
    """Three blocks of classes that are taken for each other: they are the categories, and nothing joins them."""
    block = np.array([0, 1, 2, 1, 0, 2, 0, 1, 2])
    same = block[:, None] == block
    confusion = np.where(np.eye(9, dtype=bool), 50, np.where(same, 20, 1))
    disjoint = spectral(confusion, 3, np.random.default_rng(0))
    found = overlapping_categories(disjoint, confusion / confusion.sum(1, keepdims=True), gamma=1)
    planted = {tuple(np.flatnonzero(block == b)) for b in range(3)}
    assert {tuple(found.classes_of(k)) for k in range(3)} == planted


def test_a_class_between_two_blocks_joins_both() -> None:
    disjoint = Specialties([0, 0, 0, 1, 1, 1])
    said = np.full((6, 6), 0.0)
    said[:3, :3] = said[3:, 3:] = 1 / 3
    said[2] = [0.2, 0.2, 0.5, 0.1, 0, 0]  # a tenth of it goes to the other block
    assert overlapping_categories(disjoint, said, gamma=5).sizes.tolist() == [3, 4]  # 0.1 is just enough
    assert overlapping_categories(disjoint, said, gamma=4).sizes.tolist() == [3, 3]


def test_shares_count_an_image_for_each_category_of_its_class() -> None:
    categories = CoarseCategories(np.array([[True, True, False], [False, True, True]]))
    labels = np.array([0, 0, 0, 1, 2, 2])
    np.testing.assert_allclose(categories.shares(labels), [4 / 7, 3 / 7])


def test_categories_through_json() -> None:
    categories = random_categories(9, 4, np.random.default_rng(0))
    described = categories.to_json([f"c{c}" for c in range(9)])
    np.testing.assert_array_equal(CoarseCategories.from_json(described).members, categories.members)
    assert described["categories"][1]["class_names"] == [f"c{c}" for c in categories.classes_of(1)]


def test_categories_that_cannot_be() -> None:
    with pytest.raises(UserError, match="class 1 is in none"):
        CoarseCategories(np.array([[True, False]]))
    with pytest.raises(UserError, match="one has no class"):
        CoarseCategories(np.array([[True, True], [False, False]]))
    with pytest.raises(UserError, match="a row and a column for each class"):
        overlapping_categories(Specialties([0, 1]), np.zeros((2, 3)), 5)


def test_mean_probabilities_are_those_of_a_literal_loop() -> None:
    images = random_images(30, classes=3)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(3 * 8 * 8, 4)).eval()
    with torch.no_grad():
        model[1].weight *= 0.01
        said = model(images.centred(torch.arange(30))).softmax(1).double().numpy()
    found = mean_probabilities(model, images, 8, 4, RUNTIME)
    for c in range(3):
        np.testing.assert_allclose(found[c], said[images.labels.numpy() == c].mean(axis=0), rtol=1e-6)
    assert found[3].tolist() == [0, 0, 0, 0]  # no image has it


def random_images(count: int, classes: int, size: int = 8) -> DeviceImages:
    from nofe.data import ImageSet

    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 256, size=(count, 3, size, size), dtype=np.uint8)
    images = ImageSet(pixels, np.arange(count, dtype=np.int64) % classes)
    return DeviceImages(images, pixel_mean(images), CPU)


# The network


def reduced_nin(inputs: int = 32) -> Architecture:
    """NIN's layers by name, narrow, with a filler that learns in a few steps."""
    layer = partial(convolution, filler=xavier, rate=(1, 2), decay=(1, 0))

    def trunk() -> nn.Sequential:
        return nn.Sequential(
            OrderedDict(
                conv1=layer(3, 16, 5, padding=2, stride=2),
                relu_conv1=nn.ReLU(),
                cccp1=layer(16, 16, 1),
                relu_cccp1=nn.ReLU(),
                pool1=max_pool(3, 2),
                drop1=nn.Dropout(0.1),
                conv2=layer(16, 16, 3, padding=1),
                relu_conv2=nn.ReLU(),
                pool2=max_pool(3, 2),
                drop2=nn.Dropout(0.1),
                conv3=layer(16, 16, 3, padding=1),
                relu_conv3=nn.ReLU(),
            )
        )

    def head(outputs: int) -> nn.Sequential:
        return nn.Sequential(
            OrderedDict(cccp6=layer(16, outputs, 1), pool3=nn.AdaptiveAvgPool2d(1), flatten=nn.Flatten())
        )

    return Architecture("reduced-nin", "for tests", 32, inputs, trunk, head, head)


def building_block(classes: int, seed: int = 0) -> Classifier:
    torch.manual_seed(seed)
    return reduced_nin().classifier(classes)


def plain_average(
    coarse: NDArray[np.float64], fine: list[NDArray[np.float64]], categories: CoarseCategories
) -> NDArray[np.float64]:
    """p(y | x) = sum_k B_k p_k(y | x) / sum_k B_k, image by image and class by class; `coarse` over the classes."""
    images = len(coarse)
    result = np.zeros((images, categories.classes))
    for i in range(images):
        weight = [sum(coarse[i, c] for c in categories.classes_of(k)) for k in range(categories.count)]
        for k in range(categories.count):
            scores = np.exp(fine[k][i] - fine[k][i].max())
            for place, c in enumerate(categories.classes_of(k)):
                result[i, c] += weight[k] * scores[place] / scores.sum() / sum(weight)
    return result


@pytest.mark.parametrize("as_one", [False, True], ids=["one after another", "as one"])
@pytest.mark.parametrize(("classes", "count", "seed"), [(6, 2, 0), (9, 4, 1), (5, 5, 2), (3, 1, 3)])
def test_averaging_is_that_of_a_plain_loop(classes: int, count: int, seed: int, as_one: bool) -> None:
    categories = random_categories(classes, count, np.random.default_rng(seed))
    network = assemble(building_block(classes), categories, "drop1").double().eval()
    with torch.no_grad():  # components that differ
        for parameter in network.fine.parameters():
            parameter += 0.1 * torch.randn_like(parameter)
        images = torch.randn(7, 3, 32, 32, dtype=torch.float64)
        features = network.shared(images)
        coarse = network.coarse(features).softmax(1).numpy()
        fine = [component(features).numpy() for component in network.fine]  # type: ignore[union-attr]
        if as_one:
            network.run_as_one()
            assert not isinstance(network.fine, nn.ModuleList)
        found = network(images).exp()
        network.run_apart()
        torch.testing.assert_close(network(images).exp(), found)
    torch.testing.assert_close(found.sum(1), torch.ones(7))
    np.testing.assert_allclose(found.numpy(), plain_average(coarse, fine, categories), rtol=1e-4)


@given(seed=st.integers(0, 1000), count=st.integers(1, 5), classes=st.integers(1, 6))
def test_probabilities_sum_to_one_whatever_the_weights(seed: int, count: int, classes: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    log_coarse = 5 * torch.randn(4, count, generator=generator)  # not normalised: the average divides by their sum
    log_fine = (5 * torch.randn(4, count, classes, generator=generator)).log_softmax(2)
    torch.testing.assert_close(probabilistic_average(log_coarse, log_fine).exp().sum(1), torch.ones(4))


def test_extreme_outputs_stay_finite_and_have_gradients() -> None:
    categories = random_categories(6, 3, np.random.default_rng(0))
    network = assemble(building_block(6), categories, "drop1")
    images = (1e4 * torch.randn(5, 3, 32, 32)).requires_grad_()
    outputs = Joint(network)(images)
    assert outputs.shape == (5, 6 + 3)
    shares = torch.from_numpy(categories.shares(np.arange(6))).float()
    loss, _ = JointObjective(torch.arange(6), shares, 20.0)(outputs, torch.tensor([0, 1, 2, 3, 4]))
    loss.backward()
    assert torch.isfinite(loss)
    assert all(p.grad is not None and torch.isfinite(p.grad).all() for p in network.parameters())


def test_a_fine_component_starts_as_the_building_block() -> None:
    block = building_block(7).eval()
    images = torch.randn(4, 3, 32, 32)
    expected = block(images)
    shared, rear = cut(block, "drop1")
    classes = np.array([1, 4, 6])
    component = fine_component(rear, classes)
    torch.testing.assert_close(component(shared(images)), expected[:, classes])
    torch.testing.assert_close(rear(shared(images)), expected)  # the whole is what it was
    with torch.no_grad():
        component[0].weight += 1  # and no part of it is the component's
    torch.testing.assert_close(rear(shared(images)), expected)
    of_whole, of_component = multipliers_of(rear), multipliers_of(component)
    assert of_component == of_whole  # rates and decays, too


def test_with_disjoint_categories_hd_cnn_starts_as_the_building_block() -> None:
    """The fine components only say anew, within a category, what the coarse one said."""
    block = building_block(6).eval()
    images = torch.randn(4, 3, 32, 32)
    expected = block(images).log_softmax(1)
    members = np.array([[True] * 4 + [False] * 2, [False] * 4 + [True] * 2])
    network = assemble(block, CoarseCategories(members), "drop1").eval()
    torch.testing.assert_close(network(images), expected)


def test_on_the_papers_nin_the_layers_are_those_of_hd_cnn() -> None:
    """conv1 to pool1 are shared, and with nine fine components there are the 9.2M parameters that the paper quotes."""
    with torch.device("meta"):
        block = NIN_C100.classifier(100)
    shared, rear = cut(block, HDCNNConfig().shared_until)
    assert [name for name, _ in shared.named_children()][-2:] == ["pool1", "drop1"]
    assert next(rear.named_children())[0] == "conv2"
    sizes = [25, 51, 80, 80, 36, 25, 27, 27, 43]  # of the authors' release
    last = parameter_count(rear.get_submodule("cccp6"))
    fine = sum(parameter_count(rear) - last + size * last // 100 for size in sizes)
    assert round((parameter_count(block) + fine) / 1e6, 1) == 9.2


def test_where_it_cannot_be_cut() -> None:
    with pytest.raises(UserError, match="shared_until=pool7: the trunk has no such layer; choose from conv1, relu"):
        cut(building_block(4), "pool7")
    with_batch_norm = architecture_named("small").classifier(4)
    with pytest.raises(UserError, match="batch norm in the shared layers"):
        cut(with_batch_norm, "pool1")


# The loss


def test_the_consistency_term_is_zero_at_the_target_and_only_there() -> None:
    shares = torch.tensor([0.5, 0.3, 0.2])
    assert inconsistency(shares.repeat(8, 1), shares) == pytest.approx(0, abs=1e-12)
    one_each = torch.eye(3).repeat_interleave(
        torch.tensor([5, 3, 2]), dim=0
    )  # certain of each image, right on the whole
    assert inconsistency(one_each, shares) == pytest.approx(0, abs=1e-12)
    off = torch.tensor([[0.6, 0.3, 0.1]])
    assert inconsistency(off, shares) == pytest.approx((0.1**2 + 0.1**2) / 2)


def test_the_joint_loss_by_hand() -> None:
    probabilities = torch.tensor([[0.7, 0.2, 0.1], [0.1, 0.1, 0.8]])
    coarse = torch.tensor([[0.9, 0.1], [0.5, 0.5]])
    outputs = torch.cat([probabilities.log(), coarse.log()], 1)
    objective = JointObjective(torch.arange(3), torch.tensor([0.5, 0.5]), 20.0)
    loss, recognised = objective(outputs, torch.tensor([0, 1]))
    assert recognised == 1
    assert float(loss) == pytest.approx(-(np.log(0.7) + np.log(0.1)) / 2 + 20 / 2 * (0.2**2 + 0.2**2), rel=1e-5)


# From beginning to end


def short(epochs: int, rate: float, batch: int = 16) -> Recipe:
    return Recipe(epochs=epochs, batch=batch, rate=rate, weight_decay=1e-4, augmentation=Augmentation(32))


def test_a_result_from_before_a_field_was_added_still_counts() -> None:
    experiment = next(row.experiment for row in TABLES["hd-cnn"].rows if row.experiment.hdcnn)
    stored = json.loads(json.dumps(dataclasses.asdict(HDCNNConfig())))
    result = {
        "config": json.loads(json.dumps(to_json(experiment.seeded(0)))),
        "networks": {"hd-cnn": {}},
        "summary": {"config": {"hdcnn": stored}},
    }
    assert keys_of(result) == keys_of_experiment(experiment, 0)
    del stored["building_block"]["ema"]
    assert keys_of(result) == keys_of_experiment(experiment, 0)
    stored["building_block"]["rate"] = 0.5
    assert keys_of(result) != keys_of_experiment(experiment, 0)
    stored["from a later version"] = 1
    assert keys_of(result) == {}


SHORT = HDCNNConfig(
    coarse_categories=3,
    gamma=1,
    held_out=0.25,
    confusion=short(4, 0.002),
    building_block=short(4, 0.002),
    fine=short(2, 0.0005),
    joint=short(2, 0.0005),
)


def train_short(folder: Path, config: HDCNNConfig = SHORT, **options: Any) -> dict[str, Any]:
    options = {"architecture": reduced_nin(), "runtime": Runtime(CPU)} | options
    return train_hdcnn(config, small_dataset(per_class=24), folder, **options)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    folder = tmp_path_factory.mktemp("hdcnn") / "run"
    return folder, train_short(folder)


def test_a_small_one_beats_chance_and_says_what_it_is(finished: tuple[Path, dict[str, Any]]) -> None:
    folder, summary = finished
    assert summary["top_1"] > 3 / 8  # chance is 1 / 8
    assert summary["top_5"] >= summary["top_1"]
    assert len(summary["coarse_categories"]) <= 3
    assert sum(summary["coarse_categories"]) >= 8
    assert set(summary["seconds"]) == {"confusion", "building-block", "fine", "joint"}
    network = open_hdcnn(folder, reduced_nin())
    assert summary["parameters"] == parameter_count(network)
    dataset = small_dataset(per_class=24)
    test = DeviceImages(dataset.test, pixel_mean(dataset.train), CPU)
    assert accuracy(network, test, 32, RUNTIME) == summary["top_1"]


def test_its_stages_are_those_that_are_planned_for(finished: tuple[Path, dict[str, Any]]) -> None:
    stages = {line["stage"].partition("-")[0] for line in Run(finished[0]).metrics()}
    assert stages - {"building"} == HDCNN_SECONDS_AN_EPOCH.keys()


def test_the_test_images_decide_nothing(finished: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    """With other test images, even of one class alone, every weight comes out the same."""
    folder, _ = finished
    dataset = small_dataset(per_class=24)
    other = dataclasses.replace(dataset, test=dataset.train.subset(dataset.train.labels == 3))
    train_hdcnn(SHORT, other, tmp_path / "run", architecture=reduced_nin(), runtime=Runtime(CPU))
    for name in (hdcnn.CATEGORIES, hdcnn.NETWORK):
        assert Run(folder).read(name) == Run(tmp_path / "run").read(name)


def test_fine_components_leave_the_shared_layers_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before: dict[str, Tensor] = {}
    after: dict[str, Tensor] = {}
    assembled, tune = hdcnn.assemble, hdcnn.fine_tune

    def assemble_and_look(*arguments: Any) -> HDCNN:
        network = assembled(*arguments)
        before.update(copy.deepcopy(network.state_dict()))
        return network

    def look_and_tune(task: Any, network: HDCNN, categories: CoarseCategories) -> None:
        after.update(copy.deepcopy(network.state_dict()))
        assert all(parameter.requires_grad for parameter in network.parameters())
        tune(task, network, categories)

    monkeypatch.setattr(hdcnn, "assemble", assemble_and_look)
    monkeypatch.setattr(hdcnn, "fine_tune", look_and_tune)
    train_short(tmp_path / "run")
    changed = {name.split(".")[0] for name in before if not torch.equal(before[name], after[name])}
    assert changed == {"fine"}


# In the network for the confusion, the building block, two fine components, and fine-tuning.
@pytest.mark.parametrize("steps", [3, 40, 90, 112, 125])
def test_stopped_anywhere_and_resumed_it_ends_the_same(
    steps: int, finished: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    class Stopping:
        """Asks to stop after some steps."""

        def __init__(self, runtime: Runtime) -> None:
            self.runtime, self.left = runtime, steps

        def advance(self, state: Any, images: int) -> None:
            self.left -= 1
            if self.left == 0:
                self.runtime.stop_signal = 15

        def __getattr__(self, name: str) -> Any:
            return lambda *_: None

    folder, summary = finished
    runtime = Runtime(CPU)
    with pytest.raises(Interrupted):
        train_short(tmp_path / "run", runtime=runtime, progress=Stopping(runtime))
    resumed = train_short(tmp_path / "run", resume=True)
    assert resumed["top_1"] == summary["top_1"]
    assert Run(folder).read(hdcnn.NETWORK) == Run(tmp_path / "run").read(hdcnn.NETWORK)
    again = train_short(tmp_path / "run", resume=True)
    assert again == resumed  # nothing is trained again


def test_the_base_of_a_run_serves_as_building_block(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is trained once, for Table 3 and for HD-CNN: weights and figures are those of the run."""
    monkeypatch.setitem(ARCHITECTURES, "nin-c100", reduced_nin())
    dataset = small_dataset(per_class=24)
    config = with_settings(default_run("nin-c100"), SHORT_BASE)
    pipeline.train(config, tmp_path / "base", dataset=dataset, runtime=Runtime(CPU))
    taking = taking_base_of(config)
    options = {"seed": 3, "run_of_base": tmp_path / "base"}
    summary = train_short(tmp_path / "run", taking, **options)
    base = Run(tmp_path / "base")
    assert Run(tmp_path / "run").read(hdcnn.BUILDING_BLOCK) == base.read(runs.PAPER_BASE)
    assert summary["building_block"] == {"top_1": base.metrics()[-1]["test_accuracy"], "epochs": 2}
    assert summary["seconds"]["building-block"] == round(sum(line["seconds"] for line in base.metrics()), 1)
    assert train_short(tmp_path / "run", taking, resume=True, **options) == summary
    for wrong in ({"seed": 4}, {"config": dataclasses.replace(SHORT, building_block=short(2, 0.1))}):
        with pytest.raises(UserError, match="its base has another recipe or seed"):
            train_short(tmp_path / " ".join(wrong), **{"config": taking, **options, **wrong})
    other = dataclasses.replace(dataset, test=dataset.train)
    with pytest.raises(UserError, match="was trained on other images"):
        train_hdcnn(taking, other, tmp_path / "o", runtime=Runtime(CPU), architecture=reduced_nin(), **options)


SHORT_BASE = ["until=base", "base.by=paper", "base.paper.epochs=2", "base.paper.batch=32", "seed=3"]
SHORT_BASE += ["specialties.count=2", "base.paper.augmentation.crop=32"]


def taking_base_of(config: RunConfig) -> HDCNNConfig:
    assert config.base.paper is not None
    return dataclasses.replace(SHORT, building_block=config.base.paper)


def test_reproducing_it_files_its_base_as_a_row_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ARCHITECTURES, "nin-c100", reduced_nin())
    experiment = next(row.experiment for row in TABLES["hd-cnn"].rows if row.experiment.hdcnn)
    base = reproduce.base_of_hdcnn(experiment)
    assert base.name == "nin-c100-base-paper"
    config = with_settings(experiment.config, SHORT_BASE)
    short_base = dataclasses.replace(base, config=config)
    monkeypatch.setattr(reproduce, "base_of_hdcnn", lambda _: short_base)
    monkeypatch.setattr(reproduce, "_dataset", lambda _: small_dataset(per_class=24))

    def shorter(_: HDCNNConfig, *arguments: Any, **options: Any) -> dict[str, Any]:
        return train_hdcnn(taking_base_of(config), *arguments, architecture=reduced_nin(), **options)

    monkeypatch.setattr(hdcnn, "train_hdcnn", shorter)
    workshop = reproduce.Workshop(tmp_path / "runs", tmp_path / "results", tmp_path, "cpu")
    job = reproduce.Job(dataclasses.replace(experiment, config=config), 3)
    assert job.keys() >= reproduce.Job(short_base, 3).keys(), "they do not train it at the same time"
    reproduce.run_job(job, workshop)
    of_base, of_hdcnn = (
        json.loads(next((tmp_path / "results").rglob(f"{name}-seed3.json")).read_text())
        for name in (base.name, experiment.name)
    )
    assert of_hdcnn["summary"]["building_block"]["top_1"] == of_base["networks"]["base-paper"]["accuracy"]
    reproduce.run_job(job, workshop)  # nothing is left to train
    monkeypatch.setattr(measures, "open_hdcnn", partial(open_hdcnn, architecture=reduced_nin()))
    monkeypatch.setattr(measures, "EXPERTS_OF_PAPER", 2)
    networks, _ = measures.networks_to_time([tmp_path / "runs" / job.name])
    assert networks.keys() == {"hd-cnn", "base", "experts"}, "what it is timed beside is there in any case"


def test_another_configuration_is_refused(finished: tuple[Path, dict[str, Any]]) -> None:
    folder, _ = finished
    with pytest.raises(UserError, match="was started with another hdcnn and seed; resume it with its own"):
        train_short(folder, dataclasses.replace(SHORT, gamma=5), resume=True, seed=1)
    with pytest.raises(UserError, match="holds a run already"):
        train_short(folder)


def test_configurations_that_cannot_be(tmp_path: Path) -> None:
    for wrong in ({"coarse_categories": 1}, {"gamma": 0}, {"consistency": -1}, {"held_out": 0}, {"held_out": 1}):
        with pytest.raises(UserError):
            HDCNNConfig(**wrong)
    with pytest.raises(UserError, match="coarse_categories=9: more than the 8 classes of small; use 2 to 8"):
        train_short(tmp_path / "run", dataclasses.replace(SHORT, coarse_categories=9))
    assert not (tmp_path / "run" / runs.CONFIG).exists()
