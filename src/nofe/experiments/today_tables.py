"""Networks of today on CIFAR-100: base and experts by the same recipe in the same time, and the search before."""

from nofe.config import with_settings
from nofe.experiments.table import Experiment, Row, Table
from nofe.recipes import default_run

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
    """`epochs` are those of generalist and experts; `so` says what else is special about the row."""
    # About ten updates of the specialties, however short the generalist: they settle by then (generalists, `exact`).
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
    note="Number, width and cut of WRN-28-10's experts are a guess until the search above has chosen them.",
)
