"""The engine's counts and bytes against the cost model's; processor time is left to the experiment."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

import pytest
from scipy.stats import spearmanr

from anabranch.calibrate import engine_costs as calibrate
from anabranch.calibrate.engine_costs import FEATURES, Measured, Workload, measure
from anabranch.cost.units import ENGINE, ENGINE_SIZES, UnitCosts
from anabranch.errors import StatisticsError
from anabranch.plan.text import parse
from anabranch.planning.calibration import calibrated, calibration_file, load_units, save_units
from anabranch.stats.view import KnownCosts
from lab import cost_model

CHAIN = Workload({"a": 300.0, "b": 400.0, "c": 500.0}, {("a", "b"): 0.002, ("b", "c"): 0.001}, 2.0)


def priced(load: Workload, text: str, feature: str) -> tuple[float, float]:
    """How often an operation is predicted and counted."""
    costs = {**dict.fromkeys(FEATURES, 0.0), "delete": 0.0, feature: 1.0}
    model = calibrate.model_of(load, UnitCosts(**costs, **ENGINE_SIZES))
    plan = parse(text)
    return model.price(plan).cpu, measure(load, plan, seed=1, seconds=5).counts[feature]


@pytest.mark.parametrize("feature", ["insert", "link", "insert_joined", "probe", "match", "match_relation", "emit"])
@pytest.mark.parametrize("text", ["(a b c | a>b>c, b>a>c, c>b>a)", "((a b) c)"])
def test_operations_are_counted_as_predicted(text: str, feature: str) -> None:
    predicted, counted = priced(CHAIN, text, feature)
    assert predicted == pytest.approx(counted, rel=0.15)


def test_checks_are_counted_where_a_theta_is() -> None:
    load = Workload(CHAIN.rates, CHAIN.selectivities, CHAIN.window, theta=True)
    predicted, counted = priced(load, "((a b) c)", "check")
    assert predicted == pytest.approx(counted, rel=0.15)
    assert counted > 0


@pytest.mark.parametrize("text", ["(a b c | a>b>c, b>a>c, c>b>a)", "((a b) c)", "(a (b c))"])
def test_bytes_are_predicted_within_fifteen_percent(text: str) -> None:
    predicted = calibrate.model_of(CHAIN, ENGINE).price(parse(text)).memory
    assert predicted == pytest.approx(measure(CHAIN, parse(text), seed=1, seconds=3).memory, rel=0.15)


def test_a_fit_finds_the_costs_behind_the_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs that cost exactly what twice the usual units say give back about twice the usual units."""
    rng = random.Random(1)

    def fake(load: Workload, plan: object, *, seed: int, seconds: int) -> Measured:
        counts = {feature: 10 ** rng.uniform(3, 5) for feature in FEATURES}
        counts["call"] = float(rng.randrange(4, 20))
        return Measured(sum(2 * getattr(ENGINE, name) * value for name, value in counts.items()), 0.0, counts)

    monkeypatch.setattr(calibrate, "measure", fake)
    units = calibrate.calibrate()
    for feature in FEATURES:
        assert getattr(units, feature) == pytest.approx(2 * getattr(ENGINE, feature), rel=0.05)


def test_workloads_differ_and_stay_bearable() -> None:
    loads = list(calibrate.workloads(random.Random(3), 6))
    assert len({load.window for load in loads}) > 1
    assert all(calibrate.model_of(load, ENGINE).base.rate < calibrate.MOST_BIRTHS for load in loads)
    assert any(load.theta for load in loads)
    for load in loads:
        assert len(calibrate.plans_of(load, random.Random(1), 3)) >= 2


def test_plans_with_cross_products_are_left_out() -> None:
    graph = CHAIN.query().graph
    assert calibrate._is_connected(parse("((a b) c)"), graph)
    assert not calibrate._is_connected(parse("((a c) b)"), graph)


def test_rank_correlation_is_spearmans() -> None:
    model = calibrate.model_of(CHAIN, ENGINE)
    texts = ["((a b) c)", "(a (b c))", "((a c) b)"]
    compared = [
        cost_model.Compared(CHAIN, parse(text), model.price(parse(text)), cpu, 1.0)
        for text, cpu in zip(texts, (1.0, 3.0, 2.0), strict=True)
    ]
    expected = spearmanr([c.predicted.cpu for c in compared], [1.0, 3.0, 2.0]).statistic
    assert cost_model.rank_correlation(compared) == pytest.approx(expected)


def test_a_calibration_is_found_again_and_explained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert calibrated().unit_costs() is None
    save_units(ENGINE, calibration_file())
    assert tmp_path in calibration_file().parents
    assert calibrated().unit_costs() == KnownCosts(ENGINE.by_name(), "calibrated")


def test_measuring_needs_no_plotting() -> None:
    program = "import sys; sys.modules['matplotlib'] = None; import anabranch.calibrate.engine_costs"
    subprocess.run([sys.executable, "-c", program], check=True)


def test_measured_costs_are_kept(tmp_path: Path) -> None:
    file = tmp_path / "machine" / "units.json"
    assert load_units(file) is None
    save_units(ENGINE, file)
    assert load_units(file) == ENGINE
    file.write_text("{")
    with pytest.raises(StatisticsError, match=r"units\.json"):
        load_units(file)
