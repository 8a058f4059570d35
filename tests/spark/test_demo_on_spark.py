"""Both acts of the demo, in little: the plan changes, and all runs give DuckDB's answer."""

from __future__ import annotations

import io
from pathlib import Path
from xml.etree import ElementTree

import pytest
from rich.console import Console

pytest.importorskip("pyspark")

from pyspark.sql import SparkSession

from examples.demo import drift, skew


@pytest.mark.spark
def test_a_query_that_adapts_changes_its_plan_when_the_streams_drift(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(drift, "ROWS", 3_000)
    monkeypatch.setattr(drift, "BATCHES", 24)
    monkeypatch.setattr(drift, "DRIFT", 8)
    out = io.StringIO()
    spec = drift.prepared_folder(tmp_path)
    assert drift.perform(tmp_path, spec, spark, Console(file=out, width=120), [])
    screen = out.getvalue()
    assert "so the query changes its plan from ((o p) s) to" in screen
    assert screen.count("passed: row for row the batch answer of DuckDB over the same files") == 2
    picture = (tmp_path / "plan.svg").read_text(encoding="utf-8")
    assert "ran last, batches" in picture
    assert "replaced before batch" in picture


@pytest.mark.spark
@pytest.mark.usefixtures("counted_costs")
def test_skewed_streams_are_joined_by_one_plan_and_by_a_mesh(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(skew, "BATCHES", 2)
    monkeypatch.setattr(skew, "SESSIONS", 8_000)
    monkeypatch.setattr(skew, "ORDER", ("mesh", "plan"))
    candidates = skew.candidates
    monkeypatch.setattr(skew, "candidates", lambda choice: candidates(choice)[:1])
    out = io.StringIO()
    assert skew.perform(tmp_path, spark, Console(file=out, width=80), [], seed=1)
    screen = out.getvalue()
    assert screen.count("passed: row for row the batch answer of DuckDB over the same files") == 2
    assert "Looked up first:" in screen
    assert "means of 1 runs each, in turn" in screen
    assert max(len(line) for line in screen.splitlines()) <= 80
    lines = ElementTree.parse(tmp_path / "mesh.svg").iter("{http://www.w3.org/2000/svg}path")
    assert len({line.get("stroke") for line in lines if line.get("stroke-linecap")}) > 2
