"""Networks as trunk, head and branch: the six of the paper, and any other."""

from nofe.architectures.architecture import Architecture, Classifier, parameter_count
from nofe.architectures.caffe import Multipliers, multipliers_of
from nofe.architectures.registry import ARCHITECTURES, architecture_named, summaries

__all__ = [
    "ARCHITECTURES",
    "Architecture",
    "Classifier",
    "Multipliers",
    "architecture_named",
    "multipliers_of",
    "parameter_count",
    "summaries",
]
