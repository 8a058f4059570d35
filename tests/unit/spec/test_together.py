"""Specs of several queries that run as one."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent

import pytest

from anabranch.adapt.settings import Settings
from anabranch.cli.main import main
from anabranch.errors import SpecError
from anabranch.plan.slots import SlotRange
from anabranch.run.triggers import Every
from anabranch.spec.file import parse
from anabranch.spec.model import Spec

GOOD = dedent(
    """
    streams:
      s0: {format: parquet, path: data/s0, schema: "ts timestamp, k bigint, v bigint", event_time: ts}
      s1: {format: parquet, path: data/s1, schema: "ts timestamp, k bigint, v bigint", event_time: ts}
    queries:
      alerts:
        query: SELECT a.v FROM s0 [RANGE 5 SECONDS] AS a, s1 [RANGE 10 SECONDS] AS b WHERE a.k = b.k AND a.v > 100
        sink: {format: parquet, path: alerts}
        plan: mjoin
        adapt: {}
      audits:
        query: SELECT a.v, a.k AS p0 FROM s0 [RANGE 10 SECONDS] AS a, s1 [RANGE 10 SECONDS] AS b WHERE a.k = b.k
        sink: {format: csv, path: audits, partition_by: p0}
    checkpoint: ckpt
    trigger: 2 seconds
    slots: 3
    """
)


def read(text: str) -> Spec:
    return parse(text, folder=Path("/specs"))


def test_each_query_has_its_own_and_all_have_what_is_said_of_the_run() -> None:
    spec = read(GOOD)
    alerts, audits = spec.queries["alerts"], spec.queries["audits"]
    assert alerts.sink is not None
    assert audits.sink is not None
    assert (alerts.sink.path, audits.sink.path) == ("/specs/alerts", "/specs/audits")
    assert (alerts.sink.partition_by, audits.sink.partition_by) == ((), ("p0",))
    assert (alerts.plan_options.plan, audits.plan_options.plan) == ("mjoin", "auto")
    assert (alerts.adapt, audits.adapt) == (Settings(), None)
    assert (spec.checkpoint, spec.trigger, spec.slots) == ("/specs/ckpt", Every(2_000_000), SlotRange.fixed(3))


@pytest.mark.parametrize(
    ("before", "after", "primary"),
    [
        ("plan: mjoin", "slots: 2", "unknown entry 'queries.alerts.slots'"),
        ("  alerts:\n", "  S0:\n", "a stream and a query are both named 'S0'"),
        ("trigger: 2 seconds", "plan: mjoin", "unknown entry 'plan'"),
        ("  alerts:\n", "  at-work:\n", "entry 'queries' has a query named 'at-work'"),
        ("  alerts:\n", "  idle:\n  alerts:\n", "entry 'queries.idle' is empty"),
        ("adapt: {}", "adapt: {policy: daily}", "entry 'queries.alerts.adapt.policy' is 'daily'"),
        ("plan: mjoin", "limits: {cpu: 0}", "entry 'queries.alerts.limits.cpu' is 0"),
        ("adapt: {}", "adapt: [1]", "entry 'queries.alerts.adapt' is a list"),
        ("checkpoint: ckpt", "", "entry 'checkpoint' is missing"),
    ],
)
def test_a_wrong_entry_is_named(before: str, after: str, primary: str) -> None:
    with pytest.raises(SpecError) as caught:
        read(GOOD.replace(before, after))
    assert caught.value.message == primary


CHAIN = """
streams:
  s0: {format: parquet, path: s0, schema: "ts timestamp, k bigint", event_time: ts}
queries:
  last: {query: "SELECT m.k FROM Middle [NOW] AS m", sink: {format: csv, path: out}}
  middle: {query: "SELECT f.k FROM (SELECT k FROM first [NOW]) [NOW] AS f"}
  first: {query: "SELECT a.k FROM s0 [NOW] AS a"}
checkpoint: ckpt
"""


def test_queries_are_compiled_after_those_that_they_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert read(CHAIN).in_order() == ["first", "middle", "last"]
    file = tmp_path / "spec.yaml"
    file.write_text(CHAIN)
    assert main(["explain", str(file), "--stage", "graph"]) == 0
    shown = capsys.readouterr().out
    assert "relation m = middle [NOW]  read by last" in shown
    _, below = shown.split("== derived_")
    assert "\nSELECT k FROM first [NOW]\n" in below


@pytest.mark.parametrize(
    ("before", "after", "primary"),
    [
        ("FROM s0 [NOW] AS a", "FROM last [NOW] AS a", "the queries first -> last -> middle -> first read one another"),
        ("FROM s0 [NOW] AS a", "FROM first [NOW] AS a", "the queries first -> first read one another"),
        (", sink: {format: csv, path: out}", "", "query 'last' has no sink, and no other query reads it"),
    ],
)
def test_queries_that_cannot_be_put_in_order_are_refused(before: str, after: str, primary: str) -> None:
    with pytest.raises(SpecError) as caught:
        read(CHAIN.replace(before, after)).in_order()
    assert caught.value.message == primary
    assert caught.value.hint


def test_nothing_is_shared_where_share_is_off() -> None:
    """YAML reads `off` as false."""
    assert read(f"{GOOD}share: off\n").together.share == "off"


def test_where_one_query_is_wanted_several_are_refused() -> None:
    with pytest.raises(SpecError, match="the spec has several queries, not one"):
        _ = read(GOOD).only


def test_an_explanation_shows_shared_relations(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "spec.yaml"
    file.write_text(GOOD)
    assert main(["explain", str(file)]) == 0
    shown = capsys.readouterr().out
    assert "relation a = s0 [RANGE 10 SECONDS] WHERE a.k IS NOT NULL  read by alerts, audits" in shown
    assert "alerts restricts a to [RANGE 5 SECONDS], a.v > 100" in shown
    assert "== audits ==" in shown


def test_options_of_one_query_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "spec.yaml"
    file.write_text(GOOD)
    assert main(["explain", str(file), "--plan", "mjoin"]) == 2
    assert "option '--plan' is for one query, and the spec has several" in capsys.readouterr().err


def test_joint_limits_may_be_those_of_the_executors() -> None:
    together = read(f"{GOOD}\nlimits: auto\n").together
    assert together.of_executors
    assert (together.within(1.0, 5e8).cpu, together.within(1.0, 5e8).memory) == (1.0, 5e8)
