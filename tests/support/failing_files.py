"""A file system that fails at a chosen write: the machine dies there, the disk is full, or the device breaks.

Operations that change files are counted: opening a file to write, writing to it, closing it, renaming, deleting,
creating a folder. Invariant: the operation with the chosen number fails, and after a death every later one does too, as
for a process that is gone. A failing write leaves half of its bytes behind. Limit: one thread at a time; tests use
`Serial` instead of a thread pool, so that a number always means the same operation.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from typing import Any
from unittest import mock

import pyarrow as pa
from pyarrow import fs

from anabranch.run import folder, local


class Death(BaseException):
    """The end of a process, in tests that continue in the process: no error handler may catch it."""


class Kind(Enum):
    """The way in which an operation fails."""

    DIES_BEFORE = "the process dies before it"
    DIES_AFTER = "the process dies after it"
    FULL = "the disk is full"
    BROKEN = "the device fails"


@dataclass(frozen=True)
class Fault:
    """The number of the failing operation, from 0, and the kind of failure."""

    operation: int
    kind: Kind

    def __str__(self) -> str:
        return f"{self.kind.value} (operation {self.operation})"


class FailingFiles(fs.LocalFileSystem):
    """A local file system with one fault; `operations` lists all operations in order."""

    def __init__(self, fault: Fault | None = None) -> None:
        super().__init__()
        self.fault = fault
        self.operations: list[str] = []
        self.is_dead = False

    @property
    def has_failed(self) -> bool:
        return self.fault is not None and len(self.operations) > self.fault.operation

    def arm(self, fault: Fault | None) -> None:
        """Restarts the count, with another fault."""
        self.fault, self.operations = fault, []

    def open_output_stream(self, path: str, *args: Any, **keywords: Any) -> Any:
        return self._do(f"open {path}", lambda: self._opened(path, "wb"))

    def open_append_stream(self, path: str, *args: Any, **keywords: Any) -> Any:
        return self._do(f"append {path}", lambda: self._opened(path, "ab"))

    def move(self, src: str, dest: str) -> None:
        self._do(f"move {dest}", lambda: super(FailingFiles, self).move(src, dest))

    def delete_file(self, path: str) -> None:
        self._do(f"delete {path}", lambda: super(FailingFiles, self).delete_file(path))

    def create_dir(self, path: str, *, recursive: bool = True) -> None:
        self._do(f"folder {path}", lambda: super(FailingFiles, self).create_dir(path, recursive=recursive))

    def _opened(self, path: str, mode: str) -> pa.PythonFile:
        return pa.PythonFile(_Failing(self, path, mode), mode="w")

    def _do(self, name: str, act: Callable[[], Any], tear: Callable[[], None] = lambda: None) -> Any:
        number = len(self.operations)
        self.operations.append(name)
        if self.is_dead:
            raise Death(name)
        if self.fault is None or number != self.fault.operation:
            return act()
        match self.fault.kind:
            case Kind.DIES_AFTER:
                act()
                self.is_dead = True
                raise Death(name)
            case Kind.DIES_BEFORE:
                tear()
                self.is_dead = True
                raise Death(name)
            case Kind.FULL:
                tear()
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), name)
            case Kind.BROKEN:
                tear()
                raise OSError(errno.EIO, os.strerror(errno.EIO), name)


class _Failing:
    """A file whose writes are operations of their file system."""

    def __init__(self, files: FailingFiles, path: str, mode: str) -> None:
        self._files, self._path = files, path
        self._file = open(path, mode)  # noqa: SIM115 - closed by `close`

    @property
    def closed(self) -> bool:
        return self._file.closed

    def write(self, data: Any) -> int:
        content = bytes(data)
        if not content.strip(b"\0"):
            # Arrow pads its output; how often depends on the digits of measured seconds. Padding does not count.
            return self._file.write(content)
        self._files._do(
            f"write {self._path}",
            lambda: self._file.write(content),
            lambda: self._half(content),
        )
        return len(content)

    def _half(self, content: bytes) -> None:
        self._file.write(content[: len(content) // 2])

    def tell(self) -> int:
        return self._file.tell()

    def flush(self) -> None:
        self._file.flush()

    def close(self) -> None:
        self._file.close()


class Serial:
    """Has the interface of a thread pool, and runs everything in the calling thread."""

    def __init__(self, workers: int = 1) -> None:
        del workers

    def map(self, function: Callable[..., Any], *several: Iterable[Any]) -> Iterator[Any]:
        return iter([function(*each) for each in zip(*several, strict=False)])


@contextmanager
def on_failing_files(files: FailingFiles) -> Iterator[FailingFiles]:
    """Puts checkpoints opened inside on the given file system; slots step one after another."""
    with (
        mock.patch.object(folder, "_file_system", lambda location: (files, location)),
        mock.patch.object(local, "ThreadPoolExecutor", Serial),
    ):
        yield files
