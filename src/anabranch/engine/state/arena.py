"""Storage of a state's arrays: in this process, or in memory-mapped files that all workers of a host share.

A state requests named arrays from its arena, extends them (existing contents keep their place, the rest is unspecified)
and releases them, whatever the kind of arena. Spark's Python workers are interchangeable, so any worker must find the
state before the next step: a `MappedArena` keeps every array in a file (on tmpfs if there is one) and can be reopened
by name.

Invariant: reopening a mapped arena gives the arrays as they were last written. Limit: mapped files must fit the file
system of the hot folder.
"""

from __future__ import annotations

import hashlib
import os
from mmap import MAP_ANONYMOUS, MAP_PRIVATE, mmap
from pathlib import Path
from typing import Any, Protocol, TypeAlias
from urllib.parse import quote

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from anabranch.errors import StorageFull

Array: TypeAlias = npt.NDArray[Any]
_LONGEST_NAME = 200


class Arena(Protocol):
    """A source of named arrays, and of named record batches for the columns that numpy cannot hold."""

    def allocate(self, name: str, shape: tuple[int, ...], kind: str) -> Array: ...
    def extend(self, name: str, shape: tuple[int, ...], kind: str) -> Array: ...
    def open(self, name: str, shape: tuple[int, ...], kind: str) -> Array: ...
    def keep_batch(self, name: str, batch: pa.RecordBatch) -> pa.RecordBatch: ...
    def open_batch(self, name: str) -> pa.RecordBatch: ...
    def release(self, name: str) -> None: ...


class ProcessArena:
    """Arrays in the memory of this process, mapped so that they can be extended without a copy."""

    def __init__(self) -> None:
        self._maps: dict[str, mmap] = {}

    def allocate(self, name: str, shape: tuple[int, ...], kind: str) -> Array:
        self._maps[name] = mmap(-1, max(_size(shape, kind), 1), flags=MAP_PRIVATE | MAP_ANONYMOUS)
        return np.frombuffer(self._maps[name], dtype=kind).reshape(shape)

    def extend(self, name: str, shape: tuple[int, ...], kind: str) -> Array:
        before = self._maps[name]
        try:
            before.resize(_size(shape, kind))
        except (BufferError, SystemError):  # the array is in use, or the system cannot move a mapping
            array = self.allocate(name, shape, kind)
            array.reshape(-1).view(np.uint8)[: len(before)] = np.frombuffer(before, dtype=np.uint8)
            return array
        return np.frombuffer(before, dtype=kind).reshape(shape)

    def open(self, name: str, shape: tuple[int, ...], kind: str) -> Array:
        raise KeyError(f"array '{name}' was not kept: this arena ends with its process")

    def keep_batch(self, name: str, batch: pa.RecordBatch) -> pa.RecordBatch:
        return batch

    def open_batch(self, name: str) -> pa.RecordBatch:
        raise KeyError(f"batch '{name}' was not kept: this arena ends with its process")

    def release(self, name: str) -> None:
        self._maps.pop(name, None)


class MappedArena:
    """Arrays in files of one folder, mapped into every process that opens them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def allocate(self, name: str, shape: tuple[int, ...], kind: str) -> Array:
        path = self._path(name)
        path.unlink(missing_ok=True)
        path.touch()
        return self.extend(name, shape, kind)

    def extend(self, name: str, shape: tuple[int, ...], kind: str) -> Array:
        size = _size(shape, kind)
        try:
            with open(self._path(name), "r+b") as file:
                # Without this, a full tmpfs causes SIGBUS in the middle of a kernel.
                os.posix_fallocate(file.fileno(), 0, size)
        except OSError as error:
            raise self._full(error, size) from error
        return self.open(name, shape, kind)

    def open(self, name: str, shape: tuple[int, ...], kind: str) -> Array:
        # Not `np.memmap`, which resolves the whole path; a step opens every array of its slot.
        path, size = self._path(name), _size(shape, kind)
        file = os.open(path, os.O_RDWR)
        try:
            found = os.fstat(file).st_size
            if found != size:
                raise OSError(f"array '{path}' has {found} bytes instead of {size}")
            return np.frombuffer(mmap(file, size), dtype=kind).reshape(shape) if size else np.empty(shape, kind)
        finally:
            os.close(file)

    def keep_batch(self, name: str, batch: pa.RecordBatch) -> pa.RecordBatch:
        try:
            with pa.OSFile(str(self._path(name)), "wb") as file, pa.ipc.new_file(file, batch.schema) as writer:
                writer.write_batch(batch)
        except OSError as error:
            raise self._full(error, int(batch.nbytes)) from error
        return self.open_batch(name)

    def open_batch(self, name: str) -> pa.RecordBatch:
        return pa.ipc.open_file(pa.memory_map(str(self._path(name)))).get_batch(0)

    def release(self, name: str) -> None:
        self._path(name).unlink(missing_ok=True)

    def _path(self, name: str) -> Path:
        """Returns the file of a name.

        Names contain those of columns and queries, which may have slashes or be very long.
        """
        plain = quote(name, safe="+")
        return self.folder / (plain if len(plain) <= _LONGEST_NAME else hashlib.sha256(name.encode()).hexdigest())

    def _full(self, error: OSError, size: int) -> StorageFull:
        return StorageFull(
            f"no space for {size} bytes of hot state in '{self.folder}'",
            detail=str(error),
            hint="free memory there, set ANABRANCH_HOT_FOLDER to a larger file system, or use shorter windows",
        )


def _size(shape: tuple[int, ...], kind: str) -> int:
    return int(np.prod(shape)) * np.dtype(kind).itemsize


class PartOfArena:
    """An arena's arrays under a name prefix, for several owners of one arena."""

    def __init__(self, arena: Arena, prefix: str) -> None:
        self._arena = arena
        self._prefix = prefix

    def allocate(self, name: str, shape: tuple[int, ...], kind: str) -> Array:
        return self._arena.allocate(self._prefix + name, shape, kind)

    def extend(self, name: str, shape: tuple[int, ...], kind: str) -> Array:
        return self._arena.extend(self._prefix + name, shape, kind)

    def open(self, name: str, shape: tuple[int, ...], kind: str) -> Array:
        return self._arena.open(self._prefix + name, shape, kind)

    def keep_batch(self, name: str, batch: pa.RecordBatch) -> pa.RecordBatch:
        return self._arena.keep_batch(self._prefix + name, batch)

    def open_batch(self, name: str) -> pa.RecordBatch:
        return self._arena.open_batch(self._prefix + name)

    def release(self, name: str) -> None:
        self._arena.release(self._prefix + name)
