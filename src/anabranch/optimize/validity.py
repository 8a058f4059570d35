"""Finds the bounds of each rate and selectivity between which a plan stays the best one, or nearly so (`ALIKE`).

One number varies at a time, while all others keep their values. The optimizers search again at a tenth and a hundredth
of it, and at ten and a hundred times it; where they find a better plan, the prices of both plans narrow the bound.
Invariant: the present value lies within its bounds.

Limit: a better plan between two searched values is missed if the plan is the best at both. Objectives that depend on
time (`rate`, `first`) have no bounds, and plans of more than `MOST_RELATIONS` relations, whose searches take longer.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import combinations, pairwise
from math import inf, prod, sqrt

from anabranch.cost.estimates import Estimates
from anabranch.optimize.choice import answer_to
from anabranch.optimize.problem import Problem
from anabranch.optimize.proposals import Proposal
from anabranch.optimize.settle import ALIKE
from anabranch.plan.join_graph import JoinGraph
from anabranch.plan.physical import PhysicalPlan
from anabranch.stats.view import FixedStatistics, Layered, StatisticsView

SEARCHED = (10.0, 100.0)
"""The factors by which a number is multiplied and divided to search for better plans."""
NARROWED = 5
"""How often the interval that contains a bound is halved; a bound is then about 7 % exact."""
MOST_RELATIONS = 5


@dataclass(frozen=True)
class Bounds:
    """The bounds of one number between which a plan stays the best."""

    what: str
    now: float
    low: float
    """0 if no better plan was found for smaller values."""
    high: float
    """Infinity if no better plan was found for larger values."""

    def __str__(self) -> str:
        parts = [f"> {_text(self.low)}"] if self.low > 0 else []
        parts += [f"< {_text(self.high)}"] if self.high < inf else []
        return f"{self.what} {' and '.join(parts)} (now {_text(self.now)})"


def validity(problem: Problem, plan: PhysicalPlan) -> tuple[Bounds, ...]:
    """Returns the bounds of the numbers that decide whether a plan is the best; none if it is not the best now."""
    if problem.objective.kind in ("rate", "first") or not 1 < len(problem.graph.names) <= MOST_RELATIONS:
        return ()
    if _better(problem, plan) is not None:
        return ()
    found = []
    for number in _numbers(problem):
        low = _bound(number, plan, [number.now / factor for factor in SEARCHED])
        high = _bound(number, plan, [min(number.now * factor, number.most) for factor in SEARCHED])
        found.append(Bounds(number.what, number.now, low or 0.0, high or inf))
    return tuple(each for each in found if each.low > 0 or each.high < inf)


def _bound(number: _Number, plan: PhysicalPlan, values: list[float]) -> float | None:
    """Returns the value from which on another plan is better, in the direction of some values; None if none is."""
    good = number.now
    for bad in values:
        better = _better(number.at(bad), plan)
        if better is not None:
            break
        good = bad
    else:
        return None
    for _ in range(NARROWED):
        middle = sqrt(good * bad)
        good, bad = (good, middle) if _is_better(better, plan, number.at(middle)) else (middle, bad)
    return bad


def _better(problem: Problem, plan: PhysicalPlan) -> PhysicalPlan | None:
    """Returns the plan that the optimizers find if it is clearly better than the given one."""
    answer = answer_to(problem)
    return answer.plan if isinstance(answer, Proposal) and _is_better(answer.plan, plan, problem) else None


def _is_better(other: PhysicalPlan, plan: PhysicalPlan, problem: Problem) -> bool:
    """Returns True if another plan keeps the limits and needs clearly less, or the plan does not keep them."""
    new, now, budget = problem.model.price(other), problem.model.price(plan), problem.budget
    if not budget.allows(new) or not budget.allows(now):
        return budget.allows(new)
    if problem.objective.kind == "memory":
        return new.memory * (1 + ALIKE) < now.memory
    if problem.objective.kind == "qualified" and budget.is_limited:
        return budget.use(new) * (1 + ALIKE) < budget.use(now)
    return new.cpu * (1 + ALIKE) < now.cpu


@dataclass(frozen=True)
class _Number:
    """A rate, by relation, or a selectivity, by a pair of relations or a predicate; and its largest possible value."""

    what: str
    name: str
    now: float
    problem: Problem
    is_rate: bool = False
    most: float = 1.0

    def at(self, value: float) -> Problem:
        """Returns the problem in which the number has another value."""
        numbers = {self.name: value}
        if self.is_rate:
            # An unknown rate is the mean of the known ones, which must not vary with this one.
            varied = FixedStatistics(rates={**_rates(self.problem), **numbers})
        else:
            varied = FixedStatistics(selectivities=numbers)
        return replace(self.problem, statistics=Layered((varied, self.problem.statistics)))


def _numbers(problem: Problem) -> list[_Number]:
    """Returns the numbers that may vary; one that is zero cannot be multiplied."""
    graph, estimates = problem.graph, problem.model.estimates
    rates = [_Number(f"rate of {name}", name, rate, problem, True, inf) for name, rate in _rates(problem).items()]
    pairs = [
        _Number(f"selectivity of {what}", f"{left} {right}", _selectivity(left, right, graph, estimates), problem)
        for (left, right), what in _pairs(graph, problem.statistics).items()
    ]
    thetas = [
        _Number(f"selectivity of {theta}", str(theta), estimate.selectivity, problem)
        for theta, estimate in zip(graph.thetas, estimates.thetas, strict=True)
    ]
    return [number for number in (*rates, *pairs, *thetas) if number.now > 0]


def _rates(problem: Problem) -> dict[str, float]:
    """Returns the rates of streams, before their filters."""
    arriving = dict(zip(problem.graph.names, problem.model.estimates.arriving, strict=True))
    return {relation.name: arriving[relation.name] for relation in problem.graph.streamed}


def _pairs(graph: JoinGraph, statistics: StatisticsView) -> dict[tuple[str, str], str]:
    """Returns the pairs of relations that keys connect, with the text of their equations."""
    texts: dict[tuple[str, str], list[str]] = {}
    for key in graph.keys:
        members = [name for name, _ in key.members]
        adjacent = {*pairwise(members)}
        for left, right in combinations(members, 2):
            if (left, right) in adjacent or statistics.pair_selectivity(left, right) is not None:
                texts.setdefault((left, right), []).append(f"{key.expression(left)} = {key.expression(right)}")
    return {pair: " AND ".join(equations) for pair, equations in texts.items()}


def _selectivity(left: str, right: str, graph: JoinGraph, estimates: Estimates) -> float:
    one, other = graph.names.index(left), graph.names.index(right)
    return prod(1 / max(values[one], values[other]) for values in estimates.keys if values[one] and values[other])


def _text(value: float) -> str:
    """Formats a number with two digits.

    >>> _text(93_412.0), _text(0.00019)
    ('93,000', '0.00019')
    """
    rounded = float(f"{value:.2g}")
    return f"{rounded:,.0f}" if rounded >= 10 else f"{rounded:.2g}"
