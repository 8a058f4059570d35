"""A network on this machine: a network namespace for each site, a pair of virtual interfaces for each link.

A site has one address, on its loopback interface; rows between two sites take the shortest path by cost, through the
namespaces between them, as they are planned. The controller has a namespace with a direct line to every site, which is
not counted. The kernel counts the bytes of each link, `tbf` limits its rate, and setting an interface down cuts it.

Needs Debian's `iproute2` and the right to make namespaces (root).
"""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from anabranch.place.topology import Topology

CONTROL, PORT = "control", 7070
_numbers = itertools.count()


class NoRights(Exception):
    """This machine cannot emulate a network, so nothing can be shown on it."""


def _ip(*words: object) -> str:
    done = subprocess.run(["ip", *map(str, words)], capture_output=True, text=True, check=False)
    if done.returncode:
        raise NoRights(f"ip {' '.join(map(str, words))}: {done.stderr.strip()}")
    return done.stdout


class Network:
    """The namespaces and links of a topology; a context."""

    def __init__(self, topology: Topology) -> None:
        self.topology = topology
        self._prefix = f"ab{os.getpid()}-{next(_numbers)}-"
        self._made: list[str] = []
        self._ends: dict[tuple[str, str], str] = {}
        """By site and neighbour: the interface."""
        self._address: dict[tuple[str, str], str] = {}

    def __enter__(self) -> Network:
        try:
            self._make()
        except (NoRights, FileNotFoundError) as error:
            self.__exit__(None, None, None)
            raise NoRights(str(error)) from error
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for space in self._made:
            subprocess.run(["ip", "netns", "del", space], capture_output=True, check=False)

    def space(self, site: str) -> str:
        return f"{self._prefix}{site}"

    def address(self, site: str) -> str:
        """Returns the address of a site, which others see whatever path they take."""
        return f"10.8.0.{self.topology.position(site) + 1}"

    def start(self, site: str, words: list[str], log: Path, **variables: str) -> subprocess.Popen[bytes]:
        """Starts a process of Python in the namespace of a site."""
        with log.open("ab") as output:
            return subprocess.Popen(
                ["ip", "netns", "exec", self.space(site), sys.executable, *words],
                cwd=log.parent,
                stdout=output,
                stderr=output,
                stdin=subprocess.DEVNULL,
                env={**os.environ, **variables},
            )

    # --- links --------------------------------------------------------------------------------------------------------

    def bytes(self) -> dict[tuple[str, str], int]:
        """Returns the bytes that each link has carried so far, in both directions, by the kernel's counters."""
        return {
            (link.left, link.right): sum(
                int(self._link(one, other)["stats64"]["tx"]["bytes"])
                for one, other in ((link.left, link.right), (link.right, link.left))
            )
            for link in self.topology.links
        }

    def cost(self, carried: Mapping[tuple[str, str], int]) -> float:
        """Returns bytes times the costs of their links."""
        return sum(link.cost * carried[link.left, link.right] for link in self.topology.links)

    def limit(self, one: str, other: str, rate: str) -> None:
        """Limits the rate of a link, such as 200kbit."""
        for here, there in ((one, other), (other, one)):
            self._tc(here, "replace", "dev", self._ends[here, there], "root", "tbf", "rate", rate, "burst", "16kb")

    def unlimit(self, one: str, other: str) -> None:
        for here, there in ((one, other), (other, one)):
            self._tc(here, "del", "dev", self._ends[here, there], "root")

    def cut(self, one: str, other: str) -> None:
        _ip("-n", self.space(one), "link", "set", self._ends[one, other], "down")

    def heal(self, one: str, other: str) -> None:
        _ip("-n", self.space(one), "link", "set", self._ends[one, other], "up")
        self._route(one)  # the kernel forgets the routes of an interface that goes down

    # --- making -------------------------------------------------------------------------------------------------------

    def _make(self) -> None:
        names = [site.name for site in self.topology.sites]
        for name in (CONTROL, *names):
            _ip("netns", "add", self.space(name))
            self._made.append(self.space(name))
            _ip("-n", self.space(name), "link", "set", "lo", "up")
        for number, link in enumerate(self.topology.links):
            self._join(link.left, link.right, f"10.9.{number}")
        for number, name in enumerate(names):
            _ip("-n", self.space(name), "addr", "add", f"{self.address(name)}/32", "dev", "lo")
            self._sysctl(name, "net.ipv4.ip_forward=1")
            self._join(CONTROL, name, f"10.10.{number}")
            via = self._address[name, CONTROL]
            _ip("-n", self.space(CONTROL), "route", "add", self.address(name), "via", via)
        for name in names:
            self._route(name)

    def _join(self, one: str, other: str, net: str) -> None:
        """Makes a link between two namespaces."""
        number = len(self._ends)
        for end, (here, there) in enumerate(((one, other), (other, one))):
            self._ends[here, there] = f"v{number}{'ab'[end]}"
            self._address[here, there] = f"{net}.{end + 1}"
        left, right = self._ends[one, other], self._ends[other, one]
        spaces = self.space(one), self.space(other)
        _ip("link", "add", left, "netns", spaces[0], "type", "veth", "peer", "name", right, "netns", spaces[1])
        for here, there in ((one, other), (other, one)):
            device = self._ends[here, there]
            _ip("-n", self.space(here), "addr", "add", f"{self._address[here, there]}/24", "dev", device)
            _ip("-n", self.space(here), "link", "set", device, "up")

    def _route(self, site: str) -> None:
        """Sends what is for another site to the next one on the shortest path."""
        at = self.topology.position(site)
        for to, other in enumerate(self.topology.sites):
            if to == at:
                continue
            following = next(
                link.right if link.left == site else link.left
                for link in self.topology.links
                if site in link.ends
                and link.cost + self.topology.distance(self.topology.position((set(link.ends) - {site}).pop()), to)
                == self.topology.distance(at, to)
            )
            via, source = self._address[following, site], self.address(site)
            _ip("-n", self.space(site), "route", "replace", self.address(other.name), "via", via, "src", source)

    def _link(self, site: str, neighbour: str) -> dict[str, Any]:
        (found,) = json.loads(_ip("-n", self.space(site), "-j", "-s", "link", "show", self._ends[site, neighbour]))
        return dict(found)

    def _sysctl(self, site: str, setting: str) -> None:
        words = ["ip", "netns", "exec", self.space(site), "sysctl", "-qw", setting]
        if subprocess.run(words, capture_output=True, check=False).returncode:
            raise NoRights(f"'{setting}' cannot be set")

    def _tc(self, site: str, action: str, *words: str) -> None:
        options = ["latency", "2s"] if action == "replace" else []
        command = ["tc", "-n", self.space(site), "qdisc", action, *words, *options]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise NoRights(f"{' '.join(command)}: {done.stderr.strip()}")


def end(process: subprocess.Popen[bytes], signal_number: int = signal.SIGTERM) -> None:
    """Ends a process and waits for it."""
    if process.poll() is None:
        process.send_signal(signal_number)
    process.wait(timeout=60)
