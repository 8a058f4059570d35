"""A running set of queries that queries join and leave.

Everything that can be refused is refused before the running queries are touched. Then Spark's query ends after the
batch at hand, the checkpoint becomes that of the new set (`host/changing`), and Spark's query starts again from it: the
next batch is the next batch, and no other query misses one. The handle stays the same object.
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from typing import TYPE_CHECKING

from anabranch.api.members import Member, member_of
from anabranch.errors import BundleError, SpecError
from anabranch.host.changing import SetChange, change_set, refuse_change
from anabranch.host.spark.handle import QueryHandle
from anabranch.host.spark.runner import SparkRunner, start_query
from anabranch.host.spark.sinks.sink import Sink
from anabranch.host.store import Store
from anabranch.plan.query_set import ALONE, Plans

if TYPE_CHECKING:
    from anabranch.api.run import Run


class RunningSet:
    """The queries of a handle, and how they change."""

    def __init__(self, run: Run, sinks: Mapping[str, Sink], checkpoint: str) -> None:
        self.run = run
        self.sinks = dict(sinks)
        self.checkpoint = checkpoint

    def with_query(self, name: str, member: Member) -> Run:
        """The run with one more query; refuses one that cannot join."""
        self._require_names()
        if name in self.run.queries.names:
            raise BundleError(f"a query is named '{name}' already", hint="give this one another name")
        return self.run.of({**self.run.given, name: member})

    def without_query(self, name: str) -> Run:
        """The run without a query; refuses one that others read, and the last one."""
        self._require_names()
        if name not in self.run.given:
            raise BundleError(
                f"no query is named '{name}'", hint=f"name one of the queries that run: {', '.join(self.run.given)}"
            )
        rest = {other: member for other, member in self.run.given.items() if other != name}
        if not rest:
            raise BundleError(f"query '{name}' is the only one", hint="stop the run instead")
        readers = [other for other, member in rest.items() if name in member.compiled.inputs]
        if readers:
            raise BundleError(
                f"query '{name}' is read by {', '.join(repr(reader) for reader in readers)}",
                hint="remove those first",
            )
        return self.run.of(rest)

    def add(self, handle: QueryHandle, name: str, writer: object) -> datetime.datetime | None:
        """Lets a query join; returns the event time from which on it answers."""
        return _moment(self._change(handle, self.with_query(name, member_of(name, writer))).joined.get(name))

    def remove(self, handle: QueryHandle, name: str) -> None:
        """Lets a query leave."""
        self._change(handle, self.without_query(name))

    def _change(self, handle: QueryHandle, wanted: Run) -> SetChange:
        query, runner = handle.parts
        assert isinstance(runner, SparkRunner)
        refuse_change(self.run.queries, wanted.queries)
        sinks = wanted.sinks(self.sinks)
        plans = runner.steering.most_plans.plans
        work = wanted.work(Plans({name: plan for name, plan in plans.items() if name in wanted.queries.names}))
        options, frames = wanted.options(wanted.late_rows()), wanted.frames()
        runner.leave()
        query.stop()
        runner.release()
        store = Store(self.checkpoint)
        change = change_set(store, self.run.queries, wanted.queries, work.first_table(None))
        started, fresh = start_query(wanted.spark, frames, work, sinks, self.checkpoint, options)
        fresh.note_change(change)
        handle.follow(started, fresh)
        self.run, self.sinks = wanted, dict(sinks)
        return change

    def _require_names(self) -> None:
        if ALONE in self.run.given:
            raise SpecError(
                "a query that runs alone cannot be joined by others",
                hint="start it with session.together(name=query.writeStream…), also if it is the only one",
            )
        if self.run.has_spark_elsewhere:
            raise SpecError(
                "queries cannot join or leave a run whose part of the checkpoint for Spark lies elsewhere",
                hint="leave the place of Spark's part out: both parts are then below the checkpoint",
            )


def _moment(micros: int | None) -> datetime.datetime | None:
    """An event time as users read it."""
    return None if micros is None else datetime.datetime.fromtimestamp(micros / 1e6, datetime.UTC)
