"""Measures the cost of Spark itself on this machine, for `anabranch calibrate`: the unit costs of `cost.host`.

Small queries run on a local session over generated files, one file of each stream per trigger. Each trial increases one
quantity relative to the first: sources, slots, rows, bytes per row, rows that a filter drops, results. Spark's share is
the CPU time of all processes of the session between two batches, minus the engine's modelled cost of the plan.
Non-negative least squares attributes it to the quantities. The first triggers of a trial are not counted, and a trial
before all others lets the JIT compile Spark's code. Memory is read from the processes of the workers and of the driver.

Limit: needs `/proc`, so Linux. Spark reads the rows, as for most sources; files that slots read themselves cost less
per row than measured here. The sink is Parquet files. Costs are those of a local session: on a cluster, rows also cross
a network.
"""

from __future__ import annotations

import logging
import os
import shutil
import tempfile
from collections.abc import Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from anabranch.calibrate.fitting import nonnegative_fit
from anabranch.cost.estimates import WIRE_BYTES
from anabranch.cost.host import SPARK, Host, HostCosts
from anabranch.cost.resources import Resources
from anabranch.cost.units import UnitCosts
from anabranch.errors import HostError
from anabranch.lang.sizes import size_text
from anabranch.planning.choosing import decide
from anabranch.planning.options import PlanOptions
from anabranch.run.hot import hot_root
from anabranch.run.processes import above_now, below, bytes_in, cpu_seconds, forget_peaks, is_worker, resident
from anabranch.telemetry.logs import LOG, fields_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from anabranch.spark.session import SparkSession

SCHEMA = "ts timestamp, k bigint, w bigint, p string"
UNCOUNTED, COUNTED = 3, 6
"""Triggers of a trial before it is measured, and while it is measured."""
FIRST = 30
"""Triggers of each of two warm-up trials: one of many small triggers, one of rows and results."""
ROUNDS = 2
"""The number of runs of each trial; every second round is in reverse order, to offset JIT compilation."""
HOLD = 0.1
"""The weight of the prior (the default share of a cost), relative to one trial."""
SECOND = 1_000_000
"""Microseconds; the rows of a file span one second, and so does a window."""


@dataclass(frozen=True)
class Trial:
    """A query with triggers of one size; rows and results are per trigger."""

    streams: int = 2
    rows: int = 100
    """Rows of each stream."""
    width: int = 8
    """Bytes of the text column of a row."""
    slots: int = 1
    passing: float = 1.0
    """The fraction of rows that passes the filter of each stream."""
    matches: int = 0
    """The number of rows in one batch of the other stream that a row matches."""

    @property
    def text(self) -> str:
        names = [f"s{number}" for number in range(self.streams)]
        windows = ", ".join(f"{name} [RANGE 1 SECOND]" for name in names)
        joins = [f"{one}.k = {other}.k" for one, other in pairwise(names)]
        filters = [f"{name}.w < {round(100 * self.passing)}" for name in names] if self.passing < 1 else []
        columns = ", ".join(f"{name}.p AS {name}" for name in names)
        return f"SELECT {columns} FROM {windows} WHERE {' AND '.join([*joins, *filters])}"

    @property
    def row_bytes(self) -> float:
        return self.width + WIRE_BYTES

    @property
    def title(self) -> str:
        parts = [f"{self.streams} streams of {self.rows:,} rows of {self.width} bytes"]
        parts += [f"{self.passing:.0%} pass"] if self.passing < 1 else []
        parts += [f"{self.matches} matches"] if self.matches else []
        return ", ".join(parts)


BASE = Trial()
TRIALS = (
    BASE,
    Trial(streams=4),
    Trial(slots=2),
    Trial(rows=150_000),
    Trial(rows=80_000, width=30, slots=2),
    Trial(rows=60_000, width=200),
    Trial(rows=150_000, passing=0.1),
    Trial(rows=30_000, matches=8),
)


@dataclass(frozen=True)
class Seen:
    """The measurements of a trial, by trigger."""

    trial: Trial
    batches: tuple[float, ...]
    """CPU seconds of each trigger, over all processes."""
    engine: float
    """The engine's modelled share of these seconds."""
    results: float
    """Results per trigger."""
    worker: float
    """Resident bytes of a worker without the state, at the end of a batch."""
    peak: float
    """The peak of the same while it works."""
    hot: float
    """Bytes of the state in a slot."""
    estimate: Resources
    """The estimated total needs of a slot, if Spark's costs were known."""

    @property
    def cpu(self) -> float:
        """Spark's seconds in one trigger."""
        return max(sum(self.batches) / len(self.batches) - self.engine, 1e-6)

    @property
    def counts(self) -> tuple[float, ...]:
        """The quantities that the seconds are attributed to, in the order of `NAMES`."""
        trial = self.trial
        read = float(trial.streams * trial.rows)
        sent = read * trial.passing
        return 1.0, float(trial.streams), float(trial.slots), read, sent, sent * trial.row_bytes, self.results


NAMES = ("trigger", "source", "slot", "read", "row", "byte", "result")


def measure_spark(units: UnitCosts, seed: int = 1) -> HostCosts:
    """Measures the unit costs of Spark on this machine; `units` are those of the engine.

    Raises
    ------
    HostError
        When Spark is missing, or the machine has no `/proc`.
    """
    if not Path("/proc/self/stat").exists():
        raise HostError("processes cannot be measured here", hint="calibrate with --no-spark")
    from anabranch.spark.session import open_session

    folder = Path(tempfile.mkdtemp(prefix="anabranch-calibrate-"))
    spark = open_session("local[2]", {"spark.driver.memory": "1g"})
    try:
        return measured_costs(spark, folder, units, seed)
    finally:
        spark.stop()
        shutil.rmtree(folder, ignore_errors=True)


def measured_costs(spark: SparkSession, folder: Path, units: UnitCosts, seed: int) -> HostCosts:
    """Measures the unit costs of an existing session; writes files below the folder."""
    seen = run_trials(spark, folder, TRIALS, units, seed)
    driver = sum(resident(pid) for pid in (os.getpid(), *below(os.getpid())) if not is_worker(pid))
    return fitted(seen, driver)


def run_trials(
    spark: SparkSession,
    folder: Path,
    trials: Sequence[Trial],
    units: UnitCosts,
    seed: int,
    costs: HostCosts | None = None,
) -> list[Seen]:
    """Runs each trial `ROUNDS` times, after two warm-up trials; `costs` are Spark's, if known."""
    for number, trial in enumerate((BASE, TRIALS[-1])):
        run_trial(spark, folder / f"first-{number}", trial, units, seed, FIRST)
    seen = []
    for turn in range(ROUNDS):
        for number, trial in enumerate(trials[:: -1 if turn % 2 else 1]):
            seen.append(run_trial(spark, folder / f"{turn}-{number}", trial, units, seed, costs=costs))
    return seen


def fitted(seen: Sequence[Seen], driver: float) -> HostCosts:
    """Returns the unit costs that best explain the trials; all trials have the same weight.

    A light prior pulls each cost towards its default share, because small quantities are lost in the noise of the
    machine.
    """
    usual = np.array([getattr(SPARK, name) for name in NAMES])
    counts = np.array([each.counts for each in seen]) / np.array([[each.cpu] for each in seen]) * usual
    speed = 1 / float(np.median(counts.sum(axis=1)))
    held = np.diag(np.full(len(NAMES), HOLD / speed))
    found = nonnegative_fit(np.vstack([counts, held]), np.concatenate([np.ones(len(seen)), np.full(len(NAMES), HOLD)]))
    costs = dict(zip(NAMES, (found * usual).tolist(), strict=True))
    small = [each for each in seen if each.trial.rows == BASE.rows]
    large = max(seen, key=lambda each: each.trial.rows * each.trial.width)
    rows = large.trial.streams * large.trial.rows * large.trial.row_bytes / large.trial.slots
    at_rest = max(each.peak for each in small)
    grown = max(0.0, large.peak - at_rest)
    return HostCosts(**costs, worker_bytes=at_rest, batch_bytes=grown / rows, driver_bytes=float(driver))


# --- one trial --------------------------------------------------------------------------------------------------------


def run_trial(
    spark: SparkSession,
    folder: Path,
    trial: Trial,
    units: UnitCosts,
    seed: int,
    counted: int = COUNTED,
    costs: HostCosts | None = None,
) -> Seen:
    """Runs a trial until its files are processed."""
    from anabranch.api.session import Session

    write(folder, trial, seed, UNCOUNTED + counted)
    session = Session(spark)
    for number in range(trial.streams):
        source = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).parquet(str(folder / f"s{number}"))
        session.register(f"s{number}", source, event_time="ts", watermark="0 seconds")
    query, known = session.sql(trial.text), statistics(trial, units)
    host = None if costs is None else Host(costs, "calibrated", "trigger")
    choice = decide(query.compiled.query, PlanOptions(plan="mjoin").with_stats(known), slots=trial.slots, host=host)
    cost = choice.answer.cost
    writer = query.writeStream.format("parquet").plan("mjoin").stats(known).slots(trial.slots)
    writer = writer.option("checkpointLocation", str(folder / "checkpoint")).trigger(availableNow=True)
    forget_peaks()
    with _watched() as batches, _read_by_spark():
        writer.start(str(folder / "out")).awaitTermination()
    shutil.rmtree(folder, ignore_errors=True)
    ended = batches[UNCOUNTED:]
    return Seen(
        trial,
        tuple(after.cpu - before.cpu for before, after in pairwise(batches[UNCOUNTED - 1 :])),
        cost.cpu,
        sum(each.fields["rowsOut"] for each in ended) / len(ended),
        max(each.worker for each in ended),
        max(each.peak for each in ended),
        max(each.hot for each in ended) / trial.slots,
        choice.budget.of_slot(cost),
    )


def statistics(trial: Trial, units: UnitCosts) -> dict[str, Any]:
    """Returns the statistics of the generated rows, as a `stats` block."""
    names = [f"s{number}" for number in range(trial.streams)]
    share = trial.matches / trial.rows
    filters = dict.fromkeys(names, trial.passing) if trial.passing < 1 else {}
    return {
        "rates": dict.fromkeys(names, float(trial.rows)),
        "selectivities": {f"{one} {other}": share for one, other in pairwise(names)},
        "bytes": dict.fromkeys(names, float(trial.width)),
        "filters": filters,
        "costs": units.by_name(),
    }


def write(folder: Path, trial: Trial, seed: int, files: int) -> None:
    """Writes the files of a trial; without matches, the streams have disjoint keys."""
    rng = np.random.default_rng(seed)
    letters = np.frombuffer(b"abcdefghijklmnopqrstuvwxyz0123456789", np.uint8)
    for stream in range(trial.streams):
        place = folder / f"s{stream}"
        place.mkdir(parents=True)
        for number in range(files):
            rows = trial.rows
            keys = np.arange(rows) // trial.matches if trial.matches else np.arange(rows) * trial.streams + stream
            times = np.sort(rng.integers(0, SECOND, rows)) + number * SECOND
            texts = letters[rng.integers(0, len(letters), rows * trial.width)].tobytes()
            offsets = np.arange(rows + 1, dtype=np.int32) * trial.width
            columns = {
                "ts": pa.array(times, pa.timestamp("us", "UTC")),
                "k": pa.array(rng.permutation(keys)),
                "w": pa.array(rng.integers(0, 100, rows)),
                "p": pa.StringArray.from_buffers(rows, pa.py_buffer(offsets), pa.py_buffer(texts)),
            }
            path = place / f"{number:05}.parquet"
            pq.write_table(pa.table(columns), path)
            os.utime(path, (number, number))


# --- measurements after a batch ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Batch:
    """The processes of the session at the end of a batch, and the batch's line in the log."""

    fields: dict[str, Any]
    cpu: float
    worker: float
    peak: float
    hot: float


@contextmanager
def _read_by_spark() -> Iterator[None]:
    """Makes Spark read the files of queries that start inside the context."""
    from anabranch.spark.stored_files import OFF

    before = os.environ.get(OFF)
    os.environ[OFF] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[OFF]
        else:
            os.environ[OFF] = before


@contextmanager
def _watched() -> Iterator[list[_Batch]]:
    """Collects the batches that end inside the context."""
    batches: list[_Batch] = []

    class Watch(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if record.getMessage() == "batch":
                batches.append(_look(dict(fields_of(record))))

    handler, level = Watch(), LOG.level
    LOG.addHandler(handler)
    LOG.setLevel(logging.INFO)
    try:
        yield batches
    finally:
        LOG.removeHandler(handler)
        LOG.setLevel(level)


def _look(fields: dict[str, Any]) -> _Batch:
    others = below(os.getpid())
    cpu = sum(cpu_seconds(pid) for pid in (os.getpid(), *others))
    workers = [pid for pid in others if is_worker(pid)]
    # The daemon, which forks the workers, is not a worker; its shared memory is divided among them.
    worker = sum(map(resident, workers)) / max(1, len(workers) - 1)
    hot = sum(bytes_in(place) for place in hot_root().glob(f"*{fields['run']}*"))
    return _Batch(fields, cpu, worker, worker + max(map(above_now, workers), default=0), float(hot))


def described(costs: HostCosts) -> list[str]:
    """Returns the costs beside the built-in ones, as lines for the command."""
    usual = asdict(SPARK)
    return [
        f"{name:16}{_amount(name, value):>14}   ({_amount(name, usual[name])} on an ordinary machine)"
        for name, value in asdict(costs).items()
        if name != "room"
    ]


def _amount(name: str, value: float) -> str:
    """
    >>> _amount("row", 1.2e-6), _amount("trigger", 0.25), _amount("worker_bytes", 8e7), _amount("batch_bytes", 2.5)
    ('1200.0 ns', '250.0 ms', '80.0 MB', '2.5 times')
    """
    if name == "batch_bytes":
        return f"{value:.1f} times"
    if name.endswith("bytes"):
        return size_text(value)
    return f"{1e3 * value:.1f} ms" if value >= 1e-4 else f"{1e9 * value:.1f} ns"
