"""`plan: auto` that adapts finds a mesh while it runs, and the way back when its reason has gone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

from anabranch.adapt.facts import Interval
from anabranch.adapt.gate import Gate
from anabranch.adapt.settings import Settings
from anabranch.cql import compile_query
from anabranch.lang.catalog import Catalog, StreamDeclaration
from anabranch.lang.schema import TIMESTAMP, Schema
from anabranch.plan.mesh import Mesh
from anabranch.planning.choosing import change_rules, decide, first_plan
from anabranch.planning.options import AUTO, PlanOptions
from anabranch.run.local import LocalHost

pytestmark = pytest.mark.usefixtures("free_searches")

NAMES = "abcde"
BATCH, ROWS = 0.02, 3_000
COLUMNS = pa.schema([("ts", TIMESTAMP), ("k", pa.int64()), ("c", pa.int64())])
CATALOG = Catalog()
for _name in NAMES:
    CATALOG.register(StreamDeclaration(_name, Schema.from_arrow(COLUMNS), "ts"))
QUERY = compile_query(
    f"SELECT {', '.join(f'{n}.c AS c{n}' for n in NAMES)} "
    f"FROM {', '.join(f'{n} [RANGE 120 MILLISECONDS]' for n in NAMES)} "
    f"WHERE {' AND '.join(f'a.k = {n}.k' for n in NAMES[1:])}",
    CATALOG,
)
SETTINGS = Settings(gate=Gate(cool_down=Interval(batches=4)))


def batches(count: int, skewed: range, seed: int = 1) -> Iterator[Mapping[str, pa.Table]]:
    """In each class of rows one stream is rare, in the batches that are skewed; else the last stream is rare."""
    rng = np.random.default_rng(seed)
    for number in range(count):
        batch = {}
        for place, name in enumerate(NAMES):
            times = 1_000_000 + number * 20_000 + np.sort(rng.integers(0, 20_000, ROWS))
            group = rng.integers(0, 5, ROWS)
            keys = rng.integers(0, 1_200, ROWS) * 5 + group
            rare = group == place if number in skewed else np.full(ROWS, name == "e")
            alone = rare & (rng.random(ROWS) >= 0.05)
            keys[alone] = -1 - rng.integers(0, 1 << 40, int(alone.sum())) * 5 - place
            batch[name] = pa.table({"ts": pa.array(times).cast(TIMESTAMP), "k": keys, "c": group}, schema=COLUMNS)
        yield batch


def adapting(slots: int = 1, settings: Settings = SETTINGS) -> LocalHost:
    choice = decide(QUERY, batch=BATCH, slots=slots)
    rules = change_rules(QUERY, AUTO, choice, adapt=settings)
    return LocalHost(QUERY, first_plan(choice), rules=replace(rules, waits=True), slots=slots)


def plans_of(host: LocalHost, count: int, skewed: range) -> list[bool]:
    """Whether each batch ran by a mesh; the results are those of a plan that stays."""
    fixed = LocalHost(QUERY, first_plan(decide(QUERY, batch=BATCH)))
    found = []
    for batch in batches(count, skewed):
        results, expected = host.step(batch), fixed.step(batch)
        assert results.num_rows == expected.num_rows
        assert results.group_by(results.column_names).aggregate([([], "count_all")]).num_rows == (
            expected.group_by(expected.column_names).aggregate([([], "count_all")]).num_rows
        )
        found.append(isinstance(host.plan, Mesh))
    return found


@pytest.mark.parametrize("slots", [1, 2])
def test_auto_takes_a_mesh_while_it_runs(counted_costs: None, slots: int) -> None:
    host = adapting(slots)
    found = plans_of(host, 24, range(24))
    assert not found[0]
    assert found[-1]
    assert len({str(plan.plan) for plan in host.steering.plans[""]}) == 1
    (taken,) = [each for each in host.history if each["kind"] == "decision" and each["action"] == "migrate"]
    assert taken["slots"] == list(range(slots))
    assert taken["cost"]["cpu"] > 1.2 * taken["proposedCost"]["cpu"]


def test_late_skew_is_found_by_its_evidence(counted_costs: None) -> None:
    found = plans_of(adapting(), 60, range(30, 60))
    assert not any(found[:30])
    assert found[-1]


def test_a_mesh_whose_skew_has_gone_is_left_for_a_plan(counted_costs: None) -> None:
    host = adapting()
    found = plans_of(host, 60, range(24))
    assert found[23]
    assert not found[-1]


def test_uniform_rows_keep_their_plan(counted_costs: None) -> None:
    host = adapting()
    assert not any(plans_of(host, 20, range(0)))


def test_a_frozen_query_records_the_plan_it_would_take(counted_costs: None) -> None:
    host = adapting(settings=replace(SETTINGS, freeze=True))
    assert not any(plans_of(host, 20, range(20)))
    assert any("frozen; otherwise: saves" in each.get("reason", "") for each in host.history)


def test_no_look_is_made_where_no_mesh_could_pay(counted_costs: None) -> None:
    host = adapting(settings=Settings(gate=Gate(cores=50.0)))
    plans_of(host, 20, range(20))
    assert not [each for each in host.history if each.get("origin") == "search"]


def test_a_mesh_that_was_written_is_left_if_it_costs_more_than_was_expected(counted_costs: None) -> None:
    """Rows find the rare stream last; the promise of a written mesh is the cost of the best plan without routes."""
    written = "mesh(a: b>c>d>e; b: a>c>d>e; c: a>b>d>e; d: a>b>c>e; e: a>b>c>d)"
    options = PlanOptions(plan=written)
    choice = decide(QUERY, options, batch=BATCH)
    rules = change_rules(QUERY, options, choice, adapt=SETTINGS)
    assert rules.promise is not None
    assert change_rules(QUERY, options, choice).first_search is None, (
        "it stays as it was written unless the query adapts"
    )
    # Without statistics the costs are assumed ones, so the promise is made one that no plan keeps.
    tight = replace(rules, promise=replace(rules.promise, each=1e-9), first_search=16, waits=True)
    host = LocalHost(QUERY, first_plan(choice), rules=tight)
    assert str(host.plan) == written
    found = plans_of(host, 40, range(0))
    decided = [each for each in host.history if each["kind"] == "decision" and each["action"] == "migrate"]
    assert decided[0]["trigger"] == "the mesh costs more than expected"
    assert str(host.plan) != written
    assert found[0]
