"""Measures what checks cost inside Spark, in checks of the engine, for `anabranch calibrate` (`plan.check_ratios`).

For each kind there is one check, written in CQL. Spark counts the rows of a generated file that pass it, and the engine
checks rows of the same file. What Spark's tasks take to count rows that have a text at all is subtracted, so reading is
not in it. Times are those of the threads that check, so a busy machine and Java's compiler disturb little; of several
rounds the fastest counts, and the first, in which code is compiled, does not.

Law: a ratio that was not seen clearly is the built-in one.

Limit: texts have about 40 letters, and a pattern is one of many. A matcher that begins anew at every letter takes time
that grows with the square of the text.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from anabranch.catalog import Catalog, StreamDeclaration
from anabranch.cql import compile_query
from anabranch.ddl import parse_schema
from anabranch.engine.batch import RelationBatch
from anabranch.expr import Expr
from anabranch.host.filters import timed
from anabranch.plan.check_ratios import BUILT_IN, CheckRatios

if TYPE_CHECKING:
    from anabranch.host.spark.session import SparkSession

CHECKS = {
    "rlike": "s.note RLIKE 'urgent (lot|way)'",
    "rlike_any": "s.note RLIKE '.*refund [a-z]+ [0-9]+.*'",
    "like": "s.note LIKE '%refund%urgent%'",
    "regexp_extract": "REGEXP_EXTRACT(s.note, 'lot ([0-9]+)', 1) = '7'",
    "regexp_replace": "REGEXP_REPLACE(s.note, '[0-9]+', '') = 'lot'",
    "concat": "CONCAT(s.note, '-7') = 'lot-7'",
    "substring": "SUBSTRING(s.note, 5, 9) = 'refund'",
}
"""A check of each kind."""
READING = "s.note IS NOT NULL"
"""A check that costs nothing; what it takes is reading."""
SLOW = frozenset({"rlike_any"})
"""Kinds for which a tenth of the rows is enough."""
WORDS = ("lot", "way", "refund", "urgent", "was", "sent", "lost", "order", "late")
ROWS = 400_000
ENGINE_ROWS = 20_000
"""Rows that the engine checks at once, about as many as a batch or a sample has."""
ROUNDS = 4
"""Times that each check is timed, after one that does not count."""
CLEAR = 0.1
"""What Spark takes for a check, relative to reading the rows, from which on it is told from noise."""


@dataclass(frozen=True)
class Times:
    """Seconds of a row, of the fastest round."""

    spark: float
    """With the reading."""
    reading: float
    engine: float

    @property
    def ratio(self) -> float | None:
        """What the check costs inside Spark, in checks of the engine; None where that was not seen clearly."""
        times = (self.spark, self.reading, self.engine)
        if not all(0 < each < math.inf for each in times) or self.spark - self.reading < CLEAR * self.reading:
            return None
        return (self.spark - self.reading) / self.engine


def measured_ratios(spark: SparkSession, folder: Path, seed: int, *, rows: int = ROWS) -> CheckRatios:
    """The ratios on a session that is there; files are written below the folder."""
    return ratios_of(time_checks(spark, folder, seed, rows))


def ratios_of(times: Mapping[str, Times]) -> CheckRatios:
    """The ratios that were seen clearly; the others are built in."""
    return CheckRatios.from_names({kind: ratio for kind, each in times.items() if (ratio := each.ratio) is not None})


def time_checks(spark: SparkSession, folder: Path, seed: int, rows: int) -> dict[str, Times]:
    """What each check takes."""
    table = pa.table({"note": notes(rows, seed)})
    files = {False: _written(table, folder / "many"), True: _written(table.slice(0, rows // 10), folder / "few")}
    counts = {False: rows, True: rows // 10}
    reading, checks = condition(READING), {kind: condition(text) for kind, text in CHECKS.items()}
    runs = [("", False, reading), ("", True, reading), *((kind, kind in SLOW, each) for kind, each in checks.items())]
    seen: dict[tuple[str, bool], list[float]] = {(kind, is_slow): [] for kind, is_slow, _ in runs}
    engine: dict[str, list[float]] = {kind: [] for kind in checks}
    batch = _batch(table.slice(0, ENGINE_ROWS))
    for turn in range(1 + ROUNDS):
        for kind, is_slow, check in runs[:: -1 if turn % 2 else 1]:
            seconds = _seconds(spark, files[is_slow], check) / counts[is_slow]
            if turn:
                seen[kind, is_slow].append(seconds)
            if kind:
                # In every round: a spell in which the machine is slow then does not decide.
                engine[kind].append(timed(check, batch)[1] / len(batch))
    return {
        kind: Times(min(seen[kind, kind in SLOW]), min(seen["", kind in SLOW]), min(engine[kind])) for kind in checks
    }


def condition(text: str) -> Expr:
    """A check as a filter of the stream `s`."""
    catalog = Catalog()
    catalog.register(StreamDeclaration("s", parse_schema("ts timestamp, note string"), "ts"))
    found = compile_query(f"SELECT s.note AS note FROM s [NOW] WHERE {text}", catalog).graph.relation("s").filter
    assert found is not None
    return found


def notes(rows: int, seed: int) -> pa.Array:
    """Texts of seven words and a number, some of them several times."""
    rng = np.random.default_rng(seed)
    words, numbers = (
        np.array(WORDS)[rng.integers(0, len(WORDS), (ENGINE_ROWS, 7))],
        rng.integers(0, 10_000, ENGINE_ROWS),
    )
    texts = [
        " ".join([*several[:4], str(number), *several[4:]])
        for several, number in zip(words.tolist(), numbers.tolist(), strict=True)
    ]
    return pa.array(texts).take(pa.array(np.arange(rows) % len(texts)))


def described_ratios(ratios: CheckRatios) -> list[str]:
    """The ratios in lines beside those that are built in, as the command shows them."""
    usual, measured = asdict(BUILT_IN), ratios.beside_built_in()
    return [
        f"{kind:16}{measured[kind]:8.2f} times   ({usual[kind]:g} built in)"
        if kind in measured
        else f"{kind:16}{usual[kind]:8.2f} times   (built in: not seen clearly here)"
        for kind in usual
    ]


def _seconds(spark: SparkSession, file: Path, check: Expr) -> float:
    """Seconds of Spark's tasks that count the rows of a file which pass a check."""
    from pyspark.sql import functions as f

    from anabranch.host.spark.expressions import to_column
    from anabranch.host.spark.task_time import task_seconds

    # Counted, not filtered: a filter may be pushed into the reading of files.
    counted = spark.read.parquet(str(file)).agg(f.count(f.when(to_column(check), 1)))
    return task_seconds(spark, counted.collect)


def _written(table: pa.Table, folder: Path) -> Path:
    folder.mkdir(parents=True)
    pq.write_table(table, folder / "rows.parquet", use_dictionary=False, row_group_size=max(1, len(table) // 4))
    return folder


def _batch(table: pa.Table) -> RelationBatch:
    (payload,) = table.combine_chunks().to_batches()
    return RelationBatch(np.zeros(len(payload), np.int64), {}, payload)
