"""The initial table of a run: from a histogram of the keys of a sample, and from the speeds of slots.

Without either, every slot has the same number of groups. A sample shows how many rows of each relation fall into each
cell, so a frequent key does not make its slot the slowest from the first batch on. A slot of half the speed gets half
the work. Limit: before any measurement, half of the work is assumed to grow with matches.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from anabranch.balance.loads import NO_KEYS, Floats, Loads, SlotLoad, group_work, skew
from anabranch.balance.rule import even_out
from anabranch.errors import PlanError
from anabranch.plan.partitioning import Partitioning

MATCHING = 0.5
"""The share of the work that is assumed to grow with matches, before any measurement."""


@dataclass(frozen=True)
class FirstTable:
    """A table, and the expected share of all work of each slot."""

    partitioning: Partitioning
    shares: tuple[float, ...]
    capacities: tuple[float, ...]

    @property
    def skew(self) -> float:
        """The expected time of the slowest slot over the average."""
        return skew([share / speed for share, speed in zip(self.shares, self.capacities, strict=True)])


def first_table(
    grid: Partitioning,
    rows: Mapping[str, Floats] | None = None,
    capacities: Sequence[float] | None = None,
) -> FirstTable:
    """Returns the grid with a table that fits the rows of each cell and the relative speeds of slots.

    `rows` has, for each relation, how many rows fall into each of its cells; without it, all cells count the same.
    """
    speeds = _speeds(grid, capacities)
    known = rows or {name: np.ones(grid.cells(name)) for name in sorted(grid.relations)}
    by_row, by_match = group_work(grid, known, NO_KEYS)
    work = (1 - MATCHING) * _normed(by_row) + MATCHING * _normed(by_match)
    chosen = grid
    if rows is not None or capacities is not None:
        taking = work / speeds[np.array(grid.table)]
        slots = tuple(SlotLoad(0.0, 0.0) for _ in range(grid.slots))
        loads = Loads(slots, tuple(taking.tolist()), tuple(taking.tolist())).on(grid.table)
        amounts = {name: float(np.sum(counts)) for name, counts in known.items()}
        sent = grid.sent(amounts)

        def copying(table: Partitioning) -> float:
            return (1 - MATCHING) * (table.sent(amounts) / sent - 1) / grid.slots

        for move in even_out(grid, loads, speeds=speeds.tolist(), copying=copying).moves:
            chosen = chosen.moved(move.groups, move.receiver)
    shares = np.bincount(np.array(chosen.table), work, grid.slots)
    return FirstTable(chosen, tuple(shares.tolist()), tuple(speeds.tolist()))


def _speeds(grid: Partitioning, capacities: Sequence[float] | None) -> Floats:
    if capacities is None:
        return np.ones(grid.slots)
    if len(capacities) != grid.slots:
        raise PlanError(
            f"{len(capacities)} capacities do not fit {grid.slots} slots",
            hint="write one number for each slot below balance.capacities",
        )
    return np.asarray(capacities, dtype=np.float64)


def _normed(weights: Floats) -> Floats:
    whole = float(weights.sum())
    return weights / whole if whole else np.full(len(weights), 1 / len(weights))
