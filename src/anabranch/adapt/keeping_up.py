"""Monitors the limits of a running query: whether it keeps up with its input, and whether its slots stay within memory.

A plan within its limits is expected to keep up. If the backlog grows steadily nevertheless, an estimate is wrong: Spark
costs more than was calibrated, other programs use the machine, or the trigger takes too few rows. The monitor then
writes a record with the measured and the estimated figures. In the same way it compares the state of a slot plus the
host's memory with the limit. With `overload: shed` it also drops the rows of some keys: the share of keys that are kept
is halved when a slot comes within a tenth of its memory limit, or when ever more rows wait; it is raised by a fifth
after ten batches without either. Between two changes there are ten batches, because shedding takes time to help.

Invariant: an exceeded limit is recorded once, and again only after it was kept in between; without trouble all keys are
kept. Limit: the monitor changes no plan, and the share does not follow from a model, so a run may shed too much.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from anabranch.adapt.facts import NEAR, RATIO, TEN_BATCHES, WATCHED, BatchFacts, Waiting, is_rising
from anabranch.adapt.records import FellBehind, KeysShed, LimitBroken, Needs
from anabranch.adapt.rules import ChangeRules
from anabranch.lang.sizes import size_text
from anabranch.optimize.proposals import UNLIMITED, Budget
from anabranch.plan.query_set import ALONE
from anabranch.stats.report import SlotReports

JOINT = "all queries"
"""Stands for the joint limits among those of queries; no name of a query has a space."""
LEAST = 1 / 64
"""The smallest share of keys that is kept."""


@dataclass(frozen=True)
class Trouble:
    """Whether a run can take its input, as of a batch."""

    reason: str | None = None
    """The limit that is near, or how the backlog grew; None if neither."""
    is_over: bool = True
    """False while rows still wait that could not be taken in time."""


@dataclass(frozen=True)
class Shedding:
    """The share of keys that are kept, from 0 to 1."""

    share: float = 1.0
    quiet: int = TEN_BATCHES.batches
    """Batches since the last change."""

    def after(self, batch: int, trouble: Trouble) -> tuple[Shedding, KeysShed | None]:
        """Takes in a batch; returns the share from now on, and a record of a change."""
        share, quiet, reason, rest = self.share, self.quiet + 1, "", TEN_BATCHES.batches
        if quiet > rest and trouble.reason is not None:
            share, reason = max(LEAST, share / 2), trouble.reason
        elif quiet > rest and trouble.is_over and share < 1:
            share, reason = min(1.0, share * RATIO), f"no limit was near for {rest} batches"
        if share == self.share:
            return Shedding(share, quiet), None
        return Shedding(share, 0), KeysShed(batch, round(self.share, 4), round(share, 4), reason)


class KeepingUp:
    """Monitors the limits of all queries of a run."""

    def __init__(self, rules: Mapping[str, ChangeRules], joint: Budget = UNLIMITED, *, sheds: bool = False) -> None:
        self._limited = {name: each.criteria for name, each in rules.items() if each.criteria.budget.is_limited}
        self._joint = joint
        self._waiting = Waiting()
        self._alarm: float | None = None
        """Rows that waited when it was last recorded that the query falls behind."""
        self._broken: set[str] = set()
        self._sheds = sheds
        self._near: str | None = None
        """The memory limit that the fullest slot has almost reached."""

    @property
    def is_active(self) -> bool:
        """Whether there is a limit to hold the run against, or rows are shed if it does not keep up."""
        return self._sheds or bool(self._limited) or self._joint.is_limited

    def after(self, facts: BatchFacts, reports: SlotReports) -> list[FellBehind | LimitBroken]:
        """Takes in a batch; returns what is to be recorded."""
        if not self.is_active:
            return []
        return [*self._speed(facts, reports), *self._memory(facts.batch, reports)]

    @property
    def trouble(self) -> Trouble:
        """Whether the run can take its input, as of the latest batch."""
        if self._near is not None:
            return Trouble(self._near, is_over=False)
        if self._alarm is None:
            return Trouble()
        rows = self._waiting.rows[-1]
        return Trouble(f"{rows:.3g} rows wait, and no fewer" if rows >= self._alarm else None, is_over=False)

    def _speed(self, facts: BatchFacts, reports: SlotReports) -> list[FellBehind]:
        before, self._waiting = self._waiting, self._waiting.after(facts)
        rows = self._waiting.rows
        if rows == before.rows:
            return []
        if self._alarm is not None:
            if rows[-1] < self._alarm / RATIO:
                self._alarm, self._waiting = None, Waiting()
            return []
        if not is_rising(rows):
            return []
        self._alarm = rows[-1]
        spent = sum(report.cpu for report in reports.values()) / len(reports)
        return [
            FellBehind(
                facts.batch,
                before=rows[-WATCHED],
                rows=rows[-1],
                batches=WATCHED,
                period=facts.period,
                seconds=facts.seconds,
                slot_cores=spent / facts.seconds if facts.seconds else None,
                needs=tuple(
                    Needs(each.budget.of_slot(each.expected).cpu, each.budget.taken.cpu, each.budget.cpu, name or None)
                    for name, each in self._limited.items()
                    if each.expected is not None and each.budget.cpu < float("inf")
                ),
            )
        ]

    def _memory(self, batch: int, reports: SlotReports) -> list[LimitBroken]:
        limits = [
            (name, each.budget, max(report.queries[name].statistics.state_bytes for report in reports.values()))
            for name, each in self._limited.items()
        ]
        if self._joint.is_limited:
            limits.append((JOINT, self._joint, max(report.statistics.state_bytes for report in reports.values())))
        found = []
        self._near = None
        for name, budget, state in limits:
            has = state * budget.room + budget.taken.memory
            if has > NEAR * budget.memory:
                self._near = f"the fullest slot has {size_text(has)} of {size_text(budget.memory)}"
            if has > budget.memory and name not in self._broken:
                self._broken.add(name)
                query = None if name in (ALONE, JOINT) else name
                found.append(LimitBroken(batch, float(state), has, budget.memory, query=query))
            elif has < NEAR * budget.memory:
                self._broken.discard(name)
        return found
