"""Runs the operators of a deployment in this process, for tests and experiments.

A batch has the same order as on Spark: offsets are logged, the step runs, its results are written to the links or to
the sink, the manifest commits the batch, and the inputs are acknowledged with the next batch. An operator that fails at
any point is recreated from its folder and repeats the batch with the same offsets.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa

from anabranch.plan.mesh import Plan
from anabranch.run.links.feed import Feed, Inlet, Offset
from anabranch.run.links.link import Link
from anabranch.run.links.outlet import Outlet, Reader
from anabranch.run.links.place import open_link
from anabranch.run.local import LocalHost
from anabranch.run.slot import SlotTask
from anabranch.sites.operators import OperatorSpec, Program
from anabranch.sites.wanted import Wanted, changed, progressed

Announce = Callable[[str], None]
Results = Callable[[int, pa.Table], None]


class Source(Protocol):
    """The source of an operator's rows: offsets as plain JSON, and the rows between two offsets."""

    def latest(self, start: Any, most: int) -> Any: ...

    def batch(self, start: Any, end: Any) -> tuple[Mapping[str, pa.Table], Mapping[str, int]]: ...

    def commit(self, end: Any) -> None: ...


class LinkSource:
    """The links of an operator; its inlets are looked up for every batch."""

    def __init__(self, name: str, place: str, inlets: Callable[[], Sequence[Inlet]]) -> None:
        self._name, self._place, self._inlets = name, place, inlets

    def _feed(self) -> Feed:
        return Feed(self._name, self._place, self._inlets())

    def latest(self, start: Offset | None, most: int) -> Offset:
        return self._feed().latest(start or {}, most)

    def batch(self, start: Offset | None, end: Offset) -> tuple[Mapping[str, pa.Table], Mapping[str, int]]:
        feed = self._feed()
        return feed.tables(start or {}, end), feed.ticks(end)

    def commit(self, end: Offset) -> None:
        self._feed().commit(end)


class LocalOperator:
    """A running operator; `advance` runs one batch if there is input."""

    def __init__(
        self,
        spec: OperatorSpec,
        folder: Path,
        source: Source,
        plan: Plan,
        *,
        place: str,
        readers: Callable[[], Sequence[Reader]] = tuple,
        results: Results | None = None,
        slots: int = 1,
        announce: Announce = lambda phase: None,
    ) -> None:
        self.spec = spec
        self._folder = folder
        self._source = source
        self._outlet = Outlet(place, readers)
        self._results = results
        self._announce = announce
        self.host = LocalHost(spec.query, plan, slots=slots, checkpoint=str(self._folder))
        (self._folder / "offsets").mkdir(exist_ok=True)

    @property
    def refused(self) -> frozenset[str]:
        """The links that could not be cut at the proposed time."""
        return self._outlet.refused

    @property
    def newest(self) -> int | None:
        return self.host.clocks.newest

    def advance(self, most: int = 64) -> bool:
        """Runs the next batch; returns False if its sources have nothing new."""
        batch = self.host.batch
        start, end = self._offset(batch - 1), self._offset(batch)
        if end is None:
            if start is not None:
                self._source.commit(start)
                self._announce("acknowledged")
            end = self._source.latest(start, most)
            if end == start or (start is None and not _has_rows(end)):
                return False
            (self._folder / "offsets" / f"{batch}.partial").write_text(json.dumps(end))
            (self._folder / "offsets" / f"{batch}.partial").rename(self._folder / "offsets" / f"{batch}.json")
            self._announce("logged")
        rows, ticks = self._source.batch(start, end)
        self.host.step(rows, ticks, self._deliver)
        self._announce("committed")
        return True

    def _deliver(self, task: SlotTask, answer: pa.Table) -> None:
        self._announce("stepped")
        staged = self._outlet.stage(task.batch, task.attempt)
        staged.write(0, answer.to_batches())
        self._announce("written")
        staged.append(task.answered_before)
        if self._results is not None:
            self._results(task.batch, answer)
        self._announce("appended")

    def _offset(self, batch: int) -> Any:
        file = self._folder / "offsets" / f"{batch}.json"
        return json.loads(file.read_text()) if file.exists() else None


class LocalDeployment:
    """A deployment in this process: the work of a controller and its sites, one step at a time.

    `make` creates an operator, also after a crash, from this deployment's state for it.
    """

    def __init__(self, program: Program, place: str, make: Callable[[OperatorSpec], LocalOperator]) -> None:
        self.place = place
        self._make = make
        self.wanted = changed(Wanted(), program)
        self.running: dict[str, LocalOperator] = {}

    def change(self, program: Program) -> None:
        """Starts a change to another program."""
        self.wanted = changed(self.wanted, program)
        self.follow()

    def look(self) -> bool:
        """Advances a change, as a controller does; returns True if the state changed."""
        before, self.wanted = self.wanted, progressed(self.wanted, self)
        self.follow()
        return self.wanted is not before

    def follow(self) -> None:
        """Starts and stops operators as wanted, as sites do."""
        wanted = {spec.name: spec for spec in self.wanted.running}
        for name in [name for name in self.running if name not in wanted]:
            del self.running[name]
        for name, spec in wanted.items():
            if name not in self.running:
                self.start(spec)

    def start(self, spec: OperatorSpec) -> None:
        self.running[spec.name] = self._make(spec)

    def inlets(self, spec: OperatorSpec) -> LinkSource:
        """Returns the links of an operator; each call reads the current wiring."""
        return LinkSource(spec.name, self.place, lambda: self.wanted.wiring.inlets(spec))

    def readers(self, spec: OperatorSpec) -> Callable[[], Sequence[Reader]]:
        return lambda: self.wanted.wiring.readers(spec.name)

    # --- the state that a change depends on ---------------------------------------------------------------------------

    def has_version(self, operator: str, version: int) -> bool:
        return True

    def newest(self, gate: str) -> int | None:
        return self.running[gate].newest

    def link(self, name: str) -> Link:
        return open_link(self.place, name)


def _has_rows(end: Any) -> bool:
    if not isinstance(end, dict):
        return True
    return any(where["at"] >= 0 for links in end.values() for where in links.values())
