"""Outer joins cost the same whatever the plan of the core; limits know of them."""

from __future__ import annotations

from anabranch.cql import compile_query
from anabranch.lang.catalog import Catalog, StreamDeclaration
from anabranch.lang.ddl import parse_schema
from anabranch.optimize.beside import price_of_sides
from anabranch.optimize.proposals import Infeasible, Proposal
from anabranch.plan.query import Query
from anabranch.planning.choosing import decide
from anabranch.planning.options import PlanOptions
from anabranch.stats.view import NOTHING_KNOWN

CORE = "SELECT a.v AS x, b.v AS y FROM a [RANGE 10 SECONDS] JOIN b [RANGE 10 SECONDS] ON a.k = b.k"
LEFT = CORE + " LEFT JOIN c [RANGE {} SECONDS] ON a.k = c.k"


def query(text: str) -> Query:
    catalog = Catalog()
    for name in "abc":
        catalog.register(StreamDeclaration(name, parse_schema("ts timestamp, k bigint, v bigint"), "ts"))
    return compile_query(text, catalog)


def test_a_side_costs_and_a_longer_one_holds_more() -> None:
    assert price_of_sides(query(CORE), NOTHING_KNOWN).cpu == 0
    short, long = (price_of_sides(query(LEFT.format(each)), NOTHING_KNOWN) for each in (10, 100))
    assert min(short.cpu, long.cpu) > 0
    assert 0 < short.memory < long.memory
    twice = price_of_sides(query(LEFT.format(10) + " LEFT JOIN c [RANGE 10 SECONDS] AS d ON b.k = d.k"), NOTHING_KNOWN)
    assert twice.cpu > 1.5 * short.cpu


def test_limits_and_prices_count_the_sides() -> None:
    """What fits without the side does not fit with it, and the choice says by which bound."""
    alone, joined = (decide(query(text), PlanOptions()) for text in (CORE, LEFT.format(100)))
    assert isinstance(alone.answer, Proposal)
    assert isinstance(joined.answer, Proposal)
    beside = price_of_sides(query(LEFT.format(100)), NOTHING_KNOWN)
    assert joined.answer.cost.memory > alone.answer.cost.memory + 0.9 * beside.memory
    limited = PlanOptions(memory=(alone.answer.cost.memory + joined.answer.cost.memory) / 2)
    assert isinstance(decide(query(CORE), limited).answer, Proposal)
    refused = decide(query(LEFT.format(100)), limited).answer
    assert isinstance(refused, Infeasible)
    assert refused.bound == "memory"
