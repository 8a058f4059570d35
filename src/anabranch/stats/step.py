"""The statistics of one engine step, for optimizers, progress entries and benchmarks.

One immutable value per step (per batch and slot); `merge` sums the slots of a batch. Counts are exact; times are
wall-clock seconds inside the step, by kind of work.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from anabranch.stats.mesh.routes import RouteStatistics, merge_routes


@dataclass(frozen=True)
class ProbeStatistics:
    """Lookups of rows of one join input in the state of another.

    The selectivity of the lookup is matches / (probes x state rows); `kept` counts the matches that also passed the
    predicates that became checkable with it.
    """

    join: str
    origin: str
    target: str
    probes: int = 0
    state_rows: int = 0
    """Live rows of the probed state, summed over probes: the number of candidate pairs."""
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
    """The rows and bytes of a state after the step, and the rows that entered and left it."""

    state: str
    rows: int
    bytes: int
    inserted: int = 0
    dropped: int = 0


@dataclass(frozen=True)
class CheckStatistics:
    """The combinations on which a predicate was checked, those that passed, and the seconds it took."""

    predicate: str
    rows: int = 0
    passed: int = 0
    seconds: float = 0.0


@dataclass(frozen=True)
class StepStatistics:
    """The statistics of one step of one slot, or of several merged."""

    rows_in: Mapping[str, int] = field(default_factory=dict)
    """Rows admitted, by relation."""
    rows_out: int = 0
    probes: tuple[ProbeStatistics, ...] = ()
    states: tuple[StateStatistics, ...] = ()
    seconds: Mapping[str, float] = field(default_factory=dict)
    routes: tuple[RouteStatistics, ...] = ()
    """The routes of a mesh; empty for other plans."""
    tested: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    """If a query of a set has its own filter on a relation: rows or combinations tested and passed."""
    checks: tuple[CheckStatistics, ...] = ()
    """The checks of predicates by joins."""

    @property
    def state_rows(self) -> int:
        return sum(state.rows for state in self.states)

    @property
    def state_bytes(self) -> int:
        return sum(state.bytes for state in self.states)

    def to_json(self) -> dict[str, Any]:
        # Called by every slot after every step; `asdict` would take ten times as long.
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
    """Prefixes the names of the joins and states of a step with a label."""
    return replace(
        step,
        probes=tuple(
            replace(p, join=label + p.join, origin=label + p.origin, target=label + p.target) for p in step.probes
        ),
        states=tuple(replace(state, state=label + state.state) for state in step.states),
    )


def in_turn(steps: Iterable[StepStatistics]) -> StepStatistics:
    """Sums consecutive steps of one slot: state sizes are those at the end."""
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
    """Sums several steps; operators with the same name are added."""
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
        # Accumulates plain sums; creating a value for each intermediate sum takes three times as long.
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
    """Sums several checks by predicate."""
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
