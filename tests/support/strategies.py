"""Hypothesis strategies for the exactness property: streams, queries over them, arrivals, batch cuts and plans.

Queries are drawn as text, in the subset of SQL that CQL and DuckDB share, so that DuckDB can compute the batch answer
of a join directly from the text without any of our code. Streams have ties, NULL keys, skew, may be empty, and arrive
out of order within their allowed disorder.
"""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from random import Random

import pyarrow as pa
from hypothesis import strategies as st

from anabranch.cql import bind
from anabranch.errors import PlanError, SpecError
from anabranch.lang.catalog import Catalog, StreamDeclaration
from anabranch.lang.expr import conjuncts
from anabranch.lang.schema import TIMESTAMP, Schema
from anabranch.plan.join_graph import Theta
from anabranch.plan.normal_form import normal_form
from anabranch.plan.partitioning import ROW, Partitioning
from anabranch.plan.physical import JoinNode, Leaf, PhysicalPlan, PreGroup, nodes
from anabranch.plan.selections import guarded_by
from anabranch.rewrite.pipeline import rewrite
from tests.support.own import OWN_FUNCTIONS

SECOND = 1_000_000
_SPAN = 40
_DENSE_SPAN = 8
COLUMNS = pa.schema(
    [
        ("ts", TIMESTAMP),
        ("x", pa.int64()),
        ("y", pa.int32()),
        ("s", pa.string()),
        ("f", pa.float64()),
        ("d", pa.decimal128(9, 2)),
        ("p", pa.int64()),
    ]
)
EQUALITIES = (
    "{a}.x = {b}.x",
    "{a}.x = {b}.y",
    "{a}.y = {b}.y",
    "{a}.s = {b}.s",
    "{a}.x + 1 = {b}.x",
    "{a}.d = {b}.d",
    "{a}.f = {b}.f",
    "{a}.x = {b}.f",
    "{a}.ts = {b}.ts",
    "{a}.d = {b}.f",
    "{a}.y = {b}.d",
    "half({a}.x) = half({b}.x)",
    "digit({a}.x) = {b}.y",
    "{a}.x = {b}.x AND {a}.s = {b}.s",
    "{a}.x = {b}.x AND {a}.y = {b}.y",
)
THETAS = (
    "{a}.x < {b}.x",
    "ABS({a}.x - {b}.x) <= 1",
    "{a}.x BETWEEN {b}.x - 1 AND {b}.x + 2",
    "{a}.x BETWEEN {b}.x - 1 AND {b}.x",  # its first comparison is also that of the band above
    "{a}.f - {b}.f BETWEEN -0.5 AND 0.5",
    "{a}.f * 1e9 - {b}.f * 1e9 BETWEEN -5e8 AND -5e8",  # without width, at an offset
    "{a}.f * 1e9 + 5e8 <= {b}.f * 1e9 AND {b}.f * 1e9 <= {a}.f * 1e9 + 5e8",
    "{a}.d * 1000000000 + 750000000 <= {b}.d * 1000000000 AND {b}.d * 1000000000 - 750000000 <= {a}.d * 1000000000",
    "ABS({a}.p - {b}.p + 4611686018427387904) <= 4611686018427387904",  # as wide as the numbers
    "{a}.ts BETWEEN {b}.ts - INTERVAL 2 SECONDS AND {b}.ts",
    "({a}.x = {b}.x OR {a}.s = {b}.s)",
    "{a}.s <> {b}.s",
    "{a}.p % 2 = {b}.p % 2",
    "near({a}.x, {b}.x)",
    "{a}.p < 10 AND {b}.p < 10 AND digit({a}.p + {b}.p - {b}.p) <= {b}.p",
    "half({a}.x) < known({b}.y)",
    "{a}.x IS NOT DISTINCT FROM {b}.x",
    "{a}.s IS DISTINCT FROM {b}.s",
    "DATE_TRUNC('minute', {a}.ts) < {b}.ts",
    "REGEXP_LIKE({a}.s || {b}.s, '^a+b')",
)
TIME_BANDS = (
    "{b}.ts BETWEEN {a}.ts - INTERVAL 1 SECONDS AND {a}.ts + INTERVAL 1 SECONDS",
    "{a}.ts BETWEEN {b}.ts - INTERVAL 2 SECONDS AND {b}.ts",
    "{b}.ts BETWEEN {a}.ts + INTERVAL 1 SECONDS AND {a}.ts + INTERVAL 3 SECONDS",
    "{a}.ts <= {b}.ts",
    "{a}.ts < {b}.ts",
    "{b}.ts <= {a}.ts + INTERVAL 2 SECONDS",
    "{a}.ts + INTERVAL 4 SECONDS >= {b}.ts AND {a}.ts - INTERVAL 1 SECONDS <= {b}.ts",
)
"""Bands over event times, by which rows may expire before their windows end."""
_OF_ANY_TYPE = (
    "{last}.ts - {first}.ts",
    "CASE WHEN {first}.x > 0 THEN {first}.ts - {last}.ts END",
    "{last}.ts",
    "CAST({first}.ts AS DATE)",
    "{last}.x > 0",
    "{first}.s",
    "{first}.d",
    "CAST({last}.d AS DECIMAL(38, 2))",
    "{last}.y",
)
"""Arguments that COUNT, MIN and MAX take, one of each type."""
_MORE_AGGREGATES = (
    "COUNT(DISTINCT {last}.x)",
    "COUNT(DISTINCT {first}.f)",
    "COUNT(DISTINCT {first}.x + {last}.y)",
    "MIN_BY({last}.p, {first}.x)",
    "MAX_BY({first}.s, {last}.f)",
    "MAX_BY({first}.x, {last}.ts)",
    "FIRST({last}.x)",
    "LAST({first}.d)",
    "LAST({last}.x > 0)",
    "STDDEV({last}.p)",
    "VAR_POP({first}.x)",
    "VARIANCE({first}.f)",
    "STDDEV_POP({last}.x + {first}.x)",
    "MEDIAN({last}.p)",
    "PERCENTILE({first}.x, 0.9)",
    "COLLECT_LIST({last}.p, 3)",
    "COLLECT_LIST({first}.s, 100)",
)
_SMALL = (0, 0, 1, 2, None)
_VALUES: tuple[tuple[object, ...], ...] = (
    _SMALL,
    _SMALL,
    ("a", "ab", "b", None),
    (0.0, -0.0, 0.5, 1.0, float("nan"), None),
    (Decimal("1.50"), Decimal("2.25"), None),
)
FILTERS = (
    "{a}.p % 3 <> 0",
    "{a}.s LIKE 'a%'",
    "{a}.x IS NULL",
    "{a}.x IN (0, 1)",
    "{a}.x <> 2",
    "NOT ({a}.y = 1)",
    "{a}.f > 0.5",
    "COALESCE({a}.x, {a}.y) >= 1",
    "known({a}.x) = 1",
    "{a}.p < 10 AND digit({a}.p) < 9",
    "CASE WHEN {a}.p < 10 THEN digit({a}.p) ELSE 1 END > 0",
)


@dataclass(frozen=True)
class Arrivals:
    """The rows of each stream in order of arrival, and the allowed disorder of each (microseconds)."""

    tables: Mapping[str, pa.Table]
    disorder: Mapping[str, int]

    @property
    def catalog(self) -> Catalog:
        catalog = Catalog(functions={own.name: own for own in OWN_FUNCTIONS})
        for name, disorder in self.disorder.items():
            catalog.register(StreamDeclaration(name, Schema.from_arrow(COLUMNS), "ts", disorder))
        return catalog


@dataclass(frozen=True)
class DrawnQuery:
    """A query as CQL text; for joins also as DuckDB SQL over the same stream names."""

    cql: str
    duckdb: str
    relations: tuple[str, ...]


@st.composite
def arrivals(
    draw: st.DrawFn,
    streams: int,
    most_rows: int = 14,
    *,
    alike: bool = False,
    mostly_dense: bool = False,
    dense_only: bool = False,
) -> Arrivals:
    """Draws streams of up to `most_rows` rows each; with `alike`, many of them share times and values.

    Half the draws (with `mostly_dense`, four of five; with `dense_only`, all) are dense: all streams have `most_rows`
    rows within seconds of each other and with few NULLs, so many rows join. Dense draws come from a seed and do not
    shrink. Some draws begin before 1970.
    """
    tables, disorder = {}, {}
    start = draw(st.sampled_from([0, 0, -5 * SECOND - 1]))
    seeded = st.integers(0, 2**32 - 1).map(Random)
    dense = draw(seeded if dense_only else st.one_of(st.none(), *[seeded] * (4 if mostly_dense else 1)))
    for number in range(streams):
        allowed = draw(st.sampled_from([0, 0, 3])) * SECOND
        if dense is None:
            rows = draw(st.lists(_row(allowed), max_size=most_rows))
        else:
            rows = [_dense_row(dense, allowed) for _ in range(most_rows)]
        if alike and rows:
            rows = [row for row in rows for _ in range(draw(st.sampled_from([1, 1, 2, 4])))][:most_rows]
        # A row arrives by its time plus a delay of at most the allowed disorder, so none is late in any cut.
        rows.sort(key=lambda row: row[0] + row[1])
        columns = [[start + row[0] for row in rows], *([row[2][i] for row in rows] for i in range(5))]
        columns.append([1000 * number + i for i in range(len(rows))])
        arrays = [pa.array(columns[0], pa.int64()).cast(pa.timestamp("us")).cast(TIMESTAMP)]
        arrays += [pa.array(values, field.type) for values, field in zip(columns[1:], list(COLUMNS)[1:], strict=True)]
        tables[f"s{number}"] = pa.table(arrays, schema=COLUMNS)
        disorder[f"s{number}"] = allowed
    return Arrivals(tables, disorder)


@st.composite
def _row(draw: st.DrawFn, disorder: int) -> tuple[int, int, tuple[object, ...]]:
    time = draw(st.integers(0, 2 * _SPAN)) * SECOND // 2
    delay = draw(st.integers(0, disorder)) if disorder else 0
    return time, delay, tuple(draw(st.sampled_from(values)) for values in _VALUES)


def _dense_row(random: Random, disorder: int) -> tuple[int, int, tuple[object, ...]]:
    time = random.randrange(2 * _DENSE_SPAN) * SECOND // 2
    values = tuple(random.choice(several if random.random() < 0.2 else several[:-1]) for several in _VALUES)
    return time, random.randint(0, disorder), values


@st.composite
def join_queries(
    draw: st.DrawFn, streams: int, relations: int, *, shuffled: bool = False, one_column: bool = False
) -> DrawnQuery:
    """Draws a join of that many relations, connected in most draws: chains, stars, cycles; sometimes self-joins.

    FROM lists them in the order of their names unless `shuffled`. With `one_column` all equalities use one column, so
    that several queries compare by the same expressions, of different relations.
    """
    parts = _Parts(draw, streams, relations, shuffled=shuffled, equalities=EQUALITIES[: 1 if one_column else None])
    outputs = [f"{name}.p AS p{i}" for i, name in enumerate(parts.names)]
    outputs.append(f"{parts.names[0]}.s AS s, {parts.names[-1]}.x + 1 AS x, {parts.names[0]}.f AS f")
    outputs.append(f"half({parts.names[-1]}.p) AS h, known({parts.names[0]}.y) AS k")
    where = f" WHERE {' AND '.join(parts.predicates)}" if parts.predicates else ""
    cql = f"SELECT {', '.join(outputs)} FROM {parts.from_cql}{where}"
    newest = f"greatest({', '.join(f'epoch_us({name}.ts)' for name in parts.names)})"
    inside = [f"{newest} - epoch_us({n}.ts) <= {r}" for n, r in zip(parts.names, parts.ranges, strict=True)]
    condition = " AND ".join([*parts.predicates, *inside])
    duckdb = f"SELECT {', '.join(outputs)} FROM {parts.from_sql} WHERE {condition}"
    return DrawnQuery(cql, duckdb, tuple(parts.names))


_SHARED_JOINS = (
    "{a}.x = {b}.x",
    "{a}.y = {b}.y",
    "{a}.s = {b}.s",
    "{a}.x = {b}.x AND {a}.s = {b}.s",
    "{a}.x < {b}.x",
    "{a}.s <> {b}.s",
    "({a}.x = {b}.x OR {a}.s = {b}.s)",
)
"""Predicates that cannot fail: joins with others are not shared."""


@dataclass(frozen=True)
class Overlap:
    """The join that queries share: its relations, its predicates, and the window of most of them."""

    streams: int
    core: tuple[str, ...]
    common: tuple[str, ...]
    window: int


@st.composite
def overlaps(draw: st.DrawFn, streams: int) -> Overlap:
    """Draws a join of two or three relations."""
    core = tuple("abc"[: draw(st.integers(2, 3))])
    return Overlap(streams, core, tuple(_chained(draw, core)), draw(st.sampled_from([3, 5, 10, 25])))


@st.composite
def overlapping_query(draw: st.DrawFn, overlap: Overlap, results: Sequence[str] = (), *, grouped: bool = False) -> str:
    """Draws a query with the common join and more relations, streams or results of other queries, maybe grouped.

    A query over results, or one that others may read, has the columns x, y, s and p.
    """
    more = draw(st.sampled_from([[], [], ["d"], ["e"], ["d", "e"]]))
    below = draw(st.none() | st.sampled_from(results)) if results else None
    read = {} if below is None else {f"r_{below}": below}
    names = [*overlap.core, *more, *read]
    slide = draw(st.sampled_from([1, 2, 5])) if grouped else None
    own = [overlap.window if draw(st.booleans()) else draw(st.sampled_from([0, 2, 5, 10])) for _ in names]
    if grouped:
        own[0] = own[0] or 5
    items = []
    for name, each in zip(names, own, strict=True):
        sliding = f" SLIDE {slide} SECONDS" if grouped and name == names[0] else ""
        window = f"[RANGE {each} SECONDS{sliding}]" if each else "[NOW]"
        stream = read.get(name) or f"s{'abcde'.index(name) % overlap.streams}"
        items.append(f"{stream} {window} AS {name}")
    predicates = [*overlap.common, *_chained(draw, [draw(st.sampled_from(overlap.core)), *more, *read])]
    if not draw(st.integers(0, 2)):
        a, b = draw(st.permutations(names))[:2]
        predicates.append(draw(st.sampled_from(_SHARED_JOINS)).format(a=a, b=b))
    if not draw(st.integers(0, 1)):
        timed = [*overlap.core, *more]
        for a, b in itertools.pairwise(draw(st.permutations(timed))):
            predicates.append(draw(st.sampled_from(TIME_BANDS)).format(a=a, b=b))
    filtered = draw(st.lists(st.sampled_from(names), max_size=2))
    # Results have no column f, and a query with a filter that may fail is not accepted in a set.
    filters = [text for text in FILTERS[1:-1] if not read or ".f " not in text]
    predicates += [draw(st.sampled_from(filters)).format(a=name) for name in filtered]
    source = f"FROM {', '.join(draw(st.permutations(items)))} WHERE {' AND '.join(predicates)}"
    first, last = names[0], names[-1]
    if grouped:
        key = draw(st.sampled_from([f"{first}.x", f"{last}.y", None]))
        shown = f"{key or 'COUNT(*)'} AS x, COUNT(*) AS y, MIN({last}.s) AS s, MAX({first}.p) AS p"
        return f"SELECT {shown} {source}{f' GROUP BY {key}' if key else ''}"
    outputs = [f"{last}.x AS x, {last}.y AS y, {last}.s AS s, {first}.p AS p"]
    outputs += [f"{name}.p AS p{i}" for i, name in enumerate(names)]
    return f"SELECT {', '.join(outputs)} {source}"


def _chained(draw: st.DrawFn, names: Sequence[str]) -> list[str]:
    """Draws a predicate from each relation after the first to an earlier one, mostly on the same column."""
    return [
        draw(st.sampled_from(_SHARED_JOINS if not draw(st.integers(0, 2)) else _SHARED_JOINS[:1])).format(
            a=names[draw(st.integers(0, position - 1))], b=names[position]
        )
        for position in range(1, len(names))
    ]


@st.composite
def grouped_queries(draw: st.DrawFn, streams: int, relations: int, *, plain: bool = False) -> DrawnQuery:
    """Draws a grouped query of that many relations; the naive oracle answers it.

    With `plain` some of the aggregates are left out, so that rows differ in less.
    """
    slide = draw(st.sampled_from([1, 2, 5]))
    parts = _Parts(draw, streams, relations, slide)
    first, last = parts.names[0], parts.names[-1]
    keys = draw(
        st.sampled_from(
            [
                *((), (f"{first}.x",), (f"{last}.s",), (f"{first}.x % 2", f"{last}.s"), (f"{first}.f",)),
                *((f"{last}.ts - {first}.ts",), (f"{first}.d", f"{last}.x > 0"), (f"CAST({last}.ts AS DATE)",)),
            ]
        )
    )
    aggregates = [
        "COUNT(*) AS n",
        f"COUNT({last}.x) AS nx",
        f"SUM({first}.x) AS sx",
        f"MIN({last}.s) AS low",
        f"MAX({first}.p) AS high",
        f"AVG({last}.p) AS mean",
        f"SUM({first}.d) AS sd",
        f"SUM(CAST({first}.d AS DECIMAL(38, 2))) AS sl",
        f"MIN({first}.f) AS lf",
        f"MAX({last}.f) AS hf",
        f"AVG({first}.d) AS md",
    ]
    drawn = st.sampled_from([text.format(first=first, last=last) for text in _MORE_AGGREGATES])
    aggregates += [f"{text} AS w{i}" for i, text in enumerate(sorted(draw(st.sets(drawn, max_size=3))))]
    of_any_type = [
        f"{aggregate}({argument.format(first=first, last=last)}) AS v{i}{aggregate}"
        for i, argument in enumerate(_OF_ANY_TYPE)
        for aggregate in ("COUNT", "MIN", "MAX")
    ]
    aggregates += sorted(draw(st.sets(st.sampled_from(of_any_type), max_size=4)))
    if plain:
        aggregates += [f"SUM({first}.y * {last}.y) AS sy", f"AVG({first}.f) AS mf"]
        aggregates = sorted(draw(st.sets(st.sampled_from(aggregates), min_size=1, max_size=4)))
    keyed = "".join(f"{key} AS g{i}, " for i, key in enumerate(keys))
    where = f" WHERE {' AND '.join(parts.predicates)}" if parts.predicates else ""
    group = f" GROUP BY {', '.join(keys)}" if keys else ""
    if draw(st.integers(0, 3)) == 0:
        return DrawnQuery(_ranked_query(draw, parts, keys), "", tuple(parts.names))
    having = draw(st.sampled_from(["", " HAVING COUNT(*) > 1"]))
    cql = f"SELECT WINDOW_END() AS at, {keyed}{', '.join(aggregates)} FROM {parts.from_cql}{where}{group}{having}"
    return DrawnQuery(cql, "", tuple(parts.names))


def _ranked_query(draw: st.DrawFn, parts: _Parts, keys: Sequence[str]) -> str:
    """The first rows of each group and window, in one of the ways to write them."""
    first, last = parts.names[0], parts.names[-1]
    drawn = draw(st.lists(st.sampled_from(_SORT_KEYS), min_size=1, max_size=3))
    order = ", ".join(f"{key.format(first=first, last=last)}{draw(st.sampled_from(_DIRECTIONS))}" for key in drawn)
    values = sorted(draw(st.sets(st.sampled_from(_RANKED_VALUES), min_size=1, max_size=4)))
    shown = ", ".join(f"{value.format(first=first, last=last)} AS v{i}" for i, value in enumerate(values))
    where = f" WHERE {' AND '.join(parts.predicates)}" if parts.predicates else ""
    partition = f"PARTITION BY {', '.join(keys)} " if keys else ""
    rows = draw(st.integers(1, 4))
    number = f"ROW_NUMBER() OVER ({partition}ORDER BY {order})"
    match draw(st.sampled_from(["qualify", "around", "distinct on"])):
        case "qualify":
            return f"SELECT {shown}, WINDOW_END() AS at FROM {parts.from_cql}{where} QUALIFY {number} <= {rows}"
        case "distinct on" if keys:
            ordered = f"DISTINCT ON ({', '.join(keys)}) WINDOW_END() AS at, {shown} FROM {parts.from_cql}{where}"
            return f"SELECT {ordered} ORDER BY {order}, {first}.p % 7"
        case _:
            inner = f"SELECT {shown}, {number} AS rn FROM {parts.from_cql}{where}"
            return f"SELECT * FROM ({inner}) AS r WHERE rn < {rows + 1} AND (v0 IS NULL OR rn <> 2)"


_SORT_KEYS = ("{first}.x", "{last}.s", "{first}.f", "{last}.d", "{last}.ts", "{first}.p % 3", "{last}.x - {first}.x")
_DIRECTIONS = ("", " DESC", " ASC NULLS LAST", " DESC NULLS FIRST")
_RANKED_VALUES = ("{first}.x", "{last}.s", "{first}.f", "{last}.p", "{last}.d", "{first}.ts", "{last}.x > 0")


class _Parts:
    """The FROM list and the predicates that both kinds of query share."""

    def __init__(
        self,
        draw: st.DrawFn,
        streams: int,
        relations: int,
        slide: int | None = None,
        *,
        shuffled: bool = False,
        equalities: Sequence[str] = EQUALITIES,
    ) -> None:
        self.names = list("abcdef"[:relations])
        self.streams = [f"s{i % streams}" for i in range(relations)]
        windows = [draw(st.sampled_from([0, 3, 5, 10, 10, 25])) for _ in self.names]
        if draw(st.booleans()):
            windows = [windows[0]] * relations
        if slide is not None:
            windows = [window or slide for window in windows]
        self.ranges = [window * SECOND for window in windows]
        suffix = f" SLIDE {slide} SECONDS" if slide is not None else ""
        kind = draw(st.sampled_from(["RANGE", "RANGE", "HOP", "TUMBLE"])) if slide is not None else "RANGE"
        clauses = [
            f"[TUMBLE {slide} SECONDS]"
            if kind == "TUMBLE"
            else f"[{kind} {window} SECONDS{suffix}]"
            if window
            else "[NOW]"
            for window in windows
        ]
        items = [
            f"{stream} {clause} AS {name}"
            for stream, clause, name in zip(self.streams, clauses, self.names, strict=True)
        ]
        self.from_cql = ", ".join(draw(st.permutations(items)) if shuffled else items)
        self.from_sql = ", ".join(f"{s} AS {n}" for s, n in zip(self.streams, self.names, strict=True))
        self.predicates = self._joins(draw, equalities) + self._filters(draw)

    def _joins(self, draw: st.DrawFn, equalities: Sequence[str]) -> list[str]:
        texts = []
        for position in range(1, len(self.names)):
            partner = self.names[draw(st.integers(0, position - 1))]
            templates = equalities if draw(st.integers(0, 4)) else THETAS
            texts.append(draw(st.sampled_from(templates)).format(a=partner, b=self.names[position]))
        if len(self.names) > 2:
            for a, b in draw(st.lists(st.sampled_from(list(itertools.combinations(self.names, 2))), max_size=2)):
                texts.append(draw(st.sampled_from((*equalities, *THETAS))).format(a=a, b=b))
        if 2 <= len(self.names) <= 3 and not draw(st.integers(0, 9)):
            texts.pop()  # a cross product
        if len(self.names) > 1 and draw(st.booleans()):
            pairs = st.sampled_from(list(itertools.pairwise(draw(st.permutations(self.names)))))
            for a, b in draw(st.lists(pairs, min_size=1, unique=True)):
                texts.append(draw(st.sampled_from(TIME_BANDS)).format(a=a, b=b))
        return texts

    def _filters(self, draw: st.DrawFn) -> list[str]:
        chosen = draw(st.lists(st.sampled_from(self.names), max_size=2))
        return [draw(st.sampled_from(FILTERS)).format(a=name) for name in chosen]


@st.composite
def plans(
    draw: st.DrawFn, relations: tuple[str, ...], thetas: Sequence[Theta] = (), *, merging: bool = False
) -> PhysicalPlan:
    """Draws any plan over the relations: mjoin, tree, or between; with default or drawn probe orders.

    Thetas are deferred to any join that has their relations. With `merging`, which grouped queries allow, inputs of
    joins may be merged before they join, and no theta is deferred.
    """
    names = draw(st.permutations(relations))
    pieces: list[PhysicalPlan] = [Leaf(name) for name in names]
    while len(pieces) > 1:
        arity = draw(st.integers(2, len(pieces)))
        inputs, pieces = pieces[:arity], pieces[arity:]
        if merging:
            inputs = [PreGroup(child) if draw(st.booleans()) else child for child in inputs]
        orders: tuple[tuple[int, ...], ...] = ()
        if draw(st.booleans()):
            orders = tuple(
                tuple(draw(st.permutations([i for i in range(arity) if i != position]))) for position in range(arity)
            )
        pieces.insert(draw(st.integers(0, len(pieces))), JoinNode(tuple(inputs), orders))
    plan = pieces[0]
    for position, theta in enumerate(thetas):
        others = [other.predicate for other in thetas if other is not theta]
        if merging or guarded_by(theta.predicate, others) is not None:
            continue
        joins = [node for node in nodes(plan) if theta.relations <= {*node.relations}]
        chosen = draw(st.sampled_from([None, None, *joins]))
        if chosen is not None:
            plan = _checking(plan, chosen, position)
    return plan


def _checking(plan: PhysicalPlan, node: JoinNode, position: int) -> PhysicalPlan:
    """Adds a theta to the checks of one join of the plan."""
    if not isinstance(plan, JoinNode):
        return plan
    checks = (*plan.checks, position) if plan is node else plan.checks
    return replace(plan, inputs=tuple(_checking(child, node, position) for child in plan.inputs), checks=checks)


@st.composite
def late_filters(draw: st.DrawFn, drawn: DrawnQuery, given: Arrivals) -> list[str]:
    """Draws some of the filters of a query, by relation or by text, to be checked by joins."""
    plan = rewrite(bind(drawn.cql, given.catalog))
    graph = normal_form(drawn.cql, plan).graph
    if len(graph.names) == 1:
        return []
    parts = [(r.name, part) for r in graph.relations if r.filter is not None for part in conjuncts(r.filter)]
    named = []
    for owner, part in parts:
        # A filter that may guard another expression is refused.
        with contextlib.suppress(SpecError):
            normal_form(drawn.cql, plan, [str(part)])
            named += [str(part)] if sum(other == owner for other, _ in parts) > 1 else [str(part), owner]
    return draw(st.lists(st.sampled_from(named), max_size=3)) if named else []


@st.composite
def batch_cuts(draw: st.DrawFn, given: Arrivals, least: int = 1) -> list[dict[str, pa.Table]]:
    """Cuts the arrivals into at least `least` micro-batches; a stream may be absent from some."""
    count = draw(st.integers(least, max(6, least)))
    batches: list[dict[str, pa.Table]] = [{} for _ in range(count)]
    for name, table in given.tables.items():
        cuts = sorted(draw(st.lists(st.integers(0, table.num_rows), min_size=count - 1, max_size=count - 1)))
        for batch, (start, stop) in zip(batches, itertools.pairwise([0, *cuts, table.num_rows]), strict=True):
            if stop > start or draw(st.booleans()):
                batch[name] = table.slice(start, stop - start)
    return batches


@st.composite
def tables(draw: st.DrawFn, now: Partitioning, uncut: frozenset[str] = frozenset()) -> Partitioning:
    """Draws a table with some groups moved, all of them shuffled, another grid, or keys split and united.

    The draw does not depend on the groups and heavy keys of the table, which a measured rebalancing may change.
    """
    random = Random(draw(st.integers(0, 2**32 - 1)))
    match draw(st.sampled_from(["some", "all", "grid", "heavy", "heavy"])):
        case "some":
            groups = random.sample(range(now.groups), now.groups * draw(st.integers(0, 8)) // 16)
            return now.moved(groups, draw(st.integers(0, now.slots - 1)))
        case "heavy":
            return draw(splits(now, uncut))
        case "grid":
            shares = tuple(replace(d, share=draw(st.integers(1, 4))) for d in now.dimensions)
            now = Partitioning(shares, now.slots, (0,) * math.prod(d.share for d in shares))
    return now.with_table(random.randrange(now.slots) for _ in range(now.groups))


@st.composite
def splits(draw: st.DrawFn, now: Partitioning, uncut: frozenset[str] = frozenset()) -> Partitioning:
    """Unites some heavy keys, and splits some of the small numbers that are keys of drawn rows over drawn slots."""
    for key, is_united in zip(now.heavy, draw(st.lists(st.booleans(), min_size=3, max_size=3)), strict=False):
        if is_united:
            now = now.united(key.code, key.value)
    keys = [each.code for each in now.dimensions if each.relations and not each.code.startswith(ROW)]
    if now.slots == 1 or not keys:
        return now
    for code, value in draw(st.lists(st.tuples(st.sampled_from(keys), st.integers(0, 4)), max_size=2, unique=True)):
        slots = draw(st.lists(st.integers(0, now.slots - 1), min_size=2, max_size=now.slots, unique=True))
        traffic = {name: draw(st.sampled_from([1.0, 5.0])) for name in sorted(now.relations)}
        # A key that is already split, or whose rows must not be split, is unchanged.
        with contextlib.suppress(PlanError):
            now = now.split(code, value, slots, traffic, uncut=uncut)
    return now
