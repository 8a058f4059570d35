"""The messages between the driver and its resident slots, as bytes.

Values that rarely change (queries, readers, keys of tables) are *shared*: they are sent once under a name, and later
messages refer to the name. Invariant: a slot unpickles only data from an authenticated channel.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from pyspark import cloudpickle

from anabranch.run.ingest import Reader
from anabranch.run.prefilter import TableKeys
from anabranch.run.side_output import SideOutputLayout
from anabranch.run.slot import SlotTask
from anabranch.spark.sinks.workers import WorkerWriter
from anabranch.stats.report import SlotReport

Turn = tuple[int, int]
"""A start of all slots: the number of the job and of its attempt. Later turns are greater."""


@dataclass(frozen=True)
class Hello:
    """The first message of a slot to the driver."""

    slot: int
    turn: Turn
    host: str
    port: int
    """The port at which it accepts other slots."""
    process: int


@dataclass(frozen=True)
class Setup:
    """The message of the driver when all slots are connected."""

    checkpoint: str
    slots: tuple[Hello, ...]


@dataclass(frozen=True)
class BatchOrder:
    """The order to run a batch."""

    task: SlotTask
    reader: Reader
    is_direct: bool
    """True if every slot reads all rows and keeps its own; else each reads a share, and they exchange rows."""
    writers: Mapping[str, WorkerWriter]
    """The queries whose results the slots write."""
    diverted: SideOutputLayout | None = None
    keys: TableKeys = field(default_factory=dict)


@dataclass(frozen=True)
class Answer:
    """The outcome of a batch in a slot, or its error."""

    steps: tuple[SlotReport, ...] = ()
    """By stage."""
    merges: tuple[SlotReport, ...] = ()
    results: bytes = b""
    """The results that the slot has not written, as an Arrow stream."""
    error: BaseException | None = None
    is_lost: bool = False
    """True if the connection to another slot was lost."""


class SharedPickler:
    """Pickles orders; a shared value is sent with the first of them, and again when it changes."""

    def __init__(self) -> None:
        self._known: dict[str, Any] = {}

    def dumps(self, value: Any, shared: Mapping[str, Any]) -> bytes:
        """Returns the bytes for all slots. Values are compared by identity."""
        fresh = {name: each for name, each in shared.items() if self._known.get(name) is not each}
        self._known.update(fresh)
        names = {id(each): name for name, each in shared.items()}
        buffer = io.BytesIO()
        _Naming(buffer, names).dump(value)
        return pickle.dumps((_by_value(fresh) if fresh else b"", buffer.getvalue()))


class SharedUnpickler:
    """Unpickles orders of a `SharedPickler`."""

    def __init__(self) -> None:
        self._known: dict[str, Any] = {}

    def loads(self, content: bytes | memoryview) -> Any:
        fresh, value = pickle.loads(content)
        self._known |= pickle.loads(fresh) if fresh else {}
        return _Named(io.BytesIO(value), self._known).load()


def _by_value(values: Mapping[str, Any]) -> bytes:
    """Pickles values including functions, which may be user-defined."""
    content: bytes = cloudpickle.dumps(values)  # type: ignore[no-untyped-call]
    return content


class _Naming(pickle.Pickler):
    def __init__(self, file: io.BytesIO, names: Mapping[int, str]) -> None:
        super().__init__(file, protocol=pickle.HIGHEST_PROTOCOL)
        self._names = names

    def persistent_id(self, obj: Any) -> str | None:
        return self._names.get(id(obj))


class _Named(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, known: Mapping[str, Any]) -> None:
        super().__init__(file)
        self._known = known

    def persistent_load(self, pid: Any) -> Any:
        return self._known[pid]


def stream_of(batches: list[pa.RecordBatch]) -> bytes:
    """Returns batches of one schema as an Arrow stream; no bytes for none."""
    if not batches:
        return b""
    stream = pa.BufferOutputStream()
    with pa.ipc.new_stream(stream, batches[0].schema) as writer:
        for batch in batches:
            writer.write_batch(batch)
    return bytes(stream.getvalue())


def batches_of(content: bytes | memoryview) -> list[pa.RecordBatch]:
    """Returns the batches of an Arrow stream, over its bytes."""
    if not len(content):
        return []
    with pa.ipc.open_stream(pa.py_buffer(content)) as reader:
        return list(reader)
