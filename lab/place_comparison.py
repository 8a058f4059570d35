"""`place-synthetic` and `place-enterprise`: all planners on the paper's two workloads (Figs. 12 to 14).

132 sites, max_cs 32, five zones, a three-dimensional cost space from 4,000 iterations. All planners reuse operators, as
in the paper; phased ones plan the join order without knowing the network or what runs, and do not relax filters (in the
paper only its own planners have telescoping filters). Open in the paper, and so run in several settings: how selective
joins are and how wide their results; how many streams there are; what the backbone costs; how In-network divides a
query over its zones and how many these are; how near Relaxation must be to reuse; whether phased planners may relax
after all; whether joined records grow; how many flights check-ins are of; whether a join answers with every row or
once a slide, with all that its windows hold. Filters are those of the product: the binder infers a gate's flight number
for check-ins and baggage, the paper filters flights only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TypeAlias

from matplotlib.figure import Figure

from anabranch.place.bottom_up import BottomUp, NetPresentCost
from anabranch.place.coordinates import embed
from anabranch.place.exhaustive import Exhaustive
from anabranch.place.generate import LinkRanges, transit_stub
from anabranch.place.hierarchy import build, zones
from anabranch.place.junction import Junction
from anabranch.place.phased import InNetwork, PlanThenDeploy, Relaxation
from anabranch.place.planner import Planner
from anabranch.place.top_down import TopDown
from anabranch.place.topology import Topology
from lab.place_common import (
    EVEN,
    GROWING,
    MAX_CS,
    REDUCING,
    STANDARD_SIZE,
    Total,
    above,
    below,
    cumulative_lines,
    through,
)
from lab.place_workload import Workload, airline_workload, random_workload
from lab.registry import Cell, Experiment, Outcome, Setting, Verdict

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


Case: TypeAlias = tuple[Topology, Workload]
Totals: TypeAlias = Mapping[str, Total]


@dataclass(frozen=True)
class Compared:
    """The totals of every planner by setting; the first setting has the phased planners in all readings."""

    queries: int
    found: Mapping[str, Totals]
    rows: tuple[tuple[Cell, ...], ...]


def _planners(topology: Topology) -> list[tuple[str, Planner]]:
    hierarchy, divided, space = build(topology, MAX_CS), zones(topology, 5), embed(topology, 1)
    return [
        ("optimum", Exhaustive()),
        ("top-down", TopDown(hierarchy)),
        ("bottom-up", BottomUp(hierarchy)),
        ("npc", NetPresentCost(hierarchy)),
        ("junction", Junction()),
        ("in-network", InNetwork(divided, relaxing=False)),
        ("relaxation", Relaxation(space, relaxing=False)),
    ]


def _other_readings(topology: Topology) -> list[tuple[str, Planner]]:
    """The planners, and the phased ones again in other readings of what they do."""
    divided, space = zones(topology, 5), embed(topology, 1)
    return [
        *_planners(topology),
        ("in-network, best division", InNetwork(divided, relaxing=False, divides_optimally=True)),
        ("in-network, 3 zones", InNetwork(zones(topology, 3), relaxing=False)),
        ("in-network, 12 zones", InNetwork(zones(topology, 12), relaxing=False)),
        ("in-network, relaxing filters", InNetwork(divided)),
        ("relaxation, reusing only on the spot", Relaxation(space, relaxing=False, radius=0.0)),
        ("relaxation, reusing from afar", Relaxation(space, relaxing=False, radius=1.0)),
        ("relaxation, relaxing filters", Relaxation(space)),
        ("plan-then-deploy", PlanThenDeploy(relaxing=False)),
    ]


def _rows(setting: str, totals: Totals) -> list[tuple[Cell, ...]]:
    def compared(total: Total) -> tuple[Cell, ...]:
        return (
            above(total.cost, totals["optimum"].cost),
            below(total.cost, totals["in-network"].cost),
            below(total.cost, totals["relaxation"].cost),
        )

    return [
        (setting, t.planner, t.cost, *compared(t), t.joins, t.filters, t.considered, t.seconds) for t in totals.values()
    ]


def _percentages(totals: Totals, of: str) -> str:
    if of == "optimum":
        return " / ".join(f"{name} {above(totals[name].cost, totals[of].cost):+.0f}" for name in OURS)
    return " / ".join(f"{name} {-below(totals[name].cost, totals[of].cost):+.0f}" for name in OURS)


def _reached(totals: Totals, of: str, paper: dict[str, int]) -> dict[str, bool]:
    """Whether each planner's cost is at most the paper's percentage above (or below) another's."""
    cost = {name: above(totals[name].cost, totals[of].cost) for name in paper}
    return {f"{name} {percent:+d} %": round(cost[name]) <= percent for name, percent in paper.items()}


def _apart(name: str, totals: Totals, percent: int) -> Verdict:
    """Whether the planners lie as far apart as in the paper: bounds on the optimum alone do not show that."""
    saved = below(totals["top-down"].cost, totals["bottom-up"].cost)
    costs = {planner: totals[planner].cost for planner in ("top-down", "npc", "bottom-up")}
    return Verdict(
        f"Top-Down costs nearly {percent} % less than Bottom-Up, NPC lies between the two",
        f"{name}: {saved:.0f} % less; network usage "
        + " / ".join(f"{planner} {cost:,.0f}" for planner, cost in costs.items()),
        {
            f"{percent} %": round(saved) >= percent,
            "NPC between": costs["top-down"] < costs["npc"] < costs["bottom-up"],
        },
    )


def _search_size(name: str, totals: Totals, of_top_down: float, of_bottom_up: float) -> Verdict:
    """In-network's search size against the planners' own, within a quarter of the paper's."""
    plans = {planner: totals[planner].considered for planner in ("in-network", "top-down", "bottom-up")}
    shares = {planner: plans["in-network"] / plans[planner] for planner in ("top-down", "bottom-up")}
    wanted = {"top-down": of_top_down, "bottom-up": of_bottom_up}
    return Verdict(
        f"In-network considers {of_top_down:.0%} of Top-Down's plans and {of_bottom_up:.0%} of Bottom-Up's",
        f"{name}: {shares['top-down']:.2%} and {shares['bottom-up']:.2%} "
        f"({', '.join(f'{planner} {count:,}' for planner, count in plans.items())}); with the join order fixed there "
        "are only placements to choose among",
        {f"of {planner}, within a quarter": abs(shares[planner] / wanted[planner] - 1) <= 0.25 for planner in wanted},
    )


def _through(setting: str, cases: list[Case], is_first: bool) -> tuple[dict[str, Total], list[tuple[Cell, ...]]]:
    """All planners in a setting, in the first one in all readings."""
    totals = through(_other_readings if is_first else _planners, cases)
    return totals, _rows(setting, totals)


def measure_synthetic(setting: Setting) -> Compared:
    """All planners on random queries, in several settings."""
    usual, queries = LinkRanges(), 20 if setting.quick else 60
    settings = {"reducing joins": (REDUCING, usual)}
    if not setting.quick:
        settings |= {
            "reducing, joined rows add up": (replace(REDUCING, record_bytes=None), usual),
            "reducing, 20 streams": (replace(REDUCING, streams=20), usual),
            "reducing, dear backbone": (REDUCING, replace(usual, transit=(60.0, 150.0))),
            "reducing, even link costs": (REDUCING, LinkRanges(stub=(5.0, 15.0), transit=(5.0, 15.0))),
            "even joins": (EVEN, usual),
            "even joins, joined rows add up": (replace(EVEN, record_bytes=None), usual),
            "growing joins": (GROWING, usual),
        }
    rows: list[tuple[Cell, ...]] = []
    found: dict[str, dict[str, Total]] = {}
    for name, (ranges, links) in settings.items():
        cases = []
        for seed in range(setting.seed, setting.seed + (1 if setting.quick or rows else 2)):
            topology = transit_stub(STANDARD_SIZE, seed, links)
            cases.append((topology, random_workload(topology, queries, seed, ranges)))
        found[name], added = _through(name, cases, not rows)
        rows += added
    return Compared(queries, found, tuple(rows))


def present_synthetic(compared: Compared) -> Outcome:
    found = compared.found
    verdicts = [
        verdict
        for name, totals in found.items()
        for verdict in (
            Verdict(
                "above the optimum: Top-Down 10 %, Bottom-Up 34 %, NPC 18 %, at most",
                f"{name}: {_percentages(totals, 'optimum')} %",
                _reached(totals, "optimum", {"top-down": 10, "bottom-up": 34, "npc": 18}),
            ),
            _apart(name, totals, 19),
            Verdict(
                "against In-network: Top-Down -40 %, Bottom-Up -27 %",
                f"{name}: {_percentages(totals, 'in-network')} %",
                _reached(totals, "in-network", {"top-down": -40, "bottom-up": -27}),
            ),
            _search_size(name, totals, 0.7, 2.0),
            Verdict(
                "against Relaxation: Top-Down -59 %, Bottom-Up -49 %",
                f"{name}: {_percentages(totals, 'relaxation')} %",
                _reached(totals, "relaxation", {"top-down": -59, "bottom-up": -49}),
            ),
        )
    ]
    first = next(iter(found.values()))
    verdicts.append(_readings(first))

    def draw(figure: Figure) -> None:
        halves = figure.subfigures(1, 2, squeeze=False)
        shown = {name: first[name] for name in ("optimum", *OURS, "in-network", "relaxation")}
        cumulative_lines(shown, f"{compared.queries} random queries, 132 sites")(halves[0, 0])
        _savings(found)(halves[0, 1])

    return Outcome(COLUMNS, compared.rows, draw, tuple(verdicts))


def _readings(totals: Totals) -> Verdict:
    """The paper leaves open how phased planners divide and reuse; its order must hold in every reading."""
    others = [name for name in totals if name not in ("optimum", *OURS, "in-network", "relaxation")]
    saved = ", ".join(f"{name} {-below(totals['top-down'].cost, totals[name].cost):+.0f} %" for name in others)
    return Verdict(
        "integrated planning costs less than phased planning, however the phased planners divide and reuse",
        f"Top-Down against {saved}",
        {name: totals["top-down"].cost < totals[name].cost for name in others},
    )


def _savings(found: Mapping[str, Totals]) -> Callable[[Figure], None]:
    """Draws the savings of Top-Down in each setting."""

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        for offset, other in ((-0.2, "in-network"), (0.2, "relaxation")):
            saved = [below(totals["top-down"].cost, totals[other].cost) for totals in found.values()]
            axes.barh([place + offset for place in range(len(found))], saved, height=0.36, label=f"against {other}")
        axes.set_yticks(range(len(found)), list(found), fontsize=8)
        axes.invert_yaxis()
        axes.set(title="what Top-Down saves, by setting", xlabel="%")
        axes.legend(fontsize=8, loc="lower right")

    return draw


def measure_enterprise(setting: Setting) -> Compared:
    """All planners on the airline's queries, in several settings."""
    queries = 60 if setting.quick else 300
    topology = transit_stub(STANDARD_SIZE, setting.seed)
    bound = airline_workload(topology, queries, setting.seed)
    settings = {"as bound": (topology, bound)}
    if not setting.quick:
        growing = replace(bound, statistics=replace(bound.statistics, record_bytes=None))
        settings |= {
            "joined rows add up": (topology, growing),
            "other sources and sinks": (topology, airline_workload(topology, queries, setting.seed + 1)),
            "1,500 flights": (topology, airline_workload(topology, queries, setting.seed, flights=1500)),
            "results once a slide": (topology, _sliding(bound)),
            "1,500 flights, once a slide": (
                topology,
                _sliding(airline_workload(topology, queries, setting.seed, flights=1500)),
            ),
        }
    rows: list[tuple[Cell, ...]] = []
    found: dict[str, dict[str, Total]] = {}
    for name, case in settings.items():
        found[name], added = _through(name, [case], not rows)
        rows += added
    return Compared(queries, found, tuple(rows))


def _sliding(workload: Workload) -> Workload:
    """The workload whose joins answer once in the minute that is the paper's usual slide."""
    return replace(workload, statistics=replace(workload.statistics, slide=60.0))


def present_enterprise(compared: Compared) -> Outcome:
    found = compared.found
    verdicts = []
    for name, totals in found.items():
        fewer = {of: round(below(totals[of].joins, totals["in-network"].joins)) for of in OURS}
        paper = {"top-down": 81, "bottom-up": 73, "npc": 48}
        most = -below(totals["optimum"].cost, totals["in-network"].cost)
        filters = {of: totals[of].filters for of in (*OURS, "in-network", "relaxation")}
        verdicts += [
            Verdict(
                "above the optimum: Top-Down 5 %, Bottom-Up 36 %, NPC 6 %, at most",
                f"{name}: {_percentages(totals, 'optimum')} %",
                _reached(totals, "optimum", {"top-down": 5, "bottom-up": 36, "npc": 6}),
            ),
            _apart(name, totals, 23),
            Verdict(
                "against In-network: Top-Down -42 %, Bottom-Up -25 %, NPC -41 %",
                f"{name}: {_percentages(totals, 'in-network')} %; the optimum itself {most:+.0f} %",
                _reached(totals, "in-network", {"top-down": -42, "bottom-up": -25, "npc": -41}),
            ),
            _search_size(name, totals, 0.97, 2.7),
            Verdict(
                "against Relaxation: Top-Down -96 %, Bottom-Up -93 %, NPC -95 %",
                f"{name}: {_percentages(totals, 'relaxation')} %",
                _reached(totals, "relaxation", {"top-down": -96, "bottom-up": -93, "npc": -95}),
            ),
            Verdict(
                "join operators fewer than phased: Top-Down 81 %, Bottom-Up 73 %, NPC 48 %",
                f"{name}: {' / '.join(f'{of} {percent}' for of, percent in fewer.items())} %",
                {f"{of} {percent} %": fewer[of] >= percent for of, percent in paper.items()},
            ),
            Verdict(
                "more selection filters than phased planners, because filters telescope (Fig. 14)",
                f"{name}: {', '.join(f'{of} {count}' for of, count in filters.items())}",
                {of: filters[of] > max(filters["in-network"], filters["relaxation"]) for of in paper},
            ),
        ]
    first = next(iter(found.values()))
    verdicts.append(_readings(first))

    def draw(figure: Figure) -> None:
        halves = figure.subfigures(1, 2, squeeze=False)
        shown = {name: first[name] for name in ("optimum", *OURS, "in-network", "relaxation")}
        cumulative_lines(shown, f"{compared.queries} airline queries, 132 sites")(halves[0, 0])
        axes = halves[0, 1].subplots()
        names = list(shown)
        axes.barh(names, [shown[n].joins for n in names], label="joins")
        axes.barh(names, [shown[n].filters for n in names], left=[shown[n].joins for n in names], label="filters")
        axes.invert_yaxis()
        axes.set(title="operators deployed")
        axes.legend(fontsize=8)

    return Outcome(COLUMNS, compared.rows, draw, tuple(verdicts))


EXPERIMENTS = (
    Experiment("place-synthetic", "All planners on random queries (Fig. 12)", measure_synthetic, present_synthetic),
    Experiment(
        "place-enterprise",
        "All planners on the airline's queries (Figs. 13-14)",
        measure_enterprise,
        present_enterprise,
    ),
)
