"""A deployment that a test drives as a user does: files, the command, processes that are killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from random import Random
from typing import Any

import duckdb
import yaml

from examples.sites import show


class Deployed:
    """Sites of this machine, under a controller that is a process of its own."""

    def __init__(self, folder: Path, network: Mapping[str, Any], queries: Mapping[str, tuple[str, str]]) -> None:
        self.folder = folder
        self.second = 0
        self._chance = Random(1)
        self.controller: subprocess.Popen[bytes] | None = None
        self.sites: dict[str, subprocess.Popen[bytes]] = {}
        (folder / "network.yaml").write_text(yaml.safe_dump(dict(network)))
        self.write("queries.yaml", queries)

    def write(self, file: str, queries: Mapping[str, tuple[str, str]]) -> None:
        """A file of queries: by name, the sink and the text."""
        entries = [
            {"name": name, "sink": sink, "cql": cql, "into": {"format": "parquet", "path": f"out/{name}"}}
            for name, (sink, cql) in queries.items()
        ]
        (self.folder / file).write_text(yaml.safe_dump({"queries": entries}))

    # --- processes ----------------------------------------------------------------------------------------------------

    def deploy(self, *options: str) -> None:
        words = [sys.executable, "-m", "anabranch", "deploy", "network.yaml", "queries.yaml", "--root", "root"]
        with (self.folder / "controller.log").open("ab") as log:
            self.controller = subprocess.Popen([*words, *options], cwd=self.folder, stdout=log, stderr=log)

    def start_site(self, name: str) -> None:
        words = [sys.executable, "-m", "anabranch", "site", name, "--root", "root"]
        with (self.folder / f"{name}.log").open("ab") as log:
            self.sites[name] = subprocess.Popen(
                [*words, "--conf", "spark.driver.memory=512m"], cwd=self.folder, stdout=log, stderr=log
            )

    def kill_controller(self) -> None:
        assert self.controller is not None
        self.controller.kill()
        self.controller.wait()

    def kill_site(self, name: str) -> int:
        """Kills the process that has the lease of a site."""
        process = self.lease(f"site-{name}")["process"]
        os.kill(process, signal.SIGKILL)
        return int(process)

    def lease(self, owner: str) -> dict[str, Any]:
        path = self.folder / "root" / "leases" / f"{owner}.json"
        found: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
        return found

    def ask(self, *words: str) -> str:
        return show.anabranch("deploy", *words, "--root", "root", folder=self.folder)

    def end(self) -> list[int]:
        """Stops everything, and returns the processes that are left."""
        known = [lease["process"] for name in self._owners() if (lease := self.lease(name))]
        self.ask("stop")
        for process in (self.controller, *self.sites.values()):
            if process is not None:
                try:
                    process.wait(timeout=60)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()
        return [pid for pid in known if _is_running(pid)]

    def _owners(self) -> list[str]:
        return [path.stem for path in (self.folder / "root" / "leases").glob("*.json")]

    @property
    def leases(self) -> list[str]:
        return self._owners()

    # --- streams and answers ------------------------------------------------------------------------------------------

    def feed(self, seconds: int, streams: Iterable[str] = tuple(show.STREAMS)) -> None:
        for _ in range(seconds):
            show.write_second(self.folder, self.second, self._chance, streams)
            self.second += 1

    def status(self) -> dict[str, Any]:
        return show.status(self.folder)

    def results(self, query: str) -> int:
        return show.results(self.folder, query)

    def await_(
        self, what: str, is_true: Callable[[], object], *, feeding: Iterable[str] = (), seconds: float = 300
    ) -> None:
        """Waits, and feeds some streams meanwhile."""
        end = time.monotonic() + seconds
        while not is_true():
            assert time.monotonic() < end, f"not within {seconds:g} seconds: {what}\n{self.story()}"
            if feeding:
                self.feed(1, feeding)
            time.sleep(1)

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

    def late(self) -> int:
        return sum(one.get("late") or 0 for one in self.status()["operators"].values())

    def story(self) -> str:
        """What there is to read when something went wrong."""
        texts = [self.ask("status")]
        logs = [*self.folder.glob("*.log"), *self.folder.glob("root/logs/*.log")]
        texts += [f"--- {path.name}\n{path.read_text()[-1500:]}" for path in logs]
        return "\n".join(texts)


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


def _is_running(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
