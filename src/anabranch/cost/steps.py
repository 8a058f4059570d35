"""The cost of one step of a slot: its reported operations at unit costs."""

from __future__ import annotations

from anabranch.cost.units import UnitCosts
from anabranch.stats.step import StepStatistics


def price_of_step(step: StepStatistics, units: UnitCosts) -> float:
    """Returns the core seconds of rows into states and indexes, lookups, matches, results, and a call for each of them.

    Limit: every checked predicate counts as an ordinary one, because the counts do not include its cost.
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
