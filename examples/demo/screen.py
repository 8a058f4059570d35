"""The page of the console, which shows all runs until the demo ends, and the common parts of the closing screens."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from rich.console import Console

from anabranch.console.runs import LiveRun
from anabranch.console.server import Console as WebConsole
from anabranch.errors import HostError


@contextmanager
def served(console: Console) -> Iterator[list[LiveRun]]:
    """Serves the page, and yields the list of the runs that it shows."""
    shown: list[LiveRun] = []
    with ExitStack() as stack:
        try:
            page = stack.enter_context(WebConsole(lambda: shown))
            console.print(f"until the demo ends, the console shows its runs: [bold]{page.url}[/bold]", highlight=False)
        except HostError as error:
            console.print(f"without the page in the browser: {error.message}", style="dim")
        yield shown


def command() -> str:
    """How the command is started from here: by its name, or by its place in an environment that is not active."""
    if shutil.which("anabranch"):
        return "anabranch"
    return os.path.relpath(Path(sys.executable).parent / "anabranch")
