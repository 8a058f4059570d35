"""Queries that share joins: whatever is shared, when, and with whom, each query gets its batch answer."""

from __future__ import annotations

import itertools
import tempfile
from contextlib import suppress
from dataclasses import replace

import pyarrow as pa
from hypothesis import event, given, reject, settings
from hypothesis import strategies as st

from anabranch.cql import compile_query
from anabranch.errors import BundleError, MigrationError
from anabranch.host.local import LocalHost
from anabranch.host.results import ResultLayout
from anabranch.plan.mesh import Plan
from anabranch.plan.physical import JoinNode, Leaf, PhysicalPlan, Shared
from anabranch.plan.query import Query
from anabranch.plan.query_set import Plans, QuerySet, together
from anabranch.plan.sharing import common_joins
from anabranch.testing.meshes import meshes
from anabranch.testing.oracle import batch_answer, describe_difference, rows_as_multiset
from anabranch.testing.strategies import Arrivals, arrivals, batch_cuts, overlapping_queries, plans, tables


@settings(max_examples=2 * settings().max_examples)
@given(data=st.data(), count=st.integers(2, 4))
def test_sharing_joins_changes_no_answer(data: st.DataObject, count: int) -> None:
    """Plans are shared, unshared and switched, groups move, and the queries restart, between any two batches."""
    rows = data.draw(arrivals(3, most_rows=10), "rows")
    queries, several = _together(data, rows, count)
    batches = data.draw(batch_cuts(rows, least=2), "batches")
    restarts = data.draw(st.sets(st.integers(1, len(batches)), max_size=2), "restarts")
    results: dict[str, list[pa.Table]] = {name: [] for name in queries}
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = folder if restarts else None
        host = _host(data, several, checkpoint)
        for number, batch in enumerate(batches):
            if number in restarts:
                host = _host(data, several, checkpoint)
            elif number:
                _ask(data, host)
            mine = {name: table for name, table in batch.items() if name in several.graph.streams}
            for name, table in ResultLayout(host.queries).split(host.step(mine)).items():
                results[name].append(table)
    assert not any(record["kind"] == "refused" for record in host.history)
    for name, query in queries.items():
        expected = batch_answer(query, rows.tables)
        event(f"results: {min(len(expected), 50) // 10 * 10}+")
        assert not describe_difference(expected, rows_as_multiset(pa.concat_tables(results[name])))


def _ask(data: st.DataObject, host: LocalHost) -> None:
    """Asks for changes with the next batch: several queries together, one query alone, groups that move."""
    match data.draw(st.sampled_from(["share", "share", "unshare", "switch", "nothing"]), "change"):
        case "share":
            with suppress(MigrationError, BundleError):  # a change is under way, or the join cannot be shared
                host.steering.migrate(_shared_plans(data, host.queries))
        case "unshare":
            with suppress(MigrationError):
                host.steering.migrate({m.name: data.draw(_any_plan(m.query), "plan") for m in host.queries.members})
        case "switch":
            member = data.draw(st.sampled_from(host.queries.members), "changing")
            strategy = data.draw(st.sampled_from(["auto", "moving-state", "parallel-track"]), "strategy")
            slots = data.draw(st.sampled_from([None, None, [0]]), "slots")
            with suppress(MigrationError):
                host.migrate(data.draw(_any_plan(member.query), "plan"), strategy, slots, query=member.name)
    if host.partitioning.slots > 1 and data.draw(st.booleans(), "moves"):
        host.spread(data.draw(tables(host.partitioning), "table"))


def _together(data: st.DataObject, rows: Arrivals, count: int) -> tuple[dict[str, Query], QuerySet]:
    texts = data.draw(overlapping_queries(3, count), "queries")
    queries = {f"q{number}": compile_query(text, rows.catalog) for number, text in enumerate(texts)}
    try:
        return queries, together(queries)
    except BundleError:
        reject()


def _host(data: st.DataObject, several: QuerySet, checkpoint: str | None) -> LocalHost:
    chosen = {m.name: data.draw(_any_plan(m.query), f"plan of {m.name}") for m in several.members}
    if data.draw(st.booleans(), "shares"):
        chosen |= _shared_plans(data, several)
    slots = data.draw(st.sampled_from([1, 1, 2, 3]), "slots")
    return LocalHost(several, Plans(chosen), slots=slots, checkpoint=checkpoint)


def _shared_plans(data: st.DataObject, several: QuerySet) -> dict[str, Plan]:
    """Plans of some queries with shared joins, most often one join for all; none where they cannot share it."""
    found = set()
    for one, other in itertools.combinations(several.members, 2):
        common = tuple(sorted({*one.query.graph.names} & {*other.query.graph.names}))
        found |= {part for size in range(2, len(common) + 1) for part in itertools.combinations(common, size)}
    inside = data.draw(st.sampled_from(sorted(found)), "shared relations")
    join = data.draw(plans(inside, ()), "shared join")
    assert isinstance(join, JoinNode)
    chosen: dict[str, Plan] = {}
    for member in several.members:
        if {*inside} <= {*member.query.graph.names} and data.draw(st.integers(0, 3), f"{member.name} shares"):
            chosen[member.name] = data.draw(_around(Shared(join), member.query), f"plan of {member.name}")
    users = replace(several, members=tuple(m for m in several.members if m.name in chosen))
    try:
        common_joins(users, chosen)
    except BundleError:  # a key is compared by different relations
        event("cannot share")
        return {}
    event(f"users: {len(chosen)}")
    return chosen


@st.composite
def _around(draw: st.DrawFn, shared: Shared, query: Query) -> PhysicalPlan:
    """A plan of the query in which the shared join is a source like a relation."""
    others = tuple(name for name in query.graph.names if name not in shared.relations)
    return _with(draw(plans(("shared_join", *others), ())), shared)


def _with(plan: PhysicalPlan, shared: Shared) -> PhysicalPlan:
    if isinstance(plan, Leaf):
        return shared if plan.relation == "shared_join" else plan
    return plan.with_inputs(tuple(_with(child, shared) for child in plan.inputs))


def _any_plan(query: Query) -> st.SearchStrategy[Plan]:
    return meshes(query.graph) | plans(query.graph.names, query.graph.thetas)
