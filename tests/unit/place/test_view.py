"""Views: equal sub-joins are recognised whatever the aliases, rates follow the model, covering telescopes."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest

from anabranch.errors import StatisticsError, TopologyError
from anabranch.lang.window import Window
from anabranch.place.landscape import view_bytes
from anabranch.place.problem import problem_of
from anabranch.place.view import needs
from tests.unit.place.builders import join, landscape, line, planner_for, query, statistics

STATISTICS = statistics(dict.fromkeys("abcd", "n0"))


def test_equal_sub_joins_have_equal_signatures() -> None:
    one = needs(join("one", "abc", "n0").query)
    other = needs(
        query(
            "other",
            "SELECT p.ts FROM c [RANGE 1 MINUTE] AS r, a [RANGE 1 MINUTE] AS p, b [RANGE 1 MINUTE] AS q "
            "WHERE p.k = q.k AND q.k = r.k",
            "n0",
        ).query
    )
    assert one[0b111].view.signature == other[0b111].view.signature
    assert one[0b011].view.signature == other[0b110].view.signature
    assert one[0b011].view.signature != other[0b011].view.signature


def test_different_predicates_have_different_signatures() -> None:
    on_k = needs(join("one", "ab", "n0").query)[-1].view
    on_x = needs(query("two", "SELECT a.ts FROM a [RANGE 1 MINUTE], b [RANGE 1 MINUTE] WHERE a.x = b.x", "n0").query)[
        -1
    ].view
    theta = needs(
        query("three", "SELECT a.ts FROM a [RANGE 1 MINUTE], b [RANGE 1 MINUTE] WHERE a.x < b.x", "n0").query
    )[-1].view
    assert len({on_k.signature, on_x.signature, theta.signature}) == 3


def test_self_joins_are_recognised_under_swapped_aliases() -> None:
    text = "SELECT p.ts FROM a [RANGE 1 MINUTE] AS p, a [RANGE 1 MINUTE] AS q WHERE p.k = q.x"
    swapped = "SELECT p.ts FROM a [RANGE 1 MINUTE] AS p, a [RANGE 1 MINUTE] AS q WHERE q.k = p.x"
    one, other = needs(query("one", text, "n0").query)[-1], needs(query("two", swapped, "n0").query)[-1]
    assert one.view.signature == other.view.signature
    assert one.relations != other.relations


def test_the_rate_of_a_windowed_join() -> None:
    # 10 rows a second each meet 10 * 60 of the other within a minute, and 1 in 100 agrees: 2 * 10 * 600 / 100.
    view = needs(join("q", "ab", "n0").query)[-1].view
    assert view.rate(STATISTICS) == pytest.approx(120.0)
    assert view_bytes(view, STATISTICS) == pytest.approx(120.0 * 200.0)


def test_a_join_that_answers_once_a_slide_sends_all_that_its_windows_hold() -> None:
    # 600 rows of each in a minute, and 1 in 100 pairs agrees: 3,600 combinations, every 30 seconds.
    view = needs(join("q", "ab", "n0").query)[-1].view
    assert view.rate(replace(STATISTICS, slide=30.0)) == pytest.approx(120.0)
    assert view.rate(replace(STATISTICS, slide=60.0)) == pytest.approx(60.0)
    with pytest.raises(StatisticsError, match="'slide' is 0"):
        replace(STATISTICS, slide=0.0)


def test_fixing_a_key_costs_the_same_whether_or_not_it_is_inferred_for_the_other_side() -> None:
    # 1 in 100 rows on both sides, and those that are left all agree.
    view = needs(join("q", "ab", "n0", where="a.k = 7").query)[-1].view
    assert view.rate(STATISTICS) == pytest.approx(10 / 100 * 10 / 100 * 120.0)


def test_windows_telescope_like_filters() -> None:
    long = needs(join("long", "ab", "n0", minutes=5).query)[-1].view
    short = needs(join("short", "ab", "n0", minutes=1).query)[-1].view
    assert long.covers(short)
    assert not short.covers(long)
    assert short.union(long) == long


def test_a_filter_behind_needs_its_columns() -> None:
    everything = needs(join("all", "ab", "n0").query)[-1].view
    some = needs(join("some", "ab", "n0", where="a.x < 3").query)[-1].view
    assert not everything.covers(some)
    relaxed = everything.union(some)
    assert relaxed.covers(some)
    assert relaxed.covers(everything)
    assert "x" in relaxed.slots[0].columns


def test_a_join_that_can_fail_is_not_shared_by_queries_with_other_filters() -> None:
    """A product may overflow for a row that only the other query lets through."""
    topology = line(3)
    running = landscape(topology, {"a": "n0", "b": "n2"})
    text = "SELECT a.x FROM a [RANGE 1 MINUTE], b [RANGE 1 MINUTE] WHERE a.k = b.k AND {theta} AND a.y = {y}"
    for theta, is_shared in (("a.x < b.y", True), ("a.x * b.y < 5", False), ("a.x + b.y < 5", False)):
        first = query("first", text.format(theta=theta, y=1), "n1")
        second = query("second", text.format(theta=theta, y=2), "n1")
        third = query("third", text.format(theta=theta, y=1), "n0")
        after = planner_for("exhaustive", topology).plan(running, first).landscape
        offered = {one.operator for one in problem_of(after, second).offered if one.mask.bit_count() > 1}
        assert bool(offered) == is_shared
        assert {one.operator for one in problem_of(after, third).offered if one.mask.bit_count() > 1}


def test_a_window_that_is_not_by_event_time_alone_is_refused() -> None:
    @dataclass(frozen=True)
    class Days(Window):
        """A kind of window of its own."""

    topology = line(2)
    wanted = join("q", "ab", "n1")
    graph = wanted.query.graph
    odd = replace(graph, relations=(replace(graph.relations[0], window=Days(5)), *graph.relations[1:]))
    with pytest.raises(TopologyError, match="which cannot be placed"):
        problem_of(landscape(topology, {"a": "n0", "b": "n1"}), replace(wanted, query=replace(wanted.query, graph=odd)))
