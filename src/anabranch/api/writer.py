"""The writer of a query: one setting per call, as in PySpark; `start` validates them together and starts the query.

Invariant: nothing is written before `start`, neither to the checkpoint nor to the sink.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from anabranch.adapt.rules import Switch
from anabranch.adapt.settings import Settings
from anabranch.api.builder import RunBuilder
from anabranch.api.members import Member
from anabranch.api.run import Run
from anabranch.api.settings import QuerySettings
from anabranch.errors import SpecError
from anabranch.optimize import Choice
from anabranch.plan.mesh import Plan, parse_plan
from anabranch.plan.query_set import ALONE
from anabranch.settings.entries import found
from anabranch.spark import session as spark_host
from anabranch.spark.handle import QueryHandle

if TYPE_CHECKING:
    from anabranch.api.query import ContinuousQuery


class ContinuousQueryWriter(RunBuilder):
    """Builds the settings of a query and of its run, like PySpark's DataStreamWriter.

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
        super().__init__()
        self._query = query
        self._settings = QuerySettings()

    @property
    def query(self) -> ContinuousQuery:
        """The query that these settings apply to."""
        return self._query

    @property
    def query_settings(self) -> QuerySettings:
        """The settings of the query so far."""
        return self._settings

    def format(self, source: str) -> ContinuousQueryWriter:
        """Sets the sink: any format of a Spark batch writer, `memory` or `console`; the default is parquet."""
        return self._set(format=source)

    def outputMode(self, outputMode: str) -> ContinuousQueryWriter:
        """Accepts only `append`: each result is emitted once and never retracted."""
        if outputMode.lower() != "append":
            raise SpecError(f"output mode '{outputMode}' is not supported", hint="use 'append', or omit it")
        return self

    def partitionBy(self, *columns: str | Sequence[str]) -> ContinuousQueryWriter:
        """Sets the columns that partition a file sink or a table."""
        names = tuple(name for column in columns for name in ([column] if isinstance(column, str) else column))
        return self._set(partition_by=names)

    def plan(self, choice: str | Plan) -> ContinuousQueryWriter:
        """Sets the plan: any argument or result of `ContinuousQuery.plan`; a restart may use another plan."""
        return self._set(plan_options=replace(self._settings.plan_options, plan=str(choice)))

    def limits(
        self,
        *,
        cpu: float | None = None,
        memory: float | str | None = None,
        latency: str | None = None,
        auto: bool | None = None,
    ) -> ContinuousQueryWriter:
        """Limits the resources of a slot; plans beyond the limits never run.

        `cpu` is in cores, `memory` in bytes (a number, or a text such as `500 MB`). `latency` is the predicted time
        from the arrival of a row to its results, such as `5 seconds`. With `auto`, the
        resources of a slot's executor, which Spark reports at the start, are limits too.
        """
        return self._set(plan_options=self._settings.plan_options.with_limits(cpu, memory, latency, auto))

    def objective(self, text: str) -> ContinuousQueryWriter:
        """Sets the optimization objective: `qualified`, `cpu`, `memory`, `rate@30 seconds` or `first@1000`."""
        return self._set(plan_options=self._settings.plan_options.with_objective(text))

    def hints(
        self,
        *,
        keep: Iterable[str] = (),
        forbid: Iterable[str] = (),
        optimizer: str | None = None,
    ) -> ContinuousQueryWriter:
        """Sets plan shapes and probe orders that are required or forbidden.

        Parameters
        ----------
        keep
            Joins that must be materialized, such as `o p`.
        forbid
            Families, joins such as `(o p)`, or probe orders such as `(o p s | o>p>s)`.
        optimizer
            The only optimizer to use, such as `local-rate`.
        """
        return self._set(
            plan_options=self._settings.plan_options.with_hints(keep=keep, forbid=forbid, optimizer=optimizer)
        )

    def stats(self, entries: Mapping[str, object]) -> ContinuousQueryWriter:
        """Sets known statistics: `rates`, `filters`, `selectivities`, `bytes`, `groups` and `costs`, as in a spec."""
        return self._set(plan_options=self._settings.plan_options.with_stats(entries))

    def choice(self) -> Choice:
        """Returns the chosen plan for these settings, with its costs and all candidates."""
        return self._as_run().choices()[ALONE]

    def explanation(self, stage: str = "choice") -> str:
        """Returns one compilation stage for these settings; see `ContinuousQuery.explanation`."""
        return self._as_run().explanation(stage)

    def adapt(self, **settings: object) -> ContinuousQueryWriter:
        """Lets the query change its plan at run time when its measured statistics favour another one.

        Parameters
        ----------
        settings
            As in a spec's `adapt:` block: `policy`, `every`, `eager`, `strategy`, `freeze` and `scope`.
            By default, statistics are compared every ten batches.

        A restart from the checkpoint continues with the plan of the last batch, unless a plan is given explicitly.

        Examples
        --------
        >>> writer.adapt(policy="periodic", every="10 seconds")  # doctest: +SKIP
        """
        return self._set(adapt=Settings.from_mapping(settings))

    def switch(self, at_batch: int, plan: str | Plan, strategy: str = "auto") -> ContinuousQueryWriter:
        """Schedules a plan change at a batch; may be called several times."""
        return self._set(switches=(*self._settings.switches, Switch(at_batch, parse_plan(str(plan)), strategy)))

    def foreachBatch(self, function: Callable[[spark_host.DataFrame, int], None]) -> ContinuousQueryWriter:
        """Calls a function with each batch, instead of a format. The function must be idempotent."""
        if not callable(function):
            raise SpecError(
                f"foreachBatch is {found(function)}, not a function", hint="pass a function of (frame, batch_id)"
            )
        return self._set(function=function)

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
            The output folder of a file sink.
        format, outputMode, partitionBy, queryName, options
            Same as the methods of these names, as in PySpark.

        Raises
        ------
        SpecError
            When a setting is missing or contradicts another.
        PlanError
            When the plan, or a hint, does not fit the query.
        NoFeasiblePlan
            When no plan is within the limits; nothing has been started.
        CheckpointError
            When the checkpoint belongs to another query or is damaged; it is not changed.
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
        if path is not None:
            self._set(path=os.fspath(path))
        return self._as_run().start()

    def toTable(self, tableName: str) -> QueryHandle:
        """Starts the query into a table of Spark's catalog, and creates the table if needed."""
        return self._set(table=tableName)._as_run().start()

    def _as_run(self) -> Run:
        return Run(self._query.session, {ALONE: Member(self._query.compiled, self._settings)}, self._run)

    def _set(self, **settings: Any) -> ContinuousQueryWriter:
        self._settings = replace(self._settings, **settings)
        return self

    def _set_sink_option(self, key: str, value: str) -> None:
        self._set(options={**self._settings.options, key: value})
