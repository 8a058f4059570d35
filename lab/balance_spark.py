"""The first two experiments on balancing, small, on Spark's `local-cluster[2,1,1024]`: two executors of one core.

Two slots; from the second batch on the first has 51 of 64 groups, four fifths of the work. Specs as a user writes them
schedule the changes: of plans by `switch`, of groups by `moves`. A batch ends with its slowest slot, so what counts is
the CPU time of the slowest slot, and whole triggers beside it; on a machine with fewer cores than executors and driver
need, only the first says much.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from matplotlib.figure import Figure

from anabranch.adapt.course import STRATEGIES, MoveStrategy
from lab.balance_common import Rates, rows_of
from lab.registry import Cell, Experiment, Outcome, Setting, Verdict

MASTER = "local-cluster[2,1,1024]"
GROUPS_MOVED = 19
"""Of 64: with them one of two slots has four fifths of the groups."""
OLD, NEW = "((a b) c)", "((b c) a)"
NOTHING, LOCAL = "No-Adapt", "LM"
BALANCING: Mapping[str, MoveStrategy] = {"PTLB": "parallel-track", "MSLB": "moving-state"}
LEAST = 1.05
"""A smaller gain is none."""


@dataclass(frozen=True)
class Task:
    """Streams in files, one of each for a batch of a second of event time, and a window."""

    batches: int
    window: int
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

    def spec(self, folder: Path, checkpoint: str, changes: Mapping[str, object]) -> dict[str, object]:
        """The spec of a run, with a schedule of changes."""
        sources = ", ".join(f"{name} [RANGE {self.window} SECONDS]" for name in "abc")
        schema = "ts timestamp, k bigint, v bigint"
        moves = [{"at_batch": 1, "from": 1, "to": 0, "groups": GROUPS_MOVED}, *_listed(changes.get("moves"))]
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
            "query": f"SELECT a.v AS a, b.v AS b, c.v AS c FROM {sources} WHERE a.k = b.k AND b.k = c.k",
            "sink": {"format": "noop"},
            "checkpoint": str(folder / checkpoint),
            "slots": 2,
            "plan": OLD,
            **{name: value for name, value in changes.items() if name != "moves"},
            "moves": moves,
        }


def _listed(value: object) -> list[object]:
    return list(value) if isinstance(value, list) else []


@dataclass(frozen=True)
class ClusterRun:
    """One run: CPU seconds by batch and slot, seconds of each trigger, batches in which moves began and ended."""

    cpu: tuple[tuple[float, ...], ...]
    triggers: tuple[float, ...]
    results: int
    rows: int
    moves: tuple[tuple[int, int], ...]
    plan: str

    def slowest(self, since: int) -> float:
        """Seconds of the slowest slots in the batches since one."""
        return sum(max(each) for each in self.cpu[since:])

    def wall(self, since: int) -> float:
        return sum(self.triggers[since:])

    def skew(self, since: int) -> float:
        spent = np.array(self.cpu[since:])
        return float(spent.max(axis=1).sum() / spent.mean(axis=1).sum())


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
    began: dict[str, int] = {}
    moves = []
    for record in handle.history:
        if record["kind"] == "move" and record["batch"] > 1:
            if record["phase"] == "began":
                began["batch"] = record["batch"]
            else:
                moves.append((began.pop("batch", record["batch"]), record["batch"]))
    return ClusterRun(
        tuple(tuple(slot["cpuSeconds"] for slot in each) for each in slots),
        tuple(each["durationMs"]["triggerExecution"] / 1000 for each in steps),
        sum(each["adaptive"]["rowsOut"] for each in steps),
        sum(each["numInputRows"] for each in steps),
        tuple(moves),
        str(steps[-1]["adaptive"]["plan"]),
    )


def run_all(
    tasks: Mapping[str, tuple[Task, Mapping[str, Mapping[str, object]]]], seed: int
) -> dict[str, dict[str, ClusterRun]]:
    """Each task's files with each of its schedules of changes, after a warm-up that does not count."""
    top = Path(tempfile.mkdtemp(prefix="anabranch-lab-"))
    found: dict[str, dict[str, ClusterRun]] = {}
    try:
        with cluster() as spark:
            for number, (title, (task, changes)) in enumerate(tasks.items()):
                folder = top / str(number)
                task.write(folder, seed)
                if not number:
                    run_on(spark, task.spec(folder, "checkpoint-warm-up", {}), folder)
                found[title] = {
                    name: run_on(spark, task.spec(folder, f"checkpoint-{place}", each), folder)
                    for place, (name, each) in enumerate(changes.items())
                }
        return found
    finally:
        shutil.rmtree(top, ignore_errors=True)


# --- local migration and load balancing ------------------------------------------------------------------------------

CHANGED = 5
"""The batch from which two streams are twenty times slower."""


def measure_both(setting: Setting) -> dict[str, ClusterRun]:
    fast, batches = (4_000.0, 14) if setting.quick else (20_000.0, 24)

    def rates(second: float) -> dict[str, float]:
        slow = fast if second < CHANGED else fast / 20
        return {"a": fast, "b": slow, "c": slow}

    task = Task(batches, 5, rates, round(5 * fast))
    switch = [{"at_batch": CHANGED + 1, "plan": NEW, "strategy": "moving-state"}]
    changes: dict[str, Mapping[str, object]] = {NOTHING: {}, LOCAL: {"switch": switch}}
    for name, strategy in BALANCING.items():
        changes[name] = {"moves": [_back(CHANGED + 2, strategy)]}
        changes[f"{LOCAL}+{name}"] = {"switch": switch, **changes[name]}
    return run_all({"": (task, changes)}, setting.seed)[""]


def _back(batch: int, strategy: MoveStrategy) -> dict[str, object]:
    """The move that makes the slots even."""
    return {"at_batch": batch, "from": 0, "to": 1, "groups": GROUPS_MOVED, "strategy": strategy}


def present_both(found: Mapping[str, ClusterRun]) -> Outcome:
    since = CHANGED + 3
    base = found[NOTHING]
    gains = {name: base.slowest(since) / each.slowest(since) for name, each in found.items()}
    whole = {name: base.wall(since) / each.wall(since) for name, each in found.items()}
    rows: list[tuple[Cell, ...]] = [
        (name, batch, *each.cpu[batch], each.triggers[batch])
        for name, each in found.items()
        for batch in range(len(each.cpu))
    ]
    verdicts = []
    for name in BALANCING:
        both = f"{LOCAL}+{name}"
        paper = {"PTLB": "PTLB 2, LM 2, LM+PTLB 3.3", "MSLB": "MSLB 1.8, LM 2, LM+MSLB 2.7"}[name]
        each = (name, LOCAL, both)
        verdicts.append(
            Verdict(
                f"results over No-Adapt of machines that are overloaded: {paper} (Section 23.2); on Spark nothing is "
                "overloaded, and batches end sooner instead",
                f"CPU time of the slowest slot after the changes, No-Adapt over {_list(each, gains)}; whole triggers "
                f"{_list(each, whole)}; skew {found[name].skew(since):.2f} after {base.skew(since):.2f}",
                {
                    **{f"{one} wins": gains[one] >= LEAST for one in each},
                    "both at least as good as either": gains[both] >= 0.95 * max(gains[name], gains[LOCAL]),
                },
            )
        )
    verdicts.append(_same(found))
    columns = ("setting", "batch", "CPU s of slot 0", "CPU s of slot 1", "trigger s")
    return Outcome(columns, tuple(rows), lambda figure: _draw(figure, found), tuple(verdicts), _NOTES)


_NOTES = (f"{MASTER}; changes are scheduled in specs, so all runs make them with the same batch",)


def _list(names: Sequence[str], of: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {of[name]:.2f}" for name in names)


def _same(found: Mapping[str, ClusterRun]) -> Verdict:
    totals = sorted({each.results for each in found.values()})
    return Verdict(
        "(own bar) no adaptation changes the results",
        f"{totals[0]:,} results in each of {len(found)} runs" if len(totals) == 1 else str(totals),
        {"the same results": len(totals) == 1},
    )


def _draw(figure: Figure, found: Mapping[str, ClusterRun]) -> None:
    upper, lower = figure.subplots(2, sharex=True)
    for name, each in found.items():
        upper.plot([max(slots) for slots in each.cpu], label=name)
        lower.plot(each.triggers, label=name)
    upper.set(ylabel="CPU s of the slowest slot")
    lower.set(xlabel="batch", ylabel="s of a trigger")
    upper.legend()


# --- the two strategies ----------------------------------------------------------------------------------------------

MOVED = 4
"""The batch with which groups move."""


def measure_strategies(setting: Setting) -> dict[str, ClusterRun]:
    """Corners of the paper's settings, scaled: few rows or many, a short window or a long one."""
    rows = (3_000.0,) if setting.quick else (12_000.0, 20_000.0)
    tasks = {}
    for rate in rows:
        for window in (2, 6):
            task = Task(MOVED + window + 5, window, _steady(rate), round(window * rate))
            changes: dict[str, Mapping[str, object]] = {NOTHING: {}}
            changes |= {strategy: {"moves": [_back(MOVED, strategy)]} for strategy in STRATEGIES}
            tasks[f"{rate:g} rows/s, {window} s"] = task, changes
    found = run_all(tasks, setting.seed)
    return {f"{title}: {name}": each for title, runs in found.items() for name, each in runs.items()}


def _steady(rate: float) -> Rates:
    return lambda _: dict.fromkeys("abc", rate)


def present_strategies(found: Mapping[str, ClusterRun]) -> Outcome:
    cases = list(dict.fromkeys(name.rpartition(": ")[0] for name in found))
    since = MOVED + 1
    ratios: dict[str, dict[str, float]] = {}
    lengths: dict[str, dict[str, int]] = {}
    for case in cases:
        base = found[f"{case}: {NOTHING}"].slowest(since)
        ratios[case] = {name: base / found[f"{case}: {name}"].slowest(since) for name in STRATEGIES}
        moves = {name: found[f"{case}: {name}"].moves for name in STRATEGIES}
        lengths[case] = {name: each[0][1] - each[0][0] if each else -1 for name, each in moves.items()}
    rows: list[tuple[Cell, ...]] = [
        (name, batch, *each.cpu[batch], each.triggers[batch])
        for name, each in found.items()
        for batch in range(len(each.cpu))
    ]
    leads = {case: each["moving-state"] - each["parallel-track"] for case, each in ratios.items()}
    windows = {case: int(case.split(", ")[1].split()[0]) for case in cases}
    texts = [f"{case}: {_list(STRATEGIES, ratios[case])}" for case in cases]
    lasting = [lengths[case]["parallel-track"] / windows[case] for case in cases]
    verdicts = (
        Verdict(
            "both win over No-Adapt, and moving state wins more the longer the window is (Figs 23.9 to 23.11)",
            f"CPU time of the slowest slot after the move began, No-Adapt over {'; '.join(texts)}",
            {
                "moving state wins": all(each["moving-state"] >= LEAST for each in ratios.values()),
                "and more than parallel track with the long window": all(
                    leads[case] > 0 for case in cases if windows[case] == max(windows.values())
                ),
            },
        ),
        Verdict(
            "PTLB takes about 2W, MSLB is far shorter (Figs 23.12 to 23.14)",
            f"parallel track {min(lasting):.2f} to {max(lasting):.2f} W, moving state "
            f"{max(lengths[case]['moving-state'] for case in cases)} batches after the one in which it began",
            {
                "2W, within 15 %": all(1.7 <= each <= 2.3 for each in lasting),
                "moving state within its batch": all(lengths[case]["moving-state"] == 0 for case in cases),
            },
        ),
        *(_same({name: each for name, each in found.items() if name.startswith(f"{case}: ")}) for case in cases),
    )
    columns = ("setting", "batch", "CPU s of slot 0", "CPU s of slot 1", "trigger s")
    return Outcome(columns, tuple(rows), lambda figure: _draw(figure, found), verdicts, _NOTES)


SPARK_VARIANTS = (
    Experiment(
        "balance-local-and-load-spark",
        "Local migration and load balancing on two executors (Zhu 2006, Section 23.2)",
        measure_both,
        present_both,
    ),
    Experiment(
        "balance-strategies-spark",
        "Moves of groups on two executors: two strategies (Zhu 2006, Section 23.3)",
        measure_strategies,
        present_strategies,
    ),
)
