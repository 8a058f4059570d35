"""Several queries started as one: streams are read, partitioned and stored once; each has its own plan and sink.

Invariant: each query has the results that it would have alone. Limit: one trigger, one checkpoint and one number of
slots for all.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Self

from anabranch.api.builder import RunBuilder
from anabranch.api.filters import unplaced
from anabranch.api.members import member_of
from anabranch.api.run import Run
from anabranch.api.writer import ContinuousQueryWriter
from anabranch.errors import SpecError
from anabranch.optimize import Choice
from anabranch.planning.options import SHARE
from anabranch.settings.entries import argument
from anabranch.spark.handle import QueryHandle

if TYPE_CHECKING:
    from anabranch.api.session import Session


class Together(RunBuilder):
    """Queries to start as one, each with its own writer; run settings are set here, for all of them.

    Examples
    --------
    >>> together = session.together(
    ...     alerts=alerts.writeStream.option("path", "out/alerts").plan("mesh"),
    ...     audits=audits.writeStream.option("path", "out/audits"),
    ... )  # doctest: +SKIP
    >>> handle = together.option("checkpointLocation", "checkpoint").start()  # doctest: +SKIP
    """

    def __init__(self, session: Session, writers: Mapping[str, ContinuousQueryWriter]) -> None:
        super().__init__()
        self._session = session
        self._members = {name: member_of(name, writer) for name, writer in writers.items()}
        # Fails now, not at the start, if the queries cannot run together.
        Run(session, unplaced(self._members), self._run)

    def limits(self, cpu: float | None = None, memory: float | str | None = None, *, auto: bool | None = None) -> Self:
        """Limits the cores and bytes of a slot for all queries together; plans are chosen accordingly.

        With `auto`, the resources of a slot's executor are limits too.
        """
        self._run = replace(self._run, together=self._run.together.with_limits(cpu, memory, auto))
        return self

    def share(self, share: str = "auto") -> Self:
        """Sets which queries may share joins when it pays: `auto` (all), `adapt` (default: adaptive ones), `off`."""
        self._run = replace(self._run, together=replace(self._run.together, share=_share(share)))
        return self

    def explain(self) -> None:
        """Prints what the queries share, and the plan of each."""
        print(self.explanation())  # noqa: T201

    def explanation(self) -> str:
        """Returns what the queries share, what each computes in addition, and the choice of its plan."""
        return self._as_run().explanation()

    def choices(self) -> dict[str, Choice]:
        """Chooses the plan of each query; each stream is sampled once for all of them."""
        return self._as_run().choices()

    def start(self) -> QueryHandle:
        """Starts the queries as one streaming query.

        Raises
        ------
        SpecError
            When a setting is missing or contradicts another.
        PlanError
            When a plan, or a hint, does not fit its query.
        CheckpointError
            When the checkpoint belongs to other queries or is damaged; it is not changed.
        """
        return self._as_run().start()

    def _as_run(self) -> Run:
        return Run(self._session, self._members, self._run)

    def _set_sink_option(self, key: str, value: str) -> None:
        raise SpecError(
            f"option '{key}' belongs to the sink of one query",
            hint=f"set it on the query's writer: together(alerts=query.writeStream.option('{key}', …))",
        )


def _share(share: str) -> str:
    return argument("share", share).choice(SHARE)
