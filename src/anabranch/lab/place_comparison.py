"""`place-synthetic` and `place-enterprise`: all planners on the paper's two workloads (Figs. 12 to 14).

132 sites, max_cs 32, five zones, a three-dimensional cost space from 4,000 iterations. Open in the paper, and so run in
several settings: the ranges of rates and selectivities; whether phased competitors may relax running filters; whether a
gate's flight number is inferred for check-ins and baggage.
"""

from __future__ import annotations

from matplotlib.figure import Figure

from anabranch.lab.place_common import MAX_CS, STANDARD_SIZE, Total, above, below, cumulative_lines, through
from anabranch.lab.registry import Cell, Experiment, Outcome, Setting, Verdict
from anabranch.place.bottom_up import BottomUp, NetPresentCost
from anabranch.place.coordinates import embed
from anabranch.place.exhaustive import Exhaustive
from anabranch.place.generate import LinkRanges, transit_stub
from anabranch.place.hierarchy import build, zones
from anabranch.place.junction import Junction
from anabranch.place.phased import InNetwork, Relaxation
from anabranch.place.planner import Planner
from anabranch.place.top_down import TopDown
from anabranch.place.topology import Topology
from anabranch.place.workload import Ranges, airline_workload, random_workload

OURS = ("top-down", "bottom-up", "npc", "junction")
COLUMNS = (
    "setting",
    "planner",
    "network usage",
    "above optimum (%)",
    "below in-network (%)",
    "below relaxation (%)",
    "joins",
    "filters",
    "plans considered",
    "seconds",
)


def _planners(topology: Topology) -> list[tuple[str, Planner]]:
    hierarchy, divided, space = build(topology, MAX_CS), zones(topology, 5), embed(topology, 1)
    return [
        ("optimum", Exhaustive()),
        ("top-down", TopDown(hierarchy)),
        ("bottom-up", BottomUp(hierarchy)),
        ("npc", NetPresentCost(hierarchy)),
        ("junction", Junction()),
        ("in-network", InNetwork(divided)),
        ("in-network, not relaxing", InNetwork(divided, relaxing=False)),
        ("relaxation", Relaxation(space)),
        ("relaxation, not relaxing", Relaxation(space, relaxing=False)),
    ]


def _rows(setting: str, totals: dict[str, Total]) -> list[tuple[Cell, ...]]:
    def compared(total: Total) -> tuple[Cell, ...]:
        return (
            above(total.cost, totals["optimum"].cost),
            below(total.cost, totals["in-network, not relaxing"].cost),
            below(total.cost, totals["relaxation, not relaxing"].cost),
        )

    return [
        (setting, t.planner, t.cost, *compared(t), t.joins, t.filters, t.considered, t.seconds) for t in totals.values()
    ]


def _percentages(totals: dict[str, Total], of: str, names: tuple[str, ...] = OURS) -> str:
    if of == "optimum":
        return " / ".join(f"{name} {above(totals[name].cost, totals[of].cost):+.0f}" for name in names)
    return " / ".join(f"{name} {-below(totals[name].cost, totals[of].cost):+.0f}" for name in names)


def synthetic(setting: Setting) -> Outcome:
    usual = Ranges()
    settings = {"usual": (usual, LinkRanges())}
    if not setting.quick:
        settings["selective joins"] = (Ranges(selectivity=(0.002, 0.02)), LinkRanges())
        settings["twice the streams"] = (Ranges(streams=20), LinkRanges())
        settings["dear backbone"] = (usual, LinkRanges(transit=(60.0, 150.0)))
    queries = 20 if setting.quick else 60
    rows: list[tuple[Cell, ...]] = []
    verdicts = []
    shown: dict[str, Total] = {}
    for name, (ranges, links) in settings.items():
        topology = transit_stub(STANDARD_SIZE, setting.seed, links)
        totals = through(_planners, [(topology, random_workload(topology, queries, setting.seed, ranges))])
        rows += _rows(name, totals)
        shown = shown or totals
        verdicts += [
            Verdict(
                "above the optimum: Top-Down 10 %, Bottom-Up 34 %, NPC 18 %",
                f"{name}: {_percentages(totals, 'optimum')} %",
            ),
            Verdict(
                "against In-network: Top-Down -40 %, Bottom-Up -27 %",
                f"{name}: {_percentages(totals, 'in-network, not relaxing')} %",
            ),
            Verdict(
                "against Relaxation: Top-Down -59 %, Bottom-Up -49 %",
                f"{name}: {_percentages(totals, 'relaxation, not relaxing')} %",
            ),
        ]
    return Outcome(COLUMNS, tuple(rows), cumulative_lines(shown, "random workload, 132 sites"), tuple(verdicts))


def enterprise(setting: Setting) -> Outcome:
    queries = 60 if setting.quick else 300
    rows: list[tuple[Cell, ...]] = []
    verdicts = []
    shown: dict[str, Total] = {}
    for name, inferring in (("as written", False), ("inferred", True))[: 1 if setting.quick else 2]:
        topology = transit_stub(STANDARD_SIZE, setting.seed)
        totals = through(_planners, [(topology, airline_workload(topology, queries, setting.seed, inferring))])
        rows += _rows(name, totals)
        shown = shown or totals
        phased = totals["in-network, not relaxing"].joins
        fewer = " / ".join(f"{of} {below(totals[of].joins, phased):.0f}" for of in OURS)
        verdicts += [
            Verdict(
                "above the optimum: Top-Down 5 %, Bottom-Up 36 %, NPC 6 %",
                f"{name}: {_percentages(totals, 'optimum')} %",
            ),
            Verdict(
                "against In-network: Top-Down -42 %, Bottom-Up -25 %, NPC -41 %",
                f"{name}: {_percentages(totals, 'in-network, not relaxing')} %",
            ),
            Verdict(
                "against Relaxation: Top-Down -96 %, Bottom-Up -93 %, NPC -95 %",
                f"{name}: {_percentages(totals, 'relaxation, not relaxing')} %",
            ),
            Verdict("join operators fewer than phased: Top-Down 81 %, Bottom-Up 73 %, NPC 48 %", f"{name}: {fewer} %"),
        ]

    def draw(figure: Figure) -> None:
        halves = figure.subfigures(1, 2, squeeze=False)
        cumulative_lines(shown, f"{queries} airline queries, 132 sites", is_log=True)(halves[0, 0])
        axes = halves[0, 1].subplots()
        names = list(shown)
        axes.barh(names, [shown[n].joins for n in names], label="joins")
        axes.barh(names, [shown[n].filters for n in names], left=[shown[n].joins for n in names], label="filters")
        axes.invert_yaxis()
        axes.set(title="operators deployed")
        axes.legend(fontsize=8)

    return Outcome(COLUMNS, tuple(rows), draw, tuple(verdicts))


EXPERIMENTS = (
    Experiment("place-synthetic", "All planners on random queries (Fig. 12)", synthetic),
    Experiment("place-enterprise", "All planners on the airline's queries (Figs. 13-14)", enterprise),
)
