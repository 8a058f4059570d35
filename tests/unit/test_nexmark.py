"""The queries of Nexmark that CQL can express give DuckDB's answer; the page lists those, and what is missing."""

from __future__ import annotations

import re
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from anabranch.cql import compile_query
from anabranch.functions import own_function
from anabranch.lang.catalog import Catalog, StreamDeclaration, TableDeclaration
from anabranch.lang.schema import Schema
from anabranch.plan.physical import mjoin
from anabranch.plan.query_set import Plans, alone
from anabranch.run.local import LocalHost
from examples.nexmark.generate import SCHEMAS, SIDE_INPUT, generate, side_input
from examples.nexmark.queries import MISSING, QUERIES
from tests.support.duckdb_sql import select
from tests.support.oracle import Answer, rows_as_multiset

PAGE = Path(__file__).parents[2] / "docs/nexmark.md"
EVENTS, BATCHES = 1_500, 4


def catalog() -> Catalog:
    found = Catalog()
    for name, schema in SCHEMAS.items():
        found.register(StreamDeclaration(name, Schema.from_arrow(schema), "ts"))
    found.register_table(TableDeclaration("side_input", Schema.from_arrow(SIDE_INPUT)))
    found.define(own_function("count_char", count_char, "bigint", takes=["string", "string"]))
    return found


def count_char(texts: pa.Array, characters: pa.Array) -> pa.Array:
    return pc.count_substring(texts, characters[0].as_py())


@pytest.mark.parametrize("slots", [1, 2])
@pytest.mark.parametrize("name", QUERIES)
def test_a_query_gives_the_batch_answer(name: str, slots: int) -> None:
    wanted = QUERIES[name]
    query = compile_query(wanted.cql, catalog(), allow_unbounded=wanted.is_unbounded)
    several = alone(query)
    plans = Plans({member.name: mjoin(member.query.graph.names) for member in several.members})
    tables = {"side_input": side_input()} if query.graph.tables else {}
    host = LocalHost(several, plans, slots=slots, tables=tables)
    rows = generate(EVENTS)
    answer = Answer()
    for number in range(BATCHES):
        batch = {stream: _part(rows[stream], number) for stream in several.streams}
        answer += rows_as_multiset(host.step(batch))
    flat = {stream: _without_zone(table) for stream, table in {**rows, "side_input": side_input()}.items()}
    expected = select(wanted.duckdb.replace("{passed}", str(host.clocks.watermark)), flat)
    columns = zip(expected.columns, query.schema, strict=True)
    typed = pa.table([column.cast(field.type) for column, field in columns], names=list(query.schema.names))
    assert answer.total() > 3
    assert answer == rows_as_multiset(typed)


def _part(table: pa.Table, number: int) -> pa.Table:
    start, stop = (table.num_rows * each // BATCHES for each in (number, number + 1))
    return table.slice(start, stop - start)


def _without_zone(table: pa.Table) -> pa.Table:
    for index, field in enumerate(table.schema):
        if pa.types.is_timestamp(field.type):
            plain = table.column(index).cast(pa.int64()).cast(pa.timestamp("us"))
            table = table.set_column(index, field.name, plain)
    return table


def test_the_streams_have_the_usual_proportions() -> None:
    rows = generate(5_000)
    assert {name: table.num_rows for name, table in rows.items()} == {"person": 100, "auction": 300, "bid": 4600}
    assert generate(500, seed=3) == generate(500, seed=3)
    assert generate(500, seed=3)["bid"] != generate(500, seed=4)["bid"]


def test_the_page_lists_what_runs_and_what_is_missing() -> None:
    listed = dict(re.findall(r"^\| (q\d+) \| [^|]+ \| (yes|variant|no)", PAGE.read_text(), re.MULTILINE))
    variants = {"q4", "q6", "q9", "q18", "q19"}
    expected = {name: "variant" if name in variants else "yes" for name in QUERIES} | dict.fromkeys(MISSING, "no")
    assert listed == expected
    assert set(listed) == {f"q{number}" for number in range(23)}
