"""Late rows, rows from the future and idle streams: the answer is the batch answer of the rows that count.

Which rows count, and how far the watermark is, is computed here once more from ADR 2 alone. All other rows
are diverted, each once.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from functools import partial
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from hypothesis import event, given
from hypothesis import strategies as st

from anabranch.cql import compile_query
from anabranch.lang.expr import Column, conjuncts
from anabranch.lang.schema import Schema
from anabranch.plan.execution import EXECUTION_MODELS, ExecutionModel
from anabranch.plan.join_graph import Relation
from anabranch.plan.query import Query
from anabranch.run.local import LocalHost
from anabranch.run.round import EventTimeRules
from anabranch.run.side_output import SideOutputLayout
from tests.support.interpreter import column_values, interpret
from tests.support.oracle import Answer, batch_answer, describe_difference, rows_as_multiset
from tests.support.strategies import SECOND, Arrivals, arrivals, batch_cuts, grouped_queries, join_queries, plans

BEFORE_ALL = -(2**62)


class Reckoning:
    """Streams by ADR 2: their floors, the rows that were on time, and how many were not."""

    def __init__(self, rows: Arrivals, timeouts: Mapping[str, int | None], max_ahead: Mapping[str, int]) -> None:
        self.disorder = rows.disorder
        self.max_ahead = max_ahead
        self.outside = {name: table.slice(0, 0) for name, table in rows.tables.items()}
        self.timeouts = timeouts
        self.floors = dict.fromkeys(rows.tables, BEFORE_ALL)
        self.on_time = {name: table.slice(0, 0) for name, table in rows.tables.items()}
        self.late = 0
        self.heard = dict.fromkeys(rows.tables, 0)

    @property
    def watermark(self) -> int:
        return min(self.floors.values())

    def take(self, batch: Mapping[str, pa.Table], now: int) -> None:
        awake = []
        for name, floor in self.floors.items():
            ceiling = now + self.max_ahead[name] if name in self.max_ahead else -BEFORE_ALL
            times = column_values(batch[name]["ts"]) if name in batch else []
            counts = [floor <= time <= ceiling for time in times]
            given = batch.get(name, self.outside[name].slice(0, 0))
            self.outside[name] = given.filter(pa.array([not each for each in counts], pa.bool_()))
            if any(time <= ceiling for time in times):
                self.floors[name] = max(floor, max(time for time in times if time <= ceiling) - self.disorder[name])
                self.heard[name] = now
            if times:
                self.on_time[name] = pa.concat_tables([self.on_time[name], batch[name].filter(pa.array(counts))])
                self.late += len(times) - sum(counts)
            timeout = self.timeouts[name]
            if timeout is None or now - self.heard[name] < timeout:
                awake.append(name)
        least = min((self.floors[name] for name in awake), default=BEFORE_ALL)
        self.floors = {n: floor if n in awake else max(floor, least) for n, floor in self.floors.items()}

    def answer(self, query: Query, execution: ExecutionModel) -> Answer:
        rows = self.on_time
        if execution.rows_wait:
            passed = pa.scalar(self.watermark, pa.int64())
            times = {name: table["ts"].cast(pa.int64()) for name, table in rows.items()}
            rows = {name: table.filter(pc.less(times[name], passed)) for name, table in rows.items()}
        return batch_answer(query, rows, self.watermark)


@given(
    data=st.data(),
    relations=st.integers(1, 3),
    is_grouped=st.booleans(),
    execution=st.sampled_from(EXECUTION_MODELS),
)
def test_the_answer_is_that_of_the_rows_on_time(
    data: st.DataObject, relations: int, is_grouped: bool, execution: ExecutionModel
) -> None:
    streams = data.draw(st.integers(max(1, relations - 1), relations), "streams")
    rows = data.draw(arrivals(streams, most_rows=10), "rows")
    rows = _out_of_order(rows, Random(data.draw(st.integers(0, 2**32 - 1), "order")))
    drawn = data.draw((grouped_queries if is_grouped else join_queries)(streams, relations), "query")
    query = compile_query(drawn.cql, rows.catalog)
    timeouts = {name: data.draw(st.sampled_from([None, 1, 2, 5]), "timeout") for name in rows.tables}
    leads = {name: data.draw(st.sampled_from([None, None, 2 * SECOND, 9 * SECOND]), "lead") for name in rows.tables}
    max_ahead = {name: lead for name, lead in leads.items() if lead is not None}
    reckoning, now, answer = Reckoning(rows, timeouts, max_ahead), 0, Answer()
    layout = SideOutputLayout({name: Schema.from_arrow(table.schema) for name, table in rows.tables.items()})
    some_plan = plans(drawn.relations, merging=is_grouped)
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = folder if data.draw(st.booleans(), "checkpoint") else None

        def host() -> LocalHost:
            return LocalHost(
                query,
                data.draw(some_plan, "plan"),
                slots=data.draw(st.sampled_from([1, 1, 2, 3]), "slots"),
                checkpoint=checkpoint,
                event_time=EventTimeRules(timeouts, max_ahead),
                now=lambda: now,
                execution=execution,
                diverted=layout,
            )

        running = host()
        for batch in data.draw(batch_cuts(rows), "batches"):
            now += data.draw(st.integers(0, 3), "passed")
            has_begun = running.batch > 0
            if checkpoint is not None and not data.draw(st.integers(0, 3), "restart"):
                running, has_begun = host(), False
            if not has_begun:
                # The idle timeouts start with the first batch of a run.
                reckoning.heard = dict.fromkeys(reckoning.heard, now)
            answer += rows_as_multiset(running.step(batch))
            reckoning.take(batch, now)
            assert running.clocks.watermark == reckoning.watermark
            assert not describe_difference(reckoning.answer(query, execution), answer)
            for relation in query.graph.relations:
                _are_diverted(running, reckoning, relation)
    event(f"late rows: {'some' if reckoning.late else 'none'}, results: {'some' if answer else 'none'}")


def _are_diverted(running: LocalHost, reckoning: Reckoning, relation: Relation) -> None:
    """The rows of the last batch that the relation lost, whole, are those that should be."""
    assert running.diverted_rows is not None
    found = running.diverted_rows.filter(pc.equal(running.diverted_rows["relation"], relation.name))
    lost = found.column(relation.stream).combine_chunks()
    outside = reckoning.outside[relation.stream]
    columns = {name: column_values(outside[name]) for name in outside.column_names}
    rows = [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
    tests = () if relation.filter is None else conjuncts(relation.filter)
    passes = [all(interpret(each, partial(_value, row)) is True for each in tests) for row in rows]
    expected = outside.filter(pa.array(passes, pa.bool_()))
    assert rows_as_multiset(pa.Table.from_struct_array(lost)) == rows_as_multiset(expected)


def _value(row: Mapping[str, Any], column: Column) -> Any:
    return row[column.name]


def _out_of_order(rows: Arrivals, random: Random) -> Arrivals:
    """The same rows, some of them further behind than their stream allows."""
    tables, disorder = {}, {}
    for name, table in rows.tables.items():
        late = random.choice([0, 2, 8])
        places = [row + random.uniform(0, late) for row in range(table.num_rows)]
        tables[name] = table.take(pc.sort_indices(pa.array(places, pa.float64())))
        disorder[name] = random.choice([0, SECOND, 3 * SECOND])
    return Arrivals(tables, disorder)
