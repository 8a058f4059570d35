"""The `adapt:` block: what it means, and what it says when it is wrong."""

from __future__ import annotations

import pytest

from anabranch.adapt.facts import Interval
from anabranch.adapt.policy import DataDriven, MemoryDriven, Periodic, RefinedMemoryDriven
from anabranch.adapt.settings import Settings
from anabranch.errors import SpecError


def test_an_empty_block_is_the_defaults() -> None:
    assert Settings.from_mapping({}) == Settings()


def test_everything_can_be_said() -> None:
    settings = Settings.from_mapping(
        {
            "policy": "data-driven",
            "every": 3,
            "eager": True,
            "strategy": "parallel-track",
            "freeze": True,
        }
    )
    policy = DataDriven(Interval(batches=3), eager=True)
    assert settings == Settings(policy, strategy="parallel-track", freeze=True)
    assert Settings.from_mapping({"policy": "periodic", "every": "10 seconds"}).policy == Periodic(
        Interval(seconds=10.0)
    )
    assert Settings.from_mapping({"policy": "memory-driven"}).policy == MemoryDriven()
    assert Settings.from_mapping({"policy": "refined memory-driven"}).policy == RefinedMemoryDriven()


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        (
            {"policy": "data driven"},
            "entry 'adapt.policy' is 'data driven'\nhint: did you mean 'data-driven'?",
        ),
        ({"every": 0}, "entry 'adapt.every' is 0\nhint: write a number of batches of at least 1, or a duration"),
        (
            {"every": "soon"},
            "entry 'adapt.every' is 'soon'\nexpected a duration such as '10 seconds', found 'soon'",
        ),
        ({"strategy": "teleport"}, "entry 'adapt.strategy' is 'teleport'\nhint: write one of auto"),
        ({"freeze": "yes"}, "entry 'adapt.freeze' is 'yes'\nhint: write true or false"),
        ({"policyy": "periodic"}, "unknown entry 'adapt.policyy'\nhint: did you mean 'policy'?"),
        ({"policy": "memory-driven", "every": 5}, "unknown entry 'adapt.every'"),
    ],
)
def test_a_wrong_entry_is_named_with_what_to_write(entries: dict[str, object], message: str) -> None:
    with pytest.raises(SpecError) as caught:
        Settings.from_mapping(entries)
    assert str(caught.value).startswith(message)
