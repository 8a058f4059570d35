"""Three sites on one machine: a query joins, a site is killed and comes back, and the answers are those of DuckDB.

python examples/sites/show.py                 takes some minutes; joins run on Spark, everything else in plain Python
python examples/sites/show.py --light         takes a minute, without Spark
anabranch deploy status --root show/root      in another terminal, meanwhile
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path

import duckdb

HERE = Path(__file__).parent
START = 1_700_000_000
EVER = -(2**62)
STREAMS = {
    "flights": ("num", 5, "gate"),
    "checkins": ("flight", 10, "status"),
    "baggage": ("flight", 10, "area"),
}
DISPLAY = "SELECT fl.num, fl.gate, bg.area, ci.status"
GATE = "SELECT fl.num, bg.area, ci.status"


def write_second(folder: Path, second: int, chance: random.Random, streams: Iterable[str] = tuple(STREAMS)) -> None:
    """One file per stream with the rows of one second of event time."""
    for stream in streams:
        key, rate, extra = STREAMS[stream]
        lines = []
        for number in range(rate):
            at = datetime.fromtimestamp(START + second + number / rate, UTC)
            row = {key: chance.randrange(20), extra: f"{extra}-{chance.randrange(5)}", "ts": at.isoformat()}
            lines.append(json.dumps(row))
        target = folder / "data" / stream
        target.mkdir(parents=True, exist_ok=True)
        partial = target / f".{second:06d}.partial"
        partial.write_text("\n".join(lines))
        # Spark reads files in the order of their times, in milliseconds; of equal times, in any order.
        os.utime(partial, (START + second, START + second))
        partial.rename(target / f"{second:06d}.json")


def anabranch(*words: str, folder: Path) -> str:
    """Runs a command and returns its output."""
    done = subprocess.run(
        [sys.executable, "-m", "anabranch", *words], cwd=folder, capture_output=True, text=True, check=False
    )
    return (done.stdout + done.stderr).strip()


def status(folder: Path) -> dict[str, dict[str, dict[str, object]]]:
    command = [sys.executable, "-m", "anabranch", "deploy", "status", "--json", "--root", "root"]
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
        found: dict[str, dict[str, dict[str, object]]] = json.loads(done.stdout)
    except ValueError:
        return {"operators": {}, "queries": {}, "links": {}, "sites": {}}
    return found


def results(folder: Path, query: str) -> int:
    path = folder / "out" / query
    if not any(path.glob("part-*")):
        return 0
    ((count,),) = duckdb.execute(f"SELECT count(*) FROM read_parquet('{path}/part-*')").fetchall()
    return int(count)


def difference(
    folder: Path,
    query: str,
    selected: str,
    ranges: tuple[int, int, int],
    extra: str,
    since: tuple[int, int] = (EVER, EVER),
) -> int:
    """Rows that are missing or too many, against DuckDB over all files.

    `since` is for a query that joined: the least event time of the newest row of a result, and of any.
    """
    complete_from, rows_from = since
    for stream in STREAMS:
        files = folder / "data" / stream
        text = f"SELECT *, epoch_us(CAST(ts AS TIMESTAMPTZ)) AS micros FROM read_json('{files}/*.json')"
        duckdb.execute(f"CREATE OR REPLACE TEMP TABLE {stream} AS SELECT * FROM ({text}) WHERE micros >= {rows_from}")
    newest = "greatest(fl.micros, ci.micros, bg.micros)"
    names = zip(("fl", "ci", "bg"), ranges, strict=True)
    inside = [f"{newest} >= {complete_from}"]
    inside += [f"{newest} - {name}.micros <= {r * 1_000_000}" for name, r in names]
    where = " AND ".join(["fl.num = ci.flight", "fl.num = bg.flight", *inside, *([extra] if extra else [])])
    wanted = f"{selected} FROM flights fl, checkins ci, baggage bg WHERE {where}"
    given = f"SELECT * FROM read_parquet('{folder / 'out' / query}/part-*')"
    ((count,),) = duckdb.execute(
        f"SELECT count(*) FROM (({wanted} EXCEPT ALL {given}) UNION ALL ({given} EXCEPT ALL {wanted}))"
    ).fetchall()
    return int(count)


def wait_for(what: str, is_true: object, seconds: float = 900.0) -> None:
    print(f"waiting until {what} …", flush=True)
    end = time.monotonic() + seconds
    assert callable(is_true)
    while not is_true():
        if time.monotonic() > end:
            raise SystemExit(f"not within {seconds:g} seconds: {what}")
        time.sleep(1)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", type=Path, default=Path("show"))
    parser.add_argument("--links", help="for example redis://127.0.0.1:6379, or sites")
    parser.add_argument("--light", action="store_true", help="run joins without Spark, too")
    arguments = parser.parse_args()
    folder, links = arguments.folder.resolve(), arguments.links
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for name in ("network.yaml", "queries.yaml", "more.yaml"):
        shutil.copy(HERE / name, folder / name)
    if arguments.light:
        network = folder / "network.yaml"
        sites = ", ".join(f"{{name: {site}, runner: light}}" for site in ("west", "middle", "east"))
        network.write_text(network.read_text().replace("[west, middle, east]\nlinks", f"[{sites}]\nlinks"))
    chance, second = random.Random(1), 0

    def feed(seconds: int) -> None:
        nonlocal second
        for _ in range(seconds):
            write_second(folder, second, chance)
            second += 1

    def joined() -> bool:
        feed(1)
        return results(folder, "gate") > 0

    feed(20)
    command = [sys.executable, "-m", "anabranch", "deploy", "network.yaml", "queries.yaml", "--root", "root", "--local"]
    command += ["--planner", "exhaustive", *(["--links", links] if links else [])]
    with (folder / "controller.log").open("w") as log:
        controller = subprocess.Popen(command, cwd=folder, stdout=log, stderr=log)
    try:
        wait_for("the first results are there", lambda: results(folder, "display") > 0)
        print(f"display has {results(folder, 'display'):,} results")
        print(anabranch("deploy", "add", "more.yaml", "--root", "root", folder=folder), flush=True)
        feed(20)
        wait_for("the query that joined has results", joined)
        print(f"gate has {results(folder, 'gate'):,} results", flush=True)
        lease = json.loads((folder / "root/leases/site-middle.json").read_text())
        os.kill(lease["process"], signal.SIGKILL)
        print(f"killed site middle, process {lease['process']}", flush=True)
        feed(30)
        wait_for(
            "site middle is back",
            lambda: (
                (folder / "root/leases/site-middle.json").exists()
                and json.loads((folder / "root/leases/site-middle.json").read_text())["process"] != lease["process"]
            ),
        )
        feed(10)
        joined_at = status(folder)["queries"]["gate"]
        since = int(str(joined_at["complete_from"])), int(str(joined_at["rows_from"]))
        tasks = {
            "display": lambda: difference(folder, "display", DISPLAY, (10, 5, 5), ""),
            "gate": lambda: difference(folder, "gate", GATE, (8, 5, 5), "fl.num < 10", since),
        }
        for name, wrong in tasks.items():
            wait_for(f"the answer of {name} is DuckDB's", lambda wrong=wrong: wrong() == 0)
            print(f"{name}: {results(folder, name):,} results, as DuckDB has them", flush=True)
        print(anabranch("deploy", "status", "--root", "root", folder=folder))
        late = sum(int(str(one.get("late") or 0)) for one in status(folder)["operators"].values())
        print(f"rows that came too late: {late}")
    finally:
        print(anabranch("deploy", "stop", "--root", "root", folder=folder), flush=True)
        try:
            controller.wait(timeout=60)
        except subprocess.TimeoutExpired:
            controller.kill()
    left = list((folder / "root" / "leases").glob("*.json"))
    print(f"leases left: {len(left)}")
    return len(left)


if __name__ == "__main__":
    sys.exit(main())
