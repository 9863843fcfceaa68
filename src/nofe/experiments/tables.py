"""Every table and figure by its name, and what is in them."""

import functools

from nofe.errors import UserError
from nofe.experiments.imagenet_tables import OF_IMAGENET
from nofe.experiments.paper_tables import (
    FROM_BASE,
    GENERALISTS,
    HDCNN,
    MIRRORING,
    PRECISION,
    RETRIEVAL,
    SCRATCH,
    SIZES,
    TABLE_1,
    TABLE_2,
    TABLE_3,
    TABLE_4,
)
from nofe.experiments.table import Experiment, Row, Table
from nofe.experiments.today_tables import SEARCH, TODAY
from nofe.suggestions import did_you_mean

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
        GENERALISTS,
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
