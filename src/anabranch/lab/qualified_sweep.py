"""How often, how fast and where the heuristics find qualified plans.

Figures 13 and 14 of Zhu, Raghavan and Rundensteiner 2010. Rates are uniform in 1..100 rows/s, joins are random (a
spanning tree and some more edges), selectivities uniform in (0, 1), as printed. The paper prints neither window nor
memory. The window is 0.04 s, short enough that twenty such streams still have an answer. Each setting has two budgets.
"Roomy" is the paper's second of CPU a second and twice the mjoin's memory. "Tight" lies between the mjoin and the tree
in both resources, at random, so that neither of them fits: there the second layer has to work, and not every budget can
be met.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import fmean, median
from time import process_time

import numpy as np
from matplotlib.figure import Figure

from anabranch.cost.estimates import Estimates, from_edges
from anabranch.cost.resources import HASHED, ResourceModel, Resources
from anabranch.lab.registry import Cell, Experiment, Outcome, Setting, Verdict, misses
from anabranch.optimize.jtree_finder import find_jtrees
from anabranch.optimize.min_state import min_state
from anabranch.optimize.ranking import ranked_orderer
from anabranch.optimize.shapes import Orderer, Shape
from anabranch.optimize.state_removal import remove_states
from anabranch.optimize.state_selection import select_states
from anabranch.optimize.strategy import Budget, Proposal
from anabranch.optimize.two_layer import two_layer

WINDOW = 0.04
SHOWN = (3, 5, 10)
METHODS = ("state-selection", "state-removal", "two-layer", "jtree-finder")


@dataclass
class Tally:
    """What one method did over the settings of one size and kind of budget."""

    found: int = 0
    seconds: list[float] = field(default_factory=list)
    costs: list[Resources] = field(default_factory=list)


def run(setting: Setting) -> Outcome:
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
    rows: list[tuple[Cell, ...]] = []
    for (size, kind, method), tally in sorted(tallies.items()):
        exists = tallies[size, kind, "jtree-finder"].found if size <= searched else 0
        share = 100 * tally.found / exists if exists else float("nan")
        rows.append((size, kind, method, tally.found, repeats, share, 1e3 * median(tally.seconds)))
    columns = ("streams", "budget", "method", "qualified", "settings", "% of jtree-finder", "median CPU ms")
    verdicts = (*_verdicts(tallies, searched, max(sizes)), _speed(rng))
    return Outcome(columns, tuple(rows), lambda figure: _draw(figure, tallies, sizes), verdicts)


def _speed(rng: np.random.Generator) -> Verdict:
    """Sizes beyond the sweep, some settings each."""
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
    return Verdict(
        "our own bar: JTree-Finder at 10 streams within 60 s, two-layer at 20 within 50 ms and at 50 within 2 s",
        f"{full:.1f} s, {1e3 * median(layered[20]):.0f} ms, {median(layered[50]):.2f} s "
        "(medians of processor time, tight budgets)"
        + misses({"10": full <= 60, "20": median(layered[20]) <= 0.05, "50": median(layered[50]) <= 2}),
    )


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
    return {
        "roomy": Budget(cpu=1.0, memory=2 * mjoin.memory),
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
        note("jtree-finder", started, found[0].cost if found else None)


def _warm_up(rng: np.random.Generator) -> None:
    """Compiles what is compiled, so that no setting is charged for it."""
    model = ResourceModel(random_setting(rng, 4), HASHED)
    two_layer(ranked_orderer(model), Budget(cpu=1e-12))
    find_jtrees(model, Budget())


def _verdicts(tallies: Mapping[tuple[int, str, str], Tally], searched: int, largest: int) -> tuple[Verdict, ...]:
    def counts(kind: str, method: str) -> tuple[int, int]:
        found = sum(t.found for (size, k, m), t in tallies.items() if k == kind and m == method and size <= searched)
        return found, sum(t.found for (_, k, m), t in tallies.items() if k == kind and m == "jtree-finder")

    def share(kind: str, method: str) -> str:
        found, exists = counts(kind, method)
        return f"{method} {100 * found / exists:.1f} %" if exists else f"{method} none to find"

    heuristics, kinds = METHODS[:3], ("roomy", "tight")
    found_all = {
        f"{kind} {method}": counts(kind, method)[0] >= counts(kind, method)[1]
        for kind in kinds
        for method in heuristics
    }
    slowest = {method: median(tallies[largest, "tight", method].seconds) for method in heuristics}
    exhaustive = median(tallies[searched, "tight", "jtree-finder"].seconds)
    selection, removal = (_pooled(tallies, method) for method in METHODS[:2])
    return (
        Verdict(
            "both heuristics find a qualified plan in 100 % of the settings in which JTree-Finder does",
            "; ".join(f"{kind}: " + ", ".join(share(kind, method) for method in heuristics) for kind in kinds)
            + f" (up to {searched} streams){misses(found_all)}",
        ),
        Verdict(
            "JTree-Finder is exponential and ran out of memory at 8 streams, the heuristics are polynomial",
            f"JTree-Finder {exhaustive * 1e3:.0f} ms at {searched} streams; at {largest} streams "
            + ", ".join(f"{method} {seconds * 1e3:.1f} ms" for method, seconds in slowest.items())
            + " (medians of processor time, tight budgets)",
        ),
        Verdict(
            "plans of state-selection need less memory and more CPU than those of state-removal",
            f"with tight budgets, relative to the other: memory {selection[1] / removal[1]:.2f}, "
            f"CPU {selection[0] / removal[0]:.2f}"
            + misses({"memory": selection[1] < removal[1], "CPU": selection[0] > removal[0]}),
        ),
    )


def _pooled(tallies: Mapping[tuple[int, str, str], Tally], method: str) -> tuple[float, float]:
    """Mean logarithms of CPU and memory over all tight settings, as plain numbers again."""
    costs = [cost for (_, kind, m), tally in tallies.items() if kind == "tight" and m == method for cost in tally.costs]
    return (
        float(np.exp(fmean(np.log(cost.cpu) for cost in costs))),
        float(np.exp(fmean(np.log(cost.memory) for cost in costs))),
    )


def _draw(figure: Figure, tallies: Mapping[tuple[int, str, str], Tally], sizes: range) -> None:
    times, *planes = figure.subplots(1, 1 + len(SHOWN))
    for method in METHODS:
        known = [size for size in sizes if (size, "tight", method) in tallies]
        times.plot(known, [1e3 * median(tallies[size, "tight", method].seconds) for size in known], label=method)
    times.set(xlabel="streams", ylabel="median CPU ms", yscale="log", title="optimization time")
    times.legend(fontsize="small")
    for axes, size in zip(planes, SHOWN, strict=True):
        for method in METHODS[:2]:
            costs = tallies[size, "tight", method].costs
            axes.plot([c.memory for c in costs], [c.cpu for c in costs], ".", label=method, alpha=0.6)
            if costs:
                axes.set(xscale="log", yscale="log")
        axes.set(xlabel="rows in states", title=f"{size} streams")
    planes[0].set_ylabel("CPU s/s")


EXPERIMENTS = (
    Experiment("qualified-sweep", "Random settings: time, success and place of plans (Figures 13, 14)", run),
)
