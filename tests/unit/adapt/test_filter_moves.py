"""Where dear filters of a running query belong, decided on simulated batches: by counts, costs and their duration."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from functools import cache, partial
from itertools import pairwise

import pytest

from anabranch.adapt.facts import BatchFacts
from anabranch.adapt.filter_moves import FilterLoop, FilterRules, filter_loop
from anabranch.adapt.gate import Gate
from anabranch.adapt.policy import Interval
from anabranch.adapt.records import FiltersDecided
from anabranch.adapt.searches import Search, Searches, T
from anabranch.adapt.settings import Settings
from anabranch.catalog import Catalog, StreamDeclaration
from anabranch.choosing import AUTO, decide, on_spark
from anabranch.cql import compile_query
from anabranch.ddl import parse_schema
from anabranch.optimize import Choice
from anabranch.plan.mesh import Plan, one_route
from anabranch.plan.physical import PhysicalPlan
from anabranch.plan.query import Query
from anabranch.plan.query_set import ALONE, alone, partitioning_of, together
from anabranch.plan.slots import SlotPlan
from anabranch.plan.text import parse
from anabranch.stats.filters import SeenFilter
from anabranch.stats.report import QueryReport, SlotReport
from anabranch.stats.step import CheckStatistics, ProbeStatistics
from anabranch.stats.view import FixedStatistics
from tests.unit.adapt.simulated import steady_step

DEAR = "RLIKE(a.note, '.*lot [0-9]+ was.*')"
OTHER = "RLIKE(b.note, 'x.*y')"
TEXT = (
    "SELECT a.k AS k, b.v AS v FROM a [RANGE 10 SECONDS], b [RANGE 10 SECONDS] "
    "WHERE a.k = b.k AND a.note RLIKE '.*lot [0-9]+ was.*'"
)
PLAN = parse("(a b)")
ADAPT = Settings(gate=Gate(cool_down=Interval(batches=4)), remember=4)
RATE = 100_000.0


MANY = "abcdefg"
MANY_TEXT = (
    f"SELECT a.k AS k, b.v AS v FROM {', '.join(f'{name} [RANGE 10 SECONDS]' for name in MANY)} "
    f"WHERE {' AND '.join(f'{one}.k = {other}.k' for one, other in pairwise(MANY))} "
    "AND a.note RLIKE '.*lot [0-9]+ was.*'"
)
"""One relation more than are searched in line."""


def compiled(late: Sequence[str] = (), text: str = TEXT) -> Query:
    return _compiled(tuple(late), text)


@cache
def _compiled(late: tuple[str, ...], text: str) -> Query:
    catalog = Catalog()
    for name in MANY:
        catalog.register(StreamDeclaration(name, parse_schema("ts timestamp, k bigint, v bigint, note string"), "ts"))
    return compile_query(text, catalog, late_filters=late)


def alone_with(late: Sequence[str], text: str = TEXT) -> dict[str, Query]:
    return {ALONE: compiled(late, text)}


def chosen(name: str, query: Query, known: FixedStatistics, batch: float) -> Choice:
    return decide(query, AUTO, seen=known, batch=batch, host=on_spark())


@dataclass(frozen=True)
class Truth:
    """The stream `a`: the share that passes the dear filter, the seconds of a check, and partners of a row in `b`."""

    share: float = 0.9
    seconds: float = 5e-6
    partners: float = 0.01


LATE, EARLY = Truth(), Truth(share=0.001, partners=20.0)
"""Where the filter belongs by the joins, and where before them."""


@dataclass
class Run:
    """A query that runs on simulated batches, with its filter where the loop wants it."""

    late: tuple[str, ...] = ()
    rules: FilterRules = field(
        default_factory=lambda: FilterRules((SeenFilter("a", DEAR, 0.5, 1e-7),), alone_with, chosen, ADAPT)
    )
    host: Callable[[FilterLoop], None] = lambda loop: None
    decided: list[FiltersDecided] = field(default_factory=list)
    moved_at: list[int] = field(default_factory=list)
    batch: int = 0
    text: str = TEXT
    plan: PhysicalPlan = PLAN
    running: Plan | None = None
    """What the slots say that they run, if not the plan."""
    searches: Searches | None = None
    lookups: float = 1.0
    """How many times the lookups and matches of the plan were counted."""
    slots: int = 1
    """With several, all but the first report nothing, and have another plan."""

    def __post_init__(self) -> None:
        self.loop = self._loop(None)

    def _loop(self, earlier: FilterLoop | None) -> FilterLoop:
        rules = replace(self.rules, compiled=partial(alone_with, text=self.text))
        loop = filter_loop(alone(compiled(self.late, self.text)), rules, self.searches)
        assert loop is not None
        if earlier is not None:
            loop.go_on_from(earlier)
        self.host(loop)
        return loop

    def take(self, truth: Truth, batches: int, *, moves: bool = True, is_busy: bool = False) -> Run:
        for _ in range(batches):
            self._step(truth, is_busy=is_busy)
            if moves and (wanted := self.loop.wanted) is not None:
                self.late = wanted.late
                self.moved_at.append(self.batch)
                self.loop = self._loop(self.loop)
            self.batch += 1
        return self

    def _step(self, truth: Truth, *, is_busy: bool) -> None:
        is_late, query = bool(self.late), compiled(self.late, self.text)
        others = dict.fromkeys(query.graph.names, 1_000.0)
        known = FixedStatistics(
            rates={**others, "a": RATE if is_late else RATE * truth.share},
            filters={"a": 1.0},
            selectivities={"a b": truth.partners / 10_000},
        )
        step = steady_step(query, self.plan, known)
        step = replace(step, probes=tuple(_times(each, self.lookups) for each in step.probes))
        # What meets a partner reaches the filter.
        reached = round(RATE * truth.partners) if is_late else round(RATE)
        check = CheckStatistics(DEAR, reached, round(reached * truth.share), reached * truth.seconds)
        report = SlotReport(
            {"": QueryReport(self.plan, statistics=replace(step, checks=(check,) if is_late else ()))},
            checked_early=() if is_late else (check,),
        )
        table = partitioning_of(alone(query), 1)
        first, rest = SlotPlan(self.running or self.plan), [SlotPlan(parse("(b a)"))] * (self.slots - 1)
        plans = {ALONE: (first, *rest)}
        idle = {1 + slot: SlotReport({ALONE: QueryReport(other.plan)}) for slot, other in enumerate(rest)}
        decided = self.loop.after(BatchFacts(self.batch, 1.0), plans, {0: report, **idle}, table, is_busy=is_busy)
        if decided is not None:
            self.decided.append(decided)


def _times(probe: ProbeStatistics, factor: float) -> ProbeStatistics:
    counted = (round(factor * each) for each in (probe.probes, probe.visited, probe.matches, probe.kept))
    probes, visited, matches, kept = counted
    return replace(probe, probes=probes, visited=visited, matches=matches, kept=kept)


def test_a_filter_moves_to_where_it_costs_least_and_back_when_the_streams_have_changed() -> None:
    run = Run().take(LATE, 40)
    assert list(run.late) == [DEAR]
    (move,) = (each for each in run.decided if each.action == "move")
    assert move.cost > move.proposed_cost > 0
    assert "saves" in move.reason
    run.take(EARLY, 400)
    assert not run.late
    assert len(run.moved_at) == 2


def test_what_is_measured_does_not_depend_on_where_the_filter_is() -> None:
    """The share, the rate before the filter and the cost of both places are the same from either side."""
    truth = Truth(partners=0.2)
    early, late = Run().take(truth, 8, moves=False), Run(late=(DEAR,)).take(truth, 8, moves=False)
    one, other = early.decided[0], late.decided[0]
    assert one.filters[0].share == pytest.approx(0.9)
    assert other.filters[0].share == pytest.approx(0.9)
    assert one.filters[0].seconds == pytest.approx(other.filters[0].seconds)
    costs = {(): one.cost, one.proposed: one.proposed_cost}
    back = {(DEAR,): other.cost, other.proposed: other.proposed_cost}
    assert costs[DEAR,] == pytest.approx(back[DEAR,], rel=0.05)


def test_a_filter_that_hardly_gains_stays() -> None:
    run = Run().take(Truth(seconds=1e-8), 60)
    assert run.late == ()
    assert [each.action for each in run.decided] == ["keep"]


def test_streams_that_alternate_move_it_a_few_times_only() -> None:
    run = Run()
    for _ in range(40):
        run.take(LATE, 8).take(EARLY, 8)
    assert len(run.moved_at) <= 4, run.moved_at
    later = [batch for batch in run.moved_at if batch > 320]
    assert not later, "where the streams never rest, filters do"


def test_a_move_that_would_not_be_repaid_is_put_off_and_made_when_the_streams_stay() -> None:
    dear = replace(Run().rules, move=20.0)
    run = Run(rules=dear).take(LATE, 12)
    assert not run.late
    assert any("would be a loss" in each.reason for each in run.decided), run.decided
    run.take(LATE, 400)
    assert run.late == (DEAR,)


def test_nothing_is_measured_again_while_the_streams_are_as_they_were(monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run().take(LATE, 40)
    decided = len(run.decided)

    def measured(*_: object, **__: object) -> object:
        raise AssertionError("the streams are as they were")

    run.take(LATE, 4)
    run.loop._look_again = None
    monkeypatch.setattr("anabranch.adapt.filter_moves.measured", measured)
    run.take(LATE, 40)
    assert len(run.decided) <= decided + 1


def test_a_filter_that_rows_cannot_be_given_columns_for_stays_and_the_reason_is_told() -> None:
    rules = replace(Run().rules, refused=lambda old, new: "rows of 'a' were kept without columns")
    run = Run(rules=rules).take(LATE, 20)
    assert run.late == ()
    assert run.decided[-1].fixed == (f"{DEAR}: rows of 'a' were kept without columns",)
    # Where rows have the columns, the filter can be pushed down.
    assert Run(late=(DEAR,), rules=rules).take(EARLY, 40).late == ()


def test_a_filter_of_which_too_little_is_known_stays() -> None:
    rules = replace(Run().rules, guessed=frozenset([DEAR]))
    few = Run(late=(DEAR,), rules=rules).take(Truth(share=0.001, seconds=2e-7, partners=0.001), 20)
    assert few.late == (DEAR,)
    assert few.decided[-1].fixed == (f"{DEAR}: too few rows have been counted",)
    assert Run(late=(DEAR,), rules=rules).take(EARLY, 40).late == ()


def test_what_is_frozen_or_busy_moves_nothing() -> None:
    run = Run()
    run.loop.freeze(True)
    assert run.take(LATE, 40).late == ()
    assert any("frozen" in each.reason for each in run.decided)
    assert not Run().take(LATE, 40, is_busy=True).decided
    waiting = Run().take(LATE, 40, moves=False)
    assert waiting.loop.wanted is not None
    waiting.loop.freeze(True)
    assert waiting.loop.wanted is None


def test_a_wish_waits_for_the_host_and_is_given_up() -> None:
    run = Run().take(LATE, 8, moves=False)
    assert [each.action for each in run.decided].count("move") == 1
    given_up = run.loop._stability.lasted
    run.loop.give_up()
    assert run.loop.wanted is None
    run.take(LATE, 40)
    assert len(run.moved_at) == 1
    first, again = (each.batch for each in run.decided)
    assert again >= first + 2 * given_up, "when the streams have stayed for twice as long"


def test_slots_that_all_check_every_row_count_for_as_many() -> None:
    def readers(number: int) -> float:
        def host(loop: FilterLoop) -> None:
            loop.readers = number

        return Run(host=host).take(Truth(partners=1.0), 8, moves=False).decided[0].cost

    one, two, four = readers(1), readers(2), readers(4)
    assert two - one == pytest.approx(RATE * 5e-6, rel=0.01)
    assert four - two == pytest.approx(2 * RATE * 5e-6, rel=0.01)


def test_a_query_without_dear_filters_or_joins_has_no_loop() -> None:
    assert filter_loop(alone(compiled()), None) is None
    assert filter_loop(alone(compiled()), replace(Run().rules, dear=())) is None
    single = compiled(text="SELECT a.k AS k FROM a [RANGE 10 SECONDS] WHERE a.note RLIKE '.*lot [0-9]+ was.*'")
    assert filter_loop(alone(single), Run().rules) is None


class Beside(Searches):
    """Long searches end when the test says so."""

    def __init__(self) -> None:
        super().__init__()
        self.waiting: list[Callable[[], None]] = []

    def begin(self, what: str, search: Callable[[], T], *, is_long: bool) -> Search[T]:
        assert is_long
        found: Future[T] = Future()
        self.waiting.append(lambda: found.set_result(search()))
        return Search(found, what)

    def end(self) -> None:
        """Ends the search that was begun last."""
        self.waiting.pop()()


def many(searches: Searches) -> Run:
    return Run(text=MANY_TEXT, plan=parse(f"({' '.join(MANY)})"), searches=searches)


@pytest.mark.parametrize("truth", [LATE, EARLY, Truth(partners=0.2), Truth(share=0.3, seconds=1e-6)])
def test_with_many_relations_no_batch_waits_and_the_decision_is_the_same(truth: Truth) -> None:
    in_line = many(Searches(waits=True)).take(truth, 8, moves=False)
    (expected,) = in_line.decided
    searches = Beside()
    run = many(searches).take(truth, 20, moves=False)
    assert run.decided == []
    assert len(searches.waiting) == 1, "nothing else is asked meanwhile"
    searches.end()
    run.take(truth, 1, moves=False)
    (decided,) = run.decided
    assert replace(decided, batch=0) == replace(expected, batch=0)
    assert decided.batch == 20
    assert run.loop.wanted == in_line.loop.wanted
    assert (run.loop.wanted is not None) == (decided.action == "move")


def test_filters_of_many_relations_move_both_ways() -> None:
    run = many(Searches(waits=True)).take(LATE, 40)
    assert run.late == (DEAR,)
    assert run.take(EARLY, 400).late == ()
    assert len(run.moved_at) == 2


def test_what_was_found_for_streams_that_have_turned_is_asked_again() -> None:
    searches = Beside()
    run = many(searches).take(LATE, 8).take(EARLY, 20)
    searches.end()
    run.take(EARLY, 1)
    assert (run.decided, run.late) == ([], ()), "it would have moved"
    run.take(EARLY, 8)
    searches.end()
    run.take(EARLY, 1)
    assert [each.action for each in run.decided] == ["keep"]


def test_what_was_asked_before_a_change_of_plan_is_asked_again() -> None:
    searches = Beside()
    run = many(searches).take(LATE, 8).take(LATE, 1, is_busy=True)
    searches.end()
    assert run.take(LATE, 2).decided == []
    run.take(LATE, 8)
    searches.end()
    run.take(LATE, 1)
    assert run.late == (DEAR,)


def test_a_filter_that_was_frozen_while_places_were_searched_stays() -> None:
    searches = Beside()
    run = many(searches).take(LATE, 8)
    run.loop.freeze(True)
    searches.end()
    run.take(LATE, 1)
    assert run.late == ()
    (decided,) = run.decided
    assert (decided.action, decided.reason[:6]) == ("keep", "frozen")


def test_a_search_that_fails_leaves_filters_where_they_are() -> None:
    def failing(name: str, query: Query, known: FixedStatistics, batch: float) -> Choice:
        raise ZeroDivisionError

    run = many(Searches(waits=True))
    run.loop.rules = replace(run.loop.rules, decide=failing)
    with pytest.warns(UserWarning, match="a search for places of filters failed"):
        run.take(LATE, 8)
    assert (run.late, run.decided) == ((), [])


def test_a_record_says_what_both_places_cost() -> None:
    record = next(each for each in Run().take(LATE, 40).decided if each.action == "move").to_json()
    assert (record["kind"], record["late"], record["proposed"]) == ("filters", [], [DEAR])
    assert record["cost"]["cpu"] > record["proposedCost"]["cpu"]
    assert record["moveCost"] > 0
    assert record["filters"][0]["condition"] == DEAR


def sampled(partners: float) -> FilterRules:
    known = FixedStatistics(selectivities={"a b": partners / 10_000})
    return replace(Run().rules, sampled={ALONE: known})


def test_beside_a_mesh_filters_move_by_what_was_known_last_of_the_joins() -> None:
    """The mesh runs from the first batch on; of its joins the sample alone tells."""
    run = Run(rules=sampled(LATE.partners), running=one_route(compiled().graph)).take(LATE, 40)
    assert run.late == (DEAR,)
    # Combinations that reach the filter are counted, though nothing tells that rows have more partners now.
    assert not run.take(EARLY, 400).late
    assert len(run.moved_at) == 2
    # Where rows have many partners by all that is known, the filter stays.
    assert Run(rules=sampled(20.0), running=one_route(compiled().graph)).take(EARLY, 40).late == ()


def test_what_a_plan_has_measured_is_known_when_a_mesh_follows_it() -> None:
    def weighed(before: Truth) -> FiltersDecided:
        rules = replace(sampled(20.0), settings=replace(ADAPT, freeze=True))
        run = Run(rules=rules).take(before, 8)
        run.running = one_route(compiled().graph)
        return run.take(replace(before, share=0.5), 40).decided[-1]

    assert weighed(Truth(partners=0.01)).proposed == (DEAR,), "not what was sampled"
    assert weighed(Truth(partners=20.0)).proposed == ()


def test_what_a_mesh_takes_now_is_counted_and_a_mesh_that_saves_much_holds_the_filter() -> None:
    """The same streams and places: the counts of the mesh decide what there is to gain."""

    def cost(lookups: float) -> FiltersDecided:
        run = Run(rules=sampled(1.0), running=one_route(compiled().graph), lookups=lookups)
        return run.take(Truth(seconds=1e-6, partners=1.0), 8, moves=False).decided[0]

    cheap, usual, dear = cost(0.1), cost(1.0), cost(3.0)
    assert cheap.cost < usual.cost < dear.cost
    plain = Run().take(Truth(seconds=1e-6, partners=1.0), 8, moves=False).decided[0]
    assert usual.cost == pytest.approx(plain.cost, rel=0.3)


def test_slots_with_different_plans_are_weighed_by_their_counts() -> None:
    run = Run(rules=sampled(LATE.partners), slots=2).take(LATE, 40)
    assert run.late == (DEAR,)


BOTH = {"one": TEXT, "two": TEXT.replace("SELECT a.k AS k", "SELECT b.k AS k")}
WIDE = "SELECT a.note AS note, b.v AS v FROM a [RANGE 10 SECONDS], b [RANGE 10 SECONDS] WHERE a.k = b.k"


def several(late: Sequence[str], texts: Mapping[str, str]) -> dict[str, Query]:
    """Queries that run together; those that have the dear filter with it late, if it is."""
    return {name: compiled(late if "RLIKE" in text else (), text) for name, text in texts.items()}


GUESS = SeenFilter("a", DEAR, 0.5, 1e-7)


@dataclass
class SetRun:
    """Queries that run together on simulated batches, with their filter where the loop wants it."""

    texts: Mapping[str, str]
    seen: SeenFilter = GUESS
    late: tuple[str, ...] = ()
    decided: list[FiltersDecided] = field(default_factory=list)
    batch: int = 0

    def __post_init__(self) -> None:
        self.loop = self._loop()

    def _loop(self) -> FilterLoop:
        moving = frozenset(name for name, text in self.texts.items() if "RLIKE" in text)
        rules = FilterRules((self.seen,), partial(several, texts=self.texts), chosen, ADAPT, moving=moving)
        loop = filter_loop(together(several(self.late, self.texts)), rules)
        assert loop is not None
        return loop

    def take(self, truth: Truth, batches: int) -> SetRun:
        for _ in range(batches):
            self._step(truth)
            if (wanted := self.loop.wanted) is not None:
                assert wanted.plans.keys() == self.texts.keys()
                self.late, earlier = wanted.late, self.loop
                self.loop = self._loop()
                self.loop.go_on_from(earlier)
            self.batch += 1
        return self

    def _step(self, truth: Truth) -> None:
        queries = together(several(self.late, self.texts))
        is_early = queries.graph.relation("a").filter is not None and DEAR in str(queries.graph.relation("a").filter)
        known = FixedStatistics(
            rates={"a": RATE * truth.share if is_early else RATE, "b": 1_000.0},
            filters={"a": 1.0},
            selectivities={"a b": truth.partners / 10_000},
        )
        reached = round(RATE) if is_early else round(RATE * truth.partners)
        check = CheckStatistics(DEAR, reached, round(reached * truth.share), reached * truth.seconds)
        reports = {
            each.name: QueryReport(
                PLAN,
                statistics=replace(
                    steady_step(each.query, PLAN, known), checks=(check,) if each.query.late_filters else ()
                ),
            )
            for each in queries.members
        }
        report = SlotReport(reports, checked_early=(check,) if is_early else ())
        plans = dict.fromkeys(queries.names, (SlotPlan(PLAN),))
        table = partitioning_of(queries, 1)
        decided = self.loop.after(BatchFacts(self.batch, 1.0), plans, {0: report}, table, is_busy=False)
        if decided is not None:
            self.decided.append(decided)


def test_a_filter_that_queries_have_in_common_is_one_decision() -> None:
    run = SetRun(BOTH).take(LATE, 40)
    assert run.late == (DEAR,)
    assert run.take(EARLY, 400).late == ()
    assert [each.action for each in run.decided].count("move") == 2


def test_rows_that_another_query_wants_anyway_cost_nothing_more() -> None:
    """The filter rejects nearly all: alone it spares the host these rows, beside a query that wants them it does not.

    There it is a term of its query, which nobody counts before the joins; what was sampled of it holds.
    """
    truth = Truth(share=0.01, seconds=6e-7, partners=0.01)
    seen = SeenFilter("a", DEAR, truth.share, truth.seconds)
    assert SetRun({"one": TEXT}, seen).take(truth, 200).late == ()
    assert SetRun({"one": TEXT, "wide": WIDE}, seen).take(truth, 200).late == (DEAR,)


def test_what_was_learnt_of_filters_stays_when_a_query_joins() -> None:
    run = SetRun({"one": TEXT}).take(Truth(share=0.3), 8)
    later = SetRun(BOTH)
    later.loop.go_on_from(run.loop)
    assert later.loop._learnt[DEAR].share == pytest.approx(0.3)
    assert later.loop._baseline is None, "of other queries"
