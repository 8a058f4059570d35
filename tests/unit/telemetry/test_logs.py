"""Events of the log as JSON lines, and as events of OpenLineage."""

from __future__ import annotations

import io
import json
import logging
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from anabranch.errors import HostError
from anabranch.telemetry import lineage
from anabranch.telemetry.logs import LOG, is_json, json_lines, log_event


@pytest.fixture
def lines() -> Iterator[io.StringIO]:
    stream = io.StringIO()
    handler, level = json_lines(stream), LOG.level
    yield stream
    LOG.removeHandler(handler)
    logging.getLogger("py.warnings").removeHandler(handler)
    logging.captureWarnings(False)
    LOG.setLevel(level)


def test_an_event_is_one_line_of_json(lines: io.StringIO) -> None:
    log_event("batch", run="orders", batch=12, rowsIn={"a": 5}, plan="((a b) c)")
    log_event("failed", logging.ERROR, run="orders", message="two\nlines")
    first, second = (json.loads(line) for line in lines.getvalue().splitlines())
    assert first | {"time": ""} == {
        "time": "",
        "level": "info",
        "event": "batch",
        "run": "orders",
        "batch": 12,
        "rowsIn": {"a": 5},
        "plan": "((a b) c)",
    }
    assert first["time"].endswith("Z")
    assert (second["level"], second["message"]) == ("error", "two\nlines")


def test_a_line_with_a_secret_stays_json(lines: io.StringIO) -> None:
    log_event(
        "failed",
        logging.ERROR,
        message='no access: {"password": "hunter2"} at jdbc:x://u:hunter2@h/db?password=hunter2',
    )
    (line,) = lines.getvalue().splitlines()
    assert "hunter2" not in line
    assert json.loads(line)["event"] == "failed"


def test_without_a_handler_nothing_is_logged(capsys: pytest.CaptureFixture[str]) -> None:
    log_event("batch", run="orders")
    assert capsys.readouterr() == ("", "")


def test_json_is_selected_by_option_or_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ANABRANCH_LOG", raising=False)
    assert (is_json("json"), is_json("text"), is_json(None)) == (True, False, False)
    monkeypatch.setenv("ANABRANCH_LOG", "json")
    assert (is_json(None), is_json("text")) == (True, False)


class Client:
    def __init__(self) -> None:
        self.events: list[Any] = []

    def emit(self, event: Any) -> None:
        self.events.append(event)


def test_a_run_sends_openlineage_events(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("openlineage.client")
    client = Client()
    stop = lineage.emit_lineage("prod", client)
    log_event("batch", run="of another time")
    log_event("started", run="orders", text="SELECT 1", inputs={"a": ["ts", "k"]}, outputs={"": "s3://lake/orders"})
    for number in range(3):
        log_event("batch", run="orders", batch=number)
    log_event("failed", logging.ERROR, run="orders", message="no room")
    log_event("ended", run="orders", failed=True)
    stop()
    assert [event.eventType.name for event in client.events] == ["START", "RUNNING", "FAIL"]
    first, *_, last = client.events
    assert (first.job.namespace, first.job.name) == ("prod", "orders")
    assert first.job.facets["sql"].query == "SELECT 1"
    assert [(each.namespace, each.name) for each in first.inputs] == [("prod", "a")]
    assert [(each.namespace, each.name) for each in first.outputs] == [("s3://lake", "/orders")]
    assert first.run.runId == last.run.runId
    assert last.run.facets["errorMessage"].message == "no room"
    log_event("started", run="later", text="", inputs={}, outputs={})
    assert len(client.events) == 3, "nothing is sent after the end"


def test_a_failing_receiver_is_reported_once(lines: io.StringIO) -> None:
    pytest.importorskip("openlineage.client")

    class Broken:
        def emit(self, event: Any) -> None:
            raise ConnectionError("nobody there")

    stop = lineage.emit_lineage("prod", Broken())
    log_event("started", run="orders", text="", inputs={}, outputs={})
    log_event("ended", run="orders", finished=True)
    stop()
    told = [line for line in lines.getvalue().splitlines() if '"lineage"' in line]
    assert len(told) == 1
    assert "nobody there" in told[0]


def test_without_openlineage_the_error_names_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "openlineage", None)
    monkeypatch.setitem(sys.modules, "openlineage.client", None)
    with pytest.raises(HostError, match="not installed") as refused:
        lineage.emit_lineage()
    assert "[lineage]" in refused.value.hint
