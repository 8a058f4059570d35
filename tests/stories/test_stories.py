"""Every story, on the in-process host: with both extremes of plans, one and several slots, and changing plans."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

import pytest

from anabranch.cql import compile_query
from anabranch.errors import MigrationError
from anabranch.plan.physical import PhysicalPlan, linear_tree, mjoin
from anabranch.plan.query_set import Plans, alone
from anabranch.run.local import LocalHost
from anabranch.run.round import EventTimeRules
from tests.support.contracts import all_shapes
from tests.support.scripted import answer_lines, read_script

Shape: TypeAlias = Callable[[tuple[str, ...]], PhysicalPlan]
STORIES = sorted(Path(__file__).parent.glob("*.cql.test"))
ALL_STORIES = pytest.mark.parametrize("path", STORIES, ids=lambda path: path.name.removesuffix(".cql.test"))


@pytest.mark.parametrize("slots", [1, 3])
@pytest.mark.parametrize("shape", [mjoin, linear_tree])
@ALL_STORIES
def test_story(path: Path, shape: Shape, slots: int) -> None:
    _tell(path, shape, slots, lambda host: None)


@pytest.mark.parametrize("strategy", ["moving-state", "parallel-track"])
@ALL_STORIES
def test_story_while_the_plan_changes(path: Path, strategy: str) -> None:
    """The next plan is asked for before every batch, and taken unless a change is still under way."""
    script = read_script(path.read_text())
    shapes = itertools.cycle(all_shapes(compile_query(script.query, script.catalog).graph.names))

    def change(host: LocalHost) -> None:
        with contextlib.suppress(MigrationError):
            host.migrate(next(shapes), strategy)

    _tell(path, linear_tree, 2, change)


def _tell(path: Path, shape: Shape, slots: int, before_batch: Callable[[LocalHost], None]) -> None:
    script = read_script(path.read_text())
    query = compile_query(script.query, script.catalog)
    several = alone(query)
    plan = Plans({each.name: shape(each.query.graph.names) for each in several.members})
    clock = [0]
    timeouts = dict.fromkeys(several.streams, script.idle_timeout)
    host = LocalHost(several, plan, slots=slots, event_time=EventTimeRules(timeouts), now=lambda: clock[0])
    for number, batch in enumerate(script.batches):
        clock[0] = batch.now
        before = dict(host.late)
        before_batch(host)
        assert answer_lines(host.step(batch.rows)) == batch.answer, f"batch {number}"
        late = {name: count - before[name] for name, count in host.late.items() if count != before[name]}
        assert late == batch.late, f"batch {number}"
