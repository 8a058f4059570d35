"""A seeded generator of the three streams: of fifty events, one is a person, three are auctions and 46 are bids.

The proportions and the hot auctions follow the Nexmark benchmark (Tucker, Tufte, Papadimos and Maier, 2002, and its
form in Apache Beam). The values are our own. Half of the bids go to one of the newest auctions, the others to any
recent one.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from anabranch.lang.schema import TIMESTAMP

STEP = 10_000
"""Microseconds between two events."""
START = 1_700_000_000_000_000
_FIRST = 1_000
_CITIES = ("Portland", "Boise", "Phoenix", "Palo Alto", "Redmond", "Cheyenne")
_STATES = ("OR", "ID", "AZ", "CA", "WA", "WY")
_CHANNELS = ("Apple", "Google", "Facebook", "Baidu", "channel-7", "channel-8")
_PERSON, _AUCTIONS, _ALL = 1, 3, 50

PERSON = pa.schema(
    [("id", pa.int64()), ("name", pa.string()), ("email", pa.string()), ("city", pa.string()), ("state", pa.string()),
     ("ts", TIMESTAMP)]
)  # fmt: skip
AUCTION = pa.schema(
    [("id", pa.int64()), ("item", pa.string()), ("initial_bid", pa.int64()), ("reserve", pa.int64()), ("ts", TIMESTAMP),
     ("expires", TIMESTAMP), ("seller", pa.int64()), ("category", pa.int64())]
)  # fmt: skip
BID = pa.schema(
    [("auction", pa.int64()), ("bidder", pa.int64()), ("price", pa.int64()), ("channel", pa.string()),
     ("url", pa.string()), ("ts", TIMESTAMP), ("extra", pa.string())]
)  # fmt: skip
SCHEMAS = {"person": PERSON, "auction": AUCTION, "bid": BID}


def generate(events: int, seed: int = 1) -> dict[str, pa.Table]:
    """The first events of the benchmark, as one table for each stream in order of time."""
    random = np.random.default_rng(seed)
    number = np.arange(events)
    place = number % _ALL
    people, auctions = place < _PERSON, (place >= _PERSON) & (place < _PERSON + _AUCTIONS)
    times = START + number * STEP
    known_people = _FIRST + number // _ALL * _PERSON + np.minimum(place, _PERSON)
    known_auctions = _FIRST + number // _ALL * _AUCTIONS + np.clip(place - _PERSON, 0, _AUCTIONS)
    return {
        "person": _people(random, times[people], known_people[people]),
        "auction": _auctions(random, times[auctions], known_auctions[auctions], known_people[auctions]),
        "bid": _bids(random, *(each[~people & ~auctions] for each in (times, known_auctions, known_people))),
    }


SIDE_INPUT = pa.schema([("key", pa.int64()), ("value", pa.string())])
"""The table beside the streams."""


def side_input(rows: int = 40, seed: int = 1) -> pa.Table:
    """The side input of the benchmark: a value for each of the first keys."""
    values = np.random.default_rng(seed).integers(0, 1_000, rows)
    return pa.table([pa.array(np.arange(rows)), pa.array([f"value {v}" for v in values])], schema=SIDE_INPUT)


def _people(random: np.random.Generator, times: np.ndarray, ids: np.ndarray) -> pa.Table:
    home = random.integers(0, len(_CITIES), len(ids))
    return pa.table(
        [
            pa.array(ids),
            pa.array([f"person {i}" for i in ids]),
            pa.array([f"p{i}@example.org" for i in ids]),
            pa.array(np.array(_CITIES)[home]),
            pa.array(np.array(_STATES)[home]),
            _times(times),
        ],
        schema=PERSON,
    )


def _auctions(random: np.random.Generator, times: np.ndarray, ids: np.ndarray, people: np.ndarray) -> pa.Table:
    price = _prices(random, len(ids))
    return pa.table(
        [
            pa.array(ids),
            pa.array([f"item {i % 97}" for i in ids]),
            pa.array(price),
            pa.array(price + _prices(random, len(ids))),
            _times(times),
            _times(times + random.integers(1, 100, len(ids)) * 100_000),
            pa.array(_recent(random, people, 50)),
            pa.array(10 + random.integers(0, 5, len(ids))),
        ],
        schema=AUCTION,
    )


def _bids(random: np.random.Generator, times: np.ndarray, auctions: np.ndarray, people: np.ndarray) -> pa.Table:
    count = len(times)
    hot = random.random(count) < 0.5
    channel = random.integers(0, len(_CHANNELS), count)
    pages = random.integers(0, 20, count)
    page = "https://auction.example/page{}/item{}/q.htm?channel_id={}"
    urls = [page.format(number % 3, number, by) for number, by in zip(pages, channel, strict=True)]
    return pa.table(
        [
            pa.array(np.where(hot, (auctions - 1) // 10 * 10, _recent(random, auctions, 30))),
            pa.array(_recent(random, people, 40)),
            pa.array(_prices(random, count)),
            pa.array(np.array(_CHANNELS)[channel]),
            pa.array(urls),
            _times(times),
            pa.array(["c" * (p % 4) + "x" for p in pages]),
        ],
        schema=BID,
    )  # fmt: skip


def _recent(random: np.random.Generator, newest: np.ndarray, reach: int) -> np.ndarray:
    """One of the newest numbers that exist."""
    return np.maximum(newest - 1 - random.integers(0, reach, len(newest)), _FIRST)


def _prices(random: np.random.Generator, count: int) -> np.ndarray:
    return np.round(np.power(10.0, random.random(count) * 6) * 100).astype(np.int64)


def _times(micros: np.ndarray) -> pa.Array:
    return pa.array(micros.astype(np.int64)).cast(pa.timestamp("us")).cast(TIMESTAMP)
