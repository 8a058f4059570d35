"""Describes a grid as text: how rows are spread over slots, and how many copies are sent."""

from __future__ import annotations

from collections.abc import Mapping

from anabranch.balance.first import FirstTable
from anabranch.plan.join_graph import JoinGraph

MOST_SLOTS = 16


def describe_grid(first: FirstTable, graph: JoinGraph, rates: Mapping[str, float]) -> str:
    """Returns the dimensions of the grid, the rows sent over the rows read for each relation, and the work of slots.

    `rates` are rows per second, by relation.
    """
    partitioning = first.partitioning
    keys = {key.name: str(key) for key in graph.keys}
    lines = [f"slots {partitioning.slots}, {partitioning.groups} partition groups"]
    for dimension in partitioning.dimensions:
        by = keys.get(dimension.code, f"a hash of each row of {', '.join(sorted(dimension.relations))}")
        parts = f"{dimension.share} parts" if dimension.share > 1 else "not cut"
        lines.append(f"  {parts} by {by}")
    tables = {each.name for each in graph.relations if each.is_table}
    rows = [
        (name, "table" if name in tables else f"{rates[name]:.4g}", f"{partitioning.copies([name]):.4g}")
        for name in graph.names
        if name in rates
    ]
    total = sum(rate for name, rate in rates.items() if name not in tables)
    table = [
        ("relation", "rows/s", "sent over read"),
        *rows,
        ("all", f"{total:.4g}", f"{partitioning.sent(rates):.4g}"),
    ]
    widths = [max(len(row[column]) for row in table) for column in range(3)]
    lines += [
        "  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in table
    ]
    work = ", ".join(f"{share:.1%}" for share in first.shares[:MOST_SLOTS])
    more = " …" if partitioning.slots > MOST_SLOTS else ""
    lines.append(f"  expected work of slots {work}{more}; the slowest {first.skew:.2f} times the average")
    return "\n".join(lines)
