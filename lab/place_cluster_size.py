"""`place-cluster-size` (Figs. 6 to 9) and `place-npc` (Figs. 10 and 11): search against cost, by cluster size."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

from matplotlib.figure import Figure

from anabranch.place.bottom_up import BottomUp, NetPresentCost
from anabranch.place.exhaustive import Exhaustive
from anabranch.place.generate import transit_stub
from anabranch.place.hierarchy import build
from anabranch.place.planner import Planner
from anabranch.place.top_down import TopDown
from anabranch.place.topology import Topology
from lab.place_common import GROWING, REDUCING, STANDARD_SIZE, Total, above, below, through
from lab.place_workload import Ranges, Workload, random_workload
from lab.registry import Experiment, Outcome, Setting, Verdict

SIZES = (4, 8, 16, 32, 64)

WORKLOADS = {"reducing joins": REDUCING, "growing joins": GROWING}
Found: TypeAlias = Mapping[str, Mapping[str, Total]]


def _cases(setting: Setting, ranges: Ranges) -> list[tuple[Topology, Workload]]:
    seeds = range(setting.seed, setting.seed + (1 if setting.quick else 2))
    queries = 15 if setting.quick else 50
    topologies = [transit_stub(STANDARD_SIZE, seed) for seed in seeds]
    return [(t, random_workload(t, queries, seed, ranges)) for t, seed in zip(topologies, seeds, strict=True)]


def _by_size(topology: Topology) -> list[tuple[str, Planner]]:
    found: list[tuple[str, Planner]] = [("optimum", Exhaustive())]
    for size in SIZES:
        hierarchy = build(topology, size)
        found += [(f"top-down {size}", TopDown(hierarchy)), (f"bottom-up {size}", BottomUp(hierarchy))]
    return found


def measure_sizes(setting: Setting) -> Found:
    """Both planners with every cluster size, by workload."""
    return {name: through(_by_size, _cases(setting, ranges)) for name, ranges in WORKLOADS.items()}


def present_sizes(found: Found) -> Outcome:
    rows = tuple(
        (workload, name, size, total.considered, total.cost, above(total.cost, totals["optimum"].cost))
        for workload, totals in found.items()
        for name in ("top-down", "bottom-up")
        for size in SIZES
        if (total := totals[f"{name} {size}"])
    )

    def draw(figure: Figure) -> None:
        plans, *costs = figure.subplots(1, 1 + len(found))
        for name in ("top-down", "bottom-up"):
            of = [found["reducing joins"][f"{name} {size}"].considered for size in SIZES]
            plans.plot(SIZES, of, marker="o", label=name)
            for axes, (workload, totals) in zip(costs, found.items(), strict=True):
                base = totals["optimum"].cost
                axes.plot(SIZES, [above(totals[f"{name} {s}"].cost, base) for s in SIZES], marker="o", label=name)
                axes.set(title=f"% above the optimum,\n{workload}")
        plans.set(title="plans considered,\nreducing joins", yscale="log")
        for axes in (plans, *costs):
            axes.set(xlabel="max_cs", xscale="log", xticks=SIZES, xticklabels=SIZES)
            axes.minorticks_off()
            axes.legend()

    verdicts = []
    for workload, totals in found.items():
        plans = {name: [totals[f"{name} {s}"].considered for s in SIZES] for name in ("top-down", "bottom-up")}
        fewer = sum(map(below, plans["bottom-up"], plans["top-down"])) / len(SIZES)
        larger = [totals[f"top-down {size}"].cost for size in SIZES[1:]]
        spread = above(max(larger), min(larger))
        gain = {s: below(totals["bottom-up 64"].cost, totals[f"bottom-up {s}"].cost) for s in (4, 8)}
        verdicts += [
            Verdict(
                "Bottom-Up considers 67 % fewer plans than Top-Down on average",
                f"{workload}: {fewer:.0f} % fewer",
                {"67 %": round(fewer) >= 67},
            ),
            Verdict(
                "Bottom-Up with max_cs 64 costs 21 % less than with 8",
                f"{workload}: {gain[8]:.0f} % less, and {gain[4]:.0f} % less than with 4",
                {"21 %": round(gain[8]) >= 21},
            ),
            Verdict(
                "Top-Down costs nearly the same for every max_cs above 4",
                f"{workload}: within {spread:.0f} %",
                {"within 10 %": spread <= 10},
            ),
            Verdict(
                "32 searches less than 16; 64 searches most, nearly ten times as much as 16",
                f"{workload}: 32 and 64 search {_times(plans['top-down'])} times as much as 16 (Top-Down), "
                f"{_times(plans['bottom-up'])} times (Bottom-Up)",
                {
                    "32 less than 16": all(of[3] < of[2] for of in plans.values()),
                    "64 most": all(of[4] == max(of) for of in plans.values()),
                    "64 nearly ten times as much as 16, at least seven": all(
                        of[4] >= 7 * of[2] for of in plans.values()
                    ),
                },
            ),
        ]
    columns = ("workload", "planner", "max_cs", "plans considered", "network usage", "above optimum (%)")
    return Outcome(columns, rows, draw, tuple(verdicts))


def _times(plans: list[int]) -> str:
    """The plans of the two largest clusters as multiples of those of the middle one."""
    return " and ".join(f"{count / plans[2]:.2g}" for count in plans[3:])


def measure_npc(setting: Setting) -> Found:
    """The three planners of the paper with clusters of 16."""

    def planners(topology: Topology) -> list[tuple[str, Planner]]:
        hierarchy = build(topology, 16)
        return [
            ("top-down", TopDown(hierarchy)),
            ("bottom-up", BottomUp(hierarchy)),
            ("npc", NetPresentCost(hierarchy)),
        ]

    return {name: through(planners, _cases(setting, ranges)) for name, ranges in WORKLOADS.items()}


def present_npc(found: Found) -> Outcome:
    rows = []
    verdicts = []
    for workload, totals in found.items():
        base, chosen = totals["top-down"], totals["npc"]
        rows += [
            (workload, name, t.cost, above(t.cost, base.cost), t.considered, below(t.considered, base.considered))
            for name, t in totals.items()
        ]
        cost, plans = above(chosen.cost, base.cost), below(chosen.considered, base.considered)
        verdicts.append(
            Verdict(
                "NPC within 1 % of Top-Down with 14 % fewer plans",
                f"{workload}: {cost:+.1f} % cost, {plans:.0f} % fewer plans",
                {"within 1 %": cost <= 1, "14 % fewer plans": round(plans) >= 14},
            )
        )

    def draw(figure: Figure) -> None:
        costs, plans = figure.subplots(1, 2)
        for number, (workload, totals) in enumerate(found.items()):
            base = totals["top-down"]
            at = [place + 0.4 * number for place in range(len(totals))]
            costs.bar(at, [100 * t.cost / base.cost for t in totals.values()], width=0.36, label=workload)
            plans.bar(at, [100 * t.considered / base.considered for t in totals.values()], width=0.36, label=workload)
            for axes in (costs, plans):
                axes.set_xticks([place + 0.2 for place in range(len(totals))], list(totals))
        costs.set(title="network usage, % of Top-Down's, max_cs 16")
        plans.set(title="plans considered, % of Top-Down's")
        costs.legend(loc="lower left")

    columns = ("workload", "planner", "network usage", "above top-down (%)", "plans considered", "fewer plans (%)")
    return Outcome(columns, tuple(rows), draw, tuple(verdicts))


EXPERIMENTS = (
    Experiment("place-cluster-size", "Cluster size: search space and cost (Figs. 6-9)", measure_sizes, present_sizes),
    Experiment("place-npc", "Net present cost between Top-Down and Bottom-Up (Figs. 10-11)", measure_npc, present_npc),
)
