"""The experiment on a filter that moves, small: its places are moved between, and the answers stay the same."""

from __future__ import annotations

import pytest

from anabranch.adapt import filter_moves as deciding
from anabranch.optimize.filter_places import dear_filters
from lab.filter_moves import DEAR, WAYS, compiled, follow


def test_all_ways_have_one_answer_and_the_filter_moves(monkeypatch: pytest.MonkeyPatch) -> None:
    assert dear_filters(compiled([]), compiled) == (DEAR,)
    monkeypatch.setattr(deciding, "seconds_of", lambda check: 1e-6)
    early, late, moved = (follow(way, 16, seed=3) for way in WAYS)
    assert early.results
    assert early.answers == late.answers == moved.answers
    assert not early.moves
    assert not late.moves
    assert moved.moves, "rows that nearly all fail are rejected before the joins"
