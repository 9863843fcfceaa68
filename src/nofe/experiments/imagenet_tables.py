"""The paper's table and figure on ImageNet."""

from dataclasses import replace

from nofe.config import with_settings
from nofe.experiments.paper_tables import UNEVEN_IS_EASIER
from nofe.experiments.table import Experiment, Row, Table
from nofe.recipes import default_run


def _imagenet(suffix: str, *settings: str, architecture: str = "alexnet-caffe") -> Experiment:
    config = with_settings(default_run(architecture, IMAGENET_DATA), ["base.by=none", *settings])
    return Experiment(f"imagenet-{architecture}-{suffix}", config, measures=("ten_crops",))


def on_data(experiment: Experiment, imagenet: str) -> Experiment:
    """An experiment on ImageNet with its images elsewhere, as a folder or as shards; another one as it is."""
    if experiment.config.data.name != IMAGENET_DATA:
        return experiment
    return replace(experiment, config=replace(experiment.config, data=replace(experiment.config.data, name=imagenet)))


# Stands for ImageNet wherever its images lie, and in results: imagenet/train/n01440764/*.JPEG, imagenet/val/...
IMAGENET_DATA = "folder:imagenet"
NO_IMAGES = "its images are not at hand"
_IMAGENET_LEARNED = _imagenet("fully-balanced-k10")
_IMAGENET_SPECTRAL = _imagenet("spectral-k10", "specialties.rule=spectral", "base.by=paper")
IMAGENET = Table(
    "imagenet",
    "ImageNet, AlexNet-Caffe: base and experts (paper's Table 5)",
    (
        Row("base", _imagenet("base", "until=base", "base.by=paper"), "base-paper", 58.71, crops=10),
        Row("fully-balanced, K=10", _IMAGENET_LEARNED, paper=61.29, crops=10),
        Row("fully-balanced, K=40", _imagenet("fully-balanced-k40", "specialties.count=40"), paper=60.85, crops=10),
        Row("spectral, K=10", _IMAGENET_SPECTRAL, paper=56.10, crops=10),
        Row(
            "base with one more convolution (supplement)",
            _imagenet("base", "until=base", "base.by=paper", architecture="alexnet-caffe-conv6"),
            "base-paper",
            56.91,
            crops=10,
        ),
    ),
    measure="top-1 by ten crops",
    reason=NO_IMAGES,
)
IMAGENET_GENERALISTS = Table(
    "imagenet-generalists",
    "ImageNet: accuracy of the generalist over training, by where specialties come from (paper's Fig. 2)",
    (
        Row("learned, fully-balanced", _IMAGENET_LEARNED, "generalist"),
        Row("spectral", _IMAGENET_SPECTRAL, "generalist"),
        Row("WordNet", _imagenet("wordnet-k10", "specialties.rule=wordnet", "until=specialties"), "generalist"),
        Row("random", _imagenet("random-k10", "specialties.rule=random", "until=specialties"), "generalist"),
    ),
    measure="accuracy on its 10 specialties",
    reason=NO_IMAGES,
    note=(
        f"{UNEVEN_IS_EASIER} Of WordNet's here one has 932 of the 1,000 classes, so the paper's, whose generalist did "
        "much worse than the spectral one, were of another tree (paper-map.md)."
    ),
)
OF_IMAGENET = (IMAGENET, IMAGENET_GENERALISTS)
