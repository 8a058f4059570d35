"""Queries that run together in a process: late filters and meshes of each are its own, and its answer stays its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

from anabranch.adapt.facts import Interval
from anabranch.adapt.gate import Gate
from anabranch.adapt.policy import Periodic
from anabranch.adapt.rules import ChangeRules
from anabranch.adapt.settings import Settings
from anabranch.cql import compile_query
from anabranch.lang.schema import TIMESTAMP
from anabranch.plan.mesh import Mesh, parse_mesh, parse_plan
from anabranch.plan.query import Query
from anabranch.plan.query_set import Plans, describe, together
from anabranch.run.local import LocalHost
from anabranch.run.results import ResultLayout
from tests.support.duckdb_sql import duckdb_answer
from tests.support.oracle import Answer, batch_answer, describe_difference, rows_as_multiset
from tests.support.scripted import answer_lines, read_rows, read_script

SCRIPT = read_script("\n".join(f"stream {name} (k bigint, c bigint)" for name in "abcd"))
ROWS = 4_000
"""Rows of a batch, for each slot."""
ANY_SAVING = Settings(gate=Gate(ratio=1.0, cores=0.0))


def compiled(text: str, *late_filters: str) -> Query:
    return compile_query(text, SCRIPT.catalog, late_filters=late_filters)


LATE = compiled(
    "SELECT a.c AS x, b.c AS y, d.c AS z FROM a [RANGE 9 SECONDS], b [RANGE 9 SECONDS], d [RANGE 9 SECONDS] "
    "WHERE a.k = b.k AND a.k = d.k AND a.c > 2",
    "a",
)
EARLY = compiled("SELECT a.c AS x, b.c AS y FROM b [RANGE 9 SECONDS], a [RANGE 3 SECONDS] WHERE a.k = b.k AND a.c > 2")
WITHOUT = compiled("SELECT a.c AS x, b.c AS y FROM a [RANGE 9 SECONDS], b [RANGE 9 SECONDS] WHERE a.k = b.k")


@pytest.mark.parametrize("slots", [1, 3])
@pytest.mark.parametrize(
    "after", ["(a (b d))", "((a b) d)", "mesh(a: b>d>#0, #0>b>d by (c <= 4 ? 0 : 1); b: a>d; d: b>a)"]
)
def test_a_late_filter_is_its_querys_own(after: str, slots: int) -> None:
    """Rows of a that the late filter rejects are kept, because one query wants them, and meet nobody in the others.

    a   0s c=1 (rejected)   1s c=3          6s c=5        at first put off to the upper join; the plan changes before 5s
    b       2s                     5s
    d              4s                   7s
    """
    queries_together = together({"late": LATE, "early": EARLY, "without": WITHOUT})
    assert "early restricts a to [RANGE 3 SECONDS], a.c > 2" in describe(queries_together)
    assert "late asks" not in describe(queries_together)
    first = Plans({"late": parse_plan("((a b) d #0)"), "early": parse_plan("(b a)"), "without": parse_plan("(a b)")})
    host = LocalHost(queries_together, first, slots=slots)
    answers: dict[str, list[str]] = {name: [] for name in first.plans}

    def step(*lines: str) -> None:
        for name, table in ResultLayout(host.queries).split(host.step(read_rows(SCRIPT.catalog, lines))).items():
            answers[name] += answer_lines(table)

    step("a 0 1 1", "a 1 1 3", "b 2 1 20")
    step("d 4 1 40")
    host.migrate(parse_plan(after), query="late")
    step("b 5 1 21", "a 6 1 5")
    step("d 7 1 41")
    assert sorted(answers["late"]) == sorted(
        ["3 20 40", "3 21 40", "5 20 40", "5 21 40", *(f"{a} {b} 41" for a in (3, 5) for b in (20, 21))]
    )
    assert sorted(answers["early"]) == ["3 20", "5 20", "5 21"]
    assert sorted(answers["without"]) == ["1 20", "1 21", "3 20", "3 21", "5 20", "5 21"]


BANDED = compiled("SELECT a.c AS x, c.c AS z FROM a [RANGE 9 SECONDS], c [RANGE 9 SECONDS] WHERE ABS(a.c - c.c) <= 1")
KEYED = compiled("SELECT a.c AS x, c.c AS z FROM a [RANGE 9 SECONDS], c [RANGE 9 SECONDS] WHERE a.k = c.k")
MIXED = compiled(
    "SELECT a.c AS x, b.c AS y, c.c AS z FROM a [RANGE 9 SECONDS], b [RANGE 9 SECONDS], c [RANGE 9 SECONDS] "
    "WHERE c.k = b.k AND a.c < c.c"
)


@pytest.mark.parametrize("slots", [1, 2, 4])
@pytest.mark.parametrize(
    ("query", "plan"),
    [
        (BANDED, "(a c)"),
        (MIXED, "(a b c)"),
        (MIXED, "((a b) c)"),
        (MIXED, "((a c) b)"),
        (MIXED, "((b c) a)"),
        (MIXED, "mesh(a: c>b; b: c>a; c: b>a)"),
    ],
)
def test_codes_of_different_queries_are_unrelated(query: Query, plan: str, slots: int) -> None:
    """KEYED compares k of a and c. So a carries that code, by which neither of the others compares it.

    It was taken, as that of the first relation that has it, for the code of whole combinations: which were then not
    found in inner states by MIXED, and belonged to slots where nobody finds them, of BANDED.
    """
    queries = {"this": query, "other": KEYED}
    plans = Plans({"this": parse_plan(plan), "other": parse_plan("(a c)")})
    queries_together = together(queries)
    host = LocalHost(queries_together, plans, slots=slots)
    streams = queries_together.graph.streams
    lines = [f"{name} {i} {(i * (1 + shift)) % 7} {i}" for i in range(20) for shift, name in enumerate(streams)]
    answers: dict[str, list[pa.Table]] = {name: [] for name in queries}
    for i in range(0, len(lines), 3):
        for name, table in (
            ResultLayout(host.queries).split(host.step(read_rows(SCRIPT.catalog, lines[i : i + 3]))).items()
        ):
            answers[name].append(table)
    for name, each in queries.items():
        expected = batch_answer(each, read_rows(SCRIPT.catalog, lines))
        assert not describe_difference(expected, rows_as_multiset(pa.concat_tables(answers[name])))


@pytest.mark.parametrize("slots", [1, 3])
@pytest.mark.parametrize("highs", [(1, 5), (5, 1)])
def test_bands_that_begin_with_the_same_comparison_are_looked_up_apart(highs: tuple[int, int], slots: int) -> None:
    """Both queries say a.c >= c.c - 1, and how far above is said by each for itself.

    The bucket numbers were named after the first comparison alone. So both queries looked into the buckets of the
    query that came last, and the one with the wider band lost what lies more than its neighbour's width away.
    """
    queries = {
        f"q{number}": compiled(
            "SELECT a.c AS x, c.c AS z FROM a [RANGE 9 SECONDS], c [RANGE 9 SECONDS] "
            f"WHERE a.c >= c.c - 1 AND a.c <= c.c + {high}"
        )
        for number, high in enumerate(highs)
    }
    host = LocalHost(together(queries), Plans(dict.fromkeys(queries, parse_plan("(a c)"))), slots=slots)
    rows = read_rows(SCRIPT.catalog, [f"{name} {i % 3} 0 {i}" for i in range(12) for name in "ac"])
    for name, answer in ResultLayout(host.queries).split(host.step(rows)).items():
        assert not describe_difference(batch_answer(queries[name], rows), rows_as_multiset(answer))


FOUR = compiled(
    f"SELECT a.k AS k, a.c AS x, d.c AS y FROM {', '.join(f'{name} [RANGE 100 SECONDS]' for name in 'abcd')} "
    "WHERE a.k = b.k AND a.k = c.k AND a.k = d.k"
)
THREE = compiled(
    "SELECT a.k AS k, d.c AS y FROM d [RANGE 15 SECONDS], c [RANGE 100 SECONDS], a [RANGE 15 SECONDS] "
    "WHERE a.k = c.k AND a.k = d.k AND a.k < 40"
)


@pytest.mark.usefixtures("counted_costs", "free_searches")
@pytest.mark.parametrize("slots", [1, 2])
def test_queries_together_learn_their_own_meshes(slots: int) -> None:
    """One of them learns a mesh, both are then given other routes by hand, and nobody's answer notices."""
    queries = {"four": FOUR, "three": THREE}
    first = Plans({"four": parse_plan("(a b c d)"), "three": parse_plan("(d c a)")})
    # Meshes alone change the plans.
    settings = replace(ANY_SAVING, policy=Periodic(Interval(batches=100)))
    rules = ChangeRules(settings, first_search=2, waits=True)
    host = LocalHost(together(queries), first, slots=slots, rules=rules)
    rng = np.random.default_rng(1)
    batches = [skewed_batch(number, rng, slots * ROWS) for number in range(6)]
    results: dict[str, list[pa.Table]] = {name: [] for name in queries}
    for number, batch in enumerate(batches):
        if number == 4:
            learnt = host.steering.of_query("four").plans
            host.migrate(parse_mesh("mesh(a: d>c>b; b: d>c>a; c: d>b>a; d: a>b>c)"), query="four")
            host.migrate(parse_mesh("mesh(a: d>c; c: a>d, d>a by (k <= 20 ? 0 : 1); d: a>c)"), query="three")
        for name, table in ResultLayout(host.queries).split(host.step(batch)).items():
            results[name].append(table)
    assert any(isinstance(each.plan, Mesh) and not all(way.is_plain for way in each.plan.ways) for each in learnt)
    decided = [record for record in host.history if "mesh" in record]
    assert {(record["batch"], record["query"]) for record in decided} >= {(2, "four"), (2, "three")}
    assert {record["query"] for record in host.history if record.get("by") == "user"} == {"four", "three"}
    for name, query in queries.items():
        expected = answer(query, batches)
        assert expected.total() > 1_000
        assert not describe_difference(expected, rows_as_multiset(pa.concat_tables(results[name])))


def skewed_batch(number: int, rng: np.random.Generator, rows: int) -> dict[str, pa.Table]:
    """Rows are of two kinds; b has no partner for the one and c none for the other, but for one key that all have."""
    tables = {}
    for name in "abcd":
        kind = rng.integers(0, 2, rows)
        keys = rng.integers(0, 500, rows) + 1_000 * kind
        keys[kind == {"b": 0, "c": 1}.get(name, 2)] += 10_000 * (2 + "abcd".index(name))
        keys[:: rows // 2] = 5_000
        times = np.sort(rng.integers(10 * number, 10 * number + 10, rows)) * 1_000_000
        instants = pa.array(times).cast(pa.timestamp("us")).cast(TIMESTAMP)
        tables[name] = pa.table({"ts": instants, "k": keys, "c": kind})
    return tables


def answer(query: Query, batches: Sequence[Mapping[str, pa.Table]]) -> Answer:
    streams = {name: pa.concat_tables([batch[name] for batch in batches]) for name in "abcd"}
    return rows_as_multiset(duckdb_answer(query, streams))
