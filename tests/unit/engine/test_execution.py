"""The two lemmas of Zhu 2006, Section 15.2, on a small model of its un-synchronised joins, and why this engine purges
states by floors instead of by the rows that pass; what waits at the entrance goes on in time."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from anabranch.cql import compile_query
from anabranch.engine.batch import RelationBatch
from anabranch.engine.execution import WatermarkBuffer
from anabranch.engine.state.arena import MappedArena
from anabranch.engine.state.chunks import ChunkStore
from anabranch.engine.tracks.plan import PlanTrack
from anabranch.plan.query_set import alone
from anabranch.run.floors import relation_floors
from anabranch.run.local import LocalHost
from tests.support.hosts import engines_of
from tests.support.strategies import arrivals, batch_cuts, join_queries, plans

WINDOW = 4
Times = tuple[int, ...]


@st.composite
def streams(draw: st.DrawFn, count: int) -> list[list[Times]]:
    """Times of streams, each strictly rising, as the paper assumes."""
    rising = st.lists(st.integers(0, 14), unique=True, max_size=7).map(sorted)
    return [[(time,) for time in draw(rising)] for _ in range(count)]


class UnsynchronisedJoin:
    """Two queues, two states in order of insertion, and no rule by which queue is served next."""

    def __init__(self, left: Sequence[Times] = (), right: Sequence[Times] = ()) -> None:
        self.queues = deque(left), deque(right)
        self.states: tuple[list[Times], list[Times]] = [], []

    def serve(self, side: int, *, backwards: bool = False) -> list[Times]:
        new = self.queues[side].popleft()
        other = self.states[1 - side][::-1] if backwards else self.states[1 - side]
        pairs = [(new + old) if side == 0 else (old + new) for old in other]
        self.states[side].append(new)
        return [pair for pair in pairs if max(pair) - min(pair) <= WINDOW]


def served(data: st.DataObject, joins: Sequence[UnsynchronisedJoin]) -> list[list[Times]]:
    """The output queue of each join of a left-deep tree after some schedule has emptied all queues."""
    outputs: list[list[Times]] = [[] for _ in joins]
    while ready := [(join, side) for join in range(len(joins)) for side in (0, 1) if joins[join].queues[side]]:
        join, side = data.draw(st.sampled_from(ready), "served")
        found = joins[join].serve(side)
        outputs[join] += found
        if join + 1 < len(joins):
            joins[join + 1].queues[0].extend(found)
    return outputs


def is_in_timestamp_order(queue: Sequence[Times]) -> bool:
    """Whatever comes later is newer in at least one place."""
    return all(
        any(one < other for one, other in zip(earlier, later, strict=True))
        for position, later in enumerate(queue)
        for earlier in queue[:position]
    )


@given(data=st.data())
def test_timestamp_order_holds_behind_every_join_in_any_schedule(data: st.DataObject) -> None:
    a, b, c = data.draw(streams(3), "streams")
    outputs = served(data, [UnsynchronisedJoin(a, b), UnsynchronisedJoin((), c)])
    assert all(is_in_timestamp_order(queue) for queue in outputs)


@given(data=st.data())
def test_a_purged_row_matches_no_later_row(data: st.DataObject) -> None:
    a, b, c = data.draw(streams(3), "streams")
    queue = served(data, [UnsynchronisedJoin(a, b)])[0]
    for position, left in enumerate(queue):
        for right in c:
            if min(left) - max(right) > WINDOW:
                assert all(max(later + right) - min(later + right) > WINDOW for later in queue[position:])


def test_a_state_that_is_read_backwards_breaks_timestamp_order() -> None:
    """Chains of this engine run from new rows to old, so it purges by floors, which hold in any order."""
    join = UnsynchronisedJoin([(1,), (2,)], [(3,)])
    assert not join.serve(0)
    assert not join.serve(0)
    assert not is_in_timestamp_order(join.serve(1, backwards=True))


@given(data=st.data(), relations=st.integers(3, 4))
def test_no_row_lives_only_in_a_state_that_a_migration_may_discard(data: st.DataObject, relations: int) -> None:
    """The localised synchronisation of Section 15.3.2 puts such rows back; here there is never one."""
    rows = data.draw(arrivals(relations, most_rows=10), "rows")
    drawn = data.draw(join_queries(relations, relations), "query")
    query = compile_query(drawn.cql, rows.catalog)
    host = LocalHost(query, data.draw(plans(drawn.relations), "plan"))
    times: dict[str, dict[int, int]] = {}
    for batch in data.draw(batch_cuts(rows), "batches"):
        host.step(batch)
        floors = relation_floors(alone(query), host.clocks)
        for name, base in host.engines[0].bases.items():
            everything = base.everything()
            times.setdefault(name, {}).update(
                zip(everything.rows[name].tolist(), everything.newest.tolist(), strict=True)
            )
        host.engines[0]._drop(floors)
        track = engines_of(host)[0].only.track
        assert isinstance(track, PlanTrack)
        for state in track.intermediates.values():
            found = state.everything()
            for i in range(len(found)):
                numbers = {name: int(found.rows[name][i]) for name in found.rows}
                useful = any(
                    found.deadline[i] >= floor
                    and all(
                        times[name][n] + query.pairwise.between(name, other) >= floor for name, n in numbers.items()
                    )
                    for other, floor in floors.items()
                    if other not in numbers
                )
                assert not useful or all(n >= track.bases[name].ring.first for name, n in numbers.items())


def test_rows_wait_for_the_watermark_and_are_found_again(tmp_path: Path) -> None:
    def rows(*times: int) -> RelationBatch:
        numbers = np.array(times, dtype=np.int64)
        return RelationBatch(numbers, {"k": numbers * 10}, pa.record_batch({"v": [str(time) for time in times]}))

    first = WatermarkBuffer(MappedArena(tmp_path))
    assert first.pass_through({"a": rows(3, 1, 5)}, 3)["a"].times.tolist() == [1]
    layout = first.layout()
    again = WatermarkBuffer(MappedArena(tmp_path))
    again.reopen(layout)
    assert len(again) == 2
    released = again.pass_through({"a": rows(4)}, 5)["a"]
    assert released.times.tolist() == [3, 4]
    assert released.codes["k"].tolist() == [30, 40]
    assert released.payload.column("v").to_pylist() == ["3", "4"]
    assert again.rows["a"].times.tolist() == [5]
    assert again.pass_through({}, 4)["a"].times.tolist() == []


def test_rows_that_wait_do_not_take_the_file_of_another_relations_chunk(tmp_path: Path) -> None:
    """Of a relation called `waiting` there are chunks, and rows of one called `chunk` may wait: both were one file."""
    arena = MappedArena(tmp_path)
    text = pa.record_batch({"v": ["kept"]})
    chunks = ChunkStore(arena, "waiting", text.schema)
    chunks.append(0, text)
    entrance = WatermarkBuffer(arena)
    entrance.pass_through({"chunk": RelationBatch(np.zeros(1, dtype=np.int64), {}, text)}, -1)
    entrance.layout()
    again = ChunkStore(arena, "waiting", text.schema)
    again.reopen(chunks.layout())
    assert again.chunks[0].batch == text
