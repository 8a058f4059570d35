from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.lang.window import FOREVER, UNITS, duration_text, parse_duration

NUMBERS = st.one_of(
    st.integers().map(str), st.floats().map(repr), st.sampled_from(["1e400", "-1e999999999", "inf", "x"])
)


@given(st.integers(0, FOREVER))
def test_a_duration_is_read_as_it_is_written(micros: int) -> None:
    assert parse_duration(duration_text(micros)) == micros


@given(st.lists(st.tuples(NUMBERS, st.sampled_from([*UNITS, "years"])), max_size=3))
def test_any_text_is_a_duration_that_times_can_bear_or_is_refused(parts: list[tuple[str, str]]) -> None:
    try:
        micros = parse_duration(" ".join(f"{number} {unit}" for number, unit in parts))
    except ValueError:
        return
    assert abs(micros) <= FOREVER


@pytest.mark.parametrize("text", ["inf seconds", "1e999999999 days", "8000000 weeks", "5000000 weeks 5000000 weeks"])
def test_a_duration_longer_than_time_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"is longer than 53,375,995 days"):
        parse_duration(text)


def test_parts_of_a_unit_are_rounded() -> None:
    assert parse_duration("0.1 seconds 2.5 microseconds") == 100_002
