"""Tables beside streams in a host: what slots hold and keep, which version a batch meets, what is refused."""

from __future__ import annotations

from pathlib import Path
from unittest import mock

import pyarrow as pa
import pytest

from anabranch.checkpoint.copying import copy
from anabranch.checkpoint.examine import faults
from anabranch.cql import compile_query
from anabranch.errors import BatchError
from anabranch.lang.catalog import Catalog, StreamDeclaration, TableDeclaration
from anabranch.lang.ddl import parse_schema
from anabranch.plan.physical import linear_tree, mjoin
from anabranch.plan.query import Query
from anabranch.plan.query_set import alone
from anabranch.run import tables
from anabranch.run.local import LocalHost
from anabranch.run.tables import TableVersions
from tests.support.hosts import engines_of
from tests.support.scripted import SECOND, answer_lines

LOOKUP = "SELECT a.v AS v, t.name AS name FROM a LEFT JOIN t ON a.k = t.k"
INNER = "SELECT a.v AS v, t.name AS name FROM a, t WHERE a.k = t.k AND t.name <> 'gone'"


def query_of(text: str) -> Query:
    catalog = Catalog()
    for name in "ab":
        catalog.register(StreamDeclaration(name, parse_schema("ts timestamp, k bigint, v string"), "ts"))
    catalog.register_table(TableDeclaration("t", parse_schema("k bigint, name string, extra string")))
    return compile_query(text, catalog)


def rows(*several: tuple[int, int | None, str]) -> pa.Table:
    times, keys, values = zip(*several, strict=True)
    moments = pa.array([time * SECOND for time in times], pa.int64()).cast(pa.timestamp("us"))
    return pa.table({"ts": moments.cast(pa.timestamp("us", "UTC")), "k": pa.array(keys, pa.int64()), "v": values})


def table_of(*several: tuple[int | None, str]) -> pa.Table:
    keys, names = zip(*several, strict=True)
    return pa.table({"k": pa.array(keys, pa.int64()), "name": pa.array(names), "extra": pa.array(names)})


def host_of(text: str, *several: tuple[int | None, str], slots: int = 1, checkpoint: Path | None = None) -> LocalHost:
    query = query_of(text)
    kept = None if checkpoint is None else str(checkpoint)
    return LocalHost(query, mjoin(query.graph.names), slots=slots, checkpoint=kept, tables={"t": table_of(*several)})


def test_a_batch_never_meets_two_versions() -> None:
    """Slots may have read the first one when the second is offered."""
    versions = TableVersions(alone(query_of(INNER)), None)
    versions.offer("t", table_of((1, "one")))
    first = versions.in_force(0)
    versions.offer("t", table_of((1, "one"), (2, "two")))
    assert versions.in_force(0) == first
    later = versions.in_force(1)
    assert later != first
    assert versions.read(later["t"]).num_rows == 2


def test_a_small_table_is_in_every_slot_and_streams_are_spread_by_their_rows() -> None:
    host = host_of(INNER, (1, "one"), (2, "two"), (3, "gone"), slots=3)
    assert [dimension.code for dimension in host.partitioning.dimensions] == ["row.a"]
    host.step({})
    assert [engine.bases["t"].ring.live for engine in engines_of(host)] == [2, 2, 2]


def test_a_large_table_is_spread_by_the_key_that_it_shares() -> None:
    with mock.patch.object(tables, "SMALL", 2):
        host = host_of(INNER, *((key, "name") for key in range(300)), slots=3)
    host.step({})
    held = [engine.bases["t"].ring.live for engine in engines_of(host)]
    assert sum(held) == 300
    assert min(held) > 50


def test_a_stream_that_only_tables_are_joined_to_is_not_kept() -> None:
    for text in (LOOKUP, INNER):
        host = host_of(text, (1, "one"))
        host.step({"a": rows((0, 1, "x"), (1, 2, "y"))})
        host.step({"a": rows((2, 1, "z"))})
        (engine,) = engines_of(host)
        assert engine.bases["a"].ring.live <= 1


def test_combinations_that_only_a_table_is_missing_from_are_not_kept() -> None:
    query = query_of(
        "SELECT a.v AS v, t.name AS name FROM a [RANGE 60 SECONDS], b [RANGE 60 SECONDS], t "
        "WHERE a.k = b.k AND b.k = t.k"
    )
    host = LocalHost(query, linear_tree(("a", "b", "t")), tables={"t": table_of((1, "one"))})
    for second in range(5):
        host.step({"a": rows((second, 1, "x")), "b": rows((second, 1, "y"))})
    (engine,) = engines_of(host)
    (between,) = engine.only.track.intermediates.values()
    assert between.ring.live < 10 < 25


def test_rows_without_a_match_in_a_table_are_emitted_at_once() -> None:
    host = host_of(LOOKUP, (1, "one"), (1, "eins"), (None, "nobody"))
    answer = host.step({"a": rows((0, 1, "x"), (0, 2, "y"), (0, None, "z"))})
    assert answer_lines(answer) == ("x eins", "x one", "y -", "z -")
    host.change_table("t", table_of((2, "two")))
    assert answer_lines(host.step({"a": rows((1, 1, "x"), (1, 2, "y"))})) == ("x -", "y two")


def test_a_repeated_batch_meets_the_version_that_it_met(tmp_path: Path) -> None:
    """A crash before the commit of a batch: the restart reads another table, and repeats the batch with the old one."""
    host_of(LOOKUP, (1, "old"), checkpoint=tmp_path).step({"a": rows((0, 1, "x"))})
    again = host_of(LOOKUP, (1, "new"), checkpoint=tmp_path, slots=2)
    assert answer_lines(again.step({"a": rows((1, 1, "y"))})) == ("y old",)
    assert answer_lines(again.step({"a": rows((2, 1, "z"))})) == ("z new",)


def test_a_change_before_the_first_batch_is_met_by_it() -> None:
    host = host_of(LOOKUP, (1, "old"))
    host.change_table("t", table_of((1, "new")))
    assert answer_lines(host.step({"a": rows((0, 1, "x"))})) == ("x new",)


def test_the_same_rows_are_no_new_version(tmp_path: Path) -> None:
    host = host_of(LOOKUP, (1, "one"), checkpoint=tmp_path)
    for second in range(3):
        host.change_table("t", table_of((1, "one")))
        host.step({"a": rows((second, 1, "x"))})
    assert [file.name for file in (tmp_path / "anabranch" / "tables").iterdir()] == ["000000000-t.arrow"]
    for second in range(3, 6):
        host.change_table("t", table_of((1, f"name {second}")))
        host.step({"a": rows((second, 1, "x"))})
    # Of the last two manifests.
    names = sorted(file.name for file in (tmp_path / "anabranch" / "tables").iterdir())
    assert names == ["000000004-t.arrow", "000000005-t.arrow"]


def test_a_copy_of_a_checkpoint_has_its_tables(tmp_path: Path) -> None:
    host_of(LOOKUP, (1, "old"), checkpoint=tmp_path / "first").step({"a": rows((0, 1, "x"))})
    copy(str(tmp_path / "first"), str(tmp_path / "second"))
    assert not list(faults(str(tmp_path / "second")))
    again = host_of(LOOKUP, (1, "new"), checkpoint=tmp_path / "second")
    assert answer_lines(again.step({"a": rows((1, 1, "y"))})) == ("y old",)
    for file in (tmp_path / "second" / "anabranch" / "tables").iterdir():
        file.unlink()
    assert [fault for fault in faults(str(tmp_path / "second")) if "tables/000000000-t.arrow" in str(fault)]


@pytest.mark.parametrize(
    "text",
    [
        "SELECT WINDOW_END() AS at, COUNT(*) AS n FROM a [RANGE 5 SECONDS SLIDE 5 SECONDS], t WHERE a.k = t.k",
        "SELECT a.v AS v FROM a [RANGE 5 SECONDS] JOIN t ON a.k = t.k LEFT ANTI JOIN b [NOW] ON a.k = b.k",
    ],
)
def test_where_results_wait_the_first_version_stays(text: str, tmp_path: Path) -> None:
    host = host_of(text, (1, "one"), checkpoint=tmp_path)
    batch = {name: rows((0, 1, "x")) for name in host.queries.graph.streams}
    host.step(batch)
    with pytest.raises(BatchError, match="table 't' cannot change: the query has groups or waits for the watermark"):
        host.change_table("t", table_of((2, "two")))
    again = host_of(text, (2, "two"), checkpoint=tmp_path)
    for second in (1, 9):
        again.step({name: rows((second, 1, "x")) for name in again.queries.graph.streams})
    (engine,) = engines_of(again)
    assert engine.versions == {"t": "000000000-t.arrow"}


def test_late_rows_beside_a_table_are_told_apart() -> None:
    host = host_of(INNER, (1, "one"))
    host.step({"a": rows((9, 1, "x"))})
    assert host.step({"a": rows((3, 1, "late"))}).num_rows == 0
    assert host.late == {"a": 1}


def test_tables_that_do_not_fit_are_named() -> None:
    query = query_of(INNER)
    with pytest.raises(BatchError, match="table 't' has no rows"):
        LocalHost(query, mjoin(("a", "t")))
    with pytest.raises(BatchError, match="the query reads no table 'u'"):
        LocalHost(query, mjoin(("a", "t")), tables={"u": table_of((1, "one"))})
    with pytest.raises(BatchError, match="table 't' has no column 'name'"):
        LocalHost(query, mjoin(("a", "t")), tables={"t": table_of((1, "one")).select(["k"])})
