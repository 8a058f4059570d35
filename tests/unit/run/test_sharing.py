"""Queries that share joins, in a process: by plan, by hand, while they run; and what the work is counted as."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pytest

from anabranch.adapt.advisors.sharing import SharingRules
from anabranch.adapt.facts import Interval
from anabranch.adapt.gate import Gate
from anabranch.adapt.rules import ChangeRules
from anabranch.adapt.settings import Settings
from anabranch.cql import compile_query
from anabranch.engine.engine import Engine
from anabranch.engine.state.arena import MappedArena
from anabranch.errors import BundleError, InvariantBroken, MigrationError
from anabranch.lang.schema import TIMESTAMP
from anabranch.migrate.strategies.registry import strategy_named
from anabranch.plan.mesh import parse_plan
from anabranch.plan.physical import JoinNode, shared_parts
from anabranch.plan.query import Query
from anabranch.plan.query_set import Plans, QuerySet, together
from anabranch.plan.sharing import shares
from anabranch.run import local
from anabranch.run.local import LocalHost
from anabranch.run.results import ResultLayout
from anabranch.run.slot import make_engine
from tests.support.oracle import batch_answer, describe_difference, rows_as_multiset
from tests.support.scripted import answer_lines, read_rows, read_script

SCRIPT = read_script("\n".join(f"stream {name} (k bigint, v bigint)" for name in "abcd"))


def query(windows: dict[str, int], *where: str) -> Query:
    names = list(windows)
    outputs = ", ".join(f"{name}.v AS {name}v" for name in names)
    sources = ", ".join(f"{name} [RANGE {seconds} SECONDS]" for name, seconds in windows.items())
    keys = [f"{one}.k = {other}.k" for one, other in pairwise(names)]
    return compile_query(f"SELECT {outputs} FROM {sources} WHERE {' AND '.join([*keys, *where])}", SCRIPT.catalog)


QUERIES = {
    "long": query({"a": 60, "b": 60, "c": 60}),
    "short": query({"a": 5, "b": 60, "c": 9}),
    "filtered": query({"a": 60, "b": 60, "c": 60}, "b.v > 40"),
    "wider": query({"a": 20, "b": 20, "c": 20, "d": 20}, "a.v < c.v"),
}
ALL = together(QUERIES)
OWN = {"long": "(a b c)", "short": "((a b) c)", "filtered": "(a (b c))", "wider": "(((a b) c) d)"}
SHARED = {"long": "{a b c}", "short": "{a b c}", "filtered": "{a b c}", "wider": "({a b c} d)"}
PAIRS = {"long": "({a b} c)", "short": "({a b} c)", "filtered": "(a (b c))", "wider": "(({a b} c) d)"}


def plans(texts: dict[str, str]) -> Plans:
    return Plans({name: parse_plan(text) for name, text in texts.items()})


def rows(batches: int, each: int = 150, keys: int = 12, seed: int = 1) -> list[dict[str, pa.Table]]:
    random = np.random.default_rng(seed)
    found = []
    for number in range(batches):
        tables = {}
        for name in "abcd":
            times = np.sort(random.integers(number * 10_000_000, (number + 1) * 10_000_000, each))
            tables[name] = pa.table(
                {
                    "ts": pa.array(times, pa.int64()).cast(pa.timestamp("us")).cast(TIMESTAMP),
                    "k": pa.array(random.integers(0, keys, each), pa.int64()),
                    "v": pa.array(random.integers(0, 60, each), pa.int64()),
                }
            )
        found.append(tables)
    return found


def check(host: LocalHost, batches: list[dict[str, pa.Table]], changes: dict[int, dict[str, str]]) -> None:
    """Steps through the batches with these plans before some of them; compares with the batch answers."""
    results: dict[str, list[pa.Table]] = {name: [] for name in QUERIES}
    for number, batch in enumerate(batches):
        if number in changes:
            host.steering.migrate(plans(changes[number]).plans)
        for name, table in ResultLayout(host.queries).split(host.step(batch)).items():
            results[name].append(table)
    whole = {name: pa.concat_tables([batch[name] for batch in batches]) for name in "abcd"}
    for name, each in QUERIES.items():
        expected = batch_answer(each, whole)
        assert expected
        assert not describe_difference(expected, rows_as_multiset(pa.concat_tables(results[name]))), name


@pytest.mark.parametrize("slots", [1, 3])
@pytest.mark.parametrize(
    "way", [[OWN, SHARED, OWN], [SHARED, PAIRS, SHARED], [PAIRS, OWN, PAIRS], [PAIRS, SHARED, OWN]]
)
def test_sharing_and_unsharing_change_no_answer(way: list[dict[str, str]], slots: int) -> None:
    host = LocalHost(ALL, plans(way[0]), slots=slots)
    check(host, rows(9, each=20), {3: way[1], 6: way[2]})
    ended = [record for record in host.history if record["kind"] == "migration" and record["phase"] == "ended"]
    assert {record["query"] for record in ended} == set(OWN)


def test_a_user_that_leaves_narrows_the_join_for_the_others() -> None:
    """`wider` keeps (a b c) from when the join had the windows of `long`; its own windows hold all the same."""
    first = {**PAIRS, "short": "((a b) c)"}
    check(LocalHost(ALL, plans(first)), rows(8, each=20), {4: {"long": "(a b c)"}})


def test_a_join_that_comes_to_be_shared_keeps_what_only_rows_of_other_relations_complete() -> None:
    """Found by drawn schedules: `(d a)` was filled with what rows of c could still complete. A row of b, which comes
    late, lacked combinations of `{c (d a)}` whose a had been passed by c, but not by b."""
    streams = "\n".join(
        f"stream {name} (k bigint)" + (" disorder 30 seconds" if name == "b" else "") for name in "abcd"
    )
    catalog = read_script(streams).catalog
    sources = "a [RANGE 1 SECOND], b [RANGE 60 SECONDS], c [RANGE 60 SECONDS], d [RANGE 60 SECONDS]"
    text = f"SELECT a.k AS k FROM {sources} WHERE a.k = b.k AND a.k = c.k AND c.k = d.k"
    queries = {name: compile_query(text, catalog) for name in ("one", "other")}
    host = LocalHost(together(queries), plans(dict.fromkeys(queries, "(a b c d)")))
    assert not host.step(read_rows(catalog, ["a 5 1", "d 5 1", "c 4 1", "c 20 2"])).num_rows
    assert not host.step(read_rows(catalog, ["c 21 2"])).num_rows
    host.steering.migrate(plans(dict.fromkeys(queries, "(b {c (d a)})")).plans)
    results = ResultLayout(host.queries).split(host.step(read_rows(catalog, ["b 5 1"])))
    assert {name: table.num_rows for name, table in results.items()} == {"one": 1, "other": 1}


def test_the_join_is_computed_once() -> None:
    several, one = LocalHost(ALL, plans(OWN)), LocalHost(ALL, plans(SHARED))
    for batch in rows(3, each=20):
        several.step(batch)
        one.step(batch)
    probes = [sum(probe.probes for probe in host.statistics.probes) for host in (several, one)]
    assert probes[1] < 0.5 * probes[0]
    names = {state.state for state in one.statistics.states}
    assert names == {*"abcd", "shared (a b c)"}, "one state of the combinations, for the query that joins d"
    report = one.statistics
    assert sum(state.rows for state in report.states if state.state == "a") > 0


def test_a_mesh_beside_shared_joins() -> None:
    mesh = "mesh(a: b>c; b: a>c; c: b>a)"
    check(LocalHost(ALL, plans({**SHARED, "long": mesh})), rows(6, each=20), {3: {"long": "{a b c}", "short": mesh}})


def test_a_restart_continues_with_shared_joins(tmp_path: Path) -> None:
    batches = rows(6, each=20)
    results: dict[str, Counter[tuple[Any, ...]]] = {name: Counter() for name in QUERIES}
    for start, texts in ((0, PAIRS), (2, SHARED), (4, OWN)):
        host = LocalHost(ALL, plans(texts), slots=2, checkpoint=str(tmp_path))
        for batch in batches[start : start + 2]:
            for name, table in ResultLayout(host.queries).split(host.step(batch)).items():
                results[name] += rows_as_multiset(table)
    whole = {name: pa.concat_tables([batch[name] for batch in batches]) for name in "abcd"}
    for name, each in QUERIES.items():
        assert not describe_difference(batch_answer(each, whole), results[name])


def test_hot_state_is_found_again_with_its_shared_joins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After every batch another engine opens the arrays, made with other plans than those at work."""
    arena = MappedArena(tmp_path)
    monkeypatch.setattr(local, "make_engine", partial(make_engine, arena=arena))
    host = LocalHost(ALL, plans(OWN))
    step = host.step

    def step_and_reopen(batch: dict[str, pa.Table]) -> pa.Table:
        answer = step(batch)
        kept = json.loads(json.dumps(host.engines[0].layout()))
        host.engines[0] = Engine(ALL, plans(OWN), arena=MappedArena(tmp_path))
        host.engines[0].reopen(kept)
        return answer

    monkeypatch.setattr(host, "step", step_and_reopen)
    check(host, rows(8, each=20), {2: PAIRS, 4: SHARED, 6: OWN})


def test_sharing_before_the_first_row() -> None:
    """A query whose rest has an equality of its own begins to share over states that have never held a row."""
    wants = {"both": query({"a": 60, "b": 60, "c": 60}, "a.v = b.v"), "one": query({"a": 60, "b": 60})}
    host = LocalHost(together(wants), plans({"both": "(a b c)", "one": "(a b)"}))
    host.share("(a b)")
    host.step({})
    assert str(host.plan) == "both: ({a b} c); one: {a b}"


def test_by_hand() -> None:
    host = LocalHost(ALL, plans(OWN))
    host.share("((a b) c)")
    host.step(rows(1)[0])
    assert str(host.plan) == ("filtered: {(a b) c}; long: {(a b) c}; short: {(a b) c}; wider: ({(a b) c} d)")
    host.unshare(["long", "wider"])
    host.step({})
    assert str(host.plan) == "filtered: {(a b) c}; long: ((a b) c); short: {(a b) c}; wider: (((a b) c) d)"
    host.unshare()
    host.step({})
    with pytest.raises(MigrationError, match="no join is shared"):
        host.unshare()


def test_plans_that_a_user_cannot_share_are_refused() -> None:
    host = LocalHost(ALL, plans(OWN))
    with pytest.raises(BundleError, match=r"query 'long' cannot share '\{a d\}': it has no relation 'd'"):
        host.share("(a d)", ["long", "wider"])
    with pytest.raises(BundleError, match="no query joins x, y"):
        host.share("(x y)")
    with pytest.raises(BundleError, match="no query is named 'lang'"):
        host.share("(a b)", ["lang"])
    with pytest.raises(MigrationError, match="strategy 'parallel-track' cannot change plan"):
        host.migrate(parse_plan("({a b} c)"), "parallel-track", query="long")
    host.share("(a b)")
    with pytest.raises(MigrationError, match="the query is changing its plan already"):
        host.share("(b c)")


def test_a_change_that_fails_leaves_the_old_plans_at_work(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Engine(ALL, plans(PAIRS))
    strategy = strategy_named("moving-state")
    monkeypatch.setattr(type(strategy), "begin", lambda *_: (_ for _ in ()).throw(InvariantBroken("on purpose")))
    with pytest.raises(InvariantBroken, match="on purpose"):
        engine.change_plans(plans(SHARED).plans, strategy)
    assert str(engine.plans) == str(plans(PAIRS))
    assert [str(shared) for shared in engine.joins] == ["{a b}"]


def test_a_short_window_and_a_filter_hold_on_shared_combinations() -> None:
    """a at 0 s with v 1, b at 8 s with v 50 and at 9 s with v 3: `near` wants 5 s of a, `big` wants b.v > 40.

    a  0s v=1      6s v=2
    b                     8s v=50   9s v=3
    """
    wants = {"near": query({"a": 5, "b": 60}), "big": query({"a": 60, "b": 60}, "b.v > 40")}
    several: QuerySet = together(wants)
    host = LocalHost(several, plans({"near": "{a b}", "big": "{a b}"}))
    found: dict[str, list[str]] = {"near": [], "big": []}
    for lines in (["a 0 1 1", "a 6 1 2"], ["b 8 1 50", "b 9 1 3"]):
        for name, table in ResultLayout(several).split(host.step(read_rows(SCRIPT.catalog, lines))).items():
            found[name] += answer_lines(table)
    assert sorted(found["near"]) == ["2 3", "2 50"]
    assert sorted(found["big"]) == ["1 50", "2 50"]


ANY_SAVING = Settings(gate=Gate(ratio=1.0, cores=0.0, cool_down=Interval(batches=3)))


def adapting(queries: Mapping[str, Query], texts: dict[str, str]) -> LocalHost:
    rules = {name: ChangeRules(ANY_SAVING) for name in queries}
    return LocalHost(together(queries), plans(texts), rules=rules, sharing=SharingRules(is_automatic=True))


def stepped(host: LocalHost, queries: Mapping[str, Query], batches: list[dict[str, pa.Table]]) -> list[dict[str, Any]]:
    """Steps through all batches, checks the answers, and returns the decisions about sharing."""
    results: dict[str, list[pa.Table]] = {name: [] for name in queries}
    for batch in batches:
        mine = {name: batch[name] for name in host.queries.graph.streams}
        for name, table in ResultLayout(host.queries).split(host.step(mine)).items():
            results[name].append(table)
    whole = {name: pa.concat_tables([batch[name] for batch in batches]) for name in "abcd"}
    for name, each in queries.items():
        assert not describe_difference(batch_answer(each, whole), rows_as_multiset(pa.concat_tables(results[name])))
    return [record for record in host.history if record["kind"] == "sharing"]


def test_queries_begin_to_share_by_themselves() -> None:
    queries = {name: QUERIES[name] for name in ("long", "short", "filtered")}
    host = adapting(queries, {"long": "(a b c)", "short": "(a b c)", "filtered": "(a b c)"})
    decided = stepped(host, queries, rows(12, each=40))
    taken = next(record for record in decided if record["action"] == "migrate")
    assert taken["proposedCost"]["cpu"] < taken["cost"]["cpu"]
    shared = {part for plan in cast(Plans, host.plan).plans.values() for part in shared_parts(cast(JoinNode, plan))}
    assert len(shared) == 1
    assert {record["by"] for record in host.history if record["kind"] == "migration"} == {"loop"}
    assert decided[-1]["reason"] == "what is shared is the best known"


def test_queries_with_selective_filters_stop_sharing_by_themselves() -> None:
    """Of 60 values of v each query wants one: its own lookups are few, and a shared join makes every combination."""
    queries = {
        name: query({"a": 60, "b": 60, "c": 60}, *(f"{relation}.v = {value}" for relation in "abc"))
        for name, value in (("one", 1), ("other", 2))
    }
    host = adapting(queries, {"one": "{a b c}", "other": "{a b c}"})
    # So many rows that their lookups outweigh the fixed cost of a batch; too many for the naive oracle.
    for batch in rows(5, each=20_000, keys=120_000):
        host.step({name: batch[name] for name in "abc"})
    decided = [record for record in host.history if record["kind"] == "sharing"]
    assert any(record["action"] == "migrate" and not record["shared"] for record in decided)
    assert not any(shares(plan) for plan in cast(Plans, host.plan).plans.values())


def test_a_frozen_query_keeps_what_it_shares() -> None:
    queries = {name: QUERIES[name] for name in ("long", "filtered")}
    host = adapting(queries, {"long": "(a b c)", "filtered": "(a b c)"})
    host.steering.freeze()
    decided = stepped(host, queries, rows(8, each=40))
    assert all(record["action"] == "keep" for record in decided)
    assert any(record["reason"].startswith("frozen; otherwise: saves") for record in decided)
