"""A run on Spark that sheds keys: kept keys have their results, and every lost row shows in progress and metrics."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from prometheus_client.parser import text_string_to_metric_families
from pyarrow import parquet
from pyspark.sql import SparkSession

import anabranch
from anabranch.adapt import steering
from anabranch.adapt.keeping_up import Shedding
from anabranch.console.metrics import metrics_text
from anabranch.console.runs import LiveRun
from anabranch.console.watching import WatchedRun
from anabranch.engine.ownership import coordinates
from anabranch.run.shedding import PARTS

pytestmark = pytest.mark.spark

KEYS = 40
SHARE = 0.5


def test_what_is_shed_is_counted_and_the_rest_is_exact(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As after a backlog that grew: what makes a run shed depends on the clock.
    monkeypatch.setattr(steering, "Shedding", partial(Shedding, SHARE, -1000))
    session = anabranch.Session(spark)
    for name in ("s0", "s1"):
        (tmp_path / name).mkdir()
        times = pa.array(np.arange(KEYS) * 1000, pa.timestamp("us", "UTC"))
        parquet.write_table(pa.table({"ts": times, "x": np.arange(KEYS)}), tmp_path / name / "rows.parquet")
        frame = spark.readStream.schema("ts timestamp, x bigint").parquet(str(tmp_path / name))
        session.register(name, frame, "ts", watermark="1 second")
    query = session.sql("SELECT a.x FROM s0 [RANGE 5 SECONDS] AS a, s1 [RANGE 5 SECONDS] AS b WHERE a.x = b.x")
    writer = query.writeStream.format("parquet").option("checkpointLocation", str(tmp_path / "kept"))
    handle = writer.trigger(availableNow=True).slots(2).overload("shed").start(str(tmp_path / "out"))
    handle.awaitTermination()
    kept = {key for key in range(KEYS) if coordinates(np.array([key]), PARTS)[0] < SHARE * PARTS}
    assert sorted(row.x for row in spark.read.parquet(str(tmp_path / "out")).collect()) == sorted(kept)
    entries = [each["adaptive"] for each in handle.recentProgress if each["adaptive"]["rowsIn"]["s0"]]
    lost = KEYS - len(kept)
    assert [(each["shedRows"], each["keptKeys"]) for each in entries] == [({"s0": lost, "s1": lost}, SHARE)]
    assert handle.report()["shed_rows"] == 2 * lost
    watched = WatchedRun(LiveRun(handle))
    text = metrics_text([watched]).decode()
    values = {sample.name: sample.value for family in text_string_to_metric_families(text) for sample in family.samples}
    assert values["anabranch_shed_rows_total"] == lost
    assert values["anabranch_kept_ratio"] == SHARE
