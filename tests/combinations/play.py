"""Plays a scene with events on the in-process host and compares every answer with the batch answer.

Each query gives the results of the rows that came while it ran: one that joined, those that are not older than the time
that it was promised. Invariant: an event that is refused raises, so what passes has happened. A batch whose host dies
is taken again after a restart from the checkpoint.
"""

from __future__ import annotations

import math
import os
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any
from unittest import mock

import pyarrow as pa
from hypothesis import assume, reject
from hypothesis import event as count_event
from hypothesis import strategies as st

from anabranch.adapt.course import MoveStrategy
from anabranch.errors import AnabranchError, MigrationError
from anabranch.plan.mesh import Plan
from anabranch.plan.partitioning import Partitioning
from anabranch.plan.query import Query
from anabranch.plan.query_set import ALONE, Plans, QuerySet, partitioning_of
from anabranch.plan.sharing import shares
from anabranch.run import commit
from anabranch.run.changing import change_set
from anabranch.run.evolving import Evolve, follow
from anabranch.run.local import LocalHost
from anabranch.run.manifest import Manifest
from anabranch.run.results import ResultLayout
from anabranch.run.round import PHASES, EventTimeRules
from anabranch.run.side_output import SideOutputLayout
from anabranch.run.store import Store
from tests.combinations import scenes, table
from tests.combinations.scenes import NOW, Scene
from tests.support.failing_files import Death, FailingFiles, Fault, Kind, on_failing_files
from tests.support.loads import given_loads
from tests.support.meshes import meshes
from tests.support.moves import drawn_loads
from tests.support.oracle import (
    Answer,
    comparable,
    describe_difference,
    rows_as_multiset,
    timed_results,
    watermark_of,
)
from tests.support.outer_queries import drawn_tables
from tests.support.workers import WorkerHost

IN_MEMORY = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
AT_BEGIN = PHASES[:3]
"""Crash points before the commit: the batch is taken again."""


Receive = Callable[[int, Mapping[str, pa.Table]], None]
"""Gets the results of a batch, by query, before it is committed."""


class SinkFailed(Exception):
    """The sink of a schedule did not take a batch, or says so."""


class Refused(Exception):
    """A scene or an event was refused by a named error."""

    def __init__(self, at: str, error: AnabranchError) -> None:
        super().__init__(f"{at}: {type(error).__name__}: {error.message}")
        self.at, self.error = at, error


class Wrong(AssertionError):
    """A result is missing, or should not be there."""


@dataclass
class Life:
    """A query while it runs: from which batch and event time on, and until which batch."""

    name: str
    query: Query
    beside: QuerySet
    """The queries with which it ran last."""
    first: int
    since: int | None = None
    last: int | None = None


@dataclass
class Played:
    """What a schedule gave."""

    sink: Mapping[int, Mapping[str, pa.Table]]
    manifests: Mapping[int, Manifest]
    """After each batch."""

    @property
    def results(self) -> int:
        return sum(table.num_rows for each in self.sink.values() for table in each.values())


def play(
    data: st.DataObject, features: Iterable[str], events: Sequence[str], make: Callable[..., Any] | None = None
) -> Played:
    """Draws a scene with some features, lets the events happen one after the other, and checks all answers.

    `make` makes a host; without it, one of the in-process hosts is drawn.
    """
    scene = data.draw(scenes.scenes(frozenset(features), least_batches=2 * len(events) + 3), "scene")
    try:
        scene = scenes.compiled(scene)
        queries = scene.set_of()
    except AnabranchError as error:
        raise Refused("compile", error) from error
    del queries
    loads = drawn_loads(data.draw(st.integers(0, 2**32 - 1), "loads"))
    few = data.draw(st.sampled_from([2, commit.COMPACT_FILES_ALWAYS]), "files to compact")
    with (
        tempfile.TemporaryDirectory(dir=IN_MEMORY) as folder,
        mock.patch.object(commit, "COMPACT_FILES_ALWAYS", few),
        mock.patch.dict(os.environ, {} if make else {"ANABRANCH_HOT_FOLDER": f"{folder}/hot"}),
        given_loads(loads),
        on_failing_files(FailingFiles()) as files,
    ):
        is_worker = data.draw(st.booleans(), "as workers")
        return _Play(data, scene, events, folder, files, make or (Workers if is_worker else Engines)).run()


class Engines(LocalHost):
    """The in-process host, whose engines live from batch to batch."""

    def __init__(self, *given: Any, **options: Any) -> None:
        super().__init__(*given, **options, now=lambda: NOW)

    def step(self, rows: Mapping[str, pa.Table], receive: Receive) -> pa.Table:  # type: ignore[override]
        layout = ResultLayout(self.queries)
        return super().step(rows, deliver=lambda task, answer: receive(task.batch, layout.split(answer)))

    def lose(self, slot: int) -> None:
        self.engines.pop(slot, None)

    def leave(self) -> None: ...


class Workers(Engines, WorkerHost):
    """The in-process host whose slots find their state again in every batch."""

    def lose(self, slot: int) -> None:
        shutil.rmtree(os.environ["ANABRANCH_HOT_FOLDER"], ignore_errors=True)


class _Play:
    def __init__(
        self,
        data: st.DataObject,
        scene: Scene,
        events: Sequence[str],
        folder: str,
        files: FailingFiles,
        make: Callable[..., Any],
    ) -> None:
        self.make = make
        self.data, self.scene, self.events, self.folder, self.files = data, scene, events, folder, files
        self.checkpoint = f"{folder}/kept"
        self.names = list(scene.queries)
        if "query joins" in events:
            # Who is to join is not there at first.
            self.absent = data.draw(st.sampled_from([n for n in ("q", "z") if self._may_go(n)]), "joins later")
            self.names.remove(self.absent)
        self.other = scene.changed
        """What `q` becomes when it evolves."""
        self.asked: set[int] = set()
        """The batches before which an event has happened."""
        self.crash: str | None = None
        self.sink_fails = ""
        self.tables = dict(scene.tables)
        """The tables that the batches so far have met."""
        self.offered = dict(scene.tables)
        self.met: list[Mapping[str, pa.Table]] = []
        self.slots = 3 if any(name.startswith(("move", "scale", "heavy", "another")) for name in events) else 0
        self.sink: dict[int, dict[str, pa.Table]] = {}
        self.diverted: dict[int, pa.Table] = {}
        self.manifests: dict[int, Manifest] = {}
        self.lives: list[Life] = []
        self.rows, self.others = scenes.admitted(scene)
        self.queries = self._set()
        self.host: Any = None
        self.host = self._start()
        self._born(dict.fromkeys(self._delivered()), 0)

    # --- the course ---------------------------------------------------------------------------------------------------

    def run(self) -> Played:
        count = len(self.scene.batches)
        # An event takes two batches at most.
        first = self.data.draw(st.integers(1, max(1, count - 2 * len(self.events) - 1)), "first event at")
        todo = list(self.events)
        while self.host.batch < count:
            number = self.host.batch
            if todo and number >= first and number not in self.asked:
                name = todo.pop(0)
                self.asked.add(number)
                try:
                    self._happen(name, number)
                except AnabranchError as error:
                    raise Refused(name, error) from error
                self.asked.add(self.host.batch)
            self._take(self.host.batch)
        for life in self.lives:
            self._check(life)
        self._check_diverted()
        return Played(self.sink, self.manifests)

    def _take(self, number: int) -> None:
        mine = {name: rows for name, rows in self.scene.batches[number].items() if name in self.queries.streams}

        def receive(batch: int, results: Mapping[str, pa.Table]) -> None:
            if self.sink_fails == "before":
                raise SinkFailed
            self.sink.setdefault(batch, {}).update(results)
            if self.sink_fails == "after":
                raise SinkFailed

        try:
            self.host.step(mine, receive)
        except (Death, SinkFailed, AnabranchError) as error:
            if isinstance(error, AnabranchError) and not (self.files.has_failed or self.sink_fails):
                raise Refused("step", error) from error
            count_event(f"failed: {type(error).__name__}")
            self._disarm()
            latest = Store(self.checkpoint).latest()
            if latest is None or latest.batch < number:
                # A batch that is taken again meets the tables that the last one met.
                self.offered = dict(self.tables)
            self.host = self._start()
            assert self.host.batch in (number, number + 1), f"batch {number} failed, {self.host.batch} is next"
            if self.host.batch == number:
                return
            assert number in self.sink, f"batch {number} was committed before its sink had it"
        self._disarm()
        if self.host.batch == number + 1 and self.host.diverted_rows is not None:
            self.diverted[number] = self.host.diverted_rows
        if self.host.manifest is not None:
            self.manifests[number] = self.host.manifest
        self.tables = dict(self.offered)
        self.met.append(dict(self.tables))

    def _disarm(self) -> None:
        self.crash, self.sink_fails = None, ""
        self.files.arm(None)
        self.files.is_dead = False

    # --- events -------------------------------------------------------------------------------------------------------

    def _happen(self, name: str, number: int) -> None:
        host, draw = self.host, self.data.draw
        if not self._may_happen(name):
            count_event(f"nothing to do: {name}")
            return
        kind, _, how = name.partition(" by ")
        match kind:
            case "switch":
                member = self._of_joins()
                self._switch(member, draw(self._other_plan(member, how), "to"), how)
            case "mesh":
                member = self._of_joins()
                self._switch(member, draw(meshes(member.query.graph), "mesh"), "auto")
            case "move":
                strategy: MoveStrategy = "parallel-track" if how == "parallel-track" else "moving-state"
                host.move(self._groups(), draw(st.integers(0, host.partitioning.slots - 1), "to"), strategy)
            case "move in parts":
                groups = self._groups()
                others = [slot for slot in range(host.partitioning.slots) if slot != host.partitioning.table[groups[0]]]
                host.move(groups, draw(st.sampled_from(others), "to"), "moving-state", 2)
            case "another grid":
                shares = tuple(replace(each, share=draw(st.integers(1, 4))) for each in host.partitioning.dimensions)
                grid = Partitioning(shares, host.partitioning.slots, (0,) * math.prod(each.share for each in shares))
                slots = st.lists(st.integers(0, grid.slots - 1), min_size=grid.groups, max_size=grid.groups)
                host.spread(grid.with_table(draw(slots, "slots of groups")))
            case "scale":
                host.scale(draw(st.integers(1, host.partitioning.slots), "slots in use"))
            case "heavy-key split":
                host.split(draw(st.integers(0, 2), "value"), key=self._key())
            case "query joins":
                self._change([*self.names, self.absent], number)
            case "query leaves":
                self._change([other for other in self.names if other != self._goes()], number)
            case "query comes back":
                gone = self._goes()
                self._change([other for other in self.names if other != gone], number)
                if draw(st.booleans(), "stays away for a batch"):
                    self._take(number)
                self._change([*self.names, gone], self.host.batch)
            case "share":
                host.share("(a b)")
            case "unshare":
                if not self._shares():
                    host.share("(a b)")
                    self._take(number)
                if self._shares():
                    self.host.unshare()
                else:  # a move is under way, and queries share when it has ended
                    count_event("nothing to do: unshare")
            case "table changes":
                self.offered = {"t0": draw(drawn_tables(1), "new rows")["t0"]}
                host.change_table("t0", self.offered["t0"])
            case "restart":
                self.host = self._start()
            case "evolve":
                self._evolve(number)
            case "failing write":
                self.files.arm(draw(st.builds(Fault, st.integers(0, 20), st.sampled_from(Kind)), "fault"))
            case "failing sink":
                self.sink_fails = draw(st.sampled_from(["before", "after"]), "fails")
            case "executor lost":
                self._lose()
            case _:
                assert kind.startswith("crash at "), kind
                self.crash = kind.removeprefix("crash at ")

    def _switch(self, member: Any, plan: Plan, how: str) -> None:
        try:
            self.host.migrate(plan, how, query=member.name or None)
        except MigrationError as error:
            if "is changing its plan already" not in error.message:
                raise
            count_event("nothing to do: switch")

    def _evolve(self, number: int) -> None:
        changed, self.other = self.other, self.scene.texts["q"]
        evolved = scenes.compiled(replace(self.scene, texts={**self.scene.texts, "q": changed}))
        evolved_set = evolved.set_of(self.names)
        slots = self.data.draw(st.integers(1, 3), "slots")
        self.host.leave()
        change = follow(
            Store(self.checkpoint),
            evolved_set,
            self.scene.catalog,
            partial(partitioning_of, evolved_set, slots),
            Evolve.ALLOW,
        )
        assert change is not None, "nothing has changed"
        self.scene, self.queries = evolved, evolved_set
        joined = {ALONE if name == ALONE else name: since for name, since in change.joined.items()}
        for life in self.lives:
            if life.last is None and life.name in joined:
                life.last = number
        self._born({name: since for name, since in joined.items() if name in self._delivered()}, number)
        self.host = self._start()

    def _change(self, names: Sequence[str], number: int) -> None:
        ordered = [name for name in self.scene.queries if name in names]
        before, wanted = self.queries, self.scene.set_of(ordered)
        slots = self.host.partitioning.slots
        self.host.leave()
        change = change_set(Store(self.checkpoint), before, wanted, partitioning_of(wanted, slots))
        self.names, self.queries = ordered, wanted
        for life in self.lives:
            if life.last is None and life.name not in wanted.names:
                life.last = number
            elif life.last is None:
                life.beside = wanted
        delivered = self._delivered()
        self._born({name: since for name, since in change.joined.items() if name in delivered}, number)
        self.host = self._start()

    def _lose(self) -> None:
        self.host.lose(self.data.draw(st.sampled_from(self.host.partitioning.working), "slot"))

    # --- parts --------------------------------------------------------------------------------------------------------

    def _set(self) -> QuerySet:
        return self.scene.set_of(self.names)

    def _delivered(self) -> list[str]:
        return [member.name for member in self.queries.delivered]

    def _born(self, several: Mapping[str, int | None], number: int) -> None:
        for name, since in several.items():
            query = self.scene.queries[self.names[-1] if name == ALONE else name]
            self.lives.append(Life(name, query, self.queries, number, since))

    def _may_go(self, name: str) -> bool:
        return name in self.scene.queries and not (name == "q" and "top" in self.scene.queries)

    def _goes(self) -> str:
        """A query that may leave: nobody reads it, and others stay."""
        return str(self.data.draw(st.sampled_from([n for n in self.names if n in "qz" and self._may_go(n)]), "leaves"))

    def _may_happen(self, name: str) -> bool:
        """False where a query of one relation would change its plan, or nobody is left to go."""
        if name.startswith(("switch", "mesh")):
            return any(len(each.query.graph.names) > 1 for each in self.host.queries.members)
        if name in ("query leaves", "query comes back"):
            return any(self._may_go(each) for each in self.names if each in "qz")
        if name == "query joins":
            return self.absent not in self.names
        if name in ("share", "unshare"):
            is_refused = "ASOF join" in self.scene.features
            return is_refused or any({"a", "b"} <= {*each.query.graph.names} for each in self.host.queries.members)
        if name == "table changes":
            return "t0" in self.queries.graph.tables
        return name != "evolve" or "q" in self.names

    def _shares(self) -> bool:
        return any(shares(plan) for plan in self.host.steering.most_plans.plans.values())

    def _of_joins(self) -> Any:
        """A query whose plan can change: `q`, or the join inside it, if it runs."""
        joins = [each for each in self.host.queries.members if len(each.query.graph.names) > 1]
        mine = [each for each in joins if each.name not in ("low", "top", "z", "y")]
        return self.data.draw(st.sampled_from(mine or joins), "of query")

    def _groups(self) -> list[int]:
        groups = self.host.partitioning.groups
        return self.data.draw(st.lists(st.integers(0, groups - 1), min_size=1, max_size=groups, unique=True), "groups")

    def _key(self) -> str | None:
        """A key by which rows are spread."""
        keys = {each.name for each in self.queries.graph.keys}
        axes = [each.code for each in self.host.partitioning.dimensions if each.code in keys]
        key: str | None = self.data.draw(st.sampled_from(axes or [None]), "key")
        return key

    def _merges(self, name: str) -> bool:
        is_q = name == "q" or (name == ALONE and self.names[-1] == "q")
        return "merged inputs" in self.scene.features and is_q

    def _plan(self, name: str, query: Query) -> st.SearchStrategy[Plan]:
        merges = self._merges(name)
        assume(not merges or len(query.graph.names) > 1)  # a single relation has no input to merge
        return scenes.trees(query, merged=merges)

    def _other_plan(self, member: Any, how: str) -> st.SearchStrategy[Plan]:
        if how == "none":
            from anabranch.plan.physical import mjoin

            return st.just(mjoin(member.query.graph.names))
        return self._plan(member.name, member.query)

    def _start(self) -> Any:
        draw = self.data.draw
        if self.host is not None:
            self.host.leave()
        plans = Plans({m.name: draw(self._plan(m.name, m.query), f"plan of {m.name}") for m in self.queries.members})
        read = {name: rows for name, rows in self.offered.items() if name in self.queries.graph.tables}
        layout = None
        if "late sink" in self.scene.features:
            layout = SideOutputLayout({name: self.scene.catalog.streams[name].schema for name in self.queries.streams})
        options: dict[str, Any] = {
            "slots": draw(st.integers(2, 3), "slots") if self.slots else draw(st.integers(1, 3), "slots"),
            "checkpoint": self.checkpoint,
            "execution": self.scene.execution,
            "tables": read,
            "event_time": EventTimeRules(
                max_ahead={n: v for n, v in self.scene.max_ahead.items() if n in self.queries.streams}
            ),
            "diverted": layout,
            "announce": self._announce,
        }
        try:
            return self.make(self.queries, plans, **options)
        except AnabranchError as error:
            raise Refused("start", error) from error

    def _announce(self, phase: str, batch: int) -> None:
        if phase == self.crash:
            raise Death(phase)

    # --- answers ------------------------------------------------------------------------------------------------------

    def _check(self, life: Life) -> None:
        last = len(self.scene.batches) if life.last is None else life.last
        found = [self.sink[number][life.name] for number in range(life.first, last)]
        answer = rows_as_multiset(pa.concat_tables(found)) if found else Counter()
        expected = self._expected(life, last)
        difference = describe_difference(expected, answer)
        if difference:
            raise Wrong(f"query '{life.name}' in batches {life.first} to {last}, since {life.since}: {difference}")

    def _expected(self, life: Life, last: int) -> Answer:
        results = self._timed(life, life.query, last)
        return Counter(values for time, values in results.elements() if life.since is None or time >= life.since)

    def _timed(self, life: Life, query: Query, last: int) -> Counter[tuple[int, tuple[Any, ...]]]:
        """The results of a query after some batches, with their event times; each batch met its own tables."""
        if all(each == self.scene.tables for each in self.met[:last]):
            return self._results(life, query, last, self.scene.tables)
        if query.inputs and not query.whole.tables:
            return self._results(life, query, last, self.met[last - 1])
        total: Counter[tuple[int, tuple[Any, ...]]] = Counter()
        for number, beside in enumerate(self.met[:last]):
            total += self._results(life, query, number + 1, beside) - self._results(life, query, number, beside)
        return total

    def _results(
        self, life: Life, query: Query, last: int, beside: Mapping[str, pa.Table]
    ) -> Counter[tuple[int, tuple[Any, ...]]]:
        rows = {**scenes.so_far(scenes.empty(self.scene), self.rows[:last]), **beside}
        before = math.inf
        if self.scene.execution.rows_wait or life.beside.graph.counted:
            before = min(watermark_of(each.query, rows) for each in life.beside.members)
        known = {name: [*self._timed(life, below, last).elements()] for name, below in query.inputs}
        results = timed_results(query, rows, before=before, known=known)
        return Counter((time, tuple(map(comparable, values))) for time, values in results)

    def _check_diverted(self) -> None:
        if "late sink" not in self.scene.features:
            return
        for number, found in self.diverted.items():
            expected = Counter(each for each in self.others[number] if each[0] in self.queries.streams)
            seen: Counter[tuple[str, str, int]] = Counter()
            by_relation: dict[tuple[str, str, int], Counter[str]] = {}
            for row in found.to_pylist():
                by_relation.setdefault((row["stream"], row["reason"], row[row["stream"]]["p"]), Counter())[
                    row["relation"]
                ] += 1
            for key, several in by_relation.items():
                seen[key] = max(several.values())
            if any(seen[key] > expected[key] for key in seen):
                raise Wrong(f"diverted in batch {number}: {seen} instead of {expected}")


def run_any(data: st.DataObject) -> Played:
    """Draws entries of the table, any number of features and events, and plays them."""
    features = data.draw(
        st.lists(st.sampled_from(list(table.FEATURES)), min_size=1, max_size=5, unique=True), "features"
    )
    events = data.draw(st.lists(st.sampled_from(list(table.EVENTS)), max_size=6), "events")
    names = table.closed([*features, *events])
    if table.is_one_choice(names):
        reject()
    return play(data, names & table.FEATURES.keys(), events)


def run_pair(data: st.DataObject, one: str, other: str) -> Played:
    """Plays a pair of entries with all that they need."""
    # Some pairs are exact for one stream, or without groups, and refused otherwise.
    several = [
        more
        for more in ([], ["inner join"], ["inner join", "groups"])
        if not table.is_one_choice(table.closed([one, other, *more]))
        and not any(table.refusals(each, mine) for each in more for mine in (one, other) if mine not in more)
    ]
    names = table.closed([one, other, *data.draw(st.sampled_from(several), "with")])
    events = [name for name in (one, other) if name in table.EVENTS]
    if len(events) == 2 and data.draw(st.booleans(), "other way round"):
        events.reverse()
    return play(data, names & table.FEATURES.keys(), events)
