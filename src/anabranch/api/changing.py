"""Adds queries to a running set and removes queries from it.

All checks run before the running queries are touched. Then Spark's query ends after the current batch, the checkpoint
is converted to the new set (`run/changing`), and Spark's query restarts from it.

Invariant: batch numbers continue, no other query misses a batch, and the handle remains the same object.
"""

from __future__ import annotations

import datetime
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

from anabranch.adapt.records import QueriesChanged
from anabranch.api.members import Member, member_of
from anabranch.errors import AnabranchError, BundleError, HostError, SpecError
from anabranch.plan.query_set import ALONE, Plans
from anabranch.run.changing import SetChange, change_set, refuse_change, renumbered_predicates
from anabranch.run.store import Store
from anabranch.spark.handle import QueryHandle
from anabranch.spark.running import RunningQueries
from anabranch.spark.sinks.sink import Sink

if TYPE_CHECKING:
    from anabranch.api.run import Run


class RunningSet:
    """The queries of a handle, and the operations that change them."""

    def __init__(self, run: Run, sinks: Mapping[str, Sink], checkpoint: str) -> None:
        self.run = run
        self.sinks = dict(sinks)
        self.checkpoint = checkpoint

    def add(self, handle: QueryHandle, name: str, writer: object) -> datetime.datetime | None:
        """Adds a query; returns the event time from which it produces results."""
        self._require_names()
        member = member_of(name, writer)
        if name in self.run.queries.names:
            raise BundleError(f"a query is named '{name}' already", hint="use another name")
        return moment(self.become(handle, {**self.run.given, name: member}).joined.get(name))

    def remove(self, handle: QueryHandle, name: str) -> None:
        """Removes a query."""
        self.become(handle, self.without([name]))

    def without(self, names: Collection[str]) -> dict[str, Member]:
        """Returns the queries without the named ones; refuses to remove all queries or one that another query reads."""
        self._require_names()
        running = self.run.given
        for name in names:
            if name not in running:
                raise BundleError(
                    f"no query is named '{name}'", hint=f"name one of the running queries: {', '.join(running)}"
                )
        rest = {name: member for name, member in running.items() if name not in names}
        if not rest:
            titles = f"query '{next(iter(names))}' is" if len(names) == 1 else f"queries {_listed(names)} are"
            raise BundleError(f"{titles} the only one{'s' if len(names) > 1 else ''}", hint="stop the run instead")
        for name in names:
            if readers := [other for other, member in rest.items() if name in member.compiled.inputs]:
                raise BundleError(f"query '{name}' is read by {_listed(readers)}", hint="remove those first")
        return rest

    def become(self, handle: QueryHandle, members: Mapping[str, Member]) -> SetChange:
        """Makes these the queries of the run. A different query under an existing name replaces it.

        All checks run before anything changes.
        """
        self._require_names()
        same = {name: each for name, each in self.run.given.items() if _is_same(each, members.get(name))}
        replaced = [name for name in self.run.queries.names if name not in same and name in members]
        wanted = self.run.of(members)
        if not replaced:
            return self._change(handle, wanted)
        if not same:
            raise BundleError(
                f"every query of the run differs: {_listed(replaced)}",
                detail="no running query would remain, so there is no state to keep",
                hint="start a new run with a new checkpoint",
            )
        between = self.run.of(same)
        refuse_change(self.run.queries, between.queries)
        refuse_change(between.queries, wanted.queries)
        wanted.sinks({name: sink for name, sink in self.sinks.items() if name in same})
        first = self._change(handle, between)
        second = self._change(handle, wanted)
        return SetChange({**first.joined, **second.joined}, (*first.left, *second.left))

    def _change(self, handle: QueryHandle, wanted: Run) -> SetChange:
        """Ends Spark's query, converts the checkpoint and restarts."""
        with handle.leaving() as (query, runner):
            assert isinstance(runner, RunningQueries)
            refuse_change(self.run.queries, wanted.queries, runner.manifest)
            sinks = wanted.sinks(self.sinks)
            plans = runner.steering.most_plans.plans
            renumbered = renumbered_predicates(self.run.queries, wanted.queries)
            kept = {
                name: plan
                for name, plan in plans.items()
                if name in wanted.queries.names and (name not in renumbered or "#" not in str(plan))
            }
            work = wanted.work(Plans(kept))
            options = wanted.options(wanted.late_rows())
            table = work.first_table(None)
            work.carrying().steering(table)  # raises if the new set could not start
            runner.leave()
            query.stop()
            runner.release(is_followed=True)
            with self._or_ended(handle):
                change = change_set(Store(self.checkpoint), self.run.queries, wanted.queries, table)
                started, fresh = wanted.begin(work, sinks, self.checkpoint, options)
            fresh.go_on_from(runner, QueriesChanged(fresh.round.batch, change.joined, change.left))
            handle.follow(started, fresh)
            self.run, self.sinks = wanted, dict(sinks)
            return change

    @contextmanager
    def _or_ended(self, handle: QueryHandle) -> Iterator[None]:
        """Ends the run on any failure inside: Spark's query has stopped, so waiting callers get the error."""
        try:
            yield
        except BaseException as error:
            handle.fail(
                error
                if isinstance(error, AnabranchError)
                else HostError(
                    "the run could not continue after a change",
                    detail=repr(error),
                    hint="start it again; its checkpoint is either that before the change or that after it",
                )
            )
            raise

    def _require_names(self) -> None:
        if ALONE in self.run.given:
            raise SpecError(
                "queries cannot be added to a query that runs alone",
                hint="start it with session.together(name=query.writeStream…), even if it is the only query",
            )
        if self.run.has_spark_elsewhere:
            raise SpecError(
                "cannot add or remove queries while 'spark_checkpoint' is set",
                hint="omit 'spark_checkpoint', so that both parts are in the checkpoint folder",
            )


def _is_same(running: Member, wanted: Member | None) -> bool:
    """Returns True when a query and its inputs are unchanged, apart from where its filters run."""
    if wanted is None:
        return False
    one, other = running.compiled.query, wanted.compiled.query
    moves = (one.text, one.inputs) == (other.text, other.inputs) and one.late_filters != other.late_filters
    return moves or one.fingerprint == other.fingerprint


def _listed(names: Collection[str]) -> str:
    return ", ".join(f"'{name}'" for name in names)


def moment(micros: int | None) -> datetime.datetime | None:
    """Returns an event time as a UTC datetime."""
    return None if micros is None else datetime.datetime.fromtimestamp(micros / 1e6, datetime.UTC)
