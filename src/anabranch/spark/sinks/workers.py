"""The part of a sink that runs in Spark's Python workers: writing results without handing them to the JVM.

A worker opens a writer for each query whose sink asks for it, and hands it the results of that query batch by batch
(`spark/exchange`).
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Protocol

import pyarrow as pa


class ResultWriter(Protocol):
    """Takes the results of one worker."""

    def write(self, batch: pa.RecordBatch) -> None: ...


class WorkerWriter(Protocol):
    """Opens a `ResultWriter` in a worker; is pickled on its way there.

    The context finishes the output when it ends, and abandons the output when it ends with an error. `part` names the
    output of one worker in one batch; a worker that does the same work again has the same one.
    """

    def open(self, part: str) -> AbstractContextManager[ResultWriter]: ...
