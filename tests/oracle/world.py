"""Operators of a deployment in this process, under a scheduler that tests drive: any order, any cuts, any crashes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa

from anabranch.errors import LinkError
from anabranch.plan.mesh import Plan
from anabranch.plan.physical import JoinNode, Leaf, PhysicalPlan
from anabranch.run.links.directory import announce, place_of
from anabranch.run.links.flight import LinkServer
from anabranch.sites.local import LocalDeployment, LocalOperator
from anabranch.sites.operators import DELIVERY, GATE, OperatorSpec, Program

PHASES = ("acknowledged", "logged", "stepped", "written", "appended", "committed")


class Crash(Exception):
    """The end of an operator's process, at a phase of its batch."""


class TableSource:
    """The rows of a stream as they arrive; an offset is how many have been taken."""

    def __init__(self, stream: str, rows: pa.Table) -> None:
        self.stream, self.rows = stream, rows

    @property
    def nothing(self) -> None:
        return None

    def latest(self, start: int | None, most: int) -> int:
        return min(int(self.rows.num_rows), (start or 0) + most)

    def batch(self, start: int | None, end: int) -> tuple[Mapping[str, pa.Table], Mapping[str, int]]:
        return {self.stream: self.rows.slice(start or 0, end - (start or 0))}, {}

    def commit(self, end: Any) -> None: ...


class World(LocalDeployment):
    """A deployment in a folder; `place` is where its links are, `crashes` how likely a phase is an operator's last."""

    def __init__(
        self,
        program: Program,
        folder: Path,
        rows: Mapping[str, pa.Table],
        random: Random,
        *,
        place: str = "",
        crashes: float = 0.0,
        most_slots: int = 1,
        tables: Mapping[str, pa.Table] | None = None,
    ) -> None:
        self.tables = tables or {}
        super().__init__(program, place or str(folder / "links"), self._operator)
        self.program, self.folder, self.rows, self.random = program, folder, rows, random
        self.crashes, self.most_slots = crashes, most_slots
        self.results: dict[str, dict[int, pa.Table]] = {}
        """By delivery and batch: a sink that replaces a batch that is repeated."""
        self.phase_seen: Callable[[str, str], None] = lambda operator, phase: None
        self.follow()

    def _operator(self, spec: OperatorSpec) -> LocalOperator:
        relations = spec.query.graph.names
        is_gate = spec.kind == GATE
        source = TableSource(spec.query.graph.relations[0].stream, self.rows[spec.serves]) if is_gate else None
        return LocalOperator(
            spec,
            str(self.folder / self.wanted.folder(spec.name)),
            source or self.inlets(spec),
            self.plan(relations),
            outlet=self.outlet(spec),
            results=(lambda batch, answer: self._take(spec, batch, answer)) if spec.kind == DELIVERY else None,
            slots=self.random.randint(1, self.most_slots),
            announce=lambda phase: self._announce(spec.name, phase),
            tables={name: self.tables[name] for name in spec.query.whole.tables},
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
            if not names:
                return
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


class ServingWorld(World):
    """A world whose sites keep and serve their links over TCP; a site dies now and then and comes back later."""

    def __init__(
        self,
        program: Program,
        folder: Path,
        rows: Mapping[str, pa.Table],
        random: Random,
        *,
        crashes: float = 0.0,
        deaths: float = 0.0,
    ) -> None:
        self.deaths = deaths
        self._store = folder / "stores"
        self._servers: dict[str, LinkServer] = {}
        self._away: dict[str, int] = {}
        """Sites that are dead, and the batches until they are back."""
        self._kept: dict[str, set[str]] = {}
        """The operators whose links a site keeps."""
        super().__init__(program, folder, rows, random, place=place_of(str(folder / "addresses")), crashes=crashes)

    def start(self, spec: OperatorSpec) -> None:
        self._kept.setdefault(spec.site, set()).add(spec.name)
        if spec.site not in self._away:
            self._serve(spec.site)
        super().start(spec)

    def advance(self, name: str) -> bool:
        self._live_and_die()
        try:
            return super().advance(name)
        except LinkError:
            # Its batch is repeated, from its folder, until the site that it needs is back.
            self.start(self.running[name].spec)
            return True

    def look(self) -> bool:
        try:
            return super().look()
        except LinkError:
            self._live_and_die()
            return True

    def close(self) -> None:
        for server in self._servers.values():
            server.shutdown()

    def _live_and_die(self) -> None:
        for site in list(self._away):
            self._away[site] -= 1
            if not self._away[site]:
                del self._away[site]
                self._serve(site)
        if self._servers and self.random.random() < self.deaths:
            site = self.random.choice(sorted(self._servers))
            self._servers.pop(site).shutdown()
            self._away[site] = self.random.randint(1, 4)

    def _serve(self, site: str) -> None:
        if site not in self._servers:
            self._servers[site] = LinkServer(str(self._store / site))
        for operator in self._kept[site]:
            announce(self.place, operator, self._servers[site].location)
