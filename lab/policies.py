"""Policies under change (Zhu 2006, 26.1): when to look for a better plan, and whether to take it.

The dissertation asks how strategies of timing compare where streams change at random, periodically and in bursts, and
warns of thrashing. Streams that change in these ways, at several mean intervals (`policy_workloads`), go through the
product's loop with other settings (`policy_runs`). Work is counted, so a busy machine changes nothing.

Bars were set before the first run, but for that of bursts: rent or buy promises twice the work of hindsight at worst; a
quarter more on average is ours; those against a plan that stays are the bars of the regret suite.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import mean

from matplotlib.figure import Figure

from lab.policy_runs import AT_ONCE, HINDSIGHT, POLICIES, PRODUCT, ROOM, STAY, Compared, compared
from lab.policy_workloads import CHANGES, Pattern, patterns
from lab.registry import Cell, Experiment, Outcome, Setting, Verdict
from lab.regret_workloads import Size

FULL, QUICK = Size(batches=400, rows=3_000), Size(batches=120, rows=2_000)
FULL_INTERVALS, QUICK_INTERVALS = (0.5, 2.0, 8.0), (0.5, 3.0)
ALL_INTERVALS = tuple(sorted({*QUICK_INTERVALS, *FULL_INTERVALS}))
TWICE, QUARTER = 2.0, 1.25
"""Work over that of the best course in hindsight, at worst and on average."""
MEAN, WORST = 1.05, 1.15
"""Work over that of the best plan that stays."""
STILL = 1.01
LESS = 0.95
"""What adapting is to need of staying where phases are long."""
COLUMNS = (
    "workload",
    "policy",
    "work",
    "over staying",
    "over best static",
    "over hindsight",
    "changes",
    "migrating",
    "searches",
)


@dataclass(frozen=True)
class Found:
    """The runs of each pattern."""

    patterns: tuple[Pattern, ...]
    compared: tuple[Compared, ...]

    def at(self, interval: float) -> list[Compared]:
        """The runs of all kinds of change at one interval."""
        pairs = zip(self.patterns, self.compared, strict=True)
        return [each for pattern, each in pairs if pattern.change != "never" and pattern.windows == interval]

    @property
    def intervals(self) -> list[float]:
        return sorted({pattern.windows for pattern in self.patterns if pattern.change != "never"})


def measure(setting: Setting) -> Found:
    """All patterns, or those that are named."""
    size = QUICK if setting.quick else FULL
    usual = QUICK_INTERVALS if setting.quick else FULL_INTERVALS
    chosen = tuple(each for each in patterns(ALL_INTERVALS) if each.name in setting.only) or patterns(usual)
    several = [each.workload(setting.seed, size.batches) for each in chosen]
    return Found(
        chosen, tuple(compared(each, list(each.batches(setting.seed, size))) for each in setting.each(several))
    )


def cases() -> tuple[str, ...]:
    """The names of all patterns, of quick and full runs."""
    return tuple(each.name for each in patterns(ALL_INTERVALS))


def present(found: Found) -> Outcome:
    rows = tuple(_row(each, policy) for each in found.compared for policy in (STAY, *POLICIES, HINDSIGHT))
    notes = (
        "work is counted; hindsight may change its plan after any batch, at the price of the rows that it recomputes",
        "migrating is the share of the work that only changes of plan needed",
        "at once: the best plan as soon as it passes the gate, whose 600 s are the horizon; the others weigh all plans",
        f"memory-driven policies have {ROOM:g} times the state of the first plan; rows never wait",
    )
    return Outcome(COLUMNS, rows, lambda figure: _draw(figure, found), tuple(_verdicts(found)), notes)


def _verdicts(found: Found) -> list[Verdict]:
    several = found.compared
    over = {policy: [each.over_hindsight(policy) for each in several] for policy in (STAY, *POLICIES)}
    means = {policy: mean(values) for policy, values in over.items()}
    worst = max(several, key=lambda each: each.over_hindsight(PRODUCT))
    regrets = {each.workload: each.policies[PRODUCT].work / each.best_static for each in several}
    behind = max(regrets, key=lambda name: regrets[name])
    inexact = [each.workload for each in several if not each.is_exact]
    verdicts = [
        Verdict(
            f"rent or buy: at most {TWICE:g} times the work of hindsight at worst, {QUARTER:g} on average (own bar)",
            f"{means[PRODUCT]:.2f} on average, {worst.over_hindsight(PRODUCT):.2f} at worst ({worst.workload})",
            {
                f"{TWICE:g} at worst": worst.over_hindsight(PRODUCT) <= TWICE,
                f"{QUARTER:g} on average": means[PRODUCT] <= QUARTER,
            },
        ),
        Verdict(
            f"at most {MEAN:g} of the best plan that stays on average, {WORST:g} at worst (our own bar)",
            f"{mean(regrets.values()):.3f} on average, {regrets[behind]:.3f} at worst ({behind})",
            {f"{MEAN:g} on average": mean(regrets.values()) <= MEAN, f"{WORST:g} at worst": regrets[behind] <= WORST},
        ),
        Verdict(
            "over all kinds of change, no other policy has less work (our own bar)",
            ", ".join(f"{policy} {means[policy]:.2f}" for policy in sorted(means, key=lambda name: means[name]))
            + " times hindsight on average",
            {f"{policy}": means[PRODUCT] <= means[policy] for policy in means if policy != PRODUCT},
        ),
        Verdict(
            "all runs of a workload have the same results",
            f"results differ in {', '.join(inexact)}" if inexact else f"in {len(several)} of {len(several)} workloads",
            {"the same results": not inexact},
        ),
    ]
    return [*verdicts, *_thrashing(found), *_long_phases(found), *_bursts(found), *_never(found)]


def _thrashing(found: Found) -> list[Verdict]:
    if not found.intervals:
        return []
    short = found.at(found.intervals[0])
    at_once, product = (mean(_over(each, policy, STAY) for each in short) for policy in (AT_ONCE, PRODUCT))
    changes = [sum(each.policies[policy].changes for each in short) for policy in (AT_ONCE, PRODUCT)]
    return [
        Verdict(
            "optimizing too often, the overhead overshadows the gain: thrashing (26.1.1)",
            f"with phases of {found.intervals[0]:g} W on average, following at once takes {at_once:.2f} times the work "
            f"of staying, with {changes[0]} changes; the product {product:.2f} times, with {changes[1]}",
            {"at once is behind staying": at_once > 1.0, "the product is not behind at once": product <= at_once},
        )
    ]


def _long_phases(found: Found) -> list[Verdict]:
    if not found.intervals:
        return []
    long = [each for each in found.at(found.intervals[-1]) if not each.workload.startswith("bursts")]
    return _against_staying(
        f"where phases are long, adapting takes at most {LESS:g} of the work of staying (our own bar)", long, LESS
    )


def _bursts(found: Found) -> list[Verdict]:
    bursty = [each for each in found.compared if each.workload.startswith("bursts")]
    return _against_staying(f"under bursts, adapting takes at most {MEAN:g} of the work of staying", bursty, MEAN)


def _against_staying(claim: str, several: Sequence[Compared], most: float) -> list[Verdict]:
    shares = {each.workload: _over(each, PRODUCT, STAY) for each in several}
    here = ", ".join(f"{name} {value:.2f}" for name, value in shares.items())
    return [Verdict(claim, here, {name: value <= most for name, value in shares.items()})] if shares else []


def _never(found: Found) -> list[Verdict]:
    still = [each for pattern, each in zip(found.patterns, found.compared, strict=True) if pattern.change == "never"]
    return [
        Verdict(
            "where nothing changes, no policy costs more than one per cent (our own bar)",
            ", ".join(f"{policy} {_over(each, policy, STAY):.3f}" for policy in POLICIES),
            {policy: _over(each, policy, STAY) <= STILL for policy in POLICIES},
        )
        for each in still
    ]


def _over(each: Compared, policy: str, other: str) -> float:
    return each.policies[policy].work / each.policies[other].work


def _row(each: Compared, policy: str) -> tuple[Cell, ...]:
    course = each.policies[policy]
    return (
        each.workload,
        policy,
        course.work,
        _over(each, policy, STAY),
        course.work / each.best_static,
        each.over_hindsight(policy),
        course.changes,
        course.migrating / course.work,
        course.searches,
    )


def _draw(figure: Figure, found: Found) -> None:
    kinds = [change for change in CHANGES[1:] if any(each.change == change for each in found.patterns)] or ["never"]
    panels = figure.subplots(1, len(kinds), sharey=True, squeeze=False)[0]
    for axes, kind in zip(panels, kinds, strict=True):
        pairs = [(a, b) for a, b in zip(found.patterns, found.compared, strict=True) if a.change == kind]
        for policy in (STAY, *POLICIES):
            values = [each.over_hindsight(policy) for _, each in pairs]
            axes.plot(range(len(values)), values, "o-", label=policy)
        axes.axhline(1.0, color="black", linewidth=0.8)
        axes.set(title=kind, xlabel="mean interval in windows")
        axes.set_xticks(range(len(pairs)), [f"{pattern.windows:g}" for pattern, _ in pairs])
    panels[0].set_ylabel("work over that of hindsight")
    panels[-1].legend(fontsize=8)


EXPERIMENTS: Sequence[Experiment[Found]] = (
    Experiment(
        "policies", "Policies under random, periodic and bursty change (Zhu 2006, 26.1)", measure, present, cases
    ),
)
