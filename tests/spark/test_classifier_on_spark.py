"""A classifier as Spark SQL: every row gets the route that the compiled walk gives it."""

from __future__ import annotations

import datetime
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from anabranch.plan.classes import ClassColumn
from anabranch.plan.classifier import Classifier, case_expression, parse_classifier
from anabranch.plan.classify import assign_routes, hours

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

MOMENT = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
TABLE = pa.table(
    {
        "price": pa.array([1.5, None, float("nan"), float("inf"), -0.0, 3.5, 3.4999999], pa.float64()),
        "count": pa.array([2**53 + 1, None, -(2**63), 2**63 - 1, 0, 5, 6], pa.int64()),
        "light": pa.array([0.1, 0.2, None, float("nan"), 1.0, 2.0, 3.0], pa.float32()),
        "sector": pa.array(["it", None, "o'clock", "back\\slash", "", "unseen", "ünï"]),
        "flag": pa.array([True, False, None, True, False, None, True]),
        "day": pa.array([datetime.date(1970, 1, day) for day in (1, 2, 3, 4, 5, 6)] + [None]),
        "moment": pa.array(
            [0, -1, 3_599_999_999, 3_600_000_000, -86_400_000_000, None, 86_399_999_999], pa.int64()
        ).cast(pa.timestamp("us", "UTC")),
        "at": pa.array(
            [MOMENT + datetime.timedelta(microseconds=i) for i in range(6)] + [None], pa.timestamp("us", "UTC")
        ),
    }
)
TREES = (
    "3",
    "(price <= 3.5 ? 0 : 1)",
    "(price <= 0.0 or null ? 0 : (price <= inf ? 1 : 2))",
    "(price <= -inf ? 0 : 1)",
    "(count <= 9007199254740992.0 ? 0 : (count <= 9.2e18 or null ? 1 : 2))",
    "(light <= 0.1 ? 0 : (light <= 0.10000000149011612 or null ? 1 : 2))",
    r"(sector in {'it', 'o''clock', 'back\slash', ''} ? 0 : (sector in {'ünï'} or null ? 1 : 2))",
    "(sector in {} or null ? 0 : (sector in {} ? 1 : 2))",
    "(flag <= 0.5 or null ? 0 : 1)",
    "(day <= 2.0 ? 0 : 1)",
    f"(at <= {int(MOMENT.timestamp()) * 1_000_000 + 2}.0 ? 0 : 1)",
    "(hour(moment) <= 11.5 ? 0 : (hour(moment) <= 22.5 or null ? 1 : 2))",
)
CLASSES = (
    ClassColumn("price", pa.float64(), (-1.0, 0.0, 3.4999999, 3.5)),
    ClassColumn("count", pa.int64(), (0.0, 5.0, 2.0**53)),
    ClassColumn("light", pa.float32()),
    ClassColumn("sector", pa.string(), texts=("it", "o'clock", "back\\slash", "", "ünï")),
    ClassColumn("sector", pa.string()),
    ClassColumn("flag", pa.bool_(), (0.0,)),
    ClassColumn("hour(moment)", pa.int64(), tuple(map(float, range(23)))),
)


def test_spark_gives_every_row_the_route_of_the_walk(spark: SparkSession) -> None:
    types = {field.name: field.type for field in TABLE.schema} | {"hour(moment)": pa.int64()}
    trees = [parse_classifier(text) for text in TREES]
    frame = spark.createDataFrame(TABLE)
    texts = [f"{case_expression(tree, types)} AS r{number}" for number, tree in enumerate(trees)]
    got = frame.selectExpr(*texts).toArrow()
    for number, tree in enumerate(trees):
        assert got[f"r{number}"].to_pylist() == _walked(tree), TREES[number]


def test_spark_gives_every_row_the_class_of_the_walk(spark: SparkSession) -> None:
    types = {field.name: field.type for field in TABLE.schema}
    texts = [f"{case_expression(each.tree, {**types, each.attribute: each.type})} AS c" for each in CLASSES]
    for column, text in zip(CLASSES, texts, strict=True):
        got = spark.createDataFrame(TABLE).selectExpr(text).toArrow()
        assert got["c"].to_pylist() == _walked(column.tree), str(column)


def _walked(tree: Classifier) -> list[int]:
    columns = {name: TABLE[name] for name in TABLE.column_names} | {"hour(moment)": hours(TABLE["moment"])}
    found: list[int] = assign_routes(tree, columns, TABLE.num_rows).tolist()
    return found
