"""A model of what ranks send each other in a training step: to size a launch by, not a measurement.

Gradients travel once a step, in float32, in the buckets of DistributedDataParallel. Bytes are those of a ring, in
which each rank sends 2 (n - 1) / n of them; delays those of a tree, 2 log2(n) from rank to rank for each bucket. The
libraries mix the two. What the model leaves out: ranks that wait for a slower one, and links shared with others.
"""

import math
from dataclasses import dataclass

GRADIENT_BYTES = 4  # float32, also where the arithmetic is bf16
BUCKET_BYTES = 25 * 2**20  # DistributedDataParallel's default
BACKWARD_SHARE = 2 / 3  # of a step's arithmetic; buckets travel while it goes on


@dataclass(frozen=True)
class Fabric:
    """Ranks and what joins them."""

    name: str
    ranks: int
    bytes_per_second: float  # that one rank sends, as reached
    delay_seconds: float  # from one rank to the next


# As assumed in docs/scaling.md. Across nodes every rank sends through its own adapter and at its full rate; rings laid
# over all eight adapters of a node do better.
ONE_NODE = Fabric("8 GPUs, NVLink", ranks=8, bytes_per_second=300e9, delay_seconds=3e-6)
EIGHT_NODES = Fabric("64 GPUs, 400 Gb/s each", ranks=64, bytes_per_second=50e9, delay_seconds=10e-6)


@dataclass(frozen=True)
class StepModel:
    """One training step on a fabric. Every rank computes as long as one GPU with the same share does alone."""

    fabric: Fabric
    parameters: int
    compute_seconds: float

    @property
    def sent_bytes(self) -> float:
        """By each rank."""
        n = self.fabric.ranks
        return 2 * (n - 1) / n * self.parameters * GRADIENT_BYTES

    @property
    def communication_seconds(self) -> float:
        buckets = math.ceil(self.parameters * GRADIENT_BYTES / BUCKET_BYTES)
        return self.sent_bytes / self.fabric.bytes_per_second + buckets * collective_delay(self.fabric)

    @property
    def least_efficiency(self) -> float:
        """Share of the step that is arithmetic, if nothing travels while it goes on."""
        return self.compute_seconds / (self.compute_seconds + self.communication_seconds)

    @property
    def most_efficiency(self) -> float:
        """The same, if gradients travel during the whole of backward."""
        shown = max(0.0, self.communication_seconds - BACKWARD_SHARE * self.compute_seconds)
        return self.compute_seconds / (self.compute_seconds + shown)


def collective_delay(fabric: Fabric) -> float:
    """Of one collective, however few its bytes."""
    return 2 * math.log2(fabric.ranks) * fabric.delay_seconds if fabric.ranks > 1 else 0.0


def synchronised_norm_seconds(layers: int, fabric: Fabric) -> float:
    """Of batch norm over all ranks: a few numbers, once forward and once backward, and each layer waits for them."""
    return 2 * layers * collective_delay(fabric)
