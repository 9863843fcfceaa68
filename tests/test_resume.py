"""A run that is killed and resumed ends with the very weights of one that was never interrupted."""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy
import torch

from conftest import small_dataset, small_run
from nofe import runs
from nofe.config import with_settings
from nofe.errors import Interrupted, UserError
from nofe.pipeline import train
from nofe.recipes import default_run
from nofe.runs import Run
from nofe.training.progress import Progress
from nofe.training.runtime import Runtime, make_runtime

FINAL = (runs.BASE, runs.GENERALIST, runs.NETWORK, runs.SPECIALTIES)
KILLS = 20


def finals(folder: Path) -> dict[str, bytes]:
    return {name: Run(folder).read(name) for name in FINAL}


def epochs(folder: Path) -> list[tuple[str, int, int, float]]:
    lines = Run(folder).metrics()
    return [(line["stage"], line["step"], line.get("epoch", 0), line.get("loss", 0)) for line in lines]


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "whole"
    train(small_run(), folder, dataset=small_dataset(), runtime=make_runtime("cpu"))
    return folder


def test_killed_at_random_moments(uninterrupted: Path, tmp_path: Path) -> None:
    """SIGKILL, at least 20 times. A process of its own, because it forks before torch starts any thread."""
    folder = tmp_path / "killed"
    script = f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r}); import test_resume as t; t.be_killed()"
    done = subprocess.run([sys.executable, "-c", script, str(folder)], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    history = json.loads(done.stdout)
    assert history["kills"] >= KILLS
    assert history["mid_run"] >= KILLS // 2  # most of them struck while something was being trained or written
    assert finals(folder) == finals(uninterrupted)
    assert epochs(folder) == epochs(uninterrupted)
    assert not list(folder.rglob("*.partial"))


def test_a_complete_run_is_not_handed_out_for_other_images(uninterrupted: Path) -> None:
    again = train(small_run(), uninterrupted, resume=True, dataset=small_dataset(), runtime=make_runtime("cpu"))
    assert again == Run(uninterrupted).read_json(runs.SUMMARY)
    others = small_dataset(per_class=7)
    with pytest.raises(UserError, match="the images changed since the run was started"):
        train(small_run(), uninterrupted, resume=True, dataset=others, runtime=make_runtime("cpu"))


def be_killed() -> None:
    """Run, kill, resume, until the run is complete and has been killed often enough."""
    import torch

    folder, rng = Path(sys.argv[1]), random.Random(1)
    torch.set_num_threads(1)
    config, dataset = small_run(), small_dataset()
    kills = mid_run = 0
    patience = 0.15
    while True:
        child = os.fork()
        if child == 0:
            train(config, folder, resume=True, dataset=dataset, runtime=make_runtime("cpu"))
            os._exit(0)
        if kills >= KILLS:
            _, status = os.waitpid(child, 0)
            assert status == 0
            break
        time.sleep(rng.uniform(0.01, patience))
        os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        kills += 1
        mid_run += (folder / runs.CONFIG).exists() and os.WIFSIGNALED(status)
        patience *= 1.05  # a child that never reaches its first checkpoint would be killed for ever
    print(json.dumps({"kills": kills, "mid_run": mid_run}))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_stops_in_the_middle_of_an_epoch_on_a_signal(
    number: signal.Signals, uninterrupted: Path, tmp_path: Path
) -> None:
    """In every stage, after every so many steps."""
    from nofe.training.progress import Silent

    class Interrupting(Silent):
        def advance(self, state, images) -> None:
            self.steps = getattr(self, "steps", 0) + 1
            if self.steps == 7:
                os.kill(os.getpid(), number)

    codes = []
    while True:
        try:
            train(
                small_run(),
                tmp_path / "run",
                resume=True,
                dataset=small_dataset(),
                runtime=make_runtime("cpu"),
                progress=Interrupting(),
            )
            break
        except Interrupted as stop:
            codes.append(stop.exit_code)
    assert codes == [128 + number] * (90 // 7)
    assert finals(tmp_path / "run") == finals(uninterrupted)
    assert epochs(tmp_path / "run") == epochs(uninterrupted)


TODAY = {
    "sgd": ("optimizer=sgd", "nesterov=true", "rate=0.005", "ema=0.9"),
    "adamw": ("optimizer=adamw", "rate=0.002", "ema=0.95", "mixup=0.8", "augmentation.trivialaugment=true"),
}
WITH_EITHER = ("schedule=cosine", "drops=[]", "warmup_epochs=0.7", "label_smoothing=0.1", "cutmix=1", "batch=16")
AUGMENTED = ("augmentation.padding=2", "augmentation.erasing=0.5")


@pytest.mark.parametrize("optimizer", TODAY)
def test_recipes_of_today_go_on_exactly(optimizer: str, tmp_path: Path) -> None:
    """Moments, averaged weights, rates of every step and what is mixed; `small` has batch norm and fused experts."""
    recipe = (*TODAY[optimizer], *WITH_EITHER, *AUGMENTED, "epochs=2")
    settings = [f"{stage}.{field}" for stage in ("generalist", "experts") for field in recipe]
    settings += ["specialties.count=2", "generalist.confusion_images=40"]
    config = with_settings(default_run("small", "small"), settings)
    dataset = small_dataset(per_class=10)
    train(config, tmp_path / "whole", dataset=dataset, runtime=make_runtime("cpu"))
    stops = 0
    while True:
        runtime = make_runtime("cpu")
        try:
            train(
                config,
                tmp_path / "cut",
                resume=True,
                dataset=dataset,
                runtime=runtime,
                progress=_stopping(runtime, after=3),
            )
            break
        except Interrupted:
            stops += 1
    assert stops >= 5
    assert finals(tmp_path / "cut") == finals(tmp_path / "whole")
    assert epochs(tmp_path / "cut") == epochs(tmp_path / "whole")


def test_a_run_from_before_a_field_was_added_goes_on(uninterrupted: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    _interrupt_after(folder, steps=47)
    config = Run(folder).read_config()
    for recipe in (config["generalist"], config["experts"], config["base"]["paper"]):
        del recipe["optimizer"], recipe["ema"], recipe["augmentation"]["erasing"]
    Run(folder).write_json(runs.CONFIG, config)
    train(small_run(), folder, resume=True, dataset=small_dataset(), runtime=make_runtime("cpu"))
    assert finals(folder) == finals(uninterrupted)


def test_damaged_checkpoint_is_noticed_and_the_one_before_used(
    uninterrupted: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "run"
    _interrupt_after(folder, steps=47)  # the generalist, with two checkpoints behind it
    newest = max((folder / runs.CHECKPOINTS).iterdir())
    content = bytearray(newest.read_bytes())
    content[len(content) // 2] ^= 1
    newest.write_bytes(content)
    train(small_run(), folder, resume=True, dataset=small_dataset(), runtime=make_runtime("cpu"))
    assert "damaged" in caplog.text
    assert finals(folder) == finals(uninterrupted)


def test_damaged_result_of_a_stage_is_made_again(uninterrupted: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    _interrupt_after(folder, steps=75)  # inside stage 2
    content = bytearray((folder / runs.GENERALIST).read_bytes())
    content[-1] ^= 1
    (folder / runs.GENERALIST).write_bytes(content)
    train(small_run(), folder, resume=True, dataset=small_dataset(), runtime=make_runtime("cpu"))
    assert finals(folder) == finals(uninterrupted)


def _interrupt_after(folder: Path, steps: int) -> None:
    runtime = make_runtime("cpu")
    with pytest.raises(Interrupted):
        train(small_run(), folder, dataset=small_dataset(), runtime=runtime, progress=_stopping(runtime, steps))


def _stopping(runtime: Runtime, after: int) -> Progress:
    """As a signal would, after so many steps."""
    from nofe.training.progress import Silent

    class Interrupting(Silent):
        seen = 0

        def advance(self, state, images) -> None:
            self.seen += 1
            if self.seen == after:
                runtime.stop_signal = signal.SIGTERM

    return Interrupting()


def test_a_stage_that_begins_anew_has_the_threads_of_those_before_it(tmp_path: Path) -> None:
    """Killed between two stages there is no checkpoint that would tell; another number rounds otherwise."""
    config, run = small_run("until=base", "experts.epochs=1"), Run(tmp_path / "run")
    given = torch.get_num_threads()
    train(config, run.path, dataset=small_dataset(), runtime=make_runtime("cpu"))
    environment = run.read_json(runs.ENVIRONMENT)
    assert environment["threads"] == given
    run.write_json(runs.ENVIRONMENT, environment | {"threads": given + 1})
    run.discard(runs.SUMMARY)
    shutil.rmtree(run.path / runs.CHECKPOINTS)
    try:
        train(config, run.path, resume=True, dataset=small_dataset(), runtime=make_runtime("cpu"))
        assert torch.get_num_threads() == given + 1
    finally:
        torch.set_num_threads(given)


def test_refuses_to_resume_with_another_configuration_or_other_images(uninterrupted: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    _interrupt_after(folder, steps=5)
    before = {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}
    with pytest.raises(UserError, match=r"experts.epochs was 3, is 4"):
        train(small_run("experts.epochs=4"), folder, resume=True, dataset=small_dataset())
    with pytest.raises(UserError, match="images changed"):
        train(small_run(), folder, resume=True, dataset=small_dataset(seed=1))
    with pytest.raises(UserError, match="--resume"):
        train(small_run(), folder, dataset=small_dataset())
    assert before == {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


def test_folder_in_use_is_refused(tmp_path: Path) -> None:
    import fcntl

    _interrupt_after(tmp_path / "run", steps=5)
    with (tmp_path / "run" / runs.LOCK).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(UserError, match="in use by another process"):
            train(small_run(), tmp_path / "run", resume=True, dataset=small_dataset())


def test_another_seed_gives_other_weights(uninterrupted: Path, tmp_path: Path) -> None:
    train(small_run("seed=1"), tmp_path / "run", dataset=small_dataset(), runtime=make_runtime("cpu"))
    one, other = (safetensors.numpy.load(finals(folder)[runs.NETWORK]) for folder in (uninterrupted, tmp_path / "run"))
    assert not np.array_equal(one["trunk.conv1.weight"], other["trunk.conv1.weight"])


def test_a_resumed_run_repeats_the_kernels_it_began_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever would be chosen by now: other kernels round differently."""
    from nofe.experts import kernels

    monkeypatch.setattr("nofe.compiling.STEPS_WORTH_MEASURING", 0)

    def always(which: int) -> None:
        monkeypatch.setattr(kernels, "_fastest", lambda steps, *_: list(steps)[which % len(steps)])
        monkeypatch.setenv("NOFE_CACHE", str(tmp_path / f"cache {which}"))

    always(1)
    train(small_run(), tmp_path / "whole", dataset=small_dataset(), runtime=make_runtime("cpu"))
    _interrupt_after(tmp_path / "run", steps=75)  # inside stage 2
    begun_with = Run(tmp_path / "run").read_json(runs.KERNELS)
    always(0)
    train(small_run(), tmp_path / "run", resume=True, dataset=small_dataset(), runtime=make_runtime("cpu"))
    assert Run(tmp_path / "run").read_json(runs.KERNELS) == begun_with
    assert finals(tmp_path / "run") == finals(tmp_path / "whole")
    train(small_run(), tmp_path / "other", dataset=small_dataset(), runtime=make_runtime("cpu"))
    assert Run(tmp_path / "other").read_json(runs.KERNELS) != begun_with


def test_a_complete_run_without_its_kernels_is_complete(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nofe.compiling.STEPS_WORTH_MEASURING", 0)
    train(small_run(), tmp_path / "run", dataset=small_dataset(), runtime=make_runtime("cpu"))
    before = finals(tmp_path / "run")
    (tmp_path / "run" / runs.KERNELS).unlink()
    train(small_run(), tmp_path / "run", resume=True, dataset=small_dataset(), runtime=make_runtime("cpu"))
    assert Run(tmp_path / "run").damaged() == []
    assert finals(tmp_path / "run") == before


def test_a_short_training_measures_no_kernels_and_repeats_itself(
    uninterrupted: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever others were found to be fastest here: the demo is to give the same figures every time."""
    from nofe.experts import kernels

    monkeypatch.setattr(kernels, "_fastest", lambda steps, *_: pytest.fail("measured"))
    train(small_run(), tmp_path / "run", dataset=small_dataset(), runtime=make_runtime("cpu"))
    assert not Run(tmp_path / "run").has(runs.KERNELS)
    assert finals(tmp_path / "run") == finals(uninterrupted)
