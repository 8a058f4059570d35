"""The experiments on policies: streams are values, every run has the batch answer, and hindsight is the least work."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from statistics import mean

import pyarrow as pa
import pytest

pytest.importorskip("pyspark")

from anabranch.adapt.facts import Interval
from anabranch.adapt.gate import Gate
from anabranch.adapt.rules import NO_RULES, ChangeRules, Switch
from anabranch.adapt.settings import Settings
from anabranch.plan.text import parse
from lab import counting, migration_boxes, policies
from lab.counting import RECOMPUTED, Counted
from lab.policy_runs import (
    CHAIN_PLANS,
    HINDSIGHT,
    POLICIES,
    STAY,
    Course,
    Walk,
    adapting,
    compared,
    in_hindsight,
    live,
    walked,
)
from lab.policy_workloads import CHANGES, FIRST, SECOND, Pattern, chain_of, patterns
from lab.registry import Setting
from lab.regret_runs import fingerprint
from lab.regret_workloads import BATCH, Size
from tests.support.oracle import batch_answer

LEFT, RIGHT = CHAIN_PLANS[:2]
LIVELY = Gate(ratio=1.0, cores=0.0, cool_down=Interval(batches=1))
"""Lets a change of plan pass however little it saves, so that few rows suffice."""


# --- streams ----------------------------------------------------------------------------------------------------------


def test_every_kind_of_change_comes_at_every_interval() -> None:
    several = patterns((0.5, 2.0))
    assert len({each.name for each in several}) == len(several) == 1 + 2 * (len(CHANGES) - 1)


@pytest.mark.parametrize("pattern", patterns((0.5, 2.0)), ids=lambda each: each.name)
def test_the_fan_outs_follow_from_the_seed(pattern: Pattern) -> None:
    one, same, other = (pattern.fan_outs(seed, 90) for seed in (1, 1, 2))
    assert one == same
    assert len(one) == 90
    assert one[0] == FIRST
    assert (one != other) == (pattern.change in ("random", "bursts"))


def test_periodic_streams_change_places_after_every_interval() -> None:
    lengths = [len(list(group)) for _, group in groupby(Pattern("periodic", 0.5).fan_outs(1, 30))]
    assert lengths == [5] * 6


def test_random_phases_are_as_long_as_the_interval_on_average() -> None:
    phases = [len(list(group)) for _, group in groupby(Pattern("random", 2.0).fan_outs(1, 20_000))]
    assert mean(phases) == pytest.approx(20, rel=0.1)


def test_bursts_are_short_and_turn_back() -> None:
    found = Pattern("bursts", 2.0).fan_outs(1, 2_000)
    assert {*found} == {FIRST, SECOND}
    assert found.count(SECOND) / len(found) == pytest.approx(4 / 24, rel=0.3)


def test_a_batch_has_its_own_fan_outs() -> None:
    pattern = Pattern("periodic", 0.5)
    workload = pattern.workload(1, 20)
    rows = list(workload.batches(1, Size(20, 50)))
    ranges = [batch["a"]["r"].to_numpy().max() for batch in rows]
    # A row that meets few has keys of a large domain.
    is_first = [each == FIRST for each in pattern.fan_outs(1, 20)]
    assert [keys > 500 for keys in ranges] == is_first


# --- counting ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def rows() -> list[dict[str, pa.Table]]:
    return list(Pattern("periodic", 1.0).workload(3, 36).batches(3, Size(36, 60)))


def course(rows: Sequence[dict[str, pa.Table]], plan: str, rules: ChangeRules = NO_RULES) -> Course:
    query = Pattern("never").workload(1, 1).query
    return walked({"": Walk(query, parse(plan), BATCH, rules)}, rows)[""]


@pytest.mark.parametrize("strategy", ["moving-state", "parallel-track", "spread"])
def test_a_run_that_changed_does_the_work_of_its_new_plan(rows: list[dict[str, pa.Table]], strategy: str) -> None:
    old, new = course(rows, str(LEFT)), course(rows, str(RIGHT))
    switch = Switch(15, RIGHT, strategy)
    changed = course(rows, str(LEFT), ChangeRules(switches=(switch,)))
    during = [number for number, each in enumerate(changed.batches) if each.is_changing]
    assert during[0] == 15
    assert [each.began for each in changed.batches].index(True) == 15
    after = during[-1] + 1
    assert [each.work for each in changed.batches[:15]] == [each.work for each in old.batches[:15]]
    # Chains of candidates keep the order in which rows entered, so a few lookups pass one candidate more or less.
    expected = [each.work for each in new.batches[after:]]
    assert [each.work for each in changed.batches[after:]] == pytest.approx(expected, rel=1e-3)
    assert all(each.migrating > 0 for each in (changed.batches[number] for number in during[:1]))
    assert all(changed.batches[at].work > min(old.batches[at].work, new.batches[at].work) for at in during)
    assert changed.migrating < changed.work
    if strategy == "moving-state":
        computed = changed.batches[15].work - new.batches[15].work
        assert computed == pytest.approx(changed.batches[15].migrating, rel=0.01)


def test_a_state_of_both_plans_counts_while_it_is_filled_by_the_old_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the joins of the old plan put into it has no counts of its own; here such a row is all that costs."""
    monkeypatch.setattr(counting, "KEPT", 1.0)
    workload = chain_of("", "abcd", [(1.5, 1.2, 1.5)] * 30)
    rows = list(workload.batches(1, Size(30, 300)))
    old, new = parse("(((a b) c) d)"), parse("((a (b c)) d)")
    switches = (Switch(24, new, "spread"),)
    walks = {
        "still": Walk(workload.query, old, BATCH),
        "spread": Walk(workload.query, old, BATCH, ChangeRules(switches=switches)),
    }
    courses = walked(walks, rows)
    still, spread = courses["still"].batches, courses["spread"].batches
    during = [number for number, each in enumerate(spread) if each.is_changing]
    assert len(during) > 1
    # The last of them runs the new plan already, which counts by itself.
    for number in during[:-1]:
        assert spread[number].work >= still[number].entered["((a b) c)"] > 100
    assert all(each.work < 1 for each in (*spread[:24], *spread[during[-1] :]))


@pytest.mark.parametrize(("pattern", "most"), [(Pattern("never"), 0.05), (Pattern("periodic", 1.0), 0.5)])
def test_what_a_change_computes_is_estimated(pattern: Pattern, most: float) -> None:
    rows = list(pattern.workload(3, 24).batches(3, Size(24, 200)))
    new = course(rows, str(RIGHT))
    changed = course(rows, str(LEFT), ChangeRules(switches=(Switch(22, RIGHT, "moving-state"),)))
    assert live(new.batches, "(b c)", 22) * RECOMPUTED == pytest.approx(changed.batches[22].migrating, rel=most)


def test_rows_of_both_plans_are_held_while_they_run_side_by_side(rows: list[dict[str, pa.Table]]) -> None:
    changed = course(rows, str(LEFT), ChangeRules(switches=(Switch(15, RIGHT, "parallel-track"),)))
    assert {"(b c)", "old (a b)"} <= {*changed.batches[16].states}


# --- policies ---------------------------------------------------------------------------------------------------------


def test_every_run_has_the_batch_answer() -> None:
    workload = Pattern("random", 1.0).workload(5, 40)
    batches = list(workload.batches(5, Size(40, 40)))
    query = workload.query
    answer = batch_answer(query, {name: pa.concat_tables([each[name] for each in batches]) for name in "abc"})
    columns = list(zip(*answer.elements(), strict=True))
    table = pa.table({output.name: pa.array(column) for output, column in zip(query.outputs, columns, strict=True)})
    settings = {"product": Settings(gate=LIVELY), "at once": Settings(gate=LIVELY, foresight=False)}
    walks = {name: Walk(query, LEFT, BATCH, adapting(each)) for name, each in settings.items()}
    switches = tuple(Switch(at, CHAIN_PLANS[at % 4], "auto") for at in range(5, 40, 5))
    walks["scheduled"] = Walk(query, LEFT, BATCH, ChangeRules(switches=switches))
    courses = walked(walks, batches)
    assert {name: (each.results, each.answer) for name, each in courses.items()} == dict.fromkeys(
        courses, (answer.total(), fingerprint(table))
    )
    assert courses["at once"].changes > 0
    assert courses["scheduled"].changes > 3


def test_all_policies_of_a_workload_are_compared() -> None:
    workload = Pattern("periodic", 2.0).workload(1, 60)
    found = compared(workload, list(workload.batches(1, Size(60, 100))))
    assert {*found.policies} == {STAY, HINDSIGHT, *POLICIES}
    assert found.is_exact
    best = found.policies[HINDSIGHT]
    assert best.work <= found.best_static * (1 + 1e-9)
    assert all(best.work <= each.work * (1 + 1e-9) for each in found.policies.values())


def static(works: Sequence[float], rows: int, state: str) -> Course:
    batches = tuple(Counted("", work, 0.0, {}, {state: rows}, 0, False, False) for work in works)
    return Course(batches, 0, 0)


@pytest.mark.parametrize(("rows", "changes"), [(0, [0, 4, 8]), (round(1.0 / RECOMPUTED), [0, 4]), (10**9, [0])])
def test_hindsight_changes_where_that_pays(rows: int, changes: list[int]) -> None:
    quiet, loud = [1.0] * 4, [3.0] * 4
    fixed_plans = {
        str(LEFT): static([*quiet, *loud, 1.0, 1.0, 1.0], rows, "(a b)"),
        str(RIGHT): static([*loud, *quiet, 1.5, 1.5, 1.5], rows, "(b c)"),
    }
    assert [at for at, _ in in_hindsight((LEFT, RIGHT), fixed_plans)] == changes


def test_the_course_in_hindsight_does_the_work_it_was_chosen_for(rows: list[dict[str, pa.Table]]) -> None:
    fixed_plans = {str(plan): course(rows, str(plan)) for plan in (LEFT, RIGHT)}
    schedule = [(0, LEFT), (14, RIGHT), (26, LEFT)]
    switches = tuple(Switch(at, plan, "moving-state") for at, plan in schedule[1:])
    run = course(rows, str(LEFT), ChangeRules(switches=switches))
    left, right = fixed_plans[str(LEFT)].batches, fixed_plans[str(RIGHT)].batches
    stays = sum(each.work for each in (*left[:14], *right[14:26], *left[26:]))
    moves = RECOMPUTED * (live(right, "(b c)", 14) + live(left, "(a b)", 26))
    assert run.work == pytest.approx(stays + moves, rel=0.02)


def test_some_patterns_can_be_run_by_themselves() -> None:
    assert {"never", "periodic 0.5 W", "bursts 8 W"} <= {*policies.cases()}


# --- boxes ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", migration_boxes.CASES, ids=lambda case: case.name)
def test_the_plans_between_two_plans_are_steps(case: migration_boxes.Case) -> None:
    assert len(case.steps) == {"two boxes": 2, "three boxes": 3, "overlapping": 3}[case.name]
    assert str(case.steps[-1]) == case.new


def test_every_way_of_changing_arrives_with_the_same_results(monkeypatch: pytest.MonkeyPatch) -> None:
    size = Size(migration_boxes.QUICK.batches, 20)
    monkeypatch.setattr(migration_boxes, "QUICK", size)
    found = migration_boxes.measure(Setting(quick=True, only=("two boxes", "overlapping")))
    ways = [each for several in found.ways.values() for each in several.values()]
    assert len(ways) == 12
    assert all(each.has_arrived and each.is_same for each in ways)
    two = found.ways["two boxes"]
    assert two["moving-state", "at once"].batches == 1
    assert two["moving-state", "box by box"].batches == 2
    assert two["parallel-track", "box by box"].batches > two["parallel-track", "at once"].batches
