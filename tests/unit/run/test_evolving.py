"""Changed queries and their checkpoint: consent, the announcement, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from anabranch.cql import compile_query, declared_results
from anabranch.errors import ForeignCheckpoint, QueryChanged
from anabranch.lang.catalog import Catalog, StreamDeclaration, TableDeclaration
from anabranch.lang.ddl import parse_schema
from anabranch.lang.schema import TIMESTAMP
from anabranch.plan.physical import mjoin
from anabranch.plan.query_set import ALONE, Plans, QuerySet, partitioning_of, set_of
from anabranch.plan.text import parse
from anabranch.run.changing import SetChange
from anabranch.run.evolving import Evolve, follow
from anabranch.run.local import LocalHost
from anabranch.run.store import Store

SECOND = 1_000_000
JOIN = "SELECT a.v AS x, b.v AS y FROM a [RANGE 10 SECONDS], b [RANGE 10 SECONDS] WHERE a.k = b.k"
FILTERED = f"{JOIN} AND a.v > 1"


def catalog() -> Catalog:
    found = Catalog()
    for name in "abc":
        found.register(StreamDeclaration(name, parse_schema("ts timestamp, k bigint, v bigint"), "ts"))
    found.register_table(TableDeclaration("t", parse_schema("k bigint, w bigint")))
    return found


def queries(texts: Mapping[str, str]) -> QuerySet:
    known, found = catalog(), {}
    for name, text in texts.items():
        found[name] = compile_query(text, known)
        if name:
            known.register(declared_results(name, found[name]))
    return set_of(found)


def rows(second: int) -> dict[str, pa.Table]:
    times = pa.array(np.array([second * SECOND]).astype("datetime64[us]")).cast(TIMESTAMP)
    return {name: pa.table({"ts": times, "k": [1], "v": [second]}) for name in "ab"}


def ran(folder: Path, texts: Mapping[str, str], seconds: range) -> list[dict[str, int]]:
    several = queries(texts)
    plans = Plans({name: parse("(a b)") for name in several.names})
    host = LocalHost(several, plans, checkpoint=str(folder))
    return [row for second in seconds for row in host.step(rows(second)).to_pylist()]


def evolved(folder: Path, texts: Mapping[str, str], evolve: Evolve = Evolve.ALLOW) -> SetChange | None:
    several = queries(texts)
    return follow(Store(str(folder)), several, catalog(), lambda: partitioning_of(several, 1), evolve)


def test_to_ask_shows_the_difference_and_when_results_are_complete(tmp_path: Path) -> None:
    ran(tmp_path, {ALONE: JOIN}, range(3))
    before = (tmp_path / "anabranch" / "metadata.json").read_text()
    with pytest.raises(QueryChanged, match="has changed") as caught:
        evolved(tmp_path, {ALONE: FILTERED}, Evolve.ASK)
    assert caught.value.detail is not None
    assert "this query adds 'AND a.v > 1'" in caught.value.detail
    assert "results of the query would be complete from event time 1970-01-01 00:00:02.000001+00:00 on" in (
        caught.value.detail
    )
    assert "--evolve allow" in (caught.value.hint or "")
    assert (tmp_path / "anabranch" / "metadata.json").read_text() == before
    # The old query goes on.
    assert len(ran(tmp_path, {ALONE: JOIN}, range(3, 4))) == 7


def test_a_changed_query_continues_with_the_kept_rows(tmp_path: Path) -> None:
    ran(tmp_path, {ALONE: JOIN}, range(3))
    change = evolved(tmp_path, {ALONE: FILTERED})
    assert change is not None
    assert change.joined == {ALONE: 2 * SECOND + 1}
    found = ran(tmp_path, {ALONE: FILTERED}, range(3, 4))
    assert sorted((row["x"], row["y"]) for row in found) == [(2, 3), (3, 0), (3, 1), (3, 2), (3, 3)]
    (record,) = (each for each in Store(str(tmp_path)).history() if "joined" in each)
    assert record["joined"] == {ALONE: 2 * SECOND + 1}
    # Once taken over, nothing is left to do.
    assert evolved(tmp_path, {ALONE: FILTERED}, Evolve.ASK) is None


def test_a_column_that_rows_lack_is_waited_for(tmp_path: Path) -> None:
    ran(tmp_path, {ALONE: JOIN.replace("a.v AS x, ", "")}, range(3))
    change = evolved(tmp_path, {ALONE: JOIN})
    assert change is not None
    # The last row without the column leaves its window after ten seconds.
    assert change.joined == {ALONE: 12 * SECOND + 1}
    assert not ran(tmp_path, {ALONE: JOIN}, range(3, 13))


@pytest.mark.parametrize(
    ("rest", "since"),
    [
        ("JOIN t ON a.v = t.k WHERE t.w > 1", 12),
        ("WHERE a.v IS NOT NULL", 12),
        ("JOIN t ON a.v = t.k WHERE t.w > 3 HAVING COUNT(*) > 0", 2),
    ],
    ids=["another filter of the table", "no table", "the same table"],
)
def test_rows_that_a_table_kept_away_are_waited_for(rest: str, since: int, tmp_path: Path) -> None:
    """Rows without a match in the table were never kept."""
    select = "SELECT WINDOW_END() AS at, COUNT(*) AS n FROM a [RANGE 10 SECONDS SLIDE 5 SECONDS] AS a"
    table = {"t": pa.table({"k": [0, 1, 2, 3], "w": [2, 2, 2, 9]})}

    def host(text: str) -> LocalHost:
        several = queries({ALONE: text})
        plan = mjoin(several.member(ALONE).query.graph.names)
        return LocalHost(several, plan, checkpoint=str(tmp_path), tables=table if several.graph.tables else None)

    before = host(f"{select} JOIN t ON a.v = t.k WHERE t.w > 3")
    for second in range(3):
        before.step({"a": rows(second)["a"]})
    change = evolved(tmp_path, {ALONE: f"{select} {rest}"})
    assert change is not None
    assert change.joined == {ALONE: since * SECOND + 1}
    after = host(f"{select} {rest}")
    found = [row["n"] for second in (3, 60) for row in after.step({"a": rows(second)["a"]}).to_pylist()]
    assert found == ([1, 1] if since == 2 else [])


def test_without_consent_the_checkpoint_belongs_to_another_query(tmp_path: Path) -> None:
    ran(tmp_path, {ALONE: JOIN}, range(1))
    assert evolved(tmp_path, {ALONE: FILTERED}, Evolve.REFUSE) is None
    with pytest.raises(ForeignCheckpoint, match="belongs to another query"):
        ran(tmp_path, {ALONE: FILTERED}, range(1))


def test_of_several_queries_one_changes_and_the_others_stay(tmp_path: Path) -> None:
    ran(tmp_path, {"p": JOIN, "q": JOIN.replace("AS x", "AS z")}, range(3))
    change = evolved(tmp_path, {"p": FILTERED, "q": JOIN.replace("AS x", "AS z"), "r": JOIN})
    assert change is not None
    assert set(change.joined) == {"p", "r"}


def test_plans_of_the_old_query_are_forgotten(tmp_path: Path) -> None:
    ran(tmp_path, {"p": JOIN, "q": JOIN.replace("AS x", "AS z")}, range(1))
    evolved(tmp_path, {"p": FILTERED, "q": JOIN.replace("AS x", "AS z")})
    manifest = Store(str(tmp_path)).latest()
    assert manifest is not None
    assert set(manifest.plans) == {"q"}


def test_before_the_first_row_the_answer_is_complete(tmp_path: Path) -> None:
    Store(str(tmp_path)).open(queries({ALONE: JOIN}))
    with pytest.raises(QueryChanged) as caught:
        evolved(tmp_path, {ALONE: FILTERED}, Evolve.ASK)
    assert "the answer will be complete" in (caught.value.detail or "")
    assert evolved(tmp_path, {ALONE: FILTERED}) == SetChange({ALONE: None}, (" before",))


@pytest.mark.parametrize(
    ("before", "after", "reason"),
    [
        (
            {ALONE: JOIN},
            {ALONE: JOIN.replace(", b [RANGE", ", c [RANGE").replace("b.", "c.")},
            "reads stream",
        ),
        ({ALONE: JOIN}, {ALONE: JOIN.replace("a [RANGE 10 SECONDS]", "a [ROWS 3]")}, "windows of rows"),
        (
            {"p": JOIN, "q": "SELECT p.x AS x FROM p [RANGE 1 SECOND]"},
            {"p": FILTERED, "q": "SELECT p.x AS x FROM p [RANGE 1 SECOND]"},
            "query 'p' has changed, and other queries read its results",
        ),
    ],
    ids=["another stream", "count window", "read by others"],
)
def test_a_checkpoint_that_cannot_be_taken_over_is_refused_and_unchanged(
    tmp_path: Path, before: dict[str, str], after: dict[str, str], reason: str
) -> None:
    several = queries(before)
    Store(str(tmp_path)).open(several)
    metadata = (tmp_path / "anabranch" / "metadata.json").read_text()
    for evolve in (Evolve.ASK, Evolve.ALLOW):
        with pytest.raises(ForeignCheckpoint, match="cannot be taken over") as caught:
            evolved(tmp_path, after, evolve)
        assert reason in (caught.value.detail or "")
    assert (tmp_path / "anabranch" / "metadata.json").read_text() == metadata


def test_a_checkpoint_without_the_texts_of_its_queries_is_that_of_a_single_query(tmp_path: Path) -> None:
    ran(tmp_path, {ALONE: JOIN}, range(2))
    file = tmp_path / "anabranch" / "metadata.json"
    metadata = json.loads(file.read_text())
    del metadata["queries"]
    file.write_text(json.dumps(metadata))
    assert evolved(tmp_path, {ALONE: FILTERED}) is not None


def test_columns_that_are_declared_otherwise_are_not_taken_over(tmp_path: Path) -> None:
    ran(tmp_path, {ALONE: JOIN}, range(2))
    several, other = queries({ALONE: FILTERED}), catalog()
    other.register(StreamDeclaration("a", parse_schema("ts timestamp, k int, v bigint"), "ts"))
    assert follow(Store(str(tmp_path)), several, other, lambda: partitioning_of(several, 1), Evolve.ALLOW) is None
