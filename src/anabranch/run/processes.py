"""Processes of this machine, as `/proc` tells of them: processor time and resident memory; workers of Spark.

Limit: Linux only. A process that is gone has nothing.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

TICKS = os.sysconf("SC_CLK_TCK")
DAEMON = b"\0-m\0anabranch.spark.daemon"


def bytes_in(place: Path) -> int:
    """Bytes that the files below a folder really take; files that go away meanwhile take none."""
    total = 0
    for parent, _, names in os.walk(place):
        for name in names:
            with suppress(FileNotFoundError):
                total += os.stat(os.path.join(parent, name)).st_blocks * 512
    return total


def below(root: int) -> list[int]:
    """Living processes below a process."""
    children: dict[int, list[int]] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit() and (stat := _stat(int(entry))):
            children.setdefault(int(stat[1]), []).append(int(entry))
    found: list[int] = []
    waiting = list(children.get(root, ()))
    while waiting:
        pid = waiting.pop()
        found.append(pid)
        waiting += children.get(pid, ())
    return found


def _stat(pid: int) -> list[str]:
    """The fields of a process from its state on; empty when it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def cpu_seconds(pid: int) -> float:
    """Seconds of a process and of those of its children that it has waited for."""
    return sum(int(ticks) for ticks in _stat(pid)[11:15]) / TICKS


def is_worker(pid: int) -> bool:
    """True for a Python worker of Spark, and for the daemon that forks them."""
    with suppress(OSError):
        # Java's own command names the daemon too, in a setting.
        return DAEMON in Path(f"/proc/{pid}/cmdline").read_bytes()
    return False


def resident(pid: int) -> int:
    """Resident bytes of a process without shared memory; pages of several processes count in parts."""
    found = sizes(f"/proc/{pid}/smaps_rollup")
    return found.get("Pss", 0) - found.get("Pss_Shmem", 0)


def above_now(pid: int) -> int:
    """Bytes by which a process had more resident than it has, at its peak."""
    found = sizes(f"/proc/{pid}/status")
    return max(0, found.get("VmHWM", 0) - found.get("VmRSS", 0))


def forget_peaks() -> None:
    """Lets the workers count the most that they had resident anew."""
    for pid in filter(is_worker, below(os.getpid())):
        with suppress(OSError):
            Path(f"/proc/{pid}/clear_refs").write_text("5")


def sizes(path: str) -> dict[str, int]:
    """The lines of a file of /proc that end in kB, as bytes."""
    try:
        lines = Path(path).read_text().splitlines()
    except OSError:
        return {}
    split = (line.split() for line in lines if line.endswith(" kB"))
    return {words[0].rstrip(":"): int(words[1]) * 1024 for words in split if len(words) == 3}
