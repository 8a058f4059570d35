"""The changes that a user can make to running queries, common to all hosts.

Each change begins with the next batch. Invariant: a refused change has no effect. Limit: the methods check a
request and pass it to the steering; they do not wait until the change has ended.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from anabranch.adapt.steering import Steering
from anabranch.plan.mesh import Plan
from anabranch.plan.partitioning import Partitioning
from anabranch.plan.query_set import Plans, QuerySet
from anabranch.run.keys import code_of


class Controls:
    """The base class of hosts: their queries, and the changes that their steering accepts."""

    queries: QuerySet
    steering: Steering

    @property
    def plan(self) -> Plan | Plans:
        """The plan of the latest batch (the plan of most slots); for named queries, the plan of each."""
        return self.steering.most_plans.unwrapped

    @property
    def is_changing(self) -> bool:
        """True while a change of plan or table is in progress."""
        return self.steering.is_changing

    def migrate(
        self,
        plan: Plan,
        strategy: str = "auto",
        slots: Iterable[int] | None = None,
        *,
        box_by_box: bool = False,
        query: str | None = None,
    ) -> None:
        """Changes the plan of all slots, or of some; `query` names one query of a set."""
        self.steering.of_query(query).migrate(plan, strategy, slots, box_by_box=box_by_box)

    def abort_migration(self, query: str | None = None) -> None:
        """Aborts a migration; the query returns to the old plan."""
        self.steering.of_query(query).abort()

    def freeze(self, frozen: bool) -> None:
        """Stops automatic changes, or allows them again."""
        self.steering.freeze(frozen)

    def reconfigure(self, wanted: Mapping[str, Any], query: str | None = None) -> None:
        """Replaces the policy, objective or limits of an adapting query, given as entries of a spec."""
        self.steering.reconfigure(wanted, query)

    def share(self, join: str, queries: Iterable[str] | None = None) -> None:
        """Makes the named queries, or all that can, share a join."""
        self.steering.share(join, queries)

    def unshare(self, queries: Iterable[str] | None = None) -> None:
        """Makes queries compute their shared joins separately."""
        self.steering.unshare(queries)

    def move(
        self, groups: Iterable[int], to: int, strategy: str = "moving-state", most_rows: int | None = None
    ) -> None:
        """Moves partition groups to a slot."""
        self.steering.table.move(groups, to, strategy, most_rows)

    def spread(self, partitioning: Partitioning, strategy: str = "moving-state", most_rows: int | None = None) -> None:
        """Changes the grid or the table; the number of slots stays the same."""
        self.steering.table.spread(partitioning, strategy, most_rows)

    def scale(self, slots: int) -> None:
        """Measures the next batch, and uses this number of slots from the following batch on."""
        self.steering.table.scale(slots)

    def split(self, value: Any, over: int | Sequence[int] | None = None, key: str | None = None) -> None:
        """Splits a key value over several slots.

        `over` is a list of slots or a number of slots (None for all); `key` is an expression of the key, required if
        there are several keys.
        """
        self.steering.table.split(*code_of(self.queries, value, key), over)

    def unite(self, value: Any, key: str | None = None) -> None:
        """Reverses the split of a key value."""
        self.steering.table.unite(*code_of(self.queries, value, key))

    def rebalance(self) -> None:
        """Measures the next batch, and moves groups with the following batch so that no slot delays the others."""
        self.steering.table.rebalance()
