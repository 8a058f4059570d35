"""Plan staging: a query begins with one route, learns while it runs, and the answer does not notice."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from anabranch.cql import compile_query
from anabranch.host.local import LocalHost
from anabranch.host.meshing import MeshWatch, Staging
from anabranch.plan.mesh import Mesh, parse_mesh
from anabranch.plan.physical import mjoin
from anabranch.plan.query import Query
from anabranch.schema import TIMESTAMP
from anabranch.stats.routes import HopStatistics, RouteStatistics
from anabranch.testing.oracle import rows_as_multiset
from anabranch.testing.scripted import read_script

ROWS = 3_000
FIRST, SECOND = parse_mesh("mesh(a: b; b: a)"), parse_mesh("mesh(a: b by 0; b: a, a by 0)")


def the_query() -> Query:
    script = read_script("\n".join(f"stream {name} (k bigint, c bigint)" for name in "abcd"))
    windows = ", ".join(f"{name} [RANGE 100 SECONDS]" for name in "abcd")
    text = f"SELECT a.k AS k, a.c AS c FROM {windows} WHERE a.k = b.k AND a.k = c.k AND a.k = d.k"
    return compile_query(text, script.catalog)


def skewed_batch(number: int, rng: np.random.Generator) -> dict[str, pa.Table]:
    """Rows of a are of two kinds; b has no partner for the one and c none for the other."""
    tables = {}
    for name in "abcd":
        kind = rng.integers(0, 2, ROWS)
        keys = rng.integers(0, 500, ROWS) + 1_000 * kind
        alone = kind == {"b": 0, "c": 1}.get(name, 2)
        keys[alone] += 10_000 * (2 + "abcd".index(name))
        times = np.sort(rng.integers(10 * number, 10 * number + 10, ROWS)) * 1_000_000
        instants = pa.array(times).cast(pa.timestamp("us")).cast(TIMESTAMP)
        tables[name] = pa.table({"ts": instants, "k": keys, "c": kind})
    return tables


def test_a_mesh_is_learnt_while_the_query_runs_and_changes_no_answer() -> None:
    query, rng = the_query(), np.random.default_rng(1)
    batches = [skewed_batch(number, rng) for number in range(4)]
    staged = LocalHost(query, mjoin(query.graph.names), staging=Staging(first=2))
    plain = LocalHost(query, mjoin(query.graph.names))
    for batch in batches:
        assert rows_as_multiset(staged.step(batch)) == rows_as_multiset(plain.step(batch))
    learnt = [record for record in staged.records if record["kind"] == "mesh"]
    assert learnt[0]["batch"] == 2
    assert learnt[0]["isTaken"]
    assert "routes by" in learnt[0]["relations"]["a"]["reason"]
    assert isinstance(staged.plan, Mesh)
    assert any(record.get("by") == "mesh" and record["phase"] == "ended" for record in staged.records)
    routes = {route.route for route in staged.statistics.routes if route.relation == "a"}
    assert len(routes) > 1
    assert sum(route.rows for route in staged.statistics.routes) == 4 * ROWS


def test_slots_learn_at_doubling_distances() -> None:
    assert [batches for batches in range(40) if Staging(first=4).is_due(batches)] == [4, 8, 16, 32]


def seen(rows: int, kept: int) -> tuple[RouteStatistics, ...]:
    return (RouteStatistics("a", 0, rows, 0, (HopStatistics("b", rows, kept),)),)


def test_a_mesh_that_no_longer_does_what_it_did_is_told_once() -> None:
    watch = MeshWatch()
    assert [watch.note(FIRST, seen(10_000, 5_000)) for _ in range(5)] == [None] * 5
    reason = watch.note(FIRST, seen(10_000, 9_000))
    assert reason is not None
    assert "operator 'b'" in reason
    assert watch.note(FIRST, seen(10_000, 9_000)) is None


def test_another_mesh_starts_another_watch() -> None:
    watch = MeshWatch()
    for _ in range(5):
        watch.note(FIRST, seen(10_000, 5_000))
    assert watch.note(SECOND, seen(10_000, 9_000)) is None
