"""The web application of a console: one page, its data, metrics, and actions behind a token.

Invariant: nothing changes without the token. Requests for another host name are refused, so that a foreign web page
cannot read the console through DNS rebinding. Pages load nothing from other servers.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from anabranch.console.metrics import metrics_text
from anabranch.console.pictures import in_page_colours, live_picture, plan_picture
from anabranch.console.runs import Control, StoredRun
from anabranch.console.watching import Watch, WatchedRun
from anabranch.errors import AnabranchError

HEARTBEAT_SECONDS = 10.0
_LARGEST_BODY = 1 << 16


class _Refused(Exception):
    """A request that gets an error response."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True)
class Page:
    """The page with all styles and scripts, and the content security policy that allows only those."""

    html: str
    policy: str


@cache
def page() -> Page:
    """Inlines styles and scripts into the page."""
    folder = files("anabranch.console") / "page"
    read = {
        name: (folder / name).read_text("utf-8")
        for name in ("index.html", "console.css", "console.js", "vendor/uPlot.iife.min.js", "vendor/uPlot.min.css")
    }
    scripts = (read["vendor/uPlot.iife.min.js"], read["console.js"])
    html = (
        read["index.html"]
        .replace("/*styles*/", read["vendor/uPlot.min.css"] + read["console.css"])
        .replace("<!--scripts-->", "".join(f"<script>{script}</script>" for script in scripts))
    )
    hashes = " ".join(
        f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'" for script in scripts
    )
    policy = (
        f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; connect-src 'self'; img-src data:; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    return Page(html, policy)


def make_app(watch: Watch, token: str | None, hosts: list[str]) -> Starlette:
    """Returns the application; `hosts` are the accepted host names."""
    pages = _Pages(watch, token)
    routes = [
        Route("/", pages.home),
        Route("/metrics", pages.metrics),
        Route("/api/runs", pages.runs),
        Route("/api/runs/{run}/events", pages.events),
        Route("/api/runs/{run}/plan.svg", pages.picture),
        Route("/api/runs/{run}/{action}", pages.act, methods=["POST"]),
    ]
    guard = Middleware(TrustedHostMiddleware, allowed_hosts=hosts)
    return Starlette(
        routes=routes, middleware=[guard], exception_handlers={_Refused: _refused, AnabranchError: _own_error}
    )


def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, _Refused)
    return JSONResponse({"error": str(error)}, error.status)


def _own_error(request: Request, error: Exception) -> Response:
    return JSONResponse({"error": str(error)}, 400)


class _Pages:
    def __init__(self, watch: Watch, token: str | None) -> None:
        self._watch = watch
        self._token = token
        self._pictures: dict[tuple[str, str, int], str] = {}

    async def home(self, request: Request) -> Response:
        headers = {"Content-Security-Policy": page().policy, "X-Content-Type-Options": "nosniff"}
        return HTMLResponse(page().html, headers={**headers, "Cache-Control": "no-store"})

    async def metrics(self, request: Request) -> Response:
        text = await asyncio.to_thread(metrics_text, self._watch.runs)
        return PlainTextResponse(text, media_type="text/plain; version=0.0.4; charset=utf-8")

    async def runs(self, request: Request) -> Response:
        return JSONResponse({"runs": [_run_json(run) for run in self._watch.runs], "canAct": self._token is not None})

    async def events(self, request: Request) -> Response:
        run = self._run(request)
        headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        return StreamingResponse(_events(run), media_type="text/event-stream", headers=headers)

    async def picture(self, request: Request) -> Response:
        run = self._run(request)
        queries, name = run.run.queries, request.query_params.get("query", "")
        if queries is None:
            raise _Refused(404, "a stored run has no picture: the checkpoint has the text of its plans only")
        plan = request.query_params.get("plan")
        if plan is not None:
            return _svg(in_page_colours(await asyncio.to_thread(plan_picture, queries, name, plan)))
        recent, seconds = run.minute()
        if not recent:
            raise _Refused(404, "no batch has run yet")
        key = run.run.id, name, run.batch
        if key not in self._pictures:
            drawn = await asyncio.to_thread(live_picture, queries, name, recent, seconds)
            self._pictures = {key: in_page_colours(drawn)}
        return _svg(self._pictures[key])

    async def act(self, request: Request) -> Response:
        self._require_token(request)
        run = self._run(request)
        action = request.path_params["action"]
        if action not in ACTIONS:
            raise _Refused(404, f"there is no action '{action}'; there are {', '.join(sorted(ACTIONS))}")
        control = run.run.control
        if control is None:
            raise _Refused(409, "the run has ended, so nothing can change")
        wanted = await _body(request)
        try:
            await asyncio.to_thread(ACTIONS[action], control, wanted)
        except (KeyError, TypeError, ValueError) as error:
            raise _Refused(400, f"action '{action}' lacks an entry or has a wrong one: {error}") from error
        return JSONResponse({"done": action})

    def _run(self, request: Request) -> WatchedRun:
        run = self._watch.find(request.path_params["run"])
        if run is None:
            raise _Refused(404, "there is no such run; it may have ended before the console was opened")
        return run

    def _require_token(self, request: Request) -> None:
        if self._token is None:
            raise _Refused(403, "the console is read-only: it was started without a token")
        kind, _, given = request.headers.get("authorization", "").partition(" ")
        if kind.lower() != "bearer" or not hmac.compare_digest(given.encode(), self._token.encode()):
            raise _Refused(401, "the token is wrong")


async def _body(request: Request) -> Mapping[str, Any]:
    if int(request.headers.get("content-length") or 0) > _LARGEST_BODY:
        raise _Refused(413, "the request is too large")
    try:
        value = json.loads(await request.body() or b"{}")
    except ValueError as error:
        raise _Refused(400, "the body is not JSON") from error
    if not isinstance(value, dict):
        raise _Refused(400, "the body is not a JSON object")
    return value


def _migrate(control: Control, wanted: Mapping[str, Any]) -> None:
    control.migrate(
        str(wanted["plan"]),
        str(wanted.get("strategy") or "auto"),
        wanted.get("slots"),
        query=wanted.get("query") or None,
    )


ACTIONS: Mapping[str, Callable[[Control, Mapping[str, Any]], None]] = {
    "migrate": _migrate,
    "abort": lambda control, wanted: control.abortMigration(wanted.get("query") or None),
    "freeze": lambda control, wanted: control.freeze(True),
    "thaw": lambda control, wanted: control.freeze(False),
    "rebalance": lambda control, wanted: control.rebalance(),
    "move": lambda control, wanted: control.move([int(group) for group in wanted["groups"]], int(wanted["to"])),
    "scale": lambda control, wanted: control.scale(int(wanted["slots"])),
    "split": lambda control, wanted: control.split(wanted["value"], key=wanted.get("key") or None),
    "unite": lambda control, wanted: control.unite(wanted["value"], wanted.get("key") or None),
}
"""The actions available with the token."""


def _svg(text: str) -> Response:
    return Response(text, media_type="image/svg+xml", headers={"Content-Security-Policy": "default-src 'none'"})


def _run_json(run: WatchedRun) -> dict[str, Any]:
    queries, stored = run.run.queries, run.run
    return {
        "id": run.run.id,
        "title": run.run.title,
        "status": run.status,
        "text": run.run.text,
        "queries": [] if queries is None else list(queries.names),
        "hasPicture": queries is not None,
        "canChange": run.run.control is not None,
        "facts": stored.facts() if isinstance(stored, StoredRun) else {},
    }


async def _events(run: WatchedRun) -> AsyncIterator[str]:
    """Sends the full state, then updates; a periodic comment keeps the connection alive.

    The server detects a disconnected viewer and closes the generator.
    """
    loop, news = asyncio.get_running_loop(), asyncio.Event()
    end = run.on_news(lambda: _wake(loop, news))
    batch, version = -1, -1
    try:
        while True:
            news.clear()
            if run.version != version:
                version, batch, text = run.news(batch)
                yield f"data: {text}\n\n"
            else:
                yield ": alive\n\n"
            with suppress(TimeoutError):
                await asyncio.wait_for(news.wait(), HEARTBEAT_SECONDS)
    finally:
        end()


def _wake(loop: asyncio.AbstractEventLoop, news: asyncio.Event) -> None:
    with suppress(RuntimeError):  # the console was closed
        loop.call_soon_threadsafe(news.set)
