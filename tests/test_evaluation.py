"""Figures of a trained network, against counting by hand."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from conftest import small_dataset
from nofe.architectures import architecture_named
from nofe.data.batches import DeviceImages, pixel_mean, ten_crops
from nofe.errors import UserError
from nofe.evaluation import Predictions, accuracy, by_specialty, count_confusion, logits_of, predict
from nofe.specialties import Specialties
from nofe.training.runtime import Runtime

CPU = torch.device("cpu")
RUNTIME = Runtime(CPU)


def predictions(labels: list[int], first: list[int], classes: int = 4) -> Predictions:
    """Only the first column matters to most figures; the others are the remaining classes in order."""
    order = [[c, *(other for other in range(classes) if other != c)][:5] for c in first]
    return Predictions(np.array(labels), np.array(order), np.zeros((len(labels), len(order[0])), dtype=np.float32))


def test_a_case_made_by_hand() -> None:
    """Specialties {0, 2} and {1, 3}; eight images."""
    specialties = Specialties([0, 1, 0, 1])
    #                         of specialty 0        of specialty 1
    made = predictions(labels=[0, 0, 2, 2, 2, 1, 3, 3], first=[0, 2, 2, 1, 3, 1, 1, 0])
    first, second = by_specialty(made, specialties)
    assert (first.specialty, first.classes, first.images) == (0, 2, 5)
    assert (first.accuracy, first.confused_inside, first.confused_across) == (2 / 5, 1 / 5, 2 / 5)
    assert (second.specialty, second.classes, second.images) == (1, 2, 3)
    assert (second.accuracy, second.confused_inside, second.confused_across) == (1 / 3, 1 / 3, 1 / 3)
    assert made.top(1) == 3 / 8


def test_a_specialty_without_images() -> None:
    made = predictions(labels=[0, 0], first=[0, 1])
    _, empty = by_specialty(made, Specialties([0, 0, 1, 1]))
    assert (empty.images, empty.accuracy, empty.confused_inside, empty.confused_across) == (0, 0, 0, 0)


@given(data=st.data(), classes=st.integers(2, 9), images=st.integers(1, 40))
def test_right_inside_and_across_are_all_there_is(data: st.DataObject, classes: int, images: int) -> None:
    several = st.lists(st.integers(0, classes - 1), min_size=images, max_size=images)
    labels, first = data.draw(several), data.draw(several)
    count = data.draw(st.integers(1, classes))
    groups = data.draw(st.permutations(range(classes)))
    specialties = Specialties(np.array(groups) % count)
    made = predictions(labels, first, classes)
    figures = by_specialty(made, specialties)
    assert sum(figure.images for figure in figures) == images
    for figure in figures:
        total = figure.accuracy + figure.confused_inside + figure.confused_across
        assert total == pytest.approx(1 if figure.images else 0)
    right = sum(figure.accuracy * figure.images for figure in figures)
    assert right / images == pytest.approx(made.top(1))
    # Literally.
    of = specialties.specialty_of_class
    for figure in figures:
        inside = sum(of[y] == of[p] == figure.specialty and y != p for y, p in zip(labels, first, strict=True))
        across = sum(of[y] == figure.specialty != of[p] for y, p in zip(labels, first, strict=True))
        assert round(figure.confused_inside * figure.images) == inside
        assert round(figure.confused_across * figure.images) == across


def test_top_k_counts_the_first_k() -> None:
    order = np.array([[3, 1, 0, 2, 4], [0, 1, 2, 3, 4], [5, 4, 3, 2, 1]])
    made = Predictions(np.array([0, 4, 0]), order, np.zeros((3, 5), dtype=np.float32))
    assert [made.top(k) for k in (1, 2, 3, 4, 5)] == pytest.approx([0, 0, 1 / 3, 1 / 3, 2 / 3])


class Fixed(nn.Module):
    """Answers with given logits, whatever the image; the first pixel of an image says which."""

    def __init__(self, table: Tensor) -> None:
        super().__init__()
        self.table = table

    def forward(self, images: Tensor) -> Tensor:
        return self.table[images[:, 0, 0, 0].round().long()]


def numbered(count: int, classes: int) -> DeviceImages:
    """Image i has the value i in every pixel, less no mean."""
    pixels = np.broadcast_to(np.arange(count, dtype=np.uint8)[:, None, None, None], (count, 3, 2, 2)).copy()
    labels = np.random.default_rng(1).integers(classes, size=count)
    return DeviceImages(evaluation_set(pixels, labels), np.zeros((3, 2, 2), dtype=np.float32), CPU)


def evaluation_set(pixels: np.ndarray, labels: np.ndarray):
    from nofe.data import ImageSet

    return ImageSet(pixels, labels)


@pytest.mark.parametrize("batch", [1, 7, 60, 61, 500])
def test_each_image_counts_once_whatever_the_batch(batch: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """61 images: the last batch is smaller, and nothing is padded."""
    monkeypatch.setattr("nofe.frozen.images_at_once", lambda *_: batch)
    table = torch.randn(61, 6, generator=torch.Generator().manual_seed(0))
    model, images = Fixed(table), numbered(61, classes=6)
    labels = images.labels.numpy()
    best = table.argmax(1).numpy()

    seen = torch.cat([logits for logits, _ in logits_of(model, images, 2, RUNTIME)])
    assert torch.equal(seen, table)
    assert accuracy(model, images, 2, RUNTIME) == (best == labels).sum() / 61

    made = predict(model, images, 2, RUNTIME)
    assert made.labels.tolist() == labels.tolist()
    for row in range(61):
        ranked = sorted(range(6), key=lambda c: -table[row, c])
        assert made.classes[row].tolist() == ranked[:5]
    assert made.top(1) == pytest.approx((best == labels).mean())
    np.testing.assert_allclose(made.probabilities, table.softmax(1).sort(descending=True).values[:, :5], rtol=1e-6)


def test_fewer_classes_than_five() -> None:
    made = predict(Fixed(torch.randn(9, 3)), numbered(9, classes=3), 2, RUNTIME)
    assert made.classes.shape == (9, 3)
    assert made.top(5) == 1
    np.testing.assert_allclose(made.probabilities.sum(1), 1, rtol=1e-6)


def test_accuracy_over_other_targets_than_the_classes() -> None:
    table = torch.randn(40, 3, generator=torch.Generator().manual_seed(2))
    images = numbered(40, classes=5)
    target_of_class = torch.tensor([2, 0, 0, 1, 2])
    by_hand = sum(int(table[i].argmax()) == int(target_of_class[images.labels[i]]) for i in range(40))
    assert accuracy(Fixed(table), images, 2, RUNTIME, target_of_class) == by_hand / 40


@pytest.mark.parametrize("batch", [3, 500])
def test_the_confusion_is_that_of_a_literal_loop(batch: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nofe.frozen.images_at_once", lambda *_: batch)
    table = torch.randn(50, 4, generator=torch.Generator().manual_seed(3))
    images = numbered(50, classes=6)
    index = torch.randperm(50, generator=torch.Generator().manual_seed(4))[:31]
    by_hand = np.zeros((6, 4), dtype=np.int64)
    for i in index.tolist():
        by_hand[int(images.labels[i]), int(table[i].argmax())] += 1
    counted = count_confusion(Fixed(table), images, 2, (6, 4), RUNTIME, index)
    np.testing.assert_array_equal(counted, by_hand)
    assert counted.sum() == 31


def test_the_confusion_has_a_column_for_every_output() -> None:
    """Also for the last ones, where nothing is sent to them, and a row for a class that no image has."""
    table = torch.zeros(10, 5)
    table[:, 1] = 1
    counted = count_confusion(Fixed(table), numbered(10, classes=2), 2, (7, 5), RUNTIME, torch.arange(10))
    assert counted.shape == (7, 5)
    assert counted[:, 1].sum() == counted.sum() == 10


@pytest.fixture(scope="module")
def images() -> DeviceImages:
    dataset = small_dataset(per_class=4)
    return DeviceImages(dataset.train, pixel_mean(dataset.train), CPU)


@pytest.mark.parametrize("name", ["small", "vgg11-c100"])  # batch norm; dropout
@pytest.mark.parametrize("training", [True, False])
def test_evaluation_changes_nothing_and_is_in_evaluation_mode(name: str, training: bool, images: DeviceImages) -> None:
    torch.manual_seed(0)
    model = architecture_named(name).classifier(8).train(training)
    before = {key: tensor.clone() for key, tensor in model.state_dict().items()}
    modes = [module.training for module in model.modules()]
    generator = torch.get_rng_state()

    one, again = (predict(model, images, 32, RUNTIME) for _ in range(2))
    accuracy(model, images, 32, RUNTIME)
    count_confusion(model, images, 32, (8, 8), RUNTIME, torch.arange(len(images)))

    assert [module.training for module in model.modules()] == modes
    assert torch.equal(torch.get_rng_state(), generator)
    for key, tensor in model.state_dict().items():
        assert torch.equal(tensor, before[key]), key
    np.testing.assert_array_equal(one.probabilities, again.probabilities)
    model.eval()
    with torch.no_grad():
        expected = model(images.centre_view(torch.arange(len(images)), 32)).softmax(1).sort(descending=True).values
    np.testing.assert_allclose(one.probabilities, expected[:, :5], rtol=1e-4)


def test_training_can_go_on_after_an_evaluation(images: DeviceImages) -> None:
    """No tensor made for inference is left in the model."""
    torch.manual_seed(0)
    model = architecture_named("small").classifier(8).train()
    accuracy(model, images, 32, RUNTIME)
    assert not torch.is_inference_mode_enabled()
    model(images.centre_view(torch.arange(4), 32)).sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


def test_ten_crops_are_corners_and_centre_and_their_mirrors() -> None:
    """Each view is found in the image by its place."""
    image = torch.arange(6 * 6, dtype=torch.float32).reshape(1, 1, 6, 6).expand(1, 3, 6, 6)
    views = ten_crops(image, 4)
    assert views.shape == (10, 1, 3, 4, 4)
    assert views[:5, 0, 0, 0, 0].tolist() == [0, 2, 12, 14, 7], "top left pixels: four corners, then the centre"
    assert torch.equal(views[5:], views[:5].flip(-1))


def test_the_prediction_by_ten_crops_is_the_mean_of_ten() -> None:
    torch.manual_seed(0)
    dataset = small_dataset()
    test = DeviceImages(dataset.test, pixel_mean(dataset.train), CPU)
    base = architecture_named("resnet56-c100")
    model = nn.Sequential(nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(12, dataset.classes)).eval()
    found = predict(model, test, base.input_size, RUNTIME, crops=10)
    with torch.no_grad():
        views = ten_crops(test.centred(torch.arange(len(test))), base.input_size)
        mean = torch.stack([model(view).softmax(1) for view in views]).mean(0)
    expected = mean.topk(min(5, dataset.classes))
    assert (found.classes == expected.indices.numpy()).all()
    np.testing.assert_allclose(found.probabilities, expected.values.numpy(), rtol=1e-5)
    with pytest.raises(UserError, match="--crops 3: there are 1, the centre, and 10"):
        predict(model, test, base.input_size, RUNTIME, crops=3)
