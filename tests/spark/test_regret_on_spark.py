"""The regret suite on Spark: every way through a workload has the answer of a run in process."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

pytest.importorskip("matplotlib")

from anabranch.plan.text import parse
from lab.regret_runs import Runner
from lab.regret_spark import run, write
from lab.regret_suite import SYNTHETIC
from lab.regret_workloads import Size

pytestmark = pytest.mark.spark
SIZE = Size(batches=14, rows=300)


def test_whole_triggers_give_the_answer_of_a_run_in_process(spark: SparkSession, tmp_path: Path) -> None:
    workload = next(each for each in SYNTHETIC if each.name == "swap")
    plan = parse("(a (b c))")
    inside = Runner(workload, workload.query, plan)
    for batch in workload.batches(1, SIZE):
        inside.step(batch)
    write(workload, tmp_path, 1, SIZE)
    fixed = run(spark, workload, tmp_path / "fixed", tmp_path, plan, adapts=False)
    free = run(spark, workload, tmp_path / "free", tmp_path, "auto", adapts=True)
    assert fixed.answer == free.answer == (inside.results, inside.answer)
    assert inside.results > 0
    assert fixed.plan == str(plan)
    assert min(fixed.triggers, fixed.slots, free.triggers, free.slots) > 0
