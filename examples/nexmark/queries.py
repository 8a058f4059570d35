"""The queries of Nexmark in CQL, each with the batch query in DuckDB's SQL that it is checked against.

`{passed}` in the SQL is the watermark in microseconds: a window is answered once the watermark has reached its end.
Windows are shorter than in the benchmark, so that a small run has several. A note says where a query differs.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class NexmarkQuery:
    """One query of the benchmark."""

    title: str
    cql: str
    duckdb: str
    note: str = ""
    is_unbounded: bool = False
    """Whether it joins for ever, as in the benchmark; such a query needs `allow_unbounded`."""


def _buckets(stream: str, seconds: int) -> str:
    """The rows of a stream in tumbling windows that the watermark has passed, with their ends."""
    size = seconds * 1_000_000
    end = f"((epoch_us(ts) // {size}) + 1) * {size}"
    return f"(SELECT *, {end} AS ends FROM {stream} WHERE {end} <= {{passed}})"


_COUNTS = "(SELECT auction, COUNT(*) AS bids FROM bid [HOP 4 SECONDS SLIDE 2 SECONDS] GROUP BY auction)"
_CLOSED = (
    "SELECT a.id, a.seller, a.category, MAX(b.price) AS final, MAX_BY(b.bidder, b.price) AS winner, WINDOW_END() AS at "
    "FROM auction [TUMBLE 4 SECONDS] AS a, bid [TUMBLE 4 SECONDS] AS b "
    "WHERE a.id = b.auction AND b.ts BETWEEN a.ts AND a.expires GROUP BY a.id, a.seller, a.category"
)
_CLOSED_SQL = (
    "(SELECT a.id, a.seller, a.category, a.ends, max(b.price) AS final, "
    "arg_max(b.bidder, (b.price, -b.bidder)) AS winner "
    f"FROM {_buckets('auction', 4)} AS a JOIN {_buckets('bid', 4)} AS b ON a.id = b.auction AND a.ends = b.ends "
    "AND b.ts BETWEEN a.ts AND a.expires GROUP BY ALL)"
)

QUERIES = {
    "q0": NexmarkQuery(
        "pass through",
        "SELECT auction, bidder, price, ts FROM bid",
        "SELECT auction, bidder, price, ts FROM bid",
    ),
    "q1": NexmarkQuery(
        "currency conversion",
        "SELECT auction, bidder, CAST(price AS DECIMAL(18, 0)) * 0.908 AS price, ts FROM bid",
        "SELECT auction, bidder, price::DECIMAL(18, 0) * 0.908 AS price, ts FROM bid",
    ),
    "q2": NexmarkQuery(
        "selection",
        "SELECT auction, price FROM bid WHERE auction % 7 = 0",
        "SELECT auction, price FROM bid WHERE auction % 7 = 0",
    ),
    "q3": NexmarkQuery(
        "local item suggestion",
        "SELECT p.name, p.city, p.state, a.id FROM auction AS a JOIN person AS p ON a.seller = p.id "
        "WHERE a.category = 10 AND p.state IN ('OR', 'ID', 'CA')",
        "SELECT p.name, p.city, p.state, a.id FROM auction AS a JOIN person AS p ON a.seller = p.id "
        "WHERE a.category = 10 AND p.state IN ('OR', 'ID', 'CA')",
        is_unbounded=True,
    ),
    "q4": NexmarkQuery(
        "average closing price of a category",
        f"SELECT q.category, WINDOW_END() AS at, AVG(q.final) AS mean FROM ({_CLOSED}) [NOW SLIDE 4 SECONDS] AS q "
        "GROUP BY q.category",
        f"SELECT category, make_timestamp(ends), avg(final) FROM {_CLOSED_SQL} WHERE ends < {{passed}} GROUP BY ALL",
        note="of the auctions, with their bids, of each window",
    ),
    "q5": NexmarkQuery(
        "hot items",
        f"SELECT c.auction, c.bids FROM {_COUNTS} [NOW] AS c, "
        f"(SELECT MAX(d.bids) AS most FROM {_COUNTS} [NOW SLIDE 2 SECONDS] AS d) [NOW] AS m WHERE c.bids = m.most",
        "SELECT auction, n FROM (SELECT *, max(n) OVER (PARTITION BY ends) AS most FROM (SELECT auction, ends, "
        "count(*) AS n FROM (SELECT auction, ((epoch_us(ts) // 2000000) + s) * 2000000 AS ends FROM bid, "
        "(VALUES (1), (2)) AS steps(s)) WHERE ends < {passed} GROUP BY ALL)) WHERE n = most",
    ),
    "q6": NexmarkQuery(
        "average selling price by seller",
        f"WITH closed AS ({_CLOSED}), latest AS (SELECT c.seller, c.final FROM closed [NOW SLIDE 4 SECONDS] AS c "
        "QUALIFY ROW_NUMBER() OVER (PARTITION BY c.seller ORDER BY c.id DESC) <= 10) "
        "SELECT l.seller, WINDOW_END() AS at, AVG(l.final) AS mean FROM latest [NOW SLIDE 4 SECONDS] AS l "
        "GROUP BY l.seller",
        "SELECT seller, make_timestamp(ends), avg(final) FROM (SELECT *, row_number() OVER (PARTITION BY seller, ends "
        f"ORDER BY id DESC) AS place FROM {_CLOSED_SQL}) WHERE place <= 10 AND ends < {{passed}} GROUP BY seller, ends",
        note="of the last ten auctions, with their bids, of each window",
    ),
    "q7": NexmarkQuery(
        "highest bid",
        "SELECT b.auction, b.price, b.bidder, b.ts, b.extra FROM bid [RANGE 2 SECONDS] AS b JOIN "
        "(SELECT MAX(price) AS maxprice, WINDOW_END() AS ends FROM bid [TUMBLE 2 SECONDS]) [NOW] AS m "
        "ON b.price = m.maxprice WHERE b.ts BETWEEN m.ends - INTERVAL 2 SECONDS AND m.ends",
        "SELECT b.auction, b.price, b.bidder, b.ts, b.extra FROM bid AS b JOIN (SELECT max(price) AS maxprice, "
        f"make_timestamp(ends) AS ends FROM {_buckets('bid', 2)} GROUP BY ends) AS m ON b.price = m.maxprice "
        "WHERE b.ts BETWEEN m.ends - INTERVAL 2 SECONDS AND m.ends",
    ),
    "q8": NexmarkQuery(
        "monitor new users",
        "SELECT p.id, p.name, WINDOW_START() AS at, COUNT(*) AS auctions FROM person [TUMBLE 2 SECONDS] AS p, "
        "auction [TUMBLE 2 SECONDS] AS a WHERE p.id = a.seller GROUP BY p.id, p.name",
        f"SELECT p.id, p.name, make_timestamp(p.ends - 2000000) AS at, count(*) FROM {_buckets('person', 2)} AS p JOIN "
        f"{_buckets('auction', 2)} AS a ON p.id = a.seller AND p.ends = a.ends GROUP BY p.id, p.name, p.ends",
    ),
    "q9": NexmarkQuery(
        "winning bids",
        _CLOSED,
        f"SELECT id, seller, category, final, winner, make_timestamp(ends) FROM {_CLOSED_SQL}",
        note="of the auctions, with their bids, of each window; of equal bids, that of the least bidder",
    ),
    "q10": NexmarkQuery(
        "log to a file system",
        "SELECT auction, bidder, price, ts, DATE(ts) AS day, HOUR(ts) AS hour FROM bid",
        "SELECT auction, bidder, price, ts, ts::DATE AS day, hour(ts) AS hour FROM bid",
        note="the sink writes a folder per day: partitionBy('day')",
    ),
    "q11": NexmarkQuery(
        "user sessions",
        "SELECT bidder, COUNT(*) AS bids, session_window.start AS starts, session_window.end AS ends FROM bid "
        "GROUP BY bidder, session_window(ts, '1 second')",
        "SELECT bidder, count(*), min(ts), max(ts) + INTERVAL 1 SECOND FROM (SELECT *, sum(begins) OVER (PARTITION BY "
        "bidder ORDER BY ts ROWS UNBOUNDED PRECEDING) AS session FROM (SELECT *, CASE WHEN ts - lag(ts) OVER "
        "(PARTITION BY bidder ORDER BY ts) <= INTERVAL 1 SECOND THEN 0 ELSE 1 END AS begins FROM bid)) "
        "GROUP BY bidder, session HAVING epoch_us(max(ts)) + 1000000 < {passed}",
    ),
    "q13": NexmarkQuery(
        "join with a table",
        "SELECT b.auction, b.bidder, b.price, b.ts, s.value FROM bid AS b "
        "JOIN side_input AS s ON b.auction % 100 = s.key",
        "SELECT b.auction, b.bidder, b.price, b.ts, s.value FROM bid AS b "
        "JOIN side_input AS s ON b.auction % 100 = s.key",
    ),
    "q14": NexmarkQuery(
        "calculation",
        "SELECT auction, bidder, 0.908 * price AS price, CASE WHEN HOUR(ts) >= 8 AND HOUR(ts) <= 18 THEN 'day' "
        "WHEN HOUR(ts) <= 6 OR HOUR(ts) >= 20 THEN 'night' ELSE 'other' END AS hours, count_char(extra, 'c') AS cs "
        "FROM bid WHERE 0.908 * price > 1000000 AND 0.908 * price < 50000000",
        "SELECT auction, bidder, 0.908::DOUBLE * price AS price, CASE WHEN hour(ts) BETWEEN 8 AND 18 THEN 'day' "
        "WHEN hour(ts) <= 6 OR hour(ts) >= 20 THEN 'night' ELSE 'other' END AS hours, "
        "len(extra) - len(replace(extra, 'c', '')) AS cs FROM bid WHERE 0.908::DOUBLE * price > 1000000 AND "
        "0.908::DOUBLE * price < 50000000",
        note="count_char is a function of one's own",
    ),
    "q15": NexmarkQuery(
        "bidding statistics",
        "SELECT WINDOW_END() AS at, COUNT(*) AS bids, COUNT(*) FILTER (WHERE price < 10000) AS low, "
        "COUNT(DISTINCT bidder) AS bidders, COUNT(DISTINCT bidder) FILTER (WHERE price >= 1000000) AS rich, "
        "COUNT(DISTINCT auction) AS auctions FROM bid [TUMBLE 2 SECONDS]",
        "SELECT make_timestamp(ends), count(*), count(*) FILTER (price < 10000), count(DISTINCT bidder), "
        "count(DISTINCT bidder) FILTER (price >= 1000000), count(DISTINCT auction) "
        f"FROM {_buckets('bid', 2)} GROUP BY ends",
    ),
    "q16": NexmarkQuery(
        "channel statistics",
        "SELECT channel, WINDOW_END() AS at, MAX(MINUTE(ts)) AS minute, COUNT(*) AS bids, "
        "COUNT(DISTINCT bidder) FILTER (WHERE price < 10000) AS low, COUNT(DISTINCT auction) AS auctions "
        "FROM bid [TUMBLE 2 SECONDS] GROUP BY channel",
        "SELECT channel, make_timestamp(ends), max(minute(ts)), count(*), "
        "count(DISTINCT bidder) FILTER (price < 10000), "
        f"count(DISTINCT auction) FROM {_buckets('bid', 2)} GROUP BY channel, ends",
    ),
    "q17": NexmarkQuery(
        "auction statistics",
        "SELECT auction, WINDOW_END() AS at, COUNT(*) AS bids, COUNT(*) FILTER (WHERE price >= 1000000) AS high, "
        "MIN(price) AS low, MAX(price) AS top, AVG(price) AS mean, SUM(price) AS total FROM bid [TUMBLE 2 SECONDS] "
        "GROUP BY auction",
        "SELECT auction, make_timestamp(ends), count(*), count(*) FILTER (price >= 1000000), min(price), max(price), "
        f"avg(price), sum(price)::BIGINT FROM {_buckets('bid', 2)} GROUP BY auction, ends",
    ),
    "q18": NexmarkQuery(
        "last bid",
        "SELECT auction, bidder, price, channel, ts FROM (SELECT *, ROW_NUMBER() OVER (PARTITION BY bidder, auction "
        "ORDER BY ts DESC) AS place FROM bid [TUMBLE 2 SECONDS]) WHERE place <= 1",
        "SELECT auction, bidder, price, channel, ts FROM (SELECT *, row_number() OVER (PARTITION BY bidder, auction, "
        f"ends ORDER BY ts DESC, price, channel) AS place FROM {_buckets('bid', 2)}) WHERE place <= 1",
        note="of each window",
    ),
    "q19": NexmarkQuery(
        "the ten highest bids of an auction",
        "SELECT auction, bidder, price, ts, place FROM (SELECT *, ROW_NUMBER() OVER (PARTITION BY auction "
        "ORDER BY price DESC) AS place FROM bid [TUMBLE 2 SECONDS]) WHERE place <= 10",
        "SELECT auction, bidder, price, ts, place FROM (SELECT *, row_number() OVER (PARTITION BY auction, ends "
        f"ORDER BY price DESC, bidder, ts) AS place FROM {_buckets('bid', 2)}) WHERE place <= 10",
        note="of each window",
    ),
    "q20": NexmarkQuery(
        "bids with their auction",
        "SELECT b.auction, b.bidder, b.price, a.item, a.reserve FROM bid AS b JOIN auction AS a ON b.auction = a.id "
        "WHERE a.category = 10",
        "SELECT b.auction, b.bidder, b.price, a.item, a.reserve FROM bid AS b JOIN auction AS a ON b.auction = a.id "
        "WHERE a.category = 10",
        is_unbounded=True,
    ),
    "q21": NexmarkQuery(
        "channel of a bid",
        "SELECT auction, bidder, channel, CASE WHEN LOWER(channel) = 'apple' THEN '0' WHEN LOWER(channel) = 'google' "
        "THEN '1' ELSE REGEXP_EXTRACT(url, '(?:&|^|[?])channel_id=([^&]*)', 1) END AS channel_id FROM bid",
        "SELECT auction, bidder, channel, CASE WHEN lower(channel) = 'apple' THEN '0' WHEN lower(channel) = 'google' "
        "THEN '1' ELSE regexp_extract(url, '(&|^|[?])channel_id=([^&]*)', 2) END AS channel_id FROM bid",
    ),
    "q22": NexmarkQuery(
        "folders of a URL",
        "SELECT auction, bidder, REGEXP_EXTRACT(url, '^https://[^/]*/([^/]*)/([^/]*)/', 1) AS one, "
        "REGEXP_EXTRACT(url, '^https://[^/]*/([^/]*)/([^/]*)/', 2) AS two FROM bid",
        "SELECT auction, bidder, split_part(url, '/', 4) AS one, split_part(url, '/', 5) AS two FROM bid",
    ),
}  # fmt: skip

MISSING = {
    "q12": "windows of processing time; time is event time here",
}
"""The other queries, and what they need."""
