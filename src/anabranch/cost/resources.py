"""Prices a plan: the CPU and memory that it needs per second, from estimates and unit costs.

With every stream in its steady state, a set S of relations joined inside the windows has

    rows(S)     = selectivity(S) x product of rate x window        combinations alive at any moment
    turnover(S) = sum of 1 / window                                 so rows(S) x turnover(S) are born per second

Both follow exactly from the window semantics: each relation of S in turn holds the newest row. New rows of one input X
of a join probe the other inputs one after another; with T the set bound so far and B the next input, one step costs

    turnover(X) x rows(T) x (probe + compare x candidates + match x matches)

per second, where matches are the rows of B that agree in keys and time, and candidates those that a lookup examines to
find them; an intermediate state pays insert and delete for each of its births. Summed over an mjoin and a binary tree
of three streams this is exactly Eq. 2-5 of Zhu, Raghavan and Rundensteiner 2010 (Eq. 4.2-4.5 of Zhu 2006). The model
adds what the papers omit: a fixed cost per batch and lookup, the checking of further predicates, indexes, and joined
rows that stay longer because a state drops only its oldest. If a grid sends rows to several slots, each slot keeps them
and probes with them, so the terms of a set are multiplied by the number of slots that hold its combinations (`copies`).
A deferred theta rejects nothing below the join that checks it, and is checked on the combinations that arrive there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import inf, prod
from typing import Any, TypeAlias

from anabranch.cost.estimates import EVER, Estimates, ThetaEstimate
from anabranch.cost.units import UnitCosts
from anabranch.errors import PlanError
from anabranch.plan.join_graph import JoinGraph
from anabranch.plan.partitioning import Partitioning
from anabranch.plan.physical import JoinNode, PhysicalPlan, is_plain, nodes, pre_groups, probe_order
from anabranch.plan.selections import deferred_thetas
from anabranch.stats.groups import share_left

MERGING_CALLS = 15
"""The fixed cost of merging the rows of one batch, in lookups."""


@dataclass(frozen=True)
class Resources:
    """Seconds of one core per second, bytes of state, and results per second."""

    cpu: float
    memory: float
    rate: float


NOTHING = Resources(0.0, 0.0, 0.0)

Blocks: TypeAlias = tuple[int, ...]
"""The inputs of a join, each as the set of its relations."""
Orders: TypeAlias = tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Share:
    """The fraction of the rows of a merged set of relations that remains after merging."""

    mask: int
    inside: float
    """The fraction of the set's rows that remains after merging inputs inside the set."""
    arriving: float
    """The fraction of arriving rows that remains: the rows of one batch are merged with each other."""
    held: float
    """The fraction that remains in the state, which is merged as a whole whenever it has doubled."""


@dataclass(frozen=True)
class ResourceModel:
    """Prices plans of one query."""

    estimates: Estimates
    units: UnitCosts
    keyed: bool = True
    """True if a join looks up rows by key; False if it scans all of them."""
    batch: float = 0.0
    """Seconds between batches; 0 if rows are processed one by one."""
    shares: tuple[Share, ...] = ()
    """For each set of relations that a plan merges, the fraction of its rows that remains; see `merging`."""
    deferred: tuple[tuple[int, int], ...] = ()
    """The thetas that a plan defers, by position, with the set of relations of the join that checks them."""
    partitioning: Partitioning | None = None
    """The distribution of rows over slots; None if every row has one slot."""
    beside: Resources = NOTHING
    """The resources of the query outside its plan: its outer joins."""
    age: float = inf
    """Seconds since an empty start: no row has left a window of at least this length."""

    def copies(self, mask: int) -> float:
        """Returns the number of slots that hold a combination of the set."""
        if self.partitioning is None:
            return 1.0
        found = self._copies.get(mask)
        if found is None:
            names = [name for position, name in enumerate(self.estimates.names) if mask >> position & 1]
            found = self._copies[mask] = self.partitioning.copies(names)
        return found

    @cached_property
    def _copies(self) -> dict[int, float]:
        return {}

    @cached_property
    def _rows(self) -> dict[int, float]:
        return {0: 1.0}

    @cached_property
    def _turnovers(self) -> dict[int, float]:
        return {}

    @cached_property
    def _steps(self) -> dict[tuple[int, int], float]:
        """Cached: plans of one query consist of the same few lookups."""
        return {}

    @cached_property
    def _joins(self) -> dict[tuple[Blocks, Orders], float]:
        """Cached: many plans have the same joins."""
        return {}

    @cached_property
    def _counts(self) -> dict[tuple[Blocks, Orders], list[int]]:
        return {}

    @cached_property
    def _bytes(self) -> dict[int, float]:
        return {}

    @cached_property
    def batch_order_cache(self) -> dict[object, Any]:
        """A cache for `cost.intra_batch_order`."""
        return {}

    @cached_property
    def key_members(self) -> tuple[tuple[int, tuple[tuple[float, int], ...]], ...]:
        """For each key class the mask of its members, and the members by rising number of distinct values."""
        classes = (
            tuple(sorted((values, 1 << position) for position, values in enumerate(distinct) if values))
            for distinct in self.estimates.keys
        )
        return tuple((sum(member for _, member in rising), rising) for rising in classes)

    # --- rows ---------------------------------------------------------------------------------------------------------

    def rows(self, mask: int) -> float:
        """Returns the combinations of the set that are alive at any moment."""
        found = self._rows.get(mask)
        if found is None and self.deferred:
            found = self._rows[mask] = self._without_waiting(mask).rows(mask)
        elif found is None:
            single = mask & -mask
            rest = mask ^ single
            position = single.bit_length() - 1
            base = self.estimates.rates[position] * self.estimates.windows[position]
            found = self._rows[mask] = base * self.rows(rest) * self.selectivity(rest, single)
        return found

    def _without_waiting(self, mask: int) -> ResourceModel:
        """Returns the model in which deferred thetas reject no combination of a set below the join that checks them.

        If a band is looked up by bucket, the lookup itself rejects most of the pairs that the check would reject.
        """
        thetas = list(self.estimates.thetas)
        for position, above in self.deferred:
            theta = thetas[position]
            if theta.relations & mask == theta.relations and mask & above == mask and mask != above:
                has_key = any(members & theta.relations == theta.relations for members, _ in self.key_members)
                is_looked_up = theta.is_band and self.keyed and not has_key
                left = min(1.0, 2 * theta.selectivity) if is_looked_up else 1.0
                thetas[position] = replace(theta, selectivity=left)
        return replace(self, deferred=(), estimates=replace(self.estimates, thetas=tuple(thetas)))

    def turnover(self, mask: int) -> float:
        """Returns the births per second for each live combination."""
        found = self._turnovers.get(mask)
        if found is None:
            windows = self.estimates.windows
            found = sum(1 / window for position, window in enumerate(windows) if mask >> position & 1)
            self._turnovers[mask] = found
        return found

    def births(self, mask: int) -> float:
        """Returns the combinations of the set that are born per second."""
        return self.rows(mask) * self.turnover(mask)

    def held(self, mask: int) -> float:
        """Returns the rows in the state of a set.

        Base rows are kept for their window and the batch in which it ends. Joined rows that leave in order of arrival
        are kept for the shortest window, even if they expire sooner; of the oldest batch about half remain.
        """
        if mask.bit_count() == 1:
            window = self.estimates.windows[mask.bit_length() - 1]
            return self.rows(mask) if window >= self.age else self.births(mask) * (window + self.batch)
        if not self.units.lingers:
            return self.rows(mask)
        shortest = min(window for position, window in enumerate(self.estimates.windows) if mask >> position & 1)
        # Combinations of tables never expire.
        return self.rows(mask) if shortest >= min(EVER, self.age) else self.births(mask) * (shortest + self.batch / 2)

    def share(self, mask: int) -> float:
        """Returns the fraction of the combinations of a set that remains in states after its inputs were merged."""
        return prod(share.held for share in self.shares if share.mask & mask == share.mask) if self.shares else 1.0

    def freshness(self, block: int) -> float:
        """Returns the new rows of an input per row that its share leaves in the state; 1 if it is not merged."""
        return next((share.arriving / share.held for share in self.shares if share.mask == block), 1.0)

    def groups(self, mask: int) -> float:
        """Returns the number of distinct rows of a set at a boundary: the known number, else one for each key."""
        known = next((count for merged, count in self.estimates.groups if merged == mask), None)
        if known is not None:
            return known
        return prod(
            next(values for values, member in rising if member & mask)
            for members, rising in self.key_members
            if members & mask and members & ~mask
        )

    def counting(self, mask: int) -> float:
        """Returns the rows of a set that arrive between two boundaries and count at the second."""
        windows = self.estimates.windows
        shortest = min(window for position, window in enumerate(windows) if mask >> position & 1)
        return self.births(mask) * min(self.estimates.slide, shortest)

    def of_plan(self, plan: PhysicalPlan) -> ResourceModel:
        """Returns the model for a plan with deferred predicates or merged inputs."""
        deferred = tuple(
            (position, self.estimates.mask(tuple(above))) for position, above in deferred_thetas(plan).items()
        )
        model = replace(self, deferred=deferred) if deferred else self
        return model.merging(plan) if any(pre_groups(plan)) else model

    def merging(self, plan: PhysicalPlan) -> ResourceModel:
        """Returns the model for a plan that merges inputs.

        Of n rows in d groups, d (1 - (1 - 1/d)^n) distinct rows remain.
        """
        shares: list[Share] = []
        for merged in pre_groups(plan):
            mask = self.estimates.mask(merged.relations)
            # Inner sets come first.
            inside = prod(share.held for share in shares if share.mask & mask == share.mask)
            groups, rows, births = self.groups(mask), self.counting(mask) * inside, self.births(mask) * inside
            arriving = share_left(groups, min(rows, births * self.batch) if self.batch else 1.0)
            # A state holds between one and two times the rows that remain after merging the whole.
            shares.append(Share(mask, inside, arriving, min(arriving, 1.5 * share_left(groups, rows))))
        return replace(self, shares=tuple(shares))

    def key_selectivity(self, left: int, right: int) -> float:
        """Returns the fraction of pairs of two disjoint sets that agree in all keys."""
        share = 1.0
        for members, rising in self.key_members:
            if members & left and members & right:
                one = next(values for values, member in rising if member & left)
                other = next(values for values, member in rising if member & right)
                share /= max(one, other)
        return share

    def thetas_between(self, left: int, right: int) -> list[ThetaEstimate]:
        """Returns the thetas that become checkable when two disjoint sets are joined, including deferred filters."""
        return [self.estimates.thetas[position] for position in self._checkable(left, right)]

    def _checkable(self, left: int, right: int) -> list[int]:
        both = left | right
        return [
            position
            for position, theta in enumerate(self.estimates.thetas)
            if theta.relations & both == theta.relations
            and (
                left and right and theta.relations in (left, right)
                if theta.relations.bit_count() == 1
                else theta.relations & ~left and theta.relations & ~right
            )
        ]

    def _checks(self, bound: int, block: int) -> float:
        """Returns the weight of the thetas that are checked when a probe of `block` succeeds."""
        later, thetas = dict(self.deferred), self.estimates.thetas
        early = [position for position in self._checkable(bound, block) if position not in later]
        now = [position for position, above in later.items() if above == bound | block]
        return sum(thetas[position].weight for position in (*early, *now))

    def selectivity(self, left: int, right: int) -> float:
        """Returns the fraction of pairs of two disjoint sets that pass every predicate between them."""
        return self.key_selectivity(left, right) * prod(t.selectivity for t in self.thetas_between(left, right))

    def connected(self, left: int, right: int) -> bool:
        """True if some predicate connects the two sets."""
        if any(members & left and members & right for members, _ in self.key_members):
            return True
        return any(theta.relations & left and theta.relations & right for theta in self.estimates.thetas)

    # --- CPU ----------------------------------------------------------------------------------------------------------

    def step(self, bound: int, block: int) -> float:
        """Returns the cost if each live combination of `bound` probes the state of `block` once."""
        found = self._steps.get((bound, block))
        if found is None:
            found = self._steps[bound, block] = self._step(bound, block)
        return found

    def _step(self, bound: int, block: int) -> float:
        units = self.units
        thetas = self.thetas_between(bound, block)
        checks = self._checks(bound, block) if self.deferred else sum(theta.weight for theta in thetas)
        share = self.key_selectivity(bound, block) if self.keyed else 1.0
        if self.keyed and self.index(bound, block) < 0:
            # Two adjacent buckets of a band's width hold twice the matches.
            share *= min(1.0, 2 * next(theta.selectivity for theta in thetas if theta.is_band))
        match = units.match + units.match_relation * (bound | block).bit_count() + units.check * checks
        found = share * self.share(block)
        costs = units.compare * found * self.held(block) + match * found * self.rows(block)
        costs = units.probe * self.copies(bound) + costs * self.copies(bound | block)
        return self.rows(bound) * self.share(bound) * costs

    def chain(self, start: int, order: list[int]) -> float:
        """Returns the CPU of new rows of one input, which enter its state and probe the other inputs in that order."""
        total, bound = 0.0, start
        for block in order:
            total += self.step(bound, block)
            bound |= block
        return total * self.turnover(start) * self.freshness(start) + (len(order) + 1) * self.call

    @cached_property
    def call(self) -> float:
        """Returns the CPU of one lookup or insertion in every batch, independent of the number of rows."""
        return self.units.call / self.batch if self.batch else 0.0

    def upkeep(self, mask: int) -> float:
        """Returns the CPU of inserting rows into a state and deleting them."""
        joined = self.units.insert_joined if mask.bit_count() > 1 else 0.0
        return self.births(mask) * self.copies(mask) * (self.units.insert + self.units.delete + joined)

    # --- memory -------------------------------------------------------------------------------------------------------

    def state_bytes(self, mask: int) -> float:
        """Returns the bytes of a state: payload and codes of base rows, row numbers and deadline of joined rows."""
        found = self._bytes.get(mask)
        if found is None:
            found = self._bytes[mask] = self._state_bytes(mask)
        return found

    def _state_bytes(self, mask: int) -> float:
        count = mask.bit_count()
        if count == 1:
            codes = sum(bool(members & mask) for members, _ in self.key_members)
            codes += sum(bool(theta.relations & mask) for theta in self.estimates.thetas if theta.is_band)
            payload = self.estimates.row_bytes[mask.bit_length() - 1]
            return self.held(mask) * self.copies(mask) * (payload + self.units.code_bytes * codes)
        return self.joined_bytes(mask)

    def joined_bytes(self, mask: int) -> float:
        """Returns the bytes of the rows of an intermediate state, with deadlines; each merged set adds its weights."""
        numbers = mask.bit_count() + sum(share.mask & mask == share.mask for share in self.shares)
        # Without its own sizes the model counts rows, as the papers do: a joined row has the size of any other row.
        each = (numbers + 1) * self.units.joined_relation_bytes or max(self.estimates.row_bytes)
        return self.held(mask) * self.share(mask) * self.copies(mask) * each

    def index(self, bound: int, block: int) -> int:
        """Returns a number for the index through which rows of `bound` find those of `block`.

        A mask of key classes (62 at most), 0 for a scan, negative for a band.
        """
        shared = 0
        for position, (members, _) in enumerate(self.key_members):
            if members & bound and members & block:
                shared |= 1 << position % 62
        if shared:
            return shared
        for position, theta in enumerate(self.estimates.thetas):
            if theta.is_band and theta.relations & bound and theta.relations & block:
                return -1 - position
        return 0

    def index_counts(self, blocks: Sequence[int], orders: Orders) -> list[int]:
        """Returns how many indexes one join needs over each of its inputs, with those probe orders."""
        key = tuple(blocks), orders
        found = self._counts.get(key)
        if found is None:
            found = self._counts[key] = self._index_counts(*key)
        return found

    def _index_counts(self, blocks: Blocks, orders: Orders) -> list[int]:
        wanted: list[set[int]] = [set() for _ in blocks]
        for start, order in enumerate(orders):
            bound = blocks[start]
            for position in order:
                wanted[position].add(self.index(bound, blocks[position]))
                bound |= blocks[position]
        return [len(kept) for kept in wanted]

    # --- plans --------------------------------------------------------------------------------------------------------

    @cached_property
    def base(self) -> Resources:
        """The cost that all plans share: the base states, the results, and the resources outside the plan."""
        singles = [1 << position for position in range(len(self.estimates.names))]
        rate = self.births(self.estimates.everything)
        cpu = sum(self.upkeep(single) for single in singles) + self.emitting + self.beside.cpu
        memory = sum(self.state_bytes(single) for single in singles) + self.beside.memory
        return Resources(cpu, memory, rate)

    @property
    def emitting(self) -> float:
        """CPU of emitting all results, and of grouping them in a grouped query."""
        return self.births(self.estimates.everything) * (self.units.emit + self._group)

    @property
    def _group(self) -> float:
        return self.units.group if self.estimates.slide else 0.0

    @cached_property
    def least_memory(self) -> float:
        """The memory that every plan needs: the base states with one index each."""
        singles = [1 << position for position in range(len(self.estimates.names))]
        held = sum(self.held(single) * self.copies(single) for single in singles)
        return self.base.memory + held * self.units.index_bytes

    def price(self, plan: PhysicalPlan) -> Resources:
        """Returns the CPU, memory and output rate of a plan whose probe orders are explicit."""
        if not is_plain(plan) and (
            (any(pre_groups(plan)) and not self.shares) or (deferred_thetas(plan) and not self.deferred)
        ):
            return self.of_plan(plan).price(plan)
        cpu = self.base.cpu
        for share in self.shares:
            # Merging a row costs as much as grouping a result; a state that is merged again counts its rows twice.
            rounds = 1.0 + (2.0 * share.arriving if share.arriving > share.held else 0.0)
            cpu += self.births(share.mask) * share.inside * rounds * self.units.group + MERGING_CALLS * self.call
            cpu += self.upkeep(share.mask) * share.inside * share.arriving
        cpu += sum(self.join_cpu(node) for node in nodes(plan))
        return Resources(cpu, sum(self.state_sizes(plan).values()), self.base.rate)

    def join_cpu(self, node: JoinNode) -> float:
        """Returns the CPU of one join: its lookups, the indexes over its inputs, and its state."""
        blocks, orders = self.blocks(node), explicit_orders(node)
        found = self._joins.get((blocks, orders))
        if found is None:
            found = self._joins[blocks, orders] = self._join_cpu(blocks, orders)
        return found

    def blocks(self, node: JoinNode) -> Blocks:
        """Returns the relations of each input of a join."""
        return tuple([self.estimates.mask(child.relations) for child in node.inputs])

    def _join_cpu(self, blocks: Blocks, orders: Orders) -> float:
        cpu = 0.0
        for block, count in zip(blocks, self.index_counts(blocks, orders), strict=True):
            born = self.births(block) * self.copies(block) * self.share(block) * self.freshness(block)
            cpu += born * count * self.units.link
        for start, order in enumerate(orders):
            cpu += self.chain(blocks[start], [blocks[position] for position in order])
        mask = sum(blocks)
        if mask != self.estimates.everything:
            cpu += self.upkeep(mask) * self.share(mask)
        elif self.shares:
            # Fewer results remain to be grouped.
            born = sum(self.turnover(block) * self.freshness(block) for block in blocks) * self.rows(mask)
            cpu -= (self.base.rate - born * self.share(mask)) * (self.units.emit + self._group)
        return cpu

    def state_sizes(self, plan: PhysicalPlan) -> dict[int, float]:
        """Returns the bytes of the states of a plan with their indexes, by the set of their relations."""
        sizes = {1 << position: self.state_bytes(1 << position) for position in range(len(self.estimates.names))}
        for node in nodes(plan):
            blocks = self.blocks(node)
            for block, count in zip(blocks, self.index_counts(blocks, explicit_orders(node)), strict=True):
                if block not in sizes:
                    sizes[block] = self.state_bytes(block)
                elif any(share.mask == block for share in self.shares):
                    sizes[block] += self.joined_bytes(block)
                held = self.held(block) * self.copies(block) * self.share(block)
                sizes[block] += held * count * self.units.index_bytes
        return sizes


def explicit_orders(node: JoinNode) -> tuple[tuple[int, ...], ...]:
    """Returns the probe orders of a join; a join of more than two inputs must have explicit orders."""
    if len(node.inputs) == 2:
        return (1,), (0,)
    for child, order in zip(node.inputs, node.orders, strict=True):
        if not order:
            raise PlanError(f"plan '{node}' has no probe order for '{child}'")
    return node.orders


def with_default_orders(plan: PhysicalPlan, graph: JoinGraph) -> PhysicalPlan:
    """Returns the plan with the engine's default probe orders made explicit in every join of three or more inputs."""
    if all(all(node.orders) if len(node.inputs) > 2 else not any(node.orders) for node in nodes(plan)):
        return plan
    inputs = tuple(with_default_orders(child, graph) for child in plan.inputs)
    if not isinstance(plan, JoinNode):
        return plan.with_inputs(inputs)
    orders = () if len(inputs) == 2 else tuple(probe_order(plan, position, graph) for position in range(len(inputs)))
    return replace(plan, inputs=inputs, orders=orders)
