"""The records of a query's history: first plans, decisions, migrations, moves, refusals and warnings.

A closed family of frozen values. `to_json` gives the form that users read: in the history file beside a checkpoint, in
`handle.history`, in the progress of a batch and in the calls of `onChange` listeners. It has an entry for each field;
an optional field that is None is left out, and a required one is null.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, Literal, TypeAlias

from anabranch.adapt.knowledge import Knowledge
from anabranch.balance.grid import GridChange
from anabranch.balance.rule import Move, Rebalancing
from anabranch.cost.resources import Resources
from anabranch.lang.sizes import size_text
from anabranch.migrate.strategies.strategy import Price
from anabranch.plan.mesh import Plan
from anabranch.stats.mesh.learnt import LearntMesh

Author: TypeAlias = Literal["user", "schedule", "loop", "mesh"]
"""Who asked for a change of plan."""
Origin: TypeAlias = Literal["optimizer", "search", "promise"]
"""The source of a proposed plan: the optimizer, a mesh search, or the plan before a mesh that costs more than
expected."""


_NAMES = {"rivals": "considered", "price": "migrationCost", "old": "from", "new": "to", "given_up": "reason"}
"""The entries that do not have the name of their field in camel case."""


@dataclass(frozen=True)
class Record:
    """An event in the history of queries."""

    kind: ClassVar[str]
    computed: ClassVar[tuple[str, ...]] = ()
    """The properties that have an entry, too."""
    query: str | None = field(default=None, kw_only=True)
    """Of queries that run together, the one that the record is about."""

    def to_json(self) -> dict[str, Any]:
        shown = [each.name for each in fields(self) if each.default is not None or getattr(self, each.name) is not None]
        return {
            "kind": self.kind,
            **{_name(name): _plain(getattr(self, name)) for name in (*shown, *self.computed)},
        }


@dataclass(frozen=True)
class Rival:
    """A plan that the optimizer priced but did not propose, and the reason."""

    plan: Plan
    cost: Resources
    reason: str


@dataclass(frozen=True)
class PlanTaken(Record):
    """The plan that a query starts with, and why."""

    kind: ClassVar[str] = "start"
    batch: int
    """The first batch of the plan."""
    plan: Plan
    cost: Resources
    """As estimated."""
    reason: str
    rivals: tuple[Rival, ...] = ()
    """The best of the plans that were not taken."""
    best_while: tuple[str, ...] = ()
    """The bounds of rates and selectivities between which the plan stays the best."""


@dataclass(frozen=True)
class Decision(Record):
    """The choice to change to the proposed plan or to keep the running plan; both have a cost and a reason."""

    kind: ClassVar[str] = "decision"
    computed: ClassVar[tuple[str, ...]] = ("strategy",)
    batch: int
    """The batch after which it was made."""
    action: Literal["migrate", "keep"]
    policy: str
    trigger: str
    """Why a better plan was searched for."""
    plan: Plan
    cost: Resources
    proposed: Plan
    proposed_cost: Resources
    origin: Origin
    price: Price | None
    """The estimated cost of the migration; None if the proposed plan is the running plan."""
    reason: str
    """Why the plan is changed or kept."""
    statistics: Knowledge
    rivals: tuple[Rival, ...] = ()
    """The best of the other plans that were priced."""
    slots: tuple[int, ...] = ()
    mesh: LearntMesh | None = None
    """The mesh that the decision is about, with what was learnt of it."""
    best_while: tuple[str, ...] = ()
    """For a change, the bounds of rates and selectivities between which the new plan stays the best."""

    @property
    def strategy(self) -> str | None:
        return None if self.price is None else self.price.strategy

    @property
    def takes_steps(self) -> bool:
        """True if the boxes in which the plans differ change one after another."""
        return self.price is not None and self.price.steps > 1


@dataclass(frozen=True)
class MigrationBegan(Record):
    """Some slots left a plan for another."""

    kind: ClassVar[str] = "migration"
    computed: ClassVar[tuple[str, ...]] = ("phase",)
    phase: ClassVar[str] = "began"
    batch: int
    by: Author
    slots: tuple[int, ...]
    old: Plan
    new: Plan
    strategy: str
    slots_in_place: int
    """Slots that migrated in place; the others were rebuilt with the new plan."""
    recomputed_rows: int
    seconds: float
    """The longest time that a slot could not step."""


@dataclass(frozen=True)
class MigrationEnded(Record):
    """All slots of a migration run one plan: the new one, or the old one where the migration was given up."""

    kind: ClassVar[str] = "migration"
    computed: ClassVar[tuple[str, ...]] = ("phase",)
    batch: int
    by: Author
    slots: tuple[int, ...]
    plan: Plan
    batches: int
    given_up: str | None = None
    """Why the slots run the old plan again."""

    @property
    def phase(self) -> str:
        return "ended" if self.given_up is None else "given up"


@dataclass(frozen=True)
class SharingDecided(Record):
    """A decision to share or stop sharing joins of a set of queries, or to leave them as they are."""

    kind: ClassVar[str] = "sharing"
    computed: ClassVar[tuple[str, ...]] = ("action",)
    batch: int
    plans: Mapping[str, Plan]
    """The plans that change with the next batch; none where everything stays."""
    cost: Resources
    proposed_cost: Resources
    shared: tuple[str, ...]
    """The joins that would be shared."""
    reason: str

    @property
    def action(self) -> str:
        return "migrate" if self.plans else "keep"


@dataclass(frozen=True)
class Refusal(Record):
    """A change of plan, or a move of partition groups, that was scheduled or decided on and that was not begun."""

    kind: ClassVar[str] = "refused"
    batch: int
    reason: str
    plan: Plan | None = None


@dataclass(frozen=True)
class SettingsChanged(Record):
    """A user changed the policy, the objective or the limits of a running query."""

    kind: ClassVar[str] = "settings"
    batch: int
    """The first batch that they apply to."""
    settings: Mapping[str, Any]


@dataclass(frozen=True)
class Needs:
    """The cores that a slot is expected to need for a query, what Spark takes of them, and what the limit allows."""

    cores: float
    spark: float
    allowed: float
    query: str | None = None

    def __str__(self) -> str:
        name = "" if self.query is None else f" for '{self.query}'"
        return (
            f"a slot was to need {self.cores:.3g} of {self.allowed:g} cores{name}, {self.spark:.3g} of them for Spark"
        )


@dataclass(frozen=True)
class FellBehind(Record):
    """Rows wait longer and longer although the plans were chosen within their limits."""

    kind: ClassVar[str] = "behind"
    computed: ClassVar[tuple[str, ...]] = ("reason",)
    batch: int
    before: float
    """Rows that waited at the beginning of the trend."""
    rows: float
    batches: int
    period: float | None
    """Seconds of wall clock from the batch before."""
    seconds: float | None
    """Event time that passed with the batch."""
    slot_cores: float | None
    """Cores that the steps of a slot took, per second of event time."""
    needs: tuple[Needs, ...] = ()

    @property
    def reason(self) -> str:
        text = f"rows that wait rose from {self.before:.3g} to {self.rows:.3g} over {self.batches} batches"
        if self.period is not None and self.seconds:
            text += f"; a batch of {self.seconds:.3g} s of the streams takes {self.period:.3g} s"
        if self.slot_cores is not None:
            text += f", the steps of a slot {self.slot_cores:.3g} cores"
        return "; ".join([text, *map(str, self.needs)])


@dataclass(frozen=True)
class LimitBroken(Record):
    """A slot has more memory than its limit allows: its state with room to grow, a worker, and its rows of a batch."""

    kind: ClassVar[str] = "limit"
    computed: ClassVar[tuple[str, ...]] = ("reason",)
    batch: int
    state_bytes: float
    """Bytes of live state."""
    bytes: float
    """Bytes in all."""
    allowed: float

    @property
    def reason(self) -> str:
        has, allowed, state = map(size_text, (self.bytes, self.allowed, self.state_bytes))
        return f"the fullest slot has {has} of {allowed}, with {state} of state"


@dataclass(frozen=True)
class KeysShed(Record):
    """Another share of keys is kept from the next batch on; the rows of the others are dropped and counted."""

    kind: ClassVar[str] = "overload"
    computed: ClassVar[tuple[str, ...]] = ("action",)
    batch: int
    kept_before: float
    kept: float
    reason: str

    @property
    def action(self) -> str:
        return "shed" if self.kept < self.kept_before else "admit"


@dataclass(frozen=True)
class GroupsMoved(Record):
    """Partition groups changed their slots with a batch."""

    kind: ClassVar[str] = "move"
    batch: int
    by: str
    moves: tuple[Move, ...]
    """Empty where the grid itself changed."""
    rows: int
    """Rows that slots took over."""
    rebuilt: tuple[int, ...]
    """Of the slots that gave or took groups, those that had to be rebuilt; the others changed in place."""
    strategy: str
    phase: str
    """`made`; `began` and `ended` of a move on parallel tracks."""
    left: int
    """Groups of the same move that are to follow with later batches."""
    grid: Mapping[str, int] | None = None
    """The parts of each dimension, where the grid changed."""
    split: tuple[str, ...] | None = None
    """Keys that were split over several slots."""
    united: tuple[str, ...] | None = None
    """Keys whose split was taken back."""


@dataclass(frozen=True)
class BalanceDecided(Record):
    """A decision to move partition groups, or to leave them, with the loads that it rests on."""

    kind: ClassVar[str] = "balance"
    batch: int
    trigger: str
    """Why the loads were measured."""
    found: Rebalancing
    refused: str | None = None
    """Why nothing moves; None when the moves are made with the next batch."""
    split: tuple[str, ...] | None = None
    """Keys that alone are too much for a slot."""
    united: tuple[str, ...] | None = None
    """Keys that are not heavy any more."""
    speeds: tuple[float, ...] | None = None
    """The speeds of slots that were measured and differ; the fastest is 1."""

    @property
    def reason(self) -> str:
        if self.refused is not None:
            return self.refused
        if self.found.saved <= 0 < self.found.freed:
            return f"frees {self.found.freed:,.0f} bytes of the slot with the most state"
        if self.found.saved < 0:  # fewer slots were asked for
            return f"the slowest slot has {-self.found.saved:.3g} s of CPU time more in a batch ({self.trigger})"
        return f"saves {self.found.saved:.3g} s of CPU time of the slowest slot in a batch"

    def to_json(self) -> dict[str, Any]:
        found, own = self.found, super().to_json()
        return {
            **{name: value for name, value in own.items() if name not in ("found", "refused")},
            "reason": self.reason,
            "action": "move" if self.refused is None else "keep",
            "skew": found.skew_before,
            "expectedSkew": found.skew_after,
            "cpuSeconds": list(found.before),
            "expectedCpuSeconds": list(found.after),
            "stateBytes": list(found.held_before),
            "expectedStateBytes": list(found.held_after),
            "bytes": found.bytes,
            "groups": sum(len(move.groups) for move in found.moves),
            "heavy": list(found.heavy),
        }


@dataclass(frozen=True)
class GridDecided(Record):
    """A decision to spread rows by another grid, or to keep the one in force."""

    kind: ClassVar[str] = "balance"
    batch: int
    found: GridChange
    refused: str | None = None
    """Why the grid stays; None when it changes with the next batch."""

    @property
    def reason(self) -> str:
        return self.refused or f"saves {self.found.saved:.3g} s of CPU time of a slot in a batch"

    def to_json(self) -> dict[str, Any]:
        found = self.found
        return {
            "kind": self.kind,
            "batch": self.batch,
            "action": "grid" if self.refused is None else "keep",
            "trigger": f"rows are sent to {found.sent:.3g} slots on average, by the best grid to {found.expected:.3g}",
            "grid": found.now.shares,
            "expectedGrid": found.proposed.shares,
            "sent": found.sent,
            "expectedSent": found.expected,
            "bytes": found.bytes,
            "reason": self.reason,
        }


@dataclass(frozen=True)
class QueriesChanged(Record):
    """Queries that joined a running set, with the event time from which on each answers, and queries that left."""

    kind: ClassVar[str] = "queries"
    batch: int
    """The first batch of the new set."""
    joined: Mapping[str, int | None]
    """In microseconds; None for a query whose answer is complete."""
    left: tuple[str, ...]


TableRecord: TypeAlias = GroupsMoved | Refusal | BalanceDecided | GridDecided
"""A record about the table of a set of queries."""
QueryRecord: TypeAlias = PlanTaken | Decision | MigrationBegan | MigrationEnded | Refusal | SettingsChanged
"""A record about one query."""


def _name(field: str) -> str:
    first, *others = field.split("_")
    return _NAMES.get(field, first + "".join(map(str.title, others)))


def _plain(value: Any) -> Any:
    """Returns a value as JSON has it; infinity, which it cannot express, is None."""
    match value:
        case None | bool() | int() | str():
            return value
        case float():
            return value if math.isfinite(value) else None
        case Price():
            numbers = {name: _plain(getattr(value, name)) for name in ("strategy", "cpu", "memory", "seconds")}
            return numbers if value.steps == 1 else {**numbers, "steps": value.steps}
        case Resources():
            return {name: _plain(float(getattr(value, name))) for name in ("cpu", "memory", "rate")}
        case Move():
            return {"groups": list(value.groups), "from": value.sender, "to": value.receiver}
        case Rival() | Needs():
            return {each.name: _plain(own) for each in fields(value) if (own := getattr(value, each.name)) is not None}
        case Knowledge() | LearntMesh():
            return value.to_json()
        case Mapping():
            return {name: _plain(own) for name, own in value.items()}
        case tuple() | list():
            return [_plain(own) for own in value]
    return str(value)
