"""Looks for routes while a query runs: when slots look, whether a look could pay, and what becomes of a search.

A *look* asks some slots to run their operators on their youngest rows after the next step. What they report is searched
for a mesh (`mesh_watch.learn_mesh`), and what the search finds goes through the gate (`routing`). Slots that adapt
together look together: what each has seen of its rows counts for all.

Law: a look is a bet with a price. It is made after so many batches (`Staging`), when the routes of a mesh drift, or
when the loop finds that the streams changed and keeps its plan; but where the plan is free, never if even the best mesh
there could be would not repay the search. Nothing here changes a plan: wishes are handed to the steering of the query.

Limit: one search at a time for the same slots counts only if they still run the plan that it began with.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeAlias

from anabranch.adapt.excess import Excess
from anabranch.adapt.experience import Experience, longest_window
from anabranch.adapt.loop import Loop
from anabranch.adapt.mesh_watch import MeshWatch, learn_mesh, pooled
from anabranch.adapt.observation import Batch
from anabranch.adapt.records import DecisionMade
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
from anabranch.adapt.rules import Criteria, Staging
from anabranch.adapt.searches import Search, Searches
from anabranch.adapt.settings import Settings
from anabranch.cost.steps import price_of_step
from anabranch.cost.units import unit_costs
from anabranch.migrate.strategies.strategy import Price
from anabranch.plan.mesh import Mesh, Plan
from anabranch.plan.physical import kept
from anabranch.plan.query import Query
from anabranch.plan.sharing import shares
from anabranch.plan.slots import SlotPlan
from anabranch.stats.mesh.learnt import LearntMesh

DEARER = 1.15
"""A mesh is looked at again once a row costs this many times what it was to cost, or cost at best."""

ROUGHLY = 2.0
"""How many times the price of one batch the running plan may take: a batch may have been a small one."""
FIRST, ON_EVIDENCE, BY_SCHEDULE = 0.2, 0.05, 0.01
"""The share of what the running plan has taken so far that looks may take: where nothing was known before the start and
none was made yet, where something changed, and where only time has passed."""

Slots: TypeAlias = tuple[int, ...]
"""Slots that look together."""


@dataclass(frozen=True)
class _MeshSearch:
    """A search of a mesh for slots that ran `plan` when it began."""

    slots: Slots
    plan: Plan
    trigger: str
    found: Search[LearntMesh]


class Looking:
    """The looks of one query, and the searches that they led to."""

    def __init__(
        self,
        query: Query,
        staging: Staging,
        settings: Settings,
        criteria: Criteria,
        groups: Sequence[Slots],
        loops: Sequence[tuple[Slots, Loop]],
        searches: Searches,
    ) -> None:
        """`groups` are the slots that look together. With `loops` the plan is free, and looks must pay."""
        self.settings = settings
        self.criteria = criteria
        self.query = query
        self._staging = staging
        self._groups = tuple(groups)
        self._loops = tuple(loops)
        self._searches = searches
        filling = longest_window(query)
        cool_down = settings.gate.cool_down
        self._watches = {slot: MeshWatch(cool_down, filling) for slots in groups for slot in slots}
        self._under_way: list[_MeshSearch] = []
        self._news: dict[Slots, str] = {}
        self._best: dict[Slots, tuple[Plan, float]] = {}
        """Of the mesh that slots run, what a row costs at best; what was promised, until that is tested."""
        self._untested: set[Slots] = set()
        self._factors: dict[Slots, float] = {}
        """How many times what was promised of it the last mesh of some slots took."""
        self._fruitless: dict[Slots, int] = {}
        """Searches of some slots that led to no change, since the last that did."""
        self._looks: dict[Slots, int] = {}
        """Looks of some slots so far."""
        rates = [criteria.given.rate(each.name, each.stream) for each in query.graph.streamed]
        self._is_sampled = None not in rates
        """Whether the streams were known before the start."""
        self._excess = {slots: Excess(filling) for slots in groups}
        self._passed = 0.0
        """Event time so far."""
        self._running: dict[Slots, Plan] = {}
        self._drifts: dict[Slots, str] = {}
        """Drifts of meshes that were told while windows held rows from before and from after."""
        self._early: set[Slots] = set()
        """Slots that have looked since their rows became dear, while windows still held rows from before."""
        self._triggers: dict[int, str] = {}

    def is_asked(self, slot: int) -> bool:
        """Whether a slot is to run its operators on its youngest rows after the next step."""
        return slot in self._triggers

    def tell(self, slots: Slots, reason: str) -> None:
        """Takes in that the loop of some slots found the streams changed, and keeps its plan."""
        self._news[slots] = reason

    def after(self, batch: Batch, plans: Mapping[int, SlotPlan], *, is_busy: bool = False) -> None:
        """Watches the slots, begins a search where some reported their operators, and asks others to do so next time.

        `plans` are those of the next batch. While the query `is_busy` with a change of plan, none is asked.
        """
        drifts = self._watch(batch)
        for slots in self._groups:
            self._begin_search(slots, batch)
            reason, has_turned = self._drifted(slots, drifts)
            share = ON_EVIDENCE
            if not any(self._watches[slot].is_cooling for slot in slots):
                if slots in self._untested:
                    self._may_look(slots, plans, share)
                if reason is None:
                    reason, share = self._occasion(slots, batch.facts.batch)
            if reason is not None and not is_busy and self._may_look(slots, plans, share, has_turned=has_turned):
                self._triggers |= dict.fromkeys(slots, reason)
                self._looks[slots] = self._looks.get(slots, 0) + 1
                self._looked(slots)

    def _watch(self, batch: Batch) -> dict[int, str]:
        """Takes in a batch; returns why the meshes of slots may not fit."""
        seconds, reports = batch.facts.seconds, batch.reports
        self._passed += seconds or 0.0
        found = {}
        for slot, report in reports.items():
            drift = self._watches[slot].note(report.plan, report.statistics, seconds)
            if drift is not None:
                found[slot] = drift
        if seconds is None:
            return found
        for slots, excess in self._excess.items():
            told = [slot for slot in slots if slot in reports]
            if len(told) < len(slots):
                continue
            plan = reports[told[0]].plan
            if self._running.get(slots) != plan:
                self._running[slots] = plan
                excess.begin()
            excess.note(batch.priced(told), seconds)
            if not excess.paid:
                self._early.discard(slots)
        return found

    def _begin_search(self, slots: Slots, batch: Batch) -> None:
        """Searches for a mesh where slots have reported their operators."""
        told = [report for slot in slots if (report := batch.reports.get(slot)) and report.profiles is not None]
        if not told:
            return
        profiles, plan = pooled([report.profiles or () for report in told]), told[0].plan
        search = partial(learn_mesh, self.query.graph, profiles, batch.facts.batch, plan, self._worth(slots, plan))
        found = self._searches.begin("routes", search, is_long=True)
        trigger = [self._triggers.pop(slot, "") for slot in slots]
        self._under_way.append(_MeshSearch(slots, plan, trigger[0], found))

    def _occasion(self, slots: Slots, batch: int) -> tuple[str | None, float]:
        """Why slots whose routes have not drifted may look, if they may, and the share of the work that it may take."""
        reason, share = self._changed(slots) or self._overspent(slots), ON_EVIDENCE
        is_first = not self._is_sampled and slots not in self._looks
        if self._staging.is_due(batch + 1) and (reason is None or is_first):
            reason, share = reason or f"batch {batch} has passed", FIRST if is_first else BY_SCHEDULE
        return reason, share

    def decisions(
        self, batch: int, plans: Sequence[SlotPlan], *, is_busy: bool
    ) -> tuple[list[DecisionMade], dict[int, SlotPlan]]:
        """Decisions on the meshes that searches have found, and the plans that slots are to take with the next batch.

        `plans` are those of the batch that has ended. While the query `is_busy` with another change, nothing is taken.
        """
        ended = [each for each in self._under_way if each.found.is_done]
        self._under_way = [each for each in self._under_way if each not in ended]
        records: list[DecisionMade] = []
        chosen: dict[int, SlotPlan] = {}
        for each in ended:
            learnt, slots = each.found.outcome(), each.slots
            flow = self._flow(slots)
            if learnt is None or flow is None or not all(plans[slot].plan == each.plan for slot in slots):
                continue
            decision = decide_mesh(
                batch,
                each.trigger,
                each.plan,
                learnt,
                flow,
                self.settings,
                self.criteria,
                self.query,
                slots=len(slots),
                is_free=bool(self._loops),
                factor=self._factors.get(slots, 1.0),
            )
            if self._loops:
                experience = next((loop.experience for own, loop in self._loops if slots[0] in own), Experience())
                decision = decide_tree(decision, learnt, flow, self.settings, self.criteria, self.query, experience)
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
        return records, chosen

    # --- inside -------------------------------------------------------------------------------------------------------

    def _flow(self, slots: Slots) -> Flow | None:
        """The flow of some slots together; None while that of one is not known."""
        flows = [flow for slot in slots if (flow := self._watches[slot].flow) is not None]
        return together(flows) if len(flows) == len(slots) else None

    def _changed(self, slots: Slots) -> str | None:
        """The reason to look that the loop of these slots has found: the streams are no longer as they were."""
        return self._news.pop(slots, None) if any(own == slots for own, _ in self._loops) else None

    def _drifted(self, slots: Slots, drifts: Mapping[int, str]) -> tuple[str | None, bool]:
        """How the mesh of some slots has drifted, and whether windows have turned over since that was told.

        While windows hold rows of both kinds, hardly any mesh would do better, and a mesh may look good or bad that
        will not be. So a drift waits until they hold rows of one kind.
        """
        reason = next((drifts[slot] for slot in slots if slot in drifts), None)
        if self._loops and self._excess[slots].is_mixed:
            if reason is not None:
                self._drifts[slots] = reason
            return None, False
        before = self._drifts.pop(slots, None)
        return reason or before, before is not None

    def _may_look(self, slots: Slots, now: Mapping[int, SlotPlan], share: float, *, has_turned: bool = False) -> bool:
        """Whether a look can lead to anything: not if the slots share a join, or if no mesh could pay.

        Where the plan is free, looks may take so large a share of what it has taken so far. A mesh is looked at if it
        has become dearer, or if its rows are others since windows have turned over.
        """
        plans = {now[slot].plan for slot in slots}
        if len(plans) > 1 or any(shares(plan) for plan in plans):
            return False
        (plan,) = plans
        if self._loops and not self._has_price(slots, plan):
            return False
        if isinstance(plan, Mesh) and self._loops and self._excess[slots].is_mixed:
            return False
        is_too_dear = bool(self._loops) and self._is_too_dear(slots, share)
        if is_too_dear and not isinstance(plan, Mesh):
            return False
        flow = self._flow(slots) if self._loops else None
        if flow is None:
            return True
        # What a mesh takes is noted even if nothing comes of it.
        return (
            (self._is_dearer(slots, plan, flow) or has_turned)
            and not is_too_dear
            and could_pay(plan, flow, self.query, self._searching, self.criteria, self._price(slots))
        )

    def _is_too_dear(self, slots: Slots, share: float) -> bool:
        """Whether looks would take more than a share of what the slots have done so far, or a search more than all.

        A few sums over the latest batch tell.
        """
        units, cores = unit_costs(self.criteria.given)[0], 0.0
        for slot in slots:
            latest = self._watches[slot].latest
            if latest is None or not latest[1]:
                return False
            cores += price_of_step(latest[0], units) / latest[1]
        looks = (self._looks.get(slots, 0) + 1) * self._look
        is_beyond = looks > share * cores * self._passed and not self._overspent(slots)
        return is_beyond or ROUGHLY * cores * self._searching.gate.horizon < self._price(slots).cpu

    def _has_price(self, slots: Slots, plan: Plan) -> bool:
        """Whether what a plan takes and what sampled rows take can be held against each other.

        Sampled rows have checked the predicates of a pair within its lookup, counts have them by themselves. Plans of
        routes, and mjoins, are priced by the sample too; a tree is not.
        """
        latest = [self._watches[slot].latest for slot in slots]
        has_checks = any(each is not None and each[0].checks for each in latest)
        return not has_checks or isinstance(plan, Mesh) or not any(kept(plan))

    def _overspent(self, slots: Slots) -> str | None:
        """The reason to look that waiting has cost what a look and its search do, which grows by searches in vain."""
        excess = self._excess[slots]
        if not self._loops or not excess.paid or excess.paid <= self._look + self._price(slots).cpu:
            return None
        if excess.is_mixed and slots in self._early:
            return None
        return f"what a row takes changed by a factor of {excess.factor:.3g}"

    def _looked(self, slots: Slots) -> None:
        """Takes in that slots look: what they take now is usual, unless windows still hold rows from before."""
        excess = self._excess[slots]
        if excess.is_mixed:
            self._early.add(slots)
        else:
            excess.judged()

    @property
    def _look(self) -> float:
        """Seconds of a core that a look takes."""
        return self._staging.look * len(self.query.graph.names)

    def _price(self, slots: Slots) -> Price:
        return price_of_search(self._staging, self.query, self._fruitless.get(slots, 0))

    @property
    def _searching(self) -> Settings:
        """The settings by which a search is judged: it must pay back in as much time as the query has run so far."""
        gate = self.settings.gate
        return replace(self.settings, gate=replace(gate, horizon=min(gate.horizon, self._passed)))

    def _worth(self, slots: Slots, plan: Plan) -> Callable[[LearntMesh], bool] | None:
        """Judges whether a mesh is worth searching, by the least that any could take; None: it always is."""
        flow = self._flow(slots) if self._loops else None
        if flow is None:
            return None
        return partial(
            is_worth_searching,
            plan=plan,
            flow=flow,
            query=self.query,
            settings=self._searching,
            criteria=self.criteria,
            price=self._price(slots),
            slots=len(slots),
            factor=self._factors.get(slots, 1.0),
        )

    def _is_dearer(self, slots: Slots, plan: Plan, flow: Flow) -> bool:
        """Whether a mesh costs more for a row than it did at its best: one that keeps its promise is left alone."""
        rows = sum(flow.rates.values())
        if not isinstance(plan, Mesh) or not rows:
            return True
        cpu = running_cpu(plan, flow, self.query, self.criteria)
        if cpu is None:
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
