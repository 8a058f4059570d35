"""Figures as values: what was measured, in three or so runs, and what it was to reach."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median
from typing import Literal


@dataclass(frozen=True)
class Bound:
    """What a figure is to reach."""

    sense: Literal["at least", "at most"]
    value: float

    def holds(self, value: float) -> bool:
        return value >= self.value if self.sense == "at least" else value <= self.value


@dataclass(frozen=True)
class Figure:
    """One measured number with its spread; without a bound it is there for comparison."""

    what: str
    unit: str
    values: tuple[float, ...]
    bound: Bound | None = None

    @property
    def median(self) -> float:
        return median(self.values)

    @property
    def is_reached(self) -> bool | None:
        """Whether the median keeps the bound; None when there is none."""
        return None if self.bound is None else self.bound.holds(self.median)


def ratio(what: str, values: list[float], bound: Bound | None = None) -> Figure:
    """A figure that is one system's number over another's of the same run."""
    return Figure(what, "x", tuple(values), bound)
