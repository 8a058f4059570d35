"""A host whose driver is another process, which dies by SIGKILL; drawn schedules play on it as on every host.

Death at an announced crash point is asked for with the batch; death at a drawn moment comes from here. The host of the
schedule that is played next begins in the process of the last one, if that is alive.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from threading import Timer
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
from pyarrow import parquet
from pyspark import cloudpickle

from anabranch.lang.schema import Schema
from anabranch.plan.query_set import ALONE, Plans, QuerySet
from anabranch.run import commit
from anabranch.run.round import PHASES, Announce
from anabranch.run.side_output import SideOutputLayout
from tests.combinations import driver_process
from tests.combinations.driver_process import LATE, RESULTS, State
from tests.support.failing_files import Death
from tests.support.strategies import COLUMNS

MOST_SECONDS = 300
"""The longest time that an answer may take, also where Java starts for it."""

Receive = Callable[[int, Mapping[str, pa.Table]], None]


class Drivers:
    """The processes of a test, one after the other; counts those that were killed."""

    def __init__(self) -> None:
        self.kills: list[str] = []
        self._process: subprocess.Popen[bytes] | None = None
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115
        self._pipe: Any = None
        self.moments: dict[int, float] = {}
        """The seconds after the start of a batch at which its driver is killed."""

    def ask(self, method: str, *arguments: Any, **keywords: Any) -> Any:
        """Asks the driver; raises its error, or Death if it was killed before it answered."""
        if self._process is None:
            self._begin()
        try:
            self._pipe.send_bytes(cloudpickle.dumps((method, arguments, keywords)))  # type: ignore[no-untyped-call]
            if not self._pipe.poll(MOST_SECONDS):
                raise AssertionError(f"the driver does not answer '{method}'")
            answer = pickle.loads(self._pipe.recv_bytes())
        except (EOFError, ConnectionError):
            self._ended()
            raise Death(f"the driver was killed in '{method}'") from None
        if isinstance(answer, BaseException):
            raise answer
        return answer

    def step(self, batch: int, rows: Mapping[str, pa.Table], dies_at: str | None) -> State:
        """Asks for a batch; its driver dies at the phase, at the moment that was drawn for the batch, or not at all."""
        seconds = self.moments.pop(batch, None)
        if seconds is None:
            found: State = self._step(rows, dies_at, f"at {dies_at} of batch {batch}")
            return found
        title = f"{seconds:.3f} s after the start of batch {batch}"
        timer = Timer(seconds, self.kill)
        timer.start()
        try:
            self._step(rows, dies_at, title)
        finally:
            timer.cancel()
        # The batch was faster.
        self.kill()
        self._ended()
        self.kills.append(title)
        raise Death(title)

    def _step(self, rows: Mapping[str, pa.Table], dies_at: str | None, title: str) -> Any:
        try:
            return self.ask("step", rows, dies_at)
        except Death:
            self.kills.append(title)
            raise

    def kill(self) -> None:
        """Kills the driver and its process group."""
        if self._process is not None:
            os.killpg(self._process.pid, signal.SIGKILL)

    @property
    def is_alive(self) -> bool:
        return self._process is not None

    def _begin(self) -> None:
        root = Path(__file__).parents[2]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(root / "src"), str(root), *sys.path])}
        self._pipe, far = multiprocessing.Pipe()
        with far:
            self._process = subprocess.Popen(
                [sys.executable, str(Path(driver_process.__file__)), str(far.fileno())],
                env=environment,
                pass_fds=[far.fileno()],
                start_new_session=True,
                stdout=subprocess.DEVNULL,
                stderr=self._errors,
            )

    def _ended(self) -> None:
        assert self._process is not None
        code = self._process.wait(60)
        self._pipe.close()
        self._process = None
        self._errors.seek(0)
        assert code == -signal.SIGKILL, self._errors.read().decode(errors="replace")

    def end(self) -> None:
        if self._process is not None:
            self.kill()
            self._ended()


class KilledHost:
    """A run in a driver of its own, with the interface of the in-process host."""

    def __init__(
        self,
        drivers: Drivers,
        queries: QuerySet,
        plan: Plans,
        *,
        checkpoint: str,
        announce: Announce,
        diverted: SideOutputLayout | None,
        **options: Any,
    ) -> None:
        self.drivers, self.announce, self.diverted = drivers, announce, diverted
        self.folder = Path(checkpoint).parent
        self.schemas = {member.name: member.query.schema for member in queries.delivered}
        given = (str(self.folder), commit.COMPACT_FILES_ALWAYS, queries, plan)
        self.state: State = drivers.ask("start", *given, checkpoint=checkpoint, diverted=diverted, **options)
        self.is_gone = False

    def __getattr__(self, name: str) -> Any:
        """A method that asks for a change of the run."""

        def asked(*arguments: Any, **keywords: Any) -> None:
            self.state = self.drivers.ask("call", name, *arguments, **keywords)

        return asked

    @property
    def batch(self) -> int:
        return self.state.batch

    @property
    def partitioning(self) -> Any:
        return self.state.partitioning

    @property
    def queries(self) -> QuerySet:
        return self.state.queries

    @property
    def manifest(self) -> Any:
        return self.state.manifest

    @property
    def steering(self) -> Any:
        return SimpleNamespace(most_plans=self.state.plans)

    @property
    def diverted_rows(self) -> pa.Table | None:
        """The late rows of the latest batch."""
        if self.diverted is None:
            return None
        return read_results(self.folder / LATE, self.batch - 1, self.diverted.schema)

    def step(self, rows: Mapping[str, pa.Table], receive: Receive) -> None:
        """Takes one batch; what its sinks have when it ends, or its driver dies, are its results."""
        number = self.batch
        fed = {name: rows.get(name, COLUMNS.empty_table()) for name in self.queries.streams}
        try:
            self.state = self.drivers.step(number, fed, self._phase(number))
        except Death:
            self.is_gone = True
            raise
        finally:
            receive(number, {name: self._results(name, number) for name in self.schemas})

    def change_table(self, name: str, rows: pa.Table) -> None:
        self.state = self.drivers.ask("change_table", name, rows)

    def lose(self, slot: int) -> None:
        self.state = self.drivers.ask("lose")

    def leave(self) -> None:
        if not self.is_gone:
            self.drivers.ask("leave")
        self.is_gone = True

    def _phase(self, number: int) -> str | None:
        """The phase at which the schedule wants the driver to die."""
        for phase in PHASES:
            try:
                self.announce(phase, number)
            except Death:
                return phase
        return None

    def _results(self, name: str, number: int) -> pa.Table:
        return read_results(self.folder / f"{RESULTS}-{name or ALONE}", number, self.schemas[name])


def read_results(folder: Path, batch: int | None, schema: Schema | pa.Schema) -> pa.Table:
    """Reads the files of a batch, or of all."""
    files = sorted(folder.glob("part-*.parquet" if batch is None else f"part-{batch:09d}-*.parquet"))
    expected = schema if isinstance(schema, pa.Schema) else pa.schema([(each.name, each.type) for each in schema])
    return pa.concat_tables([expected.empty_table(), *(parquet.read_table(file).cast(expected) for file in files)])
