"""`python -m benchmarks.console_cost [--runs 3] [--viewers 10]`: what the console costs a query while people look.

The query of the tutorial runs over existing files, in a process of its own: without a console, and with one that
viewers follow from this process, in alternating order. Compared is the processor time of the query's process with its
JVM and its workers; the time of the viewers does not count. At most one percent is meant to be the price.

The difference of two runs is small beside how much runs differ. So the threads of the console are timed too: their
share of the processor time of their own run is exact, and lacks only what they ask of the JVM.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import urllib.request
from collections.abc import Sequence
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import psutil

ROOT = Path(__file__).parents[1]
LIMIT = 0.01


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.console_cost", description="What the console costs.")
    parser.add_argument("--runs", type=int, default=3, help="of each side (3)")
    parser.add_argument("--viewers", type=int, default=10, help="people who look (10)")
    parser.add_argument("--seconds", type=int, default=120, help="of event time in the streams, one batch each (120)")
    parser.add_argument("--child", nargs=2, metavar=("FOLDER", "CONSOLE"), help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.child:
        _query(Path(options.child[0]), options.child[1] == "with")
        return 0
    write_streams = _tutorial().write_streams
    found: dict[str, list[float]] = {"without": [], "with": []}
    with tempfile.TemporaryDirectory(prefix="anabranch-console-") as folder:
        write_streams(Path(folder) / "streams", options.seconds)
        for number in range(options.runs):
            for side in ("without", "with") if number % 2 == 0 else ("with", "without"):
                spent, threads = _run(Path(folder), f"{side}{number}", side, options.viewers)
                found[side].append(spent)
                own = f", {threads:.2f} s ({threads / spent:.2%}) by the console's threads" if threads else ""
                print(f"{side:8} run {number}: {spent:.2f} s of processor time{own}", flush=True)
    medians = {side: statistics.median(several) for side, several in found.items()}
    cost = medians["with"] / medians["without"] - 1
    spread = max(max(several) / min(several) - 1 for several in found.values())
    print(
        f"{options.viewers} viewers cost {cost:+.1%} (limit {LIMIT:.0%}); runs of one side differ by up to {spread:.1%}"
    )
    return int(cost > LIMIT)


def _run(folder: Path, name: str, side: str, viewers: int) -> tuple[float, float]:
    """Processor time of the run, and of the console's threads."""
    child = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.console_cost", "--child", str(folder / name), side],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "STREAMS": str(folder / "streams")},
    )
    assert child.stdout is not None
    spent, threads = 0.0, 0.0
    for line in child.stdout:
        told: dict[str, Any] = json.loads(line)
        if "url" in told:
            for _ in range(viewers):
                threading.Thread(target=_look, args=(told["url"], told["run"]), daemon=True).start()
        if "cpu" in told:
            spent, threads = told["cpu"], told["threads"]
    if child.wait() != 0:
        raise SystemExit(f"the query ended with code {child.returncode}")
    return spent, threads


def _look(url: str, run: str) -> None:
    """Reads events until the console closes."""
    try:
        with urllib.request.urlopen(f"{url.rstrip('/')}/api/runs/{run}/events", timeout=30) as events:
            for _ in events:
                pass
    except OSError:
        return


def _query(folder: Path, is_shown: bool) -> None:
    import anabranch
    from anabranch.spark.session import local_session

    spark = local_session(2, **{"spark.ui.enabled": "false"})
    session = anabranch.Session(spark)
    for name, columns in _tutorial().COLUMNS.items():
        frame = spark.readStream.schema(columns).option("maxFilesPerTrigger", 1)
        session.register(name, frame.parquet(f"{os.environ['STREAMS']}/{name}"), event_time="ts", watermark="0 seconds")
    console = session.console() if is_shown else None
    before = _spent()
    handle = (
        session.sql(_tutorial().QUERY)
        .writeStream.format("parquet")
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .slots(1)
        .start(str(folder / "out"))
    )
    if console is not None:
        print(json.dumps({"url": console.url, "run": handle.runId}), flush=True)
    handle.awaitTermination()
    print(json.dumps({"cpu": _spent() - before, "threads": _threads()}), flush=True)
    if console is not None:
        console.close()
    spark.stop()


@cache
def _tutorial() -> Any:
    sys.path.insert(0, str(ROOT / "examples"))
    return import_module("tutorial")


def _threads() -> float:
    """Processor time of the console's threads."""
    ours = {each.native_id for each in threading.enumerate() if each.name.startswith("anabranch-console")}
    return float(sum(each.user_time + each.system_time for each in psutil.Process().threads() if each.id in ours))


def _spent() -> float:
    """Processor time of this process and all below it, those that ended included."""
    mine = psutil.Process()
    times = [mine.cpu_times(), *(child.cpu_times() for child in mine.children(recursive=True))]
    ended = mine.cpu_times()
    return float(sum(each.user + each.system for each in times) + ended.children_user + ended.children_system)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
