"""`place-phased-vs-integrated`: Fig. 2 of the placement paper, the loss of "plan, then deploy".

100 queries over five streams each, 64 sites. The paper does not say whether its phased competitors reuse operators in
this figure, nor how selective joins are; all readings are run.
"""

from __future__ import annotations

from dataclasses import replace

from anabranch.place.coordinates import embed
from anabranch.place.exhaustive import Exhaustive
from anabranch.place.generate import transit_stub
from anabranch.place.hierarchy import build
from anabranch.place.phased import PlanThenDeploy, Relaxation
from anabranch.place.planner import Planner
from anabranch.place.top_down import TopDown
from anabranch.place.topology import Topology
from lab.place_common import EVEN, MAX_CS, REDUCING, Total, below, cumulative_lines, through
from lab.place_workload import Ranges, random_workload
from lab.registry import Experiment, Outcome, Setting, Verdict


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


def _totals(setting: Setting, ranges: Ranges) -> dict[str, Total]:
    cases = []
    for seed in range(setting.seed, setting.seed + (1 if setting.quick else 3)):
        topology = transit_stub(64, seed)
        queries = 25 if setting.quick else 100
        cases.append((topology, random_workload(topology, queries, seed, replace(ranges, fewest=5, most=5))))
    return through(_planners, cases)


def measure(setting: Setting) -> dict[str, dict[str, Total]]:
    """All planners on both workloads."""
    workloads = {"reducing joins": REDUCING, "even joins": EVEN}
    return {name: _totals(setting, ranges) for name, ranges in workloads.items()}


def present(totals: dict[str, dict[str, Total]]) -> Outcome:
    rows = []
    verdicts = []
    for name, several in totals.items():
        base = several["integrated (exhaustive)"].cost
        saved = {label: below(base, total.cost) for label, total in several.items()}
        rows += [
            (name, t.planner, t.cost, saved[t.planner], t.joins, t.considered, t.seconds) for t in several.values()
        ]
        here = (
            f"{name}: {saved['relaxation, no reuse']:.0f} % against Relaxation, "
            f"{saved['plan-then-deploy, no reuse']:.0f} % against plan-then-deploy; "
            f"{saved['relaxation, reusing']:.0f} % and {saved['plan-then-deploy, reusing']:.0f} % if they reuse too"
        )
        reached = {
            f"against {label.removesuffix(', no reuse')}": saved[label] > 50
            for label in ("relaxation, no reuse", "plan-then-deploy, no reuse")
        }
        verdicts.append(Verdict("integrated planning saves more than 50 % against both", here, reached))
    shown = totals["reducing joins"]
    return Outcome(
        ("workload", "planner", "network usage", "integrated saves (%)", "joins", "plans considered", "seconds"),
        tuple(rows),
        cumulative_lines(shown, "queries over five streams, 64 sites"),
        tuple(verdicts),
    )


EXPERIMENTS = (Experiment("place-phased-vs-integrated", "Planning and placing in one step (Fig. 2)", measure, present),)
