"""Invariants of partitioning, for any slot map: each combination belongs to one slot, and its rows are needed there."""

from __future__ import annotations

import itertools
import math
import tempfile
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anabranch.engine.batch import RelationBatch
from anabranch.engine.evaluate.rows import row_hashes
from anabranch.engine.ownership import coordinates, needed_in, own_cells, rows_for_slot
from anabranch.errors import PlanError
from anabranch.lang.expr import Column
from anabranch.lang.schema import Schema
from anabranch.lang.window import CountWindow, Window
from anabranch.plan.heavy import HeavyKey
from anabranch.plan.join_graph import JoinGraph, KeyClass, Relation
from anabranch.plan.partitioning import Dimension, Partitioning, block_table, choose_partitioning, row_code
from anabranch.plan.physical import mjoin
from anabranch.run.local import LocalHost
from tests.support.contracts import Workload, workloads
from tests.support.oracle import describe_difference, rows_as_multiset
from tests.support.strategies import splits

LONG = pa.int64()


@st.composite
def graphs(draw: st.DrawFn) -> JoinGraph:
    """Up to four relations in up to three key classes; some in none."""
    names = "abcd"[: draw(st.integers(1, 4))]
    relations = tuple(Relation(name, name, Schema(()), "ts", Window(1)) for name in names)
    classes = draw(st.lists(st.sets(st.sampled_from(names), min_size=2), max_size=3)) if len(names) > 1 else []
    keys = tuple(
        KeyClass(f"k{i}", tuple((name, Column(name, f"k{i}", LONG)) for name in sorted(members)), LONG)
        for i, members in enumerate(classes)
    )
    return JoinGraph(relations, keys)


@st.composite
def partitionings(draw: st.DrawFn) -> tuple[JoinGraph, Partitioning]:
    """The chosen grid of a graph, with its own table or any other."""
    graph = draw(graphs())
    chosen = choose_partitioning(graph, draw(st.integers(1, 6)), groups=draw(st.sampled_from([1, 8, 20])))
    if draw(st.booleans()):
        slot = st.integers(0, chosen.slots - 1)
        table = draw(st.lists(slot, min_size=chosen.groups, max_size=chosen.groups))
        chosen = replace(chosen, table=tuple(table))
    keys = [dimension.code for dimension in chosen.dimensions if dimension.code.startswith("k")]
    if chosen.slots > 1 and keys:
        heavy = st.tuples(st.sampled_from(keys), st.sampled_from(VALUES))
        for code, value in draw(st.lists(heavy, max_size=3, unique=True)):
            several = st.lists(st.integers(0, chosen.slots - 1), min_size=2, max_size=chosen.slots, unique=True)
            traffic = draw(st.sampled_from([None, {name: 1.0 + position for position, name in enumerate(graph.names)}]))
            chosen = chosen.split(code, value, draw(several), traffic)
    return graph, chosen


VALUES = (0, 1, -7)
CODES = st.one_of(st.sampled_from(VALUES), st.integers(-(2**63), 2**63 - 1))


def rows_of(partitioning: Partitioning, name: str, codes: dict[str, np.ndarray], times: np.ndarray) -> RelationBatch:
    own = {dimension.code: codes[dimension.code] for dimension in partitioning.members(name)}
    return RelationBatch(times, own, pa.RecordBatch.from_pydict({}))


def owner_of(partitioning: Partitioning, codes: dict[str, int], rows: dict[str, RelationBatch]) -> int:
    """The slot of a combination, computed the slow way."""

    def coordinate(code: int, share: int) -> int:
        return int(coordinates(np.array([code]), share)[0])

    group = 0
    for number, key in enumerate(partitioning.heavy):
        if codes[key.code] == key.value:
            for dimension in partitioning.dimensions:
                if dimension.code != key.code:
                    group = group * dimension.share + coordinate(codes[dimension.code], dimension.share)
            for name, share in key.shares:
                group = group * share + coordinate(int(row_hashes(rows[name])[0]), share)
            return partitioning.table[partitioning.region(number) + group]
    for dimension in partitioning.dimensions:
        group = group * dimension.share + coordinate(codes[dimension.code], dimension.share)
    return partitioning.table[group]


@settings(max_examples=300)
@given(
    drawn=partitionings(), seeds=st.lists(CODES, min_size=7, max_size=7), times=st.lists(st.integers(0, 99), min_size=4)
)
def test_all_rows_of_a_combination_are_needed_in_the_slot_that_owns_it(
    drawn: tuple[JoinGraph, Partitioning], seeds: list[int], times: list[int]
) -> None:
    graph, partitioning = drawn
    codes = {dimension.code: seed for dimension, seed in zip(partitioning.dimensions, seeds, strict=False)}
    one = {code: np.array([seed]) for code, seed in codes.items()}
    rows = {name: rows_of(partitioning, name, one, np.array([t])) for name, t in zip(graph.names, times, strict=False)}
    owner = owner_of(partitioning, codes, rows)
    found_in = np.ones(partitioning.slots, dtype=np.bool_)
    for name in graph.names:
        needed = needed_in(partitioning, name, rows[name])
        assert needed.shape == (1, partitioning.slots)
        assert needed[0, owner]
        found_in &= needed[0]
    # Without a test of ownership, no second slot may be able to find it.
    if partitioning.is_partition or partitioning.finds_once(graph.names):
        assert found_in.sum() == 1


@given(drawn=partitionings(), rows=st.lists(CODES, max_size=20))
def test_every_slot_gets_the_rows_that_it_needs_in_order(
    drawn: tuple[JoinGraph, Partitioning], rows: list[int]
) -> None:
    graph, partitioning = drawn
    codes = dict.fromkeys((d.code for d in partitioning.dimensions), np.array(rows, dtype=np.int64))
    for name in graph.names:
        batch = rows_of(partitioning, name, codes, np.arange(len(rows)))
        needed = needed_in(partitioning, name, batch)
        cells = own_cells(partitioning, name, batch)
        for slot in range(partitioning.slots):
            mine = rows_for_slot(partitioning, name, cells, slot)
            assert mine.tolist() == np.flatnonzero(needed[:, slot]).tolist()


@given(drawn=partitionings())
def test_a_row_is_needed_exactly_where_a_group_of_its_coordinates_lives(drawn: tuple[JoinGraph, Partitioning]) -> None:
    graph, partitioning = drawn
    partitioning = replace(partitioning.settled, table=partitioning.table[: partitioning.region(0)], heavy=())
    everywhere = [range(dimension.share) for dimension in partitioning.dimensions]
    for name in graph.names:
        own = [i for i, dimension in enumerate(partitioning.dimensions) if name in dimension.relations]
        expected: dict[tuple[int, ...], set[int]] = {}
        for place, slot in zip(itertools.product(*everywhere), partitioning.table, strict=True):
            expected.setdefault(tuple(place[i] for i in own), set()).add(slot)
        several = partitioning.slots_of(name)
        assert len(several) == math.prod(partitioning.dimensions[i].share for i in own)
        assert [set(slots) for slots in several] == [expected[key] for key in sorted(expected)]


@given(graph=graphs(), slots=st.integers(1, 12))
def test_the_chosen_grid_uses_every_slot_evenly(graph: JoinGraph, slots: int) -> None:
    partitioning = choose_partitioning(graph, slots)
    assert partitioning.groups >= max(slots, 1)
    counts = np.bincount(partitioning.table, minlength=slots)
    assert counts.min() > 0
    assert counts.max() == counts.min()
    assert {d.code for d in partitioning.dimensions} == {
        *(key.name for key in graph.keys),
        *(row_code(name) for name in graph.names if not graph.keys_of([name])),
    }


@given(graph=graphs(), slots=st.integers(1, 12), data=st.data())
def test_no_other_grid_sends_less_for_the_given_traffic(graph: JoinGraph, slots: int, data: st.DataObject) -> None:
    traffic = {name: data.draw(st.floats(0.1, 100), name) for name in graph.names}
    chosen = choose_partitioning(graph, slots, groups=slots, traffic=traffic)
    shares = [range(1, slots + 1)] * len(chosen.dimensions)
    for factors in itertools.product(*shares):
        if math.prod(factors) == slots:
            dimensions = tuple(replace(d, share=f) for d, f in zip(chosen.dimensions, factors, strict=True))
            other = Partitioning(dimensions, slots, block_table(factors, factors))
            assert chosen.sent(traffic) <= other.sent(traffic) * (1 + 1e-9)


def test_a_chain_with_one_fast_stream_hardly_copies_rows() -> None:
    """The relation p used to decide the cut, and nearly every row of the fast stream b went to both slots."""
    keys = (
        KeyClass("k0", (("p", Column("p", "x", LONG)), ("a", Column("a", "x", LONG))), LONG),
        KeyClass("k1", (("a", Column("a", "y", LONG)), ("b", Column("b", "y", LONG))), LONG),
    )
    graph = JoinGraph(tuple(Relation(name, name, Schema(()), "ts", Window(1)) for name in "pab"), keys)
    rates = {"p": 1.0, "a": 3.0, "b": 46.0}
    assert choose_partitioning(graph, 2).sent(rates) == pytest.approx(1.92)
    chosen = choose_partitioning(graph, 2, traffic=rates)
    assert chosen.sent(rates) == pytest.approx(1.02)
    assert chosen.shares == {"k0": 1, "k1": 64}
    assert Partitioning.from_json(chosen.to_json()) == chosen


def test_one_key_class_sends_each_row_once() -> None:
    key = KeyClass("k", tuple((name, Column(name, "k", LONG)) for name in "abc"), LONG)
    relations = tuple(Relation(name, name, Schema(()), "ts", Window(1)) for name in "abc")
    partitioning = choose_partitioning(JoinGraph(relations, (key,)), 4)
    assert partitioning.is_partition
    assert all(len(slots) == 1 for name in "abc" for slots in partitioning.slots_of(name))


def test_a_join_without_equality_is_a_grid() -> None:
    relations = tuple(Relation(name, name, Schema(()), "ts", Window(1)) for name in "ab")
    partitioning = choose_partitioning(JoinGraph(relations), 4)
    assert not partitioning.is_partition
    assert {len(slots) for name in "ab" for slots in partitioning.slots_of(name)} == {2}


def test_coordinates_are_never_negative() -> None:
    codes = np.array([-(2**63), -1, 0, 1, 2**63 - 1])
    for share in (1, 3, 64):
        places = coordinates(codes, share)
        assert ((places >= 0) & (places < share)).all()


@pytest.mark.parametrize(("slots", "table"), [(0, ()), (2, (0,)), (2, (0, 2)), (2, (0, -1))])
def test_a_table_that_does_not_fit_is_refused(slots: int, table: tuple[int, ...]) -> None:
    with pytest.raises(PlanError):
        Partitioning((Dimension("k", frozenset("a"), 2),), slots, table)


def test_a_graph_without_relations_is_refused() -> None:
    with pytest.raises(PlanError, match="without relations"):
        choose_partitioning(JoinGraph(()), 1)


WORKLOADS = {workload.name: workload for workload in workloads()}


@st.composite
def grids(draw: st.DrawFn, workload: Workload, slots: int) -> Partitioning:
    """Any grid over the query's dimensions, with any table: groups anywhere, slots left empty."""
    dimensions = tuple(
        replace(dimension, share=draw(st.integers(1, 4)))
        for dimension in choose_partitioning(workload.query.graph, 1).dimensions
    )
    groups = math.prod(dimension.share for dimension in dimensions)
    table = tuple(draw(st.lists(st.integers(0, slots - 1), min_size=groups, max_size=groups)))
    return draw(splits(Partitioning(dimensions, slots, table)))


@pytest.mark.parametrize("name", WORKLOADS)
@settings(max_examples=25)
@given(data=st.data())
def test_any_table_gives_the_same_answer_and_may_change_with_every_batch(name: str, data: st.DataObject) -> None:
    workload = WORKLOADS[name]
    results, late = [], 0
    grids_of = st.deferred(lambda: grids(workload, slots))
    slots = data.draw(st.integers(1, 4), "slots")
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = data.draw(st.sampled_from([None, folder]), "checkpoint")
        host: LocalHost | None = None
        for batch in workload.batches(6):
            restarts = checkpoint is not None and data.draw(st.booleans(), "restarts")
            if host is None or restarts:
                host = LocalHost(workload.query, mjoin(workload.query.graph.names), slots=slots, checkpoint=checkpoint)
            if data.draw(st.booleans(), "moves"):
                host.spread(data.draw(grids_of))
            results.append(host.step(batch))
            late += sum(host.late.values())
    assert not late
    assert not describe_difference(workload.answer, rows_as_multiset(pa.concat_tables(results)))


def test_a_grid_of_blocks_needs_no_test_of_ownership() -> None:
    """Rows of both relations go to two slots each, but only one slot has both rows of a pair."""
    relations = tuple(Relation(name, name, Schema(()), "ts", Window(1)) for name in "ab")
    partitioning = choose_partitioning(JoinGraph(relations), 4)
    assert partitioning.finds_once("ab")
    assert not partitioning.finds_once("a")
    assert not partitioning.moved([0], 3).finds_once("ab")


KEYED = choose_partitioning(
    JoinGraph(
        tuple(Relation(name, name, Schema(()), "ts", Window(1)) for name in "ab"),
        (KeyClass("k", tuple((name, Column(name, "k", LONG)) for name in "ab"), LONG),),
    ),
    4,
)


def test_the_rows_of_a_heavy_key_are_spread_over_its_slots() -> None:
    split = KEYED.split("k", 7, [0, 1, 2, 3], {"a": 1.0, "b": 1.0})
    assert [dict(key.shares) for key in split.heavy] == [{"a": 4, "b": 4}]
    assert split.finds_once("ab")
    count = 400
    codes = {"k": np.full(count, 7)}
    for name in "ab":
        needed = needed_in(split, name, rows_of(split, name, codes, np.arange(count)))
        assert (needed.sum(axis=1) == 2).all()
        assert needed.sum(axis=0).min() > count / 4
    other = needed_in(split, "a", rows_of(split, "a", {"k": np.arange(100, 200)}, np.arange(100)))
    assert (other.sum(axis=1) == 1).all()
    assert split.united("k", 7) == KEYED
    assert Partitioning.from_json(split.to_json()) == split


def test_a_relation_with_few_rows_of_a_heavy_key_is_copied_instead() -> None:
    split = KEYED.split("k", 7, [0, 1, 2], {"a": 100.0, "b": 1.0})
    assert [dict(key.shares) for key in split.heavy] == [{"a": 6, "b": 1}]


@pytest.mark.parametrize(
    ("code", "value", "over", "message"),
    [
        ("k", 7, [0], "over two different slots or more"),
        ("k", 7, [0, 0], "over two different slots or more"),
        ("k", 7, [0, 9], "slot 9 does not exist"),
        ("j", 7, [0, 1], "no dimension 'j'"),
    ],
)
def test_a_split_that_cannot_be_is_refused(code: str, value: int, over: list[int], message: str) -> None:
    with pytest.raises(PlanError, match=message):
        KEYED.split(code, value, over)


def test_a_key_is_split_once_and_united_once() -> None:
    split = KEYED.split("k", 7, [0, 1])
    with pytest.raises(PlanError, match="is already split"):
        split.split("k", 7, [2, 3])
    with pytest.raises(PlanError, match="is not split"):
        KEYED.united("k", 7)
    grid = choose_partitioning(JoinGraph(tuple(Relation(n, n, Schema(()), "ts", Window(1)) for n in "ab")), 2)
    with pytest.raises(PlanError, match="spread by a hash of the row"):
        grid.split("row.a", 7, [0, 1])


@given(value=st.integers(-(2**63), 2**63 - 1), share=st.integers(1, 99))
def test_a_heavy_key_has_the_coordinate_that_rows_have(value: int, share: int) -> None:
    key = HeavyKey("k", value, (("a", 1),))
    assert key.coordinate(share) == coordinates(np.array([value]), share)[0]


@pytest.mark.parametrize(
    ("partition", "spread"),
    [((), {"b"}), (("k",), {"a", "b"}), (("v", "k"), {"a", "b"}), (("v",), {"b"})],
)
def test_only_parts_of_a_count_window_are_spread(partition: tuple[str, ...], spread: set[str]) -> None:
    """A slot counts the rows of a part itself; rows of other windows are spread by the key in any case."""
    counted = Relation("a", "a", Schema(()), "ts", CountWindow(None, None, 3, partition))
    other = Relation("b", "b", Schema(()), "ts", Window(1))
    key = KeyClass("k0", (("a", Column("a", "k", LONG)), ("b", Column("b", "k", LONG))), LONG)
    found = choose_partitioning(JoinGraph((counted, other), (key,)), 3)
    assert [set(dimension.relations) for dimension in found.dimensions] == [spread]
    assert {len(slots) for slots in found.slots_of("a")} == ({1} if "a" in spread else {3})
    alone = choose_partitioning(JoinGraph((counted,)), 3)
    assert alone.working == (0,)
