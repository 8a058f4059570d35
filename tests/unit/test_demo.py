"""The demo's data and its check; that it runs on Spark is seen in tests/spark."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

pytest.importorskip("pyspark")

from anabranch.cost.resources import Resources
from anabranch.optimize.proposals import Candidate, Proposal
from anabranch.plan.text import parse
from anabranch.planning.explain import Explanation
from anabranch.spec.file import load
from anabranch.stats.step import StateStatistics, StepStatistics
from examples.demo import drift, skew
from examples.demo.check import Check, compare


def write(folder: Path, streams: dict[str, list[pa.Table]]) -> None:
    for name, tables in streams.items():
        (folder / "streams" / name).mkdir(parents=True)
        for index, table in enumerate(tables):
            pq.write_table(table, folder / "streams" / name / f"{index}.parquet")
    (folder / "results").mkdir()


def checked(folder: Path) -> Check:
    (check,) = compare(folder / "streams", drift.NAMES, drift.BATCH_ANSWER, folder / "results")
    return check


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drift, "ROWS", 600)
    monkeypatch.setattr(drift, "MANY", 2_000)
    monkeypatch.setattr(drift, "BATCHES", 4)
    monkeypatch.setattr(drift, "DRIFT", 2)


def test_files_follow_each_other_and_keys_change_their_number_with_the_drift() -> None:
    streams = drift.generate(4, seed=3)
    for tables in streams.values():
        ends = [(pc.min(table["ts"]).as_py(), pc.max(table["ts"]).as_py()) for table in tables]
        assert all(newest <= oldest for (_, newest), (oldest, _) in pairwise(ends))
    few = [
        (pc.count_distinct(t["account"]).as_py() < 100, pc.count_distinct(t["depot"]).as_py() < 100)
        for t in streams["payments"]
    ]
    assert few == [(False, True)] * 2 + [(True, False)] * 2


def test_triggers_after_the_change_are_compared() -> None:
    began = {"kind": "migration", "phase": "began", "batch": 1}
    runs = {"kept": drift.Ran((1.0, 9.0, 4.0, 2.0), [], []), "adapting": drift.Ran((1.0, 9.0, 1.0, 1.0), [], [began])}
    assert drift.factor(runs) == 3.0


def test_the_same_seed_gives_the_same_streams() -> None:
    assert drift.generate(3, seed=5) == drift.generate(3, seed=5)
    assert drift.generate(3, seed=5) != drift.generate(3, seed=6)


def test_the_check_counts_what_is_missing_and_what_is_too_many(tmp_path: Path) -> None:
    write(tmp_path, drift.generate(4, seed=1))
    empty = checked(tmp_path)
    assert empty.missing > 0
    assert not empty.has_passed

    import duckdb

    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        for name in ("orders", "payments", "shipments"):
            connection.execute(f"CREATE VIEW {name} AS FROM '{tmp_path}/streams/{name}/*.parquet'")
        connection.execute(f"COPY ({drift.BATCH_ANSWER}) TO '{tmp_path}/results/0.parquet' (FORMAT parquet)")
    assert checked(tmp_path) == Check(empty.missing, 0, 0)

    whole = pq.read_table(tmp_path / "results" / "0.parquet")
    pq.write_table(whole.slice(0, 1), tmp_path / "results" / "1.parquet")
    assert checked(tmp_path) == Check(empty.missing + 1, 0, 1)


def test_in_every_office_something_hardly_ever_happens() -> None:
    streams = skew.generate(2, 2_000, seed=1)
    for office, lacking in enumerate(skew.LACKING, start=1):
        rows = {
            name: sum(pc.sum(pc.equal(pc.divide(table["session"], skew.OFFICE), office)).as_py() for table in tables)
            for name, tables in streams.items()
        }
        assert min(rows, key=lambda name: rows[name]) == lacking
        assert rows[lacking] < 0.02 * sum(rows.values()) / len(rows)


def test_files_of_the_skewed_streams_follow_each_other_in_time(tmp_path: Path) -> None:
    for tables in skew.generate(3, 300, seed=2).values():
        ends = [(pc.min(table["ts"]).as_py(), pc.max(table["ts"]).as_py()) for table in tables]
        assert all(newest <= oldest for (_, newest), (oldest, _) in pairwise(ends))


def test_the_skewed_query_equals_the_text_for_duckdb(tmp_path: Path) -> None:
    """Both texts name the same sums and windows; that the answers agree is seen when the demo runs."""
    file = tmp_path / "skewed.yaml"
    file.write_text(skew.SPEC, encoding="utf-8")
    spec = load(file)
    graph = Explanation(spec.only.query, spec.catalog()).query.graph
    assert {relation.stream for relation in graph.relations} == set(skew.NAMES)
    assert {relation.window.range for relation in graph.relations} == {20_000_000}
    (risks,) = graph.thetas
    assert str(risks).replace("(", "").replace(")", "") in skew.BATCH_ANSWER


def entry(batch: int, plan: str, rows: int, kept: int) -> dict[str, Any]:
    step = StepStatistics(
        states=(StateStatistics("o", kept, 0), StateStatistics("(o p)", 3 * kept, 0)),
    )
    counts = {"rowsIn": {"orders": rows, "payments": 2 * rows, "shipments": rows}, "rowsOut": rows // 2}
    return {"batchId": batch, "adaptive": {"plan": plan, **counts, "statistics": step.to_json()}}


def test_each_plan_of_a_run_has_the_counts_of_its_own_batches() -> None:
    idle = {"batchId": 2, "adaptive": None}
    first, second = drift.stretches(
        [entry(0, "((o p) s)", 100, 50), entry(1, "((o p) s)", 10, 60), idle, entry(3, "((o s) p)", 7, 70)]
    )
    assert (first.plan, first.first, first.last, first.rows_out) == ("((o p) s)", 0, 1, 55)
    assert first.rows_in == {"orders": 110, "payments": 220, "shipments": 110}
    assert first.kept == {"o": 60, "(o p)": 180}
    assert (second.plan, second.first, second.last, second.rows_out) == ("((o s) p)", 3, 3, 3)
    assert second.rows_in["payments"] == 14


def test_the_picture_shows_the_last_plan_first_and_the_plan_it_replaced(tmp_path: Path) -> None:
    spec = drift.prepared_folder(tmp_path)
    ran = drift.stretches([entry(0, "((o p) s)", 100, 50), entry(1, "((o s) p)", 8, 70)])
    picture = drift._picture(spec, ran)
    last, replaced = picture.index("ran last, batches 1 to 1"), picture.index("replaced before batch 1, batches 0 to 0")
    assert last < replaced
    assert last < picture.index("4 results in these batches") < replaced < picture.index("50 results in these batches")
    assert replaced < picture.index("150 rows kept at the end")


def test_the_single_plan_is_the_best_of_all_kinds_that_fit() -> None:
    def candidate(text: str, cpu: float, memory: float) -> Candidate:
        return Candidate(parse(text), Resources(cpu, memory, 1.0), "")

    considered = (
        candidate("(a b c)", 3.0, 1e6),
        candidate("(a b c | a>c>b)", 2.0, 1e6),
        candidate("((a b) c)", 1.0, 2 * skew.MOST_MEMORY),
        candidate("((a c) b)", 4.0, 1e6),
    )
    answer = Proposal(considered[0].plan, considered[0].cost, "", considered=considered)
    choice: Any = SimpleNamespace(answer=answer)
    assert [str(plan) for plan in skew.candidates(choice)] == ["(a b c | a>c>b)", "((a c) b)"]


def test_single_plan_and_mesh_take_turns() -> None:
    assert sorted(skew.ORDER) == ["mesh", "mesh", "plan", "plan"]
    places = {way: [place for place, each in enumerate(skew.ORDER) if each == way] for way in ("plan", "mesh")}
    assert sum(places["plan"]) == sum(places["mesh"])
