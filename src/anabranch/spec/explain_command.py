"""The command `anabranch explain`: shows how the queries of a spec would run, without running them.

It starts Spark only for `--sample`, with one session for all queries.

Invariant: plans are chosen by the same code as for `anabranch run`, so the plan shown is the plan that would run.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from anabranch.balance.first import first_table
from anabranch.errors import SpecError
from anabranch.optimize import Choice
from anabranch.plan.classing import classes_for, with_classes
from anabranch.plan.mesh import check_plan, parse_plan
from anabranch.plan.query_set import set_of
from anabranch.planning import explain
from anabranch.planning.choosing import decide, on_spark, proposal
from anabranch.planning.explain import run_svg
from anabranch.planning.options import AUTO
from anabranch.planning.together import RunChoice, allocate, decide_together
from anabranch.settings.commands import add_command, require_writable
from anabranch.spec.model import Spec
from anabranch.spec.options import add_spec, spec_of, write_file
from anabranch.spec.run_command import SAMPLING, explanations, prepared
from anabranch.spec.sinks import check_sinks

if TYPE_CHECKING:
    from anabranch.settings.commands import Commands


def add_arguments(commands: Commands) -> None:
    """Adds the command; the parsed arguments have `run`, a function that returns the exit status."""
    command = add_command(
        commands,
        "explain",
        "show how the query of a spec file would run, without running it",
        """
        anabranch explain query.yaml                                choose by the statistics in the spec
        anabranch explain query.yaml --sample                       choose by samples of the streams, as a run does
        anabranch explain query.yaml --cpu 0.5 --memory "200 MB"    choose within these limits
        anabranch explain query.yaml --plan tree --picture plan.svg
        anabranch explain query.yaml --stage logical
        """,
    )
    add_spec(command)
    command.add_argument(
        "--stage",
        choices=explain.STAGES,
        default="choice",
        help="the stage to show (default: choice)",
    )
    command.add_argument(
        "--picture",
        type=Path,
        metavar="FILE",
        help="draw the plan (with all plans by CPU and memory), or plans, as SVG",
    )
    command.add_argument("--sample", action="store_true", help="sample the first rows of the streams; needs Spark")
    command.set_defaults(run=explain_spec)


def explain_spec(arguments: argparse.Namespace) -> int:
    """Prints one stage of each query of the spec and draws its plan; fails if no plan is within the limits."""
    if arguments.picture is not None and arguments.picture.suffix.lower() != ".svg":
        raise SpecError(f"option '--picture' is '{arguments.picture}'", hint="pictures are SVG files: name it plan.svg")
    chosen = spec_of(arguments)
    if arguments.picture is not None:
        require_writable(arguments.picture)
    explained, plans = _sampled(chosen) if arguments.sample else _unsampled(chosen)
    for name, each in explained.items():
        for switch in chosen.queries[name].switches:
            plan = parse_plan(switch.plan)
            graph = with_classes(each.query.graph, classes_for(plan, each.query.graph))
            check_plan(plan, graph, each.query.grouping)
    print(explain.explain_queries(explained, arguments.stage, plans, _fill(chosen)))
    if arguments.picture is not None:
        write_file(arguments.picture, run_svg({name: each.query for name, each in explained.items()}, plans()))
    if arguments.stage == "choice":
        for name in explained:
            proposal(plans().choices[name])
    return 0


Explained = tuple[dict[str, explain.Explanation], Callable[[], RunChoice]]
"""The queries of a spec, and a function that chooses their plans."""


def _unsampled(chosen: Spec) -> Explained:
    """Explains the queries by the statistics in the spec, without Spark."""
    explained = explanations(chosen)
    for note in check_sinks(chosen, {name: each.query for name, each in explained.items()}):
        print(note, file=sys.stderr)
    if chosen.together.of_executors or any(each.plan_options.of_executors for each in chosen.queries.values()):
        print("note: 'limits: auto' is read from the executors; without --sample no limits apply", file=sys.stderr)
    every = explain.with_inputs(explained)
    plan_options = {name: chosen.queries[name].plan_options if name in chosen.queries else AUTO for name in every}
    whole, fill = set_of({name: each.query for name, each in explained.items()}), _fill(chosen)
    capacities = chosen.balance.capacities if chosen.balance is not None else None

    def choose_at(slots: int) -> dict[str, Choice]:
        batch, host = chosen.seconds_between_batches, on_spark(chosen.trigger.seconds, len(every))
        return {
            name: decide(each.query, plan_options[name], slots=slots, batch=batch, host=host)
            for name, each in every.items()
        }

    @cache
    def plans() -> RunChoice:
        found = allocate(
            whole, chosen.slots, choose_at, plan_options, chosen.together, lambda grid, _: fill(grid), capacities
        )
        given = chosen.slots.most if chosen.slots else os.cpu_count() or 1
        slots = given if found is None else found.slots
        choices = choose_at(slots)
        adapting = [name for name, query in chosen.queries.items() if query.adapt is not None]
        joint = decide_together(whole, choices, plan_options, chosen.together, adapting=adapting, slots=slots)
        return RunChoice(choices, joint, found)

    return explained, plans


def _sampled(chosen: Spec) -> Explained:
    """Explains the queries by samples: opens the streams, makes the sinks and chooses the plans as a run does."""
    console = Console(stderr=True)
    with prepared(chosen, console) as ready, console.status(SAMPLING):
        # Only Spark knows its formats.
        ready.sinks({})
        ready.late_rows()
        explained = {name: ready.given[name].compiled.stages for name in chosen.queries}
        plans = ready.chosen(always_sample=True)
    return explained, lambda: plans


def _fill(chosen: Spec) -> explain.FillSlots:
    return partial(first_table, capacities=None if chosen.balance is None else chosen.balance.capacities)
