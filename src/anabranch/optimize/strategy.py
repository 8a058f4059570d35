"""What every strategy takes and returns: a budget in, a proposal or an infeasible answer out, both able to explain.

A strategy is a pure function of the model (estimates and unit costs) and the budget; `rng` is a parameter where chance
is wanted. Trouble that is expected, a budget no plan keeps, travels as a value: only the outermost room makes an error
of it. Every plan that was looked at stays in `considered` with its cost and the reason it lost.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, TypeAlias

from anabranch.cost.resources import Resources
from anabranch.errors import SpecError
from anabranch.plan.mesh import Mesh
from anabranch.plan.physical import PhysicalPlan, nodes
from anabranch.sizes import size_text
from anabranch.stats.mesh.learnt import LearntMesh

Standing: TypeAlias = Literal["chosen", "lost", "over", "refused"]
"""Whether a plan was taken, was beaten by another, is over the budget, or goes against a hint."""
Bound: TypeAlias = Literal["cpu", "memory", "cpu and memory together"]


@dataclass(frozen=True)
class Budget:
    """What a slot may use: cores and bytes. Work divides evenly among the slots."""

    cpu: float = math.inf
    memory: float = math.inf
    slots: int = 1

    def __post_init__(self) -> None:
        for name, value, example in (("cpu", self.cpu, "0.8"), ("memory", self.memory, "500000000")):
            if not value > 0:
                raise SpecError(f"'limits.{name}' is {value:g}", hint=f"write a number above 0, such as {example}")
        if self.slots < 1:
            raise SpecError(f"'slots' is {self.slots}", hint="at least one slot is needed")

    @property
    def total_cpu(self) -> float:
        return self.cpu * self.slots

    @property
    def total_memory(self) -> float:
        return self.memory * self.slots

    @property
    def is_limited(self) -> bool:
        return min(self.cpu, self.memory) < math.inf

    def allows(self, cost: Resources) -> bool:
        """True when the whole plan fits the slots together."""
        return cost.cpu <= self.total_cpu and cost.memory <= self.total_memory

    def use(self, cost: Resources) -> float:
        """The larger of the two shares of the budget that a plan takes; without a limit a slot is one core."""
        cores = self.total_cpu if self.cpu < math.inf else float(self.slots)
        return max(cost.cpu / cores, cost.memory / self.total_memory)


@dataclass(frozen=True)
class Considered:
    """A plan that was priced, who proposed it, and why it won or lost."""

    plan: PhysicalPlan
    cost: Resources
    origin: str
    reason: str = ""
    standing: Standing = "lost"


@dataclass(frozen=True)
class Proposal:
    """The plan to run."""

    plan: PhysicalPlan
    cost: Resources
    reason: str
    considered: tuple[Considered, ...] = ()


@dataclass(frozen=True)
class Infeasible:
    """No plan keeps the budget: the bound that fails, and the plan that comes nearest to keeping it."""

    bound: Bound
    best: PhysicalPlan
    cost: Resources
    considered: tuple[Considered, ...] = ()


@dataclass(frozen=True)
class MeshOffer:
    """A mesh beside the plans that are priced by a model: written out, learnt from a sample, or still to be learnt."""

    reason: str
    """Why it is taken, or is not."""
    is_taken: bool = False
    mesh: Mesh | None = None
    """None while it is still to be learnt, or where that was not worth the trouble."""
    learnt: LearntMesh | None = None
    """What a sample said of it."""
    cost: Resources | None = None
    """What it needs, as far as a sample can tell."""


def kind(plan: PhysicalPlan) -> Literal["mjoin", "tree", "jtree"]:
    """The family a plan belongs to; a join of two relations is a tree."""
    arities = [len(node.inputs) for node in nodes(plan)]
    if all(arity == 2 for arity in arities):
        return "tree"
    return "mjoin" if len(arities) == 1 else "jtree"


def over_budget(cost: Resources, budget: Budget) -> str:
    """What a plan exceeds, in words; empty when it fits."""
    parts = []
    if cost.cpu > budget.total_cpu:
        parts.append(f"cpu {cost.cpu:.3g} is over {budget.total_cpu:.3g} cores")
    if cost.memory > budget.total_memory:
        parts.append(f"memory {size_text(cost.memory)} is over {size_text(budget.total_memory)}")
    return ", ".join(parts)


def pareto(plans: Iterable[Considered]) -> tuple[Considered, ...]:
    """The plans that no other dominates, by rising CPU; one of each pair of costs."""
    kept: list[Considered] = []
    least = math.inf
    for candidate in sorted(plans, key=lambda c: (c.cost.cpu, c.cost.memory, str(c.plan))):
        if candidate.cost.memory < least:
            kept.append(candidate)
            least = candidate.cost.memory
    return tuple(kept)
