"""Changes the queries of a running spec: by `anabranch add`, `remove`, `reload` and `set`, or by SIGHUP.

Every change is a target spec: the running spec with other queries. Its queries are compiled against the streams as
registered at the start, and the running set is changed to them (`api/changing`).

Invariant: only the set of queries can change and, by `set`, policy, objective and limits of a query that adapts. Any
other difference between the specs is refused with the name of its entry, and a refused change does not affect the run.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from anabranch.api import QueryHandle
from anabranch.api.changing import RunningSet
from anabranch.errors import AnabranchError, BundleError, SpecError
from anabranch.lang.window import instant_text
from anabranch.plan.query_set import ALONE
from anabranch.run import control
from anabranch.run.changing import SetChange
from anabranch.run.store import Store
from anabranch.spec.change_commands import FINISH, RELOAD, REMOVE, SET, change_lines, only
from anabranch.spec.file import parse_queries, read_text
from anabranch.spec.launch import compile_members
from anabranch.spec.model import Spec

_ENTRIES = {"together": "limits' or 'share", "moves": "moves"}
"""Fields of a spec whose entries have different names."""


@dataclass
class Changes:
    """The running spec, and the changes to it."""

    spec: Spec
    handle: QueryHandle
    parsed: Callable[[str, Path], Spec]
    """Reads a spec from its text and folder and applies the command-line options."""

    def open(self) -> None:
        """Starts to accept requests."""
        control.listen(Store(self.spec.checkpoint))

    def serve(self) -> list[str]:
        """Serves pending requests; returns a line for each change or refusal."""
        store = Store(self.spec.checkpoint)
        said = []
        while (request := control.take(store)) is not None:
            try:
                if request.kind == FINISH:
                    time = self.finish(int(request.content["least"]))
                    control.answer(store, request, {"until": time})
                    said.append(f"answers until {instant_text(time)}; a branch takes over, and then this run ends")
                    continue
                if request.kind == SET:
                    self.handle.reconfigure(request.content["settings"], query=request.content["query"])
                    control.answer(store, request, {})
                    said.append(f"set by command: {json.dumps(request.content['settings'])}")
                    continue
                change = self.make(request.kind, request.content)
            except AnabranchError as error:
                control.answer(store, request, error)
                said.append(f"refused to {request.kind}: {error.message}")
            else:
                control.answer(store, request, {"joined": dict(change.joined), "left": list(change.left)})
                said += change_lines(change.joined, change.left)
        return said

    def reload(self, path: Path) -> list[str]:
        """Applies the queries of the current spec file; returns messages for the user."""
        try:
            text, folder = read_text(path)
            change = self.make(RELOAD, {"text": text, "folder": str(folder)})
        except AnabranchError as error:
            return [f"refused to {RELOAD}: {error.message}"]
        return change_lines(change.joined, change.left)

    def finish(self, least: int) -> int:
        """Makes the queries answer until an event time, because a branch takes over; returns the time."""
        return self.handle.finish(least)

    def make(self, kind: str, content: Mapping[str, Any]) -> SetChange:
        """Applies one change."""
        wanted = self._wanted(kind, content)
        running = self._running
        _refuse_other_entries(self.spec, wanted)
        members = compile_members(wanted, running.run.session.without_queries())
        known = running.run.given
        for name, query in wanted.queries.items():
            if query == self.spec.queries.get(name) and _reads_the_same(name, known, members):
                # Keeps the samples and any mesh that was learnt.
                members[name] = known[name]
            elif name in known and query.query == self.spec.queries[name].query:
                _refuse_settings(name, self.spec, wanted)
        change = running.become(self.handle, members)
        self.spec = wanted
        return change

    def _wanted(self, kind: str, content: Mapping[str, Any]) -> Spec:
        running = self.spec.queries
        if ALONE in running:
            raise SpecError(
                "a query that runs alone cannot change while it runs, and no other can join it",
                hint="stop it, and start the changed query with --evolve allow; or write it below 'queries', even if "
                "it is the only one, and start that with a new checkpoint",
            )
        if kind == REMOVE:
            rest = self._running.without([str(name) for name in content["names"]])
            return replace(self.spec, queries={name: query for name, query in running.items() if name in rest})
        text, folder = str(content["text"]), Path(content["folder"])
        if kind == RELOAD:
            return self.parsed(text, folder)
        fresh = only(parse_queries(text, folder=folder), [str(name) for name in content["names"]])
        if taken := [name for name in fresh if name in running]:
            raise BundleError(f"a query is named '{taken[0]}' already", hint="use another name")
        return replace(self.spec, queries={**running, **fresh})

    @property
    def _running(self) -> RunningSet:
        changing = self.handle.changing
        assert isinstance(changing, RunningSet), "a run of a spec can change"
        return changing


def _reads_the_same(name: str, known: Mapping[str, Any], members: Mapping[str, Any]) -> bool:
    return name in known and known[name].compiled.query == members[name].compiled.query


def _refuse_other_entries(running: Spec, wanted: Spec) -> None:
    for each in fields(Spec):
        if each.name != "queries" and getattr(running, each.name) != getattr(wanted, each.name):
            entry = _ENTRIES.get(each.name, each.name)
            raise SpecError(
                f"entry '{entry}' differs from the value at the start of the run",
                detail="only the queries of a running spec can change",
                hint="undo the change, or stop the run and start it again; its checkpoint remains valid",
            )


def _refuse_settings(name: str, running: Spec, wanted: Spec) -> None:
    before, after = running.queries[name], wanted.queries[name]
    names = {"plan_options": "plan, limits, objective, hints or stats", "switches": "switch"}
    for each in fields(before):
        if each.name == "late_filters":
            # Filters may move; their rows move with them (`run.evolving`).
            continue
        if getattr(before, each.name) != getattr(after, each.name):
            raise SpecError(
                f"entry 'queries.{name}' has another '{names.get(each.name, each.name)}' than the running query",
                detail="a running query keeps its sink and its settings",
                hint="undo the change, give the query another name, or stop the run and start it again",
            )
