"""Steers the plans of running queries: which plan each slot has, and who may change it.

For every batch the plans go out to the slots (`next`) and their reports come back (`after`). The user, a schedule, the
adaptation loop and the search for meshes may ask for a change. It is checked when it is asked for and takes effect
with the next batch; `adapt.change` leads the slots through it. A query has one change at a time: until it has ended,
another is refused and the running plans stay. Every event leaves a record (`adapt.records`).

A query that runs alone is a set of one; its records and its memory bear no name.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial

from anabranch.adapt.balancing import BY_HAND, Balance
from anabranch.adapt.change import Change, Wish, begin
from anabranch.adapt.experience import Experience, longest_window
from anabranch.adapt.facts import AT_START, BatchFacts, Moment
from anabranch.adapt.keeping_up import KeepingUp
from anabranch.adapt.loop import Loop, Observation
from anabranch.adapt.memory import Memory, QueryMemory
from anabranch.adapt.mesh_watch import MeshWatch, learn_mesh, pooled
from anabranch.adapt.naming import by_hash, by_value
from anabranch.adapt.records import Author, DecisionMade, QueryRecord, Record, Refusal
from anabranch.adapt.routing import (
    Flow,
    could_pay,
    decide_mesh,
    decide_tree,
    is_worth_searching,
    price_of_search,
    running_cpu,
    together,
)
from anabranch.adapt.rules import NO_RULES, ChangeRules, Criteria, Staging, Switch
from anabranch.adapt.schedule import Scheduled
from anabranch.adapt.searches import Search, Searches
from anabranch.adapt.settings import Settings
from anabranch.adapt.sharing import BY_HAND_ONLY, SharingLoop, SharingRules, plans_to_share
from anabranch.adapt.table import Table, TableSteering
from anabranch.errors import BundleError, MigrationError
from anabranch.migrate.machine import Instruction, Run
from anabranch.migrate.strategies.registry import check_migration, strategy_names
from anabranch.optimize.problem import resource_model
from anabranch.plan.mesh import Mesh, Plan, check_plan
from anabranch.plan.partitioning import Partitioning
from anabranch.plan.physical import mjoin, unshared
from anabranch.plan.query import Query
from anabranch.plan.query_set import ALONE, Plans, QuerySet, partitioning_of
from anabranch.plan.sharing import SHARING, common_joins, shares
from anabranch.plan.slots import Orders, SlotPlan, SlotPlans, most_frequent
from anabranch.stats.mesh.learnt import LearntMesh
from anabranch.stats.report import QueryReport, SlotReports, merged_statistics

DEARER = 1.15
"""A mesh is looked at again once a row costs this many times what it was to cost, or cost at best."""


class Steering:
    """The steering of all queries of a run."""

    def __init__(
        self,
        queries: QuerySet,
        plans: Plans,
        table: Table,
        rules: Mapping[str, ChangeRules],
        moves: Iterable[Scheduled] = (),
        balance: Balance = BY_HAND,
        held: frozenset[str] = frozenset(),
        sharing: SharingRules = BY_HAND_ONLY,
    ) -> None:
        self._sharing = SharingLoop(queries, rules, sharing)
        self.is_named = queries.is_named
        self._set = queries
        common_joins(queries, plans.plans)  # refuses what cannot be shared
        spread = table.partitioning
        self.queries = {
            member.name: QuerySteering(
                member.query,
                plans[member.name],
                spread,
                rules.get(member.name, NO_RULES),
                check=partial(self._check_sharing, member.name),
            )
            for member in queries.members
        }
        names = by_value(queries.graph) if balance.show_keys else by_hash
        grids = partial(partitioning_of, queries, spread.slots, held=held)
        self.table = TableSteering(table, moves, balance, grids, names)
        self._keeping_up = KeepingUp(rules, sharing.budget)

    @property
    def plans(self) -> SlotPlans:
        """The plans of the latest batch."""
        return {name: steering.plans for name, steering in self.queries.items()}

    @property
    def most_plans(self) -> Plans:
        """For each query the plan that most slots have."""
        return Plans({name: most_frequent(plans) for name, plans in self.plans.items()})

    def of_query(self, name: str | None) -> QuerySteering:
        """The steering of the query of that name; a query that runs alone has no name."""
        if name is None and not self.is_named:
            return self.queries[ALONE]
        if name not in self.queries and not self.is_named:
            raise MigrationError(f"there is no query '{name}' to change", hint="a query that runs alone needs no name")
        if name is None or name not in self.queries:
            raise BundleError(
                "no query is named whose plan should change" if name is None else f"no query is named '{name}'",
                hint=f"name one of the queries that run together: {', '.join(self.queries)}",
            )
        return self.queries[name]

    def migrate(self, plans: Mapping[str, Plan], author: Author = "user") -> None:
        """Changes the plans of several queries with the same batch; refuses without any effect."""
        steerings = {name: self.of_query(name) for name in sorted(plans)}
        with ExitStack() as locks:
            for steering in steerings.values():
                locks.enter_context(steering.lock)
            wishes = {name: steering.wish(plans[name], "auto", author=author) for name, steering in steerings.items()}
            common_joins(self._set, {**self.most_plans.plans, **plans})
            for name, steering in steerings.items():
                steering.ask(wishes[name])

    def share(self, join: str, queries: Iterable[str] | None = None) -> None:
        """Lets queries share a join from the next batch on: those that are named, else all that can.

        `join` is the text of a plan over some of their relations, with or without braces.
        """
        named = None if queries is None else [name for name in queries if self.of_query(name)]
        graphs = {member.name: member.query.graph for member in self._set.members}
        self.migrate(plans_to_share(join, named, self.most_plans.plans, graphs))

    def unshare(self, queries: Iterable[str] | None = None) -> None:
        """Lets queries, those that are named or all, compute their joins themselves from the next batch on."""
        now = self.most_plans
        named = self.queries if queries is None else [name for name in queries if self.of_query(name)]
        own = {name: unshared(plan) for name in named if not isinstance(plan := now[name], Mesh) and shares(plan)}
        if not own:
            raise MigrationError("no join is shared", hint="'share' lets queries share one")
        self.migrate(own)

    def _check_sharing(self, query: str, plan: Plan) -> None:
        """Refuses a plan with a shared join that the query cannot share with the others as they are."""
        if shares(plan):
            common_joins(self._set, {**self.most_plans.plans, query: plan})

    def freeze(self, frozen: bool = True) -> None:
        """Keeps all queries from changing their plans by themselves, or lets them again."""
        for steering in self.queries.values():
            steering.freeze(frozen)
        self.table.freeze(frozen)

    @property
    def is_changing(self) -> bool:
        """True while some query has a change of plan asked for or under way."""
        return any(steering.is_changing for steering in self.queries.values())

    def close(self) -> None:
        """Ends the searches of all queries; nothing is decided any more that needs one."""
        for steering in self.queries.values():
            steering.searches.close()

    @property
    def memory(self) -> Memory:
        """The statistics and plans that the loops of each query have learnt."""
        return Memory({name: steering.memory for name, steering in self.queries.items()})

    def recall(self, memory: Memory) -> None:
        """Gives each query what it has learnt in an earlier run."""
        for name, steering in self.queries.items():
            steering.recall(memory.queries.get(name, {}))

    def next(self, batch: int, moment: Moment = AT_START) -> tuple[Orders, list[Record]]:
        """The orders for a batch that begins at a moment, and records of changes that could not be begun."""
        plans: dict[str, tuple[SlotPlan, ...]] = {}
        table, not_moved = self.table.next(batch, moment)
        refused: list[Record] = [*not_moved]
        for name, steering in self.queries.items():
            steering.spread(table)
            plans[name], own = steering.next(batch)
            refused += [replace(record, query=name or None) for record in own]
        return Orders(plans, table, self.table.counts_cells), refused

    def after(self, facts: BatchFacts, reports: SlotReports) -> list[Record]:
        """Takes in a batch that was committed; returns its records. Changes take effect with the next batch."""
        records: list[Record] = []
        is_moving = self.table.is_changing
        for name, steering in self.queries.items():
            own = {slot: report.queries[name] for slot, report in reports.items()}
            decided = steering.after(facts, own, is_moving=is_moving)
            records += [replace(record, query=name or None) for record in decided]
        records += self._decide_sharing(facts, reports)
        records += self._keeping_up.after(facts, reports)
        # Plans first: a cheaper plan may be all that a slow slot needs.
        return [*self.table.after(facts, reports, is_busy=self.is_changing), *records]

    @property
    def needs_backlog(self) -> bool:
        """Whether anything here asks how many rows wait in the sources."""
        return self._keeping_up.is_active or any(steering.has_loops for steering in self.queries.values())

    def _decide_sharing(self, facts: BatchFacts, reports: SlotReports) -> list[Record]:
        """Decides on shared joins where that is due; queries that are to change do so with the next batch."""
        if not self._sharing.is_active:
            return []
        if any(steering.is_changing for steering in self.queries.values()):
            self._sharing.restart()
            return []
        self._sharing.note(facts.seconds, [report.queries for report in reports.values()])
        loops = {name: loop for name, steering in self.queries.items() if (loop := steering.loop) is not None}
        decided = self._sharing.decide(facts.batch, self.most_plans.plans, loops)
        if decided is None:
            return []
        if decided.plans:
            try:
                self.migrate(decided.plans, "loop")
            except (MigrationError, BundleError) as error:
                decided = replace(decided, plans={}, reason=f"{error.message}; otherwise: {decided.reason}")
        return [decided]


@dataclass(frozen=True)
class _MeshSearch:
    """A search of a mesh for slots that ran `plan` when it began."""

    slots: tuple[int, ...]
    plan: Plan
    trigger: str
    found: Search[LearntMesh]


class QuerySteering:
    """The plans of one running query; `migrate`, `abort` and `freeze` may be called from any thread."""

    def __init__(
        self,
        query: Query,
        plan: Plan,
        partitioning: Partitioning,
        rules: ChangeRules = NO_RULES,
        check: Callable[[Plan], None] = lambda plan: None,
    ) -> None:
        """`check` refuses a plan that does not go with those of the other queries of the set."""
        self._query = query
        self._check = check
        self._staging = rules.staging if len(query.graph.names) > 1 else None
        self._settings = rules.adapt or Settings()
        self._slots = tuple(range(partitioning.slots))
        self._plans = dict.fromkeys(self._slots, SlotPlan(check_plan(plan, query.graph, query.merging)))
        self._criteria = replace(rules.criteria, partitioning=_spread(partitioning))
        self.searches = Searches(waits=rules.waits)
        self._loops = _loops(query, rules.adapt, self._criteria, self._slots, self.searches)
        self._switches = self._schedule(rules.switches)
        filling = longest_window(query)
        self._watches = {slot: MeshWatch(self._settings.gate.cool_down, filling) for slot in self._slots}
        self._mesh_searches: list[_MeshSearch] = []
        # Slots that adapt together look together; so do all slots of a query that only learns routes.
        self._looking = [slots for slots, _ in self._loops] or [self._slots]
        self._news: dict[tuple[int, ...], str] = {}
        self._best: dict[tuple[int, ...], tuple[Plan, float]] = {}
        """Of the mesh that slots run, what a row costs at best; what was promised, until that is tested."""
        self._untested: set[tuple[int, ...]] = set()
        self._factors: dict[tuple[int, ...], float] = {}
        """How many times what was promised of it the last mesh of some slots took."""
        self._fruitless: dict[tuple[int, ...], int] = {}
        """Searches of some slots that led to no change, since the last that did."""
        self._passed = 0.0
        """Event time so far."""
        self._triggers: dict[int, str] = {}
        self._wish: Wish | None = None
        self._given_up: Wish | None = None
        self._under_way: list[Change] = []
        self._lock = threading.Lock()

    def spread(self, partitioning: Partitioning) -> None:
        """Takes in that rows are spread over slots in another way from now on."""
        with self._lock:
            now = _spread(partitioning)
            if now == self._criteria.partitioning:
                return
            self._criteria = replace(self._criteria, partitioning=now)
            for _, loop in self._loops:
                if loop.settings.scope == "query":
                    loop.spread(now)

    @property
    def lock(self) -> threading.Lock:
        """Held while `wish` and `ask` are called from outside."""
        return self._lock

    def wish(self, plan: Plan, strategy: str, slots: tuple[int, ...] | None = None, author: Author = "user") -> Wish:
        """The wish for a plan, checked; nothing changes until it is asked for."""
        self._require_rest()
        return Wish(self._checked(plan, strategy, slots), author)

    @property
    def loop(self) -> Loop | None:
        """The loop that adapts the query as a whole, if there is one."""
        return self._loops[0][1] if len(self._loops) == 1 and self._loops[0][0] == self._slots else None

    def ask(self, wish: Wish) -> None:
        """Makes a checked wish the change that begins with the next batch."""
        self._wish = wish

    @property
    def plans(self) -> tuple[SlotPlan, ...]:
        """The plans of the latest batch, by slot."""
        return tuple(self._plans[slot] for slot in self._slots)

    @property
    def has_loops(self) -> bool:
        """True if the query adapts."""
        return bool(self._loops)

    @property
    def is_changing(self) -> bool:
        """True while a change of plan is asked for or under way."""
        with self._lock:
            return self._wish is not None or bool(self._under_way)

    @property
    def plan(self) -> Plan:
        """The plan that most slots have."""
        return most_frequent(self.plans)

    def migrate(
        self, plan: Plan, strategy: str = "auto", slots: Iterable[int] | None = None, *, box_by_box: bool = False
    ) -> None:
        """Changes the plan of all slots, or of those that are named, with the next batch; refuses without any effect.

        Box by box, the parts in which the plans differ change one after another.
        """
        check_plan(plan, self._query.graph, self._query.merging)
        self._check(plan)
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
            wish = self.wish(plan, strategy, None if slots is None else tuple(slots))
            self._wish = replace(wish, box_by_box=box_by_box)

    def abort(self, reason: str = "asked for") -> None:
        """Leads all slots of the change under way, or asked for, back to their old plans with the next batch."""
        with self._lock:
            if self._wish is None and not self._under_way:
                raise MigrationError("no change of plan is under way", hint="only such a change can be aborted")
            self._wish = None
            for change in self._under_way:
                self._obey(change.abort(reason))

    def freeze(self, frozen: bool = True) -> None:
        """Keeps the loop from changing plans, or lets it again; it goes on watching.

        A change that the loop decided on and that has not begun is not made, and is recorded as refused.
        """
        with self._lock:
            self._settings = replace(self._settings, freeze=frozen)
            for _, loop in self._loops:
                loop.settings = replace(loop.settings, freeze=frozen)
            if frozen and self._wish is not None and self._wish.by in ("loop", "mesh"):
                self._given_up, self._wish = self._wish, None

    @property
    def memory(self) -> QueryMemory:
        """The statistics and plans that the loops have learnt; see `recall`."""
        return {name: loop.memory for name, loop in self._named_loops()}

    def recall(self, memory: QueryMemory) -> None:
        """Gives the loops what those of an earlier run have learnt; raises an error when it is of another query."""
        for name, loop in self._named_loops():
            if name in memory:
                loop.recall(memory[name])

    def next(self, batch: int) -> tuple[tuple[SlotPlan, ...], list[Refusal]]:
        """The plans for a batch, and records of changes that could not be begun."""
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
        self, facts: BatchFacts, reports: Mapping[int, QueryReport], *, is_moving: bool = False
    ) -> list[QueryRecord]:
        """Takes in a batch that was committed; the loop may decide on a change for the next.

        While partition groups move, statistics mix two tables, so nothing is learnt and nothing decided.
        """
        with self._lock:
            # The situation of the batch, before the change under way makes its next move.
            plans, changing = self.plans, set(self._changing)
            records = self._progress(facts.batch, reports)
            for slots, loop in self._loops:
                plan = plans[slots[0]].plan
                # Where slots run different plans, their counts tell of none of them.
                if not isinstance(plan, Mesh) and all(plans[slot].plan == plan for slot in slots):
                    is_shared = shares(plan)
                    seen = Observation(
                        facts.batch,
                        unshared(plan) if is_shared else plan,
                        partial(merged_statistics, [reports[slot] for slot in slots]),
                        facts.seconds,
                        facts.waiting,
                        facts.behind,
                        is_migrating=is_moving or bool(changing & {*slots}),
                        backlog=facts.backlog,
                    )
                    if is_shared:
                        loop.watch(seen)
                    else:
                        records += self._decisions(loop, seen, slots)
            if self._staging is not None:
                self._passed += facts.seconds or 0.0
                self._look(facts, reports, self._staging)
                records += self._mesh_decisions(facts.batch, plans)
            return records

    # --- inside -------------------------------------------------------------------------------------------------------

    def _schedule(self, switches: Iterable[Switch]) -> dict[int, list[Switch]]:
        """The scheduled changes by their batch; refuses one that can never be made."""
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

    def _named_loops(self) -> list[tuple[str, Loop]]:
        return [("all" if slots == self._slots else f"slot {slots[0]}", loop) for slots, loop in self._loops]

    def _slots_of(self, switch: Switch) -> set[int]:
        return set(self._slots if switch.slots is None else switch.slots)

    def _decisions(self, loop: Loop, seen: Observation, slots: tuple[int, ...]) -> list[QueryRecord]:
        """The decision of a loop on a batch, if there is one; slots that are to migrate do so with the next batch."""
        decision = loop.observe(seen)
        if decision is None:
            return []
        if decision.action == "keep" and "changed" in decision.trigger and "inf" not in decision.trigger:
            self._news[slots] = decision.trigger
        if decision.action == "migrate" and self._wish is not None and self._wish.by == "user":
            reason = f"another change was asked for; otherwise: {decision.reason}"
            decision = replace(decision, action="keep", reason=reason)
        if decision.action == "migrate" and decision.strategy is not None:
            chosen = dict.fromkeys(slots, SlotPlan(decision.proposed, decision.strategy))
            others = self._wish.plans if self._wish is not None else {}
            by_boxes = decision.takes_steps or (self._wish is not None and self._wish.box_by_box)
            self._wish = Wish({**others, **chosen}, "loop", box_by_box=by_boxes)
        return [DecisionMade(decision, slots)]

    def _look(self, facts: BatchFacts, reports: Mapping[int, QueryReport], staging: Staging) -> None:
        """Watches the slots, begins a search where some reported their operators, and asks others to do so next time.

        Slots that adapt together look together: what each has seen of its rows counts for all.
        """
        drifts = {
            slot: self._watches[slot].note(report.plan, report.statistics, facts.seconds)
            for slot, report in reports.items()
        }
        for slots in self._looking:
            told = [slot for slot in slots if slot in reports and reports[slot].profiles is not None]
            if told:
                first = reports[told[0]]
                profiles = pooled([reports[slot].profiles or () for slot in told])
                is_worth = self._worth(slots, first.plan, staging)
                search = partial(learn_mesh, self._query.graph, profiles, facts.batch, first.plan, is_worth)
                found = self.searches.begin("routes", search, is_long=True)
                trigger = [self._triggers.pop(slot, "") for slot in slots]
                self._mesh_searches.append(_MeshSearch(slots, first.plan, trigger[0], found))
            reason = next((drifts[slot] for slot in slots if drifts.get(slot) is not None), None)
            is_cooling = any(self._watches[slot].is_cooling for slot in slots)
            if slots in self._untested and not is_cooling:
                self._may_look(slots, staging)
            if reason is None and not is_cooling:
                reason = f"batch {facts.batch} has passed" if staging.is_due(facts.batch + 1) else self._changed(slots)
            if reason is not None and self._may_look(slots, staging):
                self._triggers |= dict.fromkeys(slots, reason)

    def _changed(self, slots: tuple[int, ...]) -> str | None:
        """The reason to look that the loop of these slots has found: the streams are no longer as they were."""
        found = [self._news.pop(own) for own, _ in self._loops if own == slots and own in self._news]
        return found[0] if found else None

    def _may_look(self, slots: tuple[int, ...], staging: Staging) -> bool:
        """Whether a look can lead to anything: not if the slots share a join, or if no mesh could pay."""
        plans = {self._plans[slot].plan for slot in slots}
        if len(plans) > 1 or any(shares(plan) for plan in plans):
            return False
        flows = [self._watches[slot].flow for slot in slots]
        known = [flow for flow in flows if flow is not None]
        if not self._loops or len(known) < len(flows):
            return True
        (plan,) = plans
        flow = together(known)
        price, settings = price_of_search(staging, self._query, self._fruitless.get(slots, 0)), self._searching
        return self._is_dearer(slots, plan, flow) and could_pay(
            plan, flow, self._query, settings, self._criteria, price
        )

    @property
    def _searching(self) -> Settings:
        """The settings by which a search is judged: it must pay back in as much time as the query has run so far."""
        gate = self._settings.gate
        return replace(self._settings, gate=replace(gate, horizon=min(gate.horizon, self._passed)))

    def _worth(self, slots: tuple[int, ...], plan: Plan, staging: Staging) -> Callable[[LearntMesh], bool] | None:
        """Judges whether a mesh is worth searching, by the least that any could take; None: it always is."""
        known = [flow for flow in (self._watches[slot].flow for slot in slots) if flow is not None]
        if not self._loops or len(known) < len(slots):
            return None
        return partial(
            is_worth_searching,
            plan=plan,
            flow=together(known),
            query=self._query,
            settings=self._searching,
            criteria=self._criteria,
            price=price_of_search(staging, self._query, self._fruitless.get(slots, 0)),
            slots=len(slots),
            factor=self._factors.get(slots, 1.0),
        )

    def _is_dearer(self, slots: tuple[int, ...], plan: Plan, flow: Flow) -> bool:
        """Whether a mesh costs more for a row than it did at its best: one that keeps its promise is left alone."""
        cpu = running_cpu(plan, flow, self._query, self._criteria)
        rows = sum(flow.rates.values())
        if not isinstance(plan, Mesh) or cpu is None or not rows:
            return True
        before = self._best.get(slots)
        if before is None or before[0] != plan:
            self._best[slots] = (plan, cpu / rows)
            return False
        if slots in self._untested:
            # The first look at it: what it takes now is held against what was promised of it, and of others like it.
            self._untested.discard(slots)
            self._factors[slots] = max(1.0, cpu / rows / before[1])
            self._best[slots] = (plan, cpu / rows)
            return False
        self._best[slots] = (plan, min(before[1], cpu / rows))
        return cpu / rows > DEARER * before[1]

    def _mesh_decisions(self, batch: int, plans: tuple[SlotPlan, ...]) -> list[QueryRecord]:
        """Decisions on the meshes that searches have found; slots whose mesh pays take it with the next batch."""
        ended = [each for each in self._mesh_searches if each.found.is_done]
        self._mesh_searches = [each for each in self._mesh_searches if each not in ended]
        records: list[QueryRecord] = []
        chosen: dict[int, SlotPlan] = {}
        is_busy = bool(self._under_way) or self._wish is not None
        for each in ended:
            learnt, flows = each.found.outcome(), [self._watches[slot].flow for slot in each.slots]
            known = [flow for flow in flows if flow is not None]
            is_same = all(plans[slot].plan == each.plan for slot in each.slots)
            if learnt is None or len(known) < len(flows) or not is_same:
                continue
            flow, query, criteria = together(known), self._query, self._criteria
            settings, slots = self._settings, each.slots
            decision = decide_mesh(
                batch,
                each.trigger,
                each.plan,
                learnt,
                flow,
                settings,
                criteria,
                query,
                slots=len(slots),
                is_free=bool(self._loops),
                factor=self._factors.get(slots, 1.0),
            )
            if self._loops:
                experience = next((loop.experience for own, loop in self._loops if slots[0] in own), Experience())
                decision = decide_tree(decision, learnt, flow, settings, criteria, query, experience)
            if decision.action == "migrate" and is_busy:
                reason = f"another change is under way; otherwise: {decision.reason}"
                decision = replace(decision, action="keep", reason=reason)
            records.append(DecisionMade(decision, slots, learnt))
            self._fruitless[slots] = 0 if decision.action == "migrate" else self._fruitless.get(slots, 0) + 1
            if decision.action == "migrate" and decision.strategy is not None:
                chosen |= dict.fromkeys(slots, SlotPlan(decision.proposed, decision.strategy))
                promised = decision.proposed_cost.cpu / max(sum(flow.rates.values()), 1e-9)
                self._best[slots] = (decision.proposed, promised)
                if isinstance(decision.proposed, Mesh):
                    self._untested.add(slots)
        if chosen:
            self._wish = Wish(chosen, "mesh")
        return records

    def _obey(self, instructions: list[Instruction]) -> None:
        for instruction in instructions:
            if isinstance(instruction, Run):
                self._plans[instruction.slot] = SlotPlan(instruction.plan, instruction.strategy)

    def _progress(self, batch: int, reports: Mapping[int, QueryReport]) -> list[QueryRecord]:
        """Takes the changes under way one batch further; returns their records."""
        records: list[QueryRecord] = []
        for change in self._under_way:
            instructions, own = change.progress(batch, reports)
            self._obey(instructions)
            records += own
        self._under_way = [change for change in self._under_way if not change.is_over]
        return records

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
            # A mesh keeps no state but the base rows, so there is nothing to move and nothing to wait for.
            return "none"
        if isinstance(old, Mesh):
            old = mjoin(graph.names)
        if wished != "auto":
            check_migration(old, new, graph, wished, self._query.merging)
            return wished
        known = self._loops[0][1].view if self._loops else self._criteria.given
        spread = self._criteria.partitioning
        model = resource_model(graph, known, grouping=self._query.merging, partitioning=spread)
        return self._criteria.pricing(graph, old, new, model)[0].strategy


def _spread(partitioning: Partitioning) -> Partitioning | None:
    """How often rows are counted: where every row has one slot, none is counted twice."""
    return None if partitioning.is_partition else partitioning


def _loops(
    query: Query, adapt: Settings | None, criteria: Criteria, slots: tuple[int, ...], searches: Searches
) -> list[tuple[tuple[int, ...], Loop]]:
    """The loop over all slots, or one loop for each, with the slots that it observes."""
    if adapt is None or len(query.graph.names) < 2:
        return []
    if adapt.scope == "query":
        return [(slots, Loop(query, adapt, criteria, searches))]
    host = None if criteria.host is None else criteria.host.of_one_slot(len(slots))
    alone = replace(criteria, partitioning=None, budget=replace(criteria.budget, slots=1), host=host)
    return [((slot,), Loop(query, adapt, alone, searches)) for slot in slots]
