"""Chooses the plans of the queries of a run, its number of slots and its first table of partition groups.

Each stream is sampled once for all queries, when a sample can change a choice.

Invariant: nothing is written; a chosen plan is within the limits, or `NoFeasiblePlan` is raised before the start.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property, partial

from anabranch.adapt.settings import Settings
from anabranch.api.compiled import sample_queries
from anabranch.api.members import Member
from anabranch.api.settings import RunSettings
from anabranch.balance.allocation import Allocation
from anabranch.balance.first import FirstTable
from anabranch.balance.first import first_table as first_slot_table
from anabranch.engine.batch import RelationBatch
from anabranch.optimize import Choice
from anabranch.plan.partitioning import Partitioning
from anabranch.plan.query import Query
from anabranch.plan.query_set import ALONE, QuerySet
from anabranch.plan.slots import SlotRange
from anabranch.planning.choosing import decide, on_spark
from anabranch.planning.options import DEFAULT_BATCH, PlanOptions
from anabranch.planning.together import RunChoice, allocate, decide_together, shared_traffic
from anabranch.run.counting import cells_of_sample
from anabranch.run.sample import Sample
from anabranch.run.triggers import REAL_TIME
from anabranch.spark import session as spark_host
from anabranch.spark.file_streams import bytes_of_files
from anabranch.spark.resident.job import most_slots


class RunPlanning:
    """The choices for the queries of a run, by name."""

    def __init__(
        self,
        spark: spark_host.SparkSession,
        queries: QuerySet,
        members: Mapping[str, Member],
        settings: RunSettings,
        frames: Mapping[str, spark_host.DataFrame],
    ) -> None:
        self._spark = spark
        self._queries = queries
        self._members = members
        self._settings = settings
        self._frames = frames

    def chosen(self, *, always_sample: bool = False) -> RunChoice:
        """Chooses the plans of the queries; each stream is sampled once for all of them.

        With `always_sample`, it also samples when that cannot change the plan, so that costs can be explained.
        """
        choices = self.choices(always_sample=always_sample)
        adapting = [name for name, member in self._members.items() if member.settings.adapt is not None]
        together, slots = self._settings.together, self.slots.most
        joint = decide_together(self._queries, choices, self._plan_options, together, adapting=adapting, slots=slots)
        return RunChoice(choices, joint, self._allocation)

    def choices(self, *, always_sample: bool = False) -> dict[str, Choice]:
        """Chooses the plan of each query for itself, without shared joins and joint limits."""
        return self._choices(self.slots.most, always_sample=always_sample)

    @property
    def slots(self) -> SlotRange:
        """Returns the slots: the allocation if there is one, else the default parallelism within the elastic limits."""
        is_resident = self._settings.trigger == REAL_TIME
        cores = max(1, most_slots(self._spark)) if is_resident else int(self._spark.sparkContext.defaultParallelism)
        several = self._settings.slots
        if self._allocation is not None:
            return SlotRange.fixed(self._allocation.slots)
        return SlotRange.fixed(cores) if several is None else replace(several, first=cores)

    @property
    def _plan_options(self) -> dict[str, PlanOptions]:
        return {name: member.settings.plan_options for name, member in self._members.items()}

    @cached_property
    def _allocation(self) -> Allocation | None:
        """The fewest slots that keep the limits, if the run must determine the number."""
        settings, choose_at = self._settings, partial(self._choices, may_learn=False)
        capacities = settings.balancing.capacities
        return allocate(
            self._queries,
            settings.slots,
            choose_at,
            self._plan_options,
            settings.together,
            self.first_table,
            capacities,
        )

    def sampled_rows(self) -> Mapping[str, RelationBatch]:
        """Returns the sampled rows of a single query; queries together share codes that their samples lack."""
        only = self._members.get(ALONE)
        return {} if only is None else only.compiled.sample.rows

    @property
    def _most_slots(self) -> int:
        """Returns the maximum number of slots, also while the number is still undetermined."""
        several = self._settings.slots
        return several.most if several is not None and several.is_sought else self.slots.most

    def traffic(self, choices: Mapping[str, Choice]) -> dict[str, float]:
        """Returns the bytes of each relation; without statistics, estimated from the sizes of pending files."""
        members = self._members.values()
        is_known = any(
            each.compiled.sample.statistics.rates or each.settings.plan_options.given.rates for each in members
        )
        found = {} if is_known or self.slots.most == 1 else bytes_of_files(self._queries, self._frames)
        return found or shared_traffic(choices.values())

    def _sample(self, *, always: bool) -> None:
        most = self._most_slots
        sample_queries([member.compiled for member in self._members.values() if always or member.needs_sample(most)])

    def _choices(self, slots: int, *, may_learn: bool = True, always_sample: bool = False) -> dict[str, Choice]:
        self._sample(always=always_sample)
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

    def first_table(self, grid: Partitioning, amounts: Mapping[str, float]) -> FirstTable:
        """Returns a grid with the first slot table of a new run, from the sample and the capacities of slots."""
        rows = cells_of_sample(grid, self.sampled_rows(), amounts)
        return first_slot_table(grid, rows, self._settings.balancing.capacities)


def _has_rows(query: Query, sample: Sample) -> bool:
    """Returns True when the sample has rows of every relation, which learning a mesh requires."""
    return all(name in sample.rows and len(sample.rows[name]) for name in query.graph.names)
