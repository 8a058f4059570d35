"""The example of the primer, run: the rows, results, states and slots that the page shows are those of the engine."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import TypeAlias

import pytest

from anabranch.cql import compile_query
from anabranch.engine.ownership import own_cells
from anabranch.plan.text import parse
from anabranch.run.local import LocalHost
from anabranch.run.rows import relation_batch
from anabranch.run.wire import wire_layout
from tests.support.scripted import answer_lines, read_rows, read_script

PAGE = (Path(__file__).parents[2] / "docs/internals/primer.md").read_text()
CATALOG = read_script(
    "stream orders (id bigint, item string) disorder 1 minute\n"
    "stream payments (id bigint, amount bigint) disorder 1 minute\n"
    "stream shipments (id bigint, carrier string) disorder 1 minute"
).catalog
QUERY = compile_query(re.findall(r"```sql\n(.*?)```", PAGE, re.DOTALL)[0], CATALOG)
RANGES = {"o": 10, "p": 5, "s": 5}
PLANS = ["(o p s)", "((o p) s)", "((o s) p)"]
STRATEGIES = ["moving-state", "spread", "parallel-track"]

Rows: TypeAlias = list[dict[str, str]]


def table(*columns: str) -> Rows:
    """Reads the table of the page that has these columns."""
    lines = PAGE.splitlines()
    start = lines.index(f"| {' | '.join(columns)} |") + 2
    rows = []
    for line in lines[start:]:
        if not line.startswith("|"):
            break
        rows.append(dict(zip(columns, (cell.strip() for cell in line.strip("|").split("|")), strict=True)))
    return rows


ROWS = table("batch", "row", "stream", "event time", "order", "value")
RESULTS = table("batch", "rows", "newest", "deadline", "result")
BATCHES = range(5)


def minute(time: str) -> int:
    hours, minutes = time.split(":")
    return int(hours) * 60 + int(minutes)


def line(row: dict[str, str]) -> str:
    return f"{row['stream']} {minute(row['event time']) * 60} {row['order']} {row['value']}"


def step(host: LocalHost, batch: int) -> tuple[str, ...]:
    return answer_lines(host.step(read_rows(CATALOG, [line(row) for row in ROWS if row["batch"] == str(batch)])))


def expected(batch: int) -> tuple[str, ...]:
    return tuple(row["result"] for row in RESULTS if row["batch"] == str(batch))


def states(host: LocalHost) -> dict[str, int]:
    return {state.state: state.rows for state in host.statistics.states}


def run(host: LocalHost, batches: range = BATCHES) -> Iterator[int]:
    """Takes batches and holds the results of each against the page; yields after each."""
    for batch in batches:
        assert step(host, batch) == expected(batch)
        yield batch


def test_results_have_the_times_that_the_page_shows() -> None:
    times = {row["row"]: minute(row["event time"]) for row in ROWS}
    for result in RESULTS:
        rows = result["rows"].split()
        assert minute(result["newest"]) == max(times[row] for row in rows)
        assert minute(result["deadline"]) == min(times[row] + RANGES[row[0]] for row in rows)
        assert result["batch"] == max(row["batch"] for row in ROWS if row["row"] in rows)


@pytest.mark.parametrize("plan", PLANS)
def test_every_plan_gives_the_results_and_keeps_the_states_of_the_page(plan: str) -> None:
    [row] = [row for row in table("plan", "o", "p", "s", "intermediate") if row["plan"] == plan]
    shown = {name: int(row[name]) for name in ("o", "p", "s")}
    if row["intermediate"]:
        name, count = row["intermediate"].split(": ")
        shown[name] = int(count)
    host = LocalHost(QUERY, parse(plan))
    for batch in run(host):
        if batch == 1:
            assert states(host) == shown
    assert host.late == {"orders": 0, "payments": 1, "shipments": 0}


def test_the_late_payment_would_have_had_a_result_a_batch_earlier() -> None:
    host = LocalHost(QUERY, parse("(o p s)"))
    list(run(host, range(2)))
    [late] = [line(row) for row in ROWS if row["row"] == "p4"]
    assert answer_lines(host.step(read_rows(CATALOG, [late]))) == ("1 lamp 5 post",)


def test_a_pair_leaves_its_state_before_its_payment_does() -> None:
    host, dropped = LocalHost(QUERY, parse("((o p) s)")), list[dict[str, int]]()
    for _ in run(host):
        dropped.append({state.state: state.dropped for state in host.statistics.states if state.dropped})
    assert dropped == [{}, {}, {}, {}, {"(o p)": 1}]
    host.step({})
    assert {state.state: state.dropped for state in host.statistics.states}["p"] == 1


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_the_plan_changes_before_batch_2(strategy: str) -> None:
    host, emitted = LocalHost(QUERY, parse("((o p) s)")), dict[str, str]()
    list(run(host, range(2)))
    host.migrate(parse("((o s) p)"), strategy)
    for batch in run(host, range(2, 5)):
        [report] = [report for slot in host.reports.values() for report in slot.queries.values()]
        if batch == 2 and strategy == "moving-state":
            assert report.change.migrated is not None
            assert report.change.migrated.recomputed == {"(o s)": 2}
        # The new plan joins new rows only, so it emits what it finds; the old plan emits the rest.
        found = any(probe.kept for probe in host.statistics.probes if probe.join == "((o s) p)")
        if expected(batch):
            emitted[f"order {batch}"] = "new plan" if found else "old plan"
    if strategy == "parallel-track":
        shown = table("result", "rows", "contains an old row", "emitted by")
        assert emitted == {row["result"]: row["emitted by"] for row in shown}


def test_orders_are_in_the_groups_and_slots_of_the_page() -> None:
    host = LocalHost(QUERY, parse("((o p) s)"), slots=2)
    orders = table("order", "group", "slot")
    rows = read_rows(CATALOG, [f"orders 0 {row['order']} lamp" for row in orders])["orders"]
    layout = wire_layout(host.queries, host.partitioning)
    batch = relation_batch(host.queries.graph.relations[0], layout, rows)
    groups = own_cells(host.partitioning, "o", batch).tolist()
    assert groups == [int(row["group"]) for row in orders]
    assert [host.partitioning.table[group] for group in groups] == [int(row["slot"]) for row in orders]


def test_group_13_moves_with_its_two_rows() -> None:
    host = LocalHost(QUERY, parse("((o p) s)"), slots=2)
    list(run(host, range(2)))
    host.move([13], to=1)
    for batch in run(host, range(2, 5)):
        if batch == 2:
            assert {slot: report.taken for slot, report in host.reports.items()} == {0: 0, 1: 2}


def test_a_restart_with_another_plan_and_other_slots_continues(tmp_path: Path) -> None:
    first = LocalHost(QUERY, parse("((o p) s)"), slots=2, checkpoint=str(tmp_path))
    list(run(first, range(2)))
    second = LocalHost(QUERY, parse("(o p s)"), slots=3, checkpoint=str(tmp_path))
    assert second.batch == 2
    list(run(second, range(2, 5)))
