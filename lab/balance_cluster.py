"""The cluster of Zhu 2006, Chapter 23, on a virtual clock: seven servers, of which the first has half of the work.

Three streams are joined by one key, in 100 partition groups. A manager looks at the servers now and then. It can change
their plans (local migration), and can move half the difference in rows between the most and the least loaded server
(load balancing), by moving state or by parallel track. The engine makes the changes; the clock charges them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from anabranch.adapt.balancing import Balance
from anabranch.adapt.course import MoveStrategy
from anabranch.balance.loads import Loads, SlotLoad, estimate_loads
from anabranch.balance.rule import Move, Rebalancing
from anabranch.engine.ownership import own_cells
from anabranch.plan.partitioning import Partitioning
from anabranch.plan.text import parse
from anabranch.run.local import LocalHost
from anabranch.run.rows import relation_batch
from anabranch.run.wire import wire_layout
from lab.balance_common import Rates, Servers, batches, engine_units, keyed_query

SERVERS, GROUPS = 7, 100
OLD, NEW = "((a b) c)", "((b c) a)"
LOOKS = 10.0
"""Seconds between two looks of the manager; the paper prints none."""
WORTH = 0.2
"""The least difference in rows that is moved, as a share of the largest; the paper's thresholds are not printed."""


@dataclass(frozen=True)
class Load:
    """Streams, and how much slower than the engine the servers are."""

    rates: Rates
    seconds: float
    window: float
    keys: int
    seed: int = 1
    length: float = 1.0
    """Seconds of a batch."""
    slowdown: float = 1.0


@dataclass(frozen=True)
class Adaptation:
    """What the manager may do."""

    replans_at: float | None = None
    """From when servers change their plans; never when None."""
    replans: tuple[int, ...] = tuple(range(SERVERS))
    moves: MoveStrategy | None = None
    moves_from: float = LOOKS


@dataclass(frozen=True)
class Moved:
    """A move of partition groups, from when to when."""

    began: float
    ended: float

    @property
    def seconds(self) -> float:
        return self.ended - self.began


@dataclass(frozen=True)
class Run:
    """One run: what was so at the end of each batch's stretch of time, and the moves that were made."""

    results: tuple[int, ...]
    """Results that had left by then."""
    waiting: tuple[int, ...]
    """Rows that were there and not done."""
    state_rows: tuple[int, ...]
    """Rows in states after the batch, which a server that is late comes to later."""
    moves: tuple[Moved, ...]
    shares: tuple[float, ...]
    """The share of each server in all work."""
    ended: float
    """When the last server was through."""
    total: int
    """All results, also of what was done after the streams had ended."""
    length: float
    """Seconds of a batch."""


class _Manager:
    """Decides before each batch, as the distribution manager of the paper does."""

    def __init__(self, servers: Servers, how: Adaptation) -> None:
        self._servers, self._host, self._how = servers, servers.host, how
        self._left = set() if how.replans_at is None else set(how.replans)
        """Servers that have not changed their plan yet."""
        self._looked = how.moves_from - LOOKS
        self._rows = {name: np.zeros(GROUPS) for name in "abc"}
        """Rows of each stream so far, by partition group."""
        self._began: float | None = None
        self._pairs: tuple[Move, ...] = ()
        self.moves: list[Moved] = []

    def before(self, arrived: float, now: float) -> None:
        """Changes plans and moves groups."""
        begins, at = self._servers.begins(arrived), self._how.replans_at
        ready = [slot for slot in sorted(self._left) if at is not None and begins[slot] >= at]
        if ready:
            self._host.migrate(parse(NEW), "moving-state", ready)
            self._left -= set(ready)
        table = self._host.partitioning
        if self._how.moves is None or now < self._looked + LOOKS or self._began is not None or self._left:
            return
        self._looked = now
        found = half_the_difference(table, self._loads(table))
        held = [slot.bytes for slot in self._loads(table).slots]
        if not found.moves or max(held) - min(held) < WORTH * max(held):
            return
        target = found.applied(table)
        self._host.spread(target, self._how.moves)
        self._began, self._pairs = now, found.moves
        if self._how.moves == "moving-state":
            # What the sender has in its queue it still has to do; only then has the receiver all rows of the groups.
            for move in found.moves:
                share = len(move.groups) / len(target.groups_of(move.receiver))
                self._servers.hold(move.receiver, float(begins[move.sender]), share)

    def after(self, tables: Mapping[str, pa.Table]) -> None:
        """Counts the rows of a batch, and notes the end of a move."""
        host = self._host
        layout = wire_layout(host.queries, host.partitioning)
        for name, table in tables.items():
            batch = relation_batch(host.queries.graph.relation(name), layout, table)
            self._rows[name] += np.bincount(own_cells(host.partitioning, name, batch), minlength=GROUPS)
        if self._began is not None and not host.steering.table.is_changing:
            at = {slot for move in self._pairs for slot in (move.sender, move.receiver)}
            self.moves.append(Moved(self._began, max(float(self._servers.filled[slot]) for slot in at)))
            self._began = None

    def _loads(self, table: Partitioning) -> Loads:
        """Loads by the rows of groups: rows that groups have left behind are not the load of a server any more."""
        rows, owner = np.sum([*self._rows.values()], axis=0), np.array(table.table)
        return estimate_loads(table, self._rows, [SlotLoad(0.0, float(rows[owner == n].sum())) for n in range(SERVERS)])


def run(load: Load, how: Adaptation, *, together: bool = False) -> Run:
    """Runs a load to its end; `together`, servers wait for each other after every batch."""
    servers = _servers(load, together=together)
    manager = _Manager(servers, how)
    keys = np.full(load.keys, 1 / load.keys)
    state_rows = []
    for arrived, tables in batches(np.random.default_rng(load.seed), load.seconds, load.length, load.rates, keys):
        now = float(servers.begins(arrived).max()) if together else arrived
        manager.before(arrived, now)
        servers.step(arrived, tables)
        manager.after(tables)
        state_rows.append(servers.state_rows)
    seconds = [load.length * (number + 1) for number in range(len(state_rows))]
    return Run(
        tuple(servers.results_until(second) for second in seconds),
        tuple(servers.waiting(second) for second in seconds),
        tuple(state_rows),
        tuple(manager.moves),
        tuple((servers.work / servers.work.sum()).tolist()),
        float(servers.free.max()),
        sum(count for _, count in servers.finished),
        load.length,
    )


def slowed(load: Load, overload: float, second: float) -> Load:
    """The load on servers so slow that the first one needs that many seconds for a second of rows, at a second.

    The seconds are counted without adaptation, over the five batches up to then.
    """
    servers = _servers(load, together=False)
    keys = np.full(load.keys, 1 / load.keys)
    rows = batches(np.random.default_rng(load.seed), second, load.length, load.rates, keys)
    costs = [float(servers.step(arrived, tables)[0]) for arrived, tables in rows]
    return replace(load, slowdown=load.slowdown * overload * load.length / float(np.mean(costs[-5:])))


def _servers(load: Load, *, together: bool) -> Servers:
    host = LocalHost(keyed_query("abc", load.window), parse(OLD), slots=SERVERS, balance=Balance("manual"))
    host.spread(_skewed(host.partitioning))
    return Servers(host, load.slowdown, engine_units(), together)


def _skewed(partitioning: Partitioning) -> Partitioning:
    """One axis of 100 groups, of which the first server has half and the others equally many."""
    (dimension,) = partitioning.dimensions
    half = GROUPS // 2
    table = [0 if group < half else 1 + (group - half) % (SERVERS - 1) for group in range(GROUPS)]
    return Partitioning((replace(dimension, share=GROUPS),), SERVERS, tuple(table))


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
    moved_bytes = sum(loads.group_bytes[group] for group in chosen)
    after, held_after = loads.cpu, held.copy()
    after[sender] -= moved
    after[receiver] += moved
    held_after[sender] -= moved_bytes
    held_after[receiver] += moved_bytes
    return Rebalancing(
        (Move(tuple(sorted(chosen)), sender, receiver),) if chosen else (),
        tuple(loads.cpu.tolist()),
        tuple(after.tolist()),
        moved_bytes,
        held_before=tuple(held.tolist()),
        held_after=tuple(held_after.tolist()),
    )
