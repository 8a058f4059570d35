"""What a step costs, counted; what it keeps and lets go; what slices, groups and types do to an answer: nothing."""

from __future__ import annotations

import datetime
from collections.abc import Iterable
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from anabranch.cql import compile_query
from anabranch.engine import slices
from anabranch.engine.batch import RelationBatch
from anabranch.engine.engine import Engine
from anabranch.engine.evaluate import codes
from anabranch.engine.state.arena import MappedArena
from anabranch.errors import ExpressionError
from anabranch.lang.catalog import Catalog, StreamDeclaration
from anabranch.lang.ddl import parse_schema
from anabranch.lang.schema import TIMESTAMP, Schema
from anabranch.plan.execution import DEFAULT_EXECUTION, execution_model
from anabranch.plan.physical import linear_tree, mjoin
from anabranch.plan.query import Query
from anabranch.plan.query_set import ALONE
from anabranch.plan.text import parse
from anabranch.run.local import LocalHost
from anabranch.stats.step import StepStatistics
from tests.support.contracts import all_shapes
from tests.support.oracle import batch_answer, describe_difference, rows_as_multiset
from tests.support.scripted import SECOND, answer_lines, read_rows


def catalog_of(disorder: int = 0) -> Catalog:
    catalog = Catalog()
    for name in ("a", "b", "c"):
        catalog.register(StreamDeclaration(name, parse_schema("ts timestamp, k bigint, v bigint"), "ts", disorder))
    return catalog


def rows_of(times: Iterable[int], keys: Iterable[int]) -> pa.Table:
    """Rows at times in seconds."""
    moments = pa.array([time * SECOND for time in times], pa.int64()).cast(pa.timestamp("us")).cast(TIMESTAMP)
    return pa.table({"ts": moments, "k": pa.array(list(keys), pa.int64()), "v": pa.array(range(len(moments)))})


def join_of(seconds: int, relations: str = "ab", disorder: int = 0) -> Query:
    sources = ", ".join(f"{name} [RANGE {seconds} SECONDS]" for name in relations)
    equal = " AND ".join(f"a.k = {name}.k" for name in relations[1:])
    outputs = ", ".join(f"{name}.v AS v{name}" for name in relations)
    return compile_query(f"SELECT {outputs} FROM {sources} WHERE {equal}", catalog_of(disorder))


def visited(statistics: StepStatistics) -> int:
    return sum(probe.visited for probe in statistics.probes)


# --- cost ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("plan", ["(a b c)", "((a b) c)"])
def test_a_step_costs_its_rows_and_matches_whatever_the_window_holds(plan: str) -> None:
    costs = {}
    for seconds in (100, 1000):
        host = LocalHost(join_of(seconds, "abc"), parse(plan))
        # As many rows as the window has seconds, each key once; then ten rows that meet the youngest ones.
        for name in "abc":
            host.step({name: rows_of(range(seconds), range(seconds))})
        answer = host.step({"a": rows_of([seconds] * 10, range(seconds - 10, seconds))})
        assert answer.num_rows == 10
        statistics = host.statistics
        assert statistics.rows_in == {"a": 10, "b": 0, "c": 0}
        inserted = sum(state.inserted for state in statistics.states)
        matches = sum(probe.matches for probe in statistics.probes)
        costs[seconds] = (inserted, matches, sum(probe.probes for probe in statistics.probes))
        # Chains may hold a few strangers whose hash falls together, but never a share of the window.
        assert visited(statistics) <= 3 * matches
    assert costs[100] == costs[1000]


def test_a_match_outside_the_window_is_visited_only_while_its_row_is_kept() -> None:
    host = LocalHost(join_of(10), mjoin(("a", "b")))
    host.step({"a": rows_of([0] * 50, [1] * 50), "b": rows_of([0], [2])})
    host.step({"b": rows_of([11], [2])})
    host.step({"b": rows_of([11], [1])})
    assert visited(host.statistics) == 0


def test_an_input_first_probes_states_without_the_new_rows_of_a_step() -> None:
    host = LocalHost(join_of(10, "abc"), mjoin(("a", "b", "c")))
    host.step({name: rows_of([1], [1]) for name in "abc"})
    asked = {(probe.origin, probe.target) for probe in host.statistics.probes}
    # What `b` would find in `a` cannot be completed before `c` has come.
    assert asked == {("a", "b"), ("b", "c"), ("c", "a"), ("c", "b")}


def test_dropping_costs_what_is_dropped() -> None:
    host = LocalHost(join_of(10), mjoin(("a", "b")))
    host.step({"a": rows_of(range(20), range(20)), "b": rows_of([14], [0])})
    assert {state.state: state.dropped for state in host.statistics.states} == {"a": 0, "b": 0}
    host.step({})
    # The floor of b is 14: a's rows of 0 to 3 can meet nothing any more.
    assert {state.state: (state.rows, state.dropped) for state in host.statistics.states} == {"a": (16, 4), "b": (1, 0)}


# --- state -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("plan", list(all_shapes("abc")), ids=str)
def test_state_shrinks_to_nothing_when_time_has_passed_it(plan: object) -> None:
    query = join_of(10, "abc")
    host = LocalHost(query, parse(str(plan)), slots=2)
    for start in range(0, 60, 20):
        host.step({name: rows_of(range(start, start + 20), [k % 3 for k in range(20)]) for name in "abc"})
    assert host.statistics.state_rows > 0
    far = 1000
    host.step({name: rows_of([far], [None]) for name in "abc"})  # type: ignore[list-item]
    host.step({})
    assert host.statistics.state_rows == 0
    assert host.statistics.state_bytes == 0


def test_a_grouped_state_shrinks_to_the_rows_of_the_last_instant() -> None:
    """They count at the two boundaries that are still to be answered, 1000 and 1005."""
    text = "SELECT WINDOW_END() AS at, COUNT(*) AS n FROM a [RANGE 5 SECONDS SLIDE 5 SECONDS], b [RANGE 5 SECONDS]"
    host = LocalHost(compile_query(text, catalog_of()), mjoin(("a", "b")))
    host.step({name: rows_of(range(20), range(20)) for name in "ab"})
    host.step({name: rows_of([1000], [0]) for name in "ab"})
    host.step({})
    assert {state.state: state.rows for state in host.statistics.states} == {"a": 1, "b": 1, "group by": 2}


@pytest.mark.parametrize("execution", [None, "totally-synchronised"])
def test_relations_may_have_the_names_of_other_states(execution: str | None) -> None:
    """The state of a relation called 'groups' was told as the groups: its own rows were missing, and learnt from."""
    aliases = ("groups", "waiting")
    windows = ", ".join(
        f"{s} [RANGE 50 SECONDS{'' if execution else ' SLIDE 5 SECONDS'}] AS {n}"
        for s, n in zip("ab", aliases, strict=True)
    )
    asked = "groups.k AS k" if execution else "WINDOW_END() AS at, COUNT(*) AS n"
    query = compile_query(f"SELECT {asked} FROM {windows} WHERE groups.k = waiting.k", catalog_of())
    model = DEFAULT_EXECUTION if execution is None else execution_model(execution)
    host = LocalHost(query, mjoin(aliases), execution=model)
    host.step({name: rows_of(range(20), range(20)) for name in "ab"})
    states = {state.state: state for state in host.statistics.states}
    assert all(states[name].inserted > 1 for name in aliases)
    assert [states[name].inserted for name in aliases] == [states[name].rows for name in aliases]


def test_a_filter_over_an_unbounded_window_keeps_nothing() -> None:
    query = compile_query("SELECT a.v AS v FROM a [UNBOUNDED] WHERE a.k = 1", catalog_of())
    host = LocalHost(query, mjoin(("a",)))
    assert host.step({"a": rows_of([1, 2], [1, 1])}).num_rows == 2
    host.step({})
    assert host.statistics.state_rows == 0


def test_nothing_is_dropped_that_disorder_may_still_need() -> None:
    host = LocalHost(join_of(10, disorder=5 * SECOND), mjoin(("a", "b")))
    host.step({"a": rows_of([0], [1])})
    host.step({"b": rows_of([15], [9])})
    assert answer_lines(host.step({"b": rows_of([10], [1])})) == ("0 0",)


def test_export_and_restore_carry_the_state(tmp_path: Path) -> None:
    query = join_of(10, "abc")
    names = query.graph.names
    first = Engine.alone(query, parse("((a b) c)"))
    floors = dict.fromkeys(names, 0)
    early = {name: _batch(query, name, [1, 2], [1, 1]) for name in names}
    assert sum(batch.num_rows for _, batch in first.step(early, floors)) == 8
    second = Engine.alone(query, parse("(c (a b))"), arena=MappedArena(tmp_path))
    second.restore(first.export(), None)
    third = Engine.alone(query, parse("(c (a b))"), arena=MappedArena(tmp_path))
    third.reopen(second.layout())
    answers = [
        pa.Table.from_batches([batch for _, batch in engine.step({"a": _batch(query, "a", [3], [1])}, floors)])
        for engine in (first, third)
    ]
    assert answers[0].num_rows == 4
    assert rows_as_multiset(answers[0]) == rows_as_multiset(answers[1])


def test_answers_end_before_the_event_time_at_which_another_run_takes_over() -> None:
    """The other run answers from that time on, so a result of that very time has one of them."""
    query = join_of(10, "ab")
    engine = Engine.alone(query, mjoin(("a", "b")))
    engine.answer_until({ALONE: 3 * SECOND})
    rows = {name: _batch(query, name, [1, 2, 3, 4], [1, 2, 3, 4]) for name in "ab"}
    found = [value for _, batch in engine.step(rows, {"a": 0, "b": 0}) for value in batch.column("va").to_pylist()]
    assert sorted(found) == [1, 2]


def _batch(query: Query, relation: str, times: list[int], keys: list[int]) -> RelationBatch:
    moments = np.array(times, dtype=np.int64) * SECOND
    columns = {field.name: pa.array(keys, field.type) for field in query.graph.relation(relation).schema}
    codes = {key.name: np.array(keys, dtype=np.int64) for key in query.graph.keys_of([relation])}
    return RelationBatch(moments, codes, pa.RecordBatch.from_pydict(columns))


# --- slices ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("disorder", [0, 3])
@pytest.mark.parametrize("grouped", [False, True])
def test_cutting_a_large_batch_by_time_does_not_change_the_answer(
    monkeypatch: pytest.MonkeyPatch, disorder: int, grouped: bool
) -> None:
    query = join_of(4, "abc", disorder * SECOND)
    if grouped:
        text = (
            "SELECT WINDOW_END() AS at, a.k AS k, COUNT(*) AS n FROM a [RANGE 4 SECONDS SLIDE 2 SECONDS], "
            "b [RANGE 3 SECONDS], c [RANGE 2 SECONDS] WHERE a.k = b.k AND b.k = c.k GROUP BY a.k"
        )
        query = compile_query(text, catalog_of(disorder * SECOND))
    rng = np.random.default_rng(7)
    batches = []
    for start in (0, 40, 80):
        tables = {}
        for name in "abc":
            times = np.sort(rng.integers(start, start + 40, 60)) - rng.integers(0, disorder + 1, 60)
            tables[name] = rows_of(np.maximum(times, 0).tolist(), rng.integers(0, 6, 60).tolist())
        batches.append(tables)
    whole = {name: pa.concat_tables([batch[name] for batch in batches]) for name in "abc"}
    expected = batch_answer(query, whole)
    most = {}
    for size in (1 << 15, 10):
        monkeypatch.setattr(slices, "SLICE_ROWS", size)
        host = LocalHost(query, linear_tree(("a", "b", "c")), slots=2)
        results = [host.step(batch) for batch in batches]
        assert not any(host.late.values())
        most[size] = host.statistics.state_rows
        assert not describe_difference(expected, rows_as_multiset(pa.concat_tables(results)))
    assert most[10] < most[1 << 15] / 2


# --- groups ----------------------------------------------------------------------------------------------------------

JANUARY, FEBRUARY = datetime.date(1969, 1, 1), datetime.date(2024, 2, 29)
GROUPED_TYPES: dict[str, tuple[list[Any], Any, Any]] = {
    "string": (["b", None, "ab"], "ab", "b"),
    "date": ([FEBRUARY, None, JANUARY], JANUARY, FEBRUARY),
    "decimal(9,2)": ([Decimal("1.50"), None, Decimal("-0.25")], Decimal("-0.25"), Decimal("1.50")),
    "decimal(38,2)": ([Decimal("1e30"), None, Decimal("-1e30")], Decimal("-1e30"), Decimal("1e30")),
    "double": ([1.5, None, float("nan")], 1.5, float("nan")),
    "smallint": ([3, None, -3], -3, 3),
    "boolean": ([True, None, False], False, True),
}


@pytest.mark.parametrize("kind", GROUPED_TYPES)
def test_least_and_greatest_of_every_type(kind: str) -> None:
    values, low, high = GROUPED_TYPES[kind]
    catalog = Catalog()
    schema = parse_schema(f"ts timestamp, x {kind}")
    catalog.register(StreamDeclaration("a", schema, "ts"))
    text = "SELECT MIN(a.x) AS low, MAX(a.x) AS high, COUNT(a.x) AS n FROM a [RANGE 9 SECONDS SLIDE 10 SECONDS]"
    query = compile_query(text, catalog)
    times = pa.array([1, 2, 3, 4], pa.int64()).cast(pa.timestamp("s")).cast(TIMESTAMP)
    table = pa.table([times, pa.array([*values, None], schema.fields[1].type)], schema=schema.to_arrow())
    end = pa.table([pa.array([11 * SECOND], TIMESTAMP), pa.nulls(1, schema.fields[1].type)], schema=schema.to_arrow())
    host = LocalHost(query, mjoin(("a",)), slots=2)
    results = [host.step({"a": table.slice(i, 1)}) for i in range(4)] + [host.step({"a": end})]
    answer = pa.concat_tables(results)
    expected = pa.table({"low": [low], "high": [high], "n": [2]})
    assert rows_as_multiset(answer) == rows_as_multiset(expected)
    assert not describe_difference(batch_answer(query, {"a": pa.concat_tables([table, end])}), rows_as_multiset(answer))


def test_float_groups_are_sqls() -> None:
    """NaN is one value, and zero has no sign."""
    catalog = Catalog()
    catalog.register(StreamDeclaration("a", parse_schema("ts timestamp, x double"), "ts"))
    text = "SELECT a.x AS x, COUNT(*) AS n FROM a [RANGE 9 SECONDS SLIDE 10 SECONDS] GROUP BY a.x"
    query = compile_query(text, catalog)
    other_nan = np.array([0x7FF8000000000123], dtype=np.uint64).view(np.float64)[0]
    values = [0.0, -0.0, float("nan"), other_nan, None, 1.0, 1.0]
    times = pa.array([1] * 6 + [11], pa.int64()).cast(pa.timestamp("s")).cast(TIMESTAMP)
    answer = LocalHost(query, mjoin(("a",))).step({"a": pa.table({"ts": times, "x": pa.array(values, pa.float64())})})
    assert answer_lines(answer) == ("- 1", "0 2", "1 1", "nan 2")


def test_a_sum_that_overflows_ends_the_query() -> None:
    text = "SELECT SUM(a.v) AS total FROM a [RANGE 9 SECONDS SLIDE 10 SECONDS]"
    host = LocalHost(compile_query(text, catalog_of()), mjoin(("a",)), slots=1)
    rows = read_rows(catalog_of(), [f"a 1 0 {2**62}", f"a 1 0 {2**62}", "a 11 0 0"])
    with pytest.raises(ExpressionError, match="SUM"):
        host.step(rows)


@pytest.mark.parametrize("kind", ["decimal(38,0)", "decimal(30,5)"])
def test_a_sum_of_long_decimals_is_right_or_ends_the_query(kind: str) -> None:
    """Arrow's sums of decimals wrap as those of integers do: three times 6e37 made a negative sum."""
    catalog = Catalog()
    catalog.register(StreamDeclaration("a", parse_schema(f"ts timestamp, k bigint, d {kind}"), "ts"))
    text = "SELECT a.k AS k, SUM(a.d) AS total FROM a [RANGE 9 SECONDS SLIDE 10 SECONDS] GROUP BY a.k"
    query = compile_query(text, catalog)
    field = query.graph.relations[0].schema.find("d")
    assert field is not None
    size = 10 ** (field.type.precision - field.type.scale) - 1
    largest, least = Decimal(size), Decimal(-size)

    def summed(values: list[Decimal | None]) -> object:
        times = pa.array([1] * len(values) + [11], pa.int64()).cast(pa.timestamp("s")).cast(TIMESTAMP)
        keys = pa.array([0] * len(values) + [1])
        rows = pa.table({"ts": times, "k": keys, "d": pa.array([*values, None], field.type)})
        return LocalHost(query, mjoin(("a",)), slots=2).step({"a": rows}).column("total").to_pylist()

    assert summed([largest, Decimal(-5), None, largest, least]) == [size - 5]
    assert summed([least, Decimal(7)]) == [7 - size]
    assert summed([None]) == [None]
    if field.type.precision == 38:
        with pytest.raises(ExpressionError, match="SUM"):
            summed([largest] * 2)
        with pytest.raises(ExpressionError, match="SUM"):
            summed([least] * 4)


def test_an_output_cannot_fail_on_a_group_that_having_leaves_out() -> None:
    text = (
        "SELECT a.k AS k, CAST(SUM(a.v) AS TINYINT) AS small FROM a [RANGE 9 SECONDS SLIDE 10 SECONDS] "
        "GROUP BY a.k HAVING SUM(a.v) < 100"
    )
    host = LocalHost(compile_query(text, catalog_of()), mjoin(("a",)))
    rows = read_rows(catalog_of(), ["a 1 0 1000", "a 1 1 7", "a 11 0 0"])
    assert answer_lines(host.step(rows)) == ("1 7",)


def test_every_boundary_is_answered_once_however_late_the_watermark_comes() -> None:
    text = "SELECT WINDOW_END() AS at, COUNT(*) AS n FROM a [RANGE 3 SECONDS SLIDE 2 SECONDS]"
    for cut in (1, 2, 30):
        host = LocalHost(compile_query(text, catalog_of()), mjoin(("a",)))
        rows = rows_of(range(30), range(30))
        lines = [line for i in range(0, 30, cut) for line in answer_lines(host.step({"a": rows.slice(i, cut)}))]
        # At boundary 2: the rows of 0, 1 and 2 (range 3 reaches back to -1); from 4 on four rows each.
        assert sorted(lines) == sorted(["0 1", "2 3", *(f"{at} 4" for at in range(4, 29, 2))])


def test_having_and_outputs_are_computed_over_merged_groups() -> None:
    text = (
        "SELECT a.k + 1 AS next, AVG(b.v) AS mean FROM a [RANGE 9 SECONDS SLIDE 10 SECONDS], b [RANGE 9 SECONDS] "
        "WHERE a.v < b.v GROUP BY a.k HAVING COUNT(*) >= 3 AND MAX(b.v) < 9"
    )
    query = compile_query(text, catalog_of())
    lines = ["a 1 0 0", "a 2 1 1", "a 3 - 2", "b 1 0 1", "b 2 0 2", "b 3 0 3", "b 4 0 4", "a 11 0 100", "b 11 0 0"]
    rows = read_rows(catalog_of(), lines)
    answers = {answer_lines(LocalHost(query, mjoin(("a", "b")), slots=slots).step(rows)) for slots in (1, 4)}
    assert answers == {("1 2.5", "2 3")}


# --- what is carried -------------------------------------------------------------------------------------------------


def test_a_count_needs_no_columns() -> None:
    text = "SELECT COUNT(*) AS n FROM a [RANGE 9 SECONDS SLIDE 10 SECONDS], b [RANGE 9 SECONDS]"
    query = compile_query(text, catalog_of())
    assert [len(relation.schema) for relation in query.graph.relations] == [0, 0]
    for slots in (1, 3):
        host = LocalHost(query, mjoin(("a", "b")), slots=slots)
        rows = {name: rows_of([1, 2, 3], range(3)) for name in "ab"}
        assert host.step(rows).num_rows == 0
        assert answer_lines(host.step({name: rows_of([11], [0]) for name in "ab"})) == ("9",)


def test_every_type_is_carried_with_nulls(tmp_path: Path) -> None:
    columns = {
        "b": pa.array([True, None], pa.bool_()),
        "i8": pa.array([-8, None], pa.int8()),
        "i16": pa.array([-16, None], pa.int16()),
        "i32": pa.array([-32, None], pa.int32()),
        "i64": pa.array([-64, None], pa.int64()),
        "f32": pa.array([0.5, None], pa.float32()),
        "f64": pa.array([0.1, None], pa.float64()),
        "d": pa.array([Decimal("-1.25"), None], pa.decimal128(20, 2)),
        "s": pa.array(["é", None], pa.string()),
        "day": pa.array([datetime.date(1960, 2, 29), None], pa.date32()),
        "t": pa.array([datetime.datetime(1960, 1, 1, tzinfo=datetime.UTC), None], TIMESTAMP),
        "list": pa.array([[1, None], None], pa.list_(pa.int64())),
        "struct": pa.array(
            [{"x": 1, "y": [None, "z"]}, None], pa.struct([("x", pa.int32()), ("y", pa.list_(pa.string()))])
        ),
        "map": pa.array([[("k", 2)], None], pa.map_(pa.string(), pa.int64())),
        "bytes": pa.array([b"\x00\xff", None], pa.binary()),
    }
    times = pa.array([SECOND, SECOND], pa.int64()).cast(pa.timestamp("us")).cast(TIMESTAMP)
    table = pa.table({"ts": times, **columns})
    catalog = Catalog()
    for name in ("l", "r"):
        catalog.register(StreamDeclaration(name, Schema.from_arrow(table.schema), "ts"))
    query = compile_query(
        "SELECT l.*, r.list AS other FROM l [NOW], r [NOW] WHERE l.i64 IS NULL AND r.i64 = -64", catalog
    )
    for slots, restart in ((1, False), (3, False), (2, True)):
        checkpoint = str(tmp_path / str(slots)) if restart else None
        host = LocalHost(query, mjoin(("l", "r")), slots=slots, checkpoint=checkpoint)
        host.step({"l": table.slice(1)})
        if restart:
            host = LocalHost(query, mjoin(("l", "r")), slots=1, checkpoint=checkpoint)
        answer = host.step({"r": table})
        assert answer.num_rows == 1
        for name, values in columns.items():
            assert answer.column(name).type == values.type
            assert answer.column(name).to_pylist() == [None]
        assert answer.column("other").to_pylist() == [[1, None]]
    query = compile_query("SELECT r.* FROM l [NOW], r [NOW] WHERE l.i64 = r.i64", catalog)
    answer = LocalHost(query, mjoin(("l", "r")), slots=2).step({"l": table, "r": table})
    assert answer.select(table.column_names).to_pylist() == table.slice(0, 1).to_pylist()


def test_chunked_and_sliced_input_is_read_as_it_stands() -> None:
    table = rows_of([1, 2, 3, 4], [1, 2, 3, 4])
    pieces = pa.concat_tables([table.slice(3, 1), table.slice(0, 2), table.slice(2, 1)])
    host = LocalHost(join_of(10), mjoin(("a", "b")), slots=3)
    answer = host.step({"a": pieces, "b": table.slice(1, 2)})
    assert answer_lines(answer) == ("1 1", "2 2")


def test_rows_without_event_time_are_passed_over() -> None:
    table = pa.concat_tables([rows_of([1], [1]), rows_of([1], [1])])
    holes = table.set_column(0, "ts", pa.array([None, SECOND], TIMESTAMP))
    assert answer_lines(LocalHost(join_of(10), mjoin(("a", "b"))).step({"a": holes, "b": holes})) == ("0 0",)


def test_finer_times_than_microseconds_are_cut_off() -> None:
    """Tables made by pandas count in nanoseconds."""
    catalog = Catalog()
    schema = Schema.from_arrow(pa.schema([("ts", pa.timestamp("ns")), ("v", pa.int64())]))
    for name in ("a", "b"):
        catalog.register(StreamDeclaration(name, schema, "ts"))
    query = compile_query("SELECT a.v AS x, b.v AS y FROM a [NOW], b [NOW]", catalog)
    tables = {
        name: pa.table({"ts": pa.array(times, pa.timestamp("ns")), "v": [1, 2]})
        for name, times in {"a": [1_001, 3_000], "b": [1_999, 2_999]}.items()
    }
    assert answer_lines(LocalHost(query, mjoin(("a", "b"))).step(tables)) == ("1 1",)


# --- keys that are hashed ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("keys", [["{}.k"], ["UPPER({}.k)"], ["{}.k", "{}.j"]], ids=["column", "computed", "two"])
@pytest.mark.parametrize("words", [["", "a", "b", "ab"], ["", None, "a", "b"]], ids=["texts", "with NULL"])
@pytest.mark.parametrize("plan", ["(a b c)", "((a b) c)"])
def test_texts_of_one_code_are_told_apart(
    keys: list[str], words: list[str | None], plan: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(codes, "_hash_texts", lambda offsets, data, seed: np.zeros(len(offsets) - 1, dtype=np.int64))
    catalog = Catalog()
    schema = parse_schema("ts timestamp, k string, j string, v bigint")
    for name in ("a", "b", "c"):
        catalog.register(StreamDeclaration(name, schema, "ts", SECOND))
    sources = ", ".join(f"{name} [RANGE 3 SECONDS]" for name in "abc")
    equal = " AND ".join(f"{key.format('a')} = {key.format(name)}" for name in "bc" for key in keys)
    query = compile_query(f"SELECT a.v AS va, b.v AS vb, c.v AS vc FROM {sources} WHERE {equal}", catalog)
    rng = np.random.default_rng(5)

    def drawn(second: int) -> pa.Table:
        table = rows_of([second] * 12, range(12)).drop_columns("k")
        texts = {name: pa.array([words[place] for place in rng.integers(0, 4, 12)], pa.string()) for name in "kj"}
        return pa.table({"ts": table["ts"], **texts, "v": table["v"]})

    batches = [{name: drawn(second) for name in "abc"} for second in range(6)]
    whole = {name: pa.concat_tables([batch[name] for batch in batches]) for name in "abc"}
    host = LocalHost(query, parse(plan))
    results = pa.concat_tables([host.step(batch) for batch in batches])
    assert results.num_rows > 0
    assert not describe_difference(batch_answer(query, whole), rows_as_multiset(results))
