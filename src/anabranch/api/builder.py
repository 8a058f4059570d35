"""The writer methods that configure a run, one setting per call as in PySpark.

Invariant: each method validates its own argument; `start` validates combinations.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import replace
from difflib import get_close_matches
from typing import Self

from anabranch.adapt.balancing import Balance, read_slots
from anabranch.api.settings import LateSettings, RunSettings
from anabranch.errors import SpecError
from anabranch.plan.execution import execution_model
from anabranch.run.evolving import Evolve
from anabranch.run.shedding import read_overload
from anabranch.run.triggers import REAL_TIME, AvailableNow, Every
from anabranch.settings.entries import argument
from anabranch.spark.running import Listener

_CHECKPOINT, _SPARK_CHECKPOINT = "checkpointlocation", "sparkcheckpointlocation"
"""Option names in lower case, because Spark's are case-insensitive."""


class RunBuilder(ABC):
    """Builds `RunSettings`: name, trigger, slots, idle timeout, listeners and checkpoint."""

    def __init__(self) -> None:
        self._run = RunSettings()

    def __dir__(self) -> list[str]:
        return [name for name in super().__dir__() if name not in {"run_settings", "query_settings"}]

    @property
    def run_settings(self) -> RunSettings:
        """The settings of the run so far."""
        return self._run

    @abstractmethod
    def _set_sink_option(self, key: str, value: str) -> None: ...

    def option(self, key: str, value: object) -> Self:
        """Sets one option of the sink; `checkpointLocation` is the folder of the checkpoint.

        `sparkCheckpointLocation` is a separate folder for Spark's part of the checkpoint. Use it when Spark's file
        systems cannot reach `checkpointLocation`.
        """
        text = str(value).lower() if isinstance(value, bool) else str(value)
        if key.lower() == _CHECKPOINT:
            self._run = replace(self._run, checkpoint=text)
            return self
        if key.lower() == _SPARK_CHECKPOINT:
            self._run = replace(self._run, spark_checkpoint=text)
            return self
        # Spark ignores unknown options, so a misspelt checkpoint location would silently lose the state.
        if get_close_matches(key.lower(), [_CHECKPOINT], cutoff=0.85):
            raise SpecError(f"unknown option '{key}'", hint="did you mean 'checkpointLocation'?")
        self._set_sink_option(key, text)
        return self

    def options(self, **options: object) -> Self:
        """Sets several options."""
        for key, value in options.items():
            self.option(key, value)
        return self

    def queryName(self, queryName: str) -> Self:
        """Sets the name of the query and of the table of a memory sink."""
        argument("the name of a query", queryName).text("give it a name, or omit it")
        self._run = replace(self._run, name=queryName)
        return self

    def trigger(
        self,
        *given: object,
        processingTime: str | None = None,
        availableNow: bool | None = None,
        once: bool | None = None,
        continuous: str | None = None,
        realTime: bool | None = None,
    ) -> Self:
        """Sets when batches start: every `processingTime`, once with all available data (`availableNow`), or at once.

        With `realTime=True`, slots are long-running tasks, and a batch begins as soon as there are rows; see
        `docs/real-time.md` for what this needs. Spark's `once` and `continuous` are not supported; the error names the
        alternative.
        """
        if given:
            raise SpecError(
                f"a trigger takes its arguments by name, found {given[0]!r}",
                hint=f"write trigger(processingTime={given[0]!r}) or trigger(availableNow=True)",
            )
        if once:
            hint = "write trigger(availableNow=True), which processes all available data and ends"
            raise SpecError("trigger 'once' is not supported", hint=hint)
        if continuous is not None:
            hint = "write trigger(realTime=True), with results within tens of milliseconds"
            raise SpecError("trigger 'continuous' is not supported", hint=hint)
        if realTime not in (None, True, False):
            raise SpecError(
                f"trigger 'realTime' takes True, found {realTime!r}",
                detail="every batch is committed, so there is no checkpoint interval",
                hint="write trigger(realTime=True)",
            )
        match processingTime, availableNow, realTime:
            case None, None | False, True:
                self._run = replace(self._run, trigger=REAL_TIME)
            case None, True, None | False:
                self._run = replace(self._run, trigger=AvailableNow())
            case _, None | False, None | False if processingTime is not None:
                hint = "write a number and a unit, such as 10 seconds; 0 seconds for no pause between batches"
                interval = argument("the trigger's processing time", processingTime).duration(hint)
                self._run = replace(self._run, trigger=Every(interval))
            case _:
                raise SpecError(
                    "a trigger needs exactly one of processingTime, availableNow and realTime",
                    hint="write trigger(processingTime='2 seconds') or trigger(availableNow=True)",
                )
        return self

    def slots(
        self,
        count: int | str | None = None,
        *,
        least: int | None = None,
        most: int | None = None,
        fewest: bool | None = None,
    ) -> Self:
        """Sets the number of slots (tasks): a number, limits for elastic slots, or `fewest`.

        With `fewest`, plans are costed before the start, and the run gets the fewest slots with which every plan keeps
        the `limits`. A restart from a checkpoint may use another number.

        Examples
        --------
        >>> query.writeStream.slots(4)  # doctest: +SKIP
        >>> query.writeStream.slots(least=1, most=8)  # doctest: +SKIP
        >>> query.writeStream.limits(cpu=0.8).slots("fewest")  # doctest: +SKIP
        """
        given = (("least", least), ("most", most), ("fewest", fewest))
        limits = {name: value for name, value in given if value is not None}
        if (count is None) == (not limits):
            raise SpecError(
                "slots need a number, or limits", hint="write slots(4), slots(least=1, most=8), or slots('fewest')"
            )
        self._run = replace(
            self._run, slots=read_slots(argument("the number of slots", limits if count is None else count))
        )
        return self

    def execution(self, model: str) -> Self:
        """Sets the execution model: `un-synchronised`, `semi-synchronised` or `totally-synchronised`.

        The last two return results in order of event time: per slot within each batch, or per slot across the whole
        run. The last model buffers rows until the slowest stream of all queries of the run has passed them.
        """
        self._run = replace(self._run, execution=execution_model(model))
        return self

    def evolve(self, consent: str) -> Self:
        """Sets what happens if the checkpoint was written by another version of the query.

        `ask` (the default) ends with an error that shows the difference and the event time from which results would be
        complete. `allow` keeps the rows of the checkpoint. `refuse` ends with an error.
        """
        self._run = replace(self._run, evolve=Evolve(argument("'evolve'", consent).choice(tuple(Evolve))))
        return self

    def overload(self, wanted: str) -> Self:
        """Sets the behaviour of an overloaded run: `keep` (the default) falls behind, `shed` drops the rows of some
        keys.

        `shed` drops all rows of some keys and counts them; the results of the other keys are exact.
        """
        self._run = replace(self._run, overload=read_overload(argument("'overload'", wanted)))
        return self

    def balance(self, balance: str | Mapping[str, object] = "auto") -> Self:
        """Sets how partition groups move between slots: `off`, `manual` (the default), `auto`, or a mapping.

        A mapping has the entries of a spec's `balance:` block, such as `{"mode": "auto", "rows": 200_000}`.
        """
        self._run = replace(self._run, balance=Balance.from_mapping(balance))
        return self

    def idleTimeout(self, timeout: str) -> Self:
        """Sets the idle timeout of streams registered without one; `none` disables it."""
        argument("the idle timeout of the query", timeout).timeout()
        self._run = replace(self._run, idle_timeout=timeout)
        return self

    def late(self, path: str | os.PathLike[str] | None = None, format: str = "parquet", **options: object) -> Self:
        """Writes late rows, and rows beyond the `max_ahead` of their stream, to a side output.

        Its columns are `stream`, `relation` (the alias that dropped the row), `reason` (`late` or `ahead`),
        `event_time`, `seconds` (the distance from the cutoff), and for each stream a struct with all its columns. It
        has the delivery guarantees of a result sink of the same format; `memory` creates a table named
        `<queryName>_late`.
        """
        texts = {key: str(value).lower() if isinstance(value, bool) else str(value) for key, value in options.items()}
        place = None if path is None else os.fspath(path)
        self._run = replace(self._run, late=LateSettings(format, place, texts))
        return self

    def onChange(self, listener: Listener) -> Self:
        """Calls a function in the driver with every decision and every migration, as a JSON-serializable mapping."""
        self._run = replace(self._run, listeners=(*self._run.listeners, listener))
        return self
