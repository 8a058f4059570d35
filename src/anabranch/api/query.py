"""A compiled query: its text, its stages, its plan, and what samples of its streams say; see `ContinuousQuery`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from anabranch.api.writer import ContinuousQueryWriter
from anabranch.catalog import Catalog, StreamDeclaration
from anabranch.choosing import Learn, first_plan
from anabranch.explain import Explanation
from anabranch.host.meshing import learn_from_rows
from anabranch.host.sample import Sample
from anabranch.host.spark import session as spark_host
from anabranch.host.spark.handle import QueryHandle
from anabranch.host.spark.sample import StreamSample, sample_streams
from anabranch.plan.mesh import Plan
from anabranch.plan.query import Query
from anabranch.schema import Schema
from anabranch.stats.measured import from_progress
from anabranch.stats.mesh.learnt import LearntMesh

if TYPE_CHECKING:
    from anabranch.api.session import Session


@dataclass(frozen=True)
class RegisteredStream:
    """A stream as it was when a query over it was compiled."""

    declaration: StreamDeclaration
    frame: spark_host.DataFrame
    idle_timeout: str | None
    sample: Callable[[], StreamSample | None] | None = None


class ContinuousQuery:
    """A compiled query: it can be looked at, planned and started, any number of times."""

    def __init__(
        self, session: Session, text: str, allow_unbounded: bool = False, late_filters: Sequence[str] = ()
    ) -> None:
        self._session = session
        # A copy: what is registered later does not reach into a compiled query.
        catalog = Catalog(dict(session.catalog.streams))
        self._explanation = Explanation(text, catalog, allow_unbounded=allow_unbounded, late_filters=late_filters)
        self._query = self._explanation.query
        self._streams = {
            relation.stream: session._streams[relation.stream.lower()] for relation in self._query.graph.relations
        }
        self._sample: Sample | None = None

    @property
    def text(self) -> str:
        """The CQL text as submitted."""
        return self._query.text

    @property
    def schema(self) -> Schema:
        """The columns of the results."""
        return self._query.schema

    def plan(self, choice: str = "auto") -> Plan:
        """How the query would run.

        Parameters
        ----------
        choice
            `auto`, `mjoin` (one join, no intermediate state), `tree` (two-way joins), `mesh` (routes by what rows are
            like), or a plan text over the aliases of the query, such as `((a b) c)`.

        Examples
        --------
        >>> str(query.plan("tree"))  # doctest: +SKIP
        '((a b) c)'
        """
        return first_plan(self.writeStream.plan(choice).choice())

    def explain(self, stage: str = "choice", plan: str = "auto") -> None:
        """Prints one stage of the way from text to plan; see `explanation`."""
        print(self.explanation(stage, plan))  # noqa: T201

    def explanation(self, stage: str = "choice", plan: str = "auto") -> str:
        """One stage of the way from text to plan, as text.

        Parameters
        ----------
        stage
            `logical` (as bound), `rewritten` (filters and projections pushed down), `graph` (relations and what joins
            them), `physical` (the plan and its probe orders) or `choice` (the graph, the statistics and where each
            came from, the plan, and what else was considered).
        plan
            The plan choice, for the last two; limits, statistics and hints are the writer's, which explains as well.
        """
        return self.writeStream.plan(plan).explanation(stage)

    def measured(self, handle: QueryHandle) -> dict[str, dict[str, float]]:
        """What a run of this query has seen of its streams, in the form that the writer's `stats` and a spec take.

        Empty while nothing is known, for example before two batches have moved the watermark.
        """
        return from_progress(self._query, handle.recentProgress).to_mapping()

    @property
    def _sampled(self) -> Sample:
        """What the samples of the streams say, and their rows; taken once."""
        if self._sample is None:
            (self._sample,) = look_at_streams([self._query], self._streams)
        return self._sample

    @cached_property
    def _learn_mesh(self) -> Learn:
        """Learns a mesh from the sampled rows; once for the same sizes of states."""
        known: dict[tuple[float, ...], LearntMesh] = {}

        def learn(held: Mapping[str, float]) -> LearntMesh:
            key = tuple(held[name] for name in self._query.graph.names)
            if key not in known:
                known[key] = learn_from_rows(self._query, self._sampled.rows, held)
            return known[key]

        return learn

    @property
    def writeStream(self) -> ContinuousQueryWriter:
        """Where the results shall go, and how; ends with `start()`."""
        return ContinuousQueryWriter(self)


def look_at_streams(queries: Sequence[Query], streams: Mapping[str, RegisteredStream]) -> list[Sample]:
    """What the samples of streams say of each query; each sample is taken once for all of them."""
    read = {relation.stream for query in queries for relation in query.graph.relations}
    taken = {name: stream.sample() for name, stream in streams.items() if name in read and stream.sample is not None}
    return sample_streams(queries, {name: sample for name, sample in taken.items() if sample is not None})
