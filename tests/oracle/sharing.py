"""Plans with shared joins for drawn sets of queries, and the changes that are asked of a host between two batches."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from contextlib import nullcontext, suppress
from dataclasses import replace

import pytest
from hypothesis import event
from hypothesis import strategies as st

from anabranch.errors import BundleError, MigrationError, PlanError
from anabranch.plan.mesh import Plan
from anabranch.plan.physical import JoinNode, Leaf, PhysicalPlan, Shared
from anabranch.plan.query import Query
from anabranch.plan.query_set import Plans, QuerySet
from anabranch.plan.sharing import common_joins
from anabranch.run.local import LocalHost
from tests.support.meshes import meshes
from tests.support.strategies import plans, tables


def some_plans(data: st.DataObject, several: QuerySet) -> Plans:
    """A plan of each query; half of the time with a join that some of them share."""
    chosen = {each.name: data.draw(any_plan(each.query), f"plan of {each.name}") for each in several.members}
    if data.draw(st.booleans(), "shares"):
        chosen |= shared_plans(data, several)
    return Plans(chosen)


def ask(data: st.DataObject, host: LocalHost) -> None:
    """Asks for changes with the next batch: several queries together, one query alone, groups that move."""
    match data.draw(st.sampled_from(["share", "share", "unshare", "switch", "nothing"]), "change"):
        case "share":
            wanted = shared_plans(data, host.queries)
            # Refused only where the join cannot be shared with those who share it already.
            refusal = nullcontext() if _can_share(host, wanted) else pytest.raises(BundleError)
            with suppress(MigrationError), refusal:  # a change is under way
                host.steering.migrate(wanted)
        case "unshare":
            with suppress(MigrationError):
                host.steering.migrate({m.name: data.draw(any_plan(m.query), "plan") for m in host.queries.members})
        case "switch":
            member = data.draw(st.sampled_from(host.queries.members), "changing")
            strategy = data.draw(st.sampled_from(["auto", "moving-state", "parallel-track"]), "strategy")
            slots = data.draw(st.sampled_from([None, None, [0]]), "slots")
            with suppress(MigrationError):
                host.migrate(data.draw(any_plan(member.query), "plan"), strategy, slots, query=member.name)
    if host.partitioning.slots > 1 and data.draw(st.booleans(), "moves"):
        with suppress(PlanError):
            host.spread(data.draw(tables(host.partitioning), "table"))


def shared_plans(data: st.DataObject, several: QuerySet) -> dict[str, Plan]:
    """Plans of some queries with shared joins, most often one join for all; none where they cannot share it."""
    found = set()
    for one, other in itertools.combinations(several.members, 2):
        streamed = [{each.name for each in m.query.graph.relations if not each.is_result} for m in (one, other)]
        common = tuple(sorted(streamed[0] & streamed[1]))
        found |= {part for size in range(2, len(common) + 1) for part in itertools.combinations(common, size)}
    if not found:
        return {}
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


def any_plan(query: Query) -> st.SearchStrategy[Plan]:
    """A plan or a mesh of a query."""
    return meshes(query.graph) | plans(query.graph.names, query.graph.thetas)


def _can_share(host: LocalHost, wanted: Mapping[str, Plan]) -> bool:
    try:
        common_joins(host.queries, {**host.steering.most_plans.plans, **wanted})
    except BundleError:
        event("cannot share with those who share")
        return False
    return True


@st.composite
def _around(draw: st.DrawFn, shared: Shared, query: Query) -> PhysicalPlan:
    """A plan of the query in which the shared join is a source like a relation."""
    others = tuple(name for name in query.graph.names if name not in shared.relations)
    return _with(draw(plans(("shared_join", *others), ())), shared)


def _with(plan: PhysicalPlan, shared: Shared) -> PhysicalPlan:
    if isinstance(plan, Leaf):
        return shared if plan.relation == "shared_join" else plan
    return plan.with_inputs(tuple(_with(child, shared) for child in plan.inputs))
