"""A spec file becomes a running query: the example of the repository, end to end."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from anabranch.launch import start
from anabranch.spec import SinkSpec, load

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

EXAMPLE = Path(__file__).parents[3] / "examples" / "orders.yaml"


@pytest.mark.spark
def test_the_example_gives_the_orders_that_were_paid_and_shipped_in_time(spark: SparkSession, tmp_path: Path) -> None:
    sink = SinkSpec("json", str(tmp_path / "out"))
    handle = start(replace(load(EXAMPLE), sink=sink, checkpoint=str(tmp_path / "checkpoint")), spark)
    handle.awaitTermination()
    rows = spark.read.json(str(tmp_path / "out")).orderBy("order_id").collect()
    # Order 2 was not paid in full; order 3 was shipped more than five minutes after its payment.
    assert [(row.order_id, row.customer, row.carrier) for row in rows] == [
        (1, "Ada", "rail"),
        (4, "Dora", "barge"),
        (5, "Emil", "air"),
    ]
    report = handle.report()
    assert report["rows_in"] == 15
    assert report["rows_out"] == 3
    # The files of a fresh clone have no order in time, so the example reads them in one batch.
    assert len(report["batches"]) == 1
