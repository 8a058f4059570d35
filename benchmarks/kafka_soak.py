"""`python -m benchmarks.kafka_soak [--minutes 10]`: Kafka in, Delta out, with faults; is every result there once?

A mock cluster gets rows of two topics at a fixed pace. `anabranch run` joins them into a Delta table, in processes of
its own. Five times the whole driver is killed and started again; once the broker is stopped for twenty seconds; and
where there are executors of their own (`--executors`), one is killed. At the end DuckDB computes the batch answer over
the rows that were sent.

Invariant: a fault comes when the run has committed batches since the last one, so each meets a running query. Limit:
the mock cluster keeps five megabytes of a partition, so a driver must not stand still for minutes.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from time import monotonic, sleep
from typing import Any

import deltalake
import duckdb
import psutil
import pyarrow as pa

from tests.support.kafka_broker import Cluster, broker

KILLS, STOPPED_SECONDS, STEP = 5, 20.0, 0.5
"""How often the driver is killed, how long the broker stands still, and the seconds between two writes to a topic."""
PARTITIONS, ROWS_PER_SECOND, KEYS, WINDOW = 4, 200, 500, 10
"""Of each topic; the window is in seconds."""
BEGIN = 1_767_261_600_000
"""2026-01-01T10:00:00Z in milliseconds: the event time of the first row."""
PATIENCE = 180.0
SPEC = """
streams:
  a: {{format: kafka, schema: "ms bigint, k bigint, v bigint", select: {{ts: timestamp_millis(ms), k: k, v: v}},
      event_time: ts, watermark: 5 minutes,
      options: {{kafka.bootstrap.servers: "{brokers}", subscribe: a, startingOffsets: earliest,
                maxOffsetsPerTrigger: 5000}}}}
  b: {{format: kafka, schema: "ms bigint, k bigint, v bigint", select: {{ts: timestamp_millis(ms), k: k, v: v}},
      event_time: ts, watermark: 5 minutes,
      options: {{kafka.bootstrap.servers: "{brokers}", subscribe: b, startingOffsets: earliest,
                maxOffsetsPerTrigger: 5000}}}}
query: SELECT a.v AS av, b.v AS bv FROM a [RANGE {window} SECONDS], b [RANGE {window} SECONDS] WHERE a.k = b.k
sink: {{format: delta, path: {folder}/out}}
checkpoint: {folder}/checkpoint
trigger: {trigger}
slots: 2
"""


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.kafka_soak", description="Kafka to Delta, with faults.")
    parser.add_argument("--minutes", type=float, default=10, help="how long (10)")
    parser.add_argument("--executors", action="store_true", help="two executors of their own, one of which is killed")
    parser.add_argument("--seed", type=int, default=1, help="of the moments at which faults come")
    options = parser.parse_args(arguments)
    # The query is in a session of its own, and must not outlive this.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    with (
        tempfile.TemporaryDirectory(prefix="anabranch-kafka-soak-") as folder,
        broker({"a": PARTITIONS, "b": PARTITIONS}) as cluster,
    ):
        run = _Run(Path(folder), cluster, options.executors, Random(options.seed))
        run.through(60 * options.minutes)
        text, holds = _exactness(Path(folder), run.sent)
    print(f"{'ok    ' if holds else 'MISSED'} {text}; faults: {', '.join(run.faults)}")
    return int(not holds)


@dataclass
class _Run:
    """The rows that are sent, and the faults that happen meanwhile."""

    folder: Path
    cluster: Cluster
    has_executors: bool
    random: Random
    sent: int = 0
    """Rows of each topic."""
    faults: list[str] = field(default_factory=list)
    _began: float = field(default_factory=monotonic)

    def through(self, seconds: float) -> None:
        """Feeds for that long, with faults at even distances; then the query reads what is left, and ends."""
        faults = ["kill"] * KILLS
        faults.insert(2, "stop")
        faults[4:4] = ["executor"] if self.has_executors else []
        with self._driver() as first:
            driver = first
            for number, fault in enumerate(faults, 1):
                self._feed(driver, self._began + seconds * number / (len(faults) + 1))
                self._until_committed(driver)
                self.faults.append(f"{fault} after batch {self._batches()[-1]}")
                print(
                    f"{monotonic() - self._began:6.0f} s, {self.sent} rows of each topic: {self.faults[-1]}", flush=True
                )
                match fault:
                    case "stop":
                        self.cluster.process.send_signal(signal.SIGSTOP)
                        sleep(STOPPED_SECONDS)
                        self.cluster.process.send_signal(signal.SIGCONT)
                    case "executor":
                        self._kill_executor(driver)
                    case _:
                        _end(driver)
                        driver = self._started("500 milliseconds")
                        self._drivers.append(driver)
            self._feed(driver, self._began + seconds)
            self._until_committed(driver)
            _end(driver)
        with self._driver("available_now") as last:
            if last.wait(PATIENCE):
                raise SystemExit(f"the last run ended with {last.returncode}: {self._log()}")

    _drivers: list[subprocess.Popen[bytes]] = field(default_factory=list)

    @contextmanager
    def _driver(self, trigger: str = "500 milliseconds") -> Iterator[subprocess.Popen[bytes]]:
        """A run of the query; whatever of it is left at the end is killed."""
        self._drivers = [self._started(trigger)]
        try:
            yield self._drivers[0]
        finally:
            for each in self._drivers:
                _end(each)

    def _started(self, trigger: str) -> subprocess.Popen[bytes]:
        spec = self.folder / "spec.yaml"
        spec.write_text(SPEC.format(brokers=self.cluster.bootstrap, folder=self.folder, window=WINDOW, trigger=trigger))
        self._since = len(self._batches()) and self._batches()[-1] + 1
        command = [sys.executable, "-m", "anabranch", "run", str(spec)]
        if self.has_executors:
            command += ["--master", "local-cluster[2,1,1024]"]
        with (self.folder / "log.txt").open("ab") as log:
            return subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)

    _since: int = 0
    """The batch that the latest run begins with."""

    def _feed(self, driver: subprocess.Popen[bytes], until: float) -> None:
        """Sends rows until a moment; the event time of a row follows from its number."""
        while (now := monotonic()) < until:
            self._require_running(driver)
            self._send(round(STEP * ROWS_PER_SECOND))
            sleep(max(0.0, now + STEP - monotonic()))

    def _send(self, count: int) -> None:
        rows = range(self.sent, self.sent + count)
        for topic in ("a", "b"):
            values = [json.dumps(_row(topic, number)).encode() for number in rows]
            for partition in range(PARTITIONS):
                self.cluster.send(topic, values[partition::PARTITIONS], partition=partition)
        self.sent += count

    def _until_committed(self, driver: subprocess.Popen[bytes]) -> None:
        """Feeds on until the latest run has committed some batches, and for a moment more."""
        begun = monotonic()
        wanted = self._since + self.random.randint(1, 4)
        while not self._batches() or self._batches()[-1] < wanted:
            if monotonic() > begun + PATIENCE:
                raise SystemExit(f"no batch in {PATIENCE:.0f} seconds: {self._log()}")
            self._feed(driver, monotonic() + STEP)
        sleep(self.random.random())

    def _batches(self) -> list[int]:
        found = (self.folder / "checkpoint" / "anabranch" / "manifests").glob("*.json")
        return sorted(int(path.stem) for path in found)

    def _kill_executor(self, driver: subprocess.Popen[bytes]) -> None:
        several = [
            each
            for each in psutil.Process(driver.pid).children(recursive=True)
            if each.name() == "java" and any("CoarseGrainedExecutorBackend" in part for part in each.cmdline())
        ]
        self.random.choice(several).kill()

    def _require_running(self, driver: subprocess.Popen[bytes]) -> None:
        if driver.poll() is not None:
            raise SystemExit(f"the query ended by itself with code {driver.returncode}: {self._log()}")

    def _log(self) -> str:
        return (self.folder / "log.txt").read_text(errors="replace")[-2000:]


def _end(driver: subprocess.Popen[bytes]) -> None:
    """Kills a driver, its JVM, its executors and its workers at once, as when a machine loses power."""
    if driver.poll() is None:
        children = psutil.Process(driver.pid).children(recursive=True)
        os.killpg(driver.pid, signal.SIGKILL)
        for each in children:
            # Executors may be in groups of their own.
            if each.is_running():
                each.kill()
    driver.wait()


def _row(topic: str, number: int) -> dict[str, int]:
    # Rows of a topic come up to two seconds out of order.
    delay = number * 7919 % 2000
    key = number * (104729 if topic == "a" else 15485863) % KEYS
    return {"ms": BEGIN + number * 1000 // ROWS_PER_SECOND - delay, "k": key, "v": number}


def _exactness(folder: Path, sent: int) -> tuple[str, bool]:
    """Compares the Delta table with the batch answer."""
    with duckdb.connect() as database:
        for topic in ("a", "b"):
            rows = pa.Table.from_pylist([_row(topic, number) for number in range(sent)])
            database.register(topic, rows)
        database.register("found", deltalake.DeltaTable(str(folder / "out")).to_pyarrow_table())
        database.execute(
            "CREATE TABLE expected AS SELECT a.v AS av, b.v AS bv FROM a, b "
            f"WHERE a.k = b.k AND abs(a.ms - b.ms) <= {WINDOW * 1000}"
        )
        missing, extra = (
            _number(database, f"SELECT COUNT(*) FROM (FROM {one} EXCEPT ALL FROM {other})")
            for one, other in (("expected", "found"), ("found", "expected"))
        )
        expected = _number(database, "SELECT COUNT(*) FROM expected")
    text = f"{expected} results of {sent} rows of each topic, {missing} missing, {extra} too many"
    return text, missing == extra == 0 < expected


def _number(database: Any, sql: str) -> int:
    return int(database.execute(sql).fetchone()[0])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
