"""Network and query files: reads YAML into a network with advertised streams and bound queries.

network.yaml                                    queries.yaml
sites: [...]   links: [...]                     queries:
(or generate: {size: 132, seed: 1, ...})          - name: gate-17
streams:                                            sink: n4
  flights: {site: n1, rate: 5,                      cql: SELECT ... FROM flights [RANGE 5 MINUTES] AS fl, ...
            columns: num bigint, ..., ts timestamp, event_time: ts, distinct: {num: 1500}}
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from anabranch.calibrate.file import load_units
from anabranch.catalog import Catalog, StreamDeclaration
from anabranch.cql import compile_query
from anabranch.ddl import parse_schema
from anabranch.errors import AnabranchError, SpecError, TopologyError
from anabranch.place import statistics as statistics_file
from anabranch.place import topology as topology_file
from anabranch.place.generate import LinkRanges, transit_stub
from anabranch.place.landscape import Landscape, SinkQuery, bare
from anabranch.place.topology import Site, Topology


@dataclass(frozen=True)
class Network:
    """A topology with its base sources, and the catalog that binds queries over it."""

    landscape: Landscape
    catalog: Catalog


def load_network(path: Path) -> Network:
    """Read a network file."""
    entry = _read(path)
    topology = _topology(entry)
    statistics = statistics_file.from_dict(_with_calibration(entry, path))
    catalog = Catalog()
    schemas = {}
    for name, stream in entry["streams"].items():
        try:
            schema = parse_schema(str(stream["columns"]))
        except (KeyError, ValueError) as error:
            raise SpecError(
                f"stream '{name}' of '{path}' has no readable columns",
                detail=str(error),
                hint="write columns as in SQL: num bigint, ts timestamp",
            ) from error
        catalog.register(StreamDeclaration(str(name), schema, str(stream.get("event_time", "ts"))))
        schemas[str(name).lower()] = schema.names
    return Network(bare(topology, statistics, schemas), catalog)


def load_queries(path: Path, network: Network) -> tuple[SinkQuery, ...]:
    """Read a query file; the queries keep their order."""
    entry = _read(path)
    if not isinstance(entry.get("queries"), list):
        raise SpecError(f"'{path}' lists no queries", hint="write a list under 'queries', each with name, sink and cql")
    found = []
    for number, one in enumerate(entry["queries"], start=1):
        missing = {"name", "sink", "cql"} - set(one if isinstance(one, Mapping) else ())
        if missing:
            raise SpecError(f"query {number} of '{path}' has no '{min(missing)}'")
        try:
            query = compile_query(str(one["cql"]), network.catalog)
        except AnabranchError as error:
            raise SpecError(f"query '{one['name']}' of '{path}' cannot be bound", detail=str(error)) from error
        found.append(SinkQuery(str(one["name"]), query, str(one["sink"])))
    return tuple(found)


def _with_calibration(entry: dict[str, Any], path: Path) -> dict[str, Any]:
    """Replace the name of a calibration file under `costs` by the costs in it."""
    if not isinstance(entry.get("costs"), str):
        return entry
    units = load_units(path.parent / entry["costs"])
    if units is None:
        raise SpecError(f"calibration file '{entry['costs']}', named in '{path}', does not exist")
    return {**entry, "costs": units.by_name()}


def _topology(entry: Mapping[str, Any]) -> Topology:
    if "generate" not in entry:
        return topology_file.from_dict(entry)
    wish = entry["generate"]
    if not isinstance(wish, Mapping) or "size" not in wish:
        raise TopologyError("'generate' needs a size", hint="write generate: {size: 132, seed: 1}")
    known = {"size", "seed", "cpu", "memory", "stub_bandwidth", "transit_bandwidth"}
    for name, value in wish.items():
        if name not in known or isinstance(value, bool) or not isinstance(value, int | float):
            raise TopologyError(
                f"'generate' has '{name}: {value}'", hint=f"give numbers for {', '.join(sorted(known))} only"
            )
    cpu, memory, stub, transit = (
        float(wish.get(name, math.inf)) for name in ("cpu", "memory", "stub_bandwidth", "transit_bandwidth")
    )
    ranges = LinkRanges(stub_bandwidth=stub, transit_bandwidth=transit)
    return transit_stub(int(wish["size"]), int(wish.get("seed", 1)), ranges, Site("", cpu, memory))


def _read(path: Path) -> dict[str, Any]:
    try:
        entry = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise SpecError(f"file '{path}' cannot be read", detail=str(error)) from error
    except yaml.YAMLError as error:
        raise SpecError(f"file '{path}' is not well-formed YAML", detail=str(error)) from error
    if not isinstance(entry, dict):
        raise SpecError(f"file '{path}' is not a mapping")
    return entry
