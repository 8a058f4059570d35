"""Published mesh searches: all partitions, the optimum against brute force, and heuristics close to it."""

from __future__ import annotations

from itertools import product

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anabranch.mesh.routes import Router
from anabranch.mesh.search import MeshCosts, Space, canonical, merge_down
from anabranch.mesh.training import training_set
from anabranch.stats.mesh.operators import OperatorMatrix
from lab.papers.mesh_search import (
    STARTS,
    Stop,
    anneal,
    bell,
    exhaustive,
    improve,
    neighbour,
    partitions,
    start_solution,
)
from tests.unit.mesh.test_search import space_of


@pytest.mark.parametrize(("size", "count"), [(1, 1), (2, 2), (3, 5), (4, 15), (7, 877)])
def test_every_partition_is_listed_once(size: int, count: int) -> None:
    every = partitions(size, bell(size))
    assert bell(size) == count == len({tuple(row) for row in every})
    assert all((canonical(row) == row).all() for row in every)


@given(st.integers(0, 10**6), st.integers(1, 6), st.sampled_from([0.0, 0.02, 0.3]), st.sampled_from([0.0, 0.03, 0.3]))
@settings(max_examples=40)
def test_the_exhaustive_search_finds_the_best_of_all_partitions(
    seed: int, rows: int, test: float, route: float
) -> None:
    space = space_of(seed, rows, MeshCosts(test, route))
    least = min(space.solution(subsets).cost for subsets in partitions(rows, bell(rows)))
    assert exhaustive(space).cost == pytest.approx(least)


def test_more_than_ten_rows_are_not_searched_exhaustively() -> None:
    with pytest.raises(ValueError, match="11 rows have 678570 partitions"):
        exhaustive(space_of(0, 11))


@given(st.integers(0, 10**6), st.integers(2, 8))
def test_a_neighbour_is_one_move_away(seed: int, rows: int) -> None:
    space, rng = space_of(seed, rows), np.random.default_rng(seed)
    subsets = canonical(rng.integers(0, rows, rows))
    moved = canonical(neighbour(space, subsets, rng))
    before, after = (len(set(part.tolist())) for part in (subsets, moved))
    assert abs(before - after) <= 1
    if before == after:
        return
    coarse, fine = (subsets, moved) if before < after else (moved, subsets)
    pairs = {(a, b) for a, b in zip(coarse.tolist(), fine.tolist(), strict=True)}
    if len(pairs) == max(before, after):
        assert sum(len([p for p in pairs if p[0] == a]) > 1 for a, _ in pairs) in (0, 2), "one subset became two"


@pytest.mark.parametrize(("start", "search"), list(product(STARTS, (improve, anneal))))
def test_a_search_never_ends_above_its_start_and_is_the_same_again(start: object, search: object) -> None:
    found = []
    for _ in range(2):
        space, rng = space_of(5, 9), np.random.default_rng(7)
        first = start_solution(space, start, rng)  # type: ignore[arg-type]
        last = search(space, first, rng, Stop(iterations=300))  # type: ignore[operator]
        assert last.cost <= first.cost
        found.append(last)
    assert (found[0].subsets == found[1].subsets).all()


def test_heuristics_come_within_a_twentieth_of_the_optimum_on_average() -> None:
    ratios: dict[str, list[float]] = {"improve": [], "anneal": [], "merge": []}
    for seed in range(8):
        space = space_of(seed, 8)
        least = exhaustive(space).cost
        for name, search in (("improve", improve), ("anneal", anneal)):
            rng = np.random.default_rng(seed)
            ratios[name].append(search(space, start_solution(space, "route", rng), rng).cost / least)
        ratios["merge"].append(merge_down(space, start_solution(space, "route", rng)).cost / least)
    assert all(np.mean(found) < 1.05 for found in ratios.values())


def test_searches_stop_when_told() -> None:
    counted: list[int] = []

    class Counting(Space):
        def solution(self, subsets: np.ndarray) -> object:  # type: ignore[override]
            counted.append(1)
            return super().solution(subsets)

    plain = space_of(1, 9)
    for stop, most in ((Stop(iterations=10), 10), (Stop(iterations=10**6, plateau=5), 400), (Stop(seconds=0.0), 0)):
        for search in (improve, anneal):
            space = Counting(plain.training, plain.router, plain.costs)
            start = start_solution(plain, "each", np.random.default_rng(0))
            counted.clear()
            search(space, start, np.random.default_rng(0), stop)
            assert len(counted) <= most + 1


def test_starts_are_what_their_names_say() -> None:
    training = training_set("s", pa.table({"x": [1, 2, 9, 10], "w": ["a", "a", "a", "b"]}))
    selectivity = np.array([[0.1, 1.0], [1.0, 0.1], [0.1, 1.0], [1.0, 0.1]])
    matrix = OperatorMatrix(("a", "b"), selectivity, np.ones((4, 2)))
    space = Space(training, Router(matrix, training.shares, ((), ())), MeshCosts())
    rng = np.random.default_rng(0)
    found = {start: start_solution(space, start, rng).subsets.tolist() for start in STARTS}
    assert found["one"] == [0, 0, 0, 0]
    assert found["each"] == [0, 1, 2, 3]
    assert found["content"] == [0, 0, 1, 2], "halves of the range of x, and each w"
    assert found["route"] == [0, 1, 0, 1]
