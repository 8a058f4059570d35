"""SQL that people write: FILTER, USING and GROUP BY ALL mean their longer forms; errors say what to write instead."""

from __future__ import annotations

import pyarrow as pa
import pytest

from anabranch.cql import compile_query
from anabranch.errors import BindError, CqlError, Unsupported
from anabranch.lang.catalog import Catalog, StreamDeclaration
from anabranch.lang.schema import TIMESTAMP, Field, Schema
from anabranch.plan.physical import Leaf
from anabranch.run.local import LocalHost
from tests.support.duckdb_sql import select

FIELDS = {"ts": TIMESTAMP, "k": pa.int64(), "s": pa.string(), "v": pa.float64(), "b": pa.bool_()}
W = "[RANGE 10 SECONDS]"


def catalog() -> Catalog:
    found = Catalog()
    for name, more in (("a", {}), ("b", {"w": pa.int64()}), ("c", {"z": pa.int64()})):
        fields = tuple(Field(each, kind, each != "ts") for each, kind in {**FIELDS, **more}.items())
        found.register(StreamDeclaration(name, Schema(fields), "ts"))
    return found


def fingerprint(text: str) -> str:
    return compile_query(text, catalog()).fingerprint


GROUPS = f"FROM a {W[:-1]} SLIDE 5 SECONDS] GROUP BY k"


@pytest.mark.parametrize(
    ("short", "long"),
    [
        (f"SELECT k, SUM(v) FILTER (WHERE b) AS n {GROUPS}", f"SELECT k, SUM(CASE WHEN b THEN v END) AS n {GROUPS}"),
        (
            f"SELECT k, COUNT(*) FILTER (WHERE v > 1) AS n {GROUPS}",
            f"SELECT k, COUNT(CASE WHEN v > 1 THEN TRUE END) AS n {GROUPS}",
        ),
        (
            f"SELECT k, COUNT_IF(v > 1) AS n {GROUPS}",
            f"SELECT k, COUNT(*) FILTER (WHERE v > 1) AS n {GROUPS}",
        ),
        (
            f"SELECT k, COUNT(DISTINCT s) FILTER (WHERE b) AS n {GROUPS}",
            f"SELECT k, COUNT(DISTINCT CASE WHEN b THEN s END) AS n {GROUPS}",
        ),
        (
            f"SELECT k, MAX_BY(s, v) FILTER (WHERE b) AS n {GROUPS}",
            f"SELECT k, MAX_BY(CASE WHEN b THEN s END, CASE WHEN b THEN v END) AS n {GROUPS}",
        ),
        (
            "SELECT s, k, COUNT(*) AS n, 1 AS one FROM a [TUMBLE 5 SECONDS] GROUP BY ALL",
            "SELECT s, k, COUNT(*) AS n, 1 AS one FROM a [TUMBLE 5 SECONDS] GROUP BY s, k",
        ),
        (
            "SELECT window(ts, '5 seconds'), k + 1 AS k1, COUNT(*) AS n FROM a GROUP BY ALL",
            "SELECT window(ts, '5 seconds'), k + 1 AS k1, COUNT(*) AS n FROM a GROUP BY window(ts, '5 seconds'), k + 1",
        ),
        ("SELECT k FROM a WHERE v::INT > 1", "SELECT k FROM a WHERE CAST(v AS INT) > 1"),
        ("SELECT v::DECIMAL(9, 2) AS d FROM a", "SELECT CAST(v AS DECIMAL(9, 2)) AS d FROM a"),
        ("SELECT k FROM a WHERE b IS TRUE", "SELECT k FROM a WHERE b <=> TRUE"),
        ("SELECT k FROM a WHERE b IS NOT FALSE", "SELECT k FROM a WHERE NOT b <=> FALSE"),
        ("SELECT k FROM a WHERE b IS UNKNOWN", "SELECT k FROM a WHERE b IS NULL"),
        ("SELECT k FROM a WHERE s ILIKE 'Ab%'", "SELECT k FROM a WHERE LOWER(s) LIKE 'ab%'"),
        ("SELECT k FROM a WHERE s NOT ILIKE 'Ab%'", "SELECT k FROM a WHERE NOT LOWER(s) LIKE 'ab%'"),
        ("SELECT k FROM a WHERE s REGEXP 'b+'", "SELECT k FROM a WHERE s RLIKE 'b+'"),
        ("SELECT * EXCEPT (v, B) FROM a", "SELECT ts, k, s FROM a"),
        ("SELECT x.* EXCLUDE (v) FROM a AS x", "SELECT ts, k, s, b FROM a AS x"),
        (
            "SELECT k FROM a WHERE ts > TIMESTAMP '2026-07-01 12:00:00 Europe/Berlin'",
            "SELECT k FROM a WHERE ts > TIMESTAMP '2026-07-01 10:00:00'",
        ),
        (
            f"SELECT k, s, w FROM a {W} JOIN b {W} USING (k, s)",
            f"SELECT a.k, a.s, w FROM a {W} JOIN b {W} ON a.k = b.k AND a.s = b.s",
        ),
        (
            f"SELECT * FROM a {W} LEFT JOIN b {W} USING (k)",
            f"""SELECT a.k, a.ts AS a_ts, a.s AS a_s, a.v AS a_v, a.b AS a_b,
                       b.ts AS b_ts, b.s AS b_s, b.v AS b_v, b.b AS b_b, w
                FROM a {W} LEFT JOIN b {W} ON a.k = b.k""",
        ),
        (
            f"SELECT K, b.k AS bk, w FROM a {W} RIGHT JOIN b {W} USING (k) WHERE k > 1",
            f"SELECT b.k, b.k AS bk, w FROM a {W} RIGHT JOIN b {W} ON a.k = b.k WHERE b.k > 1",
        ),
        (
            f"SELECT k, w, z FROM a {W} JOIN b {W} USING (k) LEFT JOIN c {W} USING (k)",
            f"SELECT a.k, w, z FROM a {W} JOIN b {W} ON a.k = b.k LEFT JOIN c {W} ON a.k = c.k",
        ),
        (
            f"SELECT k, a.s FROM a {W} LEFT SEMI JOIN b {W} USING (k)",
            f"SELECT k, a.s FROM a {W} LEFT SEMI JOIN b {W} ON a.k = b.k",
        ),
        (
            """SELECT window(a.ts, '1 minute'), k, COUNT(w) AS n FROM a [RANGE 5 SECONDS]
               LEFT JOIN b [RANGE 5 SECONDS] USING (k) GROUP BY window(a.ts, '1 minute'), k""",
            """SELECT window(a.ts, '1 minute'), a.k, COUNT(w) AS n FROM a [RANGE 5 SECONDS]
               LEFT JOIN b [RANGE 5 SECONDS] ON a.k = b.k GROUP BY window(a.ts, '1 minute'), a.k""",
        ),
        (
            """SELECT k, w FROM a [TUMBLE 5 SECONDS] JOIN b [TUMBLE 5 SECONDS] USING (k)
               QUALIFY ROW_NUMBER() OVER (PARTITION BY k ORDER BY w) <= 2""",
            """SELECT a.k, w FROM a [TUMBLE 5 SECONDS] JOIN b [TUMBLE 5 SECONDS] ON a.k = b.k
               QUALIFY ROW_NUMBER() OVER (PARTITION BY a.k ORDER BY w) <= 2""",
        ),
        (
            f"SELECT k, w FROM (SELECT k, v FROM a) {W} AS x JOIN (SELECT k, w FROM b) {W} AS y USING (k)",
            f"SELECT x.k, w FROM (SELECT k, v FROM a) {W} AS x JOIN (SELECT k, w FROM b) {W} AS y ON x.k = y.k",
        ),
    ],
)
def test_a_short_form_is_its_long_form(short: str, long: str) -> None:
    assert fingerprint(short) == fingerprint(long)


ROWS = pa.table(
    {
        "ts": pa.array([n * 1_000_000 for n in range(40)], pa.int64()).cast(pa.timestamp("us")).cast(TIMESTAMP),
        "k": pa.array([n % 3 for n in range(40)], pa.int64()),
        "s": ["ab"[n % 2] if n % 5 else None for n in range(40)],
        "v": [(7 * n % 11) / 2 if n % 7 else None for n in range(40)],
        "b": [(n % 4 == 1) if n % 6 else None for n in range(40)],
    }
)


@pytest.mark.parametrize(
    ("aggregate", "sql"),
    [
        ("COUNT(*)", "COUNT(*)"),
        ("COUNT(v)", "COUNT(v)"),
        ("COUNT(DISTINCT s)", "COUNT(DISTINCT s)"),
        ("SUM(v)", "SUM(v)"),
        ("AVG(v)", "AVG(v)"),
        ("MIN(s)", "MIN(s)"),
        ("MAX_BY(k, v)", "MAX_BY(k, v)"),
        ("FIRST(k)", "ARG_MIN(k, ts)"),
        ("LAST(s)", "ARG_MAX_NULL(s, ts)"),
        ("MEDIAN(v)", "MEDIAN(v)"),
        ("STDDEV(v)", "STDDEV_SAMP(v)"),
        ("COLLECT_LIST(v, 50)", "LIST(v ORDER BY ts) FILTER (WHERE v IS NOT NULL AND ({f}))"),
    ],
)
@pytest.mark.parametrize("condition", ["b", "v > 1", "NOT b OR s = 'a'", "k = 7"])
def test_filter_gives_the_answer_of_duckdb(aggregate: str, sql: str, condition: str) -> None:
    text = f"SELECT k, {aggregate} FILTER (WHERE {condition}) AS n FROM a [TUMBLE 20 SECONDS] GROUP BY k"
    query = compile_query(text, catalog())
    host = LocalHost(query, Leaf("a"))
    last = ROWS.slice(39).set_column(0, "ts", pa.array([10**9], pa.int64()).cast(pa.timestamp("us")).cast(TIMESTAMP))
    found = [row for batch in (ROWS.slice(0, 15), ROWS.slice(15), last) for row in host.step({"a": batch}).to_pylist()]
    filtered = sql.format(f=condition) if "{f}" in sql else f"{sql} FILTER (WHERE {condition})"
    asked = f"SELECT k, {filtered} AS n FROM a GROUP BY k, epoch_us(ts) // 20000000"
    plain = ROWS.set_column(0, "ts", ROWS.column("ts").cast(pa.timestamp("us")))
    expected = select(asked, {"a": plain}).to_pylist()
    assert sorted(map(_comparable, found)) == sorted(map(_comparable, expected))


def _comparable(row: dict[str, object]) -> str:
    n = row["n"]
    # A list without elements is NULL in DuckDB.
    n = None if n == [] else round(n, 9) if isinstance(n, float) else n
    return f"{row['k']} {n}"


@pytest.mark.parametrize(
    ("text", "error", "message", "hint"),
    [
        (f"SELECT k FROM a {W} FULL JOIN b {W} USING (k)", Unsupported, "USING in a FULL JOIN", "COALESCE(a.k, b.k)"),
        (f"SELECT k FROM a {W} JOIN b {W} USING (w)", BindError, "'w' of USING is in 0 relations", "write ON"),
        (f"SELECT z FROM a {W} JOIN c {W} USING (z)", BindError, "'z' of USING is in 0 relations", "write ON"),
        (f"SELECT w FROM b {W} JOIN a {W} USING (w)", BindError, "'w' of USING does not exist in 'a'", "has ts, k"),
        (
            f"SELECT k FROM a {W} JOIN b {W} ON a.s = b.s JOIN c {W} USING (k)",
            BindError,
            "'k' of USING is in 2 relations",
            "they are a, b",
        ),
        ("SELECT k FROM a ASOF JOIN b USING (k)", Unsupported, "USING in an ASOF JOIN", "b.ts <= a.ts"),
        (
            f"SELECT k FROM a {W} WHERE EXISTS (SELECT 1 FROM b {W} JOIN c {W} USING (k))",
            Unsupported,
            "USING in a subquery",
            "JOIN … ON",
        ),
        (f"SELECT a.k FROM a {W} NATURAL JOIN b {W}", Unsupported, "NATURAL joins", "USING (column)"),
        (f"SELECT a.k FROM a {W} JOIN b {W}", CqlError, "expected ON or USING", "CROSS JOIN"),
        ("SELECT UPPER(s) FILTER (WHERE b) AS u FROM a", BindError, "'UPPER' does not take FILTER", "SUM(x)"),
        (f"SELECT SUM(v) FILTER (WHERE v) AS u {GROUPS}", BindError, "FILTER expects a condition", "compare it"),
        (f"SELECT SUM(v) FILTER (WHERE SUM(v) > 1) AS u {GROUPS}", BindError, "not allowed inside FILTER", "HAVING"),
        (f"SELECT COUNT_IF(b, b) AS u {GROUPS}", BindError, "'COUNT_IF' takes one argument, a condition", ""),
        ("SELECT * EXCEPT (q) FROM a", BindError, "column 'q' of EXCEPT does not exist", "* has ts, k"),
        (
            "SELECT * FROM a [TUMBLE 1 MINUTE] GROUP BY ALL",
            CqlError,
            "GROUP BY ALL does not take *",
            "name the columns",
        ),
        ("SELECT k FROM a OFFSET 3", Unsupported, "OFFSET", "QUALIFY ROW_NUMBER()"),
        ("SELECT k FROM a FETCH FIRST 3 ROWS ONLY", Unsupported, "FETCH FIRST", "QUALIFY ROW_NUMBER()"),
        ("SELECT TOP 3 k FROM a", Unsupported, "TOP", "QUALIFY ROW_NUMBER()"),
        ("SELECT k FROM a INTERSECT SELECT k FROM b", Unsupported, "INTERSECT", "EXISTS"),
        ("SELECT k FROM a MINUS SELECT k FROM b", Unsupported, "MINUS", "NOT EXISTS"),
        ("SELECT * FROM a PIVOT (SUM(v) FOR s IN ('a'))", Unsupported, "PIVOT", "FILTER (WHERE k = 'a')"),
        ("SELECT * FROM a UNPIVOT (v FOR n IN (k, v))", Unsupported, "UNPIVOT", "UNION ALL"),
        ("SELECT * FROM a TABLESAMPLE (10 PERCENT)", Unsupported, "TABLESAMPLE", "WHERE id % 10"),
        ("SELECT * FROM a MATCH_RECOGNIZE (PATTERN (A))", Unsupported, "MATCH_RECOGNIZE", "two aliases"),
        ("SELECT k FROM a LATERAL VIEW EXPLODE(s) e AS x", Unsupported, "LATERAL VIEW", "F.explode"),
        ("SELECT k FROM a, LATERAL (SELECT 1 FROM b) AS x", Unsupported, "LATERAL", "JOIN … ON"),
        ("SELECT k FROM a, UNNEST(s) AS x", Unsupported, "UNNEST", "F.explode"),
        ("SELECT EXPLODE(s) AS x FROM a", Unsupported, "'EXPLODE' does not exist", "F.explode"),
        ("SELECT k FROM a AS x CROSS APPLY b", Unsupported, "CROSS APPLY", "JOIN … ON"),
        ("SELECT k, COUNT(*) AS n FROM a GROUP BY ROLLUP (k)", Unsupported, "ROLLUP", "UNION ALL"),
        ("SELECT k, COUNT(*) AS n FROM a GROUP BY s, CUBE (k)", Unsupported, "CUBE", "UNION ALL"),
        ("SELECT k, COUNT(*) AS n FROM a GROUP BY GROUPING SETS ((k))", Unsupported, "GROUPING SETS", "UNION ALL"),
        ("SELECT k, COUNT(*) AS n FROM a GROUP BY k WITH ROLLUP", Unsupported, "WITH ROLLUP", "UNION ALL"),
        ("SELECT k FROM a WHERE v > ALL (SELECT v FROM b)", Unsupported, "ALL (SELECT …)", "NOT EXISTS"),
        ("SELECT k FROM a WHERE v > ANY (SELECT v FROM b)", Unsupported, "ANY (SELECT …)", "EXISTS"),
        ("SELECT ts AT TIME ZONE 'Europe/Berlin' AS t FROM a", Unsupported, "AT TIME ZONE", "times are UTC"),
        ("SELECT k FROM a WHERE ts > TIMESTAMP '2026-01-01 x/y'", CqlError, "is not a timestamp", "+01:00"),
        ("SELECT k FROM a WHERE ts > NOW()", Unsupported, "'NOW' does not exist", "event times"),
        (
            "SELECT k FROM a WHERE ts > CURRENT_TIMESTAMP",
            BindError,
            "'CURRENT_TIMESTAMP' does not exist",
            "event times",
        ),
        ("SELECT RAND() AS r FROM a", Unsupported, "'RAND' does not exist", "tells rows apart"),
        (f"SELECT ANY_VALUE(v) AS x {GROUPS}", Unsupported, "'ANY_VALUE' does not exist", "FIRST(x)"),
        (f"SELECT BOOL_OR(b) AS x {GROUPS}", Unsupported, "'BOOL_OR' does not exist", "MAX(condition)"),
        (f"SELECT STRING_AGG(s, ',') AS x {GROUPS}", Unsupported, "'STRING_AGG' does not exist", "COLLECT_LIST"),
        (f"SELECT CORR(k, v) AS x {GROUPS}", Unsupported, "'CORR' does not exist", "SUM(x * y)"),
        (f"SELECT PERCENTILE_CONT(0.5) WITHIN GROUP (ORDER BY v) AS x {GROUPS}", Unsupported, "WITHIN GROUP", "MEDIAN"),
        (f"SELECT COUNT(DISTINCT k, v) AS x {GROUPS}", BindError, "takes one argument", "SELECT DISTINCT"),
        (f"SELECT SUM(DISTINCT v) AS x {GROUPS}", Unsupported, "DISTINCT inside SUM", "SELECT DISTINCT"),
        ("SELECT k, COUNT(*) AS n FROM TABLE(TUMBLE(TABLE a)) GROUP BY k", Unsupported, "TABLE", "window(ts"),
        (
            "SELECT COUNT(*) AS n FROM a GROUP BY TUMBLE(ts, INTERVAL '1' MINUTE)",
            BindError,
            "a grouped query needs a SLIDE",
            "window(ts, '1 minute')",
        ),
        (
            "SELECT COUNT(*) AS n FROM a AS q GROUP BY DATE_TRUNC('HOUR', q.ts)",
            BindError,
            "a grouped query needs a SLIDE",
            "window(q.ts, '1 hour')",
        ),
        ("SELECT v * 2 AS w FROM a WHERE w > 3", BindError, "column 'w' does not exist", "the expression of 'w'"),
        ("INSERT INTO x SELECT k FROM a", Unsupported, "INSERT", "writeStream"),
        ("DELETE FROM a", Unsupported, "DELETE", "only ever appended"),
        ("SELECT k FROM a WHERE v > :limit", CqlError, "unexpected character ':'", "takes no parameters"),
    ],
)
def test_the_error_says_what_to_write(text: str, error: type[CqlError], message: str, hint: str) -> None:
    with pytest.raises(error) as caught:
        compile_query(text, catalog())
    first, *more = str(caught.value).splitlines()
    assert message in first
    assert hint in "\n".join(more)


def test_words_of_refused_clauses_remain_names() -> None:
    text = "SELECT offset.k AS top, offset.v AS minus, offset.s AS pivot, offset.b AS filter FROM a AS offset"
    assert compile_query(text, catalog()).schema.names == ("top", "minus", "pivot", "filter")
