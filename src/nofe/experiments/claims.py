"""The paper's claims on CIFAR-100, each judged by what was measured here."""

import statistics
from collections.abc import Callable, Sequence

from nofe.experiments.comparison import HELD, Comparison, Figures, Judged
from nofe.experiments.estimates import epochs_of
from nofe.experiments.index import Index, Measured, stayed_as_drawn
from nofe.experiments.paper_tables import (
    ALEXNET,
    ARGMAX,
    EPOCHS_OF_RELEASE,
    KS,
    LABEL_OF_RELEASE,
    PAPER_TABLE_3,
    RESNET,
    RETRIEVAL,
    UNEVEN,
    is_own_recipe,
    label_as_long,
)
from nofe.experiments.table import Row
from nofe.experiments.tables import base_of_same_recipe, row_of
from nofe.recipes import base_by

SPECTRAL = "spectral clustering of the base's confusion"
PAPER_RULES = ("fully-balanced", "elasso")
PEAK = 10  # experts, the best of the paper's Table 1; not chosen by the figures it is compared with
SHOWN = "3"  # neighbours
Figure = Callable[[str, str], Figures]  # (table, label of a row) -> what was measured


def judged(index: Index, *, once_a_seed: bool = False) -> list[Judged]:
    """Every claim. `once_a_seed` takes one figure for each seed, the mean of its runs: they may not be independent."""

    def figure(table: str, label: str) -> Figures:
        measured = index.of(row_of(table, label))
        if not once_a_seed:
            return [each.accuracy for each in measured]
        seeds = sorted({each.seed for each in measured})
        return [statistics.mean(each.accuracy for each in measured if each.seed == seed) for seed in seeds]

    collapsed = why_no_experts_are_left(index.of(row_of("table-2", ARGMAX)))
    learned = figure("table-2", "learned, fully-balanced")

    return [
        Judged("Experts beat the base", tuple(experts_and_base(figure))),
        Judged("Experts beat the base for every K above two", tuple(_every_k_and_base(index, figure))),
        Judged(
            "Balance matters",
            (
                Comparison(
                    "fully-balanced and argmax, which nothing balances", learned, figure("table-2", ARGMAX), collapsed
                ),
                Comparison("fully-balanced and elasso with little balance", learned, figure("table-2", UNEVEN)),
            ),
        ),
        Judged("fully-balanced is slightly better than elasso", tuple(_fully_balanced_and_elasso(index, figure))),
        Judged(
            "Learned specialties beat random and spectral ones",
            (
                Comparison("fully-balanced and random ones", learned, figure("table-2", "random, balanced")),
                Comparison("fully-balanced and spectral clusters", learned, figure("table-2", SPECTRAL)),
            ),
        ),
        Judged(
            "The generalist recognises learned specialties best (the paper: on ImageNet)",
            tuple(_generalists(figure)),
        ),
        Judged(
            "Experts of learned specialties beat those of groups that people made (the paper has the generalist alone)",
            (
                Comparison(
                    "fully-balanced and 10 pairs of superclasses",
                    learned,
                    figure("table-2", "10 pairs of superclasses"),
                ),
                Comparison(
                    "fully-balanced, K=20, and the 20 superclasses",
                    figure("table-1", "fully-balanced, K=20"),
                    figure("table-2", "CIFAR-100's 20 superclasses (K=20)"),
                ),
            ),
        ),
        Judged(
            "The generalist is needed: experts on its trunk beat experts from scratch",
            tuple(
                Comparison(
                    f"{name}, trunk from the generalist and from scratch",
                    figure("scratch", f"{name}: from the generalist"),
                    figure("scratch", f"{name}: from scratch"),
                )
                for name in (ALEXNET, RESNET)
            ),
        ),
        Judged(
            "The generalist needs no trained base to start from",
            (
                Comparison(
                    f"{ALEXNET}, generalist from random weights and from the base",
                    figure("from-base", "experts, generalist from random weights"),
                    figure("from-base", "experts, generalist from the base"),
                    remark="from the base the trunk has had "
                    f"{epochs_of_row(f'{ALEXNET}: base, its own recipe')} epochs more, which may be why",
                ),
            ),
        ),
        Judged("Neither depth nor parameters explain the gain", tuple(sizes(figure))),
        Judged(
            "Experts beat HD-CNN, which has twice their parameters",
            (Comparison("nin-c100, experts and HD-CNN", figure("hd-cnn", "experts"), figure("hd-cnn", "HD-CNN")),),
        ),
        Judged("Neighbours by the experts' features are better than by the base's", tuple(_neighbours(index))),
        Judged(f"Accuracy over K is an inverted U: it rises to K={PEAK}", tuple(peak_and(KS[0], index, figure))),
        Judged(f"Accuracy over K is an inverted U: it falls beyond K={PEAK}", tuple(peak_and(KS[-1], index, figure))),
    ]


def _generalists(figure: Figure) -> list[Comparison]:
    """Its Fig. 2, by specialties of one size: uneven ones, as spectral clusters are, would be easier."""
    by_exact = figure("generalists", "learned, exact")
    remark = f"of those learned by the rule exact: {statistics.mean(by_exact):.2f}" if by_exact else ""
    return [
        Comparison(
            f"generalists of {words}",
            figure("generalists", "learned, fully-balanced"),
            figure("generalists", label),
            remark=remark,
        )
        for words, label in (
            ("learned specialties and of random ones", "random"),
            ("learned specialties and of 10 pairs of superclasses", "10 pairs of superclasses"),
        )
    ]


def why_no_experts_are_left(measured: Sequence[Measured]) -> str:
    """Where networks ended with a single expert, what that means for a comparison; else nothing."""
    left = [len(each.result["specialties"]["specialties"]) for each in measured]
    if not left or min(left) > 1:
        return ""
    asked = measured[0].result["config"]["specialties"]["count"]
    return (
        f"one specialty of {asked} had taken all classes, and the generalist learned no more from then on; what is "
        "left is no uneven network of experts, but one branch on a trunk that was hardly trained"
    )


def _of_table_1(figure: Figure, words: str, above: str, below: str, remark: str = "") -> Comparison:
    remarks = (remark, _if_paper_has_less(above, below))
    return Comparison(
        words, figure("table-1", above), figure("table-1", below), remark="; ".join(each for each in remarks if each)
    )


def _if_paper_has_less(above: str, below: str) -> str:
    """It says of all K what its own table does not have of each."""
    first, second = (row_of("table-1", label).paper for label in (above, below))
    if first is None or second is None or first >= second:
        return ""
    return f"in the paper's own table it is {first:.2f} and {second:.2f}"


def _every_k_and_base(index: Index, figure: Figure) -> list[Comparison]:
    """Table 1: all but K=2, of which the paper says that it is comparable."""
    return [
        _of_table_1(figure, f"{label}, and the base", label, "base", _if_random(index, label))
        for label in (f"{rule}, K={count}" for rule in PAPER_RULES for count in KS[1:])
    ]


def _fully_balanced_and_elasso(index: Index, figure: Figure) -> list[Comparison]:
    first, second = PAPER_RULES
    return [
        _of_table_1(
            figure,
            f"{first} and {second}, K={count}",
            f"{first}, K={count}",
            f"{second}, K={count}",
            _if_random(index, f"{second}, K={count}") or _if_equal(index, f"{second}, K={count}"),
        )
        for count in KS
    ]


def _if_random(index: Index, label: str) -> str:
    of_rule = label.partition(",")[0]
    return f"{of_rule}'s specialties stayed random" if stayed_as_drawn(index.of(row_of("table-1", label))) else ""


def _if_equal(index: Index, label: str) -> str:
    """Then size is not what is compared."""
    measured = index.of(row_of("table-1", label))
    sizes = {part["size"] for each in measured for part in each.result["specialties"]["specialties"]}
    return f"{label.partition(',')[0]}'s specialties came out equal, too" if len(sizes) == 1 else ""


def experts_and_base(figure: Figure) -> list[Comparison]:
    """Against the base by the same recipe, for each that both were trained by; and against a longer training."""
    by_recipe = [
        Comparison(
            f"{name}, experts and base by the same recipe",
            figure("table-3", f"{name}: experts"),
            figure("table-3", base_of_same_recipe(name).label),
            remark=_if_generalist_mirrors(name),
        )
        for name in PAPER_TABLE_3
    ]
    by_recipe_of_base = [
        Comparison(
            f"{name}, experts and base by the base's own recipe",
            figure("table-3", f"{name}: experts, base's recipe"),
            figure("table-3", f"{name}: base, its own recipe"),
        )
        for name in PAPER_TABLE_3
        if not is_own_recipe(name)
    ]
    by_steps_of_release = [
        Comparison(
            f"{name}, experts and base by the release's steps",
            figure("table-3", f"{name}: experts, the release's steps"),
            figure("table-3", f"{name}: {LABEL_OF_RELEASE}"),
        )
        for name in EPOCHS_OF_RELEASE
    ]
    as_long = [
        Comparison(
            f"{name}, experts and a base of {epochs_of_row(label_as_long(name))} epochs, where generalist and experts "
            f"have {epochs_of_row(f'{name}: experts')}",
            figure("table-3", f"{name}: experts"),
            figure("table-3", label_as_long(name)),
            remark=_if_generalist_mirrors(name),
        )
        for name in PAPER_TABLE_3
    ]
    return [*by_recipe, *by_recipe_of_base, *by_steps_of_release, *as_long]


def _if_generalist_mirrors(name: str) -> str:
    """Then the experts' trunk has seen images that their base never sees."""
    config = row_of("table-3", f"{name}: experts").experiment.config
    if config.generalist.augmentation.mirror <= config.experts.augmentation.mirror:
        return ""
    return (
        "mirrored images are the generalist's alone, as in the release: the experts' trunk has seen more than the base"
    )


def epochs_of_row(label: str) -> int:
    """Of Table 3, all stages together."""
    row = row_of("table-3", label)
    stages = epochs_of(row.experiment.config)
    return stages[row.network] if row.network.startswith("base") else stages["generalist"] + stages["experts"]


def sizes(figure: Figure) -> list[Comparison]:
    """Experts against bases of their size."""
    comparisons = [
        Comparison(
            f"{name}, experts and a base of the {what}",
            figure("table-4", f"{name}: experts"),
            figure("table-4", f"{name}: base, {what}"),
            _why_recipes_differ(f"{name}: experts", f"{name}: base, {what}"),
            _if_below_plain_base(figure("table-4", f"{name}: base, {what}"), figure("table-4", f"{name}: base")),
        )
        for name in (ALEXNET, "vgg11-c100", RESNET)
        for what in ("same parameters", "same parameters and depth")
    ]
    return [
        *comparisons,
        Comparison(
            f"{ALEXNET}, experts and a base with one more convolution",
            figure("from-base", "experts, generalist from random weights"),
            figure("from-base", "base with one more convolution"),
        ),
    ]


def _neighbours(index: Index) -> list[Comparison]:
    """Of three, which the paper shows: how many are of the query's class, in per cent."""

    def precision(row: Row, features: str) -> Figures:
        found = index.measures(row.experiment, "retrieval").values()
        return [100 * each["precision"][features][SHOWN] for each in found]

    return [
        Comparison(
            f"{row.label}, share of {SHOWN} neighbours that are of the query's class, by experts and by the base",
            precision(row, "experts"),
            precision(row, "base"),
            remark="the experts' layer is deeper, as in the paper",
        )
        for row in RETRIEVAL.rows
    ]


def _if_below_plain_base(larger: Figures, plain: Figures) -> str:
    """Then it is no test of what more parameters are worth."""
    if Comparison("", plain, larger).outcome != HELD:
        return ""
    return (
        f"this base is below the plain one, too ({statistics.mean(plain):.2f}): it trains badly, which says little of "
        "parameters"
    )


def _why_recipes_differ(experts: str, base: str) -> str:
    """Of two rows of Table 4, what another recipe means for a comparison; nothing where it is the same."""
    of_experts, of_base = (base_by(row_of("table-4", label).experiment.config.experts) for label in (experts, base))
    if of_experts == of_base:
        return ""
    return (
        f"the base begins at {of_base.rate:g}, the experts at {of_experts.rate:g}, where it did not learn; what it "
        "lacks may be due to that"
    )


def peak_and(end: int, index: Index, figure: Figure) -> list[Comparison]:
    """The paper's best K, ten, is above the first or the last, by each of the paper's rules."""
    return [
        _of_table_1(
            figure,
            f"{rule}, K={PEAK} and K={end}",
            f"{rule}, K={PEAK}",
            f"{rule}, K={end}",
            _if_random(index, f"{rule}, K={end}"),
        )
        for rule in PAPER_RULES
    ]
