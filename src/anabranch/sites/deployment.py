"""A deployment from Python: start it, request changes, read its status.

The controller and local sites are separate processes, as with `anabranch deploy`. So a program may end while the
deployment continues, and another program may control it by its root folder.

Limit: a request waits for the controller, which serves one at a time.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from anabranch.errors import SiteError
from anabranch.sites.client import request
from anabranch.sites.root import Orders, Root
from anabranch.sites.view import plain_status, troubles


class Deployment:
    """A deployment in a root folder. As a context it is stopped at the end.

    >>> with Deployment.start("network.yaml", "queries.yaml", "root", links="sites") as airline:  # doctest: +SKIP
    ...     airline.add("more.yaml")
    ...     airline.wait(lambda status: not status["changing"])
    """

    def __init__(self, root: str | Path) -> None:
        self._root = Root(str(root))
        self._controller: subprocess.Popen[bytes] | None = None

    @classmethod
    def start(
        cls,
        network: str | Path,
        queries: str | Path,
        root: str | Path,
        *,
        local: bool = True,
        links: str | None = None,
        replan: str = "ask",
        options: Iterable[str] = (),
    ) -> Deployment:
        """Starts a controller and, if `local`, the sites; returns when the queries are deployed.

        `options` are further options of `anabranch deploy`. The output is in `controller.log` in the root.
        """
        made = cls(root)
        words = [sys.executable, "-m", "anabranch", "deploy", str(network), str(queries), "--root", str(root)]
        words += ["--replan", replan, *(["--local"] if local else []), *(["--links", links] if links else []), *options]
        log = Path(root) / "controller.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as output:
            made._controller = subprocess.Popen(words, stdout=output, stderr=output, stdin=subprocess.DEVNULL)
        while made._root.holder("controller") is None or made._root.orders() is None:
            if made._controller.poll() is not None:
                said = log.read_text(errors="replace")[-2000:]
                raise SiteError("the deployment did not start", detail=said, hint="correct the files, and start again")
            time.sleep(0.1)
        return made

    def __enter__(self) -> Deployment:
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    def add(self, queries: str | Path, *, dry_run: bool = False) -> str:
        """Adds the queries of a file; returns the controller's reply."""
        return request(self._root, "add", file=str(Path(queries).resolve()), dry=dry_run)

    def remove(self, query: str, *, dry_run: bool = False) -> str:
        """Removes a query."""
        return request(self._root, "remove", query=query, dry=dry_run)

    def replan(self, *, without: Iterable[str] = (), dry_run: bool = False) -> str:
        """Replans all queries by measured rates, without some sites; deploys the plan if it pays."""
        return request(self._root, "replan", without=list(without), dry=dry_run)

    def network(self, file: str | Path) -> str:
        """Switches to another network file."""
        return request(self._root, "network", file=str(Path(file).resolve()))

    def stop(self) -> None:
        """Stops all operators and the controller; a new start with the same root continues."""
        if self._root.holder("controller") is not None:
            request(self._root, "stop")
        if self._controller is not None:
            self._controller.wait()

    @property
    def status(self) -> dict[str, Any]:
        """Returns the value of `anabranch deploy status --json`."""
        return plain_status(self._root, self._orders)

    @property
    def troubles(self) -> list[str]:
        """The problems of the deployment, each with its remedy."""
        return troubles(self._root, self._orders)

    def wait(self, until: Callable[[dict[str, Any]], object], seconds: float = 600.0) -> None:
        """Waits until the status satisfies `until`; raises SiteError with the problems after the given time."""
        end = time.monotonic() + seconds
        while not until(self.status):
            if time.monotonic() > end:
                found = "; ".join([*self.troubles, *self.status["waits"]]) or "no problem is known"
                raise SiteError(
                    f"the deployment has not reached the expected status after {seconds:g} seconds", detail=found
                )
            time.sleep(0.5)

    @property
    def _orders(self) -> Orders:
        orders = self._root.orders()
        if orders is None:
            raise SiteError(f"nothing is deployed in '{self._root.location}'", hint="start with 'Deployment.start'")
        return orders
