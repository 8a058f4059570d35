"""The track protocol: the calls of a query's engine, and the parts from which a track is built."""

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
from anabranch.plan.query_set import Terms
from anabranch.stats.step import StepStatistics

if TYPE_CHECKING:
    from anabranch.engine.shared_join import SharedJoin
    from anabranch.engine.tracks.plan import PlanTrack


@dataclass
class PlanContext:
    """The parts shared by the tracks of one query: base states, the arena of their own states, the meter."""

    query: Query
    bases: Mapping[str, BaseState]
    arena: Arena
    meter: Meter = field(default_factory=Meter)
    owns: Ownership | None = None
    terms: tuple[Terms, ...] = ()
    """What the query demands of shared relations beyond what all queries do."""
    shared: Mapping[Shared, SharedJoin] = field(default_factory=dict)
    """The shared joins of the whole set."""
    name: str = ""
    """The name of the query, under which shared joins know their users."""
    tracks_made: int = 0
    """Keeps the names of the arrays of different tracks apart."""

    def new_number(self) -> int:
        self.tracks_made += 1
        return self.tracks_made


@dataclass(frozen=True)
class Departure:
    """The track of a plan that a change to another plan starts from, and the mesh that the track stands in for."""

    track: PlanTrack
    mesh: Mesh | None = None


class Track(Protocol):
    """One plan at work, or two of them during a migration."""

    @property
    def plan(self) -> Plan:
        """The plan at work; during a migration, the new plan."""

    @property
    def leaving(self) -> Plan | None:
        """The plan that a migration under way leaves; None at rest."""

    @property
    def intermediates(self) -> Mapping[str, IntermediateState]:
        """The intermediate states of the plan, by shape."""

    @property
    def held(self) -> Sequence[IntermediateState]:
        """Every intermediate state that the track needs, those of a plan that is being left included."""

    def indexes(self, relation: str) -> tuple[Index, ...]:
        """The indexes of a base state that the track looks into."""

    def shared_indexes(self, shared: Shared) -> tuple[Index, ...]:
        """The indexes of the state of a shared join that the track looks into."""

    def retain_indexes(self) -> None:
        """Gives back every index of an intermediate state that the track does not look into."""

    def take(self, relation: str, found: Combinations, *, wanted: bool) -> Iterator[Combinations]:
        """Passes new rows of a relation through the plan; yields the combinations that they finish, if wanted."""

    def take_shared(self, shared: Shared, found: Combinations, *, wanted: bool) -> Iterator[Combinations]:
        """Passes new combinations of a shared join through the plan; yields those that they finish, if wanted."""

    def drop(self, floors: Mapping[str, int]) -> None:
        """Drops combinations that no row still to come can complete."""

    def settled(self) -> Track:
        """The track that goes on: the track itself, or the new plan's once a migration is over."""

    def aborted(self) -> Track:
        """The track of the plan that a migration under way leaves; a MigrationError at rest."""

    def departure(self) -> Departure:
        """Where a change to another plan starts from; only at rest."""

    def finish(self, beside: Mapping[str, Size]) -> StepStatistics:
        """Statistics since the last call; `beside` are the sizes of states that the track does not know."""

    def layout(self) -> dict[str, Any]:
        """Where the states are in the arena; `kind` names the kind of the track."""


def not_changing(plan: Plan) -> MigrationError:
    """The refusal to abort a migration where none is under way."""
    return MigrationError(f"plan '{plan}' is not changing", hint="only a migration under way can be aborted")
