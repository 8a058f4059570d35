"""JTree-Finder: finds a plan within the budget if there is one (Zhu, Raghavan and Rundensteiner 2010).

The search space is every mjoin, every tree and every mixture, with every probe order; plans that defer a predicate or
merge rows are not included. `undominated` returns the Pareto set in CPU and memory of that space. The search itself is
in `jtrees`. Up to `INTERPRETED` relations it runs as plain Python, so that a small query needs no compilation or
loading; up to `LARGEST` relations it runs compiled. Time grows exponentially with the number of relations.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from anabranch.cost.resources import ResourceModel, Resources
from anabranch.errors import PlanError
from anabranch.optimize import jtrees
from anabranch.optimize.lookups import thetas_of, units_of
from anabranch.optimize.min_state import min_state
from anabranch.optimize.proposals import NOTHING_FITS, UNLIMITED, Budget, Candidate, distinct, pareto
from anabranch.optimize.shapes import Blocks, Orderer, Ordering, Shape, in_order
from anabranch.optimize.state_removal import remove_states

INTERPRETED = 8
LARGEST = 12
ORIGIN = "jtree-finder"


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
        """Finds the optimal probe orders of the query's joins."""
        return Orderer(self.model, self.ordering)

    def ordering(self, blocks: Blocks) -> Ordering:
        """Returns the best probe orders of a join, with their cost."""
        size, model = len(blocks), self.model
        onward, choice, union = self._floats(1 << size), self._integers(1 << size), self._integers(1 << size)
        masks = self._as_integers(blocks)
        cpu = self._code.order_probes(self._sets, self._lookups, masks, size, onward, choice, union)
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
    ) -> tuple[Candidate, ...]:
        """Returns all undominated plans within the budget, by rising CPU; empty if there is none.

        A plan joins no forbidden set of relations, every needed set, and at most `widest` inputs at once.
        """
        if self.size == 1:
            return ()

        def fits(shape: Shape) -> bool:
            is_narrow = all(len(blocks) <= widest for blocks in shape.values())
            return is_narrow and not forbidden & shape.keys() and needed <= shape.keys()

        known = [self.orderer.considered(shape, ORIGIN) for shape in self._seeds if fits(shape)]
        if self.size == 2:
            return tuple(candidate for candidate in known if budget.allows(candidate.cost))
        fronts = self._search(pareto(known), budget, forbidden, needed, widest)
        everything, base = self.model.estimates.everything, self.model.base
        start = int(fronts.first[everything])
        for entry in range(start, start + int(fronts.counts[everything])):
            cost = Resources(base.cpu + float(fronts.cpu[entry]), base.memory + float(fronts.memory[entry]), base.rate)
            shape = self._shape(fronts, everything, entry)
            known.append(Candidate(self.orderer.plan(shape), cost, ORIGIN))
        return tuple(candidate for candidate in pareto(distinct(known)) if budget.allows(candidate.cost))

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
    ) -> jtrees.Fronts:
        base, masks = self.model.base, range(1 << self.size)
        # A plan that joins a needed set never joins a part of it with something else.
        allowed = [mask not in forbidden and all(mask & want in (0, mask, want) for want in needed) for mask in masks]
        limits = jtrees.Limits(
            cpu=budget.total_cpu - base.cpu,
            memory=budget.total_memory - base.memory,
            seed_cpu=self._as_floats([candidate.cost.cpu - base.cpu for candidate in known]),
            seed_memory=self._as_floats([candidate.cost.memory - base.memory for candidate in known]),
            allowed=self._as_booleans(allowed),
            needed=self._as_integers(sorted(needed)),
            widest=widest,
        )
        joined = (mask for mask in masks if mask.bit_count() > 1)
        order = self._as_integers(sorted(joined, key=lambda mask: (mask.bit_count(), mask)))
        found: jtrees.Fronts = self._code.search(self._sets, self._lookups, limits, units_of(self.model), order)
        return found

    def _shape(self, fronts: jtrees.Fronts, whole: int, entry: int) -> Shape:
        place = entry * self.size
        inputs = [
            (int(fronts.blocks[at]), int(fronts.entries[at]))
            for at in range(place, place + self.size)
            if fronts.blocks[at]
        ]
        shape: dict[int, Blocks] = {whole: in_order(block for block, _ in inputs)}
        for block, below in inputs:
            if block.bit_count() > 1:
                shape.update(self._shape(fronts, block, below))
        return shape

    # --- numbers, as lists or as arrays -------------------------------------------------------------------------------

    @property
    def _is_compiled(self) -> bool:
        return self.size > INTERPRETED

    @cached_property
    def _code(self) -> Any:
        if not self._is_compiled:
            return jtrees
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
    def _sets(self) -> jtrees.Sets:
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
        return jtrees.Sets(
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
    def _lookups(self) -> jtrees.Lookups:
        thetas = thetas_of(self.model)
        if not self._is_compiled:
            thetas = type(thetas)(*(column.tolist() for column in thetas))
        found: jtrees.Lookups = self._code.price_lookups(self._sets, thetas, units_of(self.model))
        return found


def find_jtrees(
    model: ResourceModel,
    budget: Budget = UNLIMITED,
    *,
    forbidden: frozenset[int] = frozenset(),
    needed: frozenset[int] = frozenset(),
) -> tuple[Candidate, ...]:
    """Returns all undominated plans of a query within the budget, by rising CPU; see `Space.undominated`."""
    return Space(model).undominated(budget, forbidden=forbidden, needed=needed)


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
