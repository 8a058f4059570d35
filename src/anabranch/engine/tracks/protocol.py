"""The track protocol: the interface to a query's engine, and the context that tracks are built from.

Invariant: between two steps a track holds no unprocessed row.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from anabranch.engine.batch import Combinations
from anabranch.engine.meter import Meter, Size
from anabranch.engine.ownership import Ownership
from anabranch.engine.state.arena import Arena
from anabranch.engine.state.base import BaseState
from anabranch.engine.state.intermediate import IntermediateState
from anabranch.engine.state.ring import Index
from anabranch.errors import MigrationError
from anabranch.plan.mesh import Mesh, Plan
from anabranch.plan.physical import Shared
from anabranch.plan.query import Query
from anabranch.plan.query_set import ResidualPredicates
from anabranch.stats.step import StepStatistics

if TYPE_CHECKING:
    from anabranch.engine.shared_join import SharedJoin
    from anabranch.engine.tracks.plan import PlanTrack


@dataclass
class PlanContext:
    """The context of the tracks of one query: base states, the arena of the tracks' states, the meter."""

    query: Query
    bases: Mapping[str, BaseState]
    arena: Arena
    meter: Meter = field(default_factory=Meter)
    owns: Ownership | None = None
    residuals: tuple[ResidualPredicates, ...] = ()
    """The query's restrictions on shared relations beyond those of all queries."""
    shared: Mapping[Shared, SharedJoin] = field(default_factory=dict)
    """The shared joins of the whole set."""
    name: str = ""
    """The name of the query, by which shared joins identify their users."""
    tracks_made: int = 0
    """Numbers the tracks, so that their arrays have different names."""

    def new_number(self) -> int:
        self.tracks_made += 1
        return self.tracks_made


@dataclass(frozen=True)
class Departure:
    """The track that a change to another plan starts from, and the mesh that the track represents."""

    track: PlanTrack
    mesh: Mesh | None = None


class Track(Protocol):
    """One running plan, or two during a migration."""

    @property
    def plan(self) -> Plan:
        """The running plan; during a migration, the new plan."""

    @property
    def leaving(self) -> Plan | None:
        """The old plan of the current migration; None without one."""

    @property
    def intermediates(self) -> Mapping[str, IntermediateState]:
        """The intermediate states of the plan, by shape."""

    @property
    def held(self) -> Sequence[IntermediateState]:
        """Every intermediate state that the track needs, including those of the old plan of a migration."""

    def indexes(self, relation: str) -> tuple[Index, ...]:
        """The indexes of a base state that the track probes."""

    def shared_indexes(self, shared: Shared) -> tuple[Index, ...]:
        """The indexes of a shared join's state that the track probes."""

    def retain_indexes(self) -> None:
        """Releases every index of an intermediate state that the track does not probe."""

    def take(self, relation: str, found: Combinations, *, wanted: bool) -> Iterator[Combinations]:
        """Passes new rows of a relation through the plan; yields the combinations that they finish, if wanted."""

    def take_shared(self, shared: Shared, found: Combinations, *, wanted: bool) -> Iterator[Combinations]:
        """Passes new combinations of a shared join through the plan; yields those that they finish, if wanted."""

    def drop(self, floors: Mapping[str, int]) -> None:
        """Drops combinations that no future row can complete."""

    def settled(self) -> Track:
        """Returns the track to continue with: this one, or the new plan's once a migration is over."""

    def aborted(self) -> Track:
        """Returns the track of the old plan of the current migration; raises a MigrationError without one."""

    def departure(self) -> Departure:
        """Returns the start of a change to another plan; only without a running migration."""

    def finish(self, beside: Mapping[str, Size]) -> StepStatistics:
        """Returns statistics since the last call; `beside` are the sizes of states outside the track."""

    def layout(self) -> dict[str, Any]:
        """Describes where the states are in the arena; `kind` names the kind of track."""


def not_changing(plan: Plan) -> MigrationError:
    """The error for aborting when no migration is running."""
    return MigrationError(f"plan '{plan}' is not changing", hint="only a migration under way can be aborted")
