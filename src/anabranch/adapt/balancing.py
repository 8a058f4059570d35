"""When a running set of queries rebalances itself, and when a rebalancing pays.

The CPU time of every slot is in every report, so watching costs nothing. When the slowest slot has stood out for some
batches, the slots are asked to count one batch by cell; the rule of `balance` then proposes moves. A proposal passes
the gate when it wins by a ratio and by an amount, and when the batches of the horizon save more than taking the rows
over costs. After a move, after a proposal that did not pass, and after a change of plan, nothing is decided for the
cool-down. Where the speeds of slots are measured (`adapt.speeds`), time by the clock on the wall takes the place of CPU
time: a machine that others use as well takes longer, not more CPU time.

An elastic query also watches how busy its slots are: their CPU time per second of wall clock. It uses more slots when
an average one is busier than a limit, fewer when one less would still be idle, and never more than tasks can run at
once.

State is watched beside CPU time, by the bytes that every report has: a slot that holds much more than the others stands
out as well, and `balance.rule` evens out both.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

import numpy as np

from anabranch.adapt.course import STRATEGIES, MoveStrategy
from anabranch.adapt.facts import BatchFacts
from anabranch.adapt.policy import TEN_BATCHES, Interval
from anabranch.adapt.speeds import SpeedWatch, time_of
from anabranch.balance.loads import Loads, skew
from anabranch.balance.prices import MovePrices, price_moves
from anabranch.balance.rule import Rebalancing, even_out
from anabranch.plan.partitioning import Partitioning
from anabranch.plan.slots import FEWEST, SlotRange
from anabranch.settings.entries import Entry, optional
from anabranch.stats.report import SlotReport, SlotReports

Mode: TypeAlias = Literal["off", "manual", "auto"]
MODES: tuple[Mode, ...] = ("off", "manual", "auto")
TAKING_OVER = 1e-8
"""Seconds of one core to take over a byte of state: read, filter, append and index it.

1.05e-8 was measured with rows of 44 bytes; the sender takes a third of that for each byte that it had."""


@dataclass(frozen=True)
class Balance:
    """Who may move partition groups, and what a move must win."""

    mode: Mode = "manual"
    """`off`: nobody; `manual`: the user and the schedule; `auto`: the query itself as well."""
    ratio: float = 1.2
    """The slowest slot takes this many times the average, or more."""
    seconds: float = 0.02
    """CPU time per batch by which the slowest slot exceeds the average, at least."""
    bytes: float = 64e6
    """State by which the largest slot exceeds the average, at least; below it, bytes of state do not count."""
    horizon: int = 100
    """Batches within which a move must have paid for itself."""
    remember: int = 5
    """Batches that are looked at together."""
    cool_down: Interval = TEN_BATCHES
    capacities: tuple[float, ...] | None = None
    """Relative speeds of the slots; equal when None."""
    measures_speeds: bool = False
    """Whether the speeds of slots are measured, and time counts instead of CPU time."""
    show_keys: bool = False
    """Whether records and progress name heavy keys by value, not by a hash."""
    strategy: MoveStrategy | Literal["auto"] = "moving-state"
    """How the groups move that the query moves by itself; `auto` takes the strategy with the lower price."""
    rows: int | None = None
    """Rows that slots may take over with one batch; a larger move is spread over several. None for no limit."""
    busy: float = 0.7
    """CPU time of an average slot, per second of wall clock, above which an elastic query uses more slots."""
    idle: float = 0.3
    """The same with one slot less, below which it uses fewer."""

    def objection(self, saved: float, moved: float) -> str | None:
        """Why a change does not pay that saves so many seconds of a batch and moves so many bytes; None if it pays."""
        if saved <= 0:
            return "saves nothing"
        if saved < self.seconds:
            return f"saves {saved:.3g} s of a batch, {self.seconds:g} s are wanted"
        price = moved * TAKING_OVER
        if price > saved * self.horizon:
            return f"is paid back after {price / saved:.3g} batches, {self.horizon} are allowed"
        return None

    @classmethod
    def read(cls, entry: Entry) -> Balance:
        """Reads `balance: auto`, or a block of settings."""
        if not isinstance(entry.value, Mapping):
            return cls(mode=_mode(entry))
        entries = entry.mapping("mode capacities show_keys strategy rows")
        return cls(
            mode=optional(entries, "mode", _mode, "auto"),
            capacities=optional(entries, "capacities", _capacities, None),
            measures_speeds="capacities" in entries and entries["capacities"].value == MEASURED,
            show_keys=optional(entries, "show_keys", lambda each: each.flag(), cls.show_keys),
            strategy=optional(entries, "strategy", _strategy, cls.strategy),
            rows=optional(entries, "rows", lambda each: each.count("write a number of rows of at least 1"), None),
        )

    @classmethod
    def from_mapping(cls, value: str | Mapping[str, object]) -> Balance:
        """Reads the argument of a writer's `balance`.

        >>> Balance.from_mapping("auto").mode, Balance.from_mapping({"rows": 1000}).rows
        ('auto', 1000)
        """
        return cls.read(Entry("balance", value))


MEASURED = "measured"
BY_HAND = Balance()
BY_ITSELF = Balance("auto")


@dataclass
class BalanceWatch:
    """The loads of the latest batches, and when the next decision is due."""

    settings: Balance
    _cpu: deque[np.ndarray] = field(default_factory=deque)
    _periods: deque[float | None] = field(default_factory=deque)
    _cores: int | None = None
    _bytes: np.ndarray = field(default_factory=lambda: np.zeros(0))
    _seconds: float | None = None
    """Event time that the latest batch took; None when it is not known."""
    _quiet: int = 0
    """Batches since the last decision; the cool-down of a fresh query has passed."""
    _is_cooling: bool = False

    def __post_init__(self) -> None:
        self._speeds = SpeedWatch(self.settings.remember)

    def load_of(self, report: SlotReport) -> float:
        """The load of a slot in a batch: seconds of CPU time, or of the clock on the wall where speeds are measured."""
        return time_of(report) if self.settings.measures_speeds else report.cpu

    def speeds(self, slots: int) -> tuple[float, ...] | None:
        """The relative speeds of all slots, as declared or as measured; None where they count as equal."""
        return self._speeds.speeds(slots) if self.settings.measures_speeds else self.settings.capacities

    def note(self, available: Sequence[int], reports: SlotReports, facts: BatchFacts) -> None:
        """Takes in a batch of the slots that may have groups."""
        settings = self.settings
        slots = [reports[slot] for slot in available]
        self._cpu.append(np.array([self.load_of(slot) for slot in slots]))
        self._speeds.note(reports)
        self._periods.append(facts.period)
        self._cores = facts.cores
        while len(self._cpu) > settings.remember:
            self._cpu.popleft()
            self._periods.popleft()
        self._bytes = np.array([float(slot.statistics.state_bytes) for slot in slots])
        self._seconds = facts.seconds
        self._quiet += 1
        if self._is_cooling and settings.cool_down.has_passed(self._quiet, 0.0):
            self._is_cooling = False

    def stands_out(self, available: Sequence[int]) -> str | None:
        """Why the slots should be counted and evened out, or None."""
        settings = self.settings
        if not self.is_free or len(available) < 2:
            return None
        mean = np.mean(self._cpu, axis=0)
        if skew(mean) >= settings.ratio and mean.max() - mean.mean() >= settings.seconds:
            what = "time" if settings.measures_speeds else "CPU time"
            return f"slot {available[int(mean.argmax())]} takes {skew(mean):.2f} times the average {what}"
        held = self._bytes
        is_full = skew(held) >= settings.ratio and held.max() - held.mean() >= settings.bytes
        if is_full:
            return f"slot {available[int(held.argmax())]} has {skew(held):.2f} times the average bytes of state"
        return None

    @property
    def is_free(self) -> bool:
        """True when the query may decide by itself and has seen enough batches."""
        return self.settings.mode == "auto" and not self._is_cooling and len(self._cpu) >= self.settings.remember

    @property
    def is_long_since(self) -> bool:
        """True when the last decision is as many batches ago as a change has to pay back."""
        return self.is_free and self._quiet >= self.settings.horizon

    def other_number(self, available: Sequence[int], limits: SlotRange) -> tuple[int, str] | None:
        """How many slots the load needs, if that is another number than there are, and why."""
        count, most = len(available), limits.most if self._cores is None else limits.within(self._cores)
        if self.settings.mode != "auto" or self._is_cooling:
            return None
        if count > most:
            return most, f"only {self._cores} tasks can run at once"
        periods = [period for period in self._periods if period is not None]
        if not self.is_free or len(periods) < len(self._periods):
            return None
        cores = float(np.sum(self._cpu)) / max(sum(periods), 1e-9)
        # The load that a slot has afterwards is half-way between the two limits.
        fitting = math.ceil(cores / ((self.settings.busy + self.settings.idle) / 2))
        if cores / count > self.settings.busy and count < most:
            return min(most, max(fitting, count + 1)), f"an average slot is busy for {cores / count:.0%} of the time"
        if count > limits.least and cores / (count - 1) < self.settings.idle:
            fewer = max(limits.least, min(fitting, count - 1))
            return fewer, f"with one slot less, each would be busy for {cores / (count - 1):.0%} of the time"
        return None

    def decided(self) -> None:
        """Begins the cool-down."""
        self._cpu.clear()
        self._periods.clear()
        self._quiet, self._is_cooling = 0, True

    def propose(
        self,
        table: Partitioning,
        loads: Loads,
        available: Sequence[int],
        copying: Callable[[Partitioning], float] = lambda _: 0.0,
    ) -> tuple[Rebalancing, str | None]:
        """The moves for measured loads, and why they are not to be made, or None."""
        settings = self.settings
        found = even_out(
            table,
            loads,
            speeds=self.speeds(table.slots),
            available=available,
            copying=copying,
            least_bytes=settings.bytes,
            most_skew=settings.ratio,
        )
        if not found.moves:
            return found, "no group can move without making another slot the slowest"
        return found, self.objection(found)

    def strategy(
        self, found: Rebalancing, loads: Loads, window: float | None
    ) -> tuple[MoveStrategy, MovePrices | None]:
        """How groups move that the query moves by itself, and the prices if they decided that.

        `window` has the seconds of the longest window; None where groups cannot move on parallel tracks.
        """
        if self.settings.strategy != "auto":
            return self.settings.strategy, None
        prices = price_moves(found, loads, window / self._seconds) if window and self._seconds else None
        tracks_are_cheaper = prices is not None and prices.parallel_track < prices.moving_state
        return ("parallel-track" if tracks_are_cheaper else "moving-state"), prices

    def objection(self, found: Rebalancing) -> str | None:
        """Why the query should not make a change by itself; None where it pays, or frees enough state."""
        if found.freed >= self.settings.bytes and found.skew_after <= max(self.settings.ratio, found.skew_before):
            return None
        return self.settings.objection(found.saved, found.bytes)


def read_slots(entry: Entry) -> SlotRange:
    """Reads `slots: 4`, `slots: fewest`, `slots: {least: 1, most: 8}`, or the last with `fewest: true`."""
    if entry.value == "fewest":
        return FEWEST
    if not isinstance(entry.value, Mapping):
        return SlotRange.fixed(entry.count("write a whole number of at least 1, {least: 1, most: 8}, or fewest"))
    entries = entry.mapping("least most fewest", {"most": "most: 8, the slots that there may be"})
    least, most = optional(entries, "least", Entry.count, 1), entries["most"].count()
    if least > most:
        raise entry.wrong(f"has at least {least} and at most {most}", "write the smaller number as 'least'")
    return SlotRange(least, most, is_sought=optional(entries, "fewest", lambda each: each.flag(), False))


def read_strategy(entry: Entry) -> MoveStrategy:
    """Reads the name of a strategy of moves."""
    name = entry.choice(STRATEGIES)
    return next(strategy for strategy in STRATEGIES if strategy == name)


def _strategy(entry: Entry) -> MoveStrategy | Literal["auto"]:
    if entry.value == "auto":
        return "auto"
    entry.choice((*STRATEGIES, "auto"))
    return read_strategy(entry)


def _mode(entry: Entry) -> Mode:
    name = entry.choice(MODES)
    return next(mode for mode in MODES if mode == name)


def _capacities(entry: Entry) -> tuple[float, ...] | None:
    if entry.value == MEASURED:
        return None
    hint = "write the speed of each slot beside the others, such as [1, 1, 0.5], or measured"
    return tuple(each.number(above=0.0, hint=hint) for each in entry.items("[1, 1, 0.5]"))
