"""Batches of images that stay on disk: workers decode ahead, the device crops, mirrors and subtracts the mean.

What a step sees is what it would see with all images on the device, bit for bit: the plan of an epoch is the same, and
it says long before which images a step needs. Decoded bytes go to pinned memory, from there to the device beside the
step before, and then to one place on the device, where a captured step finds them.
"""

import copy
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nofe.data.batches import Augmentation, Batches, DeviceImages, EpochPlan
from nofe.data.dataset import ImageSet
from nofe.data.stored import StoredImages
from nofe.data.workers import Pending

MAX_AHEAD = 4  # batches
MAX_AHEAD_BYTES = 2 << 30


def on_device(images: ImageSet, mean: NDArray[np.float32], device: torch.device) -> DeviceImages:
    """Images for training and evaluation: all on the device, or on disk if they are kept there."""
    if isinstance(images, StoredImages):
        return StreamedImages(images, mean, device)
    return DeviceImages(images, mean, device)


def batches_over(images: DeviceImages, augmentation: Augmentation, **choices: Any) -> Batches:
    if isinstance(images, StreamedImages):
        return StreamedBatches(images, augmentation, **choices)
    return Batches(images, augmentation, **choices)


class StreamedImages(DeviceImages):
    """A set of images on disk that looks as if it were on the device: `pixels[index]` reads them."""

    def __init__(self, images: StoredImages, mean: NDArray[np.float32], device: torch.device) -> None:
        self.stored = images
        self.labels = torch.from_numpy(images.labels).to(device)
        self.mean = torch.from_numpy(mean).to(device)
        self._set_reader()

    def _set_reader(self) -> None:
        self._reader = _Reader(self.stored, self.labels.device)
        self.pixels = cast(Tensor, self._reader)

    def of_classes(self, classes: Tensor) -> "StreamedImages":
        chosen = torch.isin(self.labels, classes)  # (N,)
        part = copy.copy(self)
        part.stored, part.labels = self.stored.subset(chosen.cpu().numpy()), self.labels[chosen]
        part._set_reader()
        return part

    def ahead(self, parts: Iterable[Tensor]) -> Iterator[Tensor]:
        """The same parts; while one is looked at, the next is read."""
        return self._reader.ahead(parts)


class _Reader:
    """In the place of `pixels`: `reader[index]` reads what `pixels[index]` of a set on the device would give."""

    def __init__(self, stored: StoredImages, device: torch.device) -> None:
        self._stored, self._device = stored, device
        self.shape = stored.shape
        self._coming: deque[tuple[Tensor, NDArray[np.uint8], Pending]] = deque()

    def __getitem__(self, index: Tensor) -> Tensor:
        if self._coming and self._coming[0][0] is index:
            _, pixels, pending = self._coming.popleft()
        else:
            pixels, pending = self._read(index)
        pending.wait()
        return torch.from_numpy(pixels).to(self._device)

    def ahead(self, parts: Iterable[Tensor]) -> Iterator[Tensor]:
        self._drop()  # what was read ahead earlier and never asked for
        before: Tensor | None = None
        try:
            for part in parts:
                self._coming.append((part, *self._read(part)))
                if before is not None:
                    yield before
                before = part
            if before is not None:
                yield before
        finally:
            self._drop()

    def _read(self, index: Tensor) -> tuple[NDArray[np.uint8], Pending]:
        pixels = np.empty((len(index), *self.shape[1:]), dtype=np.uint8)
        return pixels, self._stored.read_into(index.cpu().numpy(), pixels)

    def _drop(self) -> None:
        while self._coming:
            self._coming.popleft()[2].drop()


class _Fed:
    """The images of one step, at one place on the device, found by their index in the whole set."""

    def __init__(self, rows: int, stored: StoredImages, device: torch.device) -> None:
        self.shape = stored.shape
        self.rows = torch.zeros(rows, *self.shape[1:], dtype=torch.uint8, device=device)
        self.row_of = torch.zeros(len(stored), dtype=torch.int64, device=device)
        self._numbers = torch.arange(rows, device=device)

    def __getitem__(self, index: Tensor) -> Tensor:
        return self.rows[self.row_of[index]]

    def hold(self, index: NDArray[np.int64]) -> None:
        self.row_of[torch.from_numpy(index).to(self.row_of.device)] = self._numbers[: len(index)]


@dataclass(frozen=True)
class _Ahead:
    """A step whose images are on their way."""

    step: int
    index: NDArray[np.int64]
    slot: int
    pending: Pending


class StreamedBatches(Batches):
    """Batches of images on disk. `feed` before every `next`."""

    def __init__(self, images: StreamedImages, augmentation: Augmentation, **choices: Any) -> None:
        self._stored = images.stored
        fed = copy.copy(images)
        super().__init__(fed, augmentation, **choices)
        self._own = self._share.cpu().numpy()  # (B,) places of this rank in a batch
        self._fed: _Fed | None = None
        self._line: deque[_Ahead] = deque()
        self._free: list[int] = []
        self._place = (-1, -1)  # epoch and step that `feed` comes to next
        self._current: EpochPlan | None = None

    def plan(self, epoch: int) -> EpochPlan:
        self._current = super().plan(epoch)
        return self._current

    def begin(self, epoch: int, step: int = 0) -> None:
        super().begin(epoch, step)
        if self._fed is None:
            self._make_room()
        if (epoch, step) != self._place:  # else what is on its way is what is wanted
            self._start_over(epoch, step)

    def rewind(self) -> None:
        super().rewind()
        self._start_over(self._place[0], 0)

    def feed(self) -> None:
        """Have the images of the next step on the device, and the workers busy with later ones."""
        self._fill_line()
        ahead = self._line.popleft()
        ahead.pending.wait()
        assert self._fed is not None
        self._copy(ahead.slot, self._fed.rows)
        self._fed.hold(ahead.index)
        self._place = (self._place[0], ahead.step + 1)
        self._free.append(ahead.slot)  # filled again at the next step, when its bytes have long left

    def _make_room(self) -> None:
        device = self._step.device
        count = len(self._wanted(0))
        depth = max(2, min(MAX_AHEAD, MAX_AHEAD_BYTES // max(count * 3 * self._stored.image_size**2, 1)))
        self._fed = _Fed(count, self._stored, device)
        self.images.pixels = cast(Tensor, self._fed)
        pinned = device.type == "cuda"
        self._host = [torch.empty(self._fed.rows.shape, dtype=torch.uint8, pin_memory=pinned) for _ in range(depth)]
        self._free = list(range(depth))
        if pinned:
            self._aside = torch.cuda.Stream(device)
            self._staging = torch.empty_like(self._fed.rows)
            self._copied = {slot: torch.cuda.Event() for slot in self._free}
            self._taken = torch.cuda.Event()

    def _wanted(self, step: int) -> NDArray[np.int64]:
        """Images that a step looks at: its own, and those it mixes in where the plan says so."""
        assert self._current is not None
        visits = step * self.global_batch + self._own
        partner = self._current.partner
        looked_at = np.concatenate([visits, partner[visits]]) if len(partner) else visits
        index: NDArray[np.int64] = self._current.order[looked_at]
        return index

    def _start_over(self, epoch: int, step: int) -> None:
        while self._line:
            dropped = self._line.popleft()
            dropped.pending.drop()
            self._free.append(dropped.slot)
        self._place = (epoch, step)
        self._fill_line()

    def _fill_line(self) -> None:
        step = self._line[-1].step + 1 if self._line else self._place[1]
        while self._free and step < self.steps_per_epoch:
            slot = self._free.pop(0)
            if self._step.device.type == "cuda":
                self._copied[slot].synchronize()  # its last bytes have left
            index = self._wanted(step)
            self._line.append(_Ahead(step, index, slot, self._stored.read_into(index, self._host[slot].numpy())))
            step += 1

    def _copy(self, slot: int, rows: Tensor) -> None:
        if rows.device.type != "cuda":
            rows.copy_(self._host[slot])
            return
        now = torch.cuda.current_stream()
        with torch.cuda.stream(self._aside):  # beside the step before, which reads `rows`
            self._aside.wait_event(self._taken)
            self._staging.copy_(self._host[slot], non_blocking=True)
            self._copied[slot].record(self._aside)
        now.wait_event(self._copied[slot])
        rows.copy_(self._staging)
        self._taken.record(now)
