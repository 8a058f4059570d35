"""Steers the plans of one running query: the plan of each slot, and the change in progress.

The user, a schedule and the controller can request a change. A request is checked immediately and takes effect with the
next batch; `adapt.change` takes the slots through it.

Invariant: there is at most one change at a time. A request during a change is refused, and a refused request has no
effect. Limit: changes that concern several queries, such as shared joins, are decided by `adapt.steering`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

from anabranch.adapt.change import Change, ChangeRequest, begin
from anabranch.adapt.controller import Controller
from anabranch.adapt.facts import BatchFacts
from anabranch.adapt.history import Observation
from anabranch.adapt.records import Author, QueryRecord, Refusal, SettingsChanged
from anabranch.adapt.rules import NO_RULES, ChangeRules, Switch
from anabranch.errors import AnabranchError, MigrationError
from anabranch.mesh.profiled import pooled
from anabranch.migrate.machine import Instruction, Run
from anabranch.migrate.strategies.registry import check_migration, strategy_names
from anabranch.plan.mesh import Mesh, Plan, check_plan
from anabranch.plan.partitioning import Partitioning
from anabranch.plan.physical import mjoin, unshared
from anabranch.plan.query import Query
from anabranch.plan.sharing import SHARING, shares
from anabranch.plan.slots import SlotPlan, most_frequent
from anabranch.stats.report import QueryReport, merged_statistics


class QuerySteering:
    """Steers the plans of one running query; `migrate`, `abort` and `freeze` may be called from any thread."""

    def __init__(
        self,
        query: Query,
        plan: Plan,
        partitioning: Partitioning,
        rules: ChangeRules = NO_RULES,
        check: Callable[[Plan], None] = lambda plan: None,
    ) -> None:
        """Creates the steering; `check` refuses a plan that conflicts with those of other queries of the set."""
        self._query = query
        self._check = check
        self._slots = tuple(range(partitioning.slots))
        self._plans = dict.fromkeys(self._slots, SlotPlan(check_plan(plan, query.graph, query.merging)))
        budget = replace(rules.criteria.budget, slots=partitioning.slots)
        criteria = replace(rules.criteria, budget=budget, partitioning=_spread(partitioning))
        self.controller = Controller(query, replace(rules, criteria=criteria), self._slots)
        self._switches = self._schedule(rules.switches)
        self._wish: ChangeRequest | None = None
        self._under_way: Change | None = None
        self._unrecorded: list[Callable[[int], QueryRecord]] = []
        """Records of requests since the last batch, by the number of the next one."""
        self.lock = threading.Lock()
        """The lock that other classes must hold while they call `wish` and `ask`."""

    def spread(self, partitioning: Partitioning) -> None:
        """Replaces the partitioning from the next batch on."""
        with self.lock:
            now, criteria = _spread(partitioning), self.rules.criteria
            if now != criteria.partitioning:
                self.controller.spread(replace(self.rules, criteria=replace(criteria, partitioning=now)))

    def wish(
        self, plan: Plan, strategy: str, slots: tuple[int, ...] | None = None, author: Author = "user"
    ) -> ChangeRequest:
        """Returns a checked request for a plan; it has no effect until it is passed to `ask`."""
        self._require_rest()
        return ChangeRequest(self._checked(plan, strategy, slots), author)

    def ask(self, wish: ChangeRequest) -> None:
        """Accepts a checked request; its change begins with the next batch."""
        self._wish = wish

    @property
    def rules(self) -> ChangeRules:
        """The current change rules of the query."""
        return self.controller.rules

    @property
    def plans(self) -> tuple[SlotPlan, ...]:
        """The plans of the latest batch, by slot."""
        return tuple(self._plans[slot] for slot in self._slots)

    @property
    def plan(self) -> Plan:
        """The plan that most slots have."""
        return most_frequent(self.plans)

    @property
    def is_changing(self) -> bool:
        """True while a change of plan is requested or in progress."""
        with self.lock:
            return self._is_busy

    def migrate(
        self, plan: Plan, strategy: str = "auto", slots: Iterable[int] | None = None, *, box_by_box: bool = False
    ) -> None:
        """Changes the plan of all slots, or of the named slots, with the next batch; a refusal has no effect.

        With `box_by_box`, the parts in which the plans differ change one after another.
        """
        check_plan(plan, self._query.graph, self._query.merging)
        self._check(plan)
        if isinstance(slots, int):
            raise MigrationError(f"slots are named in a list, not as {slots}", hint=f"write slots=[{slots}]")
        with self.lock:
            is_adapting = self.controller.adapts and not self.controller.is_frozen
            if slots is not None and is_adapting and len(self._slots) > 1:
                raise MigrationError(
                    "single slots cannot be changed while the query adapts",
                    hint="freeze the adaptation, or leave the slots out",
                )
            wish = self.wish(plan, strategy, None if slots is None else tuple(slots))
            self._wish = replace(wish, box_by_box=box_by_box)

    def abort(self, reason: str = "asked for") -> None:
        """Cancels a requested change, and takes all slots of a change in progress back to their old plans."""
        with self.lock:
            if not self._is_busy:
                raise MigrationError("no change of plan is under way", hint="only such a change can be aborted")
            self._wish = None
            if self._under_way is not None:
                self._obey(self._under_way.abort(reason))

    def freeze(self, frozen: bool = True) -> None:
        """Stops automatic changes of plans, or allows them again; decisions are recorded in both cases.

        An automatic change that has been decided but has not begun is cancelled and recorded as refused.
        """
        with self.lock:
            self.controller.is_frozen = frozen
            if frozen and self._wish is not None and self._wish.by in ("loop", "mesh"):
                for plan in sorted({wanted.plan for wanted in self._wish.plans.values()}, key=str):
                    why = "the query was frozen before it began"
                    self._unrecorded.append(partial(Refusal, reason=why, plan=plan))
                self._wish = None

    def reconfigure(self, wanted: Mapping[str, Any]) -> None:
        """Replaces policy, objective or limits from the next decision on; a refusal has no effect."""
        with self.lock:
            self.controller.rules = self.rules.reconfigured(wanted)
            self._unrecorded.append(partial(SettingsChanged, settings=wanted))

    def recall(self, decisions: Sequence[Mapping[str, Any]], settings: Iterable[Mapping[str, Any]]) -> None:
        """Takes over the decisions of an earlier run, and the settings that a user changed in it, if still valid."""
        for wanted in settings:
            with suppress(AnabranchError):
                self.controller.rules = self.rules.reconfigured(wanted)
        own = [each for each in decisions if each.get("slots") == [*self._slots]]
        self.controller.history = self.controller.history.recalling(own)

    def next(self, batch: int) -> tuple[tuple[SlotPlan, ...], list[QueryRecord]]:
        """Returns the plans for a batch, and records of changed settings and of refused changes."""
        with self.lock:
            records = [record(batch) for record in self._unrecorded]
            self._unrecorded.clear()
            scheduled: dict[int, SlotPlan] = {}
            for switch in self._switches.pop(batch, []):
                try:
                    self._require_rest()
                    scheduled |= self._checked(switch.plan, switch.strategy, switch.slots)
                except MigrationError as error:
                    records.append(Refusal(batch, error.message, switch.plan))
            if scheduled:
                self._wish = ChangeRequest(scheduled, "schedule")
            if self._wish is not None:
                self._under_way, instructions = begin(self._wish, self._plans, batch, self._query.graph)
                self._obey(instructions)
                self._wish = None
            return tuple(replace(plan, learns=self.controller.wants_profiles) for plan in self.plans), records

    def after(
        self, facts: BatchFacts, reports: Mapping[int, QueryReport], *, is_moving: bool = False
    ) -> list[QueryRecord]:
        """Adds a committed batch and returns its records; the controller may decide on a change for the next batch.

        While partition groups move, statistics mix two tables, so nothing is measured or decided.
        """
        with self.lock:
            # The plans of the batch itself, before the change in progress continues.
            is_migrating, plans = is_moving or self._under_way is not None, self.plans
            records: list[QueryRecord] = []
            if self._under_way is not None:
                instructions, records = self._under_way.progress(facts.batch, reports)
                self._obey(instructions)
                self._under_way = None if self._under_way.is_over else self._under_way
            seen = _observation(facts, reports, plans) if self.controller.is_active else None
            if seen is None:
                return records
            decision = self.controller.after(replace(seen, is_migrating=is_migrating), is_busy=self._is_busy)
            if decision is None:
                return records
            if decision.action == "migrate" and decision.strategy is not None:
                chosen = dict.fromkeys(self._slots, SlotPlan(decision.proposed, decision.strategy))
                author: Author = "loop" if decision.origin != "search" else "mesh"
                self._wish = ChangeRequest(chosen, author, box_by_box=decision.takes_steps)
            return [*records, decision]

    # --- inside -------------------------------------------------------------------------------------------------------

    def _schedule(self, switches: Iterable[Switch]) -> dict[int, list[Switch]]:
        """Returns the scheduled changes by batch; refuses one that is always impossible."""
        schedule: dict[int, list[Switch]] = {}
        for switch in switches:
            check_plan(switch.plan, self._query.graph, self._query.merging)
            self._require_slots(switch.slots)
            if switch.strategy not in ("auto", *strategy_names()):
                raise MigrationError(
                    f"no migration strategy '{switch.strategy}'", hint=f"one of auto, {', '.join(strategy_names())}"
                )
            if switch.at_batch < 0:
                raise MigrationError(f"there is no batch {switch.at_batch} to switch at", hint="batches begin with 0")
            others = schedule.setdefault(switch.at_batch, [])
            for other in others:
                if shared := {*(switch.slots or self._slots)} & {*(other.slots or self._slots)}:
                    raise MigrationError(
                        f"two switches at batch {switch.at_batch}, to '{other.plan}' and to '{switch.plan}'",
                        detail=f"slot {min(shared)} cannot take both",
                        hint="leave one of them out, or name different batches",
                    )
            others.append(switch)
        return schedule

    def _obey(self, instructions: list[Instruction]) -> None:
        for instruction in instructions:
            if isinstance(instruction, Run):
                self._plans[instruction.slot] = SlotPlan(instruction.plan, instruction.strategy)

    @property
    def _is_busy(self) -> bool:
        return self._wish is not None or self._under_way is not None

    def _require_rest(self) -> None:
        if self._is_busy:
            wished = [] if self._wish is None else [*self._wish.plans]
            busy = sorted(wished if self._under_way is None else self._under_way.slots)
            raise MigrationError(
                "the query is changing its plan already",
                detail=f"slots {', '.join(map(str, busy))} are on their way",
                hint="wait until that has ended, or abort it",
            )

    def _require_slots(self, slots: tuple[int, ...] | None) -> None:
        if slots is not None and not slots:
            raise MigrationError("no slot is named whose plan should change", hint="name some, or leave the slots out")
        for slot in slots or ():
            if slot not in self._slots:
                raise MigrationError(f"there is no slot {slot}", hint=f"slots are 0 to {self._slots[-1]}")

    def _checked(self, plan: Plan, strategy: str, slots: tuple[int, ...] | None) -> dict[int, SlotPlan]:
        """Returns the new plan of each slot with a strategy that supports the change, or raises an error."""
        check_plan(plan, self._query.graph, self._query.merging)
        self._require_slots(slots)
        return {
            slot: SlotPlan(plan, self._strategy(self._plans[slot].plan, plan, strategy))
            for slot in (self._slots if slots is None else slots)
        }

    def _strategy(self, old: Plan, new: Plan, wished: str) -> str:
        graph = self._query.graph
        if shares(old) or shares(new):
            if wished not in ("auto", SHARING):
                raise MigrationError(
                    f"strategy '{wished}' cannot change plan '{old}' into '{new}'",
                    detail="queries begin and stop to share a join by moving its state",
                    hint=f"use '{SHARING}', or leave the strategy out",
                )
            return SHARING
        if isinstance(new, Mesh):
            # A mesh keeps no intermediate state, so there is nothing to move or to wait for.
            return "none"
        if isinstance(old, Mesh):
            old = mjoin(graph.names)
        if wished != "auto":
            check_migration(old, new, graph, wished, self._query.merging)
            return wished
        criteria = self.rules.criteria
        model = criteria.model(self._query, self.controller.history.statistics)
        return criteria.pricing(graph, old, new, model)[0].strategy


def _observation(
    facts: BatchFacts, reports: Mapping[int, QueryReport], plans: Sequence[SlotPlan]
) -> Observation | None:
    """Returns a batch of all slots; None if they run different plans, whose counts cannot be summed."""
    plan = plans[0].plan
    if any(each.plan != plan for each in plans):
        return None
    profiles = [each.profiles for each in reports.values() if each.profiles is not None]
    return Observation(
        facts,
        unshared(plan) if not isinstance(plan, Mesh) and shares(plan) else plan,
        partial(merged_statistics, [*reports.values()]),
        profiles=tuple(pooled(profiles)) if profiles else None,
        is_shared=shares(plan),
    )


def _spread(partitioning: Partitioning) -> Partitioning | None:
    """Returns the partitioning by which copies of rows are counted once; None if every row has one slot."""
    return None if partitioning.is_partition else partitioning
