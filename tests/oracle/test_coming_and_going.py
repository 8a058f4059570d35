"""Queries join a running set and leave it: those that stay never notice, those that come say from when on they answer.

A query that stays gets its batch answer. One that leaves has given the answer over the rows until then. One that joins
gives exactly the results that are not older than the time that it names.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Callable

import pyarrow as pa
from hypothesis import event, given
from hypothesis import strategies as st

from anabranch.cql import compile_query, declared_results
from anabranch.errors import BundleError
from anabranch.host.changing import change_set
from anabranch.host.local import LocalHost
from anabranch.host.results import ResultLayout
from anabranch.host.store import Store
from anabranch.plan.query import Query
from anabranch.plan.query_set import QuerySet, partitioning_of, together, with_inputs
from anabranch.testing.oracle import Answer, comparable, describe_difference, rows_as_multiset, timed_results
from anabranch.testing.strategies import Arrivals, arrivals, batch_cuts, overlapping_query, overlaps
from tests.oracle.sharing import ask, some_plans
from tests.oracle.test_derived import _disturb, _host, _text


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


def _run(
    data: st.DataObject,
    rows: Arrivals,
    queries: dict[str, Query],
    make: Callable[[st.DataObject, QuerySet, str], LocalHost],
    disturb: Callable[[st.DataObject, LocalHost], None],
) -> None:
    batches = data.draw(batch_cuts(rows, least=3), "batches")
    names = data.draw(st.sets(st.sampled_from(sorted(queries)), min_size=1), "at first")
    several = _together(queries, names)
    while several is None:  # a filter of one query's own guards what may fail
        names.pop()
        several = _together(queries, names) if names else together({"q0": queries["q0"]})
    lives: dict[str, int | None] = dict.fromkeys(several.names)
    found: dict[str, list[pa.Table]] = {name: [] for name in lives}
    with tempfile.TemporaryDirectory() as folder:
        host = make(data, several, folder)
        for number, batch in enumerate(batches):
            if number and data.draw(st.booleans(), "change"):
                wanted = data.draw(st.sets(st.sampled_from(sorted(queries)), min_size=1), "wanted")
                changed = _changed(host, folder, several, _together(queries, wanted))
                if changed is not None:
                    several, joined = changed
                    for name in [name for name in lives if name not in several.names and name in queries]:
                        _check(queries[name], rows, batches[:number], lives.pop(name), found.pop(name))
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
                _check(queries[name], rows, batches, since, found[name])


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
    query: Query, rows: Arrivals, batches: list[dict[str, pa.Table]], since: int | None, found: list[pa.Table]
) -> None:
    tables = {
        stream: pa.concat_tables([whole.slice(0, 0), *(batch[stream] for batch in batches if stream in batch)])
        for stream, whole in rows.tables.items()
    }
    results = timed_results(query, tables)
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
