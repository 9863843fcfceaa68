"""The table of the README: base and experts by the same recipe, beside the paper's."""

import statistics

from nofe.experiments.index import Index
from nofe.experiments.page import mean_and_deviation
from nofe.experiments.paper_tables import PAPER_TABLE_3, label_as_long
from nofe.experiments.tables import base_of_same_recipe, row_of
from nofe.report.text import markdown_table

BEGIN, END = "<!-- made by nofe results -->", "<!-- end -->"
NAMES = {
    "alexnet-quick-c100": "AlexNet-Quick-C100",
    "alexnet-c100": "AlexNet-C100",
    "vgg11-c100": "VGG11-C100",
    "nin-c100": "NIN-C100",
    "resnet56-c100": "ResNet56-C100",
}


def comparison_table(index: Index) -> str:
    rows = []
    for name, of_paper in PAPER_TABLE_3.items():
        longer, of_experts = (row_of("table-3", label) for label in (label_as_long(name), f"{name}: experts"))
        base, as_long, experts = (
            [each.accuracy for each in index.of(row)] for row in (base_of_same_recipe(name), longer, of_experts)
        )
        gain = f"{statistics.mean(experts) - statistics.mean(base):+.2f}" if base and experts else ""
        measured = (mean_and_deviation(each) for each in (base, as_long, experts))
        rows.append((NAMES[name], *measured, gain, *(f"{each:.2f}" for each in of_paper)))
    head = ("network", "base", "base, longer", "experts", "gain", "paper: base", "paper: experts")
    return markdown_table(head, rows)


def with_table(readme: str, table: str) -> str:
    """The text with the table between its marks; as it is if it has none."""
    before, begin, rest = readme.partition(BEGIN)
    _, end, after = rest.partition(END)
    return f"{before}{BEGIN}\n\n{table}\n\n{END}{after}" if begin and end else readme
