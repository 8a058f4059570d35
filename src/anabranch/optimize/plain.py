"""Every plan of a small query, in plain Python: nothing has to be compiled or loaded before the first answer.

The costs are the model's own, remembered per step. What the rest of a chain costs depends on the relations bound so far
and on the inputs still to be probed, not on how the bound ones were put together; so it is worked out once for each
such pair, and that orders the probes of all joins at once. Plans are then built set by set, keeping those that no other
plan of the set dominates, as `jtree_finder` does.

Limit: Bell(n + 2) - Bell(n + 1) chains, 94,828 for eight relations, which take some tenths of a second; `LARGEST`
bounds the relations. Beyond, the compiled search pays for its compiling.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import product

from anabranch.cost.resources import ResourceModel, Resources
from anabranch.optimize.shapes import Blocks, Orderer, Ordering, Shape, build
from anabranch.optimize.strategy import Considered

LARGEST = 8
ORIGIN = "jtree-finder"


@dataclass(frozen=True)
class Chains:
    """The cheapest probe orders of one query's joins."""

    model: ResourceModel

    @cached_property
    def _turnover(self) -> list[float]:
        return [self.model.turnover(mask) for mask in range(self.model.estimates.everything + 1)]

    @cached_property
    def _indexing(self) -> list[tuple[float, float]]:
        """CPU and bytes of one index over each set."""
        model, units = self.model, self.model.units
        masks = range(1, model.estimates.everything + 1)
        return [(0.0, 0.0), *((model.births(m) * units.link, model.held(m) * units.index_bytes) for m in masks)]

    @cached_property
    def _steps(self) -> dict[tuple[int, int], float]:
        return {}

    @cached_property
    def _indexes(self) -> dict[tuple[int, int], int]:
        return {}

    @cached_property
    def _onward(self) -> dict[tuple[int, Blocks], tuple[float, int]]:
        return {}

    def onward(self, bound: int, left: Blocks) -> tuple[float, int]:
        """The least cost for a living combination of `bound` of probing all that is left, and what to probe next."""
        known, steps = self._onward, self._steps
        least, best = float("inf"), left[0]
        for at, block in enumerate(left):
            price = steps.get((bound, block)) or self._step(bound, block)
            if price < least and len(left) > 1:
                further = bound | block, left[:at] + left[at + 1 :]
                price += (known.get(further) or self.onward(*further))[0]
            if price < least:
                least, best = price, block
        known[bound, left] = least, best
        return least, best

    def _chain(self, start: int, left: Blocks) -> float:
        return (self._onward.get((start, left)) or self.onward(start, left))[0]

    def cpu(self, blocks: Blocks) -> float:
        """CPU of all probes of a join of these inputs."""
        total, turnover = len(blocks) ** 2 * self.model.call, self._turnover
        for at, block in enumerate(blocks):
            total += turnover[block] * self._chain(block, blocks[:at] + blocks[at + 1 :])
        return total

    def _step(self, bound: int, block: int) -> float:
        price = self._steps.get((bound, block))
        if price is None:
            price = self._steps[bound, block] = self.model.step(bound, block)
        return price

    def upkeep(self, blocks: Blocks) -> tuple[float, float]:
        """CPU and bytes of the indexes that the cheapest orders of a join look things up by."""
        indexes, wanted = self._indexes, set()
        for block in blocks:
            for bound, target in self._probes(block, blocks):
                index = indexes.get((bound, target))
                if index is None:
                    index = indexes[bound, target] = self.model.index(bound, target)
                wanted.add((target, index))
        cpu, memory = 0.0, 0.0
        for target, _ in wanted:
            cpu += self._indexing[target][0]
            memory += self._indexing[target][1]
        return cpu, memory

    def _probes(self, start: int, blocks: Blocks) -> Iterator[tuple[int, int]]:
        """What is bound and what is probed, step by step, on the cheapest way from one input to all."""
        bound, left = start, tuple(block for block in blocks if block != start)
        while left:
            target = (self._onward.get((bound, left)) or self.onward(bound, left))[1]
            yield bound, target
            bound, left = bound | target, tuple(block for block in left if block != target)

    def orders(self, blocks: Blocks) -> tuple[tuple[int, ...], ...]:
        """The order in which each input probes the others, as positions."""
        return tuple(tuple(blocks.index(target) for _, target in self._probes(start, blocks)) for start in blocks)

    def ordering(self, blocks: Blocks) -> Ordering:
        """The best orders of a join, with what they need."""
        links, indexes = self.upkeep(blocks)
        return Ordering(self.orders(blocks), self.cpu(blocks) + links, indexes)


def exact_orderer(chains: Chains) -> Orderer:
    """Orders at most `LARGEST` relations as well as can be."""
    return Orderer(chains.model, chains.ordering)


@dataclass(frozen=True)
class _Part:
    """A way to run the join of a set, and its cost without the base states."""

    cpu: float
    memory: float
    inputs: tuple[tuple[int, _Part | None], ...]
    """The set of each input, and how that is run; None for a base state."""


def undominated(
    chains: Chains, *, forbidden: frozenset[int] = frozenset(), needed: frozenset[int] = frozenset()
) -> tuple[Considered, ...]:
    """All plans that no other dominates in CPU and memory, by rising CPU; see `jtree_finder.find_jtrees`."""
    model = chains.model
    names, everything, base = model.estimates.names, model.estimates.everything, model.base
    kept: dict[int, list[_Part]] = {}
    partitions: dict[int, list[Blocks]] = {0: [()]}
    for whole in sorted(range(1, everything + 1), key=lambda mask: (mask.bit_count(), mask)):
        # A plan that joins a needed set joins nothing that takes only part of it together with something else.
        if (
            whole.bit_count() > 1
            and whole not in forbidden
            and all(whole & want in (0, whole, want) for want in needed)
        ):
            inside = [want for want in needed if whole & want == want and whole != want]
            finer = _partitions(whole, partitions)[:-1]
            if front := _front(chains, finer, kept, inside, is_top=whole == everything):
                kept[whole] = front
    return tuple(
        Considered(
            build(_shape(everything, part), names, everything, chains.orders),
            Resources(base.cpu + part.cpu, base.memory + part.memory, base.rate),
            ORIGIN,
        )
        for part in kept.get(everything, ())
    )


def _front(
    chains: Chains, partitions: list[Blocks], kept: dict[int, list[_Part]], needed: list[int], *, is_top: bool
) -> list[_Part]:
    """The undominated ways to run the join of a set, by rising CPU and falling memory."""
    model, whole = chains.model, sum(partitions[0])
    own_cpu, own_memory = (0.0, 0.0) if is_top else (model.upkeep(whole), model.state_bytes(whole))
    front: list[_Part] = []
    rising: list[float] = []

    def is_beaten(cpu: float, memory: float) -> bool:
        place = bisect_right(rising, cpu)
        return place > 0 and front[place - 1].memory <= memory

    for blocks in partitions:
        inner = [block for block in blocks if block & (block - 1)]
        if not all(block in kept for block in inner):
            continue
        if needed and not all(any(block & want == want for block in inner) for want in needed):
            continue
        # Bounds first, the dear ones last: most partitions are out before their probes have been ordered.
        least_cpu, least_memory = own_cpu, own_memory
        for block in inner:
            least_cpu += kept[block][0].cpu
            least_memory += kept[block][-1].memory
        if is_beaten(least_cpu, least_memory):
            continue
        probing = chains.cpu(blocks)
        if is_beaten(least_cpu + probing, least_memory):
            continue
        links, indexes = chains.upkeep(blocks)
        if is_beaten(least_cpu + probing + links, least_memory + indexes):
            continue
        cpu, memory = own_cpu + probing + links, own_memory + indexes
        for parts in product(*(kept[block] for block in inner)):
            now_cpu = cpu + sum(part.cpu for part in parts)
            now_memory = memory + sum(part.memory for part in parts)
            if is_beaten(now_cpu, now_memory):
                continue
            place = bisect_right(rising, now_cpu)
            if place > 0 and rising[place - 1] == now_cpu:
                place -= 1
            beaten = place
            while beaten < len(front) and front[beaten].memory >= now_memory:
                beaten += 1
            below = dict(zip(inner, parts, strict=True))
            inputs = tuple((block, below.get(block)) for block in blocks)
            front[place:beaten] = [_Part(now_cpu, now_memory, inputs)]
            rising[place:beaten] = [now_cpu]
    return front


def _partitions(whole: int, known: dict[int, list[Blocks]]) -> list[Blocks]:
    """All ways to split a set into blocks, each by its lowest relation; the finest first. `known` is remembered."""
    found = known.get(whole)
    if found is None:
        lowest = whole & -whole
        others = whole ^ lowest
        found, chosen = [], 0
        while True:
            block = lowest | chosen
            found += [(block, *further) for further in _partitions(whole ^ block, known)]
            if chosen == others:
                break
            chosen = (chosen - others) & others
        known[whole] = found
    return found


def _shape(whole: int, part: _Part) -> Shape:
    shape: dict[int, Blocks] = {whole: tuple(block for block, _ in part.inputs)}
    for block, below in part.inputs:
        if below is not None:
            shape.update(_shape(block, below))
    return shape
