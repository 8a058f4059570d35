"""The commands that change the running queries: `anabranch add`, `remove`, `reload` and `set`.

They send a request to the driver of a running `anabranch run` through its checkpoint and wait for the reply. They print
the event time from which an added query produces results. Limit: they need neither Spark nor the streams, so the driver
checks the queries.
"""

from __future__ import annotations

import argparse
import datetime
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from anabranch.checkpoint.examine import opened
from anabranch.errors import SpecError
from anabranch.run.control import request
from anabranch.settings.commands import add_command
from anabranch.spec.file import load, parse, parse_queries, read_text

if TYPE_CHECKING:
    from anabranch.settings.commands import Commands

ADD, REMOVE, RELOAD, SET, FINISH = "add", "remove", "reload", "set", "finish"
_Q = TypeVar("_Q")


def add_arguments(commands: Commands) -> None:
    """Adds the four commands."""
    command = add_command(
        commands,
        ADD,
        "add queries to the running ones, which miss no batch",
        """
        anabranch add checkpoint more.yaml               all queries of the file
        anabranch add checkpoint more.yaml audits        one of them
        anabranch add spec.yaml more.yaml                the run of that spec

        more.yaml:

        queries:
          audits: {query: SELECT …, sink: {format: parquet, path: out/audits}}
        """,
    )
    _add_run(command)
    command.add_argument("file", type=Path, metavar="FILE.yaml", help="a file with 'queries', over streams of the run")
    command.add_argument("names", nargs="*", metavar="NAME", help="the queries of the file to add (default: all)")
    command.set_defaults(run=add)

    command = add_command(
        commands,
        REMOVE,
        "remove queries from the running ones, which miss no batch",
        """
        anabranch remove checkpoint alerts
        anabranch remove spec.yaml alerts audits
        """,
    )
    _add_run(command)
    command.add_argument("names", nargs="+", metavar="NAME", help="the queries to remove")
    command.set_defaults(run=remove)

    command = add_command(
        commands,
        RELOAD,
        "apply the changed file of a running spec",
        """
        anabranch reload spec.yaml                       after you changed its 'queries'
        """,
    )
    command.add_argument("spec", type=Path, metavar="SPEC.yaml", help="the spec file; its checkpoint names the run")
    command.set_defaults(run=reload)

    command = add_command(
        commands,
        SET,
        "change policy, objective or limits of a running query that adapts",
        """
        anabranch set checkpoint --objective memory --memory "2 GB"
        anabranch set spec.yaml --query alerts --policy periodic --every "10 seconds"
        """,
    )
    _add_run(command)
    command.add_argument("--query", metavar="NAME", help="one of the queries that run together")
    command.add_argument("--policy", metavar="POLICY", help="when to look for a better plan, such as periodic")
    command.add_argument("--every", metavar="INTERVAL", help="of the policy: batches, or a duration of the streams")
    command.add_argument("--objective", metavar="O", help="qualified, cpu, memory, rate@<time> or first@<results>")
    command.add_argument("--cpu", type=float, metavar="CORES", help="cores per slot")
    command.add_argument("--memory", metavar="BYTES", help="bytes per slot, such as '500 MB'")
    command.set_defaults(run=set_entries)


def _add_run(command: argparse.ArgumentParser) -> None:
    command.add_argument("of", metavar="CHECKPOINT", help="the checkpoint folder of the run, or its spec file")


def add(arguments: argparse.Namespace) -> int:
    """Requests that queries be added."""
    text, folder = read_text(arguments.file)
    only(parse_queries(text, folder=folder), arguments.names)
    return _ask(arguments.of, ADD, {"text": text, "folder": str(folder), "names": arguments.names})


def remove(arguments: argparse.Namespace) -> int:
    """Requests that queries be removed."""
    return _ask(arguments.of, REMOVE, {"names": arguments.names})


def reload(arguments: argparse.Namespace) -> int:
    """Requests that the queries become those of the spec."""
    text, folder = read_text(arguments.spec)
    return _ask(parse(text, folder=folder).checkpoint, RELOAD, {"text": text, "folder": str(folder)})


def set_entries(arguments: argparse.Namespace) -> int:
    """Requests another policy, objective or limits of a query."""
    every = arguments.every
    adapt = _given(policy=arguments.policy, every=int(every) if every is not None and every.isdecimal() else every)
    limits = _given(cpu=arguments.cpu, memory=arguments.memory)
    wanted = _given(adapt=adapt or None, objective=arguments.objective, limits=limits or None)
    if not wanted:
        raise SpecError("nothing to set", hint="give --policy, --every, --objective, --cpu or --memory")
    _request(arguments.of, SET, {"settings": wanted, "query": arguments.query})
    print("set; the next decision uses it, and a restart keeps it")
    return 0


def _given(**entries: Any) -> dict[str, Any]:
    return {name: value for name, value in entries.items() if value is not None}


def _ask(run: str, kind: str, content: Mapping[str, Any]) -> int:
    done = _request(run, kind, content)
    for line in change_lines(done["joined"], done["left"]):
        print(line)
    return 0


def _request(run: str, kind: str, content: Mapping[str, Any]) -> Mapping[str, Any]:
    place = load(run).checkpoint if Path(run).suffix in (".yaml", ".yml") else run
    return request(opened(place)[0], kind, content)


def only(queries: Mapping[str, _Q], names: Collection[str]) -> dict[str, _Q]:
    """Returns the named queries, or all if no names are given."""
    if unknown := [name for name in names if name not in queries]:
        raise SpecError(f"the file has no query '{unknown[0]}'", hint=f"it has {', '.join(queries)}")
    return {name: query for name, query in queries.items() if not names or name in names}


def change_lines(joined: Mapping[str, int | None], left: Collection[str]) -> list[str]:
    """Returns a readable summary of a change."""
    lines = [f"{name} left" for name in left]
    for name, micros in joined.items():
        since = None if micros is None else datetime.datetime.fromtimestamp(micros / 1e6, datetime.UTC)
        when = "" if since is None else f" from {since.isoformat(sep=' ')} on"
        lines.append(f"{name or 'the query'} joined; its answer is complete{when}")
    return lines or ["no query joined or left"]
