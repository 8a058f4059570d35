"""A key with half of the rows on eight slots: what splitting it wins. No paper of ours has this experiment.

The same rows run twice on a virtual clock with eight servers: groups that may move as `balance: auto` moves them but no
key that is split, and with keys that are split as well. A batch ends with its slowest server.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from matplotlib.figure import Figure

from anabranch.adapt.balancing import Balance
from anabranch.adapt.schedule import split_over
from anabranch.plan.text import parse
from anabranch.run.local import LocalHost
from lab.balance_common import Floats, Servers, batches, engine_units, keyed_query
from lab.registry import Cell, Experiment, Outcome, Setting, Verdict

SLOTS = 8
HOT = 0
WINDOW = 2.0


@dataclass(frozen=True)
class Run:
    """One run: for each batch what the slowest and the average server took, and the results in all."""

    slowest: tuple[float, ...]
    mean: tuple[float, ...]
    results: int

    @property
    def skew(self) -> float:
        """The slowest server over the average, in the second half of the run."""
        half = len(self.slowest) // 2
        return float(np.sum(self.slowest[half:]) / np.sum(self.mean[half:]))

    @property
    def length(self) -> float:
        """Seconds of the slowest servers in the second half of the run."""
        return float(np.sum(self.slowest[len(self.slowest) // 2 :]))


def measure(setting: Setting) -> dict[str, Run]:
    rate, seconds = (300.0, 12.0) if setting.quick else (1000.0, 20.0)
    return {name: _run(name, rate, seconds, setting.seed) for name in ("one slot", "split")}


def _keys() -> Floats:
    """One key has half of the rows, 4,000 others share the rest."""
    keys = np.full(4001, 0.5 / 4000)
    keys[HOT] = 0.5
    return keys


def _run(name: str, rate: float, seconds: float, seed: int) -> Run:
    query = keyed_query("ab", WINDOW)
    host = LocalHost(query, parse("(a b)"), slots=SLOTS, balance=Balance("manual"))
    if name == "split":
        host.spread(split_over(host.partitioning, "k0", HOT, SLOTS))
    servers = Servers(host, 1.0, engine_units())
    slowest, mean, results = [], [], 0
    for arrived, tables in batches(
        np.random.default_rng(seed), seconds, 1.0, lambda _: dict.fromkeys("ab", rate), _keys()
    ):
        costs = servers.step(arrived, tables)
        slowest.append(float(costs.max()))
        mean.append(float(costs.mean()))
        results += host.statistics.rows_out
    return Run(tuple(slowest), tuple(mean), results)


def present(found: dict[str, Run]) -> Outcome:
    before, after = found["one slot"], found["split"]
    rows: list[tuple[Cell, ...]] = [
        (name, batch, run.slowest[batch], run.mean[batch])
        for name, run in found.items()
        for batch in range(len(run.mean))
    ]
    faster = before.length / after.length
    extra = float(np.sum(after.mean) / np.sum(before.mean)) - 1
    verdicts = (
        Verdict(
            "(own bar) eight slots, a key with half of the rows: the slowest slot takes at most 1.3 times the average",
            f"{after.skew:.2f} times; with the key in one slot {before.skew:.2f} times",
            {"at most 1.3": after.skew <= 1.3, "not even before": before.skew >= 2.0},
        ),
        Verdict(
            "(own bar) batches end sooner than with the key in one slot, and the results are the same",
            f"{faster:.1f} times as soon, for {extra:+.1%} of work in all; {after.results:,} results",
            {"three times as soon": faster >= 3.0, "the same results": after.results == before.results},
        ),
    )
    note = f"virtual clock, {SLOTS} servers charged with the engine's unit costs for what its slots did"
    columns = ("setting", "batch", "slowest s", "mean s")
    return Outcome(columns, tuple(rows), lambda figure: _draw(figure, found), verdicts, (note,))


def _draw(figure: Figure, found: dict[str, Run]) -> None:
    axes = figure.subplots()
    for name, run in found.items():
        axes.plot([1e3 * each for each in run.slowest], "o-", label=f"{name}: slowest server")
        axes.plot([1e3 * each for each in run.mean], ":", label=f"{name}: average server")
    axes.set(xlabel="batch", ylabel="ms of one core")
    axes.legend()


EXPERIMENTS = (Experiment("balance-heavy-key", "A key with half of the rows on eight slots", measure, present),)
