"""How every command of the shell presents itself: a purpose, the options, and examples that can be typed."""

from __future__ import annotations

import argparse
from textwrap import dedent, indent
from typing import TYPE_CHECKING

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
