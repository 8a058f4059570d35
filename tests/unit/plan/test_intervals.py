"""Windows that follow from conditions over event times."""

from __future__ import annotations

import pytest

from anabranch.cql import compile_query, declared_results
from anabranch.errors import BundleError, UnboundedJoin
from anabranch.lang.catalog import Catalog, StreamDeclaration
from anabranch.lang.ddl import parse_schema
from anabranch.lang.window import FOREVER
from anabranch.plan.query import Query, render_query
from anabranch.plan.query_set import alone, together


def catalog() -> Catalog:
    found = Catalog()
    for name in "abc":
        found.register(StreamDeclaration(name, parse_schema("ts timestamp, k bigint, p bigint"), "ts"))
    return found


def compiled(source: str, columns: str = "a.k") -> Query:
    return compile_query(f"SELECT {columns} FROM {source}", catalog())


def windows(query: Query) -> dict[str, str]:
    return {relation.name: str(relation.window) for relation in query.whole.relations}


def test_a_join_by_an_interval_is_the_join_by_windows() -> None:
    """The same graph, so the same plans, state and time."""
    by_interval = compiled("a JOIN b ON a.k = b.k AND b.ts BETWEEN a.ts AND a.ts + INTERVAL 20 SECONDS")
    by_windows = compiled("a [RANGE 20 SECONDS] JOIN b [NOW] ON a.k = b.k")
    assert render_query(by_interval) == render_query(by_windows)
    assert by_interval.fingerprint == by_windows.fingerprint


@pytest.mark.parametrize("kind", ["LEFT", "FULL", "LEFT SEMI", "LEFT ANTI"])
def test_an_outer_join_by_an_interval_is_the_one_by_windows(kind: str) -> None:
    by_interval = compiled(f"a {kind} JOIN b ON a.k = b.k AND b.ts > a.ts - INTERVAL 3 SECONDS AND b.ts <= a.ts")
    by_windows = compiled(f"a [NOW] {kind} JOIN b [RANGE 2999999 MICROSECONDS] ON a.k = b.k")
    assert render_query(by_interval) == render_query(by_windows)


def test_bounds_add_up_along_a_chain() -> None:
    near = "{1}.ts BETWEEN {0}.ts - INTERVAL 2 SECONDS AND {0}.ts + INTERVAL 5 SECONDS"
    query = compiled(
        f"a JOIN b ON a.k = b.k AND {near.format('a', 'b')} JOIN c ON b.p = c.p AND {near.format('b', 'c')}"
    )
    assert windows(query) == {"a": "[RANGE 10 SECONDS]", "b": "[RANGE 5 SECONDS]", "c": "[RANGE 4 SECONDS]"}


def test_a_written_window_bounds_others() -> None:
    query = compiled("a [RANGE 1 HOUR] JOIN b ON a.k = b.k AND b.ts >= a.ts")
    assert windows(query) == {"a": "[RANGE 1 HOUR]", "b": "[NOW]"}


@pytest.mark.parametrize(
    ("source", "condition"),
    [
        ("a JOIN b ON a.k = b.k", "add a condition such as b.ts <= a.ts + INTERVAL 10 MINUTES"),
        ("a JOIN b ON a.k = b.k AND b.ts <= a.ts", "add a condition such as a.ts <= b.ts + INTERVAL 10 MINUTES"),
        ("a JOIN b ON a.ts = b.ts OR a.k = b.k", "add a condition such as b.ts <= a.ts + INTERVAL 10 MINUTES"),
        # A condition of WHERE does not bound the rows among which an outer join looks for a match.
        ("a LEFT JOIN b ON a.k = b.k WHERE b.ts = a.ts", "add a condition such as b.ts <= a.ts"),
        # A condition of ON over the preserved rows alone does not bound their join.
        ("a CROSS JOIN b LEFT JOIN c ON a.ts = b.ts AND c.ts = a.ts AND c.ts = b.ts", "add a condition such as b.ts"),
    ],
)
def test_a_join_without_bounds_is_refused_with_the_condition_to_add(source: str, condition: str) -> None:
    with pytest.raises(UnboundedJoin, match="is unbounded") as refused:
        compiled(source)
    assert condition in str(refused.value)


@pytest.mark.parametrize(
    ("source", "column", "behind"),
    [
        ("a", "a.ts", 0),
        ("a JOIN b ON a.k = b.k AND b.ts BETWEEN a.ts AND a.ts + INTERVAL 20 SECONDS", "a.ts", 20),
        ("a JOIN b ON a.k = b.k AND b.ts BETWEEN a.ts AND a.ts + INTERVAL 20 SECONDS", "b.ts", 0),
        ("a LEFT JOIN b ON a.k = b.k AND b.ts BETWEEN a.ts AND a.ts + INTERVAL 20 SECONDS", "a.ts", 20),
        ("a LEFT JOIN b ON a.k = b.k AND b.ts BETWEEN a.ts AND a.ts + INTERVAL 20 SECONDS", "b.ts", None),
        ("a FULL JOIN b ON a.k = b.k AND b.ts BETWEEN a.ts AND a.ts + INTERVAL 20 SECONDS", "a.ts", None),
        ("a", "a.ts + INTERVAL 1 SECOND", None),
    ],
)
def test_results_lag_behind_the_watermark_by_the_longest_bound(source: str, column: str, behind: int | None) -> None:
    found = compiled(source, f"{column} AS time").behind("time")
    assert found == (None if behind is None else behind * 1_000_000)


def test_a_query_over_results_of_any_age_is_refused() -> None:
    known = catalog()
    pairs = compile_query("SELECT a.k AS k FROM a LEFT JOIN b ON a.k = b.k", known, allow_unbounded=True)
    assert pairs.behind() == FOREVER
    known.register(declared_results("pairs", pairs))
    over = compile_query("SELECT r.k AS k FROM pairs [NOW] AS r", known)
    with pytest.raises(BundleError, match="query 'pairs' has results that may be arbitrarily older than its watermark"):
        alone(over)


def test_groups_of_different_joins_run_together() -> None:
    text = (
        "SELECT COUNT(*) AS n FROM a JOIN b ON a.k = b.k AND b.ts BETWEEN a.ts AND a.ts + INTERVAL {} SECONDS "
        "GROUP BY window(a.ts, '1 minute')"
    )
    several = together({name: compile_query(text.format(name[1:]), catalog()) for name in ("q5", "q7")})
    assert [member.is_silent for member in several.members].count(True) == 2


def test_aliases_of_an_outer_join_in_a_subquery_are_kept_apart() -> None:
    """Outside, `b` is another stream, so the `b` of the subquery gets another name wherever it is read."""
    inner = "SELECT a.k AS k, b.p AS p FROM a LEFT JOIN b ON a.k = b.k AND b.ts = a.ts WHERE b.p IS NULL"
    query = compiled(f"({inner}) [NOW] AS r, c [NOW] AS b WHERE r.k = b.k", "r.k")
    (_, below) = query.inputs[0]
    assert below.whole.names == ("a", "r_b")
    assert str(below.condition) == "r_b.p IS NULL"
    assert set(alone(query).graph.names) == {"r", "b", "a", "r_b"}


def test_all_arguments_of_an_aggregate_in_a_subquery_are_kept_apart() -> None:
    inner = "SELECT MAX_BY(b.p, b.k) AS p FROM b [TUMBLE 1 MINUTE] AS b"
    query = compiled(f"({inner}) [NOW] AS r, c [NOW] AS b WHERE r.p = b.p", "r.p")
    (_, below) = query.inputs[0]
    assert below.grouping is not None
    assert [str(each) for each in below.grouping.aggregates] == ["MAX_BY(r_b.p, r_b.k)"]
