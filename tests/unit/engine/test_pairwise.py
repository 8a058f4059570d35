"""Bands over event times let rows go: how many are held, that none goes too soon, and that none comes back."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from anabranch.cql import compile_query
from anabranch.engine.state.ring import SMALLEST_CAPACITY
from anabranch.lang.catalog import Catalog, StreamDeclaration
from anabranch.lang.ddl import parse_schema
from anabranch.plan.query import Query
from anabranch.plan.query_set import Plans, together
from anabranch.plan.text import parse
from anabranch.run.local import LocalHost
from tests.support.duckdb_sql import duckdb_answer
from tests.support.hosts import engines_of
from tests.support.oracle import describe_difference, rows_as_multiset

SECOND = 1_000_000


def catalog() -> Catalog:
    found = Catalog()
    for name in "abc":
        found.register(StreamDeclaration(name, parse_schema("ts timestamp, k bigint, v bigint"), "ts"))
    return found


def query_of(text: str) -> Query:
    return compile_query(text, catalog())


def rows(times: list[int], key: int = 0, first: int = 0) -> pa.Table:
    """Rows at these microseconds, with one key and rising values."""
    moments = pa.array(times, pa.int64()).cast(pa.timestamp("us")).cast(pa.timestamp("us", "UTC"))
    values = np.arange(first, first + len(times))
    return pa.table({"ts": moments, "k": pa.array([key] * len(times), pa.int64()), "v": values})


def test_a_state_holds_the_rows_of_the_band_and_not_those_of_the_window() -> None:
    near = "AND b.ts BETWEEN a.ts - INTERVAL 5 SECONDS AND a.ts + INTERVAL 5 SECONDS"
    held = {}
    for band in ("", near):
        text = f"SELECT a.v AS x, b.v AS y FROM a [RANGE 100 SECONDS], b [RANGE 100 SECONDS] WHERE a.k = b.k {band}"
        host = LocalHost(query_of(text), parse("(a b)"))
        for second in range(300):
            times = [second * SECOND + 100_000 * i for i in range(10)]
            # Keys differ from row to row of a and b, so that there are few results.
            host.step({"a": rows(times, key=1), "b": rows(times, key=2)})
        (engine,) = engines_of(host)
        held[band] = engine.bases["a"].ring.live
    # A hundred seconds of ten rows, or five of them; each with the batch at hand and the one before.
    assert 1000 <= held[""] <= 1020
    assert 50 <= held[near] <= 70


@pytest.mark.parametrize("plan", ["(a b)", "(b a)"])
def test_a_row_stays_up_to_the_last_microsecond_of_the_band(plan: str) -> None:
    text = (
        "SELECT a.v AS x, b.v AS y FROM a [RANGE 100 SECONDS], b [RANGE 100 SECONDS]"
        " WHERE b.ts BETWEEN a.ts AND a.ts + INTERVAL 5 SECONDS"
    )
    query = query_of(text)
    host = LocalHost(query, parse(plan))
    (engine,) = engines_of(host)
    host.step({"a": rows([0]), "b": rows([0])})
    host.step({"b": rows([5 * SECOND])})
    found = host.step({"b": rows([5 * SECOND])})
    # The floor of b is the last microsecond at which the row of a may be met.
    assert found.num_rows == 1
    assert engine.bases["a"].ring.live == 1
    host.step({"b": rows([5 * SECOND + 1])})
    host.step({"b": rows([5 * SECOND + 1])})
    assert engine.bases["a"].ring.live == 0


CHAIN = (
    "SELECT a.v AS x, b.v AS y, c.v AS z FROM a [RANGE 60 SECONDS], b [RANGE 60 SECONDS], c [RANGE 60 SECONDS]"
    " WHERE a.k = b.k AND b.k = c.k AND b.ts BETWEEN a.ts - INTERVAL 1 SECONDS AND a.ts + INTERVAL 1 SECONDS"
    " AND c.ts BETWEEN b.ts AND b.ts + INTERVAL 2 SECONDS"
)


WIDE = (
    "SELECT a.v AS x, b.v AS y, c.v AS z FROM a [RANGE 90 SECONDS], b [RANGE 90 SECONDS], c [RANGE 90 SECONDS]"
    " WHERE a.k = b.k AND b.k = c.k AND b.ts BETWEEN a.ts AND a.ts + INTERVAL 5 SECONDS"
    " AND c.ts BETWEEN a.ts AND a.ts + INTERVAL 6 SECONDS"
)
"""A row of a is out of reach after six seconds; a pair with a row of b that is five seconds newer only after eleven."""


@pytest.mark.parametrize("text", [CHAIN, WIDE])
@pytest.mark.parametrize("plan", ["((a b) c)", "((b c) a)", "((a c) b)", "(a b c)"])
def test_places_of_rows_that_left_are_used_again_and_nothing_wrong_is_met(plan: str, text: str) -> None:
    """The ring of base rows is overwritten many times, while combinations with rows that left are still in a state."""
    query = query_of(text)
    random = np.random.default_rng(7)
    host = LocalHost(query, parse(plan))
    found, whole = [], dict[str, list[pa.Table]]({name: [] for name in "abc"})
    # Eight seconds of rows, as many as there are of a, just fit the smallest ring.
    count = SMALLEST_CAPACITY // 8 - 8
    for batch in range(30):
        given = {}
        for name in "abc":
            times = np.sort(random.integers(batch * SECOND, (batch + 1) * SECOND, count)).tolist()
            table = rows(times, first=count * batch).set_column(1, "k", pa.array(random.integers(0, 80, count)))
            given[name] = table
            whole[name].append(table)
        found.append(host.step(given))
    expected = rows_as_multiset(duckdb_answer(query, {name: pa.concat_tables(t) for name, t in whole.items()}))
    assert not describe_difference(expected, rows_as_multiset(pa.concat_tables(found)))
    (engine,) = engines_of(host)
    assert all(state.ring.capacity == SMALLEST_CAPACITY for state in engine.bases.values())


def test_combinations_leave_with_the_band_too() -> None:
    host = LocalHost(query_of(CHAIN), parse("((a b) c)"))
    (engine,) = engines_of(host)
    for second in range(100):
        times = [second * SECOND + 100_000 * i for i in range(10)]
        host.step({name: rows(times) for name in "abc"})
    (state,) = engine.only.track.intermediates.values()
    # Each row of a meets some twenty of b; with the band there are three seconds of them, by the window sixty.
    assert state.ring.live < 10 * 20 * 6


def test_an_unbounded_window_is_kept_no_longer_than_its_band_allows(tmp_path: object) -> None:
    text = (
        "SELECT a.v AS x, b.v AS y FROM a [UNBOUNDED], b [UNBOUNDED]"
        " WHERE b.ts BETWEEN a.ts AND a.ts + INTERVAL 3 SECONDS"
    )
    query = compile_query(text, catalog(), allow_unbounded=True)
    host = LocalHost(query, parse("(a b)"), checkpoint=str(tmp_path))
    for second in range(50):
        host.step({name: rows([second * SECOND]) for name in "ab"})
    assert host.manifest is not None
    assert len(host.manifest.files) < 10
    again = LocalHost(query, parse("(b a)"), checkpoint=str(tmp_path))
    assert again.step({"b": rows([51 * SECOND])}).num_rows == 2
    (engine,) = engines_of(again)
    assert engine.bases["a"].ring.live < 10


def test_a_row_stays_for_the_query_of_a_set_that_has_no_band() -> None:
    plain = "SELECT a.v AS x, b.v AS y FROM a [RANGE 50 SECONDS], b [RANGE 50 SECONDS] WHERE a.k = b.k"
    banded = f"{plain} AND b.ts BETWEEN a.ts AND a.ts + INTERVAL 1 SECONDS"
    queries = together({"plain": query_of(plain), "banded": query_of(banded)})
    host = LocalHost(queries, Plans({"plain": parse("(a b)"), "banded": parse("(a b)")}))
    for second in range(40):
        host.step({name: rows([second * SECOND]) for name in "ab"})
    (engine,) = engines_of(host)
    assert engine.bases["a"].ring.live == 40


@pytest.mark.parametrize("how", ["moving-state", "parallel-track", "spread"])
def test_a_migration_ends_and_misses_nothing(how: str) -> None:
    query = query_of(CHAIN)
    random = np.random.default_rng(3)
    host = LocalHost(query, parse("((a b) c)"))
    found, whole = [], dict[str, list[pa.Table]]({name: [] for name in "abc"})
    for batch in range(30):
        if batch == 10:
            host.migrate(parse("((b c) a)"), how)
        given = {}
        for name in "abc":
            times = np.sort(random.integers(batch * SECOND, (batch + 1) * SECOND, 40)).tolist()
            given[name] = rows(times, first=40 * batch).set_column(1, "k", pa.array(random.integers(0, 8, 40)))
            whole[name].append(given[name])
        found.append(host.step(given))
        if batch == 20:
            # The old rows have left with their bands, long before their windows have ended.
            assert not any(engine.is_migrating for engine in engines_of(host))
    expected = rows_as_multiset(duckdb_answer(query, {name: pa.concat_tables(t) for name, t in whole.items()}))
    assert not describe_difference(expected, rows_as_multiset(pa.concat_tables(found)))
