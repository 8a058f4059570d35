"""`place-on-sites` (Fig. 16 on Spark): how long a query takes from being added to working, on running sites.

Three sites of this machine, each a Spark application with one core, under a controller. Queries of one to three joins
are added one at a time by Top-Down and by Bottom-Up, and removed again; a unique condition keeps them from reusing each
other's joins. Then queries whose join runs already take turns with queries that need one of their own.

*Planning* is the planner's time, *working* the time until every new operator has committed a batch, *first result* the
time until the sink has a row. All are seconds of the wall clock, so they need a quiet machine.
"""

from __future__ import annotations

import json
import os
import random
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from statistics import fmean, median
from time import perf_counter

import pyarrow.parquet as pq
import yaml
from matplotlib.figure import Figure

from anabranch.cql import compile_query
from anabranch.errors import HostError
from anabranch.place.landscape import SinkQuery
from anabranch.place.run import Options
from anabranch.sites.controller import Controller, site_command
from anabranch.sites.files import DeploymentFiles, QueryFile, load_files
from anabranch.sites.observed import Observed
from anabranch.sites.plan_state import Planned
from anabranch.sites.root import Orders, Root
from anabranch.sites.wanted import Wanted
from anabranch.spec.model import SinkSpec
from lab.place_common import below
from lab.registry import Experiment, Outcome, Setting, Verdict

SITES = ("west", "middle", "east")
STREAMS = {"s0": "west", "s1": "west", "s2": "middle", "s3": "east"}
PLANNERS = ("top-down", "bottom-up")
START = 1_700_000_000
RATE, KEYS = 5, 20
PATIENCE = 300.0


@dataclass(frozen=True)
class Added:
    """One query that was added; seconds of the wall clock."""

    planner: str
    joins: int
    planning: float
    working: float
    first: float


@dataclass(frozen=True)
class Found:
    """Queries by planner and size; then queries that reuse a running join and queries that do not, in turns."""

    added: tuple[Added, ...]
    reusing: tuple[Added, ...]
    alone: tuple[Added, ...]


def _files(folder: Path) -> DeploymentFiles:
    streams = {
        name: {
            "site": site,
            "rate": RATE,
            "columns": "k bigint, v bigint, ts timestamp",
            "distinct": {"k": KEYS},
            "source": {"format": "json", "path": f"data/{name}", "options": {"maxFilesPerTrigger": 20}},
        }
        for name, site in STREAMS.items()
    }
    links = [{"ends": ["west", "middle"], "latency": 5}, {"ends": ["middle", "east"], "latency": 5}]
    network = {"sites": list(SITES), "links": links, "streams": streams}
    queries = [
        {
            "name": name,
            "sink": sink,
            "query": _text(list(names), 0),
            "into": {"format": "parquet", "path": f"out/{name}"},
        }
        for name, sink, names in (("board", "west", ("s0", "s1")), ("other", "east", ("s2", "s3")))
    ]
    (folder / "network.yaml").write_text(yaml.safe_dump(network))
    (folder / "queries.yaml").write_text(yaml.safe_dump({"queries": queries}))
    return load_files(folder / "network.yaml", folder / "queries.yaml")


def _text(streams: list[str], number: int) -> str:
    """A join on k; with a number, under a condition that no other query has and that always holds."""
    first, *others = streams
    where = [f"{first}.k = {other}.k" for other in others]
    if number:
        where.append(f"{first}.v + {others[0]}.v <> {-number}")
    listed = ", ".join(f"{name} [RANGE 10 SECONDS]" for name in streams)
    return f"SELECT {', '.join(f'{name}.v AS {name}' for name in streams)} FROM {listed} WHERE {' AND '.join(where)}"


class _Work:
    """The deployment, and streams that flow while one waits for it."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.folder, self.files = folder, _files(folder)
        self.root = Root(str(folder / "root"))
        self._chance, self._second, self._number = random.Random(seed), 0, 0
        self.command = site_command(self.root, "local[1]", {"spark.driver.memory": "512m"})
        self.controller = Controller(self.root, self.files.network, self.files.sources, str(folder / "network.yaml"))

    def begin(self) -> None:
        planned = Planned(self.files.network.landscape, planner="top-down", options=Options(max_cs=2))
        settings = Orders(Wanted(), place=self.root.default_place, interval=0.2)
        self.controller.begin(planned, self.files.queries, settings)
        self.wait("the first results", lambda: self.has_results("board") and self.has_results("other"))

    def feed(self) -> None:
        """One second of all streams; Spark reads files in the order of their times."""
        at = START + self._second
        for name in STREAMS:
            rows = [
                {
                    "k": self._chance.randrange(KEYS),
                    "v": self._chance.randrange(100),
                    "ts": datetime.fromtimestamp(at + number / RATE, UTC).isoformat(),
                }
                for number in range(RATE)
            ]
            folder = self.folder / "data" / name
            folder.mkdir(parents=True, exist_ok=True)
            partial = folder / f".{self._second:06d}"
            partial.write_text("\n".join(map(json.dumps, rows)))
            os.utime(partial, (at, at))
            partial.rename(folder / f"{self._second:06d}.json")
        self._second += 1

    def wait(self, what: str, is_true: Callable[[], object]) -> None:
        end = perf_counter() + PATIENCE
        while not is_true():
            if perf_counter() > end:
                raise HostError(f"the sites did not get as far as {what}", hint=f"see the logs in {self.folder}")
            self.controller.keep_sites(self.command, self.folder / "logs")
            self.controller.step()
            self.feed()
            time.sleep(0.3)

    def has_results(self, query: str) -> bool:
        files = sorted((self.folder / "out" / query).glob("part-*"))
        return any(pq.read_metadata(path).num_rows for path in files)

    def added(self, planner: str, streams: list[str], is_new: bool) -> Added:
        """Adds a query, waits for its first result, and removes it."""
        self._number += 1
        name = f"q{self._number}"
        text = _text(streams, self._number if is_new else 0)
        query = SinkQuery(name, compile_query(text, self.files.network.catalog), "west")
        into = SinkSpec(**{**self.files.queries[0].into.__dict__, "path": str(self.folder / "out" / name)})
        known = set(self.controller.orders.wanted.operators)
        began = perf_counter()
        planned = replace(self.controller.planned, planner=planner).with_query(QueryFile(query, text, into))
        planning = perf_counter() - began
        self.controller.change(planned)
        new = set(self.controller.orders.wanted.operators) - known

        def works() -> bool:
            seen = Observed(self.root, self.controller.orders)
            return all((report := seen.operator(one)) is not None and report["batch"] >= 0 for one in new)

        self.wait("a query that works", works)
        working = perf_counter() - began
        self.wait("its first result", lambda: self.has_results(name))
        first = perf_counter() - began
        self.wait("the end of the change", lambda: not self.controller.orders.wanted.is_changing)
        self.controller.change(self.controller.planned.without_query(name))
        self.wait("a query that is gone", lambda: not self.controller.orders.wanted.is_changing)
        return Added(planner, len(streams) - 1, planning, working, first)

    def end(self) -> None:
        self.root.stop(self.controller.orders)
        self.controller.await_sites(120)


def measure(setting: Setting) -> Found:
    """Queries on three sites of this machine."""
    sizes = (2, 4) if setting.quick else (2, 3, 4)
    rounds = 1 if setting.quick else 3
    with tempfile.TemporaryDirectory() as folder:
        work = _Work(Path(folder), setting.seed)
        with work.controller:
            work.begin()
            names = list(STREAMS)
            added = [
                work.added(planner, names[:size], True) for _ in range(rounds) for size in sizes for planner in PLANNERS
            ]
            turns = [
                (work.added("top-down", names[:2], False), work.added("top-down", names[:2], True))
                for _ in range(2 * rounds)
            ]
            work.end()
    return Found(tuple(added), tuple(one for one, _ in turns), tuple(other for _, other in turns))


def present(found: Found) -> Outcome:
    sizes = sorted({one.joins for one in found.added})
    times = {
        (planner, size): fmean(one.working for one in found.added if (one.planner, one.joins) == (planner, size))
        for planner in PLANNERS
        for size in sizes
    }
    rows = tuple(
        (kind, one.planner, one.joins, one.planning, one.working, one.first)
        for kind, several in (("added", found.added), ("reusing", found.reusing), ("alone", found.alone))
        for one in several
    )
    top_down, bottom_up = (fmean(times[planner, size] for size in sizes) for planner in PLANNERS)
    faster = below(bottom_up, top_down)
    planning = max(one.planning for one in found.added)
    reusing, alone = (median(one.first for one in several) for several in (found.reusing, found.alone))
    verdicts = (
        Verdict(
            "Bottom-Up deploys almost 70 % faster than Top-Down",
            f"{faster:.0f} % faster: {bottom_up:.1f} s against {top_down:.1f} s until all operators work; planning is "
            f"at most {planning:.2f} s of it",
            {"70 %": round(faster) >= 70},
        ),
        Verdict(
            "queries are deployed within seconds, larger ones later",
            ", ".join(f"{planner}, {size} joins: {seconds:.1f} s" for (planner, size), seconds in times.items()),
            {
                "within 30 s": max(times.values()) <= 30,
                "larger later": all(times[p, sizes[-1]] >= times[p, sizes[0]] for p in PLANNERS),
            },
        ),
        Verdict(
            "a query that finds its join running has its first result in half the time (our own bar)",
            f"{reusing:.1f} s against {alone:.1f} s: {reusing / alone:.2f}",
            {"0.5": reusing <= 0.5 * alone},
        ),
    )

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        for planner in PLANNERS:
            axes.plot(sizes, [times[planner, size] for size in sizes], marker="o", label=planner)
        axes.set(title="seconds until a query works, on three sites", xlabel="joins", xticks=sizes, ylim=(0, None))
        axes.legend()

    columns = ("query", "planner", "joins", "planning (s)", "working (s)", "first result (s)")
    return Outcome(columns, rows, draw, verdicts, ("three sites of one machine; times of the wall clock",))


EXPERIMENTS = (Experiment("place-on-sites", "Deployment time on Spark (Fig. 16)", measure, present),)
