"""What a stage is trained with, whatever it trains."""

from dataclasses import dataclass

from nofe.data.batches import DeviceImages
from nofe.runs import Run
from nofe.training.journal import Journal
from nofe.training.runtime import Runtime


@dataclass(frozen=True, kw_only=True)
class Workbench:
    train: DeviceImages
    test: DeviceImages  # looked at for accuracy alone: nothing is chosen by it
    seed: int
    runtime: Runtime
    journal: Journal

    @property
    def run(self) -> Run:
        return self.journal.run
