"""Where predicates are checked, which plans may say so, and which filters can be checked late."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given

from anabranch.cql import compile_query
from anabranch.engine.compile import compile_plan
from anabranch.errors import MigrationError, PlanError, SpecError
from anabranch.functions import below_casts
from anabranch.lang.catalog import Catalog, StreamDeclaration
from anabranch.lang.ddl import parse_schema
from anabranch.migrate.itinerary import box_by_box
from anabranch.migrate.strategies.registry import check_migration
from anabranch.plan.check import validate
from anabranch.plan.content import Content
from anabranch.plan.difference import FilteredState, boxes, match_states
from anabranch.plan.join_graph import render
from anabranch.plan.physical import nodes
from anabranch.plan.query import Query
from anabranch.plan.selections import checked_in, deferred_thetas
from anabranch.plan.text import parse
from anabranch.run.local import LocalHost
from tests.support.oracle import batch_answer, describe_difference, rows_as_multiset
from tests.support.scripted import read_rows, read_script
from tests.support.strategies import plans

WHERE = "a.k = b.k AND b.k = c.k AND c.k = d.k AND a.p < b.p AND b.p < d.p AND c.s LIKE 'x%' AND c.p > 3"


CATALOG = Catalog()
for stream in "abcd":
    CATALOG.register(StreamDeclaration(stream, parse_schema("ts timestamp, k bigint, p bigint, s string"), "ts"))


def query(where: str = WHERE, late: tuple[str, ...] = ("c",), select: str = "a.p AS p") -> Query:
    streams = ", ".join(f"{name} [RANGE 5 SECONDS SLIDE 1 SECOND]" for name in "abcd" if f"{name}." in where)
    if "COUNT" not in select:
        streams = streams.replace(" SLIDE 1 SECOND", "")
    return compile_query(f"SELECT {select} FROM {streams} WHERE {where}", CATALOG, late_filters=late)


GRAPH = query().graph


def test_late_filters_are_thetas_behind_the_others_and_keep_what_they_read() -> None:
    assert [str(theta) for theta in GRAPH.thetas] == ["a.p < b.p", "b.p < d.p", "c.s LIKE 'x%'", "c.p > 3"]
    assert [field.name for field in GRAPH.relation("c").schema] == ["p", "s"]
    assert str(GRAPH.relation("c").filter) == "c.k IS NOT NULL"
    assert "late filter: c.p > 3" in render(GRAPH)
    one = query(late=("c.s LIKE 'x%'",))
    assert one.late_filters == ("c.s LIKE 'x%'",)
    assert str(one.graph.relation("c").filter) == "(c.p > 3) AND c.k IS NOT NULL"
    assert len({query().fingerprint, one.fingerprint, query(late=()).fingerprint}) == 3


@pytest.mark.parametrize("keys", [("0", "-"), ("-", "0")])
def test_a_late_filter_of_a_key_leaves_no_null_key_behind(keys: tuple[str, str]) -> None:
    """A filter that is true of no NULL is all that keeps NULL keys out; where it is late, something else has to.

    The code of a NULL is arbitrary. Rows of a with the keys 0 and NULL had one code and were merged into one, which the
    filter then took or rejected as a whole.
    """
    late = query("a.k = b.k AND a.k <> 7", ("a",), "COUNT(*) AS n")
    assert str(late.graph.relation("a").filter) == "a.k IS NOT NULL"
    assert str(query("a.k = b.k AND a.k <> 7", (), "COUNT(*) AS n").graph.relation("a").filter) == "a.k <> 7"
    lines = [*(f"a 1 {key} 0 x" for key in keys), "b 1 0 0 x", "a 9 7 0 x", "b 9 7 0 x"]
    rows = read_rows(CATALOG, lines)
    host = LocalHost(late, parse("([a] b)"))
    assert not describe_difference(batch_answer(late, rows), rows_as_multiset(host.step(rows)))


def test_a_late_filter_never_guards_a_cast_that_makes_null() -> None:
    """A float that is not finite has no decimal, so this cast is NULL where its argument is not.

    Such a cast may fail as well, so no filter that reads its argument can be late: what keeps NULL keys out stays.
    """
    catalog = read_script("stream a (x double)\nstream b (d decimal(10,2))").catalog
    text = (
        "SELECT b.d AS d FROM a [RANGE 5 SECONDS], b [RANGE 5 SECONDS] "
        "WHERE CAST(a.x AS DECIMAL(10,2)) = b.d AND CAST(a.x AS DECIMAL(10,2)) <> 7"
    )
    cast = next(member for relation, member in compile_query(text, catalog).graph.keys[0].members if relation == "a")
    assert below_casts(cast) == cast
    with pytest.raises(SpecError, match="cannot be deferred"):
        compile_query(text, catalog, late_filters=("a",))


@pytest.mark.parametrize(
    ("where", "late", "message"),
    [
        (WHERE, "z", "'late_filters' names 'z', which is not a filter of the query"),
        (WHERE, "a", "'late_filters' names 'a', which is not a filter of the query"),
        ("a.k = b.k AND a.p IS NOT NULL", "a", "'late_filters' names 'a', which is not a filter of the query"),
        ("a.p > 3", "a", "filter 'a' cannot be deferred"),
        ("a.k = b.k AND a.p < 9 AND a.p * 2 < b.p", "a", "filter 'a.p < 9' cannot be deferred"),
        ("a.k + 1 = b.k AND a.k < 9", "a", "filter 'a.k < 9' cannot be deferred"),
        ("a.k = b.k AND a.p < 9 AND a.p * 2 < 5", "a.p < 9", "filter 'a.p < 9' cannot be deferred"),
        # The second expression of a that equals b.k becomes a filter of a, which was not asked.
        ("a.k = b.k AND CAST(a.s AS BIGINT) = b.k AND a.s LIKE '1%'", "a", "filter 'a.s LIKE '1%'' cannot be deferred"),
    ],
)
def test_filters_that_cannot_be_deferred_are_refused(where: str, late: str, message: str) -> None:
    with pytest.raises(SpecError) as caught:
        query(where, (late,))
    assert caught.value.message == message
    assert caught.value.hint


def test_a_predicate_is_checked_as_early_as_it_can_be_or_on_what_a_join_makes() -> None:
    def checked(text: str) -> dict[str, list[list[str]]]:
        program = compile_plan(validate(parse(text), GRAPH), GRAPH)
        return {
            join.node.shape: [[str(theta) for probe in probes for theta in probe.thetas] for probes in join.probes]
            for join in program.joins
        }

    late = ["c.s LIKE 'x%'", "c.p > 3"]
    assert checked("(((a b) c) d)") == {
        "(a b)": [["a.p < b.p"]] * 2,
        "((a b) c)": [late] * 2,
        "(((a b) c) d)": [["b.p < d.p"]] * 2,
    }
    assert checked("(((a b) c #0) d #2)") == {
        "(a b)": [[]] * 2,
        "((a b) c #0)": [["c.p > 3", "a.p < b.p"]] * 2,
        "(((a b) c #0) d #2)": [["b.p < d.p", "c.s LIKE 'x%'"]] * 2,
    }
    (probes,) = [join.probes for join in compile_plan(parse("(a b c d #0 | a>b>c>d)"), GRAPH).joins]
    assert [[str(theta) for theta in probe.thetas] for probe in probes[0]] == [[], late, ["b.p < d.p", "a.p < b.p"]]


@given(plan=plans(tuple("abcd"), GRAPH.thetas))
def test_every_predicate_is_checked_by_one_join_and_once_on_each_way(plan: object) -> None:
    read = parse(str(plan))
    assert read == plan
    validate(read, GRAPH)
    late = deferred_thetas(read)
    checked = sorted(position for node in nodes(read) for position in checked_in(node, GRAPH, late))
    assert checked == list(range(len(GRAPH.thetas)))
    for join in compile_plan(read, GRAPH).joins:
        here = sorted(str(GRAPH.thetas[position]) for position in checked_in(join.node, GRAPH, late))
        for position, probes in enumerate(join.probes):
            way = sorted(str(theta) for probe in probes for theta in probe.thetas)
            # A way that begins with the relation of a late filter, or meets it, checks it once.
            assert way == here, (str(read), join.node.shape, position)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("(((a b) c) d #7)", "plan '(((a b) c) d #7)' checks '#7', which the query does not have"),
        ("(((a b #1) c) d)", "plan '(((a b #1) c) d)' checks '#1' at '(a b #1)', where 'd' is not joined yet"),
        ("(((a b #0) c #0) d)", "plan '(((a b #0) c #0) d)' checks '#0' twice"),
        ("((a b) (c d) #0 #0)", "plan '((a b) (c d) #0 #0)' checks '#0' twice"),
    ],
)
def test_a_plan_that_checks_wrongly_is_refused(text: str, message: str) -> None:
    with pytest.raises(PlanError) as caught:
        validate(parse(text), GRAPH)
    assert caught.value.message == message


def test_a_guarding_predicate_is_not_deferred() -> None:
    guarded = query("a.k = b.k AND b.k = c.k AND a.p < b.p AND a.p * 2 < c.p", ()).graph
    with pytest.raises(PlanError, match="cannot defer '#0'") as caught:
        validate(parse("((a b) c #0)"), guarded)
    assert caught.value.detail == "'a.p < b.p' may guard '(a.p * 2) < c.p' against failing"
    validate(parse("((a c) b #1)"), guarded)


GUARDED = [
    "(a.p < 9 OR b.p < 0) AND ABS(a.p * 4 - b.p) <= 3",
    "(a.p < 9 OR b.p < 0) AND b.p BETWEEN a.p * 4 - 3 AND a.p * 4 + 3",
    "(a.s LIKE '1' OR b.p < 0) AND ABS(CAST(a.s AS BIGINT) - b.p) <= 3",
    "1 = 2 AND CAST(b.s AS BIGINT) = a.k",
    "LENGTH('ab') = 1 AND CAST(b.s AS BIGINT) > 5 AND a.k = b.k",
]


@pytest.mark.parametrize("where", GUARDED)
def test_a_guarded_expression_is_not_computed_before_its_guard(where: str) -> None:
    """The buckets of a band are numbered as rows arrive, and a constant was asked for the first relation alone."""
    asked = query(where, ())
    rows = read_rows(
        CATALOG, ["a 1 0 1 1", f"a 1 0 {2**62} 1" if "4" in where else "a 1 1 1 x", "b 1 1 1 x", "b 1 1 0 x"]
    )
    host = LocalHost(asked, parse("(a b)"))
    assert not describe_difference(batch_answer(asked, rows), rows_as_multiset(host.step(rows)))


def test_a_band_that_nothing_guards_stays_one() -> None:
    for where in (
        "a.p < 9 AND ABS(a.p * 4 - b.p) <= 3",
        "ABS(a.p * 4 - b.p) <= 3 AND a.p < b.k",
        "a.p < b.k AND ABS(a.p - b.p) < 3",
    ):
        assert sum(theta.band is not None for theta in query(where, ()).graph.thetas) == 1


def test_rows_are_not_merged_before_a_predicate_over_them_is_checked() -> None:
    grouped = query(select="COUNT(*) AS n")
    with pytest.raises(PlanError, match=r"merges rows in '\[\(a b\)\]' before '#0' is checked"):
        validate(parse("([(a b)] c d #0)"), grouped.graph, grouped.grouping)
    validate(parse("(a b [c] d #2)"), grouped.graph, grouped.grouping)


def test_states_are_moved_filtered_or_computed_by_what_was_checked() -> None:
    early, late = parse("(((a b) c) d)"), parse("(((a b) c) d #0 #3)")
    assert match_states(late, late, GRAPH.thetas).is_trivial
    # The new plan checks less: what the old states lack would be rejected above.
    assert match_states(early, late, GRAPH.thetas).moved == (("(a b)", "(a b)"), ("((a b) c)", "((a b) c)"))
    back = match_states(late, early, GRAPH.thetas)
    assert back.filtered == (FilteredState("(a b)", "(a b)", (0,)), FilteredState("((a b) c)", "((a b) c)", (0, 3)))
    assert not back.recomputed
    assert back.discarded == ("(a b)", "((a b) c)")
    # Side by side, plans share only what both have checked alike.
    (box,) = boxes(parse("(((a b) c) d #3)"), early, GRAPH.thetas)
    assert box.output == Content.of("abcd")
    assert set(box.inputs) == {Content.of("ab"), Content.of("c"), Content.of("d")}


def test_a_state_that_must_be_filtered_is_not_changed_by_doing_nothing() -> None:
    with pytest.raises(MigrationError, match="strategy 'none' cannot change") as caught:
        check_migration(parse("(((a b) c) d #0)"), parse("(((a b) c) d)"), GRAPH, "none")
    assert caught.value.detail == "the state '(a b)' would have to be filtered"
    check_migration(parse("(((a b) c) d)"), parse("(((a b) c) d #0)"), GRAPH, "none")


@given(old=plans(tuple("abcd"), GRAPH.thetas), new=plans(tuple("abcd"), GRAPH.thetas))
def test_box_by_box_every_plan_on_the_way_is_a_plan_of_the_query(old: object, new: object) -> None:
    before, after = parse(str(old)), parse(str(new))
    way = box_by_box(before, after, GRAPH.thetas)
    for plan in way:
        validate(plan, GRAPH)
    assert not way or way[-1] == after
    steps = [boxes(one, other, GRAPH.thetas) for one, other in itertools.pairwise((before, *way))]
    assert sum(map(len, steps)) == len(boxes(before, after, GRAPH.thetas))
