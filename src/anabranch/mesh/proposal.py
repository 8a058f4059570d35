"""Proposes a mesh from a sample: condenses, searches, learns the classifier, and checks the gain on held-out rows.

The result can always run. If there is nothing to learn from, no attribute separates the rows, or there is no gain on
held-out rows, the result is a single route with the reason. The gain is checked by cross-validation: routes and
classifier of some rows are priced on the others, leaf by leaf, against the single best route of the same rows. All
randomness comes from the given generator.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from anabranch.errors import StatisticsError
from anabranch.lang.arrays import Doubles
from anabranch.mesh.learn import Learner, MeshCandidate, SearchSetting
from anabranch.mesh.routes import row_costs
from anabranch.mesh.training import Condensed, TrainingSet, condense, differ, folds
from anabranch.plan.classifier import by_leaf, leaves
from anabranch.plan.classify import assign_routes
from anabranch.plan.mesh import RelationRoutes, Route
from anabranch.stats.mesh.operators import Needs, OperatorMatrix

LEAST_ROWS = 8
"""The number of sampled rows below which a gain cannot be checked on held-out rows."""
FOLDS = 3
CLEAR = 0.5
"""A gain on the sampled rows that is clearly significant: one fold is held out instead of each in turn."""
RESAMPLES = 40
TRACE = 1e-12


@dataclass(frozen=True)
class HeldOut:
    """The gain over the single best route, on held-out rows."""

    gain: float
    error: float
    """Its standard error, by bootstrap over those rows."""

    def __str__(self) -> str:
        return f"{self.gain:+.1%} ± {self.error:.1%} on rows held out"


@dataclass(frozen=True)
class MeshProposal:
    """The proposed routes of new rows of a relation, with the reason; costs are seconds per row."""

    ways: RelationRoutes
    shares: tuple[float, ...]
    """The fraction of the sampled rows on each route."""
    route_costs: tuple[float, ...]
    """The operator seconds per row of each route."""
    cost: float
    """The total of Equation 2: routes, tests and overhead."""
    single: Route
    """The best route for all rows."""
    single_cost: float
    reason: str
    considered: tuple[MeshCandidate, ...] = ()
    held_out: HeldOut | None = None

    @property
    def is_mesh(self) -> bool:
        """True if the rows take several routes or existence probes, which an mjoin cannot express."""
        return not self.ways.is_plain

    @property
    def gain(self) -> float:
        """The gain over the single best route: 0.25 is a quarter more rows in the same time."""
        return self.single_cost / self.cost - 1 if self.cost > 0 else 0.0


def find_mesh(
    sample: TrainingSet,
    matrix: OperatorMatrix,
    needs: Needs,
    rng: np.random.Generator,
    setting: SearchSetting | None = None,
    current: RelationRoutes | None = None,
    condensed: Condensed | None = None,
) -> MeshProposal:
    """Returns the best mesh for the rows of one relation, or its best single route.

    The search starts from the current mesh if given. `condensed` is the sample condensed to the size of the setting, if
    already computed.
    """
    setting = setting or SearchSetting()
    if matrix.rows != sample.rows:
        raise StatisticsError(f"there are operator statistics for {matrix.rows} rows, and the sample has {sample.rows}")
    if reason := _nothing_to_learn(sample, matrix):
        return one_route_only(sample, matrix, needs, setting, reason)
    if setting.early_out and not differ(sample, matrix):
        return one_route_only(sample, matrix, needs, setting, "no attribute separates the rows")
    learner = Learner(condensed or condense(sample, matrix, setting.size), needs, setting)
    if setting.early_out and not _could_gain(learner):
        return _single(learner, f"even a route for each kind of rows would gain less than {setting.least_gain:.0%}")
    solution, considered = learner.search(rng, current)
    if len(solution.routes) == 1:
        return _single(learner, "no partition of the sampled rows is cheaper", considered)
    priced = learner.classify(solution)
    if len(priced.orders) == 1:
        return _single(learner, "separating the rows costs more than it saves", considered)
    held_out = held_out_gain(sample, matrix, needs, rng, setting, parts_held_out(_best_single(learner)[1], priced.cost))
    if held_out.gain < max(setting.least_gain, held_out.error):
        why = f"less than {setting.least_gain:.0%}" if held_out.gain < setting.least_gain else "no more than chance"
        return _single(learner, f"{len(priced.orders)} routes gain {held_out}, {why}", considered, held_out)
    single, single_cost = _best_single(learner)
    routes = tuple(learner.route(order) for order in priced.orders)
    tests = len(leaves(priced.tree)) - 1
    found = f"{len(routes)} routes by {tests} test{'s' if tests > 1 else ''}"
    reason = f"{found} gain {single_cost / priced.cost - 1:+.1%} over the best single route, {held_out}"
    return MeshProposal(
        ways=RelationRoutes(sample.relation, routes, priced.tree),
        shares=tuple(priced.shares.tolist()),
        route_costs=tuple(priced.paid.tolist()),
        cost=priced.cost,
        single=single,
        single_cost=single_cost,
        reason=reason,
        considered=considered,
        held_out=held_out,
    )


def one_route_only(
    sample: TrainingSet, matrix: OperatorMatrix, needs: Needs, setting: SearchSetting, reason: str
) -> MeshProposal:
    """Returns the best single route for all rows, without a mesh search."""
    return _single(Learner(condense(sample, matrix, 1), needs, setting), reason)


def least_cost(condensed: Condensed, needs: Needs, setting: SearchSetting) -> float:
    """Returns the seconds per row if every condensed row had its own route without overhead: a lower bound."""
    return _apart(Learner(condensed, needs, setting))


def condensed(sample: TrainingSet, matrix: OperatorMatrix, setting: SearchSetting) -> Condensed:
    """Returns the condensed sample; condensed to one row if attributes do not separate its rows."""
    size = 1 if _nothing_to_learn(sample, matrix) or not differ(sample, matrix) else setting.size
    return condense(sample, matrix, size)


def _nothing_to_learn(sample: TrainingSet, matrix: OperatorMatrix) -> str:
    if len(matrix.operators) < 2:
        return "there is nothing to order"
    if sample.rows < LEAST_ROWS:
        return f"{sample.rows or 'no'} training rows, and {LEAST_ROWS} are needed"
    if not sample.attributes:
        return "no attribute can tell rows apart"
    return ""


def _could_gain(learner: Learner) -> bool:
    """Returns True if a mesh could gain enough if every condensed row had its own route without overhead."""
    router = learner.router
    return router.best(router.everything).cost >= (1 + learner.setting.least_gain) * _apart(learner)


def _apart(learner: Learner) -> float:
    """Returns the seconds per row if every condensed row had its own route."""
    return float(sum(learner.router.best(np.array([row])).cost for row in range(learner.condensed.rows.rows)))


def _best_single(learner: Learner) -> tuple[Route, float]:
    best = learner.router.best(learner.router.everything)
    return learner.route(best.order), best.cost + learner.setting.costs.route


def _single(
    learner: Learner, reason: str, considered: tuple[MeshCandidate, ...] = (), held_out: HeldOut | None = None
) -> MeshProposal:
    route, cost = _best_single(learner)
    paid = cost - learner.setting.costs.route
    ways = RelationRoutes(learner.condensed.sample.relation, (route,))
    return MeshProposal(
        ways=ways,
        shares=(1.0,),
        route_costs=(paid,),
        cost=cost,
        single=route,
        single_cost=cost,
        reason=f"one route: {reason}",
        considered=considered,
        held_out=held_out,
    )


# --- the check on rows held out --------------------------------------------------------------------------------------


def parts_held_out(single: float, cost: float) -> int:
    """Returns how many folds of the sample are held out in turn, depending on the gain on the whole sample."""
    return 1 if single >= (1 + CLEAR) * cost else FOLDS


def held_out_gain(
    sample: TrainingSet,
    matrix: OperatorMatrix,
    needs: Needs,
    rng: np.random.Generator,
    setting: SearchSetting,
    parts: int = FOLDS,
) -> HeldOut:
    """Learns on two thirds of the rows and prices mesh and single route on the other third, for `parts` folds."""
    single, mesh = np.zeros(RESAMPLES + 1), np.zeros(RESAMPLES + 1)
    for learning, held in folds(sample.rows, FOLDS, rng)[:parts]:
        learner = Learner(condense(sample.take(learning), matrix.take(learning), setting.size), needs, setting)
        priced = learner.classify(learner.search(rng)[0])
        one = learner.router.best(learner.router.everything).order
        rest, rest_matrix = sample.take(held), matrix.take(held)
        leaf_of = assign_routes(by_leaf(priced.tree), rest.columns, rest.rows)
        weights = np.stack(resampled(rest.weights, rng))
        total = weights.sum(axis=1)
        single += setting.costs.route
        mesh += setting.costs.route * len(priced.orders)
        for leaf, (route, tests) in enumerate(leaves(priced.tree)):
            rows = np.flatnonzero(leaf_of == leaf)
            means, of_leaf = _averages(rest_matrix.take(rows), weights[:, rows])
            every = np.arange(len(weights))
            single += of_leaf / total * row_costs(means, one, every)
            mesh += of_leaf / total * (row_costs(means, priced.orders[route], every) + setting.costs.test * tests)
    gains = np.divide(single, mesh, out=np.ones_like(single), where=mesh > 0) - 1
    return HeldOut(float(gains[0]), float(gains[1:].std()))


def resampled(weights: Doubles, rng: np.random.Generator) -> list[Doubles]:
    """Returns the weights of the sample, followed by those of bootstrap samples of the same rows."""
    size = weights.size
    # A multinomial draw takes ten times as long: count how often each row occurs in as many draws as there are rows.
    drawn = rng.integers(0, size, (RESAMPLES, size)) + size * np.arange(RESAMPLES)[:, None]
    times = np.bincount(drawn.reshape(-1), minlength=RESAMPLES * size).reshape(RESAMPLES, size)
    return [weights, *(weights * each for each in times)]


def _averages(matrix: OperatorMatrix, weights: Doubles) -> tuple[OperatorMatrix, Doubles]:
    """Returns the mean statistics of some rows under each of several weightings, and the total weight in each."""
    total: Doubles = weights.sum(axis=1)
    # A trace of weight keeps the mean of rows without weight finite.
    share = weights / (total + TRACE)[:, None]
    # Not a matrix product: that starts threads, which cost more than the sum on a busy machine.
    selectivity, cost = (np.einsum("wr,ro->wo", share, of) for of in (matrix.selectivity, matrix.cost))
    return OperatorMatrix(matrix.operators, selectivity, cost), total
