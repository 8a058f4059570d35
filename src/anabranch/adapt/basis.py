"""What the first plan of a query was chosen by, in the numbers that a running query measures.

If the first batches confirm the statistics by which the plan was chosen, the optimizer would choose it again: asking it
would cost more than all the comparing that follows, and tell nothing. So the statistics of the choice stand for those
of a first decision, and only a difference is a reason to look.

Law: only what somebody gave, sampled or measured confirms anything. One number that was assumed, another plan than the
chosen one, or batches of another length, and the first decision is made as if nothing had been known.
"""

from __future__ import annotations

from dataclasses import dataclass

from anabranch.adapt.knowledge import Knowledge
from anabranch.plan.join_graph import JoinGraph
from anabranch.plan.mesh import Plan
from anabranch.stats.view import Known, StatisticsView

AS_LONG = 1.5
"""The factor up to which batches are as long as was assumed: what each costs for itself shifts prices little."""


@dataclass(frozen=True)
class Basis:
    """A plan, and the statistics and the seconds between batches by which it was chosen."""

    plan: Plan
    statistics: StatisticsView
    batch: float

    def told(self, plan: Plan, known: Knowledge, graph: JoinGraph) -> Knowledge | None:
        """For all that was measured of a running plan, what it was chosen by; None where that does not stand for it."""
        if plan != self.plan or not 1 / AS_LONG <= known.batch / self.batch <= AS_LONG:
            return None
        rates = {name: self._passing(name, graph) for name in known.rates}
        rows = {name: self._passing(name, graph) for name in known.rows}
        selectivities = {name: self._selectivity(name, graph) for name in known.selectivities}
        groups = {name: _value(self.statistics.number_of_groups(name.split())) for name in known.groups}
        every = (rates, rows, selectivities, groups)
        if any(value is None for numbers in every for value in numbers.values()):
            return None
        sure = [{name: value for name, value in numbers.items() if value is not None} for numbers in every]
        return Knowledge(sure[0], sure[2], known.filters, known.batch, sure[3], sure[1])

    def _passing(self, name: str, graph: JoinGraph) -> float | None:
        """Rows of a relation, a second or all, that pass its filter."""
        relation, seen = graph.relation(name), self.statistics
        count = (seen.table_rows if relation.is_table else seen.rate)(name, relation.stream)
        share = Known(1.0, "given") if relation.filter is None else seen.filter_selectivity(name)
        return None if count is None or share is None else count.value * share.value

    def _selectivity(self, name: str, graph: JoinGraph) -> float | None:
        """Of two relations, or of a predicate by its text."""
        words = name.split(" ")
        if len(words) == 2 and {*words} <= {*graph.names}:
            return _value(self.statistics.pair_selectivity(words[0], words[1]))
        return _value(self.statistics.predicate_selectivity(name))


def _value(known: Known | None) -> float | None:
    return None if known is None else known.value
