"""A page for the browser: a map of the sites with the traffic of their links, and the tables of `deploy status`.

The page shows and changes nothing, and is drawn from the files of the deployment at every request. It listens on the
loopback address unless another is given, and refuses requests for other host names there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from html import escape
from typing import Any

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route

from anabranch.place.picture import svg
from anabranch.place.topology import Topology
from anabranch.sites.root import Orders, Root
from anabranch.sites.view import LINKS, OPERATORS, TEXTS, measured_landscape, plain_status, status_rows, troubles

EVERY = 5
"""Seconds after which the browser asks again."""
LOOPBACK = ("127.0.0.1", "localhost", "[::1]")
NUMBER = ' class="n"'
_STYLE = """
body { font: 14px system-ui, sans-serif; margin: 2em auto; max-width: 75em; padding: 0 1em; color: #222; }
table { border-collapse: collapse; margin: 0 0 2em; } td, th { padding: .2em .8em; border-bottom: 1px solid #ddd; }
th { text-align: left; font-weight: 600; } td.n { text-align: right; font-variant-numeric: tabular-nums; }
.trouble { background: #fdecea; padding: .4em .8em; margin: .3em 0; } img { width: 100%; max-height: 34em; }
"""


def page_of(root: Root, topology: Callable[[], Topology], hosts: Iterable[str] = LOOPBACK) -> Starlette:
    """Returns the application of a deployment's page."""

    def orders() -> Orders:
        found = root.orders()
        assert found is not None, "a page is opened for a deployment"
        return found

    def show(request: Request) -> Response:
        return HTMLResponse(_html(plain_status(root, orders()), troubles(root, orders())))

    def picture(request: Request) -> Response:
        drawn = svg(measured_landscape(root, orders(), topology()), "bytes per second of event time, as measured")
        return Response(drawn, media_type="image/svg+xml")

    def status(request: Request) -> Response:
        return JSONResponse(plain_status(root, orders()))

    routes = [Route("/", show), Route("/network.svg", picture), Route("/status.json", status)]
    return Starlette(routes=routes, middleware=[Middleware(TrustedHostMiddleware, allowed_hosts=list(hosts))])


def _html(status: dict[str, Any], found: list[str]) -> str:
    waits = f"waiting for {'; '.join(status['waits'])}" if status["waits"] else "no change is in progress"
    operators, links = status_rows(status)
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><meta http-equiv="refresh" content="{EVERY}">'
        f"<title>deployment</title><style>{_STYLE}</style><h1>Deployment, version {status['version']}</h1>"
        f"<p>{escape(waits)}</p>"
        + "".join(f'<p class="trouble">{escape(each)}</p>' for each in found)
        + '<img src="network.svg" alt="the sites and their links">'
        + _table(OPERATORS, operators)
        + _table(LINKS, links)
    )


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    def cell(number: int, value: str) -> str:
        return f"<td{'' if number < TEXTS else NUMBER}>{escape(value)}</td>"

    body = "".join(f"<tr>{''.join(cell(*each) for each in enumerate(row))}</tr>" for row in rows)
    return f"<table><tr>{''.join(f'<th>{escape(name)}</th>' for name in head)}</tr>{body}</table>"
