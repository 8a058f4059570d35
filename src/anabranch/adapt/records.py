"""The records of a query's history: first plans, decisions, migrations, refusals and warnings.

A closed family of frozen values. `to_json` gives the form that users read: in the history file beside a checkpoint, in
`handle.history`, in the progress of a batch and in the calls of `onChange` listeners.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, TypeAlias

from anabranch.adapt.decision import Decision, Rival, plain_number
from anabranch.balance.grid import GridChange
from anabranch.balance.prices import MovePrices
from anabranch.balance.rule import Move, Rebalancing
from anabranch.cost.resources import Resources
from anabranch.lang.sizes import size_text
from anabranch.plan.mesh import Plan
from anabranch.stats.mesh.learnt import LearntMesh

Author: TypeAlias = Literal["user", "schedule", "loop", "mesh"]
"""Who asked for a change of plan."""


@dataclass(frozen=True)
class PlanTaken:
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
    query: str | None = None

    def to_json(self) -> dict[str, Any]:
        cost = {name: plain_number(getattr(self.cost, name)) for name in ("cpu", "memory", "rate")}
        return {
            "kind": self.kind,
            "batch": self.batch,
            "plan": str(self.plan),
            "cost": cost,
            "reason": self.reason,
            "considered": [rival.to_json() for rival in self.rivals],
            **_named(self.query),
        }


@dataclass(frozen=True)
class DecisionMade:
    """A decision of the loop, or on a mesh, for some slots."""

    kind: ClassVar[str] = "decision"
    decision: Decision
    slots: tuple[int, ...]
    mesh: LearntMesh | None = None
    """The mesh that the decision is about, with what was learnt of it."""
    query: str | None = None
    """Of queries that run together, the one that the record is about."""

    @property
    def batch(self) -> int:
        return self.decision.batch

    def to_json(self) -> dict[str, Any]:
        mesh = {} if self.mesh is None else {"mesh": self.mesh.to_json()}
        return {**self.decision.to_json(), "slots": list(self.slots), **mesh, **_named(self.query)}


@dataclass(frozen=True)
class MigrationBegan:
    """Some slots left a plan for another."""

    kind: ClassVar[str] = "migration"
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
    query: str | None = None

    def to_json(self) -> dict[str, Any]:
        return {
            "kind": self.kind,
            "batch": self.batch,
            "by": self.by,
            "slots": list(self.slots),
            "phase": "began",
            "from": str(self.old),
            "to": str(self.new),
            "strategy": self.strategy,
            "slotsInPlace": self.slots_in_place,
            "recomputedRows": self.recomputed_rows,
            "seconds": self.seconds,
            **_named(self.query),
        }


@dataclass(frozen=True)
class MigrationEnded:
    """All slots of a migration run one plan: the new one, or the old one where the migration was given up."""

    kind: ClassVar[str] = "migration"
    batch: int
    by: Author
    slots: tuple[int, ...]
    plan: Plan
    batches: int
    given_up: str | None = None
    """Why the slots run the old plan again."""
    query: str | None = None

    def to_json(self) -> dict[str, Any]:
        reason = {} if self.given_up is None else {"reason": self.given_up}
        return {
            "kind": self.kind,
            "batch": self.batch,
            "by": self.by,
            "slots": list(self.slots),
            "phase": "ended" if self.given_up is None else "given up",
            "plan": str(self.plan),
            "batches": self.batches,
            **reason,
            **_named(self.query),
        }


@dataclass(frozen=True)
class SharingDecided:
    """A decision to share or stop sharing joins of a set of queries, or to leave them as they are."""

    kind: ClassVar[str] = "sharing"
    batch: int
    plans: Mapping[str, Plan]
    """The plans that change with the next batch; none where everything stays."""
    cost: Resources
    proposed_cost: Resources
    shared: tuple[str, ...]
    """The joins that would be shared."""
    reason: str

    def to_json(self) -> dict[str, Any]:
        return {
            "kind": self.kind,
            "batch": self.batch,
            "action": "migrate" if self.plans else "keep",
            "plans": {name: str(plan) for name, plan in self.plans.items()},
            "shared": list(self.shared),
            "cost": {"cpu": self.cost.cpu, "memory": self.cost.memory},
            "proposedCost": {"cpu": self.proposed_cost.cpu, "memory": self.proposed_cost.memory},
            "reason": self.reason,
        }


@dataclass(frozen=True)
class Refusal:
    """A change of plan that was scheduled or decided on, and that was not begun."""

    kind: ClassVar[str] = "refused"
    batch: int
    plan: Plan
    reason: str
    query: str | None = None

    def to_json(self) -> dict[str, Any]:
        record = {"kind": self.kind, "batch": self.batch, "plan": str(self.plan), "reason": self.reason}
        return {**record, **_named(self.query)}


@dataclass(frozen=True)
class SettingsChanged:
    """A user changed the policy, the objective or the limits of a running query."""

    kind: ClassVar[str] = "settings"
    batch: int
    """The first batch that they apply to."""
    settings: Mapping[str, Any]
    query: str | None = None

    def to_json(self) -> dict[str, Any]:
        return {"kind": self.kind, "batch": self.batch, "settings": dict(self.settings), **_named(self.query)}


@dataclass(frozen=True)
class Warned:
    """Something went wrong that stops no query."""

    kind: ClassVar[str] = "warning"
    batch: int
    reason: str

    def to_json(self) -> dict[str, Any]:
        return {"kind": self.kind, "batch": self.batch, "reason": self.reason}


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
class FellBehind:
    """Rows wait longer and longer although the plans were chosen within their limits."""

    kind: ClassVar[str] = "behind"
    batch: int
    before: float
    """Rows that waited at the beginning of the trend."""
    rows: float
    batches: int
    period: float | None
    """Seconds of wall clock from the batch before."""
    seconds: float | None
    """Event time that passed with the batch."""
    slots: float | None
    """Cores that the steps of a slot took, per second of event time."""
    needs: tuple[Needs, ...] = ()

    @property
    def reason(self) -> str:
        text = f"rows that wait rose from {self.before:.3g} to {self.rows:.3g} over {self.batches} batches"
        if self.period is not None and self.seconds:
            text += f"; a batch of {self.seconds:.3g} s of the streams takes {self.period:.3g} s"
        if self.slots is not None:
            text += f", the steps of a slot {self.slots:.3g} cores"
        return "; ".join([text, *map(str, self.needs)])

    def to_json(self) -> dict[str, Any]:
        return {
            "kind": self.kind,
            "batch": self.batch,
            "before": self.before,
            "rows": self.rows,
            "batches": self.batches,
            "period": self.period,
            "seconds": self.seconds,
            "slotCores": self.slots,
            "needs": [
                {"cores": each.cores, "spark": each.spark, "allowed": each.allowed, **_named(each.query)}
                for each in self.needs
            ],
            "reason": self.reason,
        }


@dataclass(frozen=True)
class LimitBroken:
    """A slot has more memory than its limit allows: its state with room to grow, a worker, and its rows of a batch."""

    kind: ClassVar[str] = "limit"
    batch: int
    state: float
    """Bytes of live state."""
    memory: float
    """Bytes in all."""
    allowed: float
    query: str | None = None

    def to_json(self) -> dict[str, Any]:
        return {
            "kind": self.kind,
            "batch": self.batch,
            "stateBytes": self.state,
            "bytes": self.memory,
            "allowed": self.allowed,
            "reason": f"the fullest slot has {size_text(self.memory)} of {size_text(self.allowed)}, with "
            f"{size_text(self.state)} of state",
            **_named(self.query),
        }


@dataclass(frozen=True)
class KeysShed:
    """Another share of keys is kept from the next batch on; the rows of the others are dropped and counted."""

    kind: ClassVar[str] = "overload"
    batch: int
    before: float
    share: float
    reason: str

    def to_json(self) -> dict[str, Any]:
        return {
            "kind": self.kind,
            "batch": self.batch,
            "action": "shed" if self.share < self.before else "admit",
            "keptBefore": round(self.before, 4),
            "kept": round(self.share, 4),
            "reason": self.reason,
        }


@dataclass(frozen=True)
class GroupsMoved:
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
    strategy: str = "moving-state"
    phase: str = "made"
    """`began` and `ended` of a move on parallel tracks."""
    left: int = 0
    """Groups of the same move that are to follow with later batches."""
    grid: Mapping[str, int] | None = None
    """The parts of each dimension, where the grid changed."""
    split: tuple[str, ...] = ()
    """Keys that were split over several slots."""
    united: tuple[str, ...] = ()
    """Keys whose split was taken back."""

    def to_json(self) -> dict[str, Any]:
        grid = {} if self.grid is None else {"grid": dict(self.grid)}
        return {
            "kind": self.kind,
            "batch": self.batch,
            "by": self.by,
            "moves": [{"groups": list(m.groups), "from": m.sender, "to": m.receiver} for m in self.moves],
            "rows": self.rows,
            "rebuilt": list(self.rebuilt),
            "strategy": self.strategy,
            "phase": self.phase,
            "left": self.left,
            **grid,
            **_keys(self.split, self.united),
        }


@dataclass(frozen=True)
class MoveRefused:
    """A move of partition groups that could not be made."""

    kind: ClassVar[str] = "refused"
    batch: int
    reason: str

    def to_json(self) -> dict[str, Any]:
        return {"kind": self.kind, "batch": self.batch, "reason": self.reason}


@dataclass(frozen=True)
class BalanceDecided:
    """A decision to move partition groups, or to leave them, with the loads that it rests on."""

    kind: ClassVar[str] = "balance"
    batch: int
    trigger: str
    """Why the loads were measured."""
    found: Rebalancing
    refused: str | None = None
    """Why nothing moves; None when the moves are made with the next batch."""
    split: tuple[str, ...] = ()
    """Keys that alone are too much for a slot."""
    united: tuple[str, ...] = ()
    """Keys that are not heavy any more."""
    speeds: tuple[float, ...] | None = None
    """The speeds of slots that were measured and differ; the fastest is 1."""
    prices: MovePrices | None = None
    """The prices by which the strategy of the moves was chosen, if the query chose it."""

    def to_json(self) -> dict[str, Any]:
        found, prices = self.found, self.prices
        seconds = (
            {} if prices is None else {"moving-state": prices.moving_state, "parallel-track": prices.parallel_track}
        )
        return {
            "kind": self.kind,
            "batch": self.batch,
            "action": "move" if self.refused is None else "keep",
            "trigger": self.trigger,
            "skew": found.skew_before,
            "expectedSkew": found.skew_after,
            "cpuSeconds": list(found.before),
            "expectedCpuSeconds": list(found.after),
            "stateBytes": list(found.held_before),
            "expectedStateBytes": list(found.held_after),
            "bytes": found.bytes,
            "groups": sum(len(move.groups) for move in found.moves),
            "heavy": list(found.heavy),
            **_keys(self.split, self.united),
            **({} if self.speeds is None else {"speeds": [round(speed, 3) for speed in self.speeds]}),
            **({"strategySeconds": seconds} if seconds else {}),
            "reason": self.refused or self._gain(),
        }

    def _gain(self) -> str:
        if self.found.saved <= 0 < self.found.freed:
            return f"frees {self.found.freed:,.0f} bytes of the slot with the most state"
        if self.found.saved < 0:  # fewer slots were asked for
            return f"the slowest slot has {-self.found.saved:.3g} s of CPU time more in a batch ({self.trigger})"
        return f"saves {self.found.saved:.3g} s of CPU time of the slowest slot in a batch"


@dataclass(frozen=True)
class GridDecided:
    """A decision to spread rows by another grid, or to keep the one in force."""

    kind: ClassVar[str] = "balance"
    batch: int
    found: GridChange
    refused: str | None = None
    """Why the grid stays; None when it changes with the next batch."""

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
            "reason": self.refused or f"saves {found.saved:.3g} s of CPU time of a slot in a batch",
        }


TableRecord: TypeAlias = GroupsMoved | MoveRefused | BalanceDecided | GridDecided
"""A record about the table of a set of queries."""
QueryRecord: TypeAlias = PlanTaken | DecisionMade | MigrationBegan | MigrationEnded | Refusal | SettingsChanged
"""A record about one query."""


@dataclass(frozen=True)
class QueriesChanged:
    """Queries that joined a running set, with the event time from which on each answers, and queries that left."""

    kind: ClassVar[str] = "queries"
    batch: int
    """The first batch of the new set."""
    joined: Mapping[str, int | None]
    """In microseconds; None for a query whose answer is complete."""
    left: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        return {"kind": self.kind, "batch": self.batch, "joined": dict(self.joined), "left": list(self.left)}


Record: TypeAlias = (
    QueryRecord | TableRecord | SharingDecided | Warned | QueriesChanged | FellBehind | LimitBroken | KeysShed
)


def _keys(split: tuple[str, ...], united: tuple[str, ...]) -> dict[str, list[str]]:
    return {name: list(keys) for name, keys in (("split", split), ("united", united)) if keys}


def _named(query: str | None) -> dict[str, str]:
    return {} if query is None else {"query": query}
