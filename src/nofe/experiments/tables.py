"""Every table and figure of the paper, as data: which runs, which of their networks, the paper's figure.

An experiment is a run's configuration under a name; a row picks one of its networks. Rows of several tables share
experiments, and experiments share stages (`nofe.reuse`), so nothing is trained twice.
"""

import functools
from dataclasses import dataclass, replace

from nofe.config import RunConfig, with_settings
from nofe.errors import UserError
from nofe.recipes import base_by, default_run
from nofe.suggestions import did_you_mean
from nofe.training.recipe import Recipe


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


def _experiment(name: str, architecture: str, *settings: str) -> Experiment:
    return Experiment(name, with_settings(default_run(architecture, "cifar100"), ["base.by=none", *settings]))


def _base(architecture: str, by: str = "experts") -> Experiment:
    """Only the base: by the experts' recipe, or by the paper's own."""
    suffix = "" if by == "experts" else "-paper"
    return _experiment(f"{architecture}-base{suffix}", architecture, "until=base", f"base.by={by}")


def _experts(architecture: str, rule: str = "fully-balanced", count: int = 10, *settings: str) -> Experiment:
    return _experiment(
        f"{architecture}-{rule}-k{count}",
        architecture,
        f"specialties.rule={rule}",
        f"specialties.count={count}",
        *settings,
    )


def _by_recipe_of_base(architecture: str) -> Experiment:
    """Experts trained by the paper's recipe of the base."""
    config = _experts(architecture).config
    fields = {name: getattr(config.base.paper, name) for name in Recipe.__dataclass_fields__}
    return Experiment(
        f"{architecture}-experts-by-base-recipe", replace(config, experts=replace(config.experts, **fields))
    )


def _variant(suffix: str, of: Experiment, *settings: str) -> Experiment:
    return Experiment(f"{of.name}-{suffix}", with_settings(of.config, settings))


KS = (2, 5, 10, 20, 50)
PAPER_BASE = 54.0  # of Table 1, which rounds it
PAPER_TABLE_1 = {
    "fully-balanced": (53.3, 55.0, 56.2, 55.7, 55.33),
    "elasso": (53.93, 53.6, 55.59, 55.3, 55.3),
    "exact": (None,) * 5,
}
# Base and experts with K=10 and fully-balanced.
PAPER_TABLE_3 = {
    "alexnet-quick-c100": (37.94, 45.58),
    "alexnet-c100": (54.04, 56.24),
    "vgg11-c100": (68.48, 69.27),
    "nin-c100": (65.41, 67.96),
    "resnet56-c100": (73.52, 76.24),
}
ALEXNET, RESNET = "alexnet-c100", "resnet56-c100"
LAMBDAS = (100, 200, 500, 1000, 10000)

_SPECTRAL = _experts(ALEXNET, "spectral", 10, "base.by=experts")
_RANDOM = _experts(ALEXNET, "random")
_SUPERCLASS = _experts(ALEXNET, "groups", 20, "specialties.groups=superclass")
_SUPERCLASS_PAIR = _experts(ALEXNET, "groups", 10, "specialties.groups=superclass-pair")

TABLE_1 = Table(
    "table-1",
    "AlexNet-C100: number of experts and balancing (paper's Table 1)",
    (
        Row("base", _base(ALEXNET), "base", PAPER_BASE),
        *(
            Row(f"{rule}, K={count}", _experts(ALEXNET, rule, count), paper=figure)
            for rule, figures in PAPER_TABLE_1.items()
            for count, figure in zip(KS, figures, strict=True)
        ),
    ),
)
ARGMAX, UNEVEN = "learned, argmax", "learned, elasso with lambda 100: uneven"
TABLE_2 = Table(
    "table-2",
    "AlexNet-C100: where specialties come from (paper's Table 2)",
    (
        Row("learned, fully-balanced", _experts(ALEXNET), paper=56.2),
        Row("spectral clustering of the base's confusion", _SPECTRAL, paper=53.2),
        Row("random, balanced", _RANDOM, paper=53.7),
        Row("learned, exact", _experts(ALEXNET, "exact")),
        Row(ARGMAX, _experts(ALEXNET, "argmax")),
        Row(UNEVEN, _variant("uneven", _experts(ALEXNET, "elasso"), "specialties.strength=100")),
        Row("CIFAR-100's 20 superclasses (K=20)", _SUPERCLASS),
        Row("10 pairs of superclasses", _SUPERCLASS_PAIR),
    ),
)


# Epochs of generalist and experts together, where the paper's own base is shorter and one as long is cheap.
AS_LONG = {"alexnet-quick-c100": 20, ALEXNET: 200}


def _is_own_recipe(architecture: str) -> bool:
    """Whether the paper's base has the recipe of its experts, which bases here are trained by."""
    config = _base(architecture, "paper").config
    return config.base.paper == base_by(config.experts)


def label_as_long(architecture: str) -> str:
    """Of the base in Table 3 that is trained about as long as generalist and experts, or the longest there is."""
    if architecture in AS_LONG:
        return f"{architecture}: base, as many epochs as generalist and experts"
    return f"{architecture}: {LABEL_OF_RELEASE if architecture == RESNET else 'base, its own recipe'}"


def _rows_of_table_3(architecture: str, base: float, experts: float) -> list[Row]:
    by_experts = _base(architecture)
    same = _is_own_recipe(architecture)
    rows = [
        Row(f"{architecture}: base, its own recipe", by_experts, "base", base)
        if same
        else Row(f"{architecture}: base, its own recipe", _base(architecture, "paper"), "base-paper", base)
    ]
    if not same:
        rows.append(Row(f"{architecture}: base, experts' recipe", by_experts, "base"))
    if architecture in AS_LONG:
        longer = _variant("as-long", by_experts, f"experts.epochs={AS_LONG[architecture]}")
        rows.append(Row(label_as_long(architecture), longer, "base"))
    rows.append(Row(f"{architecture}: experts", _experts(architecture), paper=experts))
    if not same:
        rows.append(Row(f"{architecture}: experts, base's recipe", _by_recipe_of_base(architecture)))
    return rows


# ResNet56: the paper's 30, 15 and 15 epochs are the release's 15,000, 7,500 and 7,500 steps, with batches of 128
# counted as 100. VGG11: the release's 120,000, 10,000 and 10,000 steps, where the paper prints 120, 10 and 10 epochs;
# by those the experts end below the paper's figure.
EPOCHS_OF_RELEASE = {"vgg11-c100": 358, RESNET: 77}
LABEL_OF_RELEASE = "base, experts' recipe, the release's steps"


def _by_steps_of_release(of: Experiment) -> Experiment:
    epochs = EPOCHS_OF_RELEASE[of.config.architecture]
    return _variant(f"{epochs}-epochs", of, f"experts.epochs={epochs}")


TABLE_3 = Table(
    "table-3",
    "Five networks: base and experts, K=10 (paper's Table 3)",
    (
        *(row for name, figures in PAPER_TABLE_3.items() for row in _rows_of_table_3(name, *figures)),
        *(
            row
            for name in EPOCHS_OF_RELEASE
            for row in (
                Row(f"{name}: {LABEL_OF_RELEASE}", _by_steps_of_release(_base(name)), "base"),
                Row(
                    f"{name}: experts, the release's steps",
                    _by_steps_of_release(_experts(name)),
                    paper=PAPER_TABLE_3[name][1],
                ),
            )
        ),
        Row(f"{RESNET}: experts, exact specialties", _experts(RESNET, "exact")),
    ),
)


def _deeper_base(architecture: str) -> Experiment:
    """28 convolutions of VGG11-C100's do not train at the release's rate: theirs is the paper's, a tenth of it."""
    base = _base(f"{architecture}-deeper")
    return _variant("slow", base, "experts.rate=0.001") if architecture == "vgg11-c100" else base


TABLE_4 = Table(
    "table-4",
    "Bases with the experts' parameters, and with their depth too (paper's Table 4)",
    tuple(
        row
        for name, (deeper, wider) in {
            ALEXNET: (30.75, 50.21),
            "vgg11-c100": (68.68, 68.21),
            RESNET: (73.50, 73.88),
        }.items()
        for row in (
            Row(f"{name}: base", _base(name), "base", PAPER_TABLE_3[name][0] if _is_own_recipe(name) else None),
            Row(f"{name}: experts", _experts(name), paper=PAPER_TABLE_3[name][1]),
            Row(f"{name}: base, same parameters", _deeper_base(name), "base", deeper),
            Row(f"{name}: base, same parameters and depth", _base(f"{name}-wider"), "base", wider),
        )
    ),
    note=(
        "All are trained by the recipe of the experts, the paper's bases by one that is not given: for VGG11-C100 and "
        "ResNet56-C100 differences to the paper are of the recipe, too. VGG11-C100's base with 20 more convolutions "
        "begins with the paper's rate for VGG11-C100, 0.001: at the experts' 0.01 its loss grew without bound, or "
        "nothing was learned (among the other runs)."
    ),
)
SCRATCH = Table(
    "scratch",
    "Trunk from the generalist, or from scratch on learned specialties (Sec. 4.1)",
    (
        Row(f"{ALEXNET}: from the generalist", _experts(ALEXNET), paper=56.24),
        Row(f"{ALEXNET}: from scratch", _variant("scratch", _experts(ALEXNET), "experts.start=scratch"), paper=49.53),
        Row(f"{RESNET}: from the generalist", _experts(RESNET), paper=76.24),
        Row(f"{RESNET}: from scratch", _variant("scratch", _experts(RESNET), "experts.start=scratch"), paper=73.95),
    ),
    note=(
        "In AlexNet-C100 the fully connected layers have 250 times the weight decay of others, as in the release. From "
        "scratch that can hold them at zero, and nothing is learned; with the decay of the others it is "
        "(`alexnet-c100-scratch-decay.json`)."
    ),
)
FROM_BASE = Table(
    "from-base",
    "AlexNet-C100: generalist from a trained base (supplement); one more convolution (a draft of Sec. 4.1)",
    (
        Row("experts, generalist from random weights", _experts(ALEXNET), paper=56.24),
        Row(
            "experts, generalist from the base",
            _variant("from-base", _experts(ALEXNET), "generalist.start=base", "base.by=experts"),
            paper=55.5,
        ),
        Row("base", _base(ALEXNET), "base", 54.04),
        Row("base with one more convolution", _base(f"{ALEXNET}-conv4"), "base", 51.3),
    ),
)
SIZES = Table(
    "specialty-sizes",
    "AlexNet-C100, K=10: sizes of elasso's specialties by lambda (supplement)",
    tuple(
        Row(
            f"lambda {strength}",
            Experiment(
                f"{ALEXNET}-elasso-k10-lambda{strength}",
                with_settings(
                    _experts(ALEXNET, "elasso").config,
                    [f"specialties.strength={strength}", "until=specialties"],
                ),
            ),
            "generalist",
        )
        for strength in LAMBDAS
    ),
    measure="accuracy on its specialties",
)
FIGURE_3 = Table(
    "figure-3",
    "AlexNet-C100: accuracy of the generalist over training, by where specialties come from (paper: for ImageNet)",
    tuple(
        Row(label, experiment, "generalist")
        for label, experiment in (
            ("learned, fully-balanced", _experts(ALEXNET)),
            ("learned, exact", _experts(ALEXNET, "exact")),
            ("spectral", _SPECTRAL),
            ("random", _RANDOM),
            ("10 pairs of superclasses", _SUPERCLASS_PAIR),
        )
    ),
    measure="accuracy on its 10 specialties",
)
MIRRORING = Table(
    "mirroring",
    "AlexNet-C100 without mirroring, which the first release had not (paper-map.md, row 1)",
    tuple(
        Row(label, _variant("no-mirror", experiment, *settings), network, paper)
        for label, experiment, network, paper, settings in (
            ("base, no mirroring", _base(ALEXNET), "base", 54.04, ["experts.augmentation.mirror=false"]),
            (
                "experts, no mirroring",
                _experts(ALEXNET),
                "experts",
                56.24,
                ["experts.augmentation.mirror=false", "generalist.augmentation.mirror=false"],
            ),
        )
    ),
)

RETRIEVAL = Table(
    "retrieval",
    "Nearest neighbours in features of the experts and of the base (supplement)",
    tuple(
        Row(
            name,
            replace(
                _variant("retrieval", experts, "base.by=experts"),
                measures=("retrieval",),
            ),
        )
        # Those of ResNet56 that are trained longest: rows of Table 3, too, so that retrieval costs no training.
        for name, experts in ((ALEXNET, _experts(ALEXNET)), (RESNET, _by_steps_of_release(_experts(RESNET))))
    ),
    measure="precision",
    note="Both networks are trained by the recipe of the experts, ResNet56-C100's for the release's steps (Table 3).",
)
HDCNN = Table(
    "hd-cnn",
    "NIN-C100: experts and HD-CNN, accuracy, parameters and time of inference (Sec. 4.1)",
    (
        Row(
            "experts",
            replace(
                _variant("inference", _experts("nin-c100"), "base.by=experts"),
                measures=("inference",),
            ),
            paper=67.96,
        ),
        Row(
            "HD-CNN",
            Experiment("nin-c100-hd-cnn", _base("nin-c100", "paper").config, ("inference",), hdcnn=True),
            "hd-cnn",
            67.38,
        ),
    ),
    note=(
        "HD-CNN has about the time of the experts with their base: its fine components train on about a tenth of the "
        "images that its authors gave them, all together for two fifths of their steps (paper-map.md). Its authors' "
        "figure may be an average over several views of each test image, which was not found out; here, as for the "
        "experts, it is one view."
    ),
)
PRECISION = Table(
    "precision",
    "AlexNet-C100 in TF32 and in bfloat16",
    tuple(
        Row(f"{label}, {precision}", experiment, network)
        for label, of, network in (
            ("base", _base(ALEXNET), "base"),
            ("experts, random specialties", _RANDOM, "experts"),
            ("experts, exact", _experts(ALEXNET, "exact"), "experts"),
        )
        for precision, experiment in (("TF32", of), ("bfloat16", _variant("bf16", of, "precision=bf16")))
    ),
)


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
IMAGENET_FIGURE_3 = Table(
    "imagenet-figure-3",
    "ImageNet: accuracy of the generalist over training, by where specialties come from (the paper's figure)",
    (
        Row("learned, fully-balanced", _IMAGENET_LEARNED, "generalist"),
        Row("spectral", _IMAGENET_SPECTRAL, "generalist"),
        Row("WordNet", _imagenet("wordnet-k10", "specialties.rule=wordnet", "until=specialties"), "generalist"),
        Row("random", _imagenet("random-k10", "specialties.rule=random", "until=specialties"), "generalist"),
    ),
    measure="accuracy on its 10 specialties",
    reason=NO_IMAGES,
)
OF_IMAGENET = (IMAGENET, IMAGENET_FIGURE_3)

# Networks of today. TrivialAugment is what its authors train a WRN-28-10 by (84.3 after 200 epochs).
STAGES = ("base.paper", "generalist", "experts")
AUGMENTED = tuple(f"{stage}.augmentation.trivialaugment=true" for stage in STAGES)
# Of the few epochs that there are: a wide ResNet needs no more, and a generalist may have one alone.
_WARM_UP = ("base.paper.warmup_epochs=1", "generalist.warmup_epochs=0.5", "experts.warmup_epochs=1")


def _today(architecture: str, suffix: str, *settings: str, augmented: tuple[str, ...] = AUGMENTED) -> Experiment:
    by_default = ["base.by=none", *_WARM_UP, *augmented]
    config = with_settings(default_run(architecture, "cifar100", "modern"), [*by_default, *settings])
    return Experiment(f"{architecture}-today-{suffix}", config)


def _base_of_today(architecture: str, suffix: str, epochs: int, *settings: str, **augmented: tuple[str, ...]) -> Row:
    """By the recipe of the experts, for as long as generalist and experts take together."""
    lasting = ("until=base", "base.by=paper", f"base.paper.epochs={epochs}")
    experiment = _today(architecture, suffix, *lasting, *settings, **augmented)
    return Row(f"{architecture}: base, {epochs} epochs{_of(suffix)}", experiment, "base-paper")


def _experts_of_today(
    architecture: str,
    suffix: str,
    count: int,
    width: float,
    epochs: tuple[int, int],
    *settings: str,
    cut: str = "",
    so: str = "",
    **augmented: tuple[str, ...],
) -> Row:
    """Of the epochs of generalist and experts; `so` says what else is special about it."""
    # About ten updates of the specialties, however short the generalist: they settle by then (figure-3, `exact`).
    often = f"generalist.update_every={min(1.0, epochs[0] / UPDATES):g}"
    lasting = (f"generalist.epochs={epochs[0]}", often, f"experts.epochs={epochs[1]}")
    shape = (f"specialties.count={count}", f"adapt.branch_width={width}", *([f"adapt.cut={cut}"] if cut else []))
    parts = [f"K={count}", f"width {width:g}", f"{epochs[0]} + {epochs[1]} epochs"]
    parts += [f"from {cut}"] * bool(cut) + ["cutmix"] * bool(augmented) + [so] * bool(so)
    name = f"k{count}-width{width:g}" + (f"-{cut}" if cut else "") + suffix
    return Row(
        f"{architecture}: experts, {', '.join(parts)}",
        _today(architecture, name, *shape, *lasting, *settings, **augmented),
    )


def _of(suffix: str) -> str:
    return f" ({suffix.removeprefix('base-')})" if suffix.startswith("base-") else ""


UPDATES = 10  # of the specialties, by a generalist of today
# A tenth of the training images is held out, and accuracy is on that tenth: test images choose nothing.
_HELD_OUT = "data.hold_out=0.1"
_CUTMIX = tuple(f"{stage}.cutmix=1.0" for stage in STAGES)
# A rate that does not fall: the experts go on from weights that were never cooled down for the generalist's own sake.
_STEADY = "generalist.schedule=steps"
SEARCH = Table(
    "today-search",
    "WRN-28-10: number, width and cut of the experts, chosen on held-out training images, in a quarter of the time",
    (
        _base_of_today("wrn-28-10", "base-held-out", 25, _HELD_OUT),
        _experts_of_today("wrn-28-10", "-held-out", 5, 0.5, (3, 18), _HELD_OUT),
        # Without a new block, and at full width, branches begin as the generalist's own last blocks.
        _experts_of_today("wrn-28-10", "-held-out", 3, 1.0, (3, 19), _HELD_OUT, cut="stage3.block4"),
        _base_of_today("wrn-28-10", "base-held-out-cutmix", 25, _HELD_OUT, augmented=_CUTMIX),
        _experts_of_today("wrn-28-10", "-held-out-cutmix", 5, 0.5, (3, 18), _HELD_OUT, augmented=_CUTMIX),
        _experts_of_today("wrn-28-10", "-held-out", 2, 1.0, (3, 19), _HELD_OUT),
        _experts_of_today("wrn-28-10", "-held-out", 10, 0.25, (3, 18), _HELD_OUT),
        _experts_of_today("wrn-28-10", "-held-out-steady", 5, 0.5, (3, 18), _HELD_OUT, _STEADY, so="steady generalist"),
        _experts_of_today("wrn-28-10", "-held-out-short", 5, 0.5, (1, 20), _HELD_OUT),
        _experts_of_today("wrn-28-10", "-held-out-long", 5, 0.5, (6, 16), _HELD_OUT),
        _experts_of_today("wrn-28-10", "-held-out", 5, 0.5, (3, 20), _HELD_OUT, cut="stage3"),
        _experts_of_today("wrn-28-10", "-held-out", 2, 1.0, (3, 19), _HELD_OUT, cut="stage3.block3"),
    ),
    note=(
        "Each has the time of a base of 25 epochs, by its multiplications. 5,000 images tell accuracies apart that "
        "differ by about 1: what is close is to be trained with more seeds."
    ),
)
# So long that a run of WRN-28-10 ends within ten minutes of an H200, with 60 to 90 seconds to begin, to choose kernels
# and to compile, and 40 to spare. Before its convolutions each branch of a WRN normalises the trunk's maps for itself,
# so steps of more and narrower experts take longer than their multiplications say.
TODAY = Table(
    "today",
    "Networks of today on CIFAR-100: base and experts by the same recipe, in the same time",
    (
        _base_of_today("resnet18-cifar", "base", 200),
        _experts_of_today("resnet18-cifar", "", 10, 0.25, (20, 134)),
        _base_of_today("wrn-28-10", "base", 100),
        _experts_of_today("wrn-28-10", "", 5, 0.5, (9, 74)),
    ),
)
NOT_OF_THE_PAPER = (SEARCH, TODAY)

TABLES: dict[str, Table] = {
    table.name: table
    for table in (
        TABLE_1,
        TABLE_2,
        TABLE_3,
        TABLE_4,
        SCRATCH,
        FROM_BASE,
        SIZES,
        FIGURE_3,
        RETRIEVAL,
        HDCNN,
        MIRRORING,
        PRECISION,
        *NOT_OF_THE_PAPER,
        *OF_IMAGENET,
    )
}


def tables_named(names: list[str]) -> list[Table]:
    """`all` is every one of the paper on CIFAR-100."""
    if "all" in names:
        return [table for table in TABLES.values() if table not in (*NOT_OF_THE_PAPER, *OF_IMAGENET)]
    for name in names:
        if name not in TABLES:
            raise UserError(f"{name}: no table or figure has this name; {did_you_mean(name, TABLES)}")
    return [TABLES[name] for name in names]


def experiments_of(tables: list[Table]) -> list[Experiment]:
    """Each once."""
    return list({each.name: each for table in tables for each in table.experiments()}.values())


def row_of(table: str, label: str) -> Row:
    return next(row for row in TABLES[table].rows if row.label == label)


def base_of_same_recipe(architecture: str) -> Row:
    """The row of Table 3 with the base by the experts' recipe: the paper's own, where they are the same."""
    labels = (f"{architecture}: base, experts' recipe", f"{architecture}: base, its own recipe")
    rows = {row.label: row for row in TABLE_3.rows}
    return next(rows[label] for label in labels if label in rows)


@functools.cache
def experiments_by_name() -> dict[str, Experiment]:
    return {each.name: each for each in experiments_of(list(TABLES.values()))}
