"""Which networks are timed, doing what, how launched, and how large."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

import torch

from nofe.errors import UserError
from nofe.training.launch import MODES

NETWORKS = ("base", "loop", "fused")
TASKS = ("train", "forward", "inference")
USUAL_TASKS = ("train", "forward")
DEFAULT_EXPERTS, DEFAULT_CLASSES = 10, 100
GROWTH = {"experts": (2, 5, 10, 20, 50, 100), "classes": (100, 1_000, 10_000)}


@dataclass(frozen=True)
class Case:
    network: str  # base; loop: experts one after another; fused: experts as one
    mode: str
    task: str  # a training step; forward in evaluation mode; or inference, as nofe evaluate and predict do it
    classes: int
    experts: int
    batch: int


def cases(
    networks: Sequence[str] | None,
    modes: Sequence[str] | None,
    tasks: Sequence[str] | None,
    experts: Sequence[int],
    classes: Sequence[int],
    batches: Sequence[int],
) -> list[Case]:
    """Every combination; the base, which has no experts, once."""
    for name, chosen, known in (("network", networks, NETWORKS), ("mode", modes, MODES), ("task", tasks, TASKS)):
        unknown = set(chosen or ()) - set(known)
        if unknown:
            alone = "; or update or losses, alone" if name == "task" else ""
            raise UserError(f"--{name} {sorted(unknown)[0]}: unknown; choose from {', '.join(known)}{alone}")
    combined = product(tasks or USUAL_TASKS, batches, classes, modes or MODES, networks or NETWORKS, experts)
    made = [Case(network, mode, task, c, 0 if network == "base" else k, n) for task, n, c, mode, network, k in combined]
    return list(dict.fromkeys(made))


def growing(
    what: str,
    networks: Sequence[str] | None,
    modes: Sequence[str] | None,
    tasks: Sequence[str] | None,
    experts: Sequence[int] | None,
    classes: Sequence[int] | None,
    batches: Sequence[int],
    device: torch.device,
) -> list[Case]:
    """Cost as K grows at 100 classes, or as C grows at so many experts; by default as trainings here are launched."""
    if what not in GROWTH:
        raise UserError(f"--grow {what}: unknown; choose from {', '.join(GROWTH)}")
    fixed = {"--mode": modes, "--classes": classes} if what == "experts" else {"--mode": modes, "--experts": experts}
    for option, several in fixed.items():
        if several and len(several) > 1:
            raise UserError(f"{option} {several[1]}: with --grow {what} there is one; leave it out, or the others")
    modes = modes or [usual_mode(device)]
    if what == "experts":
        classes = classes or [DEFAULT_CLASSES]
        over = [k for k in experts or GROWTH["experts"] if k <= classes[0]]
        if not over:
            raise UserError(f"--classes {classes[0]}: fewer than there are experts; name fewer with --experts")
        return cases(networks, modes, tasks, over, classes, batches)
    experts = experts or [DEFAULT_EXPERTS]
    over = [c for c in classes or GROWTH["classes"] if c >= experts[0]]
    if not over:
        raise UserError(f"--experts {experts[0]}: more than there are classes; name larger ones with --classes")
    return cases(networks, modes, tasks, experts, over, batches)


def usual_mode(device: torch.device) -> str:
    """How a training there runs."""
    return "captured" if device.type == "cuda" else "eager"
