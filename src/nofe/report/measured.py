"""What `nofe bench` measured in plain text, for a terminal and for the page of speed."""

from typing import Any

from nofe.report.text import table


def _of_what(measured: dict[str, Any]) -> str:
    environment = measured["environment"]
    return f"{measured['architecture']} on {environment['device']}, {environment['precision']}"


AS_BRANCHES = "*"


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
                case["network"] + AS_BRANCHES * timing.get("by_branches", False),
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
    as_branches = any(timing.get("by_branches", False) for timing in measured["timings"])
    note = f"\n\n{AS_BRANCHES} Branches one after another, as fused experts were not faster." if as_branches else ""
    return f"{_of_what(measured)}\n\n{table(head, rows)}{note}"


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
    return f"{_of_what(measured)}\n\n{table(head, rows)}"


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
    title = f"{_of_what(measured | {'environment': jobs[-1]['environment']})}, seconds"
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
    title = f"{_of_what(measured)}, {measured['data']}; "
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
    title = f"{_of_what(measured)}, {measured['mode']}; "
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
