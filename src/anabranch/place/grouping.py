"""Early aggregation: sends groups instead of joined rows to a sink if that is fewer bytes.

A grouped query may be aggregated at the site of its last join, or at its sink. With early aggregation the sink receives
one row for each group and boundary, so the SLIDE determines the cost. The groups of a boundary are the distinct values
of its keys, but no more than the combinations inside the windows at that instant.
"""

from __future__ import annotations

import math

from anabranch.lang.expr import Column
from anabranch.lang.window import UNITS
from anabranch.place.statistics import EVENT_TIME_BYTES, Statistics
from anabranch.place.view import Need, needs
from anabranch.plan.query import Query

VALUE_BYTES = 8.0
"""The width in bytes of an aggregate, and of a key without statistics."""


def delivered_bytes(query: Query, statistics: Statistics) -> float:
    """Returns the bytes per second sent to the sink: those of the view or of its groups, whichever are fewer."""
    view = needs(query)[-1].view
    whole = view.rate(statistics) * view.width(statistics)
    return min(whole, groups_bytes(query, statistics))


def is_grouped_early(query: Query, statistics: Statistics) -> bool:
    """Returns True if the groups are fewer bytes than their input rows."""
    view = needs(query)[-1].view
    return groups_bytes(query, statistics) < view.rate(statistics) * view.width(statistics)


def groups_bytes(query: Query, statistics: Statistics) -> float:
    """Returns the bytes per second of a query's groups; infinite for a query without grouping."""
    if query.grouping is None:
        return math.inf
    need = needs(query)[-1]
    combinations = _inside(need, statistics)
    values = math.prod(_distinct(query, need, key, statistics) for key in query.grouping.keys)
    groups = min(values, combinations)
    if math.isfinite(combinations) and math.isfinite(values) and values:
        # Combinations fall into groups at random: some groups get none.
        groups = values * -math.expm1(-combinations / values)
    if query.grouping.ranked is not None and query.grouping.ranked.ranking is not None:
        groups = min(groups * query.grouping.ranked.ranking.rows, combinations)
    width = statistics.record_bytes
    if width is None:
        keys = sum(_width(query, key, statistics) for key in query.grouping.keys)
        width = EVENT_TIME_BYTES + keys + VALUE_BYTES * len(query.grouping.aggregates)
    return groups / (query.grouping.pace / UNITS["second"]) * width


def _inside(need: Need, statistics: Statistics) -> float:
    """Returns the combinations inside their windows at an instant."""
    view = need.view
    rows = [
        statistics.stream(slot.stream).rate
        * slot.selection.selectivity(slot.stream, statistics)
        * (math.inf if slot.range is None else slot.range / UNITS["second"])
        for slot in view.slots
    ]
    return math.prod(rows) * view.passing(view.predicates, statistics)


def _distinct(query: Query, need: Need, key: object, statistics: Statistics) -> float:
    if not isinstance(key, Column):
        return math.inf
    if key.relation not in query.graph.names:
        return math.inf  # a table
    position = query.graph.names.index(key.relation)
    slot = need.view.slots[need.relations.index(position)]
    fixed = slot.selection.fixed_values(key.name)
    return float(fixed) if fixed is not None else statistics.distinct(slot.stream, key.name)


def _width(query: Query, key: object, statistics: Statistics) -> float:
    if not isinstance(key, Column):
        return VALUE_BYTES
    stream = next((r.stream.lower() for r in query.graph.relations if r.name == key.relation), None)
    return VALUE_BYTES if stream is None else statistics.stream(stream).column_bytes.get(key.name, VALUE_BYTES)
