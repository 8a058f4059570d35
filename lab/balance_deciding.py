"""The headline of Zhu 2006, Part III, with the product deciding: plan changes and moves, alone and together, on Spark.

Two executors of one core, and two slots. From the second batch on the first slot has four fifths of the groups; later
another stream becomes the slow one, so that another join order is much cheaper. Only the first skew is scheduled:
`adapt` and `balance: auto` find the answer to both by their own measurements. Three streams are joined by one key, and
a predicate over all three leaves few results: slots join for most of a trigger, and sinks write little. Figures are
those of the last batches, and of the whole time since the streams changed.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from matplotlib.figure import Figure

from anabranch.adapt.course import MoveStrategy
from lab.balance_common import Rates, rows_of
from lab.registry import Cell, Experiment, Outcome, Setting, Verdict

MASTER = "local-cluster[2,1,1024]"
GROUPS_MOVED = 19
"""Of 64: with them one of two slots has four fifths of the groups."""
OLD = "((a b) c)"
NOTHING, LOCAL = "No-Adapt", "LM"
BALANCING: Mapping[str, MoveStrategy] = {"PTLB": "parallel-track", "MSLB": "moving-state"}
WINDOW = 1
CHANGED = 8
"""The batch from which another stream is the slow one."""
LAST = 6
"""Batches that count as the end."""
WARMING = 3
"""Batches that are run before, and do not count."""
SLOWER = 75
PASSING = 800_000_000_000
"""How much the value of c has to be above the sum of the others; a value is below 2^40."""
PAPER = {"LM": 2.0, "PTLB": 2.0, "MSLB": 1.8, "LM+PTLB": 3.3, "LM+MSLB": 2.7}
TWICE = 2.0


@dataclass(frozen=True)
class Task:
    """Streams in files, one of each for a batch of a second of event time."""

    batches: int
    rates: Rates
    keys: int

    def write(self, folder: Path, seed: int) -> None:
        """Writes the files, in the order of their times."""
        rng, keys = np.random.default_rng(seed), np.full(self.keys, 1 / self.keys)
        for number in range(self.batches):
            for name, rate in self.rates(float(number)).items():
                (folder / name).mkdir(parents=True, exist_ok=True)
                path = folder / name / f"{number:05}.parquet"
                pq.write_table(rows_of(rng, float(number), 1.0, rate, keys), path)
                os.utime(path, (number, number))

    def spec(self, folder: Path, checkpoint: str, deciding: Mapping[str, object]) -> dict[str, object]:
        """The spec of a run, with what it leaves to the product."""
        sources = ", ".join(f"{name} [RANGE {WINDOW} SECONDS]" for name in "abc")
        schema = "ts timestamp, k bigint, v bigint"
        passing = f"a.k = b.k AND b.k = c.k AND a.v + b.v + {PASSING} < c.v"
        return {
            "streams": {
                name: {
                    "format": "parquet",
                    "path": str(folder / name),
                    "schema": schema,
                    "event_time": "ts",
                    "options": {"maxFilesPerTrigger": 1},
                }
                for name in "abc"
            },
            "query": f"SELECT a.v AS a, b.v AS b, c.v AS c FROM {sources} WHERE {passing}",
            "sink": {"format": "noop"},
            "checkpoint": str(folder / checkpoint),
            "slots": 2,
            "plan": OLD,
            "moves": [{"at_batch": 1, "from": 1, "to": 0, "groups": GROUPS_MOVED}],
            **deciding,
        }


@dataclass(frozen=True)
class ClusterRun:
    """One run: CPU seconds and bytes of state by batch and slot, seconds of each trigger, batches of changes."""

    cpu: tuple[tuple[float, ...], ...]
    held: tuple[tuple[int, ...], ...]
    triggers: tuple[float, ...]
    results: int
    moves: tuple[int, ...]
    """The batches in which a move ended."""
    plans: tuple[str, ...]

    def slowest(self, since: int) -> float:
        """Seconds of the slowest slots in the batches since one."""
        return sum(max(each) for each in self.cpu[since:])

    def wall(self, since: int) -> float:
        return sum(self.triggers[since:])

    def fullest(self, since: int) -> int:
        """The most bytes of a slot in the batches since one."""
        return max(max(each) for each in self.held[since:])

    @property
    def plan(self) -> str:
        return self.plans[-1]


@contextmanager
def cluster() -> Iterator[Any]:
    """A Spark session on two executors of this machine."""
    from anabranch.spark.session import open_session

    settings = {"spark.executor.memory": "1g", "spark.driver.memory": "1g"}
    if path := os.environ.get("PYTHONPATH"):
        settings["spark.executorEnv.PYTHONPATH"] = path
    spark = open_session(MASTER, settings)
    try:
        yield spark
    finally:
        spark.stop()


def run_on(spark: Any, spec: Mapping[str, object], folder: Path) -> ClusterRun:
    """Runs a spec to the end of its files."""
    from anabranch.spec import launch
    from anabranch.spec.file import parse

    handle = launch.start(parse(json.dumps(spec), folder=folder), spark)
    handle.awaitTermination()
    steps = [each for each in handle.recentProgress if each["adaptive"] is not None]
    slots = [each["adaptive"]["slotStatistics"] for each in steps]
    moves = [record for record in handle.history if record["kind"] == "move" and record["batch"] > 1]
    return ClusterRun(
        tuple(tuple(slot["cpuSeconds"] for slot in each) for each in slots),
        tuple(tuple(slot["stateBytes"] for slot in each) for each in slots),
        tuple(each["durationMs"]["triggerExecution"] / 1000 for each in steps),
        sum(each["adaptive"]["rowsOut"] for each in steps),
        tuple(record["batch"] for record in moves if record["phase"] != "began"),
        tuple(str(each["adaptive"]["plan"]) for each in steps),
    )


def measure(setting: Setting) -> dict[str, ClusterRun]:
    fast, keys, batches = (12_000.0, 80, 20) if setting.quick else (30_000.0, 200, 40)
    slow = fast / SLOWER

    def drifting(second: float) -> dict[str, float]:
        """The last stream becomes slow and, a window later, the first one fast: all three are never fast together."""
        return {
            "a": slow if second < CHANGED else fast,
            "b": fast,
            "c": fast if second < CHANGED - WINDOW - 1 else slow,
        }

    ways: dict[str, Mapping[str, object]] = {NOTHING: {}, LOCAL: {"adapt": {}}}
    for name, strategy in BALANCING.items():
        ways[name] = {"balance": {"mode": "auto", "strategy": strategy}}
        ways[f"{LOCAL}+{name}"] = {"adapt": {}, **ways[name]}
    return run_all(Task(batches, drifting, keys), ways, setting)


def run_all(task: Task, ways: Mapping[str, Mapping[str, object]], setting: Setting) -> dict[str, ClusterRun]:
    """Runs each way over the same files, after a warm-up that does not count."""
    folder = Path(tempfile.mkdtemp(prefix="anabranch-lab-"))
    try:
        task.write(folder / "rows", setting.seed)
        replace(task, batches=WARMING).write(folder / "warm-up", setting.seed)
        with cluster() as spark:
            found: dict[str, ClusterRun] = {}
            run_on(spark, task.spec(folder / "warm-up", "checkpoint", {}), folder)
            for name, way in ways.items():
                found[name] = run_on(spark, task.spec(folder / "rows", f"checkpoint-{name}", way), folder)
                setting.report(f"{name}, {found[name].wall(-LAST) / LAST:.2f} s a trigger at the end")
        return found
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@dataclass(frozen=True)
class Gains:
    """What a setting gained over nothing, and when triggers were short again."""

    end: float
    """Rows a second of whole triggers in the last batches."""
    since: float
    """The same since the change."""
    slots: float
    """CPU time of the slowest slot in the last batches."""
    memory: float
    """The most bytes of a slot in the last batches, over those of nothing."""
    recovered: float
    """Seconds from the change until triggers stay below 1.25 times those of the end."""


def gains(base: ClusterRun, run: ClusterRun) -> Gains:
    last = len(run.triggers) - LAST
    end = run.wall(last) / LAST
    slow = [number for number, spent in enumerate(run.triggers) if spent > 1.25 * end and CHANGED <= number < last]
    return Gains(
        base.wall(last) / run.wall(last),
        base.wall(CHANGED) / run.wall(CHANGED),
        base.slowest(last) / run.slowest(last),
        run.fullest(last) / base.fullest(last),
        sum(run.triggers[CHANGED : max(slow, default=CHANGED - 1) + 1]),
    )


def present(found: Mapping[str, ClusterRun]) -> Outcome:
    base = found[NOTHING]
    each = {name: gains(base, run) for name, run in found.items()}
    rows: list[tuple[Cell, ...]] = [
        (
            name,
            *(round(value, 2) for value in (gain.end, gain.since, gain.slots, gain.memory, gain.recovered)),
            round(found[name].wall(len(base.triggers) - LAST) / LAST, 2),
            str(found[name].moves),
            found[name].plan,
        )
        for name, gain in each.items()
    ]
    last = len(base.triggers) - LAST
    share = base.slowest(last) / base.wall(last)
    both = [f"{LOCAL}+{name}" for name in BALANCING]
    totals = sorted({run.results for run in found.values()})
    verdicts = (
        Verdict(
            f"results over No-Adapt: {', '.join(f'{name} {value:g}' for name, value in PAPER.items())} (Section 23.2)",
            "rows/s of whole triggers at the end, over No-Adapt: "
            + ", ".join(f"{name} {each[name].end:.2f}" for name in PAPER)
            + f"; CPU of the slowest slot is {share:.0%} of No-Adapt's triggers",
            {
                **{f"both at least twice: {name}": each[name].end >= TWICE for name in both},
                "both beat either": all(
                    each[f"{LOCAL}+{name}"].end > max(each[name].end, each[LOCAL].end) for name in BALANCING
                ),
                "slots are most of a trigger": share > 0.5,
            },
        ),
        Verdict(
            "fewer tuples in memory with LM, about as many with LB (Figs 23.2 and 23.6)",
            "bytes of the fuller slot at the end, over No-Adapt: "
            + ", ".join(f"{name} {each[name].memory:.2f}" for name in PAPER),
            {
                "LM at most half": all(each[name].memory <= 0.5 for name in (LOCAL, *both)),
                "LB no more than nothing": all(each[name].memory <= 1.0 for name in BALANCING),
            },
        ),
        Verdict(
            "the plan changes and groups move by themselves (our own bar)",
            f"plans at the end: {', '.join(sorted({run.plan for run in found.values()}))}; seconds from the change "
            f"until triggers are short: {', '.join(f'{name} {each[name].recovered:.1f}' for name in (LOCAL, *both))}",
            {
                "the plan changed": all(found[name].plan != base.plan for name in (LOCAL, *both)),
                "groups moved": all(found[name].moves for name in (*BALANCING, *both)),
            },
        ),
        Verdict(
            "(own bar) no adaptation changes the results",
            f"{totals[0]:,} results in each of {len(found)} runs" if len(totals) == 1 else str(totals),
            {"the same results": len(totals) == 1},
        ),
    )
    columns = (
        "setting",
        "rows/s, end",
        "rows/s, since the change",
        "slowest slot, end",
        "bytes of the fuller slot, end",
        "s to recover",
        "s of a trigger, end",
        "moves ended in batch",
        "plan",
    )

    def draw(figure: Figure) -> None:
        upper, lower = figure.subplots(2, sharex=True)
        for name, run in found.items():
            upper.plot(run.triggers, label=name)
            lower.plot([max(slots) / 1e6 for slots in run.held])
        upper.set(ylabel="s of a trigger")
        lower.set(xlabel="batch", ylabel="MB of the fuller slot")
        upper.legend()

    return Outcome(columns, tuple(rows), draw, verdicts, (f"{MASTER}; nothing but the first skew is scheduled",))


SPARK_VARIANTS = (
    Experiment("balance-deciding-spark", "Part III with the product deciding (Zhu 2006, 23.2)", measure, present),
)
