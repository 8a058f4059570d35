"""The gate: the thresholds that a change of plan must pass.

A proposed plan passes if it needs less of the scarce resource than the running plan, by a ratio *and*, for CPU, by an
amount, and if it saves what the change costs within the horizon. The scarce resource is that of the objective; for
`qualified`, it is the one of which the running plan uses the larger share. If the running plan exceeds a limit and the
proposed one exceeds none, ratio and amount are not required, and the scarce resource is the one whose limit is
exceeded.

During a migration, the states of both plans are held. If the running plan keeps the limit on memory, a migration that
exceeds it is refused. Invariant: all rates are per second of event time, so a replay at ten times the speed gives the
same decisions.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf
from typing import Literal, TypeAlias

from anabranch.adapt.facts import RATIO, TEN_BATCHES, Interval
from anabranch.cost.resources import Resources
from anabranch.lang.sizes import size_text
from anabranch.migrate.strategies.strategy import Price
from anabranch.optimize.hints import Objective
from anabranch.optimize.proposals import Budget

Resource: TypeAlias = Literal["cpu", "memory"]


@dataclass(frozen=True)
class Gate:
    """The thresholds."""

    ratio: float = RATIO
    """The running plan must need at least this multiple of what the proposed plan needs."""
    cores: float = 0.005
    """The minimum number of cores saved if CPU is scarce and the length of triggers is unknown."""
    share: float = 0.01
    """The minimum fraction of a whole trigger that is saved, if the length of triggers is known."""
    horizon: float = 600.0
    """Seconds of event time within which a change must pay back, at most."""
    cool_down: Interval = TEN_BATCHES
    """The time after a migration during which nothing is decided."""

    def within(self, trigger: float, batch: float, slots: int) -> Gate:
        """Returns the gate for triggers of `trigger` seconds that each cover `batch` seconds of event time.

        >>> Gate().within(0.15, 1.0, 2).cores
        0.003
        """
        return replace(self, cores=self.share * trigger * slots / batch)

    def without_state(self) -> Gate:
        """Returns the gate for a change that moves no state: a quarter of the margin, as only the model may err."""
        return replace(self, ratio=1 + (self.ratio - 1) / 4)


@dataclass(frozen=True)
class Verdict:
    """Whether a change passed the gate, and why."""

    passed: bool
    reason: str
    pays_after: float = inf
    """Seconds after which the change has paid back, if time is all that it needs to pass."""

    @property
    def action(self) -> Literal["migrate", "keep"]:
        return "migrate" if self.passed else "keep"


def scarce(current: Resources, objective: Objective, budget: Budget) -> Resource:
    """Returns the resource by which two plans are compared: one whose limit is exceeded, or that of the objective."""
    over_cpu, over_memory = current.cpu > budget.total_cpu, current.memory > budget.total_memory
    if over_cpu != over_memory:
        return "cpu" if over_cpu else "memory"
    if over_cpu or objective.kind == "qualified":
        of_cpu, of_memory = budget.shares(current)
        return "memory" if of_memory > of_cpu else "cpu"
    return "memory" if objective.kind == "memory" else "cpu"


def judge(
    gate: Gate,
    current: Resources,
    proposed: Resources,
    price: Price,
    objective: Objective,
    budget: Budget,
    risk: float = 0.0,
) -> Verdict:
    """Decides whether the proposed plan may replace the current one at this migration price.

    `risk` is an amount of the scarce resource that the change must repay besides the migration, unless the current plan
    exceeds its limits.
    """
    if budget.allows(current) and not budget.allows(proposed):
        return Verdict(False, "the proposed plan is over its limits")
    if not has_memory_for(price, current, budget):
        left = size_text(max(0.0, budget.total_memory - current.memory))
        return Verdict(False, f"{price.strategy} holds {size_text(price.memory)} beside the state, and {left} are left")
    resource = scarce(current, objective, budget)
    has, needs = getattr(current, resource), getattr(proposed, resource)
    saved = has - needs
    unit = "cores" if resource == "cpu" else "bytes"
    rescues = not budget.allows(current) and budget.allows(proposed)
    if saved <= 0:
        return Verdict(False, f"saves no {resource}")
    if not rescues:
        if has < gate.ratio * needs:
            return Verdict(False, f"needs {needs / has:.0%} of the {resource}, a ratio of {gate.ratio:.3g} is wanted")
        if resource == "cpu" and saved < gate.cores:
            return Verdict(False, f"saves {saved:.3g} cores, {gate.cores:.3g} are wanted")
    after = max(0.0, amount_of(price, resource) + (risk if budget.allows(current) else 0.0)) / saved
    paid = f"{price.strategy} is paid back after {after:.3g} s"
    if after > gate.horizon:
        return Verdict(False, f"{paid}, {gate.horizon:.3g} s are allowed", after)
    why = "keeps the limits, and " if rescues else ""
    change = "there is no state to move" if price.strategy == "none" else paid
    return Verdict(True, f"{why}saves {saved:.3g} {unit}; {change}", after)


def amount_of(price: Price, resource: Resource) -> float:
    """Returns what a migration takes of a resource."""
    return price.cpu if resource == "cpu" else price.memory * price.seconds


def has_memory_for(price: Price, current: Resources, budget: Budget) -> bool:
    """Returns True if the additional memory of a migration is within the limit, or if the limit is already exceeded."""
    if current.memory > budget.total_memory:
        return True  # every migration to a smaller plan holds more for a while
    return current.memory + price.memory <= budget.total_memory
