"""The command `anabranch checkpoint`: inspect, verify, copy and repair-report."""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING

from anabranch.checkpoint import repairing
from anabranch.checkpoint.copying import copy
from anabranch.checkpoint.examine import as_text, contents, faults
from anabranch.settings.commands import add_command

if TYPE_CHECKING:
    from anabranch.settings.commands import Commands


def add_arguments(commands: Commands) -> None:
    """Adds the command."""
    command = add_command(
        commands,
        "checkpoint",
        "inspect, verify or copy a checkpoint",
        """
        anabranch checkpoint inspect checkpoint          query, last batch, plan, rows, who uses it
        anabranch checkpoint inspect checkpoint --json
        anabranch checkpoint verify checkpoint           read every file that a restart needs
        anabranch checkpoint copy checkpoint backup      also while the query runs
        anabranch checkpoint repair-report checkpoint    what is wrong, and what can be done; changes nothing
        """,
    )
    actions = command.add_subparsers(metavar="ACTION", required=True)
    inspecting = actions.add_parser("inspect", help="show what the checkpoint holds", allow_abbrev=False)
    inspecting.add_argument("checkpoint", metavar="CHECKPOINT")
    inspecting.add_argument("--json", action="store_true", help="print JSON")
    inspecting.set_defaults(run=inspect)
    verifying = actions.add_parser("verify", help="check that a restart would find everything", allow_abbrev=False)
    verifying.add_argument("checkpoint", metavar="CHECKPOINT")
    verifying.set_defaults(run=verify)
    copying = actions.add_parser("copy", help="copy the checkpoint into an empty folder", allow_abbrev=False)
    copying.add_argument("checkpoint", metavar="CHECKPOINT")
    copying.add_argument("target", metavar="FOLDER")
    copying.set_defaults(run=make_copy)
    repairs = actions.add_parser(
        "repair-report", help="say what is wrong and what can be done; changes nothing", allow_abbrev=False
    )
    repairs.add_argument("checkpoint", metavar="CHECKPOINT")
    repairs.add_argument("--json", action="store_true", help="print JSON")
    repairs.set_defaults(run=repair_report)


def inspect(arguments: argparse.Namespace) -> int:
    """Prints the contents."""
    found = contents(arguments.checkpoint)
    print(json.dumps(found.to_json(), indent=2) if arguments.json else as_text(found))
    return 0


def verify(arguments: argparse.Namespace) -> int:
    """Prints every fault; the exit status is 1 if there is one."""
    found = list(faults(arguments.checkpoint))
    for fault in found:
        print(f"{fault.what}\n  hint: {fault.remedy}")
    print(f"{len(found)} faults" if found else "the checkpoint is whole")
    return 1 if found else 0


def make_copy(arguments: argparse.Namespace) -> int:
    """Copies a checkpoint, then verifies the copy."""
    count = copy(arguments.checkpoint, arguments.target)
    print(f"copied {count} files to {arguments.target}")
    return verify(argparse.Namespace(checkpoint=arguments.target))


def repair_report(arguments: argparse.Namespace) -> int:
    """Prints the faults and the steps to repair them; the exit status is 1 if there is a fault."""
    found = repairing.examine(arguments.checkpoint)
    print(repairing.as_json(found) if arguments.json else repairing.as_text(found))
    return 0 if found.is_whole else 1
