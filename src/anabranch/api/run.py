"""A run: one query, or several together, with all settings. It chooses plans, explains them, and starts.

A query that runs alone is a set of one without a name (`ALONE`), so one code path serves one query and several.

Invariant: nothing is written before `start`, neither to the checkpoint nor to a sink.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING

from anabranch.adapt.advisors.sharing import SharingRules
from anabranch.api.changing import RunningSet
from anabranch.api.compiled import RegisteredStream
from anabranch.api.destinations import LATE, checkpoint_of, late_rows, refuse_shared_places, sink_of
from anabranch.api.filters import with_placed_filters
from anabranch.api.members import Member
from anabranch.api.run_planning import RunPlanning
from anabranch.api.session_settings import with_session_settings
from anabranch.api.settings import QuerySettings, RunSettings
from anabranch.balance.first import FirstTable
from anabranch.errors import BundleError, SpecError
from anabranch.optimize import Choice
from anabranch.plan.classing import carrying
from anabranch.plan.partitioning import Partitioning
from anabranch.plan.query import titled
from anabranch.plan.query_set import ALONE, Plans, QuerySet, set_of
from anabranch.planning.choosing import change_rules, learns, taken
from anabranch.planning.explain import explain_queries
from anabranch.planning.together import RunChoice, joint_budget
from anabranch.run.changing import SetChange
from anabranch.run.evolving import Evolve, follow
from anabranch.run.keys import scheduled
from anabranch.run.round import EventTimeRules
from anabranch.run.sample import sampled_classes
from anabranch.run.store import Store
from anabranch.run.triggers import REAL_TIME
from anabranch.run.work import Work, refuse_order
from anabranch.settings.entries import argument
from anabranch.spark import session as spark_host
from anabranch.spark.handle import Query as RunningQuery
from anabranch.spark.handle import QueryHandle
from anabranch.spark.late import LateRows
from anabranch.spark.resident.runner import start_resident
from anabranch.spark.runner import start_query
from anabranch.spark.running import Listener, RunningQueries, RunOptions
from anabranch.spark.sinks.sink import Sink
from anabranch.spark.slot_limits import slot_limits
from anabranch.spark.tables import TableSource
from anabranch.stats.measured import from_progress

if TYPE_CHECKING:
    from anabranch.api.session import Session


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
        self._planning = RunPlanning(session.spark, self._queries, self._members, settings, self.frames())
        self.change: SetChange | None = None
        """The conversion of an existing checkpoint at the start, if there was one."""
        refuse_order(self._queries, settings.execution)
        self._refuse_refresh()

    def on_change(self, listener: Listener) -> Run:
        """Returns the run with one more listener for decisions and migrations."""
        listeners = (*self._settings.listeners, listener)
        given = {name: self._members[name] for name in self._given}
        return Run(self._session, given, replace(self._settings, listeners=listeners))

    def chosen(self, *, always_sample: bool = False) -> RunChoice:
        """Chooses the plans of the queries; see `RunPlanning.chosen`."""
        return self._planning.chosen(always_sample=always_sample)

    def choices(self) -> dict[str, Choice]:
        """Chooses the plan of each query for itself."""
        return self._planning.choices()

    def late_rows(self) -> LateRows | None:
        """Returns the side output, if one is set."""
        return late_rows(self.spark, self._settings, self._streams)

    def explanation(self, stage: str = "choice") -> str:
        """Returns one compilation stage of each query; for named queries, first what they share."""
        chosen = cache(self._planning.chosen)

        def fill(grid: Partitioning) -> FirstTable:
            return self._planning.first_table(grid, self._planning.traffic(chosen().choices))

        stages = {name: self._members[name].compiled.stages for name in self._given}
        text = explain_queries(stages, stage, chosen, fill)
        several = (self._members[name].compiled.places.reasons for name in self._given)
        places = dict.fromkeys(reason for reasons in several for reason in reasons)
        return "\n  ".join([f"{text}\n\nfilters, by what they cost", *places]) if stage == "choice" and places else text

    def measured(self, handle: QueryHandle) -> dict[str, dict[str, float]] | None:
        """Returns the statistics measured by a single-query run; None for queries together."""
        only = self._members.get(ALONE)
        return None if only is None else from_progress(only.compiled.query, handle.recentProgress).to_mapping()

    def start(self) -> QueryHandle:
        """Starts the queries as one streaming query and lists it in the session."""
        sinks, late = self.sinks({}), self.late_rows()
        refuse_shared_places(sinks if late is None else {**sinks, LATE: late.sink})
        checkpoint = checkpoint_of(self.spark, self._settings, sinks)
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
            name: known[name] if name in known else sink_of(self.spark, name, member, self._settings)
            for name, member in self._members.items()
            if not member.is_silent
        }
        refuse_shared_places(sinks)
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
        chosen = self._planning.chosen()
        choices = chosen.choices
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
        plans = Plans(chosen.plans | dict(running.plans))
        plan_options = settings.together
        return Work(
            self._carrying(choices, plans),
            plans,
            self._planning.slots,
            rules,
            settings.execution,
            scheduled(self._queries, settings.moves),
            settings.balancing,
            self._planning.traffic(choices),
            sharing=SharingRules(
                plan_options.share != "off", joint_budget(choices, plan_options, self._planning.slots.most)
            ),
            sample=self._planning.sampled_rows(),
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
