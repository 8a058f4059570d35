"""Groups in the cost: only what travels to the sink is counted, and it is what the operators do."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from anabranch.place.exhaustive import Exhaustive
from anabranch.place.grouping import delivered_bytes, groups_bytes, is_grouped_early
from anabranch.place.landscape import SinkQuery, view_bytes
from anabranch.place.run import deploy
from anabranch.place.view import needs
from tests.unit.place import builders

STATISTICS = builders.statistics({"a": "n0", "b": "n1"})


def _query(slide: int) -> SinkQuery:
    listed = f"a [RANGE 1 MINUTE SLIDE {slide} SECONDS], b [RANGE 1 MINUTE]"
    return builders.query("q", f"SELECT a.x AS x, COUNT(*) AS n FROM {listed} WHERE a.k = b.k GROUP BY a.x", "n4")


def test_groups_are_the_distinct_values_of_their_keys_once_a_slide() -> None:
    # 3,600 combinations in the windows meet ten values of x: all ten, every 30 seconds, of 8 bytes each and the time.
    query = _query(30).query
    assert groups_bytes(query, STATISTICS) == pytest.approx(10 / 30 * 24, rel=1e-3)
    assert delivered_bytes(query, STATISTICS) == groups_bytes(query, STATISTICS)
    assert is_grouped_early(query, STATISTICS)
    assert groups_bytes(query, replace(STATISTICS, record_bytes=100.0)) == pytest.approx(10 / 30 * 100, rel=1e-3)


def test_few_rows_are_few_groups() -> None:
    slow = builders.statistics({"a": "n0", "b": "n1"}, rate=0.01)
    # 0.0036 combinations at an instant; a group is nearly always one combination, counted at several boundaries.
    query = _query(1).query
    assert groups_bytes(query, slow) == pytest.approx(0.6 * 0.6 / 100 * 24, rel=1e-2)
    assert not is_grouped_early(query, replace(slow, record_bytes=1.0))
    whole = needs(query)[-1].view
    assert delivered_bytes(query, replace(slow, record_bytes=1.0)) == view_bytes(whole, replace(slow, record_bytes=1.0))


def test_a_query_without_groups_sends_its_rows() -> None:
    query = builders.join("q", "ab", "n4").query
    assert groups_bytes(query, STATISTICS) == math.inf
    assert delivered_bytes(query, STATISTICS) == view_bytes(needs(query)[-1].view, STATISTICS)


def test_the_slide_is_in_the_cost_and_in_the_choice_of_sites() -> None:
    start = builders.landscape(builders.line(5), {"a": "n0", "b": "n1"}, distinct=10.0)
    rare, often = (deploy(Exhaustive(), start, [_query(slide)]).landscape for slide in (30, 1))
    rows = deploy(Exhaustive(), start, [builders.join("q", "ab", "n4")]).landscape
    assert rare.cost < often.cost < rows.cost
    # Rows of the join are many: without groups it is joined at the sink, with them beside the streams.
    assert [one.site for one in rows.operators.values() if one.is_join] == [4]
    assert [one.site for one in rare.operators.values() if one.is_join] in ([0], [1])
    assert rare.under(start.statistics).cost == pytest.approx(rare.cost)


def test_nobody_reads_the_rows_of_a_grouped_query_at_its_sink() -> None:
    start = builders.landscape(builders.line(5), {"a": "n0", "b": "n1"}, distinct=10.0)
    both = deploy(Exhaustive(), start, [_query(30), builders.join("r", "ab", "n4")]).landscape
    assert "q" not in {taken.producer for one in both.operators.values() for taken in one.inputs}
