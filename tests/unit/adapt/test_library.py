"""The library gives back the plan that was chosen for statistics like these, and forgets what is unused for longest."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from anabranch.adapt.knowledge import Knowledge
from anabranch.adapt.library import Library
from anabranch.plan.text import parse

PLANS = (parse("((a b) c)"), parse("(a (b c))"), parse("(a b c)"))


def known(a: float, ab: float | None = 0.01) -> Knowledge:
    return Knowledge({"a": a}, {} if ab is None else {"a b": ab})


@given(entries=st.lists(st.tuples(st.floats(1, 1000), st.sampled_from(PLANS)), max_size=20), asked=st.floats(1, 1000))
def test_what_is_found_is_near_and_the_nearest(entries: list[tuple[float, object]], asked: float) -> None:
    library = Library(size=5)
    for rate, plan in entries:
        library = library.learn(known(rate), plan)  # type: ignore[arg-type]
    assert len(library.entries) <= 5
    distances = [entry.statistics.distance(known(asked)) for entry in library.entries]
    found = library.find(known(asked))
    if found is None:
        assert all(distance > library.tolerance for distance in distances)
    else:
        assert found.statistics.distance(known(asked)) == min(distances) <= library.tolerance


def test_not_known_is_not_near_to_anything() -> None:
    library = Library().learn(known(10.0), PLANS[0])
    assert library.find(known(10.0, None)) is None
    assert library.find(known(10.0, 0.0)) is None
    assert library.find(known(11.0)) is not None


def test_the_one_unused_for_longest_goes() -> None:
    library = Library(size=2).learn(known(1.0), PLANS[0]).learn(known(10.0), PLANS[1])
    first = library.find(known(1.0))
    assert first is not None
    library = library.used(first).learn(known(100.0), PLANS[2])
    assert library.find(known(1.0)) is not None
    assert library.find(known(10.0)) is None


def test_a_later_choice_for_the_same_statistics_replaces_the_earlier() -> None:
    library = Library().learn(known(10.0), PLANS[0]).learn(known(10.5), PLANS[1])
    assert [entry.plan for entry in library.entries] == [PLANS[1]]
