"""Helpers for the shell commands: help texts, and errors about output files."""

from __future__ import annotations

import argparse
import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from textwrap import dedent, indent
from typing import TYPE_CHECKING

from anabranch.errors import AnabranchError, HostError

if TYPE_CHECKING:
    Commands = argparse._SubParsersAction[argparse.ArgumentParser]

USER_ERROR = 2
"""The exit status after a user error."""


def add_command(commands: Commands, name: str, purpose: str, lines: str) -> argparse.ArgumentParser:
    """Adds a command whose help ends with the given examples."""
    return commands.add_parser(
        name,
        help=purpose,
        description=purpose[0].upper() + purpose[1:] + ".",
        epilog=examples(lines),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        # A mistyped option must not match a longer one.
        allow_abbrev=False,
    )


def examples(lines: str) -> str:
    """Formats a text block as the end of a help text."""
    return "examples:\n" + indent(dedent(lines).strip(), "  ")


def error_text(error: AnabranchError) -> str:
    """Formats an error for the terminal: the message, then its cause and hint, indented."""
    first, *rest = str(error).split("\n")
    return "\n".join([f"error: {first}", *(indent(line, "  ") for line in rest)])


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Converts a failure to write a file or folder that the user named to a HostError."""
    try:
        yield
    except OSError as error:
        hint = "name another place" if path.parent.is_dir() else f"make the folder '{path.parent}' first"
        raise HostError(f"'{path}' cannot be written", detail=str(error), hint=hint) from error


def require_writable(path: Path) -> None:
    """Raises early if a file cannot be written; leaves no file behind."""
    with writing(path):
        if path.is_dir():
            raise IsADirectoryError(errno.EISDIR, "it is a folder")
        _partial(path).open("w").close()
        _partial(path).unlink()


def replace_text(path: Path, text: str) -> None:
    """Writes a file that the user named, atomically."""
    with writing(path):
        _partial(path).write_text(text, encoding="utf-8")
        _partial(path).replace(path)


def _partial(path: Path) -> Path:
    return path.with_name(f".{path.name}.{os.getpid()}.partial")
