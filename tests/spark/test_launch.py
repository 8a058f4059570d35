"""A spec file becomes a running query: the example of the repository, end to end, and plans chosen by a sample."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from pyspark.errors import StreamingQueryException

from anabranch.api.settings import LateSettings
from anabranch.cli.main import main
from anabranch.errors import CatalogError, HostError, NoFeasiblePlan
from anabranch.lang.ddl import parse_schema
from anabranch.lang.schema import TIMESTAMP
from anabranch.optimize import Proposal
from anabranch.spark.failure import named_end
from anabranch.spec import launch
from anabranch.spec.file import load
from anabranch.spec.launch import prepare, read, start
from anabranch.spec.model import SinkSpec, Spec, StreamSpec

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from anabranch.run.stream_sample import StreamSample

EXAMPLE = Path(__file__).parents[2] / "examples" / "orders.yaml"


@pytest.mark.spark
def test_the_example_gives_the_orders_that_were_paid_and_shipped_in_time(spark: SparkSession, tmp_path: Path) -> None:
    sink = SinkSpec("json", str(tmp_path / "out"), partition_by=("carrier",))
    spec = load(EXAMPLE).each(lambda query: replace(query, sink=sink))
    handle = start(replace(spec, checkpoint=str(tmp_path / "checkpoint")), spark)
    handle.awaitTermination()
    rows = spark.read.json(str(tmp_path / "out")).orderBy("order_id").collect()
    # Order 2 was not paid in full; order 3 was shipped more than five minutes after its payment.
    assert [(row.order_id, row.customer, row.carrier) for row in rows] == [
        (1, "Ada", "rail"),
        (4, "Dora", "barge"),
        (5, "Emil", "air"),
    ]
    folders = {folder.name for folder in (tmp_path / "out").glob("carrier=*")}
    assert folders == {"carrier=rail", "carrier=barge", "carrier=air"}
    report = handle.report()
    assert report["rows_in"] == 15
    assert report["rows_out"] == 3
    # The files of a fresh clone have no order in time, so the example reads them in one batch.
    assert len(report["batches"]) == 1


@pytest.mark.spark
def test_columns_of_a_source_that_knows_them_may_be_written_down_too(spark: SparkSession) -> None:
    text = "timestamp timestamp, value bigint"
    frame = read(StreamSpec("r", "rate", None, None, parse_schema(text), text, "timestamp"), spark)
    assert frame.isStreaming
    assert frame.columns == ["timestamp", "value"]


@pytest.mark.spark
@pytest.mark.parametrize(
    ("format", "table", "said"),
    [
        ("json", None, "Path does not exist"),
        ("no.such.source", None, "Failed to find the data source: no.such.source"),
        (None, "no_such_table", "`no_such_table` cannot be found"),
    ],
)
def test_a_source_that_cannot_be_opened_is_named(
    format: str | None, table: str | None, said: str, spark: SparkSession, tmp_path: Path
) -> None:
    path = None if table else str(tmp_path / "missing")
    with pytest.raises(CatalogError, match="stream 's' cannot be read") as caught:
        read(StreamSpec("s", format, path, table, parse_schema("ts timestamp"), "ts timestamp", "ts"), spark)
    assert said in caught.value.detail


@pytest.fixture
def sampled_spec(tmp_path: Path) -> Path:
    """Three folders of files: `a` is ten times as fast as the others, and its keys repeat."""
    random = np.random.default_rng(1)
    for name, count, values in (("a", 5000, 50), ("b", 500, 50), ("c", 500, 200)):
        (tmp_path / name).mkdir()
        for part in range(2):
            times = pa.array(np.sort(random.integers(0, 10_000_000, count)) + part * 10_000_000).cast(
                pa.timestamp("us")
            )
            keys = {"k": random.integers(0, values, count), "v": random.integers(0, 100, count)}
            pq.write_table(pa.table({"ts": times.cast(TIMESTAMP), **keys}), tmp_path / name / f"{part}.parquet")
    streams = {
        name: {"format": "parquet", "path": name, "schema": "ts timestamp, k bigint, v bigint", "event_time": "ts"}
        for name in "abc"
    }
    document = {
        "streams": streams,
        "query": "SELECT a.v AS x, c.v AS y FROM a [RANGE 5 SECONDS], b [RANGE 5 SECONDS], c [RANGE 5 SECONDS] "
        "WHERE a.k = b.k AND b.v = c.v AND a.v < 20",
        "sink": {"format": "noop"},
        "checkpoint": "checkpoint",
    }
    file = tmp_path / "spec.yaml"
    file.write_text(yaml.safe_dump(document))
    return file


@pytest.mark.spark
def test_auto_chooses_by_the_first_rows_of_the_streams(spark: SparkSession, sampled_spec: Path) -> None:
    choice = prepare(load(sampled_spec), spark).choices()[""]
    used = {item.what: item.value for item in choice.estimates.used if item.provenance == "sampled"}
    assert used["rate of a"] == pytest.approx(500, rel=0.05)
    assert used["rate of b"] == pytest.approx(50, rel=0.1)
    assert used["selectivity of (a.v < 20) AND a.k IS NOT NULL"] == pytest.approx(0.2, rel=0.1)
    assert used["selectivity of a.k = b.k"] == pytest.approx(1 / 50, rel=0.15)
    assert used["selectivity of b.v = c.v"] == pytest.approx(1 / 100, rel=0.2)
    assert isinstance(choice.answer, Proposal)


@pytest.mark.spark
def test_limits_that_no_plan_keeps_start_nothing(spark: SparkSession, sampled_spec: Path, tmp_path: Path) -> None:
    spec = load(sampled_spec)
    with pytest.raises(NoFeasiblePlan, match=r"no plan fits within 'limits\.memory'") as caught:
        start(spec.each(lambda each: replace(each, plan_options=each.plan_options.with_limits(memory="1 kB"))), spark)
    assert "write 'limits: {memory:" in caught.value.hint
    assert not (tmp_path / "checkpoint").exists()
    assert not spark.streams.active


@pytest.mark.spark
def test_a_folder_without_files_is_not_sampled(spark: SparkSession, sampled_spec: Path, tmp_path: Path) -> None:
    for file in (tmp_path / "b").iterdir():
        file.unlink()
    choice = prepare(load(sampled_spec), spark).choices()[""]
    used = {item.what: item.provenance for item in choice.estimates.used}
    assert used["rate of a"] == "sampled"
    assert used["rate of b"] == "assumed"


@pytest.mark.spark
def test_a_sample_of_many_files_is_scaled_to_all_of_them(
    spark: SparkSession, sampled_spec: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("anabranch.run.stream_sample.MOST_FILES", 1)
    used = {item.what: item.value for item in prepare(load(sampled_spec), spark).choices()[""].estimates.used}
    assert used["rate of a"] == pytest.approx(500, rel=0.1)


def with_queries(file: Path, *conditions: str) -> Path:
    """The spec with a query for each condition in place of its own, and one of a single relation."""
    document = yaml.safe_load(file.read_text())
    text, sink = document.pop("query"), document.pop("sink")
    queries = [text.replace("a.v < 20", condition) for condition in conditions]
    queries.append("SELECT d.v AS x FROM a [RANGE 1 SECOND] AS d")
    document["queries"] = {f"q{number}": {"query": query, "sink": sink} for number, query in enumerate(queries)}
    together = file.with_name("together.yaml")
    together.write_text(yaml.safe_dump(document))
    return together


@pytest.mark.spark
def test_several_queries_are_explained_by_one_session_and_one_sample_of_each_stream(
    spark: SparkSession, sampled_spec: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each query had a session of its own, in which all its streams were sampled again."""
    happened: Counter[str] = Counter()
    look = launch.sample

    def session(chosen: Spec, **settings: str) -> SparkSession:
        happened["session"] += 1
        return spark

    def sample(stream: StreamSpec, spark: SparkSession) -> StreamSample | None:
        happened[stream.name] += 1
        return look(stream, spark)

    monkeypatch.setattr(launch, "session", session)
    monkeypatch.setattr(launch, "sample", sample)
    monkeypatch.setattr(type(spark), "stop", lambda self: None)
    assert main(["explain", str(sampled_spec), "--sample"]) == 0
    alone = capsys.readouterr().out
    happened.clear()
    assert main(["explain", str(with_queries(sampled_spec, "a.v < 20", "a.v < 50")), "--sample"]) == 0
    together = capsys.readouterr().out
    assert happened == Counter(["session", "a", "b", "c"])
    # What is known of a query, and the plan that follows, is what it would be alone; the grid is that of all queries,
    # and they share what Spark takes for a trigger.
    assert f"== q0 ==\n{alone.partition(chr(10) + 'in each slot ')[0]}" in together
    assert "sampled" in together.split("== q1 ==")[1]


@pytest.mark.spark
def test_a_sample_that_is_asked_for_is_taken_also_where_there_is_only_one_plan(
    spark: SparkSession, sampled_spec: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`explain --sample` said that all numbers were guesses, and to use --sample."""
    monkeypatch.setattr(launch, "session", lambda chosen, **settings: spark)
    monkeypatch.setattr(type(spark), "stop", lambda self: None)
    assert main(["explain", str(sampled_spec), "--sample", "--plan", "(a b c)", "--slots", "1"]) == 0
    assert "sampled" in capsys.readouterr().out


RATE = """
streams: {s: {format: rate, event_time: timestamp, watermark: 0 seconds}}
query: SELECT a.value AS x FROM s [RANGE 10 SECONDS] AS a, s [RANGE 10 SECONDS] AS b WHERE a.value = b.value
sink: {format: noop}
checkpoint: ckpt
"""


@pytest.mark.spark
def test_explain_with_a_sample_asks_spark_for_columns_and_formats(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(launch, "session", lambda chosen, **settings: spark)
    monkeypatch.setattr(type(spark), "stop", lambda self: None)
    file = tmp_path / "rate.yaml"
    file.write_text(RATE)
    assert main(["explain", str(file)]) == 2
    assert "entry 'streams.s.schema' is missing" in capsys.readouterr().err
    assert main(["explain", str(file), "--sample"]) == 0
    shown = capsys.readouterr().out
    assert "key k0: a.value = b.value" in shown
    # A source that cannot be sampled was told to use --sample.
    assert "are guesses; no source has a sample of them; write 'stats'" in shown
    file.write_text(RATE.replace("noop", "nope"))
    assert main(["explain", str(file), "--sample"]) == 2
    assert "Spark has no sink format 'nope'" in capsys.readouterr().err


@pytest.mark.spark
def test_a_filter_that_fails_on_sampled_rows_hides_nothing_of_the_other_queries(
    spark: SparkSession, sampled_spec: Path, caplog: pytest.LogCaptureFixture
) -> None:
    spec = load(with_queries(sampled_spec, "a.v < 20", "a.v * 9223372036854775807 > 5"))
    choices = prepare(spec, spark).choices()
    sources = {name: {item.provenance for item in choice.estimates.used} for name, choice in choices.items()}
    assert "sampled" in sources["q0"]
    assert "sampled" not in sources["q1"]
    assert "could not be sampled" in caplog.text


def test_what_spark_ends_a_query_by_is_told_in_one_line() -> None:
    said = (
        "[STREAM_FAILED] Query [id = 1, runId = 2] terminated with exception: no broker SQLSTATE: XXKST\n=== Plan ==="
    )
    with pytest.raises(HostError, match="the query was ended by Spark") as caught, named_end():
        raise StreamingQueryException(said)
    assert caught.value.detail == "no broker"


def test_late_rows_are_partitioned_as_the_spec_says() -> None:
    sink = SinkSpec("csv", "late", options=(("sep", ";"),), partition_by=("stream",))
    assert launch._late(sink) == LateSettings("csv", "late", {"sep": ";"}, ("stream",))
