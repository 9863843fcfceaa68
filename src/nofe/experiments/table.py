"""What a table of the paper is made of, as values.

An experiment is a run's configuration under a name; a row picks one of its networks. Rows of several tables share
experiments, and experiments share stages (`nofe.reuse`), so nothing is trained twice.
"""

from dataclasses import dataclass, replace

from nofe.config import RunConfig


@dataclass(frozen=True)
class Experiment:
    name: str
    config: RunConfig  # of seed 0
    measures: tuple[str, ...] = ()  # what else is measured on the finished run (nofe.experiments.measures)
    hdcnn: bool = False  # HD-CNN on the base of this run

    def seeded(self, seed: int) -> RunConfig:
        return replace(self.config, seed=seed)


@dataclass(frozen=True)
class Row:
    label: str
    experiment: Experiment
    network: str = "experts"  # whose accuracy it is
    paper: float | None = None  # per cent; None where the paper has no such row
    crops: int = 1  # of each test image; ten are measured beside, and the accuracy of every epoch is by one


@dataclass(frozen=True)
class Table:
    name: str
    title: str
    rows: tuple[Row, ...]
    measure: str = "top-1"  # what its figures are, in per cent
    reason: str = "they wait for GPU time"  # why rows are not measured, where some are not
    note: str = ""  # what is to be known of its figures, or of those that are missing

    def experiments(self) -> list[Experiment]:
        return list({row.experiment.name: row.experiment for row in self.rows}.values())
