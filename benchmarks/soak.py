"""`python -m benchmarks.soak [--minutes 120] [--real-time]`: a query under load for hours; does anything grow?

The query of `soak_query` runs on live sources, adapts and balances itself. In the first half it is stopped, killed and
stopped again, and starts from its checkpoint each time; in the second half it is left alone. At the end DuckDB computes
the batch answer over the rows of the sources, and every result must be there once. Figures of the second half: growth
of memory and files from its first fifth to its last, and p50 and p99 of the triggers.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic, sleep, time_ns
from typing import Any

import duckdb

from benchmarks.soak_query import COLUMNS, REAL_TIME, ROWS_PER_SECOND, WINDOW

RESTARTS = ((0.12, signal.SIGTERM), (0.25, signal.SIGKILL), (0.38, signal.SIGTERM))
"""When the query is ended, as a share of the time, and how."""
FILES_PER_SECOND = 4
"""Of each stream, in real-time mode."""
ROWS_OF_FILE = ROWS_PER_SECOND // FILES_PER_SECOND
SETTLE = 15
"""Seconds before the end from which no more files are written, so that all are read."""
MOST_GROWTH, MOST_SPREAD = 0.02, 3.0
MEMORY = ("driver", "jvm", "workers", "heap")
FILES = ("our_files", "spark_files", "hot_files")


@dataclass(frozen=True)
class Finding:
    """A figure of the second half and whether it is what it should be."""

    name: str
    value: str
    holds: bool


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.soak", description="Run a query for hours.")
    parser.add_argument("--minutes", type=float, default=120, help="how long (120)")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    parser.add_argument("--real-time", action="store_true", help="real-time mode over files, not micro-batches")
    options = parser.parse_args(arguments)
    # The query is in a session of its own, and must not outlive this.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    shared = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with (
        tempfile.TemporaryDirectory(prefix="anabranch-soak-") as folder,
        tempfile.TemporaryDirectory(prefix="anabranch-soak-", dir=shared) as hot,
    ):
        began = monotonic()
        feed = Feed(Path(folder) / "in") if options.real_time else None
        _run(Path(folder), hot, options.minutes * 60, feed)
        samples = [json.loads(line) for line in (Path(folder) / "samples.jsonl").read_text().splitlines()]
        findings = judge(samples, began + options.minutes * 30)
        findings.append(_exactness(Path(folder), _rows_of_rates(Path(folder)) if feed is None else feed.rows))
    for finding in findings:
        print(f"{'ok    ' if finding.holds else 'MISSED'} {finding.name:34} {finding.value}")
    if options.json:
        options.json.write_text(json.dumps([vars(finding) for finding in findings], indent=1) + "\n")
    return int(not all(finding.holds for finding in findings))


@dataclass
class Feed:
    """Writes a file of each stream every quarter of a second, for as long as it is asked to."""

    folder: Path
    began: int = field(default_factory=time_ns)
    files: int = 0

    @property
    def rows(self) -> dict[str, tuple[int, int]]:
        """The time of the first row of each stream, in milliseconds, and the number of rows so far."""
        return dict.fromkeys("abc", (self.began // 1_000_000, self.files * ROWS_OF_FILE))

    def catch_up(self) -> None:
        """Writes the files that are due."""
        while time_ns() - self.began >= (self.files + 1) * 1_000_000_000 // FILES_PER_SECOND:
            first = self.files * ROWS_OF_FILE
            rows = _rows(self.began // 1_000_000, first)
            sql = f"SELECT make_timestamptz(ts * 1000) AS ts, * EXCLUDE (ts) FROM ({rows})"
            for name in "abc":
                folder = self.folder / name
                folder.mkdir(parents=True, exist_ok=True)
                hidden = folder / f".{self.files}"
                duckdb.execute(f"COPY ({sql}) TO '{hidden}' (FORMAT parquet)")
                hidden.rename(folder / f"{self.files:08}.parquet")
            self.files += 1


def _rows(start: int, first: int, count: int = ROWS_OF_FILE) -> str:
    """Returns the SQL of some rows of a stream, with their times in milliseconds."""
    columns = ", ".join(COLUMNS[1:]).replace(" DIV ", " // ").replace("pmod(", "mod(")
    step = 1000 // ROWS_PER_SECOND
    return f"SELECT {start} + value * {step} AS ts, {columns} FROM range({first}, {first + count}) AS r(value)"


def _run(folder: Path, hot: str, seconds: float, feed: Feed | None) -> None:
    began = next_line = monotonic()
    for share, how in (*RESTARTS, (1.0, signal.SIGTERM)):
        child = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.soak_query", str(folder), *([] if feed is None else [REAL_TIME])],
            env={**os.environ, "ANABRANCH_HOT_FOLDER": hot},
            start_new_session=True,
        )
        try:
            while monotonic() < began + share * seconds:
                if child.poll() is not None:
                    raise SystemExit(f"the query ended by itself with code {child.returncode}")
                if feed is not None and monotonic() < began + seconds - SETTLE:
                    feed.catch_up()
                sleep(1 / FILES_PER_SECOND)
                if monotonic() >= next_line:
                    _tell(folder, monotonic() - began, seconds)
                    next_line += 15
            if how == signal.SIGKILL:
                # The JVM and the workers too: as when the machine loses power.
                os.killpg(child.pid, how)
            else:
                child.send_signal(how)
            child.wait(120)
        finally:
            if child.poll() is None:
                os.killpg(child.pid, signal.SIGKILL)
        print(f"\nended by {signal.Signals(how).name} after {(monotonic() - began) / 60:.1f} min", flush=True)


def _tell(folder: Path, passed: float, seconds: float) -> None:
    path = folder / "samples.jsonl"
    last: dict[str, Any] = {}
    if path.exists() and (lines := path.read_text().splitlines()):
        last = json.loads(lines[-1])
    memory = sum(last.get(name, 0) for name in MEMORY[:3]) / 2**20
    print(
        f"{passed / 60:5.1f} of {seconds / 60:.0f} min · {memory:.0f} MB · {last.get('our_files', 0)} files · "
        f"{last.get('changes', 0)} records",
        flush=True,
    )


def judge(samples: Sequence[dict[str, Any]], half: float) -> list[Finding]:
    """The figures of the samples after a moment."""
    second = [sample for sample in samples if sample["at"] >= half]
    if len(second) < 10:
        return [Finding("samples of the second half", str(len(second)), False)]
    fifth = max(1, len(second) // 5)
    first, last = second[:fifth], second[-fifth:]
    findings = []
    total = [sum(sample[name] for name in ("driver", "jvm", "workers")) for sample in second]
    for name in MEMORY:
        # The heap breathes; what stays is its least.
        middle = min if name == "heap" else statistics.median
        before, after = (middle([sample[name] for sample in part]) for part in (first, last))
        findings.append(_growth(f"memory, {name}", before, after, is_judged=False))
    findings.append(
        _growth("memory, all", statistics.median(total[:fifth]), statistics.median(total[-fifth:]), is_judged=True)
    )
    for name in FILES:
        before, after = (max(sample[name] for sample in part) for part in (first, last))
        findings.append(Finding(name.replace("_", " "), f"{before} → {after}", after <= 1.5 * before + 10))
    millis = sorted(trigger["ms"] for sample in second for trigger in sample["triggers"])
    if millis:
        p50, p99 = (millis[min(len(millis) - 1, int(share * len(millis)))] for share in (0.5, 0.99))
        spread = p99 / p50 if p50 else 0.0
        findings.append(Finding("trigger p50, p99", f"{p50:.0f}, {p99:.0f} ms ({spread:.1f}×)", spread <= MOST_SPREAD))
    late = sum(trigger["late"] for sample in samples for trigger in sample["triggers"])
    findings.append(Finding("late rows", str(late), late == 0))
    findings.append(Finding("runs", str(len({sample["run"] for sample in samples})), True))
    findings.append(Finding("records of changes", str(samples[-1]["changes"]), True))
    return findings


def _growth(name: str, before: float, after: float, *, is_judged: bool) -> Finding:
    grown = after / before - 1 if before else 0.0
    value = f"{before / 2**20:.0f} → {after / 2**20:.0f} MB ({grown:+.1%})"
    return Finding(name, value, grown <= MOST_GROWTH or not is_judged)


def _rows_of_rates(folder: Path) -> dict[str, tuple[int, int]]:
    """Returns what `Feed.rows` returns, for the rows of rate sources that committed batches had."""
    log = sorted((folder / "checkpoint").glob("**/commits/*"), key=lambda path: path.name.zfill(9))
    last = max(int(path.name) for path in log if path.name.isdigit())
    spark = log[0].parents[1]
    # The offset of a rate source is the second up to which it has given rows.
    offsets = (spark / "offsets" / str(last)).read_text().splitlines()[2:]
    starts = [int((spark / "sources" / str(i) / "0").read_text().splitlines()[-1]) for i in range(3)]
    return {
        name: (start, int(offset) * ROWS_PER_SECOND) for name, start, offset in zip("abc", starts, offsets, strict=True)
    }


def _exactness(folder: Path, rows: Mapping[str, tuple[int, int]]) -> Finding:
    """Compares the results with the batch answer over these rows of each stream."""
    connection = duckdb.connect()
    for name, (start, count) in rows.items():
        connection.execute(f"CREATE TABLE {name} AS {_rows(start, 0, count)}")
    newest = "greatest(a.ts, b.ts, c.ts)"
    inside = " AND ".join(f"{newest} - {name}.ts <= {WINDOW * 1000}" for name in "abc")
    near = f"b.ts BETWEEN a.ts - {WINDOW * 1000} AND a.ts + {WINDOW * 1000}"
    connection.execute(
        "CREATE TABLE expected AS SELECT a.v AS av, b.v AS bv, c.v AS cv FROM a, b, c "
        f"WHERE a.k = b.k AND b.m = c.m AND a.v % 97 = 0 AND {near} AND {inside}"
    )
    connection.execute(f"CREATE TABLE found AS SELECT av, bv, cv FROM read_parquet('{folder}/out/*.parquet')")
    missing, extra = (
        _number(connection, f"SELECT COUNT(*) FROM (FROM {one} EXCEPT ALL FROM {other})")
        for one, other in (("expected", "found"), ("found", "expected"))
    )
    expected = _number(connection, "SELECT COUNT(*) FROM expected")
    text = f"{expected} results expected, {missing} missing, {extra} too many"
    return Finding("results", text, missing == extra == 0 < expected)


def _number(connection: Any, sql: str) -> int:
    return int(connection.execute(sql).fetchone()[0])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
