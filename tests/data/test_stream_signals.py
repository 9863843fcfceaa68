"""A real process that streams, with its real workers: a signal to all of them leaves a run that goes on."""

import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest

import nofe
from conftest import small_dataset
from nofe.data import pictures
from nofe.data.pack import PackSettings, listing_of_arrays, pack
from nofe.data.stored import look_through, open_dataset
from nofe.data.workers import Workers
from nofe.errors import Interrupted
from nofe.signals import ending_at_once, on_signals_to_end

SETTINGS = ("data.stream=true", "base.by=none", "generalist.epochs=2", "experts.epochs=400")


def command(folder: Path, *options: str) -> list[str]:
    return [sys.executable, "-m", "nofe", "train", "--out", str(folder / "run"), "--device", "cpu", *options]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_to_the_group_saves_the_run(tmp_path: Path, number: signal.Signals) -> None:
    dataset = small_dataset(per_class=8)
    pack(listing_of_arrays(dataset), tmp_path / "shards", PackSettings(32), Workers(1))
    environment = os.environ | {"PYTHONPATH": str(Path(nofe.__file__).parents[1]), "OMP_NUM_THREADS": "1"}
    choices = ["--dataset", f"shards:{tmp_path / 'shards'}", "--experts", "2", "--workers", "2"]
    choices += [part for setting in SETTINGS for part in ("--set", setting)]
    process = subprocess.Popen(
        command(tmp_path, *choices), env=environment, start_new_session=True, text=True, stderr=subprocess.PIPE
    )
    metrics = tmp_path / "run" / "metrics.jsonl"
    until = time.monotonic() + 60
    while not (metrics.exists() and '"experts"' in metrics.read_text()) and time.monotonic() < until:
        time.sleep(0.05)
    os.killpg(process.pid, number)  # as a terminal or a scheduler does
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 128 + number, errors
    assert "all saved; go on with --resume" in errors
    assert list((tmp_path / "run" / "checkpoint").iterdir())


def signal_with_the_first_image(number: signal.Signals, monkeypatch: pytest.MonkeyPatch) -> None:
    """With no other: threads that still read would signal when nobody is waiting for it any more."""
    read, first = pictures.Files.source, threading.Lock()

    def signalling(self: pictures.Files, index: int) -> pictures.Source:
        if first.acquire(blocking=False):
            os.kill(os.getpid(), number)
        return read(self, index)

    monkeypatch.setattr(pictures.Files, "source", signalling)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("stream", [True, False])
def test_a_signal_while_images_are_read_ends_it_at_once(
    shades: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals, stream: bool
) -> None:
    """Though a run would go on to its first step, which may be an hour away."""
    signal_with_the_first_image(number, monkeypatch)
    asked: list[int] = []
    told = f"folder:{shades}: while its images were .*: stopped by signal {number:d}, nothing is lost; run the same"
    with on_signals_to_end(asked.append):
        with pytest.raises(Interrupted, match=told) as caught:
            look_through(
                open_dataset(f"folder:{shades}", root=shades, image_size=8, stream=stream, workers=1),
                skip_unreadable=False,
            )
        assert asked == []
    assert caught.value.exit_code == 128 + number


def test_a_signal_whose_exception_was_dropped_is_not_forgotten() -> None:
    with (
        pytest.raises(Interrupted, match="birds: stopped by signal 15, nothing is lost"),
        on_signals_to_end(lambda _: None),
        ending_at_once("birds"),
        suppress(Interrupted),
    ):
        os.kill(os.getpid(), signal.SIGTERM)


def test_reading_alone_leaves_signals_to_the_program(shades: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its handler raises nothing: Python drops what is raised where a weak reference's callback is interrupted."""
    signal_with_the_first_image(signal.SIGINT, monkeypatch)
    handled: list[int] = []
    usual = signal.signal(signal.SIGINT, lambda number, _: handled.append(number))
    try:
        open_dataset(f"folder:{shades}", root=shades, image_size=8)
    finally:
        signal.signal(signal.SIGINT, usual)
    assert handled == [signal.SIGINT]
