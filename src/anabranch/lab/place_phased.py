"""`place-phased-vs-integrated`: Fig. 2 of the placement paper, what "plan, then deploy" loses.

100 queries over five streams each, 64 sites. The paper does not say whether its phased competitors reuse operators in
this figure; both readings are run.
"""

from __future__ import annotations

from anabranch.lab.place_common import MAX_CS, below, cumulative_lines, through
from anabranch.lab.registry import Experiment, Outcome, Setting, Verdict
from anabranch.place.coordinates import embed
from anabranch.place.exhaustive import Exhaustive
from anabranch.place.generate import transit_stub
from anabranch.place.hierarchy import build
from anabranch.place.phased import PlanThenDeploy, Relaxation
from anabranch.place.planner import Planner
from anabranch.place.top_down import TopDown
from anabranch.place.topology import Topology
from anabranch.place.workload import Ranges, random_workload


def _planners(topology: Topology) -> list[tuple[str, Planner]]:
    space = embed(topology, 1)
    return [
        ("integrated (exhaustive)", Exhaustive()),
        ("integrated (top-down)", TopDown(build(topology, MAX_CS))),
        ("plan-then-deploy, reusing", PlanThenDeploy()),
        ("plan-then-deploy, no reuse", PlanThenDeploy(reusing=False)),
        ("relaxation, reusing", Relaxation(space)),
        ("relaxation, no reuse", Relaxation(space, reusing=False)),
    ]


def run(setting: Setting) -> Outcome:
    queries = 25 if setting.quick else 100
    cases = []
    for seed in range(setting.seed, setting.seed + (1 if setting.quick else 3)):
        topology = transit_stub(64, seed)
        cases.append((topology, random_workload(topology, queries, seed, Ranges(fewest=5, most=5))))
    totals = through(_planners, cases)
    base = totals["integrated (exhaustive)"].cost
    rows = tuple((t.planner, t.cost, below(base, t.cost), t.joins, t.considered, t.seconds) for t in totals.values())
    saved = {label: below(base, total.cost) for label, total in totals.items()}
    here = (
        f"{saved['relaxation, no reuse']:.0f} % below Relaxation and {saved['plan-then-deploy, no reuse']:.0f} % below "
        f"plan-then-deploy, {saved['relaxation, reusing']:.0f} % and {saved['plan-then-deploy, reusing']:.0f} % when "
        "they reuse too"
    )
    return Outcome(
        ("planner", "network usage", "integrated saves (%)", "joins", "plans considered", "seconds"),
        rows,
        cumulative_lines(totals, f"{queries} queries over five streams, 64 sites"),
        (Verdict("integrated planning saves more than 50 % against both", here),),
    )


EXPERIMENTS = (Experiment("place-phased-vs-integrated", "Planning and placing in one step (Fig. 2)", run),)
