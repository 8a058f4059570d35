"""Every condition of every verdict of the lab can hold and can fail: judges are run on doctored measurements."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("pyspark")

from anabranch.cost.resources import Resources
from anabranch.plan.text import parse
from lab import (
    balance_cluster,
    balance_deciding,
    balance_elastic,
    balance_heavy_key,
    balance_pipelined,
    balance_strategies,
    cost_model,
    group_by_below,
    limits,
    limits_spark,
    mesh_columns,
    mesh_filters,
    mesh_over_time,
    mesh_questions,
    mesh_search,
    mesh_streams,
    mesh_throughput,
    migration_boxes,
    migration_length,
    migration_low_high,
    migration_pause,
    migration_runtime,
    place_changes,
    place_comparison,
    place_deployed,
    place_on_sites,
    place_scaling,
    policies,
    policy_runs,
    qualified_sets,
    qualified_sweep,
    rate_joins,
    rate_selections,
    regret_runs,
    regret_spark,
)
from lab.counting import Counted
from lab.place_common import Total
from lab.policy_runs import AT_ONCE, HINDSIGHT, PRODUCT, STAY
from lab.policy_workloads import Pattern
from lab.registry import Experiment, experiments, spark_variants
from lab.virtual_clock import Moment


@dataclass(frozen=True)
class Doctored:
    """Measurements under which every condition holds, and others under which, together, every condition fails."""

    good: Any
    bad: tuple[Any, ...]


CASES: dict[str, Doctored] = {}


def case(*names: str) -> Callable[[Callable[[], Doctored]], Callable[[], Doctored]]:
    """Registers doctored measurements for experiments."""

    def add(make: Callable[[], Doctored]) -> Callable[[], Doctored]:
        CASES.update(dict.fromkeys(names, make()))
        return make

    return add


# --- balancing -------------------------------------------------------------------------------------------------------


@case("balance-heavy-key")
def _heavy_key() -> Doctored:
    def runs(before: float, after: float, results: int) -> dict[str, balance_heavy_key.Run]:
        return {
            "one slot": balance_heavy_key.Run((before,) * 4, (1.0,) * 4, 100),
            "split": balance_heavy_key.Run((after,) * 4, (1.0,) * 4, results),
        }

    return Doctored(runs(7.6, 1.1, 100), (runs(1.5, 1.4, 99),))


@case("balance-pipelined")
def _pipelined() -> Doctored:
    def both(slowest: float, most: int, results: int) -> dict[str, balance_pipelined.Both]:
        pipeline = balance_pipelined.Work((1.0, 2.0), (10, 10), 5)
        return {"a case": (pipeline, balance_pipelined.Work((slowest, 1.0), (most, 1), results))}

    return Doctored(both(1.5, 12, 5), (both(2.1, 12, 4), both(2.5, 14, 5)))


@case("regret")
def _regret() -> Doctored:
    def one(
        name: str, kind: Any, auto: float, adapt: float, results: int = 7, changes: int = 1, deciding: float = 0.0
    ) -> Any:
        def run(work: float, count: int = 7, changed: int = 0, deciding: float = 0.0) -> regret_runs.Run:
            return regret_runs.Run("(a b c)", work, work, 1, changed, count, deciding=deciding)

        best, other = run(1.0), run(2.0)
        found = run(adapt, results, changes, deciding)
        return regret_runs.Found(name, kind, 3, 4, (best, other), run(auto), found, run(adapt), run(auto))

    good = (
        one("still", "steady", 1.0, 1.005, changes=0),
        one("swap", "changing", 2.4, 1.1),
        one("flights", "real", 1.0, 1.04),
    )
    bad = (
        one("still", "steady", 1.0, 1.2, results=6, changes=0, deciding=0.02),
        one("swap", "changing", 2.4, 1.3),
        one("flights", "real", 1.0, 1.06),
    )
    return Doctored(good, (bad,))


@case("limits")
def _limits() -> Doctored:
    def one(is_chosen: bool, waiting: float, memory: float) -> limits.Ran:
        return limits.Ran("3 streams", "(a b c)", is_chosen, 0.1, 0.08, 0.09, waiting, 1e6, memory)

    return Doctored([one(True, 0.0, 8e5), one(False, 5.0, 8e5)], ([one(True, 5.0, 2e6), one(False, 0.0, 2e6)],))


@case("migration-pause")
def _migration_pause() -> Doctored:
    def found(longest: float, is_same: bool = True) -> migration_pause.Found:
        def way(seconds: float) -> migration_pause.Paused:
            return migration_pause.Paused((0.1, seconds, 9.0), 2, 1_000_000, is_same)

        return migration_pause.Found(0.1, {"moving-state": way(0.5), "spread": way(longest)})

    return Doctored(found(0.15), (found(0.3, is_same=False),))


@case("limits-spark")
def _limits_spark() -> Doctored:
    def one(taken: float, memory: float, plan: float = 0.05) -> limits_spark.Whole:
        return limits_spark.Whole("2 streams", 2, plan, 0.4, (taken,) * 8, 1e8, memory)

    return Doctored([one(0.4, 9e7)], ([one(0.8, 2e8)], [one(0.2, 9e7, plan=0.15)]))


@case("regret-spark")
def _regret_spark() -> Doctored:
    def one(name: str, kind: Any, auto: float, adapt: float, answer: int = 1) -> regret_spark.SparkFound:
        def run(seconds: float, rows: int = 1) -> tuple[regret_spark.SparkRun, ...]:
            return (regret_spark.SparkRun(seconds, 1.2 * seconds, "(a b c)", 0, (rows, 5)),)

        return regret_spark.SparkFound(
            name, kind, {"best static": run(1.0), "auto": run(auto), "adapt": run(adapt, answer)}
        )

    good = (one("still", "steady", 1.0, 1.0), one("swap", "changing", 2.0, 1.05))
    bad = (one("still", "steady", 1.0, 1.2), one("swap", "changing", 1.3, 1.05, answer=2))
    return Doctored(good, (bad,))


@case("balance-elastic")
def _elastic() -> Doctored:
    def runs(slots: tuple[int, int, int], late: float, one: float, results: int) -> dict[str, balance_elastic.Run]:
        def run(counts: tuple[int, int, int], behind: float, found: int) -> balance_elastic.Run:
            used = tuple(count for count in counts for _ in range(4))
            return balance_elastic.Run(used, (0.1,) * 4 + (behind,) * 4 + (0.1,) * 4, found, 4)

        return {
            "one": run((1, 1, 1), one, 100),
            "eight": run((8, 8, 8), 0.5, 100),
            "elastic": run(slots, late, results),
        }

    bad = runs((9, 9, 9), 30.0, 0.5, 99)
    lasting = replace(bad["elastic"], slots=(1,) * 4 + (9,) * 4 + (10,) * 4, late=(9.0,) * 12)
    return Doctored(runs((1, 4, 1), 0.5, 50.0, 100), (bad, bad | {"elastic": lasting}))


def _cluster_run(results: float, waiting: int, states: int, moves: tuple[float, ...], total: int = 100) -> Any:
    steps = 45
    moved = tuple(balance_cluster.Moved(10.0, 10.0 + each) for each in moves)
    counts = tuple(round(results * (number + 1)) for number in range(steps))
    return balance_cluster.Run(counts, (waiting,) * steps, (states,) * steps, moved, (1.0,), 90.0, total, 2.0)


@case("balance-local-and-load")
def _local_and_load() -> Doctored:
    def runs(queues: dict[str, float], together: dict[str, float], states: int, waiting: int, total: int) -> Any:
        found = {}
        for kind, factors in (("queues", queues), ("together", together)):
            for name, factor in {"No-Adapt": 1.0, **factors}.items():
                held = states if name == "LM" else 2000 - states if "LB" in name and "LM" not in name else 1000
                rows = waiting if name == "No-Adapt" else 500
                last = total if (kind, name) == ("together", "LM") else 100
                found[kind, name] = _cluster_run(100 * factor, rows, held, (1.0,), last)
        return found

    good = {"LM": 2.0, "PTLB": 2.0, "MSLB": 1.8, "LM+PTLB": 3.3, "LM+MSLB": 2.7}
    none = dict.fromkeys(good, 9.0) | {"LM+PTLB": 1.0, "LM+MSLB": 1.0}
    waiting = good | {"MSLB": 3.0}
    return Doctored(runs(good, waiting, 900, 600, 100), (runs(none, none | {"MSLB": 1.0}, 1500, 10, 99),))


@case("balance-strategies")
def _strategies() -> Doctored:
    def cases(short: tuple[float, float], long: tuple[float, float], lasting: float, moving: float) -> Any:
        found = {}
        for number, rate in enumerate(balance_strategies.RATES):
            for window, (state, track) in ((15.0, short), (60.0, long)):
                more = 0.0 if window == 15.0 else 0.1 * number
                ratio = {"moving-state": state + more, "parallel-track": track}
                seconds = {"moving-state": moving, "parallel-track": lasting * window}
                found[rate, window] = balance_strategies.Case(ratio, seconds)  # type: ignore[arg-type]
        return found

    good = cases((1.02, 1.0), (1.5, 1.2), 2.0, 1.0)
    top = balance_strategies.Case(
        {"moving-state": 2.0, "parallel-track": 1.9}, {"moving-state": 1.0, "parallel-track": 30.0}
    )
    end = balance_strategies.Case(
        {"moving-state": 2.2, "parallel-track": 1.5}, {"moving-state": 1.0, "parallel-track": 120.0}
    )
    good |= {(50.0, 15.0): top, (50.0, 60.0): end}
    return Doctored(good, (cases((1.5, 1.0), (1.0, 1.3), 1.0, 100.0), cases((3.0, 1.0), (1.0, 1.0), 1.0, 100.0)))


@case("balance-parallel-track-wins")
def _parallel_track_wins() -> Doctored:
    def runs(moving: float, parallel: float, total: int) -> Any:
        return {
            "no moves": _cluster_run(5.0, 10, 10, ()),
            "moving-state": _cluster_run(moving, 10, 10, (0.1,)),
            "parallel-track": _cluster_run(parallel, 10, 10, (60.0,), total),
        }

    return Doctored(runs(10.0, 11.0, 100), (runs(11.0, 10.0, 99),))


@case("balance-deciding-spark")
def _deciding() -> Doctored:
    old, new = balance_deciding.OLD, "((b c) a)"

    def run(
        spent: float, plan: str, moves: tuple[int, ...] = (), held: int = 100, results: int = 100
    ) -> balance_deciding.ClusterRun:
        cpu, bytes_held = ((spent, 0.0),) * 24, ((held, 0),) * 24
        return balance_deciding.ClusterRun(cpu, bytes_held, (spent + 0.2,) * 24, results, moves, (plan,) * 24)

    def runs(both: float, plan: str, moves: tuple[int, ...], base: float, held: int, results: int) -> Any:
        found = {"No-Adapt": run(base, old), "LM": run(0.5, plan, held=held, results=results)}
        for name in balance_deciding.BALANCING:
            found[name] = run(0.6, old, moves, 2 * held)
            found[f"LM+{name}"] = run(both, plan, moves, held)
        return found

    return Doctored(runs(0.2, new, (3,), 1.0, 40, 100), (runs(0.9, old, (), 0.1, 70, 99),))


@case("mesh-filters")
def _filters() -> Doctored:
    def streams(gain: float, plain: float, by_class: bool, same: bool) -> dict[str, mesh_filters.Stream]:
        def one(times: float, found: bool) -> mesh_filters.Stream:
            return mesh_filters.Stream({"u before v": 1.0, mesh_filters.LEARNT: 1 / times}, 0.01, found, same)

        selective, dear, none = mesh_filters.STREAMS
        return {selective: one(gain, by_class), dear: one(gain, by_class), none: one(plain, not by_class)}

    return Doctored(streams(1.6, 0.98, True, True), (streams(1.1, 0.9, False, False),))


# --- rates -----------------------------------------------------------------------------------------------------------


@case("rate-selections")
def _selections() -> Doctored:
    def series(slow: int, fast: int) -> dict[str, rate_selections.Series]:
        return {
            "slow first": rate_selections.Series(50.0, slow, 1.0),
            "fast first": rate_selections.Series(500.0, fast, 1.0),
        }

    return Doctored(series(50, 480), (series(50, 250),))


def _crossing_at(count: float, results: int = 4_000) -> dict[str, np.ndarray[Any, np.dtype[np.float64]]]:
    """Two curves, of which the second is behind up to a number of results."""
    first = np.arange(results, dtype=np.float64)
    return {"(A B) C": first, "(A C) B": np.where(first < count, first + 1, first - 1)}


@case("rate-three-way")
def _three_way() -> Doctored:
    def found(measured: float) -> dict[float, rate_joins.Curves]:
        counts = np.arange(1.0, 4_001.0)
        return {
            cost: rate_joins.Curves(cost, 40.0, counts, _crossing_at(2_000), _crossing_at(measured))
            for cost in (rate_joins.THREE_HANDLING, *rate_joins.NOT_FITTED)
        }

    return Doctored(found(2_100), (found(3_000), found(9_000)))


@case("rate-five-way")
def _five_way() -> Doctored:
    numbers = np.arange(1.0, 30_001.0)
    curves = {
        "Left Deep": np.where(numbers <= 20_000, 0.99 * numbers, 2 * numbers),
        "Fast Leaves": numbers,
        "Evenly Spread": 0.8 * numbers,
    }
    worse = {"Left Deep": 0.9 * numbers, "Fast Leaves": numbers, "Evenly Spread": 1.1 * numbers}

    def found(
        measured: Mapping[str, Any], traditional: tuple[float, ...], rates: tuple[float, ...]
    ) -> rate_joins.FiveWay:
        names = tuple(rate_joins.FIVE_PLANS)
        return rate_joins.FiveWay(
            rate_joins.Curves(2e-3, 60.0, numbers, curves, measured),
            dict(zip(names, traditional, strict=True)),
            dict(zip(names, rates, strict=True)),
        )

    return Doctored(
        found(curves, (10_000, 2_000, 5_000), (1_300, 970, 880)),
        (found(worse, (1_000, 2_000, 2_000), (800, 900, 900)),),
    )


# --- qualified plans, cost model, group-by ---------------------------------------------------------------------------


@case("qualified-four-sets")
def _four_sets() -> Doctored:
    def fate(is_qualified: bool) -> qualified_sets.Fate:
        pace = 1.0 if is_qualified else 2.0
        moments = tuple(Moment(second, pace * second, 1, 1, 1) for second in np.arange(0.5, 60.5, 0.5))
        return qualified_sets.Fate("(a b c)", moments, False, 60.0)

    def found(turned: bool, agreeing: int) -> qualified_sets.Sets:
        fates = {
            (number, name): fate(expected != turned)
            for number, given in qualified_sets.SETS.items()
            for name, expected in given.expected.items()
        }
        return qualified_sets.Sets(fates, {1.0: agreeing, 5.0: 9})

    good = found(False, 9)
    without = replace(good, fates={key: fate for key, fate in good.fates.items() if key[1] != "jtree"})
    return Doctored(good, (found(True, 7), without))


def test_a_mixture_that_the_optimizer_does_not_find_is_missed() -> None:
    without = CASES["qualified-four-sets"].bad[1]
    (fourth,) = [v for v in qualified_sets.present(without).verdicts if v.paper.startswith("set 4")]
    assert fourth.missed == ("jtree",)


@case("qualified-sweep")
def _sweep() -> Doctored:
    def found(
        found_by: Mapping[str, int], growth: Mapping[str, float], costs: Mapping[str, Resources], speed: float
    ) -> qualified_sweep.Sweep:
        tallies = {}
        for size in (3, 5, 9, 10):
            for kind in qualified_sweep.KINDS:
                for method in (*qualified_sweep.HEURISTICS, qualified_sweep.FULL):
                    if method == qualified_sweep.FULL and size > 9:
                        continue
                    tally = qualified_sweep.Tally(found_by[method], [1e-3 * growth[method] ** size])
                    tally.costs.append(costs.get(method, Resources(1.0, 1.0, 1.0)))
                    tallies[size, kind, method] = tally
        return qualified_sweep.Sweep(tallies, 9, 10, qualified_sweep.Speed(speed, 1e-3 * speed, speed / 10))

    methods = (*qualified_sweep.HEURISTICS, qualified_sweep.FULL)
    small, large = Resources(cpu=2.0, memory=1.0, rate=1.0), Resources(cpu=1.0, memory=2.0, rate=1.0)
    good = found(
        dict.fromkeys(methods, 10),
        dict.fromkeys(methods, 1.2) | {qualified_sweep.FULL: 3.0},
        {"state-selection": small, "state-removal": large},
        1.0,
    )
    bad = found(
        dict.fromkeys(methods, 5) | {qualified_sweep.FULL: 10},
        dict.fromkeys(methods, 2.5) | {qualified_sweep.FULL: 1.1},
        {"state-selection": large, "state-removal": small},
        100.0,
    )
    return Doctored(good, (bad,))


@case("cost-model")
def _cost_model() -> Doctored:
    def compared(costs: Iterable[float], memory: float) -> list[cost_model.Compared]:
        load: Any = None
        return [
            cost_model.Compared(load, parse("(a b)"), Resources(float(place + 1), 1.0, 1.0), cpu, memory)
            for place, cpu in enumerate(costs)
        ]

    return Doctored(compared((1.0, 2.0, 3.0), 1.0), (compared((3.0, 1.0, 2.0), 2.0),))


@case("group-by-below")
def _group_by() -> Doctored:
    def found(few: tuple[int, float], many: tuple[int, float], *answers: frozenset[Any]) -> dict[int, dict[str, Any]]:
        """Combinations and CPU of the plan with both inputs merged, where the plan of single rows has 100 and 1.0."""

        def courses(matches: int, cpu: float) -> dict[str, group_by_below.Course]:
            single = group_by_below.Course(100, 1.0, 100, answers[0])
            merged = group_by_below.Course(matches, cpu, matches, answers[-1])
            return dict.fromkeys(group_by_below.PLANS, merged) | {group_by_below.PLANS[0]: single}

        return {1: courses(*few), 32: courses(*many)}

    one, other = frozenset([(1,)]), frozenset([(2,)])
    bad = found((10, 0.5), (200, 2.0), one, other)
    return Doctored(found((90, 1.1), (5, 0.2), one), (bad, found((90, 1.1), (5, 0.2), frozenset())))


# --- migration -------------------------------------------------------------------------------------------------------


@case("migration-length")
def _length() -> Doctored:
    def found(
        parallel: Callable[[float], float], exponent: float, core: float, gaps: tuple[float, float]
    ) -> dict[int, dict[float, migration_length.Lengths]]:
        def at(window: float, moving: float, parallels: float) -> migration_length.Lengths:
            return migration_length.Lengths(moving, moving, core, 2 * window, parallels, parallels)

        def grown(window: float) -> float:
            return 3 * float((window / 1e3) ** exponent)

        windows = {
            1: [1000.0, 2000.0, 4000.0],
            3: [200.0, 600.0, 1400.0],
        }
        sets = {
            number: {w: at(w / 1e3, grown(w), parallel(w / 1e3)) for w in several}
            for number, several in windows.items()
        }
        sets[2] = {100.0: at(1.0, gaps[0], 2.0), 20.0: at(1.0, gaps[1], parallel(1.0))}
        return {number: sets[number] for number in (1, 2, 3)}

    return Doctored(
        found(lambda w: 2 * w, 2.5, 9.0, (1.0, 2.0)), (found(lambda w: 9 - w**1.5, 1.0, 0.001, (2.0, 1.0)),)
    )


@case("migration-low-high")
def _low_high() -> Doctored:
    def course(
        rows: int,
        late_rows: int,
        *,
        pace: float = 1.0,
        results: int = 1,
        silence: float = 0.0,
        until: float = 0.0,
        during: tuple[int, int] | None = None,
    ) -> migration_low_high.Course:
        """Rows in states before and after second 10, and while a migration lasts; nothing comes out in the silence."""
        began = migration_low_high.START if silence or until else float("inf")
        moments = []
        for second in map(float, range(1, 51)):
            is_migrating = began < second <= until
            held, out = during if during and 10 < second <= 30 else (0, 0)
            intermediate = held or (rows if second <= 11 else late_rows)
            made = out or results
            is_silent = began < second <= began + silence
            moments.append(
                migration_low_high.Moment(second, pace * second, 0 if is_silent else made, intermediate, is_migrating)
            )
        return migration_low_high.Course(tuple(moments), silence, began)

    good = {
        ("low", "moving state"): course(100, 10, silence=0.01),
        ("low", "parallel track"): course(100, 10, until=12.0),
        ("low", "old only"): course(100, 100),
        ("low", "new only"): course(10, 10),
        ("high", "moving state"): course(100, 10, silence=6.0, during=(90, 1)),
        ("high", "parallel track"): course(100, 10, until=30.0, during=(50, 3)),
        ("high", "old only"): course(100, 100, pace=2.0),
        ("high", "new only"): course(10, 10),
    }
    bad = {
        ("low", "moving state"): course(100, 50, silence=5.0),
        ("low", "parallel track"): course(100, 60, until=12.0),
        ("low", "old only"): course(100, 100, results=9),
        ("low", "new only"): course(90, 90),
        ("high", "moving state"): course(100, 10, silence=0.5, during=(10, 9)),
        ("high", "parallel track"): course(100, 10, until=10.1, during=(50, 1)),
        ("high", "old only"): course(100, 100),
        ("high", "new only"): course(10, 10, pace=2.0),
    }
    return Doctored(good, (bad, bad | {("high", "parallel track"): course(100, 10, until=30.0, during=(50, 1))}))


def run_of(cpu: float, state_rows: int, migrations: int, share: float = 0.0) -> migration_runtime.Run:
    """The plan changes after the first of twenty seconds."""
    plans = ["((a b) c)", *["(a (b c))"] * 19]
    moments = [
        migration_runtime.Moment(at, cpu, cpu, 100, 10, state_rows, 10 * state_rows, plan)
        for at, plan in enumerate(plans)
    ]
    return migration_runtime.Run(tuple(moments), migrations, share)


@case("migration-runtime")
def _runtime() -> Doctored:
    keys = [("stable", "in-process"), ("once", "in-process"), ("repeated", "in-process")]
    keys += [(scenario.name, "Spark") for scenario in migration_runtime.ON_SPARK]

    def found(adapting: migration_runtime.Run, stable: migration_runtime.Run) -> migration_runtime.Found:
        fixed = run_of(1.0, 100, 0)
        return {key: {"fixed": fixed, "adapting": stable if key[0] == "stable" else adapting} for key in keys}

    return Doctored(
        found(run_of(0.5, 40, 4), run_of(1.0, 100, 0)), (found(run_of(1.5, 140, 1), run_of(1.2, 100, 1, 0.05)),)
    )


@case("migration-boxes")
def _boxes() -> Doctored:
    def found(
        moved: migration_boxes.Changed, tracks: migration_boxes.Changed, steps: migration_boxes.Changed, spread: Any
    ) -> migration_boxes.Found:
        once = migration_boxes.Changed(5.0, 4.0, 10, 1.5, True, True)
        after = {"moving-state": moved, "parallel-track": tracks, "spread": spread}
        ways = {
            case.name: {
                (strategy, way): once if way == migration_boxes.AT_ONCE else (steps if case.is_overlapping else each)
                for strategy, each in after.items()
                for way in (migration_boxes.AT_ONCE, migration_boxes.STEPWISE)
            }
            for case in migration_boxes.CASES
        }
        return migration_boxes.Found(ways)

    def changed(longest: float, beyond: float, batches: int, rows: float, *, is_right: bool = True) -> Any:
        return migration_boxes.Changed(longest, beyond, batches, rows, is_right, is_right)

    good = found(
        changed(2.2, 4.0, 2, 1.2), changed(1.5, 4.0, 20, 1.1), changed(2.0, 6.0, 3, 1.2), changed(1.2, 3.0, 12, 1.1)
    )
    bad = found(
        changed(5.0, 5.0, 2, 1.2),
        changed(1.5, 5.0, 10, 1.5, is_right=False),
        changed(2.0, 3.0, 3, 1.2, is_right=False),
        changed(6.0, 5.0, 9, 1.6),
    )
    return Doctored(good, (bad,))


def _course(work: float, *, answer: int = 1) -> Any:
    batch = Counted("(a b c)", work, 0.0, {}, {}, 1, True, False)
    return policy_runs.Course((batch,), 7, answer)


@case("policies")
def _policies() -> Doctored:
    def one(name: str, stay: float, at_once: float, others: float, product: float, answer: int = 1) -> Any:
        works = dict.fromkeys(policy_runs.POLICIES, others)
        works |= {STAY: stay, AT_ONCE: at_once, PRODUCT: product, HINDSIGHT: 1.0}
        runs = {policy: _course(work) for policy, work in works.items()}
        return policy_runs.Compared(name, {"(a b c)": _course(1.1, answer=answer)}, runs)

    kinds = (Pattern("never"), Pattern("periodic", 0.5), Pattern("periodic", 8.0), Pattern("bursts", 8.0))
    good = (
        one("never", 1.0, 1.0, 1.0, 1.0),
        one("periodic 0.5 W", 1.2, 1.4, 1.2, 1.1),
        one("periodic 8 W", 2.0, 1.2, 1.3, 1.15),
        one("bursts 8 W", 1.0, 1.2, 1.1, 1.0),
    )
    bad = (
        one("never", 1.0, 3.0, 3.0, 3.0, answer=2),
        one("periodic 0.5 W", 1.5, 1.0, 1.0, 3.0),
        one("periodic 8 W", 1.0, 1.0, 1.0, 3.0),
        one("bursts 8 W", 1.0, 1.0, 1.0, 3.0),
    )
    return Doctored(policies.Found(kinds, good), (policies.Found(kinds, bad),))


# --- mesh ------------------------------------------------------------------------------------------------------------


@case("mesh-search-quality")
def _quality() -> Doctored:
    def found(ratio: float) -> list[mesh_search.Searched]:
        names = {mesh_search.OPTIMUM: 1.0} | dict.fromkeys(mesh_search.COMPARED, ratio)
        return [mesh_search.Searched(1, size, name, at, at, 0.1) for size in (4, 7) for name, at in names.items()]

    return Doctored(found(1.01), (found(1.2),))


@case("mesh-training-size")
def _training() -> Doctored:
    def found(slow: int, gain: float) -> list[mesh_search.Trained]:
        return [
            mesh_search.Trained(1, size, name, 2.0 if size == slow else 1.0, 3, 1.0, gain)
            for size in (8, 100)
            for name in mesh_search.SEARCHES
        ]

    return Doctored(found(100, 0.5), (found(8, -0.1),))


@case("mesh-start-solutions")
def _starts() -> Doctored:
    def found(rates: Mapping[str, float]) -> mesh_search.Started:
        several: Any = {(start, budget): [rate] for start, rate in rates.items() for budget in (30, 100)}
        return mesh_search.Started(several, several)

    return Doctored(
        found({"route": 1.0, "each": 0.94, "content": 0.9, "random": 0.88, "one": 0.81}),
        (found({"route": 1.0, "each": 0.8, "content": 1.1, "random": 1.0, "one": 1.2}),),
    )


def _figures(rate: float, processing: float = 0.99, classifying: float = 0.01) -> mesh_streams.Figures:
    return mesh_streams.Figures(1_000, round(1_000 * rate), 1.0, 1.0, processing, classifying)


@case("mesh-throughput")
def _throughput() -> Doctored:
    def found(mesh: float, ratio: float) -> mesh_throughput.Measured:
        several = {"mesh": _figures(mesh), "plan": _figures(1.0)}
        return mesh_throughput.Measured({"skewed": several, "uniform": several}, several, np.full(9, ratio))

    return Doctored(found(1.8, 1.01), (found(0.9, 1.1),))


@case("mesh-overhead")
def _overhead() -> Doctored:
    def found(mesh: float) -> dict[str, dict[str, mesh_streams.Figures]]:
        several = {"mesh": _figures(1.0, 1 - mesh), "plan": _figures(1.0)}
        return {"skewed": several, "uniform": several}

    return Doctored(found(0.01), (found(0.1),))


@case("mesh-total-output")
def _output() -> Doctored:
    def found(mesh: float) -> dict[str, dict[str, mesh_over_time.Curve]]:
        curves = {
            "plan": mesh_over_time.Curve([0.0, 1.0], [0, 100]),
            "mesh": mesh_over_time.Curve([0.0, mesh], [0, 100]),
        }
        return dict.fromkeys(("ten streams", "flights"), curves)

    return Doctored(found(0.5), (found(2.0),))


@case("mesh-questions")
def _questions() -> Doctored:
    def found(asking: float, proposed: str = "questions", answer: int = 1) -> list[mesh_questions.Found]:
        runs = {
            "fixed": regret_runs.Run("(a b)", 2.0, 2.0, 1, 0, 5, 1),
            "classifier": regret_runs.Run("mesh(a: b; b: a)", 1.0, 1.0, 1, 0, 5, 1),
            "questions": regret_runs.Run("mesh(a: b; b: a)", asking, 1.0, 1, 0, 5, answer),
        }
        return [mesh_questions.Found(name, runs, proposed) for name in mesh_questions.LACKING]

    return Doctored(found(1.0), (found(1.9), found(1.0, answer=2)))


@case("mesh-columns")
def _columns() -> Doctored:
    def found(work: float, adapt: float, classes: tuple[str, ...], answer: int = 1) -> list[mesh_columns.Found]:
        runs = {
            "fixed": regret_runs.Run("(a b)", 2.0, 2.0, 1, 0, 5, 1),
            "any": regret_runs.Run("mesh(a: b; b: a)", work, 1.0, 1, 0, 5, answer),
            "adapt": regret_runs.Run("mesh(a: b; b: a)", adapt, 1.0, 1, 0, 5, 1),
            "blind": regret_runs.Run("(a b)", 2.0, 2.0, 1, 0, 5, 1),
        }
        first, second = (each.name for each in mesh_columns.WORKLOADS)
        return [mesh_columns.Found(first, runs, ("h.region",)), mesh_columns.Found(second, runs, classes)]

    return Doctored(found(0.5, 0.5, ()), (found(1.5, 1.5, ()), found(0.5, 0.6, ("h.region",)), found(0.5, 0.5, (), 2)))


@case("mesh-drift")
def _drift() -> Doctored:
    def found(adapted: float, searches: list[int], changing: list[float]) -> mesh_over_time.Turned:
        speed = {"kept": [1.0] * 10, "adapted": [adapted] * 10, "plan": [0.8] * 10}
        return mesh_over_time.Turned(3, 8, speed, searches, changing)

    return Doctored(found(0.5, [10], [0.001]), (found(2.0, [6], [0.1]), found(2.0, [], [])))


# --- placement -------------------------------------------------------------------------------------------------------


def _totals(costs: Mapping[str, float], plans: Mapping[str, int] | None = None, **counts: int) -> dict[str, Total]:
    return {
        name: Total(
            name,
            cost,
            (plans or {}).get(name, 100),
            counts.get(name, 0),
            counts.get(f"{name} filters", 0),
            0.1,
            (cost,),
        )
        for name, cost in costs.items()
    }


@case("place-phased-vs-integrated")
def _phased() -> Doctored:
    def found(cost: float) -> dict[str, dict[str, Total]]:
        phased = ("plan-then-deploy", "relaxation")
        costs = {"integrated (exhaustive)": 1.0, "integrated (top-down)": 1.0}
        costs |= {f"{name}, {how}": cost for name in phased for how in ("reusing", "no reuse")}
        return {"reducing joins": _totals(costs), "even joins": _totals(costs)}

    return Doctored(found(3.0), (found(1.5),))


@case("place-cluster-size")
def _cluster_size() -> Doctored:
    def found(
        costs: Mapping[str, Mapping[int, float]], plans: Mapping[str, Mapping[int, int]]
    ) -> dict[str, dict[str, Total]]:
        flat = {f"{name} {size}": cost for name, several in costs.items() for size, cost in several.items()}
        counted = {f"{name} {size}": count for name, several in plans.items() for size, count in several.items()}
        totals = _totals({"optimum": 1.0} | flat, counted)
        return {"reducing joins": totals, "growing joins": totals}

    sizes = (4, 8, 16, 32, 64)
    cheap = dict.fromkeys(sizes, 1.0)
    searched = dict(zip(sizes, (300, 600, 1_000, 900, 9_000), strict=True))
    fewer = {size: count // 10 for size, count in searched.items()}
    other = dict(zip(sizes, (100, 100, 100, 200, 50), strict=True))
    good = found({"top-down": cheap, "bottom-up": cheap | {4: 2.0, 8: 1.5}}, {"top-down": searched, "bottom-up": fewer})
    bad = found(
        {"top-down": cheap | {16: 2.0}, "bottom-up": cheap | {64: 2.0}}, {"top-down": other, "bottom-up": other}
    )
    return Doctored(good, (bad,))


@case("place-npc")
def _npc() -> Doctored:
    def found(cost: float, plans: int) -> dict[str, dict[str, Total]]:
        totals = _totals({"top-down": 1.0, "bottom-up": 1.3, "npc": cost}, {"npc": plans})
        return {"reducing joins": totals, "growing joins": totals}

    return Doctored(found(1.005, 80), (found(1.2, 120),))


READINGS = ("plan-then-deploy", "relaxation, relaxing filters")


def _compared(costs: Mapping[str, float], **counts: int) -> place_comparison.Compared:
    plans = {name.removesuffix(" plans"): count for name, count in counts.items() if name.endswith(" plans")}
    totals = _totals(costs, plans, **counts)
    return place_comparison.Compared(10, {"reducing joins": totals}, ())


PLANNED = {"optimum": 1.0, "junction": 1.0}


@case("place-synthetic")
def _synthetic() -> Doctored:
    good = {"top-down": 1.05, "npc": 1.1, "bottom-up": 1.34, "in-network": 2.0, "relaxation": 3.0}
    bad = {"top-down": 2.0, "npc": 1.5, "bottom-up": 1.9, "in-network": 1.0, "relaxation": 1.0}
    return Doctored(
        _compared(
            PLANNED | good | dict.fromkeys(READINGS, 2.0),
            **{"in-network plans": 70, "top-down plans": 100, "bottom-up plans": 35},
        ),
        (
            _compared(
                PLANNED | bad | dict.fromkeys(READINGS, 1.0),
                **{"in-network plans": 7, "top-down plans": 100, "bottom-up plans": 35},
            ),
        ),
    )


@case("place-enterprise")
def _enterprise() -> Doctored:
    good = {"top-down": 1.01, "npc": 1.02, "bottom-up": 1.35, "in-network": 2.0, "relaxation": 40.0}
    bad = {"top-down": 2.0, "npc": 1.5, "bottom-up": 1.9, "in-network": 1.0, "relaxation": 1.0}
    ours = ("top-down", "npc", "bottom-up", "junction")
    few = {"in-network": 100, "relaxation": 100} | dict.fromkeys(ours, 10)
    many = {"in-network": 10, "relaxation": 10} | dict.fromkeys(ours, 10)
    telescoped = {f"{name} filters": count for name, count in {"in-network": 1, **dict.fromkeys(ours, 2)}.items()}
    plans = {"top-down plans": 100, "bottom-up plans": 36}
    return Doctored(
        _compared(
            PLANNED | good | dict.fromkeys(READINGS, 2.0), **few, **telescoped, **plans, **{"in-network plans": 97}
        ),
        (_compared(PLANNED | bad | dict.fromkeys(READINGS, 1.0), **many, **plans, **{"in-network plans": 7}),),
    )


@case("place-scaling")
def _scaling() -> Doctored:
    good = place_scaling.Searched(1_024, 3, 1e6, 1e4, 1e3, 5e2, 30.0, 30.0)
    bad = place_scaling.Searched(1_024, 3, 1e4, 1e2, 1e3, 2e3, 300.0, 300.0)
    return Doctored([good], ([bad],))


@case("place-time")
def _time() -> Doctored:
    def found(planning: Mapping[int, float], climbing: float) -> list[place_scaling.Deployed]:
        return [
            place_scaling.Deployed(size, 2, streams, top_down, climbing, top_down, climbing, 10.0, 5.0)
            for size, top_down in planning.items()
            for streams in (2, 3, 4)
        ]

    return Doctored(found({4: 30.0, 8: 20.0, 16: 10.0}, 3.0), (found({4: 10.0, 8: 20.0, 16: 30.0}, 15.0),))


# --- the invariant ----------------------------------------------------------------------------------------------------


@case("place-deployed")
def _place_deployed() -> Doctored:
    def found(off: float, best: float, replanned: float, through: bool = True, late: int = 0) -> place_deployed.Found:
        usage = {
            "top-down": place_deployed.Usage(100.0, 100.0 * (1 + off), 1.0, 9),
            "in-network": place_deployed.Usage(100.0 * best, 100.0 * best, 1.0, 9),
        }
        return place_deployed.Found(usage, place_deployed.Replanned(0.4, 10.0, replanned, through, late))

    bad = (found(0.2, 1.4, 5.0), found(0.0, 0.8, 5.0), found(0.0, 1.4, 8.0), found(0.0, 1.4, 5.0, False, 3))
    return Doctored(found(0.05, 1.4, 5.0), bad)


@case("place-changes")
def _place_changes() -> Doctored:
    def found(missing: int, repeated: int, late: int, reusing: float, during: float) -> place_changes.Found:
        change = place_changes.Change("a query joins", 2, 1, 300.0, 10.0, during, 12.0)
        return place_changes.Found(
            (change,),
            100,
            missing,
            repeated,
            late,
            (place_changes.First(reusing, 10.0), place_changes.First(3.0, 10.0)),
        )

    bad = (found(1, 1, 1, 4.0, 20.0), found(0, 0, 0, 9.0, 20.0), found(0, 0, 0, 4.0, 40.0))
    return Doctored(found(0, 0, 0, 4.0, 20.0), bad)


@case("place-on-sites")
def _place_on_sites() -> Doctored:
    def found(bottom_up: float, larger: float, reusing: float) -> place_on_sites.Found:
        def added(planner: str, joins: int, working: float) -> place_on_sites.Added:
            return place_on_sites.Added(planner, joins, 0.1, working, working + 1)

        several = [added("top-down", 1, 10.0), added("top-down", 3, 10.0 * larger)]
        several += [added("bottom-up", 1, bottom_up), added("bottom-up", 3, bottom_up * larger)]
        return place_on_sites.Found(tuple(several), (added("top-down", 1, reusing),), (added("top-down", 1, 9.0),))

    return Doctored(found(2.0, 1.5, 3.0), (found(9.0, 1.5, 3.0), found(2.0, 0.5, 9.0), found(2.0, 4.0, 3.0)))


def _all() -> dict[str, Experiment[Any]]:
    return experiments() | {each.name: each for each in spark_variants().values()}


def test_every_experiment_has_doctored_measurements() -> None:
    assert set(CASES) == set(_all())


@pytest.mark.parametrize("name", sorted(CASES))
def test_every_condition_can_hold_and_can_fail(name: str) -> None:
    present, doctored = _all()[name].present, CASES[name]
    held = present(doctored.good).verdicts
    assert [verdict.missed for verdict in held if verdict.missed] == []
    failed = {
        (place, part) for bad in doctored.bad for place, v in enumerate(present(bad).verdicts) for part in v.missed
    }
    never = [
        f"{verdict.paper}: {part}"
        for place, verdict in enumerate(held)
        for part in verdict.conditions
        if (place, part) not in failed
    ]
    assert never == []
