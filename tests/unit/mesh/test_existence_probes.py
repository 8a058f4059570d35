"""Routes that ask first: taken where rows find nothing in some state, whatever tells them apart, and only there."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

from anabranch.cql import compile_query
from anabranch.mesh import whole
from anabranch.mesh.existence_probes import existence_candidates, existence_route, preferred, price, row_costs
from anabranch.mesh.learn import SearchSetting
from anabranch.mesh.proposal import HeldOut, one_route_only
from anabranch.mesh.training import training_set
from anabranch.mesh.whole import find_query_mesh
from anabranch.plan.join_graph import JoinGraph
from anabranch.plan.mesh import Route, parse_mesh
from anabranch.stats.mesh.operators import OperatorMatrix
from anabranch.stats.mesh.profiles import OperatorProfile
from tests.support.scripted import read_script

SETTING = SearchSetting(existence_probes=True)
OPERATORS = ("b", "c", "d")
UNIT = 1e-7


def graph_of(where: str) -> JoinGraph:
    script = read_script("\n".join(f"stream {name} (k string, v bigint)" for name in "abcd"))
    windows = ", ".join(f"{name} [RANGE 10 SECONDS]" for name in "abcd")
    return compile_query(f"SELECT a.v AS x FROM {windows} WHERE {where}", script.catalog).graph


ONE_KEY = graph_of("a.k = b.k AND a.k = c.k AND a.k = d.k")


def matched(counts: np.ndarray) -> OperatorMatrix:
    """What probes with so many matches do to rows; a lookup and a match cost the same."""
    return OperatorMatrix(OPERATORS, counts.astype(float), UNIT * (1 + counts))


def lacking(rows: int, seed: int) -> np.ndarray:
    """Rows that find six partners everywhere but in one state, which no column tells."""
    rng = np.random.default_rng(seed)
    counts = np.full((rows, 3), 6)
    counts[np.arange(rows), rng.integers(0, 3, rows)] = 0
    return counts


def profile(counts: np.ndarray) -> OperatorProfile:
    return OperatorProfile("a", pa.table({"v": np.zeros(len(counts))}), matched(counts), 10_000, 1e-5)


def test_the_cost_of_a_row_for_existence_probes_and_probes() -> None:
    seen = matched(np.array([[2, 0, 1], [3, 2, 1]]))
    assert row_costs(seen, ("b", "c", "d")) == pytest.approx(UNIT * np.array([3 + 2, 4 + 3 * 3 + 6 * 2]))
    assert row_costs(seen, ("c?", "b", "c", "d")) == pytest.approx(UNIT * np.array([1, 2 + 4 + 3 * 3 + 6 * 2]))


def test_rows_that_no_column_distinguishes_get_existence_probes() -> None:
    counts = lacking(600, seed=1)
    found = find_query_mesh(ONE_KEY, [profile(counts)], np.random.default_rng(1), SETTING)
    way = found.mesh.of("a")
    # The last state need not be asked: its probe comes first, and stops the row as well.
    assert [name.endswith("?") for name in way.routes[0].operators] == [True, True, False, False, False]
    assert way.routes[0].operators[2] + "?" not in way.routes[0].operators
    assert found.is_mesh
    proposal = found.proposals["a"]
    assert proposal.held_out is not None
    # One to three lookups, and no row is left; before, a third of the rows met six partners, and so on.
    assert proposal.gain > 2
    assert proposal.held_out.gain == pytest.approx(proposal.gain, rel=0.1)
    assert proposal.reason.startswith("existence probes of ")


def test_no_existence_probe_where_all_rows_match_or_the_best_order_drops_them() -> None:
    rng = np.random.default_rng(2)
    for counts in (np.full((400, 3), 2), np.stack([rng.integers(0, 2, 400), np.full(400, 2), np.full(400, 2)], axis=1)):
        found = find_query_mesh(ONE_KEY, [profile(counts)], np.random.default_rng(1), SETTING)
        assert not found.is_mesh


def test_a_relation_that_gains_nothing_keeps_the_order_that_others_chose_for_it() -> None:
    """A thousand rows of a stream did not show the key that is frequent in two others, and its order was drawn."""
    rng = np.random.default_rng(3)
    alike, unlike = rng.integers(1, 3, (400, 3)), np.stack([np.full(400, 9), np.ones(400), np.zeros(400)], axis=1)
    for counts, first in ((alike, "d"), (unlike, "d")):
        seen = profile(counts)
        found = find_query_mesh(ONE_KEY, [seen], np.random.default_rng(1), SETTING, orders={"a": ("d", "c", "b")})
        assert found.mesh.of("a").routes[0].operators[0] == first
    clearly = find_query_mesh(
        ONE_KEY, [profile(unlike)], np.random.default_rng(1), SETTING, orders={"a": ("b", "c", "d")}
    )
    assert clearly.mesh.of("a").routes[0].operators[0] == "d"


def test_existence_probes_use_only_keys_of_the_row_itself() -> None:
    assert existence_candidates(ONE_KEY, "a", OPERATORS) == OPERATORS
    chain = graph_of("a.k = b.k AND b.v = c.v AND c.k = d.k")
    assert existence_candidates(chain, "a", OPERATORS) == ()
    assert existence_candidates(chain, "b", ("a", "c", "d")) == ("a", "c")
    with_theta = graph_of("a.k = b.k AND a.k = c.k AND a.k = d.k AND a.v < b.v")
    assert existence_candidates(with_theta, "a", OPERATORS) == ("c", "d")


def test_the_published_search_has_no_questions() -> None:
    found = find_query_mesh(ONE_KEY, [profile(lacking(600, seed=1))], np.random.default_rng(1), SearchSetting())
    assert not found.is_mesh


def test_no_classifier_is_searched_that_could_save_little_beyond_the_questions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def search(*_: object) -> None:
        raise AssertionError("searched")

    monkeypatch.setattr(whole, "find_mesh", search)
    seen = profile(lacking(600, seed=1))
    assert find_query_mesh(ONE_KEY, [seen], np.random.default_rng(1), SETTING).is_mesh
    asked = find_query_mesh(ONE_KEY, [seen], np.random.default_rng(1), SETTING, is_worth=lambda least: False)
    assert asked.is_mesh


def test_proposals_are_held_against_each_other_row_by_row() -> None:
    """Rows of a kind find nothing in the state of that kind: a classifier looks there at once, questions go around."""
    kind = np.arange(900) % 3
    counts = np.full((900, 3), 6)
    counts[np.arange(900), kind] = 0
    sample, matrix = training_set("a", pa.table({"v": kind.astype(float)})), matched(counts)
    single = one_route_only(sample, matrix, ((), (), ()), SETTING, "")
    asking = existence_route(sample, matrix, ((), (), ()), OPERATORS, np.random.default_rng(1), SETTING)
    assert asking is not None
    tree = parse_mesh("mesh(a: b>c>d, c>d>b, d>b>c by (v <= 0.5 ? 0 : (v <= 1.5 ? 1 : 2)))").of("a")
    assert price(tree, sample, matrix, SETTING.costs) == pytest.approx(
        UNIT + SETTING.costs.test * 5 / 3 + 3 * SETTING.costs.route
    )
    routed = type(single)(tree, (1 / 3,) * 3, (UNIT,) * 3, UNIT, single.single, single.single_cost, "")
    assert preferred(asking, single, sample, matrix, SETTING.costs) is asking
    free = type(SETTING.costs)(test=0.0, route=0.0)
    assert preferred(asking, routed, sample, matrix, free) is routed
    # What its rows cost if a third of them is held out counts, not what it cost those that it was learnt from.
    doubtful = replace(routed, single_cost=11 * UNIT, held_out=HeldOut(2.0, 0.1))
    assert preferred(asking, doubtful, sample, matrix, free) is asking
    # One lookup, two and three of them; what passes costs as much again.
    assert price(asking.ways, sample, matrix, free) == pytest.approx((1 + 3 + 5) / 3 * UNIT, rel=0.01)
    assert asking.ways.routes[0] != Route(OPERATORS)
