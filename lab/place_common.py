"""The common parts of the placement experiments: the network, workloads through several planners, and lines to draw."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from matplotlib.figure import Figure

from anabranch.place.planner import Planner
from anabranch.place.run import Run, deploy
from anabranch.place.topology import Topology
from lab.place_workload import Ranges, Workload

STANDARD_SIZE = 132
"""One transit domain of four nodes, four stubs of eight on each; the paper calls it a 128-node network."""

MAX_CS = 32

RECORD_BYTES = 100.0
"""The paper's assumption for the airline; taken for its random workload too."""

REDUCING = Ranges(selectivity=(0.0005, 0.005), record_bytes=RECORD_BYTES)
"""The standard random workload. The paper leaves rates and selectivities open; here most joins have fewer results than
either input has rows, which is why one joins early. `EVEN` joins have about as many, `GROWING` ones more."""

EVEN = replace(REDUCING, selectivity=(0.005, 0.05))
GROWING = replace(REDUCING, selectivity=(0.01, 0.1))


@dataclass(frozen=True)
class Total:
    """One planner over several workloads."""

    planner: str
    cost: float
    considered: int
    joins: int
    filters: int
    seconds: float
    cumulative: tuple[float, ...]
    """The cost after each query, over all workloads."""


def through(
    planners: Callable[[Topology], Sequence[tuple[str, Planner]]], cases: Sequence[tuple[Topology, Workload]]
) -> dict[str, Total]:
    """Every planner over every workload, each from an empty network."""
    runs: dict[str, list[Run]] = {}
    for topology, workload in cases:
        for label, planner in planners(topology):
            runs.setdefault(label, []).append(deploy(planner, workload.landscape(topology), workload.queries))
    return {label: _total(label, several) for label, several in runs.items()}


def _total(label: str, runs: list[Run]) -> Total:
    length = min(len(run.decisions) for run in runs)
    cumulative = tuple(sum(run.decisions[i].landscape.cost for run in runs) for i in range(length))
    return Total(
        label,
        sum(run.landscape.cost for run in runs),
        sum(run.considered for run in runs),
        sum(run.joins for run in runs),
        sum(run.filters for run in runs),
        sum(run.seconds for run in runs),
        cumulative,
    )


def above(cost: float, base: float) -> float:
    """By how many per cent a cost is above another."""
    return 100.0 * (cost / base - 1.0)


def below(cost: float, base: float) -> float:
    """By how many per cent a cost is below another."""
    return 100.0 * (1.0 - cost / base)


def cumulative_lines(totals: dict[str, Total], title: str, is_log: bool = False) -> Callable[[Figure], None]:
    """Draws the cost as queries arrive, one line a planner."""

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        for number, (label, total) in enumerate(totals.items()):
            axes.plot(
                range(1, len(total.cumulative) + 1), total.cumulative, label=label, ls=("-", "--", ":")[number // 5]
            )
        axes.set(title=title, xlabel="queries deployed", ylabel="network usage (bytes/s × link cost)")
        if is_log:
            axes.set_yscale("log")
        axes.legend(fontsize=8)

    return draw
