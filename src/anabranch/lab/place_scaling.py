"""`place-scaling` (Fig. 15, and past it) and `place-time` (Fig. 16's shape): how search and time grow."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

from matplotlib.figure import Figure

from anabranch.lab.place_common import MAX_CS, REDUCING, below
from anabranch.lab.place_workload import random_workload
from anabranch.lab.registry import Cell, Experiment, Outcome, Setting, Verdict, misses
from anabranch.place.bottom_up import BottomUp
from anabranch.place.exhaustive import beta, lemma_1
from anabranch.place.generate import LinkRanges, transit_stub
from anabranch.place.hierarchy import Hierarchy, build
from anabranch.place.planner import Decision, joins_of, leaves_of
from anabranch.place.run import deploy
from anabranch.place.top_down import TopDown

STREAMS_EACH = 4


def scaling(setting: Setting) -> Outcome:
    sizes = (64, 128, 256) if setting.quick else (64, 128, 256, 512, 1024, 10_000)
    queries = 20 if setting.quick else 100
    rows: list[tuple[Cell, ...]] = []
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
        bound = beta(STREAMS_EACH, size, MAX_CS, hierarchy.height) * everything
        rows.append(
            (
                size,
                hierarchy.height,
                everything,
                bound,
                top_down.considered / queries,
                bottom_up.considered / queries,
                1000 * top_down.seconds / queries,
                1000 * bottom_up.seconds / queries,
            )
        )

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        labels = ("exhaustive (Lemma 1)", "bound (Theorems 2, 4)", "top-down", "bottom-up")
        for column, label in enumerate(labels, start=2):
            axes.plot([row[0] for row in rows], [row[column] for row in rows], marker="o", label=label)
        axes.set(
            title="deployments considered for a query over four streams", xlabel="sites", xscale="log", yscale="log"
        )
        axes.legend()

    shares = [100.0 * float(row[4]) / float(row[2]) for row in rows]
    fewer = sum(below(float(row[5]), float(row[4])) for row in rows) / len(rows)
    largest = rows[-1]
    return Outcome(
        (
            "sites",
            "levels",
            "exhaustive (Lemma 1)",
            "bound (beta)",
            "top-down plans",
            "bottom-up plans",
            "top-down ms a query",
            "bottom-up ms a query",
        ),
        tuple(rows),
        draw,
        (
            Verdict(
                "both search less than 1 % of the space",
                f"Top-Down at most {max(shares):.2g} %{misses({'1 %': max(shares) < 1})}",
            ),
            Verdict(
                "Bottom-Up searches 45 % less than Top-Down a query",
                f"{fewer:.0f} % less on average{misses({'45 %': round(fewer) >= 45})}",
            ),
            Verdict(
                "networks up to about 1,000 nodes",
                f"{largest[0]} sites, {largest[6]:.0f} ms a query (Top-Down), {largest[7]:.0f} ms (Bottom-Up)",
            ),
        ),
    )


def time(setting: Setting) -> Outcome:
    """Planning takes processor time here; what messages between coordinators would add is their way over the links."""
    topology = transit_stub(32, setting.seed, LinkRanges(stub=(1.0, 6.0), access=(1.0, 6.0), transit=(1.0, 6.0)))
    queries = 10 if setting.quick else 25
    rows: list[tuple[Cell, ...]] = []
    sizes = (4, 8, 16)
    for max_cs in sizes:
        hierarchy = build(topology, max_cs)
        for streams in (2, 3, 4):
            ranges = replace(REDUCING, streams=8, fewest=streams, most=streams)
            workload = random_workload(topology, queries, setting.seed, ranges)
            start = workload.landscape(topology)
            planning, messages, plans = [], [], []
            for planner in (TopDown(hierarchy), BottomUp(hierarchy)):
                run = deploy(planner, start, workload.queries)
                climbs = isinstance(planner, BottomUp)
                planning.append(1000 * run.seconds / queries)
                messages.append(sum(_message_time(hierarchy, one, climbs) for one in run.decisions) / queries)
                plans.append(run.considered / queries)
            rows.append((max_cs, hierarchy.height, streams, *planning, *messages, *plans))

    def of(max_cs: int, column: int) -> list[float]:
        return [float(row[column]) for row in rows if row[0] == max_cs]

    def draw(figure: Figure) -> None:
        left, right = figure.subplots(1, 2)
        for axes, first, title in ((left, 3, "planning, ms of processor time"), (right, 5, "messages, ms on the way")):
            for number, max_cs in enumerate(sizes):
                for column, name, style in ((first, "top-down", "-"), (first + 1, "bottom-up", "--")):
                    label = f"{name}, max_cs {max_cs}"
                    axes.plot((2, 3, 4), of(max_cs, column), marker="o", ls=style, color=f"C{number}", label=label)
            axes.set(title=title, xlabel="streams joined", xticks=[2, 3, 4], ylim=(0, None))
        left.legend(fontsize=8)

    total = {s: sum(a + b for a, b in zip(of(s, 3), of(s, 5), strict=True)) / 3 for s in sizes}
    climbing = {s: sum(a + b for a, b in zip(of(s, 4), of(s, 6), strict=True)) / 3 for s in sizes}
    faster = [
        below(sum(sum(of(s, column + 1)) for s in sizes), sum(sum(of(s, column)) for s in sizes))
        for column in (3, 5, 7)
    ]
    both = below(sum(climbing.values()), sum(total.values()))
    return Outcome(
        (
            "max_cs",
            "levels",
            "streams joined",
            "top-down planning ms",
            "bottom-up planning ms",
            "top-down messages ms",
            "bottom-up messages ms",
            "top-down plans",
            "bottom-up plans",
        ),
        tuple(rows),
        draw,
        (
            Verdict(
                "Bottom-Up deploys almost 70 % faster",
                f"{both:.0f} % faster: {faster[0]:.0f} % in planning, {faster[1]:.0f} % in messages; written out one "
                f"by one it would be {faster[2]:.0f} % fewer plans{misses({'70 %': round(both) >= 70})}",
            ),
            Verdict(
                "Top-Down gets faster as max_cs grows, for it passes fewer levels",
                ", ".join(
                    f"max_cs {s} ({next(row[1] for row in rows if row[0] == s)} levels): {total[s]:.1f} ms, of which "
                    f"messages {sum(of(s, 5)) / 3:.1f}"
                    for s in sizes
                )
                + misses({"faster each time": all(total[b] < total[a] for a, b in pairwise(sizes))}),
            ),
        ),
    )


def _message_time(hierarchy: Hierarchy, decision: Decision, climbs: bool) -> float:
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
    Experiment("place-scaling", "Search space by network size (Fig. 15)", scaling),
    Experiment("place-time", "Planning time by query and cluster size (Fig. 16)", time),
)
