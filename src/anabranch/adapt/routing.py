"""Whether a mesh that was learnt while a query runs is worth a change: the same gate and record as for any plan.

What the rows pay on their routes was measured, row by row, and is the part that differs; what every plan pays beside
that, base states and results, is reckoned from the measured rates. A mesh counts by what it saves on rows that it was
not learnt from, less the standard error of that. A change of mesh moves no state, so it costs nothing by itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from anabranch.adapt.decision import Decision
from anabranch.adapt.gate import Price, Verdict, judge
from anabranch.adapt.knowledge import Knowledge
from anabranch.adapt.loop import Means
from anabranch.adapt.settings import Settings
from anabranch.cost.resources import Resources
from anabranch.cost.units import ENGINE
from anabranch.plan.mesh import Plan
from anabranch.stats.mesh.learnt import LearntMesh

AT_ONCE = Price("none", 0.0, 0.0, 0.0)
"""What it takes to change to a mesh, or to begin with one."""


@dataclass(frozen=True)
class Flow:
    """What went through one slot lately, per second of event time, and what it holds."""

    rates: Mapping[str, float]
    """Rows, by relation."""
    results: float
    state_bytes: float
    batch: float
    """Seconds between batches."""


def decide_mesh(
    batch: int, trigger: str, plan: Plan, learnt: LearntMesh, flow: Flow, settings: Settings, means: Means
) -> Decision:
    """To change the plan of one slot to the mesh that was learnt there, or to keep it."""
    given = means.given.unit_costs()
    units = ENGINE if given is None else given.units
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
    budget = replace(means.budget, slots=1)
    verdict = judge(settings.gate, decision.cost, decision.proposed_cost, AT_ONCE, means.objective, budget)
    if verdict.passed and settings.freeze:
        verdict = Verdict(False, f"frozen; otherwise: {verdict.reason}")
    return replace(decision, action="migrate" if verdict.passed else "keep", reason=verdict.reason)
