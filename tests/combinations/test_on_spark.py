"""Drawn schedules on Spark: each answer is the batch answer, and hosts answer alike.

One schedule, played on the in-process host and on Spark, gives the same results in each batch, and the same clocks,
plans and tables in each manifest. It may fail at announced crash points, in the sink and in writes.
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
from tests.combinations.test_combinations import COVER
from tests.support.oracle import rows_as_multiset

pytestmark = [pytest.mark.spark, pytest.mark.slow]


def played(features: frozenset[str], events: list[str], number: int, make: Callable[..., Any]) -> list[Played]:
    """Plays the schedules that follow from a number."""
    found: list[Played] = []

    @seed(number)
    @settings(
        max_examples=settings().max_examples // 20,
        database=None,
        deadline=None,
        phases=(Phase.generate,),
        suppress_health_check=list(HealthCheck),
    )
    @given(data=st.data())
    def drawn(data: st.DataObject) -> None:
        found.append(play(data, features, events, make))

    drawn()
    return found


@pytest.mark.parametrize("number", range(len(COVER)))
def test_hosts_answer_alike(number: int, spark: SparkSession) -> None:
    features, events = COVER[number]
    in_process = played(features, events, number, Engines)
    on_spark = played(features, events, number, partial(SparkHost, spark))
    if "failing write" in events:  # which of a host's writes fails is counted, and hosts do not write alike
        return
    assert len(in_process) == len(on_spark)
    for one, other in zip(in_process, on_spark, strict=True):
        assert one.sink.keys() == other.sink.keys()
        for batch, results in one.sink.items():
            assert results.keys() == other.sink[batch].keys()
            for name, rows in results.items():
                assert rows_as_multiset(rows) == rows_as_multiset(other.sink[batch][name]), (batch, name)
            assert _compared(one.manifests[batch]) == _compared(other.manifests[batch]), batch


def _compared(manifest: Manifest) -> dict[str, Any]:
    """The part of a manifest that does not name files and attempts."""
    return {
        "batch": manifest.batch,
        "clocks": {name: (clock.floor, clock.newest) for name, clock in manifest.clocks.streams.items()},
        "plans": manifest.plans,
        "tables": [str(each) for each in manifest.partitionings[-1:]],
    }
