"""Routes by columns that the query does not carry: the classes travel, the answer does not notice."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from anabranch.cql import compile_query, declared_results
from anabranch.engine.batch import RelationBatch, joined
from anabranch.engine.fabric import sorting
from anabranch.errors import BatchError, UnknownAttribute
from anabranch.plan.classes import MOST_CLASSES, ClassColumn
from anabranch.plan.classifier import attributes, hour_of
from anabranch.plan.classing import widened
from anabranch.plan.execution import execution_model
from anabranch.plan.mesh import parse_mesh, parse_plan
from anabranch.plan.physical import mjoin
from anabranch.plan.query import Query
from anabranch.plan.query_set import ALONE, Plans, alone, by_itself, partitioning_of, together
from anabranch.planning.choosing import decide, first_plan
from anabranch.planning.options import PlanOptions
from anabranch.run.changing import change_set
from anabranch.run.local import LocalHost
from anabranch.run.meshing import learn_from_rows
from anabranch.run.results import ResultLayout
from anabranch.run.rows import relation_batch
from anabranch.run.sample import narrowed, with_attributes, with_sampled_classes
from anabranch.run.store import Store
from anabranch.run.wire import wire_layout
from tests.support.oracle import batch_answer, describe_difference, rows_as_multiset
from tests.support.regions import (
    COLUMNS,
    DAY,
    MESH,
    ROWS,
    regional_batch,
    regional_catalog,
    regional_query,
    regional_text,
)
from tests.support.workers import WorkerHost

pytestmark = pytest.mark.usefixtures("counted_costs")


def matches(host: LocalHost) -> int:
    return sum(probe.matches for probe in host.statistics.probes)


def test_an_unselected_column_decides_routes() -> None:
    query, rng = regional_query(), np.random.default_rng(1)
    routed, plain = LocalHost(query, parse_mesh(MESH)), LocalHost(query, mjoin(query.graph.names))
    for number in range(3):
        rows = regional_batch(number, rng)
        assert rows_as_multiset(routed.step(rows)) == rows_as_multiset(plain.step(rows))
        taken = {route.route: route.rows for route in routed.statistics.routes if route.relation == "h"}
        south = rows["h"]["region"].to_pylist().count("south")
        assert taken == {0: ROWS - south, 1: south}
    # The classes are no part of a row of the state, nor of what the query means.
    assert routed.queries.fingerprint == by_itself(query).fingerprint
    assert matches(routed) < matches(plain)


@pytest.mark.parametrize("kind", [LocalHost, WorkerHost])
@pytest.mark.parametrize("execution", ["un-synchronised", "row-synchronised"])
def test_rows_of_a_checkpoint_have_no_class_and_miss_nothing(
    kind: type[LocalHost], execution: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ANABRANCH_HOT_FOLDER", str(tmp_path / "hot"))
    monkeypatch.setattr(sorting, "SMALLEST_ROW_GROUP", 1)
    query, rng = regional_query(), np.random.default_rng(1)
    batches = [{name: rows.slice(0, 60) for name, rows in regional_batch(number, rng).items()} for number in range(6)]
    other = "mesh(h: a>b, b>a by (number <= 1500.0 or null ? 1 : (region in {'north'} ? 0 : 1)); a: h>b; b: h>a)"
    results = []
    for number, rows in enumerate(batches):
        # Another mesh with other classes, or no mesh, after each restart.
        plan = [parse_mesh(MESH), parse_mesh(other), mjoin(query.graph.names)][number % 3]
        host = kind(
            query, plan, slots=1 + number % 2, checkpoint=str(tmp_path / "kept"), execution=execution_model(execution)
        )
        results.append(host.step(rows))
        if number % 2:
            results.append(host.step({name: table.slice(0, 0) for name, table in rows.items()}))
    end = host.clocks.watermark if execution == "row-synchronised" else np.inf
    whole = {}
    for name in "hab":
        rows = pa.concat_tables([each[name] for each in batches])
        whole[name] = rows.filter(pa.array(np.asarray(rows["ts"].cast(pa.int64())) < end))
    expected = batch_answer(query, whole)
    assert expected
    assert not describe_difference(expected, rows_as_multiset(pa.concat_tables(results)))


def selecting(text: str, window: str = "100 SECONDS") -> Query:
    """The query with other columns in its SELECT."""
    return compile_query(regional_text(window).replace("a.v AS y", text), regional_catalog())


def taken_by(host: LocalHost, query: str) -> dict[int, int]:
    """How many rows of h took each route of a query's mesh in the latest batch."""
    return {
        route.route: route.rows
        for report in host.reports.values()
        for route in report.queries[query].statistics.routes
        if route.relation == "h"
    }


def test_queries_together_route_by_columns_that_none_of_them_selects() -> None:
    """Each by its own thresholds of the same columns; rows travel once."""
    queries, rng = {"one": regional_query(), "two": regional_query(window="40 SECONDS")}, np.random.default_rng(1)
    by_number = "mesh(h: a>b, b>a by (number <= 300.0 or null ? 1 : (region in {'north'} ? 0 : 1)); a: h>b; b: h>a)"
    meshes = {"one": parse_mesh(MESH), "two": parse_mesh(by_number)}
    routed = LocalHost(together(queries), Plans(meshes))
    plain = {name: LocalHost(query, mjoin(query.graph.names)) for name, query in queries.items()}
    carried = {str(each) for each in routed.queries.graph.relation("h").classes}
    assert carried == {"region in 3 classes", "number in 2 classes"}
    for number in range(3):
        rows = regional_batch(number, rng)
        found = ResultLayout(routed.queries).split(routed.step(rows))
        for name, host in plain.items():
            assert rows_as_multiset(found[name]) == rows_as_multiset(host.step(rows))
        regions, numbers = rows["h"]["region"].to_pylist(), rows["h"]["number"].to_pylist()
        south = regions.count("south")
        assert taken_by(routed, "one") == {0: ROWS - south, 1: south}
        first = sum(each == "north" and at > 300 for each, at in zip(regions, numbers, strict=True))
        assert taken_by(routed, "two") == {0: first, 1: ROWS - first}


@pytest.mark.parametrize("kind", [LocalHost, WorkerHost])
def test_a_column_is_a_class_until_another_query_carries_it_and_again_when_that_has_left(
    kind: type[LocalHost], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ANABRANCH_HOT_FOLDER", str(tmp_path / "hot"))
    monkeypatch.setattr(sorting, "SMALLEST_ROW_GROUP", 1)
    query, rng, kept = regional_query(), np.random.default_rng(1), str(tmp_path / "kept")
    batches = [{name: rows.slice(0, 60) for name, rows in regional_batch(number, rng).items()} for number in range(4)]
    other = selecting("h.region AS region")
    sets = [together({"one": query}), together({"one": query, "two": other}), together({"one": query})]
    answers, before = [], None
    for number, rows in enumerate(batches):
        queries = sets[min(number, 2)]
        if before is not None and before is not queries:
            change_set(Store(kept), before, queries, partitioning_of(queries, 1))
        plans = {"one": parse_mesh(MESH)} | ({"two": mjoin(("h", "a", "b"))} if "two" in queries.names else {})
        host = kind(queries, Plans(plans), checkpoint=kept)
        assert len(host.queries.graph.relation("h").classes) == (number != 1)
        answers.append(ResultLayout(queries).split(host.step(rows))["one"])
        south = rows["h"]["region"].to_pylist().count("south")
        assert taken_by(host, "one") == {0: 60 - south, 1: south}
        before = queries
    whole = {name: pa.concat_tables([each[name] for each in batches]) for name in "hab"}
    expected = batch_answer(query, whole)
    assert expected
    assert not describe_difference(expected, rows_as_multiset(pa.concat_tables(answers)))


def test_a_mesh_over_another_querys_results_routes_by_what_travels() -> None:
    """Columns of results have no classes: what the reader does not select, it cannot test."""
    catalog, rng = regional_catalog(), np.random.default_rng(1)
    below = compile_query("SELECT s.k0 AS k0, s.k1 AS k1, s.v AS v, s.region AS region FROM h [NOW] AS s", catalog)
    catalog.register(declared_results("below", below))
    windows = "below [RANGE 100 SECONDS] AS h, a [RANGE 100 SECONDS], b [RANGE 100 SECONDS]"
    reader = compile_query(f"SELECT h.v AS x FROM {windows} WHERE h.k0 = a.k0 AND h.k1 = b.k0", catalog)
    with pytest.raises(UnknownAttribute, match="attribute 'region' is not a column of relation 'h'"):
        LocalHost(alone(reader), Plans({ALONE: parse_mesh(MESH), "below": parse_plan("s")}))
    # Streams beside them have classes.
    mesh = parse_mesh("mesh(h: a>b; a: h>b, b>h by (region in {'south'} ? 1 : 0); b: h>a)")
    host = LocalHost(alone(reader), Plans({ALONE: mesh, "below": parse_plan("s")}))
    plain = LocalHost(alone(reader), Plans({ALONE: mjoin(reader.graph.names), "below": parse_plan("s")}))
    assert [each.attribute for each in host.queries.graph.relation("a").classes] == ["region"]
    for number in range(2):
        rows = regional_batch(number, rng)
        assert rows_as_multiset(host.step(rows)) == rows_as_multiset(plain.step(rows))
        assert {route.route for route in host.statistics.routes if route.relation == "a"} == {0, 1}


def sampled(query: Query, batches: list[dict[str, pa.Table]]) -> dict[str, RelationBatch]:
    wide = widened(query, lambda *_: True)
    layout = wire_layout(by_itself(wide), partitioning_of(by_itself(wide), 1))
    return {
        each.name: joined([relation_batch(each, layout, rows[each.stream]) for rows in batches])
        for each in wide.graph.relations
    }


def test_a_mesh_by_an_unselected_column_is_learnt_and_pays() -> None:
    query, rng = regional_query(), np.random.default_rng(1)
    batches = [regional_batch(number, rng) for number in range(14)]
    wide = sampled(query, batches[:11])
    narrow = narrowed(query, wide)
    held = {"h": 10.0 * ROWS, "a": 2.5 * ROWS, "b": 2.5 * ROWS}
    assert not learn_from_rows(query, narrow, held).is_mesh
    learnt = learn_from_rows(with_attributes(query, wide), wide, held)
    assert learnt.is_mesh
    assert "region" in attributes(learnt.mesh.of("h").classifier)
    assert "number" not in str(learnt.mesh)
    routed = LocalHost(query, learnt.mesh)
    plain = {order: LocalHost(query, parse_mesh(f"mesh(h: {order}; a: h>b; b: h>a)")) for order in ("a>b", "b>a")}
    for rows in batches:
        answer = rows_as_multiset(routed.step(rows))
        assert all(rows_as_multiset(host.step(rows)) == answer for host in plain.values())
    assert matches(routed) < 0.8 * min(matches(host) for host in plain.values())


def test_a_column_that_grows_is_no_attribute() -> None:
    query, rng = regional_query(), np.random.default_rng(1)
    names = with_attributes(query, sampled(query, [regional_batch(0, rng)])).graph.relation("h").schema.names
    assert "region" in names
    assert "moment" in names
    assert "number" not in names


def test_classes_of_a_sample_are_finer_than_those_that_are_tested() -> None:
    query, rng = regional_query(), np.random.default_rng(1)
    rows = sampled(query, [regional_batch(0, rng)])
    found = with_sampled_classes(rows, "h", ClassColumn("region", pa.string(), texts=("west",)))
    assert found.texts == ("north", "south", "west")
    found = with_sampled_classes(rows, "h", ClassColumn("number", pa.int64(), (0.5,)))
    assert 20 < len(found.bounds) <= MOST_CLASSES
    assert 0.5 in found.bounds
    unknown = ClassColumn("nothing", pa.int64(), (0.5,))
    assert with_sampled_classes(rows, "h", unknown) is unknown


def test_the_hour_of_day_decides_routes() -> None:
    """Rows of two days in windows of a day; the event time is not selected, and travels anyway."""
    query, rng = regional_query(window="1 DAY"), np.random.default_rng(1)
    batches = [regional_batch(number, rng, DAY // 4, by_day=True) for number in range(10)]
    wide = sampled(query, batches[:6])
    learnt = learn_from_rows(query, narrowed(query, wide), {"h": 4.0 * ROWS, "a": 1.0 * ROWS, "b": 1.0 * ROWS})
    tested = attributes(learnt.mesh.of("h").classifier)
    assert tested == ("hour(ts)",), learnt.mesh
    routed, plain = LocalHost(query, learnt.mesh), LocalHost(query, mjoin(query.graph.names))
    assert not any(each.classes for each in routed.queries.graph.relations)
    made = np.zeros(2)
    for rows in batches:
        assert rows_as_multiset(routed.step(rows)) == rows_as_multiset(plain.step(rows))
        made += matches(routed), matches(plain)
    assert made[0] < 0.95 * made[1]
    # Rows of a few hours say nothing about other hours.
    short = sampled(regional_query(), [regional_batch(0, rng, DAY // 4, by_day=True)])
    few = learn_from_rows(regional_query(), narrowed(regional_query(), short), {"h": 500.0, "a": 100.0, "b": 100.0})
    assert not any(hour_of(name) for way in few.mesh.ways for name in attributes(way.classifier))


def test_the_hour_of_an_unselected_column_travels_as_a_class() -> None:
    query, rng = regional_query(), np.random.default_rng(1)
    mesh = parse_mesh("mesh(h: a>b, b>a by (hour(moment) <= 11.5 ? 0 : 1); a: h>b; b: h>a)")
    host = LocalHost(query, mesh)
    (column,) = host.queries.graph.relation("h").classes
    assert column.column == "moment"
    host.step(regional_batch(0, rng, DAY, by_day=True))
    taken = {route.route: route.rows for route in host.statistics.routes if route.relation == "h"}
    assert taken[0] + taken[1] == ROWS
    assert abs(taken[0] - taken[1]) < ROWS // 5


def test_columns_that_are_not_there_are_refused_by_name(tmp_path: Path) -> None:
    query, rng = regional_query(), np.random.default_rng(1)
    unknown = MESH.replace("region", "planet")
    with pytest.raises(UnknownAttribute, match="'planet' is not a column of stream 'h'"):
        decide(query, PlanOptions(unknown))
    with pytest.raises(UnknownAttribute, match="'planet' is not a column of stream 'h'"):
        LocalHost(query, parse_mesh(unknown))
    assert str(first_plan(decide(query, PlanOptions(MESH)))) == MESH
    host = LocalHost(query, parse_mesh(MESH), checkpoint=str(tmp_path / "kept"))
    with pytest.raises(BatchError, match="no column 'region' of stream 'h'"):
        host.step({name: table.drop_columns(["region"]) for name, table in regional_batch(0, rng).items()})
    host.step(regional_batch(0, rng))
    # The stream has lost the column since: the answer does not need it, the mesh does.
    later = regional_query(pa.schema([field for field in COLUMNS if field.name != "region"]))
    assert later.fingerprint == query.fingerprint
    with pytest.raises(UnknownAttribute, match="'region' is not a column of stream 'h'") as error:
        LocalHost(later, parse_mesh(MESH), checkpoint=str(tmp_path / "kept"))
    assert "write another 'plan'" in str(error.value.hint)
    LocalHost(later, mjoin(later.graph.names), checkpoint=str(tmp_path / "kept")).step(
        {name: table.drop_columns(["region"]) for name, table in regional_batch(1, rng).items()}
    )


def test_a_running_query_takes_only_classes_that_travel() -> None:
    query, rng = regional_query(), np.random.default_rng(1)
    host = LocalHost(query, mjoin(query.graph.names))
    host.step(regional_batch(0, rng))
    with pytest.raises(UnknownAttribute, match="attribute 'region' is not a column of relation 'h'") as error:
        host.migrate(parse_mesh(MESH))
    assert "restart the query" in str(error.value.hint)
    carrying = LocalHost(query, parse_mesh(MESH))
    carrying.migrate(mjoin(query.graph.names))
    carrying.step(regional_batch(0, rng))
    carrying.migrate(parse_mesh(MESH))
    carrying.step(regional_batch(1, rng))
    assert len({route.route for route in carrying.statistics.routes if route.relation == "h"}) == 2
