"""Route tokens: groups that shrink, and a lottery that favours selective operators."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.engine.fabric.lottery import Passed, draw, tickets
from anabranch.engine.fabric.token import Token
from anabranch.errors import PlanError


@st.composite
def tokens(draw: st.DrawFn) -> Token:
    operators = draw(st.permutations(range(1, draw(st.integers(1, 7)) + 1)))
    cuts = sorted(draw(st.sets(st.integers(1, len(operators)))) | {len(operators)})
    return Token(tuple(tuple(operators[a:b]) for a, b in zip([0, *cuts[:-1]], cuts, strict=True)))


@given(tokens(), st.data())
def test_a_token_visits_every_operator_once_and_then_only_the_output_is_left(token: Token, data: st.DataObject) -> None:
    visited, group_of = [], {operator: i for i, group in enumerate(token.groups) for operator in group}
    left = token
    while left.next:
        visited.append(data.draw(st.sampled_from(left.next)))
        left = left.after(visited[-1])
    assert sorted(visited) == sorted(token.operators)
    assert [group_of[operator] for operator in visited] == sorted(group_of[operator] for operator in visited)


def test_the_example_of_the_paper() -> None:
    token = Token(((2,), (3, 1), (4,)))
    assert str(token) == "⟨2, 1|3, 4⟩"
    assert str(token.after(2).after(3)) == "⟨1, 4⟩"
    assert token.after(2).after(3) == Token(((1,), (4,)))
    with pytest.raises(PlanError, match="operator 4 is not next"):
        token.after(4)


@pytest.mark.parametrize("groups", [((0, 1),), ((1,), (1,)), ((1, 2), (1,))])
def test_operators_that_are_below_one_or_repeated_are_refused(groups: tuple[tuple[int, ...], ...]) -> None:
    with pytest.raises(PlanError):
        Token(groups)


def test_tickets_are_equal_at_first_and_then_favour_low_selectivity() -> None:
    assert tickets([Passed()] * 4) == (0.25,) * 4
    few, many = tickets([Passed(1000, 100), Passed(1000, 900)])
    assert few > 3 * many > 0
    fan_out, neutral = tickets([Passed(1000, 5000), Passed()])
    assert fan_out < neutral
    never, seldom = tickets([Passed(1e9, 0), Passed(1e9, 1e6)])
    assert never == seldom == 0.5, "below the least selectivity that counts, operators stay equals"


def test_a_subset_learns_from_each_row_group() -> None:
    seen = Passed()
    for _ in range(10):
        seen = seen.plus(100, 10)
    assert seen == Passed(1000, 100)
    assert abs(seen.selectivity - 200 / 1100) < 1e-12


@given(st.lists(st.floats(0.1, 10), min_size=1, max_size=5), st.floats(0, 1, exclude_max=True))
def test_a_draw_hits_the_slice_that_holds_the_chance(parts: list[float], chance: float) -> None:
    shares = [part / sum(parts) for part in parts]
    position = draw(shares, chance)
    assert sum(shares[:position]) <= chance + 1e-9
    assert chance <= sum(shares[: position + 1]) + 1e-9
