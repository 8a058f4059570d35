"""The settings of a query to start, said one by one as in PySpark; `start` checks them together and starts it.

Nothing is touched before `start`: neither the checkpoint nor the sink.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from anabranch.adapt.rules import ChangeRules, Switch
from anabranch.adapt.settings import Settings
from anabranch.api.run import RunSettings
from anabranch.choosing import AUTO, DEFAULT_BATCH, Wishes, change_rules, decide, first_plan, headline
from anabranch.entries import found
from anabranch.errors import SpecError
from anabranch.host.sample import Sample
from anabranch.host.spark import session as spark_host
from anabranch.host.spark.handle import QueryHandle
from anabranch.host.spark.sinks.functions import ForeachBatchSink
from anabranch.host.spark.sinks.make import make_sink, require_columns
from anabranch.host.spark.sinks.sink import Sink
from anabranch.host.spark.sinks.table import TableSink
from anabranch.host.work import Work
from anabranch.optimize import Choice
from anabranch.plan.execution import DEFAULT_EXECUTION, execution_model
from anabranch.plan.mesh import Plan, parse_plan
from anabranch.plan.query_set import ALONE, alone, as_plans
from anabranch.window import parse_duration

if TYPE_CHECKING:
    from anabranch.api.query import ContinuousQuery


class ContinuousQueryWriter(RunSettings):
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
        super().__init__(query._session.spark)
        self._query = query
        self._format: str | None = None
        self._partition_by: tuple[str, ...] = ()
        self._wishes = AUTO
        self._execution = DEFAULT_EXECUTION
        self._function: Callable[[spark_host.DataFrame, int], None] | None = None
        self._adapt: Settings | None = None
        self._switches: tuple[Switch, ...] = ()

    def format(self, source: str) -> ContinuousQueryWriter:
        """The sink: any format of a Spark batch writer, `memory` or `console`; parquet when not set."""
        self._format = source
        return self

    def outputMode(self, outputMode: str) -> ContinuousQueryWriter:
        """Only `append`: each result is emitted once and never taken back."""
        if outputMode.lower() != "append":
            raise SpecError(f"output mode '{outputMode}' is not supported", hint="use 'append', or leave it out")
        return self

    def partitionBy(self, *columns: str | Sequence[str]) -> ContinuousQueryWriter:
        """The columns whose values become folders of a file sink or partitions of a table, one by one or in a list."""
        self._partition_by = tuple(
            name for column in columns for name in ([column] if isinstance(column, str) else column)
        )
        return self

    def plan(self, choice: str | Plan) -> ContinuousQueryWriter:
        """The plan to run, as `ContinuousQuery.plan` takes or gives it; a restart may name another."""
        self._wishes = replace(self._wishes, plan=str(choice))
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
        sample = query._sampled if self._is_told_by_samples else Sample()
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

    def choices(self) -> dict[str, Choice]:
        """Returns the choice under the name of a query that runs alone."""
        return {"": self.choice()}

    @property
    def needs_sample(self) -> bool:
        """Whether the streams are still to be looked at before a plan is chosen."""
        return self._is_told_by_samples and self._query._sample is None

    def headlines(self) -> list[str]:
        """The chosen plan and why, in one line."""
        return [headline(self.choice())]

    def explanation(self, stage: str = "choice") -> str:
        """One stage on the way to the plan that these settings lead to; see `ContinuousQuery.explanation`."""
        return self._query._explanation.text(stage, self.choice)

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
        return self.adaptation(Settings.from_mapping(settings))

    def adaptation(self, settings: Settings) -> ContinuousQueryWriter:
        """Like `adapt`, with settings that have been read."""
        self._adapt = settings
        return self

    def switch(self, at_batch: int, plan: str | Plan, strategy: str = "auto") -> ContinuousQueryWriter:
        """Changes the plan at a batch that is known beforehand; may be said several times."""
        self._switches = (*self._switches, Switch(at_batch, parse_plan(str(plan)), strategy))
        return self

    def foreachBatch(self, function: Callable[[spark_host.DataFrame, int], None]) -> ContinuousQueryWriter:
        """Hands each batch to a function instead of a format; it must give the same outcome when called again."""
        if not callable(function):
            raise SpecError(
                f"foreachBatch is {found(function)}, not a function", hint="give it a function of (frame, batch_id)"
            )
        self._function = function
        return self

    def start(
        self,
        path: str | os.PathLike[str] | None = None,
        format: str | None = None,
        outputMode: str | None = None,
        partitionBy: str | Sequence[str] | None = None,
        queryName: str | None = None,
        **options: object,
    ) -> QueryHandle:
        """Starts the query.

        Parameters
        ----------
        path
            Where a file sink writes.
        format, outputMode, partitionBy, queryName, options
            The same as by the methods of these names, as PySpark takes them here too.

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
        if format is not None:
            self.format(format)
        if outputMode is not None:
            self.outputMode(outputMode)
        if partitionBy is not None:
            self.partitionBy(partitionBy)
        if queryName is not None:
            self.queryName(queryName)
        self.options(**options)
        return self._start(self.sink(self._name, None if path is None else os.fspath(path)))

    def sink(self, name: str | None, path: str | None = None) -> Sink:
        """Where the results go by these settings; `name` is that of a memory sink's table."""
        if self._function is not None:
            if self._format is not None or path is not None:
                raise SpecError("a query has both a format and a foreachBatch function", hint="leave one of them out")
            return ForeachBatchSink(self._function)
        return make_sink(
            self._sink_format,
            self._sink_options,
            spark=self._spark,
            schema=self._query.schema,
            name=name,
            path=path,
            partition_by=self._partition_by,
        )

    def toTable(self, tableName: str) -> QueryHandle:
        """Starts the query into a table of Spark's catalog, which is made when it is not there."""
        require_columns(self._partition_by, self._query.schema)
        return self._start(
            TableSink(
                tableName,
                self._spark,
                self._query.schema,
                format=self._format,
                options=self._sink_options,
                partition_by=self._partition_by,
            )
        )

    def rules(self, choice: Choice) -> ChangeRules:
        """What may change the chosen plan while it runs."""
        return change_rules(self._query._query, self._wishes, choice, adapt=self._adapt, switches=self._switches)

    def _start(self, sink: Sink) -> QueryHandle:
        query = self._query
        checkpoint = self._checkpoint(f"the query into '{self._sink_format}'", must_last=sink.is_lasting)
        choice = self.choice()
        plans, rules = as_plans(first_plan(choice)), {ALONE: self.rules(choice)}
        work = Work(alone(query._query), plans, self._slot_count, rules, self._execution)
        return self._run(query._session, query._streams, work, {ALONE: sink}, checkpoint)

    @property
    def _is_told_by_samples(self) -> bool:
        return self._wishes.need_statistics(self._query._query)

    @property
    def _sink_format(self) -> str:
        return self._format or "parquet"
