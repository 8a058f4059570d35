"""The part of a sink that runs in Spark's Python workers: writing results without handing them to the JVM.

Results of several queries arrive in one stream of Arrow batches with a struct column for each query; each Arrow batch
belongs to one query. Results of a single query arrive as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack
from typing import Protocol, TypeAlias

import pyarrow as pa

from anabranch.host.results import unwrapped

ArrowFunction: TypeAlias = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]


class ResultWriter(Protocol):
    """Takes the results of one worker."""

    def write(self, batch: pa.RecordBatch) -> None: ...


class WorkerWriter(Protocol):
    """Opens a `ResultWriter` in a worker; is pickled on its way there.

    The context finishes the output when it ends, and abandons the output when it ends with an error.
    """

    def open(self) -> AbstractContextManager[ResultWriter]: ...


def write_function(writer: WorkerWriter) -> ArrowFunction:
    """Returns the function that writes all results and passes none on."""

    def write(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with writer.open() as results:
            for batch in batches:
                results.write(batch)
        yield from ()

    return write


def split_function(writers: Mapping[str, WorkerWriter]) -> ArrowFunction:
    """Returns the function that writes the results of the named queries and passes on those of the others."""

    def split(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with ExitStack() as stack:
            opened = {name: stack.enter_context(writer.open()) for name, writer in writers.items()}
            for batch in batches:
                name, results = unwrapped(batch)
                if name in opened:
                    opened[name].write(results)
                else:
                    yield batch

    return split
