"""`place-scaling` (Fig. 15, and past it) and `place-time` (Fig. 16's shape): how search and time grow."""

from __future__ import annotations

from matplotlib.figure import Figure

from anabranch.lab.place_common import MAX_CS, below
from anabranch.lab.registry import Cell, Experiment, Outcome, Setting, Verdict
from anabranch.place.bottom_up import BottomUp
from anabranch.place.exhaustive import beta, lemma_1
from anabranch.place.generate import transit_stub
from anabranch.place.hierarchy import build
from anabranch.place.run import deploy
from anabranch.place.top_down import TopDown
from anabranch.place.workload import Ranges, random_workload

STREAMS_EACH = 4


def scaling(setting: Setting) -> Outcome:
    sizes = (64, 128, 256) if setting.quick else (64, 128, 256, 512, 1024, 10_000)
    queries = 20 if setting.quick else 100
    rows: list[tuple[Cell, ...]] = []
    for size in sizes:
        topology = transit_stub(size, setting.seed)
        hierarchy = build(topology, MAX_CS)
        workload = random_workload(topology, queries, setting.seed, Ranges(fewest=STREAMS_EACH, most=STREAMS_EACH))
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
            Verdict("both search less than 1 % of the space", f"Top-Down at most {max(shares):.2g} %"),
            Verdict("Bottom-Up searches 45 % less than Top-Down a query", f"{fewer:.0f} % less on average"),
            Verdict(
                "networks up to about 1,000 nodes",
                f"{largest[0]} sites, {largest[6]:.0f} ms a query (Top-Down), {largest[7]:.0f} ms (Bottom-Up)",
            ),
        ),
    )


def time(setting: Setting) -> Outcome:
    topology = transit_stub(32, setting.seed)
    queries = 10 if setting.quick else 25
    rows: list[tuple[Cell, ...]] = []
    sizes = (4, 8, 16)
    for max_cs in sizes:
        hierarchy = build(topology, max_cs)
        for streams in (2, 3, 4):
            ranges = Ranges(streams=8, fewest=streams, most=streams)
            workload = random_workload(topology, queries, setting.seed, ranges)
            start = workload.landscape(topology)
            top_down = deploy(TopDown(hierarchy), start, workload.queries)
            bottom_up = deploy(BottomUp(hierarchy), start, workload.queries)
            rows.append(
                (
                    max_cs,
                    streams,
                    1000 * top_down.seconds / queries,
                    1000 * bottom_up.seconds / queries,
                    hierarchy.height,
                )
            )

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        for max_cs in sizes:
            of = [row for row in rows if row[0] == max_cs]
            axes.plot([row[1] for row in of], [row[2] for row in of], marker="o", label=f"top-down, max_cs {max_cs}")
            axes.plot([row[1] for row in of], [row[3] for row in of], marker="s", ls="--", label=f"bottom-up, {max_cs}")
        axes.set(title="planning time of a query, 32 sites", xlabel="streams joined", ylabel="ms", xticks=[2, 3, 4])
        axes.legend()

    faster = below(sum(float(row[3]) for row in rows), sum(float(row[2]) for row in rows))
    by_size = {s: sum(float(row[2]) for row in rows if row[0] == s) for s in sizes}
    return Outcome(
        ("max_cs", "streams joined", "top-down ms", "bottom-up ms", "levels"),
        tuple(rows),
        draw,
        (
            Verdict(
                "Bottom-Up deploys almost 70 % faster (messages between real coordinators)",
                f"planning alone, in one process: {faster:.0f} % faster",
            ),
            Verdict(
                "Top-Down gets faster as max_cs grows",
                ", ".join(f"max_cs {s}: {by_size[s] / 3:.1f} ms" for s in sizes),
            ),
        ),
    )


EXPERIMENTS = (
    Experiment("place-scaling", "Search space by network size (Fig. 15)", scaling),
    Experiment("place-time", "Planning time by query and cluster size (Fig. 16)", time),
)
