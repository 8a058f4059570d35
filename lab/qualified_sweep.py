"""How often, how fast and where the heuristics find qualified plans.

Figures 13 and 14 of Zhu, Raghavan and Rundensteiner 2010. Rates are uniform in 1..100 rows/s, joins are random (a
spanning tree and some more edges), selectivities uniform in (0, 1), as printed. The paper prints neither window nor
memory. The window is 0.04 s, short enough that twenty such streams still have a result. With so few rows in a window
the paper's CPU limit of a second per second never binds: any plan keeps within it. So limits are drawn around the costs
of the two plans that need no search, the best mjoin and the best tree, and each setting has two budgets. "Wide" draws
each limit, on a logarithmic scale, from half the cheaper of the two to twice the dearer, so some budgets are easy, some
hard and some cannot be met. "Tight" draws it between the two, so that neither plan fits and the second layer has to
work.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import fmean, median
from time import process_time
from typing import TypeAlias

import numpy as np
from matplotlib.figure import Figure

from anabranch.cost.estimates import Estimates, from_edges
from anabranch.cost.resources import ResourceModel, Resources
from anabranch.optimize.jtree_finder import find_jtrees
from anabranch.optimize.min_state import min_state
from anabranch.optimize.proposals import Budget, Proposal
from anabranch.optimize.ranking import ranked_orderer
from anabranch.optimize.shapes import Orderer, Shape
from anabranch.optimize.state_removal import remove_states
from anabranch.optimize.state_selection import select_states
from lab.papers.printed_costs import HASHED
from lab.papers.two_layer import two_layer
from lab.registry import Cell, Experiment, Outcome, Setting, Verdict

WINDOW = 0.04
SHOWN = (3, 5, 10)
HEURISTICS = ("state-selection", "state-removal", "two-layer")
FULL = "jtree-finder"
KINDS = ("wide", "tight")


@dataclass
class Tally:
    """The successes of one method over the settings of one size and kind of budget."""

    found: int = 0
    seconds: list[float] = field(default_factory=list)
    costs: list[Resources] = field(default_factory=list)


Tallies: TypeAlias = Mapping[tuple[int, str, str], Tally]


@dataclass(frozen=True)
class Speed:
    """Median processor seconds at sizes beyond the sweep."""

    full_at_10: float
    layered_at_20: float
    layered_at_50: float


@dataclass(frozen=True)
class Sweep:
    """The tallies by streams, budget and method; up to `searched` streams JTree-Finder ran too."""

    tallies: Tallies
    searched: int
    repeats: int
    speed: Speed

    @property
    def sizes(self) -> list[int]:
        return sorted({size for size, _, _ in self.tallies})

    def found(self, kind: str, method: str) -> int:
        """Settings in which a method found a plan, of those that JTree-Finder searched."""
        return sum(
            tally.found
            for (size, budget, name), tally in self.tallies.items()
            if budget == kind and name == method and size <= self.searched
        )

    def seconds(self, size: int, method: str) -> float:
        return median(self.tallies[size, "tight", method].seconds)

    def growth(self, method: str) -> float:
        """By how much one more stream multiplies the time, on average over the sizes that the method ran at."""
        sizes = [size for size in self.sizes if (size, "tight", method) in self.tallies]
        first, last = sizes[0], sizes[-1]
        return float((self.seconds(last, method) / self.seconds(first, method)) ** (1 / (last - first)))


def measure(setting: Setting) -> Sweep:
    """Every method in random settings of every size."""
    sizes = range(3, 11) if setting.quick else range(3, 21)
    repeats = 20 if setting.quick else 100
    searched = 7 if setting.quick else 9
    rng = np.random.default_rng(setting.seed)
    _warm_up(rng)
    tallies: dict[tuple[int, str, str], Tally] = {}
    for size in sizes:
        for _ in range(repeats):
            model = ResourceModel(random_setting(rng, size), HASHED)
            for kind, budget in _budgets(model, rng).items():
                _try(model, budget, size, kind, tallies, exhaustive=size <= searched)
    return Sweep(tallies, searched, repeats, _speed(rng))


def present(sweep: Sweep) -> Outcome:
    rows: list[tuple[Cell, ...]] = []
    for (size, kind, method), tally in sorted(sweep.tallies.items()):
        exists = sweep.tallies[size, kind, FULL].found if size <= sweep.searched else 0
        share = 100 * tally.found / exists if exists else float("nan")
        rows.append((size, kind, method, tally.found, sweep.repeats, share, 1e3 * median(tally.seconds)))
    columns = ("streams", "budget", "method", "qualified", "settings", "% of jtree-finder", "median CPU ms")
    return Outcome(columns, tuple(rows), lambda figure: _draw(figure, sweep), _verdicts(sweep))


def _speed(rng: np.random.Generator) -> Speed:
    """Measures sizes beyond the sweep, some settings each."""
    large = ResourceModel(random_setting(rng, 10), HASHED)
    started = process_time()
    find_jtrees(large, Budget())
    full = process_time() - started
    layered = {20: [0.0] * 9, 50: [0.0] * 5}
    for size, seconds in layered.items():
        for number in range(len(seconds)):
            model = ResourceModel(random_setting(rng, size), HASHED)
            budget = _budgets(model, rng)["tight"]
            started = process_time()
            two_layer(ranked_orderer(ResourceModel(model.estimates, model.units)), budget)
            seconds[number] = process_time() - started
    return Speed(full, median(layered[20]), median(layered[50]))


def random_setting(rng: np.random.Generator, size: int) -> Estimates:
    """A random connected join graph."""
    names = [f"s{i}" for i in range(size)]
    rates = {name: float(rng.uniform(1, 100)) for name in names}
    edges = {(names[int(rng.integers(i))], names[i]): float(rng.uniform(1e-3, 1)) for i in range(1, size)}
    for _ in range(int(rng.integers(size))):
        one, other = sorted(rng.choice(size, 2, replace=False))
        edges.setdefault((names[one], names[other]), float(rng.uniform(1e-3, 1)))
    return from_edges(rates, WINDOW, edges)


def _budgets(model: ResourceModel, rng: np.random.Generator) -> dict[str, Budget]:
    orderer = ranked_orderer(model)
    mjoin, tree = orderer.price(orderer.mjoin()), orderer.price(min_state(orderer))
    cpu, memory = sorted((mjoin.cpu, tree.cpu)), sorted((mjoin.memory, tree.memory))

    def wide(costs: list[float]) -> float:
        return float(np.exp(rng.uniform(np.log(costs[0] / 2), np.log(2 * costs[1]))))

    return {
        "wide": Budget(wide(cpu), wide(memory)),
        "tight": Budget(rng.uniform(cpu[0], cpu[1]), rng.uniform(memory[0], memory[1])),
    }


def _try(
    model: ResourceModel,
    budget: Budget,
    size: int,
    kind: str,
    tallies: dict[tuple[int, str, str], Tally],
    *,
    exhaustive: bool,
) -> None:
    def note(method: str, started: float, cost: Resources | None) -> None:
        tally = tallies.setdefault((size, kind, method), Tally())
        tally.seconds.append(process_time() - started)
        if cost is not None and budget.allows(cost):
            tally.found += 1
            tally.costs.append(cost)

    def last(orderer: Orderer, trail: list[Shape]) -> Resources:
        return orderer.price(trail[-1])

    started = process_time()
    orderer = ranked_orderer(ResourceModel(model.estimates, model.units))
    note("state-selection", started, last(orderer, select_states(orderer, budget)))
    started = process_time()
    orderer = ranked_orderer(ResourceModel(model.estimates, model.units))
    note("state-removal", started, last(orderer, remove_states(orderer, budget, min_state(orderer))))
    started = process_time()
    answer = two_layer(ranked_orderer(ResourceModel(model.estimates, model.units)), budget)
    note("two-layer", started, answer.cost if isinstance(answer, Proposal) else None)
    if exhaustive:
        started = process_time()
        found = find_jtrees(model, budget)
        note(FULL, started, found[0].cost if found else None)


def _warm_up(rng: np.random.Generator) -> None:
    """Compiles the kernels, so that no setting is charged for it."""
    model = ResourceModel(random_setting(rng, 4), HASHED)
    two_layer(ranked_orderer(model), Budget(cpu=1e-12))
    find_jtrees(model, Budget())


def _verdicts(sweep: Sweep) -> tuple[Verdict, ...]:
    def share(kind: str, method: str) -> str:
        found, exists = sweep.found(kind, method), sweep.found(kind, FULL)
        return f"{method} {100 * found / exists:.1f} %" if exists else f"{method} none to find"

    tried = sweep.repeats * sum(size <= sweep.searched for size in sweep.sizes)
    largest, searched, speed = max(sweep.sizes), sweep.searched, sweep.speed
    selection, removal = (_pooled(sweep.tallies, method) for method in HEURISTICS[:2])
    return (
        Verdict(
            "both heuristics find a qualified plan in 100 % of the settings in which JTree-Finder does",
            "; ".join(
                f"{kind} (a plan exists in {sweep.found(kind, FULL)} of {tried}): "
                + ", ".join(share(kind, method) for method in HEURISTICS)
                for kind in KINDS
            )
            + f" (up to {searched} streams)",
            {
                f"{kind} {method}": sweep.found(kind, method) >= sweep.found(kind, FULL) > 0
                for kind in KINDS
                for method in HEURISTICS
            },
        ),
        Verdict(
            "JTree-Finder is exponential (it ran out of memory at 8 streams), the heuristics are polynomial",
            f"JTree-Finder {sweep.seconds(searched, FULL) * 1e3:.0f} ms at {searched} streams, "
            f"{sweep.growth(FULL):.2f} times as much with each stream; at {largest} streams "
            + ", ".join(
                f"{method} {sweep.seconds(largest, method) * 1e3:.1f} ms ({sweep.growth(method):.2f} times with each)"
                for method in HEURISTICS
            )
            + " (medians of processor time, tight budgets)",
            {
                "JTree-Finder doubles with each stream": sweep.growth(FULL) >= 2,
                "heuristics grow by less than half with each": all(sweep.growth(method) < 1.5 for method in HEURISTICS),
                f"JTree-Finder slowest at {searched} streams": all(
                    sweep.seconds(searched, method) < sweep.seconds(searched, FULL) for method in HEURISTICS
                ),
            },
        ),
        Verdict(
            "plans of state-selection need less memory and more CPU than those of state-removal",
            f"with tight budgets, relative to the other: memory {selection[1] / removal[1]:.2f}, "
            f"CPU {selection[0] / removal[0]:.2f}",
            {"memory": selection[1] < removal[1], "CPU": selection[0] > removal[0]},
        ),
        Verdict(
            "our own bar: JTree-Finder at 10 streams within 60 s, two-layer at 20 within 50 ms and at 50 within 2 s",
            f"{speed.full_at_10:.1f} s, {1e3 * speed.layered_at_20:.0f} ms, {speed.layered_at_50:.2f} s "
            "(medians of processor time, tight budgets)",
            {
                "10 streams": speed.full_at_10 <= 60,
                "20 streams": speed.layered_at_20 <= 0.05,
                "50 streams": speed.layered_at_50 <= 2,
            },
        ),
    )


def _pooled(tallies: Tallies, method: str) -> tuple[float, float]:
    """Mean logarithms of CPU and memory over all tight settings, as plain numbers again."""
    costs = [cost for (_, kind, m), tally in tallies.items() if kind == "tight" and m == method for cost in tally.costs]
    return (
        float(np.exp(fmean(np.log(cost.cpu) for cost in costs))),
        float(np.exp(fmean(np.log(cost.memory) for cost in costs))),
    )


def _draw(figure: Figure, sweep: Sweep) -> None:
    times, *planes = figure.subplots(1, 1 + len(SHOWN))
    for method in (*HEURISTICS, FULL):
        known = [size for size in sweep.sizes if (size, "tight", method) in sweep.tallies]
        times.plot(known, [1e3 * sweep.seconds(size, method) for size in known], label=method)
    times.set(xlabel="streams", ylabel="median CPU ms", yscale="log", title="optimization time")
    times.legend(fontsize="small")
    for axes, size in zip(planes, SHOWN, strict=True):
        for method in HEURISTICS[:2]:
            costs = sweep.tallies[size, "tight", method].costs
            axes.plot([c.memory for c in costs], [c.cpu for c in costs], ".", label=method, alpha=0.6)
            if costs:
                axes.set(xscale="log", yscale="log")
        axes.set(xlabel="rows in states", title=f"{size} streams")
    planes[0].set_ylabel("CPU s/s")


EXPERIMENTS = (
    Experiment(
        "qualified-sweep", "Random settings: time, success and place of plans (Figures 13, 14)", measure, present
    ),
)
