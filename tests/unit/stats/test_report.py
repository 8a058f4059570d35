"""The report of a slot is the same value behind the file that carries it."""

from __future__ import annotations

import json

import numpy as np
import pyarrow as pa
import pytest

from anabranch.plan.mesh import parse_mesh
from anabranch.plan.query_set import ALONE
from anabranch.plan.text import parse
from anabranch.stats.intake import Intake
from anabranch.stats.mesh.operators import OperatorMatrix
from anabranch.stats.mesh.profiles import OperatorProfile
from anabranch.stats.mesh.routes import HopStatistics, RouteStatistics
from anabranch.stats.report import Migrated, PlanChange, QueryReport, RowsWritten, SlotReport, merged_statistics, whole
from anabranch.stats.step import ProbeStatistics, StateStatistics, StepStatistics

STEP = StepStatistics(
    {"a": 3, "b": 4},
    2,
    (ProbeStatistics("(a b)", "a", "b", 3, 12, 4, 2, 2),),
    (StateStatistics("a", 3, 300, 3, 0), StateStatistics("b", 4, 400, 4, 1)),
    {"probe": 0.25},
    (RouteStatistics("a", 0, 3, 2, (HopStatistics("b", 3, 2, 0.1),)),),
)
MIGRATED = Migrated("moving-state", ("(a b)",), {"(b c)": 7}, 0.5, ("(c d)",))


@pytest.mark.parametrize(
    "queries",
    [
        {ALONE: QueryReport(parse("(a b)"), statistics=STEP)},
        {ALONE: QueryReport(parse("(a b)"), True, STEP, PlanChange(MIGRATED))},
        {
            "one": QueryReport(parse("(a b)"), False, StepStatistics(rows_out=1), PlanChange(refused="no room")),
            "two": QueryReport(parse_mesh("mesh(a: b; b: a)"), statistics=StepStatistics(rows_out=1)),
        },
    ],
    ids=["alone", "migrating", "several"],
)
def test_a_report_comes_back_from_its_file_as_it_was(queries: dict[str, QueryReport]) -> None:
    report = SlotReport(
        queries,
        STEP,
        rows={"a": 3},
        intake=Intake({"a": 4, "b": 1}, {"b": 1}, {"a": 2}, {"a": 10, "b": 2}, {"b": 3}, ("f",)),
        results={"one": 2},
        seconds={"admit": 0.125},
        was_hot=True,
        files=(RowsWritten(7, {"a": 10}),),
    )
    assert read_again(report) == report
    assert report.is_migrating == any(query.is_migrating for query in queries.values())


def test_profiles_are_read_back_and_none_differs_from_empty() -> None:
    matrix = OperatorMatrix(("b", "c"), np.array([[0.5, 1.0], [2.0, 0.0]]), np.array([[1e-6, 2e-6], [3e-6, 4e-6]]))
    profile = OperatorProfile("a", pa.table({"k": [1, 2]}), matrix, batch_rows=2, call=0.5)
    asked = QueryReport(parse("(a b)"), profiles=(profile,))
    (found,) = read_again(SlotReport({ALONE: asked})).queries[ALONE].profiles or ()
    assert (found.relation, found.batch_rows, found.call) == ("a", 2, 0.5)
    assert found.columns.equals(profile.columns)
    assert np.array_equal(found.matrix.selectivity, matrix.selectivity)
    assert np.array_equal(found.matrix.cost, matrix.cost)
    assert read_again(SlotReport({ALONE: QueryReport(parse("(a b)"))})).queries[ALONE].profiles is None
    assert read_again(SlotReport({ALONE: QueryReport(parse("(a b)"), profiles=())})).queries[ALONE].profiles == ()


def test_statistics_of_slots_add_up() -> None:
    assert merged_statistics([SlotReport(statistics=STEP), SlotReport(statistics=STEP)]).rows_out == 2 * STEP.rows_out


def read_again(report: SlotReport) -> SlotReport:
    return SlotReport.from_json(json.loads(json.dumps(report.to_json())))


def test_the_stages_of_a_batch_add_up() -> None:
    """A stage in which no row of a relation arrives does not hide those of the stage before."""
    first = SlotReport(
        rows={"a": 3, "r": 0},
        intake=Intake({"a": 4}, {"a": 1}, {}, {"a": 9}),
        results={"one": 2},
        cells={"a": (1, 2)},
    )
    second = SlotReport(rows={"a": 0, "r": 5}, results={"one": 1, "two": 3}, cells={"a": (0, 0)})
    found = whole([first, second])
    assert (found.rows, found.intake, found.results) == ({"a": 3, "r": 5}, first.intake, {"one": 3, "two": 3})
    assert found.cells == {"a": (1, 2)}
