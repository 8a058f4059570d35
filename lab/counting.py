"""Counts the work of a run batch by batch, also while its plan changes.

*Work* is what the engine counted (probes, candidates, matches, checks, calls, rows that entered and left states,
results) at its built-in unit costs, so it does not depend on the machine. Of two plans at work, both count. Rows of
states that a migration computes, at once or over several batches, count as looked up, found and inserted.

Limit: indexes that are built anew over states that stay have no counts. A row that `spread` catches up with counts as
one lookup that finds it, whatever the real lookups found.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from anabranch.cost.counted import counted_cpu, counted_joins
from anabranch.cost.resources import with_default_orders
from anabranch.cost.units import ENGINE
from anabranch.engine.tracks.two_plans import RETIRING
from anabranch.optimize.problem import resource_model
from anabranch.plan.difference import match_states
from anabranch.plan.mesh import Mesh, Plan
from anabranch.plan.physical import nodes, plain_shape
from anabranch.plan.query import Query
from anabranch.plan.query_set import ALONE
from anabranch.run.local import LocalHost
from anabranch.stats.report import QueryReport
from anabranch.stats.step import StepStatistics
from anabranch.stats.view import FixedStatistics

RECOMPUTED = (
    ENGINE.probe + ENGINE.match + 2 * ENGINE.match_relation + ENGINE.insert + ENGINE.insert_joined + ENGINE.link
)
"""Work of one recomputed row of a state."""
KEPT = ENGINE.insert + ENGINE.insert_joined + ENGINE.delete + ENGINE.link
"""Work of a joined row that enters a state, and leaves it."""


@dataclass(frozen=True)
class Counted:
    """One batch of a run."""

    plan: str
    """The plan at work; during a migration the new one."""
    work: float
    migrating: float
    """The part of the work that only the change of plan needed; of two plans at work, the joins of the lesser one."""
    states: Mapping[str, int]
    """Rows of each state after the batch; those of a plan that retires have names of their own."""
    entered: Mapping[str, int]
    """Rows that entered each state."""
    state_bytes: int
    began: bool
    """Whether a change of plan, or a leg of one, began with it."""
    is_changing: bool
    """Whether the plan was changing during any of it."""

    @property
    def state_rows(self) -> int:
        return sum(self.states.values())


class Counter:
    """Counts the batches of a query that runs alone in one slot."""

    def __init__(self, query: Query, plan: Plan, batch: float) -> None:
        """`plan` is the one that the run begins with; a batch has so many seconds."""
        self._graph = query.graph
        self._model = resource_model(query.graph, FixedStatistics(costs=ENGINE.by_name()), batch, query.merging)
        self._plan = self._leaving = plan
        self._held: Mapping[str, int] = {}
        self._was_migrating = False

    def after(self, host: LocalHost) -> Counted:
        """Counts the batch that the host took last."""
        (slot,) = host.reports.values()
        report: QueryReport = slot.queries[ALONE]
        step = host.statistics
        if report.plan != self._plan:
            self._leaving, self._plan = self._plan, report.plan
        migrated = report.change.migrated
        is_changing = migrated is not None or report.is_migrating or self._was_migrating
        new, old = _apart(step)
        work = counted_cpu(self._ordered(self._plan), new, 1, 1.0, self._model, self._graph)
        lesser = computing = 0.0
        if old.probes or old.states:
            retiring = counted_joins(self._ordered(self._leaving), old, 1, 1.0, self._model, self._graph)
            joins = counted_joins(self._ordered(self._plan), new, 1, 1.0, self._model, self._graph)
            idle, idle_too = _idle(self._plan, new), _idle(self._leaving, old)
            work, lesser = work - idle + retiring - idle_too, min(retiring - idle_too, joins - idle)
        if is_changing:
            recomputed = {} if migrated is None else migrated.recomputed
            uncounted, made = self._uncounted(new, recomputed)
            work += uncounted - made
            computing = RECOMPUTED * sum(recomputed.values()) + made
        self._was_migrating = report.is_migrating
        self._held = {state.state: state.rows for state in new.states}
        return Counted(
            str(self._plan),
            work + computing,
            lesser + computing,
            {state.state: state.rows for state in step.states},
            {state.state: state.inserted for state in step.states},
            step.state_bytes,
            migrated is not None,
            is_changing,
        )

    def _uncounted(self, step: StepStatistics, recomputed: Mapping[str, int]) -> tuple[float, float]:
        """The work of rows that entered states without being counted: in all, and for states that are new.

        `spread` keeps new states up and catches up with old rows; the old plan's joins fill states that both have.
        """
        if isinstance(self._plan, Mesh) or isinstance(self._leaving, Mesh):
            return 0.0, 0.0
        matching = match_states(self._leaving, self._plan, self._graph.thetas)
        lacking = {*matching.recomputed, *(state.new for state in matching.filtered)}
        names = {new: old for old, new in matching.moved}
        shared = made = 0.0
        for state in step.states:
            if state.state in step.rows_in:
                continue
            held = self._held.get(state.state, self._held.get(names.get(state.state, ""), 0))
            before = recomputed.get(state.state, held)
            entered = max(0, state.rows + state.dropped - state.inserted - before)
            if state.state in lacking:
                found = sum(probe.kept for probe in step.probes if probe.join == state.state)
                kept_up = min(entered, max(0, found - state.inserted))
                made += kept_up * KEPT + (entered - kept_up) * RECOMPUTED
            else:
                shared += entered * KEPT
        return shared + made, made

    def _ordered(self, plan: Plan) -> Plan:
        return plan if isinstance(plan, Mesh) else with_default_orders(plan, self._graph)


def _idle(plan: Plan, step: StepStatistics) -> float:
    """The calls that are priced of joins that were not at work: of two plans, each runs only a part of its joins."""
    if isinstance(plan, Mesh):
        return 0.0
    at_work = {probe.join for probe in step.probes}
    return ENGINE.call * sum(len(node.inputs) ** 2 for node in nodes(plan) if plain_shape(node) not in at_work)


def _apart(step: StepStatistics) -> tuple[StepStatistics, StepStatistics]:
    """The statistics of the plan at work, and those of the one that retires under the names it had."""
    states = tuple(state for state in step.states if state.state.startswith(RETIRING))
    probes = tuple(probe for probe in step.probes if probe.join.startswith(RETIRING))
    new = replace(
        step,
        states=tuple(state for state in step.states if state not in states),
        probes=tuple(probe for probe in step.probes if probe not in probes),
    )
    plain = len(RETIRING)
    old = StepStatistics(
        states=tuple(replace(state, state=state.state[plain:]) for state in states),
        probes=tuple(
            replace(each, join=each.join[plain:], origin=each.origin[plain:], target=each.target[plain:])
            for each in probes
        ),
    )
    return new, old
