"""Checks are timed inside Spark: the trial runs, and its ratios are numbers to price with."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from anabranch.host.spark.task_time import task_seconds
from anabranch.spark_checks import CHECKS, ratios_of, time_checks

pytestmark = pytest.mark.spark


def test_checks_are_timed_and_their_ratios_are_positive(spark: SparkSession, tmp_path: Path) -> None:
    times = time_checks(spark, tmp_path, 1, 40_000)
    assert times.keys() == CHECKS.keys()
    for kind, each in times.items():
        assert 0 < each.reading < 1e-3, kind
        assert 0 < each.spark < 1e-3, kind
        assert 0 < each.engine < 1e-3, kind
    # A law of CheckRatios: anything else is refused.
    assert all(0 < ratio < float("inf") for ratio in asdict(ratios_of(times)).values())


def test_the_time_of_tasks_is_that_of_the_action_alone(spark: SparkSession) -> None:
    assert task_seconds(spark, lambda: None) == 0.0
    assert task_seconds(spark, lambda: spark.range(100_000).selectExpr("sum(id)").collect()) > 0
    # Jobs of others do not count.
    spark.range(1_000).count()
    assert task_seconds(spark, lambda: None) == 0.0
