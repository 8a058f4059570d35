"""Runs of the experiments on policies: one workload, all policies, and the best course in hindsight.

Every policy is the product's own loop with other settings, and begins with the plan that a sample of the first batches
proposes. Meshes are left out: which one is found depends on measured costs. So the same seed gives the same decisions.
The policies that watch memory have `ROOM` times the bytes that the first plan holds once its windows are full.

*In hindsight* means the course of least work among all that change between the static plans at the end of any batch,
as often as pays, by moving state. The course is found by the work of every batch under every static plan, and by what a
change would have to compute: the rows that entered the lacking states of the new plan and have not expired. It is then
run, as scheduled changes, and what counts is the work of that run.

Limit: which share of the rows of a state has expired is estimated, as if partners lay evenly in their windows. That is
within a few hundredths while the streams stay, and too low by up to a half right after a change.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import inf
from typing import TypeAlias

import pyarrow as pa

from anabranch.adapt.policy import DataDriven, MemoryDriven, Periodic, RefinedMemoryDriven
from anabranch.adapt.rules import NO_RULES, ChangeRules, Criteria, Switch
from anabranch.adapt.settings import Settings
from anabranch.optimize.choice import choose
from anabranch.optimize.hints import Objective
from anabranch.optimize.problem import Problem
from anabranch.optimize.proposals import Budget, Proposal
from anabranch.plan.difference import match_states
from anabranch.plan.physical import PhysicalPlan
from anabranch.plan.query import Query
from anabranch.plan.text import parse
from anabranch.run.local import LocalHost
from lab.counting import RECOMPUTED, Counted, Counter
from lab.regret_runs import SAMPLED, AnyWorkload, fingerprint, sample_of
from lab.regret_workloads import WINDOW

STAY, AT_ONCE, PRODUCT, HINDSIGHT = "stay", "at once", "product", "hindsight"
POLICIES: Mapping[str, Settings] = {
    AT_ONCE: Settings(foresight=False),
    "periodic": Settings(policy=Periodic()),
    "eager": Settings(policy=DataDriven(eager=True)),
    "memory": Settings(policy=MemoryDriven()),
    "refined memory": Settings(policy=RefinedMemoryDriven()),
    PRODUCT: Settings(),
}
"""The settings of each policy. `at once` takes the best plan as soon as the gate lets it, with the gate's fixed
horizon; all others weigh the whole front."""
ROOM = 1.5
CHAIN_PLANS = tuple(
    map(
        parse,
        ("((a b) c)", "(a (b c))", "(a b c | a>b>c, b>a>c, c>b>a)", "(a b c | a>b>c, b>c>a, c>b>a)"),
    )
)
"""All plans of a chain of three streams that have no product of two streams."""
Rows: TypeAlias = Sequence[Mapping[str, pa.Table]]


@dataclass(frozen=True)
class Course:
    """One run."""

    batches: tuple[Counted, ...]
    results: int
    answer: int
    """The fingerprint of the results."""
    searches: int = 0
    """Decisions for which an optimizer was asked."""

    @cached_property
    def work(self) -> float:
        return sum(each.work for each in self.batches)

    @cached_property
    def migrating(self) -> float:
        """The part of the work that only changes of plan needed."""
        return sum(each.migrating for each in self.batches)

    @cached_property
    def changes(self) -> int:
        return sum(each.began for each in self.batches)


class Walk:
    """A run under way; runs of one workload take each batch in turn."""

    def __init__(self, query: Query, plan: PhysicalPlan, batch: float, rules: ChangeRules = NO_RULES) -> None:
        """A batch has so many seconds."""
        self.host = LocalHost(query, plan, rules=rules)
        self._counter = Counter(query, plan, batch)
        self._counted: list[Counted] = []
        self._results = self._answer = 0

    def step(self, rows: Mapping[str, pa.Table]) -> None:
        found = self.host.step(rows)
        self._counted.append(self._counter.after(self.host))
        self._results += found.num_rows
        self._answer = (self._answer + fingerprint(found)) % (1 << 64)

    @property
    def course(self) -> Course:
        origins = [record.get("origin") for record in self.host.history if record["kind"] == "decision"]
        return Course(tuple(self._counted), self._results, self._answer, origins.count("optimizer"))


def walked(walks: Mapping[str, Walk], rows: Rows) -> dict[str, Course]:
    """The courses of several runs, which take each batch in turn."""
    for batch in rows:
        for walk in walks.values():
            walk.step(batch)
    return {name: walk.course for name, walk in walks.items()}


def first_plan(query: Query, workload: AnyWorkload, rows: Rows) -> PhysicalPlan:
    """The plan that a sample of the first batches proposes."""
    sample = sample_of(query, rows[:SAMPLED], workload.batch)
    answer = choose(Problem(query.graph, sample.statistics, batch=workload.batch)).answer
    return answer.plan if isinstance(answer, Proposal) else answer.best


def adapting(settings: Settings, memory: float = inf) -> ChangeRules:
    """The rules of a policy; one that watches memory has a limit.

    A batch waits for its searches, so that the same rows give the same decisions.
    """
    if not isinstance(settings.policy, MemoryDriven):
        return ChangeRules(settings, waits=True)
    criteria = Criteria(budget=Budget(memory=memory), objective=Objective("cpu"))
    return ChangeRules(settings, criteria, waits=True)


@dataclass(frozen=True)
class Compared:
    """All runs of one workload."""

    workload: str
    fixed_plans: Mapping[str, Course]
    """By plan."""
    policies: Mapping[str, Course]
    """By name, with the one that stays and the one in hindsight."""

    @property
    def best_static(self) -> float:
        """The least work of a plan that stays."""
        return min(course.work for course in self.fixed_plans.values())

    @property
    def is_exact(self) -> bool:
        """True when all runs had the same results."""
        courses = (*self.fixed_plans.values(), *self.policies.values())
        return len({(course.results, course.answer) for course in courses}) == 1

    def over_hindsight(self, policy: str) -> float:
        """Work of a policy over that of the best course in hindsight."""
        return self.policies[policy].work / self.policies[HINDSIGHT].work


def compared(workload: AnyWorkload, rows: Rows, plans: Sequence[PhysicalPlan] = CHAIN_PLANS) -> Compared:
    """Runs every plan that stays, every policy, and then the best course in hindsight."""
    query, seconds = workload.query, workload.batch
    first = first_plan(query, workload, rows)
    fixed_plans = walked({str(plan): Walk(query, plan, seconds) for plan in plans}, rows)
    stays = walked({STAY: Walk(query, first, seconds)}, rows)
    memory = ROOM * stays[STAY].batches[min(WINDOW, len(rows)) - 1].state_bytes
    walks = {name: Walk(query, first, seconds, adapting(settings, memory)) for name, settings in POLICIES.items()}
    policies = stays | walked(walks, rows)
    schedule = in_hindsight(plans, fixed_plans)
    begins, *later = schedule
    switches = tuple(Switch(at, plan, "moving-state") for at, plan in later)
    best = walked({HINDSIGHT: Walk(query, begins[1], seconds, ChangeRules(switches=switches))}, rows)
    return Compared(workload.name, fixed_plans, {**policies, **best})


def in_hindsight(plans: Sequence[PhysicalPlan], fixed_plans: Mapping[str, Course]) -> list[tuple[int, PhysicalPlan]]:
    """The plans of the course of least work, each with the batch from which on it runs; the first runs from batch 0."""
    lacking = {
        (old, new): match_states(plans[old], plans[new]).recomputed
        for old in range(len(plans))
        for new in range(len(plans))
        if old != new
    }
    courses = [fixed_plans[str(plan)].batches for plan in plans]
    totals = [course[0].work for course in courses]
    came: list[list[int]] = []
    for number in range(1, len(courses[0])):
        after, before = [], []
        for new, course in enumerate(courses):
            ways = {
                old: totals[old] + RECOMPUTED * sum(live(course, name, number) for name in lacking.get((old, new), ()))
                for old in range(len(plans))
            }
            # Staying comes first: of equal courses the one with fewer changes.
            least, _, best = min((cost, old != new, old) for old, cost in ways.items())
            after.append(least + course[number].work)
            before.append(best)
        totals = after
        came.append(before)
    at = totals.index(min(totals))
    places = [at]
    for before in reversed(came):
        at = before[at]
        places.append(at)
    places.reverse()
    return [(number, plans[place]) for number, place in enumerate(places) if not number or place != places[number - 1]]


def live(course: Sequence[Counted], state: str, number: int) -> float:
    """Rows of a state that have not expired when a batch begins: a combination expires with its oldest row.

    What has expired is known from the batches before the latest one, so windows are longer by a batch.
    """
    lately = course[max(0, number - WINDOW - 1) : number]
    ages = range(len(lately) - 1, -1, -1)
    shares = (min(1.0, (WINDOW + 0.5 - age) / WINDOW) for age in ages)
    return sum(each.entered[state] * share for each, share in zip(lately, shares, strict=True))
