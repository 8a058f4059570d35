"""The way from a query text to a physical plan, stage by stage, without Spark.

The command line and the public API explain through this room, and both take their plan choices from it, so what is
explained is what runs.
"""

from __future__ import annotations

from functools import cached_property

from anabranch import cql
from anabranch.catalog import Catalog
from anabranch.errors import PlanError, SpecError
from anabranch.plan import logical
from anabranch.plan.check import validate
from anabranch.plan.describe import describe
from anabranch.plan.join_graph import JoinGraph, render
from anabranch.plan.physical import JoinNode, PhysicalPlan, linear_tree, mjoin, probe_order
from anabranch.plan.query import Query
from anabranch.plan.text import parse
from anabranch.rewrite.pipeline import rewrite

STAGES = ("logical", "rewritten", "graph", "physical")
WIDEST_MJOIN = 8
"""Relations up to which `auto` takes one join without intermediate state."""


class Explanation:
    """A query text over a catalog, compiled as far as is asked."""

    def __init__(self, text: str, catalog: Catalog, *, allow_unbounded: bool = False) -> None:
        self._text = text
        self._catalog = catalog
        self._allow_unbounded = allow_unbounded

    @cached_property
    def query(self) -> Query:
        return cql.compile_query(self._text, self._catalog, allow_unbounded=self._allow_unbounded)

    def plan(self, choice: str = "auto") -> PhysicalPlan:
        return choose_plan(choice, self.query.graph)

    def text(self, stage: str = "physical", choice: str = "auto") -> str:
        """One stage as text; the plan choice matters to the physical one alone."""
        match stage:
            case "logical":
                return logical.render(self._bound())
            case "rewritten":
                return logical.render(rewrite(self._bound()))
            case "graph":
                return render(self.query.graph)
            case "physical":
                return describe(self.plan(choice), self.query.graph)
        raise SpecError(f"there is no stage '{stage}' to explain", hint=f"ask for one of {', '.join(STAGES)}")

    def _bound(self) -> logical.LogicalPlan:
        return cql.bind(self._text, self._catalog, allow_unbounded=self._allow_unbounded)


def choose_plan(choice: str, graph: JoinGraph) -> PhysicalPlan:
    """The physical plan that a choice means for a join graph."""
    match choice.strip():
        case "auto":
            return _tree(graph) if len(graph.names) > WIDEST_MJOIN else mjoin(graph.names)
        case "mjoin":
            return mjoin(graph.names)
        case "tree":
            return _tree(graph)
        case "":
            raise PlanError("the plan is empty", hint="use auto, mjoin, tree or a plan text such as ((a b) c)")
        case text:
            return validate(parse(text), graph)


def _tree(graph: JoinGraph) -> PhysicalPlan:
    """Two-way joins in FROM order, except that what is connected comes before what would be a cross product."""
    every = mjoin(graph.names)
    if not isinstance(every, JoinNode):
        return every
    return linear_tree(tuple(graph.names[position] for position in (0, *probe_order(every, 0, graph))))
