"""The campaign: many hands of drawn schedules, in parallel, in a journal that a later run takes up again.

A hand is one seed and the schedules that Hypothesis draws from it; the seed follows from the seed of the campaign and
the number of the hand, so any hand can be played again. A hand that fails is shrunk to a smallest schedule, which is
printed with everything that was drawn. Invariant: what counts is what ran; schedules that were rejected are not
counted. The journal belongs to one seed and one state of the sources; with another it begins anew.
"""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
import sys
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import asdict, dataclass, field
from pathlib import Path
from time import perf_counter

from hypothesis import HealthCheck, Phase, Verbosity, given, seed, settings
from hypothesis import strategies as st
from hypothesis.internal.conjecture import providers
from hypothesis.internal.constants_ast import Constants

from tests.faults.schedule import run_schedule

HAND = 25
"""Schedules that are drawn from one seed."""
_NO_CONSTANTS = Constants()


@dataclass(frozen=True)
class Outcome:
    """What a hand gave."""

    hand: int
    schedules: int
    seconds: float
    failure: str | None = None
    kinds: dict[str, int] = field(default_factory=dict)


def play(campaign: int, hand: int, schedules: int = HAND, *, loudly: bool = False, shrinks: bool = True) -> Outcome:
    """Plays one hand; loudly, it tells of every schedule that it draws. Shrinking a failure takes some minutes."""
    # Hypothesis also draws constants of the sources that happen to be loaded; a hand must not depend on that.
    setattr(providers, "_get_local_constants", lambda: _NO_CONSTANTS)  # noqa: B010
    done = 0

    @seed(campaign * 1_000_003 + hand)
    @settings(
        max_examples=schedules,
        database=None,
        deadline=None,
        derandomize=False,
        phases=(Phase.generate, Phase.shrink) if shrinks else (Phase.generate,),
        report_multiple_bugs=False,
        suppress_health_check=list(HealthCheck),
        verbosity=Verbosity.verbose if loudly else Verbosity.normal,
    )
    @given(data=st.data())
    def drawn(data: st.DataObject) -> None:
        nonlocal done
        run_schedule(data)
        done += 1

    began = perf_counter()
    try:
        drawn()
    except Exception as error:
        text = "".join(traceback.format_exception(error))
        return Outcome(hand, done, perf_counter() - began, text)
    return Outcome(hand, done, perf_counter() - began)


@dataclass(frozen=True)
class Campaign:
    """How much to play, and where the journal is."""

    schedules: int
    seed: int
    workers: int
    journal: Path

    def played(self) -> dict[int, Outcome]:
        """The hands in the journal that passed; those that failed are played again."""
        if not self.journal.exists():
            return {}
        lines = self.journal.read_text().splitlines()
        if not lines or json.loads(lines[0]) != self._title():
            return {}
        outcomes: dict[int, Outcome] = {}
        for line in lines[1:]:
            try:
                outcome = Outcome(**json.loads(line))
            except ValueError:  # cut short by the end of an earlier run
                continue
            outcomes[outcome.hand] = outcome
        return {hand: outcome for hand, outcome in outcomes.items() if outcome.failure is None}

    def outcomes(self, before: dict[int, Outcome], one: Callable[[int, int], Outcome] = play) -> Iterator[Outcome]:
        """Plays hands until enough schedules have run, and writes each into the journal."""
        if not before:
            self.journal.parent.mkdir(parents=True, exist_ok=True)
            self.journal.write_text(json.dumps(self._title()) + "\n")
        missing = self.schedules - sum(outcome.schedules for outcome in before.values())
        hands = (hand for hand in range(sys.maxsize) if hand not in before)
        context = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(self.workers, mp_context=context) as pool, self.journal.open("a") as journal:
            journal.write("\n" if before else "")  # after a line that was cut short
            under_way: set[Future[Outcome]] = set()
            while missing > 0 or under_way:
                while missing - HAND * len(under_way) > 0 and len(under_way) < self.workers:
                    under_way.add(pool.submit(one, self.seed, next(hands)))
                finished, under_way = wait(under_way, return_when=FIRST_COMPLETED)
                for each in finished:
                    outcome = each.result()
                    # A hand whose schedules were all rejected must not keep the campaign from its end.
                    missing -= max(1, outcome.schedules)
                    journal.write(json.dumps(asdict(outcome)) + "\n")
                    journal.flush()
                    yield outcome

    def _title(self) -> dict[str, object]:
        return {"seed": self.seed, "hand": HAND, "sources": _digest()}


def run(campaign: Campaign, say: Callable[[str], None], one: Callable[[int, int], Outcome] = play) -> int:
    """Runs a campaign, tells how it goes on, and returns the number of hands that failed."""
    before = campaign.played()
    schedules = sum(outcome.schedules for outcome in before.values())
    if before:
        say(f"{schedules:,} schedules of {campaign.journal} passed already")
    began, failed, ran = perf_counter(), Counter[str](), 0
    for outcome in campaign.outcomes(before, one):
        ran += outcome.schedules
        schedules += outcome.schedules
        if outcome.failure is not None:
            failed[outcome.failure.strip().splitlines()[-1][:200]] += 1
            say(f"hand {outcome.hand} FAILED:\n{outcome.failure}")
            say(f"to play it again: {_command(campaign.seed, outcome.hand)}")
        pace = ran / (perf_counter() - began)
        left = max(0, campaign.schedules - schedules) / pace if pace else 0.0
        say(
            f"{min(schedules, campaign.schedules):>7,} of {campaign.schedules:,} schedules · "
            f"{failed.total()} hands failed · {pace:.1f}/s · {left / 60:.0f} min left"
        )
    return failed.total()


def _command(campaign: int, hand: int) -> str:
    return f"python -m tests.faults --seed {campaign} --hand {hand}"


def _digest() -> str:
    """Names the state of the sources: answers of other sources say nothing about these."""
    root = Path(__file__).parents[2]
    digest = hashlib.sha256()
    for path in sorted([*root.glob("src/anabranch/**/*.py"), *root.glob("tests/faults/*.py")]):
        digest.update(path.relative_to(root).as_posix().encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:16]


def cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
