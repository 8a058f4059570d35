"""Two consoles that begin at once do not take one port."""

from __future__ import annotations

from contextlib import closing

from anabranch.console.server import _listen


def test_a_port_is_taken_as_soon_as_it_is_bound() -> None:
    """Both were given one port, and the second server ended when it began to listen."""
    with closing(_listen("127.0.0.1", None)) as one, closing(_listen("127.0.0.1", None)) as other:
        assert one.getsockname() != other.getsockname()
