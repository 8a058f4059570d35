"""Authenticated connections between the processes of a run. A message is preceded by its length in bytes.

Both ends prove with a keyed hash that they know the secret of the run, before either of them reads a message.
Invariant: a message arrives whole, or `ChannelClosed` is raised. Limit: messages are neither encrypted nor signed, as
between Spark's executors by default.
"""

from __future__ import annotations

import hmac
import secrets
import socket
import struct
from collections.abc import Iterable
from contextlib import suppress

_LENGTH = struct.Struct("!Q")
_NONCE = 32
_PATIENCE = 10.0
"""The seconds within which the other end must connect and prove that it knows the secret."""
_MOST_PARTS = 512
"""The number of parts of a message sent with one system call; every system allows at least this many."""


class ChannelClosed(Exception):
    """The other end has closed the connection or has ended."""


class Channel:
    """One end of a connection; one thread may send while another receives."""

    def __init__(self, connected: socket.socket) -> None:
        self._socket = connected
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)

    @property
    def own_host(self) -> str:
        """Returns the address of this machine that is used to reach the other end."""
        return str(self._socket.getsockname()[0])

    def send(self, *parts: bytes | memoryview) -> None:
        """Sends one message; its parts arrive as one."""
        views = [memoryview(part).cast("B") for part in parts]
        waiting = [memoryview(_LENGTH.pack(sum(map(len, views)))), *(view for view in views if len(view))]
        try:
            while waiting:
                waiting = _after(waiting, self._socket.sendmsg(waiting[:_MOST_PARTS]))
        except OSError as error:
            raise ChannelClosed(str(error)) from error

    def receive(self) -> memoryview:
        """Waits for the next message."""
        (length,) = _LENGTH.unpack(self._exactly(_LENGTH.size))
        return self._exactly(length)

    def close(self) -> None:
        """Closes the connection; a waiting `receive` raises `ChannelClosed`."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _exactly(self, length: int) -> memoryview:
        found = memoryview(bytearray(length))
        have = 0
        try:
            while have < length:
                got = self._socket.recv_into(found[have:])
                if not got:
                    raise ChannelClosed("the other end has closed the connection")
                have += got
        except OSError as error:
            raise ChannelClosed(str(error)) from error
        return found


class Listener:
    """Waits for connections at an address of this machine; port 0 takes any free one."""

    def __init__(self, host: str) -> None:
        family, *_, address = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        self._socket = socket.create_server(address[:2], family=family, backlog=128)
        self.host, self.port = host, int(self._socket.getsockname()[1])

    def accept(self) -> socket.socket:
        """Waits for the next connection, whose other end must still prove that it knows the secret (`proved`)."""
        try:
            connected, _ = self._socket.accept()
        except OSError as error:
            raise ChannelClosed(str(error)) from error
        return connected

    def close(self) -> None:
        """Closes the listener; a waiting `accept` raises `ChannelClosed`."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()


def connect(host: str, port: int, secret: bytes) -> Channel:
    """Connects to a listener that knows the secret."""
    try:
        connected = socket.create_connection((host, port), timeout=_PATIENCE)
    except OSError as error:
        raise ChannelClosed(f"{host}:{port}: {error}") from error
    return proved(connected, secret, is_listener=False)


def proved(connected: socket.socket, secret: bytes, *, is_listener: bool = True) -> Channel:
    """Makes both ends prove that they know the secret; the connecting end begins."""
    connected.settimeout(_PATIENCE)
    channel = Channel(connected)
    own, other = (b"listens", b"connects") if is_listener else (b"connects", b"listens")
    try:
        mine = secrets.token_bytes(_NONCE)
        connected.sendall(mine)
        theirs = bytes(channel._exactly(_NONCE))
        if not is_listener:
            connected.sendall(_proof(secret, own, theirs, mine))
        if not hmac.compare_digest(channel._exactly(_NONCE), _proof(secret, other, mine, theirs)):
            raise ChannelClosed("the other end does not know the secret of this run")
        if is_listener:
            connected.sendall(_proof(secret, own, theirs, mine))
        connected.settimeout(None)
    except (OSError, ChannelClosed) as error:
        channel.close()
        raise error if isinstance(error, ChannelClosed) else ChannelClosed(str(error)) from error
    return channel


def _proof(secret: bytes, role: bytes, asked: bytes, own: bytes) -> bytes:
    return hmac.digest(secret, role + asked + own, "sha256")


def _after(views: Iterable[memoryview], sent: int) -> list[memoryview]:
    """Returns the rest of the views after the first bytes."""
    left = []
    for view in views:
        if sent < len(view):
            left.append(view[sent:])
        sent = max(0, sent - len(view))
    return left
