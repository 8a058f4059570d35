"""`place-deployed`: placements at work. Bytes times distance on real links against the plan, and after rates changed.

The airline of the paper (Fig. 5): gate agents, displays and monitors on a network of ten sites. Every planner's
placement is compiled into operators; they run in this process, joined by links, over generated streams whose rates and
values are those that the planner was given. The usage of a run is the sum over all links of bytes per second of event
time, times the distance that they cross, once the longest window is full.

Limit: operators run in one process, so times are those of planning, compiling and starting, not of a network. Rates are
Poisson, so a filter for one flight out of many sees few rows; the run is long enough for the sum to settle.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

import numpy as np
import pyarrow as pa
from matplotlib.figure import Figure

from anabranch.place.landscape import Landscape, SinkQuery
from anabranch.place.planner import Planner
from anabranch.place.replan import afresh, beside
from anabranch.place.run import Options, planner_named
from anabranch.sites.compile import compile_program
from anabranch.sites.operators import Program
from lab.place_airline import (
    MINUTE,
    RATES,
    WARM,
    WATCHES,
    AtWork,
    airline_queries,
    bound,
    catalog_of_streams,
    landscape_at,
    poisson_rows,
)
from lab.registry import Experiment, Outcome, Setting, Verdict

PLANNERS = ("top-down", "bottom-up", "npc", "in-network", "relaxation")


@dataclass(frozen=True)
class Usage:
    """Network usage of one placement: planned and measured, in bytes per second times distance."""

    planned: float
    measured: float
    seconds: float
    """To plan all queries, compile them and start their operators."""
    operators: int


@dataclass(frozen=True)
class Replanned:
    """A deployment after one stream became ten times as fast: usage as it was planned, and planned again."""

    planned: float
    """The share of the usage that the new plan promises."""
    kept: float
    replanned: float
    is_through: bool
    """Whether all operators had been handed over when the usage was measured."""
    late: int


@dataclass(frozen=True)
class Found:
    """By planner at the given rates, and after the rates changed."""

    usage: Mapping[str, Usage]
    changed: Replanned


def _measured(program: Program, landscape: Landscape, rows: Mapping[str, pa.Table], seconds: float) -> float:
    """Bytes per second times distance on all links, after the longest window is full."""
    with tempfile.TemporaryDirectory() as folder:
        work = AtWork(program, landscape.topology, rows, Path(folder))
        work.advance_to(WARM)
        before = work.carried
        work.advance_to(WARM + seconds)
        return (work.carried - before) / seconds


def _planner(name: str, landscape: Landscape) -> Planner:
    return planner_named(name, landscape.topology, Options(max_cs=4, zones=3, iterations=1000, seed=1))


def _planned(planner: str, landscape: Landscape, queries: Sequence[SinkQuery]) -> tuple[Landscape, float]:
    started = perf_counter()
    chosen = _planner(planner, landscape)
    for query in queries:
        landscape = chosen.plan(landscape, query).landscape
    return landscape, perf_counter() - started


def _replanned(setting: Setting) -> Replanned:
    """A deployment at work whose one stream is ten times as fast as planned, and which then is planned again."""
    catalog = catalog_of_streams()
    rates = {**RATES, "flights": 10 * RATES["flights"]}
    seconds = 5 * MINUTE
    rows = poisson_rows(rates, 2 * WARM + 2 * seconds, setting.seed)
    watches = bound(catalog, WATCHES, dict.fromkeys(RATES, "2 SECONDS"))
    old, _ = _planned("top-down", landscape_at(RATES), watches)
    running = old.under(landscape_at(rates).statistics)
    planner = _planner("top-down", running)
    new = min((beside(running, planner), afresh(running, planner)), key=lambda one: one.cost)
    with tempfile.TemporaryDirectory() as folder:
        work = AtWork(compile_program(running, catalog), running.topology, rows, Path(folder))
        work.advance_to(WARM)
        before = work.carried
        work.advance_to(WARM + seconds)
        kept = (work.carried - before) / seconds
        work.change(compile_program(new, catalog))
        work.advance_to(2 * WARM + seconds)
        before = work.carried
        is_through = not work.wanted.is_changing
        work.advance_to(2 * WARM + 2 * seconds)
        return Replanned(new.cost / running.cost, kept, (work.carried - before) / seconds, is_through, work.late)


def measure(setting: Setting) -> Found:
    """Every planner's placement, planned and at work; and one at work after a stream became ten times as fast."""
    seconds = 5 * MINUTE if setting.quick else 30 * MINUTE
    catalog = catalog_of_streams()
    queries = airline_queries(catalog)
    rows = poisson_rows(RATES, WARM + seconds, setting.seed)
    usage = {}
    for planner in PLANNERS[:2] if setting.quick else PLANNERS:
        landscape, spent = _planned(planner, landscape_at(RATES), queries)
        started = perf_counter()
        program = compile_program(landscape, catalog)
        spent += perf_counter() - started
        measured = _measured(program, landscape, rows, seconds)
        usage[planner] = Usage(landscape.cost, measured, spent, len(program.operators))
    return Found(usage, _replanned(setting))


def present(found: Found) -> Outcome:
    rows = tuple(
        (name, one.planned, one.measured, one.measured / one.planned - 1, one.operators, one.seconds)
        for name, one in found.usage.items()
    )
    off = {name: abs(one.measured / one.planned - 1) for name, one in found.usage.items()}
    worst = max(off, key=lambda name: off[name])
    best = min(found.usage, key=lambda name: found.usage[name].measured)
    changed = found.changed
    ratio = changed.replanned / changed.kept
    verdicts = (
        Verdict(
            "the cost model is what links carry (our own bar: within 10 %)",
            f"at most {100 * off[worst]:.1f} % off ({worst})",
            {"within 10 %": off[worst] <= 0.1},
        ),
        Verdict(
            "integrated planning uses less of the network than phased (4.4)",
            f"least measured: {best}",
            {
                "Top-Down at most 5 % above the least": found.usage["top-down"].measured
                <= 1.05 * found.usage[best].measured
            },
        ),
        Verdict(
            "replanning by measured rates pays (our own bar: 0.7 of the usage)",
            f"flights ten times as fast: {ratio:.2f} of the usage before ({changed.planned:.2f} planned), "
            f"{changed.late} rows late",
            {"0.7": ratio <= 0.7, "handed over": changed.is_through, "none late": changed.late == 0},
        ),
    )

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        at = np.arange(len(found.usage))
        axes.bar(at - 0.2, [one.planned for one in found.usage.values()], width=0.36, label="planned")
        axes.bar(at + 0.2, [one.measured for one in found.usage.values()], width=0.36, label="measured on links")
        axes.set_xticks(at, list(found.usage))
        axes.set(title="bytes per second times distance")
        axes.legend()

    columns = ("planner", "planned", "measured", "off", "operators", "seconds to plan and compile")
    return Outcome(columns, rows, draw, verdicts)


EXPERIMENTS = (Experiment("place-deployed", "Placements at work: bytes on links against the plan", measure, present),)
