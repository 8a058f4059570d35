"""The duration and cost of migrations of binary trees, by the models of Zhu 2006, Section 12.3.

Symbols there: T_j to compare a pair of rows, T_s to put a row into a state or take it out, λ rates, σ selectivities, W
one window for all. Joins are nested loops. Three readings, where the print cannot be meant:

- Eq. 12.6 is of the join of B and C but names rates of A; the rates of the join's own two inputs are used.
- The same equation multiplies integrals over W by W again; while states fill, W seconds cost the integral once.
- Eq. 16.1 omits T_match and T_move of Eq. 12.3, which count a few string comparisons; so does this module.

The engine's own prices, with lookups by index and the end of parallel tracks after one window, are in
`migrate.strategies`; these here are for the experiments and for comparison.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

from anabranch.errors import PlanError
from anabranch.plan.difference import match_states
from anabranch.plan.physical import JoinNode, Leaf, PhysicalPlan, height, nodes


@dataclass(frozen=True)
class Streams:
    """The numbers of a query: rates in rows per second, one window in seconds, selectivities by pair."""

    rates: Mapping[str, float]
    window: float
    selectivities: Mapping[tuple[str, str], float]
    compare: float
    """T_j, seconds."""
    insert: float
    """T_s, seconds."""

    def selectivity(self, left: PhysicalPlan, right: PhysicalPlan) -> float:
        """σ of a join: the product over all predicates between its sides."""
        one, other = set(left.relations), set(right.relations)
        return prod(
            value
            for (a, b), value in self.selectivities.items()
            if (a in one and b in other) or (b in one and a in other)
        )

    def rate(self, plan: PhysicalPlan) -> float:
        """λ of a sub-plan's output (Eq. 12.2)."""
        if isinstance(plan, Leaf):
            return self.rates[plan.relation]
        left, right = _sides(plan)
        return 2 * self.rate(left) * self.rate(right) * self.window * self.selectivity(left, right)

    def size(self, plan: PhysicalPlan) -> float:
        """|S| of a sub-plan's output."""
        return self.rate(plan) * self.window


def moving_state_length(old: PhysicalPlan, new: PhysicalPlan, streams: Streams) -> float:
    """T_MS: seconds without output, to compute the states that only the new plan has (Eq. 12.1, 12.3, 16.1)."""
    lacking = match_states(old, new).recomputed
    total = 0.0
    for node in nodes(new):
        if node.shape in lacking:
            left, right = _sides(node)
            pairs = streams.size(left) * streams.size(right)
            total += pairs * (streams.compare + streams.insert * streams.selectivity(left, right))
    return total


def parallel_track_length(old: PhysicalPlan, window: float) -> float:
    """T_PT: seconds of event time until the last old row has left the old plan (Eq. 12.4)."""
    return window if height(old) <= 1 else 2 * window


def _sides(node: PhysicalPlan) -> tuple[PhysicalPlan, PhysicalPlan]:
    if not isinstance(node, JoinNode) or len(node.inputs) != 2:
        raise PlanError(f"the model is for binary trees, and '{node}' is none", hint="join two inputs at a time")
    return node.inputs[0], node.inputs[1]
