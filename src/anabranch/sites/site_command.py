"""The command `anabranch site NAME`; it needs neither the planners nor, at a light site, Spark."""

from __future__ import annotations

import argparse
import os
import signal
from typing import TYPE_CHECKING, Any

from rich.console import Console

from anabranch.errors import LinkError, SiteError, SpecError
from anabranch.settings.commands import add_command
from anabranch.sites.root import Root
from anabranch.sites.site import SITE_SETTINGS, Site

if TYPE_CHECKING:
    from anabranch.settings.commands import Commands


def add_arguments(commands: Commands) -> None:
    """Adds `site`."""
    parser = add_command(
        commands,
        "site",
        "run the operators of one site of a deployment",
        """
        anabranch site hall-a --root /srv/airline
        anabranch site hall-a --root /srv/airline --store /var/lib/links --listen hall-a:7070     with --links sites
        anabranch site hall-a --root /srv/airline --master spark://hall-a:7077 --conf spark.driver.memory=2g
        """,
    )
    parser.add_argument("name", help="the name of the site in the network file")
    parser.add_argument("--root", required=True, metavar="DIR", help="the folder of the deployment")
    parser.add_argument("--master", default="local[1]", metavar="URL", help="the Spark master (default: local[1])")
    parser.add_argument("--conf", action="append", default=[], metavar="KEY=VALUE", help="a setting of Spark")
    parser.add_argument(
        "--store", metavar="DIR", help="the folder for links that the site keeps (default: in the root)"
    )
    parser.add_argument(
        "--checkpoints",
        metavar="DIR",
        help="the folder for checkpoints, for all machines of the site (with --links sites; default: in the root)",
    )
    parser.add_argument(
        "--listen", default="127.0.0.1:0", metavar="HOST:PORT", help="where the site serves its links; port 0: any"
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Runs a site until its deployment is stopped."""
    listen = _address(arguments.listen)
    root = Root(arguments.root)
    orders = root.orders()
    if orders is not None and arguments.name not in {spec.site for spec in orders.wanted.operators.values()}:
        known = sorted({spec.site for spec in orders.wanted.operators.values()})
        Console(stderr=True).print(
            f"no operator is placed at '{arguments.name}' yet; operators are at {', '.join(known)}"
        )
    root.lease(f"site-{arguments.name}").refuse_living()
    settings = dict(_pair(text) for text in arguments.conf)
    opened: list[Any] = []

    def session() -> Any:
        """Opens the Spark session when the first operator needs it."""
        if not opened:
            from anabranch.spark.session import open_session  # Imported here because a light site needs no Spark.

            title = f"anabranch site {arguments.name}"
            opened.append(open_session(arguments.master, {"spark.app.name": title, **SITE_SETTINGS, **settings}))
        return opened[0]

    is_ended = False

    def end(*_: object) -> None:
        nonlocal is_ended
        is_ended = True

    signal.signal(signal.SIGTERM, end)
    signal.signal(signal.SIGINT, end)
    try:
        own = None if arguments.checkpoints is None else os.path.abspath(arguments.checkpoints)
        site = Site(root, arguments.name, session, store=arguments.store, listen=listen, checkpoints=own)
        site.run(lambda: is_ended)
    except (LinkError, SiteError) as error:
        # A hanging query would prevent Spark, and so this process, from exiting.
        Console(stderr=True).print(f"error: {error}", highlight=False)
        os._exit(1)
    for spark in opened:
        spark.stop()
    return 0


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not host or not port.isdigit():
        raise SpecError(f"option '--listen' is '{text}'", hint="write HOST:PORT, such as hall-a:7070")
    return host, int(port)


def _pair(text: str) -> tuple[str, str]:
    key, sign, value = text.partition("=")
    if not sign:
        raise SpecError(f"option '--conf' is '{text}'", hint="write KEY=VALUE")
    return key, value
