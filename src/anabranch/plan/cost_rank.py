"""Estimates the cost of predicates from their form, and orders predicates that are checked one after another.

If each predicate is checked on the rows that passed the ones before, the cheapest order is by *rank*: the cost of a
check divided by the fraction of rows that it rejects. (Viglas and Naughton 2002 motivate it with two selections of
equal selectivity, one of them slow; the rank is from Hellerstein and Stonebraker 1993.)

Invariant: a predicate that may guard another against failing is checked before it. All such orders give the same rows.

Limit: selectivities are assumed independent, and the cost per row of a predicate is assumed not to depend on the
others.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from math import prod

from anabranch.lang.expr import Call, Expr, conjunction, conjuncts, own_functions, walk
from anabranch.plan.selections import guarded_by

CHECK = 4e-8
"""Seconds per row of an ordinary predicate, on typical hardware."""
COSTLY = 2.0
"""The cost, in ordinary checks, from which moving a predicate is considered."""
ASSUMED_FUNCTION = {"arrow": 1e-7, "pandas": 5e-7, "scalar": 2e-6}
"""Seconds per row of a user-defined function, by kind."""
COSTLY_CALLS = {
    "rlike": 1.2e-7,
    "like": 1.2e-7,
    "regexp_extract": 2.0e-7,
    "regexp_replace": 3.8e-7,
    "get_json_object": 1.2e-7,
    "concat": 4e-8,
    "substring": 4e-8,
}
"""Seconds per row of functions that cost at least as much as an ordinary check, on typical hardware."""
ASSUMED_EQUALITY = 0.1
ASSUMED_COMPARISON = 1 / 3


def costly_calls(predicate: Expr) -> float:
    """Returns the seconds per row of the costly built-in functions in a predicate."""
    return sum(COSTLY_CALLS.get(node.function, 0.0) for node in walk(predicate) if isinstance(node, Call))


def assumed_cost(predicate: Expr) -> float:
    """Returns the seconds per row to check a predicate."""
    return CHECK + costly_calls(predicate) + sum(ASSUMED_FUNCTION[own.kind] for own in own_functions(predicate))


def is_costly(predicate: Expr) -> bool:
    """Returns True if a predicate is estimated to cost several ordinary checks."""
    is_plain = isinstance(predicate, Call) and predicate.function == "is_not_null"
    return not is_plain and assumed_cost(predicate) >= COSTLY * CHECK


def assumed_share(condition: Expr) -> float:
    """Returns the assumed selectivity of a condition; columns are assumed to be rarely NULL."""
    assumed = {"is_not_null": 1.0, "equal": ASSUMED_EQUALITY}
    parts = conjuncts(condition)
    return prod(assumed.get(part.function, ASSUMED_COMPARISON) if isinstance(part, Call) else 1.0 for part in parts)


def rank(cost: float, share: float) -> float:
    """Returns the cost of rejecting one row; lower ranks are checked first."""
    return cost / (1 - share) if share < 1 else math.inf


def by_rank(predicates: Sequence[Expr], ranks: Sequence[float]) -> list[int]:
    """Returns the positions of predicates in checking order: by rank, but after the predicates that guard them."""
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


def costliest_last(condition: Expr) -> Expr:
    """Returns a condition with its conjuncts ordered by assumed rank."""
    parts = conjuncts(condition)
    order = by_rank(parts, [rank(assumed_cost(part), assumed_share(part)) for part in parts])
    ordered = conjunction(tuple(parts[position] for position in order))
    return condition if ordered is None or order == sorted(order) else ordered
