"""A run in plain text: what the commands print."""

import json
from collections.abc import Iterable, Mapping, Sequence, Sized
from pathlib import Path
from typing import Any

from nofe import runs
from nofe.report.against import BASES, PAIRS, base_of, difference_in_words, gain, most_changed
from nofe.report.record import Alone, judged_by
from nofe.runs import Run
from nofe.suggestions import all_of, counted

SMALL = 64  # pixels a side that a network reads, or fewer, if it is made for small images
MUCH_LARGER = 2  # times as large as it is stored
MOST = 0.75  # of the side of an image, or more, is read by every recipe
GLANCE = 20  # experts, and classes of each, that are listed when a training ends
TOP = 5  # most probable classes, of which one should be the right one


def span_in_words(values: Sequence[int]) -> str:
    low, high = min(values), max(values)
    return f"{low}" if low == high else f"{low} to {high}"


def comparison(summary: dict[str, Any]) -> str:
    """Base, generalist and experts side by side."""
    rows = [
        (
            network_name(stage, len(summary.get("specialties", ())) or summary["config"]["specialties"]["count"]),
            f"{figures['accuracy']:.2%}",
            f"{figures['parameters']:,}",
            f"{figures['epochs']}",
            f"{figures['seconds']:,.0f}",
        )
        for stage, figures in summary["networks"].items()
    ]
    text = table(("network", "accuracy", "parameters", "epochs", "seconds"), rows)
    base, experts = summary["networks"].get("base"), summary["networks"].get("experts")
    if base is not None and experts is not None:
        images = sum(each["images"] for each in summary["specialties"])
        what = judged_by(summary["config"]["data"]["hold_out"] > 0)
        side = gain_in_words(experts["accuracy"], base["accuracy"], images, what)
        text += f"\n\nBy the same recipe the experts are {side}."
    said = that_learned_nothing(summary["networks"])
    return text if said is None else f"{text}\n\n{said}"


def that_learned_nothing(networks: Mapping[str, Mapping[str, Any]]) -> str | None:
    """A gain over a network that names one class, whatever it sees, is none."""
    names = {"base": "the base", "base-paper": "the base by the paper's recipe", "experts": "the network of experts"}
    stages = [stage for stage, of in networks.items() if of.get("classes_named") == 1 and of["accuracy"] < 1]
    if not stages:
        return None
    rates = dict.fromkeys("base.paper.rate" if stage == "base-paper" else "experts.rate" for stage in stages)
    who, alone = all_of(names[stage] for stage in stages), len(stages) == 1
    return (
        f"{who[0].upper()}{who[1:]} {'names' if alone else 'name'} the same class for all images: "
        f"{'it' if alone else 'they'} learned nothing, so there is nothing to compare; try a lower rate "
        f"(--set {all_of(f'{rate}=...' for rate in rates)}) or another --recipe in a new run."
    )


def gain_in_words(experts: float, base: float, images: int, what: str) -> str:
    """In points and in images: where images are few, one of them is many points."""
    gain = 100 * (experts - base)
    if not round(gain, 2):
        return "as good as the base"
    count = f"{round(abs(gain) * images / 100):,} of {images:,} {what}"
    return f"{abs(gain):.2f} points {'above' if gain > 0 else 'below'} the base ({count})"


def specialties_that_stayed(updates: Sequence[Mapping[str, Any]]) -> str | None:
    """A warning for a rule that should have learned the specialties and did not; None where a class moved."""
    if any(each["moved"] for each in updates):
        return None
    count = len(updates)
    why = f"no class moved in {counted(count, 'update')}" if count else "there was no update"
    return (
        f"{why} of the specialties, so they are still the random ones at the start; try more epochs of the generalist "
        "(--set generalist.epochs=N), or --rule spectral"
    )


def specialties_left_empty(asked: int, experts: int) -> str | None:
    """A warning for a rule that gave all classes to some of its specialties; None where each has some."""
    if experts == asked:
        return None
    left = "one expert has all classes, as a plain network" if experts == 1 else f"there are {experts:,} experts"
    empty = asked - experts
    return (
        f"{empty:,} of {asked:,} specialties {'is' if empty == 1 else 'are'} empty, so {left}; --rule exact fills all, "
        "elasso more of them with a larger specialties.strength"
    )


def images_in_words(images: dict[str, Any]) -> str:
    """What is about to be trained on, with a hint where the network sees little of it."""
    stored, read, usual = images["stored"], images["read"], images["usual"]
    said = (
        f"{images['dataset']}: {images['classes']:,} classes, {images['train']:,} training and {images['test']:,} "
        f"{judged_by(images['held_out'])} of {stored} x {stored} pixels"
    )
    if read != stored:
        said += f", read as crops of {read} x {read}"
    if read <= SMALL and usual is not None and usual >= MUCH_LARGER * stored:
        said += (
            f"\nThe files are of about {usual:,} pixels a side, and {images['architecture']} reads {read}; details may "
            "be lost. --architecture timm:resnet18 --pretrained reads 224 (docs/networks.md)"
        )
    if read < MOST * stored:
        said += (
            f"\nOf each image of {stored} pixels a side {images['architecture']} reads only {read}, when it is judged "
            f"the middle; bring images of about {read} pixels, or use a network that reads {stored} (docs/networks.md)"
        )
    if repeated := images["repeated"]:
        here, there = next(iter(repeated.items()))
        said += (
            f"\n{repeated_in_words(repeated, judged_by(images['held_out']))} (first: {here} is {there}), so the "
            f"accuracies are not those of unseen images; take one of each two away, by the list in {runs.ENVIRONMENT}"
        )
    if larger := images["larger_batches"]:
        fields = ", ".join(f"{field}={batch}" for field, batch in larger.items())
        said += f"\n{fields}: more than there are training images, so a step sees all {images['train']:,} of them"
    return said


def repeated_in_words(repeated: Sized, what: str) -> str:
    count = len(repeated)
    return f"{count:,} of the {what} {'is' if count == 1 else 'are'} among those to train on, too, pixel for pixel"


def sizes_in_words(sizes: dict[str, dict[str, int]]) -> str:
    """What is about to be trained."""
    rows = [
        (name, f"{size['parameters']:,}", f"{size['multiplications'] / 1e6:,.1f} million")
        for name, size in sizes.items()
    ]
    return table(("network", "parameters", "multiplications an image"), rows) + "\n"


def network_name(stage: str, specialties: int) -> str:
    names = {
        "base": "base, by the experts' recipe",
        "base-paper": "base, by the paper's recipe",
        "generalist": f"generalist, over {counted(specialties, 'specialty', 'specialties')}",
        "experts": "network of experts",
    }
    return names.get(stage, stage)


def specialties_in_words(run: Path) -> str:
    """All classes of every expert."""
    return "\n".join(f"expert {each['index']:>2}: {listed(each['class_names'])}" for each in _specialties_of(run))


def specialties_at_a_glance(run: Path) -> str:
    """The first classes of the first experts: thousands of names would bury the rest of what is said."""
    specialties = _specialties_of(run)
    names = [each["class_names"] for each in specialties]
    if len(names) <= GLANCE and max(map(len, names)) <= GLANCE:
        return specialties_in_words(run)
    lines = []
    for each in specialties[:GLANCE]:
        more = len(each["class_names"]) - GLANCE
        shown = listed(each["class_names"][:GLANCE]) + (f", and {more:,} more" if more > 0 else "")
        lines.append(f"expert {each['index']:>2}: {shown}")
    more = len(names) - GLANCE
    lines += [f"and {counted(more, 'more expert')}"] if more > 0 else []
    return "\n".join([*lines, f"All classes of each: nofe specialties {run}"])


def _specialties_of(run: Path) -> list[dict[str, Any]]:
    specialties: list[dict[str, Any]] = Run(run).read_json(runs.SPECIALTIES)["specialties"]
    return specialties


def listed(names: Iterable[str]) -> str:
    return ", ".join(map(quoted, names))


def quoted(name: str) -> str:
    """In a list a class "jay, blue" would be two; what cannot be printed, such as a line break, could do anything."""
    is_alone = "," not in name and name == name.strip()
    return name if is_alone and name.isprintable() else json.dumps(name, ensure_ascii=not name.isprintable())


def evaluation_in_words(figures: dict[str, Any]) -> str:
    top_5 = ("top_5",) if len(figures["classes"]) > TOP else ()  # of five classes it is always right
    sizes = {each["images"] for each in figures["classes"] if each["images"]}
    mean = ("mean_over_classes",) if len(sizes) > 1 else ()  # of equal classes it is top-1
    kinds = ("top_1", *top_5, *mean, "confused_inside", "confused_across")
    stages = [stage for stage in (*BASES, "experts") if stage in figures]
    known = [kind for kind in kinds if all(kind in figures[stage] for stage in stages)]  # a base has no specialties
    rows = [(stage, *(f"{figures[stage][kind]:.2%}" for kind in known)) for stage in stages]
    head = ("network", *(kind.replace("top_", "top-").replace("_", " ") for kind in known))
    text = f"{figures['run']}: {figures['images']:,} {judged_by(figures.get('held_out', False))}\n\n{table(head, rows)}"
    if "experts" not in figures:
        return text
    by_specialty = [
        (
            f"{each['specialty']}",
            f"{each['classes']}",
            f"{each['images']:,}",
            *(
                f"{each[share]:.2%}" if each["images"] else ""
                for share in ("accuracy", "confused_inside", "confused_across")
            ),
        )
        for each in figures["specialties"]
    ]
    head = ("expert", "classes", "images", "accuracy", "confused inside", "confused across")
    text = f"{text}\n\n{table(head, by_specialty)}"
    base = base_of(figures)
    return text if base is None else f"{text}\n\n{_against_the_base(figures, base)}"


def _against_the_base(figures: dict[str, Any], base: str) -> str:
    alone = Alone(figures["alone"]["experts"], figures["alone"]["base"])
    blocks = [difference_in_words(figures[base], figures["experts"], figures["images"], alone)]
    gained, lost = most_changed(figures["classes"], base)
    for title, classes in (("gained most", gained), ("lost most", lost)):
        rows = [
            (
                quoted(each["name"]),
                f"{each['specialty']}",
                f"{each['images']:,}",
                f"{each['accuracy'][base]:.2%}",
                f"{each['accuracy']['experts']:.2%}",
                f"{100 * gain(each, base):+.2f}",
            )
            for each in classes
        ]
        if rows:
            blocks.append(table((f"class that {title}", "expert", "images", base, "experts", "points"), rows))
    pairs = [
        (
            " and ".join(map(quoted, each["names"])),
            f"{each['images']:,}",
            f"{each['confused'][base]:,}",
            f"{each['confused']['experts']:,}",
            place_in_words(each["specialties"]),
        )
        for each in figures["pairs"][:PAIRS]
    ]
    if pairs:
        blocks.append(table(("pair that the base confuses most", "images", base, "experts", "specialties"), pairs))
    return "\n\n".join(blocks)


def place_in_words(experts: Sequence[int]) -> str:
    """Of a pair of classes, by the experts that own them."""
    first, second = experts
    return f"inside {first}" if first == second else f"across {first} and {second}"


def prediction_in_words(answer: dict[str, Any]) -> str:
    if "error" in answer:
        return f"{answer['file']}\ncannot be read: {answer['error']}"
    rows = [(quoted(each["class"]), f"{each['probability']:.2%}", f"{each['expert']}") for each in answer["top"]]
    return f"{answer['file']}\n{table(('class', 'probability', 'expert'), rows)}"


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """The first column to the left, the others to the right."""
    widths = [max(len(line[i]) for line in (head, *rows)) for i in range(len(head))]

    def aligned(line: Sequence[str]) -> str:
        first, *rest = line
        return "  ".join([first.ljust(widths[0]), *(cell.rjust(w) for cell, w in zip(rest, widths[1:], strict=True))])

    return "\n".join([aligned(head), "  ".join("-" * width for width in widths), *map(aligned, rows)])


def markdown_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    titles, *body = (f"| {' | '.join(cells)} |" for cells in (head, *rows))
    return "\n".join([titles, "|---" * len(head) + "|", *body])
