"""The folder of a deployment: the controller's orders, the sites' reports, and the leases of writers.

    <root>/wanted.json              the operators, their wiring, sources and sinks; the controller writes it
    <root>/plan.json                the landscape behind it, for the next change; the controller's own
    <root>/controller.json          the errors of the controller, by what it was doing
    <root>/waits.json               what the changes under way wait for
    <root>/leases/<owner>.json      one for each site and for the controller, renewed by its live owner
    <root>/status/<site>.json       what a site runs and how far it is
    <root>/links/<link>/…           the links, unless they are elsewhere
    <root>/addresses/<operator>.json  the site that serves the links of an operator, if sites keep them
    <root>/work/<operator>/…        the checkpoint of an operator, unless its site keeps it
    <root>/checkpoints/<site>.json  where a site keeps its checkpoints (null: here), and which of them have a batch

A lease that is not renewed for `LEASE` seconds is free. Files are renamed into place, so readers see complete ones.

Invariant: one process at a time holds a lease. Limit: clocks of the machines must agree within `LEASE` seconds.
"""

from __future__ import annotations

import json
import os
import time
import uuid
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa
import pyarrow.fs as pafs

from anabranch.errors import SiteError
from anabranch.run.links.directory import place_of
from anabranch.run.links.feed import Inlet, Segment
from anabranch.run.links.outlet import Reader
from anabranch.run.locations import UNKNOWN, locate
from anabranch.run.private import make_private
from anabranch.sites.codec import decode, encode
from anabranch.sites.operators import OperatorSpec, control_link
from anabranch.sites.wanted import Wanted
from anabranch.spec.model import SinkSpec, StreamSpec

ERRORS, WAITS = "controller.json", "waits.json"
LIGHT, SPARK = RUNNERS = ("light", "spark")
"""The runner of a site, if its network file names one."""
LEASE = 15.0
"""Seconds after which a lease that was not renewed is free."""


@dataclass(frozen=True)
class Orders:
    """All information that the sites need."""

    wanted: Wanted
    sources: Mapping[str, StreamSpec] = field(default_factory=dict)
    sinks: Mapping[str, SinkSpec] = field(default_factory=dict)
    place: str = ""
    """The location of the links."""
    interval: float = 0.5
    """Seconds between two batches of an operator."""
    limit: int = 1 << 30
    """Bytes that a link retains for an inactive reader."""
    runners: Mapping[str, str] = field(default_factory=dict)
    """By site: LIGHT or SPARK, where the network file says so."""


_KNOWN: dict[str, tuple[bytes, Orders]] = {}
"""By root: the last orders that this process has read, and their text."""


class Root:
    """The folder of a deployment, on any file system that Arrow supports."""

    def __init__(self, location: str) -> None:
        try:
            self._files, self._path, _ = locate(location)
        except UNKNOWN as error:
            raise SiteError(f"the root '{location}' cannot be opened", detail=str(error)) from error
        is_local = isinstance(self._files, pafs.LocalFileSystem)
        self.location = self._path.rstrip("/") if is_local else location.rstrip("/")

    @property
    def default_place(self) -> str:
        return f"{self.location}/links"

    @property
    def place_at_sites(self) -> str:
        """The place of links that the sites of their producers keep and serve."""
        return place_of(f"{self.location}/addresses")

    def claim_checkpoints(self, site: str, folder: str | None) -> frozenset[str]:
        """Records where a site keeps its checkpoints; returns those that have a batch.

        Raises SiteError if the site has kept them elsewhere.
        """
        known = self.read(f"checkpoints/{site}.json")
        if known is None:
            self.note_checkpoints(site, folder, ())
            return frozenset()
        if known["folder"] != folder:
            kept, given = ("the root" if each is None else f"'{each}'" for each in (known["folder"], folder))
            raise SiteError(
                f"site '{site}' keeps its checkpoints in {kept}, not in {given}",
                detail="in another folder its operators would begin again and repeat their results",
                hint="start it with the same '--checkpoints' as before",
            )
        return frozenset(known["begun"])

    def note_checkpoints(self, site: str, folder: str | None, begun: Iterable[str]) -> None:
        """Writes where a site keeps its checkpoints, and which of them have a batch."""
        self.write(f"checkpoints/{site}.json", {"folder": folder, "begun": sorted(begun)})

    def checkpoint(self, wanted: Wanted, operator: str) -> str:
        return f"{self.location}/work/{wanted.folder(operator)}"

    # --- orders and reports -------------------------------------------------------------------------------------------

    def orders(self) -> Orders | None:
        """Returns the controller's orders; None before the first."""
        text = self._text("wanted.json")
        if text is None:
            return None
        # Sites and sources poll several times a second; an unchanged text is parsed once.
        known = _KNOWN.get(self.location)
        if known is None or known[0] != text:
            known = _KNOWN[self.location] = text, _orders(json.loads(text))
        return known[1]

    def order(self, orders: Orders) -> None:
        wanted = {name: encode(getattr(orders.wanted, name)) for name in Wanted.__dataclass_fields__}
        self.write(
            "wanted.json",
            {
                "wanted": wanted,
                "sources": {name: _of_stream(each) for name, each in orders.sources.items()},
                "sinks": {name: {**each.__dict__} for name, each in orders.sinks.items()},
                "place": orders.place,
                "interval": orders.interval,
                "limit": orders.limit,
                "runners": dict(orders.runners),
            },
        )

    def status(self, site: str) -> dict[str, Any] | None:
        """Returns the last report of a site."""
        return self.read(f"status/{site}.json")

    def report(self, site: str, status: Mapping[str, Any]) -> None:
        self.write(f"status/{site}.json", status)

    # --- leases -------------------------------------------------------------------------------------------------------

    def lease(self, owner: str) -> Lease:
        return Lease(self, owner)

    def holder(self, owner: str) -> dict[str, Any] | None:
        """Returns the live holder of a lease, if any."""
        found = self.read(f"leases/{owner}.json")
        return found if found is not None and now() - found["renewed"] < LEASE else None

    def sites_alive(self) -> list[str]:
        """Returns the sites whose lease is held."""
        owners = [name.removesuffix(".json") for name in self.names("leases") if name.endswith(".json")]
        return [owner[5:] for owner in owners if owner.startswith("site-") and self.holder(owner) is not None]

    def stop(self, orders: Orders) -> None:
        """Orders all sites to stop."""
        self.order(replace(orders, wanted=replace(orders.wanted, is_stopped=True)))

    # --- files --------------------------------------------------------------------------------------------------------

    def read(self, path: str) -> dict[str, Any] | None:
        text = self._text(path)
        value: dict[str, Any] | None = None if text is None else json.loads(text)
        return value

    def _text(self, path: str) -> bytes | None:
        try:
            with self._files.open_input_stream(f"{self._path}/{path}") as stream:
                found: bytes = stream.read()
        except FileNotFoundError:
            return None
        return found

    def write(self, path: str, value: Mapping[str, Any]) -> None:
        target = f"{self._path}/{path}"
        partial = f"{target}.{uuid.uuid4().hex}.partial"
        make_private(self.location)
        try:
            self._files.create_dir(target.rpartition("/")[0], recursive=True)
            with self._files.open_output_stream(partial) as stream:
                stream.write(json.dumps(value).encode())
            self._files.move(partial, target)
        except OSError as error:
            raise SiteError(
                f"'{target}' cannot be written", detail=str(error), hint="check the root folder and its space"
            ) from error

    def names(self, folder: str) -> list[str]:
        """Returns the files in a folder."""
        selector = pafs.FileSelector(f"{self._path}/{folder}", allow_not_found=True)
        return [info.base_name for info in self._files.get_file_info(selector) if info.is_file]

    def remove(self, path: str) -> None:
        """Removes a file or a folder, if it exists."""
        with suppress(FileNotFoundError):
            self._files.delete_file(f"{self._path}/{path}")


class Lease:
    """The right to act as a site or as the controller; one process at a time holds it."""

    def __init__(self, root: Root, owner: str) -> None:
        self._root = root
        self.owner = owner
        self._mark = uuid.uuid4().hex
        self._renewed = 0.0

    def take(self) -> None:
        """Takes the lease; raises SiteError if a live process holds it."""
        self.refuse_living()
        self._write()

    def refuse_living(self) -> None:
        """Raises SiteError if a live process holds the lease."""
        holder = self._root.holder(self.owner)
        if holder is not None and holder["mark"] != self._mark:
            raise SiteError(
                f"'{self.owner}' is already running",
                detail=f"process {holder['process']} on '{holder['machine']}' has its lease",
                hint=f"stop that process first; a lease expires {LEASE:g} seconds after its process has died",
            )

    def renew(self) -> None:
        """Renews the lease when due; raises SiteError if another process has taken it over."""
        if now() - self._renewed < LEASE / 5:
            return
        holder = self._root.read(f"leases/{self.owner}.json")
        if holder is None or holder["mark"] != self._mark:
            raise SiteError(f"'{self.owner}' has lost its lease to another process", hint="let that process continue")
        self._write()

    def release(self) -> None:
        holder = self._root.read(f"leases/{self.owner}.json")
        if holder is not None and holder["mark"] == self._mark:
            self._root.remove(f"leases/{self.owner}.json")

    def _write(self) -> None:
        self._renewed = now()
        self._root.write(
            f"leases/{self.owner}.json",
            {"mark": self._mark, "process": os.getpid(), "machine": os.uname().nodename, "renewed": self._renewed},
        )


@dataclass(frozen=True)
class InletsOf:
    """The inlets of an operator in the latest orders; pickled and sent to Spark's process for the source."""

    root: str
    operator: str

    def __call__(self) -> Sequence[Inlet]:
        orders = Root(self.root).orders()
        if orders is None or self.operator not in orders.wanted.operators:
            raise SiteError(f"operator '{self.operator}' is no longer part of the deployment")
        return orders.wanted.wiring.inlets(orders.wanted.operators[self.operator])


@dataclass(frozen=True)
class ReadersOf:
    """The readers of an operator in the latest orders."""

    root: Root
    operator: str

    def __call__(self) -> Sequence[Reader]:
        orders = self.root.orders()
        return () if orders is None else orders.wanted.wiring.readers(self.operator)


def control_inlets(gate: OperatorSpec) -> Sequence[Inlet]:
    """Returns the link that sends the progress of other gates to a silent gate; its ticks are rows without values."""
    stream = gate.query.graph.relations[0].stream
    return (Inlet(stream, pa.schema([]), (), (Segment(control_link(gate.name)),)),)


def _orders(value: Mapping[str, Any]) -> Orders:
    return Orders(
        Wanted(**{name: decode(each) for name, each in value["wanted"].items()}),
        {name: _stream(each) for name, each in value["sources"].items()},
        {name: _sink(each) for name, each in value["sinks"].items()},
        value["place"],
        value["interval"],
        value["limit"],
        value["runners"],
    )


def now() -> float:
    """Returns the wall-clock time in seconds; only leases, heartbeats and idle streams depend on it."""
    return time.time()  # noqa: TID251


def _stream(value: Mapping[str, Any]) -> StreamSpec:
    pairs = {name: _pairs(value[name]) for name in ("options", "select") if name in value}
    return StreamSpec(**{**value, **pairs, "schema": decode(value["schema"])})


def _of_stream(stream: StreamSpec) -> dict[str, Any]:
    return {**stream.__dict__, "schema": encode(stream.schema)}


def _sink(value: Mapping[str, Any]) -> SinkSpec:
    return SinkSpec(**{**value, "options": _pairs(value["options"]), "partition_by": tuple(value["partition_by"])})


def _pairs(value: list[list[str]]) -> tuple[tuple[str, str], ...]:
    return tuple((name, setting) for name, setting in value)
