"""A set that changes: from when on a query that joins answers, and what a set cannot become."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from anabranch.cql import compile_query
from anabranch.errors import BundleError, ForeignCheckpoint
from anabranch.lang.catalog import Catalog, StreamDeclaration, TableDeclaration
from anabranch.lang.schema import TIMESTAMP, Field, Schema
from anabranch.plan.physical import mjoin
from anabranch.plan.query_set import Plans, QuerySet, partitioning_of, together
from anabranch.run.changing import change_set, refuse_change
from anabranch.run.local import LocalHost
from anabranch.run.results import ResultLayout
from anabranch.run.store import Store
from anabranch.spark.offsets import in_scan_order, rewritten
from tests.support.scripted import read_script

SECOND = 1_000_000
SCRIPT = "stream a (k bigint, v bigint, w bigint)\nstream b (k bigint, v bigint)\nstream c (k bigint, v bigint)"
CATALOG = read_script(SCRIPT).catalog
PAIRS = "SELECT a.v AS x, b.v AS y FROM a [RANGE 9 SECONDS] AS a, b [RANGE 6 SECONDS] AS b WHERE a.k = b.k AND a.v >= 0"

COUNTED = "SELECT COUNT(*) AS n FROM b [RANGE 7 SECONDS SLIDE 1 SECOND]"


def sets(**texts: str) -> QuerySet:
    return together({name: compile_query(text, CATALOG, allow_unbounded=True) for name, text in texts.items()})


def plans(queries: QuerySet) -> Plans:
    return Plans({each.name: mjoin(each.query.graph.names) for each in queries.members})


def rows(stream: str, *times: int) -> pa.Table:
    declared = CATALOG.find(stream)
    assert declared is not None
    columns = {declared.event_time: pa.array([time * SECOND for time in times], TIMESTAMP)}
    columns |= {name: pa.array([1] * len(times)) for name in declared.schema.names if name != declared.event_time}
    return pa.table(columns)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("SELECT a.v AS x FROM a [RANGE 2 SECONDS] AS a, b [NOW] AS b WHERE a.k = b.k AND a.v >= 0", 0),
        ("SELECT a.v AS x FROM a [RANGE 9 SECONDS], b [RANGE 6 SECONDS] WHERE a.k = b.k AND a.v >= 0 AND a.v = b.v", 0),
        ("SELECT COUNT(*) AS n FROM a [RANGE 9 SECONDS SLIDE 3 SECONDS] WHERE a.v >= 0 AND a.k IS NOT NULL", 0),
        # Rows without the key of the others were not kept.
        ("SELECT COUNT(*) AS n FROM a [RANGE 9 SECONDS SLIDE 3 SECONDS] WHERE a.v >= 0", 9),
        # Rows that the filter of the others rejects were not kept.
        ("SELECT a.v AS x FROM a [RANGE 2 SECONDS] AS a, b [NOW] AS b WHERE a.k = b.k", 2),
        # Nor another column, another key, rows under another alias.
        ("SELECT a.w AS x FROM a [RANGE 3 SECONDS] AS a, b [NOW] AS b WHERE a.k = b.k AND a.v >= 0", 3),
        ("SELECT a.v AS x FROM a [RANGE 3 SECONDS] AS a, b [NOW] AS b WHERE a.w = b.k AND a.v >= 0", 3),
        ("SELECT COUNT(*) AS n FROM b [RANGE 4 SECONDS SLIDE 1 SECOND] AS z", 4),
        # Rows of a have been kept from second 3 - 9 on: b may still bring rows of second 3.
        ("SELECT a.v AS x FROM a [RANGE 13 SECONDS] AS a, b [NOW] AS b WHERE a.k = b.k AND a.v >= 0", 0),
        ("SELECT a.v AS x FROM a [RANGE 14 SECONDS] AS a, b [NOW] AS b WHERE a.k = b.k AND a.v >= 0", 1 - 1e-6),
        # A query over one stream needs no row from before.
        ("SELECT z.v AS x FROM b [RANGE 4 SECONDS] AS z", 0),
        # Rows of a without a key were not kept; of b, all that a row from then on may have met.
        ("SELECT a.v AS x FROM a [RANGE 2 SECONDS] LEFT JOIN b [RANGE 6 SECONDS] ON a.k = b.k WHERE a.v >= 0", 2),
        # A query begins as late as one inside it.
        (f"SELECT n FROM ({COUNTED}) [RANGE 5 SECONDS] AS t", 7),
        (f"SELECT n FROM ({COUNTED}) [RANGE 5 SECONDS] AS t, b [NOW] AS z", 7 + 5),
    ],
)
def test_a_query_that_joins_answers_from_the_moment_that_the_rows_allow(
    text: str, seconds: float, tmp_path: Path
) -> None:
    old, new = sets(pairs=PAIRS), sets(pairs=PAIRS, late=text)
    host = LocalHost(old, plans(old), checkpoint=str(tmp_path), slots=2)
    host.step({"a": rows("a", 1, 5, 7), "b": rows("b", 2, 3)})
    change = change_set(Store(str(tmp_path)), old, new, partitioning_of(new, 2))
    assert change.joined["late"] == 7 * SECOND + 1 + round(seconds * SECOND)
    assert change.left == ()
    again = LocalHost(new, plans(new), checkpoint=str(tmp_path), slots=2)
    assert again.batch == host.batch
    with pytest.raises(ForeignCheckpoint):
        LocalHost(old, plans(old), checkpoint=str(tmp_path), slots=2)


def test_a_key_of_which_there_is_neither_code_nor_column_is_lacking(tmp_path: Path) -> None:
    """A key that is never NULL is in no filter."""
    catalog = Catalog()
    for name in "ab":
        fields = [Field("ts", TIMESTAMP), *(Field(each, pa.int64(), nullable=False) for each in "kvw")]
        catalog.register(StreamDeclaration(name, Schema(tuple(fields)), "ts"))
    text = "SELECT a.v AS x FROM a [RANGE 4 SECONDS] AS a, b [RANGE 4 SECONDS] AS b WHERE a.{} = b.k"
    first, other = (compile_query(text.format(name), catalog) for name in "kw")
    old, new = together({"first": first}), together({"first": first, "other": other, "same": first})
    host = LocalHost(old, plans(old), checkpoint=str(tmp_path))
    host.step({"a": rows("a", 1, 5), "b": rows("b", 5).append_column("w", pa.array([1]))})
    joined = change_set(Store(str(tmp_path)), old, new, partitioning_of(new, 1)).joined
    assert joined["other"] == 5 * SECOND + 1 + 4 * SECOND


def test_before_the_first_row_the_answer_is_complete(tmp_path: Path) -> None:
    old, new = sets(pairs=PAIRS), sets(pairs=PAIRS, late="SELECT z.v AS x FROM b [RANGE 4 SECONDS] AS z")
    LocalHost(old, plans(old), checkpoint=str(tmp_path))
    change = change_set(Store(str(tmp_path)), old, new, partitioning_of(new, 1))
    assert change.joined == {"late": None}


def test_the_files_of_the_last_batch_are_still_known_to_have_been_read(tmp_path: Path) -> None:
    old, new = sets(pairs=PAIRS), sets(pairs=PAIRS, late="SELECT z.v AS x FROM b [RANGE 4 SECONDS] AS z")
    LocalHost(old, plans(old), checkpoint=str(tmp_path)).step({"a": rows("a", 1), "b": rows("b", 1)})
    store = Store(str(tmp_path))
    manifest = store.latest()
    assert manifest is not None
    store.commit(replace(manifest, pieces={"a": ("in/a/1.parquet",)}))
    change_set(store, old, new, partitioning_of(new, 1))
    changed = store.latest()
    assert changed is not None
    assert changed.pieces == {"a": ("in/a/1.parquet",)}


def test_state_that_no_query_needs_is_freed(tmp_path: Path) -> None:
    other = "SELECT z.v AS x FROM b [RANGE 90 SECONDS] AS z, a [RANGE 90 SECONDS] AS a WHERE a.k = z.k"
    both, one = sets(other=other, pairs=PAIRS), sets(pairs=PAIRS)
    host = LocalHost(both, plans(both), checkpoint=str(tmp_path))
    host.step({"a": rows("a", 1, 2), "b": rows("b", 1, 2)})
    change = change_set(Store(str(tmp_path)), both, one, partitioning_of(one, 1))
    assert change.left == ("other",)
    manifest = Store(str(tmp_path)).latest()
    assert manifest is not None
    assert {name for file in manifest.files for name in file.newest} == {"a", "b"}


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        ({"pairs": PAIRS, "more": "SELECT c.v AS x FROM c [NOW] AS c"}, "query 'more' reads stream 'c'"),
        ({"pairs": PAIRS + " AND b.v = 1"}, "query 'pairs' has another text in the running set"),
        (
            {"pairs": PAIRS, "all": "SELECT COUNT(*) AS n FROM b [UNBOUNDED SLIDE 1 SECOND] AS z"},
            "query 'all' has an unbounded window over rows that the running queries have dropped",
        ),
    ],
)
def test_changes_that_a_set_cannot_make_are_refused(texts: dict[str, str], message: str) -> None:
    with pytest.raises(BundleError, match=message) as caught:
        refuse_change(sets(pairs=PAIRS), sets(**texts))
    assert caught.value.hint


def test_queries_that_stay_keep_rows_whose_filter_they_test_themselves_from_now_on(tmp_path: Path) -> None:
    """All rows from before were lost to them: the columns of their filters were not kept, and NULL passes none."""
    filtered = PAIRS + " AND a.w > 0 AND b.v IN (1, 7) AND a.k BETWEEN 1 AND 3"
    plain = "SELECT a.v AS x, b.v AS y FROM a [RANGE 9 SECONDS] AS a, b [RANGE 6 SECONDS] AS b WHERE a.v = b.v"
    old, new = sets(pairs=filtered), sets(pairs=filtered, plain=plain)
    host = LocalHost(old, plans(old), checkpoint=str(tmp_path), slots=2)
    host.step({"a": rows("a", 1, 5)})
    change_set(Store(str(tmp_path)), old, new, partitioning_of(new, 2))
    host = LocalHost(new, plans(new), checkpoint=str(tmp_path), slots=2)
    found = ResultLayout(new).split(host.step({"b": rows("b", 6)}))
    assert found["pairs"].num_rows == 2


def test_rows_that_only_queries_without_the_key_kept_join_nothing_when_those_have_left(tmp_path: Path) -> None:
    """The code of a key that is NULL is that of some value."""
    counts = "SELECT COUNT(*) AS n FROM a [RANGE 9 SECONDS SLIDE 1 SECOND] AS a"
    joined = "SELECT a.v AS x FROM a [RANGE 9 SECONDS] AS a, b [RANGE 9 SECONDS] AS b WHERE a.k = b.k"
    both, one = sets(counts=counts, joined=joined), sets(joined=joined)
    host = LocalHost(both, plans(both), checkpoint=str(tmp_path))
    keys = pa.array([None, 0, 1], pa.int64())
    host.step({"a": rows("a", 1, 2, 3).set_column(1, "k", keys), "b": rows("b", 3)})
    change_set(Store(str(tmp_path)), both, one, partitioning_of(one, 1))
    host = LocalHost(one, plans(one), checkpoint=str(tmp_path))
    late = rows("b", 4, 4, 4).set_column(1, "k", keys)
    assert ResultLayout(one).split(host.step({"b": late}))["joined"].num_rows == 2


def test_a_stand_in_is_never_taken_for_a_value(tmp_path: Path) -> None:
    """Rows from before the first change have no `w`; a query of the second change must not read it of them."""
    first = "SELECT a.v AS x, b.v AS y FROM a [RANGE 9 SECONDS] AS a, b [RANGE 6 SECONDS] AS b WHERE a.k = b.k"
    wide = first.replace("a.v AS x", "a.w AS x")
    several = [sets(first=first), sets(first=first, wide=wide), sets(first=first, wide=wide, again=wide)]
    host = LocalHost(several[0], plans(several[0]), checkpoint=str(tmp_path))
    host.step({"a": rows("a", 1, 5), "b": rows("b", 5)})
    joined = change_set(Store(str(tmp_path)), several[0], several[1], partitioning_of(several[1], 1)).joined
    assert joined == {"wide": 5 * SECOND + 1 + 9 * SECOND}
    host = LocalHost(several[1], plans(several[1]), checkpoint=str(tmp_path))
    host.step({"a": rows("a", 8), "b": rows("b", 8)})
    joined = change_set(Store(str(tmp_path)), several[1], several[2], partitioning_of(several[2], 1)).joined
    assert joined == {"again": 5 * SECOND + 1 + 9 * SECOND}
    host = LocalHost(several[2], plans(several[2]), checkpoint=str(tmp_path))
    host.step({"a": rows("a", 20), "b": rows("b", 20)})
    without = sets(first=first, again=wide)
    change_set(Store(str(tmp_path)), several[2], without, partitioning_of(without, 1))
    host = LocalHost(without, plans(without), checkpoint=str(tmp_path))
    joined = change_set(Store(str(tmp_path)), without, several[2], partitioning_of(several[2], 1)).joined
    assert joined == {"wide": 20 * SECOND + 1}


def test_a_filter_over_columns_that_were_not_kept_and_some_that_were_is_refused() -> None:
    filtered = PAIRS + " AND a.v < a.w"
    plain = "SELECT a.v AS x FROM a [RANGE 9 SECONDS] AS a"
    with pytest.raises(BundleError, match="rows of 'a' lack columns that the running queries") as caught:
        refuse_change(sets(pairs=filtered), sets(pairs=filtered, plain=plain))
    assert "give 'a' another alias" in caught.value.hint
    refuse_change(sets(pairs=filtered), sets(pairs=filtered, plain="SELECT z.v AS x FROM a [RANGE 9 SECONDS] AS z"))


def test_the_versions_of_tables_are_carried_over(tmp_path: Path) -> None:
    catalog = CATALOG.copy()
    catalog.register_table(TableDeclaration("t", Schema((Field("k", pa.int64()), Field("v", pa.int64())))))
    looked_up = "SELECT a.v AS x FROM a [RANGE 9 SECONDS] AS a, t WHERE a.k = t.k"
    texts = {"pairs": PAIRS, "looked_up": looked_up, "again": looked_up.replace("RANGE 9", "RANGE 3")}
    queries = {name: compile_query(text, catalog) for name, text in texts.items()}
    old = together({name: queries[name] for name in ("pairs", "looked_up")})
    table = pa.table({"k": [1, 2], "v": [5, 6]})
    host = LocalHost(old, plans(old), checkpoint=str(tmp_path), tables={"t": table})
    host.step({"a": rows("a", 1, 5), "b": rows("b", 2)})
    new = together(queries)
    change = change_set(Store(str(tmp_path)), old, new, partitioning_of(new, 1))
    assert change.joined == {"again": 5 * SECOND + 1}
    # The first batch after the change may be a repetition: it meets the version that is there.
    host = LocalHost(new, plans(new), checkpoint=str(tmp_path), tables={"t": table.slice(0, 0)})
    found = ResultLayout(new).split(host.step({"a": rows("a", 6), "b": rows("b", 6)}))
    assert {name: part.num_rows for name, part in found.items()} == {"again": 1, "looked_up": 1, "pairs": 4}
    more = compile_query("SELECT t.v AS x FROM a [NOW] AS a, t WHERE a.k = t.k", catalog)
    with pytest.raises(BundleError, match="column 'v' of table 't' is not read by the running queries"):
        refuse_change(new, together({**queries, "more": more}))
    without = together({"pairs": queries["pairs"]})
    change_set(Store(str(tmp_path)), new, without, partitioning_of(without, 1))
    assert not Store(str(tmp_path)).table_versions()


def test_offsets_are_written_anew_for_other_scans_of_the_same_streams() -> None:
    queries = sets(pairs=PAIRS, more="SELECT z.v AS x FROM a [NOW] AS z")
    scans = [scan if isinstance(scan, str) else scan[1].name for scan in in_scan_order(queries, ["b", "c", "a"])]
    assert scans == ["b", "c", "z", "a"]
    assert rewritten("v1\n{}\n7\n8\n9", ["b", "c", "a"], ["b", "c", "a", "a"]) == "v1\n{}\n7\n8\n9\n9"
