"""The gate: the thresholds that a change of plan must pass.

A proposed plan passes when it needs less of the scarce resource than the plan in force by a ratio *and* by an amount,
and what it saves within the horizon is at least what the migration costs. Scarce is what the objective names; where
both count (`qualified`), the one of which the plan in force takes the larger share. A plan that breaks its limits is
left for one that keeps them without ratio and amount, but never without pay-back: then scarce is what it has too little
of, even if the objective names the other. While a migration lasts, the states of both plans are held: a plan that keeps
its limit on memory is not left by a way that breaks it. All rates are per second of event time, so a replay at ten
times the speed decides as the live stream did.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from anabranch.adapt.policy import TEN_BATCHES, Interval
from anabranch.cost.resources import Resources
from anabranch.lang.sizes import size_text
from anabranch.migrate.strategies.strategy import Price
from anabranch.optimize.hints import Objective
from anabranch.optimize.proposals import Budget

Resource: TypeAlias = Literal["cpu", "memory"]


@dataclass(frozen=True)
class Gate:
    """The thresholds."""

    ratio: float = 1.2
    """The plan in force needs this many times what the proposed one needs, or more."""
    cores: float = 0.005
    """Cores saved, at least, when CPU is what is scarce and the length of triggers is not known."""
    share: float = 0.01
    """The share of a whole trigger that a change saves, at least, where the length of triggers is known."""
    bytes: float = 1_000_000.0
    """Bytes saved, at least, when memory is."""
    horizon: float = 600.0
    """Seconds of event time within which a migration must have paid for itself."""
    cool_down: Interval = TEN_BATCHES
    """After a migration nothing is decided for so long."""

    def within(self, trigger: float | None, batch: float, slots: int) -> Gate:
        """Returns the gate for triggers of so many seconds that take in so much event time, over so many slots.

        >>> Gate().within(0.15, 1.0, 2).cores
        0.003
        """
        if trigger is None or not batch:
            return self
        return replace(self, cores=self.share * trigger * slots / batch)


@dataclass(frozen=True)
class Verdict:
    passed: bool
    reason: str


def scarce(current: Resources, objective: Objective, budget: Budget) -> Resource:
    """The resource by which the two plans are compared: one whose limit is broken, whatever the objective."""
    over_cpu, over_memory = current.cpu > budget.total_cpu, current.memory > budget.total_memory
    if over_cpu != over_memory:
        return "cpu" if over_cpu else "memory"
    if over_cpu or objective.kind == "qualified":
        of_cpu, of_memory = budget.shares(current)
        return "memory" if of_memory > of_cpu else "cpu"
    return "memory" if objective.kind == "memory" else "cpu"


def judge(
    gate: Gate, current: Resources, proposed: Resources, price: Price, objective: Objective, budget: Budget
) -> Verdict:
    """Judges whether the proposed plan may replace the current one at that price, with the reason."""
    if budget.allows(current) and not budget.allows(proposed):
        return Verdict(False, "the proposed plan is over its limits")
    if not has_memory_for(price, current, budget):
        left = size_text(max(0.0, budget.total_memory - current.memory))
        return Verdict(False, f"{price.strategy} holds {size_text(price.memory)} beside the state, and {left} are left")
    resource = scarce(current, objective, budget)
    has, needs = _of(current, resource), _of(proposed, resource)
    saved = has - needs
    amount, unit = (gate.cores, "cores") if resource == "cpu" else (gate.bytes, "bytes")
    rescues = not budget.allows(current) and budget.allows(proposed)
    if saved <= 0:
        return Verdict(False, f"saves no {resource}")
    if not rescues:
        if has < gate.ratio * needs:
            return Verdict(False, f"needs {needs / has:.0%} of the {resource}, a ratio of {gate.ratio:g} is wanted")
        if saved < amount:
            return Verdict(False, f"saves {saved:.3g} {unit}, {amount:g} are wanted")
    cost = price.cpu if resource == "cpu" else price.memory * price.seconds
    if cost > saved * gate.horizon:
        return Verdict(
            False,
            f"{price.strategy} is paid back after {cost / saved:.3g} s, {gate.horizon:g} s are allowed",
        )
    why = "keeps the limits, and " if rescues else ""
    paid = f"{price.strategy} is paid back after {cost / saved:.3g} s"
    change = "there is no state to move" if price.strategy == "none" else paid
    return Verdict(True, f"{why}saves {saved:.3g} {unit}; {change}")


def has_memory_for(price: Price, current: Resources, budget: Budget) -> bool:
    """Whether the limit on memory has room for what a migration holds beside the state, or is broken already."""
    if current.memory > budget.total_memory:
        return True  # nothing is left to keep, and every way out of it holds more for a while
    return current.memory + price.memory <= budget.total_memory


def _of(cost: Resources, resource: Resource) -> float:
    return cost.cpu if resource == "cpu" else cost.memory
