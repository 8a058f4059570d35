"""Limits on Spark: what whole triggers really take, against what the limits count of them.

Spark is calibrated first (`spark_costs`); a quick run takes the calibration of this machine, if there is one. Then
queries that the calibration has not seen run in triggers of a second of event time, and the processor time of all
processes is held against what `limits.cpu` counts: the plan and Spark together. Each run is judged twice: by a limit a
quarter above the estimate, under which the query starts and must keep up, and by one a quarter below, under which it is
refused and would fall behind. Workers' memory, with the state, is held against what `limits.memory` counts.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from matplotlib.figure import Figure

from anabranch.calibrate.engine_costs import calibrate
from anabranch.calibrate.spark_costs import Seen, Trial, measured_costs, run_trials
from anabranch.planning.calibration import calibration_file, load_host, load_units
from lab.limits import backlog
from lab.registry import Cell, Experiment, Outcome, Setting, Verdict

ABOVE, BELOW = 1.25, 0.75
"""The limit under which a query starts, and the one under which it is refused, in what it is estimated to need."""
KEEP = 0.9
UNSEEN = (
    Trial(streams=3, rows=20_000, width=20, slots=2),
    Trial(streams=2, rows=80_000, width=60, slots=2),
    Trial(streams=4, rows=10_000, width=100),
    Trial(streams=3, rows=100_000, passing=0.3),
    Trial(streams=2, rows=40_000, matches=4, slots=2),
    Trial(streams=5, rows=2_000, slots=2),
)


@dataclass(frozen=True)
class Whole:
    """One query on Spark: its estimate, and what it took."""

    name: str
    slots: int
    plan: float
    """Cores for the plan, by the estimate; all slots together, as all below."""
    estimate: float
    """Cores for plan and Spark."""
    batches: tuple[float, ...]
    """Processor seconds of each trigger."""
    memory_estimate: float
    """Bytes of a slot."""
    memory: float
    """Bytes of the largest worker, with its state, at its peak."""

    @property
    def cpu(self) -> float:
        return sum(self.batches) / len(self.batches)

    def waiting(self, times: float) -> float:
        """Triggers of work that wait at the end, under a limit of so many times the estimate."""
        return backlog(self.batches, times * self.estimate, 1.0) / self.cpu


def measured(setting: Setting) -> list[Whole]:
    from anabranch.spark.session import open_session

    file = calibration_file()
    units, costs = (load_units(file), load_host(file)) if setting.quick else (None, None)
    units = calibrate(setting.seed) if units is None else units
    top = Path(tempfile.mkdtemp(prefix="anabranch-lab-"))
    spark = open_session("local[2]", {"spark.driver.memory": "1g"})
    try:
        if costs is None:
            costs = measured_costs(spark, top / "known", units, setting.seed)
        trials = UNSEEN[:3] if setting.quick else UNSEEN
        seen = run_trials(spark, top / "unseen", trials, units, setting.seed + 1, costs)
        return [whole([each for each in seen if each.trial == trial]) for trial in trials]
    finally:
        spark.stop()
        shutil.rmtree(top, ignore_errors=True)


def whole(several: Sequence[Seen]) -> Whole:
    """The runs of one query together."""
    first, trial = several[0], several[0].trial
    return Whole(
        trial.title,
        trial.slots,
        first.engine,
        first.estimate.cpu * trial.slots,
        tuple(spent for each in several for spent in each.batches),
        first.estimate.memory,
        max(each.peak + each.hot for each in several),
    )


COLUMNS = ("query", "slots", "cores of the plan", "cores estimated", "cores taken", "off", "MB estimated", "MB taken")


def present(found: Sequence[Whole]) -> Outcome:
    kept = sum(each.waiting(ABOVE) < 1.0 for each in found) / len(found)
    failed = sum(each.waiting(BELOW) >= 1.0 for each in found) / len(found)
    fullest = max(each.memory / each.memory_estimate for each in found)
    alone = max(each.cpu / max(each.plan, 1e-9) for each in found)
    off = max((each.cpu / each.estimate - 1 for each in found), key=abs)
    verdicts = (
        Verdict(
            f"our own bar: under limits a quarter above the estimate, {KEEP:.0%} of the queries keep up",
            f"{kept:.0%} of {len(found)}; the estimate is off by {off:+.0%} at most",
            {f"{KEEP:.0%} keep up": kept >= KEEP},
        ),
        Verdict(
            f"our own bar: under limits a quarter below it, which refuse them, {KEEP:.0%} would fall behind",
            f"{failed:.0%} of {len(found)}",
            {f"{KEEP:.0%} fall behind": failed >= KEEP},
        ),
        Verdict(
            "our own bar: no worker takes more memory than the limit counts for its slot",
            f"the largest takes {fullest:.0%} of it",
            {"within the limit": fullest <= 1.0},
        ),
        Verdict(
            "our own bar: the plan alone is less than half of what some query takes, so limits must count Spark",
            f"up to {alone:.1f} times the plan",
            {"twice the plan": alone >= 2.0},
        ),
    )
    notes = (
        "a session of two cores on this machine, files as sources and sink, a second of event time in a trigger",
        "cores are processor time of all processes of the session",
    )
    rows: list[tuple[Cell, ...]] = [
        (
            each.name,
            each.slots,
            each.plan,
            each.estimate,
            each.cpu,
            each.cpu / each.estimate - 1,
            each.memory_estimate / 1e6,
            each.memory / 1e6,
        )
        for each in found
    ]
    return Outcome(COLUMNS, tuple(rows), lambda figure: draw(figure, found), verdicts, notes)


def draw(figure: Figure, found: Sequence[Whole]) -> None:
    axes = figure.subplots()
    places = range(len(found))
    axes.bar([place - 0.2 for place in places], [each.estimate for each in found], 0.4, label="estimated")
    axes.bar([place + 0.2 for place in places], [each.cpu for each in found], 0.4, label="taken")
    axes.bar([place - 0.2 for place in places], [each.plan for each in found], 0.4, label="the plan alone")
    axes.set_xticks(list(places), [each.name for each in found], rotation=20, ha="right")
    axes.set(ylabel="cores")
    axes.legend()


SPARK_VARIANTS = (Experiment("limits-spark", "What limits count on Spark, and what triggers take", measured, present),)
