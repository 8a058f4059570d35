"""What queries have in common is there once; what cannot be shared is refused by name."""

from __future__ import annotations

import pyarrow as pa
import pytest

from anabranch.cql import compile_query, declared_results
from anabranch.errors import BundleError
from anabranch.lang.catalog import Catalog, StreamDeclaration, TableDeclaration
from anabranch.lang.schema import TIMESTAMP, Field, Schema
from anabranch.plan import query_set
from anabranch.plan.partitioning import choose_partitioning
from anabranch.plan.query_set import MOST_RELATIONS, QuerySet, partitioning_of
from anabranch.plan.text import parse

COLUMNS = Schema((Field("ts", TIMESTAMP, False), Field("k", pa.int64()), Field("v", pa.int64())))
PAIR = "SELECT a.v AS x, b.v AS y FROM a [RANGE {} SECONDS] AS a, b [RANGE 20 SECONDS] AS b WHERE a.k = b.k"


def catalog_of() -> Catalog:
    catalog = Catalog()
    for stream in "abc":
        catalog.register(StreamDeclaration(stream, COLUMNS, "ts"))
    return catalog


def together(**texts: str) -> QuerySet:
    catalog = catalog_of()
    return query_set.together({name: compile_query(text, catalog) for name, text in texts.items()})


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (("a.b", "c"), "'a.b' is not a valid name for a query"),
        (("a/b", "c"), "'a/b' is not a valid name for a query"),
        (("alerts", "Alerts"), "queries 'Alerts' and 'alerts' differ only in case"),
    ],
)
def test_names_that_cannot_be_told_apart_in_a_frame_are_refused(names: tuple[str, str], message: str) -> None:
    with pytest.raises(BundleError, match=message):
        together(**dict.fromkeys(names, PAIR.format(20)))


def test_a_key_that_two_queries_compare_has_one_code() -> None:
    chain = "SELECT b.v AS x FROM b [RANGE 20 SECONDS] AS b, c [RANGE 20 SECONDS] AS c WHERE b.k = c.k"
    made = together(pair=PAIR.format(20), chain=chain)
    assert made.graph.names == ("b", "c", "a")
    assert [str(key) for key in made.graph.keys] == ["b.k = c.k = a.k"]
    assert {key.name for member in made.members for key in member.query.graph.keys} == {"k0"}
    assert partitioning_of(made, 4).is_partition


def test_the_longest_window_is_kept_and_the_shorter_one_is_the_querys_own() -> None:
    made = together(short=PAIR.format(5), long=PAIR.format(60))
    assert str(made.graph.relation("a").window) == "[RANGE 1 MINUTE]"
    residuals = {member.name: [(own.relation, own.range) for own in member.residuals] for member in made.members}
    assert residuals == {"long": [], "short": [("a", 5_000_000)]}


def test_common_conjuncts_are_tested_once_and_residuals_by_their_query() -> None:
    made = together(all=PAIR.format(20), some=PAIR.format(20) + " AND a.v > 3")
    assert str(made.graph.relation("a").filter) == "a.k IS NOT NULL"
    assert made.graph.relation("a").schema.names == ("v",)
    (own,) = next(member for member in made.members if member.name == "some").residuals
    assert str(own.filter) == "a.v > 3"


def test_a_test_that_can_fail_stays_behind_what_guards_it() -> None:
    """Both queries test the product, each for rows of its own; it was computed for all rows, and overflowed."""
    test = " AND a.v * 2 < 9"
    made = together(some=PAIR.format(20) + " AND a.v < 7" + test, others=PAIR.format(20) + " AND a.v < 8" + test)
    assert str(made.graph.relation("a").filter) == "a.k IS NOT NULL"
    own = [str(residual.filter) for member in made.members for residual in member.residuals]
    assert sorted(own) == ["(a.v < 7) AND ((a.v * 2) < 9)", "(a.v < 8) AND ((a.v * 2) < 9)"]
    made = together(
        some=PAIR.format(20) + " AND a.v < 7" + test, fewer=PAIR.format(20) + " AND a.v < 7" + test + " AND a.v > 1"
    )
    assert str(made.graph.relation("a").filter) == "(a.v < 7) AND ((a.v * 2) < 9) AND a.k IS NOT NULL"


def test_a_column_that_only_a_filter_of_one_query_reads_is_carried() -> None:
    other = "SELECT a.k AS x FROM a [RANGE 20 SECONDS] AS a WHERE a.v > 3"
    made = together(pair=PAIR.format(20).replace("a.v AS x", "a.k AS x"), other=other)
    assert set(made.graph.relation("a").schema.names) == {"k", "v"}


def test_a_key_does_not_spread_relations_that_another_query_joins_otherwise() -> None:
    """Rows of a and b that only `less` brings together may have any keys, so they must not be kept apart by them."""
    less = "SELECT a.v AS x FROM a [RANGE 20 SECONDS] AS a, b [RANGE 20 SECONDS] AS b WHERE a.v < b.v"
    partitioning = partitioning_of(together(pair=PAIR.format(20), less=less), 4)
    assert not any({"a", "b"} <= dimension.relations for dimension in partitioning.dimensions)


def test_two_keys_of_one_query_stay_two_where_another_query_equates_them() -> None:
    stars = (
        "SELECT a.v AS x FROM a [RANGE 20 SECONDS] AS a, b [RANGE 20 SECONDS] AS b, c [RANGE 20 SECONDS] AS c, "
        "c [RANGE 20 SECONDS] AS d WHERE a.k = c.v AND b.k = d.v"
    )
    made = together(pair=PAIR.format(20), stars=stars)
    keys = next(member for member in made.members if member.name == "stars").query.graph.keys
    assert len({key.name for key in keys}) == 2


def test_the_order_in_which_queries_are_named_does_not_matter() -> None:
    one, other = PAIR.format(20), PAIR.format(5)
    assert together(p=one, q=other).fingerprint == together(q=other, p=one).fingerprint
    assert together(p=one, q=other).fingerprint != together(p=other, q=one).fingerprint


def test_an_alias_of_two_streams_is_refused() -> None:
    with pytest.raises(
        BundleError, match="relation 'a' is not the same stream in query 'p' and in query 'q'"
    ) as caught:
        together(p=PAIR.format(20), q="SELECT a.v AS x FROM c [RANGE 5 SECONDS] AS a")
    assert "another alias" in caught.value.hint


def test_a_grouped_query_takes_part() -> None:
    grouped = "SELECT COUNT(*) AS n FROM a [RANGE 20 SECONDS SLIDE 5 SECONDS] AS a"
    assert [member.name for member in together(counts=grouped, pair=PAIR.format(20)).grouped] == ["counts"]


OUTER = "SELECT a.v AS x FROM a [RANGE 20 SECONDS] AS a LEFT ANTI JOIN b [RANGE 20 SECONDS] AS b ON a.k = b.k"


def test_a_query_with_outer_joins_takes_part_with_the_rows_that_others_keep() -> None:
    made = together(unpaid=OUTER, pair=PAIR.format(60))
    assert made.graph.names == ("a", "b")
    (residual,) = made.member("unpaid").residuals
    assert (residual.relation, residual.is_shorter) == ("a", True)
    assert partitioning_of(made, 4).is_partition


def test_the_side_of_an_outer_join_must_have_the_window_of_all() -> None:
    with pytest.raises(BundleError, match="query 'unpaid' joins 'b' by an outer, semi or anti join") as caught:
        together(unpaid=OUTER, other="SELECT b.k AS k FROM b [RANGE 60 SECONDS]")
    assert "give 'b' another alias" in caught.value.hint


def test_a_filter_of_a_side_that_others_do_not_have_is_part_of_its_condition() -> None:
    filtered = OUTER + " AND b.v > 3"
    (side,) = together(unpaid=filtered, pair=PAIR.format(20)).member("unpaid").query.sides
    assert str(side.residual) == "b.v > 3"


def test_a_reader_of_outer_joins_waits_as_long_as_their_rows() -> None:
    catalog = catalog_of()
    unpaid = compile_query(OUTER, catalog)
    catalog.register(declared_results("unpaid", unpaid))
    reader = compile_query("SELECT u.x AS x FROM unpaid [NOW] AS u", catalog)
    made = query_set.together({"unpaid": unpaid, "reader": reader})
    assert made.graph.relation("u").behind == made.graph.relation("a").window.reach > 0


INSIDE = {
    "has a filter of 'd' that": "SELECT d.v AS x, d.k AS k FROM b [RANGE 5 SECONDS] AS d, c [RANGE 5 SECONDS] AS e "
    "WHERE d.v < 1000 AND d.v * 1000 < e.v",
}


@pytest.mark.parametrize("primary", INSIDE)
def test_errors_name_a_subquery_as_one_and_not_by_its_fingerprint(primary: str) -> None:
    text = f"SELECT s.x AS x FROM ({INSIDE[primary]}) [RANGE 5 SECONDS] AS s, b [RANGE 5 SECONDS] AS d WHERE s.k = d.k"
    with pytest.raises(BundleError, match=f"the subquery in FROM {primary}") as caught:
        query_set.alone(compile_query(text, catalog_of()))
    assert "derived_" not in str(caught.value)


def test_an_alias_of_a_stream_and_of_a_subquery_is_refused_without_the_fingerprint() -> None:
    inner = "SELECT a.v AS v FROM (SELECT b.v AS v FROM b [RANGE 5 SECONDS] AS b) [RANGE 5 SECONDS] AS a"
    with pytest.raises(BundleError, match="relation 'a' is not the same stream") as caught:
        together(p=inner, q=PAIR.format(20))
    assert "it is the subquery in FROM in one and stream 'a' in the other" in caught.value.detail
    assert "derived_" not in str(caught.value)


def test_sides_of_queries_that_share_nothing_are_not_cut_off_from_their_core() -> None:
    """The key of the pair would be an axis of the side alone, and keep its rows from combinations of the core."""
    far = "SELECT c.v AS x FROM c [RANGE 20 SECONDS] AS c LEFT JOIN b [RANGE 20 SECONDS] AS b ON c.v < b.v"
    grid = partitioning_of(together(far=far, pair=PAIR.format(20)), 4)
    assert all("b" not in dimension.relations or "c" in dimension.relations for dimension in grid.dimensions)


def test_a_table_is_shared_like_a_stream() -> None:
    catalog = catalog_of()
    catalog.register_table(TableDeclaration("t", Schema((Field("k", pa.int64()), Field("v", pa.int64())))))
    one = compile_query("SELECT a.v AS x FROM a [NOW] AS a, t WHERE a.k = t.k", catalog)
    other = compile_query("SELECT a.v AS x, t.v AS y FROM a [NOW] AS a, t WHERE a.k = t.k AND t.v > 3", catalog)
    made = query_set.together({"one": one, "other": other})
    assert made.graph.tables == ("t",)
    assert [residual.relation for residual in made.member("other").residuals] == ["t"]


def test_queries_with_nothing_in_common_are_spread_along_one_axis() -> None:
    """With an axis for each, the rows of every query but one were copied to all slots."""
    texts = {
        f"q{i}": f"SELECT x{i}.v AS v FROM a [NOW] AS x{i}, b [NOW] AS y{i} WHERE x{i}.{key} = y{i}.k"
        for i, key in enumerate("kvk")
    }
    made = together(**texts)
    assert {key.name for member in made.members for key in member.query.graph.keys} == {"k0"}
    grid = partitioning_of(made, 4)
    assert grid.is_partition
    assert grid.sent(dict.fromkeys(made.graph.names, 1.0)) == 1.0


def test_keys_that_one_query_has_beside_each_other_stay_two() -> None:
    chain = "SELECT p.v AS v FROM a [NOW] AS p, b [NOW] AS q, c [NOW] AS r WHERE p.k = q.k AND q.v = r.v"
    made = together(chain=chain, pair=PAIR.format(20))
    assert len(made.graph.keys) == 2
    (own,) = made.member("pair").query.graph.keys
    assert own.name in {key.name for key in made.member("chain").query.graph.keys}


def test_a_relation_with_a_count_window_is_not_shared() -> None:
    """Ties are counted in the order of the columns that a query reads, and another query may read others."""
    counted = PAIR.format(20).replace("[RANGE 20 SECONDS]", "[ROWS 3]", 1)
    with pytest.raises(BundleError, match="query 'counted' and query 'pair' share 'a', which has a count window"):
        together(counted=counted, pair=PAIR.format(20))
    apart = together(counted=counted.replace(" AS a", " AS c").replace("a.", "c."), pair=PAIR.format(20))
    assert apart.graph.counted == ("c",)
    assert {*apart.graph.names} == {"a", "b", "c"}


ALONE_ONLY = {
    "session window, of 'c'": "SELECT COUNT(*) AS n FROM c GROUP BY session_window(c.ts, '5 seconds'), c.k",
    "count window in an outer join, of 'b'": "SELECT a.v AS x, b.v AS y FROM a LEFT ASOF JOIN b "
    "ON b.k = a.k AND b.ts <= a.ts",
}


@pytest.mark.parametrize("window", ALONE_ONLY)
def test_sessions_and_outer_joins_with_count_windows_run_alone(window: str) -> None:
    with pytest.raises(BundleError, match=f"query 'q' has a {window}, and runs alone"):
        together(q=ALONE_ONLY[window])


def test_a_filter_of_one_query_that_guards_a_computation_is_refused() -> None:
    guarded = PAIR.format(20) + " AND a.v < 1000 AND a.v * 1000 < b.v"
    with pytest.raises(BundleError, match="query 'guarded' has a filter of 'a' that the other queries do not have"):
        together(guarded=guarded, pair=PAIR.format(20))


def test_a_filter_of_one_query_may_stand_beside_a_condition_over_event_times() -> None:
    """Sums of times are compared exactly, so the condition cannot fail for rows that the filter keeps away."""
    timed = PAIR.format(20) + " AND a.v < 9 AND b.ts BETWEEN a.ts - INTERVAL 2 SECONDS AND a.ts + INTERVAL 1 SECONDS"
    assert [
        residual.relation for residual in together(timed=timed, pair=PAIR.format(20)).member("timed").residuals
    ] == ["a"]


def test_more_relations_than_rows_can_name_are_refused() -> None:
    """The 129th was refused by numpy, in the middle of the first batch that had rows of it."""
    texts = {f"q{i:03}": f"SELECT x{i}.v AS v FROM a [RANGE 5 SECONDS] AS x{i}" for i in range(MOST_RELATIONS + 1)}
    with pytest.raises(BundleError, match="129 relations are too many") as caught:
        together(**texts)
    assert "the same alias" in caught.value.hint
    del texts["q000"]
    assert len(together(**texts).graph.relations) == MOST_RELATIONS


def test_a_query_alone_keeps_its_fingerprint_graph_and_partitioning() -> None:
    """So a checkpoint of a query that was written before sets existed still opens."""
    query = compile_query(PAIR.format(20), catalog_of())
    made = query_set.alone(query)
    assert (made.fingerprint, made.text, made.graph) == (query.fingerprint, query.text, query.graph)
    assert made.late_filters == query.late_filters
    assert partitioning_of(made, 4) == choose_partitioning(query.graph, 4)
    assert not made.is_named
    assert str(query_set.as_plans(parse("(a b)"))) == "(a b)"
    assert query_set.as_plans(parse("(a b)")).unwrapped == parse("(a b)")
