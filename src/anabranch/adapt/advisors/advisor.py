"""The protocol of advisors, and what they propose.

An advisor is a frozen value. The controller asks what a reason calls for (`wants`), runs the search, in the background
where that takes long, and lets the advisor judge the outcome by the history of that moment (`propose`). To add an
advisor, write a class with these methods and list it in `controller.advisors`; `tests/contract/test_advisors.py` checks
the contract.
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
"""What an advisor needs next: a search with the statistics it has, profiles of the operators first, or nothing."""


@dataclass(frozen=True)
class Suggestion:
    """A decision with its gain and price, and what the history is to remember of it."""

    decision: Decision
    retry: float | None = None
    """Seconds of a phase after which a postponed change is to be considered again."""
    promise: Promise | None = None
    """What the proposed mesh promises."""
    correction: float | None = None
    """The cost of the running mesh over its promise, if that was broken."""
    learnt: LearntMesh | None = None
    """What a search for routes has learnt."""
    experience: Experience | None = None
    """The counts of the running plan, taken in; None to keep what is known."""
    candidates: tuple[PhysicalPlan, ...] = field(default=())
    """Plans to remember."""


class Advisor(Protocol):
    """Proposes one kind of change for slots that adapt together."""

    @property
    def name(self) -> str:
        """The name by which the history counts fruitless decisions."""

    def occasion(self, history: History, batch: int, plan: Plan) -> Reason | None:
        """Returns the advisor's own reason to search after a batch, beside those of the policy."""

    def wants(self, history: History, plan: Plan, reason: Reason) -> Wanted:
        """Returns what a reason calls for."""

    def search(self, history: History, plan: Plan) -> tuple[Callable[[], Any], bool]:
        """Returns the search for a better plan, and whether it may take longer than a batch can wait."""

    def propose(self, history: History, batch: int, plan: Plan, reason: Reason, found: Any) -> Suggestion:
        """Judges the outcome of the search; the decision keeps the plan if a change does not pay."""
