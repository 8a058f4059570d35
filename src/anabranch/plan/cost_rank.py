"""What a predicate costs to check by its looks, and in which order several are checked.

Of predicates that are checked one after another, each on what the ones before left, the order by *rank* is cheapest:
the cost of a check divided by the share of rows that it rejects. (Viglas and Naughton 2002 begin with two selections of
equal selectivity, one of which is slow; Hellerstein and Stonebraker 1993 have the rank.)

Law: a predicate that may keep another from failing stays before it. Any other order gives the same rows.

Limit: shares are taken as independent. What a predicate costs on rows that others left is taken for its cost on all.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from math import prod

from anabranch.lang.expr import Call, Expr, conjunction, conjuncts, own_functions, walk
from anabranch.plan.selections import guarded_by

CHECK = 4e-8
"""Seconds per row of an ordinary predicate, on an ordinary machine."""
DEAR = 2.0
"""The weight, in checks of an ordinary predicate, from which on moving a predicate is considered."""
ASSUMED_FUNCTION = {"arrow": 1e-7, "pandas": 5e-7, "scalar": 2e-6}
"""Seconds per row of a function of the user's own, by its kind."""
DEAR_CALLS = {
    "rlike": 1.2e-7,
    "like": 1.2e-7,
    "regexp_extract": 2.0e-7,
    "regexp_replace": 3.8e-7,
    "get_json_object": 1.2e-7,
    "concat": 4e-8,
    "substring": 4e-8,
}
"""Seconds per row of functions that cost as much as a check or more: about those of an ordinary machine."""
ASSUMED_EQUALITY = 0.1
ASSUMED_COMPARISON = 1 / 3


def dear_calls(predicate: Expr) -> float:
    """Seconds per row of the dear functions in a predicate, those of the user's own apart."""
    return sum(DEAR_CALLS.get(node.function, 0.0) for node in walk(predicate) if isinstance(node, Call))


def assumed_cost(predicate: Expr) -> float:
    """Seconds per row to check a predicate."""
    return CHECK + dear_calls(predicate) + sum(ASSUMED_FUNCTION[own.kind] for own in own_functions(predicate))


def is_dear(predicate: Expr) -> bool:
    """Whether a predicate looks like several ordinary checks."""
    is_plain = isinstance(predicate, Call) and predicate.function == "is_not_null"
    return not is_plain and assumed_cost(predicate) >= DEAR * CHECK


def assumed_share(condition: Expr) -> float:
    """The share of rows assumed to pass a condition; a column is seldom NULL."""
    assumed = {"is_not_null": 1.0, "equal": ASSUMED_EQUALITY}
    parts = conjuncts(condition)
    return prod(assumed.get(part.function, ASSUMED_COMPARISON) if isinstance(part, Call) else 1.0 for part in parts)


def rank(cost: float, share: float) -> float:
    """The cost of rejecting a row; the least comes first."""
    return cost / (1 - share) if share < 1 else math.inf


def by_rank(predicates: Sequence[Expr], ranks: Sequence[float]) -> list[int]:
    """The positions of predicates in the order in which they are checked: by rank, behind those that guard them."""
    left = list(range(len(predicates)))
    guards = {
        position: {before for before in range(position) if guarded_by(predicates[before], [predicates[position]])}
        for position in left
    }
    order: list[int] = []
    while left:
        free = [position for position in left if not guards[position] & set(left)]
        order.append(min(free, key=lambda position: (ranks[position], position)))
        left.remove(order[-1])
    return order


def dearest_last(condition: Expr) -> Expr:
    """A condition with its conjuncts in the order of their assumed ranks."""
    parts = conjuncts(condition)
    order = by_rank(parts, [rank(assumed_cost(part), assumed_share(part)) for part in parts])
    ordered = conjunction(tuple(parts[position] for position in order))
    return condition if ordered is None or order == sorted(order) else ordered
