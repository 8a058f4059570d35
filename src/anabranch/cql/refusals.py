"""SQL that is not supported, and what to write instead: statements, clauses and functions.

A phrase is a sequence of words and symbols, `#` standing for a number. Invariant: a phrase is refused only where it
cannot be valid CQL, so its words remain names elsewhere. Limit: other unknown SQL raises the parser's `ParseError`.
"""

from __future__ import annotations

from anabranch.cql.cursor import RESERVED, Cursor
from anabranch.cql.lexer import Kind

_FIRST_ROWS = "for the first rows of each window, write QUALIFY ROW_NUMBER() OVER (ORDER BY …) <= 10"
_IN_FRAME = "register a DataFrame that has it, as in frame.select('*', F.explode('items').alias('item'))"
_SETS = "write one query for each set of keys, joined by UNION ALL"
_WINDOW = "write GROUP BY window(ts, '1 minute'), or [TUMBLE 1 MINUTE] after the stream"
_SINK = "write the SELECT alone; writeStream, or 'sinks:' in a spec, says where its results go"
_APPENDED = "results are only ever appended; change the table that they are written to"
_HOP = "write GROUP BY window(ts, '1 minute', '10 seconds'), or [HOP 1 MINUTE SLIDE 10 SECONDS] after the stream"
_LIST = "write COLLECT_LIST(x, 100), a list of at most 100 values"
Phrases = tuple[tuple[str, str], ...]

STATEMENTS: Phrases = (
    *((word, _SINK) for word in ("INSERT", "CREATE", "MERGE", "REPLACE")),
    ("UPDATE", _APPENDED),
    ("DELETE", _APPENDED),
    ("VALUES", "register the rows as a table and join it"),
    ("EXPLAIN", "call explain() on the query, or run anabranch explain"),
)
CLAUSES: Phrases = (
    ("ORDER BY", f"sort where the results are read; {_FIRST_ROWS}"),
    ("SORT BY", "sort where the results are read"),
    ("CLUSTER BY", "leave it out: rows are distributed by the keys of the query"),
    ("DISTRIBUTE BY", "leave it out: rows are distributed by the keys of the query"),
    ("LIMIT", _FIRST_ROWS),
    ("OFFSET #", f"a stream has no last row; {_FIRST_ROWS}"),
    ("FETCH FIRST", _FIRST_ROWS),
    ("FETCH NEXT", _FIRST_ROWS),
    ("UNION", "write UNION ALL; to see each row once per window, read it by SELECT DISTINCT"),
    ("INTERSECT", "write it as EXISTS (SELECT …) in WHERE, or as a join"),
    ("EXCEPT", "write it as NOT EXISTS (SELECT …) in WHERE"),
    ("MINUS SELECT", "write it as NOT EXISTS (SELECT …) in WHERE"),
    ("PIVOT (", "write one aggregate for each value: SUM(x) FILTER (WHERE k = 'a') AS a"),
    ("UNPIVOT (", "write one SELECT for each column, joined by UNION ALL"),
    ("TABLESAMPLE (", "filter by a column, as in WHERE id % 10 = 0"),
    ("MATCH_RECOGNIZE (", "join the stream with itself under two aliases, with conditions over their event times"),
    ("LATERAL VIEW", _IN_FRAME),
    ("CROSS APPLY", "write JOIN … ON with the columns to compare"),
    ("OUTER APPLY", "write LEFT JOIN … ON with the columns to compare"),
    ("WINDOW #name AS", "write the window inside OVER (…)"),
    ("WITH ROLLUP", _SETS),
    ("WITH CUBE", _SETS),
    ("EMIT CHANGES", "leave it out: results are emitted as soon as they are final"),
    ("FOR UPDATE", "leave it out: a query reads streams and locks nothing"),
)
AT_ALIAS: Phrases = tuple(each for each in CLAUSES if each[0].split()[0] not in RESERVED)
"""The clauses whose first word would be read as an alias."""
ITEMS: Phrases = (("TOP #", _FIRST_ROWS),)
SOURCES: Phrases = (
    ("LATERAL", "write JOIN … ON with the columns to compare; to flatten a list, " + _IN_FRAME),
    ("UNNEST (", _IN_FRAME),
    ("EXPLODE (", _IN_FRAME),
    ("TABLE (", _WINDOW),
    ("TUMBLE (", _WINDOW),
    ("HOP (", _HOP),
    ("RANGE (", "register the numbers as a table and join it"),
)
GROUPINGS: Phrases = (("GROUPING SETS", _SETS), ("ROLLUP (", _SETS), ("CUBE (", _SETS))
_NOT_REPEATED = "a batch is repeated after a crash and must give the same results"
_NOW = f"{_NOT_REPEATED}; use the event times of rows, or WINDOW_END()"
_RANDOM = f"{_NOT_REPEATED}; use a column that tells rows apart"
FUNCTIONS: dict[str, str] = {
    **dict.fromkeys(("now", "current_timestamp", "current_date", "current_time", "localtimestamp", "getdate"), _NOW),
    **dict.fromkeys(("rand", "random", "randn", "uuid", "monotonically_increasing_id", "shuffle"), _RANDOM),
    **dict.fromkeys(("explode", "explode_outer", "posexplode", "inline", "stack", "unnest"), _IN_FRAME),
    **dict.fromkeys(("grouping", "grouping_id"), _SETS),
    **dict.fromkeys(("tumble", "tumble_start", "tumble_end", "time_bucket"), _WINDOW),
    **dict.fromkeys(("array_agg", "string_agg", "listagg", "group_concat"), _LIST),
    **dict.fromkeys(("bool_or", "some", "any"), "write MAX(condition)"),
    **dict.fromkeys(("bool_and", "every"), "write MIN(condition)"),
    **dict.fromkeys(("any_value", "arbitrary"), "write FIRST(x), the value of the first row, or MIN(x)"),
    **dict.fromkeys(("first_value", "earliest"), "write FIRST(x), by event time, or MIN_BY(x, y)"),
    **dict.fromkeys(("last_value", "latest"), "write LAST(x), by event time, or MAX_BY(x, y)"),
    **dict.fromkeys(("arg_max", "argmax"), "write MAX_BY(x, y)"),
    **dict.fromkeys(("arg_min", "argmin"), "write MIN_BY(x, y)"),
    **dict.fromkeys(("percentile_cont", "quantile_cont", "quantile"), "write PERCENTILE(x, 0.5)"),
    "mode": "count each value by GROUP BY, and keep the first by QUALIFY ROW_NUMBER()",
    **dict.fromkeys(
        ("corr", "covar_pop", "covar_samp", "regr_slope", "regr_intercept"),
        "compute it from SUM(x * y), SUM(x), SUM(y), SUM(x * x), SUM(y * y) and COUNT(*)",
    ),
    "sumif": "write SUM(x) FILTER (WHERE condition)",
    "countif": "write COUNT_IF(condition)",
}
"""What to write instead of a function that does not exist, by lower-case name."""


def refuse(cursor: Cursor, phrases: Phrases) -> None:
    """Raises `Unsupported` if the cursor is at one of the phrases."""
    for phrase, remedy in phrases:
        parts = phrase.split()
        if all(_is(cursor, ahead, part) for ahead, part in enumerate(parts)):
            title = " ".join(part for part in parts if part[0].isalpha())
            raise cursor.unsupported(f"{title} is not supported", remedy)


def _is(cursor: Cursor, ahead: int, part: str) -> bool:
    token = cursor.peek(ahead)
    if part == "#":
        return token.kind is Kind.NUMBER
    if part == "#name":
        return token.kind in (Kind.WORD, Kind.QUOTED)
    return token.is_symbol(part) or token.is_word(part)
