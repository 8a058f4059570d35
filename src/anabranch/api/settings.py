"""Settings of a run and of each query in it, as frozen values.

The writer and `Together` build them one call at a time, as in PySpark; a spec sets them all at once. `api.run` reads
nothing else.

Invariant: a default means that the user has set nothing, so settings of the session may fill it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields

from anabranch.adapt.balancing import BY_HAND, BY_ITSELF, Balance
from anabranch.adapt.rules import Switch
from anabranch.adapt.schedule import Scheduled, SplitRequest
from anabranch.adapt.settings import Settings
from anabranch.plan.execution import DEFAULT_EXECUTION, ExecutionModel
from anabranch.plan.slots import SlotRange
from anabranch.planning.options import AUTO, TOGETHER, PlanOptions, SetPlanOptions
from anabranch.run.clock import IDLE_TIMEOUT
from anabranch.run.evolving import Evolve
from anabranch.run.shedding import Overload
from anabranch.run.triggers import AS_FAST_AS_POSSIBLE, Trigger
from anabranch.spark import session as spark_host
from anabranch.spark.running import Listener

NAMES = {
    "name": "a name",
    "trigger": "a trigger",
    "slots": "a number of slots",
    "idle_timeout": "an idle timeout",
    "listeners": "a listener",
    "checkpoint": "a checkpoint",
    "execution": "an execution model",
    "balance": "a balance setting",
    "moves": "a schedule of moves",
    "late": "a sink for late rows",
    "together": "a setting of queries that run together",
    "overload": "a setting for overload",
    "evolve": "a setting for changed queries",
}
"""The names of a run's settings in error messages."""


@dataclass(frozen=True)
class LateSettings:
    """The side output for late rows and rows too far in the future."""

    format: str = "parquet"
    path: str | None = None
    options: Mapping[str, str] = field(default_factory=dict)
    partition_by: tuple[str, ...] = ()


@dataclass(frozen=True)
class RunSettings:
    """The settings of one query, or of several together."""

    name: str | None = None
    trigger: Trigger = AS_FAST_AS_POSSIBLE
    slots: SlotRange | None = None
    """None for Spark's default parallelism."""
    idle_timeout: str = IDLE_TIMEOUT
    """For streams registered without one: a duration, or `none`."""
    listeners: tuple[Listener, ...] = ()
    """Functions that receive every decision and every migration."""
    checkpoint: str | None = None
    spark_checkpoint: str | None = None
    """The location of Spark's part of the checkpoint; None for the same location."""
    execution: ExecutionModel = DEFAULT_EXECUTION
    balance: Balance | None = None
    """The balancing of partition groups; None for manual, or automatic when slots are elastic."""
    moves: tuple[Scheduled | SplitRequest, ...] = ()
    """Moves of partition groups scheduled at given batches."""
    late: LateSettings | None = None
    """None to drop and count late rows."""
    together: SetPlanOptions = TOGETHER
    """Shared joins and joint limits; no effect on a single query."""
    overload: Overload = "keep"
    """The behaviour of an overloaded run."""
    evolve: Evolve = Evolve.ASK
    """The behaviour if the queries of the checkpoint have changed."""

    @property
    def balancing(self) -> Balance:
        """The balancing of partition groups: as given, or the default for the slots."""
        is_elastic = self.slots is not None and self.slots.is_elastic
        return self.balance or (BY_ITSELF if is_elastic else BY_HAND)

    def changed(self) -> list[str]:
        """Returns the fields that differ from their defaults."""
        return [item.name for item in fields(self) if getattr(self, item.name) != getattr(DEFAULTS, item.name)]


DEFAULTS = RunSettings()


@dataclass(frozen=True)
class QuerySettings:
    """The sink of one query, and the choice and changes of its plan."""

    format: str | None = None
    """Parquet when None."""
    path: str | None = None
    table: str | None = None
    """A table of Spark's catalog, instead of a path."""
    function: Callable[[spark_host.DataFrame, int], None] | None = None
    """Receives each batch, instead of a format."""
    options: Mapping[str, str] = field(default_factory=dict)
    partition_by: tuple[str, ...] = ()
    plan_options: PlanOptions = AUTO
    adapt: Settings | None = None
    """None for a fixed plan."""
    switches: tuple[Switch, ...] = ()
