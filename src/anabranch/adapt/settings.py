"""The settings of adaptation, and how they are read from an `adapt:` block."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any, Literal, TypeAlias

from anabranch.adapt.gate import Gate
from anabranch.adapt.policy import (
    STEADY,
    TEN_BATCHES,
    DataDriven,
    Interval,
    MemoryDriven,
    Periodic,
    Policy,
    RefinedMemoryDriven,
    Trend,
)
from anabranch.errors import SpecError
from anabranch.sizes import parse_size
from anabranch.window import parse_duration

Scope: TypeAlias = Literal["query", "slot"]
POLICIES = ("periodic", "data-driven", "memory-driven", "refined memory-driven")
STRATEGIES = ("auto", "moving-state", "parallel-track")


@dataclass(frozen=True)
class Settings:
    """How a query adapts."""

    policy: Policy = field(default_factory=DataDriven)
    gate: Gate = field(default_factory=Gate)
    strategy: str = "auto"
    """How to migrate: auto for the cheapest way, else its name."""
    freeze: bool = False
    """Watch and record, but never change the plan."""
    scope: Scope = "query"
    """Whether all slots change together, or each by what it sees itself."""
    remember: int = 8
    """Batches that are measured together."""

    @classmethod
    def from_mapping(cls, entries: Mapping[str, object]) -> Settings:
        """The settings of an `adapt:` block; a wrong entry is named with what to write instead.

        >>> Settings.from_mapping({"policy": "periodic", "every": "10 seconds"}).policy
        Periodic(every=Interval(batches=0, seconds=10.0))
        """
        read = _Reader("adapt", entries)
        policy = _policy(read)
        settings = cls(
            policy,
            _gate(read.block("gate")),
            read.one_of("strategy", STRATEGIES, "auto"),
            read.flag("freeze"),
            "slot" if read.one_of("scope", ("query", "slot"), "query") == "slot" else "query",
            read.value("remember", 8, _count),
        )
        read.finish()
        return settings


def _policy(read: _Reader) -> Policy:
    name = read.one_of("policy", POLICIES, "data-driven", kind="policy")
    match name:
        case "periodic":
            return Periodic(read.value("every", TEN_BATCHES, _interval))
        case "data-driven":
            every = read.value("every", TEN_BATCHES, _interval)
            return DataDriven(every, read.value("threshold", 1.5, _at_least(1.0)), read.flag("eager"))
        case _:
            trend = Trend(
                read.value("batches", STEADY.batches, _count),
                read.value("growth", STEADY.growth, _at_least(1.0)),
            )
            memory = read.value("memory", None, _bytes(1.0))
            share = read.value("share", 0.9, _share)
            return (
                MemoryDriven(memory, share, trend)
                if name == "memory-driven"
                else RefinedMemoryDriven(memory, share, trend)
            )


def _gate(read: _Reader) -> Gate:
    gate = Gate(
        read.value("ratio", Gate.ratio, _at_least(1.0)),
        read.value("cores", Gate.cores, _at_least(0.0)),
        read.value("bytes", Gate.bytes, _bytes(0.0)),
        read.value("horizon", Gate.horizon, _seconds),
        read.value("cool_down", Gate.cool_down, _interval),
    )
    read.finish()
    return gate


class _Reader:
    """The entries of a block, each asked for once; what nobody asked for is unknown."""

    def __init__(self, path: str, entries: Mapping[str, object]) -> None:
        self._path = path
        self._entries = entries
        self._known: list[str] = []

    def value(self, name: str, default: Any, read: Callable[[object], Any]) -> Any:
        self._known.append(name)
        if self._entries.get(name) is None:
            return default
        try:
            return read(self._entries[name])
        except ValueError as error:
            raise SpecError(f"entry '{self._path}.{name}' is '{self._entries[name]}'", hint=str(error)) from error

    def one_of(self, name: str, known: tuple[str, ...], default: str, kind: str = "value") -> str:
        self._known.append(name)
        found = self._entries.get(name)
        if found is None:
            return default
        if found not in known:
            raise SpecError(f"entry '{self._path}.{name}': unknown {kind} '{found}'", hint=_suggestion(found, known))
        return str(found)

    def flag(self, name: str) -> bool:
        return bool(self.value(name, False, _flag))

    def block(self, name: str) -> _Reader:
        self._known.append(name)
        found = self._entries.get(name) or {}
        if not isinstance(found, Mapping):
            raise SpecError(
                f"entry '{self._path}.{name}' is '{found}'", hint=f"write '{name}: {{ratio: 1.2}}', for example"
            )
        return _Reader(f"{self._path}.{name}", found)

    def finish(self) -> None:
        for name in self._entries:
            if name not in self._known:
                raise SpecError(f"entry '{self._path}.{name}' is not known", hint=_suggestion(name, tuple(self._known)))


def _interval(value: object) -> Interval:
    """A number of batches, or a duration of event time."""
    if isinstance(value, str):
        return Interval(seconds=_seconds(value))
    try:
        return Interval(batches=_count(value))
    except ValueError:
        raise ValueError("write a number of batches of at least 1, or a duration such as 10 seconds") from None


def _seconds(value: object) -> float:
    hint = "write a duration such as 10 seconds"
    if not isinstance(value, str):
        raise ValueError(hint)
    try:
        micros = parse_duration(value)
    except ValueError:
        raise ValueError(hint) from None
    if micros <= 0:
        raise ValueError(hint)
    return micros / 1e6


def _count(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError("write a number of batches of at least 1")
    return value


def _bytes(low: float) -> Callable[[object], float]:
    return lambda value: _at_least(low)(parse_size(value) if isinstance(value, str) else value)


def _at_least(low: float) -> Callable[[object], float]:
    def read(value: object) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value < math.inf:
            raise ValueError(f"write a number of {low:g} or more")
        return float(value)

    return read


def _share(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= 1:
        raise ValueError("write a share above 0 and up to 1")
    return float(value)


def _flag(value: object) -> bool:
    if not isinstance(value, bool):
        raise ValueError("write true or false")
    return value


def _suggestion(name: object, known: tuple[str, ...]) -> str:
    close = get_close_matches(str(name), known, n=1)
    return f"did you mean '{close[0]}'?" if close else f"known are {', '.join(known)}"
