"""Decides, while a query runs, where its dear filters are checked: before rows are sent, or by the joins.

The places are priced as before the first start (`optimize/filter_places`), by what is measured: how many rows reach
each filter and pass it, what a check takes, the rates behind the cheaper filters, and the selectivities of the joins.
All of this is known in the same terms wherever the filters are now (of the rows *before* the dear filters), so what was
learnt stays true after a move.

A move is a migration that ends Spark's query and starts it again with other rows in its checkpoint. So it passes the
gate of any other change, and is weighed as a bet on how long the streams stay as they are (`bets`): filters that would
go back and forth stay, and where the streams never rest they are where they cost least on average.

Law: a decision changes nothing by itself. It is a wish (`wanted`) that the host takes up between two batches, or
refuses; until then nothing else is decided. No batch waits for prices that take long to work out: with many relations
they are searched beside the batches, and the outcome counts when a later batch ends, if the streams are still alike.

Limit: a query that runs alone and adapts as a whole; not while a mesh runs. CPU is what counts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import isfinite
from typing import TypeAlias

from anabranch.adapt.bets import Bet, weighed
from anabranch.adapt.calm import Counts, are_alike, counts
from anabranch.adapt.facts import BatchFacts
from anabranch.adapt.gate import judge
from anabranch.adapt.knowledge import Knowledge
from anabranch.adapt.loop import SETTLED
from anabranch.adapt.records import FiltersDecided
from anabranch.adapt.searches import Search, Searches
from anabranch.adapt.settings import Settings
from anabranch.adapt.stability import CHANGED, Stability
from anabranch.adapt.weighing import IN_LINE
from anabranch.cost.resources import Resources
from anabranch.errors import AnabranchError
from anabranch.migrate.strategies.strategy import Price
from anabranch.optimize.choice import Choice
from anabranch.optimize.filter_places import Bytes, Compile, Pricing, place_filters
from anabranch.optimize.hints import Objective
from anabranch.optimize.proposals import UNLIMITED
from anabranch.plan.mesh import Mesh, Plan
from anabranch.plan.partitioning import Partitioning
from anabranch.plan.physical import PhysicalPlan
from anabranch.plan.query import Query
from anabranch.plan.slots import SlotPlan
from anabranch.stats.filters import SeenFilter
from anabranch.stats.measured import TIMED_ROWS, measured
from anabranch.stats.report import QueryReport, SlotReports, merged_statistics
from anabranch.stats.step import CheckStatistics, StepStatistics, merge, merged_checks
from anabranch.stats.view import FixedStatistics

FEWEST_ROWS = 1_000
"""Rows that a filter must have been checked on before the share that passes is believed."""
MOVE, MOVE_ROW = 1.4, 4e-7
"""Seconds of a core that a move takes, and more for each row of the base states."""

Decide: TypeAlias = Callable[[Query, FixedStatistics, float], Choice]


@dataclass(frozen=True)
class FilterRules:
    """What the filters of a query are placed by while it runs."""

    dear: tuple[SeenFilter, ...]
    """The filters that may move, as far as they are known from before the run; `early` is what Spark's check costs."""
    compiled: Compile
    decide: Decide
    """Chooses the plan of the query by some statistics and the seconds between two batches."""
    settings: Settings
    bytes: Bytes = field(default_factory=dict)
    refused: Callable[[Query, Query], str | None] = lambda old, new: None
    """Why the rows of a query cannot become those of the same query with other late filters; None where they can."""
    guessed: frozenset[str] = frozenset()
    """The filters of which nothing was seen before the run: they stay until enough rows have been counted."""
    move: float = MOVE
    """Seconds of a core that a move takes."""
    move_row: float = MOVE_ROW
    """More of them for each row of the base states."""


@dataclass(frozen=True)
class Wanted:
    """Other places for the filters, and the plan that goes with them."""

    late: tuple[str, ...]
    plan: Plan


@dataclass(frozen=True)
class _Seen:
    """A batch as it is remembered."""

    plan: PhysicalPlan
    seconds: float
    reports: Sequence[QueryReport]
    early: tuple[CheckStatistics, ...]

    @cached_property
    def step(self) -> StepStatistics:
        return merged_statistics(self.reports)


@dataclass(frozen=True)
class _Outcome:
    """What came of weighing places."""

    decision: FiltersDecided
    wanted: Wanted | None = None
    look_again: float | None = None
    """Seconds of a phase after which the places would pay that do not pay yet."""


@dataclass(frozen=True)
class _Weighing:
    """Everything that places are weighed by, as it was when the weighing began."""

    batch: int
    trigger: str
    late: tuple[str, ...]
    filters: tuple[SeenFilter, ...]
    fixed: Mapping[str, str]
    """Why filters must stay."""
    known: Knowledge
    stability: Stability
    price: Price
    """Of the move."""
    unnoticed: float
    """Seconds for which a turn back may go unnoticed, times its odds."""
    rules: FilterRules
    settings: Settings

    def outcome(self) -> _Outcome:
        """Weighs the places; may take long."""
        try:
            return self._weighed()
        except AnabranchError as error:  # no plan, or none that the user allows
            return _Outcome(replace(self._kept, reason=error.message))

    @property
    def _kept(self) -> FiltersDecided:
        late = self.late
        return FiltersDecided(self.batch, "keep", self.trigger, late, late, 0.0, 0.0, 0.0, "", self.filters)

    def _weighed(self) -> _Outcome:
        late, pricing = self.late, self._pricing(self.known)
        movable = [each.condition for each in self.filters if each.condition not in self.fixed]
        kept = [condition for condition in late if condition not in movable]
        target = place_filters(pricing, movable, kept).late
        is_same = set(target) == set(late)
        now, then = pricing.price(late), pricing.price(target)
        decision = replace(
            self._kept,
            proposed=late if is_same else target,
            cost=now.cores.all,
            proposed_cost=then.cores.all,
            move_cost=0.0 if is_same else self.price.cpu,
            reason="filters are where they cost least",
            fixed=tuple(f"{condition}: {reason}" for condition, reason in self.fixed.items()),
        )
        if is_same or then.plan is None:
            return _Outcome(decision)
        gate = self.settings.gate
        verdict = judge(gate, _cpu(now.cores.all), _cpu(then.cores.all), self.price, Objective(), UNLIMITED)
        if not verdict.passed:
            return _Outcome(replace(decision, reason=verdict.reason))
        reason, is_loss, look_again = verdict.reason, False, None
        if self.settings.foresight and isfinite(now.cores.all):
            before = None if self.stability.before is None else self._pricing(self.stability.before)
            bet = Bet(then.cores.all, 0.0, self.price.cpu)
            staying = Bet(now.cores.all, 0.0)
            if before is not None:
                bet = replace(bet, before=before.price(target).cores.all, way=2 * self.price.cpu)
                staying = replace(staying, before=before.price(late).cores.all)
            outcome = weighed(staying, [bet], self.stability, gate.horizon, self.unnoticed)
            look_again, is_loss = outcome.look_again, outcome.is_loss
            if is_loss:
                reason = outcome.reason(self.stability, reason)
                if (mean := self._on_average(target)) is not None:
                    reason, is_loss = mean, False
        if is_loss:
            return _Outcome(replace(decision, reason=reason), None, look_again)
        return _Outcome(replace(decision, action="move", reason=reason), Wanted(target, then.plan), look_again)

    def _on_average(self, target: Sequence[str]) -> str | None:
        """Why filters move although the streams turn too often to follow them: on average they cost less there."""
        stability, gate = self.stability, self.settings.gate
        if not stability.is_restless(gate.horizon):
            return None
        whole = sum(phase.seconds for phase in stability.phases)
        now = then = 0.0
        for phase in stability.phases:
            pricing, share = self._pricing(phase.known), phase.seconds / whole if whole else 0.0
            now += share * pricing.price(self.late).cores.all
            then += share * pricing.price(target).cores.all
        verdict = judge(gate, _cpu(now), _cpu(then), self.price, Objective(), UNLIMITED)
        return f"on average over the phases, {verdict.reason}" if verdict.passed else None

    def _pricing(self, known: Knowledge) -> Pricing:
        seen = [replace(each, share=known.selectivities.get(each.condition, each.share)) for each in self.filters]
        names = {each.condition for each in seen}
        view = replace(
            known.view,
            selectivities={name: value for name, value in known.selectivities.items() if name not in names},
        )
        return Pricing(
            seen,
            self.rules.bytes,
            view,
            self.rules.compiled,
            lambda query, statistics: self.rules.decide(query, statistics, known.batch),
        )


@dataclass(frozen=True)
class _Asked:
    """A weighing that was begun beside the batches."""

    known: Knowledge
    search: Search[_Outcome]


def seconds_of(check: CheckStatistics) -> float | None:
    """The seconds that a check of a row took; None where that was not measured well. Tests put others in its place."""
    return check.seconds / check.rows if check.rows >= TIMED_ROWS and check.seconds > 0 else None


class FilterLoop:
    """Where the dear filters of one query are, and where they should be."""

    def __init__(self, query: Query, rules: FilterRules, searches: Searches | None = None) -> None:
        self._query = query
        self.rules = rules
        self._searches = searches or Searches()
        self._asked: _Asked | None = None
        self.settings = rules.settings
        self.readers: int | None = 1
        """The slots that each check all rows before they enter; None where Spark checks them."""
        self.wanted: Wanted | None = None
        """The move that the host is to make."""
        self._learnt = {each.condition: each for each in rules.dear}
        self._guessed = rules.guessed
        self._recent: tuple[_Seen, ...] = ()
        self._batches, self._seconds = 0, 0.0
        self._put_off = 0
        self._stability = Stability()
        self._baseline: Knowledge | None = None
        self._calm: Counts | None = None
        self._look_again: float | None = None

    def go_on_from(self, earlier: FilterLoop) -> None:
        """Takes over what the loop of the query has learnt that ran until its filters moved."""
        self._learnt, self._guessed = {**self._learnt, **earlier._learnt}, earlier._guessed
        self.settings = earlier.settings
        self._stability, self._baseline = earlier._stability, earlier._baseline
        self._look_again = earlier._look_again
        if earlier._asked is not None:
            self._baseline = None  # what was asked is asked again

    @property
    def late(self) -> tuple[str, ...]:
        """The filters that joins check."""
        return self._query.late_filters

    def give_up(self) -> None:
        """Takes in that the move is not made: it is weighed again when the streams have stayed for as long again."""
        self.wanted, self._look_again = None, 2 * self._stability.lasted
        self._restart()

    def freeze(self, frozen: bool) -> None:
        """Keeps filters where they are, or lets them move again; a move that was not begun is not made."""
        self.settings = replace(self.settings, freeze=frozen)
        if frozen:
            self.wanted = None

    def after(
        self, facts: BatchFacts, plans: Sequence[SlotPlan], reports: SlotReports, table: Partitioning, *, is_busy: bool
    ) -> FiltersDecided | None:
        """Takes in a batch that was committed; returns a decision when one is due."""
        if self.wanted is not None:
            return None
        plan = plans[0].plan
        if is_busy or isinstance(plan, Mesh) or any(each.plan != plan for each in plans):
            self._restart()
            return None
        self._note(facts, plan, reports)
        spread = None if table.is_partition else table
        if self._asked is not None:
            return self._answered(facts.batch, self._asked, spread)
        if not self._recent or not self._is_due():
            return None
        counted = self._counts()
        if self._calm is not None and are_alike(counted, self._calm) and not self._has_outlasted():
            self._batches, self._seconds = 0, 0.0
            return None
        if not self._is_settled(spread):
            return None
        self._batches, self._seconds, self._put_off = 0, 0.0, 0
        self._calm = counted
        return self._decided(facts.batch, self._learn(self._recent, spread))

    # --- what was seen ------------------------------------------------------------------------------------------------

    def _note(self, facts: BatchFacts, plan: PhysicalPlan, reports: SlotReports) -> None:
        self._batches += 1
        if facts.seconds is None:
            return
        self._seconds += facts.seconds
        self._stability = self._stability.after(facts.seconds)
        if self._recent and self._recent[-1].plan != plan:
            self._recent, self._calm = (), None
        # Where several slots check all rows, one of them tells of all.
        early = next((report.checked_early for report in reports.values() if report.checked_early), ())
        own = [query for report in reports.values() for query in report.queries.values()]
        self._recent = (*self._recent, _Seen(plan, facts.seconds, own, early))[-self.settings.remember :]

    def _restart(self) -> None:
        if self._asked is not None:
            self._asked, self._baseline = None, None
        self._recent, self._calm, self._batches, self._seconds, self._put_off = (), None, 0, 0.0, 0

    def _is_due(self) -> bool:
        return self.settings.gate.cool_down.has_passed(self._batches, self._seconds) and _seconds(self._recent) > 0

    def _has_outlasted(self) -> bool:
        return self._look_again is not None and self._stability.lasted >= self._look_again

    def _counts(self) -> Counts:
        """What tells whether anything has changed: counts of rows and lookups, and of the filters."""
        found = dict(counts([each.step for each in self._recent], _seconds(self._recent)))
        for condition, check in self._checks(self._recent).items():
            found["filter", condition] = check.passed, check.rows
        return found

    def _checks(self, recent: Sequence[_Seen]) -> dict[str, CheckStatistics]:
        """The dear filters, wherever they were checked."""
        early = merged_checks(check for each in recent for check in each.early)
        late = merge(each.step for each in recent).checks
        return {each.predicate: each for each in (*early, *late) if each.predicate in self._learnt}

    def _is_settled(self, spread: Partitioning | None) -> bool:
        """True when the later batches are like the earlier ones, or when there was no waiting for that any longer."""
        half = len(self._recent) // 2
        earlier, later = self._recent[:half], self._recent[half:]
        if not _seconds(earlier) or not _seconds(later) or self._put_off >= self.settings.remember:
            return True
        if self._known(earlier, spread).drift(self._known(later, spread)) <= SETTLED:
            return True
        self._put_off += 1
        self._recent = later
        return False

    def _learn(self, recent: Sequence[_Seen], spread: Partitioning | None) -> Knowledge:
        """What is known of the streams before the dear filters; remembers what these cost and reject."""
        for condition, check in self._checks(recent).items():
            seen = self._learnt[condition]
            if check.rows >= FEWEST_ROWS:
                seen = replace(seen, share=_share(check))
                self._guessed -= {condition}
            if (seconds := seconds_of(check)) is not None:
                seen = replace(seen, seconds=seconds)
            self._learnt[condition] = seen
        return self._known(recent, spread)

    def _known(self, recent: Sequence[_Seen], spread: Partitioning | None) -> Knowledge:
        seconds, steps = _seconds(recent), [each.step for each in recent]
        found = measured(self._query, recent[-1].plan, steps, seconds, partitioning=spread)
        checks = self._checks(recent)
        shares = {
            condition: _share(check) if (check := checks.get(condition)) and check.rows >= FEWEST_ROWS else each.share
            for condition, each in self._learnt.items()
        }
        reached: dict[str, float] = {}
        for condition, check in checks.items():
            if condition not in self.late:
                name = self._learnt[condition].relation
                reached[name] = max(reached.get(name, 0.0), check.rows / seconds)
        known = replace(
            found,
            rates={**found.rates, **reached},
            # Rates are those behind the cheaper filters, whichever relations have some.
            filters=dict.fromkeys(self._query.graph.names, 1.0),
            selectivities={**found.selectivities, **shares},
        )
        return Knowledge().renewed(known, seconds / len(recent))

    # --- what to do ---------------------------------------------------------------------------------------------------

    def _decided(self, batch: int, known: Knowledge) -> FiltersDecided | None:
        changed = None if self._baseline is None else self._baseline.drift(known)
        is_again = self._has_outlasted()
        if changed is not None and changed < CHANGED and not is_again:
            return None
        lasted = self._stability.lasted
        trigger = (
            f"the streams have stayed as they are for {lasted:.3g} s"
            if is_again
            else "the first batches"
            if changed is None
            else f"rates or shares changed by a factor of {changed:.3g}"
        )
        self._baseline, self._look_again = known, None
        self._stability = self._stability.decided(known, _seconds(self._recent))
        weighing = _Weighing(
            batch,
            trigger,
            self.late,
            tuple(each.checked_by(self.readers) for each in self._learnt.values()),
            {each: reason for each in self._learnt if (reason := self._refused(each)) is not None},
            known,
            self._stability,
            self._price,
            self._unnoticed,
            self.rules,
            self.settings,
        )
        is_long = len(self._query.graph.names) > IN_LINE
        search = self._searches.begin("places of filters", weighing.outcome, is_long=is_long)
        if search.is_done:
            return self._taken(batch, search.outcome())
        self._asked = _Asked(known, search)
        return None

    def _answered(self, batch: int, asked: _Asked, spread: Partitioning | None) -> FiltersDecided | None:
        """Takes up what was asked beside the batches once it is known; what no longer holds is asked again."""
        if not asked.search.is_done:
            return None
        self._asked = None
        if _seconds(self._recent) and asked.known.drift(self._known(self._recent, spread)) >= CHANGED:
            self._calm = None
            return None
        return self._taken(batch, asked.search.outcome())

    def _taken(self, batch: int, found: _Outcome | None) -> FiltersDecided | None:
        if found is None:
            return None
        self._look_again = found.look_again
        decision = replace(found.decision, batch=batch)
        if found.wanted is None:
            return decision
        if self.settings.freeze:
            return replace(decision, action="keep", reason=f"frozen; otherwise: {decision.reason}")
        self.wanted = found.wanted
        return decision

    # --- inside -------------------------------------------------------------------------------------------------------

    def _refused(self, condition: str) -> str | None:
        """Why a filter must stay where it is."""
        if condition in self._guessed:
            return "too few rows have been counted"
        if condition in self.late:
            return None
        try:
            return self.rules.refused(self._query, self.rules.compiled([*self.late, condition]))
        except AnabranchError as error:
            return error.message

    @property
    def _price(self) -> Price:
        """What a move costs by what the base states hold now."""
        names, last = self._query.graph.names, self._recent[-1].step
        rows = sum(state.rows for state in last.states if state.state in names)
        return Price("moving filters", self.rules.move + self.rules.move_row * rows, 0.0, 0.0)

    @property
    def _unnoticed(self) -> float:
        """Seconds for which a turn back may go unnoticed, times its odds: until the next look, and while it settles."""
        before, interval = self._stability.before, self.settings.gate.cool_down
        if before is None:
            return 0.0
        look = max(interval.seconds, interval.batches * before.batch)
        return self._stability.odds * (look + self.settings.remember * before.batch / 2)


def filter_loop(query: Query, rules: FilterRules | None, searches: Searches | None = None) -> FilterLoop | None:
    """The loop of a query whose filters may move; None where there is nothing to decide."""
    if rules is None or not rules.dear or len(query.graph.names) < 2:
        return None
    return FilterLoop(query, rules, searches)


def _share(check: CheckStatistics) -> float:
    # A filter that let nothing pass may let something pass tomorrow.
    return max(check.passed, 0.5) / check.rows


def _cpu(cores: float) -> Resources:
    return Resources(cores, 0.0, 0.0)


def _seconds(several: Sequence[_Seen]) -> float:
    return sum(each.seconds for each in several)
