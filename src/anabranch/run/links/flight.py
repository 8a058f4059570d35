"""Links over TCP: a site keeps the links of its operators in a folder of its own and serves them by Arrow Flight.

`LinkServer` serves the folder; `FlightLink` is its client. Each operation of the protocol in `link` is one call of the
server, so the guarantees are those of the folder: rows are kept until every reader has acknowledged them, also after
the producer has ended. A reader requests the entries that it needs, so it never receives more. If a call fails, its
batch is repeated, and the next call opens a new connection. Rows are sent as compressed Arrow IPC.

Calls carry a shared secret, the environment variable `ANABRANCH_LINKS_SECRET`. With `ANABRANCH_LINKS_CERTIFICATE` and
`ANABRANCH_LINKS_KEY` (files in PEM) a server uses TLS; clients verify it by `ANABRANCH_LINKS_AUTHORITY`.

The server also says how far a gate of its site is, because the site may keep checkpoints where nobody else reads them.

Limit: without a secret a server listens on this machine only.
"""

from __future__ import annotations

import hmac
import json
import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from functools import lru_cache
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.flight as flight

from anabranch.errors import LinkClosed, LinkError
from anabranch.run.links.folder import FolderLink
from anabranch.run.links.link import LIMIT, Entry, LinkStatus, Part

SCHEMES = ("grpc://", "grpc+tls://")
SECRET, CERTIFICATE = "ANABRANCH_LINKS_SECRET", "ANABRANCH_LINKS_CERTIFICATE"
KEY, AUTHORITY = "ANABRANCH_LINKS_KEY", "ANABRANCH_LINKS_AUTHORITY"
LOOPBACK = ("127.0.0.1", "localhost", "::1")
ANSWER_WITHIN, ROWS_WITHIN = 5.0, 60.0
"""The timeouts in seconds of a call without rows, and of one with rows."""
_HEADER = "authorization"
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.\-]*")
_OPERATIONS = ("staged", "append", "last", "entries", "check", "ack", "trim", "cut", "until", "status", "remove")
_COMPRESSED = pa.ipc.IpcWriteOptions(compression="lz4")


# --- the reader's side, or any other process ----------------------------------------------------------------------


class FlightLink:
    """The log of one derived stream at another site."""

    def __init__(self, location: str, name: str, limit: int = LIMIT) -> None:
        self.name = name
        self.limit = limit
        self._location = location
        self._client: Any = _client(location, os.getpid())

    def write(self, batch: int, attempt: str, number: int, rows: pa.Table, newest: int | None) -> Part:
        part = Part.named(batch, attempt, number, rows, newest)
        command = self._request(batch=batch, attempt=attempt, number=number, newest=newest)
        with self._named():
            descriptor = flight.FlightDescriptor.for_command(json.dumps(command).encode())
            writer, answer = self._client.do_put(descriptor, rows.schema, options=_call_options(ROWS_WITHIN))
            with writer:
                writer.write_table(rows)
                writer.done_writing()
                written = answer.read()
            if written is None:
                raise LinkError(f"link '{self.name}' did not confirm rows of batch {batch}")
        return part

    def staged(self, batch: int, attempt: str) -> list[Part]:
        return [Part.parse(name) for name in self._ask("staged", batch=batch, attempt=attempt)]

    def append(self, batch: int, parts: Sequence[Part], tick: int) -> None:
        self._ask("append", batch=batch, parts=[part.name for part in parts], tick=tick)

    def last(self) -> int:
        return int(self._ask("last"))

    def entries(self, after: int, to: int) -> list[Entry]:
        return [Entry.from_json(value) for value in self._ask("entries", after=after, to=to)]

    def read(self, entry: Entry) -> list[pa.Table]:
        self._ask("check")
        tables = []
        for part in entry.parts:
            ticket = flight.Ticket(json.dumps(self._request(part=part.name)).encode())
            with self._named():
                tables.append(self._client.do_get(ticket, options=_call_options(ROWS_WITHIN)).read_all())
        return tables

    def ack(self, reader: str, batch: int) -> None:
        self._ask("ack", reader=reader, batch=batch)

    def trim(self) -> None:
        self._ask("trim")

    def cut(self, until: int) -> bool:
        return bool(self._ask("cut", until=until))

    def until(self) -> int | None:
        found = self._ask("until")
        return None if found is None else int(found)

    def status(self) -> LinkStatus:
        return LinkStatus(**self._ask("status"))

    def remove(self) -> bool:
        return bool(self._ask("remove"))

    def newest(self) -> int | None:
        """Returns the newest event time that the gate with this checkpoint has committed; None before the first row."""
        found = self._ask("newest")
        return None if found is None else int(found)

    def _request(self, **details: Any) -> dict[str, Any]:
        return {"link": self.name, "limit": self.limit, **details}

    def _ask(self, operation: str, **details: Any) -> Any:
        action = flight.Action(operation, json.dumps(self._request(**details)).encode())
        with self._named():
            (result,) = self._client.do_action(action, options=_call_options(ANSWER_WITHIN))
        answer = json.loads(result.body.to_pybytes())
        if "error" in answer:
            kind = LinkClosed if answer["closed"] else LinkError
            raise kind(answer["error"], detail=answer["detail"], hint=answer["hint"])
        return answer["value"]

    @contextmanager
    def _named(self) -> Iterator[None]:
        try:
            yield
        except flight.FlightUnauthenticatedError as error:
            raise LinkError(
                f"link '{self.name}' at '{self._location}' refuses the secret",
                hint=f"set the environment variable {SECRET} to the same value at all sites",
            ) from error
        except (flight.FlightError, pa.ArrowException, OSError) as error:
            _client.cache_clear()
            raise LinkError(
                f"link '{self.name}' at '{self._location}' cannot be read or written",
                detail=str(error).partition(". Detail:")[0].partition(". gRPC client debug")[0],
                hint="check that its site runs and can be reached; the batch is not committed and will be repeated",
            ) from error


@lru_cache(maxsize=64)
def _client(location: str, process: int) -> Any:
    """Returns the connection of this process to a server; a forked process must not use that of its parent."""
    options = {"tls_root_certs": _file(AUTHORITY)} if location.startswith("grpc+tls") else {}
    return flight.connect(location, **options)


def _call_options(timeout: float) -> Any:
    headers = [(_HEADER.encode(), _token().encode())]
    return flight.FlightCallOptions(timeout=timeout, write_options=_COMPRESSED, headers=headers)


def _token() -> str:
    return f"Bearer {os.environ.get(SECRET, '')}"


def _file(variable: str) -> bytes:
    path = os.environ.get(variable)
    if path is None:
        raise LinkError(f"a link with TLS needs the environment variable '{variable}'", hint="the path of a PEM file")
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise LinkError(f"file '{path}' of '{variable}' cannot be read", detail=str(error)) from error


# --- the producer's side ------------------------------------------------------------------------------------------


class _Checking(flight.ServerMiddlewareFactory):
    """Refuses calls without the secret."""

    def start_call(self, info: Any, headers: Any) -> None:
        given = (headers.get(_HEADER) or [""])[0]
        if not hmac.compare_digest(given.encode(), _token().encode()):
            raise flight.FlightUnauthenticatedError("the secret is not that of this site")


class LinkServer(flight.FlightServerBase):
    """Serves the links in a folder until `shutdown`; port 0 takes any that is free.

    `newest` returns the newest event time in a checkpoint of the site.
    """

    def __init__(
        self,
        folder: str,
        host: str = "127.0.0.1",
        port: int = 0,
        newest: Callable[[str], int | None] = lambda checkpoint: None,
    ) -> None:
        if SECRET not in os.environ and host not in LOOPBACK:
            raise LinkError(
                f"links cannot be served at '{host}' without a secret",
                hint=f"set the environment variable {SECRET} to the same value at all sites",
            )
        is_secure = CERTIFICATE in os.environ
        scheme = "grpc+tls" if is_secure else "grpc"
        certificates = [(_file(CERTIFICATE), _file(KEY))] if is_secure else None
        self._folder, self._newest = folder, newest
        try:
            super().__init__(
                f"{scheme}://{host}:{port}", tls_certificates=certificates, middleware={"secret": _Checking()}
            )
        except (pa.ArrowException, OSError) as error:
            raise LinkError(f"links cannot be served at '{host}:{port}'", detail=str(error)) from error
        self.location = f"{scheme}://{host}:{self.port}"

    def do_action(self, context: Any, action: Any) -> Iterator[Any]:
        request = json.loads(action.body.to_pybytes())
        try:
            if action.type not in (*_OPERATIONS, "newest"):
                raise LinkError(f"'{action.type}' is not an operation of a link")
            is_asked = action.type == "newest"
            name = _checked(request["link"])
            value = self._newest(name) if is_asked else _performed(self._link(request), action.type, request)
            answer = {"value": value}
        except LinkError as error:
            answer = {
                "error": error.message,
                "detail": error.detail,
                "hint": error.hint,
                "closed": isinstance(error, LinkClosed),
            }
        yield flight.Result(json.dumps(answer).encode())

    def do_put(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
        request = json.loads(descriptor.command)
        part = self._link(request).write(
            request["batch"], request["attempt"], request["number"], reader.read_all(), request["newest"]
        )
        writer.write(part.name.encode())

    def do_get(self, context: Any, ticket: Any) -> Any:
        request = json.loads(ticket.ticket)
        part = Part.parse(_checked(request["part"]))
        (rows,) = self._link(request).read(Entry(0, 0, (part,)))
        return flight.RecordBatchStream(rows, options=_COMPRESSED)

    def _link(self, request: dict[str, Any]) -> FolderLink:
        return FolderLink(self._folder, _checked(request["link"]), request["limit"])


def _checked(name: str) -> str:
    """Refuses a name that is not valid for a link or part, because it is used as a file name."""
    if not _NAME.fullmatch(name):
        raise LinkError(f"'{name}' is not the name of a link")
    return name


def _performed(link: FolderLink, operation: str, request: dict[str, Any]) -> Any:
    """Performs an operation; returns a value that can be written as JSON."""
    match operation:
        case "staged":
            return [part.name for part in link.staged(request["batch"], _checked(request["attempt"]))]
        case "append":
            parts = [Part.parse(_checked(name)) for name in request["parts"]]
            return link.append(request["batch"], parts, request["tick"])
        case "entries":
            return [entry.to_json() for entry in link.entries(request["after"], request["to"])]
        case "check":
            return link.refuse_closed()
        case "ack":
            return link.ack(_checked(request["reader"]), request["batch"])
        case "cut":
            return link.cut(request["until"])
        case "status":
            return asdict(link.status())
        case _:
            return getattr(link, operation)()
