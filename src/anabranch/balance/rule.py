"""Computes moves from loads: the most loaded slots give groups to the least loaded ones until loads are even.

Sender and receiver are the most and the least loaded slot, and half their difference moves, as in Zhu 2006, Section
20.3. The dissertation moves between one pair at a time; here a proposal may contain several pairs, because a batch ends
with its slowest slot and one pair would not relieve the second slowest. Groups move as a whole. Those closest to half
the difference go first, so that few groups move. A group that would make the receiver the slowest slot does not move.
If such a group keeps a slot above the others, `Rebalancing.heavy` names it: only splitting its keys would help.

CPU time and bytes of state are balanced together if state counts: if the largest slot exceeds the average by a
significant number of bytes. A byte is then priced so that the state of an average slot equals its CPU time. So both are
in seconds, the largest load of either kind is reduced first, and a move is made if it lowers the sum of the squares of
all loads. (The largest load alone is not sufficient: if one slot is busy and another one full, it falls only after
groups have moved in both directions.) For the sake of state no slot becomes much slower than the average.

Moving a cell of a hypercube may send rows to more slots than before. The rule prices these copies by the caller's cost
of a copied row and does not make a move that costs more than it saves.

Invariant: load is conserved, and the largest load of either kind does not grow.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from anabranch.balance.loads import Floats, Loads, skew
from anabranch.plan.partitioning import Partitioning

_MOST_MOVES = 4
"""The maximum number of moves per group, on average, before a proposal is ready."""
TOLERANCE = 1.05
"""The load of a slot, relative to the average, that needs no move."""
_EXACT = 1e-9


@dataclass(frozen=True)
class Move:
    """Partition groups that change their slot."""

    groups: tuple[int, ...]
    sender: int
    receiver: int


@dataclass(frozen=True)
class Rebalancing:
    """The moves that balance the load, and their expected effects."""

    moves: tuple[Move, ...]
    before: tuple[float, ...]
    """Seconds of one core, by slot."""
    after: tuple[float, ...]
    bytes: float
    """Bytes of state that slots receive."""
    heavy: tuple[int, ...] = ()
    """Groups that are too heavy for any slot, the heaviest first."""
    among: tuple[int, ...] | None = None
    """The slots that may have groups; all when None."""
    held_before: tuple[float, ...] = ()
    """Bytes of state, by slot, if known."""
    held_after: tuple[float, ...] = ()

    def applied(self, table: Partitioning) -> Partitioning:
        """Returns the table after the moves."""
        for move in self.moves:
            table = table.moved(move.groups, move.receiver)
        return table

    @property
    def saved(self) -> float:
        """Returns by how much the slowest slot gets faster, in seconds of one core over the measured batches."""
        return max(self.before, default=0.0) - max(self.after, default=0.0)

    @property
    def freed(self) -> float:
        """Returns by how many bytes the largest state of a slot shrinks."""
        return max(self.held_before, default=0.0) - max(self.held_after, default=0.0)

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
    speeds: Sequence[float] | None = None,
    available: Sequence[int] | None = None,
    copying: Callable[[Partitioning], float] = lambda _: 0.0,
    least_bytes: float = math.inf,
    most_skew: float = 1.2,
) -> Rebalancing:
    """Returns the moves after which the slowest slot has at most `TOLERANCE` times the average load, if groups allow.

    `speeds` are relative speeds of the slots (a group that takes 1 s at speed 1 takes 2 s at speed 0.5). `available`
    are the slots that may have groups, all when None; groups on others move away whatever their load. `copying` prices
    the copies that a table sends, in seconds of one core. State counts, too, if the largest slot has at least
    `least_bytes` more than the average; for its sake no slot gets more than `most_skew` times the average CPU time.
    """
    state = _State(partitioning, loads, speeds, available, least_bytes, most_skew)
    for stranded in state.stranded():
        state.move(stranded, state.least())
    begun = list(state.table)
    most = state.largest()
    copies = copying(state.partitioning)
    refused: set[tuple[int, int]] = set()
    for _ in range(_MOST_MOVES * partitioning.groups):
        found = state.best_move(refused)
        if found is None:
            break
        group, receiver, gain = found
        sender = state.table[group]
        state.move(group, receiver)
        with_copies = copying(state.partitioning)
        if with_copies - copies >= gain:
            state.move(group, sender)
            refused.add((group, receiver))
            continue
        copies = with_copies
    if state.largest() > most * (1 + _EXACT):
        # Undoes the first half of an exchange whose second half did not fit.
        for group, slot in enumerate(begun):
            state.move(group, slot)
    return Rebalancing(
        moves_between(partitioning, state.partitioning),
        tuple(loads.cpu.tolist()),
        tuple(state.cpu.tolist()),
        sum(loads.group_bytes[g] for g, slot in enumerate(partitioning.table) if state.table[g] != slot),
        state.heavy(),
        None if available is None else tuple(available),
        tuple(slot.bytes for slot in loads.slots),
        tuple(state.held.tolist()),
    )


def moves_between(before: Partitioning, after: Partitioning) -> tuple[Move, ...]:
    """Returns the difference of two tables over one grid as moves; tables over different grids share no groups."""
    if before.grid != after.grid:
        return ()
    pairs: dict[tuple[int, int], list[int]] = {}
    for group, (old, new) in enumerate(zip(before.table, after.table, strict=True)):
        if old != new:
            pairs.setdefault((old, new), []).append(group)
    return tuple(Move(tuple(groups), old, new) for (old, new), groups in sorted(pairs.items()))


class _State:
    """A table under modification, and the resulting loads."""

    def __init__(
        self,
        partitioning: Partitioning,
        loads: Loads,
        speeds: Sequence[float] | None,
        available: Sequence[int] | None,
        least_bytes: float,
        most_skew: float,
    ) -> None:
        slots = partitioning.slots
        self._before = partitioning
        self.table = list(partitioning.table)
        self.cpu: Floats = np.zeros(slots) + loads.cpu
        self.held: Floats = np.array([slot.bytes for slot in loads.slots], dtype=np.float64)
        self._speeds = np.ones(slots) if speeds is None else np.asarray(speeds, dtype=np.float64)
        self._available = np.zeros(slots, dtype=np.bool_)
        self._available[list(range(slots) if available is None else available)] = True
        self._work = np.asarray(loads.groups) * self._speeds[np.array(partitioning.table)]
        """The load of each group on a slot of speed 1."""
        self._bytes = np.asarray(loads.group_bytes, dtype=np.float64)
        self._price = self._price_of_a_byte(least_bytes)
        self._most_cpu = max(float(self.cpu.max()), most_skew * float(self.cpu.sum()) / int(self._available.sum()))
        """The CPU time that no slot exceeds for the sake of state."""

    def _price_of_a_byte(self, least_bytes: float) -> float:
        """Returns the seconds of one core that a byte of state counts for; 0 if state does not count."""
        count = int(self._available.sum())
        cpu, held = float(self.cpu.sum()) / count, float(self.held.sum()) / count
        return cpu / held if held > 0 and float(self.held.max()) - held >= least_bytes else 0.0

    @property
    def partitioning(self) -> Partitioning:
        return self._before.with_table(self.table)

    def load(self, group: int, slot: int) -> float:
        return float(self._work[group] / self._speeds[slot])

    def move(self, group: int, to: int) -> None:
        if to == self.table[group]:
            return
        self.cpu[self.table[group]] -= self.load(group, self.table[group])
        self.cpu[to] += self.load(group, to)
        self.held[self.table[group]] -= self._bytes[group]
        self.held[to] += self._bytes[group]
        self.table[group] = to

    def stranded(self) -> list[int]:
        """Returns the groups on slots that may have none, the heaviest first."""
        away = [group for group, slot in enumerate(self.table) if not self._available[slot]]
        return sorted(away, key=lambda group: -self._work[group])

    def _loads(self) -> Floats:
        """Returns the larger of the two loads of each slot."""
        return np.maximum(self.cpu, self._price * self.held)

    def least(self) -> int:
        return int(np.argmin(np.where(self._available, self._loads(), np.inf)))

    def largest(self) -> float:
        return float(self._loads()[self._available].max())

    def best_move(self, refused: set[tuple[int, int]]) -> tuple[int, int, float] | None:
        """Returns a group, its receiver, and the seconds saved, for the most loaded slot that can give a group.

        None if the loads are even enough, or no group fits anywhere.
        """
        usable = np.flatnonzero(self._available).tolist()
        mean = float(self.cpu[self._available].mean())
        loads = [(float(self.cpu[slot]), slot, True) for slot in usable]
        loads += [(self._price * float(self.held[slot]), slot, False) for slot in usable if self._price]
        for load, sender, by_cpu in sorted(loads, key=lambda each: -each[0]):
            if load <= TOLERANCE * mean:
                break
            found = self._best_of(sender, by_cpu, usable, refused)
            if found is not None:
                return found
        return None

    def _best_of(
        self, sender: int, by_cpu: bool, usable: list[int], refused: set[tuple[int, int]]
    ) -> tuple[int, int, float] | None:
        """Returns the move from one slot that lowers the given load and reduces the sum of squares the most."""
        groups = np.flatnonzero(np.array(self.table) == sender)
        held = self._price * self._bytes[groups]
        here = self._work[groups] / self._speeds[sender]
        best: tuple[float, float, int, int, float] | None = None
        for receiver in usable:
            if receiver == sender:
                continue
            there = self._work[groups] / self._speeds[receiver]
            lower = self._lower(sender, receiver, here, there, held)
            if by_cpu:
                gain = self.cpu[sender] - np.maximum(self.cpu[sender] - here, self.cpu[receiver] + there)
            else:
                full, empty = self._price * self.held[sender], self._price * self.held[receiver]
                gain = full - np.maximum(full - held, empty + held)
                gain[self.cpu[receiver] + there > self._most_cpu * (1 + _EXACT)] = 0.0
            fits = (gain > _EXACT * self.largest()) & (lower > _EXACT * self.largest() ** 2)
            for place in np.flatnonzero(fits).tolist():
                group = int(groups[place])
                if (group, receiver) not in refused:
                    one = float(lower[place]), -float(self._bytes[group]), -group, receiver, float(gain[place])
                    best = one if best is None or one[:3] > best[:3] else best
        return None if best is None else (-best[2], best[3], best[4])

    def _lower(self, sender: int, receiver: int, here: Floats, there: Floats, held: Floats) -> Floats:
        """Returns, for each group, how much its move reduces the sum of the squares of all loads."""
        found: Floats = self.cpu[sender] ** 2 - (self.cpu[sender] - here) ** 2
        found += self.cpu[receiver] ** 2 - (self.cpu[receiver] + there) ** 2
        if self._price:
            full, empty = self._price * self.held[sender], self._price * self.held[receiver]
            found += full**2 - (full - held) ** 2 + empty**2 - (empty + held) ** 2
        return found

    def heavy(self) -> tuple[int, ...]:
        """Returns the groups that alone exceed the load of a slot that is within the tolerance."""
        mean = float(self.cpu[self._available].mean())
        found = [g for g, slot in enumerate(self.table) if self.load(g, slot) > TOLERANCE * mean and mean > 0]
        return tuple(sorted(found, key=lambda group: -self._work[group]))
