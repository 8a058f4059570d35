"""The protocol of advisors, and the suggestions that they return.

The controller passes a reason to an advisor (`wants`), runs its search, in the background if the search is long, and
passes it the outcome with the current history (`propose`). To add an advisor, write a class with these methods and list
it in `Controller._advisors`. Invariant: an advisor is a frozen value, and its methods change nothing;
`tests/contract/test_advisors.py` checks this.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeAlias

from anabranch.adapt.history import History
from anabranch.adapt.policy import Reason
from anabranch.adapt.records import Decision

Wanted: TypeAlias = Literal["search", "profile", "nothing"]
"""The next action for an advisor: a search with the current statistics, profiling of the operators first, or none."""


@dataclass(frozen=True)
class Suggestion:
    """A decision, and the history with what the advisor remembers of it."""

    decision: Decision
    history: History


class Advisor(Protocol):
    """Proposes one kind of change for slots that adapt together; each history has at least one batch."""

    @property
    def name(self) -> str:
        """The name under which the history counts decisions that kept the plan."""

    def occasion(self, history: History) -> Reason | None:
        """Returns the advisor's own reason to search after a batch, in addition to those of the policy."""

    def wants(self, history: History, reason: Reason) -> Wanted:
        """Returns the next action for a reason."""

    def search(self, history: History) -> tuple[Callable[[], Any], bool]:
        """Returns the search for a better plan, and whether it may be too long to run between two batches."""

    def propose(self, history: History, reason: Reason, found: Any) -> Suggestion:
        """Returns a decision on the outcome of the search; it keeps the plan if a change does not pay."""
