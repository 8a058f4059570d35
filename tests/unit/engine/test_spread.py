"""States that are filled step by step: exact whatever the pace, given back on abort, and no step does much of it."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from pathlib import Path

import pytest

from anabranch.engine.engine import Engine
from anabranch.engine.state.arena import MappedArena
from anabranch.engine.tracks import spread
from anabranch.engine.tracks.spread import SpreadTrack
from anabranch.errors import MigrationError
from anabranch.migrate.strategies.registry import strategy_named
from anabranch.plan.text import parse
from tests.support.scripted import SECOND
from tests.unit.engine.test_moving_state import NEW, OLD, late_query, names, query_of, step

PLANS = ("(((a b) c) d)", "(((b c) a) d)", "(a b c d)", "((a b) (c d))", "(a (b (c d)))", "((a c) b d)")
SPREAD = strategy_named("spread")


@pytest.fixture(autouse=True)
def _slowly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spread, "allowance", lambda brought: 5)
    monkeypatch.setattr(spread, "SLICE", 2)


def alive(engine: Engine, since: int) -> Counter[tuple[object, ...]]:
    """The combinations in all states that count at a second or later, by state and row numbers."""
    found: Counter[tuple[object, ...]] = Counter()
    for name, state in engine.only.track.intermediates.items():
        every = state.everything()
        is_live = every.deadline >= since * SECOND
        columns = [every.rows[relation][is_live].tolist() for relation in sorted(state.relations)]
        found.update((name, *rows) for rows in zip(*columns, strict=True))
    return found


@pytest.mark.parametrize("pace", [5, 25, 100])
@pytest.mark.parametrize(("old", "new"), list(itertools.permutations(PLANS, 2)))
def test_no_step_sees_the_change(old: str, new: str, pace: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spread, "allowance", lambda brought: pace)
    engine, fresh = Engine.alone(query_of(), parse(old)), Engine.alone(query_of(), parse(new))
    steps = 0
    for start in range(0, 66, 3):
        if start == 21:
            engine.migrate(parse(new), SPREAD)
        assert step(engine, start, start + 3) == step(fresh, start, start + 3)
        steps += engine.is_migrating
        if start >= 21 and not engine.is_migrating:
            # Both engines number the same rows alike.
            assert alive(engine, start + 3) == alive(fresh, start + 3)
    assert engine.only.plan == parse(new)
    assert not engine.is_migrating
    assert steps > 1 or new == "(a b c d)" or pace > 5


def test_a_track_is_found_again_in_the_middle(tmp_path: Path) -> None:
    engine, still = Engine.alone(query_of(), OLD, arena=MappedArena(tmp_path)), Engine.alone(query_of(), OLD)
    for start in range(0, 60, 3):
        if start == 21:
            engine.migrate(NEW, SPREAD)
        if start > 21:
            again = Engine.alone(query_of(), NEW, arena=MappedArena(tmp_path))
            again.reopen(json.loads(json.dumps(engine.layout())))
            engine = again
        if start == 24:
            assert isinstance(engine.only.track, SpreadTrack)
            assert (engine.only.plan, engine.only.track.leaving) == (NEW, OLD)
        assert step(engine, start, start + 3) == step(still, start, start + 3)
    assert not engine.is_migrating


def test_an_abort_leaves_nothing_of_the_new_plan(tmp_path: Path) -> None:
    for name in ("changed", "still"):
        (tmp_path / name).mkdir()
    engine = Engine.alone(query_of(), OLD, arena=MappedArena(tmp_path / "changed"))
    still = Engine.alone(query_of(), OLD, arena=MappedArena(tmp_path / "still"))
    for start in range(0, 48, 4):
        if start == 12:
            engine.migrate(NEW, SPREAD)
        if start == 20:
            assert engine.is_migrating
            engine.abort_migration()
        assert step(engine, start, start + 4) == step(still, start, start + 4)
    assert engine.only.plan == OLD
    assert names(tmp_path / "changed") == names(tmp_path / "still")


def test_a_state_is_filtered_in_slices_too() -> None:
    early, late = parse("(((a b) c) d)"), parse("(((a b) c) d #0 #1)")
    engine, fresh = Engine.alone(late_query(), late), Engine.alone(late_query(), parse("(a b c d)"))
    steps = 0
    for start in range(0, 60, 3):
        if start == 21:
            engine.migrate(early, SPREAD)
        assert step(engine, start, start + 3) == step(fresh, start, start + 3)
        steps += engine.is_migrating
    assert steps > 1
    direct = Engine.alone(late_query(), early)
    for start in range(0, 60, 3):
        step(direct, start, start + 3)
    for name, state in direct.only.track.intermediates.items():
        assert engine.only.track.intermediates[name].ring.live == state.ring.live


def test_no_step_catches_up_with_more_than_it_may(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Engine.alone(query_of(), OLD)
    for start in range(0, 20, 5):
        step(engine, start, start + 5)
    done = engine.migrate(NEW, SPREAD)
    assert done.recomputed == {}
    caught: list[int] = []
    catch_up = SpreadTrack._catch_up

    def counted(self: SpreadTrack, floors: dict[str, int]) -> int:
        caught.append(catch_up(self, floors))
        return caught[-1]

    monkeypatch.setattr(SpreadTrack, "_catch_up", counted)
    while engine.is_migrating:
        before = len(caught)
        step(engine, 20, 21)
        # One slice more than allowed at most: two rows, and what they met.
        assert sum(caught[before:-1]) < 5
    assert len(caught) > 3


def test_the_pace_follows_what_a_step_brings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    assert spread.allowance(0) == spread.LEAST
    assert spread.allowance(80 * spread.LEAST) == round(80 * spread.SHARE) * spread.LEAST


def test_merged_inputs_are_refused_by_name() -> None:
    with pytest.raises(MigrationError, match="does not support plan"):
        SPREAD.check(parse("([a] b)"), parse("(a b)"), query_of().graph)
