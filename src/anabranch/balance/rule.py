"""From loads to moves: the most loaded slots give groups to the least loaded ones until no slot stands out.

Sender and receiver are the most and the least loaded slot, and half their difference moves, as in Zhu 2006, Section
20.3. The dissertation moves between one pair at a time; here a proposal may name several pairs, because a batch ends
with its slowest slot and one pair leaves the second slowest where it was. Groups move whole. The largest ones that fit
go first, so that few groups move. A group that is heavier than half the difference stays: the receiver would become the
slowest slot. Where such a group keeps a slot above the others, `Rebalancing.heavy` names it: only splitting its keys
would help.

Moving a cell of a hypercube may send rows to more slots than before. The rule prices these copies by the caller's cost
of a copied row and does not make a move that costs more than it saves.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from anabranch.balance.loads import Floats, Loads, skew
from anabranch.plan.partitioning import Partitioning


@dataclass(frozen=True)
class Move:
    """Partition groups that change their slot."""

    groups: tuple[int, ...]
    sender: int
    receiver: int


@dataclass(frozen=True)
class Rebalancing:
    """The moves that even out the load, and what they would change."""

    moves: tuple[Move, ...]
    before: tuple[float, ...]
    """Seconds of one core, by slot."""
    after: tuple[float, ...]
    bytes: float
    """State that has to be taken over."""
    heavy: tuple[int, ...] = ()
    """Groups that are too heavy for any slot, the heaviest first."""
    among: tuple[int, ...] | None = None
    """The slots that may have groups; all when None."""

    def applied(self, table: Partitioning) -> Partitioning:
        """The table after the moves."""
        for move in self.moves:
            table = table.moved(move.groups, move.receiver)
        return table

    @property
    def saved(self) -> float:
        """By how much the slowest slot gets quicker, in seconds of one core over the measured batches."""
        return max(self.before, default=0.0) - max(self.after, default=0.0)

    @property
    def skew_before(self) -> float:
        return skew(self._usable(self.before))

    @property
    def skew_after(self) -> float:
        return skew(self._usable(self.after))

    def _usable(self, loads: tuple[float, ...]) -> list[float]:
        return [load for slot, load in enumerate(loads) if self.among is None or slot in self.among]


def even_out(
    partitioning: Partitioning,
    loads: Loads,
    *,
    tolerance: float = 1.05,
    speeds: Sequence[float] | None = None,
    available: Sequence[int] | None = None,
    copying: Callable[[Partitioning], float] = lambda _: 0.0,
) -> Rebalancing:
    """The moves after which the slowest slot has at most `tolerance` times the average load, as far as groups allow.

    `speeds` are relative speeds of the slots (a group that takes 1 s at speed 1 takes 2 s at speed 0.5). `available`
    are the slots that may have groups, all when None; groups on others move away whatever their load. `copying` prices
    the copies that a table sends, in seconds of one core.
    """
    state = _State(partitioning, loads, speeds, available)
    for stranded in state.stranded():
        state.move(stranded, state.least())
    copies = copying(state.partitioning)
    refused: set[int] = set()
    while (pair := state.pair(tolerance)) is not None:
        sender, receiver = pair
        group = state.best_group(sender, receiver, refused)
        if group is None:
            break
        gain = state.gain(group, receiver)
        state.move(group, receiver)
        with_copies = copying(state.partitioning)
        if with_copies - copies >= gain:
            state.move(group, sender)
            refused.add(group)
            continue
        copies = with_copies
    return Rebalancing(
        moves_between(partitioning, state.partitioning),
        tuple(loads.cpu.tolist()),
        tuple(state.cpu.tolist()),
        sum(loads.group_bytes[g] for g, slot in enumerate(partitioning.table) if state.table[g] != slot),
        state.heavy(tolerance),
        None if available is None else tuple(available),
    )


def half_the_difference(partitioning: Partitioning, loads: Loads) -> Rebalancing:
    """The rule of Zhu 2006, Section 20.3: half the difference in bytes of state, between one pair of slots."""
    held = np.array([slot.bytes for slot in loads.slots])
    sender, receiver = int(held.argmax()), int(held.argmin())
    left = float(held[sender] - held[receiver]) / 2
    chosen = []
    for group in sorted(partitioning.groups_of(sender), key=lambda group: -loads.group_bytes[group]):
        if 0 < loads.group_bytes[group] <= left:
            chosen.append(group)
            left -= loads.group_bytes[group]
    moved = sum(loads.groups[group] for group in chosen)
    after = loads.cpu
    after[sender] -= moved
    after[receiver] += moved
    return Rebalancing(
        (Move(tuple(sorted(chosen)), sender, receiver),) if chosen else (),
        tuple(loads.cpu.tolist()),
        tuple(after.tolist()),
        sum(loads.group_bytes[group] for group in chosen),
    )


def moves_between(before: Partitioning, after: Partitioning) -> tuple[Move, ...]:
    """The difference of two tables over one grid as moves; tables over different grids have no groups in common."""
    if before.grid != after.grid:
        return ()
    pairs: dict[tuple[int, int], list[int]] = {}
    for group, (old, new) in enumerate(zip(before.table, after.table, strict=True)):
        if old != new:
            pairs.setdefault((old, new), []).append(group)
    return tuple(Move(tuple(groups), old, new) for (old, new), groups in sorted(pairs.items()))


class _State:
    """A table under change and the loads that follow from it."""

    def __init__(
        self,
        partitioning: Partitioning,
        loads: Loads,
        speeds: Sequence[float] | None,
        available: Sequence[int] | None,
    ) -> None:
        slots = partitioning.slots
        self._before = partitioning
        self.table = list(partitioning.table)
        self.cpu: Floats = np.zeros(slots) + loads.cpu
        self._speeds = np.ones(slots) if speeds is None else np.asarray(speeds, dtype=np.float64)
        self._available = np.zeros(slots, dtype=np.bool_)
        self._available[list(range(slots) if available is None else available)] = True
        self._work = np.asarray(loads.groups) * self._speeds[np.array(partitioning.table)]
        """The load of each group on a slot of speed 1."""

    @property
    def partitioning(self) -> Partitioning:
        return self._before.with_table(self.table)

    def load(self, group: int, slot: int) -> float:
        return float(self._work[group] / self._speeds[slot])

    def move(self, group: int, to: int) -> None:
        self.cpu[self.table[group]] -= self.load(group, self.table[group])
        self.cpu[to] += self.load(group, to)
        self.table[group] = to

    def stranded(self) -> list[int]:
        """Groups of slots that may have none, the heaviest first."""
        away = [group for group, slot in enumerate(self.table) if not self._available[slot]]
        return sorted(away, key=lambda group: -self._work[group])

    def least(self) -> int:
        return int(np.argmin(np.where(self._available, self.cpu, np.inf)))

    def pair(self, tolerance: float) -> tuple[int, int] | None:
        """The most and the least loaded slot; None where the loads are even enough."""
        usable = self.cpu[self._available]
        if len(usable) < 2 or usable.max() <= tolerance * usable.mean():
            return None
        return int(np.argmax(np.where(self._available, self.cpu, -np.inf))), self.least()

    def best_group(self, sender: int, receiver: int, refused: set[int]) -> int | None:
        """The heaviest group of the sender after whose move the receiver is below where the sender was."""
        fitting = [
            group
            for group, slot in enumerate(self.table)
            if slot == sender and group not in refused and self._work[group] > 0 and self.gain(group, receiver) > 0
        ]
        half = (self.cpu[sender] - self.cpu[receiver]) / 2
        small = [group for group in fitting if self.load(group, receiver) <= half]
        if small:
            return max(small, key=lambda group: self.load(group, receiver))
        return min(fitting, key=lambda group: self.load(group, receiver), default=None)

    def gain(self, group: int, receiver: int) -> float:
        """By how much the slower of sender and receiver gets quicker if the group moves."""
        sender = self.table[group]
        after = max(
            self.cpu[sender] - self.load(group, sender),
            self.cpu[receiver] + self.load(group, receiver),
        )
        return float(max(self.cpu[sender], self.cpu[receiver]) - after)

    def heavy(self, tolerance: float) -> tuple[int, ...]:
        """Groups that alone are more than a slot should have."""
        mean = float(self.cpu[self._available].mean())
        found = [g for g, slot in enumerate(self.table) if self.load(g, slot) > tolerance * mean and mean > 0]
        return tuple(sorted(found, key=lambda group: -self._work[group]))
