"""Reads CPU time and resident memory of processes from `/proc`, and finds Spark's Python workers.

Limit: Linux only. All values of a process that has ended are 0 or empty.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

TICKS = os.sysconf("SC_CLK_TCK")
DAEMON = b"\0-m\0anabranch.spark.daemon"


def bytes_in(place: Path) -> int:
    """Returns the allocated bytes of the files below a folder; files that are removed meanwhile count as 0."""
    total = 0
    for parent, _, names in os.walk(place):
        for name in names:
            with suppress(FileNotFoundError):
                total += os.stat(os.path.join(parent, name)).st_blocks * 512
    return total


def below(root: int) -> list[int]:
    """Returns the descendants of a process."""
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
    """Returns the fields of `/proc/<pid>/stat` from the state on; empty if the process has ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def cpu_seconds(pid: int) -> float:
    """Returns the CPU seconds of a process and of the children that it has waited for."""
    return sum(int(ticks) for ticks in _stat(pid)[11:15]) / TICKS


def is_worker(pid: int) -> bool:
    """Returns True for a Python worker of Spark and for the daemon that forks them."""
    with suppress(OSError):
        # With the preceding `-m`, because the command line of Java also contains the name of the daemon, in a setting.
        return DAEMON in Path(f"/proc/{pid}/cmdline").read_bytes()
    return False


def resident(pid: int) -> int:
    """Returns the resident bytes of a process without shared memory; a page of n processes counts as 1/n."""
    found = sizes(f"/proc/{pid}/smaps_rollup")
    return found.get("Pss", 0) - found.get("Pss_Shmem", 0)


def above_now(pid: int) -> int:
    """Returns the peak resident bytes of a process minus its current ones."""
    found = sizes(f"/proc/{pid}/status")
    return max(0, found.get("VmHWM", 0) - found.get("VmRSS", 0))


def forget_peaks() -> None:
    """Resets the peak of resident memory of all workers."""
    for pid in filter(is_worker, below(os.getpid())):
        with suppress(OSError):
            Path(f"/proc/{pid}/clear_refs").write_text("5")


def sizes(path: str) -> dict[str, int]:
    """Returns the values in kB of a file in `/proc`, in bytes, by name."""
    try:
        lines = Path(path).read_text().splitlines()
    except OSError:
        return {}
    split = (line.split() for line in lines if line.endswith(" kB"))
    return {words[0].rstrip(":"): int(words[1]) * 1024 for words in split if len(words) == 3}
