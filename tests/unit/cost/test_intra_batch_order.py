"""Prices by the turns of a batch, held against what an engine counts of plans whose windows are short."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from anabranch.calibrate.engine_costs import BATCH, Workload
from anabranch.cost.counted import counted_joins
from anabranch.cost.intra_batch_order import price_in_turns, takes_turns
from anabranch.cost.resources import ResourceModel
from anabranch.engine.engine import Engine
from anabranch.optimize.problem import resource_model
from anabranch.plan.text import parse
from anabranch.stats.step import StepStatistics, merge
from anabranch.stats.view import FixedStatistics

ORDERS = [
    "(a b c | a>b>c, b>a>c, c>b>a)",
    "(a b c | a>b>c, b>c>a, c>b>a)",
    "((a b) c)",
    "(a (b c))",
]


def load(window: float) -> Workload:
    return Workload({"a": 4_000.0, "b": 4_000.0, "c": 400.0}, {("a", "b"): 0.004, ("b", "c"): 0.02}, window, False)


def model_of(work: Workload) -> ResourceModel:
    selectivities = {" ".join(pair): share for pair, share in work.selectivities.items()}
    return resource_model(
        work.query().graph, FixedStatistics(rates=dict(work.rates), selectivities=selectivities), BATCH
    )


def steps_of(work: Workload, text: str) -> list[StepStatistics]:
    query = work.query()
    engine = Engine.alone(query, parse(text))
    floors, steps = dict.fromkeys(query.graph.names, 0), []
    for rows in work.batches(np.random.default_rng(1), 16, query):
        list(engine.step(rows, floors))
        floors = {name: int(batch.times[-1]) for name, batch in rows.items()}
        steps.append(engine.statistics().total)
    return steps[6:]


def counted(work: Workload, text: str, model: ResourceModel) -> float:
    steps, graph = steps_of(work, text), work.query().graph
    return counted_joins(parse(text), merge(steps), len(steps), len(steps) * BATCH, model, graph)


@pytest.fixture(scope="module")
def counts() -> dict[str, float]:
    """What an engine counts of each plan, with windows of a quarter of a batch."""
    work = load(BATCH / 4)
    return {text: counted(work, text, model_of(work)) for text in ORDERS}


def test_short_windows_cost_about_what_is_counted_of_them(counts: dict[str, float]) -> None:
    """Where three meet, those who are near to both are fewer than the turns of each pair let expect."""
    model = model_of(load(BATCH / 4))
    prices = {text: price_in_turns(parse(text), model).cpu - model.base.cpu for text in ORDERS}
    assert all(counts[text] <= prices[text] <= 1.5 * counts[text] for text in ORDERS)
    assert min(prices, key=prices.__getitem__) == min(counts, key=counts.__getitem__)


def test_the_model_alone_is_wrong_about_orders_of_short_windows(counts: dict[str, float]) -> None:
    """What goes first hardly meets what goes last, however much that is."""
    model = model_of(load(BATCH / 4))
    one, other = (parse(text) for text in ORDERS[:2])
    by_model = model.price(one).cpu - model.price(other).cpu
    by_turns = price_in_turns(one, model).cpu - price_in_turns(other, model).cpu
    by_count = counts[ORDERS[0]] - counts[ORDERS[1]]
    assert by_model < 0.5 * by_count
    assert 0.7 * by_count < by_turns < 1.5 * by_count


def test_long_windows_and_rows_one_by_one_keep_the_price_of_the_model() -> None:
    long = model_of(load(100 * BATCH))
    alone = replace(model_of(load(BATCH / 4)), batch=0.0)
    for model in (long, alone):
        assert not takes_turns(model)
        assert all(price_in_turns(parse(text), model) == model.price(parse(text)) for text in ORDERS)


def test_what_was_worked_out_of_one_thing_is_not_taken_for_another() -> None:
    """A lookup of `c` in `b`, which goes ahead of it, and the orders of a join of `c`, `b`, `a` once had one name."""
    work = load(BATCH / 4)
    one, other = model_of(work), model_of(work)
    price_in_turns(parse("(b c a | b>c>a, c>b>a, a>b>c)"), one)
    plan = parse("(c b a | c>b>a, b>c>a, a>b>c)")
    assert price_in_turns(plan, one) == price_in_turns(plan, other)
