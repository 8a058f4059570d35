"""Every pair of the table is exact, or raises the error that the table names; a pair that is neither fails."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, given, reject, seed, settings
from hypothesis import strategies as st

from anabranch.engine.tracks import spread
from anabranch.engine.tracks.spread import SLICE
from anabranch.errors import AnabranchError
from tests.combinations import table
from tests.combinations.covering import covering, exact_pairs
from tests.combinations.page import PAGE, page
from tests.combinations.play import Refused, play, run_pair

COVER = covering()
PARTS = 8
TRIES = 100
"""Pairs of schedules in which a form that is refused must be drawn."""
_drawn = settings(database=None, deadline=None, phases=(Phase.generate,), suppress_health_check=list(HealthCheck))


def not_the_simplest(data: st.DataObject) -> None:
    """Rejects the first example of each seed, which is always the simplest: a few rows at one time."""
    if data.draw(st.integers(0, 2**32 - 1), "not zero") == 0:
        reject()


@pytest.fixture(autouse=True, scope="module")
def _states_fill_slowly() -> Iterator[None]:
    """A few rows with every step, so that the few rows of a schedule are not caught up with at once."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(spread, "allowance", lambda brought: 3)
        patch.setattr(spread, "SLICE", min(2, SLICE))
        patch.setattr(tempfile, "tempdir", tempfile.mkdtemp(dir=os.environ["ANABRANCH_HOT_FOLDER"]))
        yield


@pytest.mark.parametrize("part", range(PARTS))
def test_every_exact_pair_gives_the_batch_answer(part: int) -> None:
    seen: set[str] = set()
    for number in range(part, len(COVER), PARTS):
        features, events = COVER[number]

        @seed(number)
        @settings(_drawn, max_examples=max(2, settings().max_examples // 50))
        @given(data=st.data())
        def drawn(data: st.DataObject) -> None:
            not_the_simplest(data)
            if play(data, features, events).results:  # noqa: B023
                seen.update(features, events)  # noqa: B023

        drawn()
    assert seen, "no schedule has results"


@pytest.mark.parametrize("refusal", table.REFUSALS, ids=lambda each: each.text)
def test_a_refused_pair_raises_its_error(refusal: table.Refusal) -> None:
    for one, other in refusal.pairs:
        known = table.refusals(one, other)
        for number in range(TRIES):
            errors, passed = _outcomes(one, other, number)
            for error in errors:
                assert any(isinstance(error, each.error) and each.text in str(error) for each in known), f"{error}"
            assert refusal.forms or not passed, f"{one} and {other} are not always refused"
            if refusal.elsewhere or any(refusal.text in str(error) for error in errors):
                break
        else:
            raise AssertionError(f"{one} and {other} are not refused")


def _outcomes(one: str, other: str, number: int) -> tuple[list[AnabranchError], int]:
    """Plays two schedules with a pair; returns the errors that refused them, and how many passed."""
    raised: list[AnabranchError] = []
    passed = []

    @seed(number)
    @settings(_drawn, max_examples=2)
    @given(data=st.data())
    def drawn(data: st.DataObject) -> None:
        try:
            run_pair(data, one, other)
        except Refused as error:
            raised.append(error.error)
        else:
            passed.append(True)

    drawn()
    return raised, len(passed)


def test_every_pair_is_in_the_table() -> None:
    drawn = {table.pair(*each) for features, events in COVER for each in combinations([*features, *events], 2)}
    assert exact_pairs() <= drawn
    for refusal in table.REFUSALS:
        for each in refusal.pairs:
            assert {*each} <= table.ENTRIES.keys(), f"{each} names no entry"


def test_the_page_shows_the_table() -> None:
    assert (Path(__file__).parents[2] / PAGE).read_text() == page(), "run python -m tests.combinations"


def test_what_is_raised_elsewhere_has_a_test() -> None:
    for refusal in table.REFUSALS:
        if refusal.elsewhere:
            file, _, name = refusal.elsewhere.partition("::")
            assert f"def {name}(" in (Path(__file__).parents[1] / file).read_text(), refusal.elsewhere
