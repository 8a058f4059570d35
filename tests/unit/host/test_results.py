"""Results of a query alone travel as they are; those of named queries come apart again as they were."""

from __future__ import annotations

import pyarrow as pa
import pytest

from anabranch.cql import compile_query
from anabranch.host.results import ResultLayout, unwrapped
from anabranch.plan.query_set import ALONE, alone, together
from anabranch.testing.scripted import read_script

CATALOG = read_script("stream a (k bigint, v bigint)\nstream b (k bigint, v bigint)").catalog
PAIR = compile_query("SELECT a.v AS x, b.v AS y FROM a [RANGE 5 SECONDS], b [RANGE 5 SECONDS] WHERE a.k = b.k", CATALOG)
SINGLE = compile_query("SELECT a.k AS k FROM a [RANGE 5 SECONDS]", CATALOG)
COUNT = compile_query("SELECT COUNT(*) AS n FROM a [RANGE 5 SECONDS SLIDE 5 SECONDS]", CATALOG)
PAIRS = pa.RecordBatch.from_pydict({"x": [1, None], "y": [2, 3]}, schema=PAIR.schema.to_arrow())
SINGLES = pa.RecordBatch.from_pydict({"k": [7, 8, None]}, schema=SINGLE.schema.to_arrow())


def test_results_of_a_query_alone_travel_as_they_are() -> None:
    layout = ResultLayout(alone(PAIR))
    assert layout.schema == PAIR.schema
    assert layout.wrap(ALONE, PAIRS) is PAIRS
    table = pa.Table.from_batches([PAIRS])
    assert layout.split(table) == {ALONE: table}


@pytest.mark.parametrize("queries", [{"p": PAIR, "s": SINGLE}, {"p": PAIR}])
def test_results_of_named_queries_come_apart_again(queries: dict[str, object]) -> None:
    """Also those of one query that has a name; NULLs inside a result are no absence of it."""
    layout = ResultLayout(together({name: {"p": PAIR, "s": SINGLE}[name] for name in queries}))
    sent = {name: {"p": PAIRS, "s": SINGLES}[name] for name in queries}
    batches = [layout.wrap(name, batch) for name, batch in sent.items()]
    assert [batch.schema for batch in batches] == [layout.parts] * len(batches)
    for (name, batch), wrapped in zip(sent.items(), batches, strict=True):
        found, results = unwrapped(wrapped)
        assert (found, results.to_pylist()) == (name, batch.to_pylist())
    apart = layout.split(pa.Table.from_batches(batches))
    assert {name: table.to_pylist() for name, table in apart.items()} == {
        name: batch.to_pylist() for name, batch in sent.items()
    }


def test_a_grouped_query_sends_parts_of_its_groups() -> None:
    layout = ResultLayout(alone(COUNT))
    assert layout.parts.names != layout.schema.names
    assert layout.schema.names == ("n",)
