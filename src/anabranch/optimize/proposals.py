"""Results of optimizers: a proposal, or the bound that no plan keeps, each with every priced plan.

A budget that no plan keeps is an expected result and is returned as a value; only the outermost package raises it as an
error.

Invariant: a proposal's plan is within the budget and violates no hint.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias

from anabranch.cost.resources import NOTHING, Resources
from anabranch.errors import SpecError
from anabranch.lang.sizes import size_text
from anabranch.plan.mesh import Mesh
from anabranch.plan.physical import PhysicalPlan, nodes
from anabranch.stats.mesh.learnt import LearntMesh

Standing: TypeAlias = Literal["chosen", "lost", "over", "refused"]
"""The outcome of a plan: chosen, beaten by another, over the budget, or in violation of a hint."""
Bound: TypeAlias = Literal["cpu", "memory", "latency", "cpu and memory together", "hints"]
"""The limit that no plan keeps; "hints" if the hints reject every plan that an optimizer found."""


@dataclass(frozen=True)
class Budget:
    """The cores and bytes that each slot may use. Work is divided evenly among the slots.

    A limit applies to everything that runs in a slot. The host's part, independent of the plan, is `taken`; a plan may
    use the rest.
    """

    cpu: float = math.inf
    memory: float = math.inf
    slots: int = 1
    taken: Resources = field(default=NOTHING, repr=False)
    """The host's resources in each slot."""
    room: float = field(default=1.0, repr=False)
    """Maximum bytes of memory per byte of state."""
    latency: float = math.inf
    """Maximum seconds from the arrival of a row to its results, as `latency_of` predicts them."""
    batch: float = field(default=1.0, repr=False)
    """Seconds between batches."""

    def __post_init__(self) -> None:
        limits = (
            ("cpu", self.cpu, "0.8"),
            ("memory", self.memory, "500000000"),
            ("latency", self.latency, "5 seconds"),
        )
        for name, value, example in limits:
            if not value > 0:
                raise SpecError(f"'limits.{name}' is {value:g}", hint=f"write a number above 0, such as {example}")
        if self.slots < 1:
            raise SpecError(f"'slots' is {self.slots}", hint="at least one slot is needed")

    @property
    def slot_cpu(self) -> float:
        """The cores that a slot may use, by the limits of CPU and of latency; 0 or less if no plan is fast enough."""
        if self.latency == math.inf:
            return self.cpu
        return min(self.cpu, 1.0, self.latency / self.batch - 1)

    def latency_of(self, cost: Resources) -> float:
        """Returns the seconds from the arrival of a row to its results, at most; infinite if a slot falls behind.

        The row waits up to one interval for its batch. Then a slot, which has one core, processes the batch.
        """
        busy = self.of_slot(cost).cpu
        return self.batch * (1 + busy) if busy <= 1 else math.inf

    @property
    def total_cpu(self) -> float:
        """The cores that a plan may use in all slots together; 0 or less if the host leaves none."""
        return (self.slot_cpu - self.taken.cpu) * self.slots

    @property
    def total_memory(self) -> float:
        """The bytes of state that a plan may have in all slots together; 0 or less if the host leaves none."""
        return (self.memory - self.taken.memory) * self.slots / self.room

    @property
    def is_limited(self) -> bool:
        return min(self.cpu, self.memory, self.latency) < math.inf

    def allows(self, cost: Resources) -> bool:
        """True if the whole plan fits the slots together."""
        return cost.cpu <= self.total_cpu and cost.memory <= self.total_memory

    def of_slot(self, cost: Resources) -> Resources:
        """Returns the total resources of a slot for a plan of that cost: its part of the plan, and the host's."""
        cpu = cost.cpu / self.slots + self.taken.cpu
        return Resources(cpu, cost.memory * self.room / self.slots + self.taken.memory, cost.rate / self.slots)

    def shares(self, cost: Resources) -> tuple[float, float]:
        """Returns the fractions of the CPU and memory limits that plan and host use; no limit is one core per slot."""
        slot, cpu = self.of_slot(cost), self.slot_cpu if self.slot_cpu < math.inf else 1.0
        return slot.cpu / cpu if cpu > 0 else math.inf, slot.memory / self.memory

    def use(self, cost: Resources) -> float:
        """Returns the larger of the two fractions."""
        return max(self.shares(cost))


UNLIMITED = Budget()
NOTHING_FITS = Budget(memory=math.ulp(0.0))
"""The smallest possible budget."""


@dataclass(frozen=True)
class Candidate:
    """A priced plan, the name of its optimizer, and why the plan won or lost."""

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
    considered: tuple[Candidate, ...] = ()


@dataclass(frozen=True)
class Infeasible:
    """The bound that no considered plan keeps, and the plan that comes nearest to it."""

    bound: Bound
    best: PhysicalPlan
    cost: Resources
    considered: tuple[Candidate, ...] = ()
    is_proven: bool = False
    """True if it is proven that no plan keeps the bound, because the optimizer searched every plan."""


@dataclass(frozen=True)
class MeshOffer:
    """A mesh beside the priced plans: explicit, learnt from a sample, or yet to be learnt."""

    reason: str
    """The reason for using the mesh or not."""
    is_taken: bool = False
    mesh: Mesh | None = None
    """None if the mesh is yet to be learnt, or if learning could not pay."""
    learnt: LearntMesh | None = None
    """The mesh with its costs on the sampled rows."""
    cost: Resources | None = None
    """The estimated cost of the mesh, from the sample."""


def kind(plan: PhysicalPlan) -> Literal["mjoin", "tree", "jtree"]:
    """Returns the family of a plan; a join of two relations is a tree."""
    arities = [len(node.inputs) for node in nodes(plan)]
    if all(arity == 2 for arity in arities):
        return "tree"
    return "mjoin" if len(arities) == 1 else "jtree"


def over_budget(cost: Resources, budget: Budget) -> str:
    """Describes the limits that a plan exceeds; empty if the plan fits."""
    parts = []
    if budget.slot_cpu < budget.cpu and cost.cpu > budget.total_cpu:
        parts.append(f"{_latency_text(budget.latency_of(cost))} latency is over {budget.latency:g} s")
        budget = replace(budget, latency=math.inf)
    slot, taken = budget.of_slot(cost), budget.taken
    if taken == NOTHING:
        if cost.cpu > budget.total_cpu:
            parts.append(f"cpu {cost.cpu:.3g} is over {budget.total_cpu:.3g} cores")
        if cost.memory > budget.total_memory:
            parts.append(f"memory {size_text(cost.memory)} is over {size_text(budget.total_memory)}")
        return ", ".join(parts)
    if cost.cpu > budget.total_cpu:
        own = slot.cpu - taken.cpu
        parts.append(f"a slot needs {slot.cpu:.3g} of {budget.cpu:.3g} cores, {own:.3g} of them for the plan")
    if cost.memory > budget.total_memory:
        own = slot.memory - taken.memory
        needs = f"{size_text(slot.memory)} of {size_text(budget.memory)}"
        parts.append(f"a slot needs {needs}, {size_text(own)} of them for the state")
    return ", ".join(parts)


def _latency_text(seconds: float) -> str:
    return f"{seconds:.3g} s" if seconds < math.inf else "unbounded"


def pareto(plans: Iterable[Candidate]) -> tuple[Candidate, ...]:
    """Returns the undominated plans, by rising CPU; one of each pair of costs."""
    kept: list[Candidate] = []
    least = math.inf
    for candidate in sorted(plans, key=lambda c: (c.cost.cpu, c.cost.memory, str(c.plan))):
        if candidate.cost.memory < least:
            kept.append(candidate)
            least = candidate.cost.memory
    return tuple(kept)


def distinct(candidates: Iterable[Candidate]) -> list[Candidate]:
    """Returns each plan once, as it was found first."""
    found: dict[str, Candidate] = {}
    for candidate in candidates:
        found.setdefault(str(candidate.plan), candidate)
    return list(found.values())
