"""`place-cluster-size` (Figs. 6 to 9) and `place-npc` (Figs. 10 and 11): search against cost, by cluster size."""

from __future__ import annotations

from matplotlib.figure import Figure

from anabranch.lab.place_common import STANDARD_SIZE, Total, above, below, through
from anabranch.lab.registry import Experiment, Outcome, Setting, Verdict
from anabranch.place.bottom_up import BottomUp, NetPresentCost
from anabranch.place.exhaustive import Exhaustive
from anabranch.place.generate import transit_stub
from anabranch.place.hierarchy import build
from anabranch.place.planner import Planner
from anabranch.place.top_down import TopDown
from anabranch.place.topology import Topology
from anabranch.place.workload import Workload, random_workload

SIZES = (4, 8, 16, 32, 64)


def _cases(setting: Setting) -> list[tuple[Topology, Workload]]:
    seeds = range(setting.seed, setting.seed + (1 if setting.quick else 2))
    queries = 15 if setting.quick else 50
    topologies = [transit_stub(STANDARD_SIZE, seed) for seed in seeds]
    return [(t, random_workload(t, queries, seed)) for t, seed in zip(topologies, seeds, strict=True)]


def cluster_size(setting: Setting) -> Outcome:
    def planners(topology: Topology) -> list[tuple[str, Planner]]:
        found: list[tuple[str, Planner]] = [("optimum", Exhaustive())]
        for size in SIZES:
            hierarchy = build(topology, size)
            found += [(f"top-down {size}", TopDown(hierarchy)), (f"bottom-up {size}", BottomUp(hierarchy))]
        return found

    totals = through(planners, _cases(setting))
    optimum = totals["optimum"].cost
    rows = tuple(
        (name, size, total.considered, total.cost, above(total.cost, optimum))
        for name in ("top-down", "bottom-up")
        for size in SIZES
        if (total := totals[f"{name} {size}"])
    )

    def draw(figure: Figure) -> None:
        plans, costs = figure.subplots(1, 2)
        for name in ("top-down", "bottom-up"):
            of = [totals[f"{name} {size}"] for size in SIZES]
            plans.plot(SIZES, [total.considered for total in of], marker="o", label=name)
            costs.plot(SIZES, [total.cost for total in of], marker="o", label=name)
        costs.axhline(optimum, color="grey", ls=":", label="optimum")
        plans.set(title="plans considered", yscale="log")
        costs.set(title="network usage")
        for axes in (plans, costs):
            axes.set(xlabel="max_cs", xscale="log", xticks=SIZES, xticklabels=SIZES)
            axes.minorticks_off()
        plans.legend()
        costs.legend()

    plans = {(name, size): totals[f"{name} {size}"].considered for name in ("top-down", "bottom-up") for size in SIZES}
    fewer = sum(below(plans["bottom-up", s], plans["top-down", s]) for s in SIZES) / len(SIZES)
    gain = below(totals["bottom-up 64"].cost, totals["bottom-up 8"].cost)
    spread = above(
        max(totals[f"top-down {s}"].cost for s in SIZES[1:]), min(totals[f"top-down {s}"].cost for s in SIZES[1:])
    )
    return Outcome(
        ("planner", "max_cs", "plans considered", "network usage", "above optimum (%)"),
        rows,
        draw,
        (
            Verdict("Bottom-Up considers 67 % fewer plans than Top-Down on average", f"{fewer:.0f} % fewer"),
            Verdict("Bottom-Up with max_cs 64 costs 21 % less than with 8", f"{gain:.0f} % less"),
            Verdict("Top-Down costs nearly the same for every max_cs above 4", f"within {spread:.0f} %"),
            Verdict(
                "max_cs 64 has the largest search, nearly ten times that of 16",
                f"{plans['top-down', 64] / plans['top-down', 16]:.2g} times (Top-Down), "
                f"{plans['bottom-up', 64] / plans['bottom-up', 16]:.2g} times (Bottom-Up)",
            ),
        ),
    )


def npc(setting: Setting) -> Outcome:
    def planners(topology: Topology) -> list[tuple[str, Planner]]:
        hierarchy = build(topology, 16)
        return [
            ("top-down", TopDown(hierarchy)),
            ("bottom-up", BottomUp(hierarchy)),
            ("npc", NetPresentCost(hierarchy)),
        ]

    totals = through(planners, _cases(setting))
    base = totals["top-down"]
    rows = tuple(
        (t.planner, t.cost, above(t.cost, base.cost), t.considered, below(t.considered, base.considered))
        for t in totals.values()
    )

    def draw(figure: Figure) -> None:
        costs, plans = figure.subplots(1, 2)
        names = list(totals)
        costs.bar(names, [totals[name].cost for name in names])
        plans.bar(names, [totals[name].considered for name in names])
        costs.set(title="network usage, max_cs 16")
        plans.set(title="plans considered, max_cs 16")

    chosen: Total = totals["npc"]
    here = f"{above(chosen.cost, base.cost):+.1f} % cost, {below(chosen.considered, base.considered):.0f} % fewer plans"
    return Outcome(
        ("planner", "network usage", "above top-down (%)", "plans considered", "fewer plans (%)"),
        rows,
        draw,
        (Verdict("NPC within 1 % of Top-Down with 14 % fewer plans", here),),
    )


EXPERIMENTS = (
    Experiment("place-cluster-size", "Cluster size: search space and cost (Figs. 6-9)", cluster_size),
    Experiment("place-npc", "Net present cost between Top-Down and Bottom-Up (Figs. 10-11)", npc),
)
