"""The status of a deployment: operators and links as tables, and as plain values for JSON."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, TypeAlias

from rich.console import Group
from rich.table import Table

from anabranch.lang.sizes import size_text
from anabranch.place.landscape import Input, Landscape, Operator, monthly
from anabranch.place.statistics import Statistics
from anabranch.place.topology import Topology
from anabranch.place.view import View
from anabranch.sites.measured import flow_rates
from anabranch.sites.observed import flows
from anabranch.sites.operators import DELIVERY, GATE
from anabranch.sites.root import ERRORS, LEASE, WAITS, Orders, Root, now

PLANNED_MEASURED = ("planned", "measured")


def plain_status(root: Root, orders: Orders) -> dict[str, Any]:
    """Returns the state of sites, operators, links and queries."""
    wanted = orders.wanted
    sites = sorted({spec.site for spec in wanted.operators.values()})
    reports = {site: root.status(site) for site in sites}
    operators = {}
    for name, spec in wanted.operators.items():
        report = reports[spec.site]
        own = None if report is None else report["operators"].get(name)
        operators[name] = {"site": spec.site, "kind": spec.kind, **(own or {"active": False})}
        operators[name]["waiting"] = name in wanted.waiting
    compared, reached = _compared(root, orders), flows(root, orders)
    cost = {kind: _sum(each[kind]["cost"] for each in compared.values()) for kind in PLANNED_MEASURED}
    currency = (root.read("plan.json") or {}).get("currency")
    silent = {site for site, report in reports.items() if report is None or now() - report["at"] > LEASE}
    return {
        "version": wanted.version,
        "changing": wanted.is_changing,
        "waits": (root.read(WAITS) or {}).get("waits", []) if wanted.is_changing else [],
        "stopped": wanted.is_stopped,
        "controller": {"alive": root.holder("controller") is not None, "errors": root.read(ERRORS) or {}},
        "sites": {
            site: "alive" if site not in silent else "silent" if report is not None else "not started"
            for site, report in reports.items()
        },
        "clusters": _clusters(root, silent),
        "queries": {
            spec.serves: {
                "site": spec.site,
                "complete_from": wanted.since.get(spec.serves),
                "rows_from": wanted.rows_from.get(spec.serves),
            }
            for spec in wanted.operators.values()
            if spec.kind == DELIVERY
        },
        "operators": operators,
        "cost": cost,
        "monthly": None
        if currency is None
        else {
            "currency": currency,
            **{kind: None if each is None else monthly(each) for kind, each in cost.items()},
        },
        "links": {name: {**status.to_json(), **compared[name]} for name, status in reached.items()},
        "unreachable": sorted(set(compared) - set(reached)),
    }


def _compared(root: Root, orders: Orders) -> dict[str, dict[str, dict[str, float | None]]]:
    """Returns the bytes per second of each link and their cost, planned and measured; None if unknown."""
    measured = flow_rates(root)
    plan = root.read("plan.json") or {}
    planned = {(flow["reader"], flow["stream"]): flow for flow in plan.get("flows", ())}
    found = {}
    for key, wire in orders.wanted.wiring.wires.items():
        for stretch in wire.stretches:
            link = wire.link(stretch)
            # During a hand-over, the planned flow of a reader is that of its last producer.
            flow = planned.get(key) if stretch is wire.stretches[-1] else None
            seen = measured.get(link)
            volumes = {
                "planned": None if flow is None else float(flow["bytes"]),
                "measured": None if seen is None else seen.bytes,
            }
            found[link] = {
                kind: {
                    "bytes_per_second": volume,
                    "cost": None if volume is None or flow is None else volume * flow["distance"],
                }
                for kind, volume in volumes.items()
            }
    return found


def _sum(values: Iterable[float | None]) -> float | None:
    """Returns the sum of the known values; None if none is known."""
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def troubles(root: Root, orders: Orders) -> list[str]:
    """Returns the problems of a deployment with their remedies; empty if it was stopped."""
    status = plain_status(root, orders)
    if status["stopped"]:
        return []
    found = []
    if not status["controller"]["alive"]:
        found.append(
            "no controller is running: start 'anabranch deploy' with the same files and root; operators continue"
        )
    found += [f"the controller cannot {doing}: {error}" for doing, error in status["controller"]["errors"].items()]
    found += [
        f"site '{site}' has not started yet: start it with 'anabranch site {site} --root …', or deploy with --local"
        for site, state in status["sites"].items()
        if state == "not started"
    ]
    found += [
        f"site '{site}' does not respond: start it with 'anabranch site {site} --root …', "
        f"or replace its joins with 'anabranch deploy replan --without {site} --root …'"
        for site, state in status["sites"].items()
        if state == "silent"
    ]
    found += [
        f"operator '{name}' at '{one['site']}' failed and is started again: {one['error']}"
        for name, one in status["operators"].items()
        if one.get("error")
    ]
    found += [
        f"link '{name}' cannot be reached: check the site of its producer, or the place of the links"
        for name in status["unreachable"]
    ]
    found += [
        f"link '{name}' is closed: {link['closed']}; remove the query of its reader and add it again"
        for name, link in status["links"].items()
        if link["closed"]
    ]
    return found


def _clusters(root: Root, silent: set[str]) -> list[list[dict[str, Any]]]:
    """Returns the clusters used for planning, by level, with the current coordinator."""
    plan = root.read("plan.json") or {}
    known = plan.get("hierarchies") or [{"levels": []}]
    return [
        [
            {
                **cluster,
                "acting": next((n for n in [cluster["coordinator"], *cluster["backups"]] if n not in silent), None),
            }
            for cluster in clusters
        ]
        for clusters in known[0]["levels"]
    ]


def measured_landscape(root: Root, orders: Orders, topology: Topology) -> Landscape:
    """Returns the running operators, with the recent bytes per second of event time on their links."""
    wanted, rates = orders.wanted, flow_rates(root)
    nothing = View((), frozenset())
    operators = {}
    for name, spec in wanted.operators.items():
        wires = [wanted.wiring.wires[name, taken.stream] for taken in spec.inputs]
        inputs = tuple(
            Input(
                stretch.producer, nothing, (), rates[wire.link(stretch)].bytes if wire.link(stretch) in rates else 0.0
            )
            for wire in wires
            for stretch in wire.stretches[-1:]
        )
        shown = f"@{spec.serves}" if spec.kind == GATE else name
        operators[name] = Operator(shown, topology.position(spec.site), nothing, inputs)
    # The picture labels a source with the name of its stream.
    streams = {spec.name: f"@{spec.serves}" for spec in wanted.operators.values() if spec.kind == GATE}
    named = {
        streams.get(name, name): replace(
            one,
            inputs=tuple(replace(each, producer=streams.get(each.producer, each.producer)) for each in one.inputs),
        )
        for name, one in operators.items()
    }
    return Landscape(topology, Statistics({}), named)


Rows: TypeAlias = list[tuple[str, ...]]

OPERATORS = ("site", "operator", "state", "runner", "batch", "rows in", "rows out", "late", "state size")
LINKS = (
    *("from", "to", "state", "lag", "rows", "bytes", "retained"),
    *("bytes/s planned", "measured", "cost planned", "measured"),
)
TEXTS = 3
"""The columns of both tables that are texts; all others are numbers."""


def status_rows(status: Mapping[str, Any]) -> tuple[Rows, Rows]:
    """Returns the rows of OPERATORS and of LINKS; the last row of LINKS is their sum."""
    operators = []
    for name, one in status["operators"].items():
        where = status["sites"][one["site"]]
        state = "waiting" if one["waiting"] else "runs" if one.get("active") else "starting"
        if one.get("error"):
            state = one["error"].partition("\n")[0][:60]
        operators.append(
            (
                one["site"] if where == "alive" else f"{one['site']} ({where})",
                name,
                state,
                *(_shown(one.get(key)) for key in ("runner", "batch", "rows_in", "rows_out", "late")),
                size_text(one.get("state_bytes") or 0),
            )
        )
    links = []
    for name, link in status["links"].items():
        producer, _, reader = name.partition("--")
        links.append(
            (
                producer,
                reader,
                "closed" if link["closed"] else "open",
                *(f"{link[key]:,}" for key in ("lag", "rows")),
                size_text(link["bytes"]),
                size_text(link["retained"]),
                *(_rounded(link[kind][each]) for each in ("bytes_per_second", "cost") for kind in PLANNED_MEASURED),
            )
        )
    blanks = [""] * (len(LINKS) - 3)
    links.append(("all", *blanks, *(_rounded(status["cost"][kind]) for kind in PLANNED_MEASURED)))
    if (month := status["monthly"]) is not None:
        prices = (_rounded(month[kind], 2) for kind in PLANNED_MEASURED)
        links.append((f"{month['currency']} a month", *blanks, *prices))
    return operators, links


def status_table(root: Root, orders: Orders) -> Group:
    """Returns operators and links, for a terminal."""
    status = plain_status(root, orders)
    change = ", changing" if status["changing"] else ""
    waits = f"\nwaiting for {'; '.join(status['waits'])}" if status["waits"] else ""
    titles = f"version {status['version']}{change}{waits}", "links"
    tables = []
    for title, columns, rows in zip(titles, (OPERATORS, LINKS), status_rows(status), strict=True):
        table = Table(title=title)
        for number, column in enumerate(columns):
            table.add_column(column, overflow="fold", justify="left" if number < TEXTS else "right")
        for row in rows:
            table.add_row(*row)
        tables.append(table)
    return Group(*tables)


def _rounded(value: float | None, digits: int = 0) -> str:
    return "-" if value is None else f"{value:,.{digits}f}"


def _shown(value: Any) -> str:
    return "-" if value is None or value == -1 else str(value)
