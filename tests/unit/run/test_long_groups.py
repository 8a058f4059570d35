"""Grouped queries whose rows count at very many boundaries, or for ever."""

from __future__ import annotations

from pathlib import Path

from anabranch.cql import compile_query
from anabranch.engine.query_engine import GROUPS
from anabranch.plan.physical import Leaf, mjoin
from anabranch.run.local import LocalHost
from tests.support.scripted import answer_lines, read_rows, read_script

CATALOG = read_script("stream a (k bigint)\nstream b (k bigint)").catalog


def test_running_totals_are_answered_for_ever_and_after_a_restart(tmp_path: Path) -> None:
    """They were allowed, and the first row was to be counted at a billion boundaries at once."""
    text = "SELECT WINDOW_END() AS at, a.k AS k, COUNT(*) AS n FROM a [UNBOUNDED SLIDE 5 SECONDS] GROUP BY a.k"
    query = compile_query(text, CATALOG, allow_unbounded=True)

    def host(slots: int) -> LocalHost:
        return LocalHost(query, Leaf("a"), slots=slots, checkpoint=str(tmp_path))

    assert answer_lines(host(2).step(read_rows(CATALOG, ["a 3 1", "a 9 1", "a 11 2"]))) == ("10 1 2", "5 1 1")
    running = host(1)
    answer = answer_lines(running.step(read_rows(CATALOG, ["a 12 1", "a 21 2"])))
    assert answer == ("15 1 3", "15 2 1", "20 1 3", "20 2 1")
    assert answer_lines(running.step(read_rows(CATALOG, ["a 26 3"]))) == ("25 1 3", "25 2 2")
    # One row for each group, however many have been counted.
    assert _pending(running) == 3


def test_a_row_that_counts_at_millions_of_boundaries_is_kept_once() -> None:
    text = (
        "SELECT WINDOW_END() AS at, COUNT(*) AS n FROM a [RANGE 1 HOUR SLIDE 1 MILLISECOND], b [UNBOUNDED] "
        "WHERE a.k = b.k"
    )
    host = LocalHost(compile_query(text, CATALOG, allow_unbounded=True), mjoin(("a", "b")))
    assert not host.step(read_rows(CATALOG, ["a 1 1", "a 1 1", "b 0 1"])).num_rows
    assert _pending(host) == 1
    assert answer_lines(host.step(read_rows(CATALOG, ["a 1.003 7", "b 1.003 7"]))) == ("1 2", "1.001 2", "1.002 2")


def _pending(host: LocalHost) -> int:
    return sum(state.rows for state in host.statistics.states if state.state == GROUPS)
