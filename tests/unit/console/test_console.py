"""The console: its figures are those of the progress, its metrics count once, and only a token changes anything."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families
from starlette.testclient import TestClient

from anabranch.console.command import address
from anabranch.console.points import BatchPoint
from anabranch.console.runs import LiveRun, StoredRun
from anabranch.console.server import Console
from anabranch.console.watching import MOST_RECORDS, Watch, WatchedRun
from anabranch.console.web import make_app, page
from anabranch.errors import CheckpointError, HostError, SpecError
from anabranch.run.local import LocalHost
from tests.unit.console.scripted import BEGAN, DECISION, MESH, QUERY, START, TREE, ScriptedHandle, progress


@pytest.fixture
def handle() -> ScriptedHandle:
    handle = ScriptedHandle()
    handle.add()
    return handle


@pytest.fixture
def watch(handle: ScriptedHandle) -> Iterator[Watch]:
    run = LiveRun(handle)
    watch = Watch(lambda: [run])
    yield watch
    watch.close()


def client(watch: Watch, token: str | None = "secret") -> TestClient:
    return TestClient(make_app(watch, token, ["127.0.0.1"]), base_url="http://127.0.0.1")


def ask(client: TestClient, action: str, token: str = "secret", **wanted: Any) -> httpx.Response:
    headers = {"Authorization": f"Bearer {token}"}
    return client.post(f"/api/runs/run-pairs/{action}", json=wanted, headers=headers)


def test_a_point_has_the_numbers_of_the_progress() -> None:
    point = BatchPoint.of(progress(3))
    assert point is not None
    assert (point.batch, point.trigger, point.backlog) == (3, 1.5, 7.0)
    assert point.own == pytest.approx(0.4)
    assert (point.rows_out, point.late, point.state_rows) == (12, {"a": 1}, 130)
    assert [(slot.slot, slot.groups, slot.cpu) for slot in point.slots] == [(0, 3, 0.3), (1, 1, 0.1)]
    assert point.lag == pytest.approx(1_700_000_046 - 1_700_000_003)


def test_a_trigger_without_a_batch_is_no_point() -> None:
    assert BatchPoint.of({**progress(0), "adaptive": None}) is None


def test_every_batch_is_counted_once_however_often_one_looks(handle: ScriptedHandle) -> None:
    seen = WatchedRun(LiveRun(handle))
    for _ in range(3):
        handle.add(records=[DECISION])
        seen.look()
        seen.look()
    # Two batches between two looks, as when batches are short.
    handle.add(records=[BEGAN])
    handle.add()
    seen.look()
    assert [sample.batch for sample in seen.curve.samples] == [0, 1, 2, 3, 4, 5]
    assert (seen.totals.batches, seen.totals.rows_in["a"], seen.totals.rows_out["pairs"]) == (6, 240, 72)
    assert (seen.totals.decisions["keep"], seen.totals.migrations) == (3, 1)


def test_records_are_listed_once_whether_from_the_history_or_from_a_batch(handle: ScriptedHandle) -> None:
    handle.add(records=[DECISION])
    seen = WatchedRun(LiveRun(handle))
    handle.add(records=[BEGAN])
    seen.look()
    assert seen.records == [DECISION, BEGAN]


def test_news_begin_behind_the_batch_that_a_viewer_has(handle: ScriptedHandle) -> None:
    seen = WatchedRun(LiveRun(handle))
    handle.add()
    seen.look()
    assert [each["batch"] for each in json.loads(seen.news(-1).text)["samples"]] == [0, 1]
    assert [each["batch"] for each in json.loads(seen.news(0).text)["samples"]] == [1]


def test_the_end_of_a_run_is_told(handle: ScriptedHandle) -> None:
    seen = WatchedRun(LiveRun(handle))
    assert seen.status == "running"
    handle.isActive, handle.error = False, ValueError("no space")
    seen.look()
    assert seen.status == "failed: no space"


def test_only_the_progress_of_the_last_minute_is_kept(handle: ScriptedHandle) -> None:
    for _ in range(100):  # one every two seconds
        handle.add()
    recent, seconds = WatchedRun(LiveRun(handle)).minute()
    assert ([each["batchId"] for each in recent], seconds) == (list(range(70, 101)), 60)


def test_a_run_without_batches_for_a_minute_is_idle_or_busy_with_one(handle: ScriptedHandle) -> None:
    now = handle.now()
    seen = WatchedRun(LiveRun(handle), lambda: now)
    assert (seen.quiet, seen.version) == ("", 1)
    now += 61
    seen.look()
    assert (seen.quiet, seen.version) == ("busy", 2)
    handle.status["isDataAvailable"] = False
    seen.look()
    seen.look()
    assert (seen.quiet, seen.version) == ("idle", 3)
    assert json.loads(seen.news(0).text)["quiet"] == "idle"
    handle.isActive = False
    seen.look()
    assert (seen.quiet, seen.status) == ("", "ended")


def test_records_begin_with_the_first_plan_however_many_follow(handle: ScriptedHandle) -> None:
    handle.history += [START, *({**DECISION, "batch": number} for number in range(MOST_RECORDS + 5))]
    seen = WatchedRun(LiveRun(handle))
    assert seen.records[0] == START
    assert len(seen.records) == MOST_RECORDS + 1


def test_a_restart_shows_why_its_own_first_plan_was_taken(handle: ScriptedHandle) -> None:
    again = {**START, "batch": 3, "reason": "the plan of the last batch before the restart"}
    handle.history += [START, DECISION, again]
    assert WatchedRun(LiveRun(handle)).records == [DECISION, again]


def test_a_run_that_cannot_be_read_does_not_end_the_watch(handle: ScriptedHandle, watch: Watch) -> None:
    handle.batches = None  # type: ignore[assignment]
    watch.look()
    assert [run.batch for run in watch.runs] == [0]


def test_metrics_can_be_read_by_prometheus_and_count_what_happened(handle: ScriptedHandle, watch: Watch) -> None:
    handle.add(records=[BEGAN])
    watch.look()
    text = client(watch).get("/metrics").text
    found = {
        (sample.name, *sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
    run = ("run", "pairs")
    assert found[("anabranch_rows_in_total", run, ("stream", "a"))] == 80
    assert found[("anabranch_rows_out_total", ("query", "pairs"), run)] == 24
    assert found[("anabranch_late_rows_total", run, ("stream", "a"))] == 2
    assert found[("anabranch_undated_rows_total", run, ("stream", "c"))] == 6
    assert found[("anabranch_slot_cpu_seconds_total", run, ("slot", "0"))] == pytest.approx(0.6)
    assert found[("anabranch_slot_groups", run, ("slot", "1"))] == 1
    assert found[("anabranch_migrations_total", run)] == 1
    assert found[("anabranch_up", run)] == 1
    assert found[("anabranch_watermark_lag_seconds", run)] == pytest.approx(41)
    operator = (("operator", "(a b)"), ("origin", "a"), run, ("target", "b"))
    assert found[("anabranch_operator_lookups_total", *operator)] == 80


def test_the_page_loads_nothing_from_outside() -> None:
    html = page().html
    assert "<!--scripts-->" not in html
    assert "/*styles*/" not in html
    for place in ("src=", 'href="http', "@import", "url(http"):
        assert place not in html.replace('href="data:,"', ""), place


def test_a_browser_may_run_only_the_scripts_of_the_page(watch: Watch) -> None:
    answer = client(watch).get("/")
    assert answer.status_code == 200
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert policy.count("'sha256-") == 2


def test_another_host_name_is_refused(watch: Watch) -> None:
    assert client(watch).get("/api/runs", headers={"Host": "evil.example"}).status_code == 400


def test_the_picture_shows_the_last_minute_and_warms_the_join_that_works_most(
    handle: ScriptedHandle, watch: Watch
) -> None:
    handle.add()
    watch.look()  # two batches within 3.5 seconds
    drawn = client(watch).get("/api/runs/run-pairs/plan.svg").text
    for words in ("23 rows/s", "23 lookups/s, 5.7 kept", "state 30 rows, 900 B", "6.9 results/s"):
        assert words in drawn
    cold = client(watch).get("/api/runs/run-pairs/plan.svg", params={"plan": "((a b) c)"}).text
    assert "fill-opacity" not in cold
    assert 'fill-opacity="0.769"' in drawn  # 50 of 65 lookups and visits


def test_the_picture_counts_only_batches_of_the_plan_that_it_shows(handle: ScriptedHandle, watch: Watch) -> None:
    handle.add(MESH)
    watch.look()
    assert "17 rows/s, 1.7 results/s" in client(watch).get("/api/runs/run-pairs/plan.svg").text


def test_the_picture_in_the_page_has_the_colours_of_the_page(watch: Watch) -> None:
    drawn = client(watch).get("/api/runs/run-pairs/plan.svg").text
    assert 'fill="var(--card)"' in drawn
    assert 'fill="var(--ink)"' in drawn
    assert 'fill="#' not in drawn
    assert 'stroke="#' not in drawn


def test_a_plan_of_another_query_is_refused(watch: Watch) -> None:
    answer = client(watch).get("/api/runs/run-pairs/plan.svg", params={"plan": "(a b)"})
    assert answer.status_code == 400
    assert "not a plan of this query" in answer.json()["error"]


def test_a_token_lets_plans_change(handle: ScriptedHandle, watch: Watch) -> None:
    page = client(watch)
    assert ask(page, "migrate", plan="(a (b c))", query="").json() == {"done": "migrate"}
    for action in ("abort", "freeze", "thaw", "rebalance"):
        assert ask(page, action).status_code == 200
    assert ask(page, "move", groups=[1, 2], to=1).status_code == 200
    assert ask(page, "scale", slots=3).status_code == 200
    assert ask(page, "split", value="ACME", key="a.k").status_code == 200
    assert ask(page, "unite", value=7, key="").status_code == 200
    assert handle.asked == [
        ("migrate", "(a (b c))", "auto", None, None), ("abort", None), ("freeze", True), ("freeze", False),
        ("rebalance",), ("move", [1, 2], 1), ("scale", 3), ("split", "ACME", "a.k"), ("unite", 7, None),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("action", "token", "wanted", "status", "words"),
    [
        ("freeze", "wrong", {}, 401, "token is wrong"),
        ("freeze", "", {}, 401, "token is wrong"),
        ("explode", "secret", {}, 404, "no action 'explode'"),
        ("migrate", "secret", {"plan": "(a z)"}, 400, "'z' is not a relation"),
        ("migrate", "secret", {}, 400, "lacks an entry"),
        ("move", "secret", {"groups": ["x"], "to": 1}, 400, "wrong one"),
        ("scale", "secret", {"slots": "many"}, 400, "wrong one"),
        ("split", "secret", {}, 400, "lacks an entry"),
    ],
)
def test_what_cannot_be_done_is_refused_and_nothing_is_asked(
    handle: ScriptedHandle, watch: Watch, action: str, token: str, wanted: dict[str, Any], status: int, words: str
) -> None:
    answer = ask(client(watch), action, token, **wanted)
    assert (answer.status_code, words in answer.json()["error"]) == (status, True), answer.text
    assert handle.asked == []


def test_without_a_token_the_console_is_read_only(handle: ScriptedHandle, watch: Watch) -> None:
    answer = ask(client(watch, token=None), "freeze", "")
    assert answer.status_code == 403
    assert handle.asked == []


def test_a_run_that_has_ended_cannot_change(handle: ScriptedHandle, watch: Watch) -> None:
    handle.isActive = False
    assert ask(client(watch), "freeze").status_code == 409


def test_a_body_that_is_not_an_object_is_refused(watch: Watch) -> None:
    headers = {"Authorization": "Bearer secret"}
    for body in (b"[1]", b"{", b"\xff"):
        assert client(watch).post("/api/runs/run-pairs/freeze", content=body, headers=headers).status_code == 400


def test_a_console_is_served_and_its_events_bring_new_batches(handle: ScriptedHandle) -> None:
    run = LiveRun(handle)
    with Console(lambda: [run]) as console:
        assert not console.is_open_to_others
        with httpx.stream("GET", f"{console.url}api/runs/run-pairs/events", timeout=60) as answer:
            lines = (line for line in answer.iter_lines() if line.startswith("data: "))
            first = json.loads(next(lines).removeprefix("data: "))
            handle.add(records=[BEGAN])
            second = json.loads(next(lines).removeprefix("data: "))
    assert [each["batch"] for each in first["samples"]] == [0]
    assert [each["batch"] for each in second["samples"]] == [1]
    assert second["records"] == [BEGAN]


def test_a_port_that_is_taken_is_named(handle: ScriptedHandle) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(HostError, match=f"port {taken.getsockname()[1]}"):
            Console(lambda: [LiveRun(handle)], port=taken.getsockname()[1])


def test_an_empty_token_is_refused(handle: ScriptedHandle) -> None:
    with pytest.raises(HostError, match="token of the console is empty"):
        Console(lambda: [LiveRun(handle)], token="")


@pytest.mark.parametrize("text", ["port", "0", "127.0.0.1:", "70000"])
def test_an_address_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(SpecError, match="not an address"):
        address(text)


def test_a_checkpoint_is_shown_after_its_run(tmp_path: Path) -> None:
    LocalHost(QUERY, TREE, slots=2, checkpoint=str(tmp_path)).step({})
    run = StoredRun(str(tmp_path))
    watch = Watch(lambda: [run])
    try:
        (shown,) = client(watch).get("/api/runs").json()["runs"]
        refused = client(watch).get(f"/api/runs/{run.id}/plan.svg")
    finally:
        watch.close()
    assert shown["status"] == "stored: committed up to batch 0"
    assert shown["facts"]["plans"] == {"": "((a b) c)"}
    assert shown["text"] == QUERY.text
    assert refused.status_code == 404


def test_a_folder_that_is_no_checkpoint_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="not a checkpoint of Anabranch"):
        StoredRun(str(tmp_path))
