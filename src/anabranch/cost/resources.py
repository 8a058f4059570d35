"""CPU and memory that a plan needs per unit of time, as a pure function of (plan, estimates, unit costs).

With every stream in its steady state, a set S of relations joined inside the windows has

    rows(S)     = selectivity(S) x product of rate x window        combinations alive at any moment
    turnover(S) = sum of 1 / window                                 so rows(S) x turnover(S) are born per second

and both follow from the window contract exactly: each relation of S in turn holds the newest row. New rows of one input
X of a join probe the other inputs one after another; with T the set bound so far and B the next input, one step costs

    turnover(X) x rows(T) x (probe + compare x candidates + match x partners),    partners = rows(T and B) / rows(T)

per second, and an intermediate state pays insert and delete for each of its births. Summed over an mjoin and a binary
tree of three streams this is Eq. 2-5 of Zhu, Raghavan and Rundensteiner 2010 (Eq. 4.2-4.5 of Zhu 2006) to the letter.

The papers disagree with themselves in two places, and this is the reading used here. (1) The rate of a merged vertex is
printed as λλσ in one section and λλσW in another; Eq. 4 only adds up with 2λλσW, the true birth rate, so that is used.
(2) C_j multiplies λ|S|σ, the pairs that match, yet the dissertation speaks of a nested-loop join, which pays for each
pair it looks at. `HASHED` is the first, as printed (match = C_j); `NESTED` the second (compare = C_j, nothing looked up
by key). Only `NESTED` makes the mjoin of experiment set 2 unqualified as reported, so the four-set experiment uses it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from anabranch.cost.estimates import Estimates
from anabranch.errors import PlanError
from anabranch.plan.join_graph import JoinGraph
from anabranch.plan.physical import JoinNode, Leaf, PhysicalPlan, nodes, probe_order
from anabranch.stats.view import UnitCosts

HASHED = UnitCosts(insert=2e-7, delete=2e-7, probe=0.0, compare=0.0, match=2.2e-6)
NESTED = UnitCosts(insert=2e-7, delete=2e-7, probe=0.0, compare=2.2e-6, match=0.0)


@dataclass(frozen=True)
class Resources:
    """Seconds of one core per second, bytes of state, and results per second."""

    cpu: float
    memory: float
    rate: float


@dataclass(frozen=True)
class ResourceModel:
    """Prices plans of one query; `keyed` says whether a join looks rows up by key or looks at all of them."""

    estimates: Estimates
    units: UnitCosts
    keyed: bool = True

    @cached_property
    def _rows(self) -> dict[int, float]:
        return {0: 1.0}

    @cached_property
    def _members(self) -> tuple[tuple[int, tuple[tuple[float, int], ...]], ...]:
        """For each key class the mask of its members, and the members by rising number of distinct values."""
        classes = (
            tuple(sorted((values, 1 << position) for position, values in enumerate(distinct) if values))
            for distinct in self.estimates.keys
        )
        return tuple((sum(member for _, member in rising), rising) for rising in classes)

    def rows(self, mask: int) -> float:
        """Combinations of the set that are alive at any moment."""
        found = self._rows.get(mask)
        if found is None:
            single = mask & -mask
            rest = mask ^ single
            position = single.bit_length() - 1
            base = self.estimates.rates[position] * self.estimates.windows[position]
            found = self._rows[mask] = base * self.rows(rest) * self.selectivity(rest, single)
        return found

    def turnover(self, mask: int) -> float:
        """Births per second for each living combination."""
        return sum(1 / window for position, window in enumerate(self.estimates.windows) if mask >> position & 1)

    def births(self, mask: int) -> float:
        """Combinations of the set born per second."""
        return self.rows(mask) * self.turnover(mask)

    def key_selectivity(self, left: int, right: int) -> float:
        """The share of pairs of two disjoint sets that agree in all keys."""
        share = 1.0
        for members, rising in self._members:
            if members & left and members & right:
                one = next(values for values, member in rising if member & left)
                other = next(values for values, member in rising if member & right)
                share /= max(one, other)
        return share

    def selectivity(self, left: int, right: int) -> float:
        """The share of pairs of two disjoint sets that pass every predicate between them."""
        share = self.key_selectivity(left, right)
        for relations, passing in self.estimates.thetas:
            inside = relations & (left | right)
            if inside == relations and relations & ~left and relations & ~right:
                share *= passing
        return share

    def connected(self, left: int, right: int) -> bool:
        """True when some predicate reaches from one set to the other."""
        if any(members & left and members & right for members, _ in self._members):
            return True
        return any(relations & left and relations & right for relations, _ in self.estimates.thetas)

    def step(self, bound: int, block: int) -> float:
        """Cost of letting each living combination of `bound` probe the state of `block` once."""
        units, partners = self.units, self.rows(block)
        looked_at = partners * self.key_selectivity(bound, block) if self.keyed else partners
        passing = partners * self.selectivity(bound, block)
        return self.rows(bound) * (units.probe + units.compare * looked_at + units.match * passing)

    def chain(self, start: int, order: list[int]) -> float:
        """CPU of the new rows of one input that probe the others in that order."""
        total, bound = 0.0, start
        for block in order:
            total += self.step(bound, block)
            bound |= block
        return total * self.turnover(start)

    def upkeep(self, mask: int) -> float:
        """CPU of putting rows into a state and taking them out again."""
        return self.births(mask) * (self.units.insert + self.units.delete)

    def state_bytes(self, mask: int) -> float:
        """Bytes of the state of a set: payload for a base state, row numbers and times for a joined one."""
        count = mask.bit_count()
        if count == 1:
            return self.rows(mask) * (self.estimates.row_bytes[mask.bit_length() - 1] + self.units.base_bytes)
        joined = self.units.joined_bytes + count * self.units.joined_relation_bytes
        # Without sizes of its own the model counts rows, as the papers do: a joined row weighs as much as any other.
        return self.rows(mask) * (joined or max(self.estimates.row_bytes))

    @cached_property
    def base(self) -> Resources:
        """What every plan needs: the base states and the results."""
        singles = [1 << position for position in range(len(self.estimates.names))]
        rate = self.births(self.estimates.everything)
        cpu = sum(self.upkeep(single) for single in singles) + rate * self.units.emit
        return Resources(cpu, sum(self.state_bytes(single) for single in singles), rate)

    def node(self, node: JoinNode) -> float:
        """CPU of one join, without the states of its inputs; every input of three or more needs a probe order."""
        blocks = [self.estimates.mask(child.relations) for child in node.inputs]
        total = 0.0
        for position, order in enumerate(node.orders):
            if not order and len(blocks) > 2:
                raise PlanError(f"plan '{node}' has no probe order for '{node.inputs[position]}'")
            total += self.chain(blocks[position], [blocks[i] for i in order] if order else [blocks[1 - position]])
        return total

    def price(self, plan: PhysicalPlan) -> Resources:
        """CPU, memory and output rate of a plan whose probe orders are explicit."""
        cpu, memory = self.base.cpu, self.base.memory
        for node in nodes(plan):
            cpu += self.node(node)
            mask = self.estimates.mask(node.relations)
            if mask != self.estimates.everything:
                cpu += self.upkeep(mask)
                memory += self.state_bytes(mask)
        return Resources(cpu, memory, self.base.rate)


def with_default_orders(plan: PhysicalPlan, graph: JoinGraph) -> PhysicalPlan:
    """The plan with an engine's default probe orders written out in every join of three or more inputs."""
    if isinstance(plan, Leaf):
        return plan
    inputs = tuple(with_default_orders(child, graph) for child in plan.inputs)
    if len(inputs) == 2:
        return JoinNode(inputs)
    return JoinNode(inputs, tuple(probe_order(plan, position, graph) for position in range(len(inputs))))
