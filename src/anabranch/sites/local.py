"""Runs the operators of a deployment in this process, for tests and experiments.

A batch has the same order as on Spark: offsets are logged, the step runs, its results are written to the links or to
the sink, the manifest commits the batch, and the inputs are acknowledged with the next batch. Invariant: an operator
that fails at any point is recreated from its folder and repeats the batch with the same offsets. After the last rows an
operator runs one more batch without rows, which sends the new watermark to its readers.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import pyarrow as pa

from anabranch.adapt.rules import NO_RULES, ChangeRules
from anabranch.plan.mesh import Plan
from anabranch.run.folder import Folder
from anabranch.run.links.feed import Feed, Inlet, Offset
from anabranch.run.links.link import Link
from anabranch.run.links.outlet import Outlet
from anabranch.run.links.place import open_link
from anabranch.run.local import LocalHost
from anabranch.run.slot import SlotTask
from anabranch.sites.operators import OperatorSpec, Program
from anabranch.sites.wanted import Wanted, changed, progressed

Announce = Callable[[str], None]
Results = Callable[[int, pa.Table], None]


class Source(Protocol):
    """The source of an operator's rows: offsets as plain JSON, and the rows between two offsets."""

    @property
    def nothing(self) -> Any:
        """The offset before the first rows and ticks."""
        ...

    def latest(self, start: Any, most: int) -> Any: ...

    def batch(self, start: Any, end: Any) -> tuple[Mapping[str, pa.Table], Mapping[str, int]]: ...

    def commit(self, end: Any) -> None: ...


class LinkSource:
    """The links of an operator; its inlets are requested for every batch."""

    def __init__(self, name: str, place: str, inlets: Callable[[], Sequence[Inlet]]) -> None:
        self._name, self._place, self._inlets = name, place, inlets

    def _feed(self) -> Feed:
        return Feed(self._name, self._place, self._inlets())

    @property
    def nothing(self) -> Offset:
        return {}

    def latest(self, start: Offset | None, most: int) -> Offset:
        return self._feed().latest(start or {}, most)

    def batch(self, start: Offset | None, end: Offset) -> tuple[Mapping[str, pa.Table], Mapping[str, int]]:
        feed = self._feed()
        return feed.tables(start or {}, end), feed.ticks(end)

    def commit(self, end: Offset) -> None:
        self._feed().commit(end)


class Offsets(Folder):
    """The offsets of an operator's batches, each logged before its batch runs.

    An operator that ran on Spark continues with the log of Spark, which has the offset of its links in the same form.
    """

    def read(self, batch: int) -> Any:
        """Returns the offset of a batch; None if the batch has not begun."""
        known = self.read_json(f"{self.root}/offsets/{batch:09d}.json")
        return self._of_spark(batch) if known is None else known["offset"]

    def log(self, batch: int, offset: Any) -> None:
        """Logs the offset of a batch, and removes those that no replay needs."""
        self.files.create_dir(f"{self.root}/offsets", recursive=True)
        self.write_json(f"{self.root}/offsets/{batch:09d}.json", {"offset": offset})
        for name in self.names("offsets"):
            if int(name[:9]) < batch - 2:
                self.files.delete_file(f"{self.root}/offsets/{name}")

    def _of_spark(self, batch: int) -> Any:
        path = f"{self.location}/spark/offsets/{batch}"
        if not self.files.get_file_info(path).is_file:
            return None
        with self.files.open_input_stream(path) as stream:
            # A version, Spark's own state, then one line for each source; links are one source.
            return json.loads(stream.read().decode().splitlines()[-1])


class LocalOperator:
    """A running operator; `advance` runs one batch if there is input."""

    def __init__(
        self,
        spec: OperatorSpec,
        folder: str,
        source: Source,
        plan: Plan,
        *,
        outlet: Outlet,
        results: Results | None = None,
        slots: int = 1,
        rules: ChangeRules = NO_RULES,
        tables: Mapping[str, pa.Table] | None = None,
        announce: Announce = lambda phase: None,
    ) -> None:
        self.spec = spec
        self.outlet = outlet
        self._source = source
        self.results = results
        self._announce = announce
        self.host = LocalHost(spec.query, plan, slots=slots, checkpoint=folder, rules=rules, tables=tables)
        self._offsets = Offsets(folder)
        self._last_tick: int | None = None
        """The watermark that the latest batch of this process sent to the readers."""

    @property
    def newest(self) -> int | None:
        return self.host.clocks.newest

    def advance(self, most: int = 64) -> bool:
        """Runs the next batch; returns False if its sources have nothing new."""
        batch = self.host.batch
        start, end = self._offsets.read(batch - 1), self._offsets.read(batch)
        if end is None:
            if start is not None:
                self._source.commit(start)
                self._announce("acknowledged")
            end = self._source.latest(start, most)
            if start is None and end == self._source.nothing:
                return False
            if end == start and not self._has_news(batch, start):
                return False
            self._offsets.log(batch, end)
            self._announce("logged")
        rows, ticks = self._source.batch(start, end)
        self.host.step(rows, ticks, self._deliver)
        self._announce("committed")
        return True

    def _has_news(self, batch: int, start: Any) -> bool:
        """Returns True if the latest batch advanced the watermark and its readers have not received it yet."""
        return start != self._offsets.read(batch - 2) and self._last_tick != self.host.clocks.watermark

    def _deliver(self, task: SlotTask, answer: pa.Table) -> None:
        self._announce("stepped")
        staged = self.outlet.stage(task.batch, task.attempt)
        staged.write(0, answer.to_batches())
        self._announce("written")
        if self.results is not None:
            self.results(task.batch, answer)
        staged.append(task.answered_before)
        self._last_tick = task.answered_before
        self._announce("appended")


class LocalDeployment:
    """A deployment in this process; does the work of a controller and its sites, one step at a time.

    `make` creates an operator, also after a crash, from the deployment's state of that operator.
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
        """Advances a change, as a controller does; returns True if the state has changed."""
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

    def outlet(self, spec: OperatorSpec) -> Outlet:
        """Returns the links to the readers of an operator."""
        return Outlet(self.place, lambda: self.wanted.wiring.readers(spec.name))

    # --- the state that a change depends on ---------------------------------------------------------------------------

    def has_version(self, operator: str, version: int) -> bool:
        return True

    def newest(self, gate: str) -> int | None:
        return self.running[gate].newest

    def link(self, name: str) -> Link:
        return open_link(self.place, name)
