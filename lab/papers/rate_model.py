"""Results over time: how fast operators and binary trees of joins put out rows, before and after saturation.

The formulas are those of Viglas and Naughton 2002, as printed: an operator that needs longer for a row than rows take
to arrive puts out at its own pace; a join of two streams has seen rate x t rows of each by time t, so its rate grows
with t (Eq. 2), and its denominator is 1 while it keeps up. Eq. 2 is the mean rate up to t. `outputs` is the reference
that heuristics are judged by: the integral of the momentary rate (Eq. 3), taken for whole trees on a grid of times,
with each join a server of its own that handles its arrivals in order. All windows are unbounded; streams may end.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf, sqrt

import numpy as np
from numpy.typing import NDArray

from anabranch.errors import PlanError
from anabranch.plan.physical import InputOperator, JoinNode, Leaf, PhysicalPlan, Shared, nodes


def selection_rate(rate: float, cost: float, selectivity: float) -> float:
    """Rows per second behind a filter, which cannot handle more than 1 / cost."""
    handled = min(rate, 1 / cost) if cost else rate
    return selectivity * handled


def join_rate(left: float, right: float, selectivity: float, left_cost: float, right_cost: float, t: float) -> float:
    """Rows per second that a join of two streams has put out on average by time t (Eq. 2)."""
    return selectivity * left * right * t / max(1.0, left * left_cost + right * right_cost)


@dataclass(frozen=True)
class StreamRate:
    """Rows per second, and rows in all; a stream without end has infinitely many."""

    rate: float
    cardinality: float = inf


@dataclass(frozen=True)
class RateModel:
    """Streams, the selectivity of each predicate, and the seconds each row costs where a predicate is evaluated."""

    streams: Mapping[str, StreamRate]
    selectivities: Mapping[frozenset[str], float]
    arrival: float
    """Seconds to handle one row in any join."""
    extra: Mapping[frozenset[str], float] = field(default_factory=dict)
    """Further seconds per row for a dear predicate."""

    def selectivity(self, left: tuple[str, ...], right: tuple[str, ...]) -> float:
        product = 1.0
        for pair, selectivity in self.selectivities.items():
            if pair & frozenset(left) and pair & frozenset(right):
                product *= selectivity
        return product

    def handling(self, left: tuple[str, ...], right: tuple[str, ...]) -> float:
        """Seconds to handle one row that arrives at a join of these two sides."""
        dear = (s for pair, s in self.extra.items() if pair & frozenset(left) and pair & frozenset(right))
        return self.arrival + sum(dear)

    def total(self, relations: tuple[str, ...]) -> float:
        """Rows that the join of some streams has when all of them have ended."""
        return self._joined(relations, {name: stream.cardinality for name, stream in self.streams.items()})

    def after_one_second(self, relations: tuple[str, ...]) -> float:
        """Rows that the join of some streams has after one second; after t seconds t^n times as many."""
        return self._joined(relations, {name: stream.rate for name, stream in self.streams.items()})

    def _joined(self, relations: tuple[str, ...], sizes: Mapping[str, float]) -> float:
        rows = 1.0
        for position, name in enumerate(relations):
            rows *= sizes[name] * self.selectivity(relations[:position], (name,))
        return rows


def outputs(plan: PhysicalPlan, model: RateModel, times: NDArray[np.float64]) -> NDArray[np.float64]:
    """Results that a tree has put out by each of some rising times; the first time should be 0.

    A join that has handled l rows of one side and r of the other has put out selectivity x l x r of them. By time t it
    has handled the rows that arrived before its work no longer fits into the time left.
    """
    if isinstance(plan, Leaf):
        stream = model.streams[plan.relation]
        return np.minimum(stream.rate * times, stream.cardinality)
    left, right = _sides(plan)
    arrived = (outputs(left, model, times), outputs(right, model, times))
    handling = model.handling(left.relations, right.relations)
    work = (arrived[0] + arrived[1]) * handling
    done = times + np.minimum.accumulate(work - times)
    before = np.clip(np.searchsorted(work, done, side="right") - 1, 0, times.size - 2)
    step = work[before + 1] - work[before]
    into = np.divide(done - work[before], step, out=np.ones_like(step), where=step > 0)
    handled = [side[before] + np.minimum(into, 1.0) * (side[before + 1] - side[before]) for side in arrived]
    return model.selectivity(left.relations, right.relations) * handled[0] * handled[1]


def time_to(plan: PhysicalPlan, model: RateModel, results: float, *, horizon: float, steps: int = 4000) -> float:
    """Seconds until a tree has emitted so many results; infinite if not within the horizon."""
    times = np.linspace(0.0, horizon, steps)
    counts = outputs(plan, model, times)
    at = int(np.searchsorted(counts, results * (1 - 1e-9)))
    if at == 0 or at == steps:
        return 0.0 if at == 0 else inf
    share = (results - counts[at - 1]) / (counts[at] - counts[at - 1])
    return float(times[at - 1] + share * (times[at] - times[at - 1]))


def local_rate(plan: PhysicalPlan, model: RateModel, t: float) -> float:
    """The rate estimate of a tree for the time up to t, joins from the bottom up with time fixed at t / 2."""
    if isinstance(plan, Leaf):
        return model.streams[plan.relation].rate
    left, right = _sides(plan)
    handling = model.handling(left.relations, right.relations)
    selectivity = model.selectivity(left.relations, right.relations)
    rates = local_rate(left, model, t), local_rate(right, model, t)
    return join_rate(*rates, selectivity, handling, handling, t / 2)


def local_time(plan: PhysicalPlan, model: RateModel, results: float) -> float:
    """The time estimate of a tree for so many results: the latest of its parts to emit its share.

    A join that must emit n rows needs rows of its sides in proportion to their totals (if a stream has no end, to their
    rows at the time of n results, if no part falls behind). Its own time is that of Eq. 2
    integrated: n = selectivity l r t^2 / (2 x denominator).
    """
    return _local(plan, model, results)[0]


def _local(plan: PhysicalPlan, model: RateModel, results: float) -> tuple[float, float]:
    """The time to so many results, and the mean rate on the way."""
    if isinstance(plan, Leaf):
        rate = model.streams[plan.relation].rate
        return (results / rate if rate else inf), rate
    left, right = _sides(plan)
    selectivity = model.selectivity(left.relations, right.relations)
    if not selectivity:
        return inf, 0.0
    share = _share(left, right, model, results)
    left_time, left_rate = _local(left, model, sqrt(results / selectivity * share))
    right_time, right_rate = _local(right, model, sqrt(results / selectivity / share))
    handling = model.handling(left.relations, right.relations)
    growth = join_rate(left_rate, right_rate, selectivity, handling, handling, 1.0)
    if not growth:
        return inf, 0.0
    time = max(left_time, right_time, sqrt(2 * results / growth))
    return time, results / time if time else inf


def _share(left: PhysicalPlan, right: PhysicalPlan, model: RateModel, results: float) -> float:
    """How many rows of the left side are asked for each row of the right."""
    sizes = model.total(left.relations), model.total(right.relations)
    if inf in sizes:
        relations = (*left.relations, *right.relations)
        per_second = model.after_one_second(relations)
        t = (results / per_second) ** (1 / len(relations)) if per_second else 1.0
        sizes = (
            model.after_one_second(left.relations) * t ** len(left.relations),
            model.after_one_second(right.relations) * t ** len(right.relations),
        )
    return sizes[0] / sizes[1] if sizes[0] and sizes[1] else 1.0


def cardinality_cost(plan: PhysicalPlan, model: RateModel) -> float:
    """The traditional cost: seconds to handle all inputs of all joins, as if all rows were there from the start."""
    total = 0.0
    for node in nodes(plan):
        left, right = _sides(node)
        rows = model.total(left.relations) + model.total(right.relations)
        total += rows * model.handling(left.relations, right.relations)
    return total


def _sides(plan: Shared | JoinNode | InputOperator) -> tuple[PhysicalPlan, PhysicalPlan]:
    if isinstance(plan, InputOperator | Shared):
        raise PlanError(
            f"plan '{plan}' merges or shares rows", hint="rates over time are known for joins of single rows"
        )
    if len(plan.inputs) != 2:
        raise PlanError(f"plan '{plan}' joins more than two inputs", hint="rates over time are known for binary trees")
    return plan.inputs[0], plan.inputs[1]
