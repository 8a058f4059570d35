"""Statistics read off a running plan against those its rows were drawn from."""

from __future__ import annotations

import numpy as np
import pytest

from anabranch.engine.engine import Engine
from anabranch.lab.calibrate import BATCH, Workload
from anabranch.plan.text import parse
from anabranch.stats.step import ProbeStatistics, StepStatistics, merge
from anabranch.stats.view import measured_statistics
from tests.unit.optimize.graphs import chain_graph

LOAD = Workload(
    {"a": 300.0, "b": 500.0, "c": 400.0, "d": 200.0},
    {("a", "b"): 0.004, ("b", "c"): 0.002, ("c", "d"): 0.01},
    2.0,
    True,
)


@pytest.mark.parametrize("text", ["(a b c d | a>b>c>d, b>a>c>d, c>b>d>a, d>c>b>a)", "(((a b) c) d)", "((a b) (c d))"])
def test_rates_and_selectivities_are_found_again(text: str) -> None:
    query, plan = LOAD.query(), parse(text)
    engine = Engine(query, plan)
    floors, steps = dict.fromkeys(query.graph.names, 0), []
    for number, rows in enumerate(LOAD.batches(np.random.default_rng(1), 12, query)):
        list(engine.step(rows, floors))
        floors = {name: int(batch.times[-1]) for name, batch in rows.items()}
        if number >= 4:
            steps.append(engine.statistics())
        else:
            engine.statistics()
    seen = measured_statistics(merge(steps), plan, query.graph, len(steps) * BATCH, BATCH)
    for name, rate in LOAD.rates.items():
        known = seen.rate(name, name)
        assert known is not None
        assert known.source == "measured"
        assert known.value == pytest.approx(rate, rel=0.1)
    for (one, other), selectivity in LOAD.selectivities.items():
        known = seen.pair_selectivity(one, other)
        assert known is not None
        assert known.value == pytest.approx(selectivity, rel=0.15)
    theta = seen.predicate_selectivity("a.weight < b.weight")
    assert theta is not None
    assert theta.value == pytest.approx(0.5, rel=0.1)


def test_what_was_never_looked_up_stays_unknown() -> None:
    graph, plan = chain_graph("abc"), parse("((a b) c)")
    idle = StepStatistics(rows_in={"a": 0, "b": 0, "c": 0}, probes=(ProbeStatistics("(a b)", "a", "b"),))
    seen = measured_statistics(idle, plan, graph, 1.0)
    assert seen.pair_selectivity("a", "b") is None
    known = seen.rate("a", "a_stream")
    assert known is not None
    assert known.value == 0.0
