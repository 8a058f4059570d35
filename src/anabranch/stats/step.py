"""The statistics of one engine step, as optimizers, progress entries and benchmarks read them.

One immutable value per step (per batch and slot); `merge` adds the slots of a batch together. Counts are exact; times
are seconds of wall clock inside the step, by kind of work.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from anabranch.stats.mesh.routes import RouteStatistics, merge_routes


@dataclass(frozen=True)
class ProbeStatistics:
    """Rows of one input of a join looked up in the state of another.

    Selectivity of the lookup is matches / (probes x state rows); `kept` are the matches that also passed the predicates
    that became checkable with it.
    """

    join: str
    origin: str
    target: str
    probes: int = 0
    state_rows: int = 0
    """Live rows of the probed state, summed over probes: the number of pairs that stood to be compared."""
    visited: int = 0
    matches: int = 0
    kept: int = 0

    def to_json(self) -> dict[str, Any]:
        found = dict(vars(self))
        found["stateRows"] = found.pop("state_rows")
        return found

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> ProbeStatistics:
        return cls(**{"state_rows" if name == "stateRows" else name: each for name, each in value.items()})


@dataclass(frozen=True)
class StateStatistics:
    """The rows and bytes a state holds after the step, and what entered and left it."""

    state: str
    rows: int
    bytes: int
    inserted: int = 0
    dropped: int = 0


@dataclass(frozen=True)
class CheckStatistics:
    """Combinations that a predicate was checked on, those that passed, and the seconds that it took."""

    predicate: str
    rows: int = 0
    passed: int = 0
    seconds: float = 0.0


@dataclass(frozen=True)
class StepStatistics:
    """One step of one slot, or several of them merged."""

    rows_in: Mapping[str, int] = field(default_factory=dict)
    """Rows admitted, by relation."""
    rows_out: int = 0
    probes: tuple[ProbeStatistics, ...] = ()
    states: tuple[StateStatistics, ...] = ()
    seconds: Mapping[str, float] = field(default_factory=dict)
    routes: tuple[RouteStatistics, ...] = ()
    """Of a mesh; other plans have none."""
    tested: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    """Where a query of a set has a filter of its own on a relation: rows, or combinations, tested and passed."""
    checks: tuple[CheckStatistics, ...] = ()
    """Of the predicates that joins check."""

    @property
    def state_rows(self) -> int:
        return sum(state.rows for state in self.states)

    @property
    def state_bytes(self) -> int:
        return sum(state.bytes for state in self.states)

    def to_json(self) -> dict[str, Any]:
        # Every slot does this after every step, and `asdict` takes ten times as long.
        return {
            "rowsIn": dict(self.rows_in),
            "rowsOut": self.rows_out,
            "probes": [probe.to_json() for probe in self.probes],
            "states": [dict(vars(state)) for state in self.states],
            "seconds": dict(self.seconds),
            "routes": [{**vars(route), "hops": [dict(vars(hop)) for hop in route.hops]} for route in self.routes],
            "tested": {name: list(counts) for name, counts in self.tested.items()},
            "checks": [dict(vars(check)) for check in self.checks],
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> StepStatistics:
        return cls(
            rows_in=dict(value["rowsIn"]),
            rows_out=value["rowsOut"],
            probes=tuple(ProbeStatistics.from_json(probe) for probe in value["probes"]),
            states=tuple(StateStatistics(**state) for state in value["states"]),
            seconds=dict(value["seconds"]),
            routes=tuple(RouteStatistics.from_json(route) for route in value.get("routes", ())),
            tested={name: (rows, passed) for name, (rows, passed) in value.get("tested", {}).items()},
            checks=tuple(CheckStatistics(**check) for check in value.get("checks", ())),
        )


def labelled(step: StepStatistics, label: str) -> StepStatistics:
    """Puts a label before the names of the joins and states of a step."""
    return replace(
        step,
        probes=tuple(
            replace(p, join=label + p.join, origin=label + p.origin, target=label + p.target) for p in step.probes
        ),
        states=tuple(replace(state, state=label + state.state) for state in step.states),
    )


def in_turn(steps: Iterable[StepStatistics]) -> StepStatistics:
    """The sum of steps that one slot made one after another: states are as large as they were at the end."""
    several = list(steps)
    sizes = {state.state: state for step in several for state in step.states}
    whole = merge(several)
    return replace(
        whole,
        states=tuple(
            replace(state, rows=sizes[state.state].rows, bytes=sizes[state.state].bytes) for state in whole.states
        ),
    )


def merge(steps: Iterable[StepStatistics]) -> StepStatistics:
    """The sum of several steps; operators of the same name are added together."""
    rows_in: dict[str, int] = {}
    seconds: dict[str, float] = {}
    probes: dict[tuple[str, str, str], list[int]] = {}
    states: dict[str, list[int]] = {}
    routes: list[RouteStatistics] = []
    tested: dict[str, tuple[int, int]] = {}
    checks: list[CheckStatistics] = []
    rows_out = 0
    for step in steps:
        checks += step.checks
        for name, (rows, passed) in step.tested.items():
            earlier = tested.get(name, (0, 0))
            tested[name] = earlier[0] + rows, earlier[1] + passed
        routes += step.routes
        rows_out += step.rows_out
        for relation, count in step.rows_in.items():
            rows_in[relation] = rows_in.get(relation, 0) + count
        for kind, spent in step.seconds.items():
            seconds[kind] = seconds.get(kind, 0.0) + spent
        # Sums, not values: a value for every sum on the way takes three times as long.
        for probe in step.probes:
            sums = probes.setdefault((probe.join, probe.origin, probe.target), [0, 0, 0, 0, 0])
            sums[0] += probe.probes
            sums[1] += probe.state_rows
            sums[2] += probe.visited
            sums[3] += probe.matches
            sums[4] += probe.kept
        for state in step.states:
            sums = states.setdefault(state.state, [0, 0, 0, 0])
            sums[0] += state.rows
            sums[1] += state.bytes
            sums[2] += state.inserted
            sums[3] += state.dropped
    return StepStatistics(
        rows_in,
        rows_out,
        tuple(ProbeStatistics(*key, *sums) for key, sums in probes.items()),
        tuple(StateStatistics(name, *sums) for name, sums in states.items()),
        seconds,
        merge_routes(routes),
        tested,
        merged_checks(checks),
    )


def merged_checks(checks: Iterable[CheckStatistics]) -> tuple[CheckStatistics, ...]:
    """The sum of several checks, by predicate."""
    found: dict[str, CheckStatistics] = {}
    for each in checks:
        known = found.get(each.predicate)
        found[each.predicate] = (
            each
            if known is None
            else CheckStatistics(
                each.predicate, known.rows + each.rows, known.passed + each.passed, known.seconds + each.seconds
            )
        )
    return tuple(found.values())
