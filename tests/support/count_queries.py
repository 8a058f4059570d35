"""Hypothesis strategies for count windows: queries over them, as CQL and as equivalent DuckDB SQL, and plans.

DuckDB finds the row that pushes another out by `lead`, over the rows in order of time and of the columns that the text
names; none of our code is involved.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from hypothesis import strategies as st

from anabranch.plan.join_graph import JoinGraph
from anabranch.plan.physical import JoinNode, Leaf, PhysicalPlan
from tests.support.strategies import EQUALITIES, FILTERS, SECOND, THETAS, TIME_BANDS, DrawnQuery, plans

_COLUMNS = ("ts", "x", "y", "s", "f", "d", "p")
_PARTS = ((), (), ("x",), ("s",), ("x", "s"), ("f",), ("p",))


@dataclass(frozen=True)
class _Item:
    """One relation of FROM; `rows` is None if it has a time window."""

    name: str
    stream: str
    rows: int | None
    seconds: int | None
    parts: tuple[str, ...]

    def clause(self, slide: int | None) -> str:
        words = []
        if self.rows is not None and self.parts:
            words.append(f"PARTITION BY {', '.join(self.parts)}")
        if self.seconds is not None:
            words.append(f"RANGE {self.seconds} SECONDS")
        if self.rows is not None:
            words.append(f"ROWS {self.rows}")
        words += [f"SLIDE {slide} SECONDS"] if slide is not None else []
        return f"{self.stream} [{' '.join(words)}] AS {self.name}"

    def sql(self, named: Sequence[str]) -> str:
        if self.rows is None:
            return f"{self.stream} AS {self.name}"
        by = f"PARTITION BY {', '.join(self.parts)} " if self.parts else ""
        order = ", ".join(f"{column} NULLS FIRST" for column in ("ts", *named))
        closed = f"lead(epoch_us(ts), {self.rows}) OVER ({by}ORDER BY {order}) AS closed"
        return f"(SELECT *, {closed} FROM {self.stream}) AS {self.name}"


@st.composite
def count_queries(draw: st.DrawFn, streams: int, relations: int, slide: int | None = None) -> DrawnQuery:
    """Draws a query of that many relations, one or more with count windows; grouped if a slide is given."""
    names = list("abcd"[:relations])
    counted = {draw(st.sampled_from(names)), *draw(st.lists(st.sampled_from(names), max_size=1))}
    items = []
    for number, name in enumerate(names):
        rows = draw(st.sampled_from([1, 1, 2, 3, 5, 20])) if name in counted else None
        seconds = draw(st.sampled_from([None, None, 3, 10])) if rows else draw(st.sampled_from([3, 10, 25]))
        parts = draw(st.sampled_from(_PARTS)) if rows else ()
        items.append(_Item(name, f"s{number % streams}", rows, seconds, parts))
    predicates = []
    for position in range(1, relations):
        templates = EQUALITIES if draw(st.integers(0, 3)) else THETAS
        partner = names[draw(st.integers(0, position - 1))]
        predicates.append(draw(st.sampled_from(templates)).format(a=partner, b=names[position]))
    if relations > 1 and draw(st.booleans()):
        a, b = draw(st.permutations(names))[:2]
        predicates.append(draw(st.sampled_from(TIME_BANDS)).format(a=a, b=b))
    filtered = draw(st.lists(st.sampled_from(names), max_size=2))
    predicates += [draw(st.sampled_from(FILTERS)).format(a=name) for name in filtered]
    where = f" WHERE {' AND '.join(predicates)}" if predicates else ""
    clauses = ", ".join(item.clause(slide) for item in items)
    if slide is not None:
        return DrawnQuery(f"{_grouped(draw, names)} FROM {clauses}{where}{_by(draw, names)}", "", tuple(names))
    outputs = [
        f"{name}.{column} AS {name}_{column}"
        for name in names
        for column in sorted(draw(st.sets(st.sampled_from(_COLUMNS), min_size=1, max_size=3)))
    ]
    select = f"SELECT {', '.join(outputs)}"
    named = {item.name: _named(item, f"{select} {where}") for item in items}
    newest = f"greatest({', '.join(f'epoch_us({name}.ts)' for name in names)})"
    inside = [f"{newest} - epoch_us({i.name}.ts) <= {i.seconds * SECOND}" for i in items if i.seconds is not None]
    inside += [f"({i.name}.closed IS NULL OR {newest} < {i.name}.closed)" for i in items if i.rows is not None]
    sources = ", ".join(item.sql(named[item.name]) for item in items)
    sql = f"{select} FROM {sources} WHERE {' AND '.join([*predicates, *inside])}"
    return DrawnQuery(f"{select} FROM {clauses}{where}", sql, tuple(names))


def _named(item: _Item, text: str) -> list[str]:
    """The columns of a relation that a text names, in the order of the stream."""
    found = {*re.findall(rf"\b{item.name}\.(\w+)", text), *item.parts}
    return [column for column in _COLUMNS if column in found]


def _grouped(draw: st.DrawFn, names: Sequence[str]) -> str:
    first, last = names[0], names[-1]
    aggregates = [
        f"SUM({first}.x)",
        f"MIN({last}.s)",
        f"MAX({first}.p)",
        f"AVG({last}.p)",
        f"COUNT({last}.f)",
        f"LAST({first}.x)",
        f"COUNT(DISTINCT {last}.p)",
    ]
    chosen = sorted(draw(st.sets(st.sampled_from(aggregates), max_size=3)))
    return ", ".join(["SELECT WINDOW_END() AS at", "COUNT(*) AS n", *(f"{a} AS a{i}" for i, a in enumerate(chosen))])


def _by(draw: st.DrawFn, names: Sequence[str]) -> str:
    return draw(st.sampled_from(["", f" GROUP BY {names[0]}.x", f" GROUP BY {names[-1]}.s, {names[0]}.y"]))


@st.composite
def count_plans(draw: st.DrawFn, graph: JoinGraph) -> PhysicalPlan:
    """Draws any plan that keeps no row of a count window in an intermediate state."""
    others = tuple(name for name in graph.names if name not in graph.counted)
    inner = draw(plans(others)) if others else None
    inputs: list[PhysicalPlan] = [Leaf(name) for name in graph.counted]
    if isinstance(inner, JoinNode) and draw(st.booleans()):
        inputs += inner.inputs
    elif inner is not None:
        inputs.append(inner)
    if len(inputs) == 1:
        return inputs[0]
    inputs = list(draw(st.permutations(inputs)))
    orders: tuple[tuple[int, ...], ...] = ()
    if draw(st.booleans()):
        places = range(len(inputs))
        orders = tuple(tuple(draw(st.permutations([i for i in places if i != at]))) for at in places)
    return JoinNode(tuple(inputs), orders)
