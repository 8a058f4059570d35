"""The price of what a slot did in one step: its operations, as it reported them, at unit costs."""

from __future__ import annotations

from anabranch.cost.units import UnitCosts
from anabranch.stats.step import StepStatistics


def price_of_step(step: StepStatistics, units: UnitCosts) -> float:
    """Seconds of one core: rows into states and indexes, lookups, matches, results, and a call for each of them.

    A predicate that joins check counts as a plain one: what a dear one takes more, its counts do not tell.
    """
    cost = sum(step.rows_in.values()) * (units.insert + units.delete + units.link)
    for state in step.states:
        if state.state not in step.rows_in:
            cost += state.inserted * (units.insert + units.insert_joined + units.delete + units.link)
    for probe in step.probes:
        cost += probe.probes * units.probe + probe.visited * units.compare
        cost += probe.matches * (units.match + 2 * units.match_relation)
    for check in step.checks:
        cost += check.rows * units.check
    return cost + step.rows_out * units.emit + units.call * (len(step.states) + len(step.probes))
