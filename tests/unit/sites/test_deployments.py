"""Deployments as values and files: compiled operators, orders, leases, changes; nothing here runs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anabranch.cli import main as cli
from anabranch.errors import AnabranchError, ChangePending, SiteError, SpecError, TopologyError
from anabranch.place.hierarchy import to_names
from anabranch.place.learnt import Learnt
from anabranch.place.removal import removed, tightened
from anabranch.place.run import COMPARED, Options, deploy, planner_named
from anabranch.place.spec import load_network, load_queries
from anabranch.run.links.feed import BEFORE_ALL
from anabranch.run.links.link import Link
from anabranch.run.links.place import open_link
from anabranch.sites import client as client_module
from anabranch.sites import controller as controller_module
from anabranch.sites import observed as observed_module
from anabranch.sites import root as root_module
from anabranch.sites import waiting as waiting_module
from anabranch.sites.client import request
from anabranch.sites.codec import decode, encode
from anabranch.sites.compile import compile_program
from anabranch.sites.controller import Controller
from anabranch.sites.files import load_files, require_sources
from anabranch.sites.on_spark import SparkOperator
from anabranch.sites.operators import DELIVERY, GATE, JOIN, Program, control_link
from anabranch.sites.plan_state import Planned, judged
from anabranch.sites.root import Orders, Root
from anabranch.sites.site import Site
from anabranch.sites.view import LINKS, OPERATORS, plain_status
from anabranch.sites.waiting import waits
from anabranch.sites.wanted import Wanted, adopted, changed, progressed
from anabranch.sites.wiring import Wiring

EXAMPLES = Path(__file__).parents[3] / "examples"
NETWORK = """
sites: [west, middle, east]
links: [{ends: [west, middle], cost: 1}, {ends: [middle, east], cost: 1}]
streams:
  a: {site: west, rate: 5, columns: "k bigint, x bigint, ts timestamp", distinct: {k: 10},
      source: {format: json, path: data/a}}
  b: {site: east, rate: 5, columns: "k bigint, y bigint, ts timestamp", distinct: {k: 10}, watermark: 2 seconds,
      source: {format: json, path: data/b}}
  c: {site: east, rate: 5, columns: "k bigint, ts timestamp"}
"""
PAIR = "SELECT a.x, b.y FROM a [RANGE 10 SECONDS], b [RANGE 5 SECONDS] WHERE a.k = b.k"


def written(folder: Path, *queries: tuple[str, str, str], network: str = NETWORK) -> tuple[Path, Path]:
    (folder / "network.yaml").write_text(network)
    entries = [
        {"name": name, "sink": sink, "query": cql, "into": {"format": "parquet", "path": f"out/{name}"}}
        for name, sink, cql in queries
    ]
    (folder / "queries.yaml").write_text(json.dumps({"queries": entries}))
    return folder / "network.yaml", folder / "queries.yaml"


def program_of(folder: Path, *queries: tuple[str, str, str]) -> Program:
    files = load_files(*written(folder, *queries))
    planned = Planned(files.network.landscape, planner="exhaustive")
    for query in files.queries:
        planned = planned.with_query(query)
    return compile_program(planned.landscape, files.network.catalog)


@pytest.mark.parametrize("planner", [*COMPARED])
def test_every_planner_leads_to_operators_that_can_run(planner: str) -> None:
    network = load_network(EXAMPLES / "network.yaml")
    queries = load_queries(EXAMPLES / "airline-queries.yaml", network)
    chosen = planner_named(planner, network.landscape.topology, Options(max_cs=4, iterations=200))
    program = compile_program(deploy(chosen, network.landscape, queries).landscape, network.catalog)
    deliveries = {spec.serves: spec for spec in program.operators.values() if spec.kind == DELIVERY}
    assert set(deliveries) == {query.name for query in queries}
    for query in queries:
        spec = deliveries[query.name]
        assert (spec.site, spec.query.schema) == (query.sink, query.query.schema)
    assert {spec.serves for spec in program.operators.values() if spec.kind == GATE} == set(network.catalog.streams)
    for spec in program.operators.values():
        for taken in spec.inputs:
            made = program.operators[taken.producer].query.schema
            assert all(made.find(field.name) == field or made.find(field.name) for field in taken.schema)


@pytest.mark.parametrize("planner", [*COMPARED])
@given(random=st.randoms(use_true_random=False))
@settings(max_examples=3, deadline=None)
def test_queries_are_removed_and_come_back_in_any_order(planner: str, random: Random) -> None:
    network = load_network(EXAMPLES / "network.yaml")
    queries = load_queries(EXAMPLES / "airline-queries.yaml", network)[:4]
    # The same query at the same sink reads what the first one is delivered.
    queries += tuple(replace(query, name=f"{query.name} twice") for query in queries)
    chosen = planner_named(planner, network.landscape.topology, Options(max_cs=4, iterations=200))
    landscape = deploy(chosen, network.landscape, queries).landscape
    for _ in range(12):
        query = random.choice(queries)
        if query.name in landscape.queries:
            landscape = removed(landscape, query.name)
        else:
            landscape = tightened(chosen.plan(landscape, query).landscape)
        program = compile_program(landscape, network.catalog)
        deliveries = {spec.serves: spec.site for spec in program.operators.values() if spec.kind == DELIVERY}
        assert deliveries == {one.name: one.sink for one in landscape.queries.values()}
    for name in list(landscape.queries):
        landscape = removed(landscape, name)
    assert landscape.operators == network.landscape.operators


def through(wanted: Wanted) -> Wanted:
    """The state in which a change is through, as if its operators had run."""
    wires = {key: replace(wire, since=0, stretches=wire.stretches[-1:]) for key, wire in wanted.wiring.wires.items()}
    kept = {name: wanted.operators[name] for name in wanted.target}
    wiring = Wiring(wires).without(set(wanted.operators) - set(kept))
    return replace(wanted, operators=kept, waiting=frozenset(), wiring=wiring)


@pytest.mark.parametrize("planner", [*COMPARED])
def test_a_query_that_another_one_reads_is_removed_while_that_one_stays(tmp_path: Path, planner: str) -> None:
    """The shipped example, with the result of `display` at the sink of `gate`."""
    example = EXAMPLES / "sites"
    files = load_files(example / "network.yaml", example / "queries.yaml")
    root = Root(str(tmp_path / "root"))
    options = Options(max_cs=4, iterations=200)
    with Controller(root, files.network, files.sources) as controller:
        planned = Planned(files.network.landscape, planner=planner, options=options)
        controller.begin(planned, files.queries, Orders(Wanted(), place=root.default_place))

        def asked(kind: str, **details: Any) -> None:
            orders = controller.orders
            root.order(replace(orders, wanted=through(orders.wanted)))
            assert request(root, kind, wait=controller.step, **details)

        asked("add", file=str(example / "more.yaml"))
        assert set(controller.planned.queries) == {"display", "gate"}
        asked("remove", query="display")
        deliveries = [spec.serves for spec in controller.orders.wanted.operators.values() if spec.kind == DELIVERY]
        assert deliveries == ["gate"]
        assert set(controller.planned.queries) == {"gate"}
        asked("add", file=str(example / "queries.yaml"))
        assert set(controller.planned.queries) == {"display", "gate"}


def test_queries_whose_names_are_one_in_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(TopologyError, match="two queries have operators with the name 'query-gate-1"):
        program_of(tmp_path, ("gate 1", "west", PAIR), ("gate-1", "west", PAIR))


def test_joins_of_one_site_that_nobody_else_reads_are_one_operator(tmp_path: Path) -> None:
    text = (
        "SELECT a.x, b.y FROM a [RANGE 10 SECONDS], b [RANGE 5 SECONDS], a [RANGE 3 SECONDS] AS c "
        "WHERE a.k = b.k AND c.k = b.k"
    )
    program = program_of(tmp_path, ("q", "east", text))
    (join,) = (spec for spec in program.operators.values() if spec.kind == JOIN)
    assert len(join.inputs) == 3
    assert len(join.query.graph.keys) == 1


def test_an_operator_is_the_same_after_a_trip_through_a_file(tmp_path: Path) -> None:
    network = load_network(EXAMPLES / "network.yaml")
    queries = load_queries(EXAMPLES / "airline-queries.yaml", network)
    chosen = planner_named("top-down", network.landscape.topology, Options(max_cs=4))
    program = compile_program(deploy(chosen, network.landscape, queries).landscape, network.catalog)
    again = decode(json.loads(json.dumps(encode(dict(program.operators)))))
    assert again == dict(program.operators)
    assert {s.query.fingerprint for s in again.values()} == {s.query.fingerprint for s in program.operators.values()}
    with pytest.raises(SiteError, match="cannot be part of a deployment"):
        encode(object())
    with pytest.raises(SiteError, match="'Thing', which is not known"):
        decode({"Thing": {}})


TABLE = """tables:
  t: {columns: "k bigint, name string", source: {format: parquet, path: data/t.parquet}}
"""
OUTER = (
    "SELECT a.x, t.name, b.y FROM a [RANGE 10 SECONDS] JOIN t ON a.k = t.k "
    "LEFT JOIN b [RANGE 5 SECONDS] ON a.k = b.k AND b.y > 2 WHERE a.x < 5"
)


def test_a_query_with_outer_joins_or_tables_runs_at_its_sink(tmp_path: Path) -> None:

    files = load_files(*written(tmp_path, ("q", "middle", OUTER), ("r", "east", PAIR), network=NETWORK + TABLE))
    require_sources(files)
    planned = Planned(files.network.landscape, planner="exhaustive")
    for query in files.queries:
        planned = planned.with_query(query)
    program = compile_program(planned.landscape, files.network.catalog)
    whole = next(spec for spec in program.operators.values() if spec.serves == "q" and spec.kind == DELIVERY)
    assert [program.operators[taken.producer].kind for taken in whole.inputs] == [GATE, GATE]
    assert str(whole.inputs[0].shape.filter) == ".s0_k IS NOT NULL AND (.s0_x < 5)"
    assert (whole.site, whole.query.whole.tables) == ("middle", ("t",))
    assert sum(flow.cost for flow in program.flows.values()) == pytest.approx(planned.landscape.cost)
    assert decode(json.loads(json.dumps(encode(program.operators)))) == program.operators
    again = Planned.from_json(json.loads(json.dumps(planned.to_json())), files.network)
    assert again.landscape.cost == planned.landscape.cost
    assert again.replanned(Learnt({"a": 50.0})).landscape.operators["q"].is_whole
    left = planned.without_query("q").landscape
    assert set(left.queries) == {"r"}
    assert not any(operator.is_whole for operator in left.operators.values())


@pytest.mark.parametrize(
    ("network", "entry", "message"),
    [
        (NETWORK + TABLE, {"joins_at": ["east"]}, "runs at its sink 'middle', which is not one of its 'joins_at'"),
        (NETWORK.replace("middle, east]", "{name: middle, memory: 10}, east]", 1) + TABLE, {}, "site 'middle'"),
        (NETWORK.replace("cost: 1}]", "cost: 1, bandwidth: 1}]") + TABLE, {}, "link 'middle'-'east'"),
        (NETWORK + TABLE.replace(" t:", " a:"), {}, "entry 'tables.a' has the name of a stream"),
        (NETWORK + TABLE.partition(", source")[0] + "}\n", {}, "reads table 't', which has no source"),
    ],
)
def test_a_query_that_cannot_run_at_its_sink_is_refused(
    tmp_path: Path, network: str, entry: dict[str, object], message: str
) -> None:
    into = {"format": "parquet", "path": "out/q"}
    (tmp_path / "network.yaml").write_text(network)
    queries = [{"name": "q", "sink": "middle", "query": OUTER, "into": into, **entry}]
    (tmp_path / "queries.yaml").write_text(json.dumps({"queries": queries}))

    def placed() -> None:
        files = load_files(tmp_path / "network.yaml", tmp_path / "queries.yaml")
        require_sources(files)
        Planned(files.network.landscape).with_query(files.queries[0])

    with pytest.raises(AnabranchError) as refused:
        placed()
    assert message in str(refused.value)


def test_orders_are_the_same_after_a_trip_through_the_root(tmp_path: Path) -> None:
    files = load_files(*written(tmp_path, ("q", "west", PAIR)))
    wanted = changed(Wanted(), program_of(tmp_path, ("q", "west", PAIR)))
    orders = Orders(wanted, files.sources, {"q": files.queries[0].into}, "links", 0.5, 1000)
    root = Root(str(tmp_path / "root"))
    assert root.orders() is None
    root.order(orders)
    assert root.orders() == orders
    assert plain_status(root, orders)["sites"] == {"west": "not started", "east": "not started"}


def test_a_plan_is_the_same_after_a_trip_through_its_file(tmp_path: Path) -> None:
    files = load_files(*written(tmp_path, ("q", "west", PAIR)))
    planned = Planned(files.network.landscape, planner="exhaustive").with_query(files.queries[0])
    learnt = Learnt({"a": 7.0}, {("a", "x < 5"): 0.2}, {"a b": 1.5}, {"b": {"y": 4.0}})
    planned = planned.measured(learnt)
    again = Planned.from_json(json.loads(json.dumps(planned.to_json())), files.network)
    assert again.landscape.operators == planned.landscape.operators
    assert again.learnt == learnt
    one, other = (compile_program(p.landscape, files.network.catalog) for p in (planned, again))
    assert one == other


# --- changes ---------------------------------------------------------------------------------------------------------


class Seen:
    """Links in a folder; everything else as given."""

    def __init__(self, place: Path, newest: int | None = None) -> None:
        self.place, self.time, self.known = place, newest, True

    def has_version(self, operator: str, version: int) -> bool:
        return self.known

    def newest(self, gate: str) -> int | None:
        return self.time

    def link(self, name: str) -> Link:
        return open_link(str(self.place), name)


def test_a_query_that_joins_waits_until_its_links_are_open(tmp_path: Path) -> None:
    wanted = changed(Wanted(), program_of(tmp_path, ("q", "west", PAIR)))
    assert not wanted.is_changing
    assert wanted.since == {"q": BEFORE_ALL}
    two = program_of(tmp_path, ("q", "west", PAIR), ("r", "west", PAIR))
    opened = changed(wanted, two)
    new = set(two.operators) - set(wanted.operators)
    assert opened.waiting == new
    assert {spec.kind for name, spec in two.operators.items() if name in new} == {DELIVERY}
    seen = Seen(tmp_path, newest=100)
    seen.known = False
    assert progressed(opened, seen) is opened
    seen.known = True
    # A batch is in the links before its gate has committed it, and its readers may have seen it.
    gate = next(name for name, spec in two.operators.items() if spec.kind == GATE)
    ahead = seen.link(opened.wiring.readers(gate)[0].link)
    ahead.append(0, [ahead.write(0, "x", 0, _rows(), 150)], 0)
    begun = progressed(opened, seen)
    assert (begun.waiting, begun.since["r"], begun.since["q"]) == (frozenset(), 151, BEFORE_ALL)
    assert not begun.is_changing
    left = changed(begun, program_of(tmp_path, ("q", "west", PAIR)))
    assert not left.is_changing
    assert set(left.operators) == set(wanted.operators)


def test_a_cut_that_comes_too_late_is_proposed_again_further_on(tmp_path: Path) -> None:
    wanted = changed(Wanted(), program_of(tmp_path, ("q", "west", PAIR)))
    # With another window the join is another operator; its reader, the delivery, is too, so only gates stay.
    wider = PAIR.replace("RANGE 5", "RANGE 7")
    moved = changed(wanted, program_of(tmp_path, ("q", "west", PAIR), ("r", "west", wider)))
    seen = Seen(tmp_path, newest=10_000_000)
    moved = progressed(moved, seen)
    (wire,) = (wire for wire in moved.wiring.wires.values() if len(wire.stretches) > 1)
    old = seen.link(wire.link(wire.stretches[0]))
    moved = progressed(moved, seen)
    (wire,) = (wire for wire in moved.wiring.wires.values() if len(wire.stretches) > 1)
    first = wire.stretches[-1].proposed
    # The new join began at 10 s and 1 µs, and its windows reach ten seconds back.
    assert first == 20_000_001
    assert moved.wiring.readers(wire.stretches[0].producer)[0].until == first
    assert [segment.link for segment in moved.wiring.inlets(moved.operators[wire.reader])[0].segments] == [old.name]
    old.append(0, [old.write(0, "x", 0, _rows(), first + 5)], 0)
    seen.time = first + 5
    moved = progressed(moved, seen)
    (wire,) = (wire for wire in moved.wiring.wires.values() if len(wire.stretches) > 1)
    again = wire.stretches[-1].proposed
    assert again is not None
    assert again > first + 5
    assert old.cut(again)
    moved = progressed(moved, seen)
    (wire,) = (wire for wire in moved.wiring.wires.values() if len(wire.stretches) > 1)
    assert wire.stretches[-1].start == again
    assert progressed(moved, seen) is moved
    old.append(1, [], again)
    old.ack(wire.reader, 1)
    done = progressed(moved, seen)
    assert not done.is_changing
    assert wire.stretches[0].producer not in done.operators


def _rows() -> object:
    import pyarrow as pa

    return pa.table({"v": [1]})


def test_a_change_waits_only_for_what_it_would_hand_over_again(tmp_path: Path) -> None:
    wanted = changed(Wanted(), program_of(tmp_path, ("q", "west", PAIR)))
    wider = ("r", "west", PAIR.replace("RANGE 5", "RANGE 7"))
    both = program_of(tmp_path, ("q", "west", PAIR), wider)
    opened = changed(wanted, both)
    with pytest.raises(ChangePending, match="have not begun"):
        changed(opened, both)
    moving = progressed(opened, Seen(tmp_path, newest=10_000_000))
    assert moving.is_changing
    third = program_of(tmp_path, ("q", "west", PAIR), wider, ("s", "middle", PAIR))
    two = changed(moving, third)
    assert set(moving.operators) < set(two.operators)
    assert any(len(wire.stretches) > 1 for wire in two.wiring.wires.values()), "the first one goes on"
    with pytest.raises(ChangePending, match=r"operator 'query-q\..* is being handed over"):
        changed(moving, program_of(tmp_path, ("q", "west", PAIR)))


def test_a_command_says_what_it_waits_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = load_files(*written(tmp_path, ("q", "west", PAIR)))
    root = Root(str(tmp_path / "root"))
    monkeypatch.setattr(client_module, "TELL_AFTER", 0.0)
    with Controller(root, files.network, files.sources) as controller:
        planned = Planned(files.network.landscape, planner="exhaustive")
        controller.begin(planned, files.queries, Orders(Wanted(), place=root.default_place))
        wider = written(tmp_path, ("r", "west", PAIR.replace("RANGE 5", "RANGE 7")))[1]
        request(root, "add", wait=controller.step, file=str(wider))
        told: list[str] = []

        def step() -> None:
            controller.step()
            if told and "gate" in told[-1]:
                # Each gate of the change has noted its new links, and is far from the cut.
                orders = controller.orders
                for name, spec in orders.wanted.operators.items():
                    one = {"active": True, "error": None, "heard": 0, "watermark": 5_000_000, "batch": 3}
                    one["version"] = orders.wanted.version
                    known = root.status(spec.site) or {"operators": {}}
                    operators = {**known["operators"], name: one}
                    root.report(spec.site, {"at": root_module.now(), "stopped": False, "operators": operators})
            if any("to end its link" in text for text in told):
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            request(root, "remove", wait=step, tell=told.append, query="r")
        assert "to write to its new links" in told[0]
        assert not root.names("requests"), "a request that is given up is withdrawn"
        orders = controller.orders
        (wire,) = (wire for wire in orders.wanted.wiring.wires.values() if len(wire.stretches) > 1)
        cut = orders.wanted.wiring.with_wires([wire.cut(60_000_000)])
        seen = observed_module.Observed(root, orders)
        said = waits(replace(orders, wanted=replace(orders.wanted, wiring=cut)), seen)
        reached = "to reach 1970-01-01T00:01:00.000Z (it is at 1970-01-01T00:00:05.000Z; it has no idle_timeout)"
        assert sorted(said) == [f"stream '{stream}' {reached}" for stream in "ab"]
    with pytest.raises(SiteError, match="no controller is running"):
        request(root, "remove", query="r")


def test_a_new_plan_must_be_worth_its_hand_over(tmp_path: Path) -> None:
    files = load_files(*written(tmp_path, ("q", "middle", PAIR)))
    planned = Planned(files.network.landscape, planner="exhaustive").with_query(files.queries[0])
    same = judged(planned, planned.replanned(Learnt()), 10.0)
    assert not same.is_taken
    # A stream ten times as fast: the join moves to its site.
    rates = Learnt({"b": 500.0})
    fast = judged(planned.measured(rates), planned.replanned(rates), 10.0)
    assert fast.after <= fast.before
    assert not judged(planned.measured(rates), planned.replanned(rates), 1e9).is_taken
    assert planned.replanned(Learnt(), ["east"]).closed == {"east"}
    with pytest.raises(AnabranchError, match="no site 'north'"):
        planned.replanned(Learnt(), ["north"])


def test_a_controller_replans_by_itself_when_that_pays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sparse = NETWORK.replace("distinct: {k: 10}", "distinct: {k: 1000}")
    files = load_files(*written(tmp_path, ("q", "middle", PAIR), network=sparse))
    root, clock, learnt = Root(str(tmp_path / "root")), 1000.0, Learnt()
    monkeypatch.setattr(controller_module, "now", lambda: clock)
    monkeypatch.setattr(Controller, "learnt", lambda self: learnt)
    with Controller(root, files.network, files.sources, replans=True) as controller:
        planned = Planned(files.network.landscape, planner="exhaustive")
        controller.begin(planned, files.queries, Orders(Wanted(), place=root.default_place))

        def join_after(seconds: float) -> str:
            nonlocal clock
            clock += seconds
            controller.step()
            return next(one.site for one in controller.orders.wanted.operators.values() if one.kind == JOIN)

        learnt = Learnt({"a": 6.0})
        before = join_after(controller_module.REPLAN_EVERY)
        assert controller.orders.wanted.version == 1, "measured almost as planned"
        assert controller.planned.learnt == learnt
        flows = root.read("plan.json") or {}
        assert sum(flow["bytes"] * flow["distance"] for flow in flows["flows"]) == controller.planned.landscape.cost
        # A stream that is far faster than it was planned: the join moves to its site.
        learnt = Learnt({"a": 0.1, "b": 500.0})
        assert join_after(controller_module.REPLAN_EVERY / 2) == before
        join_after(controller_module.REPLAN_EVERY / 2)
        assert any(line.startswith("replanned: network usage goes from") for line in controller.log)
        assert {one.site for one in controller.orders.wanted.operators.values() if one.kind == JOIN} == {before, "east"}
        assert before != "east"


def test_a_silent_gate_hears_how_far_the_others_are_and_a_dead_one_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = NETWORK.replace("watermark: 2 seconds", "watermark: 2 seconds, idle_timeout: 30 seconds")
    files = load_files(*written(tmp_path, ("q", "west", PAIR), network=text))
    root = Root(str(tmp_path / "root"))
    clock = 1000.0
    monkeypatch.setattr(root_module, "now", lambda: clock)
    monkeypatch.setattr(waiting_module, "now", lambda: clock)
    monkeypatch.setattr(observed_module, "now", lambda: clock)
    with Controller(root, files.network, files.sources) as controller:
        planned = Planned(files.network.landscape, planner="exhaustive")
        controller.begin(planned, files.queries, Orders(Wanted(), place=root.default_place))
        gates = {s.serves: s for s in controller.orders.wanted.operators.values() if s.kind == GATE}
        control = open_link(root.default_place, control_link(gates["b"].name))

        def report(at: float, heard: float, watermark: int) -> None:
            for stream, floor, last in (("a", watermark, at), ("b", 5_000_000, heard)):
                spec = gates[stream]
                one = {"active": True, "error": None, "heard": last, "watermark": floor, "version": 1, "batch": 3}
                root.report(spec.site, {"at": at, "stopped": False, "operators": {spec.name: one}})

        report(at=990.0, heard=980.0, watermark=9_000_000)
        controller.step()
        assert control.last() == -1, "not silent for long enough"
        report(at=980.0, heard=900.0, watermark=9_000_000)
        controller.step()
        assert control.last() == -1, "its site does not answer"
        report(at=999.0, heard=900.0, watermark=9_000_000)
        controller.step()
        # The gate's floor is two seconds of disorder below what it hears.
        assert [entry.tick for entry in control.entries(-1, control.last())] == [11_000_000]
        controller.step()
        assert control.last() == 0, "said once"
        report(at=999.0, heard=900.0, watermark=4_000_000)
        controller.step()
        assert control.last() == 0, "the others are behind it"


# --- the network changes, sites are lost -----------------------------------------------------------------------------

GROWN = """
sites: [north, east, west, middle]
links: [{ends: [west, middle], cost: 1}, {ends: [middle, east], cost: 1}, {ends: [north, middle], cost: 1}]
"""


def changed_network(folder: Path, text: str) -> Path:
    path = folder / "new.yaml"
    path.write_text(text + NETWORK[NETWORK.index("streams:") :])
    return path


@pytest.mark.parametrize("planner", ["exhaustive", "top-down"])
def test_a_plan_goes_over_to_a_network_with_other_sites(tmp_path: Path, planner: str) -> None:
    files = load_files(*written(tmp_path, ("q", "west", PAIR)))
    planned = Planned(files.network.landscape, planner=planner, options=Options(max_cs=2)).with_hierarchies()
    planned = planned.with_query(files.queries[0])
    network = load_network(changed_network(tmp_path, GROWN))
    after = planned.on(network)
    assert after.landscape.cost == pytest.approx(planned.landscape.cost)
    # Sites have other positions in the file; operators are where they were.
    one, other = (compile_program(p.landscape, n.catalog) for p, n in ((planned, files.network), (after, network)))
    assert one == other
    members = {name for h in after.hierarchies for m in to_names(h)[0] for name in m["members"]}
    assert members == ({"north", "east", "west", "middle"} if planner == "top-down" else set())
    again = Planned.from_json(json.loads(json.dumps(after.to_json())), network)
    assert again.hierarchies == after.hierarchies
    with pytest.raises(AnabranchError, match="other sites than the deployment: north"):
        Planned.from_json(json.loads(json.dumps(after.to_json())), files.network)


def test_a_site_that_has_a_stream_or_a_sink_cannot_go(tmp_path: Path) -> None:
    files = load_files(*written(tmp_path, ("q", "middle", PAIR)))
    planned = Planned(files.network.landscape, planner="exhaustive").with_query(files.queries[0])
    bypass = "sites: [west, east]\nlinks: [{ends: [west, east], cost: 1}]\n"
    with pytest.raises(AnabranchError, match="query 'q' has its sink at 'middle', which is not in the network"):
        planned.on(load_network(changed_network(tmp_path, bypass)))
    path = changed_network(tmp_path, GROWN)
    path.write_text(path.read_text().replace("a: {site: west", "a: {site: north"))
    with pytest.raises(AnabranchError, match="stream 'a' is read at 'west'"):
        planned.on(load_network(path))


def test_the_controller_goes_over_to_another_network_file(tmp_path: Path) -> None:
    network, queries = written(tmp_path, ("q", "west", PAIR))
    files = load_files(network, queries)
    root = Root(str(tmp_path / "root"))
    with Controller(root, files.network, files.sources, str(network)) as controller:
        planned = Planned(files.network.landscape, planner="top-down", options=Options(max_cs=2))
        controller.begin(planned, files.queries, Orders(Wanted(), place=root.default_place))
        before = controller.orders.wanted
        new = changed_network(tmp_path, GROWN)
        said = request(root, "network", wait=controller.step, file=str(new))
        assert said.startswith("the network is as 'new.yaml' says (came north); kept")
        assert controller.orders.wanted.operators == before.operators
        clusters = plain_status(root, controller.orders)["clusters"]
        assert {name for cluster in clusters[0] for name in cluster["members"]} == {"north", "east", "west", "middle"}
        # Nobody reports, so nobody with operators acts as a coordinator if another member can.
        assert all(c["acting"] not in {"west", "east"} for c in clusters[0] if {"north", "middle"} & set(c["members"]))
        # A stream ten times as fast, over a link that costs more: the join goes to its site.
        dear = GROWN.replace("{ends: [middle, east], cost: 1}", "{ends: [middle, east], cost: 100}")
        streams = NETWORK[NETWORK.index("streams:") :].replace("b: {site: east, rate: 5", "b: {site: east, rate: 50")
        new.write_text(dear + streams.replace("distinct: {k: 10}", "distinct: {k: 1000}"))
        said = request(root, "network", wait=controller.step, file=str(new))
        assert "replanned: network usage goes from" in said
        assert {s.site for s in controller.orders.wanted.operators.values() if s.kind == JOIN} == {"west", "east"}
        assert controller.orders.wanted.is_changing
        # A change is under way: further requests wait, but not that to stop.
        assert request(root, "stop", wait=controller.step) == "stopping"
    # A controller that is started with the file of before would take sites for others.
    with Controller(root, files.network, files.sources, str(network)) as controller:
        with pytest.raises(AnabranchError, match="has other sites than the deployment: north"):
            controller.begin(planned, files.queries, Orders(Wanted(), place=root.default_place))
        assert controller.orders.wanted.is_stopped


def test_the_joins_of_a_lost_site_go_on_at_the_nearest_that_lives(tmp_path: Path) -> None:
    text = NETWORK.replace("sites: [west, middle, east]", "sites: [{name: west, cpu: 0}, middle, {name: east, cpu: 0}]")
    files = load_files(*written(tmp_path, ("q", "west", PAIR), network=text))
    root = Root(str(tmp_path / "root"))
    with Controller(root, files.network, files.sources) as controller:
        planned = Planned(files.network.landscape, planner="exhaustive")
        controller.begin(planned, files.queries, Orders(Wanted(), place=root.default_place))
        before = controller.orders.wanted
        (join,) = (spec for spec in before.operators.values() if spec.kind == JOIN)
        assert join.site == "middle"
        for site in ("west", "east"):
            root.lease(f"site-{site}").take()
        lost = root.lease("site-middle")
        lost.take()
        with pytest.raises(SiteError, match="fits no placement"):
            # The site answers, so it keeps its join; and no other has room.
            request(root, "replan", wait=controller.step, without=["middle"])
        assert controller.orders.wanted.operators[join.name].site == "middle"
        lost.release()
        with pytest.raises(SiteError, match="fits no placement"):
            request(root, "replan", wait=controller.step, without=["middle"])
        # No plan without it fits, but its join goes on from its checkpoint.
        after = controller.orders.wanted
        assert after.operators[join.name].site in ("west", "east")
        assert after.folder(join.name) == before.folder(join.name)
        assert {n: s for n, s in after.operators.items() if n != join.name} == {
            n: s for n, s in before.operators.items() if n != join.name
        }
        assert after.has_folder(before.folder(join.name)), "the site that lost it must leave its checkpoint alone"
        assert not after.has_folder("gone.1")
        assert adopted(after, "middle", "west") is after


# --- bad input -------------------------------------------------------------------------------------------------------


def test_a_lost_site_that_keeps_its_links_is_not_replaced(tmp_path: Path) -> None:
    files = load_files(*written(tmp_path, ("q", "west", PAIR)))
    root = Root(str(tmp_path / "root"))
    with Controller(root, files.network, files.sources) as controller:
        planned = Planned(files.network.landscape, planner="exhaustive")
        controller.begin(planned, files.queries, Orders(Wanted(), place=root.place_at_sites))
        before = controller.orders
        lost = next(spec.site for spec in before.wanted.operators.values() if spec.kind == JOIN)
        for site in {"west", "middle", "east"} - {lost}:
            root.lease(f"site-{site}").take()
        with pytest.raises(SiteError, match="refused to replan") as refused:
            request(root, "replan", wait=controller.step, without=[lost])
        assert f"site '{lost}' does not respond and keeps its links itself" in refused.value.detail
        assert controller.orders == before
        assert plain_status(root, before)["unreachable"], "no site serves its links yet"


def test_checkpoints_at_a_site_need_links_at_sites(tmp_path: Path) -> None:
    files = load_files(*written(tmp_path, ("q", "middle", PAIR)))
    root = Root(str(tmp_path / "root"))
    with Controller(root, files.network, files.sources) as controller:
        controller.begin(Planned(files.network.landscape), files.queries, Orders(Wanted(), place=root.default_place))
        site = Site(root, "east", lambda: pytest.fail("Spark is not needed"), checkpoints=str(tmp_path / "own"))
        site.follow(controller.orders)
        site.report()
        errors = {one["error"] for one in (root.status("east") or {"operators": {}})["operators"].values()}
        assert len(errors) == 1
        assert "site 'east' has checkpoints of its own, but its links are elsewhere" in errors.pop()


def test_a_second_controller_and_a_second_site_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = Root(str(tmp_path / "root"))
    first, second = root.lease("controller"), root.lease("controller")
    first.take()
    with pytest.raises(SiteError, match="'controller' is already running"):
        second.take()
    first.take()
    monkeypatch.setattr(root_module, "now", lambda: 1e12)
    second.take()
    monkeypatch.setattr(root_module, "now", lambda: 2e12)
    with pytest.raises(SiteError, match="has lost its lease"):
        first.renew()
    first.release()
    assert root.read("leases/controller.json") is not None
    second.release()
    assert root.read("leases/controller.json") is None


def test_without_a_controller_nothing_is_asked(tmp_path: Path) -> None:
    with pytest.raises(SiteError, match="no controller is running"):
        request(Root(str(tmp_path)), "stop")


def test_the_controller_answers_what_it_refuses(tmp_path: Path) -> None:
    network, queries = written(tmp_path, ("q", "west", PAIR))
    files = load_files(network, queries)
    root = Root(str(tmp_path / "root"))
    with Controller(root, files.network, files.sources) as controller:
        planned = Planned(files.network.landscape, planner="exhaustive")
        controller.begin(planned, files.queries, Orders(Wanted(), place=root.default_place))
        with pytest.raises(SiteError, match="no query 'z' is deployed"):
            request(root, "remove", wait=controller.step, query="z")
        more = written(tmp_path, ("r", "north", PAIR))[1]
        with pytest.raises(SiteError, match="unknown site 'north'"):
            request(root, "add", wait=controller.step, file=str(more))
        assert set(controller.planned.queries) == {"q"}
        done = request(root, "replan", wait=controller.step)
        assert done.startswith("kept: network usage would go")
        assert request(root, "remove", wait=controller.step, query="q") == "removing q"
        assert not controller.orders.wanted.operators
        assert request(root, "stop", wait=controller.step) == "stopping"
    assert controller.orders.wanted.is_stopped


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ((", source: {format: json, path: data/a}", ""), "reads stream 'a', which has no source"),
        (("format: json, path: data/a", "path: data/a"), "format"),
        (("sites: [west, middle, east]", "sites: [west, east]"), "unknown site 'middle'"),
        (("{site: west, rate: 5", "{site: nowhere, rate: 5"), "unknown site 'nowhere'"),
    ],
)
def test_a_network_file_that_contradicts_itself_is_refused(
    tmp_path: Path, change: tuple[str, str], message: str
) -> None:
    text = NETWORK.replace(",\n      source", ", source")
    assert change[0] in text
    with pytest.raises(AnabranchError, match=message):
        require_sources(load_files(*written(tmp_path, ("q", "west", PAIR), network=text.replace(*change))))


def test_results_need_a_place_that_lasts(tmp_path: Path) -> None:
    network, queries = written(tmp_path, ("q", "west", PAIR))
    text = queries.read_text()
    queries.write_text(text.replace('"parquet"', '"memory"'))
    with pytest.raises(SpecError, match="has the format 'memory'"):
        load_files(network, queries)
    queries.write_text(text.replace('"into"', '"onto"'))
    with pytest.raises(SpecError, match="into"):
        load_files(network, queries)


def test_a_root_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SiteError, match="cannot be written"):
        Root(str(tmp_path / "file")).write("x.json", {})
    assert replace(Orders(Wanted()), place="x").place == "x"


def test_a_query_that_no_placement_can_serve_is_refused_and_others_go_on(tmp_path: Path) -> None:
    narrow = "sites: [{name: west, memory: 100000}, {name: middle, cpu: 0}, {name: east, cpu: 0}]"
    text = NETWORK.replace("sites: [west, middle, east]", narrow)
    files = load_files(*written(tmp_path, ("q", "west", PAIR), network=text))
    root = Root(str(tmp_path / "root"))
    with Controller(root, files.network, files.sources) as controller:
        planned = Planned(files.network.landscape, planner="exhaustive")
        controller.begin(planned, files.queries, Orders(Wanted(), place=root.default_place))
        before = controller.orders
        long = PAIR.replace("RANGE 10 SECONDS", "RANGE 10 HOURS")
        more = written(tmp_path, ("r", "west", long), network=text)[1]
        with pytest.raises(SiteError, match="query 'r' fits no placement within the limits"):
            request(root, "add", wait=controller.step, file=str(more))
        assert controller.orders == before
        assert set(controller.planned.queries) == {"q"}


def test_a_site_that_does_not_answer_is_named_with_what_to_do(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = load_files(*written(tmp_path, ("q", "west", PAIR)))
    root = Root(str(tmp_path / "root"))
    root.order(Orders(changed(Wanted(), program_of(tmp_path, ("q", "west", PAIR))), files.sources, place="links"))
    root.report("west", {"at": root_module.now(), "stopped": False, "operators": {}})
    assert cli.main(["deploy", "status", "--root", root.location]) == 1
    said = " ".join(capsys.readouterr().err.split())
    assert "site 'east' has not started yet" in said
    root.report("east", {"at": root_module.now() - 60, "stopped": False, "operators": {}})
    assert cli.main(["deploy", "status", "--root", root.location]) == 1
    said = " ".join(capsys.readouterr().err.split())
    assert "site 'east' does not respond: start it with 'anabranch site east --root …'" in said
    assert "anabranch deploy replan --without east" in said
    assert "site 'west'" not in said


@pytest.fixture
def watched(tmp_path: Path) -> Iterator[tuple[Controller, Root]]:
    """A controller of one query whose sites report."""
    files = load_files(*written(tmp_path, ("q", "west", PAIR)))
    root = Root(str(tmp_path / "root"))
    with Controller(root, files.network, files.sources) as controller:
        planned = Planned(files.network.landscape, planner="exhaustive")
        controller.begin(planned, files.queries, Orders(Wanted(), place=root.default_place))
        for site in {spec.site for spec in controller.orders.wanted.operators.values()}:
            root.report(site, {"at": root_module.now(), "stopped": False, "operators": {}})
        yield controller, root


def status_of(root: Root, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    code = cli.main(["deploy", "status", "--root", root.location])
    return code, " ".join(capsys.readouterr().err.split())


def test_an_unexpected_error_is_reported_and_ends_neither_the_controller_nor_the_deployment(
    watched: tuple[Controller, Root], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    controller, root = watched
    before = controller.orders
    assert status_of(root, capsys) == (0, "")

    def fails(*_: object) -> None:
        raise KeyError("password=hunter2")

    with monkeypatch.context() as patched:
        patched.setattr(controller_module, "take_sample", fails)
        controller.step()
        controller.step()
        code, said = status_of(root, capsys)
        assert code == 1
        assert "the controller cannot follow the sites: KeyError: 'password=***" in said
        assert sum("cannot follow" in line for line in controller.log) == 1
        assert sum("Traceback" in line for line in controller.log) == 1
        assert "hunter2" not in "".join(controller.log)
    with monkeypatch.context() as patched:
        patched.setattr(controller_module, "compile_program", fails)
        with pytest.raises(SiteError, match="refused to remove") as refused:
            request(root, "remove", wait=controller.step, query="q")
        assert "KeyError" in refused.value.detail
    assert controller.orders == before
    assert set(controller.planned.queries) == {"q"}
    assert status_of(root, capsys) == (0, "")


def test_status_names_all_that_is_wrong_and_exits_with_1(
    watched: tuple[Controller, Root], capsys: pytest.CaptureFixture[str]
) -> None:
    controller, root = watched
    delivery = next(spec for spec in controller.orders.wanted.operators.values() if spec.kind == DELIVERY)
    failed = {"active": False, "error": "no space left"}
    root.report(delivery.site, {"at": root_module.now(), "stopped": False, "operators": {delivery.name: failed}})
    code, said = status_of(root, capsys)
    assert code == 1
    assert f"operator '{delivery.name}' at '{delivery.site}' failed and is started again: no space left" in said
    root.report(delivery.site, {"at": root_module.now(), "stopped": False, "operators": {}})
    (wire,) = (each for each in controller.orders.wanted.wiring.wires.values() if each.reader == delivery.name)
    link = open_link(root.default_place, wire.link(wire.stretches[0]), limit=4)
    link.append(0, [link.write(0, "x", 0, _rows(), 5)], 0)
    code, said = status_of(root, capsys)
    assert code == 1
    assert f"link '{link.name}' is closed" in said
    link.remove()
    root.remove("leases/controller.json")
    code, said = status_of(root, capsys)
    assert code == 1
    assert "no controller is running" in said
    root.stop(controller.orders)
    assert status_of(root, capsys) == (0, "")


def test_a_dry_run_shows_cost_and_moves_and_changes_nothing(
    tmp_path: Path, watched: tuple[Controller, Root], capsys: pytest.CaptureFixture[str]
) -> None:
    controller, root = watched
    before, plan = controller.orders, root.read("plan.json")
    _, more = written(tmp_path, ("r", "east", PAIR))
    said = request(root, "add", wait=controller.step, file=str(more), dry=True)
    usage, *operators = said.splitlines()
    old = controller.planned.landscape.cost
    new = controller.planned.with_query(load_files(tmp_path / "network.yaml", more).queries[0]).landscape.cost
    assert usage.startswith(f"network usage goes from {old:,.0f} to {new:,.0f} ({new - old:+,.0f} bytes")
    assert any(line.startswith("starts 'query-r.") and line.endswith("at 'east'") for line in operators)
    assert "nothing was changed" in said
    assert "stops 'query-q." in request(root, "remove", wait=controller.step, query="q", dry=True)
    assert "would keep the plan" in request(root, "replan", wait=controller.step, dry=True)
    assert (controller.orders, root.read("plan.json")) == (before, plan)


def test_status_shows_links_as_planned_and_as_measured(
    watched: tuple[Controller, Root], monkeypatch: pytest.MonkeyPatch
) -> None:
    controller, root = watched
    orders = controller.orders
    program = compile_program(controller.planned.landscape, controller.network.catalog)
    gate = next(spec for spec in orders.wanted.operators.values() if spec.kind == GATE and spec.serves == "a")
    (reader,) = orders.wanted.wiring.readers(gate.name)
    (key,) = (key for key, wire in orders.wanted.wiring.wires.items() if wire.link(wire.stretches[-1]) == reader.link)
    shown = plain_status(root, orders)["links"][reader.link]
    flow = program.flows[key]
    assert shown["planned"] == {"bytes_per_second": flow.bytes, "cost": flow.bytes * flow.distance}
    assert shown["measured"] == {"bytes_per_second": None, "cost": None}
    link = open_link(root.default_place, reader.link)
    samples = []
    for number in range(2):
        link.append(number, [link.write(number, "x", 0, _rows(), 5)], 0)
        samples.append(
            {"at": number, "reached": {"g": 10_000_000 * number}, "rows": {}, "link_rows": {link.name: number + 1}}
            | {"bytes": {link.name: link.status().bytes}}
        )
    root.write("samples.json", {"samples": samples})
    status = plain_status(root, orders)
    measured = status["links"][reader.link]["measured"]
    assert measured == {"bytes_per_second": pytest.approx(0.8), "cost": pytest.approx(0.8 * flow.distance)}
    assert status["cost"]["planned"] == pytest.approx(controller.planned.landscape.cost)
    assert status["cost"]["measured"] == pytest.approx(0.8 * flow.distance)


def test_rows_of_a_batch_whose_progress_is_not_known_yet_are_counted_later(tmp_path: Path) -> None:
    """A report between a batch's commit and its progress lost the rows: measured rates were 7 % too low."""
    running = on_spark(tmp_path)

    class Runner:
        plan = "r"
        known: dict[int, Any] = {}  # noqa: RUF012 - of this test alone
        manifest = SimpleNamespace(batch=-1, clocks=SimpleNamespace(newest=None, known_watermark=None))

        @property
        def latest_batch(self) -> int:
            return max(self.known, default=-1)

        def progress(self, batch: int) -> Any:
            return self.known.get(batch)

    runner: Any = Runner()
    running.runner = runner
    for batch in range(6):
        runner.manifest.batch, runner.manifest.clocks.newest = batch, 1_000_000 * batch
        running.count()
        runner.known[batch] = SimpleNamespace(late_rows={}, rows_in={"a": 5}, watermark=1_000_000 * batch, newest={})
        if batch % 2:
            running.count()
        assert running._tally.rate in (None, 5.0)
    assert (running._tally.rows, running._tally.rate) == (25, 5.0)


def on_spark(folder: Path) -> SparkOperator:
    """An operator that was not started."""
    spec = next(iter(program_of(folder, ("q", "west", PAIR)).operators.values()))
    no_session: Any = None
    return SparkOperator(Root(str(folder / "root")), spec, "", no_session, lambda operator, phase, batch: None)


def test_the_error_of_an_operator_is_reported_without_secrets(tmp_path: Path) -> None:
    running = on_spark(tmp_path)
    running.failed(ValueError("jdbc://h?password=hunter2"))
    assert running.report()["error"] == "jdbc://h?password=***"


def test_an_operator_whose_link_was_full_says_so_and_the_rest_goes_on(tmp_path: Path) -> None:
    link = open_link(str(tmp_path), "a--b.in0.1", limit=4)
    link.append(0, [link.write(0, "x", 0, _rows(), 5)], 0)
    reason = link.status().closed
    assert reason is not None
    assert "more than the limit of 4" in reason
    assert link.status().to_json()["closed"] == reason


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["one.yaml"], "'deploy one.yaml' is not a command"),
        (["remove"], "'deploy remove' needs the name of a query"),
        (["add", "gone.yaml"], "file 'gone.yaml' does not exist"),
        (["network", "gone.yaml"], "file 'gone.yaml' does not exist"),
        (["status"], "nothing is deployed in"),
        (["stop"], "nothing is deployed in"),
        (["replan"], "no controller is running in"),
        (["stop", "--dry-run"], "'deploy stop' has no dry run"),
    ],
)
def test_commands_that_cannot_be_meant_are_refused(
    tmp_path: Path, words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["deploy", *words, "--root", str(tmp_path / "root")]) != 0
    assert message in " ".join(capsys.readouterr().err.split())


def test_the_page_shows_the_map_and_the_problems_of_a_deployment(
    watched: tuple[Controller, Root], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("starlette", reason="the extra 'console' is not installed")
    from starlette.testclient import TestClient

    from anabranch.sites.page import page_of

    controller, root = watched
    delivery = next(spec for spec in controller.orders.wanted.operators.values() if spec.kind == DELIVERY)
    failed = {"active": False, "error": "<b>no space left</b>"}
    root.report(delivery.site, {"at": root_module.now(), "stopped": False, "operators": {delivery.name: failed}})
    client = TestClient(page_of(root, lambda: controller.network.landscape.topology), base_url="http://127.0.0.1")
    shown = client.get("/").text
    assert delivery.name in shown
    assert "&lt;b&gt;no space left&lt;/b&gt;" in shown
    assert all(f"<th>{title}</th>" in shown for title in (*OPERATORS, *LINKS))
    assert '<td class="n">' in shown
    drawn = client.get("/network.svg").text
    assert all(site in drawn for site in ("west", "middle", "east"))
    assert client.get("/status.json").json()["version"] == 1
    assert client.get("/", headers={"host": "elsewhere"}).status_code == 400
