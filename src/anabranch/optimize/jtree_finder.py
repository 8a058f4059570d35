"""JTree-Finder: finds a plan within the budget if there is one (Zhu, Raghavan and Rundensteiner 2010).

The search space is every mjoin, every tree and every mixture, with every probe order and the indexes that it needs;
plans that defer a predicate or merge rows are not included. `undominated` returns the Pareto set in CPU and memory of
that space, and whether the search ended within its effort. The search itself is in `jtrees` and `probe_orders`. Up to
`INTERPRETED` relations it runs as plain Python, so that a small query needs no compilation or loading; up to `LARGEST`
relations it runs compiled. Time grows exponentially with the number of relations.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import inf
from typing import Any, NamedTuple

import numpy as np

from anabranch.cost.resources import ResourceModel, Resources
from anabranch.errors import PlanError
from anabranch.optimize import jtrees, probe_orders
from anabranch.optimize.dominance import Limits
from anabranch.optimize.lookups import thetas_of, units_of
from anabranch.optimize.min_state import min_state
from anabranch.optimize.proposals import NOTHING_FITS, UNLIMITED, Budget, Candidate, distinct, pareto
from anabranch.optimize.shapes import Blocks, Orderer, Ordering, Shape
from anabranch.optimize.state_removal import remove_states
from anabranch.plan.physical import JoinNode, Leaf, PhysicalPlan

INTERPRETED = 8
LARGEST = 12
ORIGIN = "jtree-finder"


class Effort(NamedTuple):
    """The limits of a search of probe orders beyond the cheapest orders of each join."""

    interpreted: int
    """The maximum number of lookups to compare as plain Python."""
    compiled: int
    is_whole: bool
    """True to search for plans that need more CPU than the mjoin with its cheapest orders, and less memory."""


QUICK = Effort(1 << 13, 1 << 18, is_whole=False)
"""Takes some milliseconds."""
WITHIN = Effort(1 << 13, 1 << 18, is_whole=True)
"""For a budget that excludes most plans; takes some milliseconds."""
THOROUGH = Effort(1 << 19, 1 << 25, is_whole=True)
"""The default; takes less than a second."""


@dataclass(frozen=True)
class Front:
    """Undominated plans by rising CPU, and whether none is missing: the search ended within its budget."""

    plans: tuple[Candidate, ...]
    is_complete: bool


@dataclass(frozen=True)
class Space:
    """All jtrees of one query, as the numbers that the search needs."""

    model: ResourceModel

    def __post_init__(self) -> None:
        if self.size > LARGEST:
            raise PlanError(
                f"an exhaustive search over {self.size} relations would take too long",
                hint=f"at most {LARGEST} are searched",
            )

    @property
    def size(self) -> int:
        return len(self.model.estimates.names)

    @cached_property
    def orderer(self) -> Orderer:
        """Returns the search for the optimal probe orders of the query's joins."""
        return Orderer(self.model, self.ordering)

    def ordering(self, blocks: Blocks) -> Ordering:
        """Returns the best probe orders of a join, with their cost."""
        size, model = len(blocks), self.model
        onward, choice, union = self._floats(1 << size), self._integers(1 << size), self._integers(1 << size)
        masks, marks = self._as_integers(blocks), self._integers(0)
        self._code.number_unions(self._sets, masks, size, union)
        cpu = self._code.order_probes(self._sets, self._lookups, masks, size, onward, choice, union, marks, 0)
        cpu += size * size * model.call
        counts, found = self._integers(size), self._integers(size * size)
        self._code.count_indexes(self._lookups, size, choice, union, counts, found)
        memory = 0.0
        for block, count in zip(blocks, counts, strict=True):
            cpu += int(count) * model.births(block) * model.copies(block) * model.units.link
            memory += int(count) * model.held(block) * model.copies(block) * model.units.index_bytes
        return Ordering(tuple(_order(start, size, choice) for start in range(size)), float(cpu), float(memory))

    def undominated(
        self,
        budget: Budget = UNLIMITED,
        *,
        forbidden: frozenset[int] = frozenset(),
        needed: frozenset[int] = frozenset(),
        widest: int = LARGEST,
        effort: Effort = THOROUGH,
    ) -> Front:
        """Returns the undominated plans within the budget.

        A plan joins no forbidden set of relations, every needed set, and at most `widest` inputs at once.
        """
        if self.size == 1:
            return Front((), is_complete=True)

        def fits(shape: Shape) -> bool:
            is_narrow = all(len(blocks) <= widest for blocks in shape.values())
            return is_narrow and not forbidden & shape.keys() and needed <= shape.keys()

        known = [self.orderer.considered(shape, ORIGIN) for shape in self._seeds if fits(shape)]
        if self.size == 2:
            return Front(tuple(candidate for candidate in known if budget.allows(candidate.cost)), is_complete=True)
        fronts = self._search(pareto(known), budget, forbidden, needed, widest, effort)
        everything, base = self.model.estimates.everything, self.model.base
        start = int(fronts.first[everything])
        cpu, memory = fronts.plans.cpu, fronts.plans.memory
        for row in range(start, start + int(fronts.counts[everything])):
            cost = Resources(base.cpu + float(cpu[row]), base.memory + float(memory[row]), base.rate)
            known.append(Candidate(self._plan(fronts, everything, row), cost, ORIGIN))
        plans = tuple(candidate for candidate in pareto(distinct(known)) if budget.allows(candidate.cost))
        return Front(plans, bool(fronts.is_complete))

    @cached_property
    def tree(self) -> Shape:
        """The tree with small states, which needs no search."""
        return min_state(self.orderer)

    @cached_property
    def _seeds(self) -> tuple[Shape, ...]:
        """The tree with small states, the mjoin, and all shapes that state-removal passes between them."""
        return tuple(remove_states(self.orderer, NOTHING_FITS, self.tree))

    def _search(
        self,
        known: Sequence[Candidate],
        budget: Budget,
        forbidden: frozenset[int],
        needed: frozenset[int],
        widest: int,
        effort: Effort,
    ) -> jtrees.Fronts:
        base, masks = self.model.base, range(1 << self.size)
        # A plan that joins a needed set never joins a part of it with something else.
        allowed = [mask not in forbidden and all(mask & want in (0, mask, want) for want in needed) for mask in masks]
        reach = inf if effort.is_whole else self.orderer.price(self.orderer.mjoin()).cpu - base.cpu
        limits = Limits(
            cpu=budget.total_cpu - base.cpu,
            memory=budget.total_memory - base.memory,
            seed_cpu=self._as_floats([candidate.cost.cpu - base.cpu for candidate in known]),
            seed_memory=self._as_floats([candidate.cost.memory - base.memory for candidate in known]),
            allowed=self._as_booleans(allowed),
            needed=self._as_integers(sorted(needed)),
            widest=widest,
            reach=reach,
            budget=effort.compiled if self._is_compiled else effort.interpreted,
        )
        joined = (mask for mask in masks if mask.bit_count() > 1)
        order = self._as_integers(sorted(joined, key=lambda mask: (mask.bit_count(), mask)))
        found: jtrees.Fronts = self._code.search(self._sets, self._lookups, limits, units_of(self.model), order)
        return found

    def _plan(self, fronts: jtrees.Fronts, whole: int, row: int) -> PhysicalPlan:
        """Returns the plan of a set in one row of the table."""
        if whole.bit_count() == 1:
            return Leaf(self.model.estimates.names[whole.bit_length() - 1])
        joins, width = fronts.joins, self.size
        first = int(fronts.plans.joins[row]) * width
        blocks = [int(block) for block in joins.blocks[first : first + width] if block]
        below = fronts.plans.entries[row * width : row * width + len(blocks)]
        inputs = tuple(self._plan(fronts, block, int(each)) for block, each in zip(blocks, below, strict=True))
        if len(blocks) == 2:
            return JoinNode(inputs)
        starts = [(first + part) * width for part in range(len(blocks))]
        orders = (joins.orders[start : start + len(blocks) - 1] for start in starts)
        return JoinNode(inputs, tuple(tuple(int(block) for block in order) for order in orders))

    # --- numbers, as lists or as arrays -------------------------------------------------------------------------------

    @property
    def _is_compiled(self) -> bool:
        return self.size > INTERPRETED

    @cached_property
    def _code(self) -> Any:
        if not self._is_compiled:
            return _Interpreted
        # Imported here because loading numba takes longer than the whole search for a small query.
        from anabranch.optimize import compiled

        return compiled

    def _floats(self, size: int) -> Any:
        return np.zeros(size) if self._is_compiled else [0.0] * size

    def _integers(self, size: int) -> Any:
        return np.zeros(size, np.int64) if self._is_compiled else [0] * size

    def _as_floats(self, values: Iterable[float]) -> Any:
        return np.array([*values], np.float64) if self._is_compiled else [*values]

    def _as_integers(self, values: Iterable[int]) -> Any:
        return np.array([*values], np.int64) if self._is_compiled else [*values]

    def _as_booleans(self, values: Iterable[bool]) -> Any:
        return np.array([*values], np.bool_) if self._is_compiled else [*values]

    @cached_property
    def _sets(self) -> probe_orders.Sets:
        model, units = self.model, self.model.units
        masks = range(1, 1 << self.size)
        counts = [mask.bit_count() for mask in masks]
        turnover = [model.turnover(mask) for mask in masks]
        rows, held = [model.rows(mask) for mask in masks], [model.held(mask) for mask in masks]
        births = [one * other for one, other in zip(rows, turnover, strict=True)]
        copies = [model.copies(mask) for mask in masks]
        results = [
            born * (units.match + units.match_relation * count) for born, count in zip(births, counts, strict=True)
        ]
        return probe_orders.Sets(
            relations=self._as_integers([0, *counts]),
            ternary=self._as_integers([0, *(int(f"{mask:b}", 3) for mask in masks)]),
            rows=self._as_floats([1.0, *rows]),
            held=self._as_floats([0.0, *held]),
            copies=self._as_floats([1.0, *copies]),
            classes=self._as_integers([0, *(_classes(model, mask) for mask in masks)]),
            agreeing=self._as_floats([1.0, *_agreeing(model)]),
            turnover=self._as_floats([0.0, *turnover]),
            upkeep=self._as_floats([0.0, *(model.upkeep(mask) for mask in masks)]),
            state_bytes=self._as_floats([0.0, *(model.state_bytes(mask) for mask in masks)]),
            link=self._as_floats([0.0, *(b * c * units.link for b, c in zip(births, copies, strict=True))]),
            index_bytes=self._as_floats([0.0, *(h * c * units.index_bytes for h, c in zip(held, copies, strict=True))]),
            results=self._as_floats([0.0, *results]),
        )

    @cached_property
    def _lookups(self) -> probe_orders.Lookups:
        thetas = thetas_of(self.model)
        if not self._is_compiled:
            thetas = type(thetas)(*(column.tolist() for column in thetas))
        found: probe_orders.Lookups = self._code.price_lookups(self._sets, thetas, units_of(self.model))
        return found


class _Interpreted:
    """The entry points of the search as plain Python; `compiled` has the same names."""

    price_lookups = staticmethod(probe_orders.price_lookups)
    number_unions = staticmethod(probe_orders.number_unions)
    order_probes = staticmethod(probe_orders.order_probes)
    count_indexes = staticmethod(probe_orders.count_indexes)
    search = staticmethod(jtrees.search)


def find_jtrees(
    model: ResourceModel,
    budget: Budget = UNLIMITED,
    *,
    forbidden: frozenset[int] = frozenset(),
    needed: frozenset[int] = frozenset(),
) -> tuple[Candidate, ...]:
    """Returns all undominated plans of a query within the budget, by rising CPU; see `Space.undominated`."""
    return Space(model).undominated(budget, forbidden=forbidden, needed=needed).plans


def _order(start: int, size: int, choice: Sequence[int]) -> tuple[int, ...]:
    group, order = 1 << start, []
    while group != (1 << size) - 1:
        order.append(int(choice[group]))
        group |= 1 << order[-1]
    return tuple(order)


def _classes(model: ResourceModel, mask: int) -> int:
    found = 0
    for position, (members, _) in enumerate(model.key_members):
        if members & mask:
            found |= 1 << position % 62
    return found


def _agreeing(model: ResourceModel) -> list[float]:
    """Returns, for each set by mask from 1, the fraction of all combinations whose keys agree."""
    shares = [1.0]
    for mask in range(1, 1 << len(model.estimates.names)):
        highest = 1 << (mask.bit_length() - 1)
        shares.append(shares[mask ^ highest] * model.key_selectivity(mask ^ highest, highest))
    return shares[1:]
