"""A site: one process that runs the operators ordered by the controller.

It reads the controller's orders, starts and stops operators to match them, and reports. Gates, relays and deliveries
run in this process (`light`) if their files can be read and written without Spark; joins, groups, queries that run at
one site and all others run in one Spark application (`on_spark`), which is opened for the first of them. A site with
`runner: light` runs all operators in this process, and a site with `runner: spark` runs none there. An operator that
began on Spark stays there if the site has Spark.

A site may keep the checkpoints of its operators in a folder of its own, so that no state crosses the network. If that
folder is lost, its operators end in a named error, because they would repeat their results.

Invariant: if a site dies, its parent process restarts it, and it continues from the checkpoints with the same offsets
and the same link entries. Limit: one Spark application per site.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Protocol

import pyarrow as pa
import pyarrow.fs as pafs

from anabranch.errors import SiteError
from anabranch.run.links.directory import SCHEME, address
from anabranch.run.links.directory import announce as announce_address
from anabranch.run.links.flight import LinkServer
from anabranch.run.locations import locate
from anabranch.run.private import make_private
from anabranch.sites.light import LightOperator
from anabranch.sites.local_files import why_spark
from anabranch.sites.observed import newest_in
from anabranch.sites.operators import GROUPS, OperatorSpec
from anabranch.sites.root import LIGHT, SPARK, Orders, Root, now
from anabranch.sites.tally import Announce

if TYPE_CHECKING:
    from anabranch.spark.session import SparkSession

POLL = 0.3
"""Seconds between two reads of the orders."""
MOST_STARTING = 2
"""The maximum number of operators that start on Spark at the same time."""
SITE_SETTINGS = {
    # On a busy machine a new Python process may need longer than the default 15 seconds to connect to its JVM, and
    # Spark never retries a source whose process has given up.
    "spark.python.authenticate.socketTimeout": "120s",
}
"""Spark settings for a site with many operators."""


class RunningOperator(Protocol):
    """A running operator of a site, or one that waits to be restarted."""

    spec: OperatorSpec
    checkpoint: str

    @property
    def is_starting(self) -> bool: ...

    @property
    def is_stuck(self) -> bool:
        """True if it will never start and cannot be stopped either."""
        ...

    def follow(self, orders: Orders, may_start: bool) -> None:
        """Starts the operator if it does not run, and applies the orders."""
        ...

    def stop(self) -> None: ...

    def report(self) -> dict[str, Any]: ...


class Site:
    """The operators of one site; `session` opens its Spark session."""

    def __init__(
        self,
        root: Root,
        name: str,
        session: Callable[[], SparkSession],
        announce: Announce = lambda operator, phase, batch: None,
        *,
        store: str | None = None,
        listen: tuple[str, int] = ("127.0.0.1", 0),
        checkpoints: str | None = None,
    ) -> None:
        self.root, self.name, self._session = root, name, session
        self._announce = announce
        self._store = store or f"{root.location}/stores/{name}"
        self._listen = listen
        self._checkpoints = checkpoints
        self._begun: frozenset[str] = frozenset()
        """The checkpoints of its own that have a batch."""
        self._server: LinkServer | None = None
        self._running: dict[str, RunningOperator] = {}
        self._refused: dict[str, str] = {}
        """The errors of operators that cannot run here."""
        self._lease = root.lease(f"site-{name}")

    def run(self, until: Callable[[], bool] = lambda: False) -> None:
        """Runs until the deployment is stopped or `until` returns true."""
        self._begun = self.root.claim_checkpoints(self.name, self._checkpoints)
        if self._checkpoints is not None:
            make_private(self._checkpoints)
        self._lease.take()
        try:
            while not until():
                self._lease.renew()
                orders = self.root.orders()
                if orders is not None:
                    if orders.wanted.is_stopped:
                        return
                    self.follow(orders)
                self.report()
                time.sleep(POLL)
        finally:
            self.close()

    def close(self) -> None:
        """Stops all operators and releases the lease."""
        for running in self._running.values():
            running.stop()
        self._running.clear()
        if self._server is not None:
            self._server.shutdown()
        self.report(is_stopped=True)
        self._lease.release()

    def follow(self, orders: Orders) -> None:
        """Starts and stops operators as ordered."""
        wanted = {spec.name: spec for spec in orders.wanted.running if spec.site == self.name}
        for name, running in list(self._running.items()):
            # An operator removed and added between two reads is a new one.
            if name not in wanted or running.checkpoint != self._checkpoint(orders, name):
                self._running.pop(name).stop()
                if not orders.wanted.has_folder(_folder_of(running)):
                    # Otherwise another site has adopted it.
                    self._remove(running.checkpoint)
        self._refused = {}
        for name, spec in wanted.items():
            try:
                running = self._running.get(name) or self._made(spec, orders)
            except SiteError as error:
                self._refused[name] = str(error)
                continue
            self._running[name] = running
            if running.is_stuck:
                # Spark cannot stop such a query; the parent process starts a new site process.
                raise SiteError(f"operator '{name}' does not start", hint="start the site again")
            starting = sum(one.is_starting for one in self._running.values())
            # Links are served also while their operator waits to be restarted: its readers continue.
            running.follow(orders, self._has_links(spec, orders) and starting < MOST_STARTING)

    def report(self, *, is_stopped: bool = False) -> None:
        """Writes a report of the operators and their progress."""
        refused = {name: {"active": False, "version": -1, "error": error} for name, error in self._refused.items()}
        reports = {name: running.report() for name, running in self._running.items()}
        has_batch = {_folder_of(self._running[name]) for name, one in reports.items() if one["batch"] >= 0}
        if self._checkpoints is not None and not has_batch <= self._begun:
            self._begun |= has_batch
            self.root.note_checkpoints(self.name, self._checkpoints, self._begun)
        self.root.report(
            self.name,
            {
                "site": self.name,
                "at": now(),
                "stopped": is_stopped,
                "operators": refused | reports,
            },
        )

    def _checkpoint(self, orders: Orders, operator: str) -> str:
        if self._checkpoints is None:
            return self.root.checkpoint(orders.wanted, operator)
        return f"{self._checkpoints}/{orders.wanted.folder(operator)}"

    def _remove(self, checkpoint: str) -> None:
        files, path, _ = locate(checkpoint)
        with suppress(FileNotFoundError, pa.ArrowException):
            files.delete_dir(path)

    def _newest(self, folder: str) -> int | None:
        """Returns the newest event time in a checkpoint of this site."""
        return newest_in(f"{self._checkpoints or self.root.location + '/work'}/{folder}")

    def _made(self, spec: OperatorSpec, orders: Orders) -> RunningOperator:
        checkpoint = self._checkpoint(orders, spec.name)
        if self._checkpoints is not None:
            self._refuse_own(spec, orders, checkpoint)
        if runs_light(spec, orders, checkpoint):
            return LightOperator(self.root, spec, checkpoint, self._announce)
        # Imported here because a site without such operators needs no Spark.
        from anabranch.sites.on_spark import SparkOperator

        return SparkOperator(self.root, spec, checkpoint, self._session, self._announce)

    def _refuse_own(self, spec: OperatorSpec, orders: Orders, checkpoint: str) -> None:
        """Raises SiteError if the site cannot keep a checkpoint itself, or has lost it."""
        if not orders.place.startswith(SCHEME):
            raise SiteError(
                f"site '{self.name}' has checkpoints of its own, but its links are elsewhere",
                detail="a site that is replaced needs checkpoints that others can read",
                hint="deploy with '--links sites', or start the site without '--checkpoints'",
            )
        if checkpoint.rpartition("/")[2] in self._begun and not _has(checkpoint, "anabranch"):
            raise SiteError(
                f"the checkpoint of operator '{spec.name}' is not in '{checkpoint}'",
                detail="its window and its position in its inputs are lost",
                hint="restore the folder, or remove the queries that it serves and add them again",
            )

    def _has_links(self, spec: OperatorSpec, orders: Orders) -> bool:
        """Serves the links that this site keeps; returns True if all links that the operator reads are served."""
        if not orders.place.startswith(SCHEME):
            return True
        if self._server is None:
            make_private(self._store)
            self._server = LinkServer(self._store, *self._listen, self._newest)
        if address(orders.place, spec.name) != self._server.location:
            announce_address(orders.place, spec.name, self._server.location)
        wires = [orders.wanted.wiring.wires[spec.name, taken.stream] for taken in spec.inputs]
        producers = {stretch.producer for wire in wires for stretch in wire.stretches}
        return all(address(orders.place, producer) is not None for producer in producers)


def runs_light(spec: OperatorSpec, orders: Orders, checkpoint: str) -> bool:
    """Returns True if an operator runs without Spark; raises SiteError if the site's runner cannot run it."""
    runner, reason = orders.runners.get(spec.site), why_spark(spec, orders)
    if _has(checkpoint, "anabranch/offsets"):
        return True
    if runner == LIGHT:
        # A link has the same offset on Spark, but a source does not.
        reason = reason or ("it began on Spark" if not spec.inputs and _has(checkpoint, "spark") else None)
        if reason is not None:
            raise SiteError(
                f"operator '{spec.name}' needs Spark, and site '{spec.site}' has 'runner: light'",
                detail=reason,
                hint="remove 'runner: light' from the site in the network file",
            )
        return True
    if runner == SPARK or reason is not None or _has(checkpoint, "spark"):
        return False
    return spec.kind != GROUPS and len(spec.query.whole.names) == 1


def _folder_of(running: RunningOperator) -> str:
    return running.checkpoint.rpartition("/")[2]


def _has(checkpoint: str, folder: str) -> bool:
    files, path, _ = locate(checkpoint)
    return bool(files.get_file_info(f"{path}/{folder}").type == pafs.FileType.Directory)
