"""A run in plain text: what the commands print."""

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from nofe import runs
from nofe.report.against import BASES, PAIRS, base_of, difference_in_words, gain, most_changed
from nofe.report.record import judged_by
from nofe.runs import Run
from nofe.suggestions import counted

SMALL = 64  # pixels a side that are made for small images: a photo loses more than in 224
MUCH_LARGER = 2  # times
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
    return text


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
    if larger := images["larger_batches"]:
        fields = ", ".join(f"{field}={batch}" for field, batch in larger.items())
        said += f"\n{fields}: more than there are training images, so a step sees all {images['train']:,} of them"
    return said


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
        "generalist": f"generalist, over {specialties} specialties",
        "experts": "network of experts",
    }
    return names.get(stage, stage)


def specialties_in_words(run: Path) -> str:
    described = Run(run).read_json(runs.SPECIALTIES)
    lines = [f"expert {each['index']:>2}: {listed(each['class_names'])}" for each in described["specialties"]]
    return "\n".join(lines)


def listed(names: Iterable[str]) -> str:
    return ", ".join(map(quoted, names))


def quoted(name: str) -> str:
    """In a list a class "jay, blue" would be two."""
    return json.dumps(name, ensure_ascii=False) if "," in name else name


def evaluation_in_words(figures: dict[str, Any]) -> str:
    top_5 = ("top_5",) if len(figures["classes"]) > TOP else ()  # of five classes it is always right
    kinds = ("top_1", *top_5, "confused_inside", "confused_across")
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
    blocks = [difference_in_words(figures[base], figures["experts"], figures["images"])]
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
    rows = [(each["class"], f"{each['probability']:.2%}", f"{each['expert']}") for each in answer["top"]]
    return f"{answer['file']}\n{table(('class', 'probability', 'expert'), rows)}"


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """The first column to the left, the others to the right."""
    widths = [max(len(line[i]) for line in (head, *rows)) for i in range(len(head))]

    def aligned(line: Sequence[str]) -> str:
        first, *rest = line
        return "  ".join([first.ljust(widths[0]), *(cell.rjust(w) for cell, w in zip(rest, widths[1:], strict=True))])

    return "\n".join([aligned(head), "  ".join("-" * width for width in widths), *map(aligned, rows)])


def timings_in_words(measured: dict[str, Any]) -> str:
    head = (
        *("network", "mode", "task", "C", "K", "batch", "ms", "images/s"),
        *("x base", "x work", "peak MB", "share of peak"),
    )
    work = {
        (timing["case"]["task"], timing["case"]["batch"], timing["case"]["classes"]): timing["gigaflops"]
        for timing in measured["timings"]
        if timing["case"]["network"] == "base"
    }
    rows = []
    for timing in measured["timings"]:
        case = timing["case"]
        ratio, memory = timing["ratio_to_base"], timing["peak_megabytes"]
        of_base = work.get((case["task"], case["batch"], case["classes"]))
        rows.append(
            (
                case["network"],
                case["mode"],
                case["task"],
                f"{case['classes']:,}",
                "" if case["network"] == "base" else f"{case['experts']}",
                f"{case['batch']}",
                f"{timing['milliseconds']:.3f}",
                f"{timing['images_per_second']:,.0f}",
                "" if ratio is None else f"{ratio:.3f}",
                f"{timing['gigaflops'] / of_base:.3f}" if of_base else "",
                "" if memory is None else f"{memory:,.0f}",
                f"{timing['share_of_peak']:.1%}",
            )
        )
    device = measured["environment"]["device"]
    return f"{measured['architecture']} on {device}, {measured['environment']['precision']}\n\n{table(head, rows)}"


def runs_in_words(measured: dict[str, Any]) -> str:
    """What one of several trainings costs the device that they share."""
    rows = [
        (
            row["case"]["network"],
            row["case"]["mode"],
            f"{row['at_once']}",
            f"{row['share_of_each']}%",
            f"{row['milliseconds_a_step']:.3f}",
            f"{row['seconds_an_epoch']:.3f}",
            f"{row['slowest_to_fastest']:.0%}",
        )
        for row in measured["runs"]
    ]
    head = ("network", "mode", "at once", "may use", "ms a step / runs", "s an epoch / runs", "slowest to fastest")
    environment = measured["environment"]
    return f"{measured['architecture']} on {environment['device']}, {environment['precision']}\n\n{table(head, rows)}"


def jobs_in_words(measured: dict[str, Any]) -> str:
    """Whole trainings, each with the parts of its time."""
    jobs = measured["jobs"]
    parts = list(dict.fromkeys(part for job in jobs for part, seconds in job["parts"].items() if seconds >= 0.05))
    rows = [
        (
            job["environment"]["commit"],
            job["rule"],
            f"{job['seed']}",
            f"{job['accuracy']:.2%}",
            f"{job['seconds']:.1f}",
            *(f"{job['parts'].get(part, 0):.1f}" for part in parts),
            f"{job['seconds'] - sum(job['parts'].values()):.1f}",
        )
        for job in jobs
    ]
    environment = jobs[-1]["environment"]
    title = f"{measured['architecture']} on {environment['device']}, {environment['precision']}, seconds"
    note = f"\n\n{measured['note']}" if "note" in measured else ""
    return f"{title}\n\n{table(('commit', 'rule', 'seed', 'accuracy', 'all', *parts, 'imports, start'), rows)}{note}"


def losses_in_words(measured: dict[str, Any]) -> str:
    """How far the first steps are from those of the plainest way."""

    def difference(each: dict[str, Any] | None) -> tuple[str, str]:
        return (f"{each['largest_difference']:.2e}", each["weight"]) if each else ("", "")

    rows = [
        (name, f"{each['largest_difference']:.2e}", *difference(each["gradient"]), *difference(each.get("move")))
        for name, each in measured["compared"].items()
    ]
    environment = measured["environment"]
    title = f"{measured['architecture']} on {environment['device']}, {environment['precision']}, {measured['data']}; "
    title += f"K={measured['experts']}, " if measured["network"] == "experts" else ""
    title += f"batch {measured['batch']}, rate {measured['rate']:g}; largest relative difference of losses over the "
    title += f"first {measured['steps']} steps, of a weight's gradient in the first"
    if "steps_of_moves" in measured:
        title += f", and of how far a weight has moved after {measured['steps_of_moves']}"
    head = (f"beside the {measured['beside']}", "losses", "gradients", "of", "moves", "of")
    return f"{title}\n\n{table(head, rows)}"


def update_in_words(measured: dict[str, Any]) -> str:
    """What an update of the specialties costs beside an epoch."""
    ms = measured["milliseconds"]
    rows = [
        (
            rule,
            f"{ms['confusion']:,.1f}",
            f"{each['assignment']:,.1f}",
            f"{ms['epoch']:,.0f}",
            f"{each['share_of_epoch']:.2%}",
        )
        for rule, each in measured["rules"].items()
    ]
    device = measured["environment"]["device"]
    title = f"{measured['architecture']} on {device}, {measured['environment']['precision']}, {measured['mode']}; "
    title += f"C={measured['classes']:,}, K={measured['experts']}, {measured['epoch_images']:,} images an epoch, "
    title += f"{measured['confusion_images']:,} of them counted"
    head = ("rule", "confusion, ms", "assignment, ms", "epoch, ms", "update, share of epoch")
    return f"{title}\n\n{table(head, rows)}"


def data_in_words(measured: dict[str, Any]) -> str:
    """How fast images come, step by step, and which step is the limit."""
    speeds: dict[str, float] = measured["images_per_second"]
    where = {"read": "one process", "decode": f"one process, plain JPEGs by {measured['jpegs_by']}"}
    where |= {"resize": "one process"}
    where |= {"workers": f"{measured['workers']} processes: read, decode, resize", "whole": "all at once"}
    where |= {
        "step": f"the device, {measured['experts']} experts, {measured.get('mode')}, on images that are there",
        "train": "the loop itself",
    }
    lines = [f"{name:<8} {speed:>12,.0f} images/s  {where.get(name, 'the device')}" for name, speed in speeds.items()]
    average = 1e6 * measured["megabytes"] / max(measured["images"], 1)
    head = (
        f"{measured['images']:,} images of {average / 1e3:,.1f} KB to {measured['image_size']} pixels, batches of "
        f"{measured['batch']}, on {measured['environment']['device']}, {measured['environment']['precision']}"
    )
    inside = "" if measured["inside"] == measured["limit"] else f", there {measured['inside']}"
    tail = f"The limit is {measured['limit']}{inside}: {measured['advice']}."
    return "\n".join((head, "", *lines, "", tail))
