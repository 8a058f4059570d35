"""Queries that share a fabric get what each would get alone, from states and operators that are there once."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anabranch.catalog import Catalog, StreamDeclaration
from anabranch.cql import compile_query
from anabranch.engine.batch import RelationBatch
from anabranch.engine.codes import key_codes
from anabranch.engine.fabric.shared import SharedFabric
from anabranch.errors import PlanError
from anabranch.plan.mesh import one_route, parse_mesh
from anabranch.plan.query import Query
from anabranch.schema import TIMESTAMP, Field, Schema
from anabranch.testing.meshes import meshes
from anabranch.testing.oracle import Answer, batch_answer, describe_difference, rows_as_multiset

COLUMNS = Schema((Field("ts", TIMESTAMP, False), Field("k", pa.int64(), False), Field("v", pa.int64(), False)))
CATALOG = Catalog()
for stream in "abc":
    CATALOG.register(StreamDeclaration(stream, COLUMNS, "ts"))
THREE = "SELECT a.v AS x, b.v AS y, c.v AS z FROM a [{w}], b [{w}], c [{w}] WHERE a.k = b.k AND b.k = c.k"
TWO = "SELECT a.v AS x, b.v AS y, a.k AS k FROM a [{w}], b [{w}] WHERE a.k = b.k AND a.v < b.v"
OTHER = "SELECT b.k AS x, c.k AS y FROM b [{w}], c [{w}] WHERE b.v = c.v"


def query(text: str, window: str = "RANGE 20 SECONDS") -> Query:
    return compile_query(text.format(w=window), CATALOG)


def rows_of(rng: np.random.Generator, size: int, start: int) -> pa.Table:
    times = np.sort(rng.integers(start, start + 10, size)) * 1_000_000
    instants = pa.array(times).cast(pa.timestamp("us")).cast(TIMESTAMP)
    return pa.table({"ts": instants, "k": rng.integers(0, 4, size), "v": rng.integers(0, 4, size)})


def batch_of(fabric: SharedFabric, name: str, table: pa.Table) -> RelationBatch:
    graph = next(shared.graph for shared in fabric.queries if name in shared.graph.names)
    keys = {key.name: key for shared in fabric.queries for key in shared.graph.keys_of([name])}
    codes = {
        code: key_codes(table.column(keys[code].expression(name).name).combine_chunks(), keys[code].type)  # type: ignore[union-attr]
        for code in fabric.codes[name]
    }
    payload = table.select(graph.relation(name).schema.names).combine_chunks().to_batches()[0]
    times = table.column("ts").cast(pa.int64()).to_numpy()
    return RelationBatch(times, codes, payload)


@settings(max_examples=settings().max_examples // 3)
@given(data=st.data(), seed=st.integers(0, 1_000))
def test_each_query_gets_what_it_would_get_alone(data: st.DataObject, seed: int) -> None:
    queries = [query(THREE), query(TWO), query(OTHER)]
    fabric = SharedFabric(queries, [data.draw(meshes(each.graph)) for each in queries])
    rng = np.random.default_rng(seed)
    tables: dict[str, list[pa.Table]] = {name: [] for name in "abc"}
    answers: list[Answer] = [Counter() for _ in queries]
    for number in range(3):
        batch = {name: rows_of(rng, 8, 10 * number) for name in "abc"}
        arrived = {name: batch_of(fabric, name, table) for name, table in batch.items()}
        for which, found in fabric.step(arrived, dict.fromkeys("abc", 10_000_000 * number)):
            answers[which].update(rows_as_multiset(pa.Table.from_batches([found])))
        for name, table in batch.items():
            tables[name].append(table)
    for each, answer in zip(queries, answers, strict=True):
        whole = {name: pa.concat_tables(several) for name, several in tables.items() if name in each.graph.names}
        assert not describe_difference(batch_answer(each, whole), answer)


def test_what_queries_have_in_common_is_there_once() -> None:
    queries = [query(THREE), query(TWO)]
    fabric = SharedFabric(queries, [one_route(each.graph) for each in queries])
    assert set(fabric.bases) == {"a", "b", "c"}
    assert fabric.modules == 4
    """Three probes and the predicate of the second query."""
    assert fabric.codes == {"a": ("k0",), "b": ("k0",), "c": ("k0",)}
    assert all(base.indexes == (("k0",),) for base in fabric.bases.values())


def test_a_mesh_of_one_query_is_replaced_without_touching_the_other() -> None:
    queries = [query(THREE), query(TWO)]
    fabric = SharedFabric(queries, [one_route(each.graph) for each in queries])
    fabric.tracks[0].replace(parse_mesh("mesh(a: c>b; b: c>a; c: a>b)"))
    assert str(fabric.tracks[0].plan) == "mesh(a: c>b; b: c>a; c: a>b)"
    assert fabric.tracks[1].plan == one_route(queries[1].graph)


def test_a_relation_must_be_the_same_in_all_queries() -> None:
    queries = [query(THREE), query(TWO, "RANGE 5 SECONDS")]
    with pytest.raises(PlanError, match="relation 'a' is not the same in all queries"):
        SharedFabric(queries, [one_route(each.graph) for each in queries])
