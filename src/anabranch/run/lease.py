"""The lease on a checkpoint: one driver at a time commits to it.

A driver writes its name into `lease.json` when it starts, renews it every few seconds, and looks at it before every
commit. Another driver that starts meanwhile is refused. The lease of a driver that died is taken over: at once on the
same machine, where its process is known to be gone; elsewhere when it has not been renewed for a minute.

Law: a driver that does not find its own name in the lease commits nothing. Two drivers that take the lease at the same
moment may both begin a batch; the one whose name was overwritten ends before it commits.

Limit: between machines the clocks must agree within the time by which a lease expires. Runs of one process may follow
each other on a checkpoint; Spark itself ends the earlier one.
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
    """Who has a lease, and since when it is fresh."""

    owner: str
    machine: str
    """The name of the machine, and which of its starts this is."""
    process: int
    began: str
    """When the process began, as the machine counts; process numbers are used again."""
    renewed: int
    """In microseconds of the time of day."""

    @classmethod
    def me(cls, now: int) -> Holder:
        return cls(_ME, _machine(), os.getpid(), _began(os.getpid()) or "", now)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Holder | None:
        """Reads a lease; None for one that was cut short or is of another version."""
        try:
            return cls(*(value[name] for name in ("owner", "machine", "process", "began", "renewed")))
        except KeyError:
            return None

    def __str__(self) -> str:
        return f"process {self.process} on '{self.machine.partition(' ')[0]}'"

    def is_alive(self, now: int) -> bool:
        """True when the holder may still commit."""
        if self.machine == _machine():
            return _began(self.process) == self.began
        return now - self.renewed < EXPIRE_SECONDS * 1e6

    def is_alive_now(self) -> bool:
        return self.is_alive(_time_of_day())


def _time_of_day() -> int:
    return time_ns() // 1000


class Lease:
    """The lease of this process on a checkpoint; `close` gives it back."""

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
        """Refuses to go on if another driver has taken the lease."""
        held = self._read()
        if held is None or held.owner != _ME:
            by = "it was removed" if held is None else f"{held} has it"
            raise CheckpointInUse(
                f"this query has lost checkpoint '{self._store.location}' to another driver",
                detail=f"{by}; the batch was not committed",
                hint="let one driver run the query",
            )

    def renew(self) -> None:
        """Shows that this driver lives; a lease that another driver has taken is left alone."""
        held = self._read()
        if held is not None and held.owner == _ME:
            self._write()

    def hand_over(self) -> None:
        """Ends the care for the lease, and leaves it to the next run of this process."""
        self._is_over.set()

    def close(self) -> None:
        """Gives the lease back, if it is still this process's."""
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
        with suppress(Exception):  # the next commit says what is wrong
            mine.renew()
        del mine


@cache
def _machine() -> str:
    boot = Path("/proc/sys/kernel/random/boot_id")
    with suppress(OSError):
        return f"{socket.gethostname()} {boot.read_text().strip()}"
    return socket.gethostname()


def _began(process: int) -> str | None:
    """When a process of this machine began; None if it has ended."""
    with suppress(OSError, IndexError):
        # The name of the program stands in brackets and may have spaces in it.
        after = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
        # A process that has ended and is not yet collected by its parent is gone.
        return None if after[0] == "Z" else after[19]
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return None
    except OSError:
        return ""
    return ""
