"""Network and query files of a deployment: those of `anabranch place`, with real sources and sinks.

network.yaml                                            queries.yaml
streams:                                                queries:
  flights:                                                - name: gate-17
    site: centre                                            sink: gate-a1          # the site that gets the results
    rate: 5                                                 into: {format: parquet, path: out/gate-17}
    columns: num bigint, gate string, ts timestamp          query: SELECT …
    event_time: ts
    watermark: 2 seconds
    idle_timeout: 30 seconds
    source: {format: json, path: data/flights}
tables:
  gates:
    columns: gate string, hall string
    source: {format: parquet, path: data/gates}

`place` ignores `source` and `into`; `deploy` requires them. Relative paths start at the folder of their file.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from anabranch.errors import SpecError
from anabranch.lang.ddl import parse_schema
from anabranch.place.landscape import SinkQuery
from anabranch.place.spec import Network, load_network, load_queries, read_yaml
from anabranch.settings.entries import Entry, optional
from anabranch.sites.root import RUNNERS
from anabranch.spec.file import read_sink, read_timeout
from anabranch.spec.model import SinkSpec, StreamSpec


@dataclass(frozen=True)
class QueryFile:
    """One query of a deployment: bound, as text, and with its sink."""

    query: SinkQuery
    cql: str
    into: SinkSpec


@dataclass(frozen=True)
class DeploymentFiles:
    """A network with the sources of its streams, and the initial queries."""

    network: Network
    sources: dict[str, StreamSpec]
    """Of streams and tables."""
    queries: tuple[QueryFile, ...]
    runners: Mapping[str, str] = field(default_factory=dict)
    """The runner of each site that names one."""


def load_files(network: Path, queries: Path) -> DeploymentFiles:
    """Reads both files; a SpecError names the missing or invalid entry."""
    loaded = load_network(network)
    return DeploymentFiles(loaded, load_sources(network), load_query_file(queries, loaded), load_runners(network))


def load_sources(network: Path) -> dict[str, StreamSpec]:
    """Returns the source of each stream and table that has one, by lower-case name."""
    file, found = read_yaml(network).named(), {}
    tables = file["tables"].filled() if "tables" in file else {}
    for name, stream in {**file["streams"].filled(), **tables}.items():
        entries = stream.named()
        if "source" in entries:
            found[name.lower()] = _source(name, entries, network.resolve().parent)
    return found


def load_runners(network: Path) -> dict[str, str]:
    """Returns the runner of each site that names one."""
    entries = read_yaml(network).named()
    sites = entries["sites"].items("[…]") if "sites" in entries else []
    named = [each.named() for each in sites if isinstance(each.value, Mapping)]
    return {each["name"].label(): each["runner"].choice(RUNNERS) for each in named if "runner" in each}


def load_query_file(path: Path, network: Network) -> tuple[QueryFile, ...]:
    """Returns the queries of a file, in order; each needs a sink."""
    bound = load_queries(path, network)
    entries = read_yaml(path).named()["queries"].items("queries: [{name: …}]")
    found = []
    for query, entry in zip(bound, entries, strict=True):
        named = entry.require({"into": "into: {format: parquet, path: out}, the sink of its results"})
        into = read_sink(named["into"], path.resolve().parent)
        if into.format in ("memory", "console"):
            raise named["into"].wrong(
                f"has the format '{into.format}'", "name a format that outlives the site, such as parquet"
            )
        found.append(QueryFile(query, named["query"].text(), into))
    return tuple(found)


def require_sources(files: DeploymentFiles) -> None:
    """Refuses queries over streams and tables that have no source."""
    for each in files.queries:
        for relation in each.query.query.whole.relations:
            if relation.stream.lower() not in files.sources:
                kind = "table" if relation.is_table else "stream"
                raise SpecError(
                    f"query '{each.query.name}' reads {kind} '{relation.stream}', which has no source",
                    hint=f"write {kind}s.{relation.stream}.source: {{format: json, path: data}} in the network file",
                )


def _source(name: str, entries: dict[str, Entry], folder: Path) -> StreamSpec:
    source = entries["source"].mapping("format path options", {"format": "format: json"})
    text = entries["columns"].text()
    return StreamSpec(
        name=name,
        format=source["format"].text(),
        path=optional(source, "path", lambda given: given.location(folder), None),
        table=None,
        schema=parse_schema(text),
        schema_text=text,
        event_time=optional(entries, "event_time", Entry.text, "ts"),
        disorder=optional(entries, "watermark", Entry.duration, 0),
        idle_timeout=optional(entries, "idle_timeout", read_timeout, None),
        options=optional(source, "options", Entry.options, ()),
    )
