"""Queries join a running set and leave it: those that stay never notice, those that come say from when on they answer.

A query that stays gets its batch answer. One that leaves has given the answer over the rows until then. One that joins
gives exactly the results that are not older than the time that it names, and names a time that follows from the rows
that are there.
"""

from __future__ import annotations

import re
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping, Set

import pyarrow as pa
from hypothesis import event, given, settings
from hypothesis import strategies as st

from anabranch.cql import compile_query, declared_results
from anabranch.errors import BundleError
from anabranch.lang.catalog import Catalog
from anabranch.plan.query import Query
from anabranch.plan.query_set import QuerySet, partitioning_of, together, with_inputs
from anabranch.run.changing import change_set
from anabranch.run.local import LocalHost
from anabranch.run.results import ResultLayout
from anabranch.run.store import Store
from tests.oracle.sharing import ask, some_plans
from tests.oracle.test_derived import _disturb, _host, _text
from tests.support.oracle import Answer, comparable, describe_difference, rows_as_multiset, timed_results
from tests.support.outer_queries import drawn_tables, with_tables
from tests.support.strategies import TIME_BANDS, Arrivals, arrivals, batch_cuts, overlapping_query, overlaps

NO_TABLES: Mapping[str, pa.Table] = {}


@given(data=st.data(), count=st.integers(2, 5))
def test_queries_that_come_and_go_are_exact(data: st.DataObject, count: int) -> None:
    """Queries over streams and over one another, in any form; plans change and groups move."""
    rows = data.draw(arrivals(2, most_rows=8, mostly_dense=True), "rows")
    _run(data, rows, _queries(data, rows, count), _host, _disturb)


@given(data=st.data(), count=st.integers(2, 5))
def test_queries_that_share_joins_come_and_go_exactly(data: st.DataObject, count: int) -> None:
    """Queries with a join in common, grouped and over one another, share it now and then."""
    rows = data.draw(arrivals(2, most_rows=8, mostly_dense=True), "rows")
    _run(data, rows, _overlapping(data, rows, count), _sharing_host, ask)


@settings(max_examples=2 * settings().max_examples)
@given(data=st.data(), count=st.integers(2, 5))
def test_queries_of_every_kind_come_and_go_exactly(data: st.DataObject, count: int) -> None:
    """Each kind keeps rows for another time, or none: one stream, beside tables, outer joins, windows of every kind."""
    rows = data.draw(arrivals(2, most_rows=16, mostly_dense=True), "rows")
    beside = data.draw(drawn_tables(1), "tables")
    queries = _of_every_kind(data, with_tables(rows.catalog, beside), count)
    _run(data, rows, queries, _host_with(beside), _rest, beside, {"q0"})


def _run(
    data: st.DataObject,
    rows: Arrivals,
    queries: dict[str, Query],
    make: Callable[[st.DataObject, QuerySet, str], LocalHost],
    disturb: Callable[[st.DataObject, LocalHost], None],
    beside: Mapping[str, pa.Table] = NO_TABLES,
    staying: Set[str] = frozenset(),
) -> None:
    batches = data.draw(batch_cuts(rows, least=6 if staying else 3), "batches")
    names = _some(data, queries, staying, "at first")
    several = _together(queries, names)
    while several is None:  # a filter of one query's own guards what may fail
        names.pop()
        several = _together(queries, names | staying) if names else together({"q0": queries["q0"]})
    lives: dict[str, int | None] = dict.fromkeys(several.names)
    found: dict[str, list[pa.Table]] = {name: [] for name in lives}
    with tempfile.TemporaryDirectory() as folder:
        host = make(data, several, folder)
        for number, batch in enumerate(batches):
            if number and data.draw(st.sampled_from([True, bool(staying), False]), "change"):
                wanted = _some(data, queries, staying, "wanted")
                changed = _changed(host, folder, several, _together(queries, wanted))
                if changed is not None:
                    several, joined = changed
                    for name in [name for name in lives if name not in several.names and name in queries]:
                        _check(queries[name], rows, batches[:number], lives.pop(name), found.pop(name), beside)
                    lives |= joined
                    found |= {name: [] for name in joined}
                    host = make(data, several, folder)
            elif number and data.draw(st.booleans(), "restart"):
                host = make(data, several, folder)
            disturb(data, host)
            mine = {name: table for name, table in batch.items() if name in several.streams}
            for name, table in ResultLayout(host.queries).split(host.step(mine)).items():
                found[name].append(table)
        for name, since in lives.items():
            if name in queries:
                _check(queries[name], rows, batches, since, found[name], beside)


def _some(data: st.DataObject, queries: Mapping[str, Query], staying: Set[str], label: str) -> set[str]:
    """Some of the queries: any, or one in two beside those that stay."""
    if not staying:
        return data.draw(st.sets(st.sampled_from(sorted(queries)), min_size=1), label)
    return {name for name in queries if name in staying or data.draw(st.booleans(), f"{label}: {name}")}


def _changed(
    host: LocalHost, folder: str, old: QuerySet, new: QuerySet | None
) -> tuple[QuerySet, dict[str, int | None]] | None:
    """The set after a change, and from when on the queries that joined answer; None where it is refused."""
    if new is None:
        return None
    try:
        change = change_set(Store(folder), old, new, partitioning_of(new, host.partitioning.slots))
    except BundleError as error:
        event(f"refused: {error.message[:40]}")
        return None
    event(f"joined: {len(change.joined)}, left: {len(change.left)}")
    return new, dict(change.joined)


def _check(
    query: Query,
    rows: Arrivals,
    batches: list[dict[str, pa.Table]],
    since: int | None,
    found: list[pa.Table],
    beside: Mapping[str, pa.Table],
) -> None:
    tables = {
        stream: pa.concat_tables([whole.slice(0, 0), *(batch[stream] for batch in batches if stream in batch)])
        for stream, whole in rows.tables.items()
    }
    results = timed_results(query, {**tables, **beside})
    expected: Answer = Counter(
        tuple(map(comparable, values)) for time, values in results if since is None or time >= since
    )
    event(f"{'joined' if since is not None else 'from the first'}: {min(len(expected), 2)}+ results")
    answer = rows_as_multiset(pa.concat_tables(found)) if found else Counter()
    assert not describe_difference(expected, answer)


def _queries(data: st.DataObject, rows: Arrivals, count: int) -> dict[str, Query]:
    catalog = rows.catalog
    texts: dict[str, str] = {}
    queries: dict[str, Query] = {}
    for number in range(count):
        name = f"q{number}"
        texts[name] = _text(data, catalog, texts, f"text of {name}")
        queries[name] = compile_query(texts[name], catalog)
        catalog.register(declared_results(name, queries[name]))
    return queries


def _overlapping(data: st.DataObject, rows: Arrivals, count: int) -> dict[str, Query]:
    catalog = rows.catalog
    overlap = data.draw(overlaps(2), "overlap")
    queries: dict[str, Query] = {}
    for number in range(count):
        name = f"q{number}"
        is_grouped = not data.draw(st.integers(0, 2), f"{name} is grouped")
        text = data.draw(overlapping_query(overlap, tuple(queries), grouped=is_grouped), f"text of {name}")
        queries[name] = compile_query(text, catalog)
        catalog.register(declared_results(name, queries[name]))
    return queries


_WINDOWS = ("[RANGE 1 SECOND{}]", "[RANGE 2 SECONDS{}]", "[RANGE 3 SECONDS{}]", "[TUMBLE 3 SECONDS]", "[NOW]")
_GROUPED = (*_WINDOWS[:-1], "[HOP 2 SECONDS{}]", "[TUMBLE 2 SECONDS]")
_SOURCES = {
    "one": "{a}",
    "pair": "{a}, {b}",
    "table": "{a}, t0",
    "or table": "{a} LEFT JOIN t0 ON {x}.y = t0.y",
    "left": "{a} LEFT JOIN {b} ON {x}.x = {y}.x",
    "anti": "{a} LEFT ANTI JOIN {b} ON {x}.x = {y}.x",
    "semi": "{a} LEFT SEMI JOIN {b} ON {x}.x = {y}.x",
    "full": "{a} FULL JOIN {b} ON {x}.x = {y}.x",
}
_KINDS = ("one", *_SOURCES)


def _of_every_kind(data: st.DataObject, catalog: Catalog, count: int) -> dict[str, Query]:
    """Queries over the same few aliases, most of them with one window; the first reads all streams, under others."""
    usual = {slides: data.draw(st.sampled_from(_GROUPED if slides else _WINDOWS)) for slides in (False, True)}
    queries = {"q0": compile_query("SELECT v.p AS p FROM s0 [NOW] AS v, s1 [NOW] AS w WHERE v.x = w.x", catalog)}
    for number in range(1, count + 1):
        name = f"q{number}"
        text = data.draw(_text_of_a_kind(usual, [each for each in queries if each in catalog.streams]), name)
        queries[name] = compile_query(text, catalog)
        if not queries[name].waits:
            catalog.register(declared_results(name, queries[name]))
    return queries


@st.composite
def _text_of_a_kind(draw: st.DrawFn, usual: Mapping[bool, str], results: list[str]) -> str:
    kind, is_grouped = draw(st.sampled_from(_KINDS)), draw(st.booleans())
    own = draw(st.sampled_from(_GROUPED if is_grouped else _WINDOWS))
    window = (usual[is_grouped] if draw(st.integers(0, 2)) else own).format(" SLIDE 1 SECOND" if is_grouped else "")
    stream, x = draw(st.sampled_from([("s0", "a"), ("s0", "a"), ("s0", "c"), ("s1", "b"), *((q, q) for q in results)]))
    other = "s0" if stream == "s1" else "s1"
    # What a side reads has one window in all queries.
    y = f"{other}_{'_'.join(re.findall('[A-Z0-9]+', window))}"
    source = _SOURCES[kind].format(a=f"{stream} {window} AS {x}", b=f"{other} {window} AS {y}", x=x, y=y)
    tests = {"pair": [f"{x}.x = {y}.x"], "table": [f"{x}.y = t0.y"]}.get(kind, [])
    if kind == "pair" and stream in ("s0", "s1") and draw(st.booleans()):
        tests.append(draw(st.sampled_from(TIME_BANDS)).format(a=x, b=y))
    if not draw(st.integers(0, 3)):
        tests.append(f"{x}.p % 3 <> 0")
    where = f" WHERE {' AND '.join(tests)}" if tests else ""
    if is_grouped:
        return f"SELECT {x}.x AS x, {x}.x AS y, COUNT(*) AS n, MAX({x}.p) AS p FROM {source}{where} GROUP BY {x}.x"
    return f"SELECT {x}.x AS x, {x}.y AS y, {x}.p AS p FROM {source}{where}"


def _host_with(beside: Mapping[str, pa.Table]) -> Callable[[st.DataObject, QuerySet, str], LocalHost]:
    def make(data: st.DataObject, several: QuerySet, checkpoint: str) -> LocalHost:
        slots = data.draw(st.sampled_from([1, 1, 2]), "slots")
        read = {name: table for name, table in beside.items() if name in several.graph.tables}
        return LocalHost(several, some_plans(data, several), slots=slots, checkpoint=checkpoint, tables=read)

    return make


def _rest(data: st.DataObject, host: LocalHost) -> None:
    """Lets plans and partition groups stay."""


def _sharing_host(data: st.DataObject, several: QuerySet, checkpoint: str) -> LocalHost:
    slots = data.draw(st.sampled_from([1, 2, 2, 3]), "slots")
    return LocalHost(several, some_plans(data, several), slots=slots, checkpoint=checkpoint)


def _together(queries: dict[str, Query], names: set[str]) -> QuerySet | None:
    """The queries and those that they read, all with a sink."""
    try:
        wanted = with_inputs({name: queries[name] for name in names})
        return together({name: query for name, query in wanted.items() if name in queries})
    except BundleError:
        return None
