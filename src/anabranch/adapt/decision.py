"""A decision to change the plan of a running query or to keep it, with the costs and the reason.

Invariant: a decision that keeps the plan also has both costs and a reason, so the history explains it.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any, Literal, TypeAlias

from anabranch.adapt.knowledge import Knowledge
from anabranch.cost.resources import Resources
from anabranch.migrate.strategies.strategy import Price
from anabranch.plan.mesh import Plan

Action: TypeAlias = Literal["migrate", "keep"]
Origin: TypeAlias = Literal["optimizer", "search", "phases", "promise"]
"""The source of a proposed plan: the optimizer, a mesh search, the mean costs over phases of frequent changes, or the
plan before a mesh that costs more than expected."""


@dataclass(frozen=True)
class Rival:
    """A plan that the optimizer priced but did not propose, and the reason."""

    plan: Plan
    cost: Resources
    reason: str

    def to_json(self) -> dict[str, Any]:
        return {"plan": str(self.plan), "cost": _numbers(self.cost), "reason": self.reason}


@dataclass(frozen=True)
class Decision:
    """The choice to change to the proposed plan or to keep the running plan."""

    batch: int
    """The batch after which it was made."""
    action: Action
    policy: str
    trigger: str
    """Why a better plan was searched for."""
    plan: Plan
    cost: Resources
    proposed: Plan
    proposed_cost: Resources
    origin: Origin
    price: Price | None
    """The estimated cost of the migration; None if the proposed plan is the running plan."""
    reason: str
    """Why the plan is changed or kept."""
    statistics: Knowledge
    rivals: tuple[Rival, ...] = ()
    """The best of the other plans that were priced."""

    @property
    def strategy(self) -> str | None:
        return None if self.price is None else self.price.strategy

    @property
    def takes_steps(self) -> bool:
        """True if the boxes in which the plans differ change one after another."""
        return self.price is not None and self.price.steps > 1

    def to_json(self) -> dict[str, Any]:
        return {
            "kind": "decision",
            "batch": self.batch,
            "action": self.action,
            "policy": self.policy,
            "trigger": self.trigger,
            "plan": str(self.plan),
            "cost": _numbers(self.cost),
            "proposed": str(self.proposed),
            "proposedCost": _numbers(self.proposed_cost),
            "origin": self.origin,
            "strategy": self.strategy,
            "migrationCost": None if self.price is None else _price(self.price),
            "reason": self.reason,
            "statistics": self.statistics.to_json(),
            "considered": [rival.to_json() for rival in self.rivals],
        }


def _price(price: Price) -> dict[str, Any]:
    """Returns the price of a migration as JSON, with the number of steps if there are several."""
    numbers = {name: plain_number(value) for name, value in asdict(price).items() if name not in ("steps", "pause")}
    return numbers if price.steps == 1 else {**numbers, "steps": price.steps}


def _numbers(cost: Resources) -> dict[str, Any]:
    return {"cpu": plain_number(cost.cpu), "memory": plain_number(cost.memory), "rate": plain_number(cost.rate)}


def plain_number(value: Any) -> Any:
    """Returns a Python float, or None for infinity, which JSON cannot express."""
    if isinstance(value, str):
        return value
    number = float(value)
    return number if math.isfinite(number) else None
