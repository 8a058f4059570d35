"""Who steers the plans of a set of queries."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from anabranch.adapt.loop import Means
from anabranch.adapt.memory import Memory
from anabranch.adapt.records import Record
from anabranch.adapt.settings import Settings
from anabranch.errors import BundleError, MigrationError
from anabranch.host.meshing import Staging
from anabranch.host.steering import Steering, Switch
from anabranch.plan.mesh import Plan, parse_plan
from anabranch.plan.partitioning import Partitioning
from anabranch.plan.query import Query
from anabranch.plan.query_set import ALONE, Plans, QuerySet
from anabranch.plan.slots import SlotPlan, SlotPlans
from anabranch.stats.report import SlotReports


@dataclass(frozen=True)
class Course:
    """What may change the plan of a query while it runs."""

    adapt: Settings | None = None
    means: Means | None = None
    switches: tuple[Switch, ...] = ()
    staging: Staging | None = None
    """When slots look for a mesh; never when None."""
    goes_on: bool = False
    """Whether a restart begins with the plan that the last batch had, and not with the one it is given."""


class SetSteering:
    """The steering of each query of a run; their records bear the query's name where there are several."""

    def __init__(self, each: Mapping[str, Steering]) -> None:
        self.each = each

    @property
    def plans(self) -> SlotPlans:
        """The plans of the latest batch."""
        return {name: steering.plans for name, steering in self.each.items()}

    @property
    def most_plans(self) -> Plans:
        """The plan of each query that most slots have."""
        return Plans({name: steering.plan for name, steering in self.each.items()})

    @property
    def is_named(self) -> bool:
        """Whether the queries are known by name: true unless a query runs alone."""
        return ALONE not in self.each

    def of_query(self, name: str | None) -> Steering:
        """The steering of the query of that name; a query that runs alone has none."""
        if not self.is_named:
            if name is not None:
                hint = "a query that runs alone needs no name"
                raise MigrationError(f"there is no query '{name}' to change", hint=hint)
            return self.each[ALONE]
        if name is None or name not in self.each:
            raise BundleError(
                "no query is named whose plan should change" if name is None else f"no query is named '{name}'",
                hint=f"queries that run together are told apart by name: {', '.join(self.each)}",
            )
        return self.each[name]

    def freeze(self, frozen: bool = True) -> None:
        """Keeps all queries from changing their plans by themselves, or lets them again."""
        for steering in self.each.values():
            steering.freeze(frozen)

    @property
    def memory(self) -> Memory:
        """What the loops of each query have learnt."""
        return Memory({name: steering.memory for name, steering in self.each.items()})

    def recall(self, memory: Memory) -> None:
        """Gives each query what it has learnt in an earlier run."""
        for name, steering in self.each.items():
            steering.recall(memory.queries.get(name, {}))

    def next(self, batch: int) -> tuple[SlotPlans, list[Record]]:
        """The plans for a batch, and records of what could not be done."""
        plans: dict[str, tuple[SlotPlan, ...]] = {}
        refused: list[Record] = []
        for name, steering in self.each.items():
            plans[name], own = steering.next(batch)
            refused += [replace(record, query=name or None) for record in own]
        return plans, refused

    def after(
        self,
        batch: int,
        reports: SlotReports,
        seconds: float | None,
        waiting: int | None,
        behind: float | None = None,
    ) -> list[Record]:
        """What is to be told of a batch that was committed."""
        records: list[Record] = []
        for name, steering in self.each.items():
            own = {slot: report.queries[name] for slot, report in reports.items()}
            found = steering.after(batch, own, seconds, waiting, behind)
            records += [replace(record, query=name or None) for record in found]
        return records


def make_steering(
    queries: QuerySet, plans: Plans, partitioning: Partitioning, course: Course | Mapping[str, Course]
) -> SetSteering:
    """Who steers the queries of a set: each by the course of its name, or all by the one given."""
    courses = dict.fromkeys(queries.names, course) if isinstance(course, Course) else course
    return SetSteering(
        {
            member.name: _steering(member.query, plans[member.name], partitioning, courses[member.name])
            for member in queries.members
        }
    )


def _steering(query: Query, plan: Plan, partitioning: Partitioning, course: Course) -> Steering:
    adapt, means, switches, staging = course.adapt, course.means, course.switches, course.staging
    return Steering(query, plan, partitioning, adapt=adapt, means=means, switches=switches, staging=staging)


def resumed(plans: Plans, course: Course | Mapping[str, Course], left: Mapping[str, str]) -> Plans:
    """The plans to begin with after a batch that left some plans: queries that go on take the plan of that batch."""
    begin = dict(plans.plans)
    for name, text in left.items():
        if name in begin and (course if isinstance(course, Course) else course[name]).goes_on:
            begin[name] = parse_plan(text)
    return Plans(begin)
