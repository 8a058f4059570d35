"""A kind of window from outside the product: a subclass gives rows their deadlines, and every plan keeps to them."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from anabranch.cql import compile_query
from anabranch.lang.window import Window, duration_text
from anabranch.plan.mesh import parse_plan
from anabranch.plan.query import Query
from anabranch.plan.query_set import Plans, together
from anabranch.run.local import LocalHost
from anabranch.run.results import ResultLayout
from tests.support.scripted import read_rows, read_script

CATALOG = read_script("\n".join(f"stream {name} (k bigint, v bigint)" for name in "abc")).catalog
LENGTH = 10
"""Seconds."""
FACTORS = {"a": 1, "b": 2, "c": 1}
LINES = [f"{name} {second} {second * FACTORS[name] % 3} {second}" for second in range(40) for name in FACTORS]


@dataclass(frozen=True)
class Tumbling(Window):
    """Rows join with those of the same stretch of time; stretches begin at multiples of the length."""

    @property
    def span(self) -> int | None:
        return None

    def deadline(self, time: Any) -> Any:
        return (time // self.reach + 1) * self.reach - 1

    def __str__(self) -> str:
        return f"[TUMBLING {duration_text(self.reach)}]"


def query(relations: str = "abc", *, tumbles: bool = True) -> Query:
    """Rows of one key; by the text with plain ranges."""
    windows = ", ".join(f"{name} [RANGE {LENGTH} SECONDS]" for name in relations)
    keys = " AND ".join(f"a.k = {name}.k" for name in relations[1:])
    outputs = ", ".join(f"{name}.v AS {name}" for name in relations)
    bound = compile_query(f"SELECT {outputs} FROM {windows} WHERE {keys}", CATALOG)
    if not tumbles:
        return bound
    several = tuple(replace(each, window=Tumbling(each.window.range)) for each in bound.graph.relations)
    return replace(bound, graph=replace(bound.graph, relations=several))


def expected(relations: str = "abc", *, tumbles: bool = True) -> Counter[tuple[int, ...]]:
    """All combinations of rows of one key, second by second."""
    rows = {name: [(second, second * FACTORS[name] % 3) for second in range(40)] for name in relations}
    found: list[tuple[tuple[int, int], ...]] = [()]
    for name in relations:
        found = [(*part, row) for part in found for row in rows[name] if all(row[1] == other[1] for other in part)]

    def is_valid(seconds: tuple[int, ...]) -> bool:
        if tumbles:
            return len({second // LENGTH for second in seconds}) == 1
        return max(seconds) - min(seconds) <= LENGTH

    return Counter(seconds for seconds in (tuple(row[0] for row in each) for each in found) if is_valid(seconds))


def answer(tables: list[pa.Table]) -> Counter[tuple[int, ...]]:
    return Counter(tuple(row.values()) for table in tables for row in table.to_pylist())


@pytest.mark.parametrize("plan", ["(a b c)", "((a b) c)", "(a (b c))", "mesh(a: b>c; b: a>c; c: a>b)"])
@pytest.mark.parametrize("slots", [1, 3])
def test_every_plan_keeps_to_its_deadlines(plan: str, slots: int) -> None:
    host = LocalHost(query(), parse_plan(plan), slots=slots)
    found = [host.step(read_rows(CATALOG, LINES[start : start + 7])) for start in range(0, len(LINES), 7)]
    assert answer(found) == expected()
    assert sum(state.rows for state in host.statistics.states if state.state in "abc") < len(LINES) / 2


def test_restarts_and_migrations_keep_to_them(tmp_path: Path) -> None:
    found = []
    for start in range(0, len(LINES), 15):
        host = LocalHost(query(), parse_plan("((a b) c)"), slots=1 + start % 2, checkpoint=str(tmp_path))
        found.append(host.step(read_rows(CATALOG, LINES[start : start + 5])))
        host.migrate(parse_plan("(a (b c))"), "parallel-track")
        found.append(host.step(read_rows(CATALOG, LINES[start + 5 : start + 10])))
        found.append(host.step(read_rows(CATALOG, LINES[start + 10 : start + 15])))
    assert answer(found) == expected()


def test_it_may_run_beside_other_kinds() -> None:
    """The shared relation then keeps rows for the longer of the two, and each query tests its own deadlines."""
    several = together({"ranged": query("ab", tumbles=False), "tumbling": query("ab")})
    host = LocalHost(several, Plans(dict.fromkeys(several.names, parse_plan("(a b)"))))
    layout, found = ResultLayout(several), {name: list[pa.Table]() for name in several.names}
    lines = [line for line in LINES if line[0] in "ab"]
    for start in range(0, len(lines), 7):
        for name, table in layout.split(host.step(read_rows(CATALOG, lines[start : start + 7]))).items():
            found[name].append(table)
    assert answer(found["tumbling"]) == expected("ab")
    assert answer(found["ranged"]) == expected("ab", tumbles=False)
