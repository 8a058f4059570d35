"""The supervisor counts every descendant, and the search and the table say what was measured."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from benchmarks import report
from benchmarks.figures import Bound, Figure
from benchmarks.job import Outcome
from benchmarks.measure import Cost, Memory, measure
from benchmarks.scenarios import SCENARIOS, highest, split

BURN = "import time\nwhile time.process_time() < 0.3: pass\n"


@pytest.mark.skipif(sys.platform != "linux", reason="the supervisor reads /proc")
def test_processor_time_of_an_orphan_is_counted(tmp_path: Path) -> None:
    parent = f"import subprocess, sys\nsubprocess.Popen([sys.executable, '-c', {BURN!r}])\n"
    cost = measure([sys.executable, "-c", parent], timeout=60, log=tmp_path / "log", shared=tmp_path / "hot")
    assert cost.exit_code == 0
    assert cost.cpu >= 0.3


@pytest.mark.skipif(sys.platform != "linux", reason="the supervisor reads /proc")
def test_the_peak_holds_what_a_child_allocated_and_failure_is_told(tmp_path: Path) -> None:
    # Held for long enough that several of the ten samples a second fall into it, however slowly Python started.
    child = f"held = b'x' * 60_000_000\n{BURN.replace('0.3', '1.5')}print('so long')\nraise SystemExit(3)\n"
    cost = measure([sys.executable, "-c", child], timeout=60, log=tmp_path / "log", shared=tmp_path / "hot")
    assert cost.exit_code == 3
    assert cost.peak.private > 60_000_000
    assert (tmp_path / "log").read_text() == "so long\n"


@pytest.mark.skipif(sys.platform != "linux", reason="the supervisor reads /proc")
def test_what_takes_too_long_is_ended(tmp_path: Path) -> None:
    cost = measure(
        [sys.executable, "-c", "while True: pass"], timeout=0.2, log=tmp_path / "log", shared=tmp_path / "hot"
    )
    assert cost.exit_code == -9


def test_processor_time_between_instants_is_read_between_samples() -> None:
    cost = Cost(0, 4.0, 9.0, Memory(0, 0, 0), 3, clock=(10.0, 12.0, 14.0), cpu_so_far=(1.0, 3.0, 7.0))
    assert cost.cpu_between(11.0, 13.0) == pytest.approx(5.0 - 2.0)
    assert cost.cpu_between(9.0, 20.0) == pytest.approx(9.0)


def test_unmapped_shared_memory_is_memory_and_mapped_counts_once() -> None:
    assert Memory(private=10, mapped_shared=3, in_folder=7).total == 17
    assert Memory(private=10, mapped_shared=7, in_folder=3).total == 17


@pytest.mark.parametrize("start", [1_000, 90_000, 4_000_000])
def test_the_search_ends_near_the_highest_size_that_keeps_the_limit(start: int) -> None:
    tried: list[int] = []

    def trial(rows: int) -> float:
        tried.append(rows)
        return 0.4 + rows / 100_000

    found = highest(trial, start, 12, limit=2.0)
    assert 160_000 / 1.1 <= found <= 160_000
    assert len(tried) <= 12


def test_a_micro_batch_splits_into_parts_that_add_up_to_it() -> None:
    slots = [{"seconds": {"transfer": 0.2, "probe": 0.4}}, {"seconds": {"transfer": 0.4, "insert": 0.2}}]
    progress = {
        "timestamp": "2026-01-01T00:00:00.000Z",
        "durationMs": {"triggerExecution": 1500},
        "adaptive": {"durationMs": {"commit": 100.0}, "slotStatistics": slots},
    }
    parts = split(Outcome(0.0, 0.0, 0.0, (progress,)))
    assert parts["transfer"] == pytest.approx(0.3)
    assert parts["kernel"] == pytest.approx(0.2)
    assert parts["state"] == pytest.approx(0.1)
    assert parts["commit"] == pytest.approx(0.1)
    assert sum(parts.values()) == pytest.approx(1.5)


def test_the_table_tells_reached_from_missed_and_replaces_the_old_one(tmp_path: Path) -> None:
    reached = Figure("rows/s over Spark's", "x", (3.0, 5.0, 4.0), Bound("at least", 3.0))
    missed = Figure("own part", "s", (0.3,), Bound("at most", 0.25))
    page = tmp_path / "page.md"
    page.write_text(f"before\n{report.BEGIN}\nold\n{report.END}\nafter\n")
    found = {
        "commit": "abc",
        "machine": report.machine(),
        "scenarios": {"one": [entry(reached), entry(missed), entry(Figure("ours", "rows/s", (125_000.0,)))]},
    }
    report.put_in_page(report.table({"one": found}), page)
    text = page.read_text()
    assert "| rows/s over Spark's | ≥ 3 x | 4 x (3 to 5) | yes | one |" in text
    assert "| own part | ≤ 0.25 s | 0.3 s | **no** | one |" in text
    assert "125,000" not in text
    assert "| one | ours | 125,000 rows/s | 1 | abc |" in report.everything({"one": found})
    assert "old" not in text
    assert text.startswith("before\n")
    assert text.endswith("after\n")


def test_a_comparison_with_a_rival_is_one_line() -> None:
    figures = [
        Figure("W3: rows/s over Spark's own joins (native)", "x", (4.0,), Bound("at least", 6.0)),
        Figure("W3: CPU seconds over Spark's own (native)", "x", (0.2,), Bound("at most", 0.25)),
        Figure("W3: peak memory over Spark's own (native)", "x", (0.3,)),
    ]
    found = {"commit": "abc", "machine": report.machine(), "scenarios": {"spark-w3": [entry(each) for each in figures]}}
    text = report.table({"spark-w3": found})
    assert "| W3 | 4 x (≥ 6: **no**) | 0.2 x (≤ 0.25: yes) | 0.3 x | spark-w3 |" in text
    assert "CPU seconds" not in text
    assert "Measured beside" not in text
    beside = report.table({"spark-w3": {**found, "beside": "a soak test"}})
    assert beside.endswith("Measured beside a soak test: spark-w3.")


def test_figures_stand_under_their_topic_and_none_is_lost() -> None:
    ours = entry(Figure("ours", "x", (2.0,)))
    names = [scenario.name for scenario in SCENARIOS]
    results = {name: {"commit": "abc", "scenarios": {name: [ours]}} for name in [*names, "unheard of"]}
    found = dict(report.by_topic(results))
    assert [each.scenario for each in found["Latency of a result"]][:2] == ["latency-fifth", "latency-half"]
    assert [each.scenario for each in found[report.OTHERS]] == ["unheard of"]
    assert sum(len(entries) for entries in found.values()) == len(results)


def test_scenarios_have_names_of_their_own() -> None:
    assert len({scenario.name for scenario in SCENARIOS}) == len(SCENARIOS)


def entry(figure: Figure) -> dict[str, object]:
    bound = None if figure.bound is None else {"sense": figure.bound.sense, "value": figure.bound.value}
    return {"what": figure.what, "unit": figure.unit, "values": list(figure.values), "bound": bound}
