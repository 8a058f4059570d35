"""The engine of a bundle: an engine for each query, over base states that are there once.

Rows of a relation are appended once, pass through the plan of every query that names it, and are then linked once. What
a query asks of a relation beyond what all ask (a shorter window, a filter of its own) it applies to its new rows before
they probe, and to what the plan has finished. In between its plan may see rows that it alone would not have kept.

Law: what comes out for each query is what its engine alone would give. A row stays as long as the query that needs it
longest. An index stays until the base states are made anew: no query knows what others look into.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from time import perf_counter
from typing import Any

import numpy as np
import pyarrow as pa

from anabranch.engine.batch import Combinations, RelationBatch
from anabranch.engine.engine import Engine, expiry, key_codes_of
from anabranch.engine.evaluate.expression import evaluate_mask
from anabranch.engine.meter import Meter
from anabranch.engine.operators.join import keep, read_column
from anabranch.engine.ownership import Ownership
from anabranch.engine.slices import floors_after, in_time_order, slices
from anabranch.engine.state.arena import Arena, PartOfArena, ProcessArena
from anabranch.engine.state.base import BaseState
from anabranch.plan.bundle import Bundle, BundlePlan, Member, Terms
from anabranch.plan.mesh import Plan
from anabranch.stats.step import StepStatistics, labelled, merge


class SharedEngine:
    """The plans of several queries over the base states that they share."""

    def __init__(
        self,
        bundle: Bundle,
        plan: BundlePlan,
        *,
        arena: Arena | None = None,
        codes: Mapping[str, tuple[str, ...]] | None = None,
        owns: Mapping[str, Ownership | None] | None = None,
    ) -> None:
        self.query = bundle
        self.meter = Meter()
        arena = arena or ProcessArena()
        self.bases: dict[str, BaseState] = {
            name: _SharedState(arena, bundle.graph, name, (codes or key_codes_of(bundle))[name])
            for name in bundle.graph.names
        }
        self.members = tuple(
            _Share(member, self._engine(member, plan.plans[member.name], arena, (owns or {}).get(member.name)))
            for member in bundle.members
        )
        self.engines: dict[str, Engine] = {share.name: share.engine for share in self.members}

    def _engine(self, member: Member, plan: Plan, arena: Arena, owns: Ownership | None) -> Engine:
        bases = {name: self.bases[name] for name in member.query.graph.names}
        return Engine(member.query, plan, arena=PartOfArena(arena, member.name), owns=owns, bases=bases)

    @property
    def plan(self) -> BundlePlan:
        """The plans at work; where one is changing, the one that is to be."""
        return BundlePlan({name: engine.plan for name, engine in self.engines.items()})

    @property
    def is_migrating(self) -> bool:
        return any(engine.is_migrating for engine in self.engines.values())

    # --- life ---------------------------------------------------------------------------------------------------------

    def layout(self) -> dict[str, Any]:
        """What is needed, beside the arena's contents, to find the states again."""
        return {
            "bases": {name: state.layout() for name, state in self.bases.items()},
            "queries": {name: engine.layout_above() for name, engine in self.engines.items()},
        }

    def reopen(self, layout: Mapping[str, Any]) -> None:
        """Goes on where the layout was taken."""
        for name, state in self.bases.items():
            state.reopen(layout["bases"][name])
        for name, engine in self.engines.items():
            engine.reopen_above(layout["queries"][name])

    def export(self) -> dict[str, RelationBatch]:
        """The live base rows: all that a checkpoint needs, and all that a rebuild carries."""
        return {name: state.export() for name, state in self.bases.items()}

    def restore(self, rows: Mapping[str, RelationBatch], answered_before: int | None) -> None:
        """Takes base rows as already processed: states are rebuilt, no result is produced."""
        for _ in self._advance({name: in_time_order(batch) for name, batch in rows.items()}, wanted=False):
            pass
        for meter in self._meters(self.bases):
            meter.reset()

    # --- work ---------------------------------------------------------------------------------------------------------

    def step(
        self, batches: Mapping[str, RelationBatch], floors: Mapping[str, int], watermark: int | None = None
    ) -> Iterator[pa.RecordBatch]:
        """The results that the new rows complete, each batch in the column of its query; to be read to the end."""
        self._drop(floors)
        ordered = {name: in_time_order(batch) for name, batch in batches.items()}
        for name, batch in ordered.items():
            for meter in self._meters([name]):
                meter.rows_in[name] += len(batch)
        for part in slices(ordered, max(state.range for state in self.bases.values())):
            for share, found in self._advance(part.rows, wanted=True):
                if len(found):
                    yield self._in_column(share, share.engine.project(found))
            if not part.is_last:
                self._drop(floors_after(part, ordered, floors, self.query))

    def statistics(self) -> tuple[StepStatistics, dict[str, StepStatistics]]:
        """What happened since this was last asked, in all, and as each query sees it, base states among it."""
        own = self.meter.finish({name: (state.ring.live, state.bytes) for name, state in self.bases.items()})
        each = {name: engine.statistics() for name, engine in self.engines.items()}
        above = [labelled(_without(step, self.bases), f"{name} ") for name, step in each.items()]
        return merge([own, *above]), each

    def result_schema(self) -> pa.Schema:
        """The schema of what `step` returns."""
        return self.query.schema.to_arrow()

    # --- inside -------------------------------------------------------------------------------------------------------

    def _advance(self, batches: Mapping[str, RelationBatch], *, wanted: bool) -> Iterator[tuple[_Share, Combinations]]:
        """Takes new rows into the states, relation by relation; yields what queries finish, if that is wanted."""
        for name, state in self.bases.items():
            batch = batches.get(name)
            if batch is None or not len(batch):
                continue
            started = perf_counter()
            news = state.append(batch)
            self.meter.spent("append", perf_counter() - started)
            for share in self.members:
                if name in share.engine.bases:
                    yield from ((share, found) for found in share.take(name, news, wanted=wanted))
            started = perf_counter()
            state.link(news)
            self.meter.spent("insert", perf_counter() - started)
            for meter in self._meters([name]):
                meter.inserted(name, len(batch))

    def _drop(self, floors: Mapping[str, int]) -> None:
        started = perf_counter()
        lows = expiry(self.query, floors)
        for name, state in self.bases.items():
            dropped = state.drop(lows[name])
            for meter in self._meters([name]):
                meter.dropped(name, dropped)
        for engine in self.engines.values():
            engine.drop_above({name: floors[name] for name in engine.bases})
        self.meter.spent("drop", perf_counter() - started)

    def _meters(self, relations: Iterable[str]) -> list[Meter]:
        """The meters that count rows of the relations: the own one, and those of the queries that name them."""
        named = frozenset(relations)
        return [self.meter, *(e.meter for e in self.engines.values() if not named.isdisjoint(e.bases))]

    def _in_column(self, share: _Share, results: pa.RecordBatch) -> pa.RecordBatch:
        schema = self.result_schema()
        value = pa.StructArray.from_arrays(results.columns, fields=list(schema.field(share.name).type))
        columns = [value if f.name == share.name else pa.nulls(len(value), f.type) for f in schema]
        return pa.RecordBatch.from_arrays(columns, schema=schema)


class _Share:
    """One query's share of the work: its engine, and what it asks of shared relations beyond what all ask."""

    def __init__(self, member: Member, engine: Engine) -> None:
        self.name = member.name
        self.engine = engine
        self._terms = {terms.relation: terms for terms in member.terms}

    def take(self, relation: str, news: Combinations, *, wanted: bool) -> Iterator[Combinations]:
        """New rows of a relation, as far as the query asks for them, pass through its plan."""
        terms = self._terms.get(relation)
        if terms is not None:
            news = replace(news, deadline=news.newest + terms.range)
            news = self._passing(terms, news)
        if not len(news):
            return
        for found in self.engine.take(relation, news, wanted=wanted):
            for other in self._terms.values():
                if other.relation != relation:
                    found = self._passing(other, self._within(other, found))
            yield found

    def _within(self, terms: Terms, found: Combinations) -> Combinations:
        """The combinations that are valid by the query's own window of a relation whose rows stay for longer."""
        if not terms.is_shorter or not len(found):
            return found
        times, _ = self.engine.bases[terms.relation].ring.times(found.rows[terms.relation])
        deadline = np.minimum(found.deadline, times + terms.range)
        return keep(replace(found, deadline=deadline), found.newest <= deadline)

    def _passing(self, terms: Terms, found: Combinations) -> Combinations:
        if terms.filter is None or not len(found):
            return found
        bases = self.engine.bases
        return keep(found, evaluate_mask(terms.filter, lambda column: read_column(bases, column, found), len(found)))


class _SharedState(BaseState):
    """A base state that several queries look into."""

    def retain(self, indexes: tuple[tuple[str, ...], ...]) -> None:
        """Keeps every index: another query may look into it."""


def _without(step: StepStatistics, bases: Mapping[str, BaseState]) -> StepStatistics:
    """The same but for what base states tell, which is told once for all queries."""
    states = tuple(state for state in step.states if state.state not in bases)
    return replace(step, rows_in={}, states=states, routes=())
