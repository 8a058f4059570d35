"""Queries over queries: whatever the plans, the cut, the slots, moves and restarts, each gets its batch answer."""

from __future__ import annotations

import tempfile
from contextlib import suppress

import pyarrow as pa
from hypothesis import event, given, reject, settings
from hypothesis import strategies as st

from anabranch.cql import compile_query, declared_results
from anabranch.errors import BundleError, MigrationError
from anabranch.lang.catalog import Catalog
from anabranch.plan.mesh import Plan
from anabranch.plan.query import Query
from anabranch.plan.query_set import ALONE, Plans, QuerySet, alone, together
from anabranch.run.local import LocalHost
from anabranch.run.results import ResultLayout
from tests.support.meshes import meshes
from tests.support.moves import SLOTS, draw_move
from tests.support.oracle import batch_answer, describe_difference, rows_as_multiset
from tests.support.strategies import Arrivals, arrivals, batch_cuts, plans

_JOINS = ("{a}.x = {b}.x", "{a}.x = {b}.x", "{a}.y = {b}.y", "{a}.s = {b}.s", "{a}.p <= {b}.p", "{a}.x = {b}.y")
_FILTERS = ("{a}.x >= 0", "{a}.p % 3 <> 0", "{a}.s LIKE 'a%'", "{a}.y IS NOT NULL")


@settings(max_examples=2 * settings().max_examples)
@given(data=st.data(), count=st.integers(1, 5))
def test_queries_over_queries_get_their_batch_answers(data: st.DataObject, count: int) -> None:
    rows = data.draw(arrivals(2, most_rows=8), "rows")
    queries, several = _drawn(data, rows, count)
    batches = data.draw(batch_cuts(rows), "batches")
    restarts = data.draw(st.sets(st.integers(1, len(batches)), max_size=2), "restarts")
    results: dict[str, list[pa.Table]] = {name: [] for name in queries}
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = folder if restarts else None
        host = _host(data, several, checkpoint)
        for number, batch in enumerate(batches):
            if number in restarts:
                host = _host(data, several, checkpoint)
            _disturb(data, host)
            mine = {name: table for name, table in batch.items() if name in several.streams}
            for name, table in ResultLayout(host.queries).split(host.step(mine)).items():
                results[name].append(table)
    assert not any(host.late.values())
    event(f"stages: {several.stages}")
    for name, query in queries.items():
        expected = batch_answer(query, rows.tables)
        event(f"{'grouped' if query.grouping else 'join'} on level {several.levels[name]}: {min(len(expected), 3)}+")
        assert not describe_difference(expected, rows_as_multiset(pa.concat_tables(results[name])))


def _drawn(data: st.DataObject, rows: Arrivals, count: int) -> tuple[dict[str, Query], QuerySet]:
    """Queries over streams and over one another, and those of them that have a sink, as a set."""
    catalog = rows.catalog
    texts: dict[str, str] = {}
    queries: dict[str, Query] = {}
    for number in range(count):
        name = f"q{number}"
        texts[name] = _text(data, catalog, texts, f"text of {name}")
        queries[name] = compile_query(texts[name], catalog)
        catalog.register(declared_results(name, queries[name]))
    last = f"q{count - 1}"
    if data.draw(st.booleans(), "alone"):
        chosen = {ALONE: queries[last]}
    else:
        chosen = {last: queries[last]} | {
            name: query for name, query in queries.items() if data.draw(st.booleans(), f"{name} has a sink")
        }
    try:
        return chosen, alone(chosen[ALONE]) if ALONE in chosen else together(chosen)
    except BundleError:  # a filter of one query's own guards what may fail
        reject()


def _text(data: st.DataObject, catalog: Catalog, texts: dict[str, str], label: str) -> str:
    """A query over streams and results, with columns that the next one can compare."""
    size = data.draw(st.sampled_from([1, 1, 2, 2, 3]), f"size of {label}")
    slide = data.draw(st.sampled_from([None, None, 1, 2, 5]), f"slide of {label}")
    known = [declared.name for declared in catalog.streams.values()]
    aliases: list[str] = []
    items: list[str] = []
    for place in range(size):
        stream = data.draw(st.sampled_from(known[-3:]), f"input of {label}")
        alias = data.draw(st.sampled_from([stream, f"{stream}_{place}"]), "alias")
        if alias in aliases:
            alias = f"{stream}_{place}"
        aliases.append(alias)
        window = data.draw(st.sampled_from([0, 2, 5, 10]), "window")
        sliding = f" SLIDE {slide} SECONDS" if slide is not None and window else ""
        window_text = f"[RANGE {window} SECONDS{sliding}]" if window or not place else "[NOW]"
        if slide is not None and not place:
            window_text = f"[RANGE {window or slide} SECONDS SLIDE {slide} SECONDS]"
        elif not window:
            window_text = "[NOW]"
        is_inline = stream in texts and data.draw(st.booleans(), "as a subquery")
        inline = texts.get(stream, "")
        if is_inline and data.draw(st.booleans(), "UNION ALL"):
            more = data.draw(st.sampled_from([*texts.values(), "SELECT x, y, s, p FROM s0"]), "the other branch")
            inline = f"{inline} UNION ALL {more}"
        items.append(f"{f'({inline})' if is_inline else stream} {window_text} AS {alias}")
    predicates = [
        data.draw(st.sampled_from(_JOINS), "join").format(a=aliases[data.draw(st.integers(0, i - 1))], b=aliases[i])
        for i in range(1, size)
    ]
    if data.draw(st.booleans(), "filters"):
        predicates.append(data.draw(st.sampled_from(_FILTERS), "filter").format(a=aliases[0]))
    joined = ", ".join(items)
    if size > 1 and data.draw(st.booleans(), "outer join"):
        on = predicates.pop(size - 2)
        kind = data.draw(st.sampled_from(["LEFT", "LEFT", "FULL"] if size == 2 else ["LEFT"]), "kind")
        joined = f"{', '.join(items[:-1])} {kind} JOIN {items[-1]} ON {on}"
    where = f" WHERE {' AND '.join(predicates)}" if predicates else ""
    first, last = aliases[0], aliases[-1]
    if slide is None:
        outputs = f"{first}.x AS x, {last}.y AS y, {last}.s AS s, {first}.p AS p"
        return f"SELECT {outputs} FROM {joined}{where}"
    key = data.draw(st.sampled_from([f"{first}.x", f"{last}.y", f"{first}.s", None]), "group")
    shown = f"COUNT(*) AS x, MAX({last}.y) AS y, MIN({last}.s) AS s, MAX({first}.p) AS p"
    if key is not None and not key.endswith(".s"):
        shown = f"{key} AS x, COUNT(*) AS y, MIN({last}.s) AS s, MAX({first}.p) AS p"
    group = f" GROUP BY {key}" if key is not None else ""
    return f"SELECT {shown} FROM {joined}{where}{group}"


def _host(data: st.DataObject, several: QuerySet, checkpoint: str | None) -> LocalHost:
    chosen = Plans({each.name: data.draw(_any_plan(each.query), f"plan of {each.name}") for each in several.members})
    return LocalHost(several, chosen, slots=data.draw(SLOTS, "slots"), checkpoint=checkpoint)


def _any_plan(query: Query) -> st.SearchStrategy[Plan]:
    of_joins = plans(query.graph.names, query.graph.thetas, merging=query.merging is not None)
    return meshes(query.graph) | of_joins


def _disturb(data: st.DataObject, host: LocalHost) -> None:
    """A change of a plan, of a table, of both, or of nothing."""
    if data.draw(st.integers(0, 2), "migrate") == 0:
        member = data.draw(st.sampled_from(host.queries.members), "changing")
        strategy = data.draw(st.sampled_from(["moving-state", "parallel-track", "spread"]), "strategy")
        with suppress(MigrationError):  # one is under way already
            host.migrate(data.draw(_any_plan(member.query), "plan"), strategy, query=member.name or None)
    if not data.draw(st.integers(0, 2), "moves"):
        draw_move(data, host)
