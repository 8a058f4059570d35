"""The costs of Spark: found again from trials that they explain, kept beside those of the engine."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

from anabranch.calibrate.spark_costs import NAMES, ROUNDS, TRIALS, Seen, Trial, described, fitted, statistics
from anabranch.cost.host import SPARK, HostCosts
from anabranch.cost.resources import NOTHING
from anabranch.cost.units import ENGINE
from anabranch.errors import StatisticsError
from anabranch.planning.calibration import load_host, load_units, save_units


def as_if(trial: Trial, costs: HostCosts) -> Seen:
    """The trial on a Spark of these costs; the plan takes a tenth of a second of every trigger."""
    results = trial.rows * trial.matches * 4.0
    rows = trial.streams * trial.rows * trial.row_bytes / trial.slots
    seen = Seen(trial, (0.0,), 0.1, results, 5e7, costs.worker_bytes + rows * costs.batch_bytes, 1e6, NOTHING)
    spent = sum(count * getattr(costs, name) for count, name in zip(seen.counts, NAMES, strict=True))
    return replace(seen, batches=(spent + 0.05, spent + 0.15))


@pytest.mark.parametrize("speed", [0.3, 1.0, 4.0])
def test_costs_are_found_again_from_what_trials_take(speed: float) -> None:
    cpu = {name: getattr(SPARK, name) * speed for name in NAMES}
    # One thing that costs more here than elsewhere is found too: the usual shares hold a cost only lightly.
    truth = replace(SPARK, **{**cpu, "byte": 2 * cpu["byte"]}, driver_bytes=7.0)
    found = fitted([as_if(trial, truth) for trial in TRIALS * ROUNDS], 7.0)
    for name in ("trigger", "source", "read", "byte", "driver_bytes"):
        assert getattr(found, name) == pytest.approx(getattr(truth, name), rel=0.2), name
    assert found.worker_bytes == pytest.approx(truth.worker_bytes, rel=0.01)
    assert found.batch_bytes == pytest.approx(truth.batch_bytes, rel=0.01)
    # What the plan takes is not Spark's.
    seen = as_if(TRIALS[3], truth)
    counted = sum(count * getattr(found, name) for count, name in zip(seen.counts, NAMES, strict=True))
    assert counted == pytest.approx(seen.cpu, rel=0.05)
    assert len(described(found)) == len(asdict(found)) - 1


def test_every_cost_has_a_trial_with_more_of_it() -> None:
    counts = [as_if(trial, SPARK).counts for trial in TRIALS]
    for name, column in zip(NAMES[1:], list(zip(*counts, strict=True))[1:], strict=True):
        assert max(column) > min(column), name


def test_the_statistics_of_a_trial_say_what_its_rows_are() -> None:
    known = statistics(Trial(streams=3, rows=100, passing=0.1), ENGINE)
    assert known["rates"] == dict.fromkeys(("s0", "s1", "s2"), 100.0)
    assert known["filters"] == dict.fromkeys(("s0", "s1", "s2"), 0.1)


def test_costs_of_spark_stand_beside_those_of_the_engine(tmp_path: Path) -> None:
    file = tmp_path / "units.json"
    save_units(ENGINE, file)
    assert load_host(file) is None
    # A file of an earlier release has no costs of Spark, and is read as it is.
    assert load_units(file) == ENGINE
    save_units(ENGINE, file, SPARK)
    assert (load_units(file), load_host(file)) == (ENGINE, SPARK)
    # The engine alone is measured again: what was measured of Spark stays.
    save_units(replace(ENGINE, probe=1.0), file)
    assert load_host(file) == SPARK
    kept = json.loads(file.read_text())
    file.write_text(json.dumps({**kept, "spark": {"trigger": 1.0}}))
    with pytest.raises(StatisticsError, match=r"units\.json"):
        load_host(file)
