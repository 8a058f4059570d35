"""Unit costs of the engine's elementary operations: given, calibrated, or those of typical hardware.

The choice of a plan depends on their proportions, which vary little between machines; `anabranch calibrate` measures
them. Sizes are not measured: they follow from the layout of the engine's states.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import TypedDict

from anabranch.errors import StatisticsError
from anabranch.settings.entries import suggestion
from anabranch.stats.view import Provenance, StatisticsView

TAKING_OVER = 1e-8
"""Seconds of one core to take over a byte of state: read, filter, append and index it.

1.05e-8 was measured with rows of 44 bytes; the sender takes a third of that for each byte that it had."""


@dataclass(frozen=True)
class UnitCosts:
    """The costs of the elementary operations of a join: seconds of one core, and bytes of state.

    The defaults are those of the papers' models, which omit these costs; a calibrated engine has all of them.
    """

    insert: float
    """A row enters a state."""
    delete: float
    """A row leaves a state."""
    probe: float
    """A row performs a lookup."""
    compare: float
    """A lookup examines one candidate."""
    match: float
    """A candidate matches in keys and time."""
    match_relation: float = 0.0
    """A candidate matches: the additional cost per relation of the resulting combination."""
    link: float = 0.0
    """A row enters one index."""
    insert_joined: float = 0.0
    """A joined row enters a state: the cost beyond `insert`."""
    check: float = 0.0
    """A combination is checked against one further predicate."""
    emit: float = 0.0
    """A result is emitted."""
    group: float = 0.0
    """A result of a grouped query, or a row merged before it joins, is assigned to its group."""
    call: float = 0.0
    """A batch enters one state or performs one lookup, independent of its number of rows."""
    code_bytes: float = 0.0
    """Per base row and key class."""
    index_bytes: float = 0.0
    """Per row of a state and index over it."""
    joined_relation_bytes: float = 0.0
    """Per joined row and relation in it."""
    lingers: bool = False
    """Joined rows leave a state in order of arrival, not when they expire."""

    def __post_init__(self) -> None:
        for name, value in self.by_name().items():
            if not 0 <= value < math.inf:
                raise StatisticsError(f"entry 'stats.costs.{name}' is {value:g}", hint="write a cost of 0 or more")

    def by_name(self) -> dict[str, float]:
        """Returns the costs as plain numbers, as statistics hold them; a flag is 0 or 1."""
        return {name: float(value) for name, value in asdict(self).items()}

    @classmethod
    def from_names(cls, costs: Mapping[str, float]) -> UnitCosts:
        """Returns the costs with these names; rejects unknown or missing names."""
        names = tuple(item.name for item in fields(cls))
        for name in costs:
            if name not in names:
                raise StatisticsError(f"unknown entry 'stats.costs.{name}'", hint=suggestion(name, names))
        if missing := [name for name in names[:5] if name not in costs]:
            raise StatisticsError(
                f"entry 'stats.costs' has no '{missing[0]}'",
                hint=f"give all of {', '.join(names[:5])} in seconds, or omit 'stats.costs'",
            )
        numbers = {name: value for name, value in costs.items() if name != "lingers"}
        return cls(**numbers, lingers=bool(costs.get("lingers")))


class Sizes(TypedDict):
    """The memory part of the unit costs."""

    code_bytes: float
    index_bytes: float
    joined_relation_bytes: float
    lingers: bool


ENGINE_SIZES = Sizes(code_bytes=8.0, index_bytes=28.0, joined_relation_bytes=8.0, lingers=True)
ENGINE = UnitCosts(
    insert=5e-8,
    delete=0.0,
    probe=3e-8,
    compare=8e-9,
    match=2e-8,
    match_relation=8e-9,
    link=5e-8,
    insert_joined=1e-7,
    check=4e-8,
    emit=2e-8,
    group=2e-7,
    call=6e-5,
    **ENGINE_SIZES,
)


def unit_costs(view: StatisticsView) -> tuple[UnitCosts, Provenance]:
    """Returns the unit costs that a view knows, else those of typical hardware, and their provenance."""
    known = view.unit_costs()
    return (ENGINE, "assumed") if known is None else (UnitCosts.from_names(known.costs), known.provenance)
