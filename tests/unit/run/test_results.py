"""Results of a query alone travel as they are; those of named queries come apart again as they were."""

from __future__ import annotations

import pyarrow as pa
import pytest

from anabranch.cql import compile_query
from anabranch.engine.operators.group_by import parts_schema
from anabranch.plan.physical import mjoin
from anabranch.plan.query_set import ALONE, alone, partitioning_of, together
from anabranch.run.local import LocalHost
from anabranch.run.results import ResultLayout, group_codes, merging, parts_table, results_of
from tests.support.scripted import read_script

CATALOG = read_script("stream a (k bigint, v bigint)\nstream b (k bigint, v bigint)").catalog
PAIR = compile_query("SELECT a.v AS x, b.v AS y FROM a [RANGE 5 SECONDS], b [RANGE 5 SECONDS] WHERE a.k = b.k", CATALOG)
SINGLE = compile_query("SELECT a.k AS k FROM a [RANGE 5 SECONDS]", CATALOG)
COUNT = compile_query("SELECT a.k, COUNT(*) AS n FROM a [RANGE 5 SECONDS SLIDE 5 SECONDS] GROUP BY a.k", CATALOG)
PAIRS = pa.RecordBatch.from_pydict({"x": [1, None], "y": [2, 3]}, schema=PAIR.schema.to_arrow())
SINGLES = pa.RecordBatch.from_pydict({"k": [7, 8, None]}, schema=SINGLE.schema.to_arrow())


def test_results_of_a_query_alone_travel_as_they_are() -> None:
    layout = ResultLayout(alone(PAIR))
    assert layout.schema == PAIR.schema
    assert layout.wrap(ALONE, PAIRS) is PAIRS
    table = pa.Table.from_batches([PAIRS])
    assert layout.split(table) == {ALONE: table}


@pytest.mark.parametrize("queries", [{"p": PAIR, "s": SINGLE}, {"p": PAIR}])
def test_results_of_named_queries_come_apart_again(queries: dict[str, object]) -> None:
    """Also those of one query that has a name; NULLs inside a result are no absence of it."""
    layout = ResultLayout(together({name: {"p": PAIR, "s": SINGLE}[name] for name in queries}))
    sent = {name: {"p": PAIRS, "s": SINGLES}[name] for name in queries}
    batches = [layout.wrap(name, batch) for name, batch in sent.items()]
    assert [batch.schema for batch in batches] == [layout.schema.to_arrow()] * len(batches)
    apart = layout.split(pa.Table.from_batches(batches))
    assert {name: table.to_pylist() for name, table in apart.items()} == {
        name: batch.to_pylist() for name, batch in sent.items()
    }


def test_parts_of_one_group_have_one_hash_and_become_one_result() -> None:
    """Whatever slot found them; NULL is a key like any other."""
    (member,) = alone(COUNT).members
    grouping = member.query.grouping
    assert grouping is not None
    keys = pa.array([1, None, 1, None, 2], pa.int64())
    parts = pa.RecordBatch.from_arrays(
        [pa.array([3, 3, 3, 3, 4]), keys, pa.array([1, 1, 5, 1, 1])], schema=parts_schema(grouping)
    )
    codes = group_codes(grouping, parts)
    assert codes[0] == codes[2]
    assert codes[1] == codes[3]
    assert len(set(codes.tolist())) == 3
    results = results_of(member, parts_table(member, [parts.slice(0, 2), parts.slice(2)]))
    assert sorted(results.rows.to_pylist(), key=str) == [{"k": 1, "n": 6}, {"k": 2, "n": 1}, {"k": None, "n": 2}]
    assert results.times is not None
    assert sorted(results.times.tolist()) == [15_000_000, 15_000_000, 20_000_000]


@pytest.mark.parametrize(
    ("group", "is_merged"), [("a.k", False), ("b.k", False), ("a.v", True), ("a.k + 1", True), ("a.v, a.k", False)]
)
def test_groups_that_the_key_of_the_slots_decides_are_not_merged(group: str, is_merged: bool) -> None:
    text = f"SELECT COUNT(*) AS n FROM a [RANGE 5 SECONDS SLIDE 5 SECONDS], b [NOW] WHERE a.k = b.k GROUP BY {group}"
    queries = together({"g": compile_query(text, CATALOG), "p": PAIR})
    assert merging(queries, partitioning_of(queries, 2)) == ({"g"} if is_merged else set())
    assert not merging(queries, partitioning_of(queries, 1))


def test_groups_are_merged_while_several_slots_find_their_combinations() -> None:
    """That is while groups move on parallel tracks, and where the rows of a heavy key are spread."""
    text = "SELECT COUNT(*) AS n FROM a [RANGE 5 SECONDS SLIDE 5 SECONDS], b [NOW] WHERE a.k = b.k GROUP BY a.k"
    queries = alone(compile_query(text, CATALOG))
    table = partitioning_of(queries, 2)
    (axis,) = table.dimensions
    assert not merging(queries, table)
    assert merging(queries, table.beside(table.moved(table.groups_of(0)[:3], 1), mark=0)) == {ALONE}
    assert merging(queries, table.split(axis.code, 7, over=(0, 1))) == {ALONE}


def test_groups_of_floats_are_merged() -> None:
    """The two zeros are one group, and have two codes."""
    catalog = read_script("stream a (k double)\nstream b (k double)").catalog
    text = "SELECT COUNT(*) AS n FROM a [RANGE 5 SECONDS SLIDE 5 SECONDS], b [NOW] WHERE a.k = b.k GROUP BY a.k"
    queries = alone(compile_query(text, catalog))
    assert merging(queries, partitioning_of(queries, 2)) == {ALONE}


@pytest.mark.parametrize(("keys", "is_merged"), [("a.k", True), ("c.v", True), ("a.k, c.v", False)])
def test_each_axis_that_is_cut_must_be_among_the_keys_of_a_group(keys: str, is_merged: bool) -> None:
    catalog = read_script("stream a (k bigint)\nstream b (k bigint, v bigint)\nstream c (v bigint)").catalog
    window = "[RANGE 5 SECONDS SLIDE 5 SECONDS]"
    text = f"SELECT COUNT(*) AS n FROM a {window}, b {window}, c {window} WHERE a.k = b.k AND b.v = c.v GROUP BY {keys}"
    queries = alone(compile_query(text, catalog))
    table = partitioning_of(queries, 4)
    assert [dimension.share > 1 for dimension in table.dimensions] == [True, True]
    assert bool(merging(queries, table)) == is_merged


def test_the_group_without_a_key_behind_a_full_join_is_merged() -> None:
    """Its rows are those of the side, which every slot has."""
    joined = "FROM a [RANGE 5 SECONDS SLIDE 5 SECONDS] JOIN b [RANGE 5 SECONDS SLIDE 5 SECONDS] ON a.k = b.k"
    side = "JOIN b [RANGE 5 SECONDS SLIDE 5 SECONDS] AS c ON c.k = a.k GROUP BY a.k"
    queries = {
        kind: alone(compile_query(f"SELECT a.k AS k, COUNT(*) AS n {joined} {kind} {side}", CATALOG))
        for kind in ("FULL", "LEFT")
    }
    assert merging(queries["FULL"], partitioning_of(queries["FULL"], 2)) == {ALONE}
    assert not merging(queries["LEFT"], partitioning_of(queries["LEFT"], 2))
    times = [pa.scalar(second * 1_000_000, pa.timestamp("us", "UTC")) for second in (1, 30)]
    rows = {"ts": [*[times[0]] * 8, times[1]], "k": [*range(8), None], "v": [0] * 9}
    full = pa.table(rows, CATALOG.streams["b"].schema.to_arrow())
    host = LocalHost(queries["FULL"], mjoin(("a", "b")), slots=2)
    answer = [*host.step({"b": full}).to_pylist(), *host.step({"a": full.slice(8)}).to_pylist()]
    assert answer == [{"k": None, "n": 8}]
