"""What checks cost inside Spark: from times to ratios, and to the file of this machine and back."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from anabranch.calibrate.file import calibrated_checks, calibration_file, load_checks, load_host, load_units, save_units
from anabranch.cost.host import SPARK
from anabranch.cost.units import ENGINE
from anabranch.errors import StatisticsError
from anabranch.plan.check_ratios import BUILT_IN, CheckRatios
from anabranch.spark_checks import CHECKS, Times, described_ratios, notes, ratios_of

SEEN = Times(spark=3e-7, reading=1e-7, engine=1e-7)


def test_reading_is_not_part_of_a_check() -> None:
    assert SEEN.ratio == pytest.approx(2.0)


@pytest.mark.parametrize(
    "odd",
    [
        replace(SEEN, engine=0.0),
        replace(SEEN, engine=-1e-9),
        replace(SEEN, spark=0.0),
        replace(SEEN, spark=9e-8),  # faster than reading alone
        replace(SEEN, spark=1.05e-7),  # hardly slower
        replace(SEEN, spark=float("nan")),
        replace(SEEN, reading=0.0),
        replace(SEEN, engine=float("inf")),
    ],
)
def test_what_was_not_seen_clearly_is_built_in(odd: Times) -> None:
    assert odd.ratio is None
    found = ratios_of({**dict.fromkeys(CHECKS, SEEN), "like": odd})
    assert found.like == BUILT_IN.like
    assert found.concat == pytest.approx(2.0)
    shown = {line.split()[0]: line for line in described_ratios(found)}
    assert shown.keys() == CHECKS.keys()
    assert "built in: not seen clearly here" in shown["like"]
    assert "2.00 times   (2.6 built in)" in shown["concat"]


def test_ratios_stand_beside_the_costs_and_come_back(tmp_path: Path) -> None:
    file, ratios = tmp_path / "units.json", CheckRatios.from_names({"rlike": 3.5, "concat": 0.8})
    save_units(ENGINE, file, SPARK, ratios)
    assert (load_units(file), load_host(file), load_checks(file)) == (ENGINE, SPARK, ratios)
    # What is as built in is not kept: a later release may know better.
    assert json.loads(file.read_text())["checks"] == {"rlike": 3.5, "concat": 0.8}
    # The engine alone is measured again: the rest stays.
    save_units(replace(ENGINE, probe=1.0), file)
    assert (load_host(file), load_checks(file)) == (SPARK, ratios)


def test_a_file_of_an_earlier_release_has_no_ratios(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert calibrated_checks() is None
    save_units(ENGINE, calibration_file(), SPARK)
    assert "checks" not in json.loads(calibration_file().read_text())
    assert calibrated_checks() is None
    assert (load_units(calibration_file()), load_host(calibration_file())) == (ENGINE, SPARK)


def test_a_file_of_another_release_may_have_more_or_fewer(tmp_path: Path) -> None:
    file = tmp_path / "units.json"
    save_units(ENGINE, file, SPARK, BUILT_IN)
    kept = json.loads(file.read_text())
    file.write_text(json.dumps({**kept, "checks": {"soundex": 4.0, "like": 5.0}}))
    assert load_checks(file) == replace(BUILT_IN, like=5.0)
    file.write_text(json.dumps({**kept, "checks": {"like": -5.0}}))
    with pytest.raises(StatisticsError, match=r"units\.json"):
        load_checks(file)


def test_rows_are_the_same_for_the_same_seed() -> None:
    assert notes(50_000, 3) == notes(50_000, 3)
    assert notes(50_000, 3) != notes(50_000, 4)
