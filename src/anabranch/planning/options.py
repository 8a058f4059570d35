"""The user's options for plans, of one query and of queries that run together, and their entries in a spec.

All options are one value, whether they come from a spec or a writer.

Invariant: a value is checked when it is read; names of relations are checked once the query is known.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from anabranch.cost.units import UnitCosts
from anabranch.optimize import Objective
from anabranch.optimize.hints import KINDS
from anabranch.plan.check import PLAN_WORDS
from anabranch.plan.query import Query
from anabranch.settings.entries import Entry
from anabranch.stats.view import NOTHING_KNOWN, FixedStatistics

DEFAULT_BATCH = 1.0
"""Seconds between batches if the trigger has no interval."""


@dataclass(frozen=True)
class PlanOptions:
    """The user's options for the plan of a query; names are checked once the query is known."""

    plan: str = "auto"
    """`auto`, a family of plans, `mesh` (which begins as an mjoin), or the text of a plan or a mesh."""
    given: FixedStatistics = NOTHING_KNOWN
    cpu: float = math.inf
    """Maximum cores per slot."""
    memory: float = math.inf
    """Maximum bytes per slot."""
    latency: float = math.inf
    """Maximum seconds from the arrival of a row to its results."""
    of_executors: bool = False
    """True if the CPU and memory that the executor has for a slot are limits of the slot."""
    objective: Objective = field(default_factory=Objective)
    keep: tuple[str, ...] = ()
    forbid: tuple[str, ...] = ()
    optimizer: str | None = None
    """The only optimizer to use; None for all of them."""

    @property
    def has_hints(self) -> bool:
        """True if a shape, probe orders or an optimizer is required; then the plan cannot share joins or be a mesh."""
        return self.optimizer is not None or bool(self.keep or self.forbid)

    def with_stats(self, entries: Mapping[str, object]) -> PlanOptions:
        """Returns the options with statistics in the form of a spec's `stats:` block."""
        return replace(self, given=given_statistics(Entry("stats", entries)))

    def with_limits(
        self,
        cpu: float | None = None,
        memory: float | str | None = None,
        latency: str | None = None,
        auto: bool | None = None,
    ) -> PlanOptions:
        """Sets the limits of a slot; None leaves a limit unchanged."""
        seconds = self.latency if latency is None else latency_limit(Entry("limits.latency", latency))
        executors = self.of_executors if auto is None else auto
        return replace(
            self, cpu=_cpu(cpu, self.cpu), memory=_memory(memory, self.memory), latency=seconds, of_executors=executors
        )

    def within(self, cpu: float, memory: float) -> PlanOptions:
        """Returns the options with these resources of a slot's executor as limits, if requested."""
        return replace(self, cpu=min(self.cpu, cpu), memory=min(self.memory, memory)) if self.of_executors else self

    def with_objective(self, text: str) -> PlanOptions:
        return replace(self, objective=Objective.parse(text))

    def with_hints(
        self,
        *,
        keep: Iterable[str] = (),
        forbid: Iterable[str] = (),
        optimizer: str | None = None,
    ) -> PlanOptions:
        return replace(self, keep=tuple(keep), forbid=tuple(forbid), optimizer=optimizer)

    def need_statistics(self, query: Query) -> bool:
        """True if statistics can affect the choice: there are several plans or limits."""
        # Two relations have only one join, but in a grouped query either may be merged first.
        is_open = self.plan in (*PLAN_WORDS, *KINDS) and len(query.graph.names) > (2 if query.merging is None else 1)
        return is_open or min(self.cpu, self.memory, self.latency) < math.inf


def _cpu(limit: float | None, now: float) -> float:
    return now if limit is None else cpu_limit(Entry("limits.cpu", limit))


def _memory(limit: float | str | None, now: float) -> float:
    return now if limit is None else memory_limit(Entry("limits.memory", limit))


@dataclass(frozen=True)
class SetPlanOptions:
    """The user's options for the plans of queries that run together."""

    share: str = "adapt"
    """`auto` shares joins if that saves CPU.

    `adapt` does so among adaptive queries, and can undo it based on measurements. `off` never shares joins.
    """
    cpu: float = math.inf
    """Maximum cores per slot for all queries together."""
    memory: float = math.inf
    """Maximum bytes per slot for all queries together."""
    of_executors: bool = False
    """True if the CPU and memory that the executor has for a slot are limits of all queries together."""

    def with_limits(
        self, cpu: float | None = None, memory: float | str | None = None, auto: bool | None = None
    ) -> SetPlanOptions:
        """Sets the joint limits of a slot; None leaves a limit unchanged."""
        executors = self.of_executors if auto is None else auto
        return replace(self, cpu=_cpu(cpu, self.cpu), memory=_memory(memory, self.memory), of_executors=executors)

    def within(self, cpu: float, memory: float) -> SetPlanOptions:
        """Returns the options with these resources of a slot's executor as limits, if requested."""
        return replace(self, cpu=min(self.cpu, cpu), memory=min(self.memory, memory)) if self.of_executors else self

    def may_share(self, is_adapting: bool) -> bool:
        """True if sharing may be chosen automatically for a query."""
        return self.share == "auto" or (self.share == "adapt" and is_adapting)


AUTO = PlanOptions()


TOGETHER = SetPlanOptions()


SHARE = ("adapt", "auto", "off")


AUTO_LIMITS = "auto"


def given_statistics(block: Entry) -> FixedStatistics:
    """Reads a `stats:` block."""
    given = FixedStatistics.read(block)
    if given.costs:
        UnitCosts.from_names(given.costs)  # rejects unknown or missing names
    return given


def cpu_limit(entry: Entry) -> float:
    """Reads the maximum cores per slot."""
    return entry.number(high=math.inf, above=0.0, hint="write a number above 0, such as 0.8")


def memory_limit(entry: Entry) -> float:
    """Reads the maximum bytes per slot."""
    return entry.size(high=math.inf, above=0.0, hint="write bytes above 0, such as 500000000 or 500 MB")


def limit_entries(entry: Entry, names: str) -> tuple[Mapping[str, Entry], bool]:
    """Reads `limits`: its entries, or `auto` for those of the executors."""
    if entry.value == AUTO_LIMITS:
        return {}, True
    return entry.mapping(names), False


def latency_limit(entry: Entry) -> float:
    """Reads the maximum seconds from the arrival of a row to its results."""
    return entry.seconds("write a duration above 0, such as 5 seconds")
