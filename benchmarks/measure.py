"""Runs one command under a supervisor and says what it and all its descendants cost.

The supervisor is a process of its own that adopts orphans (Linux `PR_SET_CHILD_SUBREAPER`), so that the CPU time of
processes that outlive their parent, such as Spark's Python workers, is still counted once they end. It samples ten
times a second, or less often when a sample is dear, so that sampling takes at most a twentieth of one core.

Memory is the sum of proportional set sizes (shared pages count once), with anonymous and file pages taken from the
processes and shared memory taken as the larger of what they map and what a given folder of tmpfs holds: state that no
process maps just then is memory too. Linux only.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
from bisect import bisect_left
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from anabranch.run.processes import below, bytes_in, cpu_seconds, sizes

INTERVAL = 0.1
PR_SET_CHILD_SUBREAPER = 36


@dataclass(frozen=True)
class Memory:
    """Bytes in use at one moment: of the processes' own, in shared memory they map, and in the shared folder."""

    private: int
    mapped_shared: int
    in_folder: int

    @property
    def total(self) -> int:
        return self.private + max(self.mapped_shared, self.in_folder)


@dataclass(frozen=True)
class Cost:
    """What a command cost: wall and CPU seconds, and memory at its peak; CPU seconds and bytes at each sample."""

    exit_code: int
    wall: float
    cpu: float
    peak: Memory
    samples: int
    clock: tuple[float, ...]
    cpu_so_far: tuple[float, ...]
    memory: tuple[int, ...] = ()

    def peak_between(self, start: float, end: float) -> int:
        """The most bytes of a sample between two instants of the Unix clock."""
        first, stop = bisect_left(self.clock, start), bisect_left(self.clock, end)
        return max(self.memory[first : max(stop, first + 1)])

    def cpu_between(self, start: float, end: float) -> float:
        """CPU seconds spent between two instants of the Unix clock, read between samples."""
        return self._cpu_at(end) - self._cpu_at(start)

    def _cpu_at(self, instant: float) -> float:
        after = bisect_left(self.clock, instant)
        if after == 0:
            return 0.0
        if after == len(self.clock):
            return self.cpu
        before_time, after_time = self.clock[after - 1], self.clock[after]
        share = (instant - before_time) / (after_time - before_time)
        return self.cpu_so_far[after - 1] + share * (self.cpu_so_far[after] - self.cpu_so_far[after - 1])


def measure(command: Sequence[str], *, timeout: float, log: Path, shared: Path) -> Cost:
    """Runs the command to its end with its output in `log`; on timeout all its processes are killed.

    `shared` is the folder on tmpfs where the command keeps state that its processes share.
    """
    with tempfile.TemporaryDirectory() as directory:
        report = Path(directory) / "cost.json"
        asked = {"command": list(command), "timeout": timeout, "log": str(log), "shared": str(shared)}
        subprocess.run([sys.executable, "-m", "benchmarks.measure", json.dumps(asked), str(report)], check=True)
        found = json.loads(report.read_text())
    return Cost(
        **{
            **found,
            "peak": Memory(**found["peak"]),
            "clock": tuple(found["clock"]),
            "cpu_so_far": tuple(found["cpu_so_far"]),
            "memory": tuple(found["memory"]),
        }
    )


def supervise(command: Sequence[str], timeout: float, log: Path, shared: Path) -> Cost:
    """What `measure` does, inside the supervisor process."""
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    # Whoever interrupts a benchmark interrupts its whole process group; what is being measured must not outlive that.
    interrupted: list[int] = []
    for ending in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(ending, lambda number, _frame: interrupted.append(number))
    parent = os.getppid()
    begun = time.monotonic()
    with log.open("wb") as output:
        redirect = [(os.POSIX_SPAWN_DUP2, output.fileno(), 1), (os.POSIX_SPAWN_DUP2, output.fileno(), 2)]
        child = os.posix_spawnp(command[0], list(command), dict(os.environ), file_actions=redirect, setpgroup=0)
    exit_code: int | None = None
    ended = begun
    peak = Memory(0, 0, 0)
    clock: list[float] = []
    cpu_so_far: list[float] = []
    memories: list[int] = []
    while True:
        sampled, work = time.monotonic(), time.thread_time()
        processes = below(os.getpid())
        if exit_code is not None and (not processes or sampled - ended > 10):
            break
        clock.append(time.time())
        cpu_so_far.append(_reaped_cpu() + sum(cpu_seconds(pid) for pid in processes))
        memory = _memory(processes, bytes_in(shared))
        memories.append(memory.total)
        peak = max(peak, memory, key=lambda one: one.total)
        spent = time.thread_time() - work
        time.sleep(max(INTERVAL - spent, 19 * spent))
        if interrupted or os.getppid() != parent or sampled - begun > timeout:
            _kill(processes)
        for pid, status in _reap():
            if pid == child:
                exit_code, ended = os.waitstatus_to_exitcode(status), time.monotonic()
    _kill(processes)
    for _ in range(100):
        _reap()
        if not below(os.getpid()):
            break
        time.sleep(0.05)
    seen = (tuple(clock), tuple(cpu_so_far), tuple(memories))
    return Cost(exit_code, ended - begun, _reaped_cpu(), peak, len(clock), *seen)


def _reaped_cpu() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def _memory(processes: Sequence[int], in_folder: int) -> Memory:
    private = mapped_shared = 0
    for pid in processes:
        found = sizes(f"/proc/{pid}/smaps_rollup")
        mapped = found.get("Pss_Shmem", 0)
        private += found.get("Pss", 0) - mapped
        mapped_shared += mapped
    return Memory(private, mapped_shared, in_folder)


def _reap() -> list[tuple[int, int]]:
    ended: list[tuple[int, int]] = []
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return ended
        if pid == 0:
            return ended
        ended.append((pid, status))


def _kill(processes: Sequence[int]) -> None:
    for pid in processes:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


if __name__ == "__main__":
    request = json.loads(sys.argv[1])
    found = supervise(request["command"], request["timeout"], Path(request["log"]), Path(request["shared"]))
    Path(sys.argv[2]).write_text(json.dumps(asdict(found)))
