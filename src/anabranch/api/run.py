"""How something is run, whatever it is: the settings that a query alone and queries together have in common."""

from __future__ import annotations

import atexit
import shutil
import tempfile
from collections.abc import Mapping
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, Self

from anabranch.entries import argument
from anabranch.errors import SpecError
from anabranch.host.clock import IDLE_TIMEOUT
from anabranch.host.spark import session as spark_host
from anabranch.host.spark.handle import QueryHandle
from anabranch.host.spark.runner import Listener, RunOptions, start_query
from anabranch.host.spark.sinks.sink import Sink
from anabranch.host.work import Work

if TYPE_CHECKING:
    from anabranch.api.query import RegisteredStream
    from anabranch.api.session import Session

_CHECKPOINT = "checkpointlocation"
"""As Spark reads the names of options: in any case."""


class RunSettings:
    """Name, trigger, slots, idle timeout, listeners and options, said one by one as in PySpark."""

    def __init__(self, spark: spark_host.SparkSession) -> None:
        self._spark = spark
        self._options: dict[str, str] = {}
        self._name: str | None = None
        self._trigger: dict[str, Any] = {"processingTime": "0 seconds"}
        self._slots: int | None = None
        self._idle_timeout = IDLE_TIMEOUT
        self._listeners: tuple[Listener, ...] = ()

    def option(self, key: str, value: object) -> Self:
        """One option of the sink; `checkpointLocation` is where the state is kept."""
        # Spark passes over options that it does not know, and the state would be kept nowhere for long.
        if key.lower() != _CHECKPOINT and get_close_matches(key.lower(), [_CHECKPOINT], cutoff=0.85):
            raise SpecError(f"unknown option '{key}'", hint="did you mean 'checkpointLocation'?")
        self._options[key] = str(value).lower() if isinstance(value, bool) else str(value)
        return self

    def options(self, **options: object) -> Self:
        """Several options at once."""
        for key, value in options.items():
            self.option(key, value)
        return self

    def queryName(self, queryName: str) -> Self:
        """The name of the query, and of the table of a memory sink."""
        argument("the name of a query", queryName).text("give it a name, or leave it out")
        self._name = queryName
        return self

    def trigger(
        self,
        *,
        processingTime: str | None = None,
        availableNow: bool | None = None,
        once: bool | None = None,
        continuous: str | None = None,
        realTime: str | None = None,
    ) -> Self:
        """Either a micro-batch every `processingTime`, or all data there is now and then the end.

        Spark's `once`, which it advises against itself, `continuous` and `realTime` are refused with what to write.
        """
        if once:
            hint = "write trigger(availableNow=True), which takes all data there is and ends"
            raise SpecError("trigger 'once' is not supported", hint=hint)
        for name, value in (("continuous", continuous), ("realTime", realTime)):
            if value is not None:
                hint = "write trigger(processingTime='1 second'): results come with micro-batches"
                raise SpecError(f"trigger '{name}' is not supported", hint=hint)
        match processingTime, availableNow:
            case None, True:
                self._trigger = {"availableNow": True}
            case _, None | False if processingTime is not None:
                hint = "write a number and a unit, such as 10 seconds; 0 seconds for batches as fast as they go"
                argument("the trigger's processing time", processingTime).duration(hint)
                self._trigger = {"processingTime": processingTime}
            case _:
                raise SpecError(
                    "a trigger needs exactly one of processingTime and availableNow",
                    hint="write trigger(processingTime='2 seconds') or trigger(availableNow=True)",
                )
        return self

    def slots(self, count: int) -> Self:
        """How many tasks share the work; a restart from a checkpoint may name another number."""
        self._slots = argument("the number of slots", count).count()
        return self

    def idleTimeout(self, timeout: str) -> Self:
        """The idle timeout of the streams that were registered without one; `none` to wait for ever."""
        argument("the idle timeout of the query", timeout).timeout()
        self._idle_timeout = timeout
        return self

    def onChange(self, listener: Listener) -> Self:
        """Calls a function in the driver with every decision and every migration, as a mapping that JSON can hold."""
        self._listeners = (*self._listeners, listener)
        return self

    def _said(self) -> list[str]:
        """The settings that are not as they were at first."""
        fresh = RunSettings(self._spark)
        said = {
            "a name": self._name,
            "a trigger": self._trigger != fresh._trigger,
            "a number of slots": self._slots,
            "an idle timeout": self._idle_timeout != fresh._idle_timeout,
            "a listener": self._listeners,
            "a checkpoint": len(self._sink_options) < len(self._options),
        }
        return [what for what, is_said in said.items() if is_said]

    @property
    def _slot_count(self) -> int:
        return self._slots or int(self._spark.sparkContext.defaultParallelism)

    @property
    def _sink_options(self) -> dict[str, str]:
        return {key: value for key, value in self._options.items() if key.lower() != _CHECKPOINT}

    def _checkpoint(self, what: str, *, must_last: bool) -> str:
        """The given place, else one below the session's, else a temporary one for sinks that do not last either."""
        for key, value in self._options.items():
            if key.lower() == _CHECKPOINT:
                return value
        common = self._spark.conf.get("spark.sql.streaming.checkpointLocation", None)
        if common and self._name:
            return f"{common.rstrip('/')}/{self._name}"
        if not must_last:
            folder = tempfile.mkdtemp(prefix="anabranch-checkpoint-")
            atexit.register(shutil.rmtree, folder, ignore_errors=True)
            return folder
        raise SpecError(
            f"{what} has no checkpoint",
            hint="give option('checkpointLocation', …): a folder of this query's own, kept between restarts",
        )

    def _run(
        self,
        session: Session,
        streams: Mapping[str, RegisteredStream],
        work: Work,
        sinks: Mapping[str, Sink],
        checkpoint: str,
    ) -> QueryHandle:
        """Starts a set of queries by these settings; the session knows it from then on."""
        timeouts = {
            name: argument("the idle timeout", stream.idle_timeout or self._idle_timeout).timeout()
            for name, stream in streams.items()
        }
        options = RunOptions(self._trigger, self._name, timeouts, self._listeners)
        frames = {name: stream.frame for name, stream in streams.items()}
        running, runner = start_query(self._spark, frames, work, sinks, checkpoint, options)
        handle = QueryHandle(running, runner)
        session.streams.add(handle)
        return handle
