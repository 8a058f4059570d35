"""Serves a console from a thread of this process.

The console listens on the loopback address unless another is given. Without a port it takes the first free one from
4060, like Spark's UI from 4040.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Callable, Iterable
from threading import Thread

from anabranch.console.runs import Run
from anabranch.console.watching import Watch, wall_clock
from anabranch.errors import HostError, installation

LOOPBACK = "127.0.0.1"
FIRST_PORT, MOST_PORTS = 4060, 32
TOKEN = "ANABRANCH_CONSOLE_TOKEN"
"""The environment variable with the token of consoles started by commands."""


class Console:
    """A running console; `url` is its address."""

    def __init__(
        self,
        runs: Callable[[], Iterable[Run]],
        *,
        host: str = LOOPBACK,
        port: int | None = None,
        token: str | None = None,
        now: Callable[[], float] = wall_clock,
    ) -> None:
        try:
            import uvicorn

            from anabranch.console.web import make_app
        except ImportError as error:
            raise HostError(
                "the console needs packages that are not installed",
                detail=str(error),
                hint=installation("console"),
            ) from error
        if token is not None and not token:
            raise HostError("the token of the console is empty", hint="give a token, or none for a read-only console")
        self._socket = _listen(host, port)
        self.host, self.port = host, int(self._socket.getsockname()[1])
        self._watch = Watch(runs, now)
        app = make_app(self._watch, token, _names(host))
        config = uvicorn.Config(
            app, log_level="critical", access_log=False, lifespan="off", timeout_graceful_shutdown=1
        )
        self._server = uvicorn.Server(config)
        self._thread = Thread(
            target=self._server.run, kwargs={"sockets": [self._socket]}, name="anabranch-console", daemon=True
        )
        self._thread.start()

    @property
    def url(self) -> str:
        shown = "127.0.0.1" if self.host in ("0.0.0.0", "::") else self.host
        return f"http://{f'[{shown}]' if ':' in shown else shown}:{self.port}/"

    @property
    def is_open_to_others(self) -> bool:
        """True when other machines can reach the console."""
        return not _is_loopback(self.host)

    def close(self) -> None:
        """Stops serving; queries are not affected."""
        self._server.should_exit = True
        self._thread.join(timeout=5)
        self._watch.close()
        self._socket.close()

    def __repr__(self) -> str:
        return f"Console({self.url})"

    def __enter__(self) -> Console:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _listen(host: str, port: int | None) -> socket.socket:
    ports = range(FIRST_PORT, FIRST_PORT + MOST_PORTS) if port is None else (port,)
    problem: OSError | None = None
    for each in ports:
        try:
            family = socket.AF_INET6 if ":" in host else socket.AF_INET
            listening = socket.socket(family, socket.SOCK_STREAM)
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listening.bind((host, each))
            listening.listen()  # immediately: until then another console may bind the same port
            return listening
        except (OSError, OverflowError) as error:
            listening.close()
            problem = error if isinstance(error, OSError) else OSError(str(error))
    where = f"port {port}" if port is not None else f"ports {FIRST_PORT} to {FIRST_PORT + MOST_PORTS - 1}"
    raise HostError(
        f"the console cannot listen on {where} of '{host}'",
        detail=str(problem),
        hint="name a free port: --console 4100, or console(port=4100)",
    )


def _names(host: str) -> list[str]:
    """Returns the accepted host names; any name if the console listens for other machines."""
    return ["127.0.0.1", "localhost", "[::1]"] if _is_loopback(host) else ["*"]


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
