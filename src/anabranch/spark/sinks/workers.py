"""The part of a sink that runs in Spark's Python workers: it writes results without passing them to the JVM.

A worker opens a writer for each query whose sink requests it, and passes the results of that query to it batch by batch
(`spark/exchange`).
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Protocol

import pyarrow as pa


class ResultWriter(Protocol):
    """Receives the results of one worker."""

    def write(self, batch: pa.RecordBatch) -> None: ...


class WorkerWriter(Protocol):
    """Opens a `ResultWriter` in a worker; it is pickled and sent there.

    The context finishes the output when it ends, and discards the output when it ends with an error. `part` names the
    output of one worker in one batch; a retry of the same work has the same name.
    """

    def open(self, part: str) -> AbstractContextManager[ResultWriter]: ...
