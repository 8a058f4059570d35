"""The headline of Zhu 2006, Part III, with the product deciding: plan changes and moves, alone and together, on Spark.

Two executors of one core; from the second batch on one slot has four fifths of the groups, and later another stream
becomes the slow one, so that another join order is much cheaper. Only the first skew is scheduled: `adapt` and
`balance: auto` find the answer to both by their own measurements. Joins are heavy enough that slots are most of a
trigger. Figures are those of the last batches, and of the whole time since the streams changed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from matplotlib.figure import Figure

from lab.balance_spark import BALANCING, LOCAL, MASTER, NOTHING, ClusterRun, Task, _same, run_all
from lab.registry import Cell, Experiment, Outcome, Setting, Verdict

WINDOW = 4
CHANGED = 8
"""The batch from which another stream is the slow one."""
LAST = 6
"""Batches that count as the end."""
PAPER = {"LM": 2.0, "PTLB": 2.0, "MSLB": 1.8, "LM+PTLB": 3.3, "LM+MSLB": 2.7}
TWICE = 2.0


@dataclass(frozen=True)
class Gains:
    """What a setting gained over nothing, and when the batches were short again."""

    end: float
    """Rows a second of whole triggers in the last batches."""
    since: float
    """The same since the change."""
    slots: float
    """CPU time of the slowest slot in the last batches."""
    recovered: int
    """Batches from the change until triggers stay below 1.25 times those of the end."""


def measure(setting: Setting) -> dict[str, ClusterRun]:
    fast, batches = (20_000.0, 24) if setting.quick else (40_000.0, 60)
    slow = fast / 1000

    def drifting(second: float) -> dict[str, float]:
        """The last stream becomes slow and, a window later, the first one fast: all three are never fast together."""
        return {
            "a": slow if second < CHANGED else fast,
            "b": fast,
            "c": fast if second < CHANGED - WINDOW - 1 else slow,
        }

    task = Task(batches, WINDOW, drifting, round(fast / 8))
    changes: dict[str, Mapping[str, object]] = {NOTHING: {}, LOCAL: {"adapt": {}}}
    for name, strategy in BALANCING.items():
        changes[name] = {"balance": {"mode": "auto", "strategy": strategy}}
        changes[f"{LOCAL}+{name}"] = {"adapt": {}, **changes[name]}
    return run_all({"": (task, changes)}, setting.seed)[""]


def gains(base: ClusterRun, run: ClusterRun) -> Gains:
    last = len(run.triggers) - LAST
    end = run.wall(last) / LAST
    slow = [number for number, spent in enumerate(run.triggers) if spent > 1.25 * end and number >= CHANGED]
    return Gains(
        base.wall(last) / run.wall(last),
        base.wall(CHANGED) / run.wall(CHANGED),
        base.slowest(last) / run.slowest(last),
        max(slow, default=CHANGED - 1) + 1 - CHANGED,
    )


def present(found: Mapping[str, ClusterRun]) -> Outcome:
    base = found[NOTHING]
    each = {name: gains(base, run) for name, run in found.items()}
    rows: list[tuple[Cell, ...]] = [
        (name, *(round(value, 2) for value in (gain.end, gain.since, gain.slots)), gain.recovered, found[name].plan)
        for name, gain in each.items()
    ]
    last = len(base.triggers) - LAST
    share = base.slowest(last) / base.wall(last)
    both = [f"{LOCAL}+{name}" for name in BALANCING]
    verdicts = (
        Verdict(
            f"results over No-Adapt: {', '.join(f'{name} {value:g}' for name, value in PAPER.items())} (Section 23.2)",
            "rows/s of whole triggers at the end, over No-Adapt: "
            + ", ".join(f"{name} {each[name].end:.2f}" for name in PAPER)
            + f"; CPU of the slowest slot is {share:.0%} of No-Adapt's triggers",
            {
                **{f"both at least twice: {name}": each[name].end >= TWICE for name in both},
                "both beat either": all(
                    each[f"{LOCAL}+{name}"].end > max(each[name].end, each[LOCAL].end) for name in BALANCING
                ),
                "slots are most of a trigger": share > 0.5,
            },
        ),
        Verdict(
            "the plan changes and groups move by themselves (our own bar)",
            f"plans at the end: {', '.join(sorted({run.plan for run in found.values()}))}",
            {
                "the plan changed": all(found[name].plan != base.plan for name in (LOCAL, *both)),
                "groups moved": all(found[name].moves for name in (*BALANCING, *both)),
            },
        ),
        _same(found),
    )
    columns = ("setting", "rows/s, end", "rows/s, since the change", "slowest slot, end", "batches to recover", "plan")

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        for name, run in found.items():
            axes.plot(run.triggers, label=name)
        axes.set(xlabel="batch", ylabel="s of a trigger")
        axes.legend()

    return Outcome(columns, tuple(rows), draw, verdicts, (f"{MASTER}; nothing but the first skew is scheduled",))


SPARK_VARIANTS = (
    Experiment("balance-deciding-spark", "Part III with the product deciding (Zhu 2006, 23.2)", measure, present),
)
