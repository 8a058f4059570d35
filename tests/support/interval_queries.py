"""Hypothesis strategies for joins that conditions over event times bound, in text that CQL and DuckDB both accept.

Without windows a query is plain SQL, so DuckDB's answer over the whole streams is the batch answer. `closed` ends the
streams with rows far in the future, which let out everything that waits for the watermark; `is_open` finds results of
these rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa
from hypothesis import strategies as st

from tests.support.oracle import Answer
from tests.support.strategies import SECOND, Arrivals

END = 10_000 * SECOND
_SENTINEL = -1
BOUNDS = (
    "{b}.ts BETWEEN {a}.ts AND {a}.ts + INTERVAL 3 SECONDS",
    "{b}.ts BETWEEN {a}.ts - INTERVAL 2 SECONDS AND {a}.ts + INTERVAL 2 SECONDS",
    "{b}.ts BETWEEN {a}.ts + INTERVAL 1 SECONDS AND {a}.ts + INTERVAL 4 SECONDS",
    "{b}.ts > {a}.ts - INTERVAL 2 SECONDS AND {b}.ts < {a}.ts + INTERVAL 2 SECONDS",
    "{a}.ts <= {b}.ts + INTERVAL 5 SECONDS AND {b}.ts <= {a}.ts",
    "{a}.ts = {b}.ts",
)
_BESIDE = (
    "{a}.x = {b}.x",
    "{a}.x = {b}.x",
    "{a}.s = {b}.s",
    "{a}.x = {b}.y AND {a}.s = {b}.s",
    "{a}.p % 2 = {b}.p % 2",
)


@dataclass(frozen=True)
class IntervalJoin:
    """FROM and WHERE of a query, the aliases that SELECT may read, and those that are in every result."""

    source: str
    visible: tuple[str, ...]
    present: tuple[str, ...]


@st.composite
def interval_joins(draw: st.DrawFn, streams: int) -> IntervalJoin:
    """Draws inner joins of one to three streams, and one or two outer, semi or anti joins around them, or none."""
    core = ["a"]
    source, where = "s0 AS a", list[str]()
    for number in range(1, draw(st.sampled_from([1, 1, 2, 2, 3]))):
        name = "abc"[number]
        on = _on(draw, core, name)
        if draw(st.booleans()):
            source += f" JOIN s{number % streams} AS {name} ON {on}"
        else:
            source, where = f"{source} CROSS JOIN s{number % streams} AS {name}", [*where, on]
        core.append(name)
    visible, present = list(core), list(core)
    sides = draw(st.integers(0 if len(core) > 1 else 1, 2))
    for number in range(sides):
        name, stream = "gh"[number], f"s{draw(st.integers(0, streams - 1))}"
        is_first = not number and not where
        kind = draw(st.sampled_from(["LEFT", "LEFT", "SEMI", "ANTI", *(["FULL", "RIGHT"] if is_first else [])]))
        on = _on(draw, visible if draw(st.booleans()) else core, name)
        if kind in ("SEMI", "ANTI"):
            negated = "NOT " if kind == "ANTI" else ""
            where.append(f"{negated}EXISTS (SELECT 1 FROM {stream} AS {name} WHERE {on})")
            continue
        source += f" {kind} JOIN {stream} AS {name} ON {on}"
        visible.append(name)
        present = {"FULL": [], "RIGHT": [name]}.get(kind, present)
        if kind in ("FULL", "RIGHT"):
            break
    text = f" WHERE {' AND '.join(where)}" if where else ""
    return IntervalJoin(f"{source}{text}", tuple(visible), tuple(present))


def _on(draw: st.DrawFn, before: Sequence[str], name: str) -> str:
    """Draws a condition that bounds the distance to each relation of an inner join, directly or along a chain."""
    partner = draw(st.sampled_from(list(before)))
    one, other = (partner, name) if draw(st.booleans()) else (name, partner)
    parts = [draw(st.sampled_from(BOUNDS)).format(a=one, b=other)]
    if draw(st.integers(0, 3)):
        parts.append(draw(st.sampled_from(_BESIDE)).format(a=partner, b=name))
    return " AND ".join(parts)


def closed(rows: Arrivals) -> dict[str, pa.Table]:
    """Returns a last batch, with one row of each stream that is newer than all others and matches none of them."""
    last = {}
    for name, table in rows.tables.items():
        values: dict[str, object] = dict.fromkeys(table.column_names)
        values |= {"ts": END, "p": _SENTINEL}
        last[name] = pa.Table.from_pylist([values], schema=table.schema.set(0, pa.field("ts", pa.int64())))
        last[name] = last[name].set_column(0, table.schema.field("ts"), last[name]["ts"].cast(table.schema.types[0]))
    return last


def without_end(answer: Answer) -> Answer:
    """Removes the results of the last batch."""
    return type(answer)({row: count for row, count in answer.items() if _SENTINEL not in row})
