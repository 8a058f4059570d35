"""A driver that runs a set of queries and is killed at a chosen moment; the crash tests start it as a child process.

    python crash_set_driver.py <folder> <moment>

The queries are `pairs`, a join, and `over`, a query over grouped results, which makes a batch two stages long. In the
moments of `OF_STAGES` both run from the start, and the driver dies in batch 2. In those of `OF_CHANGES` the driver dies
while `over` and the grouped query join after batch 1.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Generator, Mapping
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from anabranch.api import QueryHandle, Session
from anabranch.run import changing
from anabranch.run.hot import MappedEngines
from anabranch.run.store import Store
from anabranch.spark import micro_batch, offsets, worker
from anabranch.spark.session import local_session
from tests.spark.stories import Story, cut, feed, register
from tests.support.faults import die

BATCHES = 6
JOINS_AFTER = 1
DIES_IN = 2
PAIRS = Story(
    "SELECT a.p AS p0, b.p AS p1 FROM s0 [RANGE 6 SECONDS] AS a, s1 [RANGE 4 SECONDS] AS b WHERE a.x = b.x", rows=96
)
COUNTS = "SELECT a.x AS x, COUNT(*) AS n FROM s0 [RANGE 5 SECONDS SLIDE 1 SECOND] AS a GROUP BY a.x"
# Another name of `s1` than in the pairs is another scan, so that Spark's log is taken over.
OVER = (
    "SELECT c.x AS x, c.n AS n, d.p AS p FROM counts [RANGE 3 SECONDS] AS c, s1 [RANGE 2 SECONDS] AS d WHERE c.x = d.x"
)
ALL = ("pairs", "over")


def prepared(spark: SparkSession, folder: Path) -> Session:
    session = register(spark, PAIRS, folder)
    session.register("counts", session.sql(COUNTS))
    return session


def start(session: Session, folder: Path, names: tuple[str, ...]) -> QueryHandle:
    together = session.together(**{name: writer(session, folder, name) for name in names})
    return together.option("checkpointLocation", str(folder / "checkpoint")).slots(2).start()


def writer(session: Session, folder: Path, name: str) -> Any:
    text = {"pairs": PAIRS.cql, "over": OVER}[name]
    return session.sql(text).writeStream.format("parquet").option("path", str(folder / name))


def main(folder: Path, moment: str) -> None:
    spark = local_session(2, **{"spark.sql.warehouse.dir": str(folder / "warehouse")})
    session = prepared(spark, folder)
    if moment in OF_STAGES:
        OF_STAGES[moment]()
    handle = start(session, folder, ALL if moment in OF_STAGES else ("pairs",))
    for number, batch in enumerate(cut(PAIRS.tables(), BATCHES)):
        feed(folder, batch)
        handle.processAllAvailable()
        if number == JOINS_AFTER and moment in OF_CHANGES:
            OF_CHANGES[moment]()
            handle.add("over", writer(session, folder, "over"))


# --- in a stage: what the step function calls is replaced, and travels to the workers with it -------------------------


def _amid(stage: int) -> None:
    real, group = getattr(worker, "advance"), os.getpgrp()  # noqa: B009

    def advance(engine: Any, task: Any, slot: int, *rest: Any) -> Generator[Any, None, Any]:
        step = real(engine, task, slot, *rest)
        if task.batch == DIES_IN and task.stage == stage and slot == 1:
            next(step, None)
            os.killpg(group, 9)
        report = yield from step
        return report

    setattr(worker, "advance", advance)  # noqa: B010


def _after(stage: int) -> None:
    group = os.getpgrp()

    class Dying(MappedEngines):
        def keep(self, opened: Any, task: Any, slot: int) -> None:
            if task.batch == DIES_IN and task.stage == stage and slot == 1:
                os.killpg(group, 9)
            super().keep(opened, task, slot)

    setattr(micro_batch, "MappedEngines", Dying)  # noqa: B010


def _at_commit(*, after: bool) -> None:
    _die_at(Store, "commit", after=after, when=lambda _, manifest: manifest.batch == DIES_IN)


def _die_at(target: Any, method: str, *, after: bool, when: Callable[..., bool] = lambda *_: True) -> None:
    """Replaces a method of a class, or a function of a module, by one that kills the driver."""
    real = getattr(target, method)

    def last(*arguments: Any, **keywords: Any) -> Any:
        if not after and when(*arguments):
            die()
        result = real(*arguments, **keywords)
        if after and when(*arguments):
            die()
        return result

    setattr(target, method, last)


OF_STAGES: Mapping[str, Callable[[], None]] = {
    "in the middle of the first stage": lambda: _amid(0),
    "when the first stage is kept": lambda: _after(0),
    "in the middle of the second stage": lambda: _amid(1),
    "when the second stage is kept": lambda: _after(1),
    "before the batch is committed": lambda: _at_commit(after=False),
    "when the batch is committed": lambda: _at_commit(after=True),
}
OF_CHANGES: Mapping[str, Callable[[], None]] = {
    "before rows are carried over": lambda: _die_at(changing, "_rows", after=False),
    "when the rows of a slot are carried over": lambda: _die_at(Store, "write_rows", after=True),
    "before the change is committed": lambda: _die_at(Store, "commit", after=False),
    "when the change is committed": lambda: _die_at(Store, "commit", after=True),
    "when the checkpoint names its queries": lambda: _die_at(Store, "belong_to", after=True),
    "before Spark's log is taken over": lambda: _die_at(offsets, "rewritten", after=True),
    "when Spark's log is taken over": lambda: _die_at(offsets, "_copied", after=True),
    "when the first batch of the new set is committed": lambda: _at_commit(after=True),
}


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
