"""The processes that train one network together, and what they tell each other.

torchrun starts a process, a rank, for each GPU. All of them run the same program from the first line to the last and
hold the same weights; each sees its share of the images. What only one of them may do, and what they must agree on,
goes through `Ranks`. With one process each of its collectives is the identity, so nobody asks how many there are.

torch.distributed, and the variables that torchrun sets, are used in this file alone.
"""

import atexit
import os
import sys
import time
import uuid
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Self, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._C._distributed_c10d import PrefixStore, Store
from torch.distributed.rendezvous import rendezvous
from torch.nn.parallel import DistributedDataParallel

from nofe.errors import NofeError, RunError, UserError
from nofe.training.said import Said, said_once

T = TypeVar("T")
TIMEOUT = timedelta(minutes=30)  # for a rank that hangs, or reads its images slowly; one that dies is noticed at once
PATIENCE = timedelta(seconds=10)  # that a rank with an error has with the others, which should end with it
AGREEMENT_STEPS = 8  # between two agreements on whether to stop, on GPUs
Error = tuple[type[NofeError], str]


class Ranks:
    """One process alone: it is rank 0 of 1, and every collective is the identity.

    Every rank must make the same calls in the same order, or they wait for each other for ever.
    """

    rank = 0
    count = 1
    of_node = 1  # that share the memory and the cores of a machine

    def __init__(self, memory: Store | None = None) -> None:
        self._memory = memory

    def __deepcopy__(self, _: dict[int, Any]) -> Self:
        """There is only one such group: the layers of a copied network talk to the same."""
        return self

    def first(self, make: Callable[[], T]) -> T:
        """Rank 0 does it, and all have the result; what it raises, all raise."""
        return make()

    def each(self, make: Callable[[], T]) -> T:
        """Every rank does it for itself; what one raises, all raise.

        The first rank of each node goes before the others, who then find what it downloaded. Warnings that rank 0 has
        not given, too, are given by it.
        """
        return make()

    def sum(self, tensor: Tensor) -> Tensor:
        """Over ranks."""
        return tensor

    def average(self, tensors: Iterable[Tensor]) -> None:
        """Each becomes its mean over ranks, in place."""

    def gather(self, tensor: Tensor) -> Tensor:
        """(...) of every rank to (ranks, ...)."""
        return tensor[None]

    def asked(self, signal_number: int, step: int) -> int:
        """The signal that asked any rank to stop, 0 for none. All ranks answer alike at the same step."""
        return signal_number

    def replica(self, model: nn.Module, *, with_idle_weights: bool) -> nn.Module:
        """What a training step calls: the model, its gradients averaged over ranks. Idle weights have none."""
        return model

    def recall(self, what: str) -> str | None:
        """What `remember` was told in an earlier attempt of this launch, before torchrun started the ranks again."""
        if self._memory is None or not self._memory.check([what]):
            return None
        return str(self._memory.get(what).decode())

    def remember(self, what: str, value: str) -> None:
        if self._memory is not None:
            self._memory.set(what, value)


class ProcessGroup(Ranks):
    """Several processes, joined by `joined_ranks`."""

    def __init__(self, launch: "Launch", memory: Store | None, said: Said, *, on_gpu: bool) -> None:
        super().__init__(memory)
        self._said = said
        self.rank, self.count, self.of_node = launch.rank, launch.count, launch.local_count
        self._first_of_node = launch.local_rank == 0
        self._speaking = False
        self._agreement_steps = AGREEMENT_STEPS if on_gpu else 1
        self._agreement: tuple[Tensor, dist.Work] | None = None

    def first(self, make: Callable[[], T]) -> T:
        if self._speaking:  # inside another call: the other ranks wait for its outcome, and take no part in this one
            return make()
        value: Any = None
        error: NofeError | None = None
        if self.rank == 0:
            self._speaking = True
            try:
                value = make()
            except NofeError as raised:
                error = raised
            finally:
                self._speaking = False
        told: list[Any] = [(value, _described(error))]
        dist.broadcast_object_list(told, src=0, device=torch.device("cpu"))
        if error is not None:
            raise error
        value, described = told[0]
        _raise(described)
        return value  # type: ignore[no-any-return]

    def each(self, make: Callable[[], T]) -> T:
        made: Any = None
        for turn in (self._first_of_node, not self._first_of_node):
            error: NofeError | None = None
            if turn:
                try:
                    made = make()
                except NofeError as raised:
                    error = raised
            of_ranks: list[tuple[Error | None, list[str]]] = [(None, [])] * self.count
            dist.all_gather_object(of_ranks, (_described(error), self._said.kept()))
            self._said.say_for([kept for _, kept in of_ranks])
            for rank, (described, _) in enumerate(of_ranks):
                _raise(described, prefix=f"rank {rank}: " if rank else "")
        return made  # type: ignore[no-any-return]

    def sum(self, tensor: Tensor) -> Tensor:
        total = tensor.clone()
        dist.all_reduce(total)
        return total

    def average(self, tensors: Iterable[Tensor]) -> None:
        parts = list(tensors)
        together = torch.cat([part.flatten() for part in parts])
        dist.all_reduce(together)
        together /= self.count
        for part, mean in zip(parts, together.split([part.numel() for part in parts]), strict=True):
            part.copy_(mean.view_as(part))

    def gather(self, tensor: Tensor) -> Tensor:
        rows = [torch.empty_like(tensor) for _ in range(self.count)]
        dist.all_gather(rows, tensor.contiguous())
        return torch.stack(rows)

    def asked(self, signal_number: int, step: int) -> int:
        # Each agreement is begun at one step and read some steps later, when it is long there: nobody waits for it,
        # and it goes by way of the processors, so that no GPU is waited for either.
        if step % self._agreement_steps:
            return 0
        agreed = self._finish_agreement(TIMEOUT)
        number = torch.tensor(signal_number)
        self._agreement = number, dist.all_reduce(number, dist.ReduceOp.MAX, async_op=True)
        return agreed

    def _finish_agreement(self, patience: timedelta) -> int:
        if self._agreement is None:
            return 0
        number, work = self._agreement
        self._agreement = None
        work.wait(patience)
        return int(number)

    def replica(self, model: nn.Module, *, with_idle_weights: bool) -> nn.Module:
        # Running statistics are averaged where they are read; sending rank 0's at each step would only cost time.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # of a new name for it, which older versions do not know
            return DistributedDataParallel(
                model,
                broadcast_buffers=False,
                gradient_as_bucket_view=True,
                find_unused_parameters=with_idle_weights,
            )

    def all_end_with(self, error: NofeError, store: Store) -> bool:
        """Whether the others come with an error, too, and rank 0 with the same one.

        By way of the store: who is in the middle of a step would take a collective of this rank for its own, fail, and
        have torchrun end this rank before it has said anything.
        """
        store.set(f"ended/{self.rank}", str(error))
        until = time.monotonic() + PATIENCE.total_seconds()
        while not store.check([f"ended/{rank}" for rank in range(self.count)]):
            if time.monotonic() > until:
                return False
            time.sleep(0.02)
        return bool(store.get("ended/0").decode() == str(error))

    def leave(self, patience: timedelta = TIMEOUT) -> None:
        """When all have come here: the first to leave would otherwise break off what the others are reading."""
        self._finish_agreement(patience)
        last = torch.zeros(1)
        references = sys.getrefcount(last)
        dist.all_reduce(last, async_op=True).wait(patience)
        # gloo's thread lets go of it a moment after that, which Python must be there for: at the end of the process
        # it would abort it, and torchrun end with code 1.
        until = time.monotonic() + PATIENCE.total_seconds()
        while (sys.getrefcount(last) > references or last._use_count() > 1) and time.monotonic() < until:
            time.sleep(0.001)
        dist.destroy_process_group()


def _described(error: NofeError | None) -> Error | None:
    """An error as it travels: its kind, which decides the exit code, and its line."""
    if error is None:
        return None
    return UserError if isinstance(error, UserError) else RunError, str(error)


def _raise(described: Error | None, prefix: str = "") -> None:
    if described is not None:
        kind, message = described
        raise kind(prefix + message)


@dataclass(frozen=True)
class Launch:
    """What torchrun says to each process that it starts."""

    rank: int = 0
    count: int = 1
    local_rank: int = 0  # on its node
    local_count: int = 1
    by_agent: bool = False  # torchrun is there, and keeps a store over restarts

    @classmethod
    def of_this_process(cls) -> "Launch":
        if not {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"} <= os.environ.keys():
            return cls()
        rank, count = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        return cls(
            rank,
            count,
            local_rank=int(os.environ.get("LOCAL_RANK", rank)),
            local_count=int(os.environ.get("LOCAL_WORLD_SIZE", count)),
            by_agent=os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True",
        )


@contextmanager
def joined_ranks(launch: Launch, *, on_gpu: bool) -> Iterator[Ranks]:
    """Join the other processes of the launch, and leave them at the end."""
    if launch.count == 1 and not launch.by_agent:
        yield Ranks()
        return
    if dist.is_initialized():
        raise UserError("nofe.train: this program uses torch.distributed already; leave init_process_group to nofe")
    store, _, _ = next(rendezvous("env://", timeout=TIMEOUT))
    memory = PrefixStore("nofe/memory", store) if launch.by_agent else None
    if launch.count == 1:
        yield Ranks(memory)
        return
    global _has_joined_others
    _has_joined_others = True
    part = _unused_part(store, launch)
    dist.init_process_group(
        "cpu:gloo,cuda:nccl" if on_gpu else "gloo",
        store=part,
        rank=launch.rank,
        world_size=launch.count,
        timeout=TIMEOUT,
    )
    with said_once(launch.rank) as said:
        ranks = ProcessGroup(launch, memory, said, on_gpu=on_gpu)
        try:
            yield ranks
        except NofeError as error:
            with suppress(RuntimeError):  # all raise it, leave in good order, and rank 0 says it; or this one does
                if ranks.all_end_with(error, part):
                    ranks.leave(PATIENCE)
                    error.told = launch.rank > 0
            raise
        except RuntimeError as error:
            if not (isinstance(error, dist.DistError) or "gloo" in str(error)):
                raise
            raise RunError(
                f"rank {launch.rank}: another rank is gone; its output says why, and torchrun --max-restarts N goes on"
            ) from error
        ranks.leave()


_has_joined_others = False


def end_process_of_a_rank(code: int) -> None:
    """The end of a process that was one of several ranks; any other is left to end by itself.

    Python's own end is left out, for a thread of gloo that asks for Python then aborts the process, and torchrun ends
    with code 1 though all is done.
    """
    if not _has_joined_others:
        return
    atexit._run_exitfuncs()  # of worker processes and the like
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(code)


def _unused_part(store: Store, launch: Launch) -> Store:
    """A part of the store that no earlier attempt wrote in, the same for all ranks.

    torchrun keeps one store over restarts, and gloo would take the addresses that dead processes left in it for those
    of the living. TORCHELASTIC_RESTART_COUNT cannot name the part: of several nodes, only those whose own processes
    failed count a restart. So rank 0 draws a name, and tells it to everyone who calls with a number drawn for
    this attempt; numbers of earlier attempts are answered, too, and nobody listens.
    """
    calls = PrefixStore("nofe/calls", store)
    own = uuid.uuid4().hex
    if launch.rank > 0:
        calls.set(f"call/{launch.rank}", own)
        name = calls.get(f"answer/{own}").decode()
        calls.set(f"heard/{name}/{launch.rank}", "")
        return PrefixStore(f"nofe/{name}", store)
    waiting = set(range(1, launch.count))
    deadline = time.monotonic() + TIMEOUT.total_seconds()
    while waiting:
        for rank in sorted(waiting):
            if calls.check([f"heard/{own}/{rank}"]):
                waiting.remove(rank)
            elif calls.check([f"call/{rank}"]):
                calls.set(f"answer/{calls.get(f'call/{rank}').decode()}", own)
        if time.monotonic() > deadline:
            missing = ", ".join(map(str, sorted(waiting)))
            raise RunError(f"torchrun: of {launch.count} ranks these did not come: {missing}; look at their output")
        time.sleep(0.02)
    return PrefixStore(f"nofe/{own}", store)
