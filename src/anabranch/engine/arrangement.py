"""The shared joins of an engine: creates those that the plans need and reuses those that already run.

Invariant: a shared join that is reused has the same states under its new users. Limit: a join whose states must change
is computed anew from the base rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack

from anabranch.engine.shared_join import SharedJoin
from anabranch.engine.state.arena import Arena
from anabranch.engine.state.base import BaseState
from anabranch.plan.join_graph import JoinGraph
from anabranch.plan.mesh import Mesh, Plan
from anabranch.plan.physical import Shared, shared_parts
from anabranch.plan.query_set import QuerySet
from anabranch.plan.sharing import CommonJoin, common_joins

Joins = dict[Shared, SharedJoin]
"""Running shared joins, keyed by their part of a plan."""


class Arrangement:
    """Creates the shared joins of a query set over its base states; `made` counts them and keeps array names unique."""

    def __init__(self, queries: QuerySet, bases: Mapping[str, BaseState], arena: Arena) -> None:
        self._queries = queries
        self._bases = bases
        self._arena = arena
        self.made = 0

    def empty(self, plans: Mapping[str, Plan], numbers: Mapping[str, int] | None = None) -> Joins:
        """Creates the plans' shared joins with empty states; `numbers` are those of joins with existing arrays."""
        return {
            shared: self._make(common, plans, (numbers or {}).get(str(shared)))
            for shared, common in common_joins(self._queries, plans).items()
        }

    def following(
        self, joins: Joins, plans: Mapping[str, Plan], floors: Mapping[str, int], undo: ExitStack
    ) -> tuple[Joins, dict[Shared, int]]:
        """Returns the shared joins of plans, and the row counts of those that had to be computed.

        Reuses a running join where it serves the new users. `undo` releases the computed ones if the change of plans
        fails.
        """
        after: Joins = {}
        filled: dict[Shared, int] = {}
        for part, common in common_joins(self._queries, plans).items():
            join = joins.get(part)
            if join is not None and common.is_served_by(join.common):
                after[part] = join.serving(common, self._users(common, plans))
                continue
            after[part] = join = self._make(common, plans)
            undo.callback(join.release)
            filled[part] = join.fill(floors)
        return after, filled

    def _make(self, common: CommonJoin, plans: Mapping[str, Plan], number: int | None = None) -> SharedJoin:
        if number is None:
            self.made += 1
            number = self.made
        return SharedJoin(common, self._users(common, plans), self._bases, self._arena, number)

    def _users(self, common: CommonJoin, plans: Mapping[str, Plan]) -> dict[str, tuple[JoinGraph, Plan]]:
        graphs = {member.name: member.query.graph for member in self._queries.members}
        return {name: (graphs[name], plans[name]) for name in common.rests}


def parts_of(plan: Plan) -> tuple[Shared, ...]:
    """The shared joins of a plan; a mesh has none."""
    return () if isinstance(plan, Mesh) else shared_parts(plan)


def rows_of(filled: Mapping[Shared, int], plan: Plan) -> dict[str, int]:
    """The row counts of the shared joins that were computed for a plan."""
    return {part.shape: filled[part] for part in parts_of(plan) if part in filled}
