"""The handle of a running query: Spark's StreamingQuery, with the plan, the progress and the history of ours.

Every member behaves as in PySpark. Progress is Spark's own JSON, with our entry for the batch under the key `adaptive`.
An error of ours is raised as itself, not as the text that Spark wraps it in.

Limit: progress and report reach back as far as Spark does, `spark.sql.streaming.numRecentProgressUpdates` triggers, and
at most a thousand batches. Whoever follows a run asks for `progressAfter` a batch: it reads only what is new.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from datetime import datetime
from html import escape
from threading import RLock
from typing import Any, NoReturn, Protocol, TypeVar

from pyspark.errors import StreamingQueryException
from pyspark.sql.streaming.listener import StreamingQueryProgress
from pyspark.sql.streaming.query import StreamingQuery

from anabranch.errors import AnabranchError, MigrationError
from anabranch.lang.sizes import size_text
from anabranch.plan.mesh import Plan
from anabranch.plan.query_set import Plans, QuerySet
from anabranch.run.interrupts import noted_signals, takes_interrupts
from anabranch.run.progress import BatchProgress
from anabranch.spark.failure import damaged_log
from anabranch.spark.reports import Progress, has_batch, progress_of, run_report

T = TypeVar("T")
_EARLIER = 100
"""As many triggers of before a change of queries are remembered as Spark remembers by itself."""
_WAIT_SECONDS = 0.5
"""Spark is asked at least so often, so that an interrupt is noticed."""
_LOOK_SECONDS = 0.05
"""Between two looks at a change of plan that is awaited."""


class Runner(Protocol):
    """The driver's side of a running query, as its handle sees it."""

    is_ending: bool
    """Whether the query, and perhaps Spark, is about to end: what that does to a batch is no failure."""

    @property
    def failure(self) -> BaseException | None:
        """The error of a batch that ended the query, if there is one."""

    @property
    def plan(self) -> Plan | Plans:
        """The plan of the latest batch, or the one that most slots had."""

    @property
    def queries(self) -> QuerySet:
        """The queries that run."""

    def migrate(
        self, plan: str, strategy: str, slots: Iterable[int] | None, box_by_box: bool, query: str | None = None
    ) -> None:
        """Asks for another plan, which the next batch has."""

    def share(self, join: str, queries: Iterable[str] | None) -> None:
        """Asks for queries to share a join, from the next batch on."""

    def unshare(self, queries: Iterable[str] | None) -> None:
        """Asks for queries to compute their joins themselves, from the next batch on."""

    def move(self, groups: Iterable[int], to: int, strategy: str, most_rows: int | None) -> None:
        """Asks for partition groups to be in another slot from the next batch on."""

    def scale(self, slots: int) -> None:
        """Asks for another number of slots."""

    def split(self, value: Any, over: int | Sequence[int] | None, key: str | None) -> None:
        """Asks for the rows of a key value to be spread over several slots from the next batch on."""

    def unite(self, value: Any, key: str | None) -> None:
        """Asks for the rows of a key value to be in one place again from the next batch on."""

    def rebalance(self) -> None:
        """Asks for a measured batch, and for moves that even out the slots after it."""

    def abort_migration(self, query: str | None = None) -> None:
        """Goes back to the plans from before the change under way, with the next batch."""

    def freeze(self, frozen: bool) -> None:
        """Keeps the query from changing its plan by itself, or lets it again."""

    @property
    def is_changing(self) -> bool:
        """True while a change of plan is asked for or under way."""

    @property
    def is_calling(self) -> bool:
        """True in the thread of a batch at hand, which calls the listeners."""

    def history(self) -> list[dict[str, Any]]:
        """Decisions and migrations since the checkpoint was new."""

    def progress(self, batch_id: int) -> BatchProgress | None:
        """The progress entry of a batch that ran, or None when it is not known any more."""

    @property
    def latest_batch(self) -> int:
        """The latest batch with a progress entry; -1 before the first."""

    def leave(self) -> None:
        """Waits for the batch at hand; no other follows."""

    def release(self) -> None:
        """Gives back the memory of the hot state once the query has ended; it can be rebuilt."""


class Changing(Protocol):
    """The queries of a run, as they change while it runs."""

    def add(self, handle: QueryHandle, name: str, writer: object) -> datetime | None:
        """Lets a query join; returns the event time from which on it answers."""

    def remove(self, handle: QueryHandle, name: str) -> None:
        """Lets a query leave."""


class QueryHandle:
    """A continuous query that runs, or ran, on Spark.

    Examples
    --------
    >>> handle = query.writeStream.format("memory").queryName("pairs").start()  # doctest: +SKIP
    >>> handle.processAllAvailable()  # doctest: +SKIP
    >>> handle.lastProgress["adaptive"]["rowsOut"]  # doctest: +SKIP
    12
    >>> handle.stop()  # doctest: +SKIP
    """

    def __init__(self, query: StreamingQuery, runner: Runner, changing: Changing | None = None) -> None:
        self._query = query
        self._runner = runner
        self._changing = changing
        self._earlier: list[StreamingQueryProgress] = []
        self._turn = RLock()
        """Held while the run changes, or is asked to."""
        self._is_changing = False
        self._failure: AnabranchError | None = None
        self.changes = 0
        """How often another run of Spark has followed."""

    @property
    def id(self) -> str:
        """The identity of the query, the same after a restart from its checkpoint."""
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
        """Spark's own status; for an error of ours the message is its first line, without Java stacks."""
        status = dict(self._query.status)
        ended_by = None if self.isActive else self.exception()
        if isinstance(ended_by, AnabranchError):
            status["message"] = f"Terminated with exception: {str(ended_by).partition(chr(10))[0]}"
        return status

    @property
    def queries(self) -> QuerySet:
        """The bound queries that run; a query that runs alone is a set of one."""
        return self._runner.queries

    @property
    def plan(self) -> Plan | Plans:
        """The plan in force; of named queries, that of each.

        Where slots differ, the plan that most of them have; `lastProgress["adaptive"]["plans"]` has that of each slot.
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
            `moving-state` (one longer batch, in which states that are lacking are computed), `spread` (they are filled
            over several batches, while the old plan goes on), `parallel-track` (both
            plans run side by side for a window), or `auto` for what costs least.
        slots
            The slots to change, when not all.
        box_by_box
            Change the parts in which the plans differ one after another, not all at once.
        query
            Of queries that run together, the name of the one whose plan is to change.

        Raises
        ------
        PlanError
            When the plan does not fit the query.
        MigrationError
            When a change is under way already, the strategy cannot serve this one, or the query has ended. The running
            plan goes on.

        Examples
        --------
        >>> handle.migrate("(a (b c))", strategy="parallel-track")  # doctest: +SKIP
        """
        with self._in_force() as runner:
            runner.migrate(str(plan), strategy, slots, box_by_box, query)

    def share(self, join: str, queries: Iterable[str] | None = None) -> None:
        """Lets queries that run together compute a join once for all of them, from the next batch on.

        Parameters
        ----------
        join
            The join as the text of a plan over relations that the queries have in common, such as `((a b) c)`.
        queries
            The names of the queries that share it; all that have these relations when None, meshes left out.

        Raises
        ------
        BundleError
            When a query has no such relations, or the queries cannot share the join. Nothing changes.
        MigrationError
            When one of the queries is changing its plan already, or the queries have ended.

        Examples
        --------
        >>> handle.share("(o c)", queries=["alerts", "audits"])  # doctest: +SKIP
        """
        with self._in_force() as runner:
            runner.share(join, queries)

    def unshare(self, queries: Iterable[str] | None = None) -> None:
        """Lets queries compute their shared joins themselves, from the next batch on: all, or those that are named."""
        with self._in_force() as runner:
            runner.unshare(queries)

    def move(
        self, groups: Iterable[int], to: int, strategy: str = "moving-state", most_rows: int | None = None
    ) -> None:
        """Moves partition groups to a slot while the query runs, from the next batch on; no result changes.

        Parameters
        ----------
        groups
            Numbers of partition groups; `lastProgress["adaptive"]["table"]` has the slot of each.
        to
            The slot that takes them over.
        strategy
            `moving-state`: the slot takes over the rows of the groups. `parallel-track`: it takes over nothing; for one
            window both slots work on the groups, and each result comes from one of them.
        most_rows
            The rows that may be taken over with one batch: a larger move is spread over several batches. The rows of
            the groups are counted with the next batch, and the move begins with the one after it.

        Raises
        ------
        PlanError
            When there is no such group or slot, a move is under way, or the strategy cannot serve the query. Nothing
            moves.

        Examples
        --------
        >>> handle.move(range(8), to=1)  # doctest: +SKIP
        """
        with self._in_force() as runner:
            runner.move(groups, to, strategy, most_rows)

    def scale(self, slots: int) -> None:
        """Uses another number of slots while the query runs: the first ones, up to the most that it was started with.

        The load of the next batch is measured, and partition groups move with the batch after it.

        Raises
        ------
        PlanError
            When the query has fewer slots than that, or a move is under way. Nothing moves.

        Examples
        --------
        >>> handle.scale(4)  # doctest: +SKIP
        """
        with self._in_force() as runner:
            runner.scale(slots)

    def split(self, value: Any, over: int | Sequence[int] | None = None, key: str | None = None) -> None:
        """Spreads the rows of one key value over several slots, from the next batch on; no result changes.

        Parameters
        ----------
        value
            A value of the key that alone is too much for a slot.
        over
            The slots, or how many of them; all when None.
        key
            An expression that the key compares, such as `a.k`; needed where the query has several keys.

        Raises
        ------
        PlanError
            When there is no such key, value or slot, the value is split already, or groups are to move with the next
            batch already. Nothing changes.

        Examples
        --------
        >>> handle.split("ACME", over=4)  # doctest: +SKIP
        """
        with self._in_force() as runner:
            runner.split(value, over, key)

    def unite(self, value: Any, key: str | None = None) -> None:
        """Takes the split of a key value back, from the next batch on; no result changes."""
        with self._in_force() as runner:
            runner.unite(value, key)

    def rebalance(self) -> None:
        """Measures the load of the next batch, then moves partition groups so that no slot holds the others back.

        The history says which groups moved, or that the slots were even enough.
        """
        with self._in_force() as runner:
            runner.rebalance()

    def awaitMigration(self, timeout: float | None = None) -> bool:
        """Waits until no change of plan is asked for or under way; returns whether that is so.

        A change takes effect with a batch, so this needs rows that arrive, or a `timeout` in seconds. The history says
        how the change ended.
        """
        end = None if timeout is None else time.perf_counter() + timeout
        while self.isActive and self._runner.is_changing:
            if end is not None and time.perf_counter() >= end:
                return False
            time.sleep(_LOOK_SECONDS)
        return not self._runner.is_changing

    def add(self, name: str, writer: object) -> datetime | None:
        """Lets a query join those that run together, over streams that they read; no other query misses a batch.

        Parameters
        ----------
        name
            A name that no query of the run has.
        writer
            The writer of the query, with its sink, as `together` takes it.

        Returns
        -------
        datetime
            The event time from which on its answer is complete; it gives no older results. None when it is complete.
            Where the rows that it needs are in the state of the others, that is right after the newest row.

        Raises
        ------
        BundleError
            When it cannot join: its name is taken, it reads another stream, or it cannot share its rows. The others go
            on.

        Examples
        --------
        >>> handle.add("alerts", alerts.writeStream.option("path", "out/alerts"))  # doctest: +SKIP
        """
        with self._in_force():
            return self._require_set().add(self, name, writer)

    def remove(self, name: str) -> None:
        """Lets a query leave those that run together; what nobody else needs of its rows is given back.

        Raises
        ------
        BundleError
            When there is no such query, others read it, or it is the only one. All go on.
        """
        with self._in_force():
            self._require_set().remove(self, name)

    @property
    def changing(self) -> Changing | None:
        """The queries of the run and how they change; None for a run that cannot change."""
        return self._changing

    def _require_set(self) -> Changing:
        if self._changing is None:
            raise MigrationError("this run cannot be changed", hint="start its queries with session.together(…)")
        return self._changing

    def follow(self, query: StreamingQuery, runner: Runner) -> None:
        """Goes on as the handle of another run of Spark; the progress so far stays."""
        self._earlier = [*self._earlier, *self._query.recentProgress][-_EARLIER:]
        self._query, self._runner, self._failure = query, runner, None
        self.changes += 1

    @contextmanager
    def leaving(self) -> Iterator[tuple[StreamingQuery, Runner]]:
        """Held while Spark's query ends and another follows: the run goes on, and whoever asks for something waits."""
        with self._turn:
            self._is_changing = True
            try:
                yield self._query, self._runner
            finally:
                self._is_changing = False

    def fail(self, error: AnabranchError) -> None:
        """Takes in that the run has ended because nothing could follow."""
        self._failure = error

    def expect_end(self) -> None:
        """Notes that the query is about to be ended from outside, so that an interrupted batch is not a failure."""
        self._runner.is_ending = True

    def abort_migration(self, query: str | None = None) -> None:
        """Goes back, with the next batch, to the plan from before the change that is under way."""
        with self._in_force() as runner:
            runner.abort_migration(query)

    def freeze(self, frozen: bool = True) -> None:
        """Keeps the query from changing its plan by itself; its decisions are still recorded."""
        with nullcontext() if self._runner.is_calling else self._turn:
            self._runner.freeze(frozen)

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
        """The latest triggers after a batch, oldest first; without new ones Spark is not even asked."""
        if self._runner.latest_batch <= batch:
            return []
        found: list[Progress] = []
        # The newest first, until one is known: a run has thousands of triggers, and few of them are new.
        of_java = self._query._jsq.recentProgress()
        for place in range(len(of_java) - 1, -1, -1):
            each = of_java[place]
            if each.batchId() <= batch:
                return found[::-1]
            found.append(self._progress(each.json()))
        earlier = [self._progress(each.json) for each in self._earlier if each.batchId > batch]
        return [*earlier, *found[::-1]]

    def exception(self) -> AnabranchError | StreamingQueryException | None:
        """The error that ended the query; None while it runs and after it was stopped."""
        if self._failure is not None:
            return self._failure
        outer = None if self._is_changing else self._query.exception()
        return None if outer is None else self._original(outer)

    def explain(self, extended: bool = False) -> None:
        """Prints the plan in force, then Spark's plan of the latest batch."""
        print(f"== Anabranch plan ==\n{self.plan}")  # noqa: T201
        self._query.explain(extended)

    def processAllAvailable(self) -> None:
        """Returns when all data that the sources have now is in the sink; for tests and demos."""
        with self._own_errors():
            self._wait(lambda query: query.processAllAvailable())

    def awaitTermination(self, timeout: float | None = None) -> bool | None:
        """Waits for the end and raises its error; with a timeout in seconds, returns whether the query ended.

        Ctrl-C ends the query after the batch at hand, then raises `KeyboardInterrupt`; a second one does so at once.
        """
        end = None if timeout is None else time.perf_counter() + timeout

        def wait(query: StreamingQuery) -> bool | None:
            while True:
                left = _WAIT_SECONDS if end is None else min(_WAIT_SECONDS, end - time.perf_counter())
                # PySpark's own annotation says int; its code takes fractions of a second.
                if query.awaitTermination(max(0.001, left)):  # type: ignore[arg-type]
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
        """Ends the query after the batch at hand; its checkpoint stays good for a restart."""
        self.expect_end()
        with self._turn:
            try:
                if not self._runner.is_calling:
                    self._runner.leave()
                self._query.stop()
            finally:
                self._runner.release()

    def _wait(self, wait: Callable[[StreamingQuery], T]) -> T:
        """Waits for something of Spark's query; if another follows it meanwhile, of that one."""
        while True:
            query = self._query
            try:
                found = wait(query)
            except StreamingQueryException:
                # Spark's query may have begun a batch that was no longer its own.
                if not self._has_left(query):
                    raise
                continue
            if not self._has_left(query):
                return found

    def _has_left(self, query: StreamingQuery) -> bool:
        with self._turn:
            if self._failure is not None:
                raise self._failure
            return self._query is not query

    def __repr__(self) -> str:
        latest = self.lastProgress
        batch = "no batch yet" if latest is None else f"batch {latest['batchId']}"
        state = "running" if self.isActive else "ended"
        return f"QueryHandle({self.name or self.id}: {state}, {batch}, plan {self.plan})"

    def _repr_html_(self) -> str:
        """The query as a small table, for notebooks."""
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
        """The run so far in numbers: rows, late rows, time per batch split into Spark's part and ours, state, plan.

        Of queries that run together, `queries` has the results of each.
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
        """The driver's side of a query that runs; while it changes, one waits.

        A change waits for the batch at hand, so what a listener asks for comes before it.
        """
        with nullcontext() if self._runner.is_calling else self._turn:
            if not self.isActive:
                raise MigrationError(
                    "the query has ended, so its plan cannot change",
                    hint="start it again, with that plan if you like; its checkpoint takes any",
                )
            yield self._runner

    def _progress(self, spark: str) -> Progress:
        return progress_of(spark, self._runner.progress)

    def raise_original(self, outer: StreamingQueryException) -> NoReturn:
        """Raises the error of ours that Spark reports in its own words, or else Spark's."""
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
