"""The wire layout loses nothing, shares columns by type, and puts rows in order of relation and time."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.cql import compile_query
from anabranch.engine.batch import RelationBatch
from anabranch.errors import HostError
from anabranch.plan.partitioning import choose_partitioning
from anabranch.plan.query_set import alone
from anabranch.run import wire
from anabranch.run.wire import RELATION, TIME, WireLayout, wire_layout
from tests.support.scripted import read_script

CATALOG = read_script(
    """
stream a (k bigint, s string, v bigint, d decimal(9,2))
stream b (k bigint, t string)
stream c (s string, n array<bigint>)
"""
).catalog
TEXTS = {
    "chain": "SELECT a.s AS x, a.v AS v, a.d AS d, b.t AS y, c.n AS n FROM a [NOW], b [NOW], c [NOW] "
    "WHERE a.k = b.k AND a.s = c.s",
    "cross": "SELECT a.d AS d, b.k AS k, c.n AS n FROM a [NOW], b [NOW], c [NOW] WHERE a.v < b.k",
    "nothing": "SELECT 1 AS one FROM a [NOW], b [NOW] WHERE a.k = b.k",
}
LAYOUTS = {
    name: wire_layout(alone(query), choose_partitioning(query.graph, 4))
    for name, text in TEXTS.items()
    for query in [compile_query(text, CATALOG)]
}
VALUES: dict[str, st.SearchStrategy[object]] = {
    "int64": st.none() | st.integers(-9, 9),
    "string": st.none() | st.text(max_size=3),
    "decimal128(9, 2)": st.none() | st.decimals("-99", "99", places=2),
    "list<element: int64>": st.none() | st.lists(st.none() | st.integers(0, 9), max_size=2),
}


@st.composite
def batches(draw: st.DrawFn, layout: WireLayout) -> dict[str, RelationBatch]:
    drawn = {}
    for name in layout.queries.graph.names:
        length = draw(st.integers(0, 6))
        column = st.lists(st.integers(-(2**40), 2**40), min_size=length, max_size=length)
        payload = {}
        for field in layout.queries.graph.relation(name).schema:
            kind = next(values for text, values in VALUES.items() if str(field.type).startswith(text[:4]))
            payload[field.name] = pa.array(draw(st.lists(kind, min_size=length, max_size=length)), field.type)
        codes = {code: np.array(draw(column), dtype=np.int64) for code in layout.codes[name]}
        drawn[name] = RelationBatch(np.array(draw(column), dtype=np.int64), codes, pa.RecordBatch.from_pydict(payload))
    return drawn


def listed(batch: RelationBatch) -> list[tuple[object, ...]]:
    payload = [batch.payload.column(name).to_pylist() for name in batch.payload.schema.names]
    return sorted(
        zip(batch.times.tolist(), *(c.tolist() for c in batch.codes.values()), *payload, strict=True), key=str
    )


@given(data=st.data(), name=st.sampled_from(sorted(LAYOUTS)))
def test_split_undoes_join(data: st.DataObject, name: str) -> None:
    layout = LAYOUTS[name]
    given_rows = data.draw(batches(layout))
    table = layout.join(given_rows)
    assert table.schema.names == layout.schema.names
    shuffled = table.take(pa.array(data.draw(st.permutations(range(table.num_rows)))).cast(pa.int64()))
    for rows in (table, shuffled):
        back = layout.split(rows)
        for relation, batch in given_rows.items():
            assert listed(back[relation]) == listed(batch)
            assert (np.diff(back[relation].times) >= 0).all()
            assert back[relation].codes.keys() == batch.codes.keys()


def test_relations_share_columns_by_type() -> None:
    layout = LAYOUTS["chain"]
    kinds = [field.type for field in layout.schema if field.name.startswith("_value")]
    most = [
        max(sum(f.type == kind for f in relation.schema) for relation in layout.queries.graph.relations)
        for kind in dict.fromkeys(kinds)
    ]
    assert len(kinds) == sum(most)
    assert layout.schema.names[:2] == [RELATION, TIME]


def test_rows_keep_their_order_among_equals() -> None:
    layout = LAYOUTS["nothing"]
    codes = {code: np.arange(3) for code in layout.codes["a"]}
    empty = pa.RecordBatch.from_pydict({})
    table = layout.join({"a": RelationBatch(np.array([5, 5, 4]), codes, empty)})
    assert layout.split(table)["a"].codes[layout.codes["a"][0]].tolist() == [2, 0, 1]
    assert len(layout.split(table)["b"]) == 0


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_packet_has_the_rows_of_one_relation(name: str) -> None:
    layout = LAYOUTS[name]
    for relation in layout.queries.graph.relations:
        payload = pa.RecordBatch.from_pydict({each.name: pa.nulls(3, each.type) for each in relation.schema})
        codes = {code: np.arange(3) * (place + 2) for place, code in enumerate(layout.codes[relation.name])}
        classes = {each.digest: np.array([0, 1, -1], np.int8) for each in relation.classes}
        rows = RelationBatch(np.array([7, 5, 6]), codes, payload, classes)
        found = layout.unpacked(relation.name, layout.packed(relation.name, rows))
        assert found.times.tolist() == [7, 5, 6]
        assert {code: each.tolist() for code, each in found.codes.items()} == {
            code: each.tolist() for code, each in codes.items()
        }
        assert found.payload.equals(payload)
        assert {each: found.classes[each].tolist() for each in classes} == {key: [0, 1, -1] for key in classes}


def test_texts_that_arrow_would_cut_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of rows that stand in order already, those behind the cut were lost; of others the worker died."""
    layout = LAYOUTS["chain"]
    payload = pa.RecordBatch.from_pydict(
        {
            field.name: pa.array(["x" * 90 if pa.types.is_string(field.type) else None] * 3, field.type)
            for field in layout.queries.graph.relation("a").schema
        }
    )
    codes = {code: np.arange(3) for code in layout.codes["a"]}
    table = layout.join({"a": RelationBatch(np.arange(3), codes, payload)})
    assert len(layout.split(table)["a"]) == 3
    monkeypatch.setattr(wire, "MOST_BYTES", 200)
    with pytest.raises(HostError, match="bytes of texts or lists to take at once, more than 200"):
        layout.split(table)
