"""Which plan each slot of a running query has, and who may change it: its user, a schedule, or the adaptation loop.

For every batch the slots' plans go out (`next`), and their reports come back (`after`). A change is checked when it is
asked for and takes effect with the next batch; its way through the slots is that of `change`, whose instructions become
the plans of the next batch. There is one change at a time: until it has ended, another is refused and the running plans
stay as they are. Everything that happens leaves a record (`adapt.records`).
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeAlias

from anabranch.adapt.loop import Loop, Means, Observation
from anabranch.adapt.memory import QueryMemory
from anabranch.adapt.records import DecisionMade, QueryRecord, Refusal
from anabranch.adapt.routing import decide_mesh
from anabranch.adapt.settings import Settings
from anabranch.errors import MigrationError
from anabranch.host.change import Change, Wish, begin
from anabranch.host.meshing import Found, MeshWatch, Searches, Staging
from anabranch.migrate.machine import Instruction, Run
from anabranch.optimize.choice import resource_model
from anabranch.plan.difference import STRATEGIES, Strategy, check_migration
from anabranch.plan.mesh import Mesh, Plan, check_plan
from anabranch.plan.partitioning import Partitioning
from anabranch.plan.physical import mjoin
from anabranch.plan.query import Query
from anabranch.plan.slots import SlotPlan
from anabranch.stats.report import QueryReport, merged_statistics

Reports: TypeAlias = Mapping[int, QueryReport]


@dataclass(frozen=True)
class Switch:
    """A change of plan that was written down beforehand."""

    at_batch: int
    plan: Plan
    strategy: str = "auto"
    slots: tuple[int, ...] | None = None
    """All of them when None."""


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
        staging: Staging | None = None,
    ) -> None:
        self._query = query
        self._staging = staging if len(query.graph.names) > 1 else None
        self._settings = adapt or Settings()
        self._slots = tuple(range(partitioning.slots))
        self._plans = dict.fromkeys(self._slots, SlotPlan(check_plan(plan, query.graph, query.grouping)))
        # Where every row has one slot, nothing is counted twice, and nothing need be reckoned back.
        spread = None if partitioning.is_partition else partitioning
        self._means = replace(means or Means(), partitioning=spread)
        self._loops = _loops(query, adapt, self._means, self._slots)
        self._switches = self._schedule(switches)
        self._watches = {slot: MeshWatch(self._settings.gate.cool_down) for slot in self._slots}
        self._searches = Searches(query.graph)
        self._triggers: dict[int, str] = {}
        self._wish: Wish | None = None
        self._given_up: Wish | None = None
        self._under_way: list[Change] = []
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

    def migrate(
        self, plan: Plan, strategy: str = "auto", slots: Iterable[int] | None = None, *, box_by_box: bool = False
    ) -> None:
        """The slots, all unless some are named, take the plan with the next batch; refused without any effect.

        Box by box, the parts in which the plans differ change one after another.
        """
        check_plan(plan, self._query.graph, self._query.grouping)
        if isinstance(slots, int):
            raise MigrationError(f"slots are named in a list, not as {slots}", hint=f"write slots=[{slots}]")
        with self._lock:
            self._require_rest()
            together = [slots for slots, loop in self._loops if not loop.settings.freeze and len(slots) > 1]
            if slots is not None and together:
                raise MigrationError(
                    "single slots cannot be changed while the query adapts as a whole",
                    hint="adapt with scope: slot, freeze the adaptation, or leave the slots out",
                )
            plans = self._checked(plan, strategy, None if slots is None else tuple(slots))
            self._wish = Wish(plans, "user", box_by_box)

    def abort(self, reason: str = "asked for") -> None:
        """With the next batch all slots of the change under way, or asked for, go back to the plans they had."""
        with self._lock:
            if self._wish is None and not self._under_way:
                raise MigrationError("no change of plan is under way", hint="only such a change can be aborted")
            self._wish = None
            for change in self._under_way:
                self._obey(change.abort(reason))

    def freeze(self, frozen: bool = True) -> None:
        """Keeps the loop from changing anything, or lets it again; it goes on watching.

        A change that it has decided on and that has not begun is not made, and is told as refused.
        """
        with self._lock:
            self._settings = replace(self._settings, freeze=frozen)
            for _, loop in self._loops:
                loop.settings = replace(loop.settings, freeze=frozen)
            if frozen and self._wish is not None and self._wish.by in ("loop", "mesh"):
                self._given_up, self._wish = self._wish, None

    @property
    def memory(self) -> QueryMemory:
        """What the loops have learnt; see `recall`."""
        return {name: loop.memory for name, loop in self._named_loops()}

    def recall(self, memory: QueryMemory) -> None:
        """Gives the loops what those of an earlier run have learnt; raises an error when it is of another query."""
        for name, loop in self._named_loops():
            if name in memory:
                loop.recall(memory[name])

    def next(self, batch: int) -> tuple[tuple[SlotPlan, ...], list[Refusal]]:
        """The plans for a batch, and records of what could not be done."""
        refused: list[Refusal] = []
        with self._lock:
            if self._given_up is not None:
                plans = {wanted.plan for wanted in self._given_up.plans.values()}
                refused += [
                    Refusal(batch, plan, "the query was frozen before it began") for plan in sorted(plans, key=str)
                ]
                self._given_up = None
            scheduled: dict[int, SlotPlan] = {}
            for switch in self._switches.pop(batch, []):
                try:
                    self._require_rest()
                    scheduled |= self._checked(switch.plan, switch.strategy, switch.slots)
                except MigrationError as error:
                    refused.append(Refusal(batch, switch.plan, error.message))
            if scheduled:
                self._wish = Wish(scheduled, "schedule")
            if self._wish is not None:
                change, instructions = begin(self._wish, self._plans, batch, self._query.graph)
                self._under_way.append(change)
                self._obey(instructions)
                self._wish = None
            now = tuple(replace(plan, learns=slot in self._triggers) for slot, plan in enumerate(self.plans))
        return now, refused

    def after(
        self, batch: int, reports: Reports, seconds: float | None, waiting: int | None, behind: float | None = None
    ) -> list[QueryRecord]:
        """What is to be told of a batch that was committed; the loop may have decided on a change for the next.

        `seconds` is the event time that passed with it, `waiting` the rows it took, and `behind` how many seconds its
        newest event time lies before the time of day.
        """
        with self._lock:
            # What the batch was like, before the change under way makes its next move.
            plans, changing = self.plans, set(self._changing)
            records = self._progress(batch, reports)
            for together, loop in self._loops:
                plan = plans[together[0]].plan
                if isinstance(plan, Mesh):
                    continue
                read = partial(merged_statistics, [reports[slot] for slot in together])
                seen = Observation(batch, plan, read, seconds, waiting, behind, bool(changing & {*together}))
                decision = loop.observe(seen)
                if decision is None:
                    continue
                if decision.action == "migrate" and self._wish is not None and self._wish.by == "user":
                    decision = replace(
                        decision, action="keep", reason=f"another change was asked for; otherwise: {decision.reason}"
                    )
                records.append(DecisionMade(decision, together))
                if decision.action == "migrate" and decision.strategy is not None:
                    chosen = dict.fromkeys(together, SlotPlan(decision.proposed, decision.strategy))
                    others = self._wish.plans if self._wish is not None else {}
                    self._wish = Wish({**others, **chosen}, "loop")
            if self._staging is not None:
                self._look(batch, reports, seconds, self._staging)
                found = self._searches.finished(wait=self._staging.waits)
                records += self._mesh_records(batch, [each for each in found if each.plan == plans[each.slot].plan])
            return records

    # --- inside -------------------------------------------------------------------------------------------------------

    def _schedule(self, switches: Iterable[Switch]) -> dict[int, list[Switch]]:
        """The scheduled changes by their batch; one that can never be made is refused before anything runs."""
        schedule: dict[int, list[Switch]] = {}
        for switch in switches:
            check_plan(switch.plan, self._query.graph, self._query.grouping)
            self._require_slots(switch.slots)
            if switch.strategy not in ("auto", *STRATEGIES):
                raise MigrationError(
                    f"no migration strategy '{switch.strategy}'", hint=f"one of auto, {', '.join(STRATEGIES)}"
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

    def _named_loops(self) -> list[tuple[str, Loop]]:
        return [("all" if slots == self._slots else f"slot {slots[0]}", loop) for slots, loop in self._loops]

    def _slots_of(self, switch: Switch) -> set[int]:
        return set(self._slots if switch.slots is None else switch.slots)

    def _look(self, batch: int, reports: Reports, seconds: float | None, staging: Staging) -> None:
        """Notes what the slots did, asks some for what their operators do, and has a mesh searched from that."""
        for slot, report in reports.items():
            watch = self._watches[slot]
            if report.profiles is not None:
                self._searches.begin(slot, report.plan, self._triggers.pop(slot), report.profiles, batch)
            reason = watch.note(report.plan, report.statistics, seconds)
            if reason is None and staging.is_due(batch + 1) and not watch.is_cooling:
                reason = f"batch {batch} has passed"
            if reason is not None:
                self._triggers[slot] = reason

    def _mesh_records(self, batch: int, several: list[Found]) -> list[QueryRecord]:
        """Decisions on what was found; slots whose mesh is worth it take it with the next batch."""
        records: list[QueryRecord] = []
        chosen: dict[int, SlotPlan] = {}
        is_busy = bool(self._under_way) or self._wish is not None
        for found in several:
            flow = self._watches[found.slot].flow
            if flow is None:
                continue
            decision = decide_mesh(batch, found.trigger, found.plan, found.learnt, flow, self._settings, self._means)
            if decision.action == "migrate" and is_busy:
                reason = f"another change is under way; otherwise: {decision.reason}"
                decision = replace(decision, action="keep", reason=reason)
            records.append(DecisionMade(decision, (found.slot,), found.learnt))
            if decision.action == "migrate":
                chosen[found.slot] = SlotPlan(found.learnt.mesh, "none")
        if chosen:
            self._wish = Wish(chosen, "mesh")
        return records

    def _obey(self, instructions: list[Instruction]) -> None:
        for instruction in instructions:
            if isinstance(instruction, Run):
                self._plans[instruction.slot] = SlotPlan(instruction.plan, instruction.strategy)

    def _progress(self, batch: int, reports: Reports) -> list[QueryRecord]:
        """Records of the changes under way, which go on with the next batch."""
        told: list[QueryRecord] = []
        for change in self._under_way:
            instructions, records = change.progress(batch, reports)
            self._obey(instructions)
            told += records
        self._under_way = [change for change in self._under_way if not change.is_over]
        return told

    @property
    def _changing(self) -> list[int]:
        """The slots of the changes under way; where each slot adapts by itself there may be several changes at once."""
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
        """The new plans of the slots, with a strategy that can serve each."""
        check_plan(plan, self._query.graph, self._query.grouping)
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
            check_migration(old, new, graph, wished, self._query.grouping)
            return next(known for known in STRATEGIES if known == wished)
        known = self._loops[0][1].view if self._loops else self._means.given
        return self._means.pricing(graph, old, new, resource_model(graph, known, grouping=self._query.grouping))[
            0
        ].strategy


def _loops(
    query: Query, adapt: Settings | None, means: Means, slots: tuple[int, ...]
) -> list[tuple[tuple[int, ...], Loop]]:
    if adapt is None or len(query.graph.names) < 2:
        return []
    if adapt.scope == "query":
        return [(slots, Loop(query, adapt, means))]
    alone = replace(means, partitioning=None, budget=replace(means.budget, slots=1))
    return [((slot,), Loop(query, adapt, alone)) for slot in slots]
