"""The controller of a deployment: plans, writes orders, drives changes to completion, and starts local sites.

It is stateless: the wanted state and the plan are files, so another controller can replace a failed one
while operators continue. Requests of other commands (`add`, `remove`, …) are files as well; the controller writes each
reply to a file beside the request.

Invariant: an error ends neither the controller nor the sites that it has started. It is written to `controller.json`,
where `status` finds it, and the failed action is retried. A controller ends only when it has lost its lease.
"""

from __future__ import annotations

import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from anabranch.errors import AnabranchError, ChangePending, LinkError, SiteError
from anabranch.lang.window import FOREVER
from anabranch.place.learnt import Learnt
from anabranch.place.spec import Network, load_network
from anabranch.run.links.directory import SCHEME
from anabranch.settings.secrets import without_secrets
from anabranch.sites.compile import compile_program
from anabranch.sites.files import QueryFile, load_query_file, load_sources
from anabranch.sites.measured import learn, take_sample
from anabranch.sites.observed import Observed, silent_sites
from anabranch.sites.operators import GATE, Program, control_link
from anabranch.sites.plan_state import Planned, judged
from anabranch.sites.root import ERRORS, WAITS, Orders, Root, now
from anabranch.sites.waiting import gates_of, ticks, waits
from anabranch.sites.wanted import Wanted, adopted, changed, progressed
from anabranch.spec.model import StreamSpec

REPLAN_EVERY = 60.0
"""Seconds between two attempts of a controller that replans by itself; the samples span as much."""


class Controller:
    """The only process that may change a deployment."""

    def __init__(
        self,
        root: Root,
        network: Network,
        sources: Mapping[str, StreamSpec],
        file: str = "",
        *,
        replans: bool = False,
    ) -> None:
        self.root, self.network, self.sources = root, network, sources
        self._file = file
        self._replans, self._replanned = replans, now()
        self._lease = root.lease("controller")
        self.log: list[str] = []
        self._errors: dict[str, str] = {}
        """The last error of each action, until the action succeeds."""
        self._sites: dict[str, subprocess.Popen[bytes]] = {}
        self._waiting = -1
        """The version of the deployment in which a request had to wait."""

    def __enter__(self) -> Controller:
        self._lease.take()
        self.root.remove(ERRORS)
        return self

    def __exit__(self, *error: object) -> None:
        for process in self._sites.values():
            process.terminate()
        for process in self._sites.values():
            process.wait(timeout=60)
        self._lease.release()

    # --- deployment ---------------------------------------------------------------------------------------------------

    @property
    def orders(self) -> Orders:
        found = self.root.orders()
        if found is None:
            raise SiteError(f"nothing is deployed in '{self.root.location}'", hint="start with 'anabranch deploy'")
        return found

    @property
    def planned(self) -> Planned:
        value = self.root.read("plan.json")
        if value is None:
            raise SiteError(f"nothing is deployed in '{self.root.location}'", hint="start with 'anabranch deploy'")
        orders = self.root.orders()
        silent = frozenset() if orders is None else frozenset(silent_sites(self.root, orders))
        return replace(Planned.from_json(value, self.network), silent=silent)

    def begin(self, planned: Planned, queries: tuple[QueryFile, ...], settings: Orders) -> None:
        """Deploys queries in an empty root; an existing deployment continues unchanged."""
        known = self.root.orders()
        if known is not None:
            # Read here, so that a network file that does not fit the deployment starts nothing.
            names = self.planned.queries
            self.root.order(replace(known, wanted=replace(known.wanted, is_stopped=False), runners=settings.runners))
            self.log.append(f"continues with version {known.wanted.version}: {', '.join(names) or 'no query'}")
            return
        planned = planned.with_hierarchies()
        for query in queries:
            planned = planned.with_query(query)
        program = compile_program(planned.landscape, self.network.catalog)
        self._keep(planned, program)
        wanted = changed(Wanted(), program)
        sinks = {name: query.into for name, query in planned.queries.items()}
        self.root.order(replace(settings, wanted=wanted, sources=self.sources, sinks=sinks))
        self.log.append(f"deployed {len(queries)} queries as {len(program.operators)} operators")

    def change(self, planned: Planned) -> None:
        """Orders the difference between the running plan and another plan."""
        orders = self.orders
        program = compile_program(planned.landscape, self.network.catalog)
        wanted = changed(orders.wanted, program)
        self._retire(orders.wanted, wanted, Observed(self.root, orders))
        self._keep(planned, program)
        sinks = {**orders.sinks, **{name: query.into for name, query in planned.queries.items()}}
        self.root.order(replace(orders, wanted=wanted, sources=self.sources, sinks=sinks))

    def _keep(self, planned: Planned, program: Program) -> None:
        """Writes the plan, with the estimates that `status` compares with measured flows."""
        flows = [
            {"reader": reader, "stream": stream, "bytes": flow.bytes, "distance": flow.distance}
            for (reader, stream), flow in program.flows.items()
        ]
        own = {"network": self._file, "currency": self.network.currency, "flows": flows}
        self.root.write("plan.json", {**planned.to_json(), **own})

    def _remember(self, measured: Planned) -> None:
        """Writes what was measured of the running plan; under other sizes its groups may belong elsewhere, though."""
        program = compile_program(measured.landscape, self.network.catalog)
        if frozenset(program.operators) == self.orders.wanted.target:
            self._keep(measured, program)

    @contextmanager
    def surviving(self, doing: str) -> Iterator[None]:
        """Reports an error instead of raising it; the report is cleared when the same action succeeds."""
        failure = None
        try:
            yield
        except Exception as error:
            failure = _error_text(error)
            if failure != self._errors.get(doing):
                self._log_error(f"cannot {doing}", error)
        if failure == self._errors.get(doing):
            return
        others = {name: text for name, text in self._errors.items() if name != doing}
        self._errors = others if failure is None else {**others, doing: failure}
        with suppress(SiteError):  # the root itself may be unwritable
            self.root.write(ERRORS, self._errors)

    def _log_error(self, what: str, error: Exception) -> None:
        """Logs an error; for errors other than Anabranch's, also the traceback."""
        self.log.append(f"{what}: {_error_text(error)}")
        if not isinstance(error, AnabranchError):
            self.log.append(without_secrets("".join(traceback.format_exception(error)).rstrip()))

    def step(self) -> None:
        """Runs one control step: advances a change and serves requests."""
        self._lease.renew()
        with self.surviving("take the change further"):
            orders = self.orders
            wanted = progressed(orders.wanted, Observed(self.root, orders))
            if wanted is not orders.wanted:
                self.root.order(replace(orders, wanted=wanted))
                self._retire(orders.wanted, wanted, Observed(self.root, orders))
        with self.surviving("answer requests"):
            self._adopt_lost()
            self._answer_one()
        with self.surviving("follow the sites"):
            orders = self.orders
            seen = Observed(self.root, orders)
            self._explain(orders, seen)
            self._wake_silent_gates(orders, seen)
            self._remove_retired(orders)
            take_sample(self.root, orders)
        if self._replans and now() - self._replanned >= REPLAN_EVERY and not self.orders.wanted.is_changing:
            self._replanned = now()
            with self.surviving("replan"):
                said = self._replan([], False)
                if said.startswith("replanned"):
                    self.log.append(said)

    def _wake_silent_gates(self, orders: Orders, seen: Observed) -> None:
        """Sends each silent gate the event time that it is to move to."""
        for name, tick in ticks(gates_of(orders, seen)).items():
            link = seen.link(control_link(name))
            known = link.status().tick
            if known is None or tick > known:
                link.append(link.last() + 1, (), tick)

    def _explain(self, orders: Orders, seen: Observed) -> None:
        """Writes what the changes under way wait for, where `status` and waiting commands find it."""
        found = waits(orders, seen)
        if found != (self.root.read(WAITS) or {"waits": []})["waits"]:
            self.root.write(WAITS, {"waits": found})

    def _retire(self, before: Wanted, after: Wanted, seen: Observed) -> None:
        """Records the links without readers, with the last batch of their reader."""
        retired = self.root.read("retired.json") or {}
        for key, wire in before.wiring.wires.items():
            now_read = after.wiring.wires.get(key)
            kept = {now_read.link(stretch) for stretch in now_read.stretches} if now_read is not None else set()
            report = seen.operator(wire.reader)
            for link in {wire.link(stretch) for stretch in wire.stretches} - kept:
                retired[link] = {"reader": wire.reader, "batch": report["batch"] if report is not None else 0}
        self.root.write("retired.json", retired)

    def _remove_retired(self, orders: Orders) -> None:
        """Removes retired links that no replay of their reader can need; retries links that are still written to.

        One batch of the reader may have been planned with the old wiring; after the next batch is committed, no offset
        names the link.
        """
        retired = self.root.read("retired.json")
        if not retired:
            return
        seen, left = Observed(self.root, orders), {}
        for link, note in retired.items():
            report = seen.operator(note["reader"]) if note["reader"] in orders.wanted.operators else None
            is_needed = note["reader"] in orders.wanted.operators
            is_asked_for = is_needed and (report is None or report["batch"] < note["batch"] + 2)
            if is_asked_for or not _is_removed(seen, link):
                left[link] = note
        if left != retired:
            self.root.write("retired.json", left)

    # --- local sites --------------------------------------------------------------------------------------------------

    def keep_sites(self, command: Callable[[str], list[str]], output: Path) -> None:
        """Starts every site that has an operator but no live process, as a child process."""
        wanted = self.orders.wanted
        for site in sorted({spec.site for spec in wanted.operators.values()}):
            child, lease = self._sites.get(site), self.root.holder(f"site-{site}")
            if child is not None and child.poll() is not None:
                self.log.append(f"site '{site}' ended with status {child.returncode} and is started again")
                if lease is not None and lease["process"] == child.pid:
                    # Its process is known to be dead, so waiting for the lease to expire is unnecessary.
                    self.root.remove(f"leases/site-{site}.json")
                    lease = None
            if lease is None and (child is None or child.poll() is not None):
                output.mkdir(parents=True, exist_ok=True)
                with (output / f"{site}.log").open("ab") as log:
                    self._sites[site] = subprocess.Popen(
                        command(site), stdout=log, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True
                    )

    @property
    def children(self) -> dict[str, int]:
        """The processes of the sites that this controller has started."""
        return {site: process.pid for site, process in self._sites.items()}

    def await_sites(self, seconds: float = 60.0) -> bool:
        """Waits until all child processes have ended; returns whether they have."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if all(process.poll() is not None for process in self._sites.values()):
                return True
            time.sleep(0.2)
        return False

    # --- requests -----------------------------------------------------------------------------------------------------

    def _requests(self) -> dict[str, dict[str, Any]]:
        names = sorted(name for name in self.root.names("requests") if name.endswith(".json"))
        return {name: request for name in names if (request := self.root.read(f"requests/{name}")) is not None}

    def _answer_one(self) -> None:
        """Serves the oldest request, or one to stop; a request that must wait is tried again after each step of a
        change.
        """
        for name, request in self._requests().items():
            version = self.orders.wanted.version
            if self._waiting == version and request["kind"] != "stop":
                continue
            try:
                answer = {"done": self._obey(request)}
            except ChangePending:
                self._waiting = version
                continue
            except Exception as error:
                answer = {"error": _error_text(error)}
                self._log_error(f"cannot {request['kind']}", error)
            self.root.remove(f"requests/{name}")
            self.root.write(f"answers/{name}", answer)
            return

    def _adopt_lost(self) -> None:
        """Assigns the joins of a lost site to the nearest live one, as soon as a request declares it lost.

        Also during a change, which could not complete without them.
        """
        lost = {site for request in self._requests().values() for site in request.get("without", ())}
        for site in sorted(lost & set(self.network.landscape.topology.positions)):
            self._adopt(site)

    def _refuse_lost_links(self, sites: Iterable[str]) -> None:
        """Refuses to replace a dead site that keeps links, because only that site has the rows that it has not
        delivered.
        """
        orders = self.orders
        for site in sites:
            if not orders.place.startswith(SCHEME) or self.root.holder(f"site-{site}") is not None:
                continue
            if any(spec.site == site for spec in orders.wanted.operators.values()):
                raise SiteError(
                    f"site '{site}' does not respond and keeps its links itself, so it cannot be replaced",
                    detail="only its store has the rows that it has not delivered",
                    hint="start it again with its store; to be able to replace sites, deploy with links in a folder",
                )

    def _adopt(self, site: str) -> None:
        orders = self.orders
        if self.root.holder(f"site-{site}") is not None or orders.place.startswith(SCHEME):
            return
        by = self._nearest_living(site, orders.wanted)
        wanted = orders.wanted if by is None else adopted(orders.wanted, site, by)
        if wanted is not orders.wanted:
            # A process that was only slow ends itself when it loses its lease.
            self.root.remove(f"leases/site-{site}.json")
            self.root.order(replace(orders, wanted=wanted))
            self.log.append(f"site '{site}' does not respond; '{by}' continues its joins")

    def _nearest_living(self, lost: str, wanted: Wanted) -> str | None:
        topology = self.network.landscape.topology
        working = {spec.site for spec in wanted.operators.values()} - {lost}
        streams = self.network.landscape.statistics.streams
        bounds = [streams[one.serves].stays_at for one in wanted.operators.values() if one.kind == GATE]
        working = working.intersection(*(bound for bound in bounds if bound is not None and lost in bound))
        living = [name for name in self.root.sites_alive() if name in working]
        at = topology.position(lost)
        return min(living, key=lambda name: (topology.distance(at, topology.position(name)), name), default=None)

    def _obey(self, request: Mapping[str, Any]) -> str:
        match request["kind"]:
            case "add":
                planned = self.planned
                added = load_query_file(Path(request["file"]), self.network)
                for query in added:
                    planned = planned.with_query(query)
                if request.get("dry"):
                    return self._effect(planned)
                self.change(planned)
                return f"adding {', '.join(query.query.name for query in added)}"
            case "remove":
                planned = self.planned.without_query(request["query"])
                if request.get("dry"):
                    return self._effect(planned)
                self.change(planned)
                return f"removing {request['query']}"
            case "replan":
                self._refuse_lost_links(request.get("without", []))
                return self._replan(request.get("without", []), bool(request.get("dry")))
            case "network":
                return self._change_network(Path(request["file"]))
            case "stop":
                self.root.stop(self.orders)
                return "stopping"
        raise SiteError(f"the request '{request['kind']}' is not known")

    def _effect(self, after: Planned) -> str:
        """Describes a change without making it: the network usage, and the operators that start, move and stop."""
        before, wanted = self.planned, self.orders.wanted
        old, new = before.measured(after.learnt).landscape.cost, after.landscape.cost
        program = compile_program(after.landscape, self.network.catalog)
        started = {name: spec.site for name, spec in program.operators.items() if name not in wanted.operators}
        stopped = {name: spec.site for name, spec in wanted.operators.items() if name not in program.operators}
        wires = changed(wanted, program).wiring.wires.values()
        moved = {wire.reader: wire.stretches[-1].producer for wire in wires if len(wire.stretches) > 1}
        lines = [f"network usage goes from {old:,.0f} to {new:,.0f} ({new - old:+,.0f} bytes a second times link cost)"]
        lines += [f"starts '{name}' at '{site}'" for name, site in started.items()]
        lines += [f"'{reader}' is handed over to '{producer}'" for reader, producer in moved.items()]
        lines += [f"stops '{name}' at '{site}'" for name, site in stopped.items()]
        if moved:
            lines.append(f"both run side by side for {_longest_range(wanted) / 1e6:g} seconds of event time")
        return "\n".join([*lines, "nothing was changed"])

    def _replan(self, without: list[str], is_dry: bool) -> str:
        planned, learnt = self.planned, self.learnt()
        seconds = _longest_range(self.orders.wanted) / 1e6
        after = planned.replanned(learnt, without, seconds)
        measured = planned.measured(learnt)
        verdict = judged(measured, after, seconds)
        is_taken = verdict.is_taken or bool(without)
        if is_dry:
            return f"{'would replan' if is_taken else 'would keep the plan'}: {verdict.reason}\n{self._effect(after)}"
        if not is_taken:
            self._remember(measured)
            return f"kept: {verdict.reason}"
        self.change(after)
        return f"replanned: {verdict.reason}"

    def _change_network(self, file: Path) -> str:
        """Switches to another network file: other links, capacities, statistics or sites."""
        network, sources = load_network(file), load_sources(file)
        self._refuse_lost_links(
            set(self.network.landscape.topology.positions) - set(network.landscape.topology.positions)
        )
        before = self.planned.on(network)
        seconds = _longest_range(self.orders.wanted) / 1e6
        after = before.replanned(self.learnt(), (), seconds)
        verdict = judged(before, after, seconds)
        sites = {site.name for site in self.network.landscape.topology.sites}
        for site in sorted(sites - set(network.landscape.topology.positions)):
            self._adopt(site)
        known = self.network, self.sources, self._file
        self.network, self.sources, self._file = network, sources, str(file)
        try:
            self.change(after if verdict.is_taken else before)
        except Exception:
            self.network, self.sources, self._file = known
            raise
        came = sorted(set(network.landscape.topology.positions) - sites)
        gone = sorted(sites - set(network.landscape.topology.positions))
        changes = [f"{word} {', '.join(names)}" for word, names in (("came", came), ("went", gone)) if names]
        said = "replanned" if verdict.is_taken else "kept"
        inside = f" ({'; '.join(changes)})" if changes else ""
        return f"the network is as '{file.name}' says{inside}; {said}: {verdict.reason}"

    def learnt(self) -> Learnt:
        """Returns the statistics that the running operators show."""
        planned = self.planned
        program = compile_program(planned.landscape, self.network.catalog)
        return learn(self.root, self.orders, program, planned.landscape.statistics, self.network.catalog)


def _is_removed(seen: Observed, link: str) -> bool:
    """Removes a link; returns False if it is still written to, or its site does not answer."""
    try:
        return seen.link(link).remove()
    except LinkError:
        return False


def _error_text(error: Exception) -> str:
    """Returns the text of an error for users."""
    return without_secrets(str(error) if isinstance(error, AnabranchError) else f"{type(error).__name__}: {error}")


def _longest_range(wanted: Wanted) -> int:
    ranges = [
        part.range
        for spec in wanted.operators.values()
        for relation in spec.query.whole.relations
        for part in relation.parts
        if part.range < FOREVER
    ]
    return max(ranges, default=0)


def site_command(root: Root, master: str, settings: Mapping[str, str]) -> Callable[[str], list[str]]:
    """Returns the command that runs a site on this machine."""
    options = [word for key, value in settings.items() for word in ("--conf", f"{key}={value}")]
    before = [sys.executable, "-m", "anabranch", "site"]
    return lambda site: [*before, site, "--root", root.location, "--master", master, *options]
