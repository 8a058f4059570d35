"""Drawn schedules on Spark: each answer is the batch answer, and hosts answer alike.

One schedule, played on the in-process host and on Spark, gives the same results in each batch, and the same clocks,
plans and tables in each manifest. It may fail at announced crash points, in the sink and in writes, and lose hot state.
The number of a schedule is its seed: `-k "alike and [7]"` plays number 7 again.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from anabranch.run.manifest import Manifest
from tests.combinations.play import Engines, Played, play
from tests.combinations.spark_host import SparkHost
from tests.combinations.test_combinations import COVER, not_the_simplest
from tests.support.oracle import rows_as_multiset

pytestmark = [pytest.mark.spark, pytest.mark.slow]


SCHEDULES = 300


def played(number: int, make: Callable[..., Any]) -> Played:
    """Plays the schedule that follows from a number."""
    found: list[Played] = []
    features, events = COVER[number % len(COVER)]

    @seed(number)
    @settings(
        max_examples=1,
        database=None,
        deadline=None,
        phases=(Phase.generate,),
        suppress_health_check=list(HealthCheck),
    )
    @given(data=st.data())
    def drawn(data: st.DataObject) -> None:
        not_the_simplest(data)
        found.append(play(data, features, events, make))

    drawn()
    (only,) = found
    return only


@pytest.mark.parametrize("number", range(SCHEDULES))
def test_hosts_answer_alike(number: int, spark: SparkSession) -> None:
    in_process = played(number, Engines)
    on_spark = played(number, partial(SparkHost, spark))
    if "failing write" in COVER[number % len(COVER)][1]:
        return  # which of a host's writes fails is counted, and hosts do not write alike
    assert in_process.sink.keys() == on_spark.sink.keys()
    for batch, results in in_process.sink.items():
        assert results.keys() == on_spark.sink[batch].keys()
        for name, rows in results.items():
            assert rows_as_multiset(rows) == rows_as_multiset(on_spark.sink[batch][name]), (batch, name)
        assert _compared(in_process.manifests[batch]) == _compared(on_spark.manifests[batch]), batch


def _compared(manifest: Manifest) -> dict[str, Any]:
    """The part of a manifest that does not name files and attempts."""
    return {
        "batch": manifest.batch,
        "clocks": {name: (clock.floor, clock.newest) for name, clock in manifest.clocks.streams.items()},
        "plans": manifest.plans,
        "tables": [str(each) for each in manifest.partitionings[-1:]],
    }
