"""A password in the options of a query is nowhere to be seen: page, metrics, history, report, logs, lineage, errors.

It is planted in the options of the sources and of the sink, and in the address of the sink.
"""

from __future__ import annotations

import io
import json
import logging
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import anabranch
from anabranch.api import Session
from anabranch.console.runs import LiveRun
from anabranch.console.server import Console
from anabranch.errors import SinkError
from anabranch.telemetry.lineage import emit_lineage
from anabranch.telemetry.logs import LOG, json_lines
from tests.spark.stories import FEEDS, SPARK_COLUMNS, STREAM, Story, cut, feed

pytestmark = pytest.mark.spark
SECRET = "Tr0ub4dor-3"
STORY = Story(
    "SELECT a.p AS p0, b.p AS p1 FROM s0 [RANGE 10 SECONDS] AS a, s1 [RANGE 6 SECONDS] AS b WHERE a.x = b.x", rows=40
)
ADDRESS = f"jdbc:nosuch://me:{SECRET}@nowhere/db?password={SECRET}"
SINKS = {
    "files": ("csv", {"password": SECRET, "apiKey": SECRET}),
    "a database that is not there": ("jdbc", {"url": ADDRESS, "dbtable": "t", "password": SECRET}),
    "and in one transaction": ("jdbc", {"url": ADDRESS, "dbtable": "t", "password": SECRET, "batchColumn": "batch"}),
}


class Kept:
    """Has the interface of OpenLineage's client and keeps the events."""

    def __init__(self) -> None:
        self.events: list[str] = []

    def emit(self, event: object) -> None:
        self.events.append(repr(event))


@pytest.fixture
def lines() -> Iterator[io.StringIO]:
    stream = io.StringIO()
    level, propagates = LOG.level, LOG.propagate
    handler = json_lines(stream)
    yield stream
    for logger in (LOG, logging.getLogger("py.warnings")):
        logger.removeHandler(handler)
    logging.captureWarnings(False)
    LOG.setLevel(level)
    LOG.propagate = propagates


def with_secret(spark: SparkSession, folder: Path) -> Session:
    session = anabranch.Session(spark)
    reader = spark.readStream.schema(f"{SPARK_COLUMNS}, {STREAM} string").option("maxFilesPerTrigger", 1)
    source = reader.option("password", SECRET).parquet(str(folder / FEEDS))
    for name in STORY.streams:
        session.register(name, source.where(source[STREAM] == name).drop(STREAM), "ts", watermark="0 seconds")
    return session


def read(url: str) -> str:
    with urllib.request.urlopen(url, timeout=30) as answer:
        return str(answer.read().decode())


@pytest.mark.parametrize("kind", SINKS)
def test_a_planted_password_is_seen_nowhere(
    kind: str,
    spark: SparkSession,
    tmp_path: Path,
    lines: io.StringIO,
    capfd: pytest.CaptureFixture[str],
) -> None:
    format, options = SINKS[kind]
    for batch in cut(STORY.tables(), 2):
        feed(tmp_path, batch)
    client = Kept()
    end = emit_lineage("test", client)
    writer = (
        with_secret(spark, tmp_path)
        .sql(STORY.cql)
        .writeStream.format(format)
        .options(**options)
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .slots(1)
    )
    if format != "jdbc":
        writer = writer.option("path", str(tmp_path / "out"))
    handle = writer.start()
    shown: dict[str, str] = {}
    if format == "csv":
        handle.awaitTermination()
    else:
        with pytest.raises(SinkError) as refused:
            handle.awaitTermination()
        error = refused.value
        shown["error"] = f"{error}\n{error!r}\n{error.detail}\n{error.hint}"
    end()
    run = LiveRun(handle)
    with Console(lambda: [run]) as console:
        shown["page"] = read(console.url)
        shown["runs"] = read(f"{console.url}api/runs")
        shown["metrics"] = read(f"{console.url}metrics")
        with urllib.request.urlopen(f"{console.url}api/runs/{handle.runId}/events", timeout=30) as events:
            shown["events"] = events.readline().decode()
    assert "anabranch_up" in shown["metrics"]
    assert "status" in shown["events"]
    shown["report"] = json.dumps(handle.report())
    shown["history"] = json.dumps(handle.history)
    shown["progress"] = json.dumps(handle.recentProgress, default=str)
    shown["handle"] = f"{handle!r} {handle._repr_html_()} {handle.exception()}"
    shown["explanation"] = writer.explanation()
    shown["log"] = lines.getvalue()
    assert '"event": "started"' in shown["log"]
    shown["lineage"] = "\n".join(client.events)
    assert client.events
    out, err = capfd.readouterr()
    shown["terminal"] = out + err
    for file in (tmp_path / "checkpoint").rglob("*"):
        if file.is_file():
            shown[str(file.relative_to(tmp_path))] = file.read_bytes().decode("latin-1")
    found = {where: text for where, text in shown.items() if SECRET in text}
    assert not found, "\n".join(
        f"{where}: …{text[max(0, text.index(SECRET) - 200) :][:300]}" for where, text in found.items()
    )
