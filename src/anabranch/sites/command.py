"""The command `anabranch deploy …`."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.live import Live

from anabranch.console.command import address
from anabranch.errors import SiteError, SpecError, installation
from anabranch.place.command import add_sizes, options_of
from anabranch.place.run import DEFAULT, PLANNERS
from anabranch.place.spec import load_network
from anabranch.place.topology import Topology
from anabranch.run.private import make_private
from anabranch.settings.commands import add_command, writing
from anabranch.sites.client import request
from anabranch.sites.controller import Controller, site_command
from anabranch.sites.files import load_files, require_sources
from anabranch.sites.plan_state import Planned
from anabranch.sites.root import Orders, Root
from anabranch.sites.view import measured_landscape, plain_status, status_table, troubles
from anabranch.sites.wanted import Wanted

if TYPE_CHECKING:
    from anabranch.settings.commands import Commands

AT_SITES = "sites"
"""The value of `--links` for links that the sites of their producers keep and serve."""
PAGE_PORT = 4070
"""The port of the page of a deployment."""
HEAP = "512m"
"""The default memory of a site's JVM."""


def add_arguments(commands: Commands) -> None:
    """Adds `deploy`; the parsed arguments have `run`, which returns the exit status."""
    parser = add_command(
        commands,
        "deploy",
        "run queries over a network of sites, and change them while they run",
        """
        anabranch deploy network.yaml queries.yaml --root /srv/airline --local   also starts the sites, on this machine
        anabranch deploy add more.yaml --root /srv/airline --dry-run             what that costs and moves
        anabranch deploy add more.yaml --root /srv/airline                       add the queries of a file
        anabranch deploy remove gate-17 --root /srv/airline
        anabranch deploy status --root /srv/airline --picture net.svg
        anabranch deploy console --root /srv/airline                             the same in the browser
        anabranch deploy replan --root /srv/airline                              by measured rates, if it pays
        anabranch deploy replan --root /srv/airline --without hall-a             as if a site were gone
        anabranch deploy network new.yaml --root /srv/airline                    other links, capacities or sites
        anabranch deploy stop --root /srv/airline

        Without --local, start the sites on their machines: anabranch site NAME --root DIR
        """,
    )
    parser.add_argument(
        "words", nargs="+", metavar="WORD", help="two files; or add, remove, status, console, replan, network or stop"
    )
    parser.add_argument("--root", required=True, metavar="DIR", help="the folder of the deployment")
    parser.add_argument("--local", action="store_true", help="start the sites as processes of this machine")
    parser.add_argument("--master", default="local[1]", metavar="URL", help="the Spark master of local sites")
    parser.add_argument("--memory", default=HEAP, metavar="SIZE", help=f"the heap of a local site (default: {HEAP})")
    parser.add_argument(
        "--links",
        metavar="PLACE",
        help="location of the links: a folder, redis://host:6379, or 'sites' for the sites of their producers",
    )
    parser.add_argument("--interval", type=float, default=0.5, metavar="SECONDS", help="between batches (default: 0.5)")
    parser.add_argument(
        "--limit", type=int, default=1 << 30, metavar="BYTES", help="what a link retains for its reader"
    )
    parser.add_argument("--planner", default=DEFAULT, choices=sorted(PLANNERS), help="which planner decides")
    add_sizes(parser)
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="the seed of random choices (default: 0)")
    parser.add_argument("--seconds", type=float, metavar="N", help="end after this long, with the local sites")
    parser.add_argument("--dry-run", action="store_true", help="show the effect of add, remove or replan only")
    parser.add_argument(
        "--replan", default="ask", choices=("ask", "auto"), help="whether the controller replans by itself when it pays"
    )
    parser.add_argument("--without", action="append", default=[], metavar="SITE", help="replan as if a site were gone")
    parser.add_argument("--picture", type=Path, metavar="FILE", help="draw the network with measured flows")
    parser.add_argument("--json", action="store_true", help="print the status as JSON")
    parser.add_argument(
        "--at", metavar="[HOST:]PORT", help="where 'console' listens (default: port 4070 of this machine)"
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Deploys, or sends a request to the running controller."""
    root = Root(arguments.root)
    words: list[str] = arguments.words
    asked: dict[str, Callable[[], int]] = {
        "add": lambda: _request(root, "add", file=str(_file(words, 2).resolve()), dry=arguments.dry_run),
        "remove": lambda: _request(root, "remove", query=_word(words, 2, "the name of a query"), dry=arguments.dry_run),
        "network": lambda: _request(root, "network", file=str(_file(words, 2).resolve())),
        "replan": lambda: _request(root, "replan", without=arguments.without, dry=arguments.dry_run),
        "status": lambda: _status(root, arguments),
        "console": lambda: _console(root, arguments.at or ""),
        "stop": lambda: _stop(root),
    }
    if arguments.dry_run and words[0] not in ("add", "remove", "replan"):
        raise SpecError(
            f"'deploy {words[0]}' has no dry run",
            hint="use --dry-run with add, remove or replan; plan a first deployment with 'anabranch place'",
        )
    if words[0] in asked and not (len(words) == 2 and Path(words[0]).is_file()):
        return asked[words[0]]()
    if len(words) != 2:
        raise SpecError(
            f"'deploy {' '.join(words)}' is not a command",
            hint="write two files, or one of add, remove, status, console, replan, network, stop",
        )
    return _deploy(root, Path(words[0]), Path(words[1]), arguments)


def _deploy(root: Root, network: Path, queries: Path, arguments: argparse.Namespace) -> int:
    files = load_files(network, queries)
    require_sources(files)
    console = Console()
    settings = Orders(
        Wanted(),
        place=root.place_at_sites if arguments.links == AT_SITES else arguments.links or root.default_place,
        interval=arguments.interval,
        limit=arguments.limit,
        runners=files.runners,
    )
    if arguments.links != AT_SITES:
        make_private(settings.place)
    options = options_of(arguments, files.network.landscape.topology, [each.query for each in files.queries])
    planned = Planned(files.network.landscape, planner=arguments.planner, options=options)
    command = site_command(root, arguments.master, {"spark.driver.memory": arguments.memory})
    replans = arguments.replan == "auto"
    with Controller(root, files.network, files.sources, str(network.resolve()), replans=replans) as controller:
        controller.begin(planned, files.queries, settings)
        started = time.monotonic()
        shown = 0
        with Live(console=console, auto_refresh=False, transient=False) as live:
            while arguments.seconds is None or time.monotonic() - started < arguments.seconds:
                if arguments.local:
                    with controller.surviving("start the sites"):
                        controller.keep_sites(command, Path(root.location) / "logs")
                controller.step()
                is_stopped = False
                with controller.surviving("show the deployment"):
                    orders = controller.orders
                    is_stopped = orders.wanted.is_stopped
                    if console.is_terminal:
                        live.update(status_table(root, orders), refresh=True)
                for line in controller.log[shown:]:
                    live.console.print(line, highlight=False)
                shown = len(controller.log)
                if is_stopped:
                    if not controller.await_sites():
                        raise SiteError("a site did not stop within a minute", hint="see its log in the root folder")
                    break
                time.sleep(0.5)
    return 0


def _request(root: Root, kind: str, **details: Any) -> int:
    console = Console()
    reply = request(root, kind, tell=lambda text: console.print(text, highlight=False), **details)
    console.print(reply, highlight=False)
    return 0


def _stop(root: Root) -> int:
    """Stops the deployment, even if no controller runs."""
    console = Console()
    if root.holder("controller") is not None:
        console.print(request(root, "stop"), highlight=False)
    else:
        orders = root.orders()
        if orders is None:
            raise SiteError(f"nothing is deployed in '{root.location}'")
        root.stop(orders)
    end = time.monotonic() + 120
    while sites := [name for name in root.sites_alive() if time.monotonic() < end]:
        console.print(f"waiting for {', '.join(sites)}", highlight=False)
        time.sleep(2)
    if left := root.sites_alive():
        raise SiteError(
            f"site '{left[0]}' does not respond", hint="end its process; its lease expires 15 seconds later"
        )
    console.print("stopped", highlight=False)
    return 0


def _status(root: Root, arguments: argparse.Namespace) -> int:
    orders = root.orders()
    if orders is None:
        raise SiteError(f"nothing is deployed in '{root.location}'", hint="start with 'anabranch deploy'")
    if arguments.json:
        Console(soft_wrap=True).print(json.dumps(plain_status(root, orders), indent=2), highlight=False)
    else:
        Console().print(status_table(root, orders))
    if arguments.picture is not None:
        _draw(root, orders, arguments.picture)
    found = troubles(root, orders)
    for trouble in found:
        Console(stderr=True, soft_wrap=True).print(trouble, highlight=False, markup=False)
    return 1 if found else 0


def _draw(root: Root, orders: Orders, path: Path) -> None:
    """Draws the network with the running operators and the measured flows."""
    from anabranch.place.picture import save  # Imported here because matplotlib takes a second to load.

    shown = measured_landscape(root, orders, _topology(root))
    with writing(path):
        save(shown, path, f"version {orders.wanted.version}, measured flows")


def _console(root: Root, at: str) -> int:
    """Serves the page of the deployment until it is interrupted."""
    if root.orders() is None:
        raise SiteError(f"nothing is deployed in '{root.location}'", hint="start with 'anabranch deploy'")
    host, port = address(at)
    try:
        import uvicorn

        from anabranch.sites.page import LOOPBACK, page_of  # Imported here because both need the extra 'console'.
    except ImportError as error:
        raise SiteError(
            "the page needs packages that are not installed", detail=str(error), hint=installation("console")
        ) from error
    app = page_of(root, lambda: _topology(root), LOOPBACK if host in ("127.0.0.1", "localhost", "::1") else ("*",))
    Console(stderr=True).print(f"the deployment is at http://{host}:{port or PAGE_PORT}/   (Ctrl-C ends the page)")
    uvicorn.run(app, host=host, port=port or PAGE_PORT, log_level="critical")
    return 0


def _topology(root: Root) -> Topology:
    plan = root.read("plan.json")
    if plan is None or not Path(plan["network"]).is_file():
        raise SiteError("the network file of the deployment cannot be read", hint="restore it at its place")
    return load_network(Path(plan["network"])).landscape.topology


def _file(words: list[str], count: int) -> Path:
    path = Path(_word(words, count, "a file"))
    if not path.is_file():
        raise SpecError(f"file '{path}' does not exist")
    return path


def _word(words: list[str], count: int, what: str) -> str:
    if len(words) != count:
        raise SpecError(f"'deploy {words[0]}' needs {what}", hint=f"write: anabranch deploy {words[0]} … --root DIR")
    return words[1]
