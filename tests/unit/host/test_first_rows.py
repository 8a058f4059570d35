"""Rows of the first batches as a sample: what is drawn, when it is enough, and what becomes of it."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import numpy as np
import pyarrow as pa
import pytest

from anabranch.adapt.rules import ChangeRules, Staging
from anabranch.cql import compile_query
from anabranch.host import first_rows
from anabranch.host.first_rows import BATCHES, MOST_BATCHES, FirstBatches, FirstRows
from anabranch.host.local import LocalHost
from anabranch.host.meshing import learn_from_rows
from anabranch.host.rows import relation_batch
from anabranch.host.sample import Sample, sampled_classes, telling
from anabranch.host.wire import WireLayout, wire_layout
from anabranch.plan.classes import ClassColumn
from anabranch.plan.classifier import attributes
from anabranch.plan.classing import Classes, wanted_classes
from anabranch.plan.mesh import Mesh, parse_mesh
from anabranch.plan.physical import mjoin
from anabranch.plan.query_set import ALONE, Plans, QuerySet, alone, partitioning_of, together
from anabranch.testing.oracle import rows_as_multiset
from anabranch.testing.regions import (
    MESH,
    ROWS,
    SECONDS,
    regional_batch,
    regional_catalog,
    regional_query,
    regional_text,
)

pytestmark = pytest.mark.usefixtures("counted_costs")

FAST = "100 MILLISECONDS"
HELD = {"h": 10.0 * ROWS, "a": 2.5 * ROWS, "b": 2.5 * ROWS}


def learns_nothing(samples: Mapping[str, Sample], plans: Plans) -> Classes:
    raise AssertionError


def layout_of(queries: QuerySet) -> WireLayout:
    return wire_layout(queries, partitioning_of(queries, 1))


def rows_of(queries: QuerySet, first: FirstRows, batch: Mapping[str, pa.Table]) -> pa.Table:
    """A batch as Spark gives it: in the wire layout, with the wide columns."""
    layout, tables = layout_of(queries), []
    for position, relation in enumerate(queries.graph.relations):
        table = batch[relation.stream]
        rows = layout.relation_table(position, relation_batch(relation, layout, table))
        named = {wire: column for column, wire in first.wide.places[relation.name].items()}
        for wire, kind in first.wide.columns.items():
            values = table.column(named[wire]).cast(kind) if wire in named else pa.nulls(rows.num_rows, kind)
            rows = rows.append_column(wire, values)
        tables.append(rows)
    return pa.concat_tables(tables)


def draw(queries: QuerySet, first: FirstRows, numbers: range, rng: np.random.Generator) -> None:
    for number in numbers:
        batch = regional_batch(number, rng)
        if first.draw is not None:
            first.take(rows_of(queries, first, batch))
        first.note({name: float(table.num_rows) for name, table in batch.items()})


def first_of(queries: QuerySet, **learning: object) -> FirstRows:
    given = FirstBatches(queries, learning or {ALONE: regional_query()}, learns_nothing)  # type: ignore[arg-type]
    return FirstRows(given, given.layout({}))


def test_a_mesh_is_learnt_from_the_first_batches() -> None:
    query, rng = regional_query(), np.random.default_rng(1)
    queries = alone(query)
    first = first_of(queries)
    before = first.draw
    assert before is None, "nobody knows how many rows come"
    draw(queries, first, range(BATCHES), rng)
    early = first.is_complete
    draw(queries, first, range(BATCHES, BATCHES + 2), rng)
    assert (early, first.is_complete) == (False, True), "the first batch only tells how many rows come"
    assert first.is_telling
    sample = first.samples(layout_of(queries))[ALONE]
    assert sample.kin is None
    assert sample.statistics.rates["h"] == pytest.approx(ROWS / 10, rel=0.05)
    assert {*sample.rows["h"].payload.schema.names} == {*query.graph.relation("h").schema.names}
    assert {"region", "number", "moment"} <= {*sample.wide["h"].payload.schema.names}
    learnt = learn_from_rows(telling(query, sample.wide), sample.wide, HELD)
    assert attributes(learnt.mesh.of("h").classifier) == ("region",)


def test_of_large_batches_some_values_of_a_key_are_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(first_rows, "MOST_ROWS", BATCHES * ROWS // 4)
    queries, rng = alone(regional_query()), np.random.default_rng(1)
    first = first_of(queries)
    first.note({"h": float(ROWS), "a": ROWS / 4})
    assert first.draw is not None
    assert first.draw.share == 0.25
    assert first.draw.key is not None
    code = layout_of(queries).code_columns[layout_of(queries).codes["h"].index(first.draw.key.name)]
    for number in range(BATCHES):
        table = rows_of(queries, first, regional_batch(number, rng))
        first.take(table.filter(pa.array(np.asarray(table.column(code)) % 4 == 0)))
    sample = first.samples(layout_of(queries))[ALONE]
    assert sample.kin is not None
    assert sample.kin.share == 0.25
    assert {*sample.kin.rows} == first.draw.key.relations
    assert sample.statistics.rates["h"] == pytest.approx(ROWS / 10, rel=0.2)


def test_drawing_begins_anew_behind_a_backlog_and_ends() -> None:
    queries, rng = alone(regional_query()), np.random.default_rng(1)
    first = first_of(queries)
    first.note({"h": 1e6, "a": 10.0})
    assert first.draw is not None
    assert first.draw.share < 0.01
    draw(queries, first, range(2), rng)
    assert first.draw.share == 1.0
    assert not first.samples(layout_of(queries))[ALONE].rows["h"].times[0] < 10 * SECONDS, "too few rows were kept"
    # A stream that brings nothing is waited for, but not for ever.
    still = first_of(queries)
    for _ in range(MOST_BATCHES):
        assert not still.is_complete
        still.note({"h": 50.0})
    assert still.is_complete
    assert not still.is_telling


def test_each_query_of_a_set_has_its_own_rows_and_codes() -> None:
    one = regional_query()
    text = regional_text().replace("h.k0 = a.k0", "h.k1 = a.k0 AND h.region = 'north'").replace("h.k1 = b", "h.k0 = b")
    two = compile_query(text, regional_catalog())
    queries, rng = together({"one": one, "two": two}), np.random.default_rng(1)
    first = first_of(queries, one=one, two=two)
    draw(queries, first, range(BATCHES + 1), rng)
    samples = first.samples(layout_of(queries))
    rows = {name: sample.rows["h"] for name, sample in samples.items()}
    assert len(rows["two"]) < 0.6 * len(rows["one"])
    assert {*samples["two"].wide["h"].payload.column("region").to_pylist()} == {"north"}
    for name, query in (("one", one), ("two", two)):
        layout = layout_of(alone(query))
        for number in range(1, BATCHES + 1):
            again = np.random.default_rng(1)
            batches = [regional_batch(each, again) for each in range(number + 1)]
            own = relation_batch(query.graph.relation("h"), layout, batches[number]["h"])
            here = (rows[name].times >= own.times[0]) & (rows[name].times <= own.times[-1])
            for code in query.graph.code_names["h"]:
                assert sorted(rows[name].codes[code][here]) == sorted(own.codes[code])


def test_relations_that_are_not_learnt_from_keep_the_columns_of_their_classes() -> None:
    given = FirstBatches(together({"one": regional_query()}), {}, learns_nothing)
    region = ClassColumn("region", pa.string(), texts=("south",))
    hour = ClassColumn("hour(moment)", pa.int64(), (11.5,))
    wide = given.layout({"h": (region, hour)})
    assert {each.name for each in wide.fields["h"]} == {"region", "moment"}
    assert wide.fields["a"] == ()
    assert len(wide.columns) == 2
    # Of those that are learnt from, not all are read, and texts first.
    some = FirstBatches(alone(regional_query()), {ALONE: regional_query()}, learns_nothing).layout({"h": (hour,)}, 1)
    assert [each.name for each in some.fields["h"]] == ["moment", "region"]
    assert [each.name for each in some.fields["a"]] == ["region"]


def test_a_query_looks_once_further_columns_travel() -> None:
    """On the host in process: the class comes between two batches, and the mesh by it is taken; no answer changes."""
    query, rng = regional_query(window=FAST), np.random.default_rng(1)
    rules = ChangeRules(staging=Staging(first=10_000), waits=True)
    host, plain = (LocalHost(query, mjoin(query.graph.names), rules=each) for each in (rules, ChangeRules()))
    batch = partial(regional_batch, rng=rng, length=SECONDS // 100)
    for number in range(10):
        rows = batch(number)
        assert rows_as_multiset(host.step(rows)) == rows_as_multiset(plain.step(rows))
        if number == 4:
            known = sampled_classes({ALONE: Sample()})
            host.carry(wanted_classes(alone(query), [(ALONE, parse_mesh(MESH))], known))
    (decided,) = (each for each in host.history if each["kind"] == "decision")
    assert decided["trigger"] == "rows travel with further columns"
    # A thousand rows that have it are there after a batch.
    assert decided["batch"] == 6
    assert isinstance(host.plan, Mesh)
    assert attributes(host.plan.of("h").classifier) == ("region",)
