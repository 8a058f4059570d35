"""The command `anabranch place network.yaml queries.yaml`."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from anabranch.errors import SpecError
from anabranch.place.bounds import Bounds, bounds
from anabranch.place.check import complaints
from anabranch.place.guidelines import recommended
from anabranch.place.landscape import SinkQuery, monthly
from anabranch.place.run import (
    COMPARED,
    DEFAULT,
    HIERARCHICAL,
    PLANNERS,
    Options,
    Run,
    deploy,
    hierarchies,
    planner_named,
)
from anabranch.place.spec import load_network, load_queries
from anabranch.place.topology import Topology
from anabranch.settings.commands import add_command, writing

if TYPE_CHECKING:
    from anabranch.settings.commands import Commands

PICTURES = (".svg", ".png", ".pdf")


def add_arguments(commands: Commands) -> None:
    """Adds the command `place`; the parsed arguments have `run`, which returns the exit status."""
    parser = add_command(
        commands,
        "place",
        "plan queries over a network of sites",
        """
        anabranch place examples/network.yaml examples/airline-queries.yaml
        anabranch place network.yaml queries.yaml --compare             all planners side by side
        anabranch place network.yaml queries.yaml --planner top-down --max-cs auto    clusters by its guideline
        anabranch place network.yaml queries.yaml --planner npc --picture network.svg --json deployments.json
        """,
    )
    parser.add_argument("network", type=Path, help="sites, links and streams (YAML)")
    parser.add_argument("queries", type=Path, help="queries with their sinks (YAML)")
    parser.add_argument(
        "--planner", default=DEFAULT, choices=sorted(PLANNERS), help=f"which planner decides (default: {DEFAULT})"
    )
    add_sizes(parser)
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="the seed of random choices (default: 0)")
    parser.add_argument("--compare", action="store_true", help="run all planners side by side")
    parser.add_argument("--picture", type=Path, metavar="FILE", help="draw the network (svg, png or pdf)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the deployments")
    parser.set_defaults(run=run)


def add_sizes(parser: argparse.ArgumentParser) -> None:
    """Adds `--max-cs`."""
    parser.add_argument(
        "--max-cs",
        nargs="+",
        default=["32"],
        metavar="N",
        help="the maximum sites of a cluster; several sizes; or 'auto' for the planner's guideline",
    )


def options_of(arguments: argparse.Namespace, topology: Topology, queries: Sequence[SinkQuery]) -> Options:
    """Returns the planner options, with the requested cluster sizes."""
    streams = max((len(query.planned.graph.names) for query in queries), default=2)
    sizes: list[int] = []
    for text in arguments.max_cs:
        if text == "auto":
            sizes.append(recommended(arguments.planner, topology, streams, arguments.seed))
        elif text.isdigit():
            sizes.append(int(text))
        else:
            raise SpecError(f"option '--max-cs' is '{text}'", hint="write a number of sites, or auto")
    return Options(max_cs=sizes[0], other_cs=tuple(sizes[1:]), seed=arguments.seed)


def run(arguments: argparse.Namespace) -> int:
    """Plans the queries in order and prints their placements."""
    console = Console()
    if arguments.picture is not None and arguments.picture.suffix.lower() not in PICTURES:
        raise SpecError(
            f"option '--picture' is '{arguments.picture}'", hint=f"use one of the suffixes {', '.join(PICTURES)}"
        )
    network = load_network(arguments.network)
    queries = load_queries(arguments.queries, network)
    topology = network.landscape.topology
    options = options_of(arguments, topology, queries)
    planner = planner_named(arguments.planner, topology, options)
    chosen = deploy(planner, network.landscape, queries)
    known = hierarchies(topology, options) if arguments.planner in HIERARCHICAL else ()
    limits = {
        decision.deployment.query: bounds(
            decision.deployment, len(query.planned.graph.names), len(topology.sites), known
        )
        for query, decision in zip(queries, chosen.decisions, strict=True)
    }
    console.print(_deployments(chosen), _searches(chosen, limits))
    if network.currency is not None:
        console.print(f"{network.currency} {monthly(chosen.landscape.cost):,.2f} a month", highlight=False)
    if arguments.compare:
        others = [name for name in COMPARED if name != arguments.planner]
        runs = [chosen]
        runs += [deploy(planner_named(name, topology, options), network.landscape, queries) for name in others]
        console.print(_comparison(sorted(runs, key=lambda one: one.landscape.cost)))
    if arguments.json is not None:
        deployments = [asdict(decision.deployment) for decision in chosen.decisions]
        with writing(arguments.json):
            arguments.json.write_text(json.dumps(deployments, indent=2), encoding="utf-8")
        console.print(f"deployments written to {arguments.json}", highlight=False)
    if arguments.picture is not None:
        _draw(chosen, arguments.picture)
        console.print(f"picture written to {arguments.picture}", highlight=False)
    wrong = [complaint for query in queries for complaint in complaints(chosen.landscape, query)]
    for complaint in wrong:
        console.print(f"wrong: {complaint}", highlight=False)
    return 1 if wrong else 0


def _draw(chosen: Run, path: Path) -> None:
    from anabranch.place.picture import save  # Imported here because matplotlib takes a second to load.

    with writing(path):
        save(chosen.landscape, path, f"{chosen.planner}: {len(chosen.decisions)} queries")


def _deployments(chosen: Run) -> Table:
    table = Table(title=f"{chosen.planner}: cost in bytes a second times link cost")
    for column in ("query", "sink", "plan", "joins at", "uses", "relaxes"):
        table.add_column(column, overflow="fold")
    for column in ("cost", "by reuse", "by new joins"):
        table.add_column(column, justify="right", overflow="fold")
    for decision in chosen.decisions:
        one = decision.deployment
        table.add_row(
            one.query,
            one.sink,
            escape(one.plan),
            ", ".join(operator.site for operator in one.operators) or "-",
            ", ".join(one.reused) or "-",
            ", ".join(relaxed.operator for relaxed in one.relaxed) or "-",
            *(_number(cost) for cost in (one.cost, one.cost_by_reuse, one.cost_by_new)),
        )
    table.add_section()
    table.add_row("all", "", "", f"{chosen.joins} joins", "", "", f"{chosen.landscape.cost:,.0f}")
    return table


def _searches(chosen: Run, limits: Mapping[str, Bounds]) -> Table:
    table = Table(title="search of each query, with the paper's bounds")
    table.add_column("query", overflow="fold")
    columns = ["plans considered", "all plans (Lemma 1)"]
    if any(one.most_plans is not None for one in limits.values()):
        columns.append("at most (Theorems 2, 4)")
    if any(one.most_loss is not None for one in limits.values()):
        columns.append("cost above optimum, at most (Theorem 3)")
    for column in columns:
        table.add_column(column, justify="right", overflow="fold")
    for decision in chosen.decisions:
        one = decision.deployment
        limit = limits[one.query]
        numbers = (one.considered, limit.all_plans, limit.most_plans, limit.most_loss)
        table.add_row(one.query, *(_number(number) for number in numbers[: len(columns)]))
    table.add_section()
    table.add_row("all", f"{chosen.considered:,}")
    return table


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:,.0f}"


def _comparison(runs: list[Run]) -> Table:
    table = Table(title="all planners, cheapest first")
    for column in ("planner", "cost", "joins", "filters", "reused", "plans considered", "evaluated", "seconds"):
        table.add_column(column, justify="left" if column == "planner" else "right")
    for one in runs:
        table.add_row(
            one.planner,
            f"{one.landscape.cost:,.0f}",
            str(one.joins),
            str(one.filters),
            str(sum(len(decision.deployment.reused) for decision in one.decisions)),
            f"{one.considered:,}",
            f"{one.evaluated:,}",
            f"{one.seconds:.2f}",
        )
    return table
