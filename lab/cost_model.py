"""How well the cost model predicts CPU and memory: plans priced from statistics alone, then measured.

The unit costs are fitted to some queries (`calibrate`) and judged on others, drawn from another seed.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from matplotlib.figure import Figure
from scipy.stats import spearmanr

from anabranch.calibrate.engine_costs import Workload, calibrate, measure, model_of, plans_of, workloads
from anabranch.cost.resources import Resources
from anabranch.cost.units import UnitCosts
from anabranch.plan.physical import PhysicalPlan
from lab.registry import Experiment, Outcome, Setting, Verdict


@dataclass(frozen=True)
class Compared:
    """A prediction beside the truth."""

    load: Workload
    plan: PhysicalPlan
    predicted: Resources
    cpu: float
    memory: float


def compare(units: UnitCosts, seed: int, *, count: int = 14, plans: int = 4, seconds: int = 5) -> list[Compared]:
    """Predictions and measurements of plans that the calibration has not seen."""
    rng = random.Random(seed)
    found = []
    for number, load in enumerate(workloads(rng, count)):
        model = model_of(load, units)
        for plan in plans_of(load, rng, plans):
            run = measure(load, plan, seed=seed + number, seconds=seconds)
            found.append(Compared(load, plan, model.price(plan), run.cpu, run.memory))
    return found


def rank_correlation(compared: list[Compared]) -> float:
    """Spearman's correlation of predicted and measured CPU."""
    return float(spearmanr([c.predicted.cpu for c in compared], [c.cpu for c in compared]).statistic)


def worst_memory(compared: list[Compared]) -> float:
    """The largest share by which predicted and measured bytes differ."""
    return max(abs(c.predicted.memory / c.memory - 1) for c in compared)


def measured(setting: Setting) -> list[Compared]:
    """Plans of queries that the calibration has not seen, predicted and measured."""
    units = calibrate(setting.seed, seconds=3 if setting.quick else 5)
    return compare(units, setting.seed + 100, count=5 if setting.quick else 14)


def present(compared: list[Compared]) -> Outcome:
    rows = tuple(
        (str(c.plan), c.predicted.cpu, c.cpu, c.predicted.memory, c.memory, c.predicted.memory / c.memory - 1)
        for c in compared
    )
    columns = ("plan", "predicted cpu", "measured cpu", "predicted bytes", "measured bytes", "bytes off")

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        axes.loglog([c.cpu for c in compared], [c.predicted.cpu for c in compared], "o")
        ends = [min(c.cpu for c in compared), max(c.cpu for c in compared)]
        axes.plot(ends, ends, color="grey", linewidth=0.8)
        axes.set(xlabel="measured CPU s/s", ylabel="predicted CPU s/s")

    correlation, worst = rank_correlation(compared), worst_memory(compared)
    verdict = Verdict(
        "our own bar: rank correlation of at least 0.95, bytes within 15 %",
        f"{correlation:.3f} over {len(compared)} plans, bytes within {worst:.1%}",
        {"correlation of 0.95": correlation >= 0.95, "bytes within 15 %": worst <= 0.15},
    )
    return Outcome(columns, rows, draw, (verdict,))


EXPERIMENTS = (Experiment("cost-model", "Predicted and measured CPU and memory of this engine", measured, present),)
