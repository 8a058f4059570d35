"""Four light sites on this machine: bags are joined in the network, and a second query reads the join of the first.

python examples/sites/bags.py        takes a minute, without Spark

Fewer bytes leave the join than enter it, so it is planned at the desks, away from the screens at the gate. The answers
are compared with DuckDB's, also after the first query was removed: its join is then replaced by a narrower one.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import duckdb

from anabranch.sites.deployment import Deployment

HERE = Path(__file__).parent
START, RATE, BAGS = 1_700_000_000, 500, 200_000
COLUMNS = {"checkins": {"flight": 200, "passenger": 10**9}, "scans": {"belt": 40}}
QUERIES = {
    "found": ("ci.bag, ci.flight, ci.passenger, sc.belt", ""),
    "first-flights": ("ci.bag, ci.flight, sc.belt", "AND ci.flight < 20"),
}


def write_second(folder: Path, second: int, chance: Random) -> None:
    """Writes the rows of one second of event time, one file for each stream."""
    for stream, columns in COLUMNS.items():
        lines = []
        for number in range(RATE):
            at = datetime.fromtimestamp(START + second + number / RATE, UTC)
            row: dict[str, object] = {"bag": chance.randrange(BAGS), "ts": at.isoformat()}
            for column, values in columns.items():
                value = chance.randrange(values)
                row[column] = value if column == "flight" else f"{column}-{value}"
            lines.append(json.dumps(row))
        target = folder / "data" / stream / f"{second:06d}.json"
        target.parent.mkdir(parents=True, exist_ok=True)
        partial = target.with_name(f".{target.name}")
        partial.write_text("\n".join(lines))
        os.utime(partial, (START + second,) * 2)
        partial.rename(target)


def difference(folder: Path, query: str) -> int:
    """Returns how many results are missing or too many, by DuckDB over all files; -1 if there are none yet."""
    given = folder / "out" / query
    if not any(given.glob("part-*")):
        return -1
    selected, extra = QUERIES[query]
    timed = "SELECT *, epoch_us(CAST(ts AS TIMESTAMPTZ)) AS micros"
    tables = ", ".join(
        f"({timed} FROM read_json('{folder}/data/{stream}/*.json')) AS {name}"
        for stream, name in (("checkins", "ci"), ("scans", "sc"))
    )
    where = f"ci.bag = sc.bag {extra} AND abs(ci.micros - sc.micros) <= 30000000"
    wanted, found = f"SELECT {selected} FROM {tables} WHERE {where}", f"SELECT * FROM read_parquet('{given}/part-*')"
    ((count,),) = duckdb.execute(
        f"SELECT count(*) FROM (({wanted} EXCEPT ALL {found}) UNION ALL ({found} EXCEPT ALL {wanted}))"
    ).fetchall()
    return int(count)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", type=Path, default=Path("bags"))
    folder: Path = parser.parse_args().folder.resolve()
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for name in ("bags.yaml", "bags-queries.yaml"):
        shutil.copy(HERE / name, folder / name)
    chance, second = Random(1), 0

    def feed(seconds: int) -> None:
        nonlocal second
        for _ in range(seconds):
            write_second(folder, second, chance)
            second += 1

    def is_answered(query: str, _: dict[str, Any]) -> bool:
        return difference(folder, query) == 0

    def is_settled(status: dict[str, Any]) -> bool:
        """A change ends when event time has passed it, so the streams go on."""
        feed(1)
        return not status["changing"]

    feed(60)
    files = folder / "bags.yaml", folder / "bags-queries.yaml"
    with Deployment.start(*files, folder / "root", links="sites") as airport:
        for name, one in airport.status["operators"].items():
            print(f"{one['kind']:9} {name} at {one['site']}")
        for query in QUERIES:
            airport.wait(partial(is_answered, query))
            print(f"{query}: as DuckDB has it", flush=True)
        status = airport.status
        print(f"network usage as planned: {status['cost']['planned']:,.0f}")
        print(airport.remove("found"))
        airport.wait(is_settled)
        airport.wait(partial(is_answered, "first-flights"))
        print(f"left: {', '.join(airport.status['queries'])}; problems: {airport.troubles or 'none'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
