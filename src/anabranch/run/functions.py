"""Adds the stream and the batch of the rows to the error of a user function."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from anabranch.errors import FunctionError
from anabranch.plan.join_graph import JoinGraph


@contextmanager
def functions_named(graph: JoinGraph, batch: int) -> Iterator[None]:
    """Adds streams and batch to the error of a user function inside the context."""
    try:
        yield
    except FunctionError as error:
        known = [name for name in error.relations if name in graph.names]
        raise named(error, [graph.relation(name).stream for name in known], batch) from error


def named(error: FunctionError, streams: list[str], batch: int | None = None) -> FunctionError:
    """Returns the error with the streams of the rows and, if known, the batch."""
    names = " and ".join(f"stream '{name}'" for name in dict.fromkeys(streams))
    where = f" on rows of {names}" if streams else ""
    when = "" if batch is None else f" in batch {batch}"
    return FunctionError(f"{error.message}{where}{when}", detail=error.detail, hint=error.hint)
