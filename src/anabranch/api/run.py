"""A run: one query, or several together, with all settings. It chooses plans, explains them, and starts.

A query that runs alone is a set of one without a name (`ALONE`), so one code path serves one query and several.

Invariant: nothing is written before `start`, neither to the checkpoint nor to a sink.
"""

from __future__ import annotations

import atexit
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from functools import cache, cached_property, partial
from typing import TYPE_CHECKING

from anabranch.adapt.advisors.sharing import SharingRules
from anabranch.adapt.settings import Settings
from anabranch.api.changing import RunningSet
from anabranch.api.compiled import RegisteredStream, sample_queries
from anabranch.api.filters import with_placed_filters
from anabranch.api.members import Member
from anabranch.api.session_settings import with_session_settings
from anabranch.api.settings import QuerySettings, RunSettings
from anabranch.balance.allocation import Allocation
from anabranch.balance.first import FirstTable, first_table
from anabranch.engine.batch import RelationBatch
from anabranch.errors import BundleError, SpecError
from anabranch.optimize import Choice
from anabranch.optimize.joint import JointChoice
from anabranch.plan.classing import carrying
from anabranch.plan.partitioning import Partitioning
from anabranch.plan.query import Query, titled
from anabranch.plan.query_set import ALONE, Plans, QuerySet, set_of
from anabranch.plan.slots import SlotRange
from anabranch.planning.choosing import (
    DEFAULT_BATCH,
    allocate,
    as_run,
    change_rules,
    decide,
    decide_together,
    headline,
    joint_budget,
    joint_plans,
    learns,
    on_spark,
    refuse_capacities,
    shared_traffic,
    taken,
)
from anabranch.planning.explain import explain_joint, explain_queries, shared_lines
from anabranch.run.changing import SetChange
from anabranch.run.counting import cells_of_sample
from anabranch.run.evolving import Evolve, follow
from anabranch.run.keys import scheduled
from anabranch.run.round import EventTimeRules
from anabranch.run.sample import Sample, sampled_classes
from anabranch.run.side_output import SideOutputLayout
from anabranch.run.sink_settings import require_columns
from anabranch.run.store import Store
from anabranch.run.triggers import REAL_TIME
from anabranch.run.work import Work, refuse_order
from anabranch.settings.entries import argument
from anabranch.spark import session as spark_host
from anabranch.spark.file_streams import bytes_of_files
from anabranch.spark.handle import Query as RunningQuery
from anabranch.spark.handle import QueryHandle
from anabranch.spark.late import LateRows
from anabranch.spark.resident.job import most_slots
from anabranch.spark.resident.runner import start_resident
from anabranch.spark.runner import start_query
from anabranch.spark.running import Listener, RunningQueries, RunOptions
from anabranch.spark.sinks.functions import ForeachBatchSink
from anabranch.spark.sinks.make import make_sink
from anabranch.spark.sinks.sink import Sink
from anabranch.spark.sinks.table import TableSink
from anabranch.spark.slot_limits import slot_limits
from anabranch.spark.tables import TableSource
from anabranch.stats.measured import from_progress

if TYPE_CHECKING:
    from anabranch.api.session import Session


_LATE = "late rows"
"""The name of the side output in error messages."""


class Run:
    """Queries, by name, ready to be explained or started."""

    def __init__(self, session: Session, members: Mapping[str, Member], settings: RunSettings) -> None:
        self._session = session
        settings = with_session_settings(settings, spark_host.settings(session.spark))
        members, settings = _within_executors(session.spark, members, settings)
        self._settings = settings
        members = with_placed_filters(members, settings, int(session.spark.sparkContext.defaultParallelism))
        silent = [name for name, member in members.items() if member.is_silent]
        self._queries = set_of({name: member.compiled.query for name, member in members.items()}, silent)
        self._given = sorted(members)
        self._members = _with_inputs(members)
        self._streams = _streams(self._members)
        self.change: SetChange | None = None
        """The conversion of an existing checkpoint at the start, if there was one."""
        refuse_order(self._queries, settings.execution)
        self._refuse_refresh()

    def on_change(self, listener: Listener) -> Run:
        """Returns the run with one more listener for decisions and migrations."""
        listeners = (*self._settings.listeners, listener)
        given = {name: self._members[name] for name in self._given}
        return Run(self._session, given, replace(self._settings, listeners=listeners))

    def choices(self, *, always_sample: bool = False) -> dict[str, Choice]:
        """Chooses the plan of each query; each stream is sampled once for all of them.

        With `always_sample`, it also samples when that cannot change the plan, so that costs can be explained.
        """
        self._sample(always=always_sample)
        return self._choices(self._slots.most, always_sample=always_sample)

    @cached_property
    def allocation(self) -> Allocation | None:
        """Returns the fewest slots that keep the limits, if the run must determine the number."""
        allowed, balance = self._settings.slots, self._settings.balancing
        if allowed is None or not allowed.is_sought:
            return None
        refuse_capacities(balance.capacities)
        self._sample()
        plan_options = {name: member.settings.plan_options for name, member in self._members.items()}
        together = self._settings.together
        return allocate(
            self._queries, allowed, partial(self._choices, may_learn=False), plan_options, together, self._first_table
        )

    def joint(self, choices: Mapping[str, Choice]) -> JointChoice | None:
        """Chooses the plans of named queries together: shared joins, and plans within the joint limits."""
        plan_options = {name: member.settings.plan_options for name, member in self._members.items()}
        adapting = [name for name, member in self._members.items() if member.settings.adapt is not None]
        together, slots = self._settings.together, self._slots.most
        return decide_together(self._queries, choices, plan_options, together, adapting=adapting, slots=slots)

    def headlines(self) -> list[str]:
        """Returns one line per query with its plan and the reason, then the shared joins."""
        choices = self.choices()
        lines = [f"{name}: {headline(choice)}" if name else headline(choice) for name, choice in choices.items()]
        lines += [] if self.allocation is None else [str(self.allocation)]
        joint = self.joint(choices)
        return lines if joint is None else [*lines, *shared_lines(joint)]

    def explanation(self, stage: str = "choice") -> str:
        """Returns one compilation stage of each query; for named queries, first what they share."""

        @cache
        def chosen() -> tuple[Mapping[str, Choice], JointChoice | None]:
            choices = self.choices()
            joint = self.joint(choices)
            return as_run(choices, joint), joint

        def fill(grid: Partitioning) -> FirstTable:
            return self._first_table(grid, self._traffic(chosen()[0]))

        stages = {name: self._members[name].compiled.stages for name in self._given}
        text = explain_queries(stages, stage, lambda name: chosen()[0][name], fill)
        if stage == "choice" and self.allocation is not None:
            text = f"{text}\n\n{self.allocation}"
        several = (self._members[name].compiled.places.reasons for name in self._given)
        places = dict.fromkeys(reason for reasons in several for reason in reasons)
        if stage == "choice" and places:
            text = "\n  ".join([f"{text}\n\nfilters, by what they cost", *places])
        joint = chosen()[1] if stage == "choice" else None
        return text if joint is None else f"{text}\n\n{explain_joint(joint)}"

    def measured(self, handle: QueryHandle) -> dict[str, dict[str, float]] | None:
        """Returns the statistics measured by a single-query run; None for queries together."""
        only = self._members.get(ALONE)
        return None if only is None else from_progress(only.compiled.query, handle.recentProgress).to_mapping()

    def start(self) -> QueryHandle:
        """Starts the queries as one streaming query and lists it in the session."""
        sinks, late = self.sinks({}), self.late_rows()
        _refuse_shared_places(sinks if late is None else {**sinks, _LATE: late.sink})
        checkpoint = self._checkpoint(sinks)
        work = self.work(Plans({}))
        self.change = follow(
            Store(checkpoint),
            self._queries,
            self._session.catalog,
            lambda: work.first_table(None),
            Evolve.REFUSE if self.has_spark_elsewhere else self._settings.evolve,
        )
        running, runner = self.begin(work, sinks, checkpoint, self.options(late))
        handle = QueryHandle(running, runner, RunningSet(self, sinks, checkpoint))
        self._session.streams.add(handle)
        return handle

    def begin(
        self, work: Work, sinks: Mapping[str, Sink], checkpoint: str, options: RunOptions
    ) -> tuple[RunningQuery, RunningQueries]:
        """Starts the work in micro-batches or in real-time mode, depending on the trigger."""
        start = start_resident if self._settings.trigger == REAL_TIME else start_query
        return start(self.spark, self.frames(), work, sinks, checkpoint, options)

    @property
    def spark(self) -> spark_host.SparkSession:
        return self._session.spark

    @property
    def session(self) -> Session:
        """The session whose streams the queries read."""
        return self._session

    @property
    def queries(self) -> QuerySet:
        """The queries in the form that the engine runs."""
        return self._queries

    @property
    def has_spark_elsewhere(self) -> bool:
        """True if Spark's part of the checkpoint has its own location."""
        return self._settings.spark_checkpoint is not None

    @property
    def given(self) -> dict[str, Member]:
        """The queries given by the user, without those that they only read."""
        return {name: self._members[name] for name in self._given}

    def of(self, members: Mapping[str, Member]) -> Run:
        """Returns a run of other queries with the same settings."""
        return Run(self._session, members, self._settings)

    def sinks(self, known: Mapping[str, Sink]) -> dict[str, Sink]:
        """Returns the sink of each query that has one: the known sink, else a new one."""
        sinks = {
            name: known[name] if name in known else self._sink(name, member)
            for name, member in self._members.items()
            if not member.is_silent
        }
        _refuse_shared_places(sinks)
        return sinks

    def frames(self) -> dict[str, spark_host.DataFrame]:
        """Returns the frames of all registered streams; the queries' own streams as compiled."""
        return self._session.frames | {name: stream.frame for name, stream in self._streams.items()}

    def options(self, late: LateRows | None) -> RunOptions:
        """Returns the options of the run on Spark; `late` is the side output."""
        settings = self._settings
        timeouts = {
            name: argument("the idle timeout", stream.idle_timeout or settings.idle_timeout).timeout()
            for name, stream in self._streams.items()
        }
        ahead = {name: each.max_ahead for name, each in self._streams.items() if each.max_ahead is not None}
        return RunOptions(
            settings.trigger.for_spark(),
            settings.name,
            EventTimeRules(timeouts, ahead),
            settings.listeners,
            spark_checkpoint=settings.spark_checkpoint,
            late=late,
            tables=self._tables(),
            assumed_disorder=frozenset(name for name, each in self._streams.items() if not each.has_watermark),
        )

    def work(self, running: Plans) -> Work:
        """Returns the work to run; plans are chosen for queries that do not run yet."""
        settings = self._settings
        choices = self.choices()
        rules = {
            name: change_rules(
                member.compiled.query,
                member.settings.plan_options,
                choices[name],
                adapt=member.settings.adapt,
                switches=member.settings.switches,
            )
            for name, member in self._members.items()
        }
        plans = Plans(joint_plans(choices, self.joint(choices)) | dict(running.plans))
        plan_options = settings.together
        return Work(
            self._carrying(choices, plans),
            plans,
            self._slots,
            rules,
            settings.execution,
            scheduled(self._queries, settings.moves),
            settings.balancing,
            self._traffic(choices),
            sharing=SharingRules(plan_options.share != "off", joint_budget(choices, plan_options, self._slots.most)),
            sample=self._sampled_rows(),
            overload=settings.overload,
            taken=tuple(
                taken(choices[name], plan, name or None)
                for name, plan in plans.plans.items()
                if name not in running.plans
            ),
        )

    def _carrying(self, choices: Mapping[str, Choice], plans: Plans) -> QuerySet:
        """Returns the queries with class columns, for their plans and for meshes that they may switch to.

        The classes are all those of the sample, not only those that the meshes distinguish, so that a later search can
        move their thresholds.
        """
        offered = [
            (name, offer.learnt.mesh)
            for name, choice in choices.items()
            if learns(self._members[name].settings.plan_options, choice, self._members[name].settings.adapt)
            and (offer := choice.mesh) is not None
            and offer.learnt is not None
        ]
        samples = {name: member.compiled.sample for name, member in self._members.items()}
        return carrying(self._queries, [*plans.plans.items(), *offered], sampled_classes(samples))

    def _refuse_refresh(self) -> None:
        """Refuses to refresh a table when queries keep its first version."""
        tables = self._tables()
        for name, query in self._queries.fixed_tables.items():
            if tables[name].is_read_again:
                raise SpecError(
                    f"table '{name}' cannot be read again while the query runs",
                    detail=f"results of {titled(query)} wait for the watermark, in groups or in an outer or anti join "
                    "of streams; after a crash they would match other rows of the table",
                    hint=f"register '{name}' without 'refresh' and 'version', or join it in a query without groups and "
                    "outer joins of streams",
                )

    def _tables(self) -> dict[str, TableSource]:
        return {name: each for member in self._members.values() for name, each in member.compiled.tables.items()}

    @property
    def _slots(self) -> SlotRange:
        """Returns the slots: the allocation if there is one, else the default parallelism within the elastic limits."""
        spark = self._session.spark
        is_resident = self._settings.trigger == REAL_TIME
        cores = max(1, most_slots(spark)) if is_resident else int(spark.sparkContext.defaultParallelism)
        several = self._settings.slots
        if self.allocation is not None:
            return SlotRange.fixed(self.allocation.slots)
        return SlotRange.fixed(cores) if several is None else replace(several, first=cores)

    @property
    def _most_slots(self) -> int:
        """Returns the maximum number of slots, also while the number is still undetermined."""
        several = self._settings.slots
        return several.most if several is not None and several.is_sought else self._slots.most

    def _sampled_rows(self) -> Mapping[str, RelationBatch]:
        """Returns the sampled rows of a single query; queries together share codes that their samples lack."""
        only = self._members.get(ALONE)
        return {} if only is None else only.compiled.sample.rows

    def _traffic(self, choices: Mapping[str, Choice]) -> dict[str, float]:
        """Returns the bytes of each relation; without statistics, estimated from the sizes of pending files."""
        members = self._members.values()
        is_known = any(
            each.compiled.sample.statistics.rates or each.settings.plan_options.given.rates for each in members
        )
        found = {} if is_known or self._slots.most == 1 else bytes_of_files(self._queries, self.frames())
        return found or shared_traffic(choices.values())

    def _sample(self, *, always: bool = False) -> None:
        most = self._most_slots
        sample_queries([member.compiled for member in self._members.values() if always or member.needs_sample(most)])

    def _choices(self, slots: int, *, may_learn: bool = True, always_sample: bool = False) -> dict[str, Choice]:
        found = {}
        for name, member in self._members.items():
            compiled, is_sampled = member.compiled, always_sample or member.needs_sample(self._most_slots)
            sample = compiled.sample if is_sampled else Sample()
            learn = compiled.learn_mesh if may_learn and _has_rows(compiled.query, sample) else None
            choice = decide(
                compiled.query,
                member.settings.plan_options,
                slots=slots,
                batch=self._settings.trigger.seconds or DEFAULT_BATCH,
                seen=sample.statistics,
                learn=learn,
                gate=(member.settings.adapt or Settings()).gate,
                host=on_spark(self._settings.trigger.seconds, len(self._members)),
            )
            found[name] = replace(choice, is_sampled=is_sampled)
        return found

    def _first_table(self, grid: Partitioning, amounts: Mapping[str, float]) -> FirstTable:
        """Returns a grid with the first slot table of a new run, from the sample and the capacities of slots."""
        rows = cells_of_sample(grid, self._sampled_rows(), amounts)
        return first_table(grid, rows, self._settings.balancing.capacities)

    def _sink(self, name: str, member: Member) -> Sink:
        settings, spark, schema = member.settings, self._session.spark, member.compiled.query.schema
        if settings.function is not None:
            if settings.format is not None or settings.path is not None:
                raise SpecError("a query has both a format and a foreachBatch function", hint="omit one of them")
            return ForeachBatchSink(settings.function)
        if settings.table is not None:
            require_columns(settings.partition_by, schema)
            return TableSink(
                settings.table,
                spark,
                schema,
                format=settings.format,
                options=settings.options,
                partition_by=settings.partition_by,
            )
        return make_sink(
            settings.format or "parquet",
            settings.options,
            spark=spark,
            schema=schema,
            name=name or self._settings.name,
            path=settings.path,
            partition_by=settings.partition_by,
        )

    def late_rows(self) -> LateRows | None:
        """Returns the side output, if one is set."""
        asked = self._settings.late
        if asked is None:
            return None
        layout = SideOutputLayout({name: stream.declaration.schema for name, stream in self._streams.items()})
        name = self._settings.name and f"{self._settings.name}_late"
        spark = self._session.spark
        sink = make_sink(
            asked.format,
            asked.options,
            spark=spark,
            schema=layout.schema,
            name=name,
            path=asked.path,
            partition_by=asked.partition_by,
        )
        return LateRows(sink, layout)

    def _checkpoint(self, sinks: Mapping[str, Sink]) -> str:
        """Returns the given folder, else one below the session's, else a temporary one if no sink is durable."""
        name, given = self._settings.name, self._settings.checkpoint
        if given is not None:
            return given
        common = self._session.spark.conf.get("spark.sql.streaming.checkpointLocation", None)
        if common and name:
            return f"{common.rstrip('/')}/{name}"
        if not any(sink.is_lasting for sink in sinks.values()):
            folder = tempfile.mkdtemp(prefix="anabranch-checkpoint-")
            atexit.register(shutil.rmtree, folder, ignore_errors=True)
            return folder
        what = f"the query into {sinks[ALONE].title}" if ALONE in sinks else f"the run of queries {', '.join(sinks)}"
        raise SpecError(
            f"{what} has no checkpoint",
            hint="set option('checkpointLocation', …) to a folder of this query alone, kept between restarts",
        )


def _with_inputs(members: Mapping[str, Member]) -> dict[str, Member]:
    """Returns the queries and all that they read; queries that are only read have no sink and no settings."""
    found = dict(members)
    waiting = [member.compiled for member in members.values()]
    while waiting:
        for name, compiled in waiting.pop().inputs.items():
            if name not in found:
                found[name] = Member(compiled, QuerySettings(), is_silent=True)
                waiting.append(compiled)
    return dict(sorted(found.items()))


def _within_executors(
    spark: spark_host.SparkSession, members: Mapping[str, Member], settings: RunSettings
) -> tuple[Mapping[str, Member], RunSettings]:
    """Returns the queries and settings of a run with the limits of the executors where `limits` is auto."""
    asked = [settings.together.of_executors, *(each.settings.plan_options.of_executors for each in members.values())]
    if not any(asked):
        return members, settings
    slot = slot_limits(spark)
    found = {}
    for name, each in members.items():
        plan_options = each.settings.plan_options.within(slot.cpu, slot.memory)
        found[name] = replace(each, settings=replace(each.settings, plan_options=plan_options))
    return found, replace(settings, together=settings.together.within(slot.cpu, slot.memory))


def _has_rows(query: Query, sample: Sample) -> bool:
    """Returns True when the sample has rows of every relation, which learning a mesh requires."""
    return all(name in sample.rows and len(sample.rows[name]) for name in query.graph.names)


def _streams(members: Mapping[str, Member]) -> dict[str, RegisteredStream]:
    streams: dict[str, RegisteredStream] = {}
    for name, member in members.items():
        for stream, registered in member.compiled.streams.items():
            if streams.setdefault(stream, registered) != registered:
                raise BundleError(
                    f"stream '{stream}' was registered again before {titled(name)} was compiled",
                    hint="compile all queries after the last registration",
                )
    return streams


def _refuse_shared_places(sinks: Mapping[str, Sink]) -> None:
    """Refuses one location for two queries: file names and Delta transactions are per run, so they would collide."""
    places: dict[str, str] = {}
    for name, sink in sinks.items():
        place = sink.place
        if place is not None and (other := places.setdefault(place, name)) != name:
            who = "late rows and results" if name == _LATE else f"queries '{other}' and '{name}'"
            raise SpecError(f"{who} write to the same folder '{place}'", hint="give each its own folder")
