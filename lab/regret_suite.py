"""The workloads of the regret suite, by name; `regret_workloads` draws their rows, `regret_real` has real ones."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from lab.regret_workloads import (
    ALONE,
    INTEGERS,
    Columns,
    FanOuts,
    Kind,
    Moment,
    Workload,
    chain,
    chained,
    one_key,
    skewed,
    star,
    steps,
    texts,
    window,
    windows,
    zipf,
)

TABLE_ROWS = 100_000
KEYED = {"k": pa.int64(), "c": pa.int64()}
HUB = {**{f"k{number}": pa.int64() for number in range(5)}, "v": pa.int64()}
STAR = (4.0, 0.3, 2.0, 0.6, 1.0)
"""Fan-outs from the hub to its streams."""


def chain_of(name: str, kind: Kind, why: str, names: str, fan_outs: FanOuts, rate: float = 1.0) -> Workload:
    """Streams of equal rates in a chain; the rate multiplies the fan-outs."""
    draw = chained(names, fan_outs)
    return Workload(name, kind, why, chain(names), INTEGERS, draw, tuple(names), rate=lambda stream, share: rate)


def _drifting(share: float) -> tuple[float, ...]:
    """One edge grows and another shrinks, slowly, over the middle third of the run."""
    passed = min(1.0, max(0.0, 3 * share - 1))
    return 0.1 * 80**passed, 8.0 / 80**passed


def _periodic(share: float) -> tuple[float, ...]:
    return (0.2, 4.0) if int(share * 6) % 2 == 0 else (4.0, 0.2)


def _bursty(share: float) -> tuple[float, ...]:
    """Five short bursts in which the order of the edges is the other one."""
    return (4.0, 0.2) if share * 5 % 1 > 0.85 else (0.2, 4.0)


def _bursting_rate(stream: str, share: float) -> float:
    return 4.0 if stream == "b" and share * 5 % 1 > 0.8 else 0.6


def _star(rng: np.random.Generator, name: str, count: int, at: Moment) -> Columns:
    """The hub has a key for each other stream, whose own key is `k0`."""
    if name == "h":
        keys = {f"k{number}": rng.integers(0, at.domain(fan_out), count) for number, fan_out in enumerate(STAR)}
    else:
        keys = {f"k{number}": np.zeros(count, np.int64) for number in range(len(STAR))}
        keys["k0"] = rng.integers(0, at.domain(STAR["abcde".index(name)]), count)
    return {**keys, "v": rng.integers(0, 1_000, count)}


def _zipf(rng: np.random.Generator, name: str, count: int, at: Moment) -> Columns:
    """Streams with one key; two have Zipf's distribution over the same values, the third a uniform one."""
    values = at.domain(1.0)
    keys = zipf(rng, values, count, 0.7) if name in "ab" else rng.integers(0, values, count)
    return {"k": keys, "c": keys % 4}


def _hot(rng: np.random.Generator, name: str, count: int, at: Moment) -> Columns:
    """One value is a twentieth of the rows of two streams, and hardly occurs in a third."""
    keys = rng.integers(1, at.domain(1.0), count)
    hot = rng.random(count) < {"a": 0.03, "b": 0.03, "c": 0.0002, "d": 0.0}[name]
    keys[hot] = 0
    return {"k": keys, "c": np.minimum(keys, 1)}


def _correlated(rng: np.random.Generator, name: str, count: int, at: Moment) -> Columns:
    """b's two keys belong together: what finds partners in a finds none in c, so b with both is nearly empty."""
    ab, bc = at.domain(2.0), at.domain(2.0)
    left, right = rng.integers(0, ab, count), rng.integers(0, bc, count)
    if name == "a":
        return {"l": rng.integers(0, ALONE, count), "r": left // 2, "v": rng.integers(0, 1_000, count)}
    if name == "b":
        meets_a = rng.random(count) < 0.5
        meets_c = ~meets_a | (rng.random(count) < 0.02)
        return {
            "l": np.where(meets_a, left // 2, ab + left),
            "r": np.where(meets_c, right // 2, bc + right),
            "v": rng.integers(0, 1_000, count),
        }
    if name == "c":
        return {"l": right // 2, "r": rng.integers(0, at.domain(2.0), count), "v": rng.integers(0, 1_000, count)}
    return {"l": rng.integers(0, at.domain(2.0), count), "r": left, "v": rng.integers(0, 1_000, count)}


def _noted(rng: np.random.Generator, name: str, count: int, at: Moment) -> Columns:
    """A chain with notes; a pattern over the notes of a and b passes nine pairs in ten."""
    words = np.array([f"order {number} of lot {number % 10}{number % 7} was sent" for number in range(200)])
    columns = chained("abc", steps((2.0, 0.1)))(rng, name, count, at)
    return {**columns, "note": words[rng.integers(0, len(words), count)]}


def _banded(rng: np.random.Generator, name: str, count: int, at: Moment) -> Columns:
    columns = chained("abc", steps((8.0, 0.2), (0.2, 8.0)))(rng, name, count, at)
    return {**columns, "v": rng.integers(0, at.held * 10, count)}


def _cycle(rng: np.random.Generator, name: str, count: int, at: Moment) -> Columns:
    place = "abcd".index(name)
    fan_outs = [steps((0.2, 8.0, 1.0, 8.0), (8.0, 0.2, 8.0, 1.0))(at.share)[edge % 4] for edge in (place - 1, place)]
    return {
        "l": rng.integers(0, at.domain(fan_outs[0]), count),
        "r": rng.integers(0, at.domain(fan_outs[1]), count),
        "v": rng.integers(0, 1_000, count),
    }


def _with_table(rng: np.random.Generator, name: str, count: int, at: Moment) -> Columns:
    """Every row of b has an entry in the table, until most of them have none."""
    columns = dict(chained("ab", steps((2.0,)))(rng, name, count, at))
    known = TABLE_ROWS if at.share < 0.4 else 20 * TABLE_ROWS
    return {**columns, "v": rng.integers(0, known, count)}


def _table() -> pa.Table:
    return pa.table({"id": np.arange(TABLE_ROWS), "region": np.arange(TABLE_ROWS) % 50})


SYNTHETIC: tuple[Workload, ...] = (
    chain_of("uniform", "steady", "nothing to learn", "abc", steps((1.0, 1.0))),
    Workload(
        "different rates",
        "steady",
        "four streams, the slowest an eighth of the fastest",
        chain("abcd"),
        INTEGERS,
        chained("abcd", steps((1.0, 1.0, 1.0))),
        tuple("abcd"),
        rate=lambda stream, share: {"a": 1.0, "b": 0.5, "c": 0.25, "d": 0.125}[stream],
    ),
    chain_of("one drift", "changing", "two edges change places slowly", "abc", _drifting),
    chain_of(
        "several drifts",
        "changing",
        "four streams, four phases",
        "abcd",
        steps((0.1, 8.0, 1.5), (8.0, 0.1, 1.5), (8.0, 1.5, 0.1), (8.0, 0.1, 2.0)),
    ),
    chain_of(
        "swap", "changing", "two edges change places at a third", "abc", steps((0.2, 4.0), (4.0, 0.2), (4.0, 0.2))
    ),
    chain_of("periodic", "changing", "six phases of two kinds", "abc", _periodic),
    chain_of("bursts", "restless", "too short to follow: standing still is right", "abc", _bursty),
    Workload(
        "bursting rate",
        "restless",
        "one stream bursts to seven times its rate",
        chain("abcd"),
        INTEGERS,
        chained("abcd", steps((1.0, 1.5, 0.7))),
        tuple("abcd"),
        rate=_bursting_rate,
    ),
    Workload(
        "skew",
        "skewed",
        "chosen because a mesh wins: in each class of rows another stream is rare",
        one_key("abcde"),
        KEYED,
        skewed("abcde", 5),
        tuple("abcde"),
    ),
    Workload(
        "late skew",
        "skewed",
        "the same, but only after a third of the run",
        one_key("abcde"),
        KEYED,
        skewed("abcde", 5, since=1 / 3),
        tuple("abcde"),
    ),
    Workload(
        "turning skew",
        "skewed",
        "streams become rare in other classes half-way",
        one_key("abcd"),
        KEYED,
        skewed("abcd", 4, turn_at=0.5),
        tuple("abcd"),
    ),
    Workload("zipf", "skewed", "Zipf's keys in two streams of three", one_key("abc"), KEYED, _zipf, tuple("abc")),
    Workload("hot key", "skewed", "one value is frequent in two of four", one_key("abcd"), KEYED, _hot, tuple("abcd")),
    Workload(
        "correlated", "skewed", "independence is wrong by 25", chain("abcd"), INTEGERS, _correlated, tuple("abcd")
    ),
    Workload(
        "dear predicate",
        "steady",
        "chosen because putting it off wins: a pattern over two notes, and a join that drops nine rows in ten",
        chain("abc", " AND CONCAT(a.note, b.note) RLIKE '.*lot [0-9]+ was.*order [1-9].*'"),
        {**INTEGERS, "note": pa.string()},
        _noted,
        tuple("abc"),
    ),
    Workload(
        "text keys",
        "changing",
        "the swap with texts as keys",
        chain("abc"),
        {"l": pa.string(), "r": pa.string(), "v": pa.int64()},
        texts(chained("abc", steps((0.2, 4.0), (4.0, 0.2), (4.0, 0.2))), "l", "r"),
        tuple("abc"),
    ),
    Workload(
        "band",
        "changing",
        "a band beside equalities, one of which changes",
        f"SELECT a.v AS x, d.v AS y FROM {windows('abcd')} "
        "WHERE a.r = b.l AND b.r = c.l AND c.v BETWEEN d.v - 6 AND d.v + 6",
        INTEGERS,
        lambda rng, name, count, at: _banded(rng, "a" if name == "d" else name, count, at),
        tuple("abcd"),
    ),
    Workload(
        "large table",
        "changing",
        "a table of 100,000 rows that most rows stop to meet",
        f"SELECT a.v AS x, t.region AS y FROM {window('a')}, {window('b')}, t WHERE a.r = b.l AND b.v = t.id",
        INTEGERS,
        _with_table,
        tuple("ab"),
        tables={"t": _table()},
    ),
    Workload("star", "steady", "a hub and five streams", star("h", "abcde"), HUB, _star, tuple("habcde")),
    Workload(
        "cycle",
        "changing",
        "four streams in a ring whose edges turn half-way",
        f"SELECT a.v AS x, c.v AS y FROM {windows('abcd')} WHERE a.r = b.l AND b.r = c.l AND c.r = d.l AND d.r = a.l",
        INTEGERS,
        _cycle,
        tuple("abcd"),
    ),
    chain_of(
        "long chain",
        "changing",
        "eight streams, selective at one end and then at the other",
        "abcdefgh",
        steps((0.2, 1.5, 1.5, 1.0, 1.0, 1.5, 4.0), (4.0, 1.5, 1.0, 1.0, 1.5, 1.5, 0.2)),
    ),
)
