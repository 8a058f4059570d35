"""A spec file becomes a running query: the example of the repository, end to end, and plans chosen by a sample."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from anabranch.errors import NoFeasiblePlan
from anabranch.launch import prepare, start
from anabranch.optimize import Proposal
from anabranch.schema import TIMESTAMP
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


@pytest.fixture
def sampled_spec(tmp_path: Path) -> Path:
    """Three folders of files: `a` is ten times as fast as the others, and its keys repeat."""
    random = np.random.default_rng(1)
    for name, count, values in (("a", 5000, 50), ("b", 500, 50), ("c", 500, 200)):
        (tmp_path / name).mkdir()
        for part in range(2):
            times = pa.array(np.sort(random.integers(0, 10_000_000, count)) + part * 10_000_000).cast(
                pa.timestamp("us")
            )
            keys = {"k": random.integers(0, values, count), "v": random.integers(0, 100, count)}
            pq.write_table(pa.table({"ts": times.cast(TIMESTAMP), **keys}), tmp_path / name / f"{part}.parquet")
    streams = {
        name: {"format": "parquet", "path": name, "schema": "ts timestamp, k bigint, v bigint", "event_time": "ts"}
        for name in "abc"
    }
    document = {
        "streams": streams,
        "query": "SELECT a.v AS x, c.v AS y FROM a [RANGE 5 SECONDS], b [RANGE 5 SECONDS], c [RANGE 5 SECONDS] "
        "WHERE a.k = b.k AND b.v = c.v AND a.v < 20",
        "sink": {"format": "noop"},
        "checkpoint": "checkpoint",
    }
    file = tmp_path / "spec.yaml"
    file.write_text(yaml.safe_dump(document))
    return file


@pytest.mark.spark
def test_auto_chooses_by_the_first_rows_of_the_streams(spark: SparkSession, sampled_spec: Path) -> None:
    choice = prepare(load(sampled_spec), spark).choice()
    used = {item.what: item.value for item in choice.estimates.used if item.source == "sampled"}
    assert used["rate of a"] == pytest.approx(500, rel=0.05)
    assert used["rate of b"] == pytest.approx(50, rel=0.1)
    assert used["selectivity of (a.v < 20) AND a.k IS NOT NULL"] == pytest.approx(0.2, rel=0.1)
    assert used["selectivity of a.k = b.k"] == pytest.approx(1 / 50, rel=0.15)
    assert used["selectivity of b.v = c.v"] == pytest.approx(1 / 100, rel=0.2)
    assert isinstance(choice.answer, Proposal)


@pytest.mark.spark
def test_limits_that_no_plan_keeps_start_nothing(spark: SparkSession, sampled_spec: Path, tmp_path: Path) -> None:
    spec = load(sampled_spec)
    with pytest.raises(NoFeasiblePlan, match=r"no plan keeps within 'limits\.memory'") as caught:
        start(replace(spec, wishes=spec.wishes.with_limits(memory="1 kB")), spark)
    assert "write 'limits: {memory:" in caught.value.hint
    assert not (tmp_path / "checkpoint").exists()
    assert not spark.streams.active


@pytest.mark.spark
def test_a_folder_without_files_is_not_sampled(spark: SparkSession, sampled_spec: Path, tmp_path: Path) -> None:
    for file in (tmp_path / "b").iterdir():
        file.unlink()
    used = {item.what: item.source for item in prepare(load(sampled_spec), spark).choice().estimates.used}
    assert used["rate of a"] == "sampled"
    assert used["rate of b"] == "assumed"


@pytest.mark.spark
def test_a_sample_of_many_files_is_scaled_to_all_of_them(
    spark: SparkSession, sampled_spec: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("anabranch.host.spark.sample.MOST_FILES", 1)
    used = {item.what: item.value for item in prepare(load(sampled_spec), spark).choice().estimates.used}
    assert used["rate of a"] == pytest.approx(500, rel=0.1)
