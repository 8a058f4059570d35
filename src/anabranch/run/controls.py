"""Changes that a user makes to running queries; every host offers them.

Each takes effect with the next batch. Invariant: a change that is refused has no effect.
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
    """The base of a host: its queries, and what may be asked of their steering."""

    queries: QuerySet
    steering: Steering

    @property
    def plan(self) -> Plan | Plans:
        """The plan of the latest batch, or the one that most slots had; of named queries, those of each."""
        return self.steering.most_plans.unwrapped

    @property
    def is_changing(self) -> bool:
        """True while a change of plan or table is under way."""
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
        """Changes the plan of all slots, or of some; `query` names one of several queries that run together."""
        self.steering.of_query(query).migrate(plan, strategy, slots, box_by_box=box_by_box)

    def abort_migration(self, query: str | None = None) -> None:
        """Ends a migration and returns to the plan before it."""
        self.steering.of_query(query).abort()

    def freeze(self, frozen: bool) -> None:
        """Stops automatic changes, or allows them again."""
        self.steering.freeze(frozen)

    def reconfigure(self, wanted: Mapping[str, Any], query: str | None = None) -> None:
        """Takes another policy, objective or limits of an adapting query: entries as in a spec."""
        self.steering.reconfigure(wanted, query)

    def share(self, join: str, queries: Iterable[str] | None = None) -> None:
        """Lets queries share a join: those that are named, else all that can."""
        self.steering.share(join, queries)

    def unshare(self, queries: Iterable[str] | None = None) -> None:
        """Lets queries compute their shared joins themselves."""
        self.steering.unshare(queries)

    def move(
        self, groups: Iterable[int], to: int, strategy: str = "moving-state", most_rows: int | None = None
    ) -> None:
        """Moves partition groups to a slot."""
        self.steering.table.move(groups, to, strategy, most_rows)

    def spread(self, partitioning: Partitioning, strategy: str = "moving-state", most_rows: int | None = None) -> None:
        """Spreads the work by another grid or table over the same number of slots."""
        self.steering.table.spread(partitioning, strategy, most_rows)

    def scale(self, slots: int) -> None:
        """Measures the next batch and uses that many slots from the batch after it on."""
        self.steering.table.scale(slots)

    def split(self, value: Any, over: int | Sequence[int] | None = None, key: str | None = None) -> None:
        """Splits a key value over several slots.

        `over` names slots, or how many (all when None); `key` is an expression of the key, where there are several.
        """
        self.steering.table.split(*code_of(self.queries, value, key), over)

    def unite(self, value: Any, key: str | None = None) -> None:
        """Takes the split of a key value back."""
        self.steering.table.unite(*code_of(self.queries, value, key))

    def rebalance(self) -> None:
        """Measures the next batch and moves groups with the batch after it, so that no slot holds the others back."""
        self.steering.table.rebalance()
