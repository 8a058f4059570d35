"""Precedence read off the join graph: no cross product while a lookup is possible."""

from __future__ import annotations

from anabranch import cql
from anabranch.calibrate.engine_costs import stream
from anabranch.lang.catalog import Catalog
from anabranch.mesh.precedence import precedence
from anabranch.plan.join_graph import JoinGraph


def graph_of(where: str, names: str = "abcd") -> JoinGraph:
    catalog = Catalog()
    for name in names:
        catalog.register(stream(name, ("k", "l")))
    windows = ", ".join(f"{name} [RANGE 5 SECONDS]" for name in names)
    return cql.compile_query(f"SELECT a.k AS answer FROM {windows} WHERE {where}", catalog).graph


def test_a_chain_is_walked_from_the_relation() -> None:
    graph = graph_of("a.k = b.k AND b.l = c.k AND c.l = d.k")
    # Behind d, c would be at hand as well, but d itself waits for c.
    assert precedence(graph, "a", ("b", "c", "d")) == ((), (frozenset({0}), frozenset({2})), (frozenset({1}),))
    assert precedence(graph, "c", ("a", "b", "d")) == ((frozenset({1}),), (), ())


def test_in_a_star_everything_is_at_hand() -> None:
    graph = graph_of("a.k = b.k AND b.k = c.k AND c.k = d.k")
    assert precedence(graph, "b", ("a", "c", "d")) == ((), (), ())


def test_one_way_of_several_is_enough() -> None:
    graph = graph_of("a.k = b.k AND a.l = c.l AND b.l = d.k AND c.k = d.l")
    assert precedence(graph, "a", ("b", "c", "d"))[2] == (frozenset({0}), frozenset({1}))


def test_a_selection_waits_for_all_it_reads() -> None:
    graph = graph_of("a.k = b.k AND b.k = c.k AND c.k = d.k AND a.l + b.l < c.l")
    assert precedence(graph, "a", ("b", "c", "d", "#0")) == ((), (), (), (frozenset({0, 1}),))


def test_an_operator_without_predicates_may_run_at_any_time() -> None:
    graph = graph_of("a.k = b.k AND c.k = d.k")
    assert precedence(graph, "a", ("b", "c", "d")) == ((), (), ())
