"""Helpers of the shell commands: their help texts, and errors about output files."""

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
    """Add a command whose help ends with the given examples."""
    return commands.add_parser(
        name,
        help=purpose,
        description=purpose[0].upper() + purpose[1:] + ".",
        epilog=examples(lines),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )


def examples(lines: str) -> str:
    """Format a text block as the end of a help text."""
    return "examples:\n" + indent(dedent(lines).strip(), "  ")


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn a failure to write a file or folder that the user named into a HostError."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield
    except OSError as error:
        raise HostError(f"'{path}' cannot be written", detail=str(error), hint="name another place") from error
