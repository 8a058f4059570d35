"""What the commands of the shell share: how they present themselves, and how they write what they are asked for."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from textwrap import dedent, indent
from typing import TYPE_CHECKING

from anabranch.errors import HostError

if TYPE_CHECKING:
    Commands = argparse._SubParsersAction[argparse.ArgumentParser]


def add_command(commands: Commands, name: str, purpose: str, lines: str) -> argparse.ArgumentParser:
    """A new command, whose help ends with the given lines of examples."""
    return commands.add_parser(
        name,
        help=purpose,
        description=purpose[0].upper() + purpose[1:] + ".",
        epilog=examples(lines),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )


def examples(lines: str) -> str:
    """Lines of a text block as the end of a help."""
    return "examples:\n" + indent(dedent(lines).strip(), "  ")


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Tells what keeps a file or folder that the user has named from being written."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield
    except OSError as error:
        raise HostError(f"'{path}' cannot be written", detail=str(error), hint="name another place") from error
