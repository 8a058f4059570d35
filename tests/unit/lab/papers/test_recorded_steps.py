"""Recorded steps and the comparison of plans say the same of a state; see also the oracle tests of migrations."""

from __future__ import annotations

import itertools

from hypothesis import event, given
from hypothesis import strategies as st

from anabranch.cql import compile_query
from anabranch.lang.catalog import Catalog, StreamDeclaration
from anabranch.lang.ddl import parse_schema
from anabranch.plan.check import validate
from anabranch.plan.difference import FilteredState, match_states
from anabranch.plan.join_graph import JoinGraph
from anabranch.plan.physical import nodes
from anabranch.plan.text import parse
from anabranch.testing.strategies import plans
from lab.papers.recorded_steps import Recording

NAMES = tuple("abcde")


def _graph() -> JoinGraph:
    catalog = Catalog()
    for name in NAMES:
        catalog.register(StreamDeclaration(name, parse_schema("ts timestamp, k bigint, p bigint, s string"), "ts"))
    chain = " AND ".join(f"{a}.k = {b}.k" for a, b in itertools.pairwise(NAMES))
    streams = ", ".join(f"{name} [RANGE 5 SECONDS]" for name in NAMES)
    thetas = "a.p < b.p AND b.p < d.p AND COALESCE(a.p, c.p) < e.p"
    text = f"SELECT a.p AS p FROM {streams} WHERE {chain} AND {thetas} AND c.s LIKE 'x%'"
    return compile_query(text, catalog, late_filters=["c"]).graph


GRAPH = _graph()


def test_a_predicate_is_put_off_and_comes_back() -> None:
    start = Recording.of(parse("(((a b) c) d e)"), GRAPH)
    later = start.check_later(0)
    assert later is not None
    assert str(later.plan) == "(((a b) c #0) d e)"
    assert later.matching.moved == (("(a b)", "(a b)"), ("((a b) c)", "((a b) c #0)"))
    again = later.check_later(0)
    assert again is not None
    assert str(again.plan) == "(((a b) c) d e #0)"
    sooner = Recording.of(again.plan, GRAPH).check_sooner(0)
    assert sooner is not None
    assert sooner.matching.filtered == (FilteredState("((a b) c)", "((a b) c #0)", (0,)),)
    back = sooner.check_sooner(0)
    assert back is not None
    assert back.plan == start.plan
    assert [state.old for state in back.matching.filtered] == ["(a b)", "((a b) c)"]


def test_joins_are_taken_apart_and_put_together() -> None:
    start = Recording.of(parse("((a b) c (d e))"), GRAPH)
    apart = start.dissolve(frozenset("ab"))
    assert apart is not None
    turned = apart.gather(frozenset(NAMES), frozenset("bc"))
    assert turned is not None
    assert str(turned.plan) == "((b c) a (d e))"
    assert turned.matching.recomputed == ("(b c)",)
    assert turned.matching.discarded == ("(a b)",)
    assert turned.gather(frozenset(NAMES), frozenset("b")) is None
    assert turned.dissolve(frozenset(NAMES)) is None


@given(data=st.data())
def test_recorded_steps_and_the_comparison_say_the_same(data: st.DataObject) -> None:
    recording = Recording.of(data.draw(plans(NAMES, GRAPH.thetas), "plan"), GRAPH)
    for _ in range(data.draw(st.integers(1, 6), "steps")):
        joins = [frozenset(node.relations) for node in nodes(recording.plan)]
        match data.draw(st.sampled_from(["later", "later", "sooner", "sooner", "dissolve", "gather"])):
            case "later":
                done = recording.check_later(data.draw(st.integers(0, len(GRAPH.thetas) - 1)))
            case "sooner":
                done = recording.check_sooner(data.draw(st.integers(0, len(GRAPH.thetas) - 1)))
            case "dissolve":
                done = recording.dissolve(data.draw(st.sampled_from(joins)))
            case _:
                join = data.draw(st.sampled_from(joins))
                done = recording.gather(join, data.draw(st.frozensets(st.sampled_from(sorted(join)))))
        recording = done or recording
    validate(recording.plan, GRAPH)
    recorded, compared = recording.matching, match_states(recording.start, recording.plan, GRAPH.thetas)
    event("filtered" if recorded.filtered else "moved")
    assert set(compared.recomputed) <= set(recorded.recomputed)
    again = set(recorded.recomputed) - set(compared.recomputed)
    assert set(recorded.moved) == {pair for pair in compared.moved if pair[1] not in again}
    assert set(recorded.filtered) == {state for state in compared.filtered if state.new not in again}
