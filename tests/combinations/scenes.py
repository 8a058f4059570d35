"""From a set of features to queries, rows and their batch answer.

One query, `q`, has the features. Others stand around it: `z` shares its relations in a set, `low` is the query that it
reads, and `top` reads its results. Keys have few values and rows are close together, so that results are many.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st

from anabranch.cql import compile_query, declared_results
from anabranch.lang.catalog import Catalog
from anabranch.lang.schema import TIMESTAMP
from anabranch.plan.execution import DEFAULT_EXECUTION, ExecutionModel, execution_model
from anabranch.plan.mesh import Plan
from anabranch.plan.physical import JoinNode, PhysicalPlan, PreGroup
from anabranch.plan.query import Query
from anabranch.plan.query_set import ALONE, QuerySet, set_of
from tests.support.count_queries import count_plans
from tests.support.outer_queries import drawn_tables, with_tables
from tests.support.strategies import SECOND, arrivals, batch_cuts, plans

STREAMS = 3
FAR_AHEAD = 4_000_000_000 * SECOND
"""An event time beyond any clock."""
NOW = 3_000_000_000 * SECOND
"""The time of day in a schedule: no row of a stream is ahead of it but those that are meant to be."""

CHANGE = "{first}.p % 5 <> 4"
"""The filter that a changed query has."""

Batch = dict[str, pa.Table]


@dataclass(frozen=True)
class Scene:
    """Queries with some features, and the rows that they read."""

    features: frozenset[str]
    texts: Mapping[str, str]
    """All queries by name, those that are read first; a changed `q` is called `q changed`."""
    catalog: Catalog
    disorder: Mapping[str, int]
    batches: Sequence[Batch]
    tables: Mapping[str, pa.Table]
    is_alone: bool
    silent: frozenset[str]
    changed: str
    """The text of `q` after an evolution."""
    queries: Mapping[str, Query] = field(default_factory=dict)

    @property
    def execution(self) -> ExecutionModel:
        chosen = [name for name in self.features if name.endswith("synchronised")]
        return execution_model(chosen[0]) if chosen else DEFAULT_EXECUTION

    @property
    def max_ahead(self) -> dict[str, int]:
        return dict.fromkeys(self.disorder, 5 * SECOND) if "max_ahead" in self.features else {}

    def set_of(self, names: Sequence[str] | None = None) -> QuerySet:
        """Returns the queries of these names, or all, as they run."""
        chosen = {name: self.queries[name] for name in (names or self.queries)}
        if self.is_alone:
            last = list(chosen)[-1]
            return set_of({ALONE: chosen[last]})
        return set_of(chosen, silent=[name for name in self.silent if name in chosen])

    def evolved(self) -> Scene:
        """Returns the scene with the changed query."""
        return compiled(replace(self, texts={**self.texts, "q": self.changed}))


@st.composite
def scenes(draw: st.DrawFn, features: frozenset[str], least_batches: int = 5) -> Scene:
    """Draws a scene in which `q` has exactly these features."""
    rows = draw(arrivals(STREAMS, most_rows=12, dense_only=True))
    beside = draw(drawn_tables(1)) if "table" in features else {}
    texts, changed = _Texts(draw, features).made()
    batches = list(draw(batch_cuts(rows, least=least_batches)))
    if "late sink" in features:
        batches = _with(batches, draw, -1000 * SECOND)
    if "max_ahead" in features:
        batches = _with(batches, draw, FAR_AHEAD)
    names = list(texts)
    in_set = bool(features & {"set"})
    # Where an error does not say that a query runs alone, it does.
    is_alone = not in_set and (bool(features & {"session window", "ASOF join"}) or draw(st.booleans()))
    silent = frozenset(name for name in names[:-1] if name in ("low", "q") and not in_set and draw(st.booleans()))
    catalog = with_tables(rows.catalog, beside)
    return Scene(features, texts, catalog, rows.disorder, batches, beside, is_alone, silent, changed)


def compiled(scene: Scene) -> Scene:
    """Compiles the queries of a scene; raises what refuses them."""
    catalog = scene.catalog.without_queries()
    queries: dict[str, Query] = {}
    for name, text in scene.texts.items():
        queries[name] = compile_query(text, catalog)
        if any(f" {name} " in other for other in scene.texts.values()):
            catalog.register(declared_results(name, queries[name]))
    return replace(scene, queries=queries)


def _with(batches: list[Batch], draw: st.DrawFn, time: int) -> list[Batch]:
    """Adds a row of that event time to some streams of some batches, in front of the rows that come."""
    found = []
    for number, batch in enumerate(batches):
        batch = dict(batch)
        for name in sorted(batch):
            if number and batch[name].num_rows and draw(st.booleans()):
                odd = batch[name].slice(0, 1)
                times = pa.array([time], pa.int64()).cast(pa.timestamp("us")).cast(TIMESTAMP)
                odd = odd.set_column(0, "ts", times).set_column(6, "p", pa.array([900_000 + number], pa.int64()))
                batch[name] = pa.concat_tables([odd, batch[name]])
        found.append(batch)
    return found


class _Texts:
    """Draws the texts of the queries."""

    def __init__(self, draw: st.DrawFn, features: frozenset[str]) -> None:
        self.draw, self.features = draw, features
        is_sliding = features & {"groups", "top-N"} and "session window" not in features
        self.slide = self.one_of([1, 2]) if is_sliding else None
        self.size = self.one_of([1, 2, 3, 5])
        self.counted = self.one_of(["a", "b"]) if self.has("inner join") else "a"
        self.counts = self.one_of(["COUNT(*)", "COUNT_IF({p} % 3 <> 0)", "SUM({p}) FILTER (WHERE {p} % 3 <> 0)"])

    def has(self, name: str) -> bool:
        return name in self.features

    def one_of(self, options: Sequence[Any]) -> Any:
        return self.draw(st.sampled_from(options))

    def made(self) -> tuple[dict[str, str], str]:
        texts = {}
        if self.has("reads a query"):
            texts["low"] = self.low()
        texts["q"], changed = self.main()
        if self.has("read by a query"):
            texts["top"] = self.top()
        if self.has("set"):
            texts["z"] = self.beside()
            # Somebody reads all streams at all times: a query that joins cannot bring a source.
            texts["y"] = (
                "SELECT k0.p AS p FROM s0 [NOW] AS k0, s1 [NOW] AS k1, s2 [NOW] AS k2 WHERE k0.x = k1.x AND k1.x = k2.x"
            )
        return texts, changed

    def window(self, alias: str) -> str:
        """The window of a relation of `q`."""
        slides = "" if self.slide is None else f" SLIDE {self.slide} SECONDS"
        others = {"count window", "tumbling window", "hopping window", "session window"}
        is_left = self.has("ASOF join") and alias in "al" and self.slide is None
        if self.is_plain() or (is_left and not self.features & others):
            return ""
        if self.has("count window") and alias == self.counted:
            part = self.one_of(["", "", "PARTITION BY x "])
            time = self.one_of(["", "", f"RANGE {self.size} SECONDS "])
            return f"[{part}{time}ROWS {self.one_of([1, 2, 3])}{slides}]"
        if self.has("session window"):
            return f"[SESSION {self.size} SECONDS]"
        if self.has("tumbling window"):
            return f"[TUMBLE {self.slide or self.size} SECONDS]"
        if self.has("hopping window"):
            return f"[HOP {self.size} SECONDS SLIDE {self.slide or 1} SECONDS]"
        return f"[RANGE {self.size} SECONDS{slides}]"

    def is_plain(self) -> bool:
        """True where `window(…)` is the window of the only stream."""
        others = {"inner join", "outer join", "semi join", "anti join", "count window", "tumbling window"}
        others |= {"hopping window", "ASOF join"}
        return self.has("groups by window()") and not self.features & others

    def main(self) -> tuple[str, str]:
        reads, joins = self.has("reads a query"), self.has("inner join")
        first = "l" if reads and not joins else "a"
        stream = "low" if first == "l" else "s0"
        if first == "l" and self.counted == "a":
            self.counted = "l"
        if self.has("UNION ALL") and stream == "s0":
            columns = "x, y, s, p, ts"
            stream = f"(SELECT {columns} FROM s0 UNION ALL SELECT {columns} FROM s2)"
        source = f"{stream} {self.window(first)} AS {first}"
        where: list[str] = []
        shown = {first}
        if joins:
            condition = self.one_of(["a.x = b.x", "a.x = b.x", "a.x = b.x AND a.s <> b.s"])
            if self.has("own function"):
                condition = self.one_of(["half(a.x) = half(b.x)", "a.x = b.x AND near(a.y, b.y)"])
            on = f"ON {condition}"
            if self.has("interval join"):
                on += " AND b.ts BETWEEN a.ts - INTERVAL 2 SECONDS AND a.ts + INTERVAL 1 SECONDS"
            elif condition == "a.x = b.x":
                on = self.one_of([on, "USING (x)"])
            source += f" JOIN s1 {self.window('b')} AS b {on}"
            shown |= {"b"}
            if reads:
                source += f" JOIN low {self.window('l')} AS l ON l.x = b.x"
        if self.has("ASOF join"):
            runs_alone = not self.features & {"set", "read by a query", "groups by window()"}
            kind = self.one_of(["ASOF", "LEFT ASOF"]) if runs_alone else "ASOF"
            window = self.one_of(["", " [RANGE 3 SECONDS]"])
            near = f" AND h.ts >= {first}.ts - INTERVAL 2 SECONDS" if self.has("interval join") else ""
            source += f" {kind} JOIN s2{window} AS h ON h.x = {first}.x AND h.ts <= {first}.ts{near}"
            shown |= {"h"}
        if self.has("table"):
            kind = self.one_of(["JOIN", "LEFT JOIN"])
            source += f" {kind} t0 ON {first}.y = t0.y"
        source, where = self.sides(source, first, shown)
        if self.has("own function"):
            where.append(f"known({first}.y) = 1")
        if self.has("own terms in a set"):
            where.append(f"{first}.p % 7 <> 3")
        return self.text(first, source, where, shown), self.text(
            first, source, [*where, CHANGE.format(first=first)], shown
        )

    def sides(self, source: str, first: str, shown: set[str]) -> tuple[str, list[str]]:
        where = []
        if self.has("outer join"):
            is_only = not self.features & {"semi join", "anti join", "table"}
            kind = self.one_of(["LEFT", "LEFT", "FULL", "RIGHT"] if is_only else ["LEFT"])
            own = " AND c.p % 3 <> 1" if self.has("own terms in a set") and self.one_of([True, False]) else ""
            source += f" {kind} JOIN s2 {self.window('c')} AS c ON {first}.y = c.y{own}"
            shown |= {"c"}
        if self.has("semi join"):
            inner = f"s2 {self.window('e')} AS e"
            match self.one_of(["join", "exists", "in"]):
                case "join":
                    source += f" LEFT SEMI JOIN {inner} ON {first}.x = e.x"
                case "exists":
                    where.append(f"EXISTS (SELECT 1 FROM {inner} WHERE {first}.x = e.x)")
                case "in":
                    where.append(f"{first}.x IN (SELECT e.x FROM {inner})")
        if self.has("anti join"):
            inner = f"s2 {self.window('g')} AS g"
            match self.one_of(["join", "exists"]):
                case "join":
                    source += f" LEFT ANTI JOIN {inner} ON {first}.p % 5 = g.x"
                case "exists":
                    where.append(f"NOT EXISTS (SELECT 1 FROM {inner} WHERE {first}.p % 5 = g.x)")
        return source, where

    def text(self, first: str, source: str, where: Sequence[str], shown: set[str]) -> str:
        tests = f" WHERE {' AND '.join(where)}" if where else ""
        last = sorted(shown)[-1]
        own = f", half({first}.p) AS h" if self.has("own function") else ""
        if not self.features & {"groups", "groups by window()", "top-N"}:
            more = "".join(f", {name}.p AS p{name}" for name in sorted(shown - {first}))
            outputs = f"{first}.x AS x, {first}.y AS y, {first}.s AS s, {first}.p AS p{more}{own}"
            return f"SELECT {outputs} FROM {source}{tests}"
        having = " HAVING COUNT(*) > 1" if self.has("having") else ""
        if self.has("top-N"):
            outputs = f"WINDOW_END() AS at, {first}.x AS x, {first}.y AS y, {first}.s AS s, {last}.p AS p{own}"
            number = f"ROW_NUMBER() OVER (PARTITION BY {first}.x ORDER BY {first}.s DESC, {last}.p)"
            return f"SELECT {outputs} FROM {source}{tests}{having} QUALIFY {number} <= {self.one_of([1, 2])}"
        own = f", SUM(half({first}.p)) AS h" if self.has("own function") else ""
        counts = self.counts.format(p=f"{first}.p")
        shows = f"{first}.x AS x, {counts} AS y, MIN({first}.s) AS s, MAX({last}.p) AS p{own}"
        if self.has("groups"):
            return f"SELECT WINDOW_END() AS at, {shows} FROM {source}{tests} GROUP BY {first}.x{having}"
        if self.has("session window"):
            by = f"session_window({first}.ts, '{self.size} seconds'), {first}.x"
            return f"SELECT session_window.start AS at, {shows} FROM {source}{tests} GROUP BY {by}{having}"
        by = f"window({first}.ts, '4 seconds'), {first}.x"
        return f"SELECT window.start AS at, {shows} FROM {source}{tests} GROUP BY {by}{having}"

    def low(self) -> str:
        if self.is_plain():
            # Whose rows have an event time in a column.
            return "SELECT v.x AS x, v.y AS y, v.s AS s, v.p AS p, v.ts AS ts FROM s0 [NOW] AS v WHERE v.p % 5 <> 0"
        return str(
            self.one_of(
                [
                    "SELECT v.x AS x, v.y AS y, v.s AS s, v.p AS p, v.ts AS ts FROM s0 [NOW] AS v WHERE v.p % 5 <> 0",
                    (
                        "SELECT v.x AS x, w.y AS y, v.s AS s, w.p AS p FROM s0 [RANGE 3 SECONDS] AS v, "
                        "s1 [RANGE 3 SECONDS] AS w WHERE v.x = w.x"
                    ),
                    (
                        "SELECT v.x AS x, COUNT(*) AS y, MIN(v.s) AS s, MAX(v.p) AS p "
                        "FROM s0 [RANGE 3 SECONDS SLIDE 1 SECOND] AS v GROUP BY v.x"
                    ),
                ]
            )
        )

    def top(self) -> str:
        return str(
            self.one_of(
                [
                    "SELECT r.x AS x, r.p AS p FROM q [NOW] AS r WHERE r.p % 5 <> 1",
                    (
                        "SELECT r.x AS x, r.p AS p, k.p AS pk FROM q [RANGE 4 SECONDS] AS r, s1 [RANGE 3 SECONDS] AS k "
                        "WHERE r.x = k.x"
                    ),
                    (
                        "SELECT WINDOW_END() AS at, r.x AS x, COUNT(*) AS n "
                        "FROM q [RANGE 3 SECONDS SLIDE 1 SECOND] AS r GROUP BY r.x"
                    ),
                ]
            )
        )

    def beside(self) -> str:
        """A query that shares `a`, `b` and `c` with `q`, under other conditions if these are to differ."""
        size = self.size
        if self.has("own terms in a set"):
            size = self.one_of([2, 5, 12])
        window = f"[RANGE {size} SECONDS]"
        if self.has("tumbling window") and not self.has("own terms in a set"):
            window = f"[TUMBLE {self.slide or self.size} SECONDS]"
        # A relation with a count window cannot be shared, and several streams together are another relation.
        own = {self.counted} if self.has("count window") else set()
        own |= {"a"} if self.has("UNION ALL") else set()
        a, b = (f"{each}z" if each in own else each for each in "ab")
        more = f" AND {a}.p % 3 <> 0" if self.has("own terms in a set") else ""
        shown, source, where = f"{a}.p AS p, {a}.x AS x", f"s0 {window} AS {a}", f"{a}.p % 7 <> 2{more}"
        if self.has("inner join"):
            shown, source = f"{shown}, {b}.p AS pb", f"{source} JOIN s1 {window} AS {b} ON {a}.x = {b}.x"
        is_alike = not self.features & {"tumbling window", "hopping window", "count window"}
        if self.has("outer join") and is_alike and self.one_of([True, False]):
            kind = self.one_of(["LEFT", "LEFT SEMI", "LEFT ANTI"])
            wider = self.one_of([0, 0, 1]) if self.has("own terms in a set") else 0
            source = f"{source} {kind} JOIN s2 [RANGE {self.size + wider} SECONDS] AS c ON {a}.y = c.y"
            shown += ", c.p AS pc" if kind == "LEFT" else ""
        return f"SELECT {shown} FROM {source} WHERE {where}"


# --- plans -----------------------------------------------------------------------------------------------------------


def trees(query: Query, *, merged: bool = False) -> st.SearchStrategy[Plan]:
    """Any plan of a query but a mesh; with `merged`, one that merges the rows of an input."""
    if merged:
        return plans(query.graph.names, merging=True).map(_merging)
    if query.graph.counted:
        return count_plans(query.graph)
    return plans(query.graph.names, query.graph.thetas if not query.sides and query.grouping is None else ())


def _merging(plan: PhysicalPlan) -> PhysicalPlan:
    """A plan that merges the rows of an input before they join."""
    if not isinstance(plan, JoinNode) or any(isinstance(each, PreGroup) for each in plan.inputs):
        return plan
    return replace(plan, inputs=(PreGroup(plan.inputs[0]), *plan.inputs[1:]))


# --- which rows count ------------------------------------------------------------------------------------------------


def admitted(
    scene: Scene, streams: Sequence[str] | None = None
) -> tuple[list[Batch], list[list[tuple[str, str, int]]]]:
    """Returns the rows of each batch that are neither late nor ahead, and the others as (stream, reason, p)."""
    newest: dict[str, int] = {}
    found, diverted = [], []
    for batch in scene.batches:
        before, mine, others = dict(newest), {}, []
        for name, table in batch.items():
            times = table["ts"].cast(pa.timestamp("us")).cast(pa.int64()).to_pylist()
            floor = before[name] - scene.disorder[name] if name in before else None
            top = NOW + scene.max_ahead[name] if name in scene.max_ahead else None
            kept = []
            for place, time in enumerate(times):
                is_late, is_ahead = floor is not None and time < floor, top is not None and time > top
                kept.append(not (is_late or is_ahead))
                if not kept[-1]:
                    others.append((name, "late" if is_late else "ahead", table["p"][place].as_py()))
                if not is_ahead:
                    newest[name] = max(time, newest.get(name, time))
            mine[name] = table.filter(pa.array(kept, pa.bool_()))
        found.append(mine)
        diverted.append(others)
    return found, diverted


def so_far(rows: Mapping[str, pa.Table], batches: Sequence[Batch]) -> dict[str, pa.Table]:
    """All rows of some batches, by stream."""
    return {
        name: pa.concat_tables([whole, *(batch[name] for batch in batches if name in batch)])
        for name, whole in rows.items()
    }


def empty(scene: Scene) -> dict[str, pa.Table]:
    schema = next(table.schema for batch in scene.batches for table in batch.values())
    return {name: schema.empty_table() for name in scene.disorder}
