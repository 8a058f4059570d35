"""Where costly filters are checked: by what a check costs, what it rejects, and how few rows reach it behind joins."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from types import MappingProxyType

import numpy as np
import pyarrow as pa
import pytest

from anabranch.cql import compile_query, declared_results
from anabranch.engine.batch import RelationBatch
from anabranch.lang.catalog import Catalog, StreamDeclaration
from anabranch.lang.schema import TIMESTAMP, Schema
from anabranch.optimize import Choice
from anabranch.optimize.filter_places import Bytes, FilterPlaces, Pricing, costly_filters, place_filters
from anabranch.plan.query import Query
from anabranch.plan.query_set import ALONE, by_itself, partitioning_of
from anabranch.planning.choosing import decide, on_spark
from anabranch.planning.options import AUTO
from anabranch.run import filters
from anabranch.run.filters import bytes_of_columns, seen_filters
from anabranch.run.rows import relation_batch
from anabranch.run.wire import wire_layout
from anabranch.stats.filters import SeenFilter
from anabranch.stats.view import FixedStatistics

COLUMNS = pa.schema([("ts", TIMESTAMP), ("k", pa.int64()), ("v", pa.int64()), ("note", pa.string())])
DEAR = "RLIKE(a.note, '.*lot [0-9]+ was.*')"
TEXT = (
    "SELECT a.k AS k, b.v AS v FROM a [RANGE 10 SECONDS], b [RANGE 10 SECONDS], c [RANGE 10 SECONDS] "
    "WHERE a.k = b.k AND b.k = c.k AND a.note RLIKE '.*lot [0-9]+ was.*' AND a.v > 3"
)
ROWS = 2_000


def compiled(late: Sequence[str] = (), text: str = TEXT) -> Query:
    catalog = Catalog()
    for name in "abc":
        catalog.register(StreamDeclaration(name, Schema.from_arrow(COLUMNS), "ts"))
    return compile_query(text, catalog, late_filters=late)


def rows_before() -> dict[str, RelationBatch]:
    query = compiled([DEAR])
    layout = wire_layout(by_itself(query), partitioning_of(by_itself(query), 1))
    times = pa.array(np.arange(ROWS) * 1_000).cast(pa.timestamp("us")).cast(TIMESTAMP)
    notes = pa.array([f"lot {number} was {'sent' if number % 4 else 'lost'}" for number in range(ROWS)])
    columns = {"ts": times, "k": np.arange(ROWS), "v": np.full(ROWS, 4), "note": notes}
    return {each.name: relation_batch(each, layout, pa.table(columns)) for each in query.graph.relations}


def decided(name: str, query: Query, known: FixedStatistics) -> Choice:
    return decide(query, AUTO, seen=known, host=on_spark())


def priced(seen: Sequence[SeenFilter], known: FixedStatistics, bytes: Bytes = MappingProxyType({})) -> Pricing:
    """The prices of places of a query that runs alone."""
    return Pricing(seen, bytes, {ALONE: known}, lambda late: {ALONE: compiled(late)}, decided)


def placed(share: float, seconds: float, partners: float, rate: float = 100_000.0) -> FilterPlaces:
    """The places where a row of `a` meets so many rows of `b`."""
    known = FixedStatistics(
        rates={"a": rate, "b": 1_000.0, "c": 1_000.0},
        filters={"a": 1.0},
        selectivities={"a b": partners / 10_000, "b c": 1 / 10_000},
        provenance="sampled",
    )
    seen = [SeenFilter("a", DEAR, share, seconds)]
    return place_filters(priced(seen, known, bytes_of_columns(rows_before())))


def test_only_costly_conditions_that_can_be_put_off_are_weighed() -> None:
    assert costly_filters(compiled(), compiled) == (DEAR,)
    alone = "SELECT a.k AS k FROM a [RANGE 10 SECONDS] WHERE a.note RLIKE 'x.*y'"
    assert costly_filters(compiled(text=alone), partial(compiled, text=alone)) == ()
    guarding = TEXT.replace("a.v > 3", "CAST(a.note AS BIGINT) > 3")
    assert costly_filters(compiled(text=guarding), partial(compiled, text=guarding)) == ()


@pytest.mark.parametrize(
    ("share", "seconds", "partners", "is_late"),
    [
        (0.9, 5e-6, 0.01, True),  # costly, rejects little, and few rows reach it
        (0.9, 5e-6, 20.0, False),  # every row reaches it twenty times
        (0.01, 5e-7, 0.5, False),  # it spares the states nearly everything
        (0.9, 1e-8, 0.01, False),  # it costs nothing
    ],
)
def test_a_filter_is_placed_where_it_costs_least(share: float, seconds: float, partners: float, is_late: bool) -> None:
    found = placed(share, seconds, partners)
    assert found.late == ((DEAR,) if is_late else ()), found.reasons
    (reason,) = found.reasons
    assert f"is checked {'by' if is_late else 'before'} the joins: {1e9 * seconds:.0f} ns a row" in reason


@pytest.mark.parametrize(("ratio", "is_late"), [(2.0, False), (50.0, True)])
def test_what_a_check_costs_before_the_joins_decides_where_a_filter_is(ratio: float, is_late: bool) -> None:
    """The same rows and the same seconds in the engine; only what Spark, or slots that read files, take differs."""
    known = FixedStatistics(
        rates={"a": 100_000.0, "b": 1_000.0, "c": 1_000.0},
        filters={"a": 1.0},
        selectivities={"a b": 0.01 / 10_000, "b c": 1 / 10_000},
        provenance="sampled",
    )
    seen = [SeenFilter("a", DEAR, 0.9, 1e-7, ratio)]
    pricing = priced(seen, known, bytes_of_columns(rows_before()))
    assert pricing.price([]).early == pytest.approx(100_000 * 1e-7 * ratio)
    found = place_filters(pricing)
    assert found.late == ((DEAR,) if is_late else ()), found.reasons
    assert f"100 ns a row, 90% pass, {ratio:.2g} times as costly before the joins; " in found.reasons[0]


def test_a_trickle_of_rows_moves_no_filter() -> None:
    assert placed(0.9, 5e-6, 0.01, rate=100.0).late == ()


def test_filters_are_seen_on_the_rows_before_them(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = rows_before()
    (seen,) = seen_filters(compiled([DEAR]), rows)
    assert (seen.relation, seen.condition, seen.share) == ("a", DEAR, 1.0)
    assert seen.seconds > 0
    monkeypatch.setattr(filters, "timed", lambda condition, batch: (0.0, 0.002))
    (seen,) = seen_filters(compiled([DEAR]), rows)
    assert (seen.share, seen.seconds) == (0.5 / ROWS, 1e-6)
    few = {name: batch.slice(0, 10) for name, batch in rows.items()}
    assert seen_filters(compiled([DEAR]), few) == ()


# --- queries that run together ----------------------------------------------------------------------------------------

OTHER = "RLIKE(a.note, 'x.*y')"
PLAIN = TEXT.replace(" AND a.note RLIKE '.*lot [0-9]+ was.*'", "")
"""The query without its costly filter; it wants all rows."""
SEEN = [SeenFilter("a", DEAR, 0.1, 1e-6, 3.0), SeenFilter("a", OTHER, 0.1, 1e-6, 3.0)]


def together(**texts: str) -> Pricing:
    """The prices of places of queries that run together."""

    def queries(late: Sequence[str]) -> dict[str, Query]:
        plain = {name: str(compiled(text=text).graph.relation("a").filter) for name, text in texts.items()}
        return {
            name: compiled([each for each in late if each in plain[name]], text=text) for name, text in texts.items()
        }

    known = FixedStatistics(
        rates={"a": 100_000.0, "b": 1_000.0, "c": 1_000.0},
        filters={"a": 1.0},
        selectivities={"a b": 0.01 / 10_000, "b c": 1 / 10_000},
        provenance="sampled",
    )
    return Pricing(SEEN, bytes_of_columns(rows_before()), dict.fromkeys(texts, known), queries, decided)


def test_a_filter_that_all_readers_have_is_checked_once_and_spares_them_the_rows() -> None:
    alone, both = together(one=TEXT), together(one=TEXT, two=TEXT.replace("a.k AS k", "b.k AS k"))
    assert both.price([]).early == alone.price([]).early == pytest.approx(100_000 * 3e-6)
    assert both.price([]).sending == pytest.approx(alone.price([]).sending, rel=0.01)
    assert both.price([DEAR]).early == 0
    assert both.price([DEAR]).sending > 1.1 * both.price([]).sending


def test_rows_that_another_query_wants_travel_wherever_the_filter_is() -> None:
    """There the engine checks it, for its own query, at what the engine takes."""
    pair = together(one=TEXT, plain=PLAIN)
    assert pair.price([]).sending == pytest.approx(pair.price([DEAR]).sending)
    assert pair.price([]).early == pytest.approx(100_000 * 1e-6)


def test_filters_that_queries_do_not_have_in_common_spare_no_row() -> None:
    """Each rejects nine rows of ten for its own query; one of both may want any row."""
    pair = together(one=TEXT, two=TEXT.replace(".*lot [0-9]+ was.*", "x.*y"))
    everything = pair.price([DEAR, OTHER]).sending
    assert pair.price([]).sending == pytest.approx(everything)
    assert pair.price([DEAR]).sending == pytest.approx(everything)


def test_places_that_queries_cannot_have_together_cost_too_much() -> None:
    def queries(late: Sequence[str]) -> dict[str, Query]:
        below = compiled(late)
        catalog = Catalog()
        for name in "abc":
            catalog.register(StreamDeclaration(name, Schema.from_arrow(COLUMNS), "ts"))
        catalog.register(declared_results("one", compiled()))
        text = "SELECT o.k AS k FROM one [RANGE 1 SECONDS] AS o, c [RANGE 1 SECONDS] WHERE o.k = c.k"
        return {"one": below, "over": compile_query(text, catalog)}

    known = FixedStatistics(rates=dict.fromkeys("abc", 1_000.0))
    pricing = Pricing(SEEN[:1], {}, {"one": known, "over": known}, queries, decided)
    assert pricing.price([DEAR]).all == float("inf")
    places = place_filters(pricing)
    assert places.late == ()
    assert places.reasons[0].endswith("; the queries cannot run with it by them")
