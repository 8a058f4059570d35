"""The settings of a query to start, said one by one as in PySpark; `start` checks them together and starts it.

Nothing is touched before `start`: neither the checkpoint nor the sink.
"""

from __future__ import annotations

import atexit
import shutil
import tempfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from anabranch.adapt.settings import Settings
from anabranch.api.durations import read_duration, read_timeout
from anabranch.choosing import AUTO, DEFAULT_BATCH, PLAN_WORDS, Wishes, decide, first_plan, learns, means
from anabranch.errors import SpecError
from anabranch.host.clock import IDLE_TIMEOUT
from anabranch.host.meshing import Staging
from anabranch.host.sample import Sample
from anabranch.host.spark import session as spark_host
from anabranch.host.spark.handle import QueryHandle
from anabranch.host.spark.runner import Changes, Listener, start_query
from anabranch.host.spark.sink import ForeachBatchSink, Sink, TableSink, make_sink, require_columns
from anabranch.host.steering import Switch
from anabranch.optimize import Choice
from anabranch.plan.execution import DEFAULT_EXECUTION, execution_model
from anabranch.plan.mesh import parse_plan
from anabranch.window import parse_duration

if TYPE_CHECKING:
    from anabranch.api.query import ContinuousQuery

_WITHOUT_PLACE = frozenset({"memory", "console", "noop"})
"""Sinks of which nothing outlives the session, so that a checkpoint of their own need not either."""


class ContinuousQueryWriter:
    """Settings of a query to start, in the manner of PySpark's DataStreamWriter.

    Examples
    --------
    >>> handle = (
    ...     query.writeStream.format("parquet")
    ...     .option("checkpointLocation", "checkpoint")
    ...     .trigger(processingTime="2 seconds")
    ...     .plan("((a b) c)")
    ...     .start("out")
    ... )  # doctest: +SKIP
    """

    def __init__(self, query: ContinuousQuery) -> None:
        self._query = query
        self._format: str | None = None
        self._options: dict[str, str] = {}
        self._name: str | None = None
        self._trigger: dict[str, Any] = {"processingTime": "0 seconds"}
        self._partition_by: tuple[str, ...] = ()
        self._wishes = AUTO
        self._slots: int | None = None
        self._idle_timeout = IDLE_TIMEOUT
        self._execution = DEFAULT_EXECUTION
        self._function: Callable[[spark_host.DataFrame, int], None] | None = None
        self._adapt: Settings | None = None
        self._switches: tuple[Switch, ...] = ()
        self._listeners: tuple[Listener, ...] = ()

    def format(self, source: str) -> ContinuousQueryWriter:
        """The sink: any format of a Spark batch writer, `memory` or `console`; parquet when not set."""
        self._format = source
        return self

    def option(self, key: str, value: object) -> ContinuousQueryWriter:
        """One option of the sink; `checkpointLocation` is where the query keeps its state."""
        self._options[key] = str(value).lower() if isinstance(value, bool) else str(value)
        return self

    def options(self, **options: object) -> ContinuousQueryWriter:
        """Several options at once."""
        for key, value in options.items():
            self.option(key, value)
        return self

    def outputMode(self, outputMode: str) -> ContinuousQueryWriter:
        """Only `append`: each result is emitted once and never taken back."""
        if outputMode.lower() != "append":
            raise SpecError(f"output mode '{outputMode}' is not known", hint="use 'append', or leave it out")
        return self

    def queryName(self, queryName: str) -> ContinuousQueryWriter:
        """The name of the query, and of the table of a memory sink."""
        if not queryName.strip():
            raise SpecError("the name of a query is empty", hint="give it a name, or leave it out")
        self._name = queryName
        return self

    def trigger(self, *, processingTime: str | None = None, availableNow: bool | None = None) -> ContinuousQueryWriter:
        """Either a micro-batch every `processingTime`, or all data there is now and then the end."""
        match processingTime, availableNow:
            case str(), None | False:
                read_duration(processingTime, "the trigger's processing time", SpecError)
                self._trigger = {"processingTime": processingTime}
            case None, True:
                self._trigger = {"availableNow": True}
            case _:
                raise SpecError(
                    "a trigger needs exactly one of processingTime and availableNow",
                    hint="write trigger(processingTime='2 seconds') or trigger(availableNow=True)",
                )
        return self

    def partitionBy(self, *columns: str) -> ContinuousQueryWriter:
        """The columns whose values become folders of a file sink or partitions of a table."""
        self._partition_by = columns
        return self

    def plan(self, choice: str) -> ContinuousQueryWriter:
        """The plan to run, as in `ContinuousQuery.plan`; a restart from a checkpoint may name another."""
        self._wishes = replace(self._wishes, plan=choice)
        return self

    def limits(self, *, cpu: float | None = None, memory: float | str | None = None) -> ContinuousQueryWriter:
        """Cores and bytes (a number, or a text such as `500 MB`) that each slot may use; no plan beyond them runs."""
        self._wishes = self._wishes.with_limits(cpu, memory)
        return self

    def objective(self, text: str) -> ContinuousQueryWriter:
        """What the best plan is best at: `qualified`, `cpu`, `memory`, `rate@30 seconds` or `first@1000`."""
        self._wishes = self._wishes.with_objective(text)
        return self

    def hints(
        self, *, force: str | None = None, keep: Iterable[str] = (), forbid: Iterable[str] = ()
    ) -> ContinuousQueryWriter:
        """Shapes and orders that the plan must or must not have.

        Parameters
        ----------
        force
            A family (`mjoin`, `tree`, `jtree`) or a plan text.
        keep
            Joins that must be kept as states, such as `o p`.
        forbid
            Families, joins such as `(o p)`, or probe orders such as `(o p s | o>p>s)`.
        """
        self._wishes = self._wishes.with_hints(force, keep, forbid)
        return self

    def stats(self, entries: Mapping[str, object]) -> ContinuousQueryWriter:
        """What is known of the streams: `rates`, `filters`, `selectivities`, `bytes` and `costs`, as in a spec."""
        self._wishes = self._wishes.with_stats(entries)
        return self

    def wishes(self, wishes: Wishes) -> ContinuousQueryWriter:
        """All that is wished about the plan at once, in place of what was said before."""
        self._wishes = wishes
        return self

    @property
    def query(self) -> ContinuousQuery:
        """The query that these settings are for."""
        return self._query

    def choice(self) -> Choice:
        """The plan that these settings lead to, with the numbers it rests on and every plan it was chosen from."""
        query = self._query
        sample = query._sampled if self._wishes.need_statistics(query._query) else Sample()
        interval = parse_duration(self._trigger.get("processingTime", "0 seconds")) / 1e6
        return decide(
            query._query,
            self._wishes,
            slots=self._slot_count,
            batch=interval or DEFAULT_BATCH,
            seen=sample.statistics,
            learn=query._learn_mesh if sample.rows else None,
            gate=(self._adapt or Settings()).gate,
        )

    def explanation(self, stage: str = "choice") -> str:
        """One stage on the way to the plan that these settings lead to; see `ContinuousQuery.explanation`."""
        return self._query._explanation.text(stage, self.choice)

    def slots(self, count: int) -> ContinuousQueryWriter:
        """How many tasks share the work; a restart from a checkpoint may name another number."""
        if count < 1:
            raise SpecError(f"{count} slots cannot run a query", hint="use one slot or more")
        self._slots = count
        return self

    def idleTimeout(self, timeout: str) -> ContinuousQueryWriter:
        """The idle timeout of the streams that were registered without one; `none` to wait for ever."""
        read_timeout(timeout, "of the query", SpecError)
        self._idle_timeout = timeout
        return self

    def execution(self, model: str) -> ContinuousQueryWriter:
        """What waits for what: `un-synchronised`, `semi-synchronised` or `totally-synchronised`.

        The last two give results in order of event time, within each batch or from first to last, slot by slot.
        """
        self._execution = execution_model(model)
        return self

    def adapt(self, **settings: object) -> ContinuousQueryWriter:
        """Lets the query change its plan by itself when what it measures says that another one is better.

        Parameters
        ----------
        settings
            As in a spec's `adapt:` block: `policy`, `every`, `gate`, `strategy`, `freeze`, `scope`, and what the policy
            takes. Without any, statistics are compared every ten batches.

        A restart from the checkpoint goes on with the plan of the last batch, unless a plan is written out.

        Examples
        --------
        >>> writer.adapt(policy="periodic", every="10 seconds", gate={"ratio": 1.5})  # doctest: +SKIP
        """
        self._adapt = Settings.from_mapping(settings)
        return self

    def switch(self, at_batch: int, plan: str, strategy: str = "auto") -> ContinuousQueryWriter:
        """Changes the plan at a batch that is known beforehand; may be said several times."""
        self._switches = (*self._switches, Switch(at_batch, parse_plan(plan), strategy))
        return self

    def onChange(self, listener: Listener) -> ContinuousQueryWriter:
        """Calls a function in the driver with every decision and every migration, as a mapping that JSON can hold."""
        self._listeners = (*self._listeners, listener)
        return self

    def foreachBatch(self, function: Callable[[spark_host.DataFrame, int], None]) -> ContinuousQueryWriter:
        """Hands each batch to a function instead of a format; it must give the same outcome when called again."""
        self._function = function
        return self

    def start(self, path: str | None = None) -> QueryHandle:
        """Starts the query.

        Parameters
        ----------
        path
            Where a file sink writes.

        Raises
        ------
        SpecError
            When a setting is missing or contradicts another.
        PlanError
            When the plan, or a hint, does not fit the query.
        NoFeasiblePlan
            When no plan keeps within the limits; nothing has been started.
        CheckpointError
            When the checkpoint belongs to another query or is damaged; it is left as it is.
        """
        spark = self._query._session.spark
        checkpoint = self._checkpoint()
        if self._function is not None:
            if self._format is not None or path is not None:
                raise SpecError("a query has both a format and a foreachBatch function", hint="leave one of them out")
            return self._start(ForeachBatchSink(self._function), checkpoint)
        sink = make_sink(
            self._sink_format,
            self._sink_options,
            spark=spark,
            schema=self._query.schema,
            name=self._name,
            path=path,
            partition_by=self._partition_by,
        )
        return self._start(sink, checkpoint)

    def toTable(self, tableName: str) -> QueryHandle:
        """Starts the query into a table of Spark's catalog, which is made when it is not there."""
        require_columns(self._partition_by, self._query.schema)
        sink = TableSink(
            tableName, self._query._session.spark, self._format, self._sink_options, partition_by=self._partition_by
        )
        return self._start(sink, self._checkpoint())

    def _start(self, sink: Sink, checkpoint: str) -> QueryHandle:
        query = self._query
        choice = self.choice()
        is_learning = learns(self._wishes, choice)
        running, runner = start_query(
            spark=query._session.spark,
            query=query._query,
            plan=first_plan(choice),
            frames={name: stream.frame for name, stream in query._streams.items()},
            declarations={name: stream.declaration for name, stream in query._streams.items()},
            sink=sink,
            checkpoint=checkpoint,
            slots=self._slot_count,
            trigger=self._trigger,
            name=self._name,
            idle_timeouts=self._idle_timeouts(),
            execution=self._execution,
            changes=Changes(
                self._adapt,
                means(query._query, self._wishes, slots=self._slot_count),
                self._switches,
                self._listeners,
                goes_on=is_learning or (self._adapt is not None and self._wishes.plan in PLAN_WORDS),
                staging=Staging() if is_learning else None,
            ),
        )
        handle = QueryHandle(running, runner)
        query._session.streams.add(handle)
        return handle

    @property
    def _slot_count(self) -> int:
        return self._slots or int(self._query._session.spark.sparkContext.defaultParallelism)

    @property
    def _sink_format(self) -> str:
        return self._format or "parquet"

    @property
    def _sink_options(self) -> Mapping[str, str]:
        return {key: value for key, value in self._options.items() if key.lower() != "checkpointlocation"}

    def _idle_timeouts(self) -> dict[str, int | None]:
        return {
            name: read_timeout(stream.idle_timeout or self._idle_timeout, f"of stream '{name}'", SpecError)
            for name, stream in self._query._streams.items()
        }

    def _checkpoint(self) -> str:
        """The given place, else one below the session's, else a temporary one for sinks that do not last either."""
        for key, value in self._options.items():
            if key.lower() == "checkpointlocation":
                return value
        common = self._query._session.spark.conf.get("spark.sql.streaming.checkpointLocation", None)
        if common and self._name:
            return f"{common.rstrip('/')}/{self._name}"
        if self._function is not None or self._sink_format.lower() in _WITHOUT_PLACE:
            folder = tempfile.mkdtemp(prefix="anabranch-checkpoint-")
            atexit.register(shutil.rmtree, folder, ignore_errors=True)
            return folder
        raise SpecError(
            f"the query into '{self._sink_format}' has no checkpoint",
            hint="give option('checkpointLocation', …): a folder of this query's own, kept between restarts",
        )
