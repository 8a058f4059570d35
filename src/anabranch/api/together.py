"""Several queries started as one: their streams are read, spread and kept once, and each has its own plan and sink."""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy
from typing import TYPE_CHECKING

from anabranch.api.query import RegisteredStream, look_at_streams
from anabranch.api.run import RunSettings
from anabranch.api.writer import ContinuousQueryWriter
from anabranch.choosing import first_plan, headline
from anabranch.errors import BundleError, SpecError
from anabranch.host.spark.handle import QueryHandle
from anabranch.host.spark.sinks.sink import Sink
from anabranch.host.work import Work
from anabranch.optimize import Choice
from anabranch.plan.execution import DEFAULT_EXECUTION
from anabranch.plan.query_set import Plans, QuerySet, describe, together

if TYPE_CHECKING:
    from anabranch.api.session import Session


class Together(RunSettings):
    """Queries to start as one, each with its own writer; how they run is said here, for all of them.

    Examples
    --------
    >>> together = session.together(
    ...     alerts=alerts.writeStream.option("path", "out/alerts").plan("mesh"),
    ...     audits=audits.writeStream.option("path", "out/audits"),
    ... )  # doctest: +SKIP
    >>> handle = together.option("checkpointLocation", "checkpoint").start()  # doctest: +SKIP
    """

    def __init__(self, session: Session, writers: Mapping[str, ContinuousQueryWriter]) -> None:
        super().__init__(session.spark)
        self._session = session
        self._writers = dict(sorted(writers.items()))
        for name, writer in self._writers.items():
            if not isinstance(writer, ContinuousQueryWriter):
                raise SpecError(
                    f"query '{name}' is given as {type(writer).__name__}",
                    hint=f"give its writer, with a sink: together({name}=query.writeStream.option('path', …))",
                )
            said = [*writer._said(), *(["an execution model"] if writer._execution != DEFAULT_EXECUTION else [])]
            if said:
                raise SpecError(
                    f"query '{name}' has {said[0]} of its own",
                    detail="queries that run together have one trigger, one checkpoint, one number of slots",
                    hint="say it of what together() returns" if said[0] != "an execution model" else "leave it out",
                )
        self._queries: QuerySet = together({name: writer.query._query for name, writer in self._writers.items()})
        self._streams: dict[str, RegisteredStream] = {}
        for name, writer in self._writers.items():
            for stream, registered in writer.query._streams.items():
                if self._streams.setdefault(stream, registered) != registered:
                    raise BundleError(
                        f"stream '{stream}' was registered anew before query '{name}' was compiled",
                        hint="compile all queries after the last registration",
                    )

    def explain(self) -> None:
        """Prints what the queries share, and how each would run."""
        print(self.explanation())  # noqa: T201

    def explanation(self) -> str:
        """What the queries share, what each asks beyond that, and the choice of its plan."""
        self._look_at_streams()
        parts = [describe(self._queries)]
        parts += [f"== {name} ==\n{writer.explanation()}" for name, writer in self._as_they_run.items()]
        return "\n\n".join(parts)

    def headlines(self) -> list[str]:
        """The chosen plan of each query and why, in one line each."""
        return [f"{name}: {headline(choice)}" for name, choice in self.choices().items()]

    def choices(self) -> dict[str, Choice]:
        """The plan that each query's settings lead to; streams are sampled once for all of them."""
        self._look_at_streams()
        return {name: writer.choice() for name, writer in self._as_they_run.items()}

    def start(self) -> QueryHandle:
        """Starts the queries as one streaming query.

        Raises
        ------
        SpecError
            When a setting is missing or contradicts another.
        PlanError
            When a plan, or a hint, does not fit its query.
        CheckpointError
            When the checkpoint belongs to other queries or is damaged; it is left as it is.
        """
        writers = self._as_they_run
        sinks = {name: writer.sink(name) for name, writer in writers.items()}
        _refuse_one_place(sinks)
        checkpoint = self._checkpoint(
            f"the run of queries {', '.join(writers)}", must_last=any(sink.is_lasting for sink in sinks.values())
        )
        choices = self.choices()
        plans = Plans({name: first_plan(choice) for name, choice in choices.items()})
        rules = {name: writer.rules(choices[name]) for name, writer in writers.items()}
        work = Work(self._queries, plans, self._slot_count, rules)
        return self._run(self._session, self._streams, work, sinks, checkpoint)

    def _look_at_streams(self) -> None:
        """Afterwards every query that its choice needs it for has its sample."""
        # A query may be there twice, under two names.
        waiting = list(dict.fromkeys(writer.query for writer in self._writers.values() if writer.needs_sample))
        found = look_at_streams([query._query for query in waiting], self._streams)
        for query, sample in zip(waiting, found, strict=True):
            query._sample = sample

    @property
    def _as_they_run(self) -> dict[str, ContinuousQueryWriter]:
        """The writers with what was said of all."""
        writers = {name: copy(writer) for name, writer in self._writers.items()}
        for writer in writers.values():
            writer._slots, writer._trigger = self._slot_count, self._trigger
        return writers


def _refuse_one_place(sinks: Mapping[str, Sink]) -> None:
    """Files, and Delta's transactions, carry the name of the run: in one place queries would replace each other's."""
    places: dict[str, str] = {}
    for name, sink in sinks.items():
        place = sink.place
        if place is not None and (other := places.setdefault(place, name)) != name:
            raise SpecError(
                f"queries '{other}' and '{name}' write to the same folder '{place}'",
                hint="give each query a folder of its own",
            )
