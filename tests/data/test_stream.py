"""Images on disk train, and are judged, exactly as if they were on the device."""

import json
import os
import signal
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from conftest import small_dataset, small_run
from nofe.data import list_images
from nofe.data.batches import Augmentation, Batches, DeviceImages, EpochPlan, pixel_mean
from nofe.data.dataset import Dataset, ImageSet
from nofe.data.folder import load_listing
from nofe.data.pack import PackSettings, listing_of_arrays, pack
from nofe.data.pictures import Files, Listing
from nofe.data.stored import StoredImages, leave_out, look_through, open_dataset, stored_dataset
from nofe.data.stream import StreamedBatches, StreamedImages, batches_over, on_device
from nofe.data.survey import survey
from nofe.data.workers import Workers
from nofe.errors import Interrupted, RunError, UserError
from nofe.loading import open_finished
from nofe.pipeline import train
from nofe.training.runtime import make_runtime

CPU = torch.device("cpu")
SIZE = 12
KINDS = [Augmentation(SIZE), Augmentation(SIZE, padding=2, mirror=True), Augmentation(7, mirror=True)]


@pytest.fixture(scope="module")
def listing(tmp_path_factory: pytest.TempPathFactory) -> Listing:
    """Shards of 8 classes of 16 x 16 pixels, 80 and 40 images."""
    out = tmp_path_factory.mktemp("shards")
    arrays = listing_of_arrays(small_dataset(per_class=10, size=16))
    pack(arrays, out, PackSettings(16, shard_megabytes=0.05), Workers(1))
    return list_images(f"shards:{out}")


@pytest.fixture(scope="module")
def resident(listing: Listing) -> Dataset:
    return load_listing(listing, SIZE)


@pytest.fixture(scope="module", params=[1, 3])
def stored(listing: Listing, request: pytest.FixtureRequest) -> Dataset:
    return stored_dataset(listing, SIZE, workers=request.param)


def both(resident: Dataset, stored: Dataset) -> tuple[DeviceImages, StreamedImages]:
    mean = pixel_mean(resident.train)
    streamed = on_device(stored.train, mean, CPU)
    assert isinstance(streamed, StreamedImages)
    return DeviceImages(resident.train, mean, CPU), streamed


def epoch_of(batches: Batches, epoch: int, steps: range) -> list[tuple[torch.Tensor, torch.Tensor]]:
    batches.begin(epoch, steps.start)
    taken = []
    for _ in steps:
        batches.feed()
        taken.append(batches.next())
    return taken


def equal(one: list, other: list) -> bool:
    return all(
        torch.equal(a, b) for pair, again in zip(one, other, strict=True) for a, b in zip(pair, again, strict=True)
    )


@pytest.mark.parametrize("kind", KINDS, ids=repr)
def test_batches_are_those_of_resident_images_bit_for_bit(
    resident: Dataset, stored: Dataset, kind: Augmentation
) -> None:
    """With one worker and with three; over epochs, from any step, and for any rank."""
    on_cpu, on_disk = both(resident, stored)
    for ranks in (1, 2):
        for rank in range(ranks):
            choices = {"batch": 22, "seed": 5, "stage": "base", "rank": rank, "ranks": ranks}
            expected, found = Batches(on_cpu, kind, **choices), batches_over(on_disk, kind, **choices)
            assert isinstance(found, StreamedBatches)
            assert found.steps_per_epoch == expected.steps_per_epoch == 3
            for epoch, steps in ((0, range(3)), (1, range(1)), (1, range(1, 3)), (4, range(2, 3)), (0, range(3))):
                assert equal(epoch_of(found, epoch, steps), epoch_of(expected, epoch, steps)), (ranks, rank, epoch)


def test_images_that_a_plan_mixes_in_are_fed_too(resident: Dataset, stored: Dataset) -> None:
    on_cpu, on_disk = both(resident, stored)
    batches = batches_over(on_disk, KINDS[0], batch=16, seed=0, stage="base", rank=1, ranks=2)
    partner = np.random.default_rng(0).permutation(80)

    drawn = batches.plan

    def mixing(epoch: int) -> EpochPlan:
        plan = drawn(epoch)
        batches._current = SimpleNamespace(order=plan.order, partner=partner)
        return plan

    batches.plan = mixing
    batches.begin(0, 2)
    batches.feed()
    visits = np.arange(2 * 16 + 8, 3 * 16)
    for looked_at in (visits, partner[visits]):
        index = torch.from_numpy(batches._current.order[looked_at])
        assert torch.equal(batches.images.centred(index), on_cpu.centred(index))


def test_an_epoch_can_be_rewound(resident: Dataset, stored: Dataset) -> None:
    _, on_disk = both(resident, stored)
    batches = batches_over(on_disk, KINDS[1], batch=16, seed=0, stage="base")
    first = epoch_of(batches, 2, range(3))
    batches.rewind()
    again = []
    for _ in range(3):
        batches.feed()
        again.append(batches.next())
    assert equal(first, again)


def test_the_place_of_a_batch_does_not_change(resident: Dataset, stored: Dataset) -> None:
    """A captured step reads the same memory at every replay."""
    _, on_disk = both(resident, stored)
    batches = batches_over(on_disk, KINDS[0], batch=16, seed=0, stage="base")
    places = set()
    for epoch in range(2):
        batches.begin(epoch)
        for _ in range(5):
            batches.feed()
            places.add((batches.images.pixels.rows.data_ptr(), batches.images.pixels.row_of.data_ptr()))
    assert len(places) == 1


def test_evaluation_sees_the_same(resident: Dataset, stored: Dataset) -> None:
    on_cpu, on_disk = both(resident, stored)
    parts = torch.randperm(len(on_cpu)).split(33)
    for part in on_disk.ahead(parts):
        assert torch.equal(on_disk.centre_view(part, 7), on_cpu.centre_view(part, 7))
    for _ in on_disk.ahead(parts):  # left in the middle
        break
    assert torch.equal(on_disk.centre_view(parts[1], 7), on_cpu.centre_view(parts[1], 7))
    classes = torch.tensor([1, 6])
    some, expected = on_disk.of_classes(classes), on_cpu.of_classes(classes)
    every = torch.arange(len(expected))
    assert torch.equal(some.labels, expected.labels)
    assert torch.equal(some.centred(every), expected.centred(every))


def test_a_stored_set_is_an_image_set(resident: Dataset, stored: Dataset) -> None:
    np.testing.assert_array_equal(stored.train.images, resident.train.images)
    np.testing.assert_array_equal(stored.train.labels, resident.train.labels)
    one, other = stored.hold_out(0.3, 1), resident.hold_out(0.3, 1)
    for part in ("train", "test"):
        np.testing.assert_array_equal(getattr(one, part).images, getattr(other, part).images)
    assert stored.image_size == SIZE


def test_means(listing: Listing, resident: Dataset, stored: Dataset) -> None:
    """Noted by nofe pack, whether images are resident or not; or the very mean of resident images."""
    noted = pixel_mean(stored.train)
    np.testing.assert_array_equal(pixel_mean(resident.train), noted)
    np.testing.assert_array_equal(pixel_mean(resident.hold_out(0.3, 1).train), noted)
    assert noted.shape == (3, SIZE, SIZE)
    np.testing.assert_allclose(noted.mean(axis=(1, 2)), resident.train.images.mean(axis=(0, 2, 3)), atol=2)
    unknown = StoredImages(listing.train, SIZE, Workers(1, SIZE))
    of_another_origin = ImageSet(resident.train.images, resident.train.labels)
    np.testing.assert_array_equal(pixel_mean(unknown), pixel_mean(of_another_origin))


def test_fingerprints_change_with_the_images(listing: Listing, stored: Dataset) -> None:
    assert stored_dataset(listing, SIZE, 1).fingerprint() == stored.fingerprint()
    assert stored_dataset(listing, SIZE + 1, 1).fingerprint() != stored.fingerprint()
    assert stored.hold_out(0.3, 1).fingerprint() != stored.fingerprint()


def test_the_choice_is_by_size_unless_it_is_made(listing: Listing) -> None:
    def kind(**options: object) -> bool:
        dataset = open_dataset(listing.name, root=Path(), image_size=SIZE, workers=1, **options)
        return isinstance(dataset.train, StoredImages)

    needed = 120 * 3 * SIZE**2
    assert not kind()
    assert not kind(memory=needed)
    assert kind(memory=needed - 1)
    assert kind(memory=needed, stream=True)
    assert not kind(memory=1, stream=False)
    with pytest.raises(UserError, match="glyphs is always in memory"):
        open_dataset("glyphs", root=Path(), image_size=32, stream=True)


def test_a_run_on_disk_is_the_run_in_memory(tmp_path: Path) -> None:
    """Stopped in the middle and gone on with, with another number of workers: the same weights."""
    shards = tmp_path / "shards"
    pack(listing_of_arrays(small_dataset(per_class=8)), shards, PackSettings(32), Workers(2))
    settings = ("experts.epochs=2", "generalist.epochs=2", "base.by=none", f"data.name=shards:{shards}")
    kept, streamed = small_run(*settings), small_run(*settings, "data.stream=true")
    train(streamed, tmp_path / "streamed", runtime=make_runtime("cpu", workers=2))

    stopping = make_runtime("cpu", workers=1)
    stops = stopping.stops_before
    stopping.stops_before = lambda step: (setattr(stopping, "stop_signal", 15), True)[1] if step == 5 else stops(step)
    with pytest.raises(Interrupted):
        train(streamed, tmp_path / "stopped", runtime=stopping)
    train(streamed, tmp_path / "stopped", resume=True, runtime=make_runtime("cpu", workers=3))
    files = ("network.safetensors", "generalist.safetensors", "specialties.json", "predictions.npz")
    for file in files:
        assert (tmp_path / "stopped" / file).read_bytes() == (tmp_path / "streamed" / file).read_bytes()

    # In memory with the mean of the other: it alone would differ, by channel there and by pixel here.
    dataset = open_dataset(f"shards:{shards}", root=tmp_path, image_size=32)
    stored = open_dataset(f"shards:{shards}", root=tmp_path, image_size=32, stream=True)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("nofe.task.pixel_mean", lambda images: pixel_mean(stored.train))
        train(kept, tmp_path / "kept", runtime=make_runtime("cpu"), dataset=dataset)
    for file in files:
        assert (tmp_path / "kept" / file).read_bytes() == (tmp_path / "streamed" / file).read_bytes()


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """A folder of 8 classes, 6 and 3 images of each; two are damaged, one to train on and one to judge by."""
    arrays = listing_of_arrays(small_dataset(per_class=6))
    for part, pictures in (("train", arrays.train), ("val", arrays.test)):
        for number, label in enumerate(pictures.labels.tolist()):
            path = tmp_path / "photos" / part / f"class {label}" / f"{number:03}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(pictures.source(number))
    for path in damaged(tmp_path / "photos"):
        path.write_bytes(path.read_bytes()[:-30])
    return tmp_path / "photos"


def damaged(photos: Path) -> list[Path]:
    return [sorted((photos / part / "class 3").iterdir())[1] for part in ("train", "val")]


def of_photos(photos: Path, workers: int = 1, **options: bool) -> Dataset:
    return open_dataset(f"folder:{photos}", root=photos, image_size=32, workers=workers, **options)


def test_unreadable_images_on_disk_are_found_before_training(photos: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Those to judge by, too; with the mean of the others, and for any number of workers."""
    streamed = of_photos(photos, stream=True)
    one, other = (str(path.relative_to(photos)) for path in damaged(photos))
    told = f"2 of 72 images cannot be read: {one} (truncated); {other} (truncated)"
    with pytest.raises(UserError) as caught:
        look_through(streamed, skip_unreadable=False)
    assert str(caught.value) == f"{photos}: {told}; repair them, or pass --skip-unreadable to leave them out"
    looked = look_through(streamed, skip_unreadable=True)
    assert looked.unreadable == {"train": [one], "test": [other]}
    assert caplog.messages == [f"{photos}: {told}; they are left out"]

    kept, again = leave_out(streamed, looked), of_photos(photos, workers=3, stream=True)
    in_memory = of_photos(photos, skip_unreadable=True)
    for part in ("train", "test"):
        np.testing.assert_array_equal(getattr(kept, part).images, getattr(in_memory, part).images)
        np.testing.assert_array_equal(getattr(kept, part).labels, getattr(in_memory, part).labels)
    assert kept.left_out == in_memory.left_out
    np.testing.assert_array_equal(pixel_mean(kept.train), pixel_mean(in_memory.train))
    np.testing.assert_array_equal(pixel_mean(kept.hold_out(0.3, 0).train), pixel_mean(in_memory.hold_out(0.3, 0).train))
    assert leave_out(again, look_through(again, skip_unreadable=True)).fingerprint() == kept.fingerprint()
    with pytest.raises(UserError, match="training images: 1 of 48 images cannot be read: train/"):
        streamed.train.mean()


def test_copies_are_found_on_disk_as_in_memory(photos: Path) -> None:
    """Beside unreadable images, which have no pixels to be alike in."""
    copied = sorted((photos / "train" / "class 5").iterdir())[2]
    (photos / "val" / "class 6" / "copy.png").write_bytes(copied.read_bytes())
    on_disk = of_photos(photos, stream=True)
    assert on_disk.repeated() is None  # before they are looked through
    on_disk = leave_out(on_disk, look_through(on_disk, skip_unreadable=True))
    in_memory = of_photos(photos, skip_unreadable=True)
    expected = {"val/class 6/copy.png": str(copied.relative_to(photos))}
    assert on_disk.repeated() == in_memory.repeated() == expected
    assert on_disk.hold_out(0.5, 0).repeated() == in_memory.hold_out(0.5, 0).repeated() == {}


def test_images_that_are_all_readable_stay_as_they_are(
    photos: Path, listing: Listing, monkeypatch: pytest.MonkeyPatch
) -> None:
    for path in damaged(photos):
        path.unlink()
    dataset = of_photos(photos, stream=True)
    looked = look_through(dataset, skip_unreadable=False)
    assert looked.unreadable == {}
    assert leave_out(dataset, looked).fingerprint() == dataset.fingerprint()
    monkeypatch.setattr("nofe.data.stored.survey", None)
    assert leave_out(dataset, looked).train.mean() is looked.mean
    assert look_through(stored_dataset(listing, SIZE, 1), skip_unreadable=False).mean is None  # nofe pack has looked


def test_a_survey_ends_at_what_hangs(tmp_path: Path) -> None:
    workers = Workers(1, 32, timeout=0.5)
    with pytest.raises(RunError, match=r"^hangs\.png: not read after 0\.5 seconds"):
        survey(hanging_picture(tmp_path), 32, workers)
    workers.close()


def test_a_run_on_disk_leaves_the_same_images_out_when_it_goes_on(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = ("experts.epochs=1", "generalist.epochs=1", "base.by=none", f"data.name=folder:{photos}")
    refused = small_run(*settings, "data.stream=true")
    config = small_run(*settings, "data.stream=true", "data.skip_unreadable=true")
    with pytest.raises(UserError, match="2 of 72 images cannot be read"):
        train(refused, tmp_path / "refused", runtime=make_runtime("cpu", workers=1))
    assert not (tmp_path / "refused" / "metrics.jsonl").exists()

    in_memory = small_run(*settings, "data.skip_unreadable=true")
    train(in_memory, tmp_path / "kept", runtime=make_runtime("cpu"))
    stopping = make_runtime("cpu", workers=1)
    stops = stopping.stops_before
    stopping.stops_before = lambda step: (setattr(stopping, "stop_signal", 15), True)[1] if step == 1 else stops(step)
    with pytest.raises(Interrupted):
        train(config, tmp_path / "stopped", runtime=stopping)
    one, other = (str(path.relative_to(photos)) for path in damaged(photos))
    noted = json.loads((tmp_path / "stopped" / "environment.json").read_bytes())["data"]["unreadable"]
    assert noted == {"train": [one], "test": [other]}
    monkeypatch.setattr("nofe.run_images.look_through", None)  # not looked for again
    train(config, tmp_path / "stopped", resume=True, runtime=make_runtime("cpu", workers=2))
    for file in ("network.safetensors", "predictions.npz"):
        assert (tmp_path / "stopped" / file).read_bytes() == (tmp_path / "kept" / file).read_bytes()
    assert len(open_finished(tmp_path / "stopped").test_images(make_runtime("cpu", workers=1))) == 23


def hanging_picture(tmp_path: Path) -> Files:
    """The third of five is a pipe into which nobody writes."""
    os.mkfifo(tmp_path / "hangs.png")
    content = listing_of_arrays(small_dataset(per_class=2)).train.source(0)
    names = ["0.png", "1.png", "hangs.png", "3.png", "4.png"]
    for name in names:
        if name != "hangs.png":
            (tmp_path / name).write_bytes(content)
    return Files([tmp_path / name for name in names], [0] * 5, tmp_path)


def test_what_hangs_is_named(tmp_path: Path) -> None:
    workers = Workers(1, 32, timeout=0.5)
    pictures = hanging_picture(tmp_path)
    out = np.zeros((5, 3, 32, 32), dtype=np.uint8)
    began = time.monotonic()
    with pytest.raises(RunError, match=r"^hangs\.png: not read after 0\.5 seconds"):
        workers.decode_into(pictures, np.arange(5), out).wait()
    assert time.monotonic() - began < 10
    workers.decode_into(pictures, np.array([0, 1]), out[:2]).wait()  # by a worker in its place
    assert out[:2].any()
    workers.close()


def test_signals_pass_workers_by_and_a_killed_one_is_named(tmp_path: Path) -> None:
    workers = Workers(1, 32, timeout=20)
    pictures = hanging_picture(tmp_path)
    out = np.zeros((1, 3, 32, 32), dtype=np.uint8)
    workers.decode_into(pictures, np.array([0]), out).wait()
    [worker] = workers._every
    for number in (signal.SIGTERM, signal.SIGINT):
        os.kill(worker._process.pid, number)
    assert os.getpgid(worker._process.pid) != os.getpgid(0)
    workers.decode_into(pictures, np.array([1]), out).wait()
    pending = workers.decode_into(pictures, np.array([2]), out)
    time.sleep(0.2)
    os.kill(worker._process.pid, signal.SIGKILL)
    with pytest.raises(RunError, match=r"^hangs\.png: the worker process that read it ended \(signal 9\)"):
        pending.wait()
    workers.close()


def test_unreadable_images_are_named(tmp_path: Path) -> None:
    (tmp_path / "broken.jpg").write_bytes(b"no picture")
    pictures = Files([tmp_path / "broken.jpg"], [0], tmp_path)
    workers = Workers(1, 32)
    with pytest.raises(UserError, match=r"^broken\.jpg: cannot be read as an image \(not JPEG.*nofe pack"):
        workers.decode_into(pictures, np.array([0]), np.zeros((1, 3, 32, 32), dtype=np.uint8)).wait()
    workers.close()
    with pytest.raises(UserError, match="--workers -1: out of range"):
        Workers(-1)
