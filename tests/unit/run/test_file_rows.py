"""Rows that slots read from files: each in the slots that need it, as Spark would have sent it; odd files are left."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import parquet

from anabranch.cql import compile_query
from anabranch.engine.ownership import needed_in
from anabranch.errors import CatalogError
from anabranch.lang.catalog import Catalog, StreamDeclaration
from anabranch.lang.expr import Column
from anabranch.lang.schema import TIMESTAMP, Schema
from anabranch.lang.window import BEFORE_ALL
from anabranch.plan.partitioning import choose_partitioning
from anabranch.plan.query_set import ALONE, alone
from anabranch.plan.slots import SlotPlan
from anabranch.plan.text import parse
from anabranch.run.file_rows import SlotFiles, columns_to_read
from anabranch.run.files.form import Columns, Footer, Reading
from anabranch.run.files.parquet import Parquet
from anabranch.run.rows import relation_batch
from anabranch.run.slot import SlotTask
from anabranch.run.wire import wire_layout

COLUMNS = pa.schema(
    [("ts", TIMESTAMP), ("x", pa.int64()), ("y", pa.int32()), ("s", pa.string()), ("d", pa.decimal128(9, 2))]
)
FROM = "SELECT a.s AS s, b.d AS d FROM s0 [RANGE 8 SECONDS] AS a, s1 [RANGE 5 SECONDS] AS b WHERE "
ROWS = st.lists(
    st.tuples(
        st.one_of(st.none(), st.integers(0, 50)),
        st.one_of(st.none(), st.integers(-3, 3)),
        st.one_of(st.none(), st.integers(0, 2)),
        st.one_of(st.none(), st.sampled_from(["", "a", "bä", "a long text of more than eight bytes"])),
    ),
    max_size=20,
)


def catalog() -> Catalog:
    found = Catalog()
    for name in ("s0", "s1"):
        found.register(StreamDeclaration(name, Schema.from_arrow(COLUMNS), "ts", 0))
    return found


def table(rows: list[tuple[int | None, int | None, int | None, str | None]]) -> pa.Table:
    ts, x, y, s = (list(column) for column in zip(*rows, strict=True)) if rows else ([], [], [], [])
    arrays = [pa.array(ts, pa.int64()).cast(pa.timestamp("us")).cast(TIMESTAMP), pa.array(x, pa.int64())]
    arrays += [pa.array(y, pa.int32()), pa.array(s, pa.string()), pa.nulls(len(rows), pa.decimal128(9, 2))]
    return pa.table(arrays, schema=COLUMNS)


def readings(columns: dict[str, dict[str, pa.DataType]]) -> dict[str, Reading]:
    return {stream: reading(wanted) for stream, wanted in columns.items()}


def reading(wanted: Columns) -> Reading:
    return Reading(Parquet(), {name: Column("stream", name, kind) for name, kind in wanted.items()})


def task_of(condition: str, slots: int, ceilings: dict[str, int]) -> SlotTask:
    query = compile_query(FROM + condition, catalog())
    partitioning = choose_partitioning(query.graph, slots)
    return SlotTask(
        queries=alone(query),
        plans={ALONE: (SlotPlan(parse("(a b)")),) * slots},
        partitioning=partitioning,
        batch=0,
        attempt="attempt",
        after=None,
        floors={"a": BEFORE_ALL, "b": BEFORE_ALL},
        ceilings=ceilings,
    )


def counted(batch: Any) -> Counter[tuple[Any, ...]]:
    columns = [batch.times.tolist(), *(batch.codes[name].tolist() for name in sorted(batch.codes))]
    return Counter(zip(*columns, *(column.to_pylist() for column in batch.payload), strict=True))


@settings(max_examples=25, deadline=None)
@given(
    several=st.lists(ROWS, min_size=1, max_size=3),
    other=ROWS,
    slots=st.integers(1, 4),
    condition=st.sampled_from(["a.x = b.x", "a.s = b.s AND a.y = b.y", "a.x < b.x", "a.y = b.x"]),
)
def test_each_row_is_in_the_slots_that_need_it(
    several: list[Any], other: Any, slots: int, condition: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("files")
    tables = {"s0": [table(rows) for rows in several], "s1": [table(other)]}
    paths = dict[str, tuple[str, ...]]()
    for name, parts in tables.items():
        paths[name] = tuple(str(folder / f"{name} {number}.parquet") for number in range(len(parts)))
        for path, part in zip(paths[name], parts, strict=True):
            parquet.write_table(part, path)
    task = task_of(condition, slots, {"a": 40})
    columns = columns_to_read(task.queries)
    assert columns is not None
    files = SlotFiles(paths, readings(columns))
    assert all(files.readings[name].look_into(path).is_readable for name in paths for path in paths[name])
    layout = wire_layout(task.queries, task.partitioning)
    found = [files.rows(task, slot) for slot in range(slots)]
    for relation in task.queries.graph.relations:
        arrived = pa.concat_tables(tables[relation.stream]).select(list(columns[relation.stream]))
        whole = relation_batch(relation, layout, arrived)
        needed = needed_in(task.partitioning, relation.name, whole)
        timed = [time.value for part in tables[relation.stream] for time in part["ts"] if time.is_valid]
        assert sum(each.rejected_rows.get(relation.name, 0) for each in found) == len(timed) - len(whole)
        for slot, (rows, rejected, *_) in enumerate(found):
            mine = rows[relation.name]
            assert counted(mine) == counted(whole.take(np.flatnonzero(needed[:, slot])))
            assert (np.diff(mine.times) >= 0).all()
            below = [time for time in timed if relation.name not in task.ceilings or time <= task.ceilings["a"]]
            # Rows that pass move the clock by themselves.
            moving = task.bounds.below(relation.name, whole.times).tolist()
            assert max([*moving, *(rejected[name] for name in rejected if name == relation.name)], default=None) == max(
                below, default=None
            )
            if len(whole) == len(timed):
                assert relation.name not in rejected


@pytest.mark.parametrize(
    ("change", "is_read"),
    [
        ({}, True),
        ({"s": pa.dictionary(pa.int32(), pa.string())}, True),
        ({"s": pa.large_string()}, True),
        ({"ts": pa.timestamp("ms", "UTC")}, True),
        ({"ts": pa.timestamp("us", "Europe/Berlin")}, True),
        ({"ts": pa.timestamp("us")}, False),
        ({"ts": pa.timestamp("ns", "UTC")}, False),
        ({"x": pa.int32()}, False),
        ({"y": pa.int64()}, False),
        ({"s": pa.binary()}, False),
        ({"d": pa.decimal128(9, 3)}, False),
    ],
)
def test_files_of_other_types_are_left_to_spark(change: dict[str, pa.DataType], is_read: bool, tmp_path: Path) -> None:
    rows = table([(1_000, 1, 2, "a"), (2_000, None, 3, None)])
    stored = rows
    for name, kind in change.items():
        values = rows[name]
        if pa.types.is_dictionary(kind):
            values = values.dictionary_encode()
        stored = stored.set_column(stored.schema.get_field_index(name), name, values.cast(kind))
    parquet.write_table(stored, tmp_path / "rows.parquet")
    wanted = {field.name: field.type for field in COLUMNS}
    path = str(tmp_path / "rows.parquet")
    assert Parquet().look_into(path, wanted) == Footer(2, is_read)
    if is_read:
        assert Parquet().read(path, wanted).equals(rows)


def test_times_of_96_bits_are_instants(tmp_path: Path) -> None:
    rows = table([(1_000, 1, 2, "a"), (1_700_000_000_123_456, None, 3, None), (-1, 1, 1, "")])
    parquet.write_table(rows, tmp_path / "rows.parquet", use_deprecated_int96_timestamps=True)
    wanted = {field.name: field.type for field in COLUMNS}
    assert Parquet().look_into(str(tmp_path / "rows.parquet"), wanted) == Footer(3, is_readable=True)
    assert Parquet().read(str(tmp_path / "rows.parquet"), wanted).equals(rows)


def test_a_file_that_is_no_file_of_the_stream_is_left_to_spark(tmp_path: Path) -> None:
    wanted = {field.name: field.type for field in COLUMNS}
    rows = table([(1_000, 1, 2, "a")])
    assert not Parquet().look_into(str(tmp_path / "gone.parquet"), wanted).is_readable
    (tmp_path / "text.parquet").write_text("no Parquet")
    assert not Parquet().look_into(str(tmp_path / "text.parquet"), wanted).is_readable
    parquet.write_table(rows.drop_columns(["x"]), tmp_path / "narrow.parquet")
    assert not Parquet().look_into(str(tmp_path / "narrow.parquet"), wanted).is_readable
    parquet.write_table(rows.rename_columns(["ts", "X", "y", "s", "d"]), tmp_path / "case.parquet")
    assert not Parquet().look_into(str(tmp_path / "case.parquet"), wanted).is_readable
    old = rows.replace_schema_metadata({"org.apache.spark.legacyDateTime": ""})
    parquet.write_table(old, tmp_path / "old.parquet")
    assert not Parquet().look_into(str(tmp_path / "old.parquet"), wanted).is_readable


def test_slots_read_the_columns_that_queries_need() -> None:
    found = columns_to_read(alone(compile_query(FROM + "a.x + 1 = b.y AND a.y > 1", catalog())))
    assert found == {
        "s0": {"ts": TIMESTAMP, "x": pa.int64(), "y": pa.int32(), "s": pa.string()},
        "s1": {"ts": TIMESTAMP, "y": pa.int32(), "d": pa.decimal128(9, 2)},
    }


def test_the_newest_times_count_what_filters_reject_and_nothing_beyond_a_ceiling(tmp_path: Path) -> None:
    queries = alone(compile_query(FROM + "a.x = b.x AND a.y > 1", catalog()))
    columns = columns_to_read(queries)
    assert columns is not None
    parquet.write_table(table([(5, 1, 2, "a"), (9, None, 0, "a"), (None, 1, 2, "")]), tmp_path / "0.parquet")
    parquet.write_table(table([(7, 1, 2, "a"), (40, 1, 2, "a")]), tmp_path / "1.parquet")
    files = SlotFiles({"s0": (str(tmp_path / "0.parquet"), str(tmp_path / "1.parquet")), "s1": ()}, readings(columns))
    assert files.newest(queries, {}) == {"a": 40}
    assert files.newest(queries, {"a": 30}) == {"a": 9}
    assert files.newest(queries, {"a": 4}) == {}


def test_a_file_that_breaks_is_named(tmp_path: Path) -> None:
    with pytest.raises(CatalogError, match="of a stream cannot be read"):
        Parquet().read(str(tmp_path / "gone.parquet"), {"ts": TIMESTAMP})
