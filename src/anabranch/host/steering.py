"""Which plan each slot of a running query has, and who may change it: its user, a schedule, or the adaptation loop.

For every batch the slots' plans go out (`next`), and their reports come back (`after`). A change is checked when it is
asked for and takes effect with the next batch. There is one change at a time: until all slots have ended the one under
way, another is refused and the running plans stay as they are. Everything that happens is told as a record, a mapping
that JSON can hold: decisions of the loop, migrations that began and ended, and changes that were refused.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from anabranch.adapt.loop import Loop, Means, Observation
from anabranch.adapt.settings import Settings
from anabranch.errors import MigrationError
from anabranch.host.clock import Clocks
from anabranch.host.slot import SlotPlan
from anabranch.optimize.choice import resource_model
from anabranch.plan.mesh import Mesh, Plan, check_plan
from anabranch.plan.migration import STRATEGIES, Strategy, check_migration
from anabranch.plan.partitioning import Partitioning
from anabranch.plan.physical import mjoin
from anabranch.plan.query import Query
from anabranch.stats.step import StepStatistics, merge

Record: TypeAlias = dict[str, Any]
Reports: TypeAlias = Mapping[int, Mapping[str, Any]]


@dataclass(frozen=True)
class Switch:
    """A change of plan that was written down beforehand."""

    at_batch: int
    plan: Plan
    strategy: str = "auto"
    slots: tuple[int, ...] | None = None
    """All of them when None."""


@dataclass(frozen=True)
class _Change:
    """Plans that some slots are to take, or are taking since a batch."""

    plans: Mapping[int, SlotPlan]
    by: str
    since: int = -1


class Steering:
    """The plans of one running query; `migrate` may be called from any thread."""

    def __init__(
        self,
        query: Query,
        plan: Plan,
        partitioning: Partitioning,
        *,
        adapt: Settings | None = None,
        means: Means | None = None,
        switches: Iterable[Switch] = (),
    ) -> None:
        self._query = query
        self._slots = tuple(range(partitioning.slots))
        self._plans = dict.fromkeys(self._slots, SlotPlan(check_plan(plan, query.graph)))
        self._means = replace(means or Means(), partitioning=partitioning)
        self._loops = _loops(query, adapt, self._means, self._slots)
        self._switches = {switch.at_batch: switch for switch in switches}
        for switch in self._switches.values():
            check_plan(switch.plan, query.graph)
            self._require_slots(switch.slots)
        self._before = self._plans
        self._wanted: _Change | None = None
        self._under_way: _Change | None = None
        self._lock = threading.Lock()

    @property
    def plans(self) -> tuple[SlotPlan, ...]:
        """The plans of the latest batch, by slot."""
        return tuple(self._plans[slot] for slot in self._slots)

    @property
    def plan(self) -> Plan:
        """The plan that most slots have."""
        plans = [each.plan for each in self.plans]
        return max(plans, key=plans.count)

    def migrate(self, plan: Plan, strategy: str = "auto", slots: Iterable[int] | None = None) -> None:
        """The slots, all unless some are named, take the plan with the next batch; refused without any effect."""
        with self._lock:
            self._require_rest()
            if slots is not None and any(
                len(together) > 1 for together, loop in self._loops if not loop.settings.freeze
            ):
                raise MigrationError(
                    "single slots cannot be changed while the query adapts as a whole",
                    hint="adapt with scope: slot, freeze the adaptation, or leave the slots out",
                )
            self._wanted = _Change(self._checked(plan, strategy, None if slots is None else tuple(slots)), "user")

    def freeze(self, frozen: bool = True) -> None:
        """Keeps the loop from changing anything, or lets it again; it goes on watching."""
        for _, loop in self._loops:
            loop.settings = replace(loop.settings, freeze=frozen)

    def next(self, batch: int) -> tuple[tuple[SlotPlan, ...], list[Record]]:
        """The plans for a batch, and records of what could not be done."""
        refused: list[Record] = []
        with self._lock:
            if (switch := self._switches.pop(batch, None)) is not None:
                try:
                    self._require_rest()
                    self._wanted = _Change(self._checked(switch.plan, switch.strategy, switch.slots), "schedule")
                except MigrationError as error:
                    refused.append(
                        {"kind": "refused", "batch": batch, "plan": str(switch.plan), "reason": error.message}
                    )
            if self._wanted is not None:
                self._under_way, self._wanted = replace(self._wanted, since=batch), None
                self._before, self._plans = self._plans, {**self._plans, **self._under_way.plans}
        return self.plans, refused

    def after(self, batch: int, reports: Reports, seconds: float | None, waiting: int | None) -> list[Record]:
        """What is to be told of a batch that was committed; the loop may have decided on a change for the next."""
        with self._lock:
            records, changing = self._progress(batch, reports)
            for together, loop in self._loops:
                plan = self._plans[together[0]].plan
                if isinstance(plan, Mesh):
                    continue
                mine = [StepStatistics.from_json(reports[slot]["statistics"]) for slot in together]
                seen = Observation(batch, plan, merge(mine), seconds, waiting, bool(changing & {*together}))
                decision = loop.observe(seen)
                if decision is None:
                    continue
                records.append({**decision.to_json(), "slots": list(together)})
                if decision.action == "migrate" and decision.strategy is not None:
                    chosen = dict.fromkeys(together, SlotPlan(decision.proposed, decision.strategy))
                    merged = {**self._wanted.plans, **chosen} if self._wanted is not None else chosen
                    self._wanted = _Change(merged, "loop")
            return records

    # --- inside -------------------------------------------------------------------------------------------------------

    def _progress(self, batch: int, reports: Reports) -> tuple[list[Record], set[int]]:
        """Records of the change under way, and the slots whose plan was being changed in the batch."""
        change = self._under_way
        if change is None:
            return [], set()
        records: list[Record] = []
        common: Record = {"kind": "migration", "batch": batch, "by": change.by, "slots": sorted(change.plans)}
        if change.since == batch:
            done = {slot: reports[slot].get("migrated") for slot in change.plans}
            first = min(change.plans)
            records.append(
                {
                    **common,
                    "phase": "began",
                    "from": str(self._before[first].plan),
                    "to": str(change.plans[first].plan),
                    "strategy": change.plans[first].strategy,
                    "rebuilt": [slot for slot, each in done.items() if each is None],
                    "recomputedRows": sum(sum(each["recomputed"].values()) for each in done.values() if each),
                    "seconds": max((each["seconds"] for each in done.values() if each), default=0.0),
                }
            )
        if not any(reports[slot]["migrating"] for slot in change.plans):
            records.append({**common, "phase": "ended", "batches": batch - change.since + 1})
            self._under_way = None
        return records, set(change.plans)

    def _require_rest(self) -> None:
        busy = self._under_way or self._wanted
        if busy is not None:
            plans = ", ".join(sorted({f"'{each.plan}'" for each in busy.plans.values()}))
            raise MigrationError(
                "the query is changing its plan already",
                detail=f"slots {', '.join(str(slot) for slot in sorted(busy.plans))} are to have {plans}",
                hint="wait until that has ended",
            )

    def _require_slots(self, slots: tuple[int, ...] | None) -> None:
        for slot in slots or ():
            if slot not in self._slots:
                raise MigrationError(f"there is no slot {slot}", hint=f"slots are 0 to {self._slots[-1]}")

    def _checked(self, plan: Plan, strategy: str, slots: tuple[int, ...] | None) -> dict[int, SlotPlan]:
        """The new plans of the slots, with a strategy that can serve each."""
        check_plan(plan, self._query.graph)
        self._require_slots(slots)
        return {
            slot: SlotPlan(plan, self._strategy(self._plans[slot].plan, plan, strategy))
            for slot in (self._slots if slots is None else slots)
        }

    def _strategy(self, old: Plan, new: Plan, wished: str) -> Strategy:
        graph = self._query.graph
        if isinstance(new, Mesh):
            # A mesh keeps no state but the base rows, so there is nothing to move and nothing to wait for.
            return "none"
        if isinstance(old, Mesh):
            old = mjoin(graph.names)
        if wished != "auto":
            check_migration(old, new, graph, wished)
            return next(known for known in STRATEGIES if known == wished)
        known = self._loops[0][1].view if self._loops else self._means.given
        return self._means.pricing(graph, old, new, resource_model(graph, known))[0].strategy


def event_seconds(before: Clocks, after: Clocks) -> float | None:
    """Seconds of event time by which a batch moved the newest row of all; None when there was none before."""
    newest = [
        [clock.newest for clock in clocks.streams.values() if clock.newest is not None] for clocks in (before, after)
    ]
    return (max(newest[1]) - max(newest[0])) / 1e6 if newest[0] else None


def _loops(
    query: Query, adapt: Settings | None, means: Means, slots: tuple[int, ...]
) -> list[tuple[tuple[int, ...], Loop]]:
    if adapt is None or len(query.graph.names) < 2:
        return []
    if adapt.scope == "query":
        return [(slots, Loop(query, adapt, means))]
    alone = replace(means, partitioning=None)
    return [((slot,), Loop(query, adapt, alone)) for slot in slots]
