"""Which strategy refuses which change, and by which words."""

from __future__ import annotations

import pytest

from anabranch.cql import compile_query
from anabranch.errors import AnabranchError, MigrationError, PlanError
from anabranch.lang.catalog import Catalog, StreamDeclaration
from anabranch.lang.ddl import parse_schema
from anabranch.migrate.strategies.registry import check_migration
from anabranch.plan.join_graph import JoinGraph
from anabranch.plan.text import parse


def graph(windows: str = "[RANGE 5 SECONDS]") -> JoinGraph:
    catalog = Catalog()
    for name in "abc":
        catalog.register(StreamDeclaration(name, parse_schema("ts timestamp, k bigint"), "ts"))
    text = f"SELECT a.k AS k FROM a {windows}, b [RANGE 5 SECONDS], c [RANGE 5 SECONDS] WHERE a.k = b.k AND b.k = c.k"
    return compile_query(text, catalog, allow_unbounded=True).graph


@pytest.mark.parametrize(
    ("old", "new", "strategy", "named"),
    [
        ("((a b) c)", "((b c) a)", "none", r"\(b c\)"),
        ("(a b c)", "(c b a)", "pause-drain-resume", "no migration strategy 'pause-drain-resume'"),
        ("(a b c)", "((a b) c)", "teleport", "teleport"),
    ],
)
def test_a_strategy_that_cannot_serve_is_refused_by_name(old: str, new: str, strategy: str, named: str) -> None:
    with pytest.raises(MigrationError, match=named) as refused:
        check_migration(parse(old), parse(new), graph(), strategy)
    assert refused.value.hint


def test_old_rows_that_never_leave_forbid_parallel_tracks() -> None:
    unbounded = graph("[UNBOUNDED]")
    with pytest.raises(MigrationError, match="never end"):
        check_migration(parse("((a b) c)"), parse("((b c) a)"), unbounded, "parallel-track")
    check_migration(parse("((a b) c)"), parse("((b c) a)"), unbounded, "moving-state")


def test_parallel_track_is_refused_where_rows_are_counted() -> None:
    counted = graph("[ROWS 5]")
    with pytest.raises(MigrationError, match="might never end"):
        check_migration(parse("(a b c)"), parse("((b c) a)"), counted, "parallel-track")
    check_migration(parse("(a b c)"), parse("((b c) a)"), counted, "moving-state")


def test_a_plan_of_another_query_is_refused_whatever_the_strategy() -> None:
    with pytest.raises(PlanError, match="'d'"):
        check_migration(parse("(a b c)"), parse("(a b d)"), graph(), "moving-state")
    assert issubclass(MigrationError, AnabranchError)


def test_where_no_state_is_lacking_any_strategy_for_joins_serves() -> None:
    for strategy in ("none", "moving-state", "parallel-track", "spread"):
        check_migration(parse("((a b) c)"), parse("(c b a)"), graph("[UNBOUNDED]"), strategy)
