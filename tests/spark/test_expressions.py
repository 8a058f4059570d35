"""Spark SQL text against the columnar evaluator, and Spark's hashes against ours."""

from __future__ import annotations

import datetime
import re
from collections import defaultdict
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql import functions as f

from anabranch.engine.evaluate.codes import combine_codes, xxhash64_long
from anabranch.engine.evaluate.expression import evaluate
from anabranch.errors import ExpressionError
from anabranch.lang.expr import Call, Cast, Expr, Literal
from anabranch.lang.schema import INTERVAL, TIMESTAMP
from anabranch.spark.expressions import literal, of_frame, quote, to_column, to_spark_sql
from anabranch.spark.locality import slot_keys
from tests.support import edges
from tests.support.edges import CASES, INT, TEXT, TEXTS_TO_READ, Case, agreed, column, edge_rows
from tests.support.interpreter import column_values

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

BY_TYPES: dict[tuple[pa.DataType, ...], list[Case]] = defaultdict(list)
for _case in CASES:
    BY_TYPES[_case.types].append(_case)


reference = of_frame


def accepted_rows(case: Case, table: pa.Table) -> tuple[pa.Array, list[Any]]:
    """Which rows the evaluator accepts, and its answers with None for the others."""

    def answers(part: pa.Table) -> list[Any]:
        result = evaluate(case.expr, lambda wanted: part[wanted.name].combine_chunks(), part.num_rows)
        return [agreed(value, case) for value in column_values(result)]

    try:
        return pa.array([True] * table.num_rows), answers(table)
    except ExpressionError:
        good: list[bool] = []
        values: list[Any] = []
        for index in range(table.num_rows):
            try:
                values += answers(table.slice(index, 1))
                good.append(True)
            except ExpressionError:
                values.append(None)
                good.append(False)
        return pa.array(good), values


def check(spark: SparkSession, cases: list[Case], table: pa.Table) -> None:
    expected: list[list[Any]] = []
    texts: list[str] = []
    guarded = table.append_column("row", pa.array(range(table.num_rows)))
    for index, case in enumerate(cases):
        good, values = accepted_rows(case, table)
        expected.append(values)
        guarded = guarded.append_column(f"good{index}", good)
        text = to_spark_sql(case.expr, reference)
        texts.append(f"CASE WHEN good{index} THEN {text} END AS result{index}")
        if isinstance(case.expr, Cast):
            tolerant = re.sub(r"raise_error\(.*?\) ELSE", "NULL ELSE", text).replace("CAST(", "try_cast(")
            texts.append(f"CASE WHEN NOT good{index} THEN {tolerant} END AS refused{index}")
    result = spark.createDataFrame(guarded).selectExpr("row", *texts).toArrow().sort_by("row")
    for index, case in enumerate(cases):
        actual = [agreed(value, case) for value in column_values(result[f"result{index}"])]
        for row, (wanted, got) in enumerate(zip(expected[index], actual, strict=True)):
            assert wanted == got, f"{case} at {table.slice(row, 1).to_pylist()}"
        assert result[f"result{index}"].type == case.expr.type, str(case)
        if isinstance(case.expr, Cast):
            beyond = pc.drop_null(result[f"refused{index}"])
            assert len(beyond) == 0, f"{case} is refused by the evaluator alone: {beyond}"


@pytest.mark.parametrize("types", BY_TYPES, ids=lambda types: " ".join(str(kind) for kind in types))
def test_spark_agrees_with_the_evaluator(spark: SparkSession, types: tuple[pa.DataType, ...]) -> None:
    check(spark, BY_TYPES[types], edge_rows(types))


@pytest.mark.parametrize("target", TEXTS_TO_READ, ids=str)
def test_spark_reads_texts_like_the_evaluator(spark: SparkSession, target: pa.DataType) -> None:
    table = pa.table({"c0": pa.array([None, *TEXTS_TO_READ[target]], TEXT)})
    check(spark, [Case(Cast(column(0, TEXT), target), (TEXT,))], table)


def test_spark_refuses_what_the_evaluator_refuses(spark: SparkSession) -> None:
    from pyspark.errors import PySparkException

    refusals: list[tuple[Expr, object, pa.DataType]] = [
        (Call("add", (column(0, INT), Literal(1, INT)), INT), 2**63 - 1, INT),
        (Call("negate", (column(0, INT),), INT), -(2**63), INT),
        (Cast(column(0, TEXT), INT), "abc", TEXT),
        (Cast(column(0, INT), pa.int8()), 200, INT),
    ]
    for expr, value, kind in refusals:
        values = pa.array([value], kind)
        table = pa.table({"c0": values})
        assert accepted_rows(Case(expr, (kind,)), table)[0].to_pylist() == [False]
        made = spark.createDataFrame(table)
        with pytest.raises(PySparkException):
            made.selectExpr(to_spark_sql(expr, reference)).collect()


def test_long_decimals_keep_their_digits(spark: SparkSession) -> None:
    """Spark negates a decimal with 34 digits and rounds the others away."""
    for kind in (edges.WHOLE, edges.FRACTION, edges.WIDE):
        cases = [Case(Call(function, (column(0, kind),), kind), (kind,)) for function in ("negate", "abs")]
        check(spark, cases, edge_rows((kind,)))


def test_the_session_time_zone_does_not_matter(spark: SparkSession) -> None:
    zone = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", "America/New_York")
    try:
        check(spark, BY_TYPES[(TIMESTAMP,)], edge_rows((TIMESTAMP,)))
        check(spark, BY_TYPES[(TIMESTAMP, INTERVAL)], edge_rows((TIMESTAMP, INTERVAL)))
        # Both sides of the spring change of New York, and what no clock shows there that day.
        spring = pa.array([1_710_054_000_000_000, 1_710_140_400_000_000, 1_710_037_800_000_000], TIMESTAMP)
        hours = pa.array([datetime.timedelta(hours=hour) for hour in (-24, 0, 1)], INTERVAL)
        check(spark, BY_TYPES[(TIMESTAMP, INTERVAL)], pa.table({"c0": spring.take([1, 2, 2]), "c1": hours}))
        table = pa.table({"c0": spring, "c1": spring[::-1]})
        check(spark, BY_TYPES[(TIMESTAMP, TIMESTAMP)], table)
        texts = pa.table({"c0": pa.array(TEXTS_TO_READ[TIMESTAMP], TEXT)})
        check(spark, [Case(Cast(column(0, TEXT), TIMESTAMP), (TEXT,))], texts)
        dates = edge_rows((edges.DATE,))
        check(spark, [Case(Cast(column(0, edges.DATE), TIMESTAMP), (edges.DATE,))], dates)
    finally:
        spark.conf.set("spark.sql.session.timeZone", str(zone))


def test_a_wall_clock_is_that_of_utc_whatever_the_session(spark: SparkSession) -> None:
    """In New York no clock showed half past two that day: Spark takes it for half past three, another row's key."""
    clock = pa.timestamp("us")
    values = pa.array([datetime.datetime(2024, 3, 10, hour, 30) for hour in (1, 2, 3)], clock)
    table = pa.table({"row": pa.array(range(3)), "c0": values})
    x = column(0, clock)
    three = Literal(datetime.datetime(2024, 3, 10, 3, tzinfo=datetime.UTC), TIMESTAMP)
    zone = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", "America/New_York")
    try:
        below = to_column(Call("less", (Cast(x, TIMESTAMP), three), pa.bool_())).alias("below")
        frame = spark.createDataFrame(table, "row bigint, c0 timestamp_ntz")
        found = frame.select("row", below).toArrow().sort_by("row")
    finally:
        spark.conf.set("spark.sql.session.timeZone", str(zone))
    assert found["below"].to_pylist() == [True, True, False]


def test_the_key_of_a_slot_hashes_to_its_partition(spark: SparkSession) -> None:

    for slots in (1, 2, 3, 7, 64):
        frame = spark.createDataFrame(list(enumerate(slot_keys(slots))), "slot int, _key int").repartition(
            slots, "_key"
        )
        placed = frame.select("slot", f.spark_partition_id().alias("partition")).collect()
        assert sorted((row.slot, row.partition) for row in placed) == [(slot, slot) for slot in range(slots)]


def test_literals_have_exactly_their_type(spark: SparkSession) -> None:
    constants = [
        Literal(value, kind)
        for kind in edges.EDGE_TYPES
        if kind != edges.CLOCK
        for value in pa.array(edges.edge_values(kind), kind).to_pylist()
    ]
    selected = [f"{literal(constant)} AS l{index}" for index, constant in enumerate(constants)]
    result = spark.range(1).selectExpr(*selected).toArrow()
    for constant, answer in zip(constants, result.columns, strict=True):
        assert answer.type == constant.type, str(constant)
        case = Case(constant, ())
        wanted = column_values(pa.array([constant.value], constant.type))
        assert [agreed(value, case) for value in column_values(answer)] == [agreed(value, case) for value in wanted]


def test_hashes_are_those_of_spark(spark: SparkSession) -> None:
    codes = np.array([0, 1, -1, 42, 2**63 - 1, -(2**63), 123456789], dtype=np.int64)
    table = pa.table({"row": pa.array(range(len(codes))), "a": codes, "b": codes[::-1]})
    hashed = spark.createDataFrame(table).selectExpr("row", "xxhash64(a) AS one", "xxhash64(a, b) AS two").toArrow()
    hashed = hashed.sort_by("row")
    assert hashed["one"].to_pylist() == xxhash64_long(codes).tolist()
    assert hashed["two"].to_pylist() == combine_codes([codes, codes[::-1]]).tolist()


def test_names_are_quoted() -> None:
    assert quote("odd `name`") == "`odd ``name```"
