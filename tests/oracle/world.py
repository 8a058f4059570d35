"""Operators of a deployment in this process, under a scheduler that tests drive: any order, any cuts, any crashes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa

from anabranch.host.links.link import Link
from anabranch.host.links.place import open_link
from anabranch.plan.mesh import Plan
from anabranch.plan.physical import JoinNode, Leaf, PhysicalPlan
from anabranch.sites.local import LinkSource, LocalOperator
from anabranch.sites.operators import DELIVERY, GATE, OperatorSpec, Program
from anabranch.sites.wanted import Wanted, changed, progressed

PHASES = ("acknowledged", "logged", "stepped", "written", "appended", "committed")


class Crash(Exception):
    """The end of an operator's process, at a phase of its batch."""


class TableSource:
    """The rows of a stream as they arrive; an offset is how many have been taken."""

    def __init__(self, stream: str, rows: pa.Table) -> None:
        self.stream, self.rows = stream, rows

    def latest(self, start: int | None, most: int) -> int:
        return min(int(self.rows.num_rows), (start or 0) + most)

    def batch(self, start: int | None, end: int) -> tuple[Mapping[str, pa.Table], Mapping[str, int]]:
        return {self.stream: self.rows.slice(start or 0, end - (start or 0))}, {}

    def commit(self, end: Any) -> None: ...


@dataclass
class World:
    """A deployment in a folder; `place` is where its links are."""

    program: Program
    folder: Path
    rows: Mapping[str, pa.Table]
    random: Random
    place: str = ""
    crashes: float = 0.0
    """How likely an operator dies at each phase."""
    most_slots: int = 1
    results: dict[str, dict[int, pa.Table]] = field(default_factory=dict)
    """By delivery and batch: a sink that replaces a batch that is repeated."""
    started: int = 0

    def __post_init__(self) -> None:
        self.place = self.place or str(self.folder / "links")
        self.wanted = changed(Wanted(), self.program)
        self.running: dict[str, LocalOperator] = {}
        self.phase_seen: Callable[[str, str], None] = lambda operator, phase: None
        for spec in self.wanted.running:
            self.start(spec)

    # --- changes ------------------------------------------------------------------------------------------------------

    def change(self, program: Program) -> None:
        """Begins a change to another program."""
        self.wanted = changed(self.wanted, program)
        self.follow()

    def look(self) -> bool:
        """Takes a change further, as a controller does; True if anything moved."""
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

    def has_version(self, operator: str, version: int) -> bool:
        return True

    def newest(self, gate: str) -> int | None:
        return self.running[gate].newest

    def link(self, name: str) -> Link:
        return open_link(self.place, name)

    # --- work ---------------------------------------------------------------------------------------------------------

    def start(self, spec: OperatorSpec) -> None:
        self.started += 1
        relations = spec.query.graph.names
        source: Any
        if spec.kind == GATE:
            stream = spec.query.graph.relations[0].stream
            source = TableSource(stream, self.rows[spec.serves])
        else:
            source = LinkSource(spec.name, self.place, lambda: self.wanted.wiring.inlets(spec))
        self.running[spec.name] = LocalOperator(
            spec,
            self.folder / self.wanted.folder(spec.name),
            source,
            self.plan(relations),
            place=self.place,
            readers=lambda: self.wanted.wiring.readers(spec.name),
            results=(lambda batch, answer: self._take(spec, batch, answer)) if spec.kind == DELIVERY else None,
            slots=self.random.randint(1, self.most_slots),
            announce=lambda phase: self._announce(spec.name, phase),
        )

    def plan(self, relations: tuple[str, ...]) -> Plan:
        """A random tree of joins."""
        pieces: list[PhysicalPlan] = [Leaf(name) for name in relations]
        self.random.shuffle(pieces)
        while len(pieces) > 1:
            arity = self.random.randint(2, len(pieces))
            pieces = [JoinNode(tuple(pieces[:arity])), *pieces[arity:]]
        return pieces[0]

    def advance(self, name: str) -> bool:
        """One batch of an operator; an operator that crashes is made anew from its folder."""
        try:
            return self.running[name].advance(self.random.choice([1, 2, 3, 64]))
        except Crash:
            self.start(self.running[name].spec)
            return True

    def run(self, steps: int | None = None) -> None:
        """Any operators in any order, for some steps or until none has anything left."""
        while steps is None or steps > 0:
            names = list(self.running)
            self.random.shuffle(names)
            moved = False
            for name in names[: self.random.randint(1, len(names))]:
                if name in self.running:
                    moved |= self.advance(name)
                steps = None if steps is None else steps - 1
                if self.random.random() < 0.2:
                    moved |= self.look()
            if not moved and not any(self.advance(name) for name in list(self.running)) and not self.look():
                return

    def answer(self, query: str, schema: pa.Schema) -> pa.Table:
        batches = self.results.get(self.wanted.folder(self.delivery(query).spec.name), {})
        return pa.concat_tables([schema.empty_table(), *(batches[batch] for batch in sorted(batches))])

    def delivery(self, query: str) -> LocalOperator:
        return next(one for one in self.running.values() if one.spec.kind == DELIVERY and one.spec.serves == query)

    def _take(self, spec: OperatorSpec, batch: int, answer: pa.Table) -> None:
        self.results.setdefault(self.wanted.folder(spec.name), {})[batch] = answer

    def _announce(self, operator: str, phase: str) -> None:
        self.phase_seen(operator, phase)
        if self.random.random() < self.crashes:
            raise Crash(phase)
