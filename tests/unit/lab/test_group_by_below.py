"""The experiment on group-by below a join, small: all plans answer alike, and merged rows meet less often."""

from __future__ import annotations

from lab.group_by_below import PLANS, follow


def test_merged_rows_make_fewer_combinations_and_the_same_answers() -> None:
    single, one, both, moved = (follow(24, 50, plan, seed=3) for plan in PLANS)
    assert single.answers
    assert single.answers == one.answers == both.answers == moved.answers
    assert single.matches > 4 * one.matches > 16 * both.matches
    assert single.join_rows > one.join_rows > both.join_rows
