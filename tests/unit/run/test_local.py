"""The in-process host when a batch goes wrong: refused before it is taken, or the end of the query."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from anabranch.cql import compile_query
from anabranch.errors import BatchError, ExpressionError, HostError, PlanError
from anabranch.lang.schema import TIMESTAMP
from anabranch.plan.execution import EXECUTION_MODELS, ExecutionModel
from anabranch.plan.physical import mjoin
from anabranch.plan.query_set import Plans, together
from anabranch.plan.text import parse
from anabranch.run.local import LocalHost
from anabranch.run.results import ResultLayout
from tests.support.scripted import answer_lines, read_rows, read_script

CATALOG = read_script("stream a (k bigint, v bigint)\nstream b (k bigint, v bigint)").catalog
PRODUCT = "SELECT a.v * b.v AS product FROM a [RANGE 9 SECONDS], b [RANGE 9 SECONDS] WHERE a.k = b.k"


def test_a_batch_of_another_stream_is_refused_with_the_names_that_exist() -> None:
    host = LocalHost(compile_query(PRODUCT, CATALOG), mjoin(("a", "b")))
    with pytest.raises(BatchError) as caught:
        host.step({"orders": read_rows(CATALOG, ["a 1 1 1"])["a"]})
    assert str(caught.value) == (
        "the batch has rows of 'orders', which the query does not read\n"
        "hint: give tables under the names of its streams: a, b"
    )


def test_a_table_without_a_key_is_refused_with_the_columns_it_has() -> None:
    host = LocalHost(compile_query(PRODUCT, CATALOG), mjoin(("a", "b")))
    with pytest.raises(BatchError) as caught:
        host.step({"a": read_rows(CATALOG, ["a 1 1 1"])["a"].drop_columns(["k"])})
    assert str(caught.value) == (
        "the batch has no column 'k' of stream 'a'\nit has ts, v\n"
        "hint: give every stream the columns it was registered with"
    )


@pytest.mark.parametrize("slots", [1, 3])
def test_a_failing_batch_ends_the_query_and_a_restart_continues(tmp_path: Path, slots: int) -> None:
    query = compile_query(PRODUCT, CATALOG)
    host = LocalHost(query, mjoin(("a", "b")), slots=slots, checkpoint=str(tmp_path))
    host.step(read_rows(CATALOG, [f"a 1 1 {2**62}", "a 1 2 7"]))
    with pytest.raises(ExpressionError, match=r"a\.v \* b\.v"):
        host.step(read_rows(CATALOG, ["b 2 1 4", "b 2 2 4"]))
    with pytest.raises(HostError, match="has ended") as caught:
        host.step(read_rows(CATALOG, ["b 2 2 4"]))
    assert "last committed batch" in caught.value.hint
    again = LocalHost(query, mjoin(("a", "b")), slots=slots, checkpoint=str(tmp_path))
    assert answer_lines(again.step(read_rows(CATALOG, ["b 2 2 4"]))) == ("28",)


def test_a_refused_batch_does_not_end_the_query() -> None:
    host = LocalHost(compile_query(PRODUCT, CATALOG), mjoin(("a", "b")))
    rows = read_rows(CATALOG, ["a 1 1 3", "b 1 1 5"])
    with pytest.raises(BatchError):
        host.step({**rows, "z": rows["a"]})
    assert answer_lines(host.step(rows)) == ("15",)


def test_a_plan_of_another_query_is_refused_at_the_start() -> None:
    with pytest.raises(PlanError, match="leaves out 'b'"):
        LocalHost(compile_query(PRODUCT, CATALOG), parse("a"))


def test_no_slots_are_refused() -> None:
    with pytest.raises(PlanError, match="0 slots"):
        LocalHost(compile_query(PRODUCT, CATALOG), mjoin(("a", "b")), slots=0)


@pytest.mark.parametrize("time", [2**62, 2**63 - 1])
def test_an_event_time_to_which_no_window_can_be_added_is_refused(time: int) -> None:
    """Its deadline wrapped, so the row met nothing, and nobody was told."""
    host = LocalHost(compile_query(PRODUCT, CATALOG), mjoin(("a", "b")))
    rows = read_rows(CATALOG, ["a 1 1 3", "b 1 1 5"])
    times = pa.array([time]).cast(pa.timestamp("us")).cast(TIMESTAMP)
    with pytest.raises(HostError, match="a row of relation 'b' has an event time that no window can be added to"):
        host.step({**rows, "b": rows["b"].set_column(0, "ts", times)})


@pytest.mark.parametrize("model", EXECUTION_MODELS, ids=str)
def test_matched_rows_are_kept_as_long_as_a_waiting_combination(model: ExecutionModel, tmp_path: Path) -> None:
    """The row of b leaves its window at second 6; the row of a that it met waits until second 12."""
    text = "SELECT a.v AS v FROM a [RANGE 9 SECONDS] AS a LEFT ANTI JOIN b [RANGE 5 SECONDS] AS b ON a.k = b.k"
    query = compile_query(text, CATALOG)
    found: list[str] = []
    for lines in (["b 1 1 1", "a 1 2 1"], ["a 3 1 3", "b 3 9 9"], ["a 8 2 8", "b 8 9 9"], ["a 30 2 30", "b 30 9 9"]):
        host = LocalHost(query, mjoin(("a",)), checkpoint=str(tmp_path), execution=model)
        found += answer_lines(host.step(read_rows(CATALOG, lines)))
    assert sorted(found) == ["1", "8"]


@pytest.mark.parametrize("model", EXECUTION_MODELS, ids=str)
@pytest.mark.parametrize("is_lone", [False, True])
def test_rows_that_wait_and_those_they_meet_are_there_after_a_restart(
    is_lone: bool, model: ExecutionModel, tmp_path: Path
) -> None:
    """Row 1 of b waits for stream a, and its floor is beyond the windows of both."""
    text = "SELECT b.v AS v FROM b [RANGE 2 SECONDS]" if is_lone else PRODUCT.replace("RANGE 9", "RANGE 2")
    queries = together(
        {"q": compile_query(text, CATALOG), "other": compile_query("SELECT c.v FROM a [NOW] c", CATALOG)}
    )
    plans = Plans({each.name: mjoin(each.query.graph.names) for each in queries.members})
    found: list[str] = []
    for lines in (["a 0 9 9", "b 1 1 3", "b 20 2 7"], ["a 1 1 5"], ["a 30 3 3", "b 30 4 4"]):
        host = LocalHost(queries, plans, checkpoint=str(tmp_path), execution=model)
        found += answer_lines(ResultLayout(queries).split(host.step(read_rows(CATALOG, lines)))["q"])
    assert [line for line in found if line != "4"] == (["3", "7"] if is_lone else ["15"])
