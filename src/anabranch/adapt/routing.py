"""Decides whether a mesh that was learnt while a query runs pays, by the gate that every plan passes.

The costs of the routes were measured row by row. The cost of base states and results, which every plan has, is computed
from the measured rates. A mesh counts by its saving on rows that it was not learnt from, less the standard error. A
change of mesh moves no state, so it costs nothing by itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from anabranch.adapt.decision import Decision
from anabranch.adapt.gate import Verdict, judge
from anabranch.adapt.knowledge import Knowledge
from anabranch.adapt.rules import Criteria
from anabranch.adapt.settings import Settings
from anabranch.cost.resources import Resources
from anabranch.cost.units import unit_costs
from anabranch.migrate.strategies.strategy import Price
from anabranch.plan.mesh import Plan
from anabranch.stats.mesh.learnt import LearntMesh

AT_ONCE = Price("none", 0.0, 0.0, 0.0)
"""The price of changing to a mesh, or of beginning with one."""


@dataclass(frozen=True)
class Flow:
    """The rates of one slot, per second of event time, and the size of its state."""

    rates: Mapping[str, float]
    """Rows, by relation."""
    results: float
    state_bytes: float
    batch: float
    """Seconds between batches."""


def decide_mesh(
    batch: int, trigger: str, plan: Plan, learnt: LearntMesh, flow: Flow, settings: Settings, criteria: Criteria
) -> Decision:
    """Decides whether one slot changes to the mesh that was learnt from its rows."""
    units, _ = unit_costs(criteria.given)
    beside = sum(flow.rates.values()) * (units.insert + units.delete) + flow.results * units.emit
    decision = Decision(
        batch=batch,
        action="keep",
        policy="mesh",
        trigger=trigger,
        plan=plan,
        cost=Resources(beside + learnt.running_load(flow.rates), flow.state_bytes, flow.results),
        proposed=learnt.mesh,
        proposed_cost=Resources(beside + learnt.load(flow.rates), flow.state_bytes, flow.results),
        origin="search",
        price=AT_ONCE,
        reason="the routes at work are the best that are known",
        statistics=Knowledge(rates=flow.rates, batch=flow.batch),
    )
    if plan == learnt.mesh:
        return replace(decision, price=None)
    budget = replace(criteria.budget, slots=1)
    verdict = judge(settings.gate, decision.cost, decision.proposed_cost, AT_ONCE, criteria.objective, budget)
    if verdict.passed and settings.freeze:
        verdict = Verdict(False, f"frozen; otherwise: {verdict.reason}")
    return replace(decision, action="migrate" if verdict.passed else "keep", reason=verdict.reason)
