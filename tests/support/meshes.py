"""Hypothesis strategies for meshes: any routes, any classifier, semi-join probes, deferred predicates."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import strategies as st

from anabranch.lang.schema import Field, is_text
from anabranch.plan.classifier import Assign, CategoryTest, Classifier, NumberTest, is_classifiable
from anabranch.plan.join_graph import JoinGraph, Relation, selection_name
from anabranch.plan.mesh import Mesh, RelationRoutes, Route, attributes_of, existence_probe, needs
from anabranch.plan.selections import guarded_by


@st.composite
def meshes(draw: st.DrawFn, graph: JoinGraph) -> Mesh:
    """Draws any mesh over the relations of a graph, by any column in it.

    Before a query starts, that is any column of a stream; the graph of a running query has only the columns that are
    sent.
    """
    # Functions that draw, not nested strategies: thousands of meshes are drawn, each only once.
    return Mesh(tuple(_ways(draw, graph, relation) for relation in graph.relations))


def _ways(draw: st.DrawFn, graph: JoinGraph, relation: Relation) -> RelationRoutes:
    several = tuple(_route(draw, graph, relation.name) for _ in range(draw(st.integers(1, 3))))
    known = attributes_of(graph, relation.name)
    every = [*known, *(field for field in relation.source if known.find(field.name) is None)]
    columns = [field for field in every if is_classifiable(field.type)]
    return RelationRoutes(relation.name, several, _classifier(draw, columns, len(several), _TESTS))


def _route(draw: st.DrawFn, graph: JoinGraph, relation: str) -> Route:
    order: list[str] = list(draw(st.permutations([name for name in graph.names if name != relation])))
    for position, theta in enumerate(graph.thetas):
        others = [other.predicate for other in graph.thetas if other is not theta]
        if guarded_by(theta.predicate, others) is None and draw(st.booleans()):
            selection = selection_name(position)
            missing = [order.index(name) for name in needs(selection, graph) if name != relation]
            order.insert(draw(st.integers(max(missing, default=-1) + 1, len(order))), selection)
    for name in graph.names:
        if name != relation and draw(st.booleans()):
            order.insert(draw(st.integers(0, order.index(name))), existence_probe(name))
    return Route(tuple(order))


def _classifier(draw: st.DrawFn, columns: Sequence[Field], routes: int, tests: int) -> Classifier:
    """Draws a tree with at most `tests` tests above each leaf."""
    if not columns or not tests or not draw(st.booleans()):
        return Assign(draw(st.integers(0, routes - 1)))
    field = columns[draw(st.integers(0, len(columns) - 1))]
    first, second = (_classifier(draw, columns, routes, tests - 1) for _ in range(2))
    if is_text(field.type):
        return CategoryTest(field.name, draw(_CATEGORIES), first, second, draw(st.booleans()))
    return NumberTest(field.name, draw(_THRESHOLDS), first, second, draw(st.booleans()))


_TESTS = 2
_CATEGORIES = st.lists(st.sampled_from(["a", "ab", "zz"]), max_size=2).map(tuple)
_THRESHOLDS = st.sampled_from([0.0, 0.5, 1.0, 7.0, 1005.0])
