"""The track of a mesh: classifies new rows into row groups, and the fabric routes them to their results.

Invariant: a mesh has no intermediate state, so a change from or to one only swaps references at a batch boundary; row
groups in progress end on the routes they began on.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from time import thread_time
from typing import Any, Self

from anabranch.engine.batch import Combinations
from anabranch.engine.fabric.row_group import RowGroup, compile_routes, gathered
from anabranch.engine.fabric.sorting import Sorting
from anabranch.engine.meter import Size
from anabranch.engine.state.intermediate import IntermediateState
from anabranch.engine.state.ring import Index
from anabranch.engine.tracks.plan import PlanTrack
from anabranch.engine.tracks.protocol import Departure, PlanContext, not_changing
from anabranch.errors import InvariantBroken
from anabranch.plan.mesh import Mesh, Plan, parse_mesh
from anabranch.plan.physical import Shared, mjoin
from anabranch.stats.step import StepStatistics


class MeshTrack:
    """The routes of one query over its base states; adds the indexes that they probe."""

    KIND = "mesh"

    def __init__(self, context: PlanContext, mesh: Mesh) -> None:
        self.context = context
        self.plan: Mesh = mesh
        self.leaving: Plan | None = None
        self.intermediates: Mapping[str, IntermediateState] = {}
        self.held: Sequence[IntermediateState] = ()
        graph, bases = context.query.graph, context.bases
        self._routes = {way.relation: compile_routes(graph, way, bases, context.meter) for way in mesh.ways}
        looked_into: dict[str, list[Index]] = {name: [] for name in bases}
        for several in self._routes.values():
            for route in several:
                for target, index in route.indexes():
                    looked_into[target].append(index)
        # A state without probes keeps the index of all rows, which determines what is overdue.
        self._indexes = {name: tuple(dict.fromkeys(several)) or ((),) for name, several in looked_into.items()}
        for name, base in bases.items():
            base.require(self._indexes[name])
        self._sorting = {
            way.relation: Sorting(graph, bases[way.relation], way.classifier)
            for way in mesh.ways
            if len(way.routes) > 1
        }

    @classmethod
    def reopened(cls, context: PlanContext, layout: Mapping[str, Any]) -> MeshTrack:
        """Reopens the track of a layout."""
        return cls(context, parse_mesh(layout["plan"]))

    def indexes(self, relation: str) -> tuple[Index, ...]:
        """The indexes of a base state that some route probes."""
        return self._indexes[relation]

    def layout(self) -> dict[str, Any]:
        return {"kind": self.KIND, "plan": str(self.plan)}

    def take(self, relation: str, found: Combinations, *, wanted: bool) -> Iterator[Combinations]:
        """Sends new rows of a relation along their routes and yields the combinations that they finish, if wanted."""
        if wanted:
            yield from gathered(self._finished(relation, found))

    def shared_indexes(self, shared: Shared) -> tuple[Index, ...]:
        """None: uses no shared join."""
        return ()

    def retain_indexes(self) -> None:
        """Does nothing: there is no intermediate state, and so no index."""

    def take_shared(self, shared: Shared, found: Combinations, *, wanted: bool) -> Iterator[Combinations]:
        raise InvariantBroken(f"'{self.plan}' has no shared join", detail=f"combinations of '{shared}' came")

    def drop(self, floors: Mapping[str, int]) -> None:
        """Does nothing: there are only base states."""

    def settled(self) -> Self:
        """Returns the track itself: no migration is running."""
        return self

    def aborted(self) -> Self:
        raise not_changing(self.plan)

    def departure(self) -> Departure:
        """Starts from the mjoin, which keeps no intermediate state either; from there it is an ordinary change."""
        return Departure(PlanTrack(self.context, mjoin(self.context.query.graph.names)), self.plan)

    def finish(self, beside: Mapping[str, Size]) -> StepStatistics:
        return self.context.meter.finish(beside)

    def _finished(self, relation: str, found: Combinations) -> Iterator[Combinations]:
        for row_group in self._row_groups(relation, found):
            done = 0
            for finished in row_group.route.forward(row_group.found):
                done += len(finished.newest)
                yield finished
            self.context.meter.routed(relation, row_group.route.number, len(row_group.found), done)

    def _row_groups(self, relation: str, found: Combinations) -> list[RowGroup]:
        """Divides the rows by route."""
        routes, sorting = self._routes[relation], self._sorting.get(relation)
        if sorting is None:
            return [RowGroup(found, routes[0])]
        # CPU time of this thread: interruptions on a busy machine are not routing.
        started = thread_time()
        row_groups = sorting.cut(found, routes)
        self.context.meter.spent("classify", thread_time() - started)
        return row_groups
