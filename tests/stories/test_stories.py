"""Every story, on the in-process host, with both extremes of plans and with one and several slots."""

from __future__ import annotations

from pathlib import Path

import pytest

from anabranch.cql import compile_query
from anabranch.host.local import LocalHost
from anabranch.plan.physical import linear_tree, mjoin
from anabranch.testing.scripted import answer_lines, read_script

STORIES = sorted(Path(__file__).parent.glob("*.cql.test"))


@pytest.mark.parametrize("slots", [1, 3])
@pytest.mark.parametrize("shape", [mjoin, linear_tree])
@pytest.mark.parametrize("path", STORIES, ids=lambda path: path.name.removesuffix(".cql.test"))
def test_story(path: Path, shape: object, slots: int) -> None:
    script = read_script(path.read_text())
    query = compile_query(script.query, script.catalog)
    plan = (mjoin if shape is mjoin else linear_tree)(query.graph.names)
    clock = [0]
    timeouts = {relation.stream: script.idle_timeout for relation in query.graph.relations}
    host = LocalHost(query, plan, slots=slots, idle_timeouts=timeouts, now=lambda: clock[0])
    for number, batch in enumerate(script.batches):
        clock[0] = batch.now
        before = dict(host.late)
        assert answer_lines(host.step(batch.rows)) == batch.answer, f"batch {number}"
        late = {name: count - before[name] for name, count in host.late.items() if count != before[name]}
        assert late == batch.late, f"batch {number}"
