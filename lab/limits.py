"""Whether limits mean it: plans chosen within limits keep up and stay within their memory, and refused ones do not.

Each workload is near its limits: a slot may use a quarter more than its cheapest plan is priced at. The plan that is
chosen under them runs, and so does the nearest plan that they refuse; then the limits are set below every plan, all are
refused, and the cheapest runs all the same. A slot of so many cores is simulated by what each batch really took:
work that a batch brings beyond what the slot can do in its time waits, and the next batch comes on top. A plan keeps up
if less waits at the end than one batch brings. Batches are a second of event time; windows are full before counting.

This is the engine alone, in process, where limits count no host. `limits-spark` has the whole of Spark.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from time import process_time

import numpy as np
from matplotlib.figure import Figure

from anabranch.calibrate.engine_costs import BATCH, Workload, calibrate, workloads
from anabranch.cost.units import UnitCosts
from anabranch.engine.engine import Engine
from anabranch.optimize import Infeasible, Proposal
from anabranch.plan.physical import PhysicalPlan
from anabranch.planning.choosing import decide
from anabranch.planning.options import PlanOptions
from lab.registry import Cell, Experiment, Outcome, Setting, Verdict

ROOM = 1.25
"""How many times what the cheapest plan is priced at a limit allows."""
APART = 1.25
"""How many times its limit a refused plan is priced at, at least, to be run: nearer ones may well keep up."""
BELOW = 0.75
"""The limit that no plan keeps, in what the cheapest is priced at."""
KEEP, FAIL = 0.9, 0.9
"""The shares of plans for which the claims must hold: prices and times are off by some percent."""


@dataclass(frozen=True)
class Ran:
    """A plan under a limit: what it was priced at, and what happened."""

    load: str
    plan: str
    is_chosen: bool
    limit: float
    """Cores."""
    priced: float
    cpu: float
    """Cores that it took."""
    waiting: float
    """Batches of its work that wait at the end."""
    memory_limit: float
    memory: float
    """Bytes of state at most."""

    @property
    def keeps_up(self) -> bool:
        return self.waiting < 1.0


def backlog(spent: Sequence[float], cores: float, batch: float = BATCH) -> float:
    """Seconds of work that wait at the end, where each batch brings some and a slot does `cores` x `batch` of it.

    >>> backlog([0.5, 0.5, 0.5, 0.5], 1.0), backlog([1.5, 1.5, 1.5, 1.5], 1.0)
    (0.0, 2.0)
    """
    waiting = 0.0
    for work in spent:
        waiting = max(0.0, waiting + work - cores * batch)
    return waiting


def run(load: Workload, plan: PhysicalPlan, seed: int, seconds: int) -> tuple[list[float], float]:
    """Processor seconds of each batch once the windows are full, and the most bytes of state."""
    query = load.query()
    engine = Engine.alone(query, plan)
    filling = int(load.window / BATCH) + 2
    floors = dict.fromkeys(query.graph.names, 0)
    spent, most = [], 0.0
    for number, rows in enumerate(load.batches(np.random.default_rng(seed), filling + seconds, query)):
        started = process_time()
        for _ in engine.step(rows, floors):
            pass
        took = process_time() - started
        floors = {name: int(batch.times[-1]) if len(batch) else floors[name] for name, batch in rows.items()}
        if number >= filling:
            spent.append(took)
            most = max(most, float(engine.statistics().total.state_bytes))
    return spent, most


def near_limits(load: Workload, units: UnitCosts, seed: int, seconds: int) -> list[Ran]:
    """The chosen plan of a workload near its limits, the nearest refused one, and the cheapest one when all are."""
    query, title = load.query(), f"{len(load.rates)} streams, {sum(load.rates.values()):,.0f} rows/s"
    given = replace(load.statistics(), costs=units.by_name())
    cheapest = decide(query, PlanOptions(given=given)).answer
    assert isinstance(cheapest, Proposal)
    limits = PlanOptions(given=given).with_limits(ROOM * cheapest.cost.cpu, ROOM * cheapest.cost.memory)
    answer = decide(query, limits).answer
    assert isinstance(answer, Proposal), "the cheapest plan keeps limits above its price"
    over = [each for each in answer.considered if each.cost.cpu > APART * limits.cpu]
    tight = replace(limits, cpu=BELOW * cheapest.cost.cpu)
    assert isinstance(decide(query, tight).answer, Infeasible), "no plan keeps a limit below the cheapest"
    trials = [(answer.plan, answer.cost.cpu, limits.cpu, True)]
    trials += [(each.plan, each.cost.cpu, limits.cpu, False) for each in sorted(over, key=lambda c: c.cost.cpu)[:1]]
    trials.append((cheapest.plan, cheapest.cost.cpu, tight.cpu, False))
    found = []
    for plan, priced, limit, is_chosen in trials:
        spent, most = run(load, plan, seed, seconds)
        mean = sum(spent) / len(spent)
        waiting = backlog(spent, limit) / max(mean, 1e-9)
        found.append(Ran(title, str(plan), is_chosen, limit, priced, mean / BATCH, waiting, limits.memory, most))
    return found


def measured(setting: Setting) -> list[Ran]:
    units = calibrate(setting.seed, seconds=3 if setting.quick else 5)
    rng, count, seconds = random.Random(setting.seed + 200), 4 if setting.quick else 12, 8 if setting.quick else 20
    return [
        each
        for number, load in enumerate(workloads(rng, count))
        for each in near_limits(load, units, setting.seed + number, seconds)
    ]


COLUMNS = ("workload", "plan", "chosen", "limit", "priced", "cores", "batches waiting", "memory limit", "memory")


def present(found: Sequence[Ran]) -> Outcome:
    chosen = [each for each in found if each.is_chosen]
    refused = [each for each in found if not each.is_chosen]
    kept = sum(each.keeps_up for each in chosen) / len(chosen)
    failed = sum(not each.keeps_up for each in refused) / len(refused)
    fullest = max(each.memory / each.memory_limit for each in chosen)
    verdicts = (
        Verdict(
            f"our own bar: of plans chosen near their limits, {KEEP:.0%} keep up",
            f"{kept:.0%} of {len(chosen)}, by taking up to {max(each.cpu / each.limit for each in chosen):.0%} of the "
            "limit on CPU",
            {f"{KEEP:.0%} keep up": kept >= KEEP},
        ),
        Verdict(
            "our own bar: all of them stay within their limit on memory",
            f"the fullest has {fullest:.0%} of it",
            {"within the limit": fullest <= 1.0},
        ),
        Verdict(
            f"our own bar: of plans that limits refuse, {FAIL:.0%} would not keep up",
            f"{failed:.0%} of {len(refused)}",
            {f"{FAIL:.0%} fall behind": failed >= FAIL},
        ),
    )
    notes = (
        f"limits are {ROOM:g} times the price of the cheapest plan",
        f"refused plans are priced at {APART:g} times the limit or more, or the limit is {BELOW:g} times the cheapest",
        "a slot of so many cores is simulated by the processor time of each batch",
    )
    rows: list[tuple[Cell, ...]] = [
        (
            each.load,
            each.plan,
            "yes" if each.is_chosen else "no",
            each.limit,
            each.priced,
            each.cpu,
            each.waiting,
            each.memory_limit,
            each.memory,
        )
        for each in found
    ]
    return Outcome(COLUMNS, tuple(rows), lambda figure: draw(figure, found), verdicts, notes)


def draw(figure: Figure, found: Sequence[Ran]) -> None:
    axes = figure.subplots()
    for is_chosen, label, mark in ((True, "chosen", "o"), (False, "refused", "x")):
        these = [each for each in found if each.is_chosen == is_chosen]
        axes.loglog([each.priced / each.limit for each in these], [each.cpu / each.limit for each in these], mark)
        axes.plot([], [], mark, color="grey", label=label)
    axes.axhline(1.0, color="grey", linewidth=0.8)
    axes.axvline(1.0, color="grey", linewidth=0.8)
    axes.set(xlabel="price, in limits", ylabel="cores taken, in limits")
    axes.legend()


EXPERIMENTS = (Experiment("limits", "Plans within their limits keep up, refused ones do not", measured, present),)
