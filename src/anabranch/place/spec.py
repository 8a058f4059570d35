"""Reads network and query files in YAML into a network with advertised streams and bound queries.

network.yaml                                    queries.yaml
sites: [...]   links: [...]                     queries:
(or generate: {size: 132, seed: 1, ...})          - name: gate-17
streams:                                            sink: n4
  flights: {site: n1, rate: 5,                      query: SELECT ... FROM flights [RANGE 5 MINUTES] AS fl, ...
            columns: num bigint, ..., ts timestamp, event_time: ts, distinct: {num: 1500}}
tables:
  gates: {columns: num bigint, hall string}
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from anabranch.cql import compile_query
from anabranch.errors import AnabranchError, SpecError, TopologyError
from anabranch.lang.catalog import Catalog, StreamDeclaration, TableDeclaration
from anabranch.lang.ddl import parse_schema
from anabranch.lang.schema import Schema
from anabranch.place import topology as topology_file
from anabranch.place.generate import LinkRanges, transit_stub
from anabranch.place.landscape import Landscape, SinkQuery, bare
from anabranch.place.statistics import read as read_statistics
from anabranch.place.topology import Site, Topology
from anabranch.place.windows import as_ranges
from anabranch.planning.calibration import load_units
from anabranch.settings.entries import Entry, document, optional

_OF_A_NETWORK = "sites links generate streams tables selectivities costs batch record_bytes currency"
_OF_A_SITE = "name cpu memory runner region"
_OF_A_LINK = "ends latency cost bandwidth"
_OF_A_STREAM = "site stays_in rate row_bytes column_bytes distinct columns event_time watermark idle_timeout source"
_OF_A_TABLE = "columns source"
_OF_A_QUERY = "name sink joins_at max_latency query into"


@dataclass(frozen=True)
class Network:
    """A topology with its base sources, and the catalog that binds queries over it."""

    landscape: Landscape
    catalog: Catalog
    currency: str | None = None
    """The currency of link costs, if these are prices per GB."""


def load_network(path: Path) -> Network:
    """Reads a network file."""
    file = read_yaml(path)
    file.mapping(_OF_A_NETWORK)
    topology = _topology(file)
    statistics = read_statistics(_with_calibration(file, path))
    catalog = Catalog()
    schemas, stays = {}, {}
    for name, stream in file.named()["streams"].filled().items():
        entries = stream.mapping(_OF_A_STREAM, {"columns": "columns: num bigint, ts timestamp"})
        schema = _schema(entries["columns"])
        event_time = optional(entries, "event_time", Entry.text, "ts")
        disorder = optional(entries, "watermark", Entry.duration, 0)
        catalog.register(StreamDeclaration(name, schema, event_time, disorder))
        schemas[name.lower()] = schema.names
        if "stays_in" in entries:
            stays[name.lower()] = _sites_of(entries["stays_in"], entries["site"].label(), file)
    tables = file.named()["tables"].filled() if "tables" in file.named() else {}
    for name, table in tables.items():
        if name.lower() in schemas:
            raise table.wrong("has the name of a stream", "give one of them another name")
        entries = table.mapping(_OF_A_TABLE, {"columns": "columns: num bigint, hall string"})
        catalog.register_table(TableDeclaration(name, _schema(entries["columns"])))
    streams = {name: replace(one, stays_at=stays.get(name.lower())) for name, one in statistics.streams.items()}
    currency = optional(file.named(), "currency", Entry.label, None)
    return Network(bare(topology, replace(statistics, streams=streams), schemas), catalog, currency)


def _schema(columns: Entry) -> Schema:
    try:
        return parse_schema(columns.text())
    except ValueError as error:
        hint = "write columns as in SQL: num bigint, ts timestamp"
        raise columns.wrong("is not a list of columns", hint, str(error)) from error


def _sites_of(region: Entry, home: str, file: Entry) -> frozenset[str]:
    """Returns the sites of a region, which must include the site of the stream."""
    named = [each.named() for each in file.named()["sites"].items("[…]") if isinstance(each.value, Mapping)]
    sites = {one["name"].label() for one in named if "region" in one and one["region"].label() == region.label()}
    if home not in sites:
        raise region.wrong(
            f"is '{region.label()}', and the site '{home}' of the stream is not in it",
            "write 'region' at the sites, such as {name: hall-a, region: eu}",
        )
    return frozenset(sites)


def load_queries(path: Path, network: Network) -> tuple[SinkQuery, ...]:
    """Reads a query file; the queries keep their order."""
    example = "queries: [{name: gate-17, sink: n4, query: SELECT …}]"
    found = []
    required = {"name": "name: gate-17", "sink": "sink: n4, a site", "query": "query: SELECT …"}
    for each in read_yaml(path).mapping("queries", {"queries": example})["queries"].items(example):
        entries = each.mapping(_OF_A_QUERY, required)
        name = entries["name"].label()
        try:
            query = as_ranges(compile_query(entries["query"].text(), network.catalog))
        except AnabranchError as error:
            raise SpecError(f"query '{name}' of '{path}' cannot be bound", detail=str(error)) from error
        if query.inputs:
            raise SpecError(
                f"query '{name}' of '{path}' cannot be placed: it reads a subquery or a UNION",
                hint="write it as one SELECT, or run the query at one site with 'anabranch run'",
            )
        if query.whole.counted:
            raise SpecError(
                f"query '{name}' of '{path}' cannot be placed: '{query.whole.counted[0]}' has a window of rows",
                detail="rows are counted where all rows of a stream are",
                hint="give it a time window, or run the query at one site",
            )
        joins_at = optional(entries, "joins_at", Entry.texts, ())
        for site in joins_at:
            network.landscape.topology.position(site)
        most = optional(entries, "max_latency", lambda entry: entry.number(0.0), math.inf)
        found.append(SinkQuery(name, query, entries["sink"].label(), frozenset(joins_at), most))
    return tuple(found)


def _with_calibration(file: Entry, path: Path) -> Entry:
    """Replaces the name of a calibration file under `costs` with the costs in it."""
    costs = file.named().get("costs")
    if costs is None or not isinstance(costs.value, str):
        return file
    units = load_units(path.parent / costs.text())
    if units is None:
        raise SpecError(f"calibration file '{costs.text()}', named in '{path}', does not exist")
    return replace(file, value={**file.value, "costs": units.by_name()})


def _topology(file: Entry) -> Topology:
    entries = file.named()
    if "generate" not in entries:
        topology = topology_file.from_dict(file.value)
        for name, known in (("sites", _OF_A_SITE), ("links", _OF_A_LINK)):
            for each in entries[name].items("[…]"):
                if isinstance(each.value, Mapping):
                    each.mapping(known)
        return topology
    rules = replace(entries["generate"], error=TopologyError).mapping(
        "size seed cpu memory stub_bandwidth transit_bandwidth", {"size": "generate: {size: 132, seed: 1}"}
    )
    cpu, memory, stub, transit = (
        optional(rules, name, Entry.number, math.inf)
        for name in ("cpu", "memory", "stub_bandwidth", "transit_bandwidth")
    )
    ranges = LinkRanges(stub_bandwidth=stub, transit_bandwidth=transit)
    size, seed = int(rules["size"].number()), int(optional(rules, "seed", Entry.number, 1))
    return transit_stub(size, seed, ranges, Site("", cpu, memory))


def read_yaml(path: Path) -> Entry:
    """Returns the entries of a YAML file."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise SpecError(f"file '{path}' cannot be read", detail=str(error)) from error
    return Entry("", document(text, f"file '{path}'"), title=f"file '{path}'", file=str(path))
