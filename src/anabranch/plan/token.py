"""Route tokens: the operators that rows of one route still have to visit, and where their order is left open.

A token is a sequence of groups of operator numbers. A group of one is a certain step; a group of several is a set of
operators whose order nobody could tell apart beforehand, and each run takes them in the order that a lottery draws
until the group is used up: ⟨2, 3|1, 4⟩ visits 2, then 3 and 1 in either order, then 4. Tickets follow what operators
were seen to do to the rows of that subset: one that lets few rows through is drawn more often. Any order gives the same
results. (Nehme et al. 2012, sections 5.2 and 5.4.)
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from anabranch.errors import PlanError

CAUTION = 100.0
"""An operator counts as if it had let through so many rows out of as many before it was seen at all."""
LEAST_PASSING = 0.02
"""A smaller selectivity earns no more tickets, so that no operator of a group is ever left out for good."""


@dataclass(frozen=True)
class Token:
    """Operator numbers in the order of visit; the numbers of one group in either order. No number occurs twice."""

    groups: tuple[tuple[int, ...], ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "groups", tuple(tuple(sorted(group)) for group in self.groups))
        operators = self.operators
        if not all(self.groups) or any(operator < 1 for operator in operators):
            raise PlanError(f"'{self}' is not a route token", hint="operators are numbered from 1; 0 is the output")
        if len(set(operators)) != len(operators):
            raise PlanError(f"route token '{self}' visits an operator twice")

    @property
    def operators(self) -> tuple[int, ...]:
        """All operators still to visit, a group's in ascending order."""
        return tuple(operator for group in self.groups for operator in group)

    @property
    def is_certain(self) -> bool:
        return all(len(group) == 1 for group in self.groups)

    @property
    def next(self) -> tuple[int, ...]:
        """The operators that may be visited now; empty when only the output is left."""
        return self.groups[0] if self.groups else ()

    def after(self, operator: int) -> Token:
        """The token once the operator has been visited; a group shrinks by it.

        >>> str(parse_token("⟨3|1|4⟩").after(3))
        '⟨1|4⟩'
        """
        if operator not in self.next:
            raise PlanError(f"operator {operator} is not next in route token '{self}'")
        left = tuple(other for other in self.groups[0] if other != operator)
        return Token((left, *self.groups[1:]) if left else self.groups[1:])

    def __str__(self) -> str:
        return f"⟨{', '.join('|'.join(str(operator) for operator in group) for group in self.groups)}⟩"


def certain(operators: Sequence[int]) -> Token:
    """The token of a route without alternatives."""
    return Token(tuple((operator,) for operator in operators))


_TEXT = re.compile(r"\s*[⟨<]\s*((?:\d+\s*(?:\|\s*\d+\s*)*(?:,\s*\d+\s*(?:\|\s*\d+\s*)*)*)?)[⟩>]\s*", re.ASCII)


def parse_token(text: str) -> Token:
    """The token a text such as '⟨2, 3|1, 4⟩' describes; '<2, 3|1, 4>' will do as well."""
    match = _TEXT.fullmatch(text)
    if match is None:
        raise PlanError(f"'{text}' is not a route token", hint="tokens look like ⟨2, 3|1, 4⟩")
    groups = match.group(1).split(",") if match.group(1).strip() else []
    return Token(tuple(tuple(int(operator) for operator in group.split("|")) for group in groups))


@dataclass(frozen=True)
class Passed:
    """What one operator did to the rows of one subset so far."""

    rows_in: float = 0.0
    rows_out: float = 0.0

    def plus(self, rows_in: float, rows_out: float) -> Passed:
        return Passed(self.rows_in + rows_in, self.rows_out + rows_out)

    @property
    def selectivity(self) -> float:
        """Rows out per row in, drawn towards 1 while few rows were seen."""
        return (self.rows_out + CAUTION) / (self.rows_in + CAUTION)


def tickets(seen: Sequence[Passed]) -> tuple[float, ...]:
    """Each operator's share of the lottery: equal at first, then inverse to its selectivity on the subset.

    >>> tickets([Passed(), Passed()])
    (0.5, 0.5)
    """
    shares = [1 / max(passed.selectivity, LEAST_PASSING) for passed in seen]
    total = sum(shares)
    return tuple(share / total for share in shares)


def draw(shares: Sequence[float], chance: float) -> int:
    """The position whose slice of the wheel holds the chance, a number in [0, 1)."""
    reached = 0.0
    for position, share in enumerate(shares):
        reached += share
        if chance < reached:
            return position
    return len(shares) - 1
