"""Monitors the limits of a running query: whether it keeps up with its input, and whether its slots stay within memory.

A plan within its limits is expected to keep up. If the backlog grows steadily nevertheless, an estimate is wrong: Spark
costs more than was calibrated, other programs use the machine, or the trigger takes too few rows. The monitor then
writes a record with the measured and the estimated figures. In the same way it compares the state of a slot plus the
host's memory with the limit. The backlog is that reported by the sources or, if they report none, it is estimated from
the lag behind the time of day.

Invariant: an exceeded limit is recorded once, and again only after it was kept in between. Limit: the monitor changes
no plan.
"""

from __future__ import annotations

from collections.abc import Mapping

from anabranch.adapt.facts import BatchFacts
from anabranch.adapt.policy import STEADY, Trend
from anabranch.adapt.records import FellBehind, LimitBroken, Needs
from anabranch.adapt.rules import ChangeRules
from anabranch.adapt.shedding import Trouble
from anabranch.lang.sizes import size_text
from anabranch.optimize.proposals import UNLIMITED, Budget
from anabranch.plan.query_set import ALONE
from anabranch.stats.report import SlotReports

REMEMBERED = 64
"""Batches in which a trend is looked for."""
JOINT = "all queries"
"""Stands for the joint limits among those of queries; no name of a query has a space."""
FREED = 0.9
"""The share of a limit below which a broken one counts as kept again."""


class KeepingUp:
    """The watch over the limits of all queries of a run."""

    def __init__(
        self, rules: Mapping[str, ChangeRules], joint: Budget = UNLIMITED, trend: Trend = STEADY, *, sheds: bool = False
    ) -> None:
        self._limited = {name: each.criteria for name, each in rules.items() if each.criteria.budget.is_limited}
        self._joint = joint
        self._trend = trend
        self._waiting: tuple[float, ...] = ()
        self._behind: float | None = None
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
        rows = self._waiting[-1]
        return Trouble(f"{rows:.3g} rows wait, and no fewer" if rows >= self._alarm else None, is_over=False)

    def _speed(self, facts: BatchFacts, reports: SlotReports) -> list[FellBehind]:
        self._behind = facts.behind if self._behind is None else self._behind
        rows = facts.rows_waiting(self._behind)
        if rows is None:
            return []
        self._waiting = (*self._waiting, rows)[-REMEMBERED:]
        if self._alarm is not None:
            if rows < self._alarm / self._trend.growth:
                self._alarm, self._waiting, self._behind = None, (), None
            return []
        if not self._trend.holds(self._waiting):
            return []
        self._alarm = rows
        before = self._waiting[-self._trend.batches]
        spent = sum(report.cpu for report in reports.values()) / len(reports)
        return [
            FellBehind(
                facts.batch,
                before=before,
                rows=rows,
                batches=self._trend.batches,
                period=facts.period,
                seconds=facts.seconds,
                slots=spent / facts.seconds if facts.seconds else None,
                needs=tuple(
                    Needs(each.budget.of_slot(each.expected).cpu, each.budget.taken.cpu, each.budget.cpu, name or None)
                    for name, each in self._limited.items()
                    if each.expected is not None and each.budget.cpu < float("inf")
                ),
            )
        ]

    def _memory(self, batch: int, reports: SlotReports) -> list[LimitBroken]:
        held = {
            name: max(report.queries[name].statistics.state_bytes for report in reports.values())
            for name in self._limited
        }
        limits = [(name, each.budget, held[name]) for name, each in self._limited.items()]
        if self._joint.is_limited:
            limits.append((JOINT, self._joint, max(report.statistics.state_bytes for report in reports.values())))
        found = []
        self._near = None
        for name, budget, state in limits:
            has = state * budget.room + budget.taken.memory
            if has > FREED * budget.memory:
                self._near = f"the fullest slot has {size_text(has)} of {size_text(budget.memory)}"
            if has > budget.memory and name not in self._broken:
                self._broken.add(name)
                query = None if name in (ALONE, JOINT) else name
                found.append(LimitBroken(batch, float(state), has, budget.memory, query))
            elif has < FREED * budget.memory:
                self._broken.discard(name)
        return found
