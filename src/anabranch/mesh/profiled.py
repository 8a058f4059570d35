"""Searches a mesh using the operator profiles of slots.

Plan staging (Nehme et al. 2012, sections 4.2 and 5.3): between two steps a slot runs its operators on its youngest rows
and reports selectivities and costs. The driver pools the reports of several slots and searches the best mesh for them.
Limit: routes can only use columns that the profiled rows have.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from time import perf_counter

import numpy as np
import pyarrow as pa

from anabranch.mesh.learn import CURRENT, SearchSetting
from anabranch.mesh.proposal import MeshProposal
from anabranch.mesh.search import MeshCosts
from anabranch.mesh.whole import find_query_mesh
from anabranch.plan.join_graph import JoinGraph
from anabranch.plan.mesh import Mesh, Plan, one_route, orders_of
from anabranch.stats.mesh.learnt import LearntMesh, LearntRoutes, Profiled
from anabranch.stats.mesh.operators import OperatorMatrix
from anabranch.stats.mesh.profiles import OperatorProfile

SEARCH = SearchSetting(size=10, early_out=True, existence_probes=True)


def learn_mesh(
    graph: JoinGraph,
    seen: Iterable[OperatorProfile],
    seed: int,
    current: Plan | None = None,
    is_worth: Callable[[LearntMesh], bool] | None = None,
    *,
    with_existence_probes: bool = True,
) -> LearntMesh:
    """Searches the best mesh, starting from the current plan if that is a mesh.

    No classifier is searched if `is_worth` rejects a mesh with the lower bound of the cost. If the current plan is an
    mjoin, relations that gain nothing by routes keep its probe orders.
    """
    started, profiles = perf_counter(), list(seen)
    mesh = current if isinstance(current, Mesh) else None
    profiled = _profiled(graph, profiles)

    def asked(least: Mapping[str, float]) -> bool:
        ideal = {name: LearntRoutes("", (1.0,), (cost,), cost, cost, cost) for name, cost in least.items()}
        return is_worth is None or is_worth(LearntMesh(one_route(graph), ideal, profiled=profiled))

    setting = replace(SEARCH, existence_probes=SEARCH.existence_probes and with_existence_probes)
    orders = orders_of(current, graph)
    found = find_query_mesh(graph, profiles, np.random.default_rng(seed), setting, mesh, asked, orders)
    overheads = {each.relation: _overhead(each) for each in profiles}
    relations = {name: _learnt(each, overheads[name]) for name, each in found.proposals.items()}
    return LearntMesh(found.mesh, relations, perf_counter() - started, profiled)


def pooled(several: Iterable[Sequence[OperatorProfile]]) -> list[OperatorProfile]:
    """Concatenates the profiles of several slots, by relation."""
    by_relation: dict[str, list[OperatorProfile]] = {}
    for profiles in several:
        for each in profiles:
            by_relation.setdefault(each.relation, []).append(each)
    return [_together(parts) for parts in by_relation.values()]


def _together(parts: list[OperatorProfile]) -> OperatorProfile:
    seen = [part for part in parts if part.matrix.rows] or parts[:1]
    first = seen[0]
    matrix = OperatorMatrix(
        first.matrix.operators,
        np.vstack([part.matrix.selectivity for part in seen]),
        np.vstack([part.matrix.cost for part in seen]),
    )
    columns = pa.concat_tables([part.columns for part in seen])
    # Every slot has its own calls, so they are summed like the rows.
    batch_rows, call = sum(part.batch_rows for part in seen), sum(part.call for part in seen)
    return OperatorProfile(first.relation, columns, matrix, batch_rows, call)


def _overhead(seen: OperatorProfile) -> float:
    """Returns the fixed cost of one route, in seconds per row of the relation."""
    return seen.call / seen.batch_rows if seen.batch_rows else MeshCosts().route


def _profiled(graph: JoinGraph, seen: Iterable[OperatorProfile]) -> Profiled:
    lookups = matches = seconds = 0.0
    fan_outs = {}
    for each in seen:
        if not each.matrix.rows:
            continue
        means = each.matrix.selectivity.mean(axis=0)
        lookups += len(means)
        matches += float(means.sum())
        seconds += float(each.matrix.cost.mean(axis=0).sum())
        for name, mean in zip(each.matrix.operators, means, strict=True):
            if graph.keys_between([each.relation], [name]):
                fan_outs[f"{each.relation} {name}"] = float(mean)
    return Profiled(lookups, matches, seconds, fan_outs)


def _learnt(found: MeshProposal, overhead: float) -> LearntRoutes:
    held_out = found.held_out
    running = [seen.cost for seen in found.considered if seen.name == CURRENT]
    return LearntRoutes(
        found.reason,
        found.shares,
        found.route_costs,
        found.cost,
        found.single_cost,
        running[0] if running else found.single_cost,
        max(0.0, held_out.gain - held_out.error) if found.is_mesh and held_out is not None else 0.0,
        overhead * sum(len(route.operators) for route in found.ways.routes) / max(1, len(found.single.operators)),
    )
