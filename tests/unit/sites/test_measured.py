"""Measured rates: of late, per second of event time, and not across a restart."""

from __future__ import annotations

from pathlib import Path

import pytest

from anabranch.run.links.place import open_link
from anabranch.sites import measured, observed
from anabranch.sites import root as root_module
from anabranch.sites.files import load_files
from anabranch.sites.measured import MOST, flow_rates, stream_rates, take_sample
from anabranch.sites.operators import GATE
from anabranch.sites.root import Orders, Root
from anabranch.sites.view import measured_landscape
from anabranch.sites.wanted import Wanted, changed
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
        one = {"newest": int(1e6 * second), "rows": rows, "batch": 1, "version": 1}
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
    assert flow_rates(world.root)[reader.link] == pytest.approx(0.8)
    network = load_files(*written(tmp_path, ("q", "west", PAIR))).network
    shown = measured_landscape(world.root, world.orders, network.landscape.topology)
    flows = [taken.bytes for one in shown.operators.values() for taken in one.inputs if taken.producer == "@a"]
    assert flows == [pytest.approx(0.8)]
