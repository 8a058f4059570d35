"""The regret suite on Spark: six workloads in whole triggers, as a user would run them.

The rows of each batch are a file of each stream, and a trigger takes one file of each. The best static plan is found in
process, in a smaller run (`regret_runs.race`): a trigger costs the same whatever plan it has, but for the slots. Three
runs are compared: that plan, `plan: auto`, and `plan: auto` with `adapt`; each samples the first files only. Orders
alternate from round to round, after a warm-up that does not count; the triggers in which windows fill do not count
either.

*Triggers* are whole: Spark's planning, reading, shuffling and writing, and the driver's deciding. *Slots* are the
processor time of the slots' steps alone, which is what a plan changes. The answers are files and are compared row by
row.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from statistics import mean, median
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
from matplotlib.figure import Figure

from anabranch.plan.mesh import Plan
from lab.registry import Cell, Experiment, Outcome, Setting, Verdict
from lab.regret_runs import SAMPLED, fingerprint, race, sampled_places, static_plans
from lab.regret_suite import SYNTHETIC, chain_of
from lab.regret_workloads import WINDOW, Kind, Size, Workload, steps

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from anabranch.api.session import Session
    from anabranch.spark.handle import QueryHandle

MASTER, SLOTS = "local[2]", 2
HEAVY_WORKLOADS = (
    chain_of(
        "heavy swap",
        "changing",
        "chosen so that joins take most of a trigger: rows meet 24 partners by one edge, until it is the other",
        "abc",
        steps((0.05, 12.0), (12.0, 0.05), (12.0, 0.05)),
        rate=2.0,
    ),
    chain_of(
        "heavy drifts",
        "changing",
        "the same with four streams and three phases",
        "abcd",
        steps((0.05, 12.0, 0.5), (12.0, 0.05, 0.5), (12.0, 0.5, 0.05)),
        rate=2.0,
    ),
)
WORKLOADS = (*SYNTHETIC, *HEAVY_WORKLOADS)
NAMES = ("uniform", "different rates", "text keys", "late skew", "heavy swap", "heavy drifts")
"""Two that stay, one that changes, one that becomes skewed, and two that change with heavy joins."""
FULL, QUICK = Size(80, 20_000), Size(40, 10_000)
HINDSIGHT = Size(80, 2_000, every_shape=4, most_plans=8)
"""The size of the run in process that finds the best static plan."""
MEAN, WORST, GAIN, HEAVY_GAIN = 1.03, 1.10, 1.7, 1.4
HEAVY = 0.5
"""Joins are heavy where slots take this share of the triggers."""
FIXED, FIRST, ADAPT = "best static", "auto", "adapt"


@dataclass(frozen=True)
class SparkRun:
    """Seconds of the triggers after the windows are full, processor seconds of the slots in them, and the answer."""

    triggers: float
    slots: float
    plan: str
    changes: int
    answer: tuple[int, int]
    """The number of the results, and their fingerprint."""


@dataclass(frozen=True)
class SparkFound:
    """The runs of one workload, by how the plan was chosen."""

    name: str
    kind: Kind
    runs: Mapping[str, tuple[SparkRun, ...]]

    def triggers(self, way: str) -> float:
        return median(run.triggers for run in self.runs[way])

    def slots(self, way: str) -> float:
        return median(run.slots for run in self.runs[way])

    @property
    def regret(self) -> float:
        return self.triggers(ADAPT) / self.triggers(FIXED)

    @property
    def gain(self) -> float:
        return self.slots(FIRST) / self.slots(ADAPT)

    @property
    def whole_gain(self) -> float:
        return self.triggers(FIRST) / self.triggers(ADAPT)

    @property
    def is_heavy(self) -> bool:
        """True where the slots of the first plan take most of its triggers, both slots at once."""
        return self.slots(FIRST) / SLOTS >= HEAVY * self.triggers(FIRST)

    @property
    def is_exact(self) -> bool:
        return len({run.answer for several in self.runs.values() for run in several}) == 1


def measure(setting: Setting) -> tuple[SparkFound, ...]:
    """The six workloads, or those that are named, one after another."""
    from anabranch.spark.session import open_session

    size, rounds = (QUICK, 1) if setting.quick else (FULL, 3)
    chosen = [each for each in WORKLOADS if each.name in (setting.only or NAMES)]
    top = Path(tempfile.mkdtemp(prefix="anabranch-lab-"))
    spark = open_session(MASTER, {"spark.driver.memory": "2g"})
    try:
        found = []
        for number, workload in enumerate(setting.each(chosen)):
            folder = top / str(number)
            write(workload, folder, setting.seed, size)
            plans: dict[str, Plan | str] = {FIXED: best_static(workload, setting.seed), FIRST: "auto", ADAPT: "auto"}
            if not number:
                run(spark, workload, folder / "warm-up", folder, "auto", adapts=True)
            runs: dict[str, list[SparkRun]] = {way: [] for way in plans}
            for turn in range(rounds):
                for way in list(plans)[:: -1 if turn % 2 else 1]:
                    place = folder / f"{way}-{turn}"
                    runs[way].append(run(spark, workload, place, folder, plans[way], adapts=way == ADAPT))
                    shutil.rmtree(place, ignore_errors=True)
            several = {way: tuple(each) for way, each in runs.items()}
            found.append(SparkFound(workload.name, workload.kind, several))
            shutil.rmtree(folder, ignore_errors=True)
        return tuple(found)
    finally:
        spark.stop()
        shutil.rmtree(top, ignore_errors=True)


def best_static(workload: Workload, seed: int) -> Plan:
    """The static plan of least work in a smaller run of the workload."""
    query, batches = workload.query, partial(workload.batches, seed, HINDSIGHT)
    samples = sampled_places(query, batches, HINDSIGHT, workload.batch)
    candidates = static_plans(query, samples, workload.batch, HINDSIGHT.every_shape)[: HINDSIGHT.most_plans]
    return race(workload, query, candidates, list(batches()))[0]


def write(workload: Workload, folder: Path, seed: int, size: Size) -> None:
    """Writes the batches as files, in the order of their times."""
    for number, batch in enumerate(workload.batches(seed, size)):
        for name, rows in batch.items():
            (folder / name).mkdir(parents=True, exist_ok=True)
            path = folder / name / f"{number:05}.parquet"
            pq.write_table(rows, path)
            os.utime(path, (number, number))


def run(
    spark: SparkSession, workload: Workload, place: Path, folder: Path, plan: Plan | str, *, adapts: bool
) -> SparkRun:
    """Runs the workload to the end of its files."""
    session = _session(spark, workload, folder)
    writer = session.sql(workload.text).writeStream.format("parquet").plan(plan).slots(SLOTS)
    writer = writer.option("checkpointLocation", str(place / "checkpoint")).trigger(availableNow=True)
    handle = (writer.adapt() if adapts else writer).start(str(place / "out"))
    handle.awaitTermination()
    return _seen(handle, place)


def _session(spark: SparkSession, workload: Workload, folder: Path) -> Session:
    from anabranch.api.session import Session

    session = Session(spark)
    for name in workload.streams:
        files = sorted((folder / name).iterdir())
        schema = spark.read.parquet(str(files[0])).schema
        rows = spark.readStream.schema(schema).option("maxFilesPerTrigger", 1).parquet(str(folder / name))
        sample = spark.read.parquet(*map(str, islice(files, SAMPLED)))
        session.register(name, rows, event_time="ts", sample=sample)
    for name, rows in workload.tables.items():
        session.table(name, spark.createDataFrame(rows.to_pandas()))
    return session


def _seen(handle: QueryHandle, place: Path) -> SparkRun:
    steps = [each for each in handle.recentProgress if each["adaptive"] is not None][WINDOW:]
    tables = [pq.read_table(path) for path in sorted((place / "out").rglob("*.parquet"))]
    rows = pa.concat_tables(tables) if tables else pa.table({})
    return SparkRun(
        sum(each["durationMs"]["triggerExecution"] / 1000 for each in steps),
        sum(slot["cpuSeconds"] for each in steps for slot in each["adaptive"]["slotStatistics"]),
        str(handle.plan),
        sum(record.get("phase") == "began" for record in handle.history),
        (rows.num_rows, fingerprint(rows)),
    )


# --- the verdicts -----------------------------------------------------------------------------------------------------

COLUMNS = (
    "workload",
    "kind",
    "best static plan",
    "last plan",
    "changes",
    "triggers best s",
    "triggers auto s",
    "triggers adapt s",
    "regret",
    "gain of triggers",
    "gain of slots",
    "share of slots",
)


def present(found: Sequence[SparkFound]) -> Outcome:
    changing = [each for each in found if each.kind in ("changing", "skewed")]
    heavy = [each for each in changing if each.is_heavy]
    regrets = {each.name: each.regret for each in found}
    worst = max(regrets, key=lambda name: regrets[name])
    gained = median(each.gain for each in changing) if changing else 0.0
    inexact = [each.name for each in found if not each.is_exact]
    whole = median(each.whole_gain for each in heavy) if heavy else 0.0
    verdicts = (
        Verdict(
            f"regret in whole triggers: at most {MEAN:g} on average and {WORST:g} at worst",
            f"{mean(regrets.values()):.3f} on average, {regrets[worst]:.3f} at worst ({worst})",
            {
                f"{MEAN:g} on average": mean(regrets.values()) <= MEAN,
                f"{WORST:g} at worst": regrets[worst] <= WORST,
            },
        ),
        Verdict(
            f"where data change or are skewed, slots need {GAIN:g} times less than with the first plan (median)",
            f"{gained:.2f} times over {len(changing)} workloads",
            {f"a gain of {GAIN:g}": gained >= GAIN},
        ),
        Verdict(
            f"where slots take half of the triggers, whole triggers are {HEAVY_GAIN:g} times shorter (median)",
            f"{whole:.2f} times over {len(heavy)} workloads" if heavy else "slots take less in all workloads",
            {f"a gain of {HEAVY_GAIN:g}": whole >= HEAVY_GAIN},
        ),
        Verdict(
            "all runs of a workload have the same results",
            f"results differ in {', '.join(inexact)}" if inexact else f"in {len(found)} of {len(found)} workloads",
            {"the same results": not inexact},
        ),
    )
    notes = (
        f"{MASTER}, {SLOTS} slots; seconds of triggers are wall clock, so a busy machine shows in them",
        "the best static plan is that of least work in a smaller run in process",
    )
    return Outcome(COLUMNS, tuple(_row(each) for each in found), lambda figure: _draw(figure, found), verdicts, notes)


def _row(each: SparkFound) -> tuple[Cell, ...]:
    adapt = each.runs[ADAPT][0]
    return (
        each.name,
        each.kind,
        each.runs[FIXED][0].plan,
        adapt.plan,
        adapt.changes,
        each.triggers(FIXED),
        each.triggers(FIRST),
        each.triggers(ADAPT),
        each.regret,
        each.whole_gain,
        each.gain,
        each.slots(FIRST) / SLOTS / each.triggers(FIRST),
    )


def _draw(figure: Figure, found: Sequence[SparkFound]) -> None:
    axes = figure.subplots()
    for shift, way in ((-0.25, FIXED), (0.0, FIRST), (0.25, ADAPT)):
        axes.bar(
            [place + shift for place in range(len(found))], [each.triggers(way) for each in found], 0.25, label=way
        )
    axes.set(ylabel="seconds of triggers")
    axes.set_xticks(list(range(len(found))), [each.name for each in found], rotation=30, ha="right")
    axes.legend()


SPARK_VARIANTS = (
    Experiment(
        "regret-spark",
        "Regret of adapting in whole triggers of Spark",
        measure,
        present,
        lambda: tuple(each.name for each in WORKLOADS),
    ),
)
