"""All user-visible errors, grouped by cause.

A message has three parts: a short lowercase sentence that names the object, a `detail` with the finding, and a `hint`
with the remedy. Errors end a query or refuse to start one. Expected failures inside the optimizers are return values
(`Infeasible`). `InvariantBroken` marks a bug in Anabranch and carries the events that led to it.
"""

from __future__ import annotations

from dataclasses import dataclass


class AnabranchError(Exception):
    """The root of all errors raised by Anabranch."""

    def __init__(self, message: str, *, detail: str = "", hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.detail = detail
        self.hint = hint

    def __str__(self) -> str:
        parts = [self.message]
        if self.detail:
            parts.append(self.detail)
        if self.hint:
            parts.append(f"hint: {self.hint}")
        return "\n".join(parts)

    def __reduce__(self) -> tuple[object, ...]:
        # Errors are sent between processes (Spark's Python workers), so they must pickle with their keywords.
        return (_rebuild, (type(self), self.__dict__, self.args))


def _rebuild(kind: type[AnabranchError], state: dict[str, object], args: tuple[object, ...]) -> AnabranchError:
    error = kind.__new__(kind, *args)
    error.__dict__.update(state)
    error.args = args
    return error


def installation(extra: str) -> str:
    """Returns the hint that says how to install an extra of the package."""
    return f"in a clone of the repository: pip install '.[{extra}]'"


# --- the query text --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Span:
    """A half-open range of characters in a query text."""

    start: int
    end: int


class CqlError(AnabranchError):
    """The query text is wrong at a known position; the message shows the line with a caret under it."""

    def __init__(self, message: str, *, text: str, span: Span, detail: str = "", hint: str = "") -> None:
        self.text = text
        self.span = span
        super().__init__(message, detail=detail, hint=hint)

    @property
    def position(self) -> tuple[int, int]:
        """Line and column, both counted from one."""
        before = self.text[: self.span.start]
        return before.count("\n") + 1, self.span.start - (before.rfind("\n") + 1) + 1

    def __str__(self) -> str:
        line_number, column = self.position
        lines = self.text.split("\n")
        line = lines[line_number - 1] if line_number <= len(lines) else ""
        width = max(1, min(self.span.end, self.span.start + len(line) - column + 1) - self.span.start)
        pointer = " " * (column - 1) + "^" * width
        head = f"{self.message} (line {line_number}, column {column})\n  {line}\n  {pointer}"
        tail = ([self.detail] if self.detail else []) + ([f"hint: {self.hint}"] if self.hint else [])
        return "\n".join([head, *tail])


class ParseError(CqlError):
    """The text is not CQL; says what was expected."""


class BindError(CqlError):
    """The text is CQL but names or types do not fit the catalog; says which names exist."""


class Unsupported(CqlError):
    """The text is valid CQL or SQL that Anabranch does not support; says what to write instead."""


class UnboundedJoin(CqlError):
    """A join over an unbounded window without explicit permission: its state would grow without limit."""


# --- the catalog, the plan, the spec ---------------------------------------------------------------------------------


class CatalogError(AnabranchError):
    """A stream cannot be registered or read: no event time, an unsupported type, an invalid name, a failing source."""


class PlanError(AnabranchError):
    """A plan text or plan value is malformed or does not fit the query."""


class UnknownAttribute(PlanError):
    """A classifier tests a column that its rows do not have."""


class BundleError(PlanError):
    """Queries cannot run together as written."""


class SpecError(AnabranchError):
    """A spec file has a missing, unknown or contradictory entry."""


class StatisticsError(AnabranchError):
    """Given statistics are invalid or contradictory: a negative rate, a selectivity above one."""


class NoFeasiblePlan(AnabranchError):
    """No plan is within the limits; names the violated limit and the nearest plan."""


class TopologyError(AnabranchError):
    """A network of sites is invalid, or a query does not fit it."""


# --- running ---------------------------------------------------------------------------------------------------------


class HostError(AnabranchError):
    """The host cannot run: Java or Spark is missing, or a worker failed."""


class ExpressionError(AnabranchError):
    """An expression failed on real data, for example an integer overflow."""


class FunctionError(ExpressionError):
    """A user-defined function failed; nothing of the batch was committed."""

    relations: tuple[str, ...] = ()
    """The relations whose rows were its input."""


class BatchError(AnabranchError):
    """A micro-batch does not fit the streams of its query; none of it was processed."""


class SlowFunction(UserWarning):
    """A user-defined function computes single values or pandas series instead of Arrow columns."""


class LateRowsDropped(UserWarning):
    """A stream without a declared watermark delay drops late rows."""


class MigrationError(AnabranchError):
    """A plan change is not possible as requested; the running plan continues."""


class CheckpointError(AnabranchError):
    """A checkpoint cannot be used; it is never overwritten."""


class ForeignCheckpoint(CheckpointError):
    """The checkpoint belongs to another query."""


class QueryChanged(ForeignCheckpoint):
    """The query of the checkpoint has changed, and the user has not accepted the change."""


class CheckpointInUse(CheckpointError):
    """Another driver runs a query with the checkpoint."""


class CorruptCheckpoint(CheckpointError):
    """The checkpoint is damaged or incomplete."""


class SinkError(AnabranchError):
    """The sink rejected a batch; the batch is not committed and will be repeated."""


class StorageFull(HostError):
    """No space is left for state; nothing of the batch was committed."""


class UnsafeFolder(HostError):
    """Another user of the machine could read or change a folder for rows."""


class LinkError(HostError):
    """A link between two operators cannot be opened, written or read."""


class LinkClosed(LinkError):
    """A link was closed because its reader fell too far behind; its producer continues without it."""


class SiteError(HostError):
    """A site or the controller of a deployment failed: another process holds its lease, or it does not respond."""


class ChangePending(SiteError):
    """A change of a deployment has to wait until an earlier one is through."""


class InvariantBroken(AnabranchError):
    """A bug in Anabranch; carries the events that led to it."""
