"""The protocol of advisors, and the suggestions that they return.

The controller passes a reason to an advisor (`wants`), runs its search, in the background if the search is long, and
passes it the outcome with the current history (`propose`). To add an advisor, write a class with these methods and list
it in `Controller._advisors`. Invariant: an advisor is a frozen value, and its methods change nothing;
`tests/contract/test_advisors.py` checks this.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, TypeAlias

from anabranch.adapt.decision import Decision
from anabranch.adapt.experience import Experience
from anabranch.adapt.history import History, Promise
from anabranch.adapt.policy import Reason
from anabranch.plan.mesh import Plan
from anabranch.plan.physical import PhysicalPlan
from anabranch.stats.mesh.learnt import LearntMesh

Wanted: TypeAlias = Literal["search", "profile", "nothing"]
"""The next action for an advisor: a search with the current statistics, profiling of the operators first, or none."""


@dataclass(frozen=True)
class Suggestion:
    """A decision, and the values that the history stores with it."""

    decision: Decision
    retry: float | None = None
    """Length of the phase, in seconds, at which a postponed change is reconsidered; None if nothing was postponed."""
    promise: Promise | None = None
    """The expected cost of the proposed mesh."""
    correction: float | None = None
    """The cost of the running mesh divided by its expected cost, if it exceeded that."""
    learnt: LearntMesh | None = None
    """The mesh that a search for routes found."""
    experience: Experience | None = None
    """The cost corrections with the counts of the running plan; None to keep the current ones."""
    candidates: tuple[PhysicalPlan, ...] = field(default=())
    """Plans that later decisions consider again."""


class Advisor(Protocol):
    """Proposes one kind of change for slots that adapt together."""

    @property
    def name(self) -> str:
        """The name under which the history counts decisions that kept the plan."""

    def occasion(self, history: History, batch: int, plan: Plan) -> Reason | None:
        """Returns the advisor's own reason to search after a batch, in addition to those of the policy."""

    def wants(self, history: History, plan: Plan, reason: Reason) -> Wanted:
        """Returns the next action for a reason."""

    def search(self, history: History, plan: Plan) -> tuple[Callable[[], Any], bool]:
        """Returns the search for a better plan, and whether it may be too long to run between two batches."""

    def propose(self, history: History, batch: int, plan: Plan, reason: Reason, found: Any) -> Suggestion:
        """Returns a decision on the outcome of the search; it keeps the plan if a change does not pay."""
