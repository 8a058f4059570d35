"""Routes by columns that a query does not select: what do they save, and do they cost anything where they tell nothing?

A hub joins four streams, each by a key and a predicate. In each region another stream's partners hardly pass the
predicate. The region is not selected, keys do not tell it, and questions do not see predicates; the workload was chosen
for that. *Noise* is the same with regions that have nothing to do with it. Five ways go through the same batches in
turn: the best of the most promising plans without routes; the mesh that is learnt from columns that the query carries;
the one that is learnt from all columns; `plan: auto` that adapts, with a sample; and the same without one, as with
sources that cannot be sampled: no class travels then, so routes by the region cannot be found.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import pyarrow as pa
from matplotlib.figure import Figure

from anabranch.adapt.settings import Settings
from anabranch.optimize.problem import resource_model
from anabranch.plan.classing import carrying
from anabranch.plan.mesh import Mesh, Plan
from anabranch.plan.query_set import ALONE, alone
from anabranch.planning.choosing import change_rules, decide, first_plan
from anabranch.planning.options import AUTO
from anabranch.run.meshing import learn_from_rows
from anabranch.run.sample import sampled_classes, with_attributes
from lab.registry import Cell, Experiment, Outcome, Setting, Verdict
from lab.regret_runs import Run, Runner, race, sampled_places, static_plans
from lab.regret_workloads import RARE, Columns, Draw, Moment, Size, Workload, windows
from lab.ways import draw_over_first, figures

FULL, QUICK = Size(batches=60, every_shape=3, most_plans=12), Size(batches=40, rows=6_000, every_shape=3, most_plans=6)
REGIONS = ("north", "east", "south", "west")
TYPES: dict[str, pa.DataType] = {
    **{f"k{number}": pa.int64() for number in range(len(REGIONS))},
    "v": pa.int64(),
    "region": pa.string(),
}
WAYS = ("fixed", "carried", "any", "adapt", "blind")
GAIN, LOSS = 2.0, 1.05
"""The bar of the gain where regions tell, and of the loss anywhere."""


def _text() -> str:
    edges = " AND ".join(f"h.k{number} = {name}.k0 AND h.v > {name}.v" for number, name in enumerate("abcd"))
    return f"SELECT h.v AS x, a.v AS y FROM {windows('habcd')} WHERE {edges}"


def _drawn(*, tells: bool) -> Draw:
    """A row of the hub has as many partners in each stream whatever its region."""

    def draw(rng: np.random.Generator, name: str, count: int, at: Moment) -> Columns:
        several = len(REGIONS)
        # The others come at a quarter of the hub's rate: a row of the hub meets three partners in each.
        domain = at.domain(12.0) // several * several
        kind = rng.integers(0, several, count)
        keys = {f"k{number}": rng.integers(0, domain, count) // several * several + kind for number in range(several)}
        values = rng.integers(1_000, 2_000, count)
        if name != "h":
            is_lost = (kind == "abcd".index(name)) & (rng.random(count) >= RARE)
            values = np.where(is_lost, 2_000, values - 1_000)
        region = kind if tells else rng.integers(0, several, count)
        return {**keys, "v": values, "region": np.array(REGIONS)[region]}

    return draw


def _rate(stream: str, share: float) -> float:
    return 1.0 if stream == "h" else 0.25


def _workload(name: str, why: str, *, tells: bool) -> Workload:
    return Workload(name, "skewed", why, _text(), TYPES, _drawn(tells=tells), tuple("habcd"), rate=_rate)


WORKLOADS = (
    _workload("unselected column", "in each region another predicate rejects nearly all pairs", tells=True),
    _workload("noise", "the same, but regions tell nothing", tells=False),
)


@dataclass(frozen=True)
class Found:
    """The runs of one workload by the name of the way; a mesh that was not found has none."""

    name: str
    runs: dict[str, Run]
    travelling: tuple[str, ...]
    """The class columns of the way that adapts."""

    def work(self, way: str) -> float:
        """The work of a way, or of the fixed plan that runs in its place."""
        return self.runs[way if way in self.runs else WAYS[0]].work


def measure(setting: Setting) -> tuple[Found, ...]:
    size = QUICK if setting.quick else FULL
    chosen = [each for each in WORKLOADS if not setting.only or each.name in setting.only]
    return tuple(measured(each, setting.seed, size) for each in setting.each(chosen))


def measured(workload: Workload, seed: int, size: Size) -> Found:
    """Runs the ways through one workload in turn."""
    query, batches = workload.query, partial(workload.batches, seed, size)
    samples = sampled_places(query, batches, size, workload.batch)
    first = samples[0]
    every = static_plans(query, samples, workload.batch, size.every_shape)
    plain = [plan for plan in every if not isinstance(plan, Mesh)][: size.most_plans]
    plans: dict[str, Plan] = {"fixed": race(workload, query, plain, list(batches()))[0]}
    model = resource_model(query.graph, first.statistics, workload.batch, query.merging)
    held = {name: model.rows(model.estimates.mask((name,))) for name in query.graph.names}
    wide = partial(learn_from_rows, with_attributes(query, first.wide), first.wide)
    learnt = {"carried": learn_from_rows(query, first.rows, held), "any": wide(held)}
    plans |= {name: each.mesh for name, each in learnt.items() if each.is_mesh}
    runners = {name: Runner(workload, query, plan) for name, plan in plans.items()}
    choice, blind = decide(query, batch=workload.batch, seen=first.statistics, learn=wide), decide(query)
    classes = sampled_classes({ALONE: first})
    carried = carrying(alone(query), [(ALONE, first_plan(choice))], classes).member(ALONE).query
    rules = partial(change_rules, query, AUTO, adapt=Settings())
    runners["adapt"] = Runner(workload, carried, first_plan(choice), replace(rules(choice), waits=True))
    runners["blind"] = Runner(workload, query, first_plan(blind), replace(rules(blind), waits=True))
    for number, batch in enumerate(batches()):
        for name in list(runners)[:: -1 if number % 2 else 1]:
            runners[name].step(batch)
    travelling = tuple(f"{each.name}.{one.attribute}" for each in carried.graph.relations for one in each.classes)
    return Found(workload.name, {name: runner.run for name, runner in runners.items()}, travelling)


def present(found: Sequence[Found]) -> Outcome:
    telling_ones = [each for each in found if each.name == WORKLOADS[0].name]
    others = [each for each in found if each.name != WORKLOADS[0].name]
    gains = {each.name: each.work("fixed") / each.work("any") for each in telling_ones}
    losses = {each.name: each.work("adapt") / min(each.work(way) for way in WAYS[:3]) for each in found}
    inexact = [each.name for each in found if len({(run.results, run.answer) for run in each.runs.values()}) > 1]
    verdicts = (
        Verdict(
            f"where a column that is not selected tells rows apart, {GAIN:g} times less work than any plan without it",
            ", ".join(
                f"{each.name} {each.work('fixed') / each.work('any'):.2f} over fixed, "
                f"{each.work('carried') / each.work('any'):.2f} over carried columns"
                for each in telling_ones
            )
            or "it was not run",
            {f"{name}: {GAIN:g}": gain >= GAIN for name, gain in gains.items()} or {"a run": False},
        ),
        Verdict(
            f"a query that adapts does at most {LOSS - 1:.0%} more than the best way",
            ", ".join(f"{name} {ratio:.2f}" for name, ratio in losses.items()),
            {f"{name}: {LOSS:g}": ratio <= LOSS for name, ratio in losses.items()},
        ),
        Verdict(
            "where the column tells nothing, no class travels",
            ", ".join(f"{each.name}: {', '.join(each.travelling) or 'none'}" for each in others) or "it was not run",
            {each.name: not each.travelling for each in others} or {"a run": False},
        ),
        Verdict(
            "all ways have the same results",
            f"results differ in {', '.join(inexact)}" if inexact else f"in {len(found)} of {len(found)} workloads",
            {"the same results": not inexact},
        ),
    )
    blind = ", ".join(f"{each.name} {each.work('blind') / each.work('adapt'):.2f}" for each in found)
    notes = (
        "work is counted and priced at the built-in unit costs; processor time alternates batch by batch",
        "unselected column was chosen because routes by it win",
        f"blind: nothing is sampled, so no class travels; its work over that of adapt: {blind}",
    )
    columns = ("workload", *(f"{way} {what}" for way in WAYS for what in ("work", "cpu")), "classes")
    return Outcome(columns, tuple(_row(each) for each in found), partial(_draw, found=found), verdicts, notes)


def _row(each: Found) -> tuple[Cell, ...]:
    return each.name, *figures(each.runs, WAYS), ", ".join(each.travelling) or "-"


def _draw(figure: Figure, found: Sequence[Found]) -> None:
    axes = figure.subplots()
    draw_over_first(axes, [{way: each.work(way) for way in WAYS} for each in found], WAYS)
    axes.set(ylabel="work over that of the best plan without routes")
    axes.set_xticks(range(len(found)), [each.name for each in found])


EXPERIMENTS = (
    Experiment(
        "mesh-columns",
        "Routes by columns that are not selected",
        measure,
        present,
        lambda: tuple(each.name for each in WORKLOADS),
    ),
)
