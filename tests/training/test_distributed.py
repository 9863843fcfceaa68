"""Several ranks train like one: the same weights, the same partition, each image once; and they survive a loss.

Real processes, started by torchrun, on a processor with gloo.
"""

import os
import re
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
import torch.distributed as dist
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).parent))

import rank_program as program

import nofe
from nofe import runs
from nofe.checks import require_fitting
from nofe.errors import UserError
from nofe.pipeline import train
from nofe.run_images import least_memory
from nofe.runs import Run
from nofe.specialties import Specialties
from nofe.stages import FILES_OF_STAGE
from nofe.training import runtime as training_runtime
from nofe.training.checkpoint import read_checkpoint
from nofe.training.ranks import Launch, ProcessGroup, Ranks, _unused_part
from nofe.training.runtime import launched_runtime, make_runtime
from nofe.training.said import Said
from nofe.training.sync_norm import synchronise_batch_norm

WEIGHTS = (runs.BASE, runs.GENERALIST, runs.NETWORK)


def torchrun(*arguments: str | Path, cwd: Path, ranks: int = 2, restarts: int = 0) -> subprocess.Popen[str]:
    launch = (
        "--standalone",
        "--nproc-per-node",
        str(ranks),
        "--max-restarts",
        str(restarts),
        "--monitor-interval",
        "0.05",
    )
    command = [sys.executable, "-m", "torch.distributed.run", *launch, program.__file__, *map(str, arguments)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(nofe.__file__).parents[1])}
    return subprocess.Popen(
        command, cwd=cwd, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )


def command_line(images: Path, *more: str) -> list[str]:
    """With a checkpoint after every epoch, so that a stage can be ended between its first one and its end."""
    more = ("--checkpoint-seconds", "0", *more)
    settings = [word for name, value in program.SETTINGS.items() for word in ("--set", f"{name}={value}")]
    return ["train", "--dataset", f"folder:{images}", "--architecture", "alexnet-quick-c100", *settings, *more]


@pytest.fixture(autouse=True)
def _alike(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the ranks are told by `alike_everywhere`; put back after each test."""
    monkeypatch.setattr(program.pipeline, "report_if_possible", lambda run: None)
    monkeypatch.setattr(program.frozen, "images_at_once", lambda runtime: 7)


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return program.bars_folder(tmp_path_factory.mktemp("data") / "bars")


@pytest.fixture(scope="module")
def alone(images: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run by one process."""
    folder = tmp_path_factory.mktemp("runs") / "alone"
    with pytest.MonkeyPatch.context() as patched:
        _alike.__wrapped__(patched)
        train(program.bars_run(images), folder, runtime=make_runtime("cpu"))
    return folder


@pytest.fixture(scope="module")
def found(images: Path, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What each of two ranks found; `run` is the folder that rank 0 wrote."""
    out = tmp_path_factory.mktemp("ranks")
    launched = torchrun("together", out, images, cwd=out)
    output, _ = launched.communicate(timeout=120)
    assert launched.returncode == 0, output
    by_rank = [torch.load(out / f"found-by-{rank}.pt", weights_only=True) for rank in (0, 1)]
    for rank, each in enumerate(by_rank):
        each["run"] = out / f"run-of-{rank}"
    return by_rank


def assert_same_to_rounding(run: Path, other: Path) -> None:
    for file in WEIGHTS:
        one, two = (safetensors.torch.load(Run(folder).read(file)) for folder in (run, other))
        assert_close(one, two)
    partitions = [Specialties.from_json(Run(folder).read_json(runs.SPECIALTIES)) for folder in (run, other)]
    assert partitions[0].groups() == partitions[1].groups()
    networks = [Run(folder).read_json(runs.SUMMARY)["networks"] for folder in (run, other)]
    assert [n["accuracy"] for n in networks[0].values()] == [n["accuracy"] for n in networks[1].values()]
    epochs, of_other = ([figures(line) for line in Run(folder).metrics()] for folder in (run, other))
    assert epochs == [pytest.approx(line, rel=1e-3) for line in of_other]


def figures(line: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in line.items() if name not in ("stage", "seconds", "images_per_second")}


def assert_close(one: dict[str, Tensor], other: dict[str, Tensor], digits: float = 1e-3) -> None:
    assert one.keys() == other.keys()
    for name, tensor in one.items():
        largest = float(tensor.abs().max())
        torch.testing.assert_close(
            other[name], tensor, rtol=0, atol=digits * largest, msg=lambda m, n=name: f"{n}: {m}"
        )


def test_two_ranks_train_like_one(alone: Path, found: list[dict[str, Any]]) -> None:
    """Weights, partition, losses and accuracies of base, generalist and experts, at the same global batch."""
    assert_same_to_rounding(alone, found[0]["run"])
    moved = [line["moved"] for line in Run(alone).metrics() if "update" in line]
    assert any(moved)  # or the partition would be the same whatever was counted


def test_rank_0_alone_writes(found: list[dict[str, Any]]) -> None:
    assert Run(found[0]["run"]).damaged() == []
    assert Run(found[0]["run"]).read_json(runs.ENVIRONMENT)["ranks"] == 2
    assert not found[1]["run"].exists()
    assert found[0]["summary"] == found[1]["summary"]  # which nofe.train returns to all
    assert found[0]["with norms"] == found[1]["with norms"]
    assert found[0]["with norms"].keys() == {"base", "generalist", "experts"}, "from the first step to the last test"


def test_a_run_is_gone_on_with_as_rank_0_has_it(found: list[dict[str, Any]]) -> None:
    assert found[0]["gone on with"] == found[1]["gone on with"]
    assert found[0]["gone on with"].keys() == {"base", "generalist"}, "until=specialties, which the others cannot read"


def test_stages_are_taken_from_a_run_that_rank_0_alone_can_read(found: list[dict[str, Any]]) -> None:
    assert found[0]["reused"] == found[1]["reused"] == found[0]["gone on with"], "with its accuracies and seconds"


def test_each_image_is_counted_once(found: list[dict[str, Any]]) -> None:
    expected = program.evaluated(make_runtime("cpu"))
    assert int(expected["confusion"].sum()) == 101
    for by_rank in found:
        for name, table in expected.items():
            assert torch.equal(by_rank["evaluated"][name], table), name


@pytest.mark.parametrize("network", program.NETWORKS)
def test_synchronised_batch_norm_is_that_of_one_rank(network: str, found: list[dict[str, Any]]) -> None:
    expected = program.trained(program.NETWORKS[network], make_runtime("cpu"))
    for by_rank in found:
        assert_close(expected, by_rank["synchronised"][network], digits=1e-6)


class NormAndSquare(nn.BatchNorm2d):
    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input).square()


def test_a_norm_that_does_more_is_not_synchronised_but_refused() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), NormAndSquare(4))
    ranks = Ranks()
    ranks.count = 2
    with pytest.raises(UserError, match=r"--sync-batch-norm: 1 \(NormAndSquare\) has .*; leave the option out"):
        synchronise_batch_norm(model, ranks)


@pytest.mark.parametrize("network", program.NETWORKS)
def test_two_ranks_train_like_one_by_a_recipe_of_today(network: str, found: list[dict[str, Any]]) -> None:
    """AdamW, mixed and augmented images, averaged weights and statistics: partners may be the other rank's."""
    expected = program.trained(program.NETWORKS[network], make_runtime("cpu"), program.TODAY)
    for by_rank in found:
        assert_close(expected, by_rank["today"][network], digits=1e-6)


@pytest.mark.parametrize("network", program.NETWORKS)
def test_ranks_end_alike_without_it(network: str, found: list[dict[str, Any]]) -> None:
    """Each normalises by its own share, so it is another training; running statistics are averaged all the same."""
    one, other = (by_rank["apart"][network] for by_rank in found)
    for name, tensor in one.items():
        assert torch.equal(tensor, other[name]), name
    assert any(not torch.equal(tensor, found[0]["synchronised"][network][name]) for name, tensor in one.items())


def test_ranks_drop_other_numbers(found: list[dict[str, Any]]) -> None:
    of_ranks = found[0]["generators"]
    assert not torch.equal(of_ranks[0], of_ranks[1])


def test_what_one_rank_raises_all_raise(found: list[dict[str, Any]]) -> None:
    said = ["UserError: no such folder; name another", "UserError: rank 1: data: absent; bring them"]
    weights = "rank 1: --weights gone-on-with-by-0/base.safetensors: no such file; check the spelling"
    assert [by_rank["errors"] for by_rank in found] == [[*said, "RunError: disk full", weights]] * 2


def test_what_all_ranks_have_to_say_is_said_once(found: list[dict[str, Any]]) -> None:
    """And what rank 0 does not see, by rank 0, which says of whom it is."""
    twice = ["birds: 1 image cannot be read"] * 2
    assert [by_rank["warnings"] for by_rank in found] == [[twice[0], "rank 1: birds: no val/ here", twice[1]], []]


def test_what_one_rank_fails_of_is_said(images: Path, tmp_path: Path) -> None:
    """Alone, while the other one waits for it."""
    launched = torchrun("failing", *command_line(images), cwd=tmp_path)
    output, _ = launched.communicate(timeout=120)
    assert launched.returncode == 1
    assert "nofe: 0001.png: not read after 120 seconds; is its disk there?" in output
    assert "nofe: rank 0: another rank is gone; its output says why" in output


LAST_WORDS = """
import atexit, sys
from nofe.training import ranks

class Last:
    def __del__(self):
        print("Python's own end")

last = Last()
atexit.register(print, "at exit")
ranks._has_joined_others = len(sys.argv) > 1
ranks.end_process_of_a_rank(3)
sys.exit(4)
"""


@pytest.mark.parametrize(
    ("joined", "said", "code"), [(True, ["at exit"], 3), (False, ["at exit", "Python's own end"], 4)]
)
def test_the_process_of_a_rank_leaves_out_pythons_own_end(joined: bool, said: list[str], code: int) -> None:
    """In which threads that gloo still has would abort it."""
    ended = subprocess.run([sys.executable, "-c", LAST_WORDS, *["joined"] * joined], capture_output=True, text=True)
    assert (ended.stdout.splitlines(), ended.returncode) == (said, code), ended.stderr


def test_a_killed_worker_is_started_again_and_the_run_goes_on(images: Path, alone: Path, tmp_path: Path) -> None:
    """By the command line, without --out or --resume: in the folder that was free at first, from its checkpoint."""
    launched = torchrun(*command_line(images), cwd=tmp_path, restarts=1)
    when_saved(tmp_path, "generalist")
    os.kill(worker(launched, rank=1), signal.SIGKILL)
    output, _ = launched.communicate(timeout=120)
    assert launched.returncode == 0, output
    assert output.count("going on after step") == 1, output
    assert "the same to rounding" in output, "which a stop in the middle of an epoch adds to running statistics"
    [folder] = (tmp_path / "runs").iterdir()
    assert_same_to_rounding(alone, folder)


def test_a_signal_to_one_stops_all_ranks_with_a_checkpoint(images: Path, alone: Path, tmp_path: Path) -> None:
    """Before the same step, and one process can go on from there. (torchrun hands its own signals on to all.)"""
    folder = tmp_path / "run"
    launched = torchrun(*command_line(images, "--out", str(folder)), cwd=tmp_path)
    when_saved(tmp_path, "generalist")
    os.kill(worker(launched, rank=1), signal.SIGTERM)
    output, _ = launched.communicate(timeout=120)
    [stage] = re.findall("stopped by signal 15 in stage (generalist|experts)", output)  # on a busy machine a later one
    checkpoint = read_checkpoint(Run(folder), stage)
    assert checkpoint is not None
    assert f"after step {checkpoint.step} " in output.replace(",", " ")
    train(program.bars_run(images), folder, resume=True, runtime=make_runtime("cpu"))
    assert_same_to_rounding(alone, folder)


def test_a_run_that_was_refused_is_refused_again(images: Path, alone: Path) -> None:
    """A restart goes on with what its launch began, not with what lay there before. One rank will do."""
    before = {file: file.read_bytes() for file in alone.iterdir() if file.is_file()}
    launched = torchrun(*command_line(images, "--out", str(alone)), cwd=alone.parent, ranks=1, restarts=1)
    output, _ = launched.communicate(timeout=120)
    assert launched.returncode != 0
    assert output.count("holds a run already") == 2, output  # once an attempt
    assert before == {file: file.read_bytes() for file in alone.iterdir() if file.is_file()}


def test_every_attempt_meets_in_a_part_of_the_store_of_its_own() -> None:
    """torchrun's store outlives its processes; also where a rank of the attempt before called and was not answered."""
    server = dist.TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    clients = [dist.TCPStore("localhost", server.port, wait_for_workers=False) for _ in range(3)]
    server.set("nofe/calls/call/2", "a number that nobody waits with any more")

    def attempt(order: tuple[int, ...]) -> list[dist.Store]:
        with ThreadPoolExecutor(3) as threads:
            parts = {}
            for rank in order:
                parts[rank] = threads.submit(_unused_part, clients[rank], Launch(rank=rank, count=3))
                time.sleep(0.05)
            return [parts[rank].result(timeout=20) for rank in range(3)]

    first, second = attempt((0, 1, 2)), attempt((2, 1, 0))
    first[0].set("address", "of the first attempt")
    assert all(part.check(["address"]) for part in first)
    assert not any(part.check(["address"]) for part in second)
    second[2].set("address", "of the second attempt")
    assert [part.get("address") for part in second] == [b"of the second attempt"] * 3


def test_a_rank_leaves_when_nothing_of_it_is_in_use(monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread of gloo holds what it has summed a moment longer, and lets go of it by way of Python."""
    events = []

    class Work:
        def __init__(self, tensor: Tensor) -> None:
            self.thread = threading.Thread(target=self.hold, args=[[tensor]])
            self.thread.start()

        def hold(self, held: list[Tensor]) -> None:
            time.sleep(0.1)
            events.append("let go")
            held.clear()

        def wait(self, _: object) -> None: ...

    monkeypatch.setattr(dist, "all_reduce", lambda tensor, async_op: Work(tensor))
    monkeypatch.setattr(dist, "destroy_process_group", lambda: events.append("left"))
    ProcessGroup(Launch(rank=0, count=2), None, Said(0), on_gpu=False).leave()
    assert events == ["let go", "left"]


def when_saved(folder: Path, stage: str) -> None:
    """Wait for the first epoch of a stage, and its checkpoint, in the only run below the folder.

    Checkpoints of the stage before are deleted when a stage begins.
    """
    for _ in range(1200):
        noted = any(f'"{stage}", "epoch"' in file.read_text() for file in folder.rglob(runs.METRICS))
        if noted and any(folder.rglob(f"{runs.CHECKPOINTS}/*.safetensors")):
            return
        time.sleep(0.05)
    raise AssertionError(f"no checkpoint of {stage}")


def worker(launched: subprocess.Popen[str], rank: int) -> int:
    children = Path(f"/proc/{launched.pid}/task/{launched.pid}/children").read_text().split()
    [found] = [pid for pid in children if f"\0RANK={rank}\0" in Path(f"/proc/{pid}/environ").read_text()]
    return int(found)


def test_one_file_knows_torch_distributed() -> None:
    """And environment variables are touched in three; what they say is then passed on as values."""
    sources = {path.name: path.read_text() for path in Path(nofe.__file__).parent.rglob("*.py")}
    assert {name for name, text in sources.items() if "import torch.distributed" in text} == {"ranks.py"}
    readers = {name for name, text in sources.items() if "os.environ" in text or "os.getenv" in text}
    assert readers == {"ranks.py", "runtime.py", "__main__.py"}  # the last sets two, before torch is loaded


def test_one_process_is_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    assert Launch.of_this_process() == Launch()
    with launched_runtime("cpu") as runtime:
        assert type(runtime.ranks) is Ranks


@pytest.mark.parametrize(
    ("device", "gpus", "message"),
    [
        ("cuda", 2, "--nproc-per-node 4: there are 2 GPUs here"),
        ("auto", 2, "--nproc-per-node 4: there are 2 GPUs here"),
        ("cuda:1", 8, "use --device cuda or cpu"),
        ("mps", 0, "use --device cuda or cpu"),
    ],
)
def test_devices_that_cannot_serve_all_ranks(
    device: str, gpus: int, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    launch = {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "3", "MASTER_ADDR": "localhost", "MASTER_PORT": "1"}
    for name, value in launch.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpus > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    with pytest.raises(UserError, match=message), launched_runtime(device):
        pass


def test_ranks_share_the_machine_that_they_are_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """64 of them on machines of 8; and what the least memory allows, all keep in memory."""
    monkeypatch.setattr(training_runtime, "physical_memory", lambda: 800)
    monkeypatch.setattr(training_runtime, "cores", lambda: 16)
    launch = Launch(rank=9, count=64, local_rank=1, local_count=8)
    runtime = make_runtime("cpu", ranks=ProcessGroup(launch, None, Said(9), on_gpu=False))
    assert (runtime.workers, runtime.memory_for_images()) == (2, 50)
    runtime.ranks.gather = lambda own: torch.stack([own, own / 2, own])
    assert least_memory(runtime) == 25


def test_a_batch_that_cannot_be_shared_out_is_refused(images: Path) -> None:
    from nofe.data.batches import Augmentation, Batches, DeviceImages, pixel_mean

    dataset = program.small_dataset()
    on_device = DeviceImages(dataset.train, pixel_mean(dataset.train), torch.device("cpu"))
    with pytest.raises(UserError, match="batch=16: cannot be shared out over 3 ranks; use a multiple of 3"):
        Batches(on_device, Augmentation(), batch=16, seed=0, stage="base", ranks=3)


@pytest.mark.parametrize(
    ("batch", "count", "said"),
    [
        (15, 2, "generalist.batch=15: cannot be shared out over 2 ranks; use a multiple of 2, such as 14"),
        (500, 3, "generalist.batch=500: has all 160 training images, which cannot .* over 3 ranks; .* such as 159"),
        (1, 2, "generalist.batch=1: cannot be shared out over 2 ranks; use a multiple of 2, such as 2"),
        (2, 2, "generalist.batch=2: timm:.* normalises .*, of which each of 2 ranks has one; use 4 or more, --sync-"),
        (4, 2, None),
    ],
)
def test_batches_of_every_stage_are_looked_at_before_the_first(
    batch: int, count: int, said: str | None, tmp_path: Path
) -> None:
    """Or the generalist's would be refused when the base is trained."""
    settings = {"generalist.batch": batch, "experts.batch": 12, "specialties.count": 2}
    config = nofe.api.configure("folder:bars", "timm:test_resnet@32", settings=settings)
    dataset, run, ranks = program.small_dataset(), Run(tmp_path), Ranks()
    ranks.count = count
    with pytest.raises(UserError, match=said) if said else nullcontext():
        require_fitting(config, dataset, run, ranks)
    if said is None or "sync" in said:
        require_fitting(config, dataset, run, ranks, sync_batch_norm=True)
    for file in FILES_OF_STAGE["generalist"]:
        run.write(file, b"")
    if batch % count and batch > count:  # is trained already: by another number of ranks, say
        require_fitting(config, dataset, run, ranks)
