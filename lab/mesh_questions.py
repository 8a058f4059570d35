"""Questions against classifiers and fixed plans: which one does least where rows find nothing in some stream?

For each workload (those of the regret suite that have one key, two with several, and one of our own) three plans are
made from the rows in the middle of the run: the best plan without routes among the most promising, the mesh of a
classifier, and routes that ask first. Each runs the whole workload, in turn on every batch and in alternating order.
*Proposed* is what the product takes of the two meshes, by the profiles of the sampled rows. `hidden skew` was chosen
because questions win there: its keys are texts, and no column tells the classes of its rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import pyarrow as pa
from matplotlib.figure import Figure

from anabranch.mesh.profiled import learn_mesh
from anabranch.optimize.problem import resource_model
from anabranch.plan.mesh import Mesh, Plan, orders_of
from anabranch.run.meshing import profiles_of_rows
from lab.registry import Cell, Experiment, Outcome, Setting, Verdict
from lab.regret_runs import Run, Runner, race, sampled_places, static_plans
from lab.regret_suite import SYNTHETIC
from lab.regret_workloads import Columns, Moment, Size, Workload, skewed, texts, windows
from lab.ways import draw_over_first, figures

FULL, QUICK = Size(batches=60, every_shape=4, most_plans=12), Size(batches=30, rows=6_000, every_shape=3, most_plans=6)
TAKEN = ("uniform", "swap", "text keys", "skew", "late skew", "turning skew", "zipf", "hot key", "correlated")
LACKING = ("skew", "late skew", "turning skew", "hidden skew")
"""Workloads in which each class of rows lacks another stream."""
WAYS = ("fixed", "classifier", "questions")
GAIN = 1.3
"""The bar of the gain of questions over fixed plans there."""
CHOICE = 1.1
"""The bar of the work of what is proposed over that of the better mesh."""


def _hidden(rng: np.random.Generator, name: str, count: int, at: Moment) -> Columns:
    drawn = texts(skewed("abcd", 4), "k")(rng, name, count, at)
    return {"k": drawn["k"], "v": rng.integers(0, 1_000, count)}


HIDDEN = Workload(
    "hidden skew",
    "skewed",
    "texts as keys, and no column that tells the classes of rows",
    f"SELECT a.v AS x, d.v AS y FROM {windows('abcd')} WHERE a.k = b.k AND a.k = c.k AND a.k = d.k",
    {"k": pa.string(), "v": pa.int64()},
    _hidden,
    tuple("abcd"),
)


@dataclass(frozen=True)
class Found:
    """The runs of one workload, by the name of the way; a mesh that was not found has none."""

    name: str
    runs: dict[str, Run]
    proposed: str

    def work(self, way: str) -> float:
        """The work of a way, or of the fixed plan that runs in its place."""
        return self.runs[way if way in self.runs else WAYS[0]].work


def measure(setting: Setting) -> tuple[Found, ...]:
    size = QUICK if setting.quick else FULL
    chosen = [each for each in workloads() if not setting.only or each.name in setting.only]
    return tuple(measured(each, setting.seed, size) for each in setting.each(chosen))


def workloads() -> list[Workload]:
    return [*(each for each in SYNTHETIC if each.name in TAKEN), HIDDEN]


def measured(workload: Workload, seed: int, size: Size) -> Found:
    """Runs the ways through one workload in turn."""
    query, batches = workload.query, partial(workload.batches, seed, size)
    samples = sampled_places(query, batches, size, workload.batch)
    plain = [
        plan for plan in static_plans(query, samples, workload.batch, size.every_shape) if not isinstance(plan, Mesh)
    ]
    plans: dict[str, Plan] = {WAYS[0]: race(workload, query, plain[: size.most_plans], list(batches()))[0]}
    rival = next(plan for plan in plain if orders_of(plan, query.graph))
    model = resource_model(query.graph, samples[1].statistics, workload.batch, query.merging)
    held = {name: model.rows(model.estimates.mask((name,))) for name in query.graph.names}
    profiles, _ = profiles_of_rows(query, samples[1].rows, held)
    learnt = {
        "classifier": learn_mesh(query.graph, profiles, seed, rival, with_existence_probes=False),
        "questions": learn_mesh(query.graph, profiles, seed, rival, is_worth=lambda _: False),
    }
    plans |= {name: each.mesh for name, each in learnt.items() if each.is_mesh}
    best = learn_mesh(query.graph, profiles, seed, rival)
    asks = any("?" in name for way in best.mesh.ways for route in way.routes for name in route.operators)
    proposed = "fixed" if not best.is_mesh else "questions" if asks else "classifier"
    runners = {name: Runner(workload, query, plan) for name, plan in plans.items()}
    for number, batch in enumerate(batches()):
        for name in list(runners)[:: -1 if number % 2 else 1]:
            runners[name].step(batch)
    return Found(workload.name, {name: runner.run for name, runner in runners.items()}, proposed)


def present(found: Sequence[Found]) -> Outcome:
    lacking = [each for each in found if each.name in LACKING]
    gains = {each.name: each.work("fixed") / each.work("questions") for each in lacking}
    choices = {
        each.name: each.work(each.proposed) / min(each.work("classifier"), each.work("questions"))
        for each in found
        if each.proposed != "fixed"
    }
    inexact = [each.name for each in found if len({(run.results, run.answer) for run in each.runs.values()}) > 1]
    listed = ", ".join(f"{name} {gain:.2f}" for name, gain in gains.items())
    verdicts = (
        Verdict(
            f"where rows lack some stream, asking does {GAIN:g} times less work than the best plan without routes",
            listed or "none of them was run",
            {f"{name}: {GAIN:g}": gain >= GAIN for name, gain in gains.items()} or {"a run": False},
        ),
        Verdict(
            f"of classifier and questions, the better is proposed, or one that does at most {CHOICE - 1:.0%} more",
            ", ".join(f"{name} {ratio:.2f}" for name, ratio in choices.items()) or "no mesh was proposed",
            {f"{name}: {CHOICE:g}": ratio <= CHOICE for name, ratio in choices.items()} or {"a proposal": False},
        ),
        Verdict(
            "all ways have the same results",
            f"results differ in {', '.join(inexact)}" if inexact else f"in {len(found)} of {len(found)} workloads",
            {"the same results": not inexact},
        ),
    )
    notes = (
        "work is counted and priced at the built-in unit costs; processor time alternates batch by batch",
        "all plans are made from the rows in the middle of the run",
        "chosen because a method wins there: skew, late skew, turning skew (meshes), hidden skew (questions)",
    )
    columns = ("workload", "proposed", *(f"{way} {what}" for way in WAYS for what in ("work", "cpu")), "questions")
    return Outcome(columns, tuple(_row(each) for each in found), partial(_draw, found=found), verdicts, notes)


def _row(each: Found) -> tuple[Cell, ...]:
    plan = each.runs["questions"].plan if "questions" in each.runs else "-"
    return each.name, each.proposed, *figures(each.runs, WAYS), plan


def _draw(figure: Figure, found: Sequence[Found]) -> None:
    axes = figure.subplots()
    draw_over_first(axes, [{way: each.work(way) for way in WAYS} for each in found], WAYS)
    axes.set(ylabel="work over that of the best plan without routes")
    axes.set_xticks(range(len(found)), [each.name for each in found], rotation=60, ha="right", fontsize=7)


EXPERIMENTS = (
    Experiment(
        "mesh-questions",
        "Rows that ask before they join",
        measure,
        present,
        lambda: (*TAKEN, HIDDEN.name),
    ),
)
