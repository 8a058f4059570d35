"""The command-line options of all commands that take a spec file, and the spec with these options applied."""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

from anabranch.console.server import TOKEN
from anabranch.errors import SpecError
from anabranch.plan.slots import FEWEST, SlotRange
from anabranch.run.evolving import Evolve
from anabranch.settings.commands import replace_text
from anabranch.spark.quiet import VERBOSE
from anabranch.spec.file import parse, read_text
from anabranch.spec.model import QuerySpec, Spec
from anabranch.telemetry.logs import JSON, VARIABLE


def add_spec(command: argparse.ArgumentParser) -> None:
    command.add_argument("spec", type=Path, metavar="SPEC.yaml", help="a spec file: streams, query, sink and more")
    command.add_argument("--plan", metavar="PLAN", help="auto, mjoin, tree, jtree, mesh or a plan text")
    command.add_argument("--slots", metavar="N", help="number of slots, 1-8 or fewest, instead of the spec's")
    command.add_argument("--cpu", type=float, metavar="CORES", help="cores per slot, instead of the spec's limit")
    command.add_argument("--memory", metavar="BYTES", help="bytes per slot, such as '500 MB', instead of the spec's")
    command.add_argument("--objective", metavar="O", help="qualified, cpu, memory, rate@<time> or first@<results>")
    command.add_argument("--master", metavar="URL", help="the Spark master, such as local[4] or spark://host:7077")
    command.add_argument(
        "--conf",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="a setting of Spark; may be repeated",
    )
    add_verbose(command)


def add_run_options(command: argparse.ArgumentParser) -> None:
    """Adds the options of commands that run queries: console, log and lineage."""
    command.add_argument(
        "--console",
        nargs="?",
        const="",
        metavar="[HOST:]PORT",
        help=f"serve a page with live figures, plan and decisions; {TOKEN} in the environment lets it change plans",
    )
    command.add_argument(
        "--log",
        choices=("text", JSON),
        help=f"text for people (default), or one JSON object on each line, as {VARIABLE}={JSON} does",
    )
    command.add_argument(
        "--lineage",
        nargs="?",
        const="anabranch",
        metavar="NAMESPACE",
        help="send events of OpenLineage to where OPENLINEAGE_URL or openlineage.yml says",
    )


def add_verbose(command: argparse.ArgumentParser) -> None:
    """Adds the option that shows Spark's log."""
    command.add_argument("--verbose", action="store_true", help=f"show Spark's log, as {VERBOSE}=1 does")


def spec_of(arguments: argparse.Namespace) -> Spec:
    """Returns the spec file with the command-line options applied."""
    return with_options(arguments, *read_text(arguments.spec))


def with_options(arguments: argparse.Namespace, text: str, folder: Path) -> Spec:
    """Returns the spec in a text with the command-line options applied."""
    chosen = parse(text, folder=folder)
    if len(chosen.queries) > 1:
        for option in ("plan", "objective", "cpu", "memory"):
            if vars(arguments)[option] is not None:
                raise SpecError(
                    f"option '--{option}' is for one query, and the spec has several",
                    hint="write it below the query it is for: queries: {alerts: {plan: mjoin, limits: {cpu: 2}, …}}",
                )
    chosen = chosen.each(partial(_with_plan_options, arguments))
    if arguments.slots is not None:
        chosen = replace(chosen, slots=_slots(arguments.slots))
    spark = chosen.spark
    if arguments.master is not None:
        spark = spark.with_master(arguments.master)
    for setting in arguments.conf:
        key, sign, value = setting.partition("=")
        if not sign:
            raise SpecError(f"option '--conf' is '{setting}'", hint="write key=value: --conf spark.driver.memory=4g")
        spark = spark.with_setting(key.strip(), value.strip())
    if evolve := vars(arguments).get("evolve"):
        chosen = replace(chosen, evolve=Evolve(evolve))
    return replace(chosen, spark=spark)


def _slots(text: str) -> SlotRange:
    """Reads `4`, `1-8`, or `fewest`."""
    if text == "fewest":
        return FEWEST
    least, _, most = text.partition("-")
    if not (least.isdecimal() and (most or least).isdecimal() and 1 <= int(least) <= int(most or least)):
        hint = "give a whole number of at least 1, limits such as 1-8, or fewest"
        raise SpecError(f"option '--slots' is {text}", hint=hint)
    return SlotRange(int(least), int(most or least))


def _with_plan_options(arguments: argparse.Namespace, query: QuerySpec) -> QuerySpec:
    plan_options = query.plan_options.with_limits(arguments.cpu, arguments.memory)
    if arguments.plan is not None:
        plan_options = replace(plan_options, plan=arguments.plan)
    if arguments.objective is not None:
        plan_options = plan_options.with_objective(arguments.objective)
    return replace(query, plan_options=plan_options)


def write_file(path: Path, text: str) -> None:
    """Writes a file and reports it."""
    replace_text(path, text)
    print(f"wrote {path}", file=sys.stderr)
