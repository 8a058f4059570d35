"""Adapting against the best plan in hindsight: the regret suite of the lab, in its quick form, in process and on Spark.

Work is counted, so one run of each workload says it; processor time and triggers are those of alternating runs. Results
that differ between the plans of a workload fail the scenario.
"""

from __future__ import annotations

from collections.abc import Iterable
from statistics import mean, median

from benchmarks.bench import Bench, say
from benchmarks.figures import Bound, Figure, ratio
from benchmarks.job import WrongAnswer
from lab import regret, regret_spark
from lab.registry import Setting
from lab.regret_runs import Found, measured
from lab.regret_workloads import Size

TRIED_OUT = Size(batches=20, rows=300, every_shape=4, most_plans=3)
"""The size of a quick benchmark, which only shows that everything works."""


def suite(bench: Bench) -> list[Figure]:
    """All workloads in process."""
    found: list[Found] = []
    for workload in regret.suite():
        each = measured(workload, 1, TRIED_OUT if bench.is_quick else regret.QUICK)
        say(f"{each.name}: regret {each.regret:.3f} in work, {each.cpu_regret:.3f} in CPU; gain {each.gain:.2f}")
        found.append(each)
    _refuse(each.name for each in found if not each.is_exact)
    work, cpu = [each.regret for each in found], [each.cpu_regret for each in found]
    changing = [each for each in found if each.kind in regret.GAINING]
    return [
        ratio("work of adapting over the best static plan, mean", [mean(work)], Bound("at most", regret.MEAN)),
        ratio("work of adapting over the best static plan, worst", [max(work)], Bound("at most", regret.WORST)),
        ratio("CPU of adapting over the best static plan, mean", [mean(cpu)], Bound("at most", regret.MEAN)),
        ratio("CPU of adapting over the best static plan, worst", [max(cpu)], Bound("at most", regret.WORST)),
        ratio(
            "work of the first plan over adapting, where data change or are skewed, median",
            [median(regret.gain(each) for each in changing)],
            Bound("at least", regret.GAIN),
        ),
    ]


def on_spark(bench: Bench) -> list[Figure]:
    """Six workloads in whole triggers."""
    found = regret_spark.measure(Setting(quick=True, only=regret_spark.NAMES[2:3] if bench.is_quick else ()))
    for each in found:
        say(f"{each.name}: regret {each.regret:.3f} in triggers; gain of slots {each.gain:.2f}")
    _refuse(each.name for each in found if not each.is_exact)
    triggers, changing = [each.regret for each in found], [each for each in found if each.kind in regret.GAINING]
    return [
        ratio(
            "triggers of adapting over the best static plan, mean",
            [mean(triggers)],
            Bound("at most", regret_spark.MEAN),
        ),
        ratio(
            "triggers of adapting over the best static plan, worst",
            [max(triggers)],
            Bound("at most", regret_spark.WORST),
        ),
        ratio(
            "CPU of slots of the first plan over adapting, median",
            [median(each.gain for each in changing)],
            Bound("at least", regret_spark.GAIN),
        ),
    ]


def _refuse(wrong: Iterable[str]) -> None:
    if names := list(wrong):
        raise WrongAnswer(f"plans of one workload have different results: {', '.join(names)}")
