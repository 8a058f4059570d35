"""Existence probes: semi-joins at the beginning of a route that drop rows without a match before they join.

An existence probe (`b?`) looks up a row in a state without joining it. If a row probes several states by its own
columns, checking all of them first leaves only rows with matches in each, so that no combination is made that the next
state would drop. This needs no attribute and no training, and works for any type and distribution of keys. If all
relations share one key, the rows left after the existence probes are bounded by the results, in any order of the
following probes (Yannakakis 1981).

The effect of an existence probe on a row follows from that of the probe: it passes rows that found a match, and costs
as much as a probe that finds at most one. Existence probes are added greedily, as long as they save. Costs are summed
row by row, because it matters which rows drop out together.

Limit: only for relations that share keys with the row itself and no other predicate, and only at the beginning of a
route. Routes with existence probes have no classifier.
"""

from __future__ import annotations

import numpy as np

from anabranch.lang.arrays import Doubles, Integers
from anabranch.mesh.learn import SearchSetting
from anabranch.mesh.proposal import FOLDS, LEAST_ROWS, HeldOut, MeshProposal, parts_held_out, resampled
from anabranch.mesh.routes import Router
from anabranch.mesh.search import MeshCosts
from anabranch.mesh.training import TrainingSet, folds
from anabranch.plan.classifier import by_leaf, leaves
from anabranch.plan.classify import assign_routes
from anabranch.plan.join_graph import JoinGraph
from anabranch.plan.mesh import RelationRoutes, Route, checked_relation, existence_probe, is_existence_probe
from anabranch.stats.mesh.operators import Needs, OperatorMatrix

MOST_ROWS, MOST_SETS = 400, 1 << 19
"""The most rows used to choose existence probes, and the most rows times sets of operators."""
CLEARLY = 0.9
"""A classifier is preferred only below this fraction of the cost of existence probes.

It fits only as long as the distribution of rows does not change.
"""


def existence_candidates(graph: JoinGraph, relation: str, operators: tuple[str, ...]) -> tuple[str, ...]:
    """Returns the relations for which a relation may have existence probes; empty if there are fewer than two."""
    found = tuple(
        name
        for name in operators
        if name in graph.names
        and graph.keys_between([relation], [name])
        and not any(len(theta.relations) > 1 for theta in graph.thetas_between([relation], [name]))
    )
    return found if len(found) > 1 else ()


def existence_route(
    sample: TrainingSet,
    matrix: OperatorMatrix,
    needs: Needs,
    candidates: tuple[str, ...],
    rng: np.random.Generator,
    setting: SearchSetting,
) -> MeshProposal | None:
    """Returns the route that begins with existence probes; None if they do not save enough, also on held-out rows."""
    if not candidates or matrix.rows < LEAST_ROWS:
        return None
    route, plain = _best(sample, matrix, needs, candidates, setting.costs)
    if route == plain:
        return None
    probing, single = (certain_ways(sample.relation, each) for each in (route, plain))
    cost, single_cost = (price(each, sample, matrix, setting.costs) for each in (probing, single))
    gain = single_cost / cost - 1 if cost > 0 else 0.0
    parts = parts_held_out(single_cost, cost)
    held_out = _held_out(sample, matrix, needs, candidates, rng, setting.costs, parts)
    if min(gain, held_out.gain) < max(setting.least_gain, held_out.error):
        return None
    chosen = [checked_relation(name) for name in route if is_existence_probe(name)]
    return MeshProposal(
        ways=probing,
        shares=(1.0,),
        route_costs=(max(0.0, cost - route_overhead(probing, matrix, setting.costs)),),
        cost=cost,
        single=single.routes[0],
        single_cost=single_cost,
        reason=f"existence probes of {', '.join(chosen)} gain {gain:+.1%} over the best single route, {held_out}",
        held_out=held_out,
    )


def preferred(
    probing: MeshProposal, routed: MeshProposal, sample: TrainingSet, matrix: OperatorMatrix, costs: MeshCosts
) -> MeshProposal:
    """Returns the existence probes, unless the routes of a classifier are clearly cheaper, by the certain gains."""
    probes, routes = (
        price(each.ways, sample, matrix, costs) * max(1.0, (1 + each.gain) / (1 + _certain_gain(each)))
        for each in (probing, routed)
    )
    return routed if routes < CLEARLY * probes else probing


def _certain_gain(found: MeshProposal) -> float:
    return found.gain if found.held_out is None else max(0.0, found.held_out.gain - found.held_out.error)


def price(ways: RelationRoutes, sample: TrainingSet, matrix: OperatorMatrix, costs: MeshCosts) -> float:
    """Returns the seconds per row on the routes of a relation, summed row by row: operators, tests and overhead."""
    ends = np.array(leaves(ways.classifier), dtype=np.int64)
    leaf_of = assign_routes(by_leaf(ways.classifier), sample.columns, sample.rows)
    route_of, tests = ends[leaf_of, 0], ends[leaf_of, 1]
    paid = costs.test * tests.astype(np.float64)
    for number, route in enumerate(ways.routes):
        rows = np.flatnonzero(route_of == number)
        paid[rows] += row_costs(matrix.take(rows), route.operators)
    return float(sample.shares @ paid) + route_overhead(ways, matrix, costs)


def route_overhead(ways: RelationRoutes, matrix: OperatorMatrix, costs: MeshCosts) -> float:
    """Returns the fixed seconds per row that the operators of all routes take, independent of their number of rows."""
    return costs.route * sum(len(route.operators) for route in ways.routes) / len(matrix.operators)


def certain_ways(relation: str, names: tuple[str, ...]) -> RelationRoutes:
    """Returns one route for all rows of a relation."""
    return RelationRoutes(relation, (Route(names),))


def row_costs(matrix: OperatorMatrix, route: tuple[str, ...]) -> Doubles:
    """Returns the seconds that the operators of a route take for each row."""
    left, paid = np.ones(matrix.rows), np.zeros(matrix.rows)
    for name in route:
        at = matrix.operators.index(checked_relation(name) if is_existence_probe(name) else name)
        selectivity, cost = matrix.selectivity[:, at], matrix.cost[:, at]
        passing = np.minimum(selectivity, 1.0)
        # A probe costs its lookup and as much again for each match (`engine.fabric.profile`). A row that passes an
        # existence probe costs as much as one match.
        paid += left * (cost * (1 + passing) / (1 + selectivity) if is_existence_probe(name) else cost)
        left = left * (passing if is_existence_probe(name) else selectivity)
    return paid


def _best(
    sample: TrainingSet, matrix: OperatorMatrix, needs: Needs, candidates: tuple[str, ...], costs: MeshCosts
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Returns the best route with existence probes, or without any if none saves; and the best one without."""
    rows = _thinned(matrix)
    seen, shares = matrix.take(rows), sample.shares[rows] / sample.shares[rows].sum()
    call = costs.route / len(matrix.operators)
    router = Router(seen, shares, needs)
    plain = _probes(router, shares)
    best, least = plain, _paid(seen, shares, plain, call)
    chosen: tuple[str, ...] = ()
    while len(chosen) < len(candidates):
        options = []
        for name in candidates:
            if existence_probe(name) not in chosen:
                probes = (*chosen, existence_probe(name))
                left = shares * _left(seen, probes)
                options.append((*probes, *_probes(router, left)))
        prices = [_paid(seen, shares, route, call) for route in options]
        place = int(np.argmin(prices))
        if prices[place] >= least:
            break
        best, least = options[place], prices[place]
        chosen = best[: len(chosen) + 1]
    return best, plain


def _paid(matrix: OperatorMatrix, shares: Doubles, route: tuple[str, ...], call: float) -> float:
    return float(shares @ row_costs(matrix, route)) + call * len(route)


def _left(matrix: OperatorMatrix, chosen: tuple[str, ...]) -> Doubles:
    """Returns the probability of each row to pass all existence probes."""
    places = [matrix.operators.index(checked_relation(name)) for name in chosen]
    left: Doubles = np.minimum(matrix.selectivity[:, places], 1.0).prod(axis=1)
    return left


def _probes(router: Router, left: Doubles) -> tuple[str, ...]:
    """Returns the best order of the probes for the remaining rows."""
    return tuple(router.matrix.operators[at] for at in router.best_by(left).order)


def _held_out(
    sample: TrainingSet,
    matrix: OperatorMatrix,
    needs: Needs,
    candidates: tuple[str, ...],
    rng: np.random.Generator,
    costs: MeshCosts,
    parts: int,
) -> HeldOut:
    """Chooses existence probes on all folds but one and prices both routes on that fold, for `parts` folds."""
    paid = np.zeros((2, matrix.rows))
    call = costs.route / len(matrix.operators)
    for learning, held in folds(sample.rows, FOLDS, rng)[:parts]:
        routes = _best(sample.take(learning), matrix.take(learning), needs, candidates, costs)
        for place, route in enumerate(routes):
            paid[place, held] = row_costs(matrix.take(held), route) + call * len(route)
    weighted = np.stack(resampled(sample.weights, rng)) @ paid.T
    gains = np.divide(weighted[:, 1], weighted[:, 0], out=np.ones(len(weighted)), where=weighted[:, 0] > 0) - 1
    return HeldOut(float(gains[0]), float(gains[1:].std()))


def _thinned(matrix: OperatorMatrix) -> Integers:
    most = min(matrix.rows, MOST_ROWS, max(LEAST_ROWS, MOST_SETS >> len(matrix.operators)))
    return np.linspace(0, matrix.rows - 1, most).astype(np.int64)
