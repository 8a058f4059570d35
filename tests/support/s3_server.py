"""An S3 server on loopback, in a process of its own, that can answer badly; moto keeps the objects in memory.

A fault is applied to a number of requests whose method and path match, and then never again. Invariant: without faults
the answers are moto's; requests and the bytes of their answers are counted. Limit: for tests and benchmarks.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any, TypeAlias
from urllib.parse import quote
from urllib.request import Request, urlopen

ADMIN = "/_server/"
HALF = "half"
"""A fault: the connection ends after half of the body."""
SLOW = "slow"
"""A fault: the answer comes a second late."""
SLOW_SECONDS = 1.0
VARIABLES = {
    "AWS_ACCESS_KEY_ID": "key",
    "AWS_SECRET_ACCESS_KEY": "secret",
    "AWS_EC2_METADATA_DISABLED": "true",
    "AWS_REGION": "us-east-1",
}
Answer: TypeAlias = Iterable[bytes]


@dataclass
class Fault:
    """What goes wrong with the next requests: a status such as `503`, `half` or `slow`."""

    kind: str
    times: int
    method: str = "GET"
    path: str = ""
    """A part of the path and query."""


@dataclass(frozen=True)
class S3Server:
    """A running server."""

    endpoint: str

    def uri(self, path: str) -> str:
        """Returns a URI of `bucket/key` for clients whose environment has not the server's variables."""
        user = f"{VARIABLES['AWS_ACCESS_KEY_ID']}:{VARIABLES['AWS_SECRET_ACCESS_KEY']}"
        host = quote(self.endpoint.removeprefix("http://"), safe="")
        return f"s3://{user}@{path}?scheme=http&region={VARIABLES['AWS_REGION']}&endpoint_override={host}"

    @property
    def variables(self) -> Mapping[str, str]:
        """The environment of its clients."""
        return {**VARIABLES, "AWS_ENDPOINT_URL": self.endpoint}

    def put(self, path: str, data: bytes) -> None:
        """Writes an object, `bucket/key`."""
        self._send("PUT", f"/{quote(path)}", data)

    def keys(self, prefix: str, bucket: str = "bucket") -> list[str]:
        """Returns the keys that begin with a prefix."""
        return re.findall("<Key>(.*?)</Key>", self._listing(prefix, bucket))

    def sizes(self, prefix: str, bucket: str = "bucket") -> list[int]:
        """Returns the bytes of the objects whose keys begin with a prefix."""
        return list(map(int, re.findall("<Size>(.*?)</Size>", self._listing(prefix, bucket))))

    def _listing(self, prefix: str, bucket: str) -> str:
        return self._send("GET", f"/{bucket}?list-type=2&prefix={quote(prefix)}").decode()

    def delete(self, path: str) -> None:
        self._send("DELETE", f"/{quote(path)}")

    def create_bucket(self, name: str) -> None:
        self._send("PUT", f"/{name}")

    def answer_badly(self, *faults: Fault) -> None:
        """Replaces the pending faults."""
        self._send("POST", f"{ADMIN}faults", json.dumps([asdict(each) for each in faults]).encode())

    def pending(self) -> int:
        """Returns the number of bad answers that are still to come."""
        return int(json.loads(self._send("GET", f"{ADMIN}faults")))

    def counts(self) -> dict[str, int]:
        """Returns the requests by method, and under `bytes` those of the bodies of all answers to GET with a key."""
        found: dict[str, int] = json.loads(self._send("GET", f"{ADMIN}counts"))
        return found

    def _send(self, method: str, path: str, data: bytes | None = None) -> bytes:
        # moto takes any signature; the key names the account.
        headers = {
            "Authorization": "AWS4-HMAC-SHA256 Credential=key/20260101/us-east-1/s3/aws4_request",
            "Content-Type": "application/octet-stream",
        }
        with urlopen(Request(self.endpoint + path, data, headers, method=method), timeout=30) as answer:
            body: bytes = answer.read()
            return body


@contextlib.contextmanager
def s3_server(bucket: str = "bucket") -> Iterator[S3Server]:
    """Starts a server with a bucket."""
    command = [sys.executable, "-m", __name__]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            server = S3Server(process.stdout.readline().strip())
            server.create_bucket(bucket)
            yield server
        finally:
            process.stdin.close()
            process.wait(10)


class _Faulty:
    """A WSGI application that passes requests on to moto, except for those with a fault."""

    def __init__(self, inner: Callable[..., Answer]) -> None:
        self._inner, self._lock = inner, threading.Lock()
        self._faults: list[Fault] = []
        self._counts: dict[str, int] = {"bytes": 0}

    def __call__(self, environment: dict[str, Any], start: Callable[..., Any]) -> Answer:
        path, query, method = environment["PATH_INFO"], environment["QUERY_STRING"], environment["REQUEST_METHOD"]
        if path.startswith(ADMIN):
            return self._administer(environment, start)
        with self._lock:
            self._counts[method] = self._counts.get(method, 0) + 1
            fault = next(
                (
                    each
                    for each in self._faults
                    if each.times and each.method == method and each.path in path + "?" + query
                ),
                None,
            )
            if fault is not None:
                fault.times -= 1
        if fault is not None and fault.kind.isdigit():
            environment["wsgi.input"].read(int(environment.get("CONTENT_LENGTH") or 0))
            start(f"{fault.kind} Slow Down", [("Content-Length", "0")])
            return [b""]
        if fault is not None and fault.kind == SLOW:
            time.sleep(SLOW_SECONDS)
        body = b"".join(self._inner(environment, start))
        if method == "GET" and path.count("/") > 1:
            with self._lock:
                self._counts["bytes"] += len(body)
        return _half(body) if fault is not None and fault.kind == HALF else [body]

    def _administer(self, environment: dict[str, Any], start: Callable[..., Any]) -> Answer:
        if environment["REQUEST_METHOD"] == "POST":
            data = environment["wsgi.input"].read(int(environment["CONTENT_LENGTH"]))
            self._faults = [Fault(**each) for each in json.loads(data)]
        counts = environment["PATH_INFO"].endswith("counts")
        text = json.dumps(self._counts if counts else sum(each.times for each in self._faults)).encode()
        start("200 OK", [("Content-Length", str(len(text)))])
        return [text]


def _half(body: bytes) -> Iterator[bytes]:
    yield body[: len(body) // 2]
    raise ConnectionError("the fault")


def _serve() -> None:
    import logging

    from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
    from werkzeug.serving import WSGIRequestHandler, make_server

    logging.disable()
    WSGIRequestHandler.protocol_version = "HTTP/1.1"
    server = make_server("127.0.0.1", 0, _Faulty(DomainDispatcherApplication(create_backend_app)), threaded=True)
    sys.stdout.write(f"http://127.0.0.1:{server.server_port}\n")
    sys.stdout.flush()
    threading.Thread(target=_end_with_parent, daemon=True).start()
    server.serve_forever()


def _end_with_parent() -> None:
    sys.stdin.read()
    os._exit(0)


if __name__ == "__main__":
    _serve()
