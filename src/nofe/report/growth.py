"""How the cost grows with the number of experts or of classes, as a picture; from the table of `nofe bench --grow`."""

import io
from typing import Any

from nofe.report.figures import COLOURS, INK, WIDTH, figure_style

DASHES = {"train": "-", "forward": "--", "inference": ":"}
TASKS = {"train": "training step", "forward": "forward", "inference": "inference"}
NETWORKS = {"loop": "experts in a loop", "fused": "experts, fused"}
LINES = {"loop": COLOURS["base"], "fused": COLOURS["experts"]}


def growth_svg(table: dict[str, Any], what: str) -> bytes:
    """`what` is experts, K, or classes, C. Time as a multiple of the base's in the same task."""
    import matplotlib.style
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D
    from matplotlib.ticker import NullLocator

    with matplotlib.style.context(["default", figure_style(), {"svg.hashsalt": "nofe", "svg.fonttype": "none"}]):
        figure = Figure(figsize=(WIDTH, 3.3))
        axes = figure.subplots()
        drawn = [
            timing for timing in table["timings"] if timing["case"]["network"] in LINES and timing["ratio_to_base"]
        ]
        pairs = sorted({(timing["case"]["network"], timing["case"]["task"]) for timing in drawn})
        for network, task in pairs:
            own = [t for t in drawn if (t["case"]["network"], t["case"]["task"]) == (network, task)]
            places = [timing["case"][what] for timing in own]
            ratios = [timing["ratio_to_base"] for timing in own]
            axes.plot(places, ratios, color=LINES[network], linestyle=DASHES[task], marker="o")
        places = sorted({timing["case"][what] for timing in drawn})
        axes.set_xscale("log")
        axes.set_xticks(places, [f"{place:,}" for place in places])
        axes.xaxis.set_minor_locator(NullLocator())
        axes.set(xlabel=f"{what} ({'K' if what == 'experts' else 'C'})", ylabel="time, as a multiple of the base's")
        axes.set_ylim(0, None)
        networks = dict.fromkeys(network for network, _ in pairs)
        tasks = dict.fromkeys(task for _, task in pairs)
        handles = [Line2D([], [], color=LINES[network], label=NETWORKS[network]) for network in networks]
        handles += [Line2D([], [], color=INK, ls=DASHES[task], label=TASKS[task]) for task in tasks]
        figure.legend(handles=handles, loc="outside lower center", ncols=2)
        buffer = io.BytesIO()
        figure.savefig(buffer, format="svg", metadata={"Date": None})
    return buffer.getvalue()
