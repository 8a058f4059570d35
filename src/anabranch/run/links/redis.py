"""A link in Redis: entries in a stream, parts as keys beside it.

The identifier of an entry is its batch, and Redis refuses an identifier that is not above the last one. So an append is
atomic and idempotent without a lock. `XTRIM` removes entries, and the stream keeps its last identifier.

Limit: acknowledged writes must survive a crash of Redis, so it must run with its append-only file (`appendonly yes`).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

import pyarrow as pa

from anabranch.errors import HostError, LinkError, installation
from anabranch.run.links.link import (
    LIMIT,
    NO_BATCH,
    Entry,
    LinkStatus,
    Part,
    batch_of,
    closed_error,
    following,
    overrun,
    refuse_gap,
)
from anabranch.settings.secrets import from_environment

SCHEMES = ("redis://", "rediss://", "unix://")
PREFIX = "anabranch"


@lru_cache(maxsize=32)
def client(location: str) -> Any:
    """Returns the connections of this process to a server; `${NAME}` in its location is an environment variable."""
    try:
        import redis
    except ModuleNotFoundError as error:
        raise HostError("the package redis is not installed", hint=installation("redis")) from error
    return redis.Redis.from_url(from_environment([("links", location)])["links"])


class RedisLink:
    """The log of one derived stream in Redis."""

    def __init__(self, location: str, name: str, limit: int = LIMIT) -> None:
        self.name = name
        self.limit = limit
        self._redis = client(location)
        self._key = f"{PREFIX}:{name}"

    def write(self, batch: int, attempt: str, number: int, rows: pa.Table, newest: int | None) -> Part:
        part = Part.named(batch, attempt, number, rows, newest)
        sink = pa.BufferOutputStream()
        with pa.ipc.new_file(sink, rows.schema) as writer:
            writer.write_table(rows)
        with self._named():
            # Registered first, so that every part that was written can be found and removed.
            self._redis.sadd(f"{self._key}:parts", part.name)
            self._redis.set(f"{self._key}:part:{part.name}", sink.getvalue().to_pybytes())
        return part

    def staged(self, batch: int, attempt: str) -> list[Part]:
        prefix = f"{batch:09d}.{attempt}."
        with self._named():
            names = sorted(name.decode() for name in self._redis.smembers(f"{self._key}:parts"))
        return [Part.parse(name) for name in names if name.startswith(prefix)]

    def append(self, batch: int, parts: Sequence[Part], tick: int) -> None:
        with self._named():
            if self._redis.get(f"{self._key}:closed") is not None or self.last() >= batch:
                return
            entry = following(self.name, self._last_entry(), batch, parts, tick)
            retained = self.status().retained + entry.bytes
            if retained > self.limit:
                self._redis.set(f"{self._key}:closed", overrun(self.name, retained, self.limit))
                for name in self._redis.smembers(f"{self._key}:parts"):
                    self._drop(name.decode())
                return
            self._add(entry)

    def _add(self, entry: Entry) -> None:
        import redis

        try:
            self._redis.xadd(f"{self._key}:log", {"entry": json.dumps(entry.to_json())}, id=_identifier(entry.batch))
        except redis.ResponseError as error:
            # Redis refuses a smaller identifier if another attempt has appended the batch; other errors are raised.
            if "smaller" not in str(error):
                raise

    def last(self) -> int:
        with self._named():
            if not self._redis.exists(f"{self._key}:log"):
                return NO_BATCH
            found = self._redis.xinfo_stream(f"{self._key}:log")["last-generated-id"].decode()
            return int(found.partition("-")[0]) - 1

    def entries(self, after: int, to: int) -> list[Entry]:
        found = self._range(after + 1, to)
        first = self._range(0, to)[:1]
        refuse_gap(self.name, after, to, first[0].batch if first else 0)
        expected = range(max(after + 1, first[0].batch if first else 0), to + 1)
        if [entry.batch for entry in found] != list(expected):
            self._refuse_closed()
            raise LinkError(f"link '{self.name}' lacks a batch between {after} and {to}")
        return found

    def read(self, entry: Entry) -> list[pa.Table]:
        self._refuse_closed()
        tables = []
        for part in entry.parts:
            with self._named():
                value = self._redis.get(f"{self._key}:part:{part.name}")
            if value is None:
                raise LinkError(f"link '{self.name}' has lost rows of batch {entry.batch}")
            tables.append(pa.ipc.open_file(pa.py_buffer(value)).read_all())
        return tables

    def ack(self, reader: str, batch: int) -> None:
        with self._named():
            known = self._redis.hget(f"{self._key}:acks", reader)
            if known is None or int(known) < batch:
                self._redis.hset(f"{self._key}:acks", reader, batch)

    def trim(self) -> None:
        done, last = self._acknowledged(), self.last()
        kept = {part.name for entry in self._range(done + 1, last) for part in entry.parts}
        with self._named():
            for name in self._redis.smembers(f"{self._key}:parts"):
                text = name.decode()
                if text not in kept and batch_of(text) <= last:
                    self._drop(text)
            if done > 0:
                self._redis.xtrim(f"{self._key}:log", minid=_identifier(min(done, last)), approximate=False)

    def cut(self, until: int) -> bool:
        known = self.until()
        if known is not None:
            return known == until
        last = self._last_entry()
        if last is not None and last.top is not None and last.top >= until:
            return False
        with self._named():
            self._redis.set(f"{self._key}:cut", until)
        return True

    def until(self) -> int | None:
        with self._named():
            found = self._redis.get(f"{self._key}:cut")
        return None if found is None else int(found)

    def status(self) -> LinkStatus:
        every = self._range(0, self.last())
        done = self._acknowledged()
        with self._named():
            closed = self._redis.get(f"{self._key}:closed")
        last = every[-1] if every else None
        return LinkStatus(
            every[0].batch if every else NO_BATCH,
            last.batch if last else NO_BATCH,
            done,
            last.total_rows if last else 0,
            last.total_bytes if last else 0,
            sum(entry.bytes for entry in every if entry.batch > done),
            last.tick if last else None,
            None if closed is None else closed.decode(),
        )

    def remove(self) -> bool:
        with self._named():
            for name in self._redis.smembers(f"{self._key}:parts"):
                self._drop(name.decode())
            self._redis.delete(*(f"{self._key}:{kind}" for kind in ("log", "acks", "parts", "cut", "closed")))
        return True

    # --- inside -------------------------------------------------------------------------------------------------------

    def _range(self, start: int, stop: int) -> list[Entry]:
        if stop < start:
            return []
        with self._named():
            found = self._redis.xrange(f"{self._key}:log", _identifier(start), _identifier(stop))
        return [Entry.from_json(json.loads(fields[b"entry"])) for _, fields in found]

    def _last_entry(self) -> Entry | None:
        found = self._range(self.last(), self.last()) if self.last() >= 0 else []
        return found[0] if found else None

    def _acknowledged(self) -> int:
        with self._named():
            return min((int(value) for value in self._redis.hvals(f"{self._key}:acks")), default=NO_BATCH)

    def _drop(self, part: str) -> None:
        self._redis.delete(f"{self._key}:part:{part}")
        self._redis.srem(f"{self._key}:parts", part)

    def _refuse_closed(self) -> None:
        with self._named():
            closed = self._redis.get(f"{self._key}:closed")
        if closed is not None:
            raise closed_error(self.name, closed.decode())

    @contextmanager
    def _named(self) -> Iterator[None]:
        import redis

        try:
            yield
        except redis.RedisError as error:
            raise LinkError(
                f"link '{self.name}' cannot be read or written",
                detail=f"{type(error).__name__}: {error}",
                hint="check that Redis runs and has space; the batch is not committed and will be repeated",
            ) from error


def _identifier(batch: int) -> str:
    """Returns the identifier of a batch; it is one higher, because Redis does not allow 0-0."""
    return f"{batch + 1}-0"
