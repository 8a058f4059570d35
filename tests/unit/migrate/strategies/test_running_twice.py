"""Parallel track costs the joins of the boxes in which two plans differ; the others do not run twice."""

from __future__ import annotations

import pytest

from anabranch.migrate.strategies.pricing import Difference, prices
from anabranch.optimize.problem import resource_model
from anabranch.plan.physical import nodes
from anabranch.plan.text import parse
from anabranch.stats.view import FixedStatistics
from tests.unit.adapt.simulated import chain

QUERY = chain("abcd")
KNOWN = FixedStatistics(rates=dict.fromkeys("abcd", 1000.0), selectivities={"a b": 0.001, "b c": 0.0001, "c d": 0.02})
MODEL = resource_model(QUERY.graph, KNOWN)
OLD, NEW = parse("(((a b) c) d)"), parse("((a (b c)) d)")


def test_only_the_joins_of_boxes_run_twice() -> None:
    difference = Difference(QUERY.graph, OLD, NEW, MODEL)
    inside = [node for node in nodes(NEW) if "d" not in node.relations]
    assert difference.joining == pytest.approx(sum(MODEL.join_cpu(node) for node in inside))
    # The join with d is by far the dearest, and both plans share it.
    assert difference.joining < 0.5 * (MODEL.price(NEW).cpu - MODEL.base.cpu)


def test_plans_that_differ_everywhere_run_twice_as_a_whole() -> None:
    new = parse("(a (b (c d)))")
    difference = Difference(QUERY.graph, OLD, new, MODEL)
    assert difference.joining == pytest.approx(MODEL.price(new).cpu - MODEL.base.cpu)
    (parallel,) = [each for each in prices(QUERY.graph, OLD, new, MODEL) if each.strategy == "parallel-track"]
    assert parallel.cpu == pytest.approx(difference.joining * 10)
