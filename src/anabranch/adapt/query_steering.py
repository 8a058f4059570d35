"""Steers the plans of one running query: the plan of each slot, and the change in progress.

The user, a schedule and the controllers can request a change. A request is checked immediately and takes effect with
the next batch; `adapt.change` takes the slots through it.

Invariant: a slot takes part in at most one change at a time. A request during a change is refused, and a refused
request has no effect. Limit: changes that concern several queries, such as shared joins, are decided by
`adapt.steering`.
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
from anabranch.adapt.reconfigure import reconfigured
from anabranch.adapt.records import Author, QueryRecord, Refusal, SettingsChanged
from anabranch.adapt.rules import NO_RULES, ChangeRules, Switch
from anabranch.adapt.searches import Searches
from anabranch.errors import AnabranchError, MigrationError
from anabranch.mesh.profiled import pooled
from anabranch.migrate.machine import Instruction, Run
from anabranch.migrate.strategies.registry import check_migration, strategy_names
from anabranch.optimize.problem import resource_model
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
        self._rules = replace(rules, criteria=replace(rules.criteria, partitioning=_spread(partitioning)))
        self.searches = Searches(waits=rules.waits)
        self._controllers = _controllers(query, self._rules, self._slots, self.searches)
        self._switches = self._schedule(rules.switches)
        self._wish: ChangeRequest | None = None
        self._given_up: ChangeRequest | None = None
        self._changed: list[Mapping[str, Any]] = []
        """Settings that were changed and are not yet recorded."""
        self._under_way: list[Change] = []
        self._lock = threading.Lock()

    def spread(self, partitioning: Partitioning) -> None:
        """Replaces the partitioning from the next batch on."""
        with self._lock:
            now = _spread(partitioning)
            if now == self._rules.criteria.partitioning:
                return
            self._rules = replace(self._rules, criteria=replace(self._rules.criteria, partitioning=now))
            for controller in self._controllers:
                if controller.settings.scope == "query":
                    controller.spread(now)

    @property
    def lock(self) -> threading.Lock:
        """The lock that other classes must hold while they call `wish` and `ask`."""
        return self._lock

    def wish(
        self, plan: Plan, strategy: str, slots: tuple[int, ...] | None = None, author: Author = "user"
    ) -> ChangeRequest:
        """Returns a checked request for a plan; it has no effect until it is passed to `ask`."""
        self._require_rest()
        return ChangeRequest(self._checked(plan, strategy, slots), author)

    @property
    def controller(self) -> Controller | None:
        """The controller that adapts all slots together, if there is one."""
        adapting = [each for each in self._controllers if each.adapts and each.slots == self._slots]
        return adapting[0] if adapting else None

    def ask(self, wish: ChangeRequest) -> None:
        """Accepts a checked request; its change begins with the next batch."""
        self._wish = wish

    @property
    def plans(self) -> tuple[SlotPlan, ...]:
        """The plans of the latest batch, by slot."""
        return tuple(self._plans[slot] for slot in self._slots)

    @property
    def adapts(self) -> bool:
        """True if the query adapts."""
        return any(each.adapts for each in self._controllers)

    @property
    def is_changing(self) -> bool:
        """True while a change of plan is requested or in progress."""
        with self._lock:
            return self._wish is not None or bool(self._under_way)

    @property
    def plan(self) -> Plan:
        """The plan that most slots have."""
        return most_frequent(self.plans)

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
        with self._lock:
            self._require_rest()
            controller = self.controller
            if slots is not None and controller is not None and not controller.is_frozen and len(self._slots) > 1:
                raise MigrationError(
                    "single slots cannot be changed while the query adapts as a whole",
                    hint="adapt with scope: slot, freeze the adaptation, or leave the slots out",
                )
            wish = self.wish(plan, strategy, None if slots is None else tuple(slots))
            self._wish = replace(wish, box_by_box=box_by_box)

    def abort(self, reason: str = "asked for") -> None:
        """Cancels a requested change, and takes all slots of a change in progress back to their old plans."""
        with self._lock:
            if self._wish is None and not self._under_way:
                raise MigrationError("no change of plan is under way", hint="only such a change can be aborted")
            self._wish = None
            for change in self._under_way:
                self._obey(change.abort(reason))

    def freeze(self, frozen: bool = True) -> None:
        """Stops automatic changes of plans, or allows them again; decisions are recorded in both cases.

        An automatic change that has been decided but has not begun is cancelled and recorded as refused.
        """
        with self._lock:
            for controller in self._controllers:
                controller.is_frozen = frozen
            if frozen and self._wish is not None and self._wish.by in ("loop", "mesh"):
                self._given_up, self._wish = self._wish, None

    @property
    def rules(self) -> ChangeRules:
        """The current change rules of the query."""
        return self._rules

    def reconfigure(self, wanted: Mapping[str, Any]) -> None:
        """Replaces policy, objective or limits from the next decision on; a refusal has no effect."""
        with self._lock:
            self._configure(wanted)
            self._changed.append(wanted)

    def _configure(self, wanted: Mapping[str, Any]) -> None:
        rules = reconfigured(self._rules, wanted)
        for controller in self._controllers:
            controller.configure(reconfigured(controller.rules, wanted))
        self._rules = rules

    def recall_settings(self, changes: Iterable[Mapping[str, Any]]) -> None:
        """Applies the settings that a user changed in an earlier run; skips those that are no longer valid."""
        for wanted in changes:
            with suppress(AnabranchError):
                self._configure(wanted)

    def recall(self, decisions: Sequence[Mapping[str, Any]]) -> None:
        """Passes decisions of an earlier run to the controllers of the same slots."""
        for controller in self._controllers:
            own = [each for each in decisions if each.get("slots") == [*controller.slots]]
            controller.history = controller.history.recalling(own)

    def next(self, batch: int) -> tuple[tuple[SlotPlan, ...], list[QueryRecord]]:
        """Returns the plans for a batch, and records of changed settings and of refused changes."""
        refused: list[QueryRecord] = []
        with self._lock:
            refused += [SettingsChanged(batch, wanted) for wanted in self._changed]
            self._changed.clear()
            if self._given_up is not None:
                plans = {wanted.plan for wanted in self._given_up.plans.values()}
                refused += [
                    Refusal(batch, "the query was frozen before it began", plan) for plan in sorted(plans, key=str)
                ]
                self._given_up = None
            scheduled: dict[int, SlotPlan] = {}
            for switch in self._switches.pop(batch, []):
                try:
                    self._require_rest()
                    scheduled |= self._checked(switch.plan, switch.strategy, switch.slots)
                except MigrationError as error:
                    refused.append(Refusal(batch, error.message, switch.plan))
            if scheduled:
                self._wish = ChangeRequest(scheduled, "schedule")
            if self._wish is not None:
                change, instructions = begin(self._wish, self._plans, batch, self._query.graph)
                self._under_way.append(change)
                self._obey(instructions)
                self._wish = None
            asked = {slot for each in self._controllers if each.wants_profiles for slot in each.slots}
            now = tuple(replace(plan, learns=slot in asked) for slot, plan in enumerate(self.plans))
        return now, refused

    def after(
        self, facts: BatchFacts, reports: Mapping[int, QueryReport], *, is_moving: bool = False
    ) -> list[QueryRecord]:
        """Adds a committed batch and returns its records; controllers may decide on a change for the next batch.

        While partition groups move, statistics mix two tables, so nothing is measured or decided.
        """
        with self._lock:
            # The plans of the batch itself, before the change in progress continues.
            changing, plans = set(self._changing), self.plans
            records = self._progress(facts.batch, reports)
            for controller in self._controllers:
                seen = _observation(facts, reports, plans, controller.slots)
                if seen is not None:
                    is_migrating = is_moving or bool(changing & {*controller.slots})
                    records += self._decisions(controller, replace(seen, is_migrating=is_migrating))
            return records

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
                if shared := self._slots_of(switch) & self._slots_of(other):
                    raise MigrationError(
                        f"two switches at batch {switch.at_batch}, to '{other.plan}' and to '{switch.plan}'",
                        detail=f"slot {min(shared)} cannot take both",
                        hint="leave one of them out, or name different batches",
                    )
            others.append(switch)
        return schedule

    def _slots_of(self, switch: Switch) -> set[int]:
        return set(self._slots if switch.slots is None else switch.slots)

    def _decisions(self, controller: Controller, seen: Observation) -> list[QueryRecord]:
        """Returns the decision after a batch, if any; requests its change for the next batch.

        If each slot adapts by itself, several slots may change with the same batch.
        """
        others = self._wish
        is_alone = others is None or (others.by == "loop" and not {*others.plans} & {*controller.slots})
        is_busy = not is_alone or bool({*self._changing} & {*controller.slots})
        decision = controller.after(seen, is_busy=is_busy)
        if decision is None:
            return []
        if decision.action == "migrate" and decision.strategy is not None:
            chosen = dict.fromkeys(controller.slots, SlotPlan(decision.proposed, decision.strategy))
            before = {} if others is None else others.plans
            by_boxes = decision.takes_steps or (others is not None and others.box_by_box)
            author: Author = "loop" if decision.origin != "search" else "mesh"
            self._wish = ChangeRequest({**before, **chosen}, author, box_by_box=by_boxes)
        return [decision]

    def _obey(self, instructions: list[Instruction]) -> None:
        for instruction in instructions:
            if isinstance(instruction, Run):
                self._plans[instruction.slot] = SlotPlan(instruction.plan, instruction.strategy)

    def _progress(self, batch: int, reports: Mapping[int, QueryReport]) -> list[QueryRecord]:
        """Advances the changes in progress by one batch; returns their records."""
        records: list[QueryRecord] = []
        for change in self._under_way:
            instructions, own = change.progress(batch, reports)
            self._obey(instructions)
            records += own
        self._under_way = [change for change in self._under_way if not change.is_over]
        return records

    @property
    def _changing(self) -> list[int]:
        """The slots of the changes in progress; if each slot adapts by itself, there may be several changes."""
        return sorted(slot for change in self._under_way for slot in change.slots)

    def _require_rest(self) -> None:
        busy = self._changing or (sorted(self._wish.plans) if self._wish else [])
        if busy:
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
        criteria = self._rules.criteria
        known = self._controllers[0].view if self._controllers else criteria.given
        model = resource_model(graph, known, grouping=self._query.merging, partitioning=criteria.partitioning)
        return criteria.pricing(graph, old, new, model)[0].strategy


def _observation(
    facts: BatchFacts, reports: Mapping[int, QueryReport], plans: Sequence[SlotPlan], slots: tuple[int, ...]
) -> Observation | None:
    """Returns a batch of slots that adapt together; None if they run different plans, whose counts cannot be summed."""
    plan = plans[slots[0]].plan
    if any(plans[slot].plan != plan for slot in slots[1:]):
        return None
    profiles = [found for slot in slots if (found := reports[slot].profiles) is not None]
    return Observation(
        facts,
        unshared(plan) if not isinstance(plan, Mesh) and shares(plan) else plan,
        partial(merged_statistics, [reports[slot] for slot in slots]),
        profiles=tuple(pooled(profiles)) if profiles else None,
        is_shared=shares(plan),
    )


def _spread(partitioning: Partitioning) -> Partitioning | None:
    """Returns the partitioning by which copies of rows are counted once; None if every row has one slot."""
    return None if partitioning.is_partition else partitioning


def _controllers(
    query: Query, rules: ChangeRules, slots: tuple[int, ...], searches: Searches
) -> tuple[Controller, ...]:
    """Returns one controller for all slots, or one for each slot; none if the plan is fixed."""
    if len(query.graph.names) < 2 or (rules.adapt is None and rules.staging is None):
        return ()
    if rules.adapt is None or rules.adapt.scope == "query":
        return (Controller(query, rules, slots, searches),)
    criteria = rules.criteria
    host = None if criteria.host is None else criteria.host.of_one_slot(len(slots))
    alone = replace(criteria, partitioning=None, budget=replace(criteria.budget, slots=1), host=host)
    return tuple(Controller(query, replace(rules, criteria=alone), (slot,), searches) for slot in slots)
