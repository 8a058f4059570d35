"""A deployment on Spark that a test drives: its sites are threads with one Spark session, its controller is the test.

Everything but the processes is as users have it: files, requests, links, checkpoints, leases. Sites that are processes
of their own, and are killed, cost a JVM each; `test_sites_on_spark` has them.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from random import Random
from typing import Any

import duckdb
import yaml
from pyspark.sql import SparkSession

from anabranch.errors import SiteError
from anabranch.sites.client import request
from anabranch.sites.controller import Controller
from anabranch.sites.files import load_files
from anabranch.sites.plan_state import Planned
from anabranch.sites.root import Orders, Root
from anabranch.sites.site import Site
from anabranch.sites.view import plain_status
from anabranch.sites.wanted import Wanted
from examples.sites import show

LAG = 20
"""Seconds of event time that gates may be behind the rows that are written."""


class Deployed:
    """Sites of one session, and the controller of their deployment."""

    def __init__(
        self,
        folder: Path,
        spark: SparkSession | None,
        network: Mapping[str, Any],
        queries: Mapping[str, tuple[str, str]],
    ) -> None:
        self.folder, self._spark = folder, spark
        self.second = 0
        self._chance = Random(1)
        self.root = Root(str(folder / "root"))
        self._ending: dict[str, threading.Event] = {}
        self._threads: dict[str, threading.Thread] = {}
        self.failed: dict[str, BaseException] = {}
        """By site: the error that ended it."""
        (folder / "network.yaml").write_text(yaml.safe_dump(dict(network)))
        self.write("queries.yaml", queries)
        self.controller = self.new_controller()

    def write(self, file: str, queries: Mapping[str, tuple[str, str]]) -> None:
        """A file of queries: by name, the sink and the text."""
        entries = [
            {"name": name, "sink": sink, "query": cql, "into": {"format": "parquet", "path": f"out/{name}"}}
            for name, (sink, cql) in queries.items()
        ]
        (self.folder / file).write_text(yaml.safe_dump({"queries": entries}))

    # --- the controller and the sites ---------------------------------------------------------------------------------

    def new_controller(self) -> Controller:
        """Another controller; the one of before is gone without having said so."""
        self.is_headless = True
        files = load_files(self.folder / "network.yaml", self.folder / "queries.yaml")
        self.controller = Controller(self.root, files.network, files.sources, str(self.folder / "network.yaml"))
        return self.controller

    def begin(self, links: str | None = None) -> None:
        """Takes the lease and deploys, or goes on with what is deployed."""
        files = load_files(self.folder / "network.yaml", self.folder / "queries.yaml")
        self.controller.__enter__()
        planned = Planned(files.network.landscape, planner="exhaustive")
        settings = Orders(Wanted(), place=links or self.root.default_place, interval=0.1, runners=files.runners)
        self.controller.begin(planned, files.queries, settings)
        self.is_headless = False

    def _session(self) -> SparkSession:
        assert self._spark is not None, "an operator needs Spark"
        return self._spark

    def start_site(self, name: str, checkpoints: str | None = None) -> None:
        ending = self._ending[name] = threading.Event()

        def work() -> None:
            try:
                Site(self.root, name, self._session, checkpoints=checkpoints).run(ending.is_set)
            except BaseException as error:
                self.failed[name] = error

        self._threads[name] = threading.Thread(target=work, name=f"site {name}", daemon=True)
        self._threads[name].start()

    def end_site(self, name: str) -> None:
        """The site stops, for good."""
        self._ending.pop(name).set()
        self._threads.pop(name).join(timeout=120)

    def ask(self, kind: str, **details: Any) -> str:
        """The controller's answer to a request, or the error."""
        try:
            return request(self.root, kind, wait=self.step, **details)
        except SiteError as error:
            return str(error)

    def step(self) -> None:
        """One look of the controller, if there is one."""
        if not self.is_headless:
            self.controller.step()
        time.sleep(0.1)
        assert not self.failed, f"sites failed: {self.failed}"

    def end(self) -> None:
        """Stops everything."""
        self.root.stop(self.controller.orders)
        for thread in self._threads.values():
            thread.join(timeout=120)
        self.controller.__exit__()

    # --- streams and answers ------------------------------------------------------------------------------------------

    def feed(self, seconds: int, streams: Iterable[str] = tuple(show.STREAMS)) -> None:
        for _ in range(seconds):
            show.write_second(self.folder, self.second, self._chance, streams)
            self.second += 1

    def status(self) -> dict[str, Any]:
        return plain_status(self.root, self.controller.orders)

    def results(self, query: str) -> int:
        return show.results(self.folder, query)

    def await_(
        self, what: str, is_true: Callable[[], object], *, feeding: Iterable[str] = (), seconds: float = 600
    ) -> None:
        """Waits, and feeds some streams meanwhile, as fast as the sites take the rows."""
        end = time.monotonic() + seconds
        while not is_true():
            assert time.monotonic() < end, f"not within {seconds:g} seconds: {what}\n{self.story()}"
            if feeding and self._has_taken(feeding):
                self.feed(1, feeding)
            for _ in range(3):
                self.step()

    def _has_taken(self, streams: Iterable[str]) -> bool:
        """True when the gates of some streams are not far behind the rows that were written."""
        gates = {name.partition(".")[0]: one for name, one in self.status().get("operators", {}).items()}
        marks = [gates.get(f"gate-{stream}", {}).get("watermark") for stream in streams]
        return all(mark is None or mark >= 1_000_000 * (show.START + self.second - LAG) for mark in marks)

    def await_settled(self) -> None:
        """Feeds the streams until the change at hand is through."""
        self.await_("the change is through", self.is_settled, feeding=show.STREAMS)

    def is_settled(self) -> bool:
        return self.status().get("changing") is False

    def await_answer(self, query: str, wanted: str | Callable[[], str], given: str = "*") -> None:
        def is_right() -> bool:
            return not self.difference(query, wanted if isinstance(wanted, str) else wanted(), given)

        self.await_(f"'{query}' has its answer", is_right)

    def difference(self, query: str, wanted: str, given: str = "*") -> list[Any]:
        """Some rows that are missing or too many, against a query for DuckDB over all files; `micros` is their time."""
        path = self.folder / "out" / query
        if not any(path.glob("part-*")):
            return ["no results"]
        connection = duckdb.connect()
        for stream in show.STREAMS:
            text = f"SELECT *, epoch_us(CAST(ts AS TIMESTAMPTZ)) AS micros FROM read_json('{self.data(stream)}')"
            connection.execute(f"CREATE TABLE {stream} AS {text}")
        connection.execute(f"CREATE TABLE given AS SELECT {given} FROM read_parquet('{path}/part-*')")
        connection.execute(f"CREATE TABLE wanted AS {wanted}")
        both = "(SELECT * FROM {} EXCEPT ALL SELECT * FROM {})"
        found = f"{both.format('wanted', 'given')} UNION ALL {both.format('given', 'wanted')}"
        return connection.execute(f"SELECT * FROM ({found}) LIMIT 5").fetchall()

    def data(self, stream: str) -> str:
        return f"{self.folder}/data/{stream}/*.json"

    def answered(self, query: str) -> int:
        """The last boundary that a grouped query has answered, in microseconds; its column is `upto`."""
        if not self.results(query):
            return 0
        path = self.folder / "out" / query
        ((last,),) = duckdb.execute(f"SELECT max(epoch_us(upto)) FROM read_parquet('{path}/part-*')").fetchall()
        return int(last)

    def errors(self) -> list[str]:
        return [one["error"] for one in self.status()["operators"].values() if one.get("error")]

    def late(self) -> int:
        return sum(one.get("late") or 0 for one in self.status()["operators"].values())

    def story(self) -> str:
        """What there is to read when something went wrong."""
        operators = self.status()["operators"]
        shown = ("batch", "active", "rows_in", "watermark", "waiting", "error")
        return "\n".join(f"{name} { ({key: one.get(key) for key in shown}) }" for name, one in operators.items())


def join_of(selected: str, ranges: Mapping[str, int], since: tuple[int, int] = (show.EVER, show.EVER)) -> str:
    """A join by flight for DuckDB; `ranges` in seconds, by stream, flights first.

    `since`: the least event time of the newest row of a result, and of any.
    """
    first, *others = ranges
    newest = f"greatest({', '.join(f'{stream}.micros' for stream in ranges)})"
    where = [f"{newest} - {stream}.micros <= {1_000_000 * seconds}" for stream, seconds in ranges.items()]
    where += [f"{first}.num = {other}.flight" for other in others]
    where += [f"{newest} >= {since[0]}", *(f"{stream}.micros >= {since[1]}" for stream in ranges)]
    return f"SELECT {selected} FROM {', '.join(ranges)} WHERE {' AND '.join(where)}"


def counts_of(stream: str, answered: int) -> str:
    """For DuckDB: how often each flight meets a stream within ten and five seconds, every five seconds."""
    bounds = f"SELECT unnest(generate_series(({show.START} // 5) * 5, {answered // 1_000_000}, 5)) * 1000000 AS bound"
    inside = "flights.micros BETWEEN bound - 10000000 AND bound AND other.micros BETWEEN bound - 5000000 AND bound"
    return (
        f"SELECT flights.num, count(*) AS n, bound FROM ({bounds}), flights, {stream} AS other "
        f"WHERE flights.num = other.flight AND {inside} GROUP BY ALL"
    )
