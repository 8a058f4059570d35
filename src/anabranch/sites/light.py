"""Runs operators in the process of their site, without Spark: each in a thread, on the in-process host.

Invariant: offsets, checkpoints and links are those of `local`, so a killed process repeats its batch exactly. An
operator without input, or whose link cannot be reached, waits; its earlier output stays in the store of its site.

Limit: an operator uses one slot.
"""

from __future__ import annotations

import threading
import time
from functools import partial
from typing import Any

from anabranch.adapt.settings import Settings
from anabranch.errors import LinkError
from anabranch.planning.choosing import change_rules, decide, first_plan
from anabranch.planning.options import AUTO
from anabranch.run.commit import rows_by_stream, rows_out
from anabranch.run.lease import Lease
from anabranch.run.links.outlet import Outlet
from anabranch.run.round import DIVERTED
from anabranch.settings.secrets import without_secrets
from anabranch.sites.local import LinkSource, LocalOperator, Source
from anabranch.sites.local_files import FileSource, ParquetResults, read_table
from anabranch.sites.operators import DELIVERY, GATE, OperatorSpec
from anabranch.sites.root import InletsOf, Orders, ReadersOf, Root, control_inlets
from anabranch.sites.tally import FIRST_PAUSE, LONGEST_PAUSE, Announce, Tally


class LightOperator:
    """A thread that runs an operator batch by batch, and recreates the operator from its checkpoint after an error."""

    is_starting = is_stuck = False

    def __init__(self, root: Root, spec: OperatorSpec, checkpoint: str, announce: Announce) -> None:
        self.spec, self.checkpoint = spec, checkpoint
        self._root, self._announce = root, announce
        self._tally = Tally()
        self._operator: LocalOperator | None = None
        self._lease: Lease | None = None
        self._error: str | None = None
        self._version = -1
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._work, name=spec.name, daemon=True)

    def follow(self, orders: Orders, may_start: bool) -> None:
        """Starts the thread, which reads later orders itself."""
        if may_start and self._thread.ident is None:
            self._thread.start()

    def stop(self) -> None:
        """Ends the thread after its current batch."""
        self._ending.set()
        if self._thread.ident is not None:
            self._thread.join()
        self._drop()

    def report(self) -> dict[str, Any]:
        operator = self._operator
        host = None if operator is None else operator.host
        reports = {} if host is None else host.reports
        clocks = None if host is None else host.clocks
        return {
            "runner": "light",
            "kind": self.spec.kind,
            "serves": self.spec.serves,
            "active": host is not None,
            "batch": -1 if host is None else host.batch - 1,
            "version": self._version,
            "newest": None if clocks is None else clocks.newest,
            "watermark": None if clocks is None else clocks.known_watermark,
            "plan": None if host is None else str(host.plan),
            "rows_in": sum(rows_by_stream(host.queries, reports).values()) if host is not None and reports else None,
            "rows_out": rows_out(host.queries, reports) if host is not None and reports else None,
            "state_bytes": host.statistics.state_bytes if host is not None else None,
            "refused": sorted(operator.outlet.refused) if operator is not None else [],
            "error": self._error,
            **self._tally.to_json(),
        }

    def _work(self) -> None:
        pause, failing = 0.0, FIRST_PAUSE
        while not self._ending.wait(pause):
            began = time.monotonic()
            try:
                orders = self._root.orders()
                if orders is None or self.spec.name not in orders.wanted.operators:
                    return
                self._run(orders)
            except Exception as error:
                self._error = without_secrets(str(error)[:2000])
                if self._operator is not None and self._operator.host.is_broken:
                    self._drop()
                # A link is often reachable again soon, and checking it costs little.
                pause = FIRST_PAUSE if isinstance(error, LinkError) else failing
                failing = min(2 * failing, LONGEST_PAUSE)
                self._tally.hear()
                continue
            self._error, failing, self._version = None, FIRST_PAUSE, orders.wanted.version
            pause = max(0.0, orders.interval - (time.monotonic() - began))

    def _run(self, orders: Orders) -> None:
        """Runs a batch if there is input."""
        operator = self._operator or self._made(orders)
        if self._operator is None:
            self._operator = operator
            self._tally.hear()
            self._tally.newest = operator.host.clocks.newest
        late = sum(operator.host.late.values())
        if operator.advance():
            host = operator.host
            rows = sum(rows_by_stream(host.queries, host.reports).values())
            clocks = host.clocks
            self._tally.add(rows, sum(host.late.values()) - late, clocks.known_watermark, clocks.newest)

    def _made(self, orders: Orders) -> LocalOperator:
        spec = self.spec
        choice = decide(spec.query, AUTO)
        adapt = Settings() if len(spec.query.graph.names) > 2 else None
        operator = LocalOperator(
            spec,
            self.checkpoint,
            self._source(orders),
            first_plan(choice),
            outlet=Outlet(orders.place, ReadersOf(self._root, spec.name), orders.limit),
            rules=change_rules(spec.query, AUTO, choice, adapt=adapt),
            tables={name: read_table(orders.sources[name.lower()]) for name in spec.query.whole.tables},
        )
        store = operator.host.store
        assert store is not None
        self._lease = Lease(store)
        operator.host.announce = self._phase
        if spec.kind == DELIVERY:
            sink = orders.sinks[spec.serves]
            assert sink.path is not None
            owner = str((store.metadata() or {})["identity"])
            operator.results = ParquetResults(sink.path, dict(sink.options), owner)
        return operator

    def _source(self, orders: Orders) -> Source:
        name = self.spec.name
        if self.spec.kind != GATE:
            return LinkSource(name, orders.place, InletsOf(self._root.location, name))
        control = LinkSource(name, orders.place, partial(control_inlets, self.spec))
        stream = self.spec.query.graph.relations[0].stream
        return FileSource(orders.sources[self.spec.serves], stream, self.checkpoint, control)

    def _phase(self, phase: str, batch: int) -> None:
        """Refuses to commit a batch if another process has taken the operator over."""
        if phase == DIVERTED and self._lease is not None:
            self._lease.require()
        self._announce(self.spec.name, phase, batch)

    def _drop(self) -> None:
        if self._operator is not None:
            self._operator.host.threads.shutdown()
        if self._lease is not None:
            self._lease.close()
        self._operator = self._lease = None
