"""Decides, while queries run, where their dear filters are checked: before rows are sent, or by the joins.

The places are priced as before the first start (`optimize/filter_places`), by what is measured: how many rows reach
each filter and pass it, what a check takes, the rates behind the cheaper filters, and the selectivities of the joins.
All of this is known in the same terms wherever the filters are now (of the rows *before* the dear filters), so what was
learnt stays true after a move. Of a query that runs by a mesh, shares a join, or has different plans in its slots, the
selectivities are those that were known last; what it takes now is what was counted of it.

A move is a migration that ends Spark's query and starts it again with other rows in its checkpoint. So it passes the
gate of any other change, and is weighed as a bet on how long the streams stay as they are (`bets`): filters that would
go back and forth stay, and where the streams never rest they are where they cost least on average.

Law: a decision changes nothing by itself. It is a wish (`wanted`) that the host takes up between two batches, or
refuses; until then nothing else is decided. No batch waits for prices that take long to work out: with many relations
they are searched beside the batches, and the outcome counts when a later batch ends, if the streams are still alike.

Limit: queries that adapt as a whole. CPU is what counts. After a move a mesh is learnt anew, which is not priced.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import isfinite, sqrt
from types import MappingProxyType
from typing import TypeAlias

from anabranch.adapt.bets import Bet, weighed
from anabranch.adapt.facts import BatchFacts
from anabranch.adapt.gate import judge
from anabranch.adapt.knowledge import Knowledge
from anabranch.adapt.loop import SETTLED
from anabranch.adapt.records import FiltersDecided
from anabranch.adapt.searches import Search, Searches
from anabranch.adapt.settings import Settings
from anabranch.adapt.stability import CHANGED, Stability
from anabranch.adapt.weighing import IN_LINE
from anabranch.cost.counted import counted_cpu
from anabranch.cost.resources import Resources, with_default_orders
from anabranch.errors import AnabranchError
from anabranch.migrate.strategies.strategy import Price
from anabranch.optimize.choice import Choice
from anabranch.optimize.filter_places import Bytes, Compile, Priced, Pricing, place_filters
from anabranch.optimize.hints import Objective
from anabranch.optimize.proposals import UNLIMITED
from anabranch.plan.mesh import Mesh, Plan
from anabranch.plan.partitioning import Partitioning
from anabranch.plan.physical import PhysicalPlan, mjoin, pre_groups
from anabranch.plan.query import Query
from anabranch.plan.query_set import ALONE, Member, QuerySet, set_of
from anabranch.plan.sharing import shares
from anabranch.plan.slots import SlotPlans
from anabranch.stats.filters import SeenFilter
from anabranch.stats.measured import TIMED_ROWS, measured
from anabranch.stats.report import QueryReport, SlotReports, merged_statistics
from anabranch.stats.step import CheckStatistics, StepStatistics, merge, merged_checks
from anabranch.stats.view import FixedStatistics

FEWEST_ROWS = 1_000
"""Rows that a filter must have been checked on before the share that passes is believed."""
MOVE, MOVE_ROW = 1.4, 4e-7
"""Seconds of a core that a move takes, and more for each row of the base states."""

Counts: TypeAlias = Mapping[object, tuple[float, float]]
"""What was counted, and out of how much: rows in so many seconds, matches of so many lookups."""


def counts(steps: Sequence[StepStatistics], seconds: float) -> Counts:
    """The counts of some batches that cover so much event time."""
    rows: dict[str, int] = {}
    found: dict[object, tuple[float, float]] = {}
    for step in steps:
        for name, count in step.rows_in.items():
            rows[name] = rows.get(name, 0) + count
        for probe in step.probes:
            key = probe.join, probe.origin, probe.target
            matches, probes = found.get(key, (0, 0))
            found[key] = matches + probe.matches, probes + probe.probes
    return {**found, **{name: (count, seconds) for name, count in rows.items()}}


def are_alike(now: Counts, known: Counts) -> bool:
    """True when the counts are what the known ones let expect, but for chance."""
    if now.keys() != known.keys():
        return False
    for name, (count, out_of) in now.items():
        known_count, known_out_of = known[name]
        expected = known_count / known_out_of * out_of if known_out_of else 0.0
        if abs(count - expected) > 0.2 * expected + 3.0 * sqrt(max(expected, count)):
            return False
    return True


Decide: TypeAlias = Callable[[str, Query, FixedStatistics, float], Choice]


@dataclass(frozen=True)
class FilterRules:
    """What the filters of the queries of a run are placed by while it runs."""

    dear: tuple[SeenFilter, ...]
    """The filters that may move, as far as they are known from before the run; `early` is what Spark's check costs."""
    compiled: Compile
    """All queries of the run; those whose filters may move with some late ones."""
    decide: Decide
    """Chooses the plan of a query, by its name, some statistics and the seconds between two batches."""
    settings: Settings
    bytes: Bytes = field(default_factory=dict)
    refused: Callable[[QuerySet, QuerySet], str | None] = lambda old, new: None
    """Why the rows of queries cannot become those of the same queries with other late filters; None where they can."""
    guessed: frozenset[str] = frozenset()
    """The filters of which nothing was seen before the run: they stay until enough rows have been counted."""
    moving: frozenset[str] = frozenset((ALONE,))
    """The queries whose filters may move."""
    sampled: Mapping[str, FixedStatistics] = field(default_factory=dict)
    """What is known of the joins of each query until they are measured: a mesh may run from the first batch on."""
    move: float = MOVE
    """Seconds of a core that a move takes."""
    move_row: float = MOVE_ROW
    """More of them for each row of the base states."""


@dataclass(frozen=True)
class Wanted:
    """Other places for the filters, and the plans that go with them, by query."""

    late: tuple[str, ...]
    plans: Mapping[str, Plan]


@dataclass(frozen=True)
class _Work:
    """One query in some batches: the plan of each slot, and what it reported."""

    plans: tuple[Plan, ...]
    reports: Sequence[QueryReport]
    """Of one batch, by slot."""

    @cached_property
    def step(self) -> StepStatistics:
        return merged_statistics(self.reports)

    @property
    def plan(self) -> PhysicalPlan | None:
        """The plan whose lookups were counted; None where several were at work, or not only its own."""
        first = self.plans[0]
        if isinstance(first, Mesh) or shares(first) or any(each != first for each in self.plans):
            return None
        return first


@dataclass(frozen=True)
class _Seen:
    """A batch as it is remembered."""

    seconds: float
    works: Mapping[str, _Work]
    """By query."""
    early: tuple[CheckStatistics, ...]

    @property
    def plans(self) -> dict[str, tuple[Plan, ...]]:
        return {name: work.plans for name, work in self.works.items()}


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

    kept: FiltersDecided
    """The decision to leave the filters where they are, before any price is known."""
    movable: tuple[str, ...]
    known: Knowledge
    stability: Stability
    price: Price
    """Of the move."""
    recent: tuple[_Seen, ...]
    rules: FilterRules

    def outcome(self) -> _Outcome:
        """Weighs the places; may take long."""
        try:
            return self._weighed()
        except AnabranchError as error:  # no plan, or none that the user allows
            return _Outcome(replace(self.kept, reason=error.message))

    def _weighed(self) -> _Outcome:
        late = self.kept.late
        factors = self._factors(self._pricing(self.known).price(late))
        pricing = self._pricing(self.known, factors)
        kept = [condition for condition in late if condition not in self.movable]
        target = place_filters(pricing, self.movable, kept).late
        is_same = set(target) == set(late)
        now, then = pricing.price(late), pricing.price(target)
        decision = replace(
            self.kept,
            proposed=late if is_same else target,
            cost=now.cores.all,
            proposed_cost=then.cores.all,
            move_cost=0.0 if is_same else self.price.cpu,
            reason="filters are where they cost least",
        )
        if is_same or not then.plans:
            return _Outcome(decision)
        gate = self.rules.settings.gate
        verdict = judge(gate, _cpu(now.cores.all), _cpu(then.cores.all), self.price, Objective(), UNLIMITED)
        if not verdict.passed:
            return _Outcome(replace(decision, reason=verdict.reason))
        reason, is_loss, look_again = verdict.reason, False, None
        if self.rules.settings.foresight and isfinite(now.cores.all):
            before = None if self.stability.before is None else self._pricing(self.stability.before, factors)
            bet = Bet(then.cores.all, 0.0, self.price.cpu)
            staying = Bet(now.cores.all, 0.0)
            if before is not None:
                bet = replace(bet, before=before.price(target).cores.all, way=2 * self.price.cpu)
                staying = replace(staying, before=before.price(late).cores.all)
            outcome = weighed(staying, [bet], self.stability, gate.horizon, self._unnoticed)
            look_again, is_loss = outcome.look_again, outcome.is_loss
            if is_loss:
                reason = outcome.reason(self.stability, reason)
                if (mean := self._on_average(target, factors)) is not None:
                    reason, is_loss = mean, False
        if is_loss:
            return _Outcome(replace(decision, reason=reason), None, look_again)
        return _Outcome(replace(decision, action="move", reason=reason), Wanted(target, then.plans), look_again)

    def _on_average(self, target: Sequence[str], factors: Mapping[str, float]) -> str | None:
        """Why filters move although the streams turn too often to follow them: on average they cost less there."""
        stability, gate = self.stability, self.rules.settings.gate
        if not stability.is_restless(gate.horizon):
            return None
        whole = sum(phase.seconds for phase in stability.phases)
        now = then = 0.0
        for phase in stability.phases:
            pricing, share = self._pricing(phase.known, factors), phase.seconds / whole if whole else 0.0
            now += share * pricing.price(self.kept.late).cores.all
            then += share * pricing.price(target).cores.all
        verdict = judge(gate, _cpu(now), _cpu(then), self.price, Objective(), UNLIMITED)
        return f"on average over the phases, {verdict.reason}" if verdict.passed else None

    @property
    def _unnoticed(self) -> float:
        """Seconds for which a turn back may go unnoticed, times its odds: until the next look, and while it settles."""
        before, settings = self.stability.before, self.rules.settings
        if before is None:
            return 0.0
        interval = settings.gate.cool_down
        look = max(interval.seconds, interval.batches * before.batch)
        return self.stability.odds * (look + settings.remember * before.batch / 2)

    def _factors(self, now: Priced) -> dict[str, float]:
        """Of queries whose plan is not one that would be chosen: how many times the price of that one they take."""
        found = {}
        for name, choice in now.choices.items():
            modelled, counted = now.cores.plans[name], self._counted(name, choice)
            if counted is not None and modelled > 0 and isfinite(modelled):
                found[name] = counted / modelled
        return found

    def _counted(self, name: str, choice: Choice) -> float | None:
        """Cores that a query took, by its counts; None where it has a plan of its own, which the model prices."""
        works = [each.works[name] for each in self.recent]
        plans, query = works[-1].plans, self.rules.compiled(self.kept.late)[name]
        if works[-1].plan is not None or any(not isinstance(each, Mesh) and _is_uncounted(each) for each in plans):
            return None
        seconds, costs = _seconds(self.recent), {each.condition: each.seconds for each in self.kept.filters}
        cores = 0.0
        for slot, plan in enumerate(plans):
            step = merge(work.reports[slot].statistics for work in works)
            ordered = plan if isinstance(plan, Mesh) else with_default_orders(plan, query.graph)
            cores += counted_cpu(ordered, step, len(works), seconds, choice.model, query.graph)
            if isinstance(plan, Mesh):  # whose counts do not tell what predicates cost
                cores += sum(check.rows * costs.get(check.predicate, 0.0) for check in step.checks) / seconds
        return cores

    def _pricing(self, known: Knowledge, factors: Mapping[str, float] = MappingProxyType({})) -> Pricing:
        seen = [replace(each, share=known.selectivities.get(each.condition, each.share)) for each in self.kept.filters]
        names = {each.condition for each in seen}
        views = {}
        for name in self.rules.compiled(self.kept.late):
            view = known_of(known, name).view
            pairs = {each: value for each, value in view.selectivities.items() if each not in names}
            views[name] = replace(view, selectivities=pairs)
        return Pricing(
            seen,
            self.rules.bytes,
            views,
            self.rules.compiled,
            lambda name, query, statistics: self.rules.decide(name, query, statistics, known.batch),
            frozenset(self.kept.late),
            factors,
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
    """Where the dear filters of the queries of a run are, and where they should be."""

    def __init__(self, queries: QuerySet, rules: FilterRules, searches: Searches | None = None) -> None:
        self._queries = queries
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
        self._joins = {name: dict(each.selectivities) for name, each in rules.sampled.items()}
        """The selectivities of each query that were known last."""
        self._recent: tuple[_Seen, ...] = ()
        self._batches, self._seconds = 0, 0.0
        self._put_off = 0
        self._stability = Stability()
        self._baseline: Knowledge | None = None
        self._calm: Counts | None = None
        self._look_again: float | None = None

    def go_on_from(self, earlier: FilterLoop) -> None:
        """Takes over what the loop has learnt of the queries that ran until filters moved, or queries came or went."""
        known = {condition: each for condition, each in earlier._learnt.items() if condition in self._learnt}
        self._learnt = {**self._learnt, **known}
        self._guessed = frozenset(
            each for each in self._learnt if each in (earlier._guessed if each in known else self._guessed)
        )
        self._joins |= earlier._joins
        self.settings = earlier.settings
        if [each.name for each in earlier._priced] != [each.name for each in self._priced]:
            return  # what was known of all queries together is known of others now
        self._stability, self._baseline = earlier._stability, earlier._baseline
        self._look_again = earlier._look_again
        if earlier._asked is not None:
            self._baseline = None  # what was asked is asked again

    @property
    def late(self) -> tuple[str, ...]:
        """The filters that joins check, of the queries whose filters may move."""
        moving = (each for each in self._queries.members if each.name in self.rules.moving)
        return tuple(dict.fromkeys(condition for each in moving for condition in each.query.late_filters))

    @cached_property
    def _priced(self) -> tuple[Member, ...]:
        """The queries that are priced: those that were given, without the ones that they only read."""
        return tuple(each for each in self._queries.members if each.name in self.rules.compiled(self.late))

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
        self, facts: BatchFacts, plans: SlotPlans, reports: SlotReports, table: Partitioning, *, is_busy: bool
    ) -> FiltersDecided | None:
        """Takes in a batch that was committed; returns a decision when one is due."""
        if self.wanted is not None:
            return None
        if is_busy:
            self._restart()
            return None
        self._note(facts, plans, reports)
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

    def _note(self, facts: BatchFacts, plans: SlotPlans, reports: SlotReports) -> None:
        self._batches += 1
        if facts.seconds is None:
            return
        self._seconds += facts.seconds
        self._stability = self._stability.after(facts.seconds)
        works = {
            each.name: _Work(
                tuple(plans[each.name][slot].plan for slot in reports),
                tuple(report.queries[each.name] for report in reports.values()),
            )
            for each in self._priced
        }
        # Where several slots check all rows, one of them tells of all.
        early = next((report.checked_early for report in reports.values() if report.checked_early), ())
        seen = _Seen(facts.seconds, works, early)
        if self._recent and self._recent[-1].plans != seen.plans:
            self._recent, self._calm = (), None
        self._recent = (*self._recent, seen)[-self.settings.remember :]

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
        found: dict[object, tuple[float, float]] = {}
        for each in self._priced:
            own = counts([seen.works[each.name].step for seen in self._recent], _seconds(self._recent))
            found |= {(each.name, what): counted for what, counted in own.items()}
        for condition, check in self._checks(self._recent).items():
            found["filter", condition] = check.passed, check.rows
        return found

    def _checks(self, recent: Sequence[_Seen]) -> dict[str, CheckStatistics]:
        """The dear filters, wherever they were checked."""
        early = merged_checks(check for each in recent for check in each.early)
        late = merge(work.step for each in recent for work in each.works.values()).checks
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
        """What is known of the streams before the dear filters; remembers what these cost and reject, and the joins."""
        for condition, check in self._checks(recent).items():
            seen = self._learnt[condition]
            if check.rows >= FEWEST_ROWS:
                seen = replace(seen, share=_share(check))
                self._guessed -= {condition}
            if (seconds := seconds_of(check)) is not None:
                seen = replace(seen, seconds=seconds)
            self._learnt[condition] = seen
        known = self._known(recent, spread)
        self._joins |= {each.name: dict(known_of(known, each.name).selectivities) for each in self._priced}
        return known

    def _known(self, recent: Sequence[_Seen], spread: Partitioning | None) -> Knowledge:
        seconds, checks = _seconds(recent), self._checks(recent)
        reached: dict[str, float] = {}
        for condition, check in checks.items():
            if condition not in self.late:
                name = self._learnt[condition].relation
                reached[name] = max(reached.get(name, 0.0), check.rows / seconds)
        found = Knowledge()
        for each in self._priced:
            own = _measured(each.query, [seen.works[each.name] for seen in recent], seconds, spread)
            rates = {name: rate for name, rate in reached.items() if name in each.query.graph.names}
            own = replace(
                own,
                rates={**own.rates, **rates},
                # Rates are those behind the cheaper filters, whichever relations have some.
                filters=dict.fromkeys(each.query.graph.names, 1.0),
                selectivities={**self._last_known(each, recent), **own.selectivities},
            )
            found = found.renewed(_labelled(own, each.name), seconds / len(recent))
        passing = {
            condition: _share(told) if (told := checks.get(condition)) and told.rows >= FEWEST_ROWS else each.share
            for condition, each in self._learnt.items()
        }
        return replace(found, selectivities={**found.selectivities, **passing})

    def _last_known(self, member: Member, recent: Sequence[_Seen]) -> Mapping[str, float]:
        """The selectivities of a query whose lookups tell nothing, as they were known last."""
        return {} if recent[-1].works[member.name].plan is not None else self._joins.get(member.name, {})

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
        fixed = {each: reason for each in self._learnt if (reason := self._refused(each)) is not None}
        filters = tuple(each.checked_by(self.readers) for each in self._learnt.values())
        told = tuple(f"{condition}: {reason}" for condition, reason in fixed.items())
        weighing = _Weighing(
            FiltersDecided(batch, "keep", trigger, self.late, self.late, 0.0, 0.0, 0.0, "", filters, told),
            tuple(each for each in self._learnt if each not in fixed),
            known,
            self._stability,
            self._price,
            self._recent,
            self.rules,
        )
        is_long = sum(len(each.query.graph.names) for each in self._priced) > IN_LINE
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
            now, then = (set_of(self.rules.compiled(late)) for late in (self.late, [*self.late, condition]))
            return self.rules.refused(now, then)
        except AnabranchError as error:
            return error.message

    @property
    def _price(self) -> Price:
        """What a move costs by what the base states hold now."""
        names, last = self._queries.graph.names, self._recent[-1].works.values()
        held = {state.state: state.rows for work in last for state in work.step.states if state.state in names}
        return Price("moving filters", self.rules.move + self.rules.move_row * sum(held.values()), 0.0, 0.0)


def filter_loop(queries: QuerySet, rules: FilterRules | None, searches: Searches | None = None) -> FilterLoop | None:
    """The loop of a run whose filters may move; None where there is nothing to decide."""
    if rules is None or not rules.dear or all(len(each.query.graph.names) < 2 for each in queries.members):
        return None
    return FilterLoop(queries, rules, searches)


def known_of(known: Knowledge, query: str) -> Knowledge:
    """What is known for one query of several; of a query that runs alone, everything."""
    label = _label(query)

    def own(several: Mapping[str, float]) -> dict[str, float]:
        return {name.removeprefix(label): each for name, each in several.items() if name.startswith(label)}

    return Knowledge(
        own(known.rates), own(known.selectivities), own(known.filters), known.batch, own(known.groups), own(known.rows)
    )


def _labelled(known: FixedStatistics, query: str) -> FixedStatistics:
    label = _label(query)

    def named(several: Mapping[str, float]) -> dict[str, float]:
        return {f"{label}{name}": each for name, each in several.items()}

    return FixedStatistics(
        rates=named(known.rates),
        filters=named(known.filters),
        selectivities=named(known.selectivities),
        groups=named(known.groups),
        rows=named(known.rows),
        provenance="measured",
    )


def _label(query: str) -> str:
    return f"{query}: " if query else ""


def _measured(query: Query, works: Sequence[_Work], seconds: float, spread: Partitioning | None) -> FixedStatistics:
    """What some batches tell of a query; its rates alone, where lookups are not those of one plan."""
    plan, steps = works[-1].plan, [each.step for each in works]
    if plan is None:
        plan, steps = mjoin(query.graph.names), [replace(step, probes=()) for step in steps]
    return measured(query, plan, steps, seconds, partitioning=spread)


def _is_uncounted(plan: PhysicalPlan) -> bool:
    """Whether counts do not tell what a plan takes: it merges rows, or others do some of its work."""
    return shares(plan) or any(pre_groups(plan))


def _share(check: CheckStatistics) -> float:
    # A filter that let nothing pass may let something pass tomorrow.
    return max(check.passed, 0.5) / check.rows


def _cpu(cores: float) -> Resources:
    return Resources(cores, 0.0, 0.0)


def _seconds(several: Sequence[_Seen]) -> float:
    return sum(each.seconds for each in several)
