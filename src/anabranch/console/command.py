"""The command `anabranch console`: shows a checkpoint in the browser, even when no query runs."""

from __future__ import annotations

import argparse
import signal
import sys
from threading import Event
from typing import TYPE_CHECKING

from anabranch.console.runs import StoredRun
from anabranch.console.server import LOOPBACK, Console
from anabranch.errors import SpecError
from anabranch.settings.commands import add_command

if TYPE_CHECKING:
    from anabranch.settings.commands import Commands


def add_arguments(commands: Commands) -> None:
    """Adds the command."""
    command = add_command(
        commands,
        "console",
        "show the history of a checkpoint in the browser",
        """
        anabranch console checkpoint                    decisions, changes of plan, moves, state after the last batch
        anabranch console checkpoint --at 4100          on another port
        anabranch run query.yaml --console              the same page for a query that runs, with live figures
        """,
    )
    command.add_argument("checkpoint", metavar="CHECKPOINT", help="the folder of a checkpoint")
    command.add_argument("--at", metavar="[HOST:]PORT", help="where to listen (default: a free port of this machine)")
    command.set_defaults(run=show)


def show(arguments: argparse.Namespace) -> int:
    """Serves the console until it is interrupted."""
    run = StoredRun(arguments.checkpoint)
    host, port = address(arguments.at or "")
    over = Event()
    signal.signal(signal.SIGTERM, lambda *_: over.set())
    with Console(lambda: [run], host=host, port=port) as console:
        print(f"console at {console.url}   (Ctrl-C ends it)", file=sys.stderr)
        try:
            over.wait()
        except KeyboardInterrupt:
            print("", file=sys.stderr)
    return 0


def address(text: str) -> tuple[str, int | None]:
    """Reads `PORT`, `HOST:PORT` or nothing.

    >>> address(""), address("4100"), address("0.0.0.0:4100")
    (('127.0.0.1', None), ('127.0.0.1', 4100), ('0.0.0.0', 4100))
    """
    host, _, port = text.rpartition(":")
    if not text:
        return LOOPBACK, None
    if not port.isdigit() or not 0 < int(port) < 65536:
        raise SpecError(f"'{text}' is not an address for the console", hint="write a port, or host:port, such as 4100")
    return host or LOOPBACK, int(port)
