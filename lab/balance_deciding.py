"""The headline of Zhu 2006, Part III, with the product deciding: plan changes and moves, alone and together, on Spark.

Two executors of one core, and two slots. From the second batch on the first slot has four fifths of the groups; later
another stream becomes the slow one, so that another join order is much cheaper. Only the first skew is scheduled:
`adapt` and `balance: auto` find the answer to both by their own measurements. Three streams are joined by one key, and
a predicate over all three leaves few results: slots join for most of a trigger, and sinks write little. Figures are
those of the last batches; of their triggers the faster half counts, because other work on the machine only lengthens
triggers.
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
LAST = 12
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

    @property
    def trigger(self) -> float:
        """Seconds of a trigger at the end."""
        faster = sorted(self.triggers[-LAST:])[: LAST // 2]
        return sum(faster) / len(faster)

    @property
    def slot(self) -> float:
        """CPU seconds of the slowest slot in a batch at the end."""
        return sum(max(each) for each in self.cpu[-LAST:]) / LAST

    @property
    def fullest(self) -> int:
        """The most bytes of a slot in a batch at the end."""
        return max(max(each) for each in self.held[-LAST:])

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
                setting.report(f"{name}, {found[name].trigger:.2f} s a trigger at the end")
        return found
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@dataclass(frozen=True)
class Gains:
    """What a setting gained over nothing at the end, and when slots were fast again."""

    triggers: float
    """Rows a second of whole triggers."""
    slots: float
    """Rows a CPU second of the slowest slot."""
    memory: float
    """The most bytes of a slot, over those of nothing."""
    recovered: int
    """Batches from the change until the slowest slot stays below 1.25 times its CPU time at the end."""


def gains(base: ClusterRun, run: ClusterRun) -> Gains:
    slow = [
        number for number, spent in enumerate(run.cpu) if max(spent) > 1.25 * run.slot and number < len(run.cpu) - LAST
    ]
    return Gains(
        base.trigger / run.trigger,
        base.slot / run.slot,
        run.fullest / base.fullest,
        max(0, max(slow, default=0) + 1 - CHANGED),
    )


def present(found: Mapping[str, ClusterRun]) -> Outcome:
    base = found[NOTHING]
    each = {name: gains(base, run) for name, run in found.items()}
    rows: list[tuple[Cell, ...]] = [
        (
            name,
            *(round(value, 2) for value in (gain.triggers, gain.slots, gain.memory)),
            gain.recovered,
            round(found[name].trigger, 2),
            round(found[name].slot, 2),
            str(found[name].moves),
            found[name].plan,
        )
        for name, gain in each.items()
    ]
    share = base.slot / base.trigger
    both = [f"{LOCAL}+{name}" for name in BALANCING]
    totals = sorted({run.results for run in found.values()})
    verdicts = (
        Verdict(
            f"results over No-Adapt: {', '.join(f'{name} {value:g}' for name, value in PAPER.items())} (Section 23.2)",
            f"rows/s of whole triggers at the end, over No-Adapt: {_list(each, 'triggers')}; rows/s of the slowest "
            f"slot {_list(each, 'slots')}; its CPU time is {share:.0%} of No-Adapt's triggers",
            {
                **{f"both at least twice: {name}": each[name].triggers >= TWICE for name in both},
                "both beat either in the slots": all(
                    each[f"{LOCAL}+{name}"].slots > max(each[name].slots, each[LOCAL].slots) for name in BALANCING
                ),
                "slots are most of a trigger": share > 0.5,
            },
        ),
        Verdict(
            "fewer tuples in memory with LM, about as many with LB (Figs 23.2 and 23.6)",
            f"bytes of the fuller slot at the end, over No-Adapt: {_list(each, 'memory')}",
            {
                "LM at most half": all(each[name].memory <= 0.5 for name in (LOCAL, *both)),
                "LB no more than nothing": all(each[name].memory <= 1.0 for name in BALANCING),
            },
        ),
        Verdict(
            "the plan changes and groups move by themselves (our own bar)",
            f"plans at the end: {', '.join(sorted({run.plan for run in found.values()}))}; batches from the change "
            f"until slots are fast: {', '.join(f'{name} {each[name].recovered}' for name in PAPER)}",
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
        "rows/s",
        "rows/s of the slowest slot",
        "bytes of the fuller slot",
        "batches to recover",
        "s of a trigger",
        "CPU s of the slowest slot",
        "moves ended in batch",
        "plan",
    )

    def draw(figure: Figure) -> None:
        upper, middle, lower = figure.subplots(3, sharex=True)
        for name, run in found.items():
            upper.plot(run.triggers, label=name)
            middle.plot([max(slots) for slots in run.cpu])
            lower.plot([max(slots) / 1e6 for slots in run.held])
        upper.set(ylabel="s of a trigger")
        middle.set(ylabel="CPU s of the slowest slot")
        lower.set(xlabel="batch", ylabel="MB of the fuller slot")
        upper.legend()

    return Outcome(columns, tuple(rows), draw, verdicts, (f"{MASTER}; nothing but the first skew is scheduled",))


def _list(gains: Mapping[str, Gains], what: str) -> str:
    return ", ".join(f"{name} {getattr(gains[name], what):.2f}" for name in PAPER)


SPARK_VARIANTS = (
    Experiment("balance-deciding-spark", "Part III with the product deciding (Zhu 2006, 23.2)", measure, present),
)
