"""The optimum as an integer program: an oracle for small cases that shares no search code with the planners.

Variables (0/1): a join of two subsets at a site; a subset shipped from one site to another; a running stream used. A
shipped subset must be produced or used at its origin; a join needs both inputs shipped to its site; the whole query is
shipped to the sink. Capacities and bandwidths are rows of the program.

Limit: about ten sites and four relations, because K relations and N sites have about 3^K·N + 2^K·N² variables.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import coo_array

from anabranch.place.landscape import Landscape, SinkQuery
from anabranch.place.planner import Placement, decide
from anabranch.place.problem import Problem, problem_of
from anabranch.place.search import Found, JoinAt, Mask, Placed, Producer, Split, Take, split_of


@dataclass(frozen=True)
class IntegerProgram:
    """Searches every plan at every site with HiGHS."""

    name: str = "integer-program"

    def plan(self, landscape: Landscape, query: SinkQuery) -> Placement:
        return decide(problem_of(landscape, query), self.name, solve)


def solve(problem: Problem) -> Found | None:
    """Returns the cheapest plan within the capacities, or None."""
    model = _Model(problem)
    result = milp(
        np.array(model.costs),
        constraints=model.constraints(),
        bounds=Bounds(0, 1),
        integrality=np.ones(len(model.costs)),
        options={"mip_rel_gap": 1e-9},
    )
    if result.x is None:
        return None
    chosen = np.asarray(result.x) > 0.5
    plan = model.read(chosen, problem.full, problem.sink)
    return Found(plan, float(result.fun), len(model.joins) + len(problem.producers), len(model.costs))


class _Model:
    """The program, built row by row; `_rows` hold (variable, coefficient) pairs and their bounds."""

    def __init__(self, problem: Problem) -> None:
        self._problem = problem
        self.costs: list[float] = []
        self._rows: list[tuple[list[tuple[int, float]], float, float]] = []
        self._sites = range(len(problem.landscape.topology.sites))
        masks = range(1, problem.full + 1)
        self._uses = [(self._variable(producer.price), producer) for producer in problem.producers]
        self.joins = [
            (self._variable(0.0), split, site)
            for split in _every_split(problem.full)
            for site in self._sites
            if (split, site) not in problem.bans.joins
        ]
        topology = problem.landscape.topology
        self._brings = {
            (mask, origin, end): self._variable(problem.bytes[mask] * topology.distance(origin, end))
            for mask in masks
            for origin in self._sites
            for end in self._sites
        }
        for mask in masks:
            for site in self._sites:
                self._link(mask, site)
        self._limit()

    def _variable(self, cost: float) -> int:
        self.costs.append(cost)
        return len(self.costs) - 1

    def _link(self, mask: Mask, site: int) -> None:
        made = [(v, 1.0) for v, split, at in self.joins if split[0] | split[1] == mask and at == site]
        made += [(v, 1.0) for v, producer in self._uses if producer.mask == mask and producer.site == site]
        for end in self._sites:
            self._rows.append(([*made, (self._brings[mask, site, end], -1.0)], 0.0, np.inf))
        arriving = [(self._brings[mask, origin, site], 1.0) for origin in self._sites]
        for variable, split, at in self.joins:
            if mask in split and at == site:
                self._rows.append(([*arriving, (variable, -1.0)], 0.0, np.inf))
        if mask == self._problem.full and site == self._problem.sink:
            self._rows.append((arriving, 1.0, np.inf))

    def _limit(self) -> None:
        landscape = self._problem.landscape
        loads = {split: self._problem.load(split) for split in _every_split(self._problem.full)}
        cpu, memory = landscape.free
        for site in self._sites:
            here = [(v, loads[split]) for v, split, at in self.joins if at == site]
            if np.isfinite(cpu[site]):
                self._rows.append(([(v, load.cpu) for v, load in here], -np.inf, cpu[site]))
            if np.isfinite(memory[site]):
                self._rows.append(([(v, load.memory) for v, load in here], -np.inf, memory[site]))
        if landscape.topology.has_limited_links:
            self._limit_links()

    def _limit_links(self) -> None:
        topology, volumes = self._problem.landscape.topology, self._problem.bytes
        crossing: list[list[tuple[int, float]]] = [[] for _ in topology.pairs]
        for (mask, origin, end), variable in self._brings.items():
            for link in topology.crossed(origin, end):
                crossing[link].append((variable, volumes[mask]))
        for variable, producer in self._uses:
            for extra, origin, end in producer.widened:
                for link in topology.crossed(origin, end):
                    crossing[link].append((variable, extra))
        free = topology.bandwidths - self._problem.landscape.traffic
        self._rows += [(row, -np.inf, float(most)) for row, most in zip(crossing, free, strict=True) if row]

    def constraints(self) -> LinearConstraint:
        entries = [(index, v, share) for index, (row, _, _) in enumerate(self._rows) for v, share in row]
        rows, columns, shares = zip(*entries, strict=True)
        matrix = coo_array((shares, (rows, columns)), shape=(len(self._rows), len(self.costs))).tocsr()
        return LinearConstraint(matrix, [low for _, low, _ in self._rows], [high for _, _, high in self._rows])

    def read(self, chosen: np.ndarray, mask: Mask, end: int) -> Placed:
        """Returns the plan that the chosen variables describe."""
        origin = next(o for o in self._sites if chosen[self._brings[mask, o, end]])
        used: list[Producer] = [p for v, p in self._uses if chosen[v] and p.mask == mask and p.site == origin]
        if used:
            return Take(used[0])
        left, right = next(
            split for v, split, at in self.joins if chosen[v] and at == origin and split[0] | split[1] == mask
        )
        return JoinAt(self.read(chosen, left, origin), self.read(chosen, right, origin), origin)


def _every_split(full: Mask) -> list[Split]:
    """Yields every pair of disjoint, non-empty subsets."""
    return [
        split_of(left, right)
        for left in range(1, full + 1)
        for right in range(1, full + 1)
        if not left & right and split_of(left, right) == (left, right)
    ]
