"""A compiled query: its stages, the streams that it reads, and the sample of those streams.

Invariant: registering a stream, table or query again does not change a compiled query.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from anabranch.lang.catalog import StreamDeclaration
from anabranch.optimize.filter_places import FilterPlaces
from anabranch.plan.physical import PhysicalPlan
from anabranch.plan.query import Query
from anabranch.planning.explain import Explanation
from anabranch.planning.mesh_offer import Learn
from anabranch.run.meshing import learn_from_rows
from anabranch.run.sample import Sample, with_attributes
from anabranch.run.stream_sample import StreamSample, sample_streams
from anabranch.spark import session as spark_host
from anabranch.spark.tables import TableSource
from anabranch.stats.mesh.learnt import LearntMesh


@dataclass(frozen=True)
class RegisteredStream:
    """A stream as registered when a query over it was compiled."""

    declaration: StreamDeclaration
    frame: spark_host.DataFrame
    idle_timeout: str | None
    sample: Callable[[], StreamSample | None] | None = None
    max_ahead: int | None = None
    """In microseconds; None for no limit."""
    has_watermark: bool = True
    """True if the user declared a watermark delay."""


class CompiledQuery:
    """A query and its inputs, by name."""

    def __init__(
        self,
        stages: Explanation,
        registered: Callable[[str], RegisteredStream],
        tables: Mapping[str, TableSource] | None = None,
    ) -> None:
        self.stages = stages
        self.query: Query = stages.query
        self.inputs = {name: CompiledQuery(below, registered, tables) for name, below in stages.inputs.items()}
        self.streams = {
            each.stream: registered(each.stream) for each in self.query.whole.streamed if not each.is_result
        }
        for below in self.inputs.values():
            self.streams |= below.streams
        self.tables = {name: (tables or {})[name.lower()] for name in self.query.whole.tables}
        self.places = FilterPlaces()
        """The places of costly filters and the reasons, if filters were placed by cost."""
        self._sample: Sample | None = None

    @property
    def sample(self) -> Sample:
        """The sample of the streams; empty until `sample_queries` takes it."""
        return self._sample or Sample()

    def with_late_filters(self, late_filters: Sequence[str]) -> CompiledQuery:
        """Returns the same query, over the same streams and tables, with other late filters."""
        tables = {name.lower(): table for name, table in self.tables.items()}
        return CompiledQuery(self.stages.with_late_filters(late_filters), self.streams.__getitem__, tables)

    @cached_property
    def learn_mesh(self) -> Learn:
        """Returns a function that learns a mesh from the sampled rows and caches it by state sizes and rival.

        Classifiers may test columns that the query does not carry.
        """
        known: dict[tuple[str, ...], LearntMesh] = {}

        def learn(held: Mapping[str, float], rival: PhysicalPlan) -> LearntMesh:
            key = (str(rival), *(repr(held[name]) for name in self.query.graph.names))
            if key not in known:
                rows = self.sample.wide
                known[key] = learn_from_rows(with_attributes(self.query, rows), rows, held, rival, kin=self.sample.kin)
            return known[key]

        return learn


def sample_queries(queries: Sequence[CompiledQuery]) -> None:
    """Samples the streams of the queries that have no sample yet; each stream is read once for all of them."""
    # One query may appear under two names.
    waiting = list(dict.fromkeys(query for query in queries if query._sample is None))
    streams = {name: stream for query in waiting for name, stream in query.streams.items()}
    taken = {name: stream.sample() for name, stream in streams.items() if stream.sample is not None}
    known = {name: sample for name, sample in taken.items() if sample is not None}
    for query, sample in zip(waiting, sample_streams([each.query for each in waiting], known), strict=True):
        query._sample = sample
