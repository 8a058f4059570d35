"""Measured rates: of late, per second of event time, and not across a restart."""

from __future__ import annotations

from pathlib import Path

import pytest

from anabranch.lang.ddl import parse_schema
from anabranch.place.exhaustive import Exhaustive
from anabranch.place.landscape import bare
from anabranch.place.learnt import Learnt
from anabranch.place.statistics import Statistics, StreamStatistics
from anabranch.run.links.place import open_link
from anabranch.sites import measured, observed
from anabranch.sites import root as root_module
from anabranch.sites.compile import compile_program
from anabranch.sites.files import load_files
from anabranch.sites.measured import MOST, MeasuredFlow, deduced, flow_rates, stream_rates, take_sample
from anabranch.sites.operators import GATE
from anabranch.sites.root import Orders, Root
from anabranch.sites.view import measured_landscape
from anabranch.sites.wanted import Wanted, changed
from lab.place_airline import (
    COLUMNS,
    RATES,
    SITES,
    AtWork,
    bound,
    catalog_of_streams,
    poisson_rows,
    topology,
)
from tests.unit.sites.test_deployments import PAIR, _rows, program_of, written


class Measuring:
    """A deployment whose one gate reports what a test says, every five seconds."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.clock = 1000.0
        for module in (root_module, measured, observed):
            monkeypatch.setattr(module, "now", lambda: self.clock)
        self.root = Root(str(folder / "root"))
        files = load_files(*written(folder, ("q", "west", PAIR)))
        self.orders = Orders(changed(Wanted(), program_of(folder, ("q", "west", PAIR))), files.sources)
        self.orders = Orders(self.orders.wanted, files.sources, place=self.root.default_place)
        self.root.order(self.orders)
        self.gate = next(s for s in self.orders.wanted.operators.values() if s.kind == GATE and s.serves == "a")

    def report(self, second: float, rows: int) -> None:
        one = {"first": 0, "reached": int(1e6 * second), "rows": rows, "batch": 1, "version": 1}
        self.root.report(self.gate.site, {"at": self.clock, "operators": {self.gate.name: one}})
        take_sample(self.root, self.orders)
        self.clock += 5

    @property
    def rate(self) -> float | None:
        return stream_rates(self.root, self.orders).get("a")


def test_a_rate_is_of_late_and_by_event_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = Measuring(tmp_path, monkeypatch)
    world.report(0, 0)
    assert world.rate is None
    for number in range(1, 30):
        world.report(10 * number, 50 * number)
    assert world.rate == pytest.approx(5.0)
    # Ten times as fast: when all samples are of then, the rate is.
    for number in range(MOST):
        world.report(300 + 10 * number, 1500 + 500 * number)
    assert world.rate == pytest.approx(50.0)


def test_samples_of_before_a_restart_are_of_no_use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = Measuring(tmp_path, monkeypatch)
    world.report(0, 0)
    world.report(10, 1000)
    world.report(20, 0)
    assert world.rate is None
    world.report(30, 70)
    assert world.rate == pytest.approx(7.0)


def test_samples_are_not_taken_too_often(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = Measuring(tmp_path, monkeypatch)
    world.report(0, 0)
    world.clock -= 4
    world.report(10, 1000)
    assert len((world.root.read(measured.FILE) or {})["samples"]) == 1


def test_flows_are_measured_on_links_and_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = Measuring(tmp_path, monkeypatch)
    (reader,) = world.orders.wanted.wiring.readers(world.gate.name)
    link = open_link(world.orders.place, reader.link)
    for number in range(3):
        link.append(number, [link.write(number, "x", 0, _rows(), number)], 0)
        world.report(10 * number, number)
    # Eight bytes in ten seconds.
    flow = flow_rates(world.root)[reader.link]
    assert flow.rows == pytest.approx(0.1)
    assert flow.bytes == pytest.approx(0.8)
    assert flow.count == 2
    network = load_files(*written(tmp_path, ("q", "west", PAIR))).network
    shown = measured_landscape(world.root, world.orders, network.landscape.topology)
    flows = [taken.bytes for one in shown.operators.values() for taken in one.inputs if taken.producer == "@a"]
    assert flows == [pytest.approx(0.8)]


def test_what_links_carry_teaches_selectivities_and_widths(tmp_path: Path) -> None:
    """Given wrong rates, no selectivities and rows of 100 bytes, a plan is as dear as measured after learning."""
    catalog, seconds = catalog_of_streams(), 300.0
    schemas = {name: parse_schema(columns).names for name, columns in COLUMNS.items()}
    given = Statistics({name: StreamStatistics(SITES[name], 1.0) for name in COLUMNS})
    landscape = bare(topology(), given, schemas)
    ranges = dict.fromkeys(COLUMNS, "20 SECONDS")
    queries = {
        "gates": ("gate-a", "flights checkins", "fl.num < 100"),
        "skies": ("hub-b", "flights weather", "fl.terminal = 3"),
    }
    for query in bound(catalog, queries, ranges):
        landscape = Exhaustive().plan(landscape, query).landscape
    program = compile_program(landscape, catalog)
    work = AtWork(program, landscape.topology, poisson_rows(RATES, 60 + seconds, 1), tmp_path)
    links = {key: work.link(wire.link(wire.stretches[-1])) for key, wire in work.wanted.wiring.wires.items()}
    work.advance_to(60)
    before, spent = {key: link.status() for key, link in links.items()}, work.carried
    work.advance_to(60 + seconds)
    flows = {}
    for key, link in links.items():
        rows, volume = (getattr(link.status(), one) - getattr(before[key], one) for one in ("rows", "bytes"))
        flows[key] = MeasuredFlow(rows / seconds, volume / seconds, rows)
    measured = (work.carried - spent) / seconds
    assert landscape.cost > 1.4 * measured
    # Joins are learnt from a full window only.
    assert not deduced(RATES, flows, dict.fromkeys(COLUMNS, 19.0), program, given, catalog).factors
    learnt = deduced(RATES, flows, dict.fromkeys(COLUMNS, 360.0), program, given, catalog)
    assert learnt.shares["flights", "num < 100"] == pytest.approx(100 / 120, rel=0.1)
    assert learnt.widths["flights"]["num"] == 8.0
    assert landscape.under(learnt.applied(given)).cost == pytest.approx(measured, rel=0.1)
    few = {key: MeasuredFlow(flow.rows, flow.bytes, 99) for key, flow in flows.items()}
    assert deduced(RATES, few, dict.fromkeys(COLUMNS, 360.0), program, given, catalog) == Learnt(RATES)


def test_a_filter_behind_a_shared_join_is_learnt_and_does_not_disturb_the_join(tmp_path: Path) -> None:
    """The factor of a join was taken from any of its readers: a wrong guess for one's filter became that of all."""
    program = program_of(tmp_path, ("q", "middle", PAIR), ("r", "middle", f"{PAIR} AND a.x < 5"))
    statistics = load_files(tmp_path / "network.yaml", tmp_path / "queries.yaml").network.landscape.statistics
    catalog = load_files(tmp_path / "network.yaml", tmp_path / "queries.yaml").network.catalog
    views = {key: flow.view for key, flow in program.flows.items() if flow.view is not None}
    assert {len(view.slots) for view in views.values()} == {1, 2}
    rates = {"a": 5.0, "b": 5.0}

    def flows(order: int) -> dict[tuple[str, str], MeasuredFlow]:
        found = {}
        for key in sorted(views, reverse=bool(order)):
            filters = [slot for slot in views[key].slots if slot.selection.columns & {"x"}]
            rows = 5.0 if len(views[key].slots) == 1 else 4.0 if filters else 40.0
            found[key] = MeasuredFlow(rows, 24 * rows, round(100 * rows))
        return found

    for order in range(2):
        learnt = deduced(rates, flows(order), dict.fromkeys("ab", 60.0), program, statistics, catalog)
        known = learnt.applied(statistics)
        assert [view.rate(known) for view in views.values()] == pytest.approx([flows(0)[key].rows for key in views])
