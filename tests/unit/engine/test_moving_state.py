"""What a change of plan leaves behind: nothing of the old plan, or after a failure nothing of the new one."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from anabranch.cql import compile_query
from anabranch.engine.batch import RelationBatch
from anabranch.engine.engine import Engine
from anabranch.engine.state.arena import Arena, Array, MappedArena
from anabranch.engine.tracks.parallel import ParallelTrack
from anabranch.errors import InvariantBroken, MigrationError, StorageFull
from anabranch.lang.catalog import Catalog, StreamDeclaration
from anabranch.lang.ddl import parse_schema
from anabranch.migrate.strategies.registry import strategy_named
from anabranch.plan.mesh import parse_mesh
from anabranch.plan.query import Query
from anabranch.plan.text import parse
from tests.support.scripted import SECOND

OLD, NEW = parse("(((a b) c) d)"), parse("(((b c) a) d)")


def query_of(last: str = "[RANGE 10 SECONDS]") -> Query:
    catalog = Catalog()
    for name in "abcd":
        catalog.register(StreamDeclaration(name, parse_schema("ts timestamp, k bigint, v bigint"), "ts"))
    windows = f"a [RANGE 10 SECONDS], b [RANGE 10 SECONDS], c [RANGE 10 SECONDS], d {last}"
    text = f"SELECT a.v AS va, d.v AS vd FROM {windows} WHERE a.k = b.k AND b.k = c.k AND c.v = d.k"
    return compile_query(text, catalog, allow_unbounded=True)


def rows(query: Query, name: str, times: range) -> RelationBatch:
    """A row per second; keys repeat."""
    moments = np.array([time * SECOND for time in times], dtype=np.int64)
    keys = np.array([time % 3 for time in times], dtype=np.int64)
    values = {"k": keys, "v": keys}
    codes = {key.name: values[str(key.expression(name)).split(".")[1]] for key in query.graph.keys_of([name])}
    payload = {field.name: pa.array(values[field.name]) for field in query.graph.relation(name).schema}
    return RelationBatch(moments, codes, pa.RecordBatch.from_pydict(payload))


def step(engine: Engine, start: int, stop: int) -> int:
    """All streams from one second to another; the number of results."""
    batches = {name: rows(engine.only.query, name, range(start, stop)) for name in "abcd"}
    floors = dict.fromkeys("abcd", (start - 1) * SECOND)
    return sum(batch.num_rows for _, batch in engine.step(batches, floors))


def names(folder: Path) -> set[str]:
    """The arrays in a folder, without the generation that grows with every resize."""
    return {path.name.rpartition(".")[0] for path in folder.iterdir()}


@pytest.mark.parametrize("strategy", ["moving-state", "parallel-track"])
def test_only_what_the_new_plan_needs_is_left(strategy: str, tmp_path: Path) -> None:
    (tmp_path / "changed").mkdir()
    (tmp_path / "fresh").mkdir()
    engine = Engine.alone(query_of(), OLD, arena=MappedArena(tmp_path / "changed"))
    fresh = Engine.alone(query_of(), NEW, arena=MappedArena(tmp_path / "fresh"))
    for start in range(0, 40, 5):
        if start == 20:
            engine.migrate(NEW, strategy_named(strategy))
        assert step(engine, start, start + 5) == step(fresh, start, start + 5)
    assert not engine.is_migrating
    for name, base in engine.bases.items():
        assert set(base.indexes) == set(fresh.bases[name].indexes)
    assert {state.relations for state in engine.only.track.intermediates.values()} == {("a", "b", "c"), ("b", "c")}
    kept = {name.split(".", 2)[2] for name in names(tmp_path / "changed") if name.startswith("track")}
    wanted = {name.split(".", 2)[2] for name in names(tmp_path / "fresh") if name.startswith("track")}
    assert kept == wanted


def test_parallel_tracks_end_when_the_last_old_row_has_left() -> None:
    engine = Engine.alone(query_of(), OLD)
    for start in range(0, 20, 5):
        step(engine, start, start + 5)
    engine.migrate(NEW, strategy_named("parallel-track"))
    migrating = []
    for start in range(20, 40):
        step(engine, start, start + 1)
        migrating.append(engine.is_migrating)
    # The last old rows are of second 19 and count up to 29; the floor is beyond that with the step from 31 on.
    assert migrating == [start < 31 for start in range(20, 40)]


def test_outside_the_boxes_nothing_runs_twice() -> None:
    engine = Engine.alone(query_of(), OLD)
    step(engine, 0, 10)
    engine.statistics()
    engine.migrate(NEW, strategy_named("parallel-track"))
    step(engine, 10, 12)
    statistics = engine.statistics().total
    joins = {probe.join for probe in statistics.probes}
    assert joins == {"old (a b)", "old ((a b) c)", "(b c)", "((b c) a)", "(((b c) a) d)"}
    shared = next(state for state in statistics.states if state.state == "((b c) a)")
    assert shared.rows > shared.inserted > 0


def test_a_box_may_share_an_input_that_is_kept_for_ever() -> None:
    """Rows of d never leave, but (a b c) as a whole does, and d is no input of the box."""
    engine = Engine.alone(query_of("[UNBOUNDED]"), OLD)
    step(engine, 0, 10)
    engine.migrate(NEW, strategy_named("parallel-track"))
    for start in range(10, 30):
        step(engine, start, start + 1)
    assert not engine.is_migrating
    with pytest.raises(MigrationError, match="never end"):
        engine.migrate(parse("(((b c) d) a)"), strategy_named("parallel-track"))
    assert engine.only.plan == NEW


def test_an_aborted_migration_leaves_the_old_plan_as_if_nothing_had_been(tmp_path: Path) -> None:
    for name in ("changed", "still"):
        (tmp_path / name).mkdir()
    engine = Engine.alone(query_of(), OLD, arena=MappedArena(tmp_path / "changed"))
    still = Engine.alone(query_of(), OLD, arena=MappedArena(tmp_path / "still"))
    for start in range(0, 40, 4):
        if start == 12:
            engine.migrate(NEW, strategy_named("parallel-track"))
        if start == 20:
            assert engine.is_migrating
            engine.abort_migration()
        assert step(engine, start, start + 4) == step(still, start, start + 4)
    assert engine.only.plan == OLD
    assert names(tmp_path / "changed") == names(tmp_path / "still")
    with pytest.raises(MigrationError, match="not changing"):
        engine.abort_migration()


class Full:
    """An arena that has room for so many arrays more."""

    def __init__(self, room: int, arena: Arena) -> None:
        self.room = room
        self.arena = arena

    def allocate(self, name: str, shape: tuple[int, ...], kind: str) -> Array:
        if self.room == 0:
            raise StorageFull("no space")
        self.room -= 1
        return self.arena.allocate(name, shape, kind)

    def __getattr__(self, name: str) -> object:
        return getattr(self.arena, name)


@pytest.mark.parametrize("strategy", ["moving-state", "parallel-track"])
@pytest.mark.parametrize("room", [0, 1, 2, 4, 7])
def test_a_change_that_fails_half_way_leaves_the_old_plan(strategy: str, room: int, tmp_path: Path) -> None:
    for name in ("changed", "still"):
        (tmp_path / name).mkdir()
    arena = Full(1000, MappedArena(tmp_path / "changed"))
    engine = Engine.alone(query_of(), OLD, arena=arena)  # type: ignore[arg-type]
    still = Engine.alone(query_of(), OLD, arena=MappedArena(tmp_path / "still"))
    for start in (0, 4):
        assert step(engine, start, start + 4) == step(still, start, start + 4)
    arena.room = room
    # A plan that needs new indexes over kept states as well as new states.
    other = parse("((a c) (b d))")
    try:
        engine.migrate(other, strategy_named(strategy))
    except StorageFull:
        assert engine.only.plan == OLD
        assert not engine.is_migrating
        for name, base in engine.bases.items():
            assert base.indexes == still.bases[name].indexes
    else:
        assert engine.only.plan == other
    arena.room = 1000
    for start in (8, 12, 16):
        assert step(engine, start, start + 4) == step(still, start, start + 4)


def test_a_plan_does_not_change_in_the_middle_of_a_step() -> None:
    engine = Engine.alone(query_of(), OLD)
    step(engine, 0, 5)
    under_way = engine.step(
        {name: rows(engine.only.query, name, range(5, 9)) for name in "abcd"}, dict.fromkeys("abcd", 0)
    )
    next(under_way)
    with pytest.raises(InvariantBroken, match="between two steps"):
        engine.migrate(NEW, strategy_named("moving-state"))


def test_a_change_reports_its_work() -> None:
    engine = Engine.alone(query_of(), OLD)
    step(engine, 0, 10)
    engine.statistics()
    done = engine.migrate(NEW, strategy_named("moving-state"))
    assert done.moved == ("((b c) a)",)
    assert list(done.recomputed) == ["(b c)"]
    assert done.recomputed["(b c)"] == engine.only.track.intermediates["(b c)"].ring.live > 0
    statistics = engine.statistics().total
    assert statistics.seconds["migrate"] > 0
    # Computing states is not what the streams are judged by.
    assert not statistics.probes


def test_a_change_from_a_mesh_goes_back_to_it(tmp_path: Path) -> None:
    """It went back to the mjoin that stood in for the mesh: a plan that the course of the migration did not know."""
    mesh = parse_mesh("mesh(a: b>c>d; b: a>c>d; c: b>a>d; d: c>b>a)")
    engine, still = Engine.alone(query_of(), mesh, arena=MappedArena(tmp_path)), Engine.alone(query_of(), OLD)
    for start in range(0, 20, 4):
        if start == 8:
            engine.migrate(NEW, strategy_named("parallel-track"))
            again = Engine.alone(query_of(), NEW, arena=MappedArena(tmp_path))
            again.reopen(json.loads(json.dumps(engine.layout())))
            engine = again
        if start == 12:
            assert isinstance(engine.only.track, ParallelTrack)
            assert engine.only.track.leaving == mesh
            engine.abort_migration()
            assert engine.only.plan == mesh
        assert step(engine, start, start + 4) == step(still, start, start + 4)


def test_where_no_state_is_lacking_nothing_runs_twice() -> None:
    engine = Engine.alone(query_of(), OLD)
    step(engine, 0, 8)
    done = engine.migrate(parse("((c b a) d)"), strategy_named("parallel-track"))
    assert not engine.is_migrating
    assert (done.moved, dict(done.recomputed)) == (("(c b a)",), {})


# --- deferred predicates -------------------------------------------------------------------------------------------


def late_query(select: str = "a.v AS va, d.k AS kd") -> Query:
    catalog = Catalog()
    for name in "abcd":
        catalog.register(StreamDeclaration(name, parse_schema("ts timestamp, k bigint, v bigint"), "ts"))
    windows = ", ".join(f"{name} [RANGE 10 SECONDS]" for name in "abcd")
    where = "a.k = b.k AND b.k = c.k AND c.k = d.k AND a.v < b.v + 1 AND c.v > 0"
    return compile_query(f"SELECT {select} FROM {windows} WHERE {where}", catalog, late_filters=["c"])


@pytest.mark.parametrize("strategy", ["moving-state", "parallel-track"])
def test_a_state_is_filtered_when_the_new_plan_checks_sooner_and_moved_when_later(strategy: str) -> None:
    early, late = parse("(((a b) c) d)"), parse("(((a b) c) d #0 #1)")
    engine, fresh = Engine.alone(late_query(), late), Engine.alone(late_query(), parse("(a b c d)"))
    states = [step(engine, start, start + 5) == step(fresh, start, start + 5) for start in range(0, 20, 5)]
    assert all(states)
    loose = engine.only.track.intermediates["((a b) c)"].ring.live
    sooner = engine.migrate(early, strategy_named(strategy))
    assert sooner.filtered == ("(a b)", "((a b) c)")
    # A third of the rows of c have the value 0; the others pass, and every a.v < b.v + 1 where keys are values.
    assert 0 < engine.only.track.intermediates["((a b) c)"].ring.live < loose
    assert step(engine, 20, 25) == step(fresh, 20, 25)
    kept = dict(engine.only.track.intermediates)
    later = engine.migrate(late, strategy_named(strategy))
    assert (later.moved, later.recomputed, later.filtered) == (("(a b)", "((a b) c)"), {}, ())
    assert all(engine.only.track.intermediates[name] is kept[name] for name in kept)
    assert step(engine, 25, 30) == step(fresh, 25, 30)
    engine.migrate(early, strategy_named(strategy))
    assert [step(engine, at, at + 5) for at in (30, 35)] == [step(fresh, at, at + 5) for at in (30, 35)]


def test_a_state_holds_row_numbers_and_no_columns_whatever_is_read_above(tmp_path: Path) -> None:
    """So a projection anywhere changes no state, and a state can be moved to a plan that reads other columns of it."""
    held = []
    for number, select in enumerate(["a.v AS va, d.k AS kd", "a.k AS k", "a.k AS ka, a.v AS va, b.v AS vb, c.v AS vc"]):
        folder = tmp_path / str(number)
        folder.mkdir()
        engine = Engine.alone(late_query(select), parse("(((a b) c) d #0 #1)"), arena=MappedArena(folder))
        step(engine, 0, 5)
        held.append({name.split(".", 2)[2] for name in names(folder) if name.startswith("track")})
    assert held[0] == held[1] == held[2]
    assert {name for name in held[0] if name.startswith("row.")} == {"row.a", "row.b", "row.c"}
