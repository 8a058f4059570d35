"""Channels carry whole messages between processes that know one secret, and nothing for anybody else."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from anabranch.run.channel import Channel, ChannelClosed, Listener, connect, proved

SECRET = b"of this run"


@contextmanager
def pair(secret: bytes = SECRET) -> Iterator[tuple[Channel, list[Channel | ChannelClosed]]]:
    """The end that connects, and in a list the end that listens or why it is none."""
    listener = Listener("127.0.0.1")
    met: list[Channel | ChannelClosed] = []

    def accept() -> None:
        try:
            met.append(proved(listener.accept(), SECRET))
        except ChannelClosed as error:
            met.append(error)

    thread = threading.Thread(target=accept)
    thread.start()
    try:
        near = connect("127.0.0.1", listener.port, secret)
        thread.join()
        yield near, met
        near.close()
    finally:
        thread.join()
        listener.close()


def test_a_message_arrives_whole_whatever_its_size_and_parts() -> None:
    with pair() as (near, (far,)):
        assert isinstance(far, Channel)
        large = bytes(range(256)) * 40_000
        sending = threading.Thread(target=lambda: near.send(b"", b"first ", memoryview(large), b" last"))
        sending.start()
        assert bytes(far.receive()) == b"first " + large + b" last"
        sending.join()
        near.send()
        assert bytes(far.receive()) == b""
        many = [b"ab"] * 3_000
        near.send(*many)
        assert bytes(far.receive()) == b"ab" * 3_000
        far.send(b"back")
        assert bytes(near.receive()) == b"back"


def test_a_client_without_the_secret_is_rejected() -> None:
    with pytest.raises(ChannelClosed), pair(b"of another run"):
        pass


def test_the_end_of_one_side_wakes_the_other() -> None:
    with pair() as (near, (far,)):
        assert isinstance(far, Channel)
        woken: list[ChannelClosed] = []

        def wait() -> None:
            try:
                far.receive()
            except ChannelClosed as error:
                woken.append(error)

        thread = threading.Thread(target=wait)
        thread.start()
        near.close()
        thread.join()
        assert woken
        with pytest.raises(ChannelClosed):
            far.send(b"x" * (1 << 24))
