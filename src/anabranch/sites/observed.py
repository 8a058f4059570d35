"""The observed state of a deployment's sites, operators and links, read from its files.

Invariant: reading changes nothing. Limit: a link at a site that does not report is unknown.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from anabranch.errors import LinkError
from anabranch.run.links.directory import SCHEME, address
from anabranch.run.links.flight import FlightLink
from anabranch.run.links.link import Link, LinkStatus
from anabranch.run.links.place import open_link
from anabranch.run.store import Store
from anabranch.sites.root import LEASE, Orders, Root, now


class Observed:
    """The observed state of the sites and the links."""

    def __init__(self, root: Root, orders: Orders) -> None:
        self._root, self._orders = root, orders
        self._status = {site: root.status(site) for site in {spec.site for spec in orders.wanted.operators.values()}}

    def operator(self, name: str) -> dict[str, Any] | None:
        status = self._status.get(self._orders.wanted.operators[name].site)
        found: dict[str, Any] | None = None if status is None else status["operators"].get(name)
        return found

    def age(self, operator: str) -> float:
        """Returns the seconds since the last report of an operator's site."""
        status = self._status.get(self._orders.wanted.operators[operator].site)
        return float("inf") if status is None else now() - float(status["at"])

    def has_version(self, operator: str, version: int) -> bool:
        report = self.operator(operator)
        return report is not None and report["version"] >= version

    def newest(self, gate: str) -> int | None:
        # From the manifest, not the report, because it has every committed batch. Its site may be the only reader.
        if not self._orders.place.startswith(SCHEME):
            return newest_in(self._root.checkpoint(self._orders.wanted, gate))
        at = address(self._orders.place, gate)
        return None if at is None else FlightLink(at, self._orders.wanted.folder(gate)).newest()

    def link(self, name: str) -> Link:
        return open_link(self._orders.place, name, self._orders.limit)


def newest_in(checkpoint: str) -> int | None:
    """Returns the newest event time that an operator has committed; None before the first row."""
    manifest = Store(checkpoint).latest(is_used=False)
    return None if manifest is None else manifest.clocks.newest


def flows(root: Root, orders: Orders) -> dict[str, LinkStatus]:
    """Returns the status of every reachable link; links at sites that do not report are left out."""
    wanted = orders.wanted
    away = set(silent_sites(root, orders)) if orders.place.startswith(SCHEME) else set()
    found = {}
    for operator, spec in wanted.operators.items():
        for reader in wanted.wiring.readers(operator) if spec.site not in away else ():
            with suppress(LinkError):
                found[reader.link] = open_link(orders.place, reader.link, orders.limit).status()
    return found


def silent_sites(root: Root, orders: Orders) -> list[str]:
    """Returns the sites with operators that have not reported recently."""
    found = []
    for site in sorted({spec.site for spec in orders.wanted.operators.values()}):
        status = root.status(site)
        if status is None or now() - status["at"] > LEASE:
            found.append(site)
    return found
