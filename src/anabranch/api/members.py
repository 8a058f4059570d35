"""A query of a run with its settings, and its conversion from a writer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from anabranch.api.compiled import CompiledQuery
from anabranch.api.settings import NAMES, QuerySettings, RunSettings
from anabranch.errors import SpecError
from anabranch.plan.partitioning import axes_of

if TYPE_CHECKING:
    from anabranch.api.query import ContinuousQuery


@dataclass(frozen=True)
class Member:
    """One query of a run with its settings."""

    compiled: CompiledQuery
    settings: QuerySettings
    is_silent: bool = False
    """True if only other queries read its results."""

    def needs_sample(self, slots: int) -> bool:
        """Returns True when a sample can change the choice of the plan or of the grid."""
        query = self.compiled.query
        return self.settings.plan_options.need_statistics(query) or (slots > 1 and len(axes_of(query.graph)) > 1)


@runtime_checkable
class Writer(Protocol):
    """The writer of a query."""

    @property
    def query(self) -> ContinuousQuery: ...

    @property
    def query_settings(self) -> QuerySettings: ...

    @property
    def run_settings(self) -> RunSettings: ...


def member_of(name: str, writer: object) -> Member:
    """Returns the query of a writer as a member of a set; refuses settings that belong to the whole run."""
    if not isinstance(writer, Writer):
        raise SpecError(
            f"query '{name}' is given as {type(writer).__name__}",
            hint=f"give its writer, with a sink: {name}=query.writeStream.option('path', …)",
        )
    if changed := writer.run_settings.changed():
        raise SpecError(
            f"query '{name}' has {NAMES[changed[0]]} of its own",
            detail="queries that run together have one trigger, one checkpoint, one number of slots",
            hint="set it on the object that together() returns",
        )
    return Member(writer.query.compiled, writer.query_settings)
