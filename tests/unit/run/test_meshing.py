"""Plan staging: a query begins with one route, learns while it runs, and the answer does not notice."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

from anabranch.adapt.gate import Gate
from anabranch.adapt.rules import ChangeRules
from anabranch.adapt.settings import Settings
from anabranch.cql import compile_query
from anabranch.engine.batch import RelationBatch
from anabranch.lang.schema import TIMESTAMP
from anabranch.mesh import profiled
from anabranch.plan.mesh import Mesh, parse_mesh, parse_plan
from anabranch.plan.partitioning import choose_partitioning
from anabranch.plan.physical import mjoin
from anabranch.plan.query import Query
from anabranch.plan.query_set import alone
from anabranch.run.local import LocalHost
from anabranch.run.meshing import learn_from_rows
from anabranch.run.rows import relation_batch
from anabranch.run.sample import Kin, shared_key
from anabranch.run.wire import wire_layout
from anabranch.stats.mesh.learnt import LearntMesh
from tests.support.oracle import rows_as_multiset
from tests.support.scripted import read_script

pytestmark = pytest.mark.usefixtures("counted_costs", "free_searches")

ROWS = 3_000
ANY_SAVING = Settings(gate=Gate(cores=0.0))
FIRST, SECOND = parse_mesh("mesh(a: b; b: a)"), parse_mesh("mesh(a: b by 0; b: a, a by 0)")


def the_query(keys: str = "bigint") -> Query:
    script = read_script("\n".join(f"stream {name} (k {keys}, c bigint)" for name in "abcd"))
    windows = ", ".join(f"{name} [RANGE 100 SECONDS]" for name in "abcd")
    output = "a.k AS k, " if keys == "bigint" else ""
    text = f"SELECT {output}a.c AS c FROM {windows} WHERE a.k = b.k AND a.k = c.k AND a.k = d.k"
    return compile_query(text, script.catalog)


def skewed_batch(number: int, rng: np.random.Generator) -> dict[str, pa.Table]:
    """Rows of a are of two kinds; b has no partner for the one and c none for the other, but for one key of all."""
    tables = {}
    for name in "abcd":
        kind = rng.integers(0, 2, ROWS)
        keys = rng.integers(0, 500, ROWS) + 1_000 * kind
        alone = kind == {"b": 0, "c": 1}.get(name, 2)
        keys[alone] += 10_000 * (2 + "abcd".index(name))
        keys[:: ROWS // 2] = 5_000
        times = np.sort(rng.integers(10 * number, 10 * number + 10, ROWS)) * 1_000_000
        instants = pa.array(times).cast(pa.timestamp("us")).cast(TIMESTAMP)
        tables[name] = pa.table({"ts": instants, "k": keys, "c": kind})
    return tables


def untold(batch: dict[str, pa.Table]) -> dict[str, pa.Table]:
    """The rows with texts as keys, and without the column that tells their kinds."""
    texts = {name: pa.array([f"key {key}" for key in table["k"].to_pylist()]) for name, table in batch.items()}
    return {
        name: pa.table({"ts": table["ts"], "k": texts[name], "c": np.zeros(table.num_rows, np.int64)})
        for name, table in batch.items()
    }


@pytest.mark.parametrize("asks", [False, True], ids=["by a classifier", "by questions"])
def test_a_mesh_is_learnt_while_the_query_runs_and_changes_no_answer(
    asks: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(profiled, "SEARCH", replace(profiled.SEARCH, existence_probes=asks))
    query, rng = the_query("string" if asks else "bigint"), np.random.default_rng(1)
    batches = [skewed_batch(number, rng) for number in range(4)]
    batches = [untold(batch) for batch in batches] if asks else batches
    staged = LocalHost(query, mjoin(query.graph.names), rules=ChangeRules(ANY_SAVING, first_search=2, waits=True))
    plain = LocalHost(query, mjoin(query.graph.names))
    answers = [(rows_as_multiset(staged.step(batch)), rows_as_multiset(plain.step(batch))) for batch in batches]
    assert all(of_staged == of_plain for of_staged, of_plain in answers)
    assert all(of_plain for _, of_plain in answers)
    decided = [record for record in staged.history if record["kind"] == "decision"]
    assert decided[0]["batch"] == 2
    assert decided[0]["action"] == "migrate", decided[0]["reason"]
    assert decided[0]["cost"]["cpu"] > 1.2 * decided[0]["proposedCost"]["cpu"]
    assert ("existence probes of " if asks else "routes by") in decided[0]["mesh"]["relations"]["a"]["reason"]
    assert isinstance(staged.plan, Mesh)
    assert any(record.get("by") == "mesh" and record["phase"] == "ended" for record in staged.history)
    routes = {route.route for route in staged.statistics.routes if route.relation == "a"}
    assert (len(routes) > 1) != asks
    assert sum(route.rows for route in staged.statistics.routes) == 4 * ROWS


def test_slots_of_a_query_that_only_learns_routes_learn_together() -> None:
    query, rng = the_query(), np.random.default_rng(1)
    rules = ChangeRules(first_search=2, waits=True)
    host = LocalHost(query, mjoin(query.graph.names), slots=2, rules=rules)
    for number in range(4):
        host.step(skewed_batch(number, rng))
    (decided,) = [record for record in host.history if record["kind"] == "decision"]
    assert decided["slots"] == [0, 1]


def test_a_mesh_passes_the_same_gate_as_any_plan() -> None:
    """Such a trickle of rows is no reason to change anything."""
    query, rng = the_query(), np.random.default_rng(1)
    host = LocalHost(query, mjoin(query.graph.names), rules=ChangeRules(first_search=2, waits=True))
    for number in range(4):
        host.step(skewed_batch(number, rng))
    decided = [record for record in host.history if record["kind"] == "decision"]
    assert [record["action"] for record in decided] == ["keep"]
    assert "cores, 0.005 are wanted" in decided[0]["reason"]
    assert decided[0]["mesh"]["isMesh"]
    assert host.plan == mjoin(query.graph.names)


THREE = "FROM a [RANGE 10 SECONDS], b [RANGE 10 SECONDS], c [RANGE 10 SECONDS] WHERE"


@pytest.mark.parametrize(
    ("query", "plan"),
    [
        pytest.param(f"SELECT a.c AS c {THREE} a.k = b.k + 1 AND a.k = c.k", "(a b c)", id="a relation of no column"),
        pytest.param(f"SELECT a.c AS c {THREE} a.k = c.k", "(a b c)", id="a relation that nothing is asked of"),
        pytest.param(
            f"SELECT a.w AS w {THREE} a.k = b.k AND a.k = c.k AND a.c < c.c",
            "mesh(a: b>c>#0; b: a>c; c: a>b)",
            id="a deferred predicate",
        ),
        pytest.param(
            f"SELECT a.w AS w {THREE} a.k = b.k AND a.k = c.k",
            "mesh(a: b>c, c>b by (w in {'1'} ? 0 : 1); b: a>c; c: a>b)",
            id="more words than a classifier would be learnt from",
        ),
        pytest.param(
            f"SELECT a.ts AS ts {THREE} a.k = b.k AND a.k = c.k",
            "mesh(a: b>c, c>b by (ts <= 5000000.0 ? 0 : 1); b: a>c; c: a>b)",
            id="a classifier of times",
        ),
    ],
)
def test_whatever_runs_a_search_for_something_better_does_not_end_it(query: str, plan: str) -> None:
    """A search that met a relation without attributes, or a mesh that it would not have made, ended the query."""
    script = read_script("\n".join(f"stream {name} (k bigint, c bigint, w string)" for name in "abc"))
    compiled, rng = compile_query(query, script.catalog), np.random.default_rng(1)
    staged = LocalHost(compiled, parse_plan(plan), rules=ChangeRules(first_search=1, waits=True))
    plain = LocalHost(compiled, mjoin(compiled.graph.names))
    for number in range(3):
        batch = {}
        for name in "abc":
            times = np.sort(rng.integers(10 * number, 10 * number + 10, 80)) * 1_000_000
            instants = pa.array(times).cast(pa.timestamp("us")).cast(TIMESTAMP)
            words = rng.integers(0, 1000, 80).astype(str)
            batch[name] = pa.table(
                {"ts": instants, "k": rng.integers(0, 30, 80), "c": rng.integers(0, 3, 80), "w": words}
            )
        assert rows_as_multiset(staged.step(batch)) == rows_as_multiset(plain.step(batch))
    assert {record["policy"] for record in staged.history if record["kind"] == "decision"} == {"mesh"}


def test_a_search_that_fails_leaves_the_plan_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> None:
        raise ZeroDivisionError("no rows")

    monkeypatch.setattr("anabranch.adapt.advisors.routes.learn_mesh", fails)
    query, rng = the_query(), np.random.default_rng(1)
    host = LocalHost(query, mjoin(query.graph.names), rules=ChangeRules(ANY_SAVING, first_search=2, waits=True))
    first, second, third, fourth = (skewed_batch(number, rng) for number in range(4))
    host.step(first)
    host.step(second)
    with pytest.warns(UserWarning, match=r"a search for routes failed: ZeroDivisionError\('no rows'\)"):
        host.step(third)
    assert host.step(fourth).num_rows
    assert host.plan == mjoin(query.graph.names)


def rows_of(query: Query, batches: list[dict[str, pa.Table]], share: float) -> dict[str, RelationBatch]:
    """The rows of some batches, thinned to a share."""
    layout, drawn = wire_layout(alone(query), choose_partitioning(query.graph, 1)), np.random.default_rng(5)
    rows = {}
    for relation in query.graph.relations:
        table = pa.concat_tables([batch[relation.name] for batch in batches])
        kept = np.flatnonzero(drawn.random(table.num_rows) < share)
        rows[relation.name] = relation_batch(relation, layout, table.take(kept))
    return rows


@pytest.mark.parametrize("share", [1.0, 0.25])
def test_a_mesh_is_learnt_from_a_sample_before_the_query_runs(share: float) -> None:
    """Of a thin sample a row meets few partners, so what it will meet is counted in proportion."""
    query, rng = the_query(), np.random.default_rng(1)
    batches = [skewed_batch(number, rng) for number in range(4)]
    learnt = learn_from_rows(query, rows_of(query, batches, share), dict.fromkeys("abcd", 4.0 * ROWS))
    assert learnt.is_mesh
    # Either by a classifier or by questions, every row looks at b or c first, and at the other one of them next.
    assert {name[0] for route in learnt.mesh.of("a").routes for name in route.operators[:2]} == {"b", "c"}
    assert learnt.gain() > 0.2
    assert LearntMesh.from_json(json.loads(json.dumps(learnt.to_json()))) == learnt


def test_co_sampled_rows_predict_the_route_of_a_row() -> None:
    """One by one, a quarter of the rows has a quarter of the partners each; by key, all of them."""
    query, rng = the_query(), np.random.default_rng(1)
    whole = rows_of(query, [skewed_batch(number, rng) for number in range(4)], 1.0)
    key, held = shared_key(query.graph), dict.fromkeys("abcd", 4.0 * ROWS)
    assert key is not None
    drawn = {name: batch.take(np.flatnonzero(batch.codes[key.name] % 4 == 0)) for name, batch in whole.items()}
    every = learn_from_rows(query, whole, held)
    some = learn_from_rows(query, rows_of(query, [skewed_batch(9, rng)], 0.1), held, kin=Kin(key, 0.25, drawn))
    for learnt in (every, some):
        assert any("?" in str(way) for way in learnt.mesh.ways)
        assert LearntMesh.from_json(json.loads(json.dumps(learnt.to_json()))) == learnt
    assert some.profiled is not None
    assert every.profiled is not None
    assert some.profiled.matches == pytest.approx(every.profiled.matches, rel=0.15)


def test_that_a_row_of_a_thin_sample_found_nothing_proves_nothing() -> None:
    query, rng = the_query(), np.random.default_rng(1)
    batches = [skewed_batch(number, rng) for number in range(4)]
    learnt = learn_from_rows(query, rows_of(query, batches, 0.25), dict.fromkeys("abcd", 4.0 * ROWS))
    assert not any("?" in name for way in learnt.mesh.ways for route in way.routes for name in route.operators)


def test_sampled_rows_that_stay_for_ever_may_be_from_before_1970() -> None:
    script = read_script("stream a (k bigint)\nstream b (k bigint)")
    text = "SELECT a.k AS k FROM a [RANGE 10 SECONDS], b [UNBOUNDED] WHERE a.k = b.k"
    query = compile_query(text, script.catalog, allow_unbounded=True)
    instants = pa.array(range(-20_000_000, 0, 1_000_000), pa.int64()).cast(pa.timestamp("us")).cast(TIMESTAMP)
    table = pa.table({"ts": instants, "k": pa.array(range(20), pa.int64())})
    learnt = learn_from_rows(query, rows_of(query, [{"a": table, "b": table}], 1.0), {"a": 10.0, "b": 20.0})
    assert set(learnt.relations) == {"a", "b"}


def test_samples_that_do_not_meet_in_time_tell_nothing() -> None:
    query, rng = the_query(), np.random.default_rng(1)
    rows = rows_of(query, [skewed_batch(0, rng)], 1.0)
    late = rows_of(query, [skewed_batch(1_000, rng)], 1.0)
    learnt = learn_from_rows(query, {**rows, "d": late["d"]}, dict.fromkeys("abcd", 100.0))
    assert not learnt.relations.get("d")
    nothing = learn_from_rows(query, {name: rows[name] for name in "abc"}, dict.fromkeys("abcd", 100.0))
    assert not nothing.relations
    assert not nothing.is_mesh
