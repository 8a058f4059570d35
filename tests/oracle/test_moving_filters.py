"""Filters move: over queries, beside meshes, in sets; by a restart or by a change of a running set.

Whatever the plans, the cut, the slots, changes of plans and moves of groups, each query gets its batch answer.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence

import pyarrow as pa
from hypothesis import event, given
from hypothesis import strategies as st

from anabranch.cql import compile_query, declared_results
from anabranch.errors import BundleError, ForeignCheckpoint, SpecError
from anabranch.lang.catalog import Catalog
from anabranch.lang.expr import conjuncts
from anabranch.plan.mesh import Mesh
from anabranch.plan.query import Query
from anabranch.plan.query_set import ALONE, QuerySet, partitioning_of, set_of, with_inputs
from anabranch.run.changing import change_set
from anabranch.run.evolving import follow
from anabranch.run.results import ResultLayout
from anabranch.run.store import Store
from tests.oracle.test_derived import _disturb, _host
from tests.support.oracle import batch_answer, describe_difference, rows_as_multiset
from tests.support.strategies import arrivals, batch_cuts

FILTERS = ("{a}.s LIKE 'a%'", "{a}.s LIKE '%b'", "{a}.s <> 'a'", "{a}.p % 3 <> 0", "{a}.p > 1", "{a}.y >= 0")


@given(data=st.data(), count=st.integers(1, 3))
def test_filters_that_move_change_no_answer(data: st.DataObject, count: int) -> None:
    rows = data.draw(arrivals(2, most_rows=12, mostly_dense=True), "rows")
    catalog = rows.catalog
    texts = _texts(data, catalog, count)
    last = f"q{count - 1}"
    if data.draw(st.booleans(), "alone"):
        names = {ALONE: last}
    else:
        names = {name: name for name in texts if name == last or data.draw(st.booleans(), f"{name} has a sink")}
    given_queries = {name: compile_query(texts[text], catalog) for name, text in names.items()}
    read = {name for query in with_inputs(given_queries).values() for name, _ in query.inputs}
    movable = {name: query for name, query in given_queries.items() if name not in read}

    def compiled(late: Mapping[str, Sequence[str]]) -> QuerySet:
        again = {n: compile_query(texts[names[n]], catalog, late_filters=late.get(n, ())) for n in names}
        return set_of(again)

    several = compiled({})
    results: dict[str, list[pa.Table]] = {name: [] for name in names}
    batches = data.draw(batch_cuts(rows, least=3), "batches")
    with tempfile.TemporaryDirectory() as folder:
        host = _host(data, several, folder)
        for number, batch in enumerate(batches):
            if number:
                late = {
                    name: data.draw(_late(query, texts[names[name]], catalog), name) for name, query in movable.items()
                }
                plans = host.steering.most_plans.plans.values()
                moved = _moved(data, folder, several, late, compiled, catalog)
                if moved is not None:
                    kind = "over queries" if several.stages > 1 else "plain"
                    kind = kind if ALONE in names else f"{kind}, in a set of {len(names)}"
                    event(f"moved {kind}{', beside a mesh' if any(isinstance(p, Mesh) for p in plans) else ''}")
                    several = moved
                host = _host(data, several, folder)
            if not data.draw(st.integers(0, 3), "disturb"):
                _disturb(data, host)
            mine = {name: table for name, table in batch.items() if name in several.streams}
            for name, table in ResultLayout(host.queries).split(host.step(mine)).items():
                results[name].append(table)
    for name, query in given_queries.items():
        expected = batch_answer(query, rows.tables)
        event(f"results: {min(len(expected), 3)}+")
        assert not describe_difference(expected, rows_as_multiset(pa.concat_tables(results[name])))


def _texts(data: st.DataObject, catalog: Catalog, count: int) -> dict[str, str]:
    """Queries over streams and over one another, all with filters; several name a stream by the same alias."""
    texts: dict[str, str] = {}
    for number in range(count):
        name = f"q{number}"
        below = ["s1", *texts, *(f"({text})" for text in texts.values())]
        chosen = data.draw(st.sampled_from(below), f"below {name}")
        texts[name] = _text(data, chosen, "d" if chosen == "s1" else f"d{number}")
        catalog.register(declared_results(name, compile_query(texts[name], catalog)))
    return texts


def _text(data: st.DataObject, below: str, other: str) -> str:
    """A join of a stream, of which there are filters, with another stream or with the results of a query."""
    alias = data.draw(st.sampled_from(["a", "a", "b"]), "alias")
    first, second = (data.draw(st.sampled_from([2, 10, 10]), "window") for _ in range(2))
    filters = data.draw(st.lists(st.sampled_from(FILTERS), min_size=1, max_size=3, unique=True), "filters")
    key = data.draw(st.sampled_from(["x", "x", "y"]), "key")
    conditions = " AND ".join([f"{other}.x = {{a}}.{key}", *filters]).format(a=alias)
    return (
        f"SELECT {alias}.x AS x, {other}.x AS y, {alias}.p AS p FROM {below} [RANGE {first} SECONDS] AS {other}, "
        f"s0 [RANGE {second} SECONDS] AS {alias} WHERE {conditions}"
    )


def _late(query: Query, text: str, catalog: Catalog) -> st.SearchStrategy[list[str]]:
    """Some conditions on single relations that can be put off."""
    if len(query.graph.names) == 1:
        return st.just([])
    parts = [str(part) for each in query.graph.relations if each.filter is not None for part in conjuncts(each.filter)]
    able = []
    for part in parts:
        try:
            compile_query(text, catalog, late_filters=[part])
        except SpecError:
            continue  # it may keep something from failing
        able.append(part)
    return st.lists(st.sampled_from(able), unique=True) if able else st.just([])


def _moved(
    data: st.DataObject,
    folder: str,
    now: QuerySet,
    late: Mapping[str, Sequence[str]],
    compiled: Callable[[Mapping[str, Sequence[str]]], QuerySet],
    catalog: Catalog,
) -> QuerySet | None:
    """The queries with other late filters, and the checkpoint with them; None where they stay."""
    try:
        wanted = compiled(late)
    except (BundleError, SpecError):  # two conditions that guard each other, or one that guards what may fail
        return None
    if wanted.late_filters == now.late_filters:
        return None

    try:
        if data.draw(st.booleans(), "by a restart"):
            assert follow(Store(folder), wanted, catalog, lambda: partitioning_of(wanted, 1))
            return wanted
        slots = data.draw(st.integers(1, 3), "slots of the move")
        change_set(Store(folder), now, wanted, partitioning_of(wanted, slots))
    except (BundleError, ForeignCheckpoint) as error:
        event(f"refused: {error.message[:60]}")
        return None
    return wanted
