"""Explains a choice: the statistics it is based on, the plan, and every plan considered with the reason it lost."""

from __future__ import annotations

from collections.abc import Sequence

from anabranch.cost.host import HostNeed
from anabranch.cost.resources import Resources
from anabranch.lang.sizes import size_text
from anabranch.optimize.choice import Choice
from anabranch.optimize.proposals import Budget, Infeasible, Proposal, kind
from anabranch.plan.describe import short_text

MOST_ROWS = 20
HEADINGS = ("plan", "kind", "by", "cpu", "memory", "rate", "verdict")
IN_A_SLOT = ("slot cpu", "slot memory")
"""The headings of a slot's total resources, including the host's part; between rate and verdict."""


def considered_rows(choice: Choice) -> list[tuple[str, ...]]:
    """Returns one row per plan considered, under `HEADINGS`: the chosen one first, followed by a learnt mesh."""
    rows = [_row(str(c.plan), kind(c.plan), c.origin, c.cost, c.reason) for c in choice.answer.considered]
    offer = choice.mesh
    if offer is not None and offer.mesh is not None and offer.cost is not None:
        if offer.is_taken:
            rows[0] = (*rows[0][:-1], "the best plan without routes")
        learnt = _row(short_text(offer.mesh), "mesh", "learnt", offer.cost, offer.reason)
        rows.insert(0 if offer.is_taken else 1, learnt)
    return rows


def statistics_rows(choice: Choice) -> list[tuple[str, str, str]]:
    """Returns the numbers that the choice is based on: quantity, value, provenance."""
    return [(used.what, f"{used.value:.4g}", used.provenance) for used in choice.estimates.used]


def explanation(choice: Choice) -> str:
    """Explains a choice as text."""
    lines = ["statistics", *_table(statistics_rows(choice))]
    if assumed := sum(used.provenance == "assumed" for used in choice.estimates.used):
        total = len(choice.estimates.used)
        share = f"all {total}" if assumed == total else f"{assumed} of {total}"
        unsampled = "no source has a sample of them; write 'stats'"
        advice = unsampled if choice.is_sampled else "use a sample (--sample) or 'stats'"
        lines.append(f"  {share} are guesses; {advice}")
    lines += [f"  unit costs {_units_text(choice)}", "", f"objective {choice.objective}"]
    lines.append(f"budget {_budget_text(choice.budget)}")
    match choice.answer:
        case Proposal(plan=plan, cost=cost, reason=reason):
            if choice.mesh is not None and choice.mesh.is_taken:
                lines += [f"plan {choice.mesh.mesh}", f"because {choice.mesh.reason}"]
                lines.append(f"otherwise {plan}, because {reason}")
                cost = choice.mesh.cost or cost
            else:
                lines += [f"plan {plan}", f"because {reason}"]
        case Infeasible(bound=bound, best=best, cost=cost, is_proven=is_proven):
            subject = "no plan" if is_proven else "no plan considered"
            lines += [f"{subject} fits the limit on {bound}", f"nearest {best}"]
    lines.append(f"needs {cost.cpu:.4g} cores, {size_text(cost.memory)}, for {cost.rate:.4g} results per second")
    if choice.host is not None:
        lines += _slot_lines(cost, choice.budget, choice.host)
    rows = considered_rows(choice)
    headings: tuple[str, ...] = HEADINGS
    if choice.host is not None:
        headings = (*HEADINGS[:-1], *IN_A_SLOT, HEADINGS[-1])
        rows = [_with_slot(row, cost, choice.budget) for row, cost in zip(rows, _costs(choice), strict=True)]
    lines += ["", "considered", *_table([headings, *rows[:MOST_ROWS]])]
    if len(rows) > MOST_ROWS:
        lines.append(f"  and {len(rows) - MOST_ROWS} more")
    return "\n".join(lines)


def _costs(choice: Choice) -> list[Resources]:
    """Returns the cost of each plan considered, in row order."""
    costs = [candidate.cost for candidate in choice.answer.considered]
    offer = choice.mesh
    if offer is not None and offer.mesh is not None and offer.cost is not None:
        costs.insert(0 if offer.is_taken else 1, offer.cost)
    return costs


def _with_slot(row: tuple[str, ...], cost: Resources, budget: Budget) -> tuple[str, ...]:
    slot = budget.of_slot(cost)
    return (*row[:-1], f"{slot.cpu:.4g}", size_text(slot.memory), row[-1])


def _slot_lines(cost: Resources, budget: Budget, need: HostNeed) -> list[str]:
    """Returns a slot's total resources by part."""
    slot, slots = budget.of_slot(cost), budget.slots
    length = {"trigger": "by the trigger", "measured": "as measured", "assumed": "assumed; a trigger sets it"}
    spark = [
        f"{need.triggers:.3g} for a trigger every {need.batch:g} s ({length[need.host.length]})",
        f"{need.rows:.3g} for rows",
        f"{need.results:.3g} for results",
    ]
    cpu = f"{cost.cpu / slots:.4g} for the plan, {budget.taken.cpu:.4g} for Spark"
    state = size_text(cost.memory * budget.room / slots)
    memory = f"{state} for the state with spare capacity, {size_text(need.worker)} for a worker"
    return [
        f"in {'each slot' if slots > 1 else 'the slot'} {slot.cpu:.4g} cores: {cpu} ({', '.join(spark)})",
        f"  and {size_text(slot.memory)}: {memory}, {size_text(need.batch_rows)} for its rows of a batch",
        f"  costs of Spark {_host_text(need)}; the driver takes {size_text(need.host.costs.driver_bytes)} beside that",
    ]


def _host_text(need: HostNeed) -> str:
    if need.host.provenance == "calibrated":
        return "calibrated on this machine"
    return "built in; 'anabranch calibrate' measures this machine"


def _row(plan: str, family: str, origin: str, cost: Resources, reason: str) -> tuple[str, ...]:
    return plan, family, origin, f"{cost.cpu:.4g}", size_text(cost.memory), f"{cost.rate:.4g}", reason


def _units_text(choice: Choice) -> str:
    match choice.units_from:
        case "assumed":
            return "built in; 'anabranch calibrate' measures this machine"
        case "calibrated":
            return "calibrated on this machine"
        case provenance:
            return provenance


def _budget_text(budget: Budget) -> str:
    parts = []
    if budget.cpu != float("inf"):
        parts.append(f"{budget.cpu:g} cores")
    if budget.memory != float("inf"):
        parts.append(size_text(budget.memory))
    if budget.latency != float("inf"):
        parts.append(f"{budget.latency:g} s of latency")
    limits = " and ".join(parts) or "none"
    return f"{limits} in each of {budget.slots} slots" if budget.slots > 1 and parts else limits


def _table(rows: Sequence[tuple[str, ...]]) -> list[str]:
    widths = [max((len(cell) for cell in column), default=0) for column in zip(*rows, strict=True)]
    return [
        "  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    ]
