"""The lease on a checkpoint: only one driver at a time commits to it.

A driver writes its name into `lease.json` when it starts, renews it every few seconds, and checks it before every
commit. Another driver that starts meanwhile is refused. The lease of a dead driver is taken over: at once on the same
machine, where its process is known to be gone; elsewhere when it has not been renewed for a minute.

Invariant: a driver that does not find its own name in the lease commits nothing. Two drivers that take the lease at the
same moment may both begin a batch; the one whose name was overwritten stops before it commits.

Limit: clocks of different machines must agree within the expiry time of a lease. Runs of one process may follow each
other on a checkpoint; Spark itself ends the earlier one.
"""

from __future__ import annotations

import os
import socket
import threading
import uuid
import weakref
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from time import time_ns
from typing import Any

from anabranch.errors import CheckpointInUse
from anabranch.run.store import Store

RENEW_SECONDS = 10.0
EXPIRE_SECONDS = 60.0
_ME = uuid.uuid4().hex
"""This process; runs of one process share the lease."""


@dataclass(frozen=True)
class Holder:
    """The holder of a lease, and when it was last renewed."""

    owner: str
    machine: str
    """The name of the machine, and the identifier of its boot."""
    process: int
    began: str
    """The start time of the process, as the machine counts; process numbers are reused."""
    renewed: int
    """Time of day in microseconds."""

    @classmethod
    def me(cls, now: int) -> Holder:
        return cls(_ME, _machine(), os.getpid(), _began(os.getpid()) or "", now)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Holder | None:
        """Reads a lease; None if it is truncated or of another version."""
        try:
            return cls(*(value[name] for name in ("owner", "machine", "process", "began", "renewed")))
        except KeyError:
            return None

    def __str__(self) -> str:
        return f"process {self.process} on '{self.machine.partition(' ')[0]}'"

    def is_alive(self, now: int) -> bool:
        """Returns True if the holder may still commit."""
        if self.machine == _machine():
            return _began(self.process) == self.began
        return now - self.renewed < EXPIRE_SECONDS * 1e6

    def is_alive_now(self) -> bool:
        return self.is_alive(_time_of_day())


def _time_of_day() -> int:
    return time_ns() // 1000


class Lease:
    """The lease of this process on a checkpoint; `close` releases it."""

    def __init__(self, store: Store, now: Callable[[], int] = _time_of_day) -> None:
        self._store = store
        self._now = now
        held = self._read()
        if held is not None and held.owner != _ME and held.is_alive(now()):
            raise CheckpointInUse(
                f"checkpoint '{store.location}' is in use",
                detail=f"{held} runs a query with it",
                hint="stop that query, or give this one a checkpoint folder of its own",
            )
        self._write()
        self.require()
        self._is_over = threading.Event()
        renewing = threading.Thread(target=_renew, args=(weakref.ref(self), self._is_over), daemon=True)
        renewing.name = "anabranch-lease"
        renewing.start()

    def require(self) -> None:
        """Raises an error if another driver has taken the lease."""
        held = self._read()
        if held is None or held.owner != _ME:
            by = "it was removed" if held is None else f"{held} has it"
            raise CheckpointInUse(
                f"this query has lost checkpoint '{self._store.location}' to another driver",
                detail=f"{by}; the batch was not committed",
                hint="let one driver run the query",
            )

    def renew(self) -> None:
        """Renews the lease; does nothing if another driver has taken it."""
        held = self._read()
        if held is not None and held.owner == _ME:
            self._write()

    def hand_over(self) -> None:
        """Stops renewing the lease and leaves it to the next run of this process."""
        self._is_over.set()

    def close(self) -> None:
        """Releases the lease, if this process still has it."""
        self._is_over.set()
        with suppress(Exception):  # the file system may be gone, and the lease expires by itself
            held = self._read()
            if held is not None and held.owner == _ME:
                self._store.drop_lease()

    def _read(self) -> Holder | None:
        value = self._store.lease()
        return None if value is None else Holder.from_json(value)

    def _write(self) -> None:
        self._store.keep_lease(asdict(Holder.me(self._now())))


def _renew(lease: weakref.ref[Lease], is_over: threading.Event) -> None:
    while not is_over.wait(RENEW_SECONDS):
        mine = lease()
        if mine is None:
            return
        with suppress(Exception):  # the next commit reports the error
            mine.renew()
        del mine


@cache
def _machine() -> str:
    boot = Path("/proc/sys/kernel/random/boot_id")
    with suppress(OSError):
        return f"{socket.gethostname()} {boot.read_text().strip()}"
    return socket.gethostname()


def _began(process: int) -> str | None:
    """Returns the start time of a process of this machine; None if it has ended."""
    with suppress(OSError, IndexError):
        # The program name is in parentheses and may contain spaces.
        after = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
        # A zombie process counts as gone.
        return None if after[0] == "Z" else after[19]
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return None
    except OSError:
        return ""
    return ""
