"""The handle of a running query: Spark's or a real-time run, plus Anabranch's plan, progress and history.

Every member behaves as in PySpark. Progress is Spark's own JSON, with Anabranch's entry for the batch under the key
`adaptive`. Anabranch errors are raised as themselves, not as Spark's wrapper text.

Limit: progress and report cover the last `spark.sql.streaming.numRecentProgressUpdates` triggers, and at most a
thousand batches. To follow a run, call `progressAfter` with the last batch: it reads only what is new.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from datetime import datetime
from html import escape
from threading import RLock
from typing import TYPE_CHECKING, Any, NoReturn, Protocol, TypeVar

from pyspark.errors import StreamingQueryException

from anabranch.errors import AnabranchError, MigrationError
from anabranch.lang.sizes import size_text
from anabranch.plan.mesh import Plan, parse_plan
from anabranch.plan.query_set import Plans, QuerySet
from anabranch.run.interrupts import noted_signals, takes_interrupts
from anabranch.run.progress import BatchProgress
from anabranch.spark.failure import damaged_log
from anabranch.spark.reports import Progress, has_batch, progress_of, run_report

T = TypeVar("T")
_EARLIER = 100
"""The number of triggers kept from before a change of queries; the same as Spark's default."""
_WAIT_SECONDS = 0.5
"""The interval between calls to Spark, so that an interrupt is noticed."""
_LOOK_SECONDS = 0.05
"""The polling interval while waiting for a plan change."""


class Runner(Protocol):
    """A running query in the driver, as the handle uses it."""

    is_ending: bool
    """True once the query, and perhaps Spark, is about to end; resulting errors of a batch are not failures."""

    @property
    def failure(self) -> BaseException | None:
        """The error of a batch that ended the query, if any."""

    @property
    def plan(self) -> Plan | Plans:
        """The plan of the latest batch; if slots differ, that of most slots."""

    @property
    def queries(self) -> QuerySet:
        """The running queries."""

    def migrate(
        self,
        plan: Plan,
        strategy: str = "auto",
        slots: Iterable[int] | None = None,
        *,
        box_by_box: bool = False,
        query: str | None = None,
    ) -> None:
        """Requests another plan, from the next batch on."""

    def share(self, join: str, queries: Iterable[str] | None) -> None:
        """Requests that queries share a join, from the next batch on."""

    def unshare(self, queries: Iterable[str] | None) -> None:
        """Requests that queries compute their joins separately, from the next batch on."""

    def move(self, groups: Iterable[int], to: int, strategy: str, most_rows: int | None) -> None:
        """Requests a move of partition groups to another slot, from the next batch on."""

    def scale(self, slots: int) -> None:
        """Requests another number of slots."""

    def split(self, value: Any, over: int | Sequence[int] | None, key: str | None) -> None:
        """Requests that the rows of a key value be split over several slots, from the next batch on."""

    def unite(self, value: Any, key: str | None) -> None:
        """Requests that the split of a key value be undone, from the next batch on."""

    def rebalance(self) -> None:
        """Requests a measured batch, followed by moves that balance the slots."""

    def abort_migration(self, query: str | None = None) -> None:
        """Reverts to the plans from before the running change, with the next batch."""

    def freeze(self, frozen: bool) -> None:
        """Disables or re-enables automatic plan changes."""

    def reconfigure(self, wanted: Mapping[str, Any], query: str | None = None) -> None:
        """Changes the policy, objective or limits of an adapting query."""

    @property
    def is_changing(self) -> bool:
        """True while a plan change is requested or in progress."""

    @property
    def is_calling(self) -> bool:
        """True in the thread of the current batch, which calls the listeners."""

    @property
    def has_answered(self) -> bool:
        """True if another run takes over from an event time on, and no older result can come."""

    def finish(self, least: int) -> int:
        """Makes the queries answer until an event time, at least the given one; returns it. Waits for the batch."""

    def history(self) -> list[dict[str, Any]]:
        """Returns the decisions and migrations since the checkpoint was created."""

    def progress(self, batch_id: int) -> BatchProgress | None:
        """Returns the progress entry of a batch, or None if it is no longer kept."""

    @property
    def latest_batch(self) -> int:
        """The latest batch with a progress entry; -1 before the first."""

    def newest(self) -> Iterator[tuple[int, Callable[[], str]]]:
        """Yields the batch number of recent triggers and a function that returns their JSON, newest first."""

    def leave(self) -> None:
        """Waits for the current batch; no further batch follows."""

    def release(self) -> None:
        """Releases the memory of the hot state after the query has ended; it can be rebuilt."""


class Triggered(Protocol):
    """One trigger of a query."""

    @property
    def batchId(self) -> int: ...

    @property
    def numInputRows(self) -> int: ...

    @property
    def json(self) -> str: ...


class Query(Protocol):
    """The execution of the batches, with the interface of PySpark's StreamingQuery: Spark's query or a real-time
    run.
    """

    @property
    def id(self) -> str: ...

    @property
    def runId(self) -> str: ...

    @property
    def name(self) -> str | None: ...

    @property
    def isActive(self) -> bool: ...

    @property
    def status(self) -> dict[str, Any]: ...

    @property
    def lastProgress(self) -> Triggered | None: ...

    @property
    def recentProgress(self) -> Sequence[Triggered]: ...

    def exception(self) -> AnabranchError | StreamingQueryException | None: ...

    def explain(self, extended: bool = False) -> None: ...

    def processAllAvailable(self) -> None: ...

    def awaitTermination(self, timeout: Any = None) -> bool | None: ...

    def stop(self) -> None: ...


class Changing(Protocol):
    """The set of queries of a run, which can change while it runs."""

    def add(self, handle: QueryHandle, name: str, writer: object) -> datetime | None:
        """Adds a query; returns the event time from which it produces results."""

    def remove(self, handle: QueryHandle, name: str) -> None:
        """Removes a query."""


_RENAMED = {"abort_migration": "abortMigration"}
_INTERNAL = frozenset(
    {
        "changes",
        "changing",
        "expect_end",
        "fail",
        "finish",
        "follow",
        "has_answered",
        "leaving",
        "queries",
        "raise_original",
    }
)
"""Members for the packages above; hidden from tab completion."""


class QueryHandle:
    """A continuous query that runs, or has run, on Spark.

    Examples
    --------
    >>> handle = query.writeStream.format("memory").queryName("pairs").start()  # doctest: +SKIP
    >>> handle.processAllAvailable()  # doctest: +SKIP
    >>> handle.lastProgress["adaptive"]["rowsOut"]  # doctest: +SKIP
    12
    >>> handle.stop()  # doctest: +SKIP
    """

    def __init__(self, query: Query, runner: Runner, changing: Changing | None = None) -> None:
        self._query = query
        self._runner = runner
        self._changing = changing
        self._earlier: list[Triggered] = []
        self._turn = RLock()
        """Held while the run changes or receives a request."""
        self._is_changing = False
        self._failure: AnabranchError | None = None
        self.changes = 0
        """The number of times that a new Spark query has replaced the previous one."""

    @property
    def id(self) -> str:
        """The identity of the query; a restart from its checkpoint keeps it."""
        return str(self._query.id)

    @property
    def runId(self) -> str:
        """The identity of this run."""
        return str(self._query.runId)

    @property
    def name(self) -> str | None:
        return self._query.name

    @property
    def isActive(self) -> bool:
        return self._is_changing or self._query.isActive

    @property
    def status(self) -> dict[str, Any]:
        """Spark's own status; for an Anabranch error, the message is its first line, without Java stacks."""
        status = dict(self._query.status)
        ended_by = None if self.isActive else self.exception()
        if isinstance(ended_by, AnabranchError):
            status["message"] = f"Terminated with exception: {str(ended_by).partition(chr(10))[0]}"
        return status

    @property
    def queries(self) -> QuerySet:
        """The bound queries that run; a single query is a set of one."""
        return self._runner.queries

    @property
    def has_answered(self) -> bool:
        """True if another run has taken over from an event time on, and no older result can come."""
        return self._runner.has_answered

    @property
    def plan(self) -> Plan | Plans:
        """The current plan; for named queries, the plan of each.

        If slots differ, the plan of most slots; `lastProgress["adaptive"]["plans"]` has the plan of each slot.
        """
        return self._runner.plan

    def migrate(
        self,
        plan: str | Plan,
        strategy: str = "auto",
        slots: Iterable[int] | None = None,
        box_by_box: bool = False,
        query: str | None = None,
    ) -> None:
        """Changes the plan while the query runs, from the next batch on; no result is lost, repeated or wrong.

        Parameters
        ----------
        plan
            A plan, or its text over the aliases of the query, such as `((a b) c)`.
        strategy
            `moving-state` (one longer batch computes the missing states), `spread` (missing states are filled over
            several batches while the old plan continues), `parallel-track` (both plans run side by side for one
            window), or `auto` for the cheapest.
        slots
            The slots to change; all by default.
        box_by_box
            Changes the parts in which the plans differ one after another, not all at once.
        query
            The name of the query to change, for queries that run together.

        Raises
        ------
        PlanError
            When the plan does not fit the query.
        MigrationError
            When a change is already in progress, the strategy cannot make this change, or the query has ended. The
            running plan continues.

        Examples
        --------
        >>> handle.migrate("(a (b c))", strategy="parallel-track")  # doctest: +SKIP
        """
        with self._in_force() as runner:
            runner.migrate(parse_plan(str(plan)), strategy, slots, box_by_box=box_by_box, query=query)

    def share(self, join: str, queries: Iterable[str] | None = None) -> None:
        """Makes queries that run together compute a join once for all of them, from the next batch on.

        Parameters
        ----------
        join
            The join as a plan text over relations that the queries have in common, such as `((a b) c)`.
        queries
            The names of the queries that share it; by default all that have these relations, except meshes.

        Raises
        ------
        BundleError
            When a query has no such relations, or the queries cannot share the join. Nothing changes.
        MigrationError
            When one of the queries is already changing its plan, or the queries have ended.

        Examples
        --------
        >>> handle.share("(o c)", queries=["alerts", "audits"])  # doctest: +SKIP
        """
        with self._in_force() as runner:
            runner.share(join, queries)

    def unshare(self, queries: Iterable[str] | None = None) -> None:
        """Makes all or the named queries compute their shared joins separately, from the next batch on."""
        with self._in_force() as runner:
            runner.unshare(queries)

    def move(
        self, groups: Iterable[int], to: int, strategy: str = "moving-state", most_rows: int | None = None
    ) -> None:
        """Moves partition groups to a slot while the query runs, from the next batch on; results do not change.

        Parameters
        ----------
        groups
            Numbers of partition groups; `lastProgress["adaptive"]["table"]` maps each to its slot.
        to
            The target slot.
        strategy
            `moving-state`: the target slot receives the rows of the groups. `parallel-track`: no rows move; for one
            window both slots process the groups, and each result comes from one of them.
        most_rows
            The maximum number of rows to move with one batch; larger moves are spread over several batches. The rows of
            the groups are counted in the next batch, and the move begins in the batch after it.

        Raises
        ------
        PlanError
            When there is no such group or slot, a move is in progress, or the query does not support the strategy.
            Nothing moves.

        Examples
        --------
        >>> handle.move(range(8), to=1)  # doctest: +SKIP
        """
        with self._in_force() as runner:
            runner.move(groups, to, strategy, most_rows)

    def scale(self, slots: int) -> None:
        """Changes the number of slots while the query runs, up to the maximum that it was started with.

        The load of the next batch is measured, and partition groups move with the batch after it.

        Raises
        ------
        PlanError
            When the query has fewer slots, or a move is in progress. Nothing moves.

        Examples
        --------
        >>> handle.scale(4)  # doctest: +SKIP
        """
        with self._in_force() as runner:
            runner.scale(slots)

    def split(self, value: Any, over: int | Sequence[int] | None = None, key: str | None = None) -> None:
        """Splits the rows of one key value over several slots, from the next batch on; results do not change.

        Parameters
        ----------
        value
            A key value whose load is too high for one slot.
        over
            The slots, or their number; all by default.
        key
            An expression of the key, such as `a.k`; required if the query has several keys.

        Raises
        ------
        PlanError
            When there is no such key, value or slot, the value is already split, or moves are already due with the next
            batch. Nothing changes.

        Examples
        --------
        >>> handle.split("ACME", over=4)  # doctest: +SKIP
        """
        with self._in_force() as runner:
            runner.split(value, over, key)

    def unite(self, value: Any, key: str | None = None) -> None:
        """Undoes the split of a key value, from the next batch on; results do not change."""
        with self._in_force() as runner:
            runner.unite(value, key)

    def rebalance(self) -> None:
        """Measures the load of the next batch, then moves partition groups to balance the slots.

        The history records which groups moved, or that the slots were already balanced.
        """
        with self._in_force() as runner:
            runner.rebalance()

    def awaitMigration(self, timeout: float | None = None) -> bool:
        """Waits until no plan change is requested or in progress; returns whether that is so.

        A change takes effect with a batch, so this needs arriving rows, or a `timeout` in seconds. The history records
        the outcome of the change.
        """
        end = None if timeout is None else time.perf_counter() + timeout
        while self.isActive and self._runner.is_changing:
            if end is not None and time.perf_counter() >= end:
                return False
            time.sleep(_LOOK_SECONDS)
        return not self._runner.is_changing

    def add(self, name: str, writer: object) -> datetime | None:
        """Adds a query to those that run together, over streams that they read; no other query misses a batch.

        Parameters
        ----------
        name
            A name that no query of the run has.
        writer
            The writer of the query, with its sink, as passed to `together`.

        Returns
        -------
        datetime
            The event time from which its results are complete; it emits no older ones. None if all are complete. If the
            state of the other queries has the rows that it needs, this is right after the newest row.

        Raises
        ------
        BundleError
            When it cannot be added: its name is taken, it reads another stream, or it cannot share its rows. The others
            continue.

        Examples
        --------
        >>> handle.add("alerts", alerts.writeStream.option("path", "out/alerts"))  # doctest: +SKIP
        """
        with self._in_force():
            return self._require_set().add(self, name, writer)

    def remove(self, name: str) -> None:
        """Removes a query from those that run together, and frees state that no other query needs.

        Raises
        ------
        BundleError
            When there is no such query, others read it, or it is the only one. All continue.
        """
        with self._in_force():
            self._require_set().remove(self, name)

    @property
    def changing(self) -> Changing | None:
        """The changeable set of queries; None for a run that cannot change."""
        return self._changing

    def _require_set(self) -> Changing:
        if self._changing is None:
            raise MigrationError("this run cannot be changed", hint="start its queries with session.together(…)")
        return self._changing

    def follow(self, query: Query, runner: Runner) -> None:
        """Attaches the handle to a new Spark query; keeps the earlier progress."""
        self._earlier = [*self._earlier, *self._query.recentProgress][-_EARLIER:]
        self._query, self._runner, self._failure = query, runner, None
        self.changes += 1

    @contextmanager
    def leaving(self) -> Iterator[tuple[Query, Runner]]:
        """Replaces the current Spark query inside the context: the run continues, and requests wait."""
        with self._turn:
            self._is_changing = True
            try:
                yield self._query, self._runner
            finally:
                self._is_changing = False

    def finish(self, least: int) -> int:
        """Makes the queries answer until an event time, at least the given one; returns it (`run/branching`)."""
        with self._in_force() as runner:
            return runner.finish(least)

    def fail(self, error: AnabranchError) -> None:
        """Records that the run ended because no new Spark query could start."""
        self._failure = error

    def expect_end(self) -> None:
        """Announces that the query will be ended externally, so that an interrupted batch is not a failure."""
        self._runner.is_ending = True

    def abortMigration(self, query: str | None = None) -> None:
        """Reverts, with the next batch, to the plan from before the running change."""
        with self._in_force() as runner:
            runner.abort_migration(query)

    def freeze(self, frozen: bool = True) -> None:
        """Disables automatic plan changes; decisions are still recorded."""
        with nullcontext() if self._runner.is_calling else self._turn:
            self._runner.freeze(frozen)

    def policy(self, policy: str, *, query: str | None = None, **settings: Any) -> None:
        """Changes when an adapting query looks for a better plan, as in `writer.adapt`; a restart keeps it.

        >>> handle.policy("periodic", every="10 seconds")  # doctest: +SKIP
        """
        self.reconfigure({"adapt": {"policy": policy, **settings}}, query=query)

    def objective(self, objective: str, *, query: str | None = None) -> None:
        """Changes what the plans of an adapting query optimize, from its next decision on; a restart keeps it."""
        self.reconfigure({"objective": objective}, query=query)

    def limits(self, *, cpu: float | None = None, memory: float | str | None = None, query: str | None = None) -> None:
        """Changes the limits of a slot for an adapting query, from its next decision on; a restart keeps them."""
        given = {name: value for name, value in (("cpu", cpu), ("memory", memory)) if value is not None}
        self.reconfigure({"limits": given}, query=query)

    def reconfigure(self, wanted: Mapping[str, Any], *, query: str | None = None) -> None:
        """Changes policy, objective and limits at once, written as in a spec: `{"adapt": …, "objective": …}`."""
        with self._in_force() as runner:
            runner.reconfigure(wanted, query)

    @property
    def history(self) -> list[dict[str, Any]]:
        """The decisions and migrations, oldest first, including those of earlier runs of the checkpoint."""
        return self._runner.history()

    @property
    def lastProgress(self) -> Progress | None:
        """The latest trigger, or None before the first."""
        latest = self._query.lastProgress or (self._earlier[-1] if self._earlier else None)
        return None if latest is None else self._progress(latest.json)

    @property
    def recentProgress(self) -> list[Progress]:
        """The latest triggers, oldest first."""
        return [self._progress(each.json) for each in (*self._earlier, *self._query.recentProgress)]

    def progressAfter(self, batch: int) -> list[Progress]:
        """Returns the latest triggers after a batch, oldest first; does not call Spark if there are none."""
        if self._runner.latest_batch <= batch:
            return []
        found: list[Progress] = []
        # Newest first, until a known one: a run has thousands of triggers, and few of them are new.
        for number, text in self._runner.newest():
            if number <= batch:
                return found[::-1]
            found.append(self._progress(text()))
        earlier = [self._progress(each.json) for each in self._earlier if each.batchId > batch]
        return [*earlier, *found[::-1]]

    def exception(self) -> AnabranchError | StreamingQueryException | None:
        """Returns the error that ended the query; None while it runs and after it was stopped."""
        if self._failure is not None:
            return self._failure
        outer = None if self._is_changing else self._query.exception()
        return self._original(outer) if isinstance(outer, StreamingQueryException) else outer

    def explain(self, extended: bool = False) -> None:
        """Prints the current plan, then Spark's plan of the latest batch."""
        print(f"== Anabranch plan ==\n{self.plan}")  # noqa: T201
        self._query.explain(extended)

    def processAllAvailable(self) -> None:
        """Blocks until all data currently available in the sources is in the sink; for tests and demos."""
        with self._own_errors():
            self._wait(lambda query: query.processAllAvailable())

    def awaitTermination(self, timeout: float | None = None) -> bool | None:
        """Waits for the end and raises its error; with a timeout in seconds, returns whether the query ended.

        Ctrl-C ends the query after the current batch, then raises `KeyboardInterrupt`; a second Ctrl-C raises it
        immediately.
        """
        end = None if timeout is None else time.perf_counter() + timeout

        def wait(query: Query) -> bool | None:
            while True:
                left = _WAIT_SECONDS if end is None else min(_WAIT_SECONDS, end - time.perf_counter())
                # PySpark's annotation says int, but its code accepts fractions of a second.
                if query.awaitTermination(max(0.001, left)):
                    return None if end is None else True
                if interrupted.is_set():
                    raise KeyboardInterrupt
                if end is not None and time.perf_counter() >= end:
                    return False

        try:
            with self._own_errors(), noted_signals(*([signal.SIGINT] if takes_interrupts() else [])) as interrupted:
                return self._wait(wait)
        except KeyboardInterrupt:
            self.stop()
            raise
        finally:
            if not self.isActive:
                self._runner.release()

    def stop(self) -> None:
        """Stops the query after the current batch; its checkpoint remains valid for a restart."""
        self.expect_end()
        with self._turn:
            try:
                if not self._runner.is_calling:
                    self._runner.leave()
                self._query.stop()
            finally:
                self._runner.release()

    def _wait(self, wait: Callable[[Query], T]) -> T:
        """Waits on Spark's query; if a new one replaces it meanwhile, waits on that one."""
        while True:
            query = self._query
            try:
                found = wait(query)
            except StreamingQueryException:
                # Spark's old query may have begun a batch that no longer belongs to it.
                if not self._has_left(query):
                    raise
                continue
            if not self._has_left(query):
                return found

    def _has_left(self, query: Query) -> bool:
        with self._turn:
            if self._failure is not None:
                raise self._failure
            return self._query is not query

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> NoReturn:
            now = f"; it is now '{_RENAMED[name]}'" if name in _RENAMED else ""
            raise AttributeError(f"a query handle has no attribute '{name}'{now}")

    def __dir__(self) -> list[str]:
        return [name for name in super().__dir__() if name not in _INTERNAL]

    def __repr__(self) -> str:
        latest = self.lastProgress
        batch = "no batch yet" if latest is None else f"batch {latest['batchId']}"
        state = "running" if self.isActive else "ended"
        return f"QueryHandle({self.name or self.id}: {state}, {batch}, plan {self.plan})"

    def _repr_html_(self) -> str:
        """Renders the query as a small table, for notebooks."""
        latest = self.lastProgress
        ours = None if latest is None else latest["adaptive"]
        rows = {"state": "running" if self.isActive else "ended", "plan": str(self.plan)}
        if latest is not None:
            rows["batch"] = f"{latest['batchId']}, {latest['durationMs'].get('triggerExecution', 0) / 1000:.2f} s"
        if ours is not None:
            rows |= {
                "rows in": f"{sum(ours['rowsIn'].values()):,}",
                "results": f"{ours['rowsOut']:,}",
                "late rows": f"{sum(ours['lateRows'].values()):,}",
                "state rows": f"{ours['stateRows']:,} ({size_text(ours['stateBytes'])})",
                "skew": f"{ours['skew']:.2f} over {ours['slots']} slots",
            }
        cells = "".join(f"<tr><th>{escape(name)}</th><td>{escape(value)}</td></tr>" for name, value in rows.items())
        return f"<table><caption>{escape(self.name or self.id)}</caption>{cells}</table>"

    def report(self) -> dict[str, Any]:
        """Returns the run in numbers: rows, late rows, time per batch (Spark's part and ours), state, plan.

        For queries that run together, `queries` has the results of each.
        """
        triggers = [progress for progress in self.recentProgress if has_batch(progress)]
        ours = [self._runner.progress(progress["batchId"]) for progress in triggers]
        failure = self.exception()
        return {
            "id": self.id,
            "name": self.name,
            "plan": str(self.plan),
            **run_report(triggers, ours),
            "error": None if failure is None else str(failure),
        }

    @contextmanager
    def _in_force(self) -> Iterator[Runner]:
        """Yields the runner of a running query; waits while the query set changes.

        A change waits for the current batch, so a request from a listener takes effect before it.
        """
        with nullcontext() if self._runner.is_calling else self._turn:
            if not self.isActive:
                raise MigrationError(
                    "the query has ended, so its plan cannot change",
                    hint="start it again, with that plan if wanted; its checkpoint accepts any plan",
                )
            yield self._runner

    def _progress(self, spark: str) -> Progress:
        return progress_of(spark, self._runner.progress)

    def raise_original(self, outer: StreamingQueryException) -> NoReturn:
        """Raises the Anabranch error behind Spark's wrapper, or else Spark's error."""
        original = self._original(outer)
        raise original from original.__cause__

    def _original(self, outer: StreamingQueryException) -> AnabranchError | StreamingQueryException:
        failure = self._runner.failure or damaged_log(outer)
        if not isinstance(failure, AnabranchError):
            return outer
        if failure.__cause__ is None:
            failure.__cause__ = outer
        return failure

    @contextmanager
    def _own_errors(self) -> Iterator[None]:
        try:
            yield
        except StreamingQueryException as outer:
            self.raise_original(outer)
