"""ASOF joins give the batch answer of the rows that the watermark has passed, whatever happens to the query.

DuckDB is given SQL that ranks the earlier rows of each row of the first stream; none of our code is involved.
"""

from __future__ import annotations

from hypothesis import event, given, settings
from hypothesis import strategies as st

from anabranch.cql import compile_query
from tests.oracle.test_count_windows import passed, run
from tests.support.duckdb_sql import select
from tests.support.oracle import batch_answer, describe_difference, rows_as_multiset
from tests.support.strategies import FILTERS, SECOND, arrivals

KEYS = {"x": "a.x", "s": "a.s", "y": "a.y + 1", "f": "a.f"}


@st.composite
def asof_queries(draw: st.DrawFn, joined: int) -> tuple[str, str]:
    """Draws a query with that many ASOF joins, as CQL and as SQL."""
    cql, sql = "", "(SELECT row_number() OVER () AS place, * FROM s0)"
    shown = ["a.p AS a_p", "a.s AS a_s"]
    for number in range(joined):
        name, is_left = "bc"[number], draw(st.booleans())
        # Batches have rows of both streams, so the query reads both.
        stream = draw(st.sampled_from(["s1", "s0"])) if number else "s1"
        columns = sorted(draw(st.sets(st.sampled_from(sorted(KEYS)), max_size=2)))
        seconds = draw(st.sampled_from([None, None, 2, 6]))
        # The columns that the query names, in the order of the stream, decide between rows of one instant.
        named = [column for column in ("x", "y", "s", "f", "p") if column in {*columns, "p"}]
        on = [f"{name}.{column} = {KEYS[column]}" for column in columns]
        window = f" [RANGE {seconds} SECONDS]" if seconds is not None else ""
        in_standard_words: bool = draw(st.booleans())
        if on and in_standard_words:
            kind = "LEFT " if is_left else ""
            cql += f" {kind}JOIN {stream}{window} FOR SYSTEM_TIME AS OF a.ts AS {name} ON {' AND '.join(on)}"
            on.append(f"{name}.ts <= a.ts")
        else:
            compared = draw(st.sampled_from(["{b}.ts <= a.ts", "a.ts >= {b}.ts"])).format(b=name)
            on.insert(draw(st.integers(0, len(on))), compared)
            kind = draw(st.sampled_from(["LEFT ASOF", "ASOF LEFT"])) if is_left else "ASOF"
            cql += f" {kind} JOIN {stream}{window} AS {name} ON {' AND '.join(on)}"
        if seconds is not None:
            on.append(f"epoch_us(a.ts) - epoch_us({name}.ts) <= {seconds * SECOND}")
        order = ", ".join(f"{name}.{column} DESC NULLS LAST" for column in ("ts", *named))
        found = f"SELECT a.*, {name}.p AS {name}_p FROM {sql} AS a {'LEFT' if is_left else ''} JOIN {stream} AS {name}"
        last = f"QUALIFY row_number() OVER (PARTITION BY a.place ORDER BY {order}) = 1"
        sql = f"({found} ON {' AND '.join(on)} {last})"
        shown.append(f"{name}.p AS {name}_p")
    filters = [text.format(a="a") for text in draw(st.lists(st.sampled_from(FILTERS), max_size=1))]
    where = f" WHERE {' AND '.join(filters)}" if filters else ""
    by_duckdb = ", ".join(["a.p AS a_p", "a.s AS a_s", *(f"a.{name}_p" for name in "bc"[:joined])])
    return f"SELECT {', '.join(shown)} FROM s0 AS a{cql}{where}", f"SELECT {by_duckdb} FROM {sql} AS a{where}"


@settings(max_examples=2 * settings().max_examples)
@given(data=st.data(), joined=st.integers(1, 2))
def test_an_asof_join_gives_the_batch_answer(data: st.DataObject, joined: int) -> None:
    rows = data.draw(arrivals(2, most_rows=12, alike=data.draw(st.booleans())), "rows")
    cql, sql = data.draw(asof_queries(joined), "query")
    query = compile_query(cql, rows.catalog)
    answer, watermark = run(data, query, rows)
    expected = rows_as_multiset(select(sql, passed(rows, watermark)))
    event(f"results: {'some' if expected else 'none'}")
    assert not describe_difference(expected, answer)


@given(data=st.data(), joined=st.integers(1, 2))
def test_the_naive_answer_agrees(data: st.DataObject, joined: int) -> None:
    rows = data.draw(arrivals(2, most_rows=8, alike=data.draw(st.booleans())), "rows")
    cql, sql = data.draw(asof_queries(joined), "query")
    query = compile_query(cql, rows.catalog)
    naive = batch_answer(query, rows.tables, watermark=2**62)
    assert not describe_difference(rows_as_multiset(select(sql, rows.tables)), naive)
