"""Checks the sinks of a spec without Spark, so that `anabranch explain` refuses what a run would refuse."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches

from anabranch.errors import SpecError
from anabranch.lang.schema import Schema
from anabranch.plan.query import Query
from anabranch.run.side_output import SideOutputLayout
from anabranch.run.sink_settings import KNOWN_FORMATS, SinkSettings, check_sink
from anabranch.settings.secrets import from_environment
from anabranch.spec.model import SinkSpec, Spec


def check_sinks(spec: Spec, queries: Mapping[str, Query]) -> list[str]:
    """Refuses sinks that a run would refuse; returns notes on what only Spark can check."""
    notes: list[str] = []
    places: dict[str, str] = {}
    for name, sink, schema in _wanted(spec, queries):
        what = f"the sink of '{name}'" if name else "the sink"
        given = SinkSettings.of(
            sink.format, from_environment(sink.options), sink.path, sink.partition_by, name or spec.name
        )
        check_sink(given, schema)
        if given.path is not None and (other := places.setdefault(given.path.rstrip("/"), what)) != what:
            raise SpecError(f"{other} and {what} write to the same place '{given.path}'", hint="give each its own")
        if sink.format.lower() not in KNOWN_FORMATS:
            meant = get_close_matches(sink.format.lower(), sorted(KNOWN_FORMATS), 1)
            guess = f"; did you mean '{meant[0]}'?" if meant else ""
            notes.append(f"note: whether Spark has format '{sink.format}' of {what} is checked at the start{guess}")
    return notes


def _wanted(spec: Spec, queries: Mapping[str, Query]) -> list[tuple[str, SinkSpec, Schema]]:
    """Returns every sink with the name of its query and the columns of its rows."""
    found = [
        (name, sink, query.schema) for name, query in queries.items() if (sink := spec.queries[name].sink) is not None
    ]
    if spec.late is not None:
        read = {relation.stream for query in queries.values() for relation in query.graph.relations}
        columns = {each.name: each.known_columns for each in spec.streams if each.name in read}
        layout = SideOutputLayout({name: each for name, each in columns.items() if each is not None})
        found.append(("late rows", spec.late, layout.schema))
    return found
