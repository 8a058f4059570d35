"""The `adapt:` block: what it means, and what it says when it is wrong."""

from __future__ import annotations

import pytest

from anabranch.adapt.gate import Gate
from anabranch.adapt.policy import DataDriven, Interval, MemoryDriven, Periodic, RefinedMemoryDriven, Trend
from anabranch.adapt.settings import Settings
from anabranch.errors import SpecError


def test_an_empty_block_is_the_defaults() -> None:
    assert Settings.from_mapping({}) == Settings()


def test_everything_can_be_said() -> None:
    settings = Settings.from_mapping(
        {
            "policy": "data-driven",
            "every": 3,
            "threshold": 2,
            "eager": True,
            "gate": {"ratio": 1.5, "cores": 0.1, "bytes": 10, "horizon": "1 minute", "cool_down": "5 seconds"},
            "strategy": "parallel-track",
            "freeze": True,
            "scope": "slot",
            "remember": 4,
        }
    )
    gate = Gate(1.5, 0.1, 10.0, 60.0, Interval(seconds=5.0))
    assert settings == Settings(DataDriven(Interval(batches=3), 2.0, True), gate, "parallel-track", True, "slot", 4)
    assert Settings.from_mapping({"policy": "periodic", "every": "10 seconds"}).policy == Periodic(
        Interval(seconds=10.0)
    )
    refined = Settings.from_mapping(
        {"policy": "refined memory-driven", "memory": 1000, "share": 0.5, "batches": 3, "growth": 2}
    )
    assert refined.policy == RefinedMemoryDriven(1000.0, 0.5, Trend(3, 2.0))
    assert Settings.from_mapping({"policy": "memory-driven", "memory": "2 MB"}).policy == MemoryDriven(2e6)
    assert Settings.from_mapping({"gate": {"bytes": "5 MB"}}).gate.bytes == 5e6


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
        ({"gate": {"ratio": 0.5}}, "entry 'adapt.gate.ratio' is 0.5\nhint: write a number of 1 or more"),
        ({"gate": {"horizont": 1}}, "unknown entry 'adapt.gate.horizont'\nhint: did you mean 'horizon'?"),
        ({"gate": 3}, "entry 'adapt.gate' is 3"),
        ({"strategy": "teleport"}, "entry 'adapt.strategy' is 'teleport'\nhint: write one of auto"),
        ({"freeze": "yes"}, "entry 'adapt.freeze' is 'yes'\nhint: write true or false"),
        ({"policyy": "periodic"}, "unknown entry 'adapt.policyy'\nhint: did you mean 'policy'?"),
        ({"policy": "periodic", "threshold": 2}, "unknown entry 'adapt.threshold'"),
        ({"policy": "memory-driven", "every": 5}, "unknown entry 'adapt.every'"),
        ({"policy": "memory-driven", "memory": 0}, "entry 'adapt.memory' is 0\nhint: write a number of bytes, such as"),
        ({"policy": "memory-driven", "memory": "much"}, "entry 'adapt.memory' is 'much'\nexpected bytes such as"),
        ({"remember": "10 seconds"}, "entry 'adapt.remember' is '10 seconds'\nhint: write a number of batches of at"),
        ({"policy": "memory-driven", "share": 2}, "entry 'adapt.share' is 2\nhint: write a share above 0"),
    ],
)
def test_a_wrong_entry_is_named_with_what_to_write(entries: dict[str, object], message: str) -> None:
    with pytest.raises(SpecError) as caught:
        Settings.from_mapping(entries)
    assert str(caught.value).startswith(message)
