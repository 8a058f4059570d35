"""`place-scaling` (Fig. 15, and past it) and `place-time` (Fig. 16's shape): how search and time grow."""

from __future__ import annotations

from dataclasses import astuple, dataclass, replace
from itertools import pairwise
from statistics import fmean

from matplotlib.figure import Figure

from anabranch.place.bottom_up import BottomUp
from anabranch.place.exhaustive import beta, lemma_1
from anabranch.place.generate import LinkRanges, transit_stub
from anabranch.place.hierarchy import Hierarchy, build
from anabranch.place.planner import Placement, joins_of, leaves_of
from anabranch.place.run import deploy
from anabranch.place.top_down import TopDown
from lab.place_common import MAX_CS, REDUCING, below
from lab.place_workload import random_workload
from lab.registry import Experiment, Outcome, Setting, Verdict

STREAMS_EACH = 4


@dataclass(frozen=True)
class Searched:
    """A network of one size: plans and milliseconds of a query, against the whole space and the paper's bound."""

    sites: int
    levels: int
    exhaustive: float
    bound: float
    top_down: float
    bottom_up: float
    top_down_ms: float
    bottom_up_ms: float


def measure_scaling(setting: Setting) -> list[Searched]:
    """Both planners on networks of growing size."""
    sizes = (64, 128, 256) if setting.quick else (64, 128, 256, 512, 1024, 10_000)
    queries = 20 if setting.quick else 100
    found = []
    for size in sizes:
        topology = transit_stub(size, setting.seed)
        hierarchy = build(topology, MAX_CS)
        workload = random_workload(
            topology, queries, setting.seed, replace(REDUCING, fewest=STREAMS_EACH, most=STREAMS_EACH)
        )
        start = workload.landscape(topology)
        top_down = deploy(TopDown(hierarchy), start, workload.queries)
        bottom_up = deploy(BottomUp(hierarchy), start, workload.queries)
        everything = lemma_1(STREAMS_EACH, size)
        found.append(
            Searched(
                sites=size,
                levels=hierarchy.height,
                exhaustive=everything,
                bound=beta(STREAMS_EACH, size, MAX_CS, hierarchy.height) * everything,
                top_down=top_down.considered / queries,
                bottom_up=bottom_up.considered / queries,
                top_down_ms=1000 * top_down.seconds / queries,
                bottom_up_ms=1000 * bottom_up.seconds / queries,
            )
        )
    return found


def present_scaling(found: list[Searched]) -> Outcome:
    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        lines = {
            "exhaustive (Lemma 1)": [at.exhaustive for at in found],
            "bound (Theorems 2, 4)": [at.bound for at in found],
            "top-down": [at.top_down for at in found],
            "bottom-up": [at.bottom_up for at in found],
        }
        for label, values in lines.items():
            axes.plot([at.sites for at in found], values, marker="o", label=label)
        axes.set(
            title="deployments considered for a query over four streams", xlabel="sites", xscale="log", yscale="log"
        )
        axes.legend()

    shares = {
        "Top-Down": [100 * at.top_down / at.exhaustive for at in found],
        "Bottom-Up": [100 * at.bottom_up / at.exhaustive for at in found],
    }
    fewer = {at.sites: below(at.bottom_up, at.top_down) for at in found}
    mean, largest = sum(fewer.values()) / len(fewer), found[-1]
    verdicts = (
        Verdict(
            "both search less than 1 % of the space",
            " and ".join(f"{name} at most {max(share):.2g} %" for name, share in shares.items()),
            {f"{name} below 1 %": max(share) < 1 for name, share in shares.items()},
        ),
        Verdict(
            "the bounds of Theorems 2 and 4 hold on average",
            f"at most {max(at.top_down / at.bound for at in found):.1%} of the bound (Top-Down) and "
            f"{max(at.bottom_up / at.bound for at in found):.1%} (Bottom-Up)",
            {
                "Top-Down": all(at.top_down <= at.bound for at in found),
                "Bottom-Up": all(at.bottom_up <= at.bound for at in found),
            },
        ),
        Verdict(
            "Bottom-Up searches 45 % less than Top-Down a query",
            f"{mean:.0f} % less on average; by sites "
            + ", ".join(f"{sites:,}: {percent:.0f} %" for sites, percent in fewer.items()),
            {"45 %": round(mean) >= 45},
        ),
        Verdict(
            "networks up to about 1,000 nodes; our own bar is 100 ms of planning a query at the largest network",
            f"{largest.sites:,} sites, {largest.top_down_ms:.0f} ms a query (Top-Down), {largest.bottom_up_ms:.0f} ms "
            "(Bottom-Up)",
            {"Top-Down in 100 ms": largest.top_down_ms <= 100, "Bottom-Up in 100 ms": largest.bottom_up_ms <= 100},
        ),
    )
    columns = (
        "sites",
        "levels",
        "exhaustive (Lemma 1)",
        "bound (beta)",
        "top-down plans",
        "bottom-up plans",
        "top-down ms a query",
        "bottom-up ms a query",
    )
    return Outcome(columns, tuple(astuple(at) for at in found), draw, verdicts)


@dataclass(frozen=True)
class Deployed:
    """Planning and messages of a query with one cluster size and number of streams, by planner; milliseconds."""

    max_cs: int
    levels: int
    streams: int
    top_down_planning: float
    bottom_up_planning: float
    top_down_messages: float
    bottom_up_messages: float
    top_down_plans: float
    bottom_up_plans: float


def measure_time(setting: Setting) -> list[Deployed]:
    """Planning takes processor time; messages between coordinators would add their way over the links."""
    topology = transit_stub(32, setting.seed, LinkRanges(stub=(1.0, 6.0), access=(1.0, 6.0), transit=(1.0, 6.0)))
    queries = 10 if setting.quick else 25
    found = []
    for max_cs in (4, 8, 16):
        hierarchy = build(topology, max_cs)
        for streams in (2, 3, 4):
            ranges = replace(REDUCING, streams=8, fewest=streams, most=streams)
            workload = random_workload(topology, queries, setting.seed, ranges)
            start = workload.landscape(topology)
            planning, messages, plans = [], [], []
            for planner, climbs in ((TopDown(hierarchy), False), (BottomUp(hierarchy), True)):
                run = deploy(planner, start, workload.queries)
                planning.append(1000 * run.seconds / queries)
                messages.append(sum(_message_time(hierarchy, one, climbs) for one in run.decisions) / queries)
                plans.append(run.considered / queries)
            found.append(Deployed(max_cs, hierarchy.height, streams, *planning, *messages, *plans))
    return found


def present_time(found: list[Deployed]) -> Outcome:
    sizes = sorted({at.max_cs for at in found})
    by_size = {size: [at for at in found if at.max_cs == size] for size in sizes}

    def draw(figure: Figure) -> None:
        left, right = figure.subplots(1, 2)
        for number, (size, several) in enumerate(by_size.items()):
            streams = [at.streams for at in several]
            lines = (
                (left, "top-down", "-", [at.top_down_planning for at in several]),
                (left, "bottom-up", "--", [at.bottom_up_planning for at in several]),
                (right, "top-down", "-", [at.top_down_messages for at in several]),
                (right, "bottom-up", "--", [at.bottom_up_messages for at in several]),
            )
            for axes, name, style, values in lines:
                axes.plot(streams, values, marker="o", ls=style, color=f"C{number}", label=f"{name}, max_cs {size}")
        for axes, title in ((left, "planning, ms of processor time"), (right, "messages, ms on the way")):
            axes.set(title=title, xlabel="streams joined", xticks=[2, 3, 4], ylim=(0, None))
        left.legend(fontsize=8)

    total = {s: fmean(at.top_down_planning + at.top_down_messages for at in by_size[s]) for s in sizes}
    climbing = {s: fmean(at.bottom_up_planning + at.bottom_up_messages for at in by_size[s]) for s in sizes}
    both = below(sum(climbing.values()), sum(total.values()))
    planning = below(sum(at.bottom_up_planning for at in found), sum(at.top_down_planning for at in found))
    messages = below(sum(at.bottom_up_messages for at in found), sum(at.top_down_messages for at in found))
    plans = below(sum(at.bottom_up_plans for at in found), sum(at.top_down_plans for at in found))
    verdicts = (
        Verdict(
            "Bottom-Up deploys almost 70 % faster",
            f"{both:.0f} % faster: {planning:.0f} % in planning, {messages:.0f} % in messages; written out one by one "
            f"it would be {plans:.0f} % fewer plans",
            {"70 %": round(both) >= 70},
        ),
        Verdict(
            "Top-Down gets faster as max_cs grows, for it passes fewer levels",
            ", ".join(
                f"max_cs {s} ({by_size[s][0].levels} levels): {total[s]:.1f} ms, of which messages "
                f"{fmean(at.top_down_messages for at in by_size[s]):.1f}"
                for s in sizes
            ),
            {"faster each time": all(total[b] < total[a] for a, b in pairwise(sizes))},
        ),
    )
    columns = (
        "max_cs",
        "levels",
        "streams joined",
        "top-down planning ms",
        "bottom-up planning ms",
        "top-down messages ms",
        "bottom-up messages ms",
        "top-down plans",
        "bottom-up plans",
    )
    note = "deployment time is modelled (planning plus the way of messages), not measured on sites"
    return Outcome(columns, tuple(astuple(at) for at in found), draw, verdicts, (note,))


def _message_time(hierarchy: Hierarchy, decision: Placement, climbs: bool) -> float:
    """Milliseconds a request is on the way: up from the sink, coordinator by coordinator, and down to the last site.

    Top-Down asks the topmost coordinator. Bottom-Up climbs until one sees all that the plan touches.
    """
    sink = hierarchy.topology.position(decision.deployment.sink)
    joins = [join.site for join in joins_of(decision.plan)]
    touched = [*joins, *(leaf.producer.site for leaf in leaves_of(decision.plan))]
    levels = range(1, hierarchy.height + 1)
    top = hierarchy.height
    if climbs:
        seen = (level for level in levels if _sees(hierarchy, level, sink, touched))
        top = next(seen, hierarchy.height)

    def way(site: int) -> float:
        stops = [site, *(hierarchy.cluster_of(level, site).coordinator for level in range(1, top + 1))]
        return sum(hierarchy.topology.distance(a, b) for a, b in pairwise(stops))

    return way(sink) + max((way(site) for site in joins), default=0.0)


def _sees(hierarchy: Hierarchy, level: int, sink: int, sites: list[int]) -> bool:
    cluster = hierarchy.cluster_of(level, sink)
    return all(hierarchy.cluster_of(level, site) is cluster for site in sites)


EXPERIMENTS = (
    Experiment("place-scaling", "Search space by network size (Fig. 15)", measure_scaling, present_scaling),
    Experiment("place-time", "Planning time by query and cluster size (Fig. 16)", measure_time, present_time),
)
