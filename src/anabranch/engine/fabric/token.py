"""Route tokens: the operators that the rows of one route still have to visit.

A token is a sequence of groups of operator numbers. A group of one number is a certain route step. A group of several
numbers is an open route step: the lottery draws one of its operators at a time until the group is empty. The token ⟨2,
3|1, 4⟩ visits 2, then 3 and 1 in either order, then 4. Invariant: every order gives the same results. (Nehme et al.
2012, section 5.2.)
"""

from __future__ import annotations

from dataclasses import dataclass

from anabranch.errors import PlanError


@dataclass(frozen=True)
class Token:
    """Operator numbers in the order of visit; the numbers of one group in any order. No number occurs twice."""

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
    def next(self) -> tuple[int, ...]:
        """The operators that may be visited now; empty when only the output is left."""
        return self.groups[0] if self.groups else ()

    def after(self, operator: int) -> Token:
        """The token once the operator has been visited; a group shrinks by it.

        >>> str(Token(((3, 1, 4),)).after(3))
        '⟨1|4⟩'
        """
        if operator not in self.next:
            raise PlanError(f"operator {operator} is not next in route token '{self}'")
        left = tuple(other for other in self.groups[0] if other != operator)
        return Token((left, *self.groups[1:]) if left else self.groups[1:])

    def __str__(self) -> str:
        return f"⟨{', '.join('|'.join(str(operator) for operator in group) for group in self.groups)}⟩"
