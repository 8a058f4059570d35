"""Reports that no plan fits within the limits: which limit fails, what the nearest plan needs, and what to write."""

from __future__ import annotations

import math

from anabranch.cost.host import HostNeed
from anabranch.cost.resources import Resources
from anabranch.errors import NoFeasiblePlan
from anabranch.lang.sizes import counted, size_text
from anabranch.optimize import Budget, Infeasible
from anabranch.optimize.joint import JointChoice
from anabranch.optimize.proposals import over_budget


def no_feasible_plan(failed: Infeasible, budget: Budget, host: HostNeed | None = None) -> NoFeasiblePlan:
    cost, slots = failed.cost, budget.slots
    each = f" in each of {slots} slots" if slots > 1 else ""
    needs = _needed(cost, budget)
    allowed = (
        f"'limits.cpu' allows {budget.cpu:g} cores{each}",
        f"'limits.memory' allows {size_text(budget.memory)}{each}",
    )
    match failed.bound:
        case "cpu":
            named, best, limit = "'limits.cpu'", "the plan with the least CPU", allowed[0]
        case "memory":
            named, best, limit = "'limits.memory'", "the plan with the least memory", allowed[1]
        case "latency":
            named, best = "'limits.latency'", "the plan with the least CPU"
            limit = f"'limits.latency' allows {budget.latency:g} s, and batches come every {budget.batch:g} s"
        case "cpu and memory together" | "hints":
            named, best = "'limits.cpu' and 'limits.memory' together", "the nearest plan"
            limit = f"{allowed[0]} and {allowed[1]}"
    subject = "no plan" if failed.is_proven else f"none of {counted(len(failed.considered), 'plan')} considered"
    slot = budget.of_slot(cost)
    written = [f"write 'limits: {{{', '.join(needs)}}}' or more"] if needs else []
    remedies = ["use more slots", "shorten the windows"]
    if failed.bound == "latency":
        remedies.insert(0, "set a shorter trigger")
    elif host is not None and cost.cpu > budget.total_cpu:
        remedies.insert(0, "set a longer trigger")
    return NoFeasiblePlan(
        f"{subject} fits within {named}",
        detail=f"{limit}; {best} is {failed.best}, which needs {slot.cpu:.3g} cores and "
        f"{size_text(slot.memory)}{each}{_parts(cost, budget, host)}",
        hint=", ".join([*written, *remedies[:-1], f"or {remedies[-1]}"]),
    )


def over_joint_limits(joint: JointChoice) -> NoFeasiblePlan:
    budget, cost = joint.budget, joint.cost
    needs = _needed(cost, budget)
    plans = "; ".join(f"{name}: {plan}" for name, plan in sorted(joint.plans.items()))
    return NoFeasiblePlan(
        "no plans found for the queries together fit within their joint 'limits'",
        detail=f"{over_budget(cost, budget)}, with the plans {plans}",
        hint=f"write 'limits: {{{', '.join(needs)}}}' or more, use more slots, or shorten the windows",
    )


def _needed(cost: Resources, budget: Budget) -> list[str]:
    """Returns the limits to set for a plan.

    Includes every limit that the plan exceeds: if only one of two were raised, the next error would be about the other.
    """
    slot = budget.of_slot(cost)
    needs = []
    if cost.cpu > budget.total_cpu:
        is_slow = budget.slot_cpu < budget.cpu and budget.latency_of(cost) < math.inf
        needs = [f"latency: {_rounded_up(budget.latency_of(cost)):g} seconds"] if is_slow else []
        needs += [f"cpu: {_rounded_up(slot.cpu):g}"] if slot.cpu > budget.cpu else []
    return needs + ([f"memory: {size_text(_rounded_up(slot.memory))}"] if cost.memory > budget.total_memory else [])


def _parts(cost: Resources, budget: Budget, host: HostNeed | None) -> str:
    """Returns the resources of a slot by part: the plan's and the host's."""
    if host is None:
        return ""
    state = size_text(cost.memory * budget.room / budget.slots)
    return (
        f": {cost.cpu / budget.slots:.3g} cores for the plan and {budget.taken.cpu:.3g} for Spark "
        f"({host.triggers:.3g} for a trigger every {host.batch:g} s, {host.rows + host.results:.3g} for rows and "
        f"results), {state} for the state and {size_text(budget.taken.memory)} for a worker and its rows"
    )


def _rounded_up(amount: float) -> float:
    """Rounds up to two significant digits.

    >>> _rounded_up(137_412.0)
    140000.0
    """
    if amount <= 0:
        return 0.0
    digit = 10.0 ** (math.floor(math.log10(amount)) - 1)
    return math.ceil(amount / digit) * digit
