"""How well a mesh is searched: heuristics against the optimum, the size of the training set, the start of the search.

The settings are those of Nehme et al. 2012, Tables 1 to 3: one stream of a ten-way equi-join, so nine probes; six
attributes, Poisson with mean 1; samples of 1,000 rows; three partitions whose selectivities make another order best
than the overall ones do. The first attribute of a row decides its partition (0, 1, more), and in each partition three
other probes find few partners (0.05 to 0.4 per row, the rest 0.9 to 1.4). The partners of a sampled row are Poisson
about that mean. Costs count in probes; a test of the classifier and a route that is kept cost a hundredth of one each.
Nothing is run on an engine here: a mesh is judged by what it would pay for fresh rows with the true selectivities, and
an output rate is one over that.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import astuple, dataclass, replace
from typing import TypeAlias

import numpy as np
import pyarrow as pa
from matplotlib.figure import Figure

from anabranch.lang.arrays import Doubles, Integers
from anabranch.mesh.learn import Learner, Priced, SearchSetting
from anabranch.mesh.routes import Router, row_costs
from anabranch.mesh.search import MeshCosts, Solution, Space, merge_down
from anabranch.mesh.training import condense, training_set
from anabranch.plan.classifier import by_leaf, leaves
from anabranch.plan.classify import assign_routes
from anabranch.stats.mesh.operators import Needs, OperatorMatrix
from lab.papers.mesh_search import STARTS, Start, Stop, anneal, exhaustive, improve, start_solution
from lab.registry import Experiment, Outcome, Setting, Verdict

Search: TypeAlias = Callable[[Space, Solution, np.random.Generator, Stop], Solution]

PROBES, ATTRIBUTES, SAMPLE, PARTITIONS, FRESH = 9, 6, 1_000, 3, 20_000
FREE: Needs = ((),) * PROBES
COSTS = MeshCosts(test=0.01, route=0.01)
OPTIMUM = "Opt-QM"
SEARCHES: dict[str, Search] = {"II-QM": improve, "SA-QM": anneal}
MERGE = "merge"
COMPARED: dict[str, Search] = {**SEARCHES, MERGE: lambda space, start, rng, stop: merge_down(space, start)}
"""The paper's heuristics, and the search that the product uses."""
NAMES: dict[Start, str] = {
    "route": "route-driven",
    "each": "extreme-N",
    "content": "content-driven",
    "random": "random",
    "one": "extreme-1",
}
PAPER: dict[Start, int] = {"each": 6, "content": 10, "random": 12, "one": 19}
"""By how many percent route-driven is better (Figure 13)."""
NOT_TUNED_ON = 1
"""Added to the seed where starts are compared: the route-driven start was tuned by looking at the streams of seed 1."""


@dataclass(frozen=True, eq=False)
class World:
    """A stream whose true selectivities are known: partitions x probes."""

    selectivity: Doubles
    seed: int

    @property
    def truth(self) -> OperatorMatrix:
        return _matrix(self.selectivity)

    def rows(self, count: int, rng: np.random.Generator) -> tuple[pa.Table, Integers]:
        """Rows and the partition of each."""
        table = pa.table({f"a{i}": rng.poisson(1, count) for i in range(ATTRIBUTES)})
        return table, np.minimum(table["a0"].to_numpy(), PARTITIONS - 1)

    def learner(self, size: int) -> Learner:
        """A sample of the stream, profiled and condensed."""
        rng = np.random.default_rng(self.seed)
        table, partition = self.rows(SAMPLE, rng)
        seen = _matrix(rng.poisson(self.selectivity[partition]).astype(np.float64))
        return Learner(condense(training_set("s0", table), seen, size), FREE, SearchSetting(size=size, costs=COSTS))

    def rate(self, mesh: Priced) -> float:
        """Fresh rows per unit of time that the mesh takes in, by the true selectivities."""
        table, partition = self.rows(FRESH, np.random.default_rng([self.seed, 1]))
        columns = {name: table[name] for name in table.column_names}
        leaf_of = assign_routes(by_leaf(mesh.tree), columns, FRESH)
        ends = np.array(leaves(mesh.tree))[leaf_of]
        every = np.arange(PARTITIONS)
        paid = np.stack([row_costs(self.truth, order, every) for order in mesh.orders], axis=1)
        spent = paid[partition, ends[:, 0]] + COSTS.test * ends[:, 1]
        return float(1 / (spent.mean() + COSTS.route * len(mesh.orders)))

    def single_rate(self) -> float:
        """Fresh rows per unit of time with the best single order."""
        _, partition = self.rows(FRESH, np.random.default_rng([self.seed, 1]))
        shares = np.bincount(partition, minlength=PARTITIONS) / FRESH
        return 1 / (Router(self.truth, shares, FREE).best(np.arange(PARTITIONS)).cost + COSTS.route)


def worlds(count: int, seed: int) -> Iterable[World]:
    for number in range(count):
        rng = np.random.default_rng([seed, number])
        selectivity = rng.uniform(0.9, 1.4, (PARTITIONS, PROBES))
        few = rng.permutation(PROBES).reshape(PARTITIONS, -1)
        np.put_along_axis(selectivity, few, rng.uniform(0.05, 0.4, few.shape), axis=1)
        yield World(selectivity, 1_000 * seed + number)


def _matrix(selectivity: Doubles) -> OperatorMatrix:
    names = tuple(f"s{i}" for i in range(1, PROBES + 1))
    return OperatorMatrix(names, selectivity, np.ones_like(selectivity))


# --- heuristics against the optimum ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Searched:
    """One search in one world: its cost as a multiple of the optimum, and processor seconds."""

    world: int
    size: int
    search: str
    cost: float
    ratio: float
    seconds: float
    start: Start | None = "route"


def measure_quality(setting: Setting) -> list[Searched]:
    """The optimum, both heuristics and the product's search, from all starts, in several worlds and sizes."""
    sizes = (4, 7, 10) if setting.quick else tuple(range(4, 11))
    found: list[Searched] = []
    for world in worlds(3 if setting.quick else 8, setting.seed):
        for size in sizes:
            space = world.learner(size).space
            optimum, seconds = _timed(lambda space=space: exhaustive(space))  # type: ignore[misc]
            found.append(Searched(world.seed, size, OPTIMUM, optimum.cost, 1.0, seconds, None))
            for (name, search), start in itertools.product(COMPARED.items(), STARTS):
                rng = np.random.default_rng(world.seed)
                afresh = Space(space.training, space.router, space.costs)
                solution, seconds = _timed(
                    lambda space=afresh, search=search, rng=rng, start=start: search(  # type: ignore[misc]
                        space, start_solution(space, start, rng), rng, Stop()
                    )
                )
                ratio = solution.cost / optimum.cost
                found.append(Searched(world.seed, size, name, solution.cost, ratio, seconds, start))
    return found


def present_quality(found: list[Searched]) -> Outcome:
    sizes = sorted({one.size for one in found})

    def ratios(name: str, size: int | None = None, start: Start | None = "route") -> list[float]:
        return [one.ratio for one in found if one.search == name and size in (None, one.size) and one.start == start]

    def from_others(name: str) -> float:
        return max((one.ratio for one in found if one.search == name and one.start is not None), default=1.0)

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        for name in COMPARED:
            axes.plot(sizes, [100 * (np.mean(ratios(name, size)) - 1) for size in sizes], marker="o", label=name)
        axes.axhline(5, color="grey", linestyle=":", label="target")
        axes.set(xlabel="training rows", ylabel="% above the optimum, mean", title="Heuristics against Opt-QM")
        axes.legend()

    words = [
        f"{name} {np.mean(ratios(name)) - 1:+.2%} on average, {max(ratios(name)) - 1:+.2%} at worst, "
        f"{from_others(name) - 1:+.2%} at worst from any start"
        for name in COMPARED
    ]
    verdict = Verdict(
        "near-optimal meshes, without a figure; our own bar is 5 % on average for up to ten rows",
        f"{'; '.join(words)} (costs of Equation 2, {len(ratios(MERGE))} searches each, route-driven start)",
        {f"{name} within 5 %": float(np.mean(ratios(name))) <= 1.05 for name in COMPARED},
    )
    columns = ("world", "training rows", "search", "cost", "of optimum", "CPU s", "start")
    rows = tuple(astuple(replace(one, start=one.start or "")) for one in found)  # type: ignore[arg-type]
    return Outcome(columns, rows, draw, (verdict,))


# --- the size of the training set ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Trained:
    """One search with a training set of some size; the gain is the output rate over the best single route."""

    world: int
    size: int
    search: str
    seconds: float
    routes: int
    cost: float
    gain: float


def measure_sizes(setting: Setting) -> list[Trained]:
    """Both heuristics by size of the training set."""
    sizes = (8, 40, 100) if setting.quick else (8, 20, 40, 60, 80, 100)
    found = []
    for world in worlds(2 if setting.quick else 4, setting.seed):
        single = world.single_rate()
        for size in sizes:
            for name, search in SEARCHES.items():
                rng = np.random.default_rng(world.seed)
                learner = world.learner(size)
                space = learner.space
                solution, spent = _timed(
                    lambda space=space, search=search, rng=rng: search(  # type: ignore[misc]
                        space, start_solution(space, "route", rng), rng, Stop(iterations=1_000)
                    )
                )
                gain = world.rate(learner.classify(solution)) / single - 1
                found.append(Trained(world.seed, size, name, spent, len(solution.routes), solution.cost, gain))
    return found


def present_sizes(found: list[Trained]) -> Outcome:
    sizes = sorted({one.size for one in found})

    def mean(what: str, size: int, name: str | None = None) -> float:
        chosen = [one for one in found if one.size == size and name in (None, one.search)]
        return float(np.mean([one.seconds if what == "seconds" else one.gain for one in chosen]))

    def draw(figure: Figure) -> None:
        left, right = figure.subplots(1, 2)
        for name in SEARCHES:
            left.plot(sizes, [mean("seconds", size, name) for size in sizes], marker="o", label=name)
            right.plot(sizes, [100 * mean("gain", size, name) for size in sizes], marker="o", label=name)
        left.set(xlabel="training rows", ylabel="CPU seconds of the search", title="Time")
        right.set(xlabel="training rows", ylabel="% over the best single route, fresh rows", title="Quality")
        left.legend()

    smallest, largest = sizes[0], sizes[-1]
    verdicts = (
        Verdict(
            "larger training sets cost more search time (8 to 100 rows)",
            "; ".join(
                f"{name} {mean('seconds', smallest, name):.2f} s at {smallest} and "
                f"{mean('seconds', largest, name):.2f} s at {largest} rows"
                for name in SEARCHES
            )
            + " (CPU time)",
            {
                f"{name} dearer with {largest} rows than with {smallest}": mean("seconds", largest, name)
                > mean("seconds", smallest, name)
                for name in SEARCHES
            },
        ),
        Verdict(
            "a mesh beats the best single route on skewed streams, whatever the size (our own bar)",
            "output rate on fresh rows over the best single route "
            + ", ".join(f"{mean('gain', size):+.0%} with {size}" for size in sizes),
            {f"a gain with {size} rows": mean("gain", size) > 0 for size in sizes},
        ),
    )
    columns = ("world", "training rows", "search", "CPU s", "routes", "cost", "gain on fresh rows")
    return Outcome(columns, tuple(astuple(one) for one in found), draw, verdicts)


# --- where the search starts -----------------------------------------------------------------------------------------

Rates: TypeAlias = Mapping[tuple[Start, int], list[float]]


@dataclass(frozen=True)
class Started:
    """Output rates by start and number of meshes looked at: by the rows learnt from, and by fresh rows."""

    learnt: Rates
    fresh: Rates


def measure_starts(setting: Setting) -> Started:
    """Every start, with several numbers of meshes."""
    budgets = (30, 300) if setting.quick else (30, 100, 300, 1_000)
    rates: dict[tuple[Start, int], list[float]] = {}
    fresh: dict[tuple[Start, int], list[float]] = {}
    for world in worlds(2 if setting.quick else 5, setting.seed + NOT_TUNED_ON):
        learner = world.learner(100)
        for start in STARTS:
            for budget in budgets:
                rng = np.random.default_rng(world.seed)
                first = start_solution(learner.space, start, rng)
                stop = Stop(iterations=budget, plateau=budget)
                found = improve(learner.space, first, rng, stop, afresh=start)
                rates.setdefault((start, budget), []).append(1 / found.cost)
                fresh.setdefault((start, budget), []).append(world.rate(learner.classify(found)))
    return Started(rates, fresh)


def present_starts(found: Started) -> Outcome:
    budgets = sorted({budget for _, budget in found.learnt})
    rows = tuple(
        (
            NAMES[start],
            budget,
            _mean(found.learnt, start, budget),
            _behind(found.learnt, start, budget),
            _behind(found.fresh, start, budget),
        )
        for budget in budgets
        for start in NAMES
    )

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        for start, name in NAMES.items():
            axes.plot(budgets, [_mean(found.learnt, start, budget) for budget in budgets], marker="o", label=name)
        axes.set(
            xlabel="meshes looked at", ylabel="output rate (rows per probe)", xscale="log", title="Start solutions"
        )
        axes.legend()

    paper = ", ".join(f"{NAMES[start]} −{percent} %" for start, percent in PAPER.items())
    verdicts = tuple(
        Verdict(
            f"route-driven best; {paper}",
            f"after {budget} meshes, on fresh rows, once tests that do not pay are taken out, "
            + ", ".join(f"{NAMES[start]} {_behind(found.fresh, start, budget):+.0%}" for start in PAPER)
            + " against route-driven; by the rows that were learnt from "
            + ", ".join(f"{_behind(found.learnt, start, budget):+.0%}" for start in PAPER),
            _reached(found, budget),
        )
        for budget in budgets
    )
    note = (
        "the paper reports output rates of runs with II-QM, k = 3 and 100 training rows, and not how many meshes it "
        "looked at; here rates are by the true selectivities on fresh rows, every descent begins from the same kind of "
        "start, and route-driven puts rows together that do within a tenth of their best on one route"
    )
    columns = ("start", "meshes looked at", "output rate", "against route-driven", "against route-driven, fresh rows")
    return Outcome(columns, rows, draw, verdicts, (note,))


def _reached(found: Started, budget: int) -> dict[str, bool]:
    behind = {start: _behind(found.learnt, start, budget) for start in PAPER}
    return {
        "route-driven best by the rows it was learnt from": max(behind.values()) < 0,
        "extreme-1 worst": behind["one"] < min(share for start, share in behind.items() if start != "one"),
        "route-driven best on fresh rows": all(_behind(found.fresh, start, budget) < 0 for start in PAPER),
    }


def _mean(rates: Rates, start: Start, budget: int) -> float:
    return float(np.mean(rates[start, budget]))


def _behind(rates: Rates, start: Start, budget: int) -> float:
    """The output rate against that of the route-driven start, mean over worlds."""
    return float(np.mean(np.divide(rates[start, budget], rates["route", budget]))) - 1


def _timed(work: Callable[[], Solution]) -> tuple[Solution, float]:
    began = time.process_time()
    found = work()
    return found, time.process_time() - began


EXPERIMENTS = (
    Experiment(
        "mesh-search-quality",
        "II-QM and SA-QM against Opt-QM (Nehme et al. 2012, section 4.7)",
        measure_quality,
        present_quality,
    ),
    Experiment(
        "mesh-training-size",
        "Search time by size of the training set (Nehme et al. 2012, Figure 12)",
        measure_sizes,
        present_sizes,
    ),
    Experiment(
        "mesh-start-solutions", "Start solutions (Nehme et al. 2012, Figure 13)", measure_starts, present_starts
    ),
)
