"""A query that leaves takes with it what served only it, relaxed filters included."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anabranch.errors import TopologyError
from anabranch.place.check import complaints
from anabranch.place.exhaustive import Exhaustive
from anabranch.place.generate import transit_stub
from anabranch.place.landscape import Landscape
from anabranch.place.removal import removed, tightened
from anabranch.place.run import COMPARED, deploy
from lab.place_workload import Ranges, airline_workload, random_workload
from tests.unit.place.builders import join, landscape, line, planner_for


def _start() -> Landscape:
    return landscape(line(6), {"a": "n0", "b": "n3"}, distinct=2000.0)


def test_what_others_use_stays_and_the_last_reader_takes_it_along() -> None:
    both = deploy(Exhaustive(), _start(), [join("q", "ab", "n5"), join("other", "ab", "n5")]).landscape
    assert both.operators["other"].inputs == both.operators["q"].inputs
    without = removed(both, "q")
    assert complaints(without, join("other", "ab", "n5")) == ()
    assert removed(without, "other").operators == _start().operators


def test_a_query_that_comes_back_reads_what_it_left_to_others() -> None:
    first, elsewhere = join("q", "ab", "n4"), join("other", "ab", "n5")
    both = deploy(Exhaustive(), _start(), [first, elsewhere]).landscape
    (relay,) = (name for name, one in both.operators.items() if len(one.inputs) == 1 and name not in both.queries)
    without = removed(both, "q")
    assert relay in without.operators
    again = Exhaustive().plan(without, first)
    assert again.deployment.reused == (relay,)
    assert again.deployment.operators == ()
    assert complaints(again.landscape, first) == complaints(again.landscape, elsewhere) == ()
    # The last reader at another site takes the relay along.
    assert relay not in removed(again.landscape, "other").operators
    assert removed(again.landscape, "other").cost == pytest.approx(Exhaustive().plan(_start(), first).landscape.cost)


def test_a_query_with_the_name_of_an_operator_is_refused() -> None:
    running = Exhaustive().plan(_start(), join("q", "ab", "n5")).landscape
    with pytest.raises(TopologyError, match="an operator has the name 'q/1'"):
        Exhaustive().plan(running, join("q/1", "ab", "n5"))


def test_a_filter_that_was_relaxed_for_a_query_is_tightened_when_it_leaves() -> None:
    first = Exhaustive().plan(_start(), join("first", "ab", "n5", where="a.x = 3")).landscape
    second = Exhaustive().plan(first, join("second", "ab", "n5", where="a.x = 4"))
    assert [one.operator for one in second.deployment.relaxed] == ["first/1"]
    assert removed(second.landscape, "second").operators == first.operators


def test_a_filter_is_tightened_to_the_reader_that_is_left() -> None:
    wide = Exhaustive().plan(_start(), join("wide", "ab", "n5", minutes=5)).landscape
    both = Exhaustive().plan(wide, join("narrow", "ab", "n5", where="a.x = 3", minutes=1))
    assert both.deployment.operators == ()
    left = removed(both.landscape, "wide")
    slot = left.operators["wide/1"].view.slots[0]
    assert str(slot) == "a [1 MINUTE] WHERE k IS NOT NULL AND x = 3"
    before, after = (one.operators["wide/1"].inputs for one in (both.landscape, left))
    assert sum(taken.bytes for taken in after) < sum(taken.bytes for taken in before)
    assert complaints(left, join("narrow", "ab", "n5", where="a.x = 3", minutes=1)) == ()


@given(st.integers(0, 1000), st.sampled_from(COMPARED), st.sampled_from("ra"), st.randoms(use_true_random=False))
@settings(max_examples=15, deadline=None)
def test_queries_may_leave_in_any_order(seed: int, chosen: str, kind: str, random: Random) -> None:
    topology = transit_stub(14, seed)
    if kind == "r":
        workload = random_workload(topology, 5, seed, Ranges(streams=4, fewest=2, most=3))
    else:
        workload = airline_workload(topology, 7, seed)
    start = workload.landscape(topology)
    run = deploy(planner_for(chosen, topology, 5), start, workload.queries)
    current = run.landscape
    assert tightened(current).cost == pytest.approx(current.cost)
    last = workload.queries[-1]
    assert removed(current, last.name).cost == pytest.approx(current.cost - run.decisions[-1].deployment.cost)
    left = list(workload.queries)
    random.shuffle(left)
    while left:
        before = current.cost
        current = removed(current, left.pop().name)
        assert current.cost <= before * (1 + 1e-9)
        for query in left:
            assert complaints(current, query) == ()
    assert current.operators == start.operators
