"""Workloads like those of users: rows with texts, hot keys, wide rows, many streams, and a band.

Auctions: persons open auctions, auctions get bids, and some are paid; nine rows of ten are bids. Every bid and every
payment names an auction of the last half window, half of them the newest *hot* auction; every auction names its seller
likewise. So a hot key has many rows, and yet a bid gives one result with the auction and the seller that it belongs to.
"""

from __future__ import annotations

from benchmarks.columns import Measured, Primary, Reference, Text, Uniform
from benchmarks.workloads import SECOND, Band, Equality, Stream, Workload, domain_for_total, star

SPAN = 400 * SECOND
PERSONS, AUCTIONS, BIDS, PAYMENTS = range(4)
TEXTS = {
    PERSONS: (Text("name", 8, 24), Text("email", 16, 36), Text("city", 5, 16)),
    AUCTIONS: (Text("item", 12, 40), Text("description", 80, 180)),
    BIDS: (Text("channel", 5, 12), Text("url", 60, 120)),
    PAYMENTS: (Text("note", 30, 90),),
}


def auctions(
    relations: int, rows: int, batches: int, *, text_keys: bool = False, window: int = 20 * SECOND
) -> Workload:
    """Bids with their auctions (2), and the sellers (3), and the payments (4); results have all texts."""
    keys = {
        PERSONS: (Primary("id", text_keys),),
        AUCTIONS: (Primary("id", text_keys), Reference("seller", 0, text_keys)),
        BIDS: (Reference("auction", 0 if relations == 2 else 1, text_keys), Measured("price", 1_000.0)),
        PAYMENTS: (Reference("auction", 1, text_keys),),
    }
    shares = {PERSONS: 0.02, AUCTIONS: 0.06, PAYMENTS: 0.04, BIDS: 0.88}
    names = {PERSONS: "persons", AUCTIONS: "auctions", BIDS: "bids", PAYMENTS: "payments"}
    # The fastest stream last, because that order suits Spark best.
    chosen = {2: (AUCTIONS, BIDS), 3: (PERSONS, AUCTIONS, BIDS), 4: (PERSONS, AUCTIONS, PAYMENTS, BIDS)}[relations]
    if relations == 2:
        keys[AUCTIONS] = (Primary("id", text_keys),)
    whole = sum(shares[kind] for kind in chosen)
    streams = tuple(
        Stream(names[kind], round(rows * shares[kind] / whole), (*keys[kind], *TEXTS[kind])) for kind in chosen
    )
    places = {kind: place for place, kind in enumerate(chosen)}
    equalities = []
    if PERSONS in places:
        equalities.append(Equality(places[PERSONS], "id", places[AUCTIONS], "seller"))
    equalities += [
        Equality(places[AUCTIONS], "id", places[kind], "auction") for kind in (PAYMENTS, BIDS) if kind in places
    ]
    shown = tuple((places[kind], text.name) for kind in chosen for text in TEXTS[kind])
    name = f"auctions{relations}{'-text-keys' if text_keys else ''}"
    return Workload(name, streams, tuple(equalities), window, SPAN, batches, 1, shown=shown)


def wide(rows: int, batches: int) -> Workload:
    """Two streams on one key, each row with a text of about 1 kB; one result per row has both texts."""
    sizes = (rows - rows // 2, rows // 2)
    window = 10 * SECOND
    streams = tuple(Stream(f"s{i}", size, (Uniform("k"), Text("body", 900, 1_100))) for i, size in enumerate(sizes))
    domain = domain_for_total(sizes, window, SPAN, rows / 2)
    return Workload("wide", streams, star(2), window, SPAN, batches, domain, shown=((0, "body"), (1, "body")))


def many(streams: int, rows: int, batches: int) -> Workload:
    """A join of many streams of equal rate on one key; one result for ten rows."""
    sizes = (rows // streams,) * streams
    window = 10 * SECOND
    domain = domain_for_total(sizes, window, SPAN, rows / 10)
    made = tuple(Stream(f"s{i}", size, (Uniform("k"),)) for i, size in enumerate(sizes))
    return Workload(f"many{streams}", made, star(streams), window, SPAN, batches, domain)


def band(rows: int, batches: int) -> Workload:
    """Two streams of measurements at few places: values of one place that are near each other; one result per row.

    Spark joins by equality only, so the query has one: with it Spark's own join looks at every pair of a place.
    """
    sizes = (rows - rows // 2, rows // 2)
    window, places, bound = 10 * SECOND, 20, 1_000.0
    streams = tuple(Stream(f"s{i}", size, (Uniform("k"), Measured("v", bound))) for i, size in enumerate(sizes))
    pairs = sizes[0] * sizes[1] * (2 * window * SPAN - window**2) / SPAN**2 / places
    width = bound * rows / pairs / 2
    return Workload("band", streams, star(2), window, SPAN, batches, places, bands=(Band(1, "v", 0, "v", width),))
